"""Does training keep the network busy? Images per second of `fit` on decoded images, beside a bare PyTorch loop; and
of the image pipeline alone, beside torchvision's ImageFolder and a DataLoader.

    python -m benchmarks.throughput [--networks googlenet vgg16] [--folder FOLDER] [--json FILE]

The bare loop runs the same network, loss and optimizer over tensors that are in memory already, without crops, labels
to look up or anything to log. The target is a ratio of at least 0.95.

The pipeline reads the images of a folder (one sub-folder per class; without one, photographs-to-be of noise in JPEG),
scales the shorter side to 256, crops 224 at random, mirrors half and makes batches of 32. Ours decodes into its cache
in the first epoch and crops from there in the later ones; theirs decodes in every epoch, in two processes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.timing import machine, save
from tammes import DiscriminativeLoss
from tammes.datasets import Dataset, open_dataset
from tammes.embedder import Embedder, EmbedderConfig
from tammes.loading import Decoded, batches, decode
from tammes.objectives import Objective
from tammes.training import fit, halved_every

SIZES = {"conv4": (64, 40), "resnet18": (16, 4), "googlenet": (16, 4), "vgg16": (4, 2)}  # of a batch; batches an epoch


@dataclass(frozen=True)
class Options:
    """Time training and a bare loop, in turns."""

    turns: int = 5
    """Epochs of each that are timed, after one to warm up."""
    folder: Path | None = None
    """Images for the pipeline, one sub-folder per class."""
    images: int = 1200
    """How many of them."""
    only: Literal["networks", "pipeline"] | None = None
    """Time one half only."""
    networks: tuple[str, ...] = ("conv4", "resnet18", "googlenet", "vgg16")
    """Which of these networks."""
    json: Path | None = None
    """Write the figures here too; those of other networks that are there stay."""


def noise(side: int, channels: int, images: int) -> Dataset:
    rng = np.random.default_rng(0)
    shape = (side, side) if channels == 1 else (side, side, 3)
    pictures = rng.integers(0, 256, (images, *shape), dtype=np.uint8)
    return Dataset(
        "noise",
        tuple(map(str, range(images))),
        np.arange(images, dtype=np.int64) % 10,
        tuple("abcdefghij"),
        lambda number: Image.fromarray(pictures[number]),
        f"noise-{side}-{channels}-{images}",
    )


def ratio(backbone: str, batch_size: int, steps: int, turns: int) -> tuple[float, float]:
    """Images per second of fit, and of the bare loop."""
    objective = Objective(Embedder(EmbedderConfig(backbone, 256, 10)), DiscriminativeLoss(10))
    embedder, images = objective.embedder, batch_size * steps
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3, momentum=0.9)
    dataset = noise(embedder.shorter_side, 1 if embedder.mode == "L" else 3, images)
    with TemporaryDirectory() as folder:
        decoded = decode(dataset, mode=embedder.mode, shorter_side=embedder.shorter_side, cache=Path(folder))
        everything = partial(
            batches, decoded, np.arange(images), dataset.labels, batch_size=batch_size, crop=embedder.size
        )
        shift = 2 if embedder.mode == "L" else 0
        epochs = fit(
            objective,
            lambda epoch: everything(train=True, padding=shift, epoch=epoch),
            optimizer,
            epochs=turns + 1,
            schedule=halved_every(5),
        )
        ready = [(pictures, labels) for pictures, labels, _ in everything(train=False)]
        ours, bare = [], []
        for _ in range(turns + 1):
            started = perf_counter()
            next(epochs)
            ours.append(images / (perf_counter() - started))
            bare.append(images / _bare(objective, optimizer, iter(ready)))
    return median(ours[1:]), median(bare[1:])


def _bare(objective: Objective, optimizer: torch.optim.Optimizer, ready: Iterator[tuple[Tensor, Tensor]]) -> float:
    started = perf_counter()
    objective.train()
    for pictures, labels in ready:
        optimizer.zero_grad()
        objective(pictures, labels)["loss"].backward()
        optimizer.step()
    return perf_counter() - started


def photographs(root: Path, images: int) -> Path:
    """A folder of JPEG files as cameras make them: 500 x 375, smooth with some detail."""
    rng = np.random.default_rng(0)
    for number in range(images):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375))
        detail = rng.normal(0, 12, (375, 500, 1))
        (root / f"{number % 10}").mkdir(exist_ok=True)
        pixels = (np.asarray(coarse) + detail).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{number % 10}" / f"{number}.jpg", quality=90)
    return root


def pipelines(root: Path, images: int) -> dict[str, float]:
    """Images per second of our first epoch, of our later ones, and of torchvision's."""
    dataset = open_dataset(str(root))
    chosen = np.linspace(0, len(dataset) - 1, min(images, len(dataset))).astype(np.int64)
    keys = [dataset.keys[index] for index in chosen]
    some = replace(
        dataset, keys=tuple(keys), labels=dataset.labels[chosen], read=lambda index: dataset.read(int(chosen[index])),
        fingerprint=dataset.fingerprint + str(images), files=None,
    )  # fmt: skip
    everything, found = np.arange(len(some)), {}

    def epoch(decoded: Decoded, number: int) -> None:
        for _ in batches(decoded, everything, some.labels, batch_size=32, crop=224, train=True, epoch=number):
            pass

    with TemporaryDirectory() as folder:
        started = perf_counter()
        decoded = decode(some, mode="RGB", shorter_side=256, cache=Path(folder))
        epoch(decoded, 0)
        found["ours, first epoch"] = len(some) / (perf_counter() - started)
        started = perf_counter()
        for number in (1, 2, 3):
            epoch(decoded, number)
        found["ours, later epochs"] = 3 * len(some) / (perf_counter() - started)
    files = [str(file) for file in np.array(dataset.files)[chosen]] if dataset.files is not None else []
    wanted = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    theirs = ImageFolder(str(Path(files[0]).parents[1]), transform=wanted, is_valid_file=set(files).__contains__)
    assert len(theirs) == len(some), "the same images"
    started = perf_counter()
    for _ in DataLoader(theirs, batch_size=32, shuffle=True, num_workers=2):
        pass
    found["ImageFolder and DataLoader, two workers"] = len(some) / (perf_counter() - started)
    return found


def main(options: Options) -> None:
    stored = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else {}
    stored["machine"] = machine()
    if options.only != "pipeline":
        stored.setdefault("rows", [])
        for backbone in options.networks:
            ours, bare = ratio(backbone, *SIZES[backbone], options.turns)
            print(
                f"{backbone:<10} fit {ours:.1f} images/s, bare loop {bare:.1f}, ratio {ours / bare:.3f} (at least 0.95)"
            )
            row = {"backbone": backbone, "images_per_second": ours, "bare": bare, "ratio": ours / bare}
            row |= {"threads": torch.get_num_threads(), "commit": stored["machine"]["commit"]}
            stored["rows"] = [other for other in stored["rows"] if other["backbone"] != backbone] + [row]
            save(stored, options.json)
    if options.only != "networks":
        with TemporaryDirectory() as folder:
            stored["pipeline"] = pipelines(options.folder or photographs(Path(folder), options.images), options.images)
        for name, speed in stored["pipeline"].items():
            print(f"{name:<40} {speed:.0f} images/s")
    save(stored, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
