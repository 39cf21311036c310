"""What a network is trained by: the loss of the options, what the new layers begin as, the optimizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.centroids import CENTROIDS
from tammes.cli.feeding import Data, training_batches
from tammes.cli.options import base_of, class_outputs, loss_options, method_of, recipe, suited
from tammes.cli.train import Train
from tammes.errors import UserError, unknown_name
from tammes.geometry import typical_length
from tammes.io.console import working
from tammes.losses import DiscriminativeLoss, find_miner
from tammes.models.embedder import Embedder
from tammes.training.loop import parameter_groups
from tammes.training.objectives import METHODS, Base, ClassLayer, Objective

MOST_TO_START = 8192  # images whose features decide the principal directions
FEW = 256  # images whose embeddings decide their norm


@torch.inference_mode()
def start_layers(config: Train, data: Data, objective: Objective) -> None:
    """Initialise the embedding layer where it is not random, or where the loss depends on the norm of embeddings."""
    embedder, start, norm = objective.embedder, recipe(config)["start"], method_of(config).initial_norm
    if start != "random":
        with working("initialising the new layers"):
            features, labels = first_features(config, data, objective)
            embedder.start_from(features, labels if start == "whiten" else None)
    if norm is not None:
        with working("measuring the norm of the embeddings"), without_trace(objective):
            objective.gain = (
                norm / typical_length(embedder.penultimate(_features(config, data, objective, FEW)[0])).item()
            )
        for layer in embedder.embedding_layers():
            layer.weight *= objective.gain


@torch.inference_mode()
def first_features(config: Train, data: Data, objective: Objective) -> tuple[Tensor, Tensor]:
    """Features of training images, as the network has them now, with their labels: what closed forms are found from."""
    objective.eval()
    found = _features(config, data, objective, MOST_TO_START)
    objective.train()
    return found


def _features(config: Train, data: Data, objective: Objective, most: int) -> tuple[Tensor, Tensor]:
    """Features of training images, and their labels; of about so many, or of all."""
    rows, of, seen = [], [], 0
    for inputs, labels, _ in training_batches(config, data, 0):
        rows.append(objective.features(inputs.to(objective.embedder.mean.device)))
        of.append(labels)
        seen += len(labels)
        if seen >= most:
            break
    return torch.cat(rows), torch.cat(of)


@contextmanager
def without_trace(objective: nn.Module) -> Iterator[None]:
    """Let the network compute as in training, and leave its statistics and what is random as they were."""
    random, before = torch.get_rng_state(), {name: each.clone() for name, each in objective.named_buffers()}
    yield
    for name, tensor in objective.named_buffers():
        tensor.copy_(before[name])
    torch.set_rng_state(random)


def make_loss(config: Train, data: Data, embedder: Embedder) -> nn.Module:
    """The loss that was asked for, made of what it takes; options of another loss are refused, not ignored."""
    method, options = method_of(config), loss_options(config)
    classes, dim = data.num_places, embedder.config.class_dim or embedder.config.dim
    given: dict[Any, Any] = {"num_classes": classes, "dim": dim, "base": _base(config, classes)}
    given |= {"heads": embedder.config.heads, "features": embedder.new_layers()[0].in_features}
    if method.on == "class layer" and "num_classes" in method.takes and dim != classes:
        wrong = "--no-class-layer" if embedder.config.class_dim is None else "--centroid-dim"
        raise UserError(f"--loss {config.loss} needs one output per class: {classes}, not {dim}. Drop {wrong}.")
    if "centroids" in method.takes:
        given["centroids"] = _centroids(recipe(config)["centroids"], classes, dim, config.seed)
    if "class_sizes" in method.options:
        sizes = np.bincount(data.labels, minlength=classes)
        if config.sampler == "balanced":
            sizes = np.where(sizes > 0, sizes.max(), 0)  # as large as the largest is what training sees
        options["class_sizes"] = sizes.tolist()  # free centroids have no images
    torch.manual_seed(config.seed)  # what it learns itself begins the same for the same seed
    loss = method.make(given, options)
    if config.miner is not None:
        miner = find_miner(config.miner)
        loss.miner = miner.make({}, miner.parse(config.miner_options))
    _check_batches(config, data, loss)
    if config.proxy_rate is not None and not list(loss.parameters()):
        raise UserError(f"--proxy-rate is for what a loss learns itself, and {config.loss} learns nothing: drop it.")
    return loss


def _check_batches(config: Train, data: Data, loss: nn.Module) -> None:
    """Refuse batches in which the loss would find nothing to compare, and be 0 without a word."""
    method = method_of(config)
    fewest = getattr(loss, "fewest_per_class", 2 if method.mines or method.images_per_class > 1 else 1)
    if fewest == 1:
        return
    largest = int(np.bincount(data.labels).max())
    if largest < fewest:
        raise UserError(
            f"--loss {config.loss} with these options compares {fewest} images of a class, and no training class has"
            f" more than {largest}. Add images, or choose a loss that takes any batch: tammes losses."
        )
    if config.sampler != "pk":
        return
    each, size = config.images_per_class or 1, recipe(config)["batch_size"]
    if each < fewest:
        raise UserError(
            f"--loss {config.loss} with these options needs {fewest} images or more of each class in a batch,"
            f" not {each}. Use --images-per-class {fewest}."
        )
    if size < 2 * each:
        raise UserError(
            f"a batch of {size} holds one class of {each} images only, and --loss {config.loss} compares classes."
            f" Use --batch-size {2 * each} or more."
        )


def _base(config: Train, classes: int) -> Base | None:
    """What a method is built on, where it is more than a loss: how that is made for an embedding of some length."""
    name = base_of(config)
    if name is None:
        return None

    def discriminative(dim: int) -> nn.Module:
        outputs = class_outputs(config, classes) if config.class_layer else dim
        loss = DiscriminativeLoss(_centroids(recipe(config)["centroids"], classes, outputs, config.seed))
        return ClassLayer(dim, loss) if config.class_layer else loss

    other = METHODS.get(name)
    if name == "discriminative":
        return Base(name, discriminative)
    return Base(name, None if other is None else lambda _: other.make({}, {}))


def _centroids(kind: str, classes: int, dim: int, seed: int) -> Tensor | int:
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    if kind == "one-hot" and dim == classes:
        return classes  # takes no matrix product
    try:
        return CENTROIDS[kind](classes, dim, generator=torch.Generator().manual_seed(seed))
    except UserError as error:
        raise UserError(f"--centroids {kind} with --centroid-dim {dim}: {error}") from None


def at_once(config: Train, objective: Objective) -> int | None:
    """Images that go through the network together in training; None: a whole batch.

    Pieces come to the same as the whole where every image is looked at on its own, by the network and by the loss.
    """
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in objective.modules())
    if normalised or config.train != "all" or not method_of(config).each_on_its_own:
        return None
    return objective.embedder.at_once


def make_optimizer(config: Train, objective: Objective) -> torch.optim.Optimizer:
    """The optimizer of what is marked as training: `networks.freeze` has decided that."""
    options = recipe(config)
    method = method_of(config)
    sgd = options["optimizer"] == "sgd"
    multiple = method.proxy_rate if suited(options["optimizer"]) else 1.0
    groups = parameter_groups(
        [*objective.embedder.new_layers(), *(each for each in objective.modules() if isinstance(each, ClassLayer))],
        objective,
        rate=options["rate"],
        backbone_rate=options["backbone_rate"],
        weight_decay=options["weight_decay"],
        proxies=objective.loss,
        proxy_rate=options["rate"] * multiple if config.proxy_rate is None else config.proxy_rate,
        proxy_decay=options["weight_decay"] if method.proxy_decay else 0.0,
    )
    if method.initial_norm is not None:
        # Of weights that are smaller by a factor, gradients are larger by it: such steps come to those of embeddings
        # that are scaled after the layer. Adam's are as long whatever the gradient.
        weights = [layer.weight for layer in objective.embedder.embedding_layers()]
        groups = _with_steps(groups, weights, objective.gain**2 if sgd else objective.gain)
    # Fused: one pass over the memory instead of a dozen, on a CPU too.
    if sgd:
        return torch.optim.SGD(groups, lr=options["rate"], momentum=options["momentum"], fused=True)
    return torch.optim.AdamW(groups, lr=options["rate"], fused=True)


def _with_steps(groups: list[dict[str, Any]], weights: list[Tensor], factor: float) -> list[dict[str, Any]]:
    """The groups, and these weights in one of their own: steps are `factor` times as long, decay is the same."""
    chosen, found, own = {id(each) for each in weights}, [], []
    for group in groups:
        parted = {mine: [each for each in group["params"] if (id(each) in chosen) == mine] for mine in (False, True)}
        found += [group | {"params": parted[False]}] if parted[False] else []
        steps = {"lr": group["lr"] * factor, "weight_decay": group["weight_decay"] / factor}
        own += [group | steps | {"params": parted[True]}] if parted[True] else []
    return found + own
