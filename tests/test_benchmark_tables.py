"""Tables of a benchmark: means, intervals and differences against an independent computation, and what a row says."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tammes.benchmark.cells import Cell, table_cells
from tammes.benchmark.choose import chosen, combinations, quarter_of, trials
from tammes.benchmark.plan import Plan, read_plan
from tammes.benchmark.tables import (
    as_json,
    centroid_distances,
    columns,
    compares_centroids,
    figure,
    from_json,
    markdown,
    paired,
    remarks,
    table,
)
from tammes.centroids import CENTROIDS
from tammes.errors import UserError
from tammes.training.run_folder import RunFolder

TEXT = """
title = "two ways"
data = "CUB_200_2011"
seeds = [0, 1, 2]
layers = ["penultimate", "last"]
paper = "cub"
[train]
val-classes = 0.2
[[method]]
name = "A"
paper = "Discriminative"
[[method]]
name = "B"
loss = "softmax"
[[method]]
name = "C"
loss = "hard-discriminative"
"""
CONFIG = {
    "preset": "default", "backbone": "conv4", "weights": "none", "train": "all", "views": None, "dim": 16,
    "epochs": 2, "batch_size": 8, "mirror": False, "shift": 2, "pool": "published", "init": "random",
}  # fmt: skip


def student_95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t, from its density alone: integrate, and halve the interval."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    low, high = 0.0, 20.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        points = np.linspace(0, middle, 20001)
        density = scale * (1 + points**2 / degrees) ** (-(degrees + 1) / 2)
        low, high = (middle, high) if np.trapezoid(density, points) < 0.475 else (low, middle)
    return low


def result(penultimate: float, last: float, untrained: float, **more: Any) -> dict[str, Any]:
    layers = {"penultimate": {"recall_at_1": penultimate, "NMI": 0.5}, "last": {"recall_at_1": last}}
    return {
        "layers": layers, "untrained": {"recall_at_1": untrained}, "chosen": {}, "training_seconds": 90.0,
        "seconds": 100.0, "config": CONFIG, **more,
    }  # fmt: skip


def written(plan: Plan, out: Path, results: dict[tuple[str, int], dict[str, Any]]) -> list[Cell]:
    cells = table_cells(plan, out)
    for cell in cells:
        if (cell.method.name, cell.seed) in results:
            cell.file.parent.mkdir(parents=True, exist_ok=True)
            cell.write(results[cell.method.name, cell.seed])
    return cells


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "plan.toml").write_text(TEXT)
    return read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize("number", [2, 3, 5, 12])
def test_the_interval_is_students(number: int) -> None:
    values = np.random.default_rng(number).normal(50, 3, number).tolist()
    found = figure(values)
    half = student_95(number - 1) * statistics.stdev(values) / math.sqrt(number)
    assert found.mean == pytest.approx(sum(values) / number)
    assert found.half == pytest.approx(half, rel=1e-5)
    assert str(found) == f"{found.mean:.2f} ± {half:.2f}"


def test_one_seed_has_no_interval() -> None:
    assert (figure([51.4]).half, str(figure([51.4]))) == (None, "51.40")


def test_differences_are_paired_over_the_seeds_that_both_have() -> None:
    first, other = {0: 10.0, 1: 20.0, 2: 30.0, 7: 1.0}, {2: 31.5, 0: 11.0, 1: 20.5, 9: 99.0}
    found = paired(other, first)
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert found.seeds == 3
    assert found.half == pytest.approx(student_95(2) * statistics.stdev([1.0, 0.5, 1.5]) / math.sqrt(3), rel=1e-5)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_every_row_has_its_figures(plan: Plan, tmp_path: Path) -> None:
    results = {
        ("A", seed): result(0.50 + seed / 100, 0.40, 0.30, best={"epoch": 1, "recall_at_1": 0.6}) for seed in range(3)
    }
    results |= {
        ("B", 0): result(0.53, 0.41, 0.30),
        ("B", 1): result(0.52, 0.43, 0.30),
        ("B", 2): {"error": "it\nbroke"},
    }
    rows = table(plan, "default", written(plan, tmp_path / "out", results))
    assert [row.name for row in rows] == [
        "A, penultimate layer", "A, last layer", "A, penultimate layer, best epoch (optimistic)",
        "B, penultimate layer", "B, last layer", "C, penultimate layer", "C, last layer", "before training",
    ]  # fmt: skip
    first, last, best, other, _, missing, _, untrained = rows
    assert first.measures["recall_at_1"].mean == pytest.approx(51.0)
    assert first.measures["NMI"].half == pytest.approx(0.0)
    assert (first.difference, first.seeds, first.minutes, first.remark) == (None, 3, 1.5, None)
    assert first.paper is not None
    assert first.paper["R@1"] == 51.43
    assert last.paper is None
    assert last.difference is not None
    assert last.difference.mean == pytest.approx(-11.0)
    assert best.measures["recall_at_1"].mean == pytest.approx(60.0)
    assert other.difference is not None
    assert other.difference.mean == pytest.approx(2.0)
    assert other.difference.seeds == 2
    assert other.remark == "1 of 3 failed: it"
    assert (missing.measures, missing.remark) == ({}, "3 of 3 not run yet")
    assert untrained.difference is not None
    assert untrained.difference.mean == pytest.approx(-21.0)
    assert as_json({"default": rows})["default"][0]["measures"]["recall_at_1"]["seeds"] == 3
    assert from_json(json.loads(json.dumps(as_json({"default": rows})))) == {"default": rows}


def test_the_page_says_how_and_prints_the_papers_own_column(plan: Plan, tmp_path: Path) -> None:
    cells = written(plan, tmp_path / "out", {("A", 0): result(0.5, 0.4, 0.3), ("B", 0): result(0.525, 0.4, 0.3)})
    rows = table(plan, "default", cells)
    shown = columns(rows)
    assert list(shown) == [
        "method", "R@1", "NMI", "R@1 - first row", "seeds", "minutes", "minutes/epoch",
        "the paper's R@1 / R@2 / R@4 / R@8 / NMI", "remark",
    ]  # fmt: skip
    assert shown["the paper's R@1 / R@2 / R@4 / R@8 / NMI"][0] == "51.43 / 64.23 / 74.31 / 82.83 / 59.92"
    said = remarks(plan, [CONFIG], {"A": 0})
    page = markdown(plan, {"default": rows}, said)
    assert "| B, penultimate layer | 52.50 | 50.00 | +2.50 | 1 | 1.5 | 0.75 |  | 2 of 3 not run yet |" in page
    assert page.startswith("# two ways\n")
    assert "conv4 from none, trained: all, pool published, dim 16" in page
    assert "table 4 of Do et al. (2019)" in page
    assert "the epoch that was best on validation classes (0.2 of the" in page
    assert len({line.count("|") for line in page.splitlines() if line.startswith("|")}) == 1


def test_while_the_first_row_has_no_result_nothing_is_compared_with_another(plan: Plan, tmp_path: Path) -> None:
    rows = table(plan, "default", written(plan, tmp_path / "out", {("B", 0): result(0.5, 0.4, 0.3)}))
    assert [row.difference for row in rows] == [None] * len(rows)
    assert rows[0].remark == "3 of 3 not run yet"


def test_minutes_are_also_said_for_an_epoch(plan: Plan, tmp_path: Path) -> None:
    results = {
        ("A", 0): result(0.5, 0.4, 0.3, training_seconds=600.0),  # of 2 epochs
        ("A", 1): result(0.5, 0.4, 0.3, training_seconds=120.0),
        ("B", 0): result(0.5, 0.4, 0.3, training_seconds=0.9),
    }
    rows = table(plan, "default", written(plan, tmp_path / "out", results))
    assert rows[0].minutes_per_epoch == pytest.approx((5 + 1) / 2)
    shown = columns(rows)["minutes/epoch"]
    assert (shown[0], shown[2], shown[-1]) == ("3.0", "0.0075", "")


APART = """
data = "glyphs"
paper = "centroids-cub"
[[method]]
name = "A"
centroids = "one-hot"
paper = "one-hot"
[[method]]
name = "B"
centroids = "kmeans"
paper = "K-means"
"""


def planned(folder: Path, text: str) -> Plan:
    (folder / "plan.toml").write_text(text)
    return read_plan(folder / "plan.toml")


def test_a_plan_compares_centroids_if_they_are_in_different_places(tmp_path: Path) -> None:
    assert compares_centroids(planned(tmp_path, APART))
    assert not compares_centroids(planned(tmp_path, APART.replace("kmeans", "one-hot")))
    softmax = APART.replace('centroids = "kmeans"', 'loss = "softmax"')
    assert not compares_centroids(planned(tmp_path, softmax))


def test_distances_stand_beside_the_papers_as_means_over_seeds(tmp_path: Path) -> None:
    apart = planned(tmp_path, APART)
    known = {"min": 1.0, "max": 1.5, "mean": 1.25, "std": 0.125}
    results = {
        ("A", 0): result(0.5, 0.4, 0.3, distances=known),
        ("A", 1): result(0.5, 0.4, 0.3, distances=known | {"min": 1.1}),
        ("B", 0): result(0.5, 0.4, 0.3, distances=None),
    }
    rows = table(apart, "default", written(apart, tmp_path / "out", results))
    assert rows[0].distances == pytest.approx({"min": 1.05, "max": 1.5, "mean": 1.25, "std": 0.125})
    assert [row.distances for row in rows[1:]] == [None, None]
    shown = columns(rows)
    ours = [shown[title] for title in ("min distance", "max distance", "mean distance", "std of distances")]
    assert ours == [["1.050", "", ""], ["1.500", "", ""], ["1.250", "", ""], ["0.125", "", ""]]
    assert shown["the paper's min / max / mean / std of distances"] == [
        "1.414 / 1.414 / 1.414 / 0.000", "1.210 / 1.630 / 1.418 / 0.061", "",
    ]  # fmt: skip
    assert "Distances are those between all pairs of centroids" in " ".join(remarks(apart, [], {}))


def test_distances_are_those_of_the_centroids_that_a_run_had(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert centroid_distances(run) is None
    run.write("classes", {"train": ["a", "b", "c", "d"], "val": [], "test": ["e"]})
    run.write("embedder", {"backbone": "conv4", "dim": 9, "class_dim": 3})
    config = {"loss": "discriminative", "centroids": "simplex", "seed": 0}
    run.write("config", config)
    # A tetrahedron: every pair sqrt(8/3) apart.
    every = math.sqrt(8 / 3)
    assert centroid_distances(run) == pytest.approx({"min": every, "max": every, "mean": every, "std": 0}, abs=1e-6)
    run.write("embedder", {"backbone": "conv4", "dim": 9, "class_dim": None})
    found = []
    for seed in (0, 0, 1):
        run.write("config", config | {"centroids": "kmeans", "seed": seed})
        found.append(centroid_distances(run))
    assert found[0] == found[1] != found[2]
    points = CENTROIDS["kmeans"](4, 9, generator=torch.Generator().manual_seed(1)).double().numpy()
    apart = [math.dist(points[i], points[j]) for i in range(4) for j in range(i)]
    expected = {"min": min(apart), "max": max(apart), "mean": statistics.mean(apart), "std": statistics.pstdev(apart)}
    assert found[2] == pytest.approx(expected, abs=1e-5)
    run.write("config", config | {"loss": "softmax"})
    assert centroid_distances(run) is None


SEARCHED = """
data = "glyphs"
[search]
lr = [0.1, 0.2]
quarters = [3, 1]
[[method]]
name = "A"
search = { push = [0.0, 0.3] }
[[method]]
name = "B"
"""


@pytest.fixture
def searched(tmp_path: Path) -> Plan:
    (tmp_path / "plan.toml").write_text(SEARCHED)
    return read_plan(tmp_path / "plan.toml")


def test_the_search_takes_the_best_mean_over_the_quarters(searched: Plan, tmp_path: Path) -> None:
    method = searched.methods[0]
    assert combinations(searched, tmp_path, "default", method) == [
        {"lr": 0.1, "push": 0.0}, {"lr": 0.1, "push": 0.3}, {"lr": 0.2, "push": 0.0}, {"lr": 0.2, "push": 0.3},
    ]  # fmt: skip
    assert combinations(searched, tmp_path, "default", searched.methods[1]) == [{"lr": 0.1}, {"lr": 0.2}]
    cells = trials(searched, tmp_path, "default", method)
    assert [cell.quarter for cell in cells] == [3, 1] * 4
    assert len({cell.folder for cell in cells}) == len({cell.name for cell in cells}) == 8
    scores = [0.9, 0.1, 0.5, 0.6, 0.2, 0.9, 0.99, None]  # the last failed: its combination cannot win
    for cell, score in zip(cells, scores, strict=True):
        assert chosen(searched, tmp_path, "default", method) is None
        cell.file.parent.mkdir(parents=True, exist_ok=True)
        cell.write({"error": "it broke"} if score is None else {"recall_at_1": score, "seconds": 1.0})
    # Of two equal means, 0.55 and 0.55, the first.
    assert chosen(searched, tmp_path, "default", method) == {"lr": 0.1, "push": 0.3}
    for cell in cells:
        cell.write({"error": f"{cell.changes['lr']} broke"})
    with pytest.raises(UserError, match=r"every combination of the search failed; the first: 0.1 broke"):
        chosen(searched, tmp_path, "default", method)


def test_methods_that_were_searched_for_more_are_said_to_have_been(searched: Plan) -> None:
    said = " ".join(remarks(searched, [], {"A": 4, "B": 2}))
    assert "among 2 or 4 combinations by R@1 on 2 quarters of the training classes" in said
    assert "Methods with more combinations had the better chance." in said
    assert "better chance" not in " ".join(remarks(searched, [], {"A": 2, "B": 2}))


def test_quarters_are_neighbours_share_nothing_and_leave_nothing_out() -> None:
    classes = np.arange(100, 111)
    parts = [quarter_of(classes, quarter) for quarter in range(4)]
    assert np.concatenate(parts).tolist() == classes.tolist()
    assert [len(part) for part in parts] == [3, 3, 3, 2]
    with pytest.raises(UserError, match="7 training classes are too few to hold out quarters"):
        quarter_of(np.arange(7), 0)
