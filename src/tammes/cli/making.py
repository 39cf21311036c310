"""What a training is made of: from the options to images, network, loss and optimizer."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.centroids import CENTROIDS
from tammes.cli.console import progress, say
from tammes.cli.train import Train
from tammes.datasets import Dataset, open_dataset
from tammes.embedder import Embedder, EmbedderConfig
from tammes.embeddings import embed
from tammes.errors import UserError, unknown_name
from tammes.loading import Batches, Decoded, batches, decode
from tammes.losses import LOSSES
from tammes.metrics import evaluate
from tammes.objectives import Objective
from tammes.presets import PRESETS
from tammes.splits import Split, relabel, split
from tammes.training import parameter_groups

MOST_OUTPUTS = 4096  # classes up to which the class layer has one output each
BEYOND = 512  # its outputs for more classes
RESTARTS = 3  # of K-means, for NMI and AMI


@dataclass(frozen=True)
class Data:
    """The images of a job: decoded, and which of them train, validate and test."""

    dataset: Dataset
    images: Decoded
    split: Split
    labels: np.ndarray  # of the training images, 0..classes-1
    class_names: tuple[str, ...]  # of these labels
    size: int  # height and width of what the network sees

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes by their use."""
        parts = {"train": self.split.train, "val": self.split.val, "test": self.split.test}
        return {
            use: [] if chosen is None else [self.dataset.class_names[n] for n in np.unique(self.dataset.labels[chosen])]
            for use, chosen in parts.items()
        }


def load_data(config: Train, classes: dict[str, list[str]] | None = None) -> Data:
    """The images of a job, decoded and split.

    Args:
        classes: those that a run was started with; an error if the data has others now.
    """
    dataset = open_dataset(config.data)
    held_out = _number(config.val_classes)
    if isinstance(held_out, Path):
        raise UserError(f"--val-classes must be a fraction or a number of classes, got {config.val_classes!r}.")
    test_classes = _number(config.test_classes)
    parts = split(dataset, test_classes=test_classes, val_classes=held_out or None, seed=config.seed)
    shape = make_embedder(replace(config, pretrained=False), 2)  # only to ask what images it wants
    images = decoded_for(shape, dataset, skip_bad=config.skip_bad)
    if len(images.bad):
        say(f"{len(images.bad)} images cannot be read and are left out: {images.reasons[0]} …")
    parts = replace(
        parts,
        train=images.without_bad(parts.train),
        val=None if parts.val is None else images.without_bad(parts.val),
        test=images.without_bad(parts.test),
    )
    for use, chosen in (("test", parts.test), ("validation", parts.val)):
        if chosen is not None and len(chosen) and np.bincount(dataset.labels[chosen]).max() < 2:
            raise UserError(f"every {use} class has one image only, so none could be found. Choose other classes.")
    labels, numbers = relabel(dataset.labels, parts.train)
    data = Data(dataset, images, parts, labels, tuple(dataset.class_names[number] for number in numbers), shape.size)
    if classes is not None and classes != data.classes():
        raise UserError(
            f"the classes in {config.data} are no longer those that the run was started with, so what it was trained on"
            " could be taken for a test. Put them back, or train anew."
        )
    return data


def decoded_for(embedder: Embedder, dataset: Dataset, *, skip_bad: bool) -> Decoded:
    """The images of a data set as a network wants them."""
    with progress("decoding images") as on_progress:
        return decode(
            dataset,
            mode=embedder.mode,
            shorter_side=embedder.shorter_side,
            on_progress=on_progress,
            skip_bad=skip_bad,
        )


def training_batches(config: Train, data: Data, epoch: int, rank: int = 0, world_size: int = 1) -> Batches:
    """One epoch of the training images."""
    options = recipe(config)
    return batches(
        data.images,
        data.split.train,
        data.labels,
        batch_size=options["batch_size"],
        crop=data.size,
        train=True,
        sampler=config.sampler,
        mirror=options["mirror"],
        padding=options["shift"],
        seed=config.seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
    )


def make_embedder(config: Train, num_classes: int) -> Embedder:
    """The network before training: the same weights for the same seed."""
    one_each = num_classes <= MOST_OUTPUTS or recipe(config)["centroids"] == "one-hot"
    outputs = config.centroid_dim or (num_classes if one_each else BEYOND)
    shape = EmbedderConfig(str(config.backbone), config.dim, outputs if config.class_layer else None, config.embedding)
    torch.manual_seed(config.seed)
    return Embedder(shape, pretrained=config.pretrained)


def untrained_embedder(config: Train) -> Embedder:
    """The network of a run as it was before training; of its backbone only, the new layers being random."""
    return make_embedder(config, 2).eval()


def make_loss(config: Train, data: Data, embedder: Embedder) -> nn.Module:
    """The loss that was asked for, with its centroids; options of another loss are refused, not ignored."""
    if config.loss not in LOSSES:
        raise unknown_name("loss", config.loss, LOSSES)
    kind = recipe(config)["centroids"]
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    classes, dim = data.num_classes, embedder.config.class_dim or embedder.config.dim
    generator = torch.Generator().manual_seed(config.seed)
    if kind == "one-hot" and dim == classes:
        points: Tensor | int = classes  # takes no matrix product
    else:
        points = CENTROIDS[kind](classes, dim, generator=generator)
    sizes = np.bincount(data.labels, minlength=classes).tolist()
    options: dict[str, Any] = {"push": config.push}
    if config.loss == "discriminative":
        options |= {"class_sizes": sizes, "weighting": config.weighting}
    elif config.weighting != "none":
        raise UserError(f"--weighting is for --loss discriminative, not for {config.loss}.")
    if config.loss == "hard-discriminative":
        options |= {"temperature": config.temperature}
    elif config.temperature != Train.temperature:
        raise UserError(f"--temperature is for --loss hard-discriminative, not for {config.loss}.")
    return LOSSES[config.loss](points, **options)


def make_optimizer(config: Train, objective: Objective) -> torch.optim.Optimizer:
    options = recipe(config)
    groups = parameter_groups(
        objective.embedder.new_layers(),
        objective,
        rate=options["rate"],
        backbone_rate=options["backbone_rate"],
        weight_decay=options["weight_decay"],
    )
    if options["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=options["rate"], momentum=options["momentum"])
    return torch.optim.AdamW(groups, lr=options["rate"])


def recipe(config: Train) -> dict[str, Any]:
    """The preset's options, with those that were given in their place."""
    preset = asdict(PRESETS[config.preset])
    return {name: value if getattr(config, name) is None else getattr(config, name) for name, value in preset.items()}


def evaluated(
    embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False, quick: bool = False
) -> dict[str, Any]:
    vectors = embed(embedder, data.images, indices, backbone_only=backbone_only)
    return measured(vectors, data.dataset.labels[indices], quick=quick)


def measured(vectors: np.ndarray, labels: np.ndarray, *, quick: bool = False) -> dict[str, Any]:
    """All metrics, or only the recalls if it must be quick; recall at 8 needs more than 8 images."""
    ks = tuple(k for k in (1, 2, 4, 8) if k < len(labels))
    clustering = not quick and len(np.unique(labels)) > 1
    # One seed with a few restarts: K-means is what takes the longest. `tammes evaluate` does more where it is asked to.
    return evaluate(
        vectors, labels, ks=ks, clustering=clustering, seeds=(0,), restarts=RESTARTS, bootstrap=0 if quick else 1000
    )


def _number(given: str | None) -> float | int | Path | None:
    """A fraction, a number of classes, or a file that lists them."""
    if given is None:
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return Path(given)
