"""What is refused is refused before the work; and work that Ctrl-C ends says what is kept and what to type next."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from tammes import data
from tammes.cli import main
from tammes.data import image_cache
from tests.commands import ended, small_set
from tests.conftest import HANGS

QUICK = ("--backbone", "conv4", "--dim", "8", "--epochs", "1")


@pytest.fixture(scope="module")
def weights(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small pretrained network in a file."""
    run = tmp_path_factory.mktemp("pretrained") / "run"
    main(["train", str(waves), "--out", str(run), *QUICK])
    return run / "embedder.safetensors"


@pytest.fixture(scope="module")
def made(waves: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, a run of them as without a GPU, one on all classes, a gallery, and vectors."""
    root = tmp_path_factory.mktemp("made")
    shutil.copytree(waves, root / "photos")
    photos, run = str(root / "photos"), str(root / "run")
    main(["train", photos, "--out", run, "--weights", str(weights), *QUICK])
    main(["train", photos, "--out", str(root / "all"), "--test-classes", "0", *QUICK])
    main(["index", run, photos, "--gallery", str(root / "gallery")])
    main(["embed", run, photos, "--out", str(root / "vectors.npz")])
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that, to type commands in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "run" / "config.json"
    file.write_text(file.read_text().replace(str(made), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forbidden(*_: Any, **__: Any) -> Any:
    pytest.fail("work was done before the refusal")


@pytest.fixture
def no_decoding(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is decoded; and none was before, so that it would have to be."""
    monkeypatch.setenv("TAMMES_CACHE", str(here / "cache"))
    monkeypatch.setattr("tammes.data.image_cache._in_turn", forbidden)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is made or loaded."""
    monkeypatch.setattr("tammes.models.embedder.Embedder.__init__", forbidden)
    monkeypatch.setattr("tammes.vectors.MetricLearner.load", forbidden)


# --- outputs


@pytest.mark.usefixtures("here", "no_network")
def test_a_run_that_exists_is_refused_before_the_data_is_opened(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.training.data.open_dataset", forbidden)
    command = ("train", "photos", "--weights", str(weights), *QUICK)
    code, said = ended(capsys, *command, "--out", "run")
    assert (code, "run is already a run" in said, "--overwrite" in said) == (2, True, True)
    assert ended(capsys, *command, "--out", "photos")[0] == 2
    assert ended(capsys, *command, "--out", "vectors.npz/run")[0] == 2
    assert "vectors.npz" in ended(capsys, *command, "--out", "vectors.npz/run")[1]


@pytest.mark.usefixtures("here")
def test_a_run_of_vectors_that_exists_is_refused_before_they_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tammes.vectors.train.vectors", forbidden)
    code, said = ended(capsys, "train", "vectors.npz", "--out", "run")
    assert (code, "run is already a run" in said) == (2, True)


# --- images that are listed and missing


def listing(folder: Path, gone: int) -> Path:
    """A table of the images in photos/, and of some that are not there."""
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted((folder / "photos").rglob("*.png"))]
    lines += [f"photos/class 0/gone {number}.png,class 0" for number in range(gone)]
    (folder / "list.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    return folder / "list.csv"


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize(
    "command",
    [
        "train list.csv --out new --weights {weights}",
        "evaluate run list.csv",
        "calibrate run list.csv",
        "embed run list.csv --out new.npz",
    ],
)
def test_missing_images_are_named_before_one_is_decoded(
    here: Path, weights: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    listing(here, gone=12)
    words = command.format(weights=weights).split()
    code, said = ended(capsys, *words, *(QUICK if words[0] == "train" else ()))
    assert code == 2
    assert "12 of 60 images are missing" in said
    assert "photos/class 0/gone 0.png" in said
    assert "--skip-bad" in said
    assert not (here / "new").exists()


def test_missing_images_are_left_out_and_counted(here: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing(here, gone=2)
    code, said = ended(capsys, "train", "list.csv", "--out", "new", "--weights", str(weights), "--skip-bad", *QUICK)
    assert code == 0
    assert "2 images cannot be read and are left out" in said


# --- all other refusals that need no work


LATE = [
    ("search gallery nothere.jpg", "nothere.jpg"),
    ("search gallery photos", "photos is a folder"),
    ("search gallery --vector nothere.npy", "nothere.npy"),
    ("search gallery query.png --label nothere", "nothere"),
    ("label gallery nothere", "nothere"),
    ("label gallery photos --unknown-rate 2", "--unknown-rate"),
    ("index run nothere --gallery gallery", "nothere"),
    ("index all photos --gallery gallery", "--rebuild"),
    ("embed run nothere --out new.npz", "nothere"),
    ("embed run photos --out vectors.npz", "--overwrite"),
    ("evaluate run nothere", "nothere"),
    ("evaluate all", "all was trained on all classes"),
    ("calibrate run nothere", "nothere"),
    ("calibrate all", "all has no test classes"),
    ("calibrate run --fmr 2", "2"),
    ("report run --out vectors.npz", "--out"),
    ("export all --int8", "all was trained on all classes"),
    ("export run --out vectors.npz", "--overwrite"),
    ("doctor nothere", "nothere"),
    ("train nothere --out new", "nothere"),
]


@pytest.mark.usefixtures("here", "no_decoding", "no_network")
@pytest.mark.parametrize(("command", "text"), LATE, ids=[command for command, _ in LATE])
def test_what_needs_no_network_is_refused_without_one(
    capsys: pytest.CaptureFixture[str], command: str, text: str
) -> None:
    shutil.copy("photos/class 0/0.png", "query.png")
    code, said = ended(capsys, *command.split())
    assert code == 2
    assert text in said


@pytest.mark.usefixtures("no_decoding", "no_network")
@pytest.mark.parametrize("what", ["evaluate", "calibrate", "report"])
def test_data_that_is_gone_is_missed_before_a_network_is_loaded(
    here: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    (here / "photos").rename(here / "elsewhere")
    code, said = ended(capsys, what, "run")
    assert (code, str(here / "photos") in said) == (2, True)


@pytest.mark.usefixtures("here", "no_decoding")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--weights nothere.pt", "nothere.pt"),
        ("--weights {weights} --backbone resnet18", "--backbone"),
        ("--weights {weights} --train top --cut nothere", "nothere"),
        ("--init-from nothere", "nothere"),
        ("--init-from run --dim 5", "--dim"),
        ("--loss softmax --centroid-dim 5", "--centroid-dim"),
        ("--loss triplet --sampler pk --images-per-class 50", "--batch-size"),
        ("--centroids simplex --centroid-dim 2", "--centroids"),
        ("--shift 29", "--shift"),
        ("--backbone timm:test_vit --weights none --train all --epochs 2 --shift 0 --grow-from 300", "--grow-from 300"),
        ("--backbone timm:test_vit3 --weights none --train all --epochs 2 --shift 0 --grow-from 64", "timm:test_vit3"),
    ],
)
def test_what_is_wrong_with_network_and_loss_is_refused_before_images_are_decoded(
    weights: Path, capsys: pytest.CaptureFixture[str], options: str, text: str
) -> None:
    code, said = ended(capsys, "train", "photos", "--out", "new", *QUICK, *options.format(weights=weights).split())
    assert code == 2, said
    assert text in said


# --- classes and images that were added or removed since training


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    capsys.readouterr()
    main([*words, "--json"])
    said = capsys.readouterr()
    return json.loads(said.out), said.err


@pytest.fixture(scope="module")
def before(made: Path) -> dict[str, Any]:
    return dict(json.loads((made / "run" / "results.json").read_text())["trained"])


def test_classes_added_since_training_are_ignored(
    here: Path, before: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decoded again either: the images of the run are in the cache."""
    monkeypatch.setattr("tammes.data.image_cache._in_turn", forbidden)
    small_set(here / "photos", ["a new one", "class 55"])
    note = "note: 2 classes were added since training and are ignored: a new one, class 55"
    for what in ("evaluate", "calibrate", "report"):
        extra = {"calibrate": ("--fmr", "0.5"), "report": ("--map", "none")}.get(what, ())
        found, said = measured(capsys, what, "run", *extra)
        assert note in said, what
        assert "are not those of training" not in said
        if what == "evaluate":
            assert found["trained"]["recall_at_1"] == pytest.approx(before["recall_at_1"])
            assert found["trained"]["queries"] == before["queries"]


def test_a_run_is_resumed_beside_a_class_that_was_added(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_set(here / "photos", ["a new one"])
    (here / "run" / "results.json").unlink()
    code, said = ended(capsys, "train", "--resume", "run")
    assert code == 0
    assert "note: 1 class was added since training and is ignored: a new one" in said


@pytest.mark.usefixtures("no_decoding")
def test_a_class_that_is_gone_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "photos" / "class 2").rename(here / "class 2")
    code, said = ended(capsys, "evaluate", "run")
    assert (code, "class 2" in said) == (2, True)


def test_images_added_to_a_class_are_said_by_evaluate_and_refused_by_resume(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (6, 7):
        shutil.copy(here / "photos/class 7/0.png", here / f"photos/class 7/{number}.png")
    (here / "photos/class 1/0.png").unlink()
    found, said = measured(capsys, "evaluate", "run")
    assert "'class 1' has 5 images, and had 6, 'class 7' has 8 images, and had 6" in said
    assert found["trained"]["queries"] == 26
    (here / "run" / "results.json").unlink()
    code, said = ended(capsys, "train", "--resume", "run")
    assert (code, "'class 7' has 8 images, and had 6" in said) == (2, True)


def test_an_image_in_the_place_of_another_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(here / "photos/class 7/0.png", here / "photos/class 6/0.png")
    assert "the same number of images, but some have changed" in measured(capsys, "evaluate", "run")[1]


def test_a_class_without_a_readable_image_is_not_taken_for_one_that_was_added(
    here: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(here / "photos" / "class 3")
    (here / "photos" / "class 3").mkdir()
    (here / "photos" / "class 3" / "0.png").write_bytes(b"no image")
    main(["train", "photos", "--out", "new", "--weights", str(weights), "--skip-bad", *QUICK])
    assert json.loads(Path("new/classes.json").read_text())["unused"] == ["class 3"]
    code, said = ended(capsys, "evaluate", "new")
    assert (code, "added since training" in said) == (0, False)


def test_the_classes_of_a_run_are_the_same_data_set_as_before(tmp_path: Path) -> None:
    """With the same fingerprint, so that the cache is found again."""
    root = small_set(tmp_path / "photos", ["a", "c", "d"])
    whole = data.open_dataset(str(root))
    small_set(root, ["b", "e"])
    fewer = data.of_classes(data.open_dataset(str(root)), {"a", "c", "d"})
    assert (fewer.fingerprint, fewer.keys, fewer.class_names) == (whole.fingerprint, whole.keys, whole.class_names)
    np.testing.assert_array_equal(fewer.labels, whole.labels)
    assert all(fewer.read(number).tobytes() == whole.read(number).tobytes() for number in range(len(whole)))
    assert fewer.changed is not None
    assert fewer.changed() is None


@pytest.mark.usefixtures("here")
def test_vectors_of_a_class_that_was_added_are_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    with np.load("vectors.npz") as found:
        vectors, labels = found["vectors"], found["labels"]
    np.savez("own.npz", vectors=vectors, labels=labels)
    main(["train", "own.npz", "--out", "learned", "--method", "ridge"])
    then, _ = measured(capsys, "evaluate", "learned")
    first = labels == labels[0]
    np.savez("own.npz", vectors=np.concatenate([vectors[first], vectors]), labels=[*["b new"] * first.sum(), *labels])
    now, said = measured(capsys, "evaluate", "learned")
    assert "note: 1 class was added since training and is ignored: b new" in said
    assert now == then


# --- Ctrl-C


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


TRAINING = [
    ("tammes.data.image_cache._in_turn", "decoding images", False),
    ("tammes.models.feature_cache.Frozen.below", "computing the activations of the training images", False),
    ("tammes.training.build.training_batches", "initialising the new layers", False),
    ("tammes.training.train.evaluate_images", "evaluating the network before training", True),
    ("tammes.training.train.fit", "training", True),
    ("tammes.training.train.measure", "evaluating on the test classes", True),
]


@pytest.mark.parametrize(("inside", "doing", "has_run"), TRAINING, ids=[doing for _, doing, _ in TRAINING])
def test_ctrl_c_while_training_says_what_to_type_and_that_finishes_the_run(
    here: Path,
    weights: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    inside: str,
    doing: str,
    has_run: bool,
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(here / "cache"))
    command = ["train", "photos", "--out", "new", "--weights", str(weights), "--init", "pca", *QUICK]
    with monkeypatch.context() as patch:
        patch.setattr(inside, interrupted)
        code, said = ended(capsys, *command)
    assert code == 130
    last = said.splitlines()[-1]
    assert last.startswith(f"Stopped while {doing}.")
    assert ("tammes train --resume new" in last) == has_run
    assert ("same command again" in last) == (not has_run)
    assert Path("new").exists() == has_run
    assert ended(capsys, *(["train", "--resume", "new"] if has_run else command))[0] == 0
    assert Path("new/results.json").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("command", "inside", "doing"),
    [
        ("embed run photos --out new.npz", "tammes.training.embedding.vectors", "embedding"),
        ("evaluate run", "tammes.report.evaluation.evaluate", "measuring, pretrained"),
        ("calibrate run", "tammes.report.calibration.count_pairs", "counting pairs"),
        ("report run", "tammes.report.runs.look", "finding neighbours and confusions"),
        ("index run photos --gallery new", "tammes.gallery.indexing.difference", "looking for what has changed"),
        ("doctor photos", "tammes.data.doctor._looks", "checking images"),
    ],
)
def test_ctrl_c_in_another_command_says_what_to_type(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    inside: str,
    doing: str,
) -> None:
    monkeypatch.setattr(inside, interrupted)
    code, said = ended(capsys, *command.split())
    assert code == 130
    assert said.splitlines()[-1].startswith(f"Stopped while {doing}. ")
    assert "same command again" in said.splitlines()[-1]
    assert not Path("new.npz").exists()


def test_decoding_that_was_stopped_by_a_signal_continues(
    here: Path, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when one image is in the file at least, and half of them at most."""
    monkeypatch.setenv("TAMMES_CACHE", str(here / "cache"))
    command = ["train", "photos", "--out", "new", "--weights", str(weights), *QUICK]
    in_turn, digest = image_cache._in_turn, image_cache.image_digest
    taken: list[Any] = []
    first_is_written = Event()
    read: list[int] = []

    def digested(image: Any) -> bytes:
        taken.append(image)
        if len(taken) == 2:
            first_is_written.set()
        return digest(image)

    def stopping(dataset: Any, index: int, form: Any) -> Any:
        if index == 24:
            assert first_is_written.wait(HANGS)
            os.kill(os.getpid(), signal.SIGINT)
        return in_turn(dataset, index, form)

    def counted(dataset: Any, index: int, form: Any) -> Any:
        read.append(index)
        return in_turn(dataset, index, form)

    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "image_digest", digested)
        patch.setattr(image_cache, "_in_turn", stopping)
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        try:
            code, said = ended(capsys, *command)
        finally:
            signal.signal(signal.SIGINT, usual)
    assert code == 130
    assert "Stopped while decoding images. Decoded images are kept in the cache." in said
    assert [file.suffix for file in (here / "cache" / "images").iterdir()] == [".begun"]
    assert not Path("new").exists()
    monkeypatch.setattr(image_cache, "_in_turn", counted)
    assert ended(capsys, *command)[0] == 0
    assert 24 <= len(read) < 48
    assert sorted(read) == list(range(48 - len(read), 48))


# --- phases without a bar


def test_phases_say_when_they_begin_and_how_long_they_took(
    here: Path, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(here / "cache"))
    command = ["train", "photos", "--out", "new", "--weights", str(weights), "--init", "pca", *QUICK]
    code, said = ended(capsys, *command)
    assert code == 0
    for phase in ("decoding images", "initialising the new layers", "evaluating the network before training"):
        begin, end = [line for line in said.splitlines() if line.startswith(phase)]
        assert begin.endswith("…")
        assert re.search(r": \d+ seconds?$", end)
    assert "…" not in ended(capsys, *command, "--overwrite", "--quiet")[1]
