"""CUB-200-2011 with GoogLeNet: how the default preset was searched for, without a GPU.

    python -m benchmarks.cub FOLDER --weights FILE --search [--train head] [--only softmax]

Variations are compared on validation classes, which are classes of the first 100 that do not train; the backbone is
frozen (head) or trains from inception 5a up (top). Cells that are in the results file already are not run again. The
tables on test classes are made by `tammes benchmark benchmarks/plans/cub-….toml`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import tyro

from benchmarks.cells import trained
from benchmarks.timing import machine
from tammes.benchmark.runner import held_out_quarter
from tammes.io.files import write_atomically
from tammes.training.build import build_backbone
from tammes.training.config import TrainConfig, resolve
from tammes.training.data import load_data
from tammes.training.evaluation import evaluate_images

MEASURES = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "mean_average_precision_at_r")
Part = Literal["head", "top"]


@dataclass(frozen=True)
class Options:
    """Compare variations on validation classes of CUB-200-2011."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where CUB-200-2011 is."""
    weights: str = "imagenet"
    """GoogLeNet's weights."""
    train: tuple[Part, ...] = ("head", "top")
    """Parts to search for."""
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """Quarters of the training classes to hold out in turn."""
    search: bool = False
    """Must be said: there is nothing else here."""
    only: tuple[str, ...] = ()
    """Variations whose names contain one of these."""
    tried: Path = Path("benchmarks/results/cub_search.json")


# What is compared on validation classes: each changes the base of its part.
_ADAM = {"optimizer": "adam", "lr": 1e-3, "init": "random", "keep_init": False}
_ADAM |= {"centroids": "one-hot", "pool": "published"}
_MAX = {"pool": "max", "optimizer": "sgd", "lr": 0.1, "epochs": 10}
BASE: dict[Part, dict[str, Any]] = {"head": _ADAM | {"epochs": 30}, "top": _ADAM | {"backbone_lr": 1e-4, "epochs": 4}}
VARIATIONS: dict[Part, dict[str, dict[str, Any]]] = {
    "head": {
        "base": {},
        "10 epochs": {"epochs": 10},
        "rate 3e-4": {"lr": 3e-4},
        "rate 3e-3": {"lr": 3e-3},
        "pca": {"init": "pca"},
        "pca, rate 3e-4": {"init": "pca", "lr": 3e-4},
        "pca, rate 3e-4, 10 epochs": {"init": "pca", "lr": 3e-4, "epochs": 10},
        "pca, rate 3e-4, 10 epochs, hard": {
            "init": "pca",
            "lr": 3e-4,
            "epochs": 10,
            "loss": "hard-discriminative",
        },
        "pca, rate 3e-4, 10 epochs, simplex": {"init": "pca", "lr": 3e-4, "epochs": 10, "centroids": "simplex"},
        "pca, rate 3e-4, 10 epochs, batch 128": {"init": "pca", "lr": 3e-4, "epochs": 10, "batch_size": 128},
        "pca, rate 3e-4, 10 epochs, no class layer": {
            "init": "pca",
            "lr": 3e-4,
            "epochs": 10,
            "class_layer": False,
            "centroids": "place",
        },
        "pca, sgd 0.1, 10 epochs": {"init": "pca", "optimizer": "sgd", "lr": 0.1, "epochs": 10},
        "sgd 0.1, 10 epochs": {"optimizer": "sgd", "lr": 0.1, "epochs": 10},
        "pca, sgd 0.03, 10 epochs": {"init": "pca", "optimizer": "sgd", "lr": 0.03, "epochs": 10},
        "pca, sgd 0.3, 10 epochs": {"init": "pca", "optimizer": "sgd", "lr": 0.3, "epochs": 10},
        "pca, sgd 0.1, 30 epochs": {"init": "pca", "optimizer": "sgd", "lr": 0.1},
        "pca, sgd 0.1, 10 epochs, hard": {
            "init": "pca",
            "optimizer": "sgd",
            "lr": 0.1,
            "epochs": 10,
            "loss": "hard-discriminative",
        },
        "pca, sgd 0.1, 10 epochs, batch 128": {
            "init": "pca",
            "optimizer": "sgd",
            "lr": 0.1,
            "epochs": 10,
            "batch_size": 128,
        },
        "pca, sgd 0.1, 10 epochs, 512-d": {"init": "pca", "optimizer": "sgd", "lr": 0.1, "epochs": 10, "dim": 512},
        **{
            f"softmax, pca, sgd {rate}, 10 epochs": {
                "loss": "softmax",
                "centroids": None,
                "init": "pca",
                "optimizer": "sgd",
                "lr": rate,
                "epochs": 10,
            }
            for rate in (0.003, 0.01, 0.03)
        },
        "the paper's: sgd 0.1, halved, batch 128": {
            "optimizer": "sgd",
            "lr": 0.1,
            "schedule": "halve",
            "batch_size": 128,
        },
        "whiten, sgd 0.1, 10 epochs": {"init": "whiten", "optimizer": "sgd", "lr": 0.1, "epochs": 10},
        "whiten, kept": {"init": "whiten", "keep_init": True, "epochs": 1},
        "max, pca, sgd 0.1, 10 epochs": _MAX | {"init": "pca"},
        "max, whiten, sgd 0.1, 10 epochs": _MAX | {"init": "whiten"},
        "max, whiten, sgd 0.01, 10 epochs": _MAX | {"init": "whiten", "lr": 0.01},
        "max, whiten, kept": _MAX | {"init": "whiten", "keep_init": True, "epochs": 1},
        **{
            f"max, whiten, placed, sgd {rate}, {epochs} epochs": _MAX
            | {"init": "whiten", "centroids": "place", "lr": rate, "epochs": epochs}
            for rate, epochs in ((0.01, 10), (0.01, 3), (0.003, 10), (0.001, 10))
        },
        "max, pca, placed, sgd 0.1, 10 epochs": _MAX | {"init": "pca", "centroids": "place"},
        "max, whiten, placed, no class layer, sgd 0.003, 10 epochs": _MAX
        | {"init": "whiten", "centroids": "place", "lr": 0.003, "class_layer": False},
        "max, pca, placed, no class layer, sgd 0.1, 10 epochs": _MAX
        | {"init": "pca", "centroids": "place", "class_layer": False},
        "softmax": {"loss": "softmax", "centroids": None},
        "softmax, pca, rate 3e-4, 10 epochs": {
            "loss": "softmax",
            "centroids": None,
            "init": "pca",
            "lr": 3e-4,
            "epochs": 10,
        },
    },
    "top": {
        "base": {},
        "rates 3e-4": {"lr": 3e-4, "backbone_lr": 3e-4},
        "rates 3e-3 / 1e-4": {"lr": 3e-3},
        "rates 1e-3 / 3e-4": {"backbone_lr": 3e-4},
        "pca": {"init": "pca"},
        "hard": {"loss": "hard-discriminative"},
        "the paper's: sgd 0.1 / 0.01, batch 128, halved": {
            "optimizer": "sgd",
            "lr": 0.1,
            "backbone_lr": 0.01,
            "schedule": "halve",
            "halve_every": 1,
            "batch_size": 128,
        },
        "sgd 0.1 / 0.01, batch 32": {"optimizer": "sgd", "lr": 0.1, "backbone_lr": 0.01},
        "pca, sgd 0.1 / 0.01, batch 32": {"init": "pca", "optimizer": "sgd", "lr": 0.1, "backbone_lr": 0.01},
        "pca, sgd 0.1 / 0.001, batch 32": {"init": "pca", "optimizer": "sgd", "lr": 0.1, "backbone_lr": 0.001},
        "pca, sgd 0.03 / 0.003, batch 32": {"init": "pca", "optimizer": "sgd", "lr": 0.03, "backbone_lr": 0.003},
        "max, whiten, kept, sgd 0.1 / 0.01, 2 epochs": _MAX
        | {"init": "whiten", "keep_init": True, "backbone_lr": 0.01, "epochs": 2},
        "pca, sgd 0.1 / 0.01, batch 128": {
            "init": "pca",
            "optimizer": "sgd",
            "lr": 0.1,
            "backbone_lr": 0.01,
            "batch_size": 128,
        },
    },
}


def main(options: Options) -> None:
    if not options.search:
        raise SystemExit("Say --search. The tables are made by `tammes benchmark benchmarks/plans/cub-….toml`.")
    search(options)


def search(options: Options) -> None:
    """Variations on validation classes: each quarter of the training classes in turn, while the others train."""
    stored = Stored(options.tried)
    config = _config(options, {})
    everything = load_data(config, build_backbone(config))
    for part in options.train:
        for name, changes in VARIATIONS[part].items():
            for quarter in options.seeds[:4]:
                cell = {"train": part, "method": name, "seed": quarter, "changes": changes}
                if stored.has(**cell) or not _wanted(name, options.only):
                    continue
                data = held_out_quarter(everything, quarter)
                started = perf_counter()
                embedder, with_kept = trained(_config(options, {"train": part} | BASE[part] | changes), data)
                seconds = perf_counter() - started
                assert data.split.val is not None
                found = evaluate_images(embedder, with_kept, data.split.val, quick=True)
                stored.add(cell, {name: found[name] for name in MEASURES}, seconds)


def _config(options: Options, changes: dict[str, Any]) -> TrainConfig:
    given = {"backbone": "googlenet", "weights": options.weights, "device": "cpu", "val_classes": "0"} | changes
    return resolve(str(options.folder), {name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


class Stored:
    """A file of results, one row a cell, written after each; several processes may fill it with cells of their own."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def rows(self) -> list[dict[str, Any]]:
        return json.loads(self.file.read_text())["rows"] if self.file.exists() else []

    def has(self, **cell: Any) -> bool:
        return any(all(row.get(name) == value for name, value in cell.items()) for row in self.rows)

    def add(self, cell: dict[str, Any], found: dict[str, float], seconds: float) -> None:
        rows = [*self.rows, {**cell, **found, "seconds": round(seconds, 1)}]
        write_atomically(self.file, json.dumps({"machine": machine(), "rows": rows}, indent=1).encode() + b"\n")
        told = "  ".join(str(value) for name, value in cell.items() if name != "changes")
        print(f"{told}  R@1 {100 * found['recall_at_1']:.2f}  {seconds:.0f} s", flush=True)


def _wanted(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(each in name for each in only)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
