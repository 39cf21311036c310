"""The paper's tables beside ours, on docs/results.md: each row of the paper, and below it what we measured.

A row of ours comes from the plan whose method names that row of the paper (`paper = "Softmax"`); where the plan has no
results, it is "not run" with its hours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.stored import (
    CLOSED_FORMS,
    DATA_NAMES,
    NOT_MOVED,
    closed_forms,
    commits,
    drawn,
    epochs_of,
    figure,
    hours,
    minutes,
    pooling,
    pools_of,
    read,
)
from tammes.benchmark.plan import Method, Plan, read_plan
from tammes.benchmark.published import Published, published_table
from tammes.benchmark.tables import DISTANCES, MEASURES, UNTRAINED, Figure, Row, from_json

Ref = tuple[str, str]  # a table of the paper as published.toml calls it, and a row of it

TITLES = {
    2: "the last two layers",
    3: "one-hot and K-means centroids",
    4: "CUB-200-2011, every method",
    5: "CARS196, every method",
    6: "methods that are more than a loss",
    7: "minutes to train",
    8: "VGG-16",
}
TABLES = {
    2: ("layers-cub", "layers-cars196"),
    3: ("centroids-cub", "centroids-cars196"),
    4: ("cub",),
    5: ("cars196",),
    6: ("more-cub", "more-cars196"),
    7: ("minutes-cub", "minutes-cars196"),
    8: ("vgg16-cub", "vgg16-cars196"),
}
# Our recipe, on each data set and network.
RECIPES = ("recipe-cub", "recipe-cars196", "recipe-resnet50-cub", "recipe-resnet50-cars196")
DATA = {"cub": "CUB_200_2011", "cars196": "cars196"}
# How the features of a network are pooled: by the paper's recipe, by ours.
POOLS = {"googlenet": ("published", "max"), "vgg16": ("published",)}
NETWORKS = {"googlenet": "GoogLeNet", "resnet50": "ResNet-50", "vgg16": "VGG-16"}
TRAINED = {"all": "every layer", "top": "top layers", "head": "new layers"}
# Who wrote what the paper calls by its authors.
AUTHORS = {
    "Yuan et al.": "HDC (Yuan et al.)",
    "Opitz et al. 2017": "BIER (Opitz et al.)",
    "Wang et al. 2017": "N-pair + angular (Wang et al.)",
    "Duan et al. 2018": "DAML (Duan et al.)",
    "Lin et al. 2018": "DVML (Lin et al.)",
    "one-hot": "one-hot centroids",
    "K-means": "K-means centroids",
}


@dataclass(frozen=True)
class Entry:
    """A row of ours: what a plan found of a method in a layer, or that it was not run."""

    plan: Plan
    preset: str
    method: Method
    layer: str
    row: Row | None
    run: Mapping[str, Any] | None

    @property
    def measured(self) -> bool:
        return self.row is not None and bool(self.row.measures)

    @property
    def epochs(self) -> int:
        return epochs_of(self.plan, self.preset)

    @property
    def how(self) -> str:
        """What was trained, by which recipe."""
        parts = [TRAINED[self.plan.train["train"]]]
        if self.plan.train["train"] == "all":
            parts.append("paper's recipe" if self.preset == "paper" else "our recipe")
        elif self.preset == "paper":
            parts.append("paper's recipe")
        said = NOT_MOVED.get((self.plan.file.stem, self.preset, self.method.name))
        moved = said is None or self.layer != "penultimate"
        # A part of it stays on one line where the column is narrow.
        whole = [part.replace(" ", "\N{NO-BREAK SPACE}") for part in [*parts, f"{self.epochs} epochs"]]
        return ", ".join(whole) if moved else f"{whole[0]}; **{said}**"

    @property
    def order(self) -> tuple[int, bool, int, bool]:
        kinds = list(TRAINED)
        return kinds.index(self.plan.train["train"]), self.preset != "paper", -self.epochs, not self.measured


def same_experiment(ref: Ref) -> Ref:
    """Rows of several tables of the paper are of one experiment: its discriminative loss with one-hot centroids."""
    table, row = ref
    kind, _, data = table.rpartition("-")
    if (kind, row) in {("layers", "Second to last layer"), ("centroids", "one-hot")} or row == "Discriminative":
        # With VGG-16 it is another experiment.
        return ref if kind == "vgg16" else (data, "Discriminative")
    return (data, row) if kind == "minutes" else ref


@cache
def _plans(folder: Path) -> tuple[Plan, ...]:
    return tuple(read_plan(file) for file in sorted(folder.glob("*.toml")))


def entries(results: Path, plans: Path) -> dict[Ref, list[Entry]]:
    """By the paper's rows, everything of ours that is the same method on the same data."""
    found: dict[Ref, list[Entry]] = {}
    for plan in _plans(plans):
        if plan.paper is None:
            continue
        stored = read(results / "plans" / f"{plan.file.stem}.json")
        tables = {} if stored is None else from_json(stored["tables"])
        for preset in plan.presets:
            rows = {(row.method, row.layer): row for row in tables.get(preset, []) if row.epoch == "last"}
            runs = {run["method"]: run for run in (stored or {}).get("runs", {}).get(preset, [])}
            for method in plan.methods:
                for layer, ref in _refs(plan, method):
                    entry = Entry(plan, preset, method, layer, rows.get((method.name, layer)), runs.get(method.name))
                    found.setdefault(ref, []).append(entry)
    return found


def _refs(plan: Plan, method: Method) -> Iterator[tuple[str, Ref]]:
    """The layers of a method and the rows of the paper that they are; its own name where the paper has no such row."""
    assert plan.paper is not None
    for layer in method.layers:
        name = method.paper.get(layer)
        table, _, row = (name or "").rpartition("/")
        if name is not None:
            yield layer, same_experiment((table or plan.paper, row))
        elif layer == "penultimate":
            yield layer, (plan.paper, method.name)
        elif method.paper.get("penultimate") == "Discriminative" and plan.train["train"] == "all":
            yield layer, (f"layers-{plan.paper}", "Last layer")


def _of_table(found: Mapping[Ref, Sequence[Entry]], table: str, row: str) -> list[Entry]:
    """Our rows below a row of the paper, one for each kind of training: measured, or else not run."""
    ref = same_experiment((table, row))
    own = [
        entry
        for entry in found.get(ref, ())
        if entry.plan.paper == table or entry.plan.train["train"] != "head" or table in ref
        if not (table.startswith("minutes") and entry.plan.train["train"] == "head")
    ]
    kept: dict[str, Entry] = {}
    data = table.rpartition("-")[2]
    for entry in sorted(own, key=lambda entry: (entry.order, entry.plan.paper != table, entry.plan.paper != data)):
        kept.setdefault(entry.how, entry)
    return list(kept.values())


def others(found: Mapping[Ref, Sequence[Entry]], table: str) -> dict[str, list[Entry]]:
    """By their names, methods of plans beside a table that the table has not."""
    known = published_table(table).rows
    return {row: _of_table(found, table, row) for of, row in found if of == table and row not in known}


def section(number: int, results: Path, plans: Path) -> list[str]:
    """A table of the paper: its rows, ours below each, and what pretrained features reach."""
    found, throughput = entries(results, plans), read(results / "throughput.json")
    lines = [f"## Table {number}: {TITLES[number]}", ""]
    for name in TABLES[number]:
        paper = published_table(name)
        shown = _Columns(paper, throughput)
        for row, figures in paper.rows.items():
            shown.published(AUTHORS.get(row, row), figures)
            for entry in _of_table(found, name, row):
                shown.ours("", entry)
        for row, extra in others(found, name).items():
            for place, entry in enumerate(extra):
                shown.ours("" if place else row, entry)
        if number != 7:
            shown.not_trained(name, results)
        lines += [f"**{paper.what}.** {paper.note}", "", *drawn(shown.filled()), *shown.apart()]
    return lines


class _Columns:
    """A table as it is filled, row by row."""

    def __init__(self, paper: Published, throughput: Mapping[str, Any] | None) -> None:
        self.throughput = throughput
        given = {column for figures in paper.rows.values() for column in figures}
        self.of_minutes = given == {"minutes"}
        self.measures = {} if self.of_minutes else {key: name for key, name in MEASURES.items() if name != "MAP@R"}
        self.with_distances = set(DISTANCES.values()) <= given
        self.rows: list[dict[str, str]] = []
        self.distances: dict[tuple[str, str], list[str]] = {}

    def _add(self, **cells: str) -> dict[str, str]:
        self.rows.append(cells)
        return cells

    def published(self, name: str, figures: Mapping[str, int | float | str]) -> None:
        cells = self._add(method=f"**{name}**", trained="the paper")
        for column in self.measures.values():
            cells[column] = f"{figures[column]:.2f}" if column in figures else ""
        if self.with_distances:
            self._apart(name, "the paper", [float(figures[column]) for column in DISTANCES.values()])
        cells["minutes"] = str(figures.get("minutes", ""))

    def ours(self, name: str, entry: Entry) -> None:
        cells = self._add(method=name, trained=entry.how)
        if not entry.measured or entry.row is None or entry.run is None:
            needed = hours(entry.plan, self.throughput, sum(seed in entry.method.seeds for seed in entry.plan.seeds))
            cells["minutes" if self.of_minutes else "R@1"] = "[not run](#not-run)" + (
                f", {needed:.1f}\N{NO-BREAK SPACE}h" if needed else ""
            )
            cells["commit or plan"] = entry.plan.file.stem
            return
        cells |= self._figures(entry.row.measures)
        if self.with_distances and entry.row.distances:
            self._apart(entry.method.name, "here", [entry.row.distances[key] for key in DISTANCES])
        cells |= {"minutes": minutes(entry.row.minutes), "seeds": str(entry.row.seeds)}
        cells["commit or plan"] = commits(entry.run["commits"])

    def _apart(self, name: str, where: str, distances: Sequence[float]) -> None:
        """The distances between centroids, once for each kind of them."""
        self.distances.setdefault((name, where), [f"{value:.3f}" for value in distances])

    def apart(self) -> list[str]:
        if not self.distances:
            return []
        titles = ("distances between centroids", "", *DISTANCES)
        cells = [[*key, *values] for key, values in self.distances.items()]
        return drawn(dict(zip(titles, map(list, zip(*cells, strict=True)), strict=True)))

    def _figures(self, measures: Mapping[str, Figure]) -> dict[str, str]:
        """R@1 with its interval, the others without."""
        found = {column: measures[key] for key, column in self.measures.items() if key in measures}
        return {column: figure(of) if column == "R@1" else f"{of.mean:.2f}" for column, of in found.items()}

    def not_trained(self, table: str, results: Path) -> None:
        """What the same network reaches without training: as it is, and whitened."""
        data, network = network_of(table)
        for pool in _pools(data, network, results):
            found = closed_forms(data, network, pool, results) or _pretrained_of_runs(data, network, pool, results)
            for title, (measures, commit) in found.items():
                cells = self._add(method=f"{title}, {pooling(pool)}", trained="nothing", **{"commit or plan": commit})
                cells |= self._figures(measures)
            left = [title for title in CLOSED_FORMS.values() if title not in found]
            if left:
                said = f"{' and '.join(left)}, {pooling(pool)}"
                self._add(method=said, trained="nothing", **{"R@1": "[not run](#not-run)"})

    def filled(self) -> dict[str, list[str]]:
        titles = ["method", "trained", *self.measures.values(), "minutes"]
        columns = {title: [row.get(title, "") for row in self.rows] for title in [*titles, "seeds", "commit or plan"]}
        return {title: cells for title, cells in columns.items() if any(cells)}


def network_of(table: str) -> tuple[str, str]:
    """The data of a table of the paper as plans call it, and its network."""
    return DATA[table.rpartition("-")[2]], "vgg16" if table.startswith("vgg16") else "googlenet"


def _pools(data: str, network: str, results: Path) -> list[str]:
    """The poolings to show of a network that nothing trained: those of the recipes, and what was measured."""
    measured = pools_of(data, network, results)
    return measured if measured and network == "vgg16" else list(dict.fromkeys([*POOLS[network], *measured]))


def _pretrained_of_runs(
    data: str, network: str, pool: str, results: Path
) -> dict[str, tuple[dict[str, Figure], str]]:  # fmt: skip
    """The pretrained network alone, as runs that trained it have measured it first."""
    for file in sorted((results / "plans").glob("*.json")):
        stored = read(file) or {}
        for preset, runs in stored["runs"].items():
            fits = stored["data"] == data and stored.get("pools", {}).get(preset) == pool
            if fits and any(f"--backbone {network} " in run["command"] for run in runs):
                row = next((row for row in from_json(stored["tables"])[preset] if row.method == UNTRAINED), None)
                if row is not None and row.measures:
                    return {"pretrained": (row.measures, commits(runs[0]["commits"]))}
    return {}


def before_refit(stored: Mapping[str, Any]) -> bool:
    """Whether a plan of our recipe was run without its last step."""
    commands = [run["command"] for runs in stored["runs"].values() for run in runs if run["seeds"]]
    return any("--refit" not in command for command in commands)


def recipes(results: Path, plans: Path) -> list[str]:
    """Our recipe on each data set, with each network, above what nothing trained."""
    keys = {"recall_at_1": "R@1", "recall_at_2": "R@2", "recall_at_4": "R@4", "recall_at_8": "R@8"}
    keys |= {"mean_average_precision_at_r": "MAP@R", "NMI": "NMI"}
    shown: dict[str, list[str]] = {name: [] for name in ("data", "network", "trained", *keys.values())}
    shown |= {"minutes": [], "seeds": [], "commit": []}

    def add(cells: Mapping[str, str]) -> None:
        for column, filled in shown.items():
            filled.append(cells.get(column, ""))

    for name in RECIPES:
        file = plans / f"{name}.toml"
        if not file.exists():
            continue
        plan, stored = read_plan(file), read(results / "plans" / f"{name}.json")
        of = {"data": DATA_NAMES[plan.data], "network": NETWORKS[plan.train["backbone"]]}
        if stored is None:
            add(of | {"trained": "every layer, 3 epochs", "R@1": f"[not run](#not-run) ({name})"})
            continue
        for row in from_json(stored["tables"])["default"]:
            before = row.method == UNTRAINED
            cells = of | {column: figure(row.measures.get(key)) for key, column in keys.items()}
            refit = ", without `--refit`" if before_refit(stored) else ""
            cells |= {"trained": "nothing" if before else f"every layer, {epochs_of(plan, 'default')} epochs{refit}"}
            cells |= {"minutes": minutes(row.minutes), "seeds": str(row.seeds)}
            add(cells | {"commit": commits(stored["runs"]["default"][0]["commits"])})
    return drawn(shown)


def not_run(results: Path, plans: Path) -> list[str]:
    """Plans beside the paper's tables that have no results: command and hours."""
    throughput = read(results / "throughput.json")
    shown: dict[str, list[str]] = {"plan": [], "hours": [], "command": []}
    left = [
        plan
        for plan in _plans(plans)
        if (plan.paper is not None or plan.file.stem in RECIPES)
        and not (results / "plans" / f"{plan.file.stem}.json").exists()
    ]
    for plan in left:
        needed = hours(plan, throughput)
        shown["plan"].append(plan.file.stem)
        shown["hours"].append("" if needed is None else f"{needed:.1f}{', and a search' if plan.search else ''}")
        shown["command"].append(f"`tammes benchmark benchmarks/plans/{plan.file.name} --data DATASETS`")
    for data, network, pool in _not_whitened(results):
        shown["plan"].append(f"pretrained, whitening: {NETWORKS[network]}, {DATA_NAMES[data]}, {pooling(pool)}")
        shown["hours"].append("minutes")
        named = "stanford_cars" if data == "cars196" else data
        shown["command"].append(f"`python -m benchmarks.pretrained {named} {network} --pool {pool} --weights FILE`")
    if not shown["plan"]:
        return []
    rows = {} if throughput is None else {row["backbone"]: row["images_per_second"] for row in throughput["rows"]}
    speeds = ", ".join(f"{NETWORKS.get(name, name)} {value:.1f}" for name, value in rows.items())
    said = "" if throughput is None else (
        f" Hours by the images/s of training every layer on {throughput['machine']['processor']} with"
        f" {throughput['machine']['threads']} threads ({speeds}); for fewer rows add `--only METHOD`."
    )  # fmt: skip
    total = sum(hours(plan, throughput) or 0 for plan in left)
    return ["## Not run", "", f"{total:.0f} hours in all.{said}", "", *drawn(shown)]


def _not_whitened(results: Path) -> list[tuple[str, str, str]]:
    return [
        (data, network, pool)
        for data in DATA.values()
        for network in ("googlenet", "vgg16")
        for pool in _pools(data, network, results)
        if set(closed_forms(data, network, pool, results)) != set(CLOSED_FORMS.values())
    ]


def summary(results: Path, plans: Path) -> list[str]:
    """The paper's own experiment and ours on both data sets; then how much of each table was measured here."""
    found, datas = entries(results, plans), tuple(DATA)
    headline = [_of_table(found, data, "Discriminative") for data in datas]
    paper = [published_table(data).rows["Discriminative"]["R@1"] for data in datas]
    pooled = [closed_forms(DATA[d], "googlenet", "max", results) for d in datas]
    pooled = [
        each or _pretrained_of_runs(DATA[d], "googlenet", "max", results) for d, each in zip(datas, pooled, strict=True)
    ]
    best = {
        "R@1, GoogLeNet": ["the paper, up to 40 epochs", "its recipe here", "our recipe", "pretrained, max pooling"]
    }
    for place, data in enumerate(datas):
        measures = pooled[place].get("pretrained", ({}, ""))[0]
        best[DATA_NAMES[DATA[data]]] = [
            f"{paper[place]:.2f}",
            _best(headline[place], "paper"),
            _best(headline[place], "default"),
            figure(measures.get("recall_at_1")) or "not run",
        ]
    shown: dict[str, list[str]] = {"rows of the paper measured here": []}
    kinds = {"every layer trained": ("all",), "fewer layers": ("top", "head")}
    columns = [(data, title, parts) for data in datas for title, parts in kinds.items()]
    shown |= {f"{DATA_NAMES[DATA[data]]}, {title}": [] for data, title, _ in columns}
    for number, names in TABLES.items():
        shown["rows of the paper measured here"].append(f"[table {number}](#{anchor(number)}), {TITLES[number]}")
        for data, title, parts in columns:
            name = next((name for name in names if name.rpartition("-")[2] == data), None)
            rows = [] if name is None else [_of_table(found, name, row) for row in published_table(name).rows]
            done = sum(any(e.measured and e.plan.train["train"] in parts for e in row) for row in rows)
            shown[f"{DATA_NAMES[DATA[data]]}, {title}"].append(f"{done} of {len(rows)}" if rows else "")
    return [*drawn(best), *drawn(shown)]


def _best(mine: Sequence[Entry], preset: str) -> str:
    """R@1 after the longest training of every layer that was measured."""
    for entry in mine:
        if entry.measured and entry.row and entry.plan.train["train"] == "all" and entry.preset == preset:
            return f"{figure(entry.row.measures['recall_at_1'])} ({entry.epochs} epochs)"
    return "not run"


def anchor(number: int) -> str:
    return slug(f"Table {number}: {TITLES[number]}")


def slug(heading: str) -> str:
    """A heading as GitHub and MkDocs link to it."""
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -").replace(" ", "-")
