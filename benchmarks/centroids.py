"""How good are the centroids, and how long do they take? The table of the README, and sizes that are hard to place.

    python -m benchmarks.centroids [--hard] [--samples] [--json FILE]

`--hard` adds the sizes that `place` must end within a minute for; above 20,000 classes the distances of all pairs are
not measured. `--samples` instead looks for the number of points that the paper ran K-means on.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import tyro

from benchmarks.timing import machine, save
from tammes.centroids import CENTROIDS, kmeans, placed, quality
from tammes.geometry import pairwise

TABLE = [(100, 100, "place"), (100, 100, "kmeans"), (100, 64, "place"), (1000, 128, "place"), (11318, 512, "place")]
HARD = [(577, 3), (1300, 3), (3000, 40), (2100, 1024), (11318, 64), (100_000, 64), *(
    (1_000_000, dim) for dim in (2, 3, 4, 8, 16, 100, 128, 512, 1024)
)]  # fmt: skip

# Smallest, largest, mean and standard deviation of the distances: table 3 of the paper, CUB-200-2011 and CARS196.
PAPER = {100: "1.21 / 1.63 / 1.418 / 0.061", 98: "1.18 / 1.65 / 1.416 / 0.066"}
SAMPLES = (1000, 3000, 5000, 10_000, 15_000, 20_000)


@dataclass(frozen=True)
class Options:
    """Place centroids and measure them."""

    hard: bool = False
    """The hard sizes too: minutes, and 8 GB of memory."""
    samples: bool = False
    """Only K-means centroids of several numbers of points, beside the paper's two rows; a minute or two."""
    json: Path | None = None
    """Write the figures here too."""


def samples() -> list[dict[str, float]]:
    """Distances between K-means centroids by how many points were clustered, in the mean of 3 seeds."""
    rows = []
    for num_classes, paper in PAPER.items():
        print(f"{num_classes} classes, the paper       {paper}")
        for number in SAMPLES:
            made = [
                pairwise(
                    kmeans(num_classes, num_classes, generator=torch.Generator().manual_seed(seed), samples=number)
                )
                for seed in range(3)
            ]
            row = {name: sum(getattr(each, name) for each in made) / 3 for name in ("min", "max", "mean", "std")}
            rows.append({"classes": num_classes, "samples": number} | row)
            said = "{min:.3f} / {max:.3f} / {mean:.4f} / {std:.4f}".format(**row)
            print(f"{num_classes} classes, {number:>6} points   {said}", flush=True)
    return rows


def main(options: Options) -> None:
    if options.samples:
        save({"machine": machine(), "rows": samples()}, options.json)
        return
    rows = []
    for num_classes, dim, kind in TABLE + [(c, d, "place") for c, d in HARD if options.hard]:
        generator, started = torch.Generator().manual_seed(0), perf_counter()
        if kind == "place":
            points, made = placed(num_classes, dim, generator=generator)
        else:
            points, made = CENTROIDS[kind](num_classes, dim, generator=generator), kind
        seconds = perf_counter() - started
        found = quality(points) if num_classes <= 20_000 else None
        measured = (
            "not measured" if found is None else f"smallest {found.min:.6f}, ratio to the bound {found.ratio:.4f}"
        )
        print(f"{num_classes:>9,} x {dim:<5} {made:<22} {measured}, {seconds:.2f} s", flush=True)
        least, ratio = (None, None) if found is None else (found.min, found.ratio)
        row = {"classes": num_classes, "dim": dim, "kind": made, "seconds": seconds, "min": least, "ratio": ratio}
        rows.append(row)
    save({"machine": machine(), "rows": rows}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
