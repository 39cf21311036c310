"""The result files of a benchmark, results.json and table.md, and the location of a plan's data."""

import json
from pathlib import Path
from typing import Any

from tammes.benchmark.cells import table_cells
from tammes.benchmark.choose import combinations
from tammes.benchmark.plan import Plan
from tammes.benchmark.tables import as_json, markdown, remarks, table
from tammes.data import is_cars196, is_cub
from tammes.errors import UserError
from tammes.io.environment import data_folder
from tammes.io.files import write_atomically


def find_data(plan: Plan, folder: Path | None) -> str:
    """The path of a plan's data: its name in --data, in TAMMES_DATA or in the current folder; or --data itself."""
    if plan.data == "glyphs" or Path(plan.data).is_absolute():
        found = Path(plan.data)
    else:
        found = (folder or data_folder() or Path()) / plan.data
        known = {"cars196": is_cars196, "CUB_200_2011": is_cub}.get(plan.data)
        if folder is not None and known is not None and not found.exists() and known(folder):
            found = folder
    if plan.data != "glyphs" and not found.exists():
        raise UserError(
            f"{plan.file} is about the data {plan.data!r}, and there is no {found}. Say which folder holds it, with"
            " `data=FOLDER` or the environment variable TAMMES_DATA. `tammes data` gets those that may be fetched."
        )
    return str(found)


def write_results(plan: Plan, out: Path) -> dict[str, Any]:
    """Write results.json and table.md from all cells with a result."""
    tables, said = tables_of(plan, out)
    cells = [
        {"command": plan.command(cell.method, cell.preset, cell.seed)}  # that of a cell with a result says all options
        | {name: value for name, value in (cell.result() or {}).items() if name != "traceback"}
        | {"preset": cell.preset, "method": cell.method.name, "seed": cell.seed, "state": cell.state}
        for cell in table_cells(plan, out)
    ]
    content = {
        "plan": plan.file.stem,
        "title": plan.title,
        "data": plan.data,
        "paper": plan.paper,
        "remarks": said,
        "tables": as_json(tables),
        "cells": cells,
    }
    write_atomically(out / "results.json", json.dumps(content, indent=1).encode() + b"\n")
    write_atomically(out / "table.md", markdown(plan, tables, said).encode(errors="backslashreplace"))
    return content


def tables_of(plan: Plan, out: Path) -> tuple[dict[str, Any], list[str]]:
    """A table for each preset, with the notes below."""
    cells = table_cells(plan, out)
    tried = {
        preset: {method.name: len(combinations(plan, out, preset, method)) for method in plan.methods}
        for preset in plan.presets
    }
    configs: dict[str, dict[str, Any]] = {}
    images: list[dict[str, int]] = []
    for cell in cells:
        result = cell.result()
        if result is not None and "config" in result:
            configs.setdefault(cell.preset, result["config"])
            images += [result["images"]] if "images" in result else []
    said = remarks(plan, list(configs.values()), {k: n for of in tried.values() for k, n in of.items()}, images)
    return {preset: table(plan, preset, cells, tried[preset]) for preset in plan.presets}, said
