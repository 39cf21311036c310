"""How long does each method take to get where another gets? From runs of a benchmark that watched validation classes.

    python -m benchmarks.time_to runs/omniglot-methods [--goal "semi-hard triplets"]

The goal is the best R@1 on validation classes that the named method has after any epoch, as a mean over its seeds. Of
each method, the seconds of training until its mean over seeds is as good after an epoch; evaluation aside.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy import ndarray
from rich.console import Console
from rich.table import Table

from tammes.benchmark.plan import slug
from tammes.errors import UserError
from tammes.training.run_folder import RunFolder


@dataclass(frozen=True)
class Options:
    """Seconds until each method is as good as one of them gets."""

    benchmark: Annotated[Path, tyro.conf.Positional]
    """The folder of a benchmark whose plan has val-classes."""
    goal: str = "semi-hard triplets"
    """The method whose best R@1 is to be reached."""
    preset: str = "default"
    json: Path = Path("benchmarks/results/time_to.json")
    """Where the figures go, by the name of the benchmark."""


def curve(folder: Path) -> tuple[ndarray, ndarray, int]:
    """Seconds of training and R@1 after each epoch, as means over the seeds of a method; and how many there are."""
    runs = [RunFolder(each) for each in sorted(folder.glob("seed-*")) if each.is_dir()]
    epochs = [run.epochs() for run in runs if run.state == "finished"]
    if not epochs:
        return np.empty(0), np.empty(0), 0
    if any("val_recall_at_1" not in line for lines in epochs for line in lines):
        raise UserError(f"{folder}: R@1 was not measured after each epoch. Put val-classes into [train] of the plan.")
    shortest = min(len(lines) for lines in epochs)
    seconds = np.array([np.cumsum([line["seconds"] for line in lines])[:shortest] for lines in epochs])
    recalls = np.array([[line["val_recall_at_1"] for line in lines][:shortest] for lines in epochs])
    return seconds.mean(0), recalls.mean(0), len(epochs)


def reached(options: Options) -> dict[str, Any]:
    """The goal, and a row for each method."""
    methods = json.loads((options.benchmark / "results.json").read_text())["cells"]
    names = list(dict.fromkeys(cell["method"] for cell in methods if cell["preset"] == options.preset))
    curves = {name: curve(options.benchmark / options.preset / slug(name)) for name in names}
    if options.goal not in curves or not curves[options.goal][2]:
        raise UserError(f"--goal {options.goal!r} has no finished run here. Methods: {', '.join(names)}.")
    goal = float(curves[options.goal][1].max())
    rows = []
    for name, (seconds, recalls, seeds) in curves.items():
        if seeds:
            there = np.flatnonzero(recalls >= goal)
            first = int(there[0]) if len(there) else None
            rows.append(
                {
                    "method": name,
                    "seeds": seeds,
                    "seconds": None if first is None else float(seconds[first]),
                    "epochs": None if first is None else first + 1,
                    "best": float(recalls.max()),
                    "in_all": float(seconds[-1]),
                }
            )
    return {"goal": goal, "of": options.goal, "rows": rows}


def main(options: Options) -> None:
    found = reached(options)
    table = Table(title=f"until R@1 is {100 * found['goal']:.2f} on validation classes, the best of {found['of']}")
    for column in ("method", "seconds", "epochs", "its best R@1", "seconds in all", "seeds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in found["rows"]:
        there = ("never", "") if row["seconds"] is None else (f"{row['seconds']:.0f}", str(row["epochs"]))
        table.add_row(row["method"], *there, f"{100 * row['best']:.2f}", f"{row['in_all']:.0f}", str(row["seeds"]))
    Console().print(table)
    stored = json.loads(options.json.read_text()) if options.json.exists() else {}
    options.json.write_text(json.dumps(stored | {options.benchmark.name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
