"""The network of a training, as it is before it."""

from pathlib import Path

import torch
from torch import Tensor

from tammes.cli.options import class_outputs, dim_of, method_of, recipe
from tammes.cli.train import Train
from tammes.errors import UserError, out_of_memory
from tammes.models.backbones import backbone
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.feature_cache import Frozen
from tammes.training.run_folder import LAST, Run, is_run
from tammes.training.verdict import is_epoch


def make_embedder(config: Train, num_classes: int) -> Embedder:
    """The network before training: the same weights for the same seed."""
    method = method_of(config)
    heads = method.head_sizes(dim_of(config))
    shape = EmbedderConfig(
        str(config.backbone),
        dim_of(config),
        class_outputs(config, num_classes) if config.class_layer and method.on == "class layer" else None,
        config.embedding,
        recipe(config)["pool"],
        heads,
        () if method.weigh is None else method.weigh(heads),
        _depths(config) if method.depths else (),
        config.weights_form,
    )
    torch.manual_seed(config.seed)
    try:
        return Embedder(shape, weights=config.weights or "none")
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            "out of memory: the network itself does not fit, whatever the size of a batch. Try a smaller --backbone,"
            " --dim or --centroid-dim."
        ) from error


def _depths(config: Train) -> tuple[str, ...]:
    """The parts of the backbone that features are taken from what enters them."""
    found = backbone(str(config.backbone)).depths
    if not found:
        raise UserError(
            f"--loss {config.loss} takes features from several depths, and {config.backbone} cannot be cut at two"
            " places far apart. Use another backbone: googlenet, resnet18, …"
        )
    return found


def freeze(config: Train, embedder: Embedder) -> Frozen | None:
    """Mark what of a network does not train. Where that is a part of the backbone, also return it in its two parts.

    Nothing else decides it: the optimizer, what is saved once and what each checkpoint holds follow from the marks.
    """
    frozen = None if config.train == "all" else Frozen(embedder, config.cut if config.train == "top" else None)
    embedder.penultimate.requires_grad_(not recipe(config)["keep_start"])
    return frozen


def untrained_embedder(config: Train) -> Embedder:
    """The network of a run as it was before training; of its backbone only, the new layers being random."""
    embedder = make_embedder(config, 2).eval()
    source = config.init_from or config.continue_from
    if source is not None:
        embedder.load_state_dict(matching(trained_embedder(source), embedder))
    return embedder


def trained_embedder(folder: Path, *, only_kept: bool = False) -> Embedder:
    """The network of another run as training left it: what was kept, or where that is not trained the last epoch.

    Raises:
        UserError: it must be what was kept, with which galleries were made, and that is not trained.
    """
    verdict = (Run(folder).read("results") or {}).get("verdict") if is_run(folder) else None
    if verdict is None or is_epoch(verdict["kept"]):
        return load(folder)
    if only_kept:
        raise UserError(
            f"--compatible holds the embeddings of {folder} in place, and that run kept its {verdict['kept']}"
            " embedding, which does not train. Leave out --compatible."
        )
    return load(folder / LAST)


def matching(source: Embedder, target: Embedder) -> dict[str, Tensor]:
    """The weights of another run's network; its class layer stays behind if the classes are others."""
    theirs, ours = source.state_dict(), target.state_dict()
    for name in ("backbone", "dim", "pool"):
        one, other = (getattr(embedder.config, name) for embedder in (source, target))
        if one != other:
            raise UserError(f"--init-from has {name} {one}, this run {other}. Say --{name} {one}.")
    if source.config.form != target.config.form:
        raise UserError(
            f"--init-from has the {source.config.form} form of {source.config.backbone}, this run the"
            f" {target.config.form} one. Say --weights none --weights-form {source.config.form}."
        )
    if (source.config.heads, source.config.depths) != (target.config.heads, target.config.depths):
        raise UserError("--init-from has another number of heads: it must be a run of the same --loss.")
    same = {name: tensor for name, tensor in theirs.items() if name in ours and tensor.shape == ours[name].shape}
    return ours | same
