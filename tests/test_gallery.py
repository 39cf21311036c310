"""From a folder of images to neighbours of any picture, as a user types it; killed at any moment and resumed."""

import csv
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main
from tammes.cli.label import _say
from tammes.errors import UserError
from tammes.gallery import indexing, open_gallery
from tammes.gallery.classification import Classification, to_csv
from tammes.gallery.indexing import difference, label_of
from tammes.gallery.lance import LanceGallery
from tammes.gallery.model import model_of
from tammes.gallery.threshold import Threshold, calibrated, stored_threshold
from tammes.gallery.update import Update, update
from tammes.metrics import evaluate
from tammes.models.embedder import load
from tammes.report.contact_sheet import contact_sheet
from tammes.search.neighbours import search
from tests.commands import answer, refused, striped_set, stripes
from tests.conftest import HANGS, signal_at

pytest.importorskip("lancedb")
SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "16", "--shift", "2", "--epochs", "4")
STRANGE = [
    "with space.png",
    "it's.png",
    'double"quote.png',
    "new\nline.png",
    "Grün 鳥.png",
    "per%cent_.png",
    "back\\slash.png",
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return striped_set(tmp_path_factory.mktemp("photos"), classes=8, images=8, size=32)


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stripes"
    main(["train", str(photos), "--out", str(folder), *SMALL])
    main(["calibrate", str(folder), "--fmr", "0.05"])
    return folder


@pytest.fixture(scope="module")
def whole(photos: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of all photos, for tests that only look."""
    gallery = tmp_path_factory.mktemp("galleries") / "whole"
    main(["index", str(run), str(photos), "--gallery", str(gallery)])
    return gallery


@pytest.fixture
def own(photos: Path, tmp_path: Path) -> Path:
    """Photos of one's own, to change."""
    return Path(shutil.copytree(photos, tmp_path / "own"))


def test_everything_is_embedded_once_and_then_only_what_is_new(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "index", str(run), str(own), "--gallery", str(tmp_path / "gallery")
    first = answer(capsys, *command)
    assert (first["images"], first["added"], first["same"], first["removed"]) == (64, 64, 0, 0)
    assert answer(capsys, *command)["same"] == 64
    (own / "class 0" / "0.png").unlink()
    stripes(3, np.random.default_rng(9)).save(own / "class 1" / "0.png")
    (own / "class 9").mkdir()
    stripes(9, np.random.default_rng(9)).save(own / "class 9" / "new.png")
    (own / "class 2" / "0.png").touch()
    again = answer(capsys, *command)
    assert (again["images"], again["added"], again["changed"], again["removed"]) == (64, 1, 1, 1)
    assert again["same"] == 62
    store = open_gallery(str(tmp_path / "gallery"))
    assert set(store.fingerprints()) == {str(file) for file in own.glob("*/*.png")}
    row = store.get([str(own / "class 9" / "new.png")])[0]
    assert (row.label, row.width, row.height) == ("class 9", 32, 32)
    assert Image.open(io.BytesIO(row.thumbnail)).size == (32, 32)
    changed = store.get([str(own / "class 1" / "0.png")])[0]
    assert changed.vector == pytest.approx(load(run).encode(own / "class 1" / "0.png")[0], abs=1e-5)


def test_recall_by_the_gallery_is_that_of_evaluate(whole: Path, run: Path) -> None:
    store = open_gallery(str(whole))
    rows = [row for batch in store.rows(10) for row in batch]
    vectors, labels = np.stack([row.vector for row in rows]), np.array([row.label for row in rows])
    found = store.search(vectors, 1, leave_out=[row.path for row in rows])
    hits = np.mean([hit[0].label == label for hit, label in zip(found, labels, strict=True)])
    assert hits == pytest.approx(evaluate(vectors, labels, clustering=False, bootstrap=0)["recall_at_1"])
    assert len(rows) == 64
    wanted = load(run).encode([row.path for row in rows])
    assert vectors == pytest.approx(wanted, abs=1e-5)


def test_search_finds_the_nearest_with_distance_class_and_whether_it_is_the_same(
    whole: Path, photos: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = tmp_path / "query.png"
    stripes(5, np.random.default_rng(77)).save(query)
    sheet = tmp_path / "sheet.png"
    said = answer(capsys, "search", str(whole), str(query), "-k", "5", "--sheet", str(sheet))
    found = said["queries"][0]["found"]
    files = sorted(photos.glob("*/*.png"), key=str)
    vectors = load(run).encode(files)
    near = search(load(run).encode(query), vectors, 5)
    assert [hit["path"] for hit in found] == [str(files[number]) for number in near.ids[0]]
    assert [hit["distance"] for hit in found] == pytest.approx(near.distances[0].tolist(), abs=1e-4)
    threshold = said["queries"][0]["threshold"]
    assert [hit["within_threshold"] for hit in found] == [hit["distance"] <= threshold for hit in found]
    with Image.open(sheet) as drawn:
        assert drawn.width > 5 * 128
    main(["search", str(whole), str(query), "-k", "2"])
    shown = capsys.readouterr().out
    assert str(found[0]["path"]) in shown.replace("\n", "")
    assert f"threshold {threshold:.4f}" in shown


def test_one_search_of_the_store_finds_the_images_and_the_classes_around(
    whole: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    usual = LanceGallery.search

    def counted(store: LanceGallery, vectors: Any, k: int, **options: Any) -> Any:
        asked.append(k)
        return usual(store, vectors, k, **options)

    monkeypatch.setattr(LanceGallery, "search", counted)
    main(["search", str(whole), str(photos / "class 0" / "0.png"), "-k", "3", "--json"])
    (query,) = json.loads(capsys.readouterr().out)["queries"]
    assert len(query["found"]) == 3
    assert query["threshold"] is not None
    assert len(asked) == 1


def test_search_by_class_by_vector_and_from_standard_input(
    whole: Path, photos: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    query = photos / "class 2" / "3.png"
    of_class = answer(capsys, "search", str(whole), str(query), "--label", "class 6")["queries"][0]["found"]
    assert {hit["label"] for hit in of_class} == {"class 6"}
    assert len(of_class) == 8
    vector = load(run).encode(query)
    np.save(tmp_path / "vector.npy", 3 * vector[0])
    by_vector = answer(capsys, "search", str(whole), "--vector", str(tmp_path / "vector.npy"))["queries"][0]["found"]
    assert by_vector[0]["path"] == str(query)
    assert by_vector[0]["distance"] < 1e-3
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(query.read_bytes())))
    piped = answer(capsys, "search", str(whole), "-")["queries"][0]["found"]
    assert [hit["path"] for hit in piped] == [hit["path"] for hit in by_vector]


def test_names_of_any_kind_are_stored_and_found(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, rng = tmp_path / "odd 'folder'", np.random.default_rng(4)
    (folder / 'class "x"; DROP').mkdir(parents=True)
    for name in STRANGE:
        stripes(1, rng).save(folder / 'class "x"; DROP' / name)
    bad = os.fsdecode(os.fsencode(folder) + b'/class "x"; DROP/\xff\xfe.png')
    stripes(2, rng).save(bad, format="PNG")
    command = "index", str(run), str(folder), "--gallery", str(tmp_path / "g")
    assert answer(capsys, *command)["added"] == len(STRANGE) + 1
    assert answer(capsys, *command)["same"] == len(STRANGE) + 1
    store = open_gallery(str(tmp_path / "g"))
    assert {Path(path).name for path in store.fingerprints()} == {*STRANGE, os.fsdecode(b"\xff\xfe.png")}
    assert store.labels() == {'class "x"; DROP': len(STRANGE) + 1}
    found = store.search(store.get([bad])[0].vector[None], 1, label='class "x"; DROP')
    assert found[0][0].path == bad
    capsys.readouterr()
    main(["search", str(tmp_path / "g"), bad, "--sheet", str(tmp_path / "sheet.png")])
    main(["duplicates", str(tmp_path / "g"), "--threshold", "2"])
    said = capsys.readouterr().out
    assert "new\\nline.png" in said, "a name stays on its line"
    Path(bad).unlink()
    (folder / 'class "x"; DROP' / STRANGE[1]).unlink()
    assert answer(capsys, *command)["removed"] == 2


def test_broken_images_are_listed_and_stop_nothing(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "class 0" / "broken.png").write_bytes((own / "class 0" / "1.png").read_bytes()[:200])
    said = answer(capsys, "index", str(run), str(own), "--gallery", str(tmp_path / "g"))
    assert said["images"] == 64
    assert len(said["broken"]) == 1
    assert "broken.png" in said["broken"][0]
    (own / "class 0" / "1.png").write_bytes(b"")
    said = answer(capsys, "index", str(run), str(own), "--gallery", str(tmp_path / "g"))
    assert said["images"] == 63, "what it had of a file that is broken now is taken out"


def test_a_folder_that_is_empty_or_gone_takes_nothing_out_unless_it_is_meant(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["index", str(run), str(own), "--gallery", str(tmp_path / "g")]
    main(command)
    own.rename(tmp_path / "away")
    assert "no such folder" in refused(capsys, *command)
    own.mkdir()
    assert "is a disk not mounted?" in refused(capsys, *command)
    assert open_gallery(str(tmp_path / "g")).count() == 64
    assert answer(capsys, *command, "--empty-folders")["removed"] == 64


def test_one_of_several_folders_that_is_empty_takes_nothing_out(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = own / "class 0", own / "class 1"
    command = ["index", str(run), str(one), str(other), "--gallery", str(tmp_path / "g")]
    main(command)
    shutil.rmtree(other)
    other.mkdir()
    stripes(0, np.random.default_rng(1)).save(one / "new.png")
    assert f"no image is left in {other}" in refused(capsys, *command)
    assert f"no image is left in {other}" in refused(capsys, *command, "--rebuild")
    assert open_gallery(str(tmp_path / "g")).count() == 16
    assert answer(capsys, *command, "--empty-folders")["images"] == 9


def test_a_rebuild_of_a_part_of_the_folders_must_be_meant(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["index", str(run), str(own / "class 0"), str(own / "class 1"), "--gallery", str(tmp_path / "g")]
    main(command)
    part = ["index", str(run), str(own / "class 0"), "--gallery", str(tmp_path / "g"), "--rebuild"]
    assert f"also has the images of {own / 'class 1'}" in refused(capsys, *part)
    assert open_gallery(str(tmp_path / "g")).count() == 16
    assert answer(capsys, *part, "--empty-folders")["images"] == 8
    above = ["index", str(run), str(own), "--gallery", str(tmp_path / "g"), "--rebuild"]
    assert answer(capsys, *above)["images"] == 64, "a folder above has them all"


def test_a_folder_is_the_same_however_it_is_named(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    gallery = str(tmp_path / "g")
    main(["index", str(run), "../own", "--gallery", gallery])
    said = answer(capsys, "index", str(run), str(own), "--gallery", gallery)
    assert (said["images"], said["same"]) == (64, 64)
    proposals = answer(capsys, "label", gallery, "../own", "--threshold", "3")["images"]
    assert all(each["distance"] > 0 for each in proposals), "an image does not vote for itself"


def test_classes_follow_the_folders_without_embedding_again(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = str(tmp_path / "g")
    main(["index", str(run), str(own / "class 0"), "--gallery", gallery])
    assert open_gallery(gallery).labels() == {"": 8}
    said = answer(capsys, "index", str(run), str(own), "--gallery", gallery)
    assert (said["added"], said["changed"], said["same"], said["relabelled"]) == (56, 0, 0, 8)
    assert open_gallery(gallery).labels() == {f"class {number}": 8 for number in range(8)}
    said = answer(capsys, "index", str(run), str(own), "--gallery", gallery, "--no-labels")
    assert (said["added"], said["changed"], said["same"], said["relabelled"]) == (0, 0, 0, 64)
    assert open_gallery(gallery).labels() == {"": 64}


def test_an_image_that_cannot_be_used_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd").mkdir()
    Image.fromarray(np.full((8, 8), 7.5, dtype=np.float32)).save(tmp_path / "odd" / "float.tiff")
    Image.new("L", (2, 400)).save(tmp_path / "odd" / "strip.png")
    Image.new("LA", (1, 1)).save(tmp_path / "odd" / "dot.png")
    said = answer(capsys, "index", str(run), str(tmp_path / "odd"), "--gallery", str(tmp_path / "g"))
    assert said["added"] == 1
    assert sorted("float.tiff" in each for each in said["broken"]) == [False, True]
    assert any("strip.png: it is 200 times as long as wide" in each for each in said["broken"])


def test_a_class_of_one_image_says_nothing_about_how_many_are_rejected(run: Path, own: Path, tmp_path: Path) -> None:
    for number in range(1, 8):
        (own / f"lone {number}").mkdir()
        shutil.copy(own / f"class {number}" / "0.png", own / f"lone {number}" / "0.png")
    main(["index", str(run), str(own), "--gallery", str(tmp_path / "g")])
    found = calibrated(open_gallery(str(tmp_path / "g")), unknown_rate=0.5)
    assert (found.items, found.classes) == (71, 15)
    assert found.rejected is not None
    assert 0 <= found.rejected < 1
    # The copies are at distance 0 from another class, and are seven of the 71; with their originals fourteen.
    same = calibrated(open_gallery(str(tmp_path / "g")), unknown_rate=0.1)
    assert same.score == pytest.approx(0, abs=1e-3)
    assert same.accepted == 14 / 71  # more than was asked for: there is no smaller score


def test_a_rate_that_no_threshold_keeps_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _say([], Threshold(0.0, 5, 0.1, rejected=0.5, accepted=14 / 71, items=71, classes=15))
    said = capsys.readouterr().err
    assert "of photos of unknown classes about 20 % will be given a class" in said
    assert "No threshold keeps to --unknown-rate 0.1: the model does not distinguish more images than that" in said
    _say([], Threshold(0.5, 5, 0.1, rejected=0.5, accepted=0.09, items=71, classes=15))
    assert "No threshold" not in capsys.readouterr().err


def test_fewer_images_with_a_class_than_votes(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = str(tmp_path / "g")
    main(["index", str(run), str(own / "class 0"), str(own / "class 1"), "--gallery", gallery, "--no-labels"])
    (own / "few" / "a").mkdir(parents=True)
    shutil.copy(own / "class 2" / "0.png", own / "few" / "a" / "0.png")
    main(["index", str(run), str(own / "few"), "--gallery", gallery])
    said = answer(capsys, "label", gallery, str(own / "class 2"), "--threshold", "3")
    assert {(each["best_guess"], each["accepted"]) for each in said["images"]} == {("a", True)}
    said = answer(capsys, "label", gallery, str(own / "few"), "--threshold", "3")
    assert (said["images"][0]["best_guess"], said["images"][0]["accepted"]) == ("", False)
    assert said["images"][0]["distance"] is None


def test_images_of_other_folders_stay(run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = str(tmp_path / "g")
    main(["index", str(run), str(own / "class 0"), "--gallery", gallery])
    said = answer(capsys, "index", str(run), str(own / "class 1"), "--gallery", gallery)
    assert (said["images"], said["removed"]) == (16, 0)
    assert open_gallery(gallery).labels() == {"": 16}


def test_folders_that_are_indexed_at_once_are_all_remembered(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery, folders = str(tmp_path / "gallery"), [own / f"class {number}" for number in range(4)]
    main(["index", str(run), str(folders[0]), "--gallery", gallery])
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda folder: update(Update(gallery, model_of(run), (folder,)), on="cpu"), folders[1:]))
    assert sorted(open_gallery(gallery).about.roots) == [str(folder) for folder in folders]
    said = refused(capsys, "index", str(run), str(folders[0]), "--gallery", gallery, "--rebuild")
    assert all(str(folder) in said for folder in folders[1:])


def test_a_folder_is_remembered_before_its_first_image(
    run: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = str(tmp_path / "gallery")
    main(["index", str(run), str(own / "class 0"), "--gallery", gallery])
    monkeypatch.setattr("tammes.gallery.indexing.index", Mock(side_effect=RuntimeError("killed")))
    with pytest.raises(RuntimeError, match="killed"):
        update(Update(gallery, model_of(run), (own / "class 1",)), on="cpu")
    assert str(own / "class 1") in open_gallery(gallery).about.roots


def test_another_model_needs_a_rebuild_during_which_the_old_one_answers(
    run: Path, photos: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, gallery = tmp_path / "other", str(tmp_path / "g")
    main(["train", str(photos), "--out", str(other), "--seed", "1", *SMALL])
    main(["index", str(run), str(own), "--gallery", gallery])
    command = ["index", str(other), str(own), "--gallery", gallery]
    assert "was made by another model" in refused(capsys, *command)
    before = open_gallery(gallery)
    main([*command, "--rebuild"])
    assert len(before.search(np.ones((1, 16), np.float32) / 4, 3)[0]) == 3
    store = open_gallery(gallery)
    assert store.count() == 64
    assert store.about.run == str(other.absolute())
    path = str(own / "class 0" / "0.png")
    assert store.get([path])[0].vector == pytest.approx(load(other).encode(path)[0], abs=1e-5)
    assert "was made by another model" in refused(capsys, "search", gallery, path, "--model", str(run))


def test_duplicates_are_grouped(run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for copy in ("copy.png", "again.png"):
        shutil.copy(own / "class 3" / "2.png", own / "class 4" / copy)
    Image.open(own / "class 5" / "1.png").save(own / "class 5" / "other.bmp")
    main(["index", str(run), str(own), "--gallery", str(tmp_path / "g")])
    said = answer(capsys, "duplicates", str(tmp_path / "g"), "--threshold", "1e-4")
    groups = [(sorted(Path(path).name for path in group["paths"]), group["identical"]) for group in said["groups"]]
    assert groups == [(["2.png", "again.png", "copy.png"], True), (["1.png", "other.bmp"], False)]
    main(["duplicates", str(tmp_path / "g"), "--threshold", "1e-4"])
    assert "2 groups with 5 of 67 images" in capsys.readouterr().out


def test_labels_are_proposed_and_unknown_classes_are_unknown(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loose, rng = tmp_path / "loose", np.random.default_rng(5)
    loose.mkdir()
    for number in range(8):
        for image in range(3):
            stripes(number, rng).save(loose / f"{number}-{image}.png")
    main(["index", str(run), str(own), "--gallery", str(tmp_path / "g")])
    command = ["label", str(tmp_path / "g"), str(loose)]
    said = answer(capsys, *command, "--threshold", "3")
    right = [each["best_guess"] == f"class {Path(each['file']).name[0]}" for each in said["images"]]
    assert np.mean(right) > 0.6
    assert not any(each["accepted"] for each in answer(capsys, *command, "--threshold", "0")["images"])
    main([*command, "--unknown-rate", "0.2", "--out", str(tmp_path / "labels.csv")])
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert list(rows[0]) == ["file", "best_guess", "distance", "probability", "accepted"]
    assert {row["best_guess"] for row in rows} <= {f"class {number}" for number in range(8)}  # of the unknown too
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)
    assert {row["accepted"] for row in rows} <= {"yes", "no"}


def test_one_threshold_for_label_search_and_calibrate(
    run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same image is within the threshold for each of them, at the rate that calibrate has set, also after index."""
    gallery, loose, rng = str(tmp_path / "g"), tmp_path / "loose", np.random.default_rng(8)
    loose.mkdir()
    for number in range(12):
        stripes(number, rng).save(loose / f"{number:02}.png")
    main(["index", str(run), str(own), "--gallery", gallery])
    for asked in (None, 0.3):
        if asked is not None:
            assert answer(capsys, "calibrate", gallery, "--unknown-rate", str(asked))["asked"] == asked
            main(["index", str(run), str(own), "--gallery", gallery])
        labelled = answer(capsys, "label", gallery, str(loose))
        assert labelled["threshold"]["asked"] == asked
        held = stored_threshold(open_gallery(gallery))
        assert held is not None
        assert labelled["threshold"] == json.loads(held.to_json())
        found = answer(capsys, "search", gallery, *map(str, sorted(loose.iterdir())), "-k", "1")["queries"]
        for image, query in zip(labelled["images"], found, strict=True):
            assert image["threshold"] == pytest.approx(query["threshold"], rel=1e-5)
            assert image["accepted"] == query["found"][0]["within_threshold"]
    capsys.readouterr()
    main(["calibrate", gallery])
    said = capsys.readouterr().out
    assert "Of photos of known classes about" in said
    assert "--unknown-rate moves this" in said
    assert "--fmr is for a run" in refused(capsys, "calibrate", gallery, "--fmr", "0.1")
    assert "--unknown-rate is for a gallery" in refused(capsys, "calibrate", str(run), "--unknown-rate", "0.1")


def test_a_gallery_without_a_threshold_calibrates_itself(
    whole: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of older versions are."""
    older = tmp_path / "older"
    shutil.copytree(whole, older)
    store = open_gallery(str(older))
    store.describe(threshold="")
    image = str(photos / "class 1" / "1.png")
    before, after = (answer(capsys, "search", str(each), image)["queries"][0] for each in (whole, older))
    assert before["threshold"] == after["threshold"] is not None
    store.describe(threshold='{"score": "x"}')
    assert "score must be a number, got 'x'" in refused(capsys, "search", str(older), image)


def test_new_classes_need_no_training(run: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(6)
    (own / "novel").mkdir()
    (tmp_path / "loose").mkdir()
    for image in range(8):
        Image.fromarray((rng.normal(128, 5, (32, 32))).astype(np.uint8)).save(own / "novel" / f"{image}.png")
    Image.fromarray((rng.normal(128, 5, (32, 32))).astype(np.uint8)).save(tmp_path / "loose" / "one.png")
    main(["index", str(run), str(own), "--gallery", str(tmp_path / "g")])
    said = answer(capsys, "label", str(tmp_path / "g"), str(tmp_path / "loose"), "--threshold", "1")
    assert said["images"][0]["best_guess"] == "novel"


def test_a_sheet_of_an_untrusted_gallery_is_drawn_without_what_is_no_thumbnail(tmp_path: Path) -> None:
    def webp(side: int) -> bytes:
        content = io.BytesIO()
        Image.new("RGB", (side, side), "blue").save(content, "WEBP")
        return content.getvalue()

    sheet, png = tmp_path / "sheet.png", io.BytesIO()
    Image.new("RGB", (8, 8), "blue").save(png, "PNG")
    strange = [webp(160), b"", b"<script>alert(1)</script>", webp(161), png.getvalue(), webp(160)[:60]]
    hits = [(each, "0.5 " + "\ud800 L" * 50_000, None) for each in strange]
    contact_sheet(sheet, [Image.new("RGB", (8, 8), "red")], [hits])
    drawn = np.asarray(Image.open(sheet))
    middles = [drawn[76, place].tolist() for place in range(24 + 144 + 68, drawn.shape[1], 144)]
    assert middles[0] == pytest.approx([0, 0, 255], abs=3)
    assert middles[1:] == [[255] * 3] * 5


def test_halves_of_characters_go_into_a_table(tmp_path: Path) -> None:
    proposal = Classification("b\udce9\ud800", 0.25, 0.5, True, 0.3, "", "")
    line = to_csv([tmp_path / "\udcff.png"], [proposal]).splitlines()[1]
    assert line == os.fsencode(tmp_path) + b"/\xff.png,b\xe9\\ud800,0.2500,0.500,yes"


def test_what_is_refused(
    whole: Path, run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(photos / "class 0" / "0.png")
    nowhere = str(tmp_path / "nowhere")
    assert f"tammes index MODEL FOLDER --gallery {nowhere}" in refused(capsys, "search", nowhere, image)
    assert "which image?" in refused(capsys, "search", str(whole))
    assert "-k must be at least 1" in refused(capsys, "search", str(whole), image, "-k", "0")
    assert "class 77" in refused(capsys, "search", str(whole), image, "--label", "class 77")
    assert "no such file" in refused(capsys, "search", str(whole), str(tmp_path / "x.png"))
    assert "an image and --vector" in refused(capsys, "search", str(whole), image, "--vector", "x.npy")
    np.save(tmp_path / "short.npy", np.ones(3, np.float32))
    assert "vectors of 16" in refused(capsys, "search", str(whole), "--vector", str(tmp_path / "short.npy"))
    assert "which images?" in refused(capsys, "index", str(run), "--gallery", nowhere)
    assert "must be a finite number, 0 or more, got" in refused(capsys, "duplicates", str(whole), "--threshold", "-1")
    (tmp_path / "empty").mkdir()
    assert "no images in" in refused(capsys, "label", str(whole), str(tmp_path / "empty"))
    assert "between 0 and 1" in refused(capsys, "label", str(whole), str(photos), "--unknown-rate", "2")
    both = "--unknown-rate", "0.2", "--threshold", "1"
    assert "leave one out" in refused(capsys, "label", str(whole), str(photos), *both)
    assert "must be a finite number, 0 or more, got" in refused(
        capsys, "label", str(whole), str(photos), "--threshold", "nan"
    )
    assert "is a folder: give images" in refused(capsys, "search", str(whole), str(photos))
    (tmp_path / "empty.npy").touch()
    assert "is not a complete .npy file" in refused(
        capsys, "search", str(whole), "--vector", str(tmp_path / "empty.npy")
    )


@pytest.mark.parametrize(
    ("per_image", "sizes"), [(0.0, [16, 256, 228]), (0.1, [16, 48] + 9 * [48] + [4]), (9, 31 * [16] + [4])]
)
def test_a_batch_takes_some_seconds(per_image: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(indexing, "perf_counter", lambda: now)
    found = []
    for batch in indexing._batches(iter([Mock(spec=indexing._Image)] * 500), at_once=16):
        found.append(len(batch))
        now += per_image * len(batch)
    assert found == sizes


def test_what_changed_is_told_by_size_and_time_first(tmp_path: Path) -> None:
    stripes(0, np.random.default_rng(0)).save(tmp_path / "a.png")
    what = difference({}, [tmp_path])
    assert [each.file.name for each in what.fresh] == ["a.png"]
    status = (tmp_path / "a.png").stat()
    known = {str(tmp_path / "a.png"): f"{status.st_size}-{status.st_mtime_ns}:digest:", "/elsewhere/b.png": "1-2:x:"}
    assert difference(known, [tmp_path]).same == 1
    assert difference(known | {str(tmp_path / "gone.png"): "1-1:x"}, [tmp_path]).gone == [str(tmp_path / "gone.png")]
    assert label_of(tmp_path / "a.png", [tmp_path]) == ""


def indexing_killed_at(name: str, call: int, images: int) -> None:
    """Have this process store so many images at once, and be killed as a function of indexing is called."""
    indexing._BATCH = images
    signal_at(f"tammes.gallery.indexing.{name}", call, signal.SIGKILL)


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("moments", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_whole_rows_and_a_second_run_completes(
    moments: int,
    run: Path,
    started: Callable[..., BaseProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In turn as a batch is stored, of which there are two or more, and as a random image is read."""
    folder, rng, each = tmp_path / "many", np.random.default_rng(8), 5 if moments == 2 else 120
    for number in range(10):
        (folder / f"class {number}").mkdir(parents=True)
        for image in range(each):
            stripes(number, rng).save(folder / f"class {number}" / f"{image}.png")
    for moment in range(moments):
        gallery = tmp_path / f"g{moment % 10}"  # a gallery is killed more than once
        name, call = ("_read", int(rng.integers(1, 5 * each))) if moment % 2 else ("_store", 2)
        at = partial(indexing_killed_at, name, call, 16 if moments == 2 else 256)
        process = started(["index", str(run), str(folder), "--gallery", str(gallery)], tmp_path / "said.txt", at)
        process.join(HANGS)
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
        if not gallery.exists():
            continue
        try:
            store = open_gallery(str(gallery))
        except UserError:  # killed before there was one: the folder holds no gallery yet
            continue
        rows = [row for batch in store.rows(100, thumbnails=True) for row in batch]
        assert len(rows) == store.count() == len({row.path for row in rows})
        for row in rows:
            assert np.linalg.norm(row.vector) == pytest.approx(1, abs=1e-4)
            assert row.label == Path(row.path).parent.name
            Image.open(io.BytesIO(row.thumbnail)).load()
    for number in range(min(moments, 10)):
        said = answer(capsys, "index", str(run), str(folder), "--gallery", str(tmp_path / f"g{number}"))
        assert said["images"] == 10 * each
        assert said["added"] + said["same"] == 10 * each
