"""What a training is to be: the options with everything filled in, by preset and method."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch

from tammes.cli.train import Train
from tammes.data import is_omniglot
from tammes.errors import UserError
from tammes.io.console import say
from tammes.io.machine import multiplies_bfloat16
from tammes.losses import WITH_CENTROIDS, Method
from tammes.models.backbones.weights import form_of
from tammes.training.objectives import METHODS, find_method
from tammes.training.presets import recipe_of

MOST_OUTPUTS = 4096  # classes up to which the class layer has one output each
BEYOND = 512  # its outputs for more classes
DIM = 256  # of an embedding of images, where it is not said: the paper's


def resolved(config: Train) -> Train:
    """The options with everything filled in that is not left to the data."""
    characters = config.data == "glyphs" or is_omniglot(Path(config.data))
    paper = config.preset == "paper"  # the same whatever the machine
    photos = "googlenet" if paper else "resnet18"
    config = replace(config, backbone=config.backbone or ("conv4" if characters else photos))
    weights = config.weights or ("none" if config.backbone == "conv4" else "imagenet")
    if weights not in ("imagenet", "none"):
        weights = str(Path(weights).absolute())
    form = form_of(str(config.backbone), weights, config.weights_form)
    some = without_gpu(config.device) and weights != "none" and not paper
    config = replace(config, train=config.train or ("top" if some else "all"))
    if config.precision == "auto":
        config = replace(config, precision=_precision(config))
    # A run is resumed from any folder, so it remembers the whole path of what it needs.
    init_from, continue_from = (
        None if each is None else Path(each).absolute() for each in (config.init_from, config.continue_from)
    )
    config = replace(config, init_from=init_from, continue_from=continue_from)
    data = config.data if config.data == "glyphs" else str(Path(config.data).absolute())
    method = method_of(config)
    if method.bases:
        config = replace(config, base=base_of(config))
    kind = "-".join(each for each in (config.loss, config.base) if each is not None)
    kind = kind if not has_centroids(config) else f"{kind}-{recipe(config)['centroids']}"
    kind = kind.replace(":", "-")  # not every file system has it
    if config.sampler is None and not method.mines:
        config = replace(config, sampler="shuffled" if method.images_per_class == 1 else "pk")
    if config.sampler == "pk":
        config = replace(config, images_per_class=config.images_per_class or max(2, method.images_per_class))
    out = config.out or Path("runs") / f"{Path(config.data).name}-{kind}-{config.seed}"
    options = recipe(config)
    if method.mines and options["batch_size"] > 3 and options["batch_size"] % 3:
        options["batch_size"] -= options["batch_size"] % 3  # the record of the run says what a batch holds
        say(f"note: --loss {config.loss} takes whole triplets: batches of {options['batch_size']} images.")
    return replace(config, data=data, weights=weights, weights_form=form, out=out, dim=dim_of(config), **options)


def _precision(config: Train) -> Literal["no", "bf16"]:
    """bfloat16 where it is twice as fast (docs/decisions/0019-bfloat16-by-default.md): convolutions, on some CPUs."""
    faster = config.train != "head" and without_gpu(config.device) and multiplies_bfloat16()
    return "bf16" if faster else "no"


def without_gpu(device: str) -> bool:
    """Whether training is on a CPU, by what --device says."""
    return device == "cpu" or not torch.accelerator.is_available()


def method_of(config: Train) -> Method:
    """The loss that was asked for, and what it needs."""
    return find_method(config.loss, config.miner, config.base)


def base_of(config: Train) -> str | None:
    """What it is built on; None if it is a loss itself."""
    return config.base or next(iter(method_of(config).bases), None)


def has_centroids(config: Train) -> bool:
    """Whether distances to centroids are a part of what is trained by."""
    return config.loss in WITH_CENTROIDS or base_of(config) == "discriminative"


def dim_of(config: Train) -> int:
    return config.dim or method_of(config).dim or DIM


def recipe(config: Train) -> dict[str, Any]:
    """The preset's options, with those that were given in their place."""
    method = method_of(config)
    found = recipe_of(config.preset, str(config.backbone), config.train)
    found_at_pca = method.trains_embedding or method.on != "class layer" or method.rate != 1
    if config.train == "head" and found.start == "whiten" and found_at_pca:
        # The rates that losses declare were found from the principal directions; some diverge if they begin whitened.
        usual = recipe_of(config.preset, str(config.backbone), None)
        found = replace(found, start=usual.start, rate=usual.rate)
    if suited(config.optimizer or found.optimizer):
        found = replace(found, rate=found.rate * method.rate, backbone_rate=found.backbone_rate * method.rate)
    if method.trains_embedding:
        # A layer that trains does not begin whitened: docs/log.md.
        found = replace(found, keep_start=False, start="pca" if found.start == "whiten" else found.start)
    preset = asdict(found)
    return {name: value if getattr(config, name) is None else getattr(config, name) for name, value in preset.items()}


def suited(optimizer: str) -> bool:
    """Whether the rates that suit a loss are taken: not with Adam, whose steps do not depend on the size of a gradient.

    That of the paper's own loss is 1: under its preset it is trained to the letter.
    """
    return optimizer == "sgd"


def class_outputs(config: Train, num_classes: int) -> int:
    """How many outputs a class layer has."""
    one_each = num_classes <= MOST_OUTPUTS or not has_centroids(config) or recipe(config)["centroids"] == "one-hot"
    return config.centroid_dim or (num_classes if one_each else BEYOND)


def loss_options(config: Train) -> dict[str, Any]:
    """The options of the loss, by whichever flag they were given."""
    method = method_of(config)
    found = method.parse(config.loss_options)
    weighting = None if config.weighting == "none" else config.weighting
    for option, value in (("push", config.push), ("weighting", weighting), ("temperature", config.temperature)):
        if value is None:
            continue
        if option not in method.options:
            known = [name for name, each in METHODS.items() if option in each.options]
            raise UserError(f"--{option} is for --loss {' or '.join(known)}, not for {config.loss}.")
        if option in found:
            raise UserError(f"{option} is given twice: by --{option} and by --loss-options.")
        found[option] = value
    return found


def number_or_file(given: str | None) -> float | int | Path | None:
    """A fraction, a number of classes, or a file that lists them."""
    if given is None:
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return Path(given)
