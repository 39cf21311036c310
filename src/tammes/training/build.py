"""Build network, loss, objective, initialisation and optimizer from the configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.centroids import CENTROIDS
from tammes.errors import UserError, out_of_memory, unknown_name
from tammes.geometry import rms_norm
from tammes.io.console import working
from tammes.io.machine import TRAINING, images_at_once
from tammes.losses import DiscriminativeLoss, SoftmaxLoss, find_miner
from tammes.models.backbones import backbone
from tammes.models.backbones.base import Backbone
from tammes.models.backbones.module import of_module
from tammes.models.embedder import Embedder, EmbedderConfig, Embedding, load
from tammes.models.feature_cache import Frozen
from tammes.training.config import TrainConfig
from tammes.training.data import Data, size_of_epoch, training_batches
from tammes.training.loop import parameter_groups
from tammes.training.objectives import METHODS, Base, ClassLayer, Hold, Objective
from tammes.training.objectives.objective import batch_norms, is_trained
from tammes.training.objects import NONE, Objects
from tammes.training.run_folder import LAST, RunFolder, is_run
from tammes.training.verdict import is_epoch

MOST_FOR_INIT = 8192  # images used for the initialisation in closed form
FEW = 256  # images used to measure the norm of the embeddings


def build_backbone(config: TrainConfig, *, pretrained: bool = True) -> Backbone:
    """The backbone with its initial weights, reproducible by the seed.

    Args:
        pretrained: False leaves the weights random, if they are replaced later.
    """
    torch.manual_seed(config.seed)
    if config.objects.module is not None:
        wants = {"size": config.size, "shorter_side": config.shorter_side, "mean": config.mean, "std": config.std}
        return of_module(config.objects.module, **wants, pool=config.pool)  # type: ignore[arg-type]
    weights = config.weights if pretrained else "none"
    return backbone(config.backbone, weights=weights, pool=config.pool, form=config.weights_form, size=config.size)


def build_embedder(config: TrainConfig, made: Backbone, num_classes: int) -> Embedder:
    """The network before training: the backbone with new layers."""
    method = config.method
    heads = method.head_sizes(config.dim)
    if method.depths and not made.depths:
        raise UserError(
            f"`loss={config.loss!r}` uses features from several depths, which {config.backbone} does not offer. Use"
            " another backbone: googlenet, resnet18, …"
        )
    shape = EmbedderConfig(
        config.backbone,
        config.dim,
        config.class_outputs(num_classes) if config.class_layer and method.on == "class layer" else None,
        config.embedding,
        config.pool,
        heads,
        () if method.weigh is None else method.weigh(heads),
        made.depths if method.depths else (),
        config.weights_form,
        config.size,
    )
    torch.manual_seed((config.seed + 1) % 2**64)  # independent of how many numbers the backbone has drawn
    try:
        return Embedder(shape, backbone=made, eval_transform=config.objects.eval_transform)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            "out of memory: the network itself does not fit, for any batch size. Try a smaller `backbone`,"
            " `dim` or `centroid_dim`."
        ) from error


def freeze(config: TrainConfig, embedder: Embedder) -> Frozen | None:
    """Set `requires_grad` of all layers. If a part of the backbone is frozen, return the network in its two parts.

    The optimizer and the checkpoints depend on `requires_grad` only.
    """
    frozen = None if config.train == "all" else Frozen(embedder, cut_of(config, embedder))
    if not config.train_batch_norm:
        for layer in batch_norms(embedder.backbone):
            layer.requires_grad_(False)
    embedder.penultimate.requires_grad_(not config.keep_init)
    return frozen


def cut_of(config: TrainConfig, embedder: Embedder) -> str | None:
    """The lowest trainable module of the backbone; None if all of it is trainable, or none."""
    if config.train != "top":
        return None
    if config.cut is None and embedder.config.depths:
        return embedder.config.depths[0]  # features are taken from there up
    if config.cut is None and embedder.default_cut is None:
        raise UserError(
            f"{config.backbone} has no default cut: name one of its modules with `cut`, or use `train='all'`."
        )
    return config.cut or embedder.default_cut


def pretrained_embedder(config: TrainConfig) -> Embedder:
    """The network of a run before training, with its initial backbone and random new layers."""
    embedder = build_embedder(config, build_backbone(config), 2).eval()
    if config.source is not None:
        embedder.load_state_dict(matching(trained_embedder(config.source, config.objects), embedder))
    return embedder


def load_embedder(folder: Path, objects: Objects | None, embedding: Embedding | None = None) -> Embedder:
    """The network in a run folder, with the run's Python objects."""
    given = objects or NONE
    transform = given.eval_transform
    return load(folder, embedding=embedding, backbone=given.module, eval_transform=transform and transform.function)


def trained_embedder(folder: Path, objects: Objects = NONE, *, only_kept: bool = False) -> Embedder:
    """The trained network of another run: the one that was kept, or the last epoch if that is not a trained one.

    Raises:
        UserError: with `only_kept`, if the network that was kept is not a trained one.
    """
    verdict = (RunFolder(folder).read("results") or {}).get("verdict") if is_run(folder) else None
    if verdict is None or is_epoch(verdict["kept"]):
        return load_embedder(folder, objects)
    if only_kept:
        raise UserError(
            f"`compatible` keeps the embeddings of {folder} in place, and that run kept its {verdict['kept']}"
            " embedding, which is not trained. Leave out `compatible`."
        )
    return load_embedder(folder / LAST, objects)


def matching(source: Embedder, target: Embedder) -> dict[str, Tensor]:
    """The weights of another run's network, without its class layer if the classes differ."""
    theirs, ours = source.state_dict(), target.state_dict()
    for name in ("backbone", "dim", "pool"):
        one, other = (getattr(embedder.config, name) for embedder in (source, target))
        if one != other:
            raise UserError(f"`init_from` has {name} {one}, this run {other}. Use `{name}={one!r}`.")
    if source.config.form != target.config.form:
        raise UserError(
            f"`init_from` has the {source.config.form} form of {source.config.backbone}, this run the"
            f" {target.config.form} one. Use `weights='none'` and `weights_form={source.config.form!r}`."
        )
    if (source.config.heads, source.config.depths) != (target.config.heads, target.config.depths):
        raise UserError("`init_from` has a different number of heads: it must be a run with the same `loss`.")
    same = {name: tensor for name, tensor in theirs.items() if name in ours and tensor.shape == ours[name].shape}
    return ours | same


@torch.inference_mode()
def init_layers(config: TrainConfig, data: Data, objective: Objective, *, after: int = 0) -> None:
    """Initialise the new layers in closed form, unless they are random; scale them if the loss depends on their norm.

    Args:
        after: the epoch whose training images give the features; 0 before training.
    """
    embedder, loss, norm = objective.embedder, objective.loss, config.method.initial_norm
    if config.init != "random":
        with working("finding the new layers again" if after else "initialising the new layers"):
            features, labels = first_features(config, data, objective, after)
            embedder.init_from(features, None if config.init == "pca" else labels)
            if config.init == "ridge":
                labels = labels.to(features.device)
                objective.gain = embedder.init_class_layer(features, loss.targets_of(labels), norm or 1.0)  # type: ignore[operator]
                if isinstance(loss, SoftmaxLoss):
                    embedder.scale_outputs(loss.best_scale(embedder.outputs(features), labels))
    if norm is not None and config.init != "ridge":
        with working("measuring the norm of the embeddings"), leaving_no_trace(objective):
            objective.gain = norm / rms_norm(embedder.penultimate(_features(config, data, objective, FEW)[0])).item()
        for layer in embedder.embedding_layers():
            layer.weight *= objective.gain


@torch.inference_mode()
def first_features(config: TrainConfig, data: Data, objective: Objective, epoch: int = 0) -> tuple[Tensor, Tensor]:
    """Current features of training images with their labels, for an initialisation in closed form."""
    objective.eval()
    found = _features(config, data, objective, MOST_FOR_INIT, epoch)
    objective.train()
    return found


def _features(
    config: TrainConfig, data: Data, objective: Objective, most: int, epoch: int = 0
) -> tuple[Tensor, Tensor]:
    """Features and labels of about `most` training images, or of all."""
    rows, of, seen = [], [], 0
    device, in_bf16 = objective.embedder.mean.device, config.precision == "bf16"
    for inputs, labels, _ in training_batches(config, data, epoch):
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16):  # as in training, which halves the time
            rows.append(objective.features(inputs.to(device)).float())
        of.append(labels)
        seen += len(labels)
        if seen >= most:
            break
    return torch.cat(rows), torch.cat(of)


@contextmanager
def leaving_no_trace(objective: nn.Module) -> Iterator[None]:
    """Run the network in training mode, then restore its buffers and the random state."""
    random, before = torch.get_rng_state(), {name: each.clone() for name, each in objective.named_buffers()}
    yield
    for name, tensor in objective.named_buffers():
        tensor.copy_(before[name])
    torch.set_rng_state(random)


def build_loss(config: TrainConfig, data: Data, embedder: Embedder) -> nn.Module:
    """The loss of the configuration. Raises UserError for options that it does not have."""
    method, options = config.method, config.options_of_loss()
    classes, dim = data.num_slots, embedder.config.class_dim or embedder.config.dim
    given: dict[Any, Any] = {"num_classes": classes, "dim": dim, "base": _base(config, classes)}
    given |= {"heads": embedder.config.heads, "features": embedder.new_layers()[0].in_features}
    if method.on == "class layer" and "num_classes" in method.takes and dim != classes:
        wrong = "`class_layer=False`" if embedder.config.class_dim is None else "`centroid_dim`"
        raise UserError(f"`loss={config.loss!r}` needs one output per class: {classes}, not {dim}. Drop {wrong}.")
    if "centroids" in method.takes:
        given["centroids"] = _centroids(config.centroids, classes, dim, config.seed)
    if "class_sizes" in method.options:
        sizes = np.bincount(data.labels, minlength=classes)
        if config.sampler == "balanced":
            sizes = np.where(sizes > 0, sizes.max(), 0)  # the sampler makes all classes as large as the largest
        options["class_sizes"] = sizes.tolist()  # free centroids have no images
    torch.manual_seed(config.seed)  # for the initialisation of proxies and other parameters of the loss
    loss = method.make(given, options)
    if config.miner is not None:
        miner = find_miner(config.miner)
        loss.miner = miner.make({}, miner.parse(config.miner_options))
    _check_comparable(config, data, loss)
    if config.proxy_lr is not None and not list(loss.parameters()):
        raise UserError(f"`proxy_lr` is for the parameters of a loss, and {config.loss} has none: drop it.")
    return loss


def check_growth(config: TrainConfig, embedder: Embedder) -> None:
    """Raise UserError for `grow_from` with a network of a fixed input size, as most transformers are."""
    if config.grow_from is None:
        return
    size = size_of_epoch(config, embedder.size, 1)
    try:
        with torch.inference_mode(), leaving_no_trace(embedder):
            embedder.eval()(torch.zeros(1, len(embedder.mode), size, size))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"`grow_from={config.grow_from}` needs a backbone that accepts images of any size, and {config.backbone}"
            " does not: leave it out."
        ) from error


def _check_comparable(config: TrainConfig, data: Data, loss: nn.Module) -> None:
    """Raise UserError if batches have too few images of a class, so that the loss would silently be 0."""
    method = config.method
    fewest = getattr(loss, "fewest_per_class", 2 if method.mines or method.images_per_class > 1 else 1)
    if fewest == 1:
        return
    largest = int(np.bincount(data.labels).max())
    if largest < fewest:
        raise UserError(
            f"`loss={config.loss!r}` with these options compares {fewest} images of a class, and no training class has"
            f" more than {largest}. Add images, or choose a loss that takes any batch: tammes losses."
        )
    if config.sampler != "pk":
        return
    each, size = config.images_per_class or 1, config.batch_size
    if each < fewest:
        raise UserError(
            f"`loss={config.loss!r}` with these options needs {fewest} images or more of each class in a batch,"
            f" not {each}. Use `images_per_class={fewest}`."
        )
    if size < 2 * each:
        raise UserError(
            f"a batch of {size} holds only one class of {each} images, and `loss={config.loss!r}` compares classes."
            f" Use `batch_size={2 * each}` or more."
        )


def _base(config: TrainConfig, classes: int) -> Base | None:
    """The base loss of an objective that is built on one; None for a plain loss."""
    name = config.base
    if name is None:
        return None

    def discriminative(dim: int) -> nn.Module:
        outputs = config.class_outputs(classes) if config.class_layer else dim
        loss = DiscriminativeLoss(_centroids(config.centroids, classes, outputs, config.seed))
        return ClassLayer(dim, loss) if config.class_layer else loss

    other = METHODS.get(name)
    if name == "discriminative":
        return Base(name, discriminative)
    return Base(name, None if other is None else lambda _: other.make({}, {}))


def _centroids(kind: str, classes: int, dim: int, seed: int) -> Tensor | int:
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    if kind == "one-hot" and dim == classes:
        return classes  # needs no matrix product
    try:
        return CENTROIDS[kind](classes, dim, generator=torch.Generator().manual_seed(seed))
    except UserError as error:
        raise UserError(f"`centroids={kind!r}` with `centroid_dim={dim}`: {error}") from None


def build_objective(
    config: TrainConfig, embedder: Embedder, loss: nn.Module, frozen: Frozen | None, hold: Hold | None = None
) -> Objective:
    """The network with its loss.

    Args:
        frozen: the network in its two parts, if some layers of the backbone are frozen.
        hold: the term that keeps embeddings of old classes in place.
    """
    method = config.method
    return Objective(
        embedder,
        loss,
        features=None if frozen is None else frozen.above,
        sees=method.sees,
        on_features=method.on == "features",
        gathers=not method.per_image_loss,
        hold=hold,
    )


def at_once(config: TrainConfig, objective: Objective) -> int | None:
    """Images in one forward pass of a training step; None for a whole batch.

    A batch can be split if both network and loss treat images independently.
    """
    normalised = any(is_trained(layer) for layer in batch_norms(objective))
    if normalised or config.train != "all" or not config.method.per_image_loss:
        return None
    shape = objective.embedder
    return images_at_once(len(shape.mode) * shape.size**2, shape.mean.device, on_cpu=TRAINING)


def build_optimizer(config: TrainConfig, objective: Objective) -> torch.optim.Optimizer:
    """The optimizer of all parameters that require a gradient, as set by `freeze`."""
    method = config.method
    sgd = config.optimizer == "sgd"
    multiple = method.proxy_lr if sgd else 1.0
    groups = parameter_groups(
        [*objective.embedder.new_layers(), *(each for each in objective.modules() if isinstance(each, ClassLayer))],
        objective,
        lr=config.lr,
        backbone_lr=config.backbone_lr,
        weight_decay=config.weight_decay,
        proxies=objective.loss,
        proxy_lr=config.lr * multiple if config.proxy_lr is None else config.proxy_lr,
        proxy_decay=config.weight_decay if method.proxy_decay else 0.0,
    )
    if method.initial_norm is not None:
        # Scaling the weights down scales their gradients up. These learning rates give the steps that would result if
        # the embeddings were scaled after the layer instead. Adam's steps do not depend on the size of the gradient.
        weights = [layer.weight for layer in objective.embedder.embedding_layers()]
        groups = _with_steps(groups, weights, objective.gain**2 if sgd else objective.gain)
    # fused: one pass over memory instead of a dozen, also on a CPU.
    if sgd:
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)


def _with_steps(groups: list[dict[str, Any]], weights: list[Tensor], factor: float) -> list[dict[str, Any]]:
    """Move these weights to groups of their own, with `factor` times the learning rate and the same decay per step."""
    chosen, found, own = {id(each) for each in weights}, [], []
    for group in groups:
        parted = {mine: [each for each in group["params"] if (id(each) in chosen) == mine] for mine in (False, True)}
        found += [group | {"params": parted[False]}] if parted[False] else []
        steps = {"lr": group["lr"] * factor, "weight_decay": group["weight_decay"] / factor}
        own += [group | steps | {"params": parted[True]}] if parted[True] else []
    return found + own
