"""Omniglot: one-hot, simplex and K-means centroids, and the hard form, on characters never seen.

    python -m benchmarks.omniglot FOLDER [--epochs 10] [--seeds 0 1 2]

Trains conv4 on the 242 characters of the two small background sets and tests on the 659 of the evaluation set, with
the default preset; R@1 of the last epoch. Cells that are in the results file already are not run again; then
docs/results.md is written from that file.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import tyro

from benchmarks.cells import trained
from benchmarks.page import write_page
from benchmarks.timing import machine
from tammes.cli import making
from tammes.cli.train import Train

ROWS: dict[str, dict[str, Any]] = {
    "one-hot centroids": {"centroids": "one-hot"},
    "simplex centroids": {"centroids": "simplex"},
    "K-means centroids": {"centroids": "kmeans"},
    "hard form, simplex centroids": {"loss": "hard-discriminative", "centroids": "simplex"},
}
MEASURES = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "mean_average_precision_at_r")


@dataclass(frozen=True)
class Options:
    """Train and test on Omniglot."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where Omniglot's zips or folders are."""
    epochs: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    out: Path = Path("benchmarks/results/omniglot.json")


def main(options: Options) -> None:
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    done = {(row["method"], row["seed"], row["epochs"]) for row in rows}
    base = Train(data=str(options.folder), backbone="conv4", epochs=options.epochs)
    data = making.load_data(base)
    for seed in options.seeds:
        for method, changes in {"untrained backbone": None, **ROWS}.items():
            if (method, seed, options.epochs) in done:
                continue
            started, config = perf_counter(), replace(base, seed=seed, **(changes or {}))
            embedder = making.untrained_embedder(config) if changes is None else trained(config, data)[0]
            seconds = perf_counter() - started
            measured = making.evaluated(embedder, data, data.split.test, backbone_only=changes is None, quick=True)
            rows.append({"method": method, "seed": seed, "epochs": options.epochs, "seconds": seconds,
                         **{name: measured[name] for name in MEASURES}})  # fmt: skip
            print(f"{method:<30} seed {seed}  R@1 {100 * measured['recall_at_1']:.2f}  {seconds:.0f} s", flush=True)
            options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
