"""Does training in bfloat16 cost accuracy? The same runs in bfloat16 and in float32, on validation classes.

    python -m benchmarks.precision CUB_200_2011 --weights FILE [--seeds 0 1 2 3 4] [--json FILE]

GoogLeNet with a fifth of the training classes held out: `--train top` with several seeds, and `--train all` for two
epochs with the first. A run is evaluated in float32 either way. What counts is the difference between the two of a
seed, beside its spread over seeds; test classes are not looked at.
"""

from dataclasses import dataclass, replace
from json import loads
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.timing import machine, save
from tammes.training.config import resolve
from tammes.training.data import Data
from tammes.training.train import train_images


@dataclass(frozen=True)
class Options:
    """Train in both precisions and compare."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder with CUB-200-2011, or any that `tammes train` takes."""
    weights: str = "imagenet"
    backbone: str = "googlenet"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of `top`; `all` has the first."""
    val_classes: str = "0.2"
    test_classes: Annotated[str | None, tyro.conf.arg(help_behavior_hint="")] = None
    """As `tammes train` takes it; by default the data set's own."""
    epochs: int = 2
    """Of `all`; `top` has those of its preset, or `top_epochs`."""
    top_epochs: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None
    out: Path = Path("runs/precision")
    """Where the runs are kept; those that have finished are not repeated."""
    json: Path | None = None
    """Write the figures here too."""


def trained(options: Options, part: str, precision: str, seed: int) -> dict[str, Any]:
    """R@1 on the validation classes after the last epoch, and the seconds that training took."""
    folder = options.out / f"{part}-{precision}-{seed}"
    if not (folder / "results.json").exists():
        given: dict[str, Any] = {"backbone": options.backbone, "weights": options.weights, "train": part, "seed": seed}
        given |= {"precision": precision, "val_classes": options.val_classes, "test_classes": options.test_classes}
        given["epochs"] = options.epochs if part == "all" else options.top_epochs
        train_images(resolve(str(options.data), given, folder), overwrite=True, select=without_test)  # type: ignore[arg-type]
    lines = [loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "train": part, "precision": precision, "seed": seed, "recall_at_1": lines[-1]["val_recall_at_1"],
        "loss": lines[-1]["loss"], "seconds": sum(line["seconds"] for line in lines),
    }  # fmt: skip


def without_test(data: Data) -> Data:
    """The same training and validation images; those to test on are left alone."""
    return data.with_split(replace(data.split, test=np.empty(0, dtype=np.int64)))


def compared(runs: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """By how many points bfloat16 is above float32: the mean over seeds, and its standard error."""
    by = {(run["precision"], run["seed"]): run for run in runs if run["train"] == part}
    seeds = sorted({seed for _, seed in by})
    points = [100 * (by["bf16", seed]["recall_at_1"] - by["no", seed]["recall_at_1"]) for seed in seeds]
    seconds = {kind: mean(by[kind, seed]["seconds"] for seed in seeds) for kind in ("bf16", "no")}
    error = stdev(points) / sqrt(len(points)) if len(points) > 1 else None
    recalls = {kind: mean(100 * by[kind, seed]["recall_at_1"] for seed in seeds) for kind in ("bf16", "no")}
    return {"train": part, "seeds": seeds, "points": points, "difference": mean(points), "error": error,
            "recall_at_1": recalls, "seconds": seconds}  # fmt: skip


def main(options: Options) -> None:
    runs: list[dict[str, Any]] = []
    stored: dict[str, Any] = {"machine": machine(), "data": options.data.name, "backbone": options.backbone}
    for part, seeds in (("top", options.seeds), ("all", options.seeds[:1])):
        runs += [trained(options, part, kind, seed) for seed in seeds for kind in ("bf16", "no")]
        found = compared(runs, part)
        error = "" if found["error"] is None else f" ± {found['error']:.2f}"
        print(
            f"{part}: R@1 on validation classes {found['recall_at_1']['bf16']:.2f} in bf16,"
            f" {found['recall_at_1']['no']:.2f} in float32, difference {found['difference']:+.2f}{error};"
            f" {found['seconds']['bf16']:.0f} s and {found['seconds']['no']:.0f} s of training"
        )
        stored |= {"runs": runs, part: found}
        save(stored, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
