"""docs/results.md, results-by-plan.md, performance.md and the tables of the README and docs/tables.md: `make results`.

    python -m benchmarks.page

All is made of benchmarks/results/. The README has the rows that the paper has too, docs/tables.md all of them. Plans
are stored by `python -m benchmarks.store`; what of the paper's tables has no results is shown as not run, with its
command and its hours (benchmarks/beside.py). tests/test_results_page.py fails where the files are not what this makes.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks import beside
from benchmarks.stored import (
    CLOSED_FORMS,
    DATA_NAMES,
    IMAGES,
    NOT_MOVED,
    PLANS,
    RESULTS,
    ROOT,
    closed_forms,
    commits,
    drawn,
    figure,
    pretrained,
    read,
)
from tammes.benchmark.published import published_table
from tammes.benchmark.tables import DISTANCES, HEADLINE, MEASURES, UNTRAINED, Figure, Row, columns, from_json
from tammes.cli.losses import explained
from tammes.errors import UserError
from tammes.training.objectives import METHODS

PAGE, README, METHOD = ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "docs" / "method.md"
BY_PLAN = ROOT / "docs" / "results-by-plan.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
SCALE, TABLES = ROOT / "docs" / "scale.md", ROOT / "docs" / "tables.md"
BACKBONES = ROOT / "docs" / "guides" / "choose-a-backbone.md"

# Every plan stands in one of them, in the order of the paper's tables, then ours.
SECTIONS = {
    "Our recipe": (
        *("recipe-cub", "recipe-cars196", "recipe-resnet50-cub", "recipe-resnet50-cars196"),
        *("recipe-methods-cub", "recipe-methods-cars196"),
    ),
    "The paper's own experiment": (
        *("paper-cub", "paper-cub-20", "paper-cars196", "paper-cars196-15", "cub-layers-head", "cub-layers-top"),
    ),
    "Centroids": ("cub-centroids-head", "cub-centroids-top", "cub-softmax-top"),
    "CUB-200-2011, every method": ("minutes-cub", "methods-cub", "cub-methods"),
    "CARS196, every method": ("minutes-cars196", "methods-cars196"),
    "Methods that are more than a loss": ("cub-more-head", "cub-more-top", "cub-more", "cars196-more"),
    "Minutes to train": ("cub-minutes",),
    "VGG-16": ("paper-vgg-cub", "paper-vgg-cars196"),
    "Omniglot": ("omniglot-layers", "omniglot-centroids", "omniglot-methods"),
    "Glyphs, the embedded characters": (
        *("glyphs-layers", "glyphs-centroids", "glyphs-methods", "glyphs-more", "glyphs-minutes"),
    ),
}
# What a table does not say by itself.
BEFORE_REFIT = "Trained before `--refit` was part of the recipe: add `--no-refit` to the command for the same."
CAVEATS = {
    "cub-layers-head": "With preset default only the class layer trains, which the 256-d embedding does not use.",
    "cub-softmax-top": "The search chose a backbone rate of 1e-07, at which the network does not move.",
    "cub-more-top": "Proxy-Anchor, multi-similarity and ArcFace chose the lowest rate, 1e-06. N-pair + angular and DVML"
    " on discriminative are within 0.02 of the closed-form initialisation.",
    "cub-methods": "The search chose push 0.1 for the discriminative loss, where the paper has 1/3. NormFace ran with a"
    " temperature that the search chose, not with its learned scale.",
}
# What our copies of the data differ in from what was published.
COPIES = (
    "The images of CUB-200-2011 were scaled to a shorter side of 256 pixels and stored again (WebP) before all of this;"
    " of CARS196 15 of the 16,185 images were missing (8,048 trained, 8,122 tested). The ImageNet weights of GoogLeNet,"
    " VGG-16 and ResNet-50 were stored in half precision. Training computes in what the command says."
)
BOUND = {
    "loss": "training loss",
    "triplet_loss": "L_t",
    "discriminative_loss": "L_d",
    "gap": "gap",
    "certificate": "certificate",
    "epsilon": "ε",
}
RECALLS = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8")
# Rows of the README's table: what was done, the plan of each data set, its preset and method; and rows of the paper.
_OURS = "discriminative, one-hot centroids"
IN_README = (
    ("pretrained, maximum pooling, nothing trained", ("recipe-cub", "recipe-cars196"), "default", UNTRAINED),
    ("`tammes train --train top`", ("cub-centroids-top", "cars196-centroids-top"), "default", "one-hot centroids"),
    (
        "`tammes train --loss softmax --init ridge`",
        ("recipe-methods-cub", "recipe-methods-cars196"),
        "default",
        "softmax",
    ),
    (
        "`tammes train --preset paper`, 20 epochs on CUB, 15 on CARS196 (busy machine)",
        ("paper-cub-20", "paper-cars196-15"),
        "paper",
        _OURS,
    ),
    ("`tammes train --preset paper`, 40 epochs", ("paper-cub", "paper-cars196"), "paper", _OURS),
    (
        "**`tammes train --backbone googlenet`**, 3 epochs",
        ("recipe-cub", "recipe-cars196"),
        "default",
        _OURS,
    ),
    (
        "**`tammes train`** (ResNet-50), 3 epochs (busy machine)",
        ("recipe-resnet50-cub", "recipe-resnet50-cars196"),
        "default",
        _OURS,
    ),
)
PAPER_IN_README = {
    "the paper's softmax, up to 40 epochs": "Softmax",
    "the paper's discriminative loss, up to 40 epochs": "Discriminative",
}
DATA_IN_README = {"cub": "CUB", "cars196": "CARS196"}


def write_page() -> None:
    """The generated pages: results, performance, the tables of other pages, the losses, the errors."""
    PAGE.write_text(page())
    BY_PLAN.write_text(by_plan())
    PERFORMANCE.write_text(performance_page())
    README.write_text(readme(README.read_text()))
    TABLES.write_text(tables_page(TABLES.read_text()))
    METHOD.write_text(method_page(METHOD.read_text()))
    SCALE.write_text(scale_page(SCALE.read_text()))
    BACKBONES.write_text(backbones_page(BACKBONES.read_text()))


def page(results: Path = RESULTS, plans: Path = PLANS) -> str:
    """docs/results.md as it should be: the paper's tables beside ours, and our recipe."""
    missing = beside.not_run(results, plans)
    contents = ["Our recipe", "Table 1: complexity"]
    contents += [f"Table {number}: {title}" for number, title in beside.TITLES.items()]
    contents += ["Not run"] if missing else []
    lines = [
        "# Results",
        "",
        "The eight tables of Do et al. (2019), each row of the paper above ours. R@K: how often one of the K nearest"
        " images has the right class, in per cent, on classes that took no part in training. ±: half of the 95 %"
        " interval over seeds. Minutes: of training alone, mean over seeds, without a GPU. Commit: +3, three more.",
        "",
        "Here: a centre crop of 224 pixels, embeddings of 256 numbers, GoogLeNet unless said otherwise."
        " **Paper's recipe**: batches of 128, random crops, learning rates 0.1 and 0.01 halved every 5 epochs"
        " (after each in runs of 5). **Our recipe**: batches of 32, random crops, a cosine schedule, maximum"
        " pooling, both new layers in closed form. **Top layers** and **new layers**: `--train top` and"
        " `--train head`, the rest frozen.",
        "",
        COPIES,
        "",
        "Every plan with its conditions, commands and curves: [results, plan by plan](results-by-plan.md). Both pages"
        " are written by `make results` from `benchmarks/results/`.",
        "",
        "## In short",
        "",
        *beside.summary(results, plans),
        "Contents: " + " · ".join(f"[{title}](#{beside.slug(title)})" for title in contents),
        "",
        "## Our recipe",
        "",
        "The paper's loss, both new layers initialised in closed form"
        " ([why](decisions/0025-class-layer-in-closed-form.md)), every layer trained."
        " The last step, `--refit` ([why](decisions/0028-new-layers-found-again.md)), is newer than some rows:"
        " `tammes train --no-refit` is the same as these.",
        "",
        *beside.recipes(results, plans),
        "## Table 1: complexity",
        "",
        *(_if_stored(results, "complexity", complexity) or ["Not run: `python -m benchmarks.complexity`.", ""]),
    ]
    for number in beside.TITLES:
        lines += beside.section(number, results, plans)
        if number == 7:
            lines += _if_stored(results, "training_time", training_time)
        if number == 8:
            lines += _if_stored(results, "throughput", vgg16_speed)
    return "\n".join([*lines, *missing])


def by_plan(results: Path = RESULTS) -> str:
    """docs/results-by-plan.md as it should be: each stored plan whole, and what is not of a plan."""
    lines = [
        "# Results, plan by plan",
        "",
        "The rows behind [the results](results.md), and those that the paper has no table for. A plan is run by the"
        " command above its table (`--only METHOD` for some rows, `--data` names the folder that holds the data set)"
        " and stored by `python -m benchmarks.store runs/NAME`. The command of a row is that of its first seed."
        " Per cent, on classes that took no part in training; ±: half of the 95 % interval over seeds (Student's t).",
        "",
    ]
    placed = {name for names in SECTIONS.values() for name in names}
    more = sorted(file.stem for file in (results / "plans").glob("*.json") if file.stem not in placed)
    for heading, names in (SECTIONS | {"Other plans": tuple(more)}).items():
        stored = (read(results / "plans" / f"{name}.json") for name in names)
        content = [line for each in stored if each is not None for line in plan_section(each, results)]
        if heading == "Our recipe":
            content += _if_stored(results, "recipe", recipe_section)
        if heading == "CUB-200-2011, every method" and not _every_layer(results):
            content += _if_stored(results, "cub_all", cub_all)
        if heading == "Omniglot":
            content += _if_stored(results, "time_to", time_to)
        lines += [f"## {heading}", "", *content] if content else []
    lines += _if_stored(results, "estimators", estimators)
    lines += _if_stored(results, "serve", served)
    return "\n".join(lines)


def _if_stored(results: Path, name: str, section: Callable[[Mapping[str, Any]], list[str]]) -> list[str]:
    stored = read(results / f"{name}.json")
    return [] if stored is None else section(stored)


# ---- plans


def plan_section(stored: Mapping[str, Any], results: Path = RESULTS) -> list[str]:
    """What was found, and how each row was made."""
    lines = [f"### {stored['title']}", "", *_conditions(stored), f"    {stored['command']}", ""]
    for preset, rows in from_json(stored["tables"]).items():
        runs = stored["runs"][preset]
        lines += [f"Preset {preset}:", ""] if len(stored["tables"]) > 1 else []
        lines += [*drawn(_rows(stored, preset, rows, results)), *_curves(runs), *_made(runs)]
    return lines


def _conditions(stored: Mapping[str, Any]) -> list[str]:
    """What is the same for all rows, and what a reader must know of them."""
    said: list[str] = []
    for remark in stored["remarks"]:
        same = re.fullmatch(r"The same for all rows \((preset \w+)\): (.*), unless said otherwise\.", remark)
        if same is not None:
            said.append(f"{same[1].capitalize()}: {same[2]}.")
        elif not remark.startswith(("Data: ", "The paper's column is", "Distances are")):
            said.append(remark)
    caveat = CAVEATS.get(stored["plan"])
    if stored["plan"] in beside.RECIPES and beside.before_refit(stored):
        caveat = BEFORE_REFIT
    return [" ".join(said), "", *([f"**{caveat}**", ""] if caveat else [])]


def _rows(stored: Mapping[str, Any], preset: str, rows: Sequence[Row], results: Path) -> dict[str, list[str]]:
    """The table of a preset: rows that did not move and rows without figures say so; then what nothing trained."""
    runs = stored["runs"][preset]
    of_plan = {name: figures for name, figures in columns(rows).items() if not name.startswith("the paper's")}
    told = [NOT_MOVED.get((stored["plan"], preset, row.method)) if row.layer == "penultimate" else None for row in rows]
    pretrained_too = not all("--backbone conv4 " in f"{run['command']} " for run in runs)
    names = ["pretrained" if row.method == UNTRAINED and pretrained_too else row.name for row in rows]
    shown = {
        "method": [f"{name}; **{why}**" if why else name for name, why in zip(names, told, strict=True)],
        **{
            title: [figure(row.measures.get(key)) if row.measures else "not run" * (key == HEADLINE) for row in rows]
            for key, title in MEASURES.items()
            if title in of_plan or key == HEADLINE
        },
    }
    if "R@1 - first row" in of_plan and any(row.difference and row.difference.half for row in rows):
        shown["R@1, to the first row"] = of_plan["R@1 - first row"]
    shown |= {name: of_plan[name] for name in ("seeds", "minutes") if name in of_plan}
    if len({tuple(row.distances.values()) for row in rows if row.distances}) > 1:
        shown["distances of centroids: min / max / mean / std"] = [
            " / ".join(f"{row.distances[name]:.3f}" for name in DISTANCES) if row.distances else "" for row in rows
        ]
    shown |= {name: of_plan[name] for name in ("chosen", "remark") if name in of_plan}
    commit = {run["method"]: commits(run["commits"]) for run in runs}
    shown["commit"] = [commit.get(row.method, "") for row in rows]
    for name, measures, made in _closed_forms(stored["data"], runs, results):
        cells = {"method": name, "commit": made} | {title: figure(measures.get(key)) for key, title in MEASURES.items()}
        for title, filled in shown.items():
            filled.append(cells.get(title, ""))
    return shown


def _closed_forms(
    data: str, runs: Sequence[Mapping[str, Any]], results: Path
) -> Iterator[tuple[str, dict[str, Figure], str]]:
    """Rows of the same network with the same pooling whose features were whitened, without any loss."""
    for run in runs[:1]:
        options = dict(re.findall(r"--(backbone|pool) (\S+)", run["command"]))
        found = closed_forms(data, options.get("backbone", ""), options.get("pool", "published"), results)
        yield from ((f"{name}, nothing trained", *row) for name, row in found.items() if name != "pretrained")


def _curves(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """R@1 over minutes, and the triplet loss below its bound over epochs, where they were watched."""
    at = sorted({each["epoch"] for run in runs for each in run.get("curve", ())})
    lines: list[str] = []
    if len(at) > 1:
        shown = {"R@1 (minutes) after epoch": [run["method"] for run in runs]}
        for epoch in at:
            points = [next((each for each in run.get("curve", ()) if each["epoch"] == epoch), None) for run in runs]
            shown[str(epoch)] = ["" if p is None else f"{p['recall_at_1']:.2f} ({p['minutes']:.0f})" for p in points]
        lines += drawn(shown)
    for run in runs:
        bound = run.get("bound", [])
        if bound:
            epochs = [each for each in bound if each["epoch"] in (*at, bound[-1]["epoch"])] if at else bound
            lines += [
                f"{run['method']}, seed {run['seeds'][0]}: on a fixed sample of training images, the"
                " triplet loss L_t, its bound L_d, their gap and what is proven of it, each the mean over triplets:",
                "",
                *drawn(
                    {"epoch": [str(each["epoch"]) for each in epochs]}
                    | {title: [f"{each[name]:.4f}" for each in epochs] for name, title in BOUND.items()}
                ),
            ]
    return lines


def _made(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """How each row was made, folded away: a line is as long as a command."""
    lines = []
    for run in runs:
        seeds = ", ".join(map(str, run["seeds"]))
        of = f"seed{'s' * (len(run['seeds']) > 1)} {seeds}" if seeds else "not run"
        told = [of, *([f"{run['minutes']:.2f} minutes"] if run["minutes"] is not None else [])]
        told += ([f"commit {', '.join(run['commits'])}"] if run["commits"] else []) + run["machines"]
        lines.append(f"- **{run['method']}**: {'; '.join(told)}: `{run['command']}`")
    summary = "<summary>Seeds, commits, machines and commands</summary>"
    return [f'<details markdown="1">{summary}', "", *lines, "", "</details>", ""]


# ---- results that are not of a plan


def recipe_section(stored: Mapping[str, Any]) -> list[str]:
    """What was tried for our recipe, on training classes that were held out."""
    return [
        "### How our recipe was chosen: one change a row",
        "",
        "The first half of the training classes trains, the second half is measured; no test class is looked at. Every"
        " layer, from pretrained weights; training at 160 pixels, measured at 224; one seed, whose standard error is"
        " about 0.8. `whitened again`: the embedding layer computed again from the features of the trained network;"
        " `0.5 of the way`: the same with weights half way between the pretrained and the trained ones;"
        " `mirrored too`: the mean of the features of an image and its mirror image. Minutes are the processor's, of"
        " training and of what it computes before; of a run that was stopped and resumed they were not counted.",
        "",
        "    python -m benchmarks.recipe cars196 FOLDER --weights FILE --views",
        "",
        *recipe_rows(stored["rows"]),
        *_machine(stored),
    ]


def recipe_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same as a table, one line for each row and each way of measuring it."""
    shown: dict[str, list[str]] = {}
    for row in rows:
        for kind in (
            "",
            "whitened again, ",
            "0.5 of the way, ",
            "0.75 of the way, ",
            "256 pixels, ",
            "mirrored too, ",
            "features, ",
            "features and embedding, ",
        ):
            if f"{kind}recall_at_1" not in row:
                continue
            cells = {"data": row["data"], "network": row["backbone"], "change": f"{row['row']}, {kind}".rstrip(", ")}
            for key in ("recall_at_1", "recall_at_8", "mean_average_precision_at_r"):
                cells[MEASURES[key]] = f"{100 * row[kind + key]:.2f}"
            for name, cell in (
                cells | {"minutes": "" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}"}
            ).items():
                shown.setdefault(name, []).append(cell)
    return drawn({name: cells for name, cells in shown.items() if any(cells)})


def cub_all(stored: Mapping[str, Any]) -> list[str]:
    """The run in which every layer trains, epoch by epoch."""
    measures = {name: title for name, title in MEASURES.items() if name in stored["last"]}
    rows = {"before training, pool5": "untrained", "256-d layer": "penultimate", "last layer": "last"}
    measured = {"": list(rows)} | {
        title: ["" if stored[row][name] is None else f"{100 * stored[row][name]:.2f}" for row in rows.values()]
        for name, title in measures.items()
    }
    lines: list[Mapping[str, Any]] = stored["epochs"]
    epochs = {
        "epoch": [str(line["epoch"]) for line in lines],
        "learning rate of the new layers": [f"{line['lr']:g}" for line in lines],
        "loss": [f"{line['loss']:.4f}" for line in lines],
        "above its minimum": [f"{line['above_minimum']:.4f}" for line in lines],
        "images/s": [f"{line['images_per_second']:.1f}" for line in lines],
        "minutes": [f"{line['seconds'] / 60:.0f}" for line in lines],
    }
    return [
        f"### CUB-200-2011: every layer trained, in {len(lines)} epochs",
        "",
        f"The paper's recipe, its learning rates halved after each epoch instead of after every 5; seed"
        f" {stored['seed']}:",
        "",
        f"    {stored['command']}",
        "",
        *drawn(measured),
        *drawn(epochs),
        f"{stored['seconds'] / 60:.0f} minutes; {stored['machine']['processor']}, one thread of two on a busy machine,"
        f" commit {stored['commit'][:7]}.",
        "",
    ]


def vgg16_speed(stored: Mapping[str, Any]) -> list[str]:
    return [
        line
        for row in stored["rows"]
        if row["backbone"] == "vgg16"
        for line in (
            f"With random weights VGG-16 trains at {row['images_per_second']:.1f} images/s on"
            f" {stored['machine']['processor']} (`python -m benchmarks.throughput`).",
            "",
        )
    ]


def training_time(stored: Mapping[str, Any]) -> list[str]:
    """What the loss and its mining take of an epoch."""
    rows: list[Mapping[str, Any]] = stored["rows"]
    shown = {
        "loss": [f"`{row['loss']}`" for row in rows],
        "mining, ms": [f"{1000 * row['mining_seconds']:.0f}" for row in rows],
        "batches, ms": [f"{1000 * row['batches_seconds']:.0f}" for row in rows],
        "together, ms": [f"{1000 * row['seconds']:.0f}" for row in rows],
        "/ discriminative": [f"{row['ratio']:.1f}" for row in rows],
    }
    return [
        f"### Loss and mining alone: an epoch of {stored['images']:,} images of {stored['classes']} classes",
        "",
        f"Batches of {stored['batch_size']} random embeddings as training serves them, forward and backward, and the"
        " mining before the epoch; no network but the class layer of losses that have one. One thread, medians. The"
        " paper's ratios, of whole trainings, are 12.2"
        " (CUB) and 16.4 (CARS196) for semi-hard triplets, 12.6 and 17.0 for smart mining.",
        "",
        "    python -m benchmarks.training_time",
        "",
        *drawn(shown),
        *_machine(stored),
    ]


def time_to(stored: Mapping[str, Any]) -> list[str]:
    """How long each method takes to get as far as another gets."""
    lines: list[str] = []
    for name, found in stored.items():
        rows: list[Mapping[str, Any]] = found["rows"]
        shown = {
            "method": [row["method"] for row in rows],
            "seconds": ["never" if row["seconds"] is None else f"{row['seconds']:.0f}" for row in rows],
            "epochs": ["" if row["epochs"] is None else str(row["epochs"]) for row in rows],
            "its best R@1": [f"{100 * row['best']:.2f}" for row in rows],
            "seconds in all": [f"{row['in_all']:.0f}" for row in rows],
            "seeds": [str(row["seeds"]) for row in rows],
        }
        lines += [
            f"### {name}: seconds of training until R@1 is {100 * found['goal']:.2f} on validation classes",
            "",
            f"That is the best of {found['of']}; means over seeds, looked at after each epoch.",
            "",
            f"    python -m benchmarks.time_to runs/{name}",
            "",
            *drawn(shown),
        ]
    return lines


def complexity(stored: Mapping[str, Any]) -> list[str]:
    """How an epoch grows with the images and the classes."""
    rows: list[Mapping[str, Any]] = stored["rows"]
    shown = {
        "method": [row["method"] for row in rows],
        "the paper's": [row["paper"] or "" for row in rows],
        "exponent of N": [_exponent(row["over_n"]) for row in rows],
        "exponent of C": [_exponent(row["over_c"]) for row in rows],
        "remark": [row.get("note") or "" for row in rows],
    }
    grid = stored.get("grid")
    together = [] if not grid else [
        f"The discriminative loss over N and C together: time grows with N^{grid['exponent_n']:.2f}"
        f" C^{grid['exponent_c']:.2f}.",
        "",
    ]  # fmt: skip
    return [
        "Exponents of the seconds of the loss's part of an epoch, over the images N and over the classes C, beside what"
        " the paper counted; `-` was not measured. Rows come from two runs, one of them on a busy machine at times.",
        "",
        "    python -m benchmarks.complexity",
        "",
        *drawn(shown),
        *together,
        *_machine(stored),
    ]


ABOUT = {
    "digits": "scikit-learn's digits: 0 to 4 train, 5 to 9 test",
    "noisy-digits": "the same with as many columns of noise",
    "cub": "CUB-200-2011, GoogLeNet's features as published, 1,024 columns: 100 kinds of birds train, 100 others test",
    "omniglot": "Omniglot, 784 pixels: 242 characters train, 659 others test",
    "medium": "4,000 made-up vectors, 64 columns: 100 classes train, 50 others test",
    "million": "a million made-up vectors, 256 columns: 10,000 classes train, 500 others test",
}


def estimators(stored: Mapping[str, Any]) -> list[str]:
    """Ways to learn a metric from vectors, on each set, and how their time grows."""
    longer = [f"{row['method']} on {row['set']}" for row in stored["rows"] if row.get("seconds", 0) > stored["limit"]]
    lines = [
        "## Metrics learned from vectors",
        "",
        "R@1 and MAP@R on classes that took no part in the fit, by Euclidean distance or by cosine, whichever is better"
        " for the method; the fit on one thread, MB what it adds to the memory at its peak. A fit that was not done in"
        f" {stored['limit']} seconds was ended"
        + (f" ({', '.join(longer)} had more, by a larger --limit)" if longer else "")
        + ". Rows were measured one after another over hours, those of LDA, NCA and"
        " LMNN on a busy machine: times are good for their order of magnitude. The made-up set of 4,000 was added after"
        " a fault of MetricLearner had been found and mended on its test classes (docs/log.md).",
        "",
        "    python -m benchmarks.estimators --cub FOLDER --weights FILE --omniglot FOLDER --million"
        f" --limit {stored['limit']}",
        "",
    ]
    for name, said in ABOUT.items():
        rows = [row for row in stored["rows"] if row["set"] == name]
        if rows:
            lines += [f"### {said[0].upper()}{said[1:]}", "", *drawn(_fits(rows))]
    if stored["growth"]:
        lines += [
            "### How the time of a fit grows with the number of vectors",
            "",
            "Seconds on made-up vectors of 100 classes in 64 columns, MetricLearner in 10 epochs throughout; and the"
            " exponent that fits them.",
            "",
            *drawn(_grown(stored)),
        ]
    return [*lines, *_machine(stored)]


def served(stored: Mapping[str, Any]) -> list[str]:
    """A gallery that is served: requests a second, what an upload's time goes to, and the memory under load."""
    of, alone, rows = stored["of"], stored["alone"], stored["rows"]
    shown = {
        "request": [row["what"] for row in rows],
        "connections": [str(row["connections"]) for row in rows],
        "a second": [f"{row['per_second']:,.1f}" for row in rows],
        **{f"{name}, ms": [_ms(row[f"{name}_ms"]) for row in rows] for name in ("p50", "p99", "max")},
        "in the server, mean, ms": [_ms(row["server"]["request_ms"]) for row in rows],
        "errors": [_errors(row["errors"]) for row in rows],
        **{f"CPU of the {who}, ms": [_ms(row[f"{who}_cpu_ms"]) for row in rows] for who in ("server", "client")},
    }
    lines = [
        "## A gallery served",
        "",
        f"`tammes serve` of {of['items']:,} images in {of['classes']:,} classes ({alone['backbone']}, vectors of"
        f" {of['dim']} numbers), ready after {stored['start_seconds']:.1f} s. The client is a process on the same"
        f" machine; each connection asks again as soon as it has its answer, for {of['seconds']:g} s. In the server: by"
        " its own clock, from a request to its answer's end. CPU is processor time of a request, of the server with its"
        " decoders and of the client.",
        "",
        "    python -m benchmarks.serve GALLERY",
        "",
        *drawn(shown),
        *_client_cost(rows),
        *_uploads(stored),
        *(_load(stored["load"]) if "load" in stored else []),
    ]
    versions = ", ".join(f"{name} {stored['versions'][name]}" for name in ("uvicorn", "fastapi", "lancedb"))
    cores, busy = stored["machine"]["cores"], stored["machine"]["load_before"]
    return [*lines, f"{cores} cores, load average {busy:.1f} before; {versions}.", "", *_machine(stored)]


def _client_cost(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How busy the client is where it is busiest."""
    if not rows:
        return []
    shares = {id(row): row["client_cpu_ms"] * row["per_second"] / 1e3 for row in rows}
    most = max(rows, key=lambda row: shares[id(row)])
    return [
        f"The client is busiest with {most['what']} by {most['connections']} connections, for"
        f" {100 * shares[id(most)]:.0f} % of one core.",
        "",
    ]


def _uploads(stored: Mapping[str, Any]) -> list[str]:
    """Searches by upload beside the embedding alone."""
    alone = stored["alone"]
    one, together = alone["one"], alone["together"]
    lines = [
        f"The embedding alone, {alone['images']} images of {alone['mean_kb']:.0f} kB without a server, ms an image:"
        f" {_ms(one['encode_ms'])} one at a time (decode {_ms(one['decode_ms'])}, embed {_ms(one['embed_ms'])}),"
        f" {_ms(together['encode_ms'])} in batches of 16 (decode {_ms(together['decode_ms'])}, embed"
        f" {_ms(together['embed_ms'])}).",
        "",
    ]
    rows: list[Mapping[str, Any]] = stored.get("uploads", {}).get("rows", [])
    for row in rows:
        if row["to_alone"] is not None:
            lines[0] += f" A search by upload takes {row['to_alone']:.2f} times the embedding alone, one at a time."
    measured = {row["connections"]: row for row in stored["rows"] if row["what"] == "search by upload"}
    shares = {
        "connections": [str(row["connections"]) for row in rows],
        "ms in the server, mean": [_ms(measured[row["connections"]]["server"]["request_ms"]) for row in rows],
        **{step: [f"{100 * row['shares'][step]:.0f} %" for row in rows] for step in ("decode", "embed", "search")},
        "the rest": [f"{100 * (1 - sum(row['shares'].values())):.0f} %" for row in rows],
        "uploads a second, of the embedding alone in batches": [
            f"{100 * row['of_alone_per_second']:.0f} %" for row in rows
        ],
    }
    said = "What the time of a search by upload goes to, by the server's own figures, waits for a turn included:"
    return [*lines, said, "", *drawn(shares)] if rows else lines


def _load(load: Mapping[str, Any]) -> list[str]:
    """Minutes of mixed load, and the memory."""
    memory = load["memory"]
    first, end = (memory[name]["server_mb"] + memory[name]["decoders_mb"] for name in ("first", "end"))
    grown, own = (memory[name] for name in ("mb_per_hour", "server_mb_per_hour"))
    kinds: Mapping[str, Mapping[str, Any]] = load["kinds"]
    shown = {
        "of the load": list(kinds),
        "requests": [f"{kind['requests']:,}" for kind in kinds.values()],
        **{f"{name}, ms": [_ms(kind[f"{name}_ms"]) for kind in kinds.values()] for name in ("p50", "p99", "max")},
    }
    slope = "" if grown is None else f", {grown:+.1f} MB an hour over the second half ({own:+.1f} of the server alone)"
    return [
        f"Mixed load by {load['connections']} connections, {load['minutes']:.1f} minutes"
        f"{'' if load['complete'] else ', then interrupted'}: {load['requests']:,} requests,"
        f" {load['per_second']:.1f} a second, errors: {_errors(load['errors'])}. Memory of the server and its decoders"
        f" (their own, without libraries): {first:.0f} MB after {memory['first']['seconds']:.0f} s,"
        f" {end:.0f} MB at the end,"
        f" {memory['peak_mb']:.0f} MB at most{slope}.",
        "",
        *drawn(shown),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _errors(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in errors.items()) or "0"


def _grown(stored: Mapping[str, Any]) -> dict[str, list[str]]:
    grown = [row for row in stored["rows"] if row["set"].startswith("growth ")]
    sizes = sorted({int(row["set"].split()[1]) for row in grown})
    methods = [method for method in dict.fromkeys(row["method"] for row in grown) if method != "raw"]
    shown: dict[str, list[str]] = {"method": methods}
    for size in sizes:
        of = {row["method"]: row for row in grown if row["set"] == f"growth {size}"}
        shown[f"{size:,}"] = [
            "-" if method not in of
            else f"{of[method]['seconds']:.2f}" if of[method]["outcome"] == "finished"
            else of[method]["outcome"]
            for method in methods
        ]  # fmt: skip
    exponents = stored["growth"]
    return shown | {"exponent": [f"{exponents[each]:.2f}" if each in exponents else "-" for each in methods]}


def _fits(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    shown: dict[str, list[str]] = {title: [] for title in ("method", "R@1", "MAP@R", "by", "seconds", "MB")}
    for row in rows:
        cells = [row["method"], "", "", "", row["outcome"], ""]
        if row["outcome"] == "finished":
            by = max(("euclidean", "cosine"), key=lambda distance: row[distance]["recall_at_1"])
            recall, precision = (100 * row[by][name] for name in ("recall_at_1", "mean_average_precision_at_r"))
            cells = [row["method"], f"{recall:.2f}", f"{precision:.2f}", by]
            cells += [f"{row['seconds']:.2f}", f"{row['peak_mb']:.0f}"]
        for title, cell in zip(shown, cells, strict=True):
            shown[title].append(cell)
    return shown


def _exponent(found: Any) -> str:
    value = found["exponent"] if isinstance(found, dict) else found
    return "-" if value is None else f"{value:.2f}"


def _machine(stored: Mapping[str, Any]) -> list[str]:
    of = stored["machine"]
    threads = f"{of['threads']} thread{'s' * (of['threads'] > 1)}"
    return [f"{of['processor']}, {threads}, torch {of['torch']}, commit {of['commit'][:7]}.", ""]


# ---- speed beside the peers


def performance_page(results: Path = RESULTS) -> str:
    """docs/performance.md as it should be."""
    peers = performance(read(results / "peers.json") or {"rows": {}})
    trained = _if_stored(results, "throughput", trained_speed)
    accuracy = _if_stored(results, "precision", trained_precision)
    return "\n".join([*peers, *trained, *accuracy, *_if_stored(results, "export", exported)])


def trained_speed(stored: Mapping[str, Any]) -> list[str]:
    """Every layer trained on a CPU: each form of a network beside a plain loop and the processor's limit."""
    rows: list[Mapping[str, Any]] = [row for row in stored["rows"] if "forms" in row]
    if not rows:
        return []
    what = {
        "plain": "a plain loop: float32, channels first, the batch in one go",
        "channels last": "our network and loss, float32, channels last",
        "pieces": "the same, the batch in pieces",
        "bf16": "the same in bfloat16, the batch in one go",
        "kept memory": "the same, with memory kept from step to step",
        "compiled": "the same, compiled",
        "tammes": "`tammes train --train all`, by default",
        "two processes": "the same in two processes of one thread, without what they would exchange",
    }
    lines = [
        "## Every layer trained on a CPU",
        "",
        "Images a second, steps of forward, backward and SGD; the forms take turns, medians, with the slowest and the"
        " fastest turn beside them. The limit is the network's convolutions and products at the fastest product in"
        " bfloat16 that was found on the same threads. `tammes train` also crops its images out of the decoded ones; a"
        " plain loop has its batch in memory. ([Why bfloat16.](decisions/0019-bfloat16-by-default.md)) Targets: 2.5"
        " times the plain loop, and half of the limit.",
        "",
        "    python -m benchmarks.throughput --only networks --json benchmarks/results/throughput.json",
        "",
    ]
    for row in rows:
        forms = {form: row["forms"][form] for form in what if form in row["forms"]}
        between = {form: " .. ".join(f"{each:.2f}" for each in row["spread"].get(form, ())) for form in forms}
        shown = {
            row["backbone"]: [*(what[form] for form in forms), "the limit"],
            "images/s": [*(f"{speed:.2f}" for speed in forms.values()), f"{row['limit']:.2f}"],
            "from .. to": [*between.values(), ""],
            "/ plain": [*(f"{speed / forms['plain']:.2f}" if "plain" in forms else "" for speed in forms.values()), ""],
            "of the limit": [*(f"{speed / row['limit']:.2f}" for speed in forms.values()), "1"],
        }
        compiling = row.get("compiling_seconds")
        waits = "" if compiling is None else f" The first step of the compiled one took {compiling:.0f} s."
        seconds = ", seconds of the processor, on a busy machine" if row["busy"] else ""
        lines += drawn(shown)
        lines += [
            f"Batches of {row['batch_size']}, {row['gflop']:.1f} GFLOP an image, {row['peak_gflops']:.0f} GFLOP/s at"
            f" most.{waits} {stored['machine']['processor']}, threads: {row['threads']}{seconds}, with"
            f" {', '.join(stored['machine']['bfloat16']) or 'no bfloat16'}, commit {row['commit']}; torch"
            f" {stored['machine']['torch']}.",
            "",
        ]
    return lines


def trained_precision(stored: Mapping[str, Any]) -> list[str]:
    """What bfloat16 does to the accuracy: the same trainings in both, on validation classes."""
    parts = [stored[part] for part in ("top", "all") if part in stored]
    return [
        "## bfloat16 and float32: accuracy",
        "",
        f"R@1 on validation classes (a fifth of the training classes) of {stored['data']}, {stored['backbone']}, after"
        " the last epoch. Runs differ in nothing but the precision that they are trained in; the difference is the mean"
        " over seeds, with its standard error. Validation classes alone are compared.",
        "",
        "    python -m benchmarks.precision CUB_200_2011 --weights FILE --json benchmarks/results/precision.json",
        "",
        *drawn(
            {
                "`--train`": [part["train"] for part in parts],
                "seeds": [str(len(part["seeds"])) for part in parts],
                "bfloat16": [f"{part['recall_at_1']['bf16']:.2f}" for part in parts],
                "float32": [f"{part['recall_at_1']['no']:.2f}" for part in parts],
                "difference": [
                    f"{part['difference']:+.2f}" + ("" if part["error"] is None else f" ± {part['error']:.2f}")
                    for part in parts
                ],
            }
        ),
        f"{stored['machine']['processor']}, torch {stored['machine']['torch']}.",
        "",
    ]


def performance(stored: Mapping[str, Any]) -> list[str]:
    """Every row of benchmarks/peers.py: all sides, the memory, the limit, and where a peer is faster."""
    lines = [
        "# Speed beside other libraries",
        "",
        "Written by `make results` from `benchmarks/results/peers.json`; do not edit. Made by",
        "",
        "    TAMMES_DATA=DATASETS python -m benchmarks.peers --weights FILE --oml-python PYTHON",
        "",
        "Every turn is a process of its own, on one thread; the sides take turns, and medians count, with the fastest"
        " and the slowest turn beside them. Seconds are those"
        " of the processor: waiting, and what else the machine does, is not in them. (Rows with workers have as many"
        " threads or processes, and the seconds that passed.) MB is what the"
        " work added at its peak to what the process held with its libraries and data loaded; of a command, all that it"
        " held."
        " PML is pytorch-metric-learning, OML open-metric-learning. Limit: what the work cannot do without.",
        "",
    ]
    lines += ["## In short", "", *in_short(stored), *_forms(stored)]
    for row in stored["rows"].values():
        lines += [f"## {row['title'][0].upper()}{row['title'][1:]}", "", *([row["note"], ""] if row["note"] else [])]
        lines += [*drawn(_sides(row)), *_standing(row), *_peers_machine(row)]
    return lines


def _forms(stored: Mapping[str, Any]) -> list[str]:
    """What the networks are by default, and what that costs where another form is faster."""
    said = []
    for name, row in stored["rows"].items():
        ours, *others = (side for side in row["sides"] if "failed" not in side)
        if name.endswith(FORMS_OF) and others:
            best = min(others, key=lambda side: side["seconds"])
            said.append(f"{row['short']} {_seconds(ours['seconds'])} s ({best['name']}: {_seconds(best['seconds'])})")
    if not said:
        return []
    why = (
        "Networks are channels last on a CPU, and vectors are computed in float32: a compiler keeps the first batch"
        " waiting, and vectors by bfloat16 are others ([why](decisions/0015-forms-of-a-network.md)). Training is in"
        " bfloat16 where the processor multiplies it ([why](decisions/0019-bfloat16-by-default.md)); what is called"
        " ours here is float32."
    )
    return [f"{why} A batch takes, beside its fastest form: {'; '.join(said)}.", ""]


def _sides(row: Mapping[str, Any]) -> dict[str, list[str]]:
    titles = ("", "seconds", "from .. to", "/ ours", "MB", "turns", "found")
    shown: dict[str, list[str]] = {title: [] for title in titles}
    for side in (*row["sides"], row["limit"]):
        cells = [side["name"], side.get("failed", ""), "", "", "", "", ""]
        if "failed" not in side:
            said = side["said"] or {}
            told = [f"{name} {_plain(value)}" for name, value in said.items() if not isinstance(value, list)]
            told += [f"best R@1 {side['best']:.4f}, {side['epoch_seconds']:.2f} s an epoch"] if "best" in side else []
            ratio = "" if side["ratio"] is None else f"{side['ratio']:.2f}"
            # Rows that were measured before turns were kept have none; seeds are not turns of the same.
            kept = "from_to" in side and "best" not in side and side["counted"] > 1
            between = " .. ".join(map(_seconds, side["from_to"])) if kept else ""
            cells = [side["name"], _seconds(side["seconds"]), between, ratio, f"{side['mb']:,.0f}"]
            cells += [str(side["counted"]), ", ".join(told)]
        for title, cell in zip(shown, cells, strict=True):
            shown[title].append(cell)
    return shown


def _plain(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else value if isinstance(value, str) else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.2g}"


def _standing(row: Mapping[str, Any]) -> list[str]:
    """In words: who is faster than ours, and how far ours is from the limit."""
    said = []
    for side in row["sides"][1:]:
        if side.get("ratio") is None:
            continue
        if _within_noise(row["sides"][0], side):
            said.append(f"{side['name']} is within noise of ours: its fastest turn is faster than our slowest.")
        elif side["ratio"] < 1:
            said.append(f"{side['name']} is {1 / side['ratio']:.2f} times as fast as {row['sides'][0]['name']}.")
    limit = row["limit"]
    if limit.get("ratio"):
        said.append(f"Ours takes {1 / limit['ratio']:.2f} times {limit['name']}.")
    return [" ".join(said), ""] if said else []


def _within_noise(ours: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the turns of two sides overlap, so that their medians may differ by chance."""
    if "best" in ours or "from_to" not in ours or min(ours["counted"], other["counted"]) < 2:
        return False  # seeds are not turns of the same, and one turn says nothing of chance
    return bool(max(ours["from_to"][0], other["from_to"][0]) <= min(ours["from_to"][1], other["from_to"][1]))


def _peers_machine(row: Mapping[str, Any]) -> list[str]:
    of, found = row["machine"], row["versions"]
    names = ", ".join(f"{name} {number}" for name, number in found.items() if name not in ("tammes", "numpy"))
    remark = f", {of['remark']}" if of.get("remark") else ""
    remark += f", with {' and '.join(of['bfloat16'])}" if of.get("bfloat16") else ""
    return [f"{of['processor']}, 1 thread{remark}, commit {of['commit'][:7]}; {names}.", ""]


def exported(stored: Mapping[str, Any]) -> list[str]:
    """A model in the forms that `tammes export` writes."""
    of, rows = stored["of"], stored["rows"]
    own = rows[0]["images_per_second"]
    shown = {
        "form": [row["form"] for row in rows],
        "images/s": [f"{row['images_per_second']:.1f}" for row in rows],
        "/ PyTorch": [f"{row['images_per_second'] / own:.2f}" for row in rows],
        "MB": [f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else "" for row in rows],
    }
    lines = [
        "## A model exported",
        "",
        f"{of['backbone']} at {of['size']} x {of['size']}, batches of {of['batch']}; the forms take turns, medians"
        " (`python -m benchmarks.export RUN`).",
        "",
        *drawn(shown),
    ]
    for row in rows:
        if "int8" in row:
            found = row["int8"]
            apart = ", ".join(f"{name} {value:.3f}" for name, value in found["distance"].items())
            lines += [
                f"In 8 bits: {found['operators']}, chosen by how far the vectors of {found['held_out']} training images"
                f" that were held out are from those in float ({apart}). On the test classes R@1 is then"
                f" {100 * found['recall_at_1']:.2f} where PyTorch has {100 * found['recall_at_1_torch']:.2f}.",
                "",
            ]
    return [*lines, *_machine(stored)]


FORMS_OF = ("-training", "-inference")  # rows whose sides are forms of our own network


def _with_fastest_peer(stored: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The rows that have a peer, each with the fastest of them; one that never gets there is slower than all."""
    for name, row in stored["rows"].items():
        ours, *others = row["sides"]
        others = [side for side in others if "failed" not in side and not side["name"].startswith("Tammes")]
        if not name.endswith(FORMS_OF) and "failed" not in ours and others:
            # Of those that do not get there, the one that comes nearest.
            yield row, min(others, key=lambda side: (side["seconds"] or inf, -side.get("best", 0.0)))


def _ratio(side: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    if side["ratio"] is None:
        return "never there"
    noise = "within noise, " if _within_noise(ours, side) else ""
    return noise + (f"{side['ratio']:.2f}" if side["ratio"] >= 1 else f"**{side['ratio']:.2f}**")


def in_short(stored: Mapping[str, Any]) -> list[str]:
    """A line for each row that has a peer: the fastest of them."""
    shown: dict[str, list[str]] = {
        each: []
        for each in (
            "",
            "Tammes",
            "the fastest alternative takes … times as long",
            "memory: ours / its",
            "ours takes … times the limit",
        )
    }
    for row, best in _with_fastest_peer(stored):
        ours, limit = row["sides"][0], row["limit"]
        cells = [row["title"], f"{_seconds(ours['seconds'])} s", f"{_ratio(best, ours)} ({best['name']})"]
        # What worker processes hold is not known, and what is known without them would mislead.
        held = "" if "worker" in row["title"] else f"{ours['mb']:,.0f} / {best['mb']:,.0f} MB"
        cells += [held]
        cells += [f"{1 / limit['ratio']:.2f} ({limit['name']})" if limit.get("ratio") else ""]
        for column, cell in zip(shown.values(), cells, strict=True):
            column.append(cell)
    return drawn(shown) if shown["Tammes"] else ["Not measured yet.", ""]


# ---- the README's tables


def readme(text: str, results: Path = RESULTS) -> str:
    """The README with its table as it should be, between <!-- results --> and <!-- end -->."""
    return _with_block(text, "README.md", "results", readme_table(results))


def tables_page(text: str, results: Path = RESULTS) -> str:
    """docs/tables.md with its tables as they should be."""
    for name, block in (("methods", methods), ("more", more), ("omniglot", omniglot)):
        text = _with_block(text, "docs/tables.md", f"results: {name}", block(results))
    return text


def _with_block(text: str, file: str, name: str, block: Sequence[str]) -> str:
    begin, end = f"<!-- {name} -->", "<!-- end -->"
    found = re.findall(rf"{re.escape(begin)}\n(?:(?!<!-- ).*\n)*?{re.escape(end)}\n", text)
    if len(found) != 1:
        raise UserError(f"{file} must have one block {begin} … {end}, each on a line of its own; it has {len(found)}.")
    return text.replace(found[0], "\n".join([begin, *block, end, ""]))


def method_page(text: str) -> str:
    """docs/method.md with its list of losses as they declare themselves."""
    columns: dict[str, list[str]] = {"loss": [], "what it does": [], "cost of a step": [], "batch": [], "reference": []}
    blocks: list[str] = []
    for name, method in METHODS.items():
        cells = (f"`{name}`", method.summary, method.cost, method.batch, method.source)
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
        blocks += ["", "```text", *explained(name, method).splitlines(), "```"]
    return _with_block(text, "docs/method.md", "losses", [*drawn(columns), *blocks])


def scale_page(text: str, results: Path = RESULTS) -> str:
    """docs/scale.md with what very many classes cost."""
    block = _if_stored(results, "many_classes", many_classes)
    return _with_block(text, "docs/scale.md", "results: many-classes", block or ["Not measured yet.", ""])


def backbones_page(text: str, results: Path = RESULTS) -> str:
    """docs/guides/choose-a-backbone.md with what pretrained networks reach."""
    block = [line for data in IMAGES for line in _backbones(data, results)]
    return _with_block(text, "choose-a-backbone.md", "results: pretrained", block or ["Not measured yet.", ""])


def _backbones(data: str, results: Path) -> list[str]:
    """The networks that were measured on a data set, one row for each kind of features."""
    shown: dict[str, list[str]] = {}
    for each in pretrained(results):
        if each["data"] != data:
            continue
        for kind, title in CLOSED_FORMS.items():
            cells = {
                "network": f"`{each['network']}`",
                "pooling": each["pool"],
                "features": title,
                **{name: f"{100 * each['rows'][kind][key]:.2f}" for key, name in MEASURES.items()},
                "computed in": {"no": "float32", "bf16": "bfloat16"}[each["precision"]],
            }
            for name, cell in cells.items():
                shown.setdefault(name, []).append(cell)
    missing = " (15 of 16,185 images missing)" if data == "cars196" else ""
    return [f"{DATA_NAMES[data]}{missing}:", "", *drawn(shown)] if shown else []


def many_classes(stored: Mapping[str, Any]) -> list[str]:
    """Memory and time of a step over the number of classes, and a training end to end."""
    rows: list[Mapping[str, Any]] = stored["rows"]
    softmax = {row["classes"]: row for row in rows if row["method"].startswith("linear") and "ms" in row}

    def ratio(row: Mapping[str, Any], name: str) -> str:
        of = softmax.get(row["classes"])
        return "" if of is None or of is row or name not in row else f"{of[name] / row[name]:.1f}"

    def figure(row: Mapping[str, Any], name: str, digits: int) -> str:
        return f"{row[name]:,.{digits}f}" if name in row else ""

    shown = {
        "classes": [f"{row['classes']:,}" for row in rows],
        "": [row["method"] for row in rows],
        "memory, MB": [figure(row, "memory_mb", 0) or row.get("outcome", "") for row in rows],
        "softmax takes times as much": [ratio(row, "memory_mb") for row in rows],
        "ms a step": [figure(row, "ms", 1) for row in rows],
        "softmax takes times as long": [ratio(row, "ms") for row in rows],
        "s to make it": [figure(row, "placing_seconds", 2) for row in rows],
    }
    lines = [
        *wrap(
            f"A step of {stored['batch']} embeddings in {stored['dim']} dimensions, SGD with momentum, one thread; in"
            f" blocks of {stored['chunk']:,} classes, or {stored['sample']} drawn again. Memory is the peak of a"
            " process of its own, beyond that of a few steps with 512 classes (`python -m benchmarks.many_classes`);"
            " times were taken on a busy machine.",
            127,
        ),
        "",
        *drawn(shown),
    ]
    found = stored.get("end_to_end")
    if found is not None and "seconds" in found:
        lines += wrap(
            f"End to end: `tammes train` on {found['train_vectors']:,} made-up vectors ({found['columns']} columns) of"
            f" {found['train_classes']:,} classes, one epoch, evaluated on {found['test_vectors']:,} vectors of"
            f" {found['test_classes']:,} other classes: {found['seconds']:.0f} s in all,"
            f" {found['training_seconds']:.0f} of them training, {found['memory_mb']:,.0f} MB beside the file of"
            f" {found['file_mb']:,.0f} MB; R@1"
            f" {100 * found['untrained']:.2f} as they are, {100 * found['trained']:.2f} after"
            + (
                " (the closed form that training begins with, which the epoch did not improve on)."
                if not found["epoch"]
                else "."
            ),
            127,
        )
        lines += [""]
    return [*lines, *_machine(stored)]


def readme_table(results: Path) -> list[str]:
    """Both data sets side by side: what was trained here, and the paper's figures."""
    shown: dict[str, list[str]] = {"trained": []}
    shown |= {f"{name} {column}": [] for name in DATA_IN_README.values() for column in ("R@1", "R@8", "minutes")}
    plans: list[str] = []

    def add(what: str, *cells: str) -> None:
        for column, cell in zip(shown.values(), (what, *cells), strict=True):
            column.append(cell)

    for what, names, preset, method in IN_README:
        found = [_row_of(results, name, preset, method) for name in names]
        plans += [name for name, row in zip(names, found, strict=True) if row is not None]
        if any(found):
            stored = [read(results / "plans" / f"{name}.json") for name in names]
            before = [each is not None and beside.before_refit(each) for each in stored]
            cells = [_brief(row) for row in found]
            ours = "`**" in what
            if ours and all(old for old, row in zip(before, found, strict=True) if row is not None):
                what = what.replace("`**", " --no-refit`**")
            elif ours:
                marks = [" (`--no-refit`)" if old else "" for old in before]
                cells = [(f"{of[0]}{mark}", *of[1:]) for of, mark in zip(cells, marks, strict=True)]
            add(what, *(cell for of in cells for cell in of))
    for what, row in PAPER_IN_README.items():
        figures = [published_table(data).rows[row] for data in DATA_IN_README]
        add(what, *(cell for each in figures for cell in (f"{each['R@1']:.2f}", f"{each['R@8']:.2f}", "")))
    said = (
        "R@1 and R@8 in per cent on 100 kinds of birds and 98 models of cars never seen in training, GoogLeNet"
        " unless another network is named, one or two processor cores and no GPU; ± half of the 95 % interval where"
        " there are several seeds"
        " ([docs/results.md](docs/results.md) has all rows and their commands; by"
        f" {', '.join(f'`{name}`' for name in dict.fromkeys(plans)) or 'no plan'} in `benchmarks/plans/`):"
    )
    return [*wrap(said, 127, break_on_hyphens=False, break_long_words=False), "", *drawn(shown)]


def _row_of(results: Path, plan: str, preset: str, method: str) -> Row | None:
    """A row of a plan that is stored, in the penultimate layer."""
    stored = read(results / "plans" / f"{plan}.json")
    rows = [] if stored is None else from_json(stored["tables"]).get(preset, [])
    of = (row for row in rows if row.measures and row.method == method and row.layer in ("penultimate", ""))
    return next(of, None)


def _brief(row: Row | None) -> tuple[str, str, str]:
    """R@1 with its interval, R@8, minutes of training."""
    if row is None:
        return "not run", "", ""
    minutes = "" if row.minutes is None else f"{row.minutes:,.1f}"
    return str(row.measures["recall_at_1"]).removesuffix(" ± 0.00"), f"{row.measures['recall_at_8'].mean:.2f}", minutes


def _every_layer(results: Path) -> bool:
    """Whether the paper's own experiment is stored; an earlier run in fewer epochs stands for it until then."""
    return any((results / "plans" / f"{name}.json").exists() for name in ("paper-cub", "paper-cub-20"))


def methods(results: Path) -> list[str]:
    """All methods under one protocol, beside the paper's own figures."""
    stored, alone = read(results / "plans" / "cub-methods.json"), read(results / "training_time.json")
    if stored is None:
        return ["The methods were not compared yet.", ""]
    rows = [row for row in next(iter(from_json(stored["tables"]).values())) if row.measures]
    ratios = {} if alone is None else {row["loss"]: f"{row['ratio']:.1f}" for row in alone["rows"]}
    made = {
        run["method"]: re.search(r"--loss (\S+)", run["command"]) for runs in stored["runs"].values() for run in runs
    }
    losses = {name: "discriminative" if found is None else found[1] for name, found in made.items()}
    shown = {
        "CUB-200-2011, new layers trained": [
            "pretrained, nothing trained" if row.method == UNTRAINED else row.method for row in rows
        ],
        "R@1": [str(row.measures["recall_at_1"]) for row in rows],
        "MAP@R": [f"{row.measures['mean_average_precision_at_r'].mean:.2f}" for row in rows],
        "NMI": [f"{row.measures['NMI'].mean:.2f}" for row in rows],
        "loss and mining, / ours": [ratios.get(losses.get(row.method, ""), "") for row in rows],
        "the paper's R@1, every layer trained": [str((row.paper or {}).get("R@1", "")) for row in rows],
    }
    return drawn(shown)


NOT_COMPARED = ["The state of the art was not compared yet.", ""]
PUBLISHED = "as published, every layer trained"


def _more_rows(results: Path) -> dict[str, dict[str, Row]]:
    """By what was trained, the rows by their methods."""
    tables = {part: read(results / "plans" / f"cub-more-{part}.json") for part in ("head", "top")}
    return {
        part: {row.method: row for row in next(iter(from_json(stored["tables"]).values())) if row.measures}
        for part, stored in tables.items()
        if stored is not None
    }


def more(results: Path) -> list[str]:
    """Methods that are more than a loss, with both of their bases, and what an epoch takes."""
    rows = _more_rows(results)
    if "head" not in rows:
        return NOT_COMPARED
    names = [name for name in rows["head"] if name != UNTRAINED]
    shown = {"CUB-200-2011, R@1": names}
    for part, found in rows.items():
        measured = [found.get(name) for name in names]
        shown[f"`{part}`"] = [
            "" if row is None
            else "did not move" if (f"cub-more-{part}", "default", row.method) in NOT_MOVED
            else str(row.measures["recall_at_1"])
            for row in measured
        ]  # fmt: skip
        shown[f"seconds an epoch, `{part}`"] = [
            "" if row is None or row.minutes_per_epoch is None else f"{60 * row.minutes_per_epoch:.2g}"
            for row in measured
        ]
    return drawn(shown | {PUBLISHED: [_published(rows["head"][name]) for name in names]})


def _published(row: Row) -> str:
    return str((row.paper or {}).get("R@1", ""))


def omniglot(results: Path) -> list[str]:
    """Centroids on characters of scripts never seen."""
    stored = read(results / "plans" / "omniglot-centroids.json")
    measures = {"recall_at_1": "R@1", "mean_average_precision_at_r": "MAP@R"}
    if stored is not None:
        rows = [row for row in next(iter(from_json(stored["tables"]).values())) if row.measures]
        shown = {"Omniglot, 659 characters never seen": [row.method for row in rows]}
        shown |= {title: [str(row.measures[name]) for row in rows] for name, title in measures.items()}
        return drawn(shown)
    return ["Omniglot was not run yet.", ""]


if __name__ == "__main__":
    write_page()
