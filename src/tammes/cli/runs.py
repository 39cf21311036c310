"""`tammes runs`: list, compare and remove run folders."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes.cli.console import optional, percent, print_table
from tammes.cli.options import Json
from tammes.errors import UserError
from tammes.io.console import print_json, printable, say

_COLUMNS = ("run", "state", "data", "loss", "centroids", "epochs")


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder with their results, or remove one.

    For example:
        tammes runs
        tammes runs experiments/ --json
        tammes runs --remove runs/photos
    """

    folder: Annotated[Path | None, tyro.conf.Positional, optional("FOLDER")] = None
    """The folder with the runs. (default: runs)"""
    remove: Annotated[Path | None, optional("RUN")] = None
    """Remove this run folder."""
    json: Json = False


def runs(config: Runs) -> None:
    """List, or remove."""
    from tammes.training.run_folder import records, remove

    if config.remove is not None:
        if config.folder is not None:
            alone = f"tammes runs --remove {config.remove}"
            raise UserError(f"`remove` takes the run folder itself: leave out {config.folder}, as in: {alone}")
        left = remove(config.remove)
        print_json({"removed": str(config.remove), "left": left}) if config.json else print(f"removed {config.remove}")
        if left and not config.json:
            say(f"note: {config.remove} stays, with what is not the run's: {printable(', '.join(left))}")
        return
    folder = config.folder or Path("runs")
    found = records(folder)
    errors = [record["error"] for record in found if "error" in record]
    if config.json:
        print_json(found)
    else:
        _show(folder, [record for record in found if "error" not in record])
        for error in errors:
            print(f"left out: {printable(error)}", file=sys.stderr)
    if errors:
        raise SystemExit(1)


def _show(folder: Path, records: list[dict[str, Any]]) -> None:
    from tammes.metrics import TITLES
    from tammes.training.verdict import describe

    rows = []
    for record in records:
        record |= {"run": Path(record["run"]).relative_to(folder), "data": Path(record["data"] or "").name}
        measured = record["trained"] or {}
        figures = ("" if measured.get(name) is None else percent(measured[name]) for name in TITLES)
        rows.append([*(str(record[name]) for name in _COLUMNS), *figures])
    columns, width = [*_COLUMNS, *TITLES.values()], max(100, len(TITLES) * 9 + 90)
    print_table(f"runs in {folder}", columns, rows, texts=_COLUMNS, width=width)
    for record in records:
        if describe(record):
            print(f"{printable(str(record['run']))}: {describe(record)}")
