"""The pictures of docs/findings.md and the README, from what is stored in benchmarks/results/plans: `make results`.

    python -m benchmarks.pictures

R@1 on test classes over the minutes of training, of every method whose plan has a curve; the triplet loss, its bound
and epsilon over the epochs of the paper's own experiment. A picture whose plans have no results is not drawn.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.stored import RESULTS, ROOT
from tammes.benchmark.published import published_table
from tammes.benchmark.tables import UNTRAINED

matplotlib.use("agg")
matplotlib.rcParams |= {"svg.hashsalt": "tammes", "svg.fonttype": "none", "font.size": 10, "axes.grid": True}
matplotlib.rcParams |= {"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}

PICTURES = ROOT / "docs" / "pictures"
# Of each data set: the plans with curves, those with final figures alone, and the paper's figure.
DATA = {
    "cub": (
        "CUB-200-2011",
        ("paper-cub", "paper-cub-20", "minutes-cub"),
        ("cub-layers-head", "cub-centroids-top", "recipe-cub"),
        "layers-cub",
    ),
    "cars196": (
        "CARS196",
        ("paper-cars196", "paper-cars196-15", "minutes-cars196"),
        ("recipe-cars196",),
        "layers-cars196",
    ),
}

METHODS = ("one-hot centroids", "discriminative, one-hot centroids")
# Plans with final figures alone, by the end of their names: what is said of them, and their colour in every picture.
PARTS = {
    "head": ("nothing trained: whitening in closed form", "tab:green"),
    "top": ("top layers", "tab:purple"),
    **dict.fromkeys(("cub", "cars196"), ("every layer, our recipe, 3 epochs", "tab:red")),
}


def main() -> None:
    for name, (title, curves, points, paper) in DATA.items():
        over_minutes(PICTURES / f"minutes-{name}.svg", title, curves, points, paper)
        bound(PICTURES / f"bound-{name}.svg", title, curves)


def stored(plan: str) -> dict[str, Any] | None:
    file = RESULTS / "plans" / f"{plan}.json"
    return json.loads(file.read_text()) if file.exists() else None


def over_minutes(file: Path, title: str, curves: tuple[str, ...], points: tuple[str, ...], paper: str) -> None:
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    drawn = [(plan, run) for plan in curves if (of := stored(plan)) for run in _runs(of) if run.get("curve")]
    if not drawn:
        return
    figure, axes = pyplot.subplots(figsize=(7.2, 3.8), layout="constrained")
    for plan, run in drawn:
        at = [(each["minutes"], each["recall_at_1"]) for each in run["curve"]]
        said = f"{run['method']}, every layer" + (", the paper's recipe" if plan.startswith("paper") else "")
        axes.plot(*zip(*at, strict=True), marker="o", markersize=4, label=said)
    for plan in points:
        of = stored(plan)
        for row in () if of is None else of["tables"].get("default", ()):
            if row["layer"] == "penultimate" and row["method"] in METHODS:
                said, colour = PARTS[plan.split("-")[-1]]
                axes.plot(row["minutes"], row["measures"]["recall_at_1"]["mean"], "s", label=said, color=colour)
    pretrained = _pretrained(curves)
    if pretrained is not None:
        axes.axhline(pretrained, color="grey", linestyle=":", label="pretrained, nothing trained")
    published = float(published_table(paper).rows["Second to last layer"]["R@1"])
    axes.axhline(published, color="black", linestyle="--", label="the paper's figure, up to 40 epochs")
    axes.set(xscale="log", xlabel="minutes of training, one or two cores, no GPU", ylabel="R@1, %", title=title)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda minutes, _: f"{minutes:g}")
    axes.xaxis.set_minor_formatter(lambda *_: "")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def bound(file: Path, title: str, plans: tuple[str, ...]) -> None:
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    lines: list[dict[str, Any]] = next(
        (run["bound"] for plan in plans if (of := stored(plan)) for run in _runs(of) if run.get("bound")), []
    )
    if not lines:
        return
    epochs = [line["epoch"] for line in lines]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, said in (("discriminative_loss", "L_d, the bound"), ("triplet_loss", "L_t, the triplet loss")):
        left.plot(epochs, [line[name] for line in lines], marker=".", label=said)
    left.set(xlabel="epoch", ylabel="mean over triplets", title=title)
    left.legend(fontsize=9)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.plot(
        epochs, [line["epsilon"] for line in lines], marker=".", label="ε: twice the largest distance to a centroid"
    )
    right.plot(epochs, [line["gap"] for line in lines], marker=".", label="gap: L_d - L_t, mean over triplets")
    right.set(xlabel="epoch", ylim=(0, 4))
    right.legend(fontsize=9, loc="upper right")
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _runs(of: dict[str, Any]) -> list[dict[str, Any]]:
    return [run for runs in of["runs"].values() for run in runs]


def _pretrained(plans: tuple[str, ...]) -> float | None:
    for of in filter(None, map(stored, plans)):
        for rows in of["tables"].values():
            for row in rows:
                if row["method"] == UNTRAINED and row["measures"]:
                    return float(row["measures"]["recall_at_1"]["mean"])
    return None


if __name__ == "__main__":
    main()
