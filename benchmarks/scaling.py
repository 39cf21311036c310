"""How does the cost of a step grow? With the classes, with the batch, and with neither when classes are sampled.

    python -m benchmarks.scaling [--rounds 15] [--json FILE]

One thread, 128 dimensions, forward and backward, medians. The exponent is the slope of log(time) over log(size), fitted
on the upper half of the sizes: 1 is linear. Targets: at most 1.05 in classes and in batch, 0 in classes with sampling.
"""

from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import linear_regression

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from benchmarks.timing import Step, machine, medians, peak_memory, save
from tammes import DiscriminativeLoss


@dataclass(frozen=True)
class Options:
    """Time a step over numbers of classes and of images."""

    rounds: int = 15
    """Steps of each size that are timed."""
    classes: tuple[int, ...] = (100, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    batches: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    sample: int = 256
    """Classes that the sampled loss draws."""
    dim: int = 128
    json: Path | None = None
    """Write the figures here too."""


def step(num_classes: int, batch: int, dim: int, sample: int | None = None) -> Step:
    torch.manual_seed(0)
    embeddings = torch.randn(batch, dim, requires_grad=True)
    labels = torch.randint(num_classes, (batch,))
    loss = DiscriminativeLoss(normalize(torch.randn(num_classes, dim)), sample_classes=sample)

    def run() -> None:
        embeddings.grad = None
        loss(embeddings, labels).backward()

    return run


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of the upper half in logarithms."""
    half = len(sizes) // 2
    return linear_regression([log(n) for n in sizes[half:]], [log(t) for t in seconds[half:]]).slope


def main(options: Options) -> None:
    torch.set_num_threads(1)
    console, results = Console(), {}
    axes: dict[str, tuple[tuple[int, ...], dict[int, Step], float]] = {
        "classes, batch 128": (options.classes, {n: step(n, 128, options.dim) for n in options.classes}, 1.05),
        "batch, 1,000 classes": (options.batches, {n: step(1000, n, options.dim) for n in options.batches}, 1.05),
        f"classes, batch 128, {options.sample} sampled": (
            tuple(n for n in options.classes if n > 2 * options.sample),
            {n: step(n, 128, options.dim, options.sample) for n in options.classes if n > 2 * options.sample},
            0.05,
        ),
    }
    for name, (sizes, steps, target) in axes.items():
        seconds = medians({str(n): steps[n] for n in sizes}, options.rounds)
        slope = exponent(list(sizes), [seconds[str(n)] for n in sizes])
        table = Table(title=f"{name}: exponent {slope:.3f} (target <= {target})")
        for column in ("size", "ms a step", "MB at the peak"):
            table.add_column(column, justify="right")
        rows = [{"size": n, "ms": 1000 * seconds[str(n)], "peak_mb": peak_memory(steps[n]) / 1e6} for n in sizes]
        for row in rows:
            table.add_row(f"{row['size']:,}", f"{row['ms']:.2f}", f"{row['peak_mb']:.2f}")
        console.print(table)
        results[name] = {"exponent": slope, "target": target, "rows": rows}
    save({"machine": machine(), "dim": options.dim, "rounds": options.rounds, "axes": results}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
