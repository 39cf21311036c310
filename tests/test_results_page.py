"""docs/results.md and the README's tables are what benchmarks/results/ says, and say what it says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page as pages
from benchmarks import store as stores
from benchmarks.page import (
    DATA_IN_README,
    FORMS_OF,
    IN_README,
    METHOD,
    PAGE,
    PERFORMANCE,
    PLANS,
    README,
    RESULTS,
    SCALE,
    SECTIONS,
    TABLES,
    method_page,
    page,
    performance_page,
    plan_section,
    readme,
    scale_page,
    served,
    tables_page,
)
from benchmarks.peers import ROWS
from benchmarks.store import named_only, store, trimmed
from tammes.benchmark.plan import read_plan
from tammes.benchmark.tables import UNTRAINED, Figure, Row, as_json
from tammes.cli import parsed
from tammes.errors import UserError
from tammes.losses import METHODS

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

STALE = "{} is not what benchmarks/results says: run `make results`."
BLOCKS = "before\n<!-- results -->\nold\n<!-- end -->\nafter\n"
TABLE_BLOCKS = "".join(f"<!-- results: {name} -->\n<!-- end -->\n" for name in ("methods", "more", "omniglot"))


def recalls(first: float, half: float | None = 0.5) -> dict[str, Figure]:
    measures = {f"recall_at_{k}": Figure(first + k, half, 2) for k in (1, 2, 4, 8)}
    return measures | {"mean_average_precision_at_r": Figure(first / 2, half, 2)}


def cell(method: str, seed: int, **changes: Any) -> dict[str, Any]:
    options = f"--out runs/x/seed-{seed} --weights /far/net 1.pt --train head --seed {seed}"
    return {
        "preset": "default", "method": method, "seed": seed, "state": "done",
        "command": f"tammes train /far/My birds {options}",
        "training_seconds": 60.0 * (seed + 1), "commit": "0123456789abcdef",
        "config": {"weights": "net 1.pt", "pool": "max"},
        "machine": {"processor": "Abacus", "threads": 2, "torch": "9.9", "system": "at home"}, "seconds": 70.0,
    } | changes  # fmt: skip


def results(plan: str = "cub-centroids-top") -> dict[str, Any]:
    """What `tammes benchmark` writes, of one method that was run, one that failed and one that is not there yet."""
    rows = [
        Row("one-hot centroids", "penultimate", "last", recalls(50.123456), 2, minutes=1.5,
            paper={"R@1": 51.43}, distances={"min": 1.0, "max": 2.0, "mean": 1.5, "std": 0.123456}),
        Row("broken", "penultimate", "last", remark="2 of 2 failed: no file /far/away/from/here.txt."),
        Row("later", "penultimate", "last", remark="not there yet: --loss later"),
        Row("before training", "", "last", recalls(40.0, None), 2, difference=Figure(-10.0, None, 2)),
    ]  # fmt: skip
    waiting = {"state": "failed", "command": "tammes train birds --centroids nowhere", "error": "no"}
    later = {"state": "not there yet", "command": "tammes train birds --loss later"}
    unrun = [
        {"preset": "default", "method": name, "seed": 0, **more}
        for name, more in (("broken", waiting), ("later", later))
    ]
    return {
        "plan": plan, "title": "Birds", "data": "/far/birds", "paper": None, "remarks": ["How it was | made."],
        "tables": as_json({"default": rows}), "cells": [*(cell("one-hot centroids", seed) for seed in (0, 1)), *unrun],
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder of stored results with one plan."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps(results()))
    store(tmp_path / "run", tmp_path / "results" / "plans")
    return tmp_path / "results"


def test_the_list_of_losses_is_what_they_declare() -> None:
    text = METHOD.read_text()
    assert method_page(text) == text, "docs/method.md is not what the losses declare: run `make results`."
    for name, method in METHODS.items():
        assert f"| `{name}` | {method.summary} |" in text
        assert method.equation.strip().splitlines()[0].strip() in text


def test_the_page_is_what_is_stored() -> None:
    assert PAGE.read_text() == page(), STALE.format("docs/results.md")


def test_the_page_of_speeds_is_what_is_stored() -> None:
    assert PERFORMANCE.read_text() == performance_page(), STALE.format("docs/performance.md")


def test_the_rows_beside_the_peers_are_of_one_commit_and_none_is_below_its_limit() -> None:
    rows = json.loads((RESULTS / "peers.json").read_text())["rows"]
    assert list(rows) == list(ROWS)
    beside_peers = [row for name, row in rows.items() if not name.endswith(FORMS_OF)]
    assert len({row["machine"]["commit"] for row in beside_peers}) == 1
    for name, row in rows.items():
        # What networks are compared with are products of another shape; and medians have their noise.
        most = 1.1 if name.endswith(FORMS_OF) else 1.05
        assert row["limit"]["ratio"] < most, name
        assert "failed" not in row["sides"][0], name


def test_the_tables_of_the_readme_are_what_is_stored() -> None:
    assert README.read_text() == readme(README.read_text()), STALE.format("README.md")


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_the_tables_of_the_page_about_them_are_what_is_stored() -> None:
    assert TABLES.read_text() == tables_page(TABLES.read_text()), STALE.format("docs/tables.md")


def test_the_table_of_many_classes_is_what_is_stored() -> None:
    assert SCALE.read_text() == scale_page(SCALE.read_text()), STALE.format("docs/scale.md")


def test_what_many_classes_cost_is_shown_beside_a_softmax(tmp_path: Path) -> None:
    assert "Not measured yet." in scale_page("<!-- results: many-classes -->\n<!-- end -->\n", tmp_path)
    machine = {"processor": "Abacus", "threads": 1, "torch": "9.9", "commit": "0123456789"}
    rows = [
        {"classes": 100000, "method": "linear + cross-entropy", "memory_mb": 300, "ms": 50, "placing_seconds": 0.1},
        {"classes": 100000, "method": "discriminative, sampled", "memory_mb": 60, "ms": 1, "placing_seconds": 0.2},
        {"classes": 10**6, "method": "linear + cross-entropy", "outcome": "ended without a word"},
    ]
    stored = {"rows": rows, "machine": machine, "batch": 128, "dim": 128, "chunk": 4096, "sample": 256}
    (tmp_path / "many_classes.json").write_text(json.dumps(stored))
    found = scale_page("<!-- results: many-classes -->\n<!-- end -->\n", tmp_path)
    assert "| 100,000 | discriminative, sampled | 60 | 5.0 | 1.0 | 50.0 | 0.20 |" in found
    assert "| 1,000,000 | linear + cross-entropy | ended without a word |" in found


def test_a_figure_that_changes_in_the_store_changes_page_and_readme(kept: Path) -> None:
    before, before_readme = page(kept), readme(BLOCKS, kept)
    assert "| one-hot centroids, penultimate layer | 51.12 ± 0.50 |" in before
    assert "| `tammes train --train top` | 51.12 ± 0.50 | 58.12 | 1.5 | not run |  |  |" in before_readme
    file = kept / "plans" / "cub-centroids-top.json"
    stored = json.loads(file.read_text())
    stored["tables"]["default"][0]["measures"]["recall_at_1"]["mean"] = 77.7
    file.write_text(json.dumps(stored))
    assert page(kept) == before.replace("51.12 ± 0.50", "77.70 ± 0.50") != before
    assert readme(BLOCKS, kept) == before_readme.replace("51.12 ± 0.50", "77.70 ± 0.50") != before_readme


def test_make_results_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("PAGE", "page.md"), ("README", "readme.md"), ("PERFORMANCE", "performance.md")):
        monkeypatch.setattr(pages, name, tmp_path / file)
    (tmp_path / "readme.md").write_text(BLOCKS)
    pages.write_page()
    assert (tmp_path / "page.md").read_text() == page()
    assert (tmp_path / "readme.md").read_text() == readme(BLOCKS)
    makefile = (pages.ROOT / "Makefile").read_text()
    assert "results: $(INSTALLED)  ## " in makefile
    assert "\t$(BIN)/python -m benchmarks.page\n" in makefile


@pytest.mark.parametrize(
    "text",
    [
        BLOCKS.replace("<!-- results -->\n", ""),
        BLOCKS.replace("<!-- end -->\nafter", "after"),
        BLOCKS + "<!-- results -->\n<!-- end -->\n",
        BLOCKS.replace("<!-- results -->", "see <!-- results --> here"),
    ],
    ids=["no beginning", "no end", "twice", "within a line"],
)
def test_a_readme_without_its_markers_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="README.md must have one block <!-- results --> … <!-- end -->"):
        readme(text, tmp_path)


def test_an_end_that_is_missing_does_not_swallow_what_follows(tmp_path: Path) -> None:
    blocks = TABLE_BLOCKS.replace("<!-- results: methods -->\n<!-- end -->\n", "<!-- results: methods -->\n")
    with pytest.raises(UserError, match="results: methods"):
        tables_page(blocks, tmp_path)


def test_what_stands_around_the_tables_stays(kept: Path) -> None:
    made = readme(BLOCKS, kept)
    assert made.startswith("before\n<!-- results -->\nR@1 and R@8 in per cent")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "old" not in made
    assert readme(made, kept) == made
    assert "by `cub-centroids-top` in `benchmarks/plans/`" in made.replace("\n", " ")
    assert "| the paper's softmax, up to 40 epochs | 48.34 | 80.30 |  | 62.39 | 87.37 |  |" in made


def test_omniglot_stands_among_the_tables(kept: Path) -> None:
    assert "Omniglot was not run yet." in tables_page(TABLE_BLOCKS, kept)
    stored = json.loads((kept / "plans" / "cub-centroids-top.json").read_text())
    (kept / "plans" / "omniglot-centroids.json").write_text(json.dumps(stored))
    assert "| one-hot centroids | 51.12 ± 0.50 | 25.06 ± 0.50 |\n| before training |" in tables_page(TABLE_BLOCKS, kept)


def test_the_state_of_the_art_stands_among_the_tables_with_what_an_epoch_takes(kept: Path) -> None:
    assert "The state of the art was not compared yet." in tables_page(TABLE_BLOCKS, kept)
    stored = (kept / "plans" / "cub-centroids-top.json").read_text()
    (kept / "plans" / "cub-more-head.json").write_text(stored)
    alone = tables_page(TABLE_BLOCKS, kept)
    assert "| CUB-200-2011, R@1 | `head` | seconds an epoch, `head` | as published, every layer trained |" in alone
    row = next(line for line in alone.splitlines() if line.startswith("| one-hot centroids | 51.12 ± 0.50 |"))
    assert row.count("|") == 5
    (kept / "plans" / "cub-more-top.json").write_text(stored)
    assert "| `top` | seconds an epoch, `top` |" in tables_page(TABLE_BLOCKS, kept)


def test_a_row_in_which_nothing_moved_says_so() -> None:
    text = TABLES.read_text()
    for method in ("Proxy-Anchor", "multi-similarity", "ArcFace"):
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {method} |"))
        assert "did not move" in row
    assert "closed-form whitening of the pretrained features, without any loss" in page()


def test_a_stored_plan_says_how_each_row_was_made(kept: Path) -> None:
    lines = plan_section(json.loads((kept / "plans" / "cub-centroids-top.json").read_text()))
    assert lines[:2] == ["### Birds", ""]
    assert "How it was | made." in lines
    assert "    tammes benchmark benchmarks/plans/cub-centroids-top.toml --data DATASETS --weights 'net 1.pt'" in lines
    assert (
        "| one-hot centroids | 0, 1 | 1.50 | 0123456 | Abacus, 2 threads, torch 9.9"
        " | `tammes train 'My birds' --weights 'net 1.pt' --train head --seed 0` |"
    ) in lines
    assert "| broken | not run |  |  |  | `tammes train birds --centroids nowhere` |" in lines
    assert "| later | not run |  |  |  | `tammes train birds --loss later` |" in lines
    of_later = next(line for line in lines if line.startswith("| later, penultimate layer |"))
    assert of_later.startswith("| later, penultimate layer | not run |")
    assert of_later.endswith("| not there yet: --loss later |")
    heads = [line for line in lines if line.startswith("| method | R@1 |")]
    assert heads[0].count("distance") == 4
    assert "the paper's R@1" in heads[0]


def test_the_commands_of_the_page_are_understood() -> None:
    commands = re.findall(r"`(tammes train [^`]+)`", PAGE.read_text())
    assert len(commands) > 100
    for command in commands:
        parsed(shlex.split(command)[1:])


def test_nothing_of_a_machine_is_stored(kept: Path) -> None:
    text = (kept / "plans" / "cub-centroids-top.json").read_text()
    for word in ("/far", "runs/x", "at home", "0123456789"):
        assert word not in text
    stored = json.loads(text)
    assert stored["tables"]["default"][1]["remark"] == "2 of 2 failed: no file here.txt."
    assert stored["tables"]["default"][0]["distances"]["std"] == 0.1235
    assert "cells" not in stored


def test_the_data_that_needs_no_folder_is_asked_for_none() -> None:
    given = results("glyphs-centroids") | {
        "data": "glyphs",
        "cells": [cell("one-hot centroids", 0, config={"weights": "none"})],
    }
    assert trimmed(given)["command"] == "tammes benchmark benchmarks/plans/glyphs-centroids.toml"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("tammes train glyphs --no-class-layer --seed 3", "tammes train glyphs --no-class-layer --seed 3"),
        ("tammes train a/b --out /x/y z --lr 0.1", "tammes train b --lr 0.1"),
        ("tammes train /a b/c d --weights imagenet", "tammes train 'c d' --weights imagenet"),
    ],
)
def test_commands_name_no_folder(command: str, named: str) -> None:
    assert named_only(command) == named


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no results.json: it is not the folder of a benchmark"):
        store(tmp_path, tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="does not say which plan it is of. The same `tammes benchmark` command writes"):
        store(tmp_path, tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(results("of-nobody")))
    with pytest.raises(UserError, match="there is no benchmarks/plans/of-nobody.toml: nobody could make it again"):
        store(tmp_path, tmp_path)


def test_storing_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results()))
    written: list[Path] = []
    monkeypatch.setattr(stores, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(stores, "write_page", lambda: written.append(tmp_path / "kept" / "plans"))
    stores.main(stores.Options((tmp_path,)))
    assert [file.name for folder in written for file in folder.iterdir()] == ["cub-centroids-top.json"]
    assert capsys.readouterr().out == f"stored in {tmp_path / 'kept' / 'plans' / 'cub-centroids-top.json'}\n"


def test_a_table_of_the_paper_that_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    made = page(tmp_path)
    assert (
        "| softmax, penultimate layer | not run | 48.34 / 60.16 / 71.21 / 80.30 / 57.21"
        " | `tammes train CUB_200_2011 --loss softmax --backbone googlenet --train head --epochs 15"
        " --batch-size 128 --init pca --no-keep-init` |"
    ) in made
    assert "Not run yet. The paper's column is table 8" in made
    assert (
        "`tammes train CUB_200_2011 --preset paper --centroids one-hot --backbone vgg16 --train all --epochs 5" in made
    )
    assert "| K-means centroids, penultimate layer | not run | 66.93 / 76.74 / 83.80 / 90.37 / - |" in made
    assert "shorter side of 256 pixels" in made
    assert "15 of the 16,185 images were missing" in made
    assert "Glyphs" not in made  # not in the paper, so there is nothing to compare with
    assert "## Complexity" not in made
    assert "## Older runs" not in made
    heads = [line.removeprefix("## ") for line in made.splitlines() if line.startswith("## ")]
    assert heads == [name for name in SECTIONS if name in heads]


def test_every_plan_has_its_place_on_the_page(tmp_path: Path) -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(file.stem for file in PLANS.glob("*.toml"))
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "of-a-guest.json").write_text(json.dumps(trimmed(results("of-a-guest"))))
    assert "## Other plans\n\n### Birds\n" in page(tmp_path)


def test_the_rows_of_the_readme_are_rows_of_their_plans() -> None:
    for _, plans, preset, name in IN_README:
        assert len(plans) == len(DATA_IN_README)
        files = [PLANS / f"{plan}.toml" for plan in plans]
        assert files[0].exists()
        for plan in (read_plan(file) for file in files if file.exists()):
            assert preset in plan.presets
            assert name == UNTRAINED or name in {method.name for method in plan.methods}
            assert "penultimate" in plan.layers


def test_results_that_are_not_of_a_plan_have_their_sections(tmp_path: Path) -> None:
    of = {"processor": "Abacus", "threads": 1, "torch": "9.9", "commit": "0123456789"}
    measures = {"recall_at_1": 0.5, "recall_at_2": 0.6, "recall_at_4": 0.7, "recall_at_8": 0.8}
    epoch = {"epoch": 1, "lr": 0.1, "loss": 0.5, "above_minimum": 1.0, "images_per_second": 4.0, "seconds": 120.0}
    every = {
        "machine": of, "command": "tammes train all", "seed": 3, "commit": of["commit"], "epochs": [epoch],
        "seconds": 120.0, "untrained": measures, "penultimate": measures | {"recall_at_1": 0.55}, "last": measures,
    }  # fmt: skip
    rows = [
        {"method": "Ours", "paper": "O(NC)", "over_n": {"exponent": 1.004}, "over_c": {"exponent": None}, "note": "x"},
        {"method": "Later", "paper": None, "over_n": None, "over_c": None, "note": ""},
    ]
    grid = {"exponent_n": 0.98, "exponent_c": 1.02}
    (tmp_path / "cub_all.json").write_text(json.dumps(every))
    (tmp_path / "complexity.json").write_text(json.dumps({"machine": of, "rows": rows, "grid": grid}))
    made = page(tmp_path)
    assert "### CUB-200-2011: every layer trained, in 1 epochs" in made
    assert "| 256-d layer | 55.00 | 60.00 | 70.00 | 80.00 |" in made
    assert "2 minutes; Abacus, one thread of two on a busy machine, commit 0123456." in made
    assert "| Ours | O(NC) | 1.00 | - | x |\n| Later |  | - | - |  |\n" in made
    assert "time grows with N^0.98 C^1.02." in made
    assert "Abacus, 1 thread, torch 9.9, commit 0123456." in made


def test_what_was_watched_while_a_plan_trained_stands_on_the_page(tmp_path: Path) -> None:
    bound = {
        "triplet_loss": 4.0,
        "discriminative_loss": 8.0,
        "gap": 4.0,
        "certificate": 6.0,
        "epsilon": 0.5,
        "triplets": 2,
    }
    lines = [
        {"epoch": 1, "seconds": 60.0, "loss": 0.9, "bound": bound, "test_recall_at_1": 0.25},
        {"epoch": 2, "seconds": 60.0, "loss": 0.8, "bound": bound | {"triplet_loss": 2.0, "gap": 6.0}},
        {"epoch": 3, "seconds": 120.0, "loss": 0.7, "bound": bound, "test_recall_at_1": 0.5},
    ]
    made = results("paper-cub")
    for each in made["cells"]:
        if each["state"] == "done":
            each |= {"epochs": lines, "images": {"train": 10, "test": 12}, "schema": 2}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps(made))
    (tmp_path / "cub_all.json").write_text("{}")  # an earlier run, which is not shown any more
    kept = json.loads(store(tmp_path / "run", tmp_path / "plans").read_text())
    run = next(run for runs in kept["runs"].values() for run in runs if run["seeds"])
    assert run["by_seed"][0]["images"] == {"train": 10, "test": 12}
    assert run["by_seed"][0]["schema"] == 2
    text = page(tmp_path)
    assert "| R@1 (minutes) after epoch | 1 | 3 |" in text
    assert f"| {run['method']} | 25.00 (1) | 50.00 (4) |" in text
    assert "| epoch | training loss | L_t | L_d | gap | certificate | ε |" in text
    assert "| 3 | 0.7000 | 2.0000 | 4.0000 | 2.0000 | 3.0000 | 0.5000 |" in text


def test_methods_stand_beside_their_cost_and_the_papers_figures(tmp_path: Path) -> None:
    assert "The methods were not compared yet." in tables_page(TABLE_BLOCKS, tmp_path)
    measures = recalls(50.0) | {"NMI": Figure(60.0, 1.0, 2)}
    rows = [
        Row("ours", "penultimate", "last", measures, 2, paper={"R@1": 51.43}),
        Row("lifted structure", "penultimate", "last", measures, 2),
        Row("later", "penultimate", "last", remark="not there yet"),
        Row("before training", "", "last", measures, 2),
    ]
    cells = [cell("ours", 0), cell("lifted structure", 0, command="tammes train birds --loss lifted --seed 0")]
    made = results("cub-methods") | {"tables": as_json({"default": rows}), "cells": cells}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(json.dumps(made))
    store(tmp_path / "run", tmp_path / "plans")
    alone = {"rows": [{"loss": "discriminative", "ratio": 1.0}, {"loss": "lifted", "ratio": 6.21}]}
    (tmp_path / "training_time.json").write_text(json.dumps(alone))
    text = tables_page(TABLE_BLOCKS, tmp_path)
    assert "| ours | 51.00 ± 0.50 | 25.00 | 60.00 | 1.0 | 51.43 |" in text
    assert "| lifted structure | 51.00 ± 0.50 | 25.00 | 60.00 | 6.2 |  |" in text
    assert "| before training | 51.00 ± 0.50 | 25.00 | 60.00 |  |  |" in text
    assert "later" not in text


def test_ways_to_learn_from_vectors_have_a_section(tmp_path: Path) -> None:
    of = {"processor": "Abacus", "threads": 1, "torch": "9.9", "commit": "abcdefghij"}
    good, better = ({"recall_at_1": r, "mean_average_precision_at_r": r / 2} for r in (0.25, 0.5))
    rows = [
        {"set": "cub", "method": "A", "outcome": "finished", "seconds": 1.5, "peak_mb": 7.6,
         "euclidean": good, "cosine": better},
        {"set": "cub", "method": "B", "outcome": "not done in 60 s"},
        {"set": "growth 1000", "method": "raw", "outcome": "finished", "seconds": 0.0},
        {"set": "growth 1000", "method": "A", "outcome": "finished", "seconds": 1.234},
        {"set": "growth 20000", "method": "A", "outcome": "finished", "seconds": 30.0},
        {"set": "growth 20000", "method": "B", "outcome": "not done in 60 s"},
    ]  # fmt: skip
    stored = {"machine": of, "limit": 60, "rows": rows, "growth": {"A": 0.987}}
    (tmp_path / "estimators.json").write_text(json.dumps(stored))
    made = page(tmp_path)
    assert "### CUB-200-2011, GoogLeNet's features as published" in made
    assert "| A | 50.00 | 25.00 | cosine | 1.50 | 8 |\n| B |  |  |  | not done in 60 s |  |\n" in made
    assert "| method | 1,000 | 20,000 | exponent |" in made
    assert "| A | 1.23 | 30.00 | 0.99 |\n| B | - | not done in 60 s | - |\n" in made
    assert "Omniglot, 784 pixels" not in made


def served_gallery() -> dict[str, Any]:
    """What `python -m benchmarks.serve` writes, of two kinds of requests."""
    row = {
        "requests": 900, "seconds": 30.0, "per_second": 30.0, "p50_ms": 32.4, "p99_ms": 1234.5, "max_ms": 2000.0,
        "errors": {}, "client_cpu_ms": 0.1, "server_cpu_ms": 25.0,
    }  # fmt: skip
    inside = {"requests": 900, "request_ms": 30.0, "decode_ms": 6.0, "embed_ms": 18.0, "search_ms": 3.0}
    refused = {"per_second": 0.0, "p50_ms": None, "p99_ms": None, "max_ms": None, "requests": 0}
    place = {"seconds": 60.5, "server_mb": 500.0, "decoders_mb": 80.0}
    return {
        "of": {"items": 11788, "classes": 200, "dim": 256, "seconds": 30.0}, "start_seconds": 4.25,
        "machine": {"processor": "Abacus", "threads": 2, "torch": "9.9", "commit": "0123456789", "cores": 8,
                    "load_before": 0.52},
        "versions": {"uvicorn": "1.0", "fastapi": "2.0", "lancedb": "3.0", "numpy": "4.0"},
        "alone": {"backbone": "googlenet", "images": 64, "mean_kb": 99.6,
                  "one": {"decode_ms": 4.0, "embed_ms": 20.0, "encode_ms": 24.5},
                  "together": {"decode_ms": 4.0, "embed_ms": 12.0, "encode_ms": 16.0}},
        "rows": [
            {"what": "search by upload", "connections": 1, **row, "server": inside},
            {"what": "health", "connections": 4, **row, "per_second": 1234.5, "p50_ms": 0.8123, "server": inside},
            {"what": "health", "connections": 16, **row, **refused, "errors": {"health: status 503": 1200},
             "server": inside | {"request_ms": 1.5}},
        ],
        "uploads": {"rows": [{"connections": 1, "to_alone": 1.3224, "of_alone_per_second": 0.48,
                              "shares": {"decode": 0.2, "embed": 0.6, "search": 0.1}}]},
        "load": {"minutes": 20.04, "complete": True, "connections": 4, "requests": 240000, "per_second": 200.0,
                 "errors": {}, "kinds": {"search by id": {"requests": 1920, "p50_ms": 8.0, "p99_ms": 9.0,
                                                          "max_ms": 10.0}},
                 "memory": {"first": place, "end": place | {"server_mb": 520.4}, "peak_mb": 640.0,
                            "mb_per_hour": -1.26, "server_mb_per_hour": 2.0}},
    }  # fmt: skip


def test_a_gallery_served_has_a_section(tmp_path: Path) -> None:
    stored = served_gallery()
    (tmp_path / "serve.json").write_text(json.dumps(stored))
    made = page(tmp_path)
    assert (
        "`tammes serve` of 11,788 images in 200 classes (googlenet, vectors of 256 numbers), ready after 4.2 s." in made
    )
    assert "| search by upload | 1 | 30.0 | 32 | 1,234 | 2,000 | 30 | 0 | 25 | 0.10 |" in made
    assert "| health | 4 | 1,234.5 | 0.81 | 1,234 | 2,000 | 30 | 0 | 25 | 0.10 |" in made
    assert "| health | 16 | 0.0 | - | - | - | 1.50 | 1,200 health: status 503 | 25 | 0.10 |" in made
    assert "The client is busiest with health by 4 connections, for 12 % of one core." in made
    assert (
        "The embedding alone, 64 images of 100 kB without a server, ms an image: 24 one at a time (decode 4.00, embed"
        " 20), 16 in batches of 16 (decode 4.00, embed 12). A search by upload takes 1.32 times the embedding alone,"
        " one at a time."
    ) in made
    assert "| 1 | 30 | 20 % | 60 % | 10 % | 10 % | 48 % |" in made
    assert (
        "Mixed load by 4 connections, 20.0 minutes: 240,000 requests, 200.0 a second, errors: 0. Memory of the server"
        " and its decoders (their own, without libraries): 580 MB after 60 s,"
        " 600 MB at the end, 640 MB at most, -1.3 MB an hour over the second"
        " half (+2.0 of the server alone)."
    ) in made
    assert "| search by id | 1,920 | 8.00 | 9.00 | 10 |" in made
    assert "8 cores, load average 0.5 before; uvicorn 1.0, fastapi 2.0, lancedb 3.0." in made
    assert "Abacus, 2 threads, torch 9.9, commit 0123456." in made


def test_a_gallery_served_for_a_short_while_says_so() -> None:
    stored = served_gallery()
    stored["load"] |= {"complete": False, "minutes": 0.5}
    stored["load"]["memory"] |= {"mb_per_hour": None, "server_mb_per_hour": None}
    text = "\n".join(served(stored))
    assert "4 connections, 0.5 minutes, then interrupted: 240,000 requests" in text
    assert "640 MB at most.\n" in text
    for part in ("load", "uploads"):
        del stored[part]
    text = "\n".join(served(stored | {"rows": []}))
    assert "Mixed load" not in text
    assert "What the time of a search" not in text
    assert "busiest" not in text


def test_an_exported_model_stands_beside_pytorch(tmp_path: Path) -> None:
    int8 = {
        "recall_at_1_torch": 0.5174, "recall_at_1": 0.51, "loss": 0.0074, "operators": "multiplications",
        "held_out": 64, "distance": {"multiplications": 0.12, "every operator": 0.21},
    }  # fmt: skip
    rows = [
        {"form": "PyTorch", "images_per_second": 20.0},
        {"form": "ONNX in 8 bits", "images_per_second": 50.0, "bytes": 7_260_000, "max_difference": 1e-6, "int8": int8},
    ]
    machine = {"processor": "Abacus", "threads": 1, "torch": "9.9", "commit": "0123456789"}
    stored = {"of": {"backbone": "googlenet", "size": 224, "batch": 16}, "rows": rows, "machine": machine}
    assert "## A model exported" not in performance_page(tmp_path)
    (tmp_path / "export.json").write_text(json.dumps(stored))
    made = performance_page(tmp_path)
    assert "| PyTorch | 20.0 | 1.00 |  |\n| ONNX in 8 bits | 50.0 | 2.50 | 7.3 |\n" in made
    assert "In 8 bits: multiplications, chosen by how far the vectors of 64 training images that were held out" in made
    assert (
        "(multiplications 0.120, every operator 0.210). On the test classes R@1 is then 51.00 where PyTorch has 51.74."
        in made
    )


def test_what_is_committed_is_of_plans_that_are_here() -> None:
    for file in (RESULTS / "plans").glob("*.json"):
        assert (PLANS / file.name).with_suffix(".toml").exists(), file
