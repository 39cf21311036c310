"""The report of a run: results, training, retrieval examples, confusions, map and threshold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy import ndarray

from tammes import __version__
from tammes.centroids import quality
from tammes.errors import UserError
from tammes.geometry import blocks_of_pairs
from tammes.metrics import TITLES
from tammes.metrics.verification import Calibration, PairCounts, count_pairs
from tammes.models.backbones.module import OWN
from tammes.report.charts import Bar, Line, bar_chart, histogram, line_chart
from tammes.report.curves import curves
from tammes.report.findings import Findings, by_class, chosen_queries, confusions, findings
from tammes.report.page import Section, data_block, page, rendered
from tammes.report.projection import Way, flat, shown_items
from tammes.report.thumbnails import Album, sheets
from tammes.training.embedding import Items
from tammes.training.run_folder import RunFolder, centroids_of
from tammes.training.verdict import PRETRAINED, before_title, describe, measured_rows

HEADLINE = ("recall_at_1", "mean_average_precision_at_r", "NMI")
# What a page cannot do without.
NEEDED = ("data", "command")
OPTIONS = ("data", "loss", "seed", "dim")
FMR = 1e-3  # the false match rate by default
MOST_POINTS = 6000  # on the map
MOST_PAIRED = 12_000  # items whose distances to each other are counted
MOST_CLASSES = 1000  # rows of a table that a browser still sorts at once
_SCALE = 4095  # of the map's coordinates: a point of it is finer than one of a screen
_BINS = 60


@dataclass(frozen=True)
class Looked:
    """The computations for a report.

    Attributes:
        places: the coordinates of the items on the map; None without a map.
        shown: the items on the map; None without a map.
        pairs: the histogram of pair distances; None if there is none.
        unpaired: the reason why there is none.
        paired: the number of items in it.
    """

    items: Items
    found: Findings
    pairs: PairCounts | None
    unpaired: str
    paired: int
    shown: ndarray | None
    places: ndarray | None
    way: Way | None


def look(items: Items, *, way: Way | None = "tsne", seed: int = 0) -> Looked:
    """Run all expensive computations for a report.

    Args:
        way: how the map is computed; None for no map.
    """
    shown = None if way is None else shown_items(items.labels, MOST_POINTS, seed=seed)
    paired = shown_items(items.labels, MOST_PAIRED, seed=seed)
    kept = items.labels[paired]
    pairs, unpaired = None, ""
    masks: dict[str, Any] = {name: mask[paired] for name, mask in items.masks.items()}
    try:
        pairs = count_pairs(items.vectors[paired], kept, **masks)
    except UserError as error:  # a page without them says more than none
        unpaired = str(error)
    return Looked(
        items=items,
        found=findings(items.vectors, items.labels, items.masks),
        pairs=pairs,
        unpaired=unpaired,
        paired=len(paired),
        shown=shown,
        places=None if shown is None or way is None else flat(items.vectors[shown], way, seed=seed),
        way=way,
    )


def run_page(run: RunFolder, looked: Looked | None, *, fmr: float = FMR) -> str:
    """The report of a finished run as one HTML file.

    Args:
        looked: the computations; None if there are no items.
        fmr: the false match rate whose threshold is drawn, for a run that is not calibrated.
    """
    results, config = run.read("results", needs=NEEDED), run.read("config", needs=OPTIONS)
    sections = [_result(run, results, config), _training(run)]
    points = _centroids(run)
    sections += [] if points is None else [points]
    if looked is not None:
        store = f"Store it in the run, with its interval: tammes calibrate {run.folder} --fmr {fmr:g}"
        sections += item_sections(looked, fmr, calibration=run.read("calibration"), advice=store)
    data, trained = results["data"], what_trains(config)
    centroids = f" with {_kind(config['centroids'])}" if config.get("centroids") else ""
    return page(
        f"{data}: {trained}{centroids}",
        _subtitle(results, config),
        sections,
        heading=headline(results, config),
        made_by=f"Made by tammes {__version__} from {run.folder.name}. Everything is in this file.",
    )


def item_sections(
    looked: Looked, fmr: float, *, calibration: Mapping[str, Any] | None = None, advice: str = ""
) -> list[Section]:
    """Sections on retrieval, confusions, classes, the map and the threshold, for runs and for vectors.

    Args:
        fmr: the false match rate whose threshold is drawn, without a calibration.
        advice: how to use that threshold.
    """
    album = None if looked.items.images is None else Album(looked.items.images, looked.items.numbers, 96)
    sections = [_retrievals(looked, album), _confusions(looked, album), _classes(looked)]
    sections += [] if looked.places is None else [_map(looked)]
    pairs = looked.pairs
    return [*sections, _no_pairs(looked) if pairs is None else _distances(looked, pairs, fmr, calibration, advice)]


def _subtitle(results: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    text = ""
    if {"train_images", "train_classes"} <= results.keys():
        text = f"{results['train_images']:,} training items of {results['train_classes']:,} classes"
    if {"test_images", "test_classes"} <= results.keys():
        text += f"; tested on {results['test_images']:,} of {results['test_classes']:,} classes never seen"
    preset = f"preset {config['preset']}, " if config.get("preset") else ""
    return f"{text}; {preset}seed {config['seed']}."


def what_trains(config: Mapping[str, Any]) -> str:
    """The loss, or for vectors the closed form."""
    return "ridge regression" if config.get("method") == "ridge" else f"{config['loss']} loss"


def _kind(centroids: str) -> str:
    return f"{ {'place': 'placed', 'solve': 'solved', 'kmeans': 'K-means'}.get(centroids, centroids) } centroids"


def headline(results: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Markup | None:
    trained, untrained = results.get("trained"), results.get("untrained") or {}
    if trained is None:
        return None
    figures = [
        {
            "name": TITLES[name],
            "value": f"{100 * trained[name]:.1f}",
            "interval": _interval(trained, name, "95 % interval {} to {}"),
            "before": "" if untrained.get(name) is None else f"{100 * untrained[name]:.1f}",
        }
        for name in HEADLINE
        if trained.get(name) is not None
    ]
    return rendered("headline.html", figures=figures, before=before_title(config))


def _interval(measured: Mapping[str, Any], name: str, words: str = "{} to {}") -> str:
    ends = (measured.get("intervals") or {}).get(name)
    return "" if ends is None else words.format(*(f"{100 * end:.1f}" for end in ends))


def metrics_table(rows: Mapping[str, Mapping[str, Any]], measured_on: str) -> Markup:
    """All metrics with their intervals."""
    names = [name for name in TITLES if any(row.get(name) is not None for row in rows.values())]
    cells = [
        {
            "name": title,
            "cells": [
                {"value": "" if row.get(name) is None else f"{100 * row[name]:.2f}", "interval": _interval(row, name)}
                for name in names
            ],
        }
        for title, row in rows.items()
    ]
    alone = max((row.get("single_image_classes") or 0 for row in rows.values()), default=0)
    remark = f"{alone} classes have one item only, which nothing can match: misses for R@K." if alone else ""
    return rendered(
        "metrics.html", rows=cells, titles=[TITLES[name] for name in names], measured_on=measured_on, remark=remark
    )


def _result(run: RunFolder, results: Mapping[str, Any], config: Mapping[str, Any]) -> Section:
    rows = measured_rows(results, config)
    names = [name for name in TITLES if any(row.get(name) is not None for row in rows.values())]
    one = results.get("trained") or {}
    bars = [
        Bar(
            f"{TITLES[name]}, {title}",
            None if row.get(name) is None else 100 * row[name],
            *(100 * end for end in (row.get("intervals") or {}).get(name, ())),
        )
        for name in ("recall_at_1", "mean_average_precision_at_r")
        if name in names
        for title, row in rows.items()
    ]
    body = rendered(
        "result.html",
        table=metrics_table(rows, f"{one.get('queries', 0):,} queries of {one.get('classes', 0):,} classes never seen")
        if rows
        else None,
        verdict=describe(results),
        chart=bar_chart(bars, title="Before and after", unit="%") if bars else Markup(""),
        facts=_facts(run, results, config),
        command=results["command"],
        options={name: value for name, value in config.items() if value is not None},
    )
    return Section("result", "Result", body)


def _facts(run: RunFolder, results: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """The facts of the training: network, data, time, machine."""
    environment, shape = run.read("environment") or {}, run.read("embedder") or {}
    facts = {"data": f"{results['data']}: {config['data']}"}
    if {"train_images", "train_classes"} <= results.keys():
        facts["trained on"] = f"{results['train_images']:,} items of {results['train_classes']:,} classes"
    if {"test_images", "test_classes"} <= results.keys():
        facts["tested on"] = f"{results['test_images']:,} items of {results['test_classes']:,} other classes"
    if shape:
        pool = "" if shape.get("pool", "published") == "published" else f", {shape['pool']} pooling"
        began = "its own weights" if str(shape["backbone"]).startswith(OWN) else config.get("weights")
        facts["network"] = f"{shape['backbone']}{pool}, from {began}; embedding {shape['dim']}"
        facts["trained layers"] = {"all": "everything", "head": "the new layers"}.get(
            str(config.get("train")), f"from {config.get('cut')} up"
        )
    else:
        kept = (results.get("verdict") or {}).get("kept")
        layers = " → ".join(map(str, (*(config.get("hidden") or ()), config["dim"])))
        facts["map"] = "none: the vectors as they are" if kept == PRETRAINED else layers
    facts["learned by"] = what_trains(config) + (f", {_kind(config['centroids'])}" if config.get("centroids") else "")
    epochs = run.epochs()
    if epochs:
        facts["epochs"] = f"{len(epochs)}, batches of {config.get('batch_size')}"
    facts["time"] = f"{results['seconds']:.0f} s of training" if results.get("seconds") is not None else "not known"
    facts["machine"] = f"{environment.get('processor', 'not known')}, {environment.get('cores', '?')} cores"
    versions = environment.get("versions", {})
    facts["versions"] = ", ".join(f"{name} {versions[name]}" for name in ("tammes", "torch") if name in versions)
    if environment.get("commit"):
        facts["commit"] = str(environment["commit"])[:12]
    return facts


def _training(run: RunFolder) -> Section:
    epochs = run.epochs()
    if not epochs:
        return Section(
            "training", "Training", Markup("<p>{}</p>").format("Solved in closed form: there are no epochs.")
        )
    body = Markup('<div class="charts">{}</div>').format(Markup("").join(curves({"": epochs})))
    missing = []
    if not any("val_recall_at_1" in line for line in epochs):
        missing.append("R@1 by epoch needs classes held out for it: tammes train … --val-classes 0.1.")
    if not any("bound" in line for line in epochs) and run.read("embedder") is not None:
        missing.append("The bound over time, for losses with centroids: tammes train … --log-bound.")
    if missing:
        body += Markup('<p class="note">Not recorded in this run: {}</p>').format(" ".join(missing))
    return Section("training", "Training", body)


def _centroids(run: RunFolder) -> Section | None:
    points = centroids_of(run)
    if points is None:
        return None
    found = quality(points)
    # An odd number of bins around the middle: distances that are all the same fall into one of them.
    middle = (found.min + found.max) / 2
    reach = max(found.max, found.upper_bound) - middle + 0.06
    edges = np.linspace(max(0.0, middle - reach), middle + reach, _BINS + 2)
    counts = np.zeros(_BINS + 1)
    for block in blocks_of_pairs(points):
        counts += np.histogram(block.double().numpy(), edges)[0]
    kind = _kind(run.read("config")["centroids"])
    chart = histogram(
        {kind: counts.tolist()},
        edges.tolist(),
        title=f"Distances between {len(points):,} centroids in {points.shape[1]:,} dimensions",
        x_title="distance between two centroids",
        marks={"upper bound of the smallest": found.upper_bound},
    )
    spread = "all the same" if found.max - found.min < 1e-6 else f"between {found.min:.4f} and {found.max:.4f}"
    text = (
        f"The distances are {spread}; mean {found.mean:.4f}, standard deviation {found.std:.4f}. No arrangement of"
        f" that many points has all its distances above {found.upper_bound:.4f}: the smallest here is"
        f" {100 * found.ratio:.2f} % of that."
    )
    return Section("centroids", "Centroids", Markup("<p>{}</p>{}").format(text, chart))


def _retrievals(looked: Looked, album: Album | None) -> Section:
    items, found = looked.items, looked.found
    words = {
        "random": ("At random", "Queries drawn at random, one of a class."),
        "best": ("Best", "The clearest right ones: another class begins much farther away than the own one."),
        "worst": ("Worst", "The clearest wrong ones: another class is much nearer than the own one."),
    }
    groups = []
    for name, rows in chosen_queries(found, items.labels).items():
        title, remark = words[name]
        shown = [
            {
                "query": _shown(
                    items, album, int(found.queries[row]), "query", items.class_names[items.labels[found.queries[row]]]
                ),
                "near": [
                    _shown(
                        items,
                        album,
                        int(other),
                        "right" if items.labels[other] == items.labels[found.queries[row]] else "wrong",
                        f"{'✓' if items.labels[other] == items.labels[found.queries[row]] else '✗'}"
                        f" {found.distances[row, place]:.3f}",
                    )
                    for place, other in enumerate(found.near[row])
                    if other >= 0
                ],
            }
            for row in rows
        ]
        groups.append({"name": name, "title": title, "remark": remark if shown else "There are none.", "rows": shown})
    return Section("retrievals", "What it finds", rendered("retrievals.html", groups=groups))


def _shown(items: Items, album: Album | None, item: int, kind: str, caption: str) -> dict[str, Any]:
    name, of = items.names[item], items.class_names[items.labels[item]]
    match = {"right": ", the same class", "wrong": ", another class"}.get(kind, "")
    return {
        "name": name,
        "title": f"{of}: {name}{match}",
        "kind": kind,
        "caption": caption,
        "picture": None if album is None else album[item],
    }


def _confusions(looked: Looked, album: Album | None) -> Section:
    items = looked.items
    pairs = [
        {
            "one": items.class_names[pair.one],
            "other": items.class_names[pair.other],
            "share": f"{100 * pair.share:.0f} %",
            "times": pair.times,
            "examples": [
                {
                    "query": _shown(items, album, query, "", ""),
                    "near": _shown(items, album, near, "", ""),
                    "distance": f"{_apart(items.vectors, query, near):.3f}",
                }
                for query, near in pair.examples
            ],
        }
        for pair in confusions(looked.found, items.labels)
    ]
    body = rendered("confusions.html", pairs=pairs, pictured=album is not None)
    return Section("confusions", "What it mixes up", body)


def _apart(vectors: ndarray, one: int, other: int) -> float:
    return float(np.linalg.norm(vectors[one].astype(np.float64) - vectors[other]))


def _classes(looked: Looked) -> Section:
    items = looked.items
    small = None if items.images is None else Album(items.images, items.numbers, 36)
    rows = by_class(looked.found, items.labels)
    shown = rows[:MOST_CLASSES]
    perfect, alone = sum(row.recall == 1 for row in rows), sum(row.alone for row in rows)
    remark = f"{len(rows):,} classes, the worst first; {perfect:,} have the nearest neighbour of every query right."
    if alone:
        remark += f" {alone:,} have nothing else to find, and stand last."
    if len(shown) < len(rows):
        remark += f" The {len(shown):,} worst are listed."
    body = rendered(
        "classes.html",
        remark=remark,
        pictured=small is not None,
        rows=[
            {
                "name": items.class_names[row.label],
                "number": row.items,
                "recall": row.recall,
                "taken_for": "" if row.taken_for is None else items.class_names[row.taken_for],
                "taken": row.taken,
                "picture": None if small is None else small[row.shown],
            }
            for row in shown
        ],
    )
    return Section("classes", "Class by class", body)


def _map(looked: Looked) -> Section:
    items, shown, places = looked.items, looked.shown, looked.places
    assert shown is not None
    assert places is not None
    numbers, labels = np.unique(items.labels[shown], return_inverse=True)
    content: dict[str, Any] = {
        "scale": _SCALE,
        "x": np.rint(places[:, 0] * _SCALE).astype(int).tolist(),
        "y": np.rint((1 - places[:, 1]) * _SCALE).astype(int).tolist(),
        "label": labels.reshape(-1).tolist(),
        "classes": [items.class_names[number] for number in numbers],
        "items": [items.names[item] for item in shown.tolist()],
        "columns": 1,
        "sheets": [],
    }
    if items.images is not None:
        pictures = sheets(items.images, items.numbers[shown], 56 if len(shown) > 3000 else 72)
        content |= {"columns": pictures.columns, "sheets": pictures.files}
    way = {
        "tsne": "t-SNE: near on the map is near in the embedding, far apart means little",
        "pca": "PCA: the two directions in which the embeddings differ most",
    }
    part = (
        f"{len(shown):,} items"
        if len(shown) == len(items.labels)
        else f"{len(shown):,} of {len(items.labels):,} items, drawn at random"
    )
    body = rendered(
        "map.html",
        remark=f"{part} by {way[looked.way or 'tsne']}.",
        label=f"Map of {len(shown):,} embeddings of {len(numbers):,} classes",
        data=data_block("map-data", content),
    )
    return Section("map", "Map of the embeddings", body)


def _no_pairs(looked: Looked) -> Section:
    return Section("distances", "Same-class threshold", Markup("<p>{}</p>").format(f"Not measured: {looked.unpaired}"))


def _distances(looked: Looked, pairs: PairCounts, fmr: float, stored: Mapping[str, Any] | None, advice: str) -> Section:
    threshold: float | None = None if stored is None else stored["threshold"]
    text = []
    if stored is None:
        try:
            here: Calibration = pairs.threshold_at(fmr)
        except ValueError as error:
            text.append(str(error))
        else:
            threshold = here.threshold
            text.append(
                f"At a false match rate of {fmr:g} on these items the threshold is {here.threshold:.4f}, and"
                f" {100 * here.true_match_rate:.1f} % of the pairs of one class are found. {advice}".rstrip()
            )
    else:
        low, high = stored.get("threshold_interval") or (None, None)
        between = "" if low is None else f" [{low:.4f}, {high:.4f}]"
        text.append(
            f"Calibrated: pairs nearer than {stored['threshold']:.4f}{between} are taken for the same class, at"
            + (
                " equal rates of both errors."
                if stored["fmr"] is None
                else f" a false match rate of {stored['fmr']:g}."
            )
        )
    edges = np.asarray(pairs.edges)
    wide = np.linspace(edges[0], edges[-1], _BINS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    counts = {
        "same class": np.histogram(middle, wide, weights=pairs.same)[0].tolist(),
        "different classes": np.histogram(middle, wide, weights=pairs.other)[0].tolist(),
    }
    charts = [
        histogram(
            counts,
            wide.tolist(),
            title="Distances between two items",
            x_title="distance",
            marks={} if threshold is None else {"threshold": threshold},
            caption=f"{int(np.sum(pairs.same)):,} pairs of one class, {int(np.sum(pairs.other)):,} of different ones,"
            " each in shares of its own.",
        ),
        _roc(pairs),
    ]
    if looked.paired < len(looked.items.labels):
        text.append(f"Counted on {looked.paired:,} items, drawn at random.")
    paragraphs = Markup("").join(Markup("<p>{}</p>").format(each) for each in text)
    return Section(
        "distances",
        "Same-class threshold",
        paragraphs + Markup('<div class="charts">{}</div>').format(Markup("").join(charts)),
    )


def _roc(pairs: PairCounts) -> Markup:
    false, true = pairs.rates()
    false, true = np.asarray(false), np.asarray(true)
    kept = false > 0
    # As many points as a screen has: evenly in the logarithm, which is the axis.
    at = np.unique(np.searchsorted(false[kept], np.logspace(np.log10(false[kept][0]), 0, 200)).clip(0, kept.sum() - 1))
    return line_chart(
        [Line("ROC", false[kept][at].tolist(), (100 * true[kept][at]).tolist())],
        title="How many pairs of one class are found, at which price",
        x_title="false match rate",
        y_title="per cent found",
        log_x=True,
        caption=f"Area under the curve {pairs.area():.4f}, equal error rate {100 * pairs.equal_error_rate():.2f} %.",
    )
