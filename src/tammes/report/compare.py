"""The page that compares several runs: results, curves, and accuracy against time."""

from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from tammes import __version__
from tammes.metrics import TITLES
from tammes.report.charts import Bar, Point, bar_chart, scatter
from tammes.report.curves import curves
from tammes.report.page import Section, page, rendered
from tammes.report.run import NEEDED, what_trains
from tammes.training.run_folder import RunFolder


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """The names of runs: their folders without the common part."""
    parts = [run.folder.absolute().parts for run in runs]
    first = next((n for n in range(min(map(len, parts))) if len({each[n] for each in parts}) > 1), 0)
    return ["/".join(each[first:]) or each[-1] for each in parts]


def compare_page(runs: Sequence[RunFolder], out: Path) -> str:
    """The report of several finished runs.

    Args:
        out: the path of the page, for relative links to the runs' own reports.
    """
    names = names_of(runs)
    results = dict(zip(names, (run.read("results", needs=NEEDED) for run in runs), strict=True))
    sections = [
        _table(dict(zip(names, runs, strict=True)), results, out),
        Section("accuracy", "Accuracy", _bars(results)),
        Section("time", "Accuracy against training time", _times(results)),
        Section(
            "training",
            "Training",
            Markup('<div class="charts">{}</div>').format(
                Markup("").join(curves({name: run.epochs() for name, run in zip(names, runs, strict=True)}))
            ),
        ),
    ]
    data = sorted({result["data"] for result in results.values()})
    return page(
        f"{len(runs)} runs on {', '.join(data)}",
        "On classes never seen in training; 95 % intervals over classes.",
        sections,
        made_by=f"Made by tammes {__version__}. Everything is in this file but the runs' own reports.",
    )


def _table(runs: Mapping[str, RunFolder], results: Mapping[str, Mapping[str, Any]], out: Path) -> Section:
    shown = [name for name in TITLES if any((each.get("trained") or {}).get(name) for each in results.values())]
    rows = []
    for name, result in results.items():
        trained, untrained = result.get("trained") or {}, result.get("untrained") or {}
        own = runs[name].folder / "report.html"
        rows.append(
            {
                "name": name,
                "link": quote(relpath(own.absolute(), out.absolute().parent)) if own.exists() else "",
                "cells": [
                    {
                        "value": trained.get(key),
                        "interval": [100 * end for end in (trained.get("intervals") or {}).get(key, ())],
                    }
                    for key in shown
                ],
                "untrained": untrained.get("recall_at_1"),
                "seconds": result.get("seconds"),
                "loss": what_trains(runs[name].read("config", needs=("loss",))),
                "command": result["command"],
            }
        )
    body = rendered("compare.html", rows=rows, titles=[TITLES[key] for key in shown])
    return Section("results", "Results", body)


def _bars(results: Mapping[str, Mapping[str, Any]]) -> Markup:
    charts = []
    for key in ("recall_at_1", "mean_average_precision_at_r"):
        bars = []
        for name, result in results.items():
            trained = result.get("trained") or {}
            value = trained.get(key)
            ends = (100 * end for end in (trained.get("intervals") or {}).get(key, ()))
            bars.append(Bar(name, None if value is None else 100 * value, *ends))
        charts.append(bar_chart(bars, title=TITLES[key], unit="%"))
    return Markup("").join(charts)


def _times(results: Mapping[str, Mapping[str, Any]]) -> Markup:
    points = []
    for name, result in results.items():
        trained = result.get("trained") or {}
        if trained.get("recall_at_1") is None or not result.get("seconds"):
            continue
        ends = (100 * end for end in (trained.get("intervals") or {}).get("recall_at_1", ()))
        points.append(Point(name, result["seconds"], 100 * trained["recall_at_1"], *ends))
    return scatter(points, title="R@1 over training time", x_title="seconds to train", y_title="R@1, %", log_x=True)
