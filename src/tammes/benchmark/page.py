"""The report of a benchmark: its tables with the paper's numbers, and charts."""

import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tammes import __version__
from tammes.benchmark.cells import DONE, FAILED
from tammes.benchmark.columns import Column, Shown, describe_machine
from tammes.benchmark.complexity import Complexity, complexity_part
from tammes.benchmark.plan import slug
from tammes.benchmark.published import published
from tammes.benchmark.tables import (
    DISTANCES,
    HEADLINE,
    MEASURES,
    UNTRAINED,
    Figure,
    Row,
    curve,
    from_json,
    read_results,
)
from tammes.errors import UserError
from tammes.io.outputs import place_for
from tammes.io.schema import read_json
from tammes.report.axes import figure
from tammes.report.charts import Bar, Line, Point, bar_chart, line_chart, scatter
from tammes.report.curves import bound_charts
from tammes.report.page import Section, page, rendered, write_page

LISTED = 20  # trainings that are listed at once; more are folded away
DRAWN = {name: MEASURES[name] for name in (HEADLINE, "mean_average_precision_at_r", "NMI")}
_APART, _MEETS = "clear", "highest"


def report_benchmark(
    folder: Path, out: Path | None = None, *, complexity: Path | None = None, overwrite: bool = False
) -> Path:
    """Write the report of a benchmark. Returns its path.

    Args:
        out: by default report.html in the folder, which is always replaced.
        complexity: what `python -m benchmarks.complexity` wrote, if that is to be on the page.
        overwrite: replace `out`.
    """
    file = out or folder / "report.html"
    place = file
    if out is not None:
        place = place_for("out", out, name="report.html", suffixes=(".html", ".htm"), overwrite=overwrite)
    results = read_results(folder)
    if results is None:
        raise UserError(f"{folder} has no results yet. Its `tammes benchmark` command continues it.")
    grown = None
    if complexity is not None:
        grown = read_json(complexity, Complexity, "`python -m benchmarks.complexity` writes such a file.")
        if grown is None:
            raise UserError(f"`complexity={str(complexity)!r}`: there is no such file.")
    content = page(
        results["title"],
        f"Data: {results['data']}. On classes that took no part in training.",
        benchmark_sections(results, folder, file, grown),
        made_by=f"Made by tammes {__version__} from {folder.name}.",
    )
    write_page(place, content)
    return file


def benchmark_sections(
    results: Mapping[str, Any], folder: Path, out: Path, complexity: Mapping[str, Any] | None = None
) -> list[Section]:
    """The sections of the page.

    Args:
        results: what `tammes benchmark` wrote to results.json.
        folder: where it wrote it, with the run folders.
        out: the page, from which links lead.
        complexity: what `python -m benchmarks.complexity` wrote, if that is to be on the page.
    """
    tables, cells = from_json(results["tables"]), list(results["cells"])
    sections = [Section("compared", "What was compared", _compared(results, tables, folder))]
    for preset, rows in tables.items():
        title = "Results" if len(tables) == 1 else f"Results, preset {preset}"
        sections.append(Section(f"results-{slug(preset)}", title, _results(rows, results.get("paper"))))
    if any(row.minutes is not None for rows in tables.values() for row in rows):
        sections.append(Section("time", "Accuracy against training time", _times(tables, cells, results.get("paper"))))
    if any(len(curve(cell.get("epochs", ()))) > 1 or _bound(cell) for cell in cells):
        sections.append(Section("curves", "Accuracy and bound during training", _curves(tables, cells)))
    if complexity is not None:
        sections.append(Section("complexity", "How the time of an epoch grows", complexity_part(complexity)))
    if any(row.chosen for rows in tables.values() for row in rows):
        sections.append(Section("search", "What the search chose", _search(tables)))
    sections.append(Section("runs", "Every training", _runs(cells, folder, out)))
    return sections


# ---- what was compared


def _compared(results: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], folder: Path) -> Markup:
    command = f"tammes benchmark {shlex.quote(results['plan'] + '.toml')}"
    if folder != Path("runs") / results["plan"]:
        command += f" --out {shlex.quote(str(folder))}"
    findings = [
        f"{f'Preset {preset}: ' if len(tables) > 1 else ''}{found}"
        for preset, rows in tables.items()
        for found in [_finding(rows)]
        if found
    ]
    return rendered(
        "benchmark.html",
        part="compared",
        findings=findings,
        progress=_progress(results["cells"]),
        remarks=results["remarks"],
        command=command,
        plan=f"{results['plan']}.toml",
        needs_data=results["data"] != "glyphs" and not Path(results["data"]).is_absolute(),
        data=results["data"],
    )


def _progress(cells: Sequence[Mapping[str, Any]]) -> str:
    """The number of trainings with a result, and the state of the others."""
    states = Counter(cell["state"] for cell in cells)
    done, failed = states[DONE], states[FAILED]
    waiting = len(cells) - done - failed
    said = [f"{done} of {len(cells)} training{'s' * (len(cells) != 1)} {'is' if done == 1 else 'are'} done"]
    said += [f"{failed} failed"] if failed else []
    said += [f"{waiting} did not run yet"] if waiting else []
    return "; ".join(said) + "."


def _finding(rows: Sequence[Row]) -> str:
    """The highest R@1 of the last epoch with its uncertainty; empty without a result."""
    ranked = _ranked([row for row in _of_last_epoch(rows) if row.method != UNTRAINED], HEADLINE)
    if not ranked:
        return ""
    names, first = _names(rows), ranked[0]
    said = [f"The highest {MEASURES[HEADLINE]} is that of {names[first.name]}: {first.measures[HEADLINE]}."]
    if len(ranked) > 1:
        second = ranked[1]
        how = "one seed says nothing of how sure this is"
        if (meet := _meet(first.measures[HEADLINE], second.measures[HEADLINE])) is not None:
            how = f"the intervals {'' if meet else 'do not '}overlap"
        said.append(f"Next is {names[second.name]} with {second.measures[HEADLINE]}; {how}.")
    untrained = next((row.measures.get(HEADLINE) for row in rows if row.method == UNTRAINED), None)
    if untrained is not None:
        more = untrained.mean > first.measures[HEADLINE].mean
        said.append(f"Before training it is {untrained}{', which is more' * more}.")
    theirs = [number for row in rows if (number := _number((row.paper or {}).get(MEASURES[HEADLINE]))) is not None]
    if theirs:
        said.append(f"The highest of the paper's that stand beside these rows is {max(theirs):.2f}.")
    return " ".join(said)


# ---- the table of a preset and its charts


def _results(rows: Sequence[Row], paper: str | None) -> Markup:
    names = _names(rows)
    charts = {}
    for measure, title in DRAWN.items():
        if any(measure in row.measures for row in rows):
            charts[measure] = bar_chart(_bars(rows, names, measure), title=title, unit="%")
    first, *others = charts.values() or [Markup("")]
    return rendered(
        "benchmark.html",
        part="results",
        columns=_columns(rows, names, paper),
        layer=_only_layer(rows),
        untrained=[number for number, row in enumerate(rows) if row.method == UNTRAINED],
        has_paper=any(row.paper for row in rows),
        has_best_epoch=any(row.epoch != "last" for row in rows),
        has_results=bool(charts),
        chart=first,
        charts=others,
    )


def _columns(rows: Sequence[Row], names: Mapping[str, str], paper: str | None) -> list[Column]:
    """The table; columns that would be empty are left out."""
    found = [Column("method", [Shown(names[row.name]) for row in rows], "name")]
    for name, title in MEASURES.items():
        figures = [row.measures.get(name) for row in rows]
        cells = [
            Shown("" if of is None else str(of), None if of is None else of.mean, _published(row, title), mark)
            for row, of, mark in zip(rows, figures, _marks(rows, name), strict=True)
        ]
        found.append(Column(title, cells, "number"))
    differences = [
        Shown() if row.difference is None else Shown(_signed(row.difference), row.difference.mean) for row in rows
    ]
    found += [
        Column(f"{MEASURES[HEADLINE]} to the first row", differences, "number"),
        Column("seeds", [Shown(str(row.seeds or ""), row.seeds or None) for row in rows], "number"),
        Column("minutes to train", [_time(row.minutes, _paper_minutes(row, paper)) for row in rows], "number"),
        Column("seconds an epoch", [_time(_seconds(row)) for row in rows], "number"),
    ]
    for name, title in DISTANCES.items():
        lengths = [(row.distances or {}).get(name) for row in rows]
        cells = [
            Shown("" if length is None else f"{length:.3f}", length, _published(row, title, 3))
            for row, length in zip(rows, lengths, strict=True)
        ]
        found.append(Column(title, cells, "number"))
    beside = {*MEASURES.values(), *DISTANCES.values(), "minutes"}
    for title in dict.fromkeys(title for row in rows for title in row.paper or {} if title not in beside):
        found.append(Column(f"the paper's {title}", [Shown(_published(row, title)) for row in rows]))
    remarks = [Shown(row.remark or ("" if row.measures else "no result yet")) for row in rows]
    found.append(Column("remark", remarks, "words"))
    return [column for column in found if any(cell.text or cell.paper for cell in column.cells)]


def _signed(of: Figure) -> str:
    return f"{of.mean:+.2f}" + ("" if of.half is None else f" ± {of.half:.2f}")


def _seconds(row: Row) -> float | None:
    return None if row.minutes_per_epoch is None else 60 * row.minutes_per_epoch


def _marks(rows: Sequence[Row], measure: str) -> list[str]:
    """Which rows are marked as the highest of the last epoch: clearly if their interval meets no other one."""
    ranked = _ranked(_of_last_epoch(rows), measure)
    if len(ranked) < 2:
        return [""] * len(rows)
    top = ranked[0].measures[measure]
    equal = [row for row in ranked if row.measures[measure].mean == top.mean]
    clear = len(equal) == 1 and all(_meet(top, row.measures[measure]) is False for row in ranked[1:])
    return [(_APART if clear else _MEETS) if any(row is each for each in equal) else "" for row in rows]


def _meet(one: Figure, other: Figure) -> bool | None:
    """Whether two intervals overlap; None if one of them is unknown."""
    if one.half is None or other.half is None:
        return None
    return abs(one.mean - other.mean) <= one.half + other.half


def _of_last_epoch(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.epoch == "last"]


def _ranked(rows: Sequence[Row], measure: str) -> list[Row]:
    """The rows with this metric, the highest first."""
    return sorted((row for row in rows if measure in row.measures), key=lambda row: -row.measures[measure].mean)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """The displayed names of rows: without the layer if there is only one."""
    return {row.name: replace(row, layer="").name if _only_layer(rows) else row.name for row in rows}


def _only_layer(rows: Sequence[Row]) -> str:
    """The layer that all rows are compared by; empty if there are several."""
    layers = {row.layer for row in rows if row.layer}
    return layers.pop() if len(layers) == 1 else ""


def _bars(rows: Sequence[Row], names: Mapping[str, str], measure: str) -> list[Bar]:
    """The highest first, those without a result last."""
    ranked = _ranked(rows, measure)
    bars = []
    for row in [*ranked, *(row for row in rows if measure not in row.measures)]:
        of, reference = row.measures.get(measure), _number((row.paper or {}).get(MEASURES[measure]))
        bars.append(Bar(names[row.name], None if of is None else of.mean, *_ends(of), reference))
    return bars


def _ends(of: Figure | None) -> tuple[float | None, float | None]:
    """Of the interval."""
    return (None, None) if of is None or of.half is None else (of.mean - of.half, of.mean + of.half)


def _time(value: float | None, paper: float | None = None) -> Shown:
    theirs = "" if paper is None else figure(paper)
    return Shown("", None, theirs) if value is None else Shown(figure(float(value)), value, theirs)


def _number(value: int | float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _published(row: Row, title: str, digits: int = 2) -> str:
    value = (row.paper or {}).get(title, "")
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _paper_minutes(row: Row, paper: str | None) -> float | None:
    """The paper's minutes to train: of the row itself, or of the same method in its table of minutes."""
    if row.paper is None:
        return None
    if "minutes" in row.paper:
        return _number(row.paper["minutes"])
    tables = published()
    if paper not in tables or f"minutes-{paper}" not in tables:
        return None
    # A row of results keeps the paper's figures without the name that they have there.
    same = [name for name, figures in tables[paper].rows.items() if figures == row.paper]
    return _number(tables[f"minutes-{paper}"].rows.get(same[0], {}).get("minutes")) if len(same) == 1 else None


# ---- time


def _times(tables: Mapping[str, Sequence[Row]], cells: Sequence[Mapping[str, Any]], paper: str | None) -> Markup:
    charts, ratio = [], 1.0
    for preset, rows in tables.items():
        trained = [row for row in _once_each(rows) if row.minutes is not None]
        if not trained:
            continue
        where = f", preset {preset}" if len(tables) > 1 else ""
        seconds = {row.method: _seconds_an_epoch(cells, preset, row.method) for row in trained}
        ratio = max([ratio, *(max(of) / min(of) for of in seconds.values() if of and min(of) > 0)])
        charts += [_accuracy_over_time(rows, trained, where, paper), _epochs(trained, seconds, where)]
    return rendered(
        "benchmark.html",
        part="times",
        charts=charts,
        machines=_machines(cells),
        ratio=figure(ratio) if ratio > 1.5 else "",
    )


def _accuracy_over_time(rows: Sequence[Row], trained: Sequence[Row], where: str, paper: str | None) -> Markup:
    """R@1 over training time, ours and, where the paper has both, the paper's."""
    layer = trained[0].layer
    by = f", by the {layer} layer" if any(row.layer not in (layer, "") for row in rows) else ""
    untrained = next((row.measures.get(HEADLINE) for row in rows if row.method == UNTRAINED), None)
    said = "Higher is better, and farther left is faster."
    said += "" if untrained is None else f" Before training it is {untrained}."
    ours = [
        Point(row.method, row.minutes, row.measures[HEADLINE].mean, *_ends(row.measures[HEADLINE]), "here")
        for row in trained
        if row.minutes is not None and HEADLINE in row.measures
    ]
    theirs = [
        Point(row.method, minutes, recall, group="the paper")
        for row in trained
        if (minutes := _paper_minutes(row, paper)) is not None
        and (recall := _number((row.paper or {}).get(MEASURES[HEADLINE]))) is not None
    ]
    if theirs:
        said += (
            " The paper's minutes are those of its authors' machine, every layer trained: its methods compare with each"
            " other, not with ours."
        )
    return scatter(
        [*ours, *theirs],
        title=f"{MEASURES[HEADLINE]} over minutes to train{by}{where}",
        x_title="minutes to train, logarithmic",
        y_title=f"{MEASURES[HEADLINE]}, %",
        log_x=True,
        caption=said,
    )


def _epochs(trained: Sequence[Row], seconds: Mapping[str, Sequence[float]], where: str) -> Markup:
    """Seconds of an epoch, the fastest method first."""
    bars = [Bar(row.method, _seconds(row), *_range(seconds[row.method])) for row in trained]
    bars.sort(key=lambda bar: math.inf if bar.value is None else bar.value)
    return bar_chart(
        bars,
        title=f"Seconds an epoch{where}",
        unit="seconds, the mean over seeds",
        interval_name="fastest and slowest seed",
    )


def _once_each(rows: Sequence[Row]) -> list[Row]:
    """One row for each method that trained: the first layer, the last epoch."""
    found: dict[str, Row] = {}
    for row in _of_last_epoch(rows):
        if row.method != UNTRAINED:
            found.setdefault(row.method, row)
    return list(found.values())


def _range(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (min(values), max(values)) if len(values) > 1 else (None, None)


def _seconds_an_epoch(cells: Sequence[Mapping[str, Any]], preset: str, method: str) -> list[float]:
    return [
        cell["training_seconds"] / cell["config"]["epochs"]
        for cell in cells
        if cell["preset"] == preset and cell["method"] == method and cell["state"] == DONE
        if cell.get("training_seconds") is not None and cell.get("config", {}).get("epochs")
    ]


def _machines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A description of each machine, without duplicates."""
    found = [cell["machine"] for cell in cells if cell.get("machine")]
    return list(dict.fromkeys(describe_machine(of) for of in found))


# ---- curves


def _curves(tables: Mapping[str, Sequence[Row]], cells: Sequence[Mapping[str, Any]]) -> Markup:
    """R@1 over minutes for every method, the mean over its seeds; and the bound of the first seed of each."""
    charts: list[Markup] = []
    for preset, rows in tables.items():
        of_preset = [cell for cell in cells if cell["preset"] == preset and cell.get("epochs")]
        methods = list(dict.fromkeys(cell["method"] for cell in of_preset))
        where = f", preset {preset}" if len(tables) > 1 else ""
        lines = []
        for method in methods:
            found = [curve(cell["epochs"]) for cell in of_preset if cell["method"] == method]
            shared = [epoch for epoch in found[0] if all(epoch in each for each in found)]
            points = [[mean(each[epoch][part] for each in found) for epoch in shared] for part in (0, 1)]
            lines.append(Line(method, *points))
        untrained = next((row.measures.get(HEADLINE) for row in rows if row.method == UNTRAINED), None)
        if any(len(line.x) > 1 for line in lines):
            charts.append(
                line_chart(
                    lines,
                    title=f"{MEASURES[HEADLINE]} over minutes of training{where}",
                    x_title="minutes of training",
                    y_title=f"{MEASURES[HEADLINE]}, %",
                    levels={} if untrained is None else {"before training": untrained.mean},
                    caption="On test classes, after some epochs, the mean over seeds. Nothing was chosen by it.",
                )
            )
        for method in methods:
            first = next(cell for cell in of_preset if cell["method"] == method)
            if _bound(first):
                charts += [Markup("<h3>{}</h3>").format(f"{method}, seed {first['seed']}{where}")]
                charts += bound_charts(first["epochs"])
    return rendered("benchmark.html", part="times", charts=charts, machines=[], ratio="")


def _bound(cell: Mapping[str, Any]) -> bool:
    return any("bound" in line for line in cell.get("epochs", ()))


# ---- the search, and every training


def _search(tables: Mapping[str, Sequence[Row]]) -> Markup:
    trained = [(preset, row) for preset, rows in tables.items() for row in _once_each(rows)]
    # `lr 0.1, push 0.5 of 8`: the combination, and among how many.
    parts = [(row.chosen or "not chosen yet of ").rpartition(" of ") for _, row in trained]
    columns = [
        Column("method", [Shown(row.method) for _, row in trained], "name"),
        Column("preset", [Shown(preset) for preset, _ in trained]),
        Column("chosen", [Shown(what) for what, _, _ in parts]),
        Column("among combinations", [Shown(n, float(n) if n.isdecimal() else None) for _, _, n in parts], "number"),
    ]
    return rendered("benchmark.html", part="search", columns=columns if len(tables) > 1 else [columns[0], *columns[2:]])


def _runs(cells: Sequence[Mapping[str, Any]], folder: Path, out: Path) -> Markup:
    layers = list(dict.fromkeys(layer for cell in cells for layer in cell.get("layers") or {}))
    rows = [
        {
            "preset": cell["preset"],
            "method": cell["method"],
            "seed": cell["seed"],
            "recalls": [_recall(cell, layer) for layer in layers],
            "minutes": _time(_minutes(cell)),
            "state": cell["state"],
            "error": str(cell.get("error", "")),
            "command": cell["command"],
            "link": _link(cell, folder, out),
        }
        for cell in cells
    ]
    return rendered(
        "benchmark.html",
        part="runs",
        rows=rows,
        titles=[f"R@1, {layer} layer" for layer in layers] if len(layers) > 1 else ["R@1"] * len(layers),
        presets=len({cell["preset"] for cell in cells}),
        folded=len(rows) > LISTED,
        failed=FAILED,
    )


def _recall(cell: Mapping[str, Any], layer: str) -> Shown:
    found = (cell.get("layers") or {}).get(layer, {}).get(HEADLINE)
    return Shown() if found is None else Shown(f"{100 * found:.2f}", 100 * found)


def _minutes(cell: Mapping[str, Any]) -> float | None:
    seconds = cell.get("training_seconds")
    return None if seconds is None else seconds / 60


def _link(cell: Mapping[str, Any], folder: Path, out: Path) -> dict[str, str] | None:
    """A link to the report of a run, or else to its folder; None if that does not exist."""
    run = folder / cell["preset"] / slug(cell["method"]) / f"seed-{cell['seed']}"
    if not run.is_dir():
        return None
    report = run / "report.html"
    there, called = (report, "report") if report.is_file() else (run, "folder")
    address = Path(os.path.relpath(there.resolve(), out.resolve().parent)).as_posix()
    return {"address": quote(address) + "/" * (called == "folder"), "called": called}
