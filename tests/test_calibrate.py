"""`tammes calibrate` as a user runs it, on tiny runs of images and of vectors."""

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tammes import MetricLearner
from tammes.cli import main
from tammes.cli.calibrate import Calibrate, calibrate
from tammes.report.calibration import classes_to_measure
from tammes.report.items import items_of
from tammes.training.run_folder import RunFolder, open_run

SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "8", "--shift", "0", "--epochs", "1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes of five images: spots of a class's own place, in noise."""
    root, random = tmp_path_factory.mktemp("spots"), np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for number in range(10):
        (root / f"class {number}").mkdir()
        for image in range(5):
            spot = np.exp(-((x - 4 - 2 * number) ** 2 + (y - 24 + 2 * number) ** 2) / 30)
            pixels = 60 + 120 * spot + random.normal(0, 30, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class {number}" / f"{image}.png")
    return root


def _trained(data: Path, folder: Path, *options: str) -> Path:
    main(["train", str(data), "--out", str(folder), *options])
    return folder


@pytest.fixture(scope="module")
def validated(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 3 training, 2 validation and 5 test classes."""
    return _trained(photos, tmp_path_factory.mktemp("runs") / "validated", "--val-classes", "2", *SMALL)


@pytest.fixture(scope="module")
def plain(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without validation classes."""
    return _trained(photos, tmp_path_factory.mktemp("runs") / "plain", *SMALL)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty classes of six vectors."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 6)
    vectors = random.normal(size=(20, 8))[labels] + 0.6 * random.normal(size=(120, 8))
    out = tmp_path_factory.mktemp("vectors") / "blobs.npz"
    np.savez(out, vectors=vectors.astype(np.float32), labels=np.array([f"class {label:02}" for label in labels]))
    return out


@pytest.fixture(scope="module")
def of_vectors(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(file, tmp_path_factory.mktemp("runs") / "blobs", "--epochs", "2")


def copied(run: Path, to: Path) -> Path:
    """A run of one's own, as a calibration is written into it."""
    return Path(shutil.copytree(run, to / "run"))


def run_it(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[str, str]:
    calibrate(Calibrate(**{**options, "run": str(options["run"])}))
    said = capsys.readouterr()
    return said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["calibrate", *arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "calibration.json").read_text())
    return found


def rates(vectors: Any, labels: Any, threshold: float) -> tuple[float, float, int, int]:
    """False and true match rate at a threshold, and the pairs of different classes and of the same, by a list."""
    same: list[bool] = []
    other: list[bool] = []
    for i, j in combinations(range(len(vectors)), 2):
        apart = float(np.linalg.norm(vectors[i].astype(np.float64) - vectors[j].astype(np.float64)))
        (same if labels[i] == labels[j] else other).append(apart <= threshold + 1e-6)
    return sum(other) / len(other), sum(same) / len(same), len(other), len(same)


def test_the_validation_classes_choose_and_the_test_classes_check(
    validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(validated, tmp_path)
    out, err = run_it(capsys, run=run, fmr=0.2, json=True)
    found = json.loads(out)
    assert found == kept(run)
    val, test = (items_of(RunFolder(run), part=part) for part in ("val", "test"))
    for measured, items, other, same in ((found, val, 25, 20), (found["check"], test, 250, 50)):
        expected = rates(items.vectors, items.labels, found["threshold"])
        assert measured["threshold"] == found["threshold"]
        assert (measured["false_match_rate"], measured["true_match_rate"]) == pytest.approx(expected[:2])
        assert (measured["other_pairs"], measured["same_pairs"]) == expected[2:] == (other, same)
        assert measured["measured_on"] == items.what
    assert "validation classes" in found["measured_on"]
    assert "test classes" in found["check"]["measured_on"]
    assert found["false_match_rate"] <= 0.2 < rates(val.vectors, val.labels, found["threshold"] + 3e-4)[0] + 1 / 25
    assert (found["classes"], found["items"], found["check"]["classes"]) == (2, 10, 5)
    assert found["check"]["false_match_interval"] is not None
    assert found["check"]["fmr"] is None
    assert "no longer an independent test" not in err
    assert "replaced" not in err


def test_the_table_says_what_the_threshold_means(
    validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(validated, tmp_path)
    out, err = run_it(capsys, run=run, fmr=0.2)
    found = kept(run)
    assert "images of the validation classes" in out
    assert "10 images, 2 classes" in out
    assert f"{found['threshold']:.4f}" in out
    assert f"{100 * found['true_match_rate']:.2f}" in out
    low, high = found["check"]["true_match_interval"]
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in out
    assert "check on the" in out
    assert f"no farther apart than {found['threshold']:.4f} are taken for the same class. Of pairs of the same" in out
    assert "Change it with --fmr." in out
    assert "On the test classes, which did not choose it: Of pairs" in out
    assert (
        f"warning: only {found['false_matches']} false matches stand behind this threshold, too few to trust it."
        " Ask for a larger --fmr, or measure on more classes." in err
    )
    assert found["false_matches"] < 10
    _, err = run_it(capsys, run=run, fmr=0.2)
    assert f"note: an older calibration of {run} is replaced." in err


def test_without_validation_classes_the_test_classes_choose_and_it_says_so(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(plain, tmp_path)
    out, err = run_it(capsys, run=run, fmr=0.1)
    assert "the test classes chose this threshold, so they are no longer an independent test of it." in err
    assert "warning" not in err
    found = kept(run)
    items = items_of(open_run(run))
    assert found["check"] is None
    assert (found["measured_on"], found["classes_that_trained"]) == (items.what, 0)
    expected = rates(items.vectors, items.labels, found["threshold"])
    assert (found["false_match_rate"], found["true_match_rate"]) == pytest.approx(expected[:2])
    assert found["false_match_rate"] <= 0.1
    assert found["false_matches"] >= 10
    assert "On the test classes" not in out
    assert "classes about 10 % will be taken for the same." in out
    low, high = found["threshold_interval"]
    assert low < found["threshold"] < high
    assert f"[{low:.4f}, {high:.4f}]" in out


def test_the_test_classes_can_be_asked_for(validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied(validated, tmp_path)
    _, err = run_it(capsys, run=run, fmr=0.1, on="test", device="cpu")
    assert "no longer an independent test" in err
    assert "test classes" in kept(run)["measured_on"]
    assert (kept(run)["classes"], kept(run)["check"]) == (5, None)
    run_it(capsys, run=run, fmr=0.1, on="validation")
    assert "validation classes" in kept(run)["measured_on"]


def test_other_images_are_measured_whole_with_a_note_on_classes_that_trained(
    plain: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(plain, tmp_path)
    _, err = run_it(capsys, run=run, data=str(photos), fmr=0.05)
    assert (
        "note: 5 of the 10 classes have the names of classes that the model was trained on ('class 0' for one)" in err
    )
    assert "independent" not in err
    assert (kept(run)["classes"], kept(run)["items"], kept(run)["classes_that_trained"]) == (10, 50, 5)
    assert "all classes" in kept(run)["measured_on"]
    others = tmp_path / "others"
    for number in (8, 9):
        shutil.copytree(photos / f"class {number}", others / f"class {number}")
    (others / "class 8" / "broken.png").write_bytes(b"no picture")
    assert "broken.png" in refused(capsys, str(run), str(others), "--fmr", "0.1")
    _, err = run_it(capsys, run=run, data=str(others), fmr=0.1, skip_bad=True)
    assert "names of classes that the model was trained on" not in err
    assert (kept(run)["classes"], kept(run)["items"], kept(run)["classes_that_trained"]) == (2, 10, 0)


def test_one_validation_class_makes_no_pair_so_the_test_classes_are_measured(
    validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(validated, tmp_path)
    classes = json.loads((run / "classes.json").read_text())
    (run / "classes.json").write_text(json.dumps({**classes, "val": classes["val"][:1]}))
    assert classes_to_measure(RunFolder(run)) == "test"
    assert "note: one validation class makes no pairs of different classes, so the test" in capsys.readouterr().err
    assert classes_to_measure(RunFolder(run), "validation") == "val"


def test_a_check_that_cannot_be_made_is_said_and_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _trained(photos, tmp_path / "run", "--val-classes", "3", "--test-classes", "1", *SMALL)
    _, err = run_it(capsys, run=run, fmr=0.1)
    assert "note: no check on the test classes: no two items of different classes form a pair, in 1 class" in err
    assert (kept(run)["classes"], kept(run)["check"]) == (3, None)


def test_without_test_classes_there_is_no_check(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _trained(photos, tmp_path / "run", "--val-classes", "3", "--test-classes", "0", *SMALL)
    _, err = run_it(capsys, run=run, fmr=0.1)
    assert "check" not in err
    assert kept(run)["check"] is None
    why = refused(capsys, str(run), "--on", "test")
    assert f"{run} has no test classes." in why
    assert f"tammes calibrate {run} DATA" in why


# --- vectors


def test_a_run_of_vectors_is_calibrated_on_its_test_classes(
    of_vectors: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(of_vectors, tmp_path)
    out, err = run_it(capsys, run=run, fmr=0.02)
    found = kept(run)
    with np.load(file) as arrays:
        test = arrays["labels"] >= "class 10"
        vectors = MetricLearner.load(run).transform(arrays["vectors"][test])
        expected = rates(vectors, arrays["labels"][test], found["threshold"])
    assert (found["false_match_rate"], found["true_match_rate"]) == pytest.approx(expected[:2])
    assert (found["other_pairs"], found["same_pairs"]) == expected[2:]
    assert "Two vectors whose embeddings are no farther apart than" in out
    assert "of pairs of different classes about 2 % will be taken for the same." in out
    assert "no longer an independent test" in err
    _, err = run_it(capsys, run=run, data=str(file), fmr=0.02)
    assert "note: 10 of the 20 classes have the names of classes that the model was trained on" in err
    assert (kept(run)["classes"], kept(run)["items"]) == (20, 120)


def test_masks_of_the_data_decide_what_a_pair_is(
    of_vectors: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = copied(of_vectors, tmp_path), tmp_path / "other.npz"
    with np.load(file) as arrays:
        query = np.arange(120) % 2 == 0
        np.savez(other, **arrays, query=query, gallery=~query, sequence=np.arange(120) % 3)
    run_it(capsys, run=run, data=str(other), fmr=0.02)
    # 6 of a class, in the order of sequence 0 1 2 0 1 2: each of 3 queries meets 2 of 3 gallery items.
    assert kept(run)["same_pairs"] == 20 * 3 * 2
    assert kept(run)["other_pairs"] == 20 * 3 * 19 * 3 * 2 // 3


# --- what is refused


def test_what_cannot_be_calibrated_is_refused(
    plain: Path, of_vectors: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the false match rate must be above 0 and below 1, such as 0.001, got 1.5." in refused(
        capsys, str(plain), "--fmr", "1.5"
    )
    assert "there are only 250 pairs of different classes, so the smallest measurable rate is 0.004" in refused(
        capsys, str(plain), "--fmr", "1e-3"
    )
    assert f"{plain} has no validation classes: it was trained without --val-classes. Use --on test, or" in refused(
        capsys, str(plain), "--on", "validation"
    )
    assert f"{of_vectors} has no validation classes: those that training holds out train in the end." in refused(
        capsys, str(of_vectors), "--on", "validation"
    )
    assert "--on chooses among the run's own classes, and DATA is measured whole: give one of the two." in refused(
        capsys, str(of_vectors), str(file), "--on", "test"
    )
    assert f"--skip-bad is for images, and {of_vectors} was trained on vectors: leave it out." in refused(
        capsys, str(of_vectors), "--skip-bad"
    )
    assert "no run in" in refused(capsys, str(tmp_path))
    assert not (plain / "calibration.json").exists()
    assert not (of_vectors / "calibration.json").exists()


def test_by_default_the_two_errors_are_balanced(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(plain, tmp_path)
    out, _ = run_it(capsys, run=run)
    found, items = kept(run), items_of(open_run(run))
    false, true, other, same = rates(items.vectors, items.labels, found["threshold"])
    assert found["fmr"] is None
    assert (found["false_match_rate"], found["true_match_rate"]) == pytest.approx((false, true))
    assert abs(false - (1 - true)) <= 1 / other + 1 / same
    assert f"about {100 * (1 - true):.0f} % will be missed" in out
