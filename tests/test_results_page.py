"""docs/results.md and the README's tables are what benchmarks/results/ says, and say what it says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page as pages
from benchmarks import store as stores
from benchmarks.beside import AUTHORS
from benchmarks.page import (
    BACKBONES,
    BY_PLAN,
    DATA_IN_README,
    IN_README,
    METHOD,
    PAGE,
    PERFORMANCE,
    README,
    SCALE,
    SECTIONS,
    TABLES,
    backbones_page,
    by_plan,
    method_page,
    page,
    performance_page,
    plan_section,
    readme,
    scale_page,
    tables_page,
)
from benchmarks.store import named_only, store, trimmed
from benchmarks.stored import IMAGES, PLANS, RESULTS, ROOT, pretrained
from tammes.benchmark.plan import read_plan
from tammes.benchmark.published import published
from tammes.benchmark.tables import UNTRAINED, Figure, Row, as_json
from tammes.cli import parsed
from tammes.errors import UserError
from tammes.losses import METHODS

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

STALE = "{} is not what benchmarks/results says: run `make results`."
BLOCKS = "before\n<!-- results -->\nold\n<!-- end -->\nafter\n"
TABLE_BLOCKS = "".join(f"<!-- results: {name} -->\n<!-- end -->\n" for name in ("methods", "more", "omniglot"))


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


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
    assert BY_PLAN.read_text() == by_plan(), STALE.format("docs/results-by-plan.md")


def test_the_page_of_speeds_is_what_is_stored() -> None:
    assert PERFORMANCE.read_text() == performance_page(), STALE.format("docs/performance.md")


def test_the_tables_of_the_readme_are_what_is_stored() -> None:
    assert README.read_text() == readme(README.read_text()), STALE.format("README.md")


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_the_tables_of_the_page_about_them_are_what_is_stored() -> None:
    assert TABLES.read_text() == tables_page(TABLES.read_text()), STALE.format("docs/tables.md")


def test_the_table_of_many_classes_is_what_is_stored() -> None:
    assert SCALE.read_text() == scale_page(SCALE.read_text()), STALE.format("docs/scale.md")


def test_what_pretrained_networks_reach_stands_on_their_guide_and_in_the_tables_of_the_same_network() -> None:
    assert BACKBONES.read_text() == backbones_page(BACKBONES.read_text()), STALE.format("choose-a-backbone.md")
    assert {each["data"] for each in pretrained()} <= set(IMAGES), "as plans call a data set"
    assert "| PCA whitening, pooling as published | nothing | 48.97 |" in plain(page())
    assert "| PCA whitening, nothing trained | 48.97 |" in by_plan()


def test_pretrained_rows_stand_in_every_table_of_the_same_data_and_network_once_they_are_measured(
    tmp_path: Path,
) -> None:
    measures = {"recall_at_1": 0.25, "recall_at_2": 0.3, "recall_at_4": 0.4, "recall_at_8": 0.5, "NMI": 0.6}
    rows = dict.fromkeys(("pretrained", "pca_whitened", "whitened"), measures)
    of = {"data": "CUB_200_2011", "pool": "published", "machine": {"commit": "0123456789"}, "rows": rows}
    before = page(tmp_path)
    (tmp_path / "pretrained.json").write_text(json.dumps([of | {"network": "vgg16"}]))
    made = page(tmp_path)
    for name in ("pretrained", "PCA whitening", "whitening"):
        assert f"| {name}, pooling as published | nothing | 25.00 |" in made.partition("## Table 8")[2]
    assert "benchmarks.pretrained CUB_200_2011 vgg16" in before
    assert "benchmarks.pretrained CUB_200_2011 vgg16" not in made
    (tmp_path / "pretrained.json").write_text(json.dumps([of | {"network": "googlenet"}]))
    assert page(tmp_path).count("| PCA whitening, pooling as published | nothing | 25.00 |") == 4  # tables 2, 3, 4, 6


def test_a_figure_that_changes_in_the_store_changes_page_and_readme(kept: Path) -> None:
    before, before_readme = by_plan(kept), readme(BLOCKS, kept)
    assert "| one-hot centroids, penultimate layer | 51.12 ± 0.50 |" in before
    assert "|  | top layers, 2 epochs | 51.12 ± 0.50 |" in plain(page(kept))
    assert "| `tammes train --train top` | 51.12 ± 0.50 | 58.12 | 1.5 | not run |  |  |" in before_readme
    file = kept / "plans" / "cub-centroids-top.json"
    stored = json.loads(file.read_text())
    stored["tables"]["default"][0]["measures"]["recall_at_1"]["mean"] = 77.7
    file.write_text(json.dumps(stored))
    assert by_plan(kept) == before.replace("51.12 ± 0.50", "77.70 ± 0.50") != before
    assert "|  | top layers, 2 epochs | 77.70 ± 0.50 |" in plain(page(kept))
    assert readme(BLOCKS, kept) == before_readme.replace("51.12 ± 0.50", "77.70 ± 0.50") != before_readme


def test_make_results_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"PAGE": "page.md", "BY_PLAN": "plans.md", "README": "readme.md", "PERFORMANCE": "performance.md"}
    for name, file in files.items():
        monkeypatch.setattr(pages, name, tmp_path / file)
    (tmp_path / "readme.md").write_text(BLOCKS)
    pages.write_page()
    assert (tmp_path / "page.md").read_text() == page()
    assert (tmp_path / "readme.md").read_text() == readme(BLOCKS)
    assert (tmp_path / "plans.md").read_text() == by_plan()
    makefile = (ROOT / "Makefile").read_text()
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


def test_a_stored_plan_says_how_each_row_was_made(kept: Path) -> None:
    lines = plan_section(json.loads((kept / "plans" / "cub-centroids-top.json").read_text()))
    assert lines[:2] == ["### Birds", ""]
    assert "How it was | made." in lines
    assert "    tammes benchmark benchmarks/plans/cub-centroids-top.toml --data DATASETS --weights 'net 1.pt'" in lines
    assert (
        "- **one-hot centroids**: seeds 0, 1; 1.50 minutes; commit 0123456; Abacus, 2 threads, torch 9.9:"
        " `tammes train 'My birds' --weights 'net 1.pt' --train head --seed 0`"
    ) in lines
    assert "- **broken**: not run: `tammes train birds --centroids nowhere`" in lines
    assert "- **later**: not run: `tammes train birds --loss later`" in lines
    of_later = next(line for line in lines if line.startswith("| later, penultimate layer |"))
    assert of_later.startswith("| later, penultimate layer | not run |")
    assert "| not there yet: --loss later |" in of_later
    row = next(line for line in lines if line.startswith("| one-hot centroids, penultimate layer |"))
    assert row.endswith("| 0123456 |")


def test_distances_of_centroids_stand_where_they_differ(kept: Path) -> None:
    stored = json.loads((kept / "plans" / "cub-centroids-top.json").read_text())
    assert not any("distances of centroids" in line for line in plan_section(stored))
    other = dict.fromkeys(("min", "max", "mean", "std"), 1.0)
    stored["tables"]["default"].append(stored["tables"]["default"][0] | {"distances": other})
    assert any("1.000 / 2.000 / 1.500 / 0.123" in line for line in plan_section(stored))


def test_a_row_that_did_not_move_says_so() -> None:
    stored = json.loads((RESULTS / "plans" / "cub-softmax-top.json").read_text())
    assert any(line.startswith("| softmax, penultimate layer; **did not move") for line in plan_section(stored))
    assert "top layers; **did not move: the closed-form initialisation** | 51.59" in plain(page())


def test_the_commands_of_the_page_are_understood() -> None:
    commands = re.findall(r"`(tammes train [^`]+)`", BY_PLAN.read_text())
    commands += re.findall(r"`(tammes benchmark [^`]+)`", PAGE.read_text())
    assert len(commands) > 80
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
    (tmp_path / "throughput.json").write_text((RESULTS / "throughput.json").read_text())
    made = plain(page(tmp_path))
    assert "| **Softmax** | the paper | 48.34 | 60.16 | 71.21 | 80.30 | 57.21 |" in made
    assert "|  | every layer, paper's recipe, 5 epochs | [not run](#not-run), 1.0 h |" in made
    assert "|  | new layers, 15 epochs | [not run](#not-run) |" in made
    assert "| paper-vgg-cub | 1.8 | `tammes benchmark benchmarks/plans/paper-vgg-cub.toml --data DATASETS` |" in made
    assert "| **K-means centroids** | the paper | 66.93 | 76.74 | 83.80 | 90.37 |" in made
    assert "shorter side of 256 pixels" in made
    assert "15 of the 16,185 images were missing" in made
    assert "Not run: `python -m benchmarks.complexity`" in made


def test_the_headings_of_the_page_are_its_contents() -> None:
    made = page()
    heads = re.findall(r"^## (.*)$", made, flags=re.MULTILINE)
    linked = re.findall(r"\[([^]]+)\]\(#[^)]+\)", made[made.index("\nContents: ") :].partition("\n\n")[0])
    assert ["In short", *linked] == heads
    assert [f"Table {number}" for number in range(1, 9)] == [
        head.partition(":")[0] for head in heads if "Table" in head
    ]


def test_every_row_of_the_paper_stands_on_the_page_with_what_was_measured_of_it(tmp_path: Path) -> None:
    for made in (page(), page(tmp_path)):
        for name, table in published().items():
            for row, figures in table.rows.items():
                if "R@1" in figures:
                    assert f"| **{AUTHORS.get(row, row)}** | the paper | {figures['R@1']:.2f} |" in made, (name, row)


def test_every_plan_has_its_place_on_the_page(tmp_path: Path) -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(file.stem for file in PLANS.glob("*.toml"))
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "of-a-guest.json").write_text(json.dumps(trimmed(results("of-a-guest"))))
    assert "## Other plans\n\n### Birds\n" in by_plan(tmp_path)


def test_the_rows_of_the_readme_are_rows_of_their_plans() -> None:
    for _, plans, preset, name in IN_README:
        assert len(plans) == len(DATA_IN_README)
        files = [PLANS / f"{plan}.toml" for plan in plans]
        assert files[0].exists()
        for plan in (read_plan(file) for file in files if file.exists()):
            assert preset in plan.presets
            assert name == UNTRAINED or name in {method.name for method in plan.methods}
            assert "penultimate" in plan.layers


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
    text = by_plan(tmp_path)
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
    assert "| pretrained, nothing trained | 51.00 ± 0.50 | 25.00 | 60.00 |  |  |" in text
    assert "later" not in text


def test_what_is_committed_is_of_plans_that_are_here() -> None:
    for file in (RESULTS / "plans").glob("*.json"):
        assert (PLANS / file.name).with_suffix(".toml").exists(), file
