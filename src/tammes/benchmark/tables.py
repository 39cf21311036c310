"""Tables from the results of cells: means over seeds with 95 % intervals, paired differences to the first row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NotRequired

from pydantic import FiniteFloat, PositiveInt
from typing_extensions import TypedDict

from tammes.benchmark.cells import DONE, FAILED, Cell, Machine
from tammes.benchmark.plan import Plan, describe_options
from tammes.benchmark.published import published_row, published_table
from tammes.centroids import quality
from tammes.io.schema import built, read_json
from tammes.losses import WITH_CENTROIDS
from tammes.training.run_folder import RunFolder, centroids_of
from tammes.training.run_schema import Line, Measures

MEASURES = {
    "recall_at_1": "R@1",
    "recall_at_2": "R@2",
    "recall_at_4": "R@4",
    "recall_at_8": "R@8",
    "mean_average_precision_at_r": "MAP@R",
    "NMI": "NMI",
}
# Between the centroids, in the words of the paper's table.
DISTANCES = {"min": "min distance", "max": "max distance", "mean": "mean distance", "std": "std of distances"}
HEADLINE = "recall_at_1"
UNTRAINED = "before training"
BEST = "best epoch (optimistic)"
_ADVICE = "The same `tammes benchmark` command writes it again."


@dataclass(frozen=True)
class Figure:
    """A mean over seeds, in per cent, and half of its 95 % interval (None for a single seed)."""

    mean: FiniteFloat
    half: FiniteFloat | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half is None else f"{self.mean:.2f} ± {self.half:.2f}"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        layer: the embedding layer; empty for the network before training.
        epoch: last, or best epoch (optimistic).
        difference: of R@1 to the first row, over the seeds that both have.
        minutes: mean training time over seeds, in total and per epoch.
        distances: between the centroids, the mean over seeds; min, max, mean and std of all pairs.
        paper: the paper's numbers for the same method, by column.
        chosen: the choice of the search, and the number of combinations.
        remark: missing results and the reason.
    """

    method: str
    layer: str
    epoch: str
    measures: dict[str, Figure] = field(default_factory=dict)
    seeds: int = 0
    difference: Figure | None = None
    minutes: FiniteFloat | None = None
    minutes_per_epoch: FiniteFloat | None = None
    distances: dict[str, FiniteFloat] | None = None
    paper: dict[str, int | FiniteFloat | str] | None = None
    chosen: str | None = None
    remark: str | None = None

    @property
    def name(self) -> str:
        parts = [self.method, f"{self.layer} layer" if self.layer else "", "" if self.epoch == "last" else self.epoch]
        return ", ".join(part for part in parts if part)


def figure(values: Sequence[float]) -> Figure:
    """Mean and 95 % interval by Student's t, in the unit of the values."""
    number = len(values)
    if number < 2:
        return Figure(values[0], None, number)
    from scipy.stats import t

    return Figure(mean(values), float(t.ppf(0.975, number - 1)) * stdev(values) / math.sqrt(number), number)


def paired(values: Mapping[int, float], first: Mapping[int, float]) -> Figure | None:
    """The paired difference to the first row over common seeds; None without a common seed."""
    common = sorted(values.keys() & first.keys())
    return figure([values[seed] - first[seed] for seed in common]) if common else None


def compares_centroids(plan: Plan) -> bool:
    """Whether the methods of a plan differ in their centroids."""
    chosen = [plan.train | method.options for method in plan.methods]
    return len({each.get("centroids") for each in chosen if each["loss"] in WITH_CENTROIDS}) > 1


def centroid_distances(run: RunFolder) -> dict[str, float] | None:
    """Distances between the centroids of a run, generated again from its config; None if it has none."""
    centroids = centroids_of(run)
    if centroids is None:
        return None
    found = quality(centroids)
    return {name: getattr(found, name) for name in DISTANCES}


def table(plan: Plan, preset: str, cells: Sequence[Cell], tried: Mapping[str, int] | None = None) -> list[Row]:
    """The rows of a preset from the available results: every method in every layer, then before training.

    Args:
        tried: the number of combinations in the search of each method.
    """
    ours = [cell for cell in cells if cell.preset == preset and cell.quarter is None]
    rows: list[Row] = []
    first: dict[str, Mapping[int, float]] = {}
    untrained: dict[int, dict[str, Any]] = {}
    for method in plan.methods:
        done = [cell for cell in ours if cell.method.name == method.name and cell.state == DONE]
        results = {cell.seed: result for cell in done if (result := cell.result(method.layers)) is not None}
        for seed, result in results.items():
            untrained.setdefault(seed, result["untrained"])
        shared: dict[str, Any] = {
            "remark": _remark([cell for cell in ours if cell.method.name == method.name]),
            "chosen": _chosen(results, (tried or {}).get(method.name, 0)),
            "minutes": _mean([result["training_seconds"] / 60 for result in results.values()]),
            "minutes_per_epoch": _mean(
                [result["training_seconds"] / 60 / result["config"]["epochs"] for result in results.values()]
            ),
            "distances": _distances(list(results.values())),
        }
        for layer in method.layers:
            found = {seed: result["layers"][layer] for seed, result in results.items()}
            row = _row(method.name, layer, "last", found, first)
            theirs = None
            if plan.paper is not None and layer in method.paper:
                theirs = published_row(plan.paper, method.paper[layer])
            rows.append(replace(row, paper=theirs, **shared))
        best = {seed: result["best"] for seed, result in results.items() if result.get("best") is not None}
        if best:
            rows.append(replace(_row(method.name, method.layers[0], BEST, best, first), **shared))
    rows.append(_row(UNTRAINED, "", "last", untrained, first))
    return rows


def _row(
    method: str, layer: str, epoch: str, found: Mapping[int, Mapping[str, Any]], first: dict[str, Mapping[int, float]]
) -> Row:
    """One row from its metrics by seed; the others are compared with the first one."""
    values = {
        name: {seed: 100 * measures[name] for seed, measures in found.items() if measures.get(name) is not None}
        for name in MEASURES
    }
    is_first = "row" not in first
    # The first row stays the one that is compared with even while it has no result.
    against = first.setdefault("row", values[HEADLINE])
    return Row(
        method=method,
        layer=layer,
        epoch=epoch,
        measures={name: figure(list(of.values())) for name, of in values.items() if of},
        seeds=len(found),
        difference=None if is_first else paired(values[HEADLINE], against),
    )


def _remark(cells: Sequence[Cell]) -> str | None:
    """The missing results of a method, and the reason."""
    failed = [cell for cell in cells if cell.state == FAILED]
    waiting = sum(cell.state not in (DONE, FAILED) for cell in cells)
    said = []
    if failed:
        error = str((failed[0].result() or {}).get("error")).partition("\n")[0]
        said.append(f"{len(failed)} of {len(cells)} failed: {error}")
    if waiting:
        said.append(f"{waiting} of {len(cells)} not run yet")
    return "; ".join(said) or None


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _distances(results: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The mean over the seeds that know them: where the centroids are may depend on the seed."""
    known = [result["distances"] for result in results if result.get("distances") is not None]
    return {name: mean(each[name] for each in known) for name in DISTANCES} if known else None


def _chosen(results: Mapping[int, Mapping[str, Any]], tried: int) -> str | None:
    if not results or not tried:
        return None
    return f"{describe_options(next(iter(results.values()))['chosen'])} of {tried}"


def columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The table as text: column title -> cells, without empty columns."""
    found = {"method": [row.name for row in rows]}
    for name, title in MEASURES.items():
        found[title] = [str(row.measures[name]) if name in row.measures else "" for row in rows]
    found["R@1 - first row"] = ["" if row.difference is None else _signed(row.difference) for row in rows]
    found["seeds"] = [str(row.seeds or "") for row in rows]
    found["minutes"] = [
        "" if row.minutes is None else f"{row.minutes:.1f}" if row.minutes >= 1 else f"{row.minutes:.2f}"
        for row in rows
    ]
    found["minutes/epoch"] = [
        ""
        if row.minutes_per_epoch is None
        else f"{row.minutes_per_epoch:.1f}"
        if row.minutes_per_epoch >= 1
        else f"{row.minutes_per_epoch:.2g}"
        for row in rows
    ]
    for name, title in DISTANCES.items():
        found[title] = ["" if row.distances is None else f"{row.distances[name]:.3f}" for row in rows]
    found["chosen"] = [row.chosen or "" for row in rows]
    titles = paper_titles(rows)
    if titles:
        found[f"the paper's {' / '.join(titles)}"] = [
            "" if row.paper is None else " / ".join(_published(row.paper.get(title, "-")) for title in titles)
            for row in rows
        ]
    found["the paper's min / max / mean / std of distances"] = [
        "" if row.paper is None or DISTANCES["min"] not in row.paper else _published_distances(row.paper)
        for row in rows
    ]
    found["remark"] = [row.remark or "" for row in rows]
    return {title: cells for title, cells in found.items() if any(cells)}


def _signed(figure: Figure) -> str:
    return str(figure) if figure.mean < 0 else f"+{figure}"


def _published(value: int | float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _published_distances(paper: Mapping[str, int | float | str]) -> str:
    return " / ".join(f"{paper[title]:.3f}" for title in DISTANCES.values())


def paper_titles(rows: Sequence[Row]) -> list[str]:
    """The paper's columns that we have too; all of its own if there are none."""
    given = list(dict.fromkeys(title for row in rows if row.paper for title in row.paper))
    return [title for title in MEASURES.values() if title in given] or given


def markdown(plan: Plan, tables: Mapping[str, Sequence[Row]], remarks: Sequence[str]) -> str:
    """A Markdown page: what was compared and how, and a table for each preset."""
    lines = [f"# {plan.title}", "", *remarks, ""]
    for preset, rows in tables.items():
        shown = columns(rows)
        lines += [f"## preset {preset}", ""] if len(tables) > 1 else []
        lines += [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|"]
        lines += [
            f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in zip(*shown.values(), strict=True)
        ]
        lines.append("")
    return "\n".join(lines)


# Images that were published, for training and test together.
_PUBLISHED = {"CUB_200_2011": 11788, "cars196": 16185}


def remarks(
    plan: Plan, configs: Sequence[Mapping[str, Any]], tried: Mapping[str, int], images: Sequence[Mapping[str, int]] = ()
) -> list[str]:
    """How the rows were made, in sentences.

    Args:
        configs: the options of one finished run of each preset.
        images: the numbers of training and test images of the finished runs.
    """
    said = [
        f"Data: {plan.data}. Per cent, on classes that took no part in training; the last epoch; the mean over seeds ±"
        " half of its 95 % interval (Student's t). Differences are paired by seed."
    ]
    for train, test in dict.fromkeys((each["train"], each["test"]) for each in images):
        published = _PUBLISHED.get(Path(plan.data).name, train + test)
        less = "" if train + test == published else f", {train + test:,} of the {published:,} that were published"
        said.append(f"{train:,} images trained and {test:,} tested{less}.")
    for config in configs:
        crops = {None: "random crops", 0: "centre crops"}.get(config["views"], f"{config['views']} views")
        said.append(
            f"The same for all rows (preset {config['preset']}): {config['backbone']} from {config['weights']},"
            f" trained: {config['train']}, pool {config['pool']}, dim {config['dim']}, {crops}, mirror"
            f" {config['mirror']}, shift {config['shift']}, {config['epochs']} epochs, batches of"
            f" {config['batch_size']} from {config['init']} new layers, unless said otherwise."
        )
    if plan.rates_from is not None:
        other = plan.rates_from
        said.append(f"Each method's learning rate is the one that {other.file.stem} chose, on {other.data}.")
    if plan.search is not None:
        numbers = sorted(set(tried.values()))
        said.append(
            f"Each method's options were chosen among {' or '.join(map(str, numbers))} combinations by R@1 on"
            f" {len(plan.search.quarters)} quarter{'s' * (len(plan.search.quarters) > 1)} of the training classes, held"
            " out in turn; test classes took no part in it."
            + (f" In the search: {describe_options(plan.search.train)}." if plan.search.train else "")
            + (" A best rate that was the lowest or highest had one more beside it." if plan.search.widen else "")
            + (" Methods with more combinations had the better chance." if len(numbers) > 1 else "")
        )
    if plan.train.get("val_classes") is not None:
        said.append(
            f"Rows of the {BEST} take the epoch that was best on validation classes ({plan.train['val_classes']} of the"
            " training classes, which did not train): not what a fixed number of epochs gives."
        )
    if compares_centroids(plan):
        said.append("Distances are those between all pairs of centroids; each figure the mean over seeds.")
    if plan.paper is not None:
        paper = published_table(plan.paper)
        said.append(f"The paper's column is table {paper.number} of Do et al. (2019), {paper.what}. {paper.note}")
    return said


def curve(epochs: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Epoch -> minutes of training until its end, and R@1 on the test classes, per cent; where it was measured.

    >>> curve([{"epoch": 1, "seconds": 60.0}, {"epoch": 2, "seconds": 60.0, "test_recall_at_1": 0.5}])
    {2: (2.0, 50.0)}
    """
    found, seconds = {}, 0.0
    for line in epochs:
        seconds += line.get("seconds", 0.0)
        if line.get("test_recall_at_1") is not None:
            found[line["epoch"]] = (seconds / 60, 100 * line["test_recall_at_1"])
    return found


def as_json(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[dict[str, Any]]]:
    """The same rows for programs."""
    return {preset: [asdict(row) | {"name": row.name} for row in rows] for preset, rows in tables.items()}


def from_json(tables: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The rows that were written by as_json."""
    found: dict[str, list[Row]] = built(tables, dict[str, list[Row]], "the tables", _ADVICE)
    return found


class _Epochs(TypedDict, total=False):
    epochs: PositiveInt


class _Cell(TypedDict):
    preset: str
    method: str
    seed: int
    state: str
    command: str
    error: NotRequired[str]
    epochs: NotRequired[list[Line]]
    layers: NotRequired[dict[str, Measures] | None]
    training_seconds: NotRequired[FiniteFloat | None]
    config: NotRequired[_Epochs]
    machine: NotRequired[Machine | None]


class _Results(TypedDict):
    plan: str
    title: str
    data: str
    paper: NotRequired[str | None]
    remarks: list[str]
    tables: dict[str, list[Row]]
    cells: list[_Cell]


def read_results(folder: Path) -> dict[str, Any] | None:
    """What `tammes benchmark` wrote to results.json, or None."""
    found: dict[str, Any] | None = read_json(folder / "results.json", _Results, _ADVICE)
    return found
