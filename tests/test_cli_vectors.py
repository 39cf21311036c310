"""Vectors on the command line: train, evaluate, embed, list; stopped and resumed; nothing copied whole."""

import json
import os
import signal
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

import tammes
from tammes import MetricLearner
from tammes.cli import main
from tammes.data.vectors import vectors as read
from tammes.errors import UserError
from tammes.training.checkpoints import save_checkpoint
from tammes.training.verdict import describe
from tammes.vectors import statistics
from tammes.vectors import train as vectors_train
from tests.commands import printed, refused
from tests.conftest import HANGS, STEP, signal_at
from tests.test_learner import blobs, brute_recall, unit

Array = NDArray[Any]


def words(labels: Array) -> Array:
    return np.array([f"class {label:02}" for label in labels.tolist()])


def write(file: Path, vectors: Array, labels: Array, **more: Array) -> Path:
    arrays: dict[str, Any] = {"vectors": vectors, "labels": labels, **more}
    np.savez(file, **arrays)
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty classes of eight float16 vectors, in no order, under names."""
    vectors, labels = blobs(classes=50, each=8, columns=16, spread=0.7)
    order = np.random.default_rng(0).permutation(len(labels))
    folder = tmp_path_factory.mktemp("vectors")
    return write(folder / "blobs.npz", vectors[order].astype(np.float16), words(labels[order]))


@pytest.fixture(scope="module")
def trained(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("runs") / "blobs"
    main(["train", str(file), "--out", str(run), "--epochs", "6", "--lr", "0.01", "--seed", "2"])
    return run


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def halves(file: Path) -> tuple[Array, Array, Array, Array]:
    """Vectors and labels of the first half of the classes, and of the second."""
    found = read(file)
    names = sorted(set(found.labels.tolist()))
    first = np.isin(found.labels, names[: (len(names) + 1) // 2])
    vectors = np.asarray(found.vectors)
    return vectors[first], found.labels[first], vectors[~first], found.labels[~first]


# --- the same as the estimator


def test_training_is_what_the_estimator_does_on_the_first_half_of_the_classes(trained: Path, file: Path) -> None:
    vectors, labels, others, other_labels = halves(file)
    expected = MetricLearner(epochs=6, learning_rate=0.01, random_state=2).fit(vectors, labels)
    learner = MetricLearner.load(trained)
    np.testing.assert_array_equal(learner.transform(others), expected.transform(others))
    assert (learner.n_iter_, learner.history_) == (expected.n_iter_, expected.history_)
    assert learner.classes_.tolist() == expected.classes_.tolist()
    assert len(expected.held_out_classes_) == 5
    measured = results(trained)
    assert measured["trained"]["recall_at_1"] == pytest.approx(expected.score(others, other_labels))
    assert measured["untrained"]["recall_at_1"] == pytest.approx(
        brute_recall(unit(others.astype(np.float64)), other_labels)
    )
    assert measured["trained"]["recall_at_1"] > measured["untrained"]["recall_at_1"] + 0.1
    assert measured["held_out_classes"] == expected.held_out_classes_.tolist()
    assert measured["epoch"] == expected.n_iter_


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {}),
        (
            ["--method", "ridge", "--dim", "9", "--centroids", "random"],
            {"method": "ridge", "dim": 9, "centroids": "random"},
        ),
        (
            ["--hidden", "7", "5", "--val-classes", "0", "--epochs", "2"],
            {"hidden": (7, 5), "validation_classes": 0.0, "epochs": 2},
        ),
        (
            ["--loss", "hard-discriminative", "--temperature", "0.2", "--push", "0.1", "--dim", "6", "--epochs", "2"],
            {"loss": "hard-discriminative", "loss_options": {"temperature": 0.2, "push": 0.1}, "dim": 6, "epochs": 2},
        ),
        (
            ["--loss", "softmax", "--batch-size", "16", "--weight-decay", "0.1", "--epochs", "2"],
            {"loss": "softmax", "batch_size": 16, "weight_decay": 0.1, "epochs": 2},
        ),
        (
            ["--centroid-dim", "4", "--centroids", "random", "--epochs", "2", "--val-classes", "6"],
            {"centroid_dim": 4, "centroids": "random", "epochs": 2, "validation_classes": 0.24},
        ),
        (
            ["--loss-options", "push=0.2", "--epochs", "2"],
            {"loss_options": {"push": 0.2}, "epochs": 2},
        ),
        (
            ["--weighting", "balanced", "--epochs", "2"],
            {"loss_options": {"weighting": "balanced"}, "epochs": 2},
        ),
        (
            ["--no-class-layer", "--centroids", "random", "--epochs", "2", "--val-classes", "0.3"],
            {"class_layer": False, "centroids": "random", "epochs": 2, "validation_classes": 0.3},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_options_are_those_of_the_estimator(
    arguments: list[str], options: dict[str, Any], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors, labels, others, _ = halves(file)
    said = json.loads(printed(capsys, "train", str(file), "--out", str(tmp_path / "run"), "--json", *arguments))
    expected = MetricLearner(random_state=0, **options).fit(vectors, labels)
    learner = MetricLearner.load(tmp_path / "run")
    np.testing.assert_array_equal(learner.transform(others), expected.transform(others))
    assert said["held_out_classes"] == expected.held_out_classes_.tolist()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["dim"] == expected.network_.dim
    assert config["epochs"] == (None if "ridge" in arguments else options.get("epochs", 100))
    assert all(word in said["command"].split() for word in arguments)


def test_labels_are_taken_in_their_own_order(tmp_path: Path) -> None:
    vectors, labels = blobs(classes=12, each=4)
    train = ("--epochs", "1")
    main(
        ["train", str(write(tmp_path / "numbers.npz", vectors, labels * 7 - 20)), "--out", str(tmp_path / "a"), *train]
    )
    classes = json.loads((tmp_path / "a" / "classes.json").read_text())
    assert classes == {
        "train": ["-20", "-13", "-6", "1", "8", "15"],
        "val": [],
        "test": ["22", "29", "36", "43", "50", "57"],
    }
    listed = tmp_path / "test.txt"
    listed.write_text("-6\n57\n")
    for given, expected in ((str(listed), ["-6", "57"]), ("0.25", ["43", "50", "57"]), ("4", ["36", "43", "50", "57"])):
        main(
            [
                "train",
                str(tmp_path / "numbers.npz"),
                "--out",
                str(tmp_path / "b"),
                "--overwrite",
                "--test-classes",
                given,
                *train,
            ]
        )
        assert json.loads((tmp_path / "b" / "classes.json").read_text())["test"] == expected  # fmt: skip


def test_parquet_is_the_same(file: Path, trained: Path, tmp_path: Path) -> None:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    found = read(file)
    table = pyarrow.table({"vectors": list(np.asarray(found.vectors)), "labels": found.labels.tolist()})
    parquet.write_table(table, tmp_path / "blobs.PARQUET")
    options = ["--epochs", "6", "--lr", "0.01", "--seed", "2"]
    main(["train", str(tmp_path / "blobs.PARQUET"), "--out", str(tmp_path / "run"), *options])
    ours, theirs = (load_file(run / "learner.safetensors") for run in (trained, tmp_path / "run"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


# --- the run folder and what reads it


def test_a_run_folder_holds_what_everything_after_it_needs(trained: Path) -> None:
    names = {file.name for file in trained.iterdir()}
    assert {"config.json", "environment.json", "classes.json", "metrics.jsonl", "checkpoint.safetensors"} <= names
    assert {"learner.safetensors", "learner.json", "results.json", "untrained.json", "log.txt"} <= names
    config = json.loads((trained / "config.json").read_text())
    assert (config["epochs"], config["lr"], config["dim"], config["batch_size"]) == (6, 0.01, 16, 256)
    assert (config["centroids"], config["method"], config["weight_decay"]) == ("place", "gradient", 5e-4)
    learner, lines = MetricLearner.load(trained), metrics(trained)
    again = [line for line in lines if line.get("on_all_classes")]
    first = [line for line in lines if not line.get("on_all_classes")]
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["loss"] for line in first] == [told["loss"] for told in learner.history_[1:]]
    assert [line["val_recall_at_1"] for line in first] == [told["recall_at_1"] for told in learner.history_[1:]]
    assert len(again) == learner.n_iter_
    assert len(first) > 1
    assert all(line["above_minimum"] > 0 and line["images_per_second"] > 0 for line in lines)
    found = results(trained)
    assert (found["train_classes"], found["train_images"], found["test_classes"], found["test_images"]) == (25, 200) * 2
    assert found["seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
    log = (trained / "log.txt").read_text()
    assert "blobs.npz: 200 training vectors of 25 classes," in log
    assert "held out  5 of the training classes, to choose the epoch" in log
    assert found["verdict"]["judged"]
    assert f"{describe(found)}\n" in log
    assert log.count("again, on all training classes") == learner.n_iter_


def test_evaluate_repeats_the_results_of_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "evaluate", str(trained), "--json"))
    for row in ("untrained", "trained"):
        assert rows[row] == results(trained)[row]
    shown = printed(capsys, "evaluate", str(trained))
    assert "25 classes, 200 queries" in shown


def test_evaluate_measures_other_vectors(
    trained: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, others, names = halves(file)
    other = write(tmp_path / "other.npz", others[:80], names[:80])
    rows = json.loads(printed(capsys, "evaluate", str(trained), str(other), "--json", "--no-clustering"))
    learner = MetricLearner.load(trained)
    assert rows["trained"]["recall_at_1"] == pytest.approx(brute_recall(learner.transform(others[:80]), names[:80]))
    assert rows["untrained"]["recall_at_1"] == pytest.approx(
        brute_recall(unit(others[:80].astype(np.float64)), names[:80])
    )
    main(["evaluate", str(trained), str(file), "--no-clustering"])
    assert (
        "note: 25 of the 50 classes have the names of classes that the model was trained on" in capsys.readouterr().err
    )


def test_runs_are_listed(trained: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = json.loads(printed(capsys, "runs", str(trained.parent), "--json"))
    assert (record["state"], record["loss"], record["centroids"]) == ("finished", "discriminative", "place")
    assert record["epochs"] == f"{len(MetricLearner.load(trained).history_) - 1}/6"
    assert record["trained"] == results(trained)["trained"]
    assert "blobs.npz" in printed(capsys, "runs", str(trained.parent))
    main(["train", str(file), "--method", "ridge", "--out", str(tmp_path / "ridge")])
    capsys.readouterr()
    (record,) = json.loads(printed(capsys, "runs", str(tmp_path), "--json"))
    assert (record["loss"], record["epochs"]) == ("ridge", "-")
    assert results(tmp_path / "ridge")["regularisation"] == MetricLearner.load(tmp_path / "ridge").regularisation_


def test_without_out_the_run_has_a_name_and_is_not_overwritten_unless_asked(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, name in (
        (["--epochs", "1"], "blobs-discriminative-place-0"),
        (["--epochs", "1", "--loss", "softmax", "--seed", "2"], "blobs-softmax-2"),
        (["--method", "ridge"], "blobs-ridge-place-0"),
    ):
        main(["train", str(file), *arguments])
        assert (tmp_path / "runs" / name / "results.json").exists()
        assert f"runs/{name} is already a run." in refused(capsys, "train", str(file), *arguments)
        assert f"run folder: runs/{name}" in printed(capsys, "train", str(file), *arguments, "--overwrite")
    finished = refused(capsys, "train", "--resume", "runs/blobs-ridge-place-0")
    assert "runs/blobs-ridge-place-0 has already finished. To see its results:" in finished
    assert "leave out --hidden." in refused(capsys, "train", "--resume", "runs/blobs-ridge-place-0", "--hidden", "3")


def test_all_classes_may_train(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    said = printed(capsys, "train", str(file), "--test-classes", "0", "--epochs", "1", "--out", str(run))
    assert said == f"Trained on all classes, so there are none to test on. Run folder: {run}\n"
    assert results(run)["trained"] is results(run)["untrained"] is None
    assert f"{run} was trained on all classes. Give it others: tammes evaluate {run} DATA" in refused(
        capsys, "evaluate", str(run)
    )


def test_queries_gallery_and_sequence_are_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, labels = blobs(classes=8, each=10, spread=0.9)
    query, sequence = np.arange(80) % 5 == 0, np.arange(80) // 2
    file = write(tmp_path / "a.npz", vectors, labels, query=query, gallery=~query, sequence=sequence)
    said = json.loads(printed(capsys, "train", str(file), "--epochs", "2", "--out", str(tmp_path / "run"), "--json"))
    found = MetricLearner.load(tmp_path / "run").transform(vectors)
    for row, points in (("untrained", unit(vectors)), ("trained", found)):
        hits = []
        for one in np.flatnonzero(query & (labels > 3)):
            others = np.flatnonzero(~query & (labels > 3) & (sequence != sequence[one]))
            nearest = others[np.linalg.norm(points[others] - points[one], axis=1).argmin()]
            hits.append(labels[nearest] == labels[one])
        assert said[row]["queries"] == 8
        assert said[row]["gallery"] == 32
        assert said[row]["recall_at_1"] == pytest.approx(np.mean(hits))


def test_what_does_not_fit_into_memory_is_measured_from_a_file(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tammes.vectors.train.MOST_IN_MEMORY", 100)
    kinds = []
    original = vectors_train._gathered

    def seen(*arguments: Any) -> Any:
        found = original(*arguments)
        kinds.append(type(found))
        return found

    monkeypatch.setattr("tammes.vectors.train._gathered", seen)
    before = sorted(trained.iterdir())
    rows = json.loads(printed(capsys, "evaluate", str(trained), "--json"))
    assert len(kinds) == 2
    assert set(kinds) == {np.memmap}
    assert rows["trained"] == results(trained)["trained"]
    assert sorted(trained.iterdir()) == before


# --- embed


def test_embed_writes_what_the_learner_makes_and_keeps_the_rest(
    trained: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read(file)
    vectors, number = np.asarray(found.vectors), len(found)
    more = {
        "paths": np.array([f"{n}.jpg" for n in range(number)]),
        "query": np.arange(number) < 30,
        "gallery": np.arange(30, number),
        "sequence": np.arange(number) % 90,
    }
    given, out = write(tmp_path / "given.npz", vectors, found.labels, **more), tmp_path / "new.npz"
    monkeypatch.setattr(statistics, "BLOCK", 16 * 7)  # seven rows at a time
    said = json.loads(printed(capsys, "embed", str(trained), str(given), "--out", str(out), "--json"))
    assert said == {"file": str(out), "vectors": 400, "dim": 16}
    new = read(out)
    assert isinstance(new.vectors, np.memmap)
    assert new.vectors.dtype == np.float32
    np.testing.assert_array_equal(new.vectors, MetricLearner.load(trained).transform(vectors))
    for name in ("labels", "paths", "query", "sequence"):
        np.testing.assert_array_equal(getattr(new, name), getattr(read(given), name), strict=True)
    assert new.gallery is not None
    assert np.flatnonzero(new.gallery).tolist() == list(range(30, 400))
    with np.load(out) as plain:  # anybody can read it
        np.testing.assert_array_equal(plain["vectors"], new.vectors)
    assert f"{out} exists. Pass --overwrite" in refused(capsys, "embed", str(trained), str(given), "--out", str(out))
    row = json.loads(printed(capsys, "evaluate", str(out), "--json"))["vectors"]
    assert (row["queries"], row["gallery"]) == (30, 370)
    doubled = write(tmp_path / "double.npz", vectors.astype(np.float64), found.labels)
    assert printed(capsys, "embed", str(trained), str(doubled), "--out", str(doubled), "--overwrite") == (
        f"400 vectors of 16 dimensions in {doubled}\n"
    )
    assert read(doubled).vectors.dtype == np.float64
    np.testing.assert_allclose(read(doubled).vectors, new.vectors, atol=1e-6)


def test_embed_takes_no_more_memory_for_more_vectors(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 1 << 14)
    monkeypatch.setattr(sys.modules["tammes.data.vectors"], "_BLOCK", 1 << 16)  # the name is also a function's
    file, out = tmp_path / "many.npz", tmp_path / "new.npz"
    vectors = np.random.default_rng(0).normal(size=(200_000, 16)).astype(np.float16)
    write(file, vectors, np.zeros(200_000, dtype=np.uint8))
    del vectors
    tracemalloc.start()
    main(["embed", str(trained), str(file), "--out", str(out)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert out.stat().st_size > 200_000 * 16 * 4
    assert peak < 4e6  # the new vectors are 12.8 MB, the old ones 6.4 MB


@pytest.mark.slow
def test_training_takes_no_copy_of_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 1 << 15)
    monkeypatch.setattr(sys.modules["tammes.data.vectors"], "_BLOCK", 1 << 16)  # the name is also a function's
    monkeypatch.setattr("tammes.vectors.init.MOST_FOR_INIT", 512)
    monkeypatch.setattr("tammes.vectors.validation.MOST_HELD_OUT", 100)
    labels = np.arange(60_000) % 50
    labels[:59_000] %= 40  # few vectors to test on, as a search takes its time
    vectors = np.random.default_rng(0).normal(size=(50, 256)).astype(np.float16)[labels]
    vectors[::3, 5] += np.float16(1)
    file = write(tmp_path / "many.npz", vectors, labels.astype(np.uint8))
    del vectors
    options = ["--test-classes", "10", "--epochs", "1", "--batch-size", "1024", "--dim", "8"]
    tracemalloc.start()
    main(["train", str(file), "--out", str(tmp_path / "run"), "--centroids", "random", *options])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert results(tmp_path / "run")["train_images"] == 59_800
    assert peak < 24e6  # the vectors are 30.7 MB; measuring takes 16 MB, however many trained


def test_an_embedding_that_fails_leaves_nothing(
    trained: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        yield slice(0, 3), np.zeros((3, 16))
        raise RuntimeError("no more")

    monkeypatch.setattr(MetricLearner, "_embedded_blocks", failing)
    with pytest.raises(SystemExit) as stopped:
        main(["embed", str(trained), str(file), "--out", str(tmp_path / "new.npz")])
    assert stopped.value.code == 3
    assert list(tmp_path.iterdir()) == []


# --- what is refused

IMAGES_ONLY: list[list[str]] = [
    *(["--size", "64"], ["--warmup", "1"], ["--train-batch-norm"]),
    *(["--preset", "paper"], ["--backbone", "conv4"], ["--weights", "none"], ["--train", "head"], ["--cut", "x"]),
    *(
        ["--views", "2"],
        ["--pool", "max"],
        ["--keep-init"],
        ["--embedding", "last"],
        ["--optimizer", "sgd"],
        ["--backbone-lr", "0.1"],
    ),
    *(["--momentum", "0.5"], ["--schedule", "halve"], ["--halve-every", "3"], ["--mirror"], ["--shift", "1"]),
    *(["--crop-area", "0.5"], ["--grow-from", "96"], ["--refit"]),
    *(["--init", "pca"], ["--sampler", "balanced"], ["--accumulate", "2"], ["--device", "cpu"]),
    *(["--images-per-class", "4"], ["--proxy-lr", "1"]),
    *(["--miner", "pml:HDCMiner"], ["--miner-options", "a=1"]),
    *(["--base", "discriminative"], ["--sync-batch-norm"], ["--reserve-classes", "2"]),
    *(["--continue-from", "x"], ["--compatible", "1"]),
    *(["--curve", "1"], ["--weights-form", "keras"]),
    *(["--precision", "bf16"], ["--init-from", "x"], ["--skip-bad"], ["--log-bound"], ["--tensorboard"]),
]


@pytest.mark.parametrize("arguments", IMAGES_ONLY, ids=lambda arguments: arguments[0])
def test_options_for_images_are_refused(
    arguments: list[str], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(capsys, "train", str(file), "--out", str(tmp_path / "run"), *arguments)
    assert f"{arguments[0]} is for images, and blobs.npz holds vectors: leave it out." in text
    assert not (tmp_path / "run").exists()


def test_every_option_is_for_vectors_or_refused() -> None:
    from tammes.cli.train import Train, TrainVectors

    refused_here = {arguments[0].removeprefix("--").replace("-", "_") for arguments in IMAGES_ONLY}
    assert set(Train.__annotations__) - set(TrainVectors.__annotations__) <= refused_here


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--loss", "discrimnative"], "unknown loss 'discrimnative'. Did you mean 'discriminative'?"),
        (
            ["--loss", "triplet"],
            "--loss triplet is for images. For vectors there are discriminative, hard-discriminative",
        ),
        (["--loss-options", "pull=1"], "'pull' is not an option of discriminative. Its options: weighting, push, "),
        (["--centroids", "simplx"], "unknown kind of centroids 'simplx'. Did you mean 'simplex'?"),
        (["--temperature", "0.5"], "--temperature is for --loss hard-discriminative, not for disc"),
        (["--loss", "softmax", "--push", "0.1"], "--push is for --loss discriminative or hard-discriminative, not"),
        (
            ["--loss", "softmax", "--weighting", "balanced"],
            "--weighting is for --loss discriminative, not for softmax.",
        ),
        (["--loss", "softmax", "--centroids", "place"], "--centroids is for --loss discriminative or hard-disc"),
        (
            ["--loss", "softmax", "--centroid-dim", "9"],
            "needs a class layer with one output per class. Drop --centroid",
        ),
        (["--loss", "softmax", "--no-class-layer"], "needs a class layer with one output per class. Drop --no-class"),
        (["--no-class-layer", "--centroid-dim", "7"], "--centroid-dim is the size of the class layer, which"),
        (["--centroids", "simplex", "--centroid-dim", "3"], "centroids='simplex' for 25 classes in 3 dimensions: "),
        (["--push", "2.0"], "push"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0."),
        (["--lr", "0"], "--lr must be above 0, got 0.0."),
        (["--lr", "1e30", "--loss", "softmax"], "the loss is not a finite number"),
        (["--lr", "1e300"], "(now 1e+300): try a tenth"),
        (["--dim", str(10**13)], "is more than this machine has memory for. Lower dim, hidden or centroid_dim."),
        (["--weight-decay", "-1"], "--weight-decay must not be negative, got -1.0."),
        (["--seed", "4294967296"], "--seed must be a whole number from 0 to 4294967295, got 4294967296."),
        (["--hidden", "3", "0"], "--hidden must be widths of at least 1, got 3 0."),
        (["--val-classes", "many"], "--val-classes must be a fraction or a number of classes, got 'many'."),
        (["--val-classes", "25"], "--val-classes must be below 1, or a number below the 25 that train, got 25."),
        (["--val-classes", "1.5"], "--val-classes must be below 1, or a number below the 25 that train, got 1.5."),
        (["--val-classes", "2"], "--val-classes 2 would hold out 2 classes. Ask for 5 or more, or 0."),
        (["--val-classes", "24"], "--val-classes 24 of 25 training classes cannot be held out: there must be"),
        (["--test-classes", "49"], "1 of 50 classes would train; at least 2 must. Lower --test-classes."),
        (["--test-classes", "no.txt"], "cannot read the test classes from no.txt: No such file or directory."),
        *(
            (["--method", "ridge", *more], f"{more[0]} is for --method gradient: ridge is solved in closed form.")
            for more in (
                *(["--loss", "softmax"], ["--push", "0.1"], ["--weighting", "balanced"], ["--temperature", "1"]),
                *(["--hidden", "3"], ["--centroid-dim", "3"], ["--epochs", "3"], ["--batch-size", "3"]),
                *(["--lr", "0.1"], ["--weight-decay", "0.1"], ["--no-class-layer"]),
            )
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_errors_say_what_to_type(
    arguments: list[str], text: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in refused(capsys, "train", str(file), "--out", str(tmp_path / "run"), *arguments)
    assert not (tmp_path / "run").exists() or "--lr" in arguments  # only training shows that


def test_vectors_that_cannot_be_learned_from_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, labels = blobs(classes=4, each=5)

    def text(points: Array, names: Array) -> str:
        file = write(tmp_path / "a.npz", points, names)
        return refused(capsys, "train", str(file), "--out", str(tmp_path / "run"))

    wrong = vectors.copy()
    wrong[7, 2] = np.nan
    assert f"vector 7 of {tmp_path / 'a.npz'} holds a number that is not finite." in text(wrong, labels)
    assert "1 of 2 classes would train; at least 2 must. Lower --test-classes." in text(vectors, labels // 2)
    assert "1 of 1 classes would train" in text(vectors, labels * 0)
    singles = np.arange(20)
    assert "every test class has one vector only, so none could be found. Choose other classes." in text(
        vectors, singles
    )
    assert "Expected whole numbers or text." in text(vectors, labels.astype(float))
    assert "no such file: " in refused(capsys, "train", str(tmp_path / "nothing.npz"))
    assert not (tmp_path / "run").exists()


def test_a_class_of_one_vector_trains_and_counts_as_a_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, labels = blobs(classes=8, each=5)
    keep = np.ones(40, dtype=bool)
    keep[1:5] = keep[36:] = False  # one of the first class, one of the last
    file = write(tmp_path / "a.npz", vectors[keep], labels[keep])
    said = json.loads(printed(capsys, "train", str(file), "--epochs", "2", "--out", str(tmp_path / "run"), "--json"))
    assert (said["train_images"], said["test_images"]) == (16, 16)
    assert said["trained"]["single_image_classes"] == 1
    assert said["trained"]["lone_queries"] == 1


@pytest.fixture(scope="module")
def photos_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What there is to see of a run of images before anything of it is loaded."""
    run = tmp_path_factory.mktemp("images") / "photos"
    run.mkdir()
    (run / "config.json").write_text('{"data": "/photos"}')
    (run / "environment.json").write_text("{}")
    return run


def test_images_and_vectors_are_not_mixed_up(
    trained: Path, photos_run: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path / "new.npz"))
    assert f"{photos_run} embeds images, and {file} holds vectors. Train on these: tammes train {file}" in (
        refused(capsys, "embed", str(photos_run), str(file), *out)
    )
    assert f"{photos_run} was trained on images, and {file} holds vectors. Measure these as they are: tammes" in (
        refused(capsys, "evaluate", str(photos_run), str(file))
    )
    expected = f"{trained} was trained on vectors: give it a .npz or .parquet file of them, not {tmp_path}."
    assert expected in refused(capsys, "embed", str(trained), str(tmp_path), *out)
    assert expected in refused(capsys, "evaluate", str(trained), str(tmp_path))
    narrow = write(tmp_path / "narrow.npz", np.ones((4, 3)), np.arange(4))
    expected = f"{narrow} has vectors of 3 numbers, and {trained} was trained on 16. Give it vectors of the same model."
    assert expected in refused(capsys, "embed", str(trained), str(narrow), *out)
    assert expected in refused(capsys, "evaluate", str(trained), str(narrow))
    for flag in (["--embedding", "last"], ["--batch-size", "3"], ["--skip-bad"], ["--device", "cpu"]):
        text = refused(capsys, "embed", str(trained), str(file), *out, *flag)
        assert f"{flag[0]} is for images, and {trained} was trained on vectors: leave it out." in text
    for flag in (["--embedding", "last"], ["--skip-bad"]):
        text = refused(capsys, "evaluate", str(trained), *flag)
        assert f"{flag[0]} is for images, and {trained} was trained on vectors: leave it out." in text
    for flag in (["--hidden", "3"], ["--method", "ridge"]):
        text = refused(capsys, "train", str(tmp_path), *flag)
        assert f"{flag[0]} is for vectors, and this is not a .npz or .parquet file: leave it out." in text
    assert not (tmp_path / "new.npz").exists()


def test_a_run_of_vectors_is_not_loaded_as_one_of_images(trained: Path) -> None:
    with pytest.raises(UserError, match=r"was trained on vectors: load it with tammes\.MetricLearner\.load\."):
        tammes.load(trained)


def test_help_speaks_of_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    for command, text in (("train", "tammes train vectors.npz"), ("embed", "tammes embed runs/vectors vectors.npz")):
        main([command, "--help"])
        assert text in capsys.readouterr().out


# --- stopped and resumed


def test_a_run_whose_data_has_changed_is_not_gone_on_with(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read(file)
    vectors, labels = np.asarray(found.vectors).astype(np.float32), found.labels
    copy, run = write(tmp_path / "a.npz", vectors, labels), tmp_path / "run"
    main(["train", str(copy), "--out", str(run), "--epochs", "2"])
    (run / "results.json").unlink()
    write(copy, vectors * 2, labels)
    said = refused(capsys, "train", "--resume", str(run))
    assert f"the vectors are no longer those that {run} was started with." in said
    write(copy, vectors[labels != "class 49"], labels[labels != "class 49"])
    assert f"no longer in {copy}: class 49" in refused(capsys, "train", "--resume", str(run))


@pytest.mark.parametrize("gone", [["results.json"], ["results.json", "checkpoint.safetensors", "learner.safetensors"]])
@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_a_run_killed_late_or_early_comes_to_the_same(
    gone: list[str], method: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    main(
        [
            "train",
            str(file),
            "--out",
            str(run),
            "--method",
            method,
            *(["--epochs", "3"] if method == "gradient" else []),
        ]
    )
    before, measured = load_file(run / "learner.safetensors"), results(run)
    lines = len(metrics(run)) if method == "gradient" else 0
    for name in gone:
        (run / name).unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)
    main(["train", "--resume", "run"])
    after = load_file(run / "learner.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert results(run)["trained"] == measured["trained"]
    assert method == "ridge" or len(metrics(run)) == lines > 0


def test_ctrl_c_saves_in_the_middle_of_an_epoch_and_says_how_to_go_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    options = ["--epochs", "4", "--batch-size", "32", "--seed", "1", "--loss", "softmax", "--val-classes", "0"]
    main(["train", str(file), "--out", str(whole), *options])
    saved: list[tuple[int, int]] = []

    def interrupted(folder: Any, weights: Any, optimizer: Any, position: Any) -> None:
        save_checkpoint(folder, weights, optimizer, position)
        saved.append((position.epoch, position.step))
        if len(saved) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("tammes.vectors.training.save_checkpoint", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(file), "--out", str(run), *options])
    assert stopped.value.code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"tammes train --resume {run}")
    assert saved == [(2, 0), (3, 0), (3, 1)]
    assert [line["epoch"] for line in metrics(run)] == [1, 2]
    (record,) = json.loads(printed(capsys, "runs", str(run), "--json"))
    assert (record["state"], record["epochs"]) == ("interrupted", "2/4")
    assert "learner.json is missing" in refused(capsys, "evaluate", str(run))
    monkeypatch.setattr("tammes.vectors.training.save_checkpoint", save_checkpoint)
    monkeypatch.chdir(tmp_path)
    rows = json.loads(printed(capsys, "train", "--resume", "run", "--json"))
    ours, theirs = (load_file(folder / "learner.safetensors") for folder in (whole, run))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert rows["trained"] == results(whole)["trained"]
    for one, other in zip(metrics(run), metrics(whole), strict=True):
        assert (one["epoch"], one["loss"], one["lr"]) == (other["epoch"], other["loss"], other["lr"])


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on_to_the_very_same_weights(
    number: int, started: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    vectors, labels = blobs(classes=50, each=20, columns=16, spread=0.7)
    file, whole, run = write(tmp_path / "a.npz", vectors, labels), tmp_path / "whole", tmp_path / "run"
    options = ["--epochs", "10", "--batch-size", "8", "--val-classes", "0", "--test-classes", "2"]
    words, said = ["train", str(file), "--out", str(run), *options], tmp_path / "said"
    process = started(words, said, partial(signal_at, STEP, 150, number))  # in the second epoch
    process.join(HANGS)
    assert not (run / "results.json").exists()
    if number == signal.SIGINT:
        assert process.exitcode == 130
        assert f"tammes train --resume {run}" in said.read_text()
        assert json.loads((run / "config.json").read_text())["epochs"] == 10
    threads = torch.get_num_threads()
    main(["train", str(file), "--out", str(whole), *options])
    main(["train", "--resume", str(run)])
    assert torch.get_num_threads() == threads == 1
    ours, theirs = (load_file(folder / "learner.safetensors") for folder in (whole, run))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert results(run)["trained"] == results(whole)["trained"]
    assert [line["epoch"] for line in metrics(run)] == list(range(1, 11))
