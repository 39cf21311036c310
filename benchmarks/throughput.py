"""Does training keep the network busy? Images per second of `fit` on decoded images, beside a bare PyTorch loop.

    python -m benchmarks.throughput [--json FILE]

The bare loop runs the same network, loss and optimizer over tensors that are in memory already, without crops, labels
to look up or anything to log. The target is a ratio of at least 0.95, for conv4 and for torchvision's ResNet-18.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor

from benchmarks.timing import machine, save
from tammes import DiscriminativeLoss
from tammes.datasets import Dataset
from tammes.embedder import Embedder, EmbedderConfig
from tammes.loading import batches, decode
from tammes.objectives import Objective
from tammes.training import fit, halved_every


@dataclass(frozen=True)
class Options:
    """Time training and a bare loop, in turns."""

    turns: int = 5
    """Epochs of each that are timed, after one to warm up."""
    json: Path | None = None
    """Write the figures here too."""


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


def main(options: Options) -> None:
    rows = []
    for backbone, batch_size, steps in (("conv4", 64, 40), ("resnet18", 16, 4)):
        ours, bare = ratio(backbone, batch_size, steps, options.turns)
        print(f"{backbone:<10} fit {ours:.0f} images/s, bare loop {bare:.0f}, ratio {ours / bare:.3f} (target >= 0.95)")
        rows.append({"backbone": backbone, "images_per_second": ours, "bare": bare, "ratio": ours / bare})
    save({"machine": machine(), "rows": rows}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
