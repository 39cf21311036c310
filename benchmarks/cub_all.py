"""CUB-200-2011 with every layer of GoogLeNet trained: the paper's recipe in a few epochs, on whatever machine.

    python -m benchmarks.cub_all FOLDER --weights FILE [--epochs 5] [--run runs/cub-all]

`tammes train … --train all --preset paper`, the learning rates halved after each epoch instead of every 5 so that the
schedule ends. A run that was interrupted is gone on with, one that has finished is only read; then its curve and its
results are stored and docs/results.md is written. Some 10 minutes an epoch on two cores.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.page import write_page
from benchmarks.timing import machine
from tammes.cli import feeding, measuring
from tammes.cli import main as tammes
from tammes.cli.measuring import measured
from tammes.cli.saved import saved_options
from tammes.embedder import load
from tammes.runs import open_run
from tammes.runtime import write_atomically


@dataclass(frozen=True)
class Options:
    """Train every layer, evaluate both layers, store."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where CUB-200-2011 is."""
    weights: str = "imagenet"
    """GoogLeNet's weights."""
    epochs: int = 5
    run: Path = Path("runs/cub-all")
    """The run folder to make, go on with or read."""
    out: Path = Path("benchmarks/results/cub_all.json")


def main(options: Options) -> None:
    words = [
        "train", str(options.folder), "--backbone", "googlenet", "--weights", options.weights, "--train", "all",
        "--preset", "paper", "--epochs", str(options.epochs), "--halve-every", "1",
    ]  # fmt: skip
    if not options.run.exists():
        tammes([*words, "--out", str(options.run)])
    elif open_run(options.run).state != "finished":
        tammes(["train", "--resume", str(options.run)])
    run = open_run(options.run)
    results, config = run.read("results"), saved_options(run)
    embedder, data = load(options.run, embedding="last"), feeding.load_data(config, run.read("classes"))
    last = measured(measuring.embedded(embedder, data, data.split.test), data.dataset, data.split.test, quick=True)
    stored = {
        "machine": machine(),
        "command": "tammes " + " ".join(["train", "CUB_200_2011", *words[2:4], "--weights", "FILE", *words[6:]]),
        "seed": config.seed,
        "commit": run.read("environment")["commit"],
        "epochs": run.epochs(),
        "seconds": results["seconds"],
        "untrained": results["untrained"],
        "penultimate": results["trained"],
        "last": last,
    }
    write_atomically(options.out, json.dumps(stored, indent=1).encode() + b"\n")
    write_page()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
