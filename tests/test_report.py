"""`tammes report` as it is typed: what it writes, what it refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main
from tammes.report.compare import names_of
from tammes.report.curves import curves
from tammes.report.page import Section, data_block, page
from tammes.report.thumbnails import sheets, thumbnail
from tammes.training.run_folder import RunFolder

SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "8", "--shift", "2", "--epochs", "2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(6):
        (root / f"class {number}").mkdir()
        for image in range(4):
            pixels = np.full((28, 28), 40 * number) + rng.normal(0, 30, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class {number}" / f"{image}.png")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    main(["train", str(photos), "--out", str(folder), *SMALL])
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["report", *arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_report_says_what_the_results_say(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(run), "--map", "pca"])
    assert f"report: {run / 'report.html'}" in capsys.readouterr().out
    text = (run / "report.html").read_text()
    results = json.loads((run / "results.json").read_text())
    for row in ("untrained", "trained"):
        for name in ("recall_at_1", "mean_average_precision_at_r", "NMI"):
            assert f"{100 * results[row][name]:.2f}" in text
    assert results["command"].replace("'", "&#39;") in text
    assert "known minimum" in text
    assert "--val-classes 0.1" in text, "what was not recorded is said, and how to record it"


def test_nothing_in_the_file_is_fetched(run: Path, tmp_path: Path) -> None:
    main(["report", str(run), "--map", "none", "--out", str(tmp_path / "x.html")])
    text = (tmp_path / "x.html").read_text()
    assert not re.search(r"(src|href|url\()\s*=?\s*[\"']?(https?:)?//", text)
    assert "default-src 'none'" in text
    assert "map-data" not in text.partition("<script>")[0]


def test_a_calibrated_run_shows_its_threshold(run: Path, tmp_path: Path) -> None:
    main(["report", str(run), "--map", "none", "--fmr", "0.5", "--out", str(tmp_path / "before.html")])
    assert "tammes calibrate" in (tmp_path / "before.html").read_text()
    main(["calibrate", str(run), "--fmr", "0.2"])
    kept = json.loads((run / "calibration.json").read_text())
    main(["report", str(run), "--map", "none", "--out", str(tmp_path / "after.html")])
    assert f"nearer than {kept['threshold']:.4f}" in (tmp_path / "after.html").read_text()
    (run / "calibration.json").unlink()


def test_a_rate_that_these_items_cannot_tell_is_said_in_the_report(run: Path, tmp_path: Path) -> None:
    main(["report", str(run), "--map", "none", "--fmr", "1e-6", "--out", str(tmp_path / "x.html")])
    assert "the smallest measurable rate" in (tmp_path / "x.html").read_text()


def test_the_answer_for_programs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(run), "--map", "none", "--json", "--out", str(tmp_path / "x.html")])
    said = json.loads(capsys.readouterr().out)
    assert said == {"report": str(tmp_path / "x.html"), "bytes": (tmp_path / "x.html").stat().st_size}


def test_a_run_on_all_classes_has_a_report_of_its_training(photos: Path, tmp_path: Path) -> None:
    main(["train", str(photos), "--out", str(tmp_path / "run"), "--test-classes", "0", *SMALL])
    main(["report", str(tmp_path / "run")])
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Trained on all classes, so there are none to test on." in text
    assert "Loss" in text


def test_a_page_of_ridge_says_so_and_promises_no_bound(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    vectors = (rng.normal(size=(8, 5))[labels] + 0.3 * rng.normal(size=(48, 5))).astype(np.float32)
    np.savez(tmp_path / "x.npz", vectors=vectors, labels=labels)
    main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--method", "ridge"])
    main(["report", str(tmp_path / "run"), "--map", "pca"])
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<title>x.npz: ridge regression with placed centroids</title>" in text
    assert "Solved in closed form" in text
    assert "discriminative loss" not in text
    assert "--log-bound" not in text


def test_names_that_are_no_unicode_do_not_end_a_report(photos: Path, tmp_path: Path) -> None:
    import os
    import shutil

    own = Path(shutil.copytree(photos, tmp_path / "own"))
    for number in range(6):
        (own / f"class {number}" / "0.png").rename(os.fsdecode(os.fsencode(own) + b"/class %d/\xff.png" % number))
    main(["train", str(own), "--out", str(tmp_path / "run"), *SMALL])
    main(["report", str(tmp_path / "run"), "--map", "pca"])
    assert "\\udcff.png" in (tmp_path / "run" / "report.html").read_text()


def test_pairs_that_cannot_be_counted_are_said_and_stop_nothing(run: Path) -> None:
    from dataclasses import replace

    from tammes.report import look, run_page
    from tammes.report.items import items_of
    from tammes.training.run_folder import open_run

    items = items_of(open_run(run))
    text = run_page(open_run(run), look(items, way=None))
    assert "Distances between two items" in text
    broken = replace(
        items, masks={"query": np.arange(len(items.labels)) == 0, "gallery": items.labels == items.labels[0]}
    )
    text = run_page(open_run(run), look(broken, way=None))
    assert "Not measured: no two items of different classes" in text


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "which run? For example: tammes report runs/photos" in refused(capsys)
    assert f"no run in {tmp_path}" in refused(capsys, str(tmp_path))
    assert "--complexity is for the report of a benchmark" in refused(capsys, str(run), "--complexity", "x.json")
    assert "false match rate" in refused(capsys, str(run), "--fmr", "2")
    assert "is a folder. Give it a name" in refused(capsys, str(run), "--map", "none", "--out", str(tmp_path))
    missing = tmp_path / "no" / "x.html"
    assert f"there is no folder {missing.parent}" in refused(capsys, str(run), "--map", "none", "--out", str(missing))
    (tmp_path / "plan.json").write_text("{}")
    assert "has no results yet" in refused(capsys, str(tmp_path))
    assert "is a benchmark, which has a report of its own" in refused(capsys, str(tmp_path), str(run))
    assert "a run is given twice" in refused(capsys, str(run), str(run))
    empty = {"plan": "x", "title": "x", "data": "x", "remarks": [], "tables": {}, "cells": []}
    (tmp_path / "results.json").write_text(json.dumps(empty))
    for content, told in (("[]", "it must be an object, got []"), ('{"rows": []}', "machine is missing")):
        (tmp_path / "c.json").write_text(content)
        said = refused(capsys, str(tmp_path), "--complexity", str(tmp_path / "c.json"))
        assert f"c.json: {told}. `python -m benchmarks.complexity` writes such a file." in said
    assert "--complexity nowhere: there is no such file." in refused(capsys, str(tmp_path), "--complexity", "nowhere")


def test_a_run_that_has_not_finished_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config", "environment", "classes"):
        (tmp_path / f"{name}.json").write_text((run / f"{name}.json").read_text())
    assert f"has not finished. Resume it: tammes train --resume {tmp_path}" in refused(capsys, str(tmp_path))


def test_runs_are_told_apart_by_where_their_folders_differ() -> None:
    runs = [RunFolder(Path(f"/a/b/{name}")) for name in ("one/seed-0", "one/seed-1", "two/seed-0")]
    assert names_of(runs) == ["one/seed-0", "one/seed-1", "two/seed-0"]
    assert names_of([RunFolder(Path("/a/one")), RunFolder(Path("/a/two"))]) == ["one", "two"]


def test_data_cannot_end_the_block_it_stands_in() -> None:
    block = str(data_block("x", {"name": "</script><script>alert(1)</script>", "quote": "'&\""}))
    assert block.count("<script") == block.count("</script>") == 1
    inside = re.search(r">(.*)</script>", block)
    assert inside is not None
    assert json.loads(inside[1])["name"] == "</script><script>alert(1)</script>"


def test_titles_are_escaped() -> None:
    from markupsafe import Markup

    text = page("<b>", "<i>", [Section("x", "<u>", Markup("<p>kept</p>"))])
    assert "<b>" not in text
    assert "<u>" not in text
    assert "<p>kept</p>" in text


def test_thumbnails_are_the_square_in_the_middle_in_their_order(tmp_path: Path) -> None:
    from base64 import b64decode
    from io import BytesIO

    from tammes.data import open_dataset
    from tammes.data.image_cache import decode

    for number in range(3):
        (tmp_path / "images" / f"c{number}").mkdir(parents=True)
        for image in range(100):
            picture = Image.new("RGB", (40, 20), (255, 0, 0))
            picture.paste((0, (100 * number + image) % 256, 128), (10, 0, 30, 20))  # the middle is another colour
            picture.save(tmp_path / "images" / f"c{number}" / f"{image:03}.png")
    images = decode(open_dataset(str(tmp_path / "images")), mode="RGB", cache=tmp_path / "cache")
    assert {tuple(colour) for colour in np.asarray(thumbnail(images, 7, 20)).reshape(-1, 3)} == {(0, 7, 128)}
    order = np.arange(300)[::-1].copy()
    found = sheets(images, order, 12)
    assert len(found.files) == 2
    for place, number in enumerate(order.tolist()):
        sheet, at = divmod(place, found.columns**2)
        opened = Image.open(BytesIO(b64decode(found.files[sheet].partition(",")[2]))).convert("RGB")
        seen = opened.getpixel((at % found.columns * 12 + 6, at // found.columns * 12 + 6))
        assert isinstance(seen, tuple)
        assert abs(seen[1] - number % 256) < 24
        assert seen[0] < 60


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, {"known minimum: -0.5", "known minimum, all classes: -0.7"}),
        ({"above_minimum": 0.5}, {"known minimum: -0.5"}),  # the same with all classes
        ({"above_minimum": None}, set()),
    ],
)
def test_training_again_with_more_classes_has_a_minimum_of_its_own(
    changes: dict[str, float | None], levels: set[str]
) -> None:
    last = {"epoch": 3, "loss": 0.0, "above_minimum": 0.7, "on_all_classes": True} | changes
    lines = [{"epoch": 1, "loss": 0.5, "above_minimum": 1.0}, {"epoch": 2, "loss": 0.1, "above_minimum": 0.6}]
    made = curves({"": [*lines, {name: value for name, value in last.items() if value is not None}]})[0]
    assert set(re.findall(r"<title>(known minimum[^<]*: [^<]*)</title>", made.replace("\u2212", "-"))) == levels
