"""Where MetricLearner's defaults come from: variations of them on validation classes of several real sets.

    python -m benchmarks.estimator_defaults [--cub FOLDER --weights FILE] [--omniglot FOLDER] [--folds 0 2]

Of the classes that may train, a quarter at a time is held out and measured (R@1), while the learner sees the other
three quarters only; the test classes are never looked at. Every row changes one thing of the defaults. Cells that are
in the results file already are not run again.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.cub import Stored
from benchmarks.vector_sets import cub, glyph_pixels, omniglot_pixels
from tammes import MetricLearner, evaluate

VARIATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "start pca": {"init": "pca"},
    "start whiten": {"init": "whiten"},
    "from the mean": {"centre": True},
    "from zero": {"centre": False},
    "start random": {"init": "random"},
    "start ridge": {"init": "ridge"},
    "no dropout": {"dropout": 0.0},
    "dropout 0.25": {"dropout": 0.25},
    "dropout 0.7": {"dropout": 0.7},
    "rate 1e-3": {"learning_rate": 1e-3},
    "rate 1e-2": {"learning_rate": 1e-2},
    "no weight decay": {"weight_decay": 0.0},
    "weight decay 5e-2": {"weight_decay": 5e-2},
    "batch 64": {"batch_size": 64},
    "dim 64": {"dim": 64},
    "hard": {"loss": "hard-discriminative"},
    "softmax": {"loss": "softmax"},
    "no class layer": {"class_layer": False},
    "no class layer, start whiten": {"class_layer": False, "init": "whiten"},
    "columns scaled": {"scale": "columns"},
    "hidden 512": {"hidden": 512},
    "no early stopping": {"validation_classes": 0.0},
    "1 epoch at rate 0: the start alone": {"epochs": 1, "learning_rate": 1e-12},
    "ridge": {"method": "ridge"},
}


@dataclass(frozen=True)
class Options:
    """Compare variations of the defaults on validation classes."""

    cub: Path | None = None
    """Where CUB-200-2011 is: GoogLeNet's features of it."""
    weights: str = "imagenet"
    """GoogLeNet's weights."""
    omniglot: Path | None = None
    """Where Omniglot's zips or folders are: its pixels."""
    folds: tuple[int, ...] = (0, 1, 2, 3)
    """Which quarters of the classes to hold out."""
    only: tuple[str, ...] = ()
    """Variations whose names contain one of these."""
    out: Path = Path("benchmarks/results/estimator_defaults.json")


def main(options: Options) -> None:
    torch.set_num_threads(1)
    stored = Stored(options.out)
    sets = {"glyphs": glyph_pixels}
    if options.cub is not None:
        sets["cub"] = lambda: cub(options.cub or Path(), options.weights)
    if options.omniglot is not None:
        sets["omniglot"] = lambda: omniglot_pixels(options.omniglot or Path())
    for name, make in sets.items():
        vectors, labels, _, _ = make()
        for fold in options.folds:
            held_out = np.isin(labels, np.array_split(np.unique(labels), 4)[fold])
            if not stored.has(set=name, method="as they are", seed=fold):
                started = perf_counter()
                found = _recall(vectors[held_out], labels[held_out])
                stored.add({"set": name, "method": "as they are", "seed": fold}, found, perf_counter() - started)
            for method, changes in VARIATIONS.items():
                cell = {"set": name, "method": method, "seed": fold}
                if stored.has(**cell) or (options.only and not any(each in method for each in options.only)):
                    continue
                started = perf_counter()
                learner = MetricLearner(random_state=0, **changes).fit(vectors[~held_out], labels[~held_out])
                seconds = perf_counter() - started
                stored.add(cell, _recall(learner.transform(vectors[held_out]), labels[held_out]), seconds)
    show(stored.rows)


def show(rows: list[dict[str, Any]]) -> None:
    """R@1 in the mean of the quarters that all rows of a set have, and its rank among the variations."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    table = Table("variation", *(f"{name}: R@1" for name in sets), *(f"{name}: seconds" for name in sets))
    for method in ("as they are", *VARIATIONS):
        cells = [[row for row in rows if (row["set"], row["method"]) == (name, method)] for name in sets]
        recalls = [f"{100 * np.mean([row['recall_at_1'] for row in cell]):.2f}" if cell else "" for cell in cells]
        seconds = [f"{np.mean([row['seconds'] for row in cell]):.1f}" if cell else "" for cell in cells]
        table.add_row(method, *recalls, *seconds)
    Console().print(table)


def _recall(vectors: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = evaluate(np.asarray(unit, dtype=np.float32), labels, ks=(1,), clustering=False, bootstrap=0)
    return {"recall_at_1": found["recall_at_1"]}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
