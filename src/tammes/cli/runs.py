"""`tammes runs`: list, compare and remove run folders."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes.cli.console import optional, print_json, said
from tammes.errors import UserError


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder with their results, side by side, or remove one.

    For example:

    tammes runs

    tammes runs experiments/ --json

    tammes runs --remove runs/photos
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Where the runs are."""
    remove: Annotated[Path | None, optional("RUN")] = None
    """Remove this run folder, and nothing else."""
    json: bool = False
    """Print one JSON object for all."""


def runs(config: Runs) -> None:
    """List, or remove."""
    from tammes.runs import held, listed, open_run

    if config.remove is not None:
        if said(config, "folder"):
            raise UserError(
                f"--remove takes the run folder itself: leave out {config.folder}, as in: tammes runs --remove"
                f" {config.remove}"
            )
        with held(open_run(config.remove).folder):
            shutil.rmtree(config.remove)
        print_json({"removed": str(config.remove)}) if config.json else print(f"removed {config.remove}")
        return
    if not config.folder.is_dir():
        raise UserError(f"no such folder: {config.folder}. Train something first: tammes train")
    records = [_record(run) for run in listed(config.folder)]
    if config.json:
        print_json(records)
        return
    from rich.console import Console
    from rich.table import Table

    from tammes.metrics import TITLES

    table = Table(title=f"runs in {config.folder}")
    for column in ("run", "state", "data", "loss", "centroids", "epochs"):
        table.add_column(column, no_wrap=True)
    for name in TITLES.values():
        table.add_column(name, justify="right")
    for record in records:
        measured = record["trained"] or {}
        cells = ["" if measured.get(name) is None else f"{100 * measured[name]:.2f}" for name in TITLES]
        place, data = Path(record["run"]).relative_to(config.folder), Path(record["data"]).name
        told = (place, record["state"], data, record["loss"], record["centroids"], record["epochs"])
        table.add_row(*map(str, told), *cells)
    Console(width=max(100, len(TITLES) * 9 + 90)).print(table)


def _record(run: Any) -> dict[str, Any]:
    options, results = run.read("config"), run.read("results") or {}
    return {
        "run": str(run.folder),
        "state": run.state,
        **{name: options.get(name) for name in ("data", "loss", "centroids", "backbone", "seed")},
        **({"loss": "ridge"} if options.get("method") == "ridge" else {}),
        "epochs": _epochs(run, options),
        "trained": results.get("trained"),
        "untrained": results.get("untrained"),
        "command": results.get("command"),
    }


def _epochs(run: Any, options: dict[str, Any]) -> str:
    """How many of how many; what has none, as ridge, has a dash."""
    # Vectors may train again on the classes that chose the epoch, which is not one more of those that were asked for.
    done = sum("on_all_classes" not in line for line in run.epochs())
    return "-" if options.get("epochs") is None else f"{done}/{options['epochs']}"
