"""docs/results.md, from the stored results.

python -m benchmarks.page
"""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/results.md")
MEASURES = {
    "recall_at_1": "R@1",
    "recall_at_2": "R@2",
    "recall_at_4": "R@4",
    "recall_at_8": "R@8",
    "mean_average_precision_at_r": "MAP@R",
}
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided t for that many seeds
# Do et al. (2019), the table on CUB-200-2011: GoogLeNet, every layer trained, up to 40 epochs.
PAPER_CUB = {
    "one-hot centroids, 256-d layer": (51.43, 64.23, 74.31, 82.83),
    "K-means centroids, 256-d layer": (50.75, 63.54, 73.26, 82.36),
    "one-hot centroids, last layer": (49.49, 62.32, 72.52, 81.57),
    "softmax, 256-d layer": (48.34, 60.16, 71.21, 80.30),
}


def write_page() -> None:
    """Every section whose results are stored."""
    sections = ["# Results", "", "Written by `python -m benchmarks.page` from `benchmarks/results/`; do not edit.", ""]
    for name, section in (("cub", cub), ("cub_all", cub_all), ("omniglot", omniglot)):
        file = RESULTS / f"{name}.json"
        if file.exists():
            sections += section(json.loads(file.read_text()))
    PAGE.write_text("\n".join(sections))


def omniglot(stored: dict[str, Any]) -> list[str]:
    epochs = max(row["epochs"] for row in stored["rows"])
    rows = [row for row in stored["rows"] if row["epochs"] == epochs]
    return [
        "## Omniglot",
        "",
        f"conv4, preset default, {epochs} epochs, trained on the 242 characters of the two small background sets,",
        "tested on the 659 characters of the evaluation set (13,180 drawings). Last epoch; per cent; mean over the",
        "seeds ± half of its 95 % interval (Student's t).",
        "",
        f"    python -m benchmarks.omniglot FOLDER --epochs {epochs}",
        "",
        *_table("method", _grouped(rows, lambda row: row["method"])),
        *_machine(stored),
    ]


def cub(stored: dict[str, Any]) -> list[str]:
    lines = [
        "## CUB-200-2011",
        "",
        "GoogLeNet as published (ImageNet weights), trained on the first 100 classes (5,864 images), tested on the",
        "other 100 (5,924 images), shorter side 256, centre crop of 224. `head` trains two new layers on the frozen",
        "backbone, `top` everything from inception 5a up, `all` the whole network. Last epoch; per cent; mean over the",
        "seeds ± half of its 95 % interval (Student's t). The paper trains every layer, on a GPU.",
        "The default preset was chosen among 20 variations on validation classes, softmax's learning rate among 5:",
        "the two were not searched for equally, which favours the first. Rows were run at several commits and on a",
        "loaded machine; the line below the table is that of the last one.",
        "",
        "    python -m benchmarks.cub CUB_200_2011 --weights FILE",
        "",
    ]
    rows = sorted(stored["rows"], key=lambda row: (row.get("train", ""), row["method"] == "softmax, rate 0.01"))
    layers = {"penultimate": "256-d layer", "last": "last layer"}

    def label(row: dict[str, Any]) -> str:
        if "train" not in row:
            return str(row["method"])
        return f"{row['train']}: {row['method']}, {layers[row['layer']]}"

    paper = [
        f"| the paper: {name} | {' | '.join(f'{value:.2f}' for value in values)} | | | |"
        for name, values in PAPER_CUB.items()
    ]
    return [*lines, *_table("method", _grouped(rows, label), paper), *_machine(stored)]


def cub_all(stored: dict[str, Any]) -> list[str]:
    """The run in which every layer trains, epoch by epoch."""
    rows = [("untrained, pool5", stored["untrained"])]
    rows += [("256-d layer", stored["penultimate"]), ("last layer", stored["last"])]
    epochs = [
        f"| {line['epoch']} | {line['rate']:g} | {line['loss']:.4f} | {line['above_minimum']:.4f} "
        f"| {line['images_per_second']:.1f} | {line['seconds'] / 60:.0f} |"
        for line in stored["epochs"]
    ]
    return [
        f"### Every layer trained, in {len(epochs)} epochs",
        "",
        "The paper's recipe, its learning rates halved after each epoch instead of after every 5, one seed:",
        "",
        f"    {stored['command']}",
        "    python -m benchmarks.cub_all CUB_200_2011 --weights FILE",
        "",
        f"| | {' | '.join(MEASURES.values())} |",
        "|---" * 6 + "|",
        *(f"| {name} | {' | '.join(f'{100 * row[m]:.2f}' for m in MEASURES)} |" for name, row in rows),
        "",
        "| epoch | rate of the new layers | loss | above its minimum | images/s | minutes |",
        "|---" * 6 + "|",
        *epochs,
        "",
        f"{stored['machine']['processor']}, one thread of two beside other work, commit {stored['commit']}.",
        "",
        "### VGG-16",
        "",
        "| method | R@1 | command |",
        "|---|---|---|",
        "| one-hot centroids, every layer | not run: its ImageNet weights were not at hand "
        "| `tammes train CUB_200_2011 --backbone vgg16 --train all --preset paper` |",
        "| one-hot centroids, new layers | not run, for the same reason "
        "| `tammes train CUB_200_2011 --backbone vgg16 --train head --preset paper` |",
        "",
        *_vgg_speed(),
    ]


def _vgg_speed() -> list[str]:
    file = RESULTS / "throughput.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    return [
        line
        for row in rows
        if row["backbone"] == "vgg16"
        for line in (f"With random weights it trains at {row['images_per_second']:.1f} images/s here.", "")
    ]


def _grouped(rows: list[dict[str, Any]], label: Any) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(label(row), []).append(row)
    return grouped


def _table(what: str, grouped: dict[str, list[dict[str, Any]]], more: list[str] | None = None) -> list[str]:
    lines = [f"| {what} | {' | '.join(MEASURES.values())} | seeds | seconds to train |", "|---" * 8 + "|"]
    for name, rows in grouped.items():
        cells = [_with_interval([100 * row[measure] for row in rows]) for measure in MEASURES]
        lines.append(f"| {name} | {' | '.join(cells)} | {len(rows)} | {mean(row['seconds'] for row in rows):.0f} |")
    return [*lines, *(more or []), ""]


def _with_interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    half = STUDENT_95.get(len(values), 1.96) * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.2f} ± {half:.2f}"


def _machine(stored: dict[str, Any]) -> list[str]:
    of = stored["machine"]
    return [f"{of['processor']}, {of['threads']} threads, torch {of['torch']}, commit {of['commit']}.", ""]


if __name__ == "__main__":
    write_page()
