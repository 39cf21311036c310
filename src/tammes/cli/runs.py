"""`tammes runs`: list, compare and remove run folders."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes.cli.console import optional
from tammes.errors import UserError
from tammes.io.console import print_json, printable, say


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder with their results, or remove one.

    For example:

    tammes runs

    tammes runs experiments/ --json

    tammes runs --remove runs/photos
    """

    folder: Annotated[Path | None, tyro.conf.Positional, optional("FOLDER")] = None
    """Where the runs are; by default the folder runs."""
    remove: Annotated[Path | None, optional("RUN")] = None
    """Remove this run folder."""
    json: bool = False
    """Print a JSON list of all runs."""


def runs(config: Runs) -> None:
    """List, or remove."""
    from tammes.training.run_folder import listed

    if config.remove is not None:
        if config.folder is not None:
            raise UserError(
                f"--remove takes the run folder itself: leave out {config.folder}, as in: tammes runs --remove"
                f" {config.remove}"
            )
        _remove(config, config.remove)
        return
    folder = config.folder or Path("runs")
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}. Train something first: tammes train")
    records = [_record_or_error(run) for run in listed(folder)]
    if config.json:
        print_json(records)
    else:
        _show(folder, [record for record in records if "error" not in record])
        for record in records:
            if "error" in record:
                print(f"left out: {printable(record['error'])}", file=sys.stderr)
    if any("error" in record for record in records):
        raise SystemExit(1)


def _show(folder: Path, records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tammes.metrics import TITLES
    from tammes.training.verdict import describe

    table = Table(title=escape(printable(f"runs in {folder}")))
    for column in ("run", "state", "data", "loss", "centroids", "epochs"):
        table.add_column(column, no_wrap=True)
    for name in TITLES.values():
        table.add_column(name, justify="right")
    for record in records:
        measured = record["trained"] or {}
        cells = ["" if measured.get(name) is None else f"{100 * measured[name]:.2f}" for name in TITLES]
        place, data = Path(record["run"]).relative_to(folder), Path(record["data"] or "").name
        shown = (place, record["state"], data, record["loss"], record["centroids"], record["epochs"])
        table.add_row(*(escape(printable(str(each))) for each in shown), *cells)
    Console(width=max(100, len(TITLES) * 9 + 90)).print(table)
    for record in records:
        if describe(record):
            print(f"{printable(str(Path(record['run']).relative_to(folder)))}: {describe(record)}")


def _remove(config: Runs, folder: Path) -> None:
    from tammes.training.run_folder import open_run, remove

    place = open_run(folder).folder.resolve()
    if folder.is_symlink():
        raise UserError(f"{folder} is a link. Remove the run itself: tammes runs --remove {place}")
    left = remove(place)
    if config.json:
        print_json({"removed": str(folder), "left": left})
        return
    print(f"removed {folder}")
    if left:
        say(f"note: {folder} stays, with what is not the run's: {printable(', '.join(left))}")


def _record_or_error(run: Any) -> dict[str, Any]:
    """A run that cannot be read does not hide the others."""
    try:
        return _record(run)
    except UserError as error:
        return {"run": str(run.folder), "error": str(error)}


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
        "verdict": results.get("verdict"),
        "command": results.get("command"),
    }


def _epochs(run: Any, options: dict[str, Any]) -> str:
    """How many of how many; what has none, as ridge, has a dash."""
    # Vectors may train again on the classes that chose the epoch, which is not one more of those that were asked for.
    done = sum("on_all_classes" not in line for line in run.epochs())
    return "-" if options.get("epochs") is None else f"{done}/{options['epochs']}"
