"""How long does a method take for an epoch, its network aside? Loss and mining alone, each as a ratio to ours.

    python -m benchmarks.training_time [--images 5864] [--classes 100] [--rounds 5]

The batches are those that `tammes train` would serve: 128 images, four of a class where a loss wants pairs, mined
triplets where it mines. Random embeddings stand for the network's, and where a loss is computed on the class layer that
layer is part of it, as proxies are of others; forward, backward and, where there is one, the look at all images before
the epoch. One thread, medians, the methods in turn. What an epoch takes with its network, and a training in all, is in
the tables of the plans *-minutes.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import machine, save
from tammes.data.samplers import turns
from tammes.losses import METHODS

OURS = "discriminative"


@dataclass(frozen=True)
class Options:
    """Time an epoch of each loss, without a network."""

    images: int = 5864
    """Training images; 5,864 of 100 classes are those of CUB-200-2011."""
    classes: int = 100
    batch_size: int = 128
    dim: int = 256
    rounds: int = 5
    """Epochs of each loss that are timed."""
    only: tuple[str, ...] = ()
    """These losses, beside ours."""
    json: Path | None = Path("benchmarks/results/training_time.json")
    """Where the figures go."""


def epoch(name: str, options: Options, round_: int) -> tuple[float, float]:
    """Seconds of the look at all images, and of all batches of an epoch."""
    torch.manual_seed(round_)
    method = METHODS[name]
    dim = options.dim
    given: dict[Any, Any] = {"centroids": options.classes, "num_classes": options.classes, "dim": dim}
    loss = method.make(given, {})
    if method.on == "class layer":
        loss = _WithLayer(nn.Linear(dim, options.classes), loss)
    labels = np.sort(np.arange(options.images) % options.classes)
    # Classes that overlap as those of a network in the middle of its training do.
    centres = torch.nn.functional.normalize(torch.randn(options.classes, dim))
    embeddings = centres[labels] + torch.randn(options.images, dim) / dim**0.5
    started = perf_counter()
    if method.sees != "batches":
        loss.look(embeddings, torch.from_numpy(labels), generator=torch.Generator().manual_seed(round_))  # type: ignore[operator]
    looked = perf_counter() - started
    order: Tensor | None = loss.order if method.mines else None  # type: ignore[assignment]
    found = turns(
        labels,
        batch_size=options.batch_size,
        train=True,
        sampler="shuffled" if method.images_per_class == 1 else "pk",
        images_per_class=method.images_per_class,
        seed=round_,
        order=None if order is None else order.numpy(),
    )
    served = [(embeddings[turn.positions].requires_grad_(), torch.from_numpy(labels[turn.positions])) for turn in found]
    return looked * (method.sees == "all images each epoch"), _seconds(loss, served)


class _WithLayer(nn.Module):
    """A loss with the class layer that it is computed on, as others have their proxies inside."""

    def __init__(self, layer: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.layer, self.loss = layer, loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(self.layer(embeddings), labels)
        return value


def _seconds(loss: nn.Module, served: list[tuple[Tensor, Tensor]]) -> float:
    loss(*served[0]).backward()  # the first fetches memory
    started = perf_counter()
    for rows, labels in served:
        loss.zero_grad(set_to_none=True)
        loss(rows, labels).backward()
    return perf_counter() - started


def measured(options: Options) -> list[dict[str, Any]]:
    """A row for each loss; the first is ours."""
    names = [name for name in METHODS if not options.only or name in options.only or name == OURS]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for round_ in range(options.rounds):
        for name in names:
            times[name].append(epoch(name, options, round_))
    rows = []
    for name, each in times.items():
        mining, batches = (median(column) for column in zip(*each, strict=True))
        rows.append({"loss": name, "mining_seconds": mining, "batches_seconds": batches, "seconds": mining + batches})
    ours = next(row for row in rows if row["loss"] == OURS)["seconds"]
    return [row | {"ratio": row["seconds"] / ours} for row in rows]


def main(options: Options) -> None:
    torch.set_num_threads(1)
    rows = measured(options)
    table = Table(title=f"an epoch of {options.images} images of {options.classes} classes, network aside")
    for column in ("loss", "mining, ms", "batches, ms", "all, ms", f"/ {OURS}"):
        table.add_column(column, justify="left" if column == "loss" else "right")
    for row in rows:
        parts = (row["mining_seconds"], row["batches_seconds"], row["seconds"])
        table.add_row(row["loss"], *(f"{1000 * part:.0f}" for part in parts), f"{row['ratio']:.1f}")
    Console().print(table)
    given = {name: getattr(options, name) for name in ("images", "classes", "batch_size", "dim", "rounds")}
    save({"machine": machine(), **given, "rows": rows}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
