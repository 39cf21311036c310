"""Options that `tammes train` refuses before anything is read or made."""

from dataclasses import fields
from math import isfinite

from tammes.cli.console import said
from tammes.cli.feeding import views_of
from tammes.cli.options import has_centroids, method_of, without_gpu
from tammes.cli.telling import summary_writer
from tammes.cli.train import Train, check_out
from tammes.errors import UserError, check_seed
from tammes.losses import WITH_CENTROIDS, find_miner
from tammes.training.presets import Recipe


def check(config: Train) -> None:
    """Refuse what cannot work before anything is made."""
    if config.resume is not None:
        names = [field.name for field in fields(Train) if field.name not in ("resume", "json")]
        changed = [name for name in names if said(config, name)]
        if changed:
            flag = "DATA" if changed[0] == "data" else "--" + changed[0].replace("_", "-")
            raise UserError(f"--resume goes on with the run's own options: leave out {flag}.")
    for name in ("epochs", "batch_size", "halve_every", "accumulate", "centroid_dim", "dim", "images_per_class"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    for name in ("rate", "backbone_rate", "proxy_rate", "momentum", "weight_decay", "shift", "views"):
        value = getattr(config, name)
        if value is not None and not isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} must be a finite number, got {value}.")
        if value is not None and not value >= 0:
            raise UserError(f"--{name.replace('_', '-')} must not be negative, got {value}.")
    for epoch in config.curve:
        if epoch < 1:
            raise UserError(f"--curve names epochs, from 1, got {epoch}.")
    check_seed("--seed", config.seed, bits=64)
    if config.momentum is not None and config.momentum >= 1:
        raise UserError(f"--momentum must be below 1, got {config.momentum}: steps would grow without end.")
    _check_new_classes(config)
    if config.start is not None and config.init_from is not None:
        raise UserError("--init-from says what the layers begin as: leave out --start.")
    if config.centroid_dim is not None and not config.class_layer:
        raise UserError("--centroid-dim is the size of the class layer, which --no-class-layer leaves out.")
    check_out(config)
    if config.cut is not None and config.train != "top":
        raise UserError("--cut says where the trained part begins: it is for --train top.")
    if config.views is not None and config.train not in ("top", "head"):
        raise UserError("--views says of how many crops activations are kept: it is for --train top or head.")
    _check_loss(config)
    if config.log_bound and config.loss not in WITH_CENTROIDS:
        raise UserError(f"--log-bound is for a loss with centroids, not for {config.loss}.")
    if config.tensorboard:
        summary_writer()


def _check_new_classes(config: Train) -> None:
    """Refuse what cannot go together where classes are to come, or have come."""
    if config.reserve_classes is not None:
        if config.reserve_classes < 0:
            raise UserError(f"--reserve-classes must not be negative, got {config.reserve_classes}.")
        if config.continue_from is None and config.loss not in WITH_CENTROIDS:
            raise UserError(
                f"--reserve-classes keeps centroids free, and --loss {config.loss} has none: leave it out, or use"
                f" --loss {' or '.join(WITH_CENTROIDS)}."
            )
        if config.weighting != "none":
            raise UserError("--weighting weighs classes by their images, and reserved ones have none: leave one out.")
    if config.compatible is not None:
        if config.continue_from is None:
            raise UserError("--compatible holds what another run has learned: name it by --continue-from RUN.")
        if not config.compatible > 0:
            raise UserError(f"--compatible is a weight above 0, got {config.compatible}.")
    if config.continue_from is None:
        return
    for name in ("init_from", "start"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"--continue-from says what the network begins as: leave out {flag}.")
    if config.out is None:
        raise UserError("--continue-from makes a new run: say where by --out.")


def _check_loss(config: Train) -> None:
    """Refuse what means nothing for the loss that was asked for."""
    method = method_of(config)
    method.parse(config.loss_options)
    if config.miner is not None:
        find_miner(config.miner).parse(config.miner_options)
    elif config.miner_options:
        raise UserError("--miner-options are those of a miner: add --miner pml:NAME, or drop them.")
    if config.centroids is not None and not has_centroids(config):
        other = " with this base: add --base discriminative" if method.bases else ""
        raise UserError(f"--centroids is for --loss {' or '.join(WITH_CENTROIDS)}, not for {config.loss}{other}.")
    if method.on == "features" and config.embedding == "last":
        raise UserError(f"--loss {config.loss} does not compare images by a class layer: drop --embedding last.")
    if method.on == "embedding" or (method.on == "features" and not has_centroids(config)):
        for flag, said in (
            ("--centroid-dim", config.centroid_dim is not None),
            ("--embedding last", config.embedding == "last"),
            ("--no-class-layer", not config.class_layer),
        ):
            if said:
                raise UserError(
                    f"--loss {config.loss} is computed on the {method.on}, without a class layer: drop {flag}."
                )
    for flag, given in (("--sampler", config.sampler), ("--images-per-class", config.images_per_class)):
        if method.mines and given is not None:
            raise UserError(f"--loss {config.loss} mines its batches itself: drop {flag}.")
    if config.images_per_class is not None and (config.sampler or "pk") != "pk":
        raise UserError("--images-per-class is for --sampler pk.")
    if config.images_per_class is not None and config.sampler is None and method.images_per_class == 1:
        raise UserError(f"--images-per-class is for --sampler pk, and --loss {config.loss} takes any batch: add it.")


def check_used(given: Train, config: Train) -> None:
    """Refuse what was typed and would change nothing, now that all else is known.

    Args:
        given: what was typed.
        config: the same with everything filled in.
    """
    if given.precision == "fp16" and without_gpu(config.device):
        raise UserError("--precision fp16 is for a GPU, and a CPU would leave it alone: use bf16, or leave it out.")
    if all(getattr(given, field.name) is not None for field in fields(Recipe)):
        return  # the whole recipe, as a run writes down its command, with what does not count
    if given.momentum is not None and config.optimizer != "sgd":
        raise UserError(
            f"--momentum is for --optimizer sgd, and this trains with {config.optimizer}: leave it out, or add"
            " --optimizer sgd."
        )
    if given.halve_every is not None and config.schedule != "halve":
        raise UserError(
            f"--halve-every is for --schedule halve, and this has {config.schedule}: leave it out, or add"
            " --schedule halve."
        )
    if given.backbone_rate is not None and config.train == "head":
        raise UserError("--backbone-rate is for what trains of the backbone, which --train head keeps as it is.")
    if config.train != "all" and views_of(config) == 0:
        for flag, moves in (("--shift", given.shift), ("--mirror", given.mirror)):
            if moves:
                raise UserError(
                    f"{flag} is for random crops, and --train {config.train} keeps the one in the centre of each image:"
                    " leave it out, or keep several, such as --views 4."
                )


def check_start(config: Train) -> None:
    """Refuse to keep what is not worth keeping, or so much that nothing trains."""
    if not config.keep_start:
        return
    if config.start == "random" and config.init_from is None and config.continue_from is None:
        raise UserError("--keep-start True keeps what --start finds: give --start pca or --start whiten.")
    if config.train == "head" and not config.class_layer:
        raise UserError("--keep-start True, --train head and --no-class-layer leave nothing to train: leave one out.")
    if config.train == "head" and method_of(config).on != "class layer":
        raise UserError(
            f"--keep-start True and --train head leave no layer to train: --loss {config.loss} is computed on the"
            " embedding, without a class layer. Leave one out."
        )
