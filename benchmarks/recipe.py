"""How our recipe was chosen: one row a change, on training classes that were held out.

    python -m benchmarks.recipe cars196 FOLDER --weights FILE [--only ROW …] [--views] [--mixed]
    python -m benchmarks.recipe --table

The first half of a data set's training classes trains, the second half is measured; test classes are not looked at.
Training is small (160 pixels, few epochs), as the rows are compared with each other only. A row that is stored is not
run again, a run that was stopped is resumed.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from benchmarks.cub import Stored
from benchmarks.page import recipe_rows
from benchmarks.stored import RESULTS as FOLDER
from tammes.data.batches import batches
from tammes.geometry import normalise
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.training.build import build_backbone
from tammes.training.config import resolve
from tammes.training.data import Data, load_data
from tammes.training.run_folder import is_run
from tammes.training.train import resume_images, train_images

RESULTS = FOLDER / "recipe.json"
BASE: dict[str, Any] = {"size": 160, "epochs": 2, "train": "all", "refit": False}
LONGER = {"epochs": 6}
ROWS: dict[str, dict[str, Any]] = {
    "pretrained": {},
    "2 epochs": {},
    "6 epochs": LONGER,
    "10 epochs": {"epochs": 10},
    "6 epochs, crop area 0.3": LONGER | {"crop_area": 0.3},
    "6 epochs, grow from 96": LONGER | {"grow_from": 96},
    "6 epochs, mean + max pooling": LONGER | {"pool": "mean-max"},
    "6 epochs, backbone lr 0.003": LONGER | {"backbone_lr": 0.003},
    "6 epochs, backbone lr 0.03": LONGER | {"backbone_lr": 0.03},
    "6 epochs, both lrs x 3": LONGER | {"lr": 0.3, "backbone_lr": 0.03},
    "6 epochs, 512-d": LONGER | {"dim": 512},
    "6 epochs, hard": LONGER | {"loss": "hard-discriminative"},
    "6 epochs, batch 64": LONGER | {"batch_size": 64},
    "6 epochs, weight decay 0": LONGER | {"weight_decay": 0.0},
    "head": {"train": "head", "epochs": 10},
    "top, one view": {"train": "top", "views": 1},
    "top, four views": {"train": "top"},
    "top from inception 4a, one view": {"train": "top", "views": 1, "cut": "inception_4a"},
}


@dataclass(frozen=True)
class Options:
    """Train the rows that have no figure yet, or print the table."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """What the data set is called in the table."""
    folder: Annotated[Path | None, tyro.conf.Positional] = None
    """Where it is."""
    weights: str = "imagenet"
    backbone: str = "googlenet"
    only: tuple[str, ...] = ()
    """Rows of these names."""
    views: bool = False
    """Also measure the trained network at 256 pixels, with mirrored images, and by its features."""
    mixed: bool = False
    """Also measure weights between the pretrained and the trained ones."""
    table: bool = False
    """Print what is stored."""
    out: Path = Path("runs/recipe")
    stored: Path = RESULTS


def main(options: Options) -> None:
    stored = Stored(options.stored)
    if options.table or options.folder is None:
        print("\n".join(recipe_rows(stored.rows)))
        return
    for name in options.only or ROWS:
        cell = {"data": options.name, "backbone": options.backbone, "row": name}
        if not stored.has(**cell):
            folder = options.out / options.name / options.backbone / name.replace(" ", "-").replace("/", "-")
            found, seconds = measured(options, folder, name)
            stored.add(cell | {"changes": ROWS[name]}, found, seconds)


def measured(options: Options, folder: Path, row: str) -> tuple[dict[str, float], float]:
    """R@1 on the held-out half after the last epoch, in several ways; the processor's seconds of training."""
    given: dict[str, Any] = {"backbone": options.backbone, "weights": options.weights, "val_classes": "0"}
    given |= {"skip_bad": True, "precision": "bf16"} | BASE | ROWS[row]
    config = resolve(str(options.folder), given, folder)  # type: ignore[arg-type]
    load_data(config, build_backbone(config, pretrained=False))  # images are decoded before the clock runs
    config = replace(config, size=None)
    pretrained = build_backbone(config)
    everything = load_data(config, pretrained)
    labels = everything.dataset.labels
    kept = everything.split.train_classes[: len(everything.split.train_classes) // 2]
    train, held = (everything.split.train[where] for where in halves(everything, kept))
    before = Embedder(EmbedderConfig(options.backbone, pool=config.pool), backbone=pretrained).eval()
    seconds = process_time()
    embedder = before.closed_form() if row == "pretrained" else trained(folder, given, str(options.folder))
    seconds = process_time() - seconds
    at_224 = features(embedder, everything, held, 224)
    found = recalls("", embedder, at_224, labels[held])
    again = embedder.closed_form(features(embedder, everything, train, 224), torch.from_numpy(labels[train]))
    found |= recalls("whitened again, ", again, at_224, labels[held])
    for share in (0.5, 0.75) if options.mixed else ():
        mixed = mixed_with_pretrained(embedder, pretrained.network, share)
        own = features(mixed, everything, train, 224)
        mixed = mixed.closed_form(own, torch.from_numpy(labels[train]))
        found |= recalls(f"{share:g} of the way, ", mixed, features(mixed, everything, held, 224), labels[held])
    if options.views:
        found |= recalls("256 pixels, ", embedder, features(embedder, everything, held, 256), labels[held])
        mirrored = features(embedder, everything, held, 224, mirror=True)
        found |= recalls("mirrored too, ", embedder, (at_224 + mirrored) / 2, labels[held])
        found |= measured_vectors("features, ", normalise(at_224), labels[held])
        with torch.inference_mode():
            both = torch.cat([normalise(at_224), embedder.embedding(at_224)], dim=1)
        found |= measured_vectors("features and embedding, ", normalise(both), labels[held])
    return found, seconds


def trained(folder: Path, given: dict[str, Any], data: str) -> Embedder:
    """The network after the last epoch of a run, which is made, resumed, or there."""
    if not (folder / "results.json").exists():
        if is_run(folder):
            resume_images(folder, select=first_half)
        else:
            train_images(resolve(data, given, folder), overwrite=True, select=first_half)  # type: ignore[arg-type]
    return load(folder)


@torch.no_grad()
def mixed_with_pretrained(embedder: Embedder, pretrained: torch.nn.Module, share: float) -> Embedder:
    """The network whose weights lie this share of the way from the pretrained ones to the trained ones."""
    mixed = deepcopy(embedder)
    for own, before in zip(mixed.backbone.parameters(), pretrained.parameters(), strict=True):
        own.lerp_(before, 1 - share)
    return mixed


def first_half(data: Data) -> Data:
    """The first half of the training classes trains; none is measured during it."""
    classes = data.split.train_classes[: len(data.split.train_classes) // 2]
    train, nothing = data.split.train[halves(data, classes)[0]], np.empty(0, dtype=np.int64)
    return data.with_split(
        replace(data.split, train=train, val=None, test=nothing, train_classes=classes, test_classes=nothing)
    )


def halves(data: Data, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the training images are of these classes, and which are not."""
    own = np.isin(data.dataset.labels[data.split.train], classes)
    return own, ~own


@torch.inference_mode()
def features(embedder: Embedder, data: Data, indices: np.ndarray, size: int, *, mirror: bool = False) -> torch.Tensor:
    """What the backbone gives for centre crops of this size."""
    rows = []
    for images, _, _ in batches(data.images, indices, np.arange(len(indices)), batch_size=16, crop=size, train=False):
        with torch.autocast("cpu", torch.bfloat16):
            rows.append(embedder.features(images.flip(3) if mirror else images).float())
    return torch.cat(rows)


@torch.inference_mode()
def recalls(name: str, embedder: Embedder, found: torch.Tensor, labels: np.ndarray) -> dict[str, float]:
    return measured_vectors(name, embedder.embedding(found), labels)


def measured_vectors(name: str, vectors: torch.Tensor, labels: np.ndarray) -> dict[str, float]:
    measures = evaluate(vectors.numpy(), labels, ks=(1, 8), clustering=False, bootstrap=0)
    return {f"{name}{key}": measures[key] for key in ("recall_at_1", "recall_at_8", "mean_average_precision_at_r")}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
