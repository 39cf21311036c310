"""The main job as a user runs it: train, evaluate, embed, list; stopped at any moment and resumed."""

import json
import random
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from tammes import DiscriminativeLoss
from tammes.cli import main
from tammes.models.embedder import load
from tammes.training.build import at_once
from tammes.training.config import command_of
from tammes.training.evaluation import evaluate_images
from tammes.training.objectives import Objective
from tammes.training.presets import RECIPES, recipe_of
from tammes.training.run_folder import RunFolder, open_run
from tests.commands import printed, refused, small_set, striped_set
from tests.compared import same_end
from tests.configs import config_of, embedder_of
from tests.conftest import HANGS, STEP, signal_at

SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "8")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight classes of six images: stripes of a class's own angle and width, in noise."""
    return striped_set(tmp_path_factory.mktemp("photos"), classes=8, images=6, size=28)


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(run / "embedder.safetensors")


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("runs") / "stripes"
    main(["train", str(photos), "--out", str(run), "--epochs", "4", "--val-classes", "1", "--log-bound", *SMALL])
    return run


def test_a_run_folder_holds_what_everything_after_it_needs(trained: Path) -> None:
    names = {file.name for file in trained.iterdir()}
    assert {"config.json", "environment.json", "classes.json", "metrics.jsonl", "checkpoint.safetensors"} <= names
    assert {"embedder.safetensors", "embedder.json", "results.json", "neighbours.png", "last"} <= names
    config = json.loads((trained / "config.json").read_text())
    assert (config["epochs"], config["backbone"], config["lr"]) == (4, "conv4", RECIPES["characters"].lr)
    classes = json.loads((trained / "classes.json").read_text())
    assert [len(classes[use]) for use in ("train", "val", "test")] == [3, 1, 4]
    assert "epoch   4" in (trained / "log.txt").read_text()
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert all(line["above_minimum"] > 0 and line["images_per_second"] > 0 for line in lines)
    for line in lines:
        bound = line["bound"]
        assert -1e-9 * bound["triplets"] <= bound["gap"] <= bound["certificate"] <= bound["tighter"] <= bound["lemma"]
    results = json.loads((trained / "results.json").read_text())
    assert {"untrained", "trained", "verdict", "command"} <= set(results)
    assert results["test_classes"] == 4
    with Image.open(trained / "neighbours.png") as picture:
        assert picture.width > 500


def test_evaluate_repeats_the_results_of_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "evaluate", str(trained), "--json"))
    results = json.loads((trained / "results.json").read_text())
    for row in ("untrained", "trained"):
        for name in ("recall_at_1", "mean_average_precision_at_r", "NMI"):
            assert rows[row][name] == pytest.approx(results[row][name], abs=1e-9)
    assert "R@1" in printed(capsys, "evaluate", str(trained))


def test_embed_writes_vectors_that_evaluate_takes(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vectors.npz"
    said = json.loads(printed(capsys, "embed", str(trained), str(photos), "--out", str(file), "--json"))
    assert (said["images"], said["dim"], said["skipped"]) == (48, 16, 0)
    with np.load(file) as arrays:
        np.testing.assert_allclose(np.linalg.norm(arrays["vectors"], axis=1), 1, atol=1e-6)
        assert set(arrays["labels"]) == {f"class {n}" for n in range(8)}
    row = json.loads(printed(capsys, "evaluate", str(file), "--json"))["vectors"]
    everything = json.loads(printed(capsys, "evaluate", str(trained), str(photos), "--json"))["trained"]
    assert row["recall_at_1"] == pytest.approx(everything["recall_at_1"], abs=1e-9)
    assert "exists. Pass --overwrite" in refused(capsys, "embed", str(trained), str(photos), "--out", str(file))


def test_a_loaded_embedder_encodes_files_folders_and_pictures_alike(trained: Path, photos: Path) -> None:
    embedder, folder = load(trained), photos / "class 3"
    by_folder = embedder.encode(folder, batch_size=4)
    files = sorted(folder.iterdir())
    np.testing.assert_allclose(by_folder, embedder.encode(files), atol=1e-6)
    with Image.open(files[0]) as picture:
        np.testing.assert_allclose(by_folder[:1], embedder.encode(picture), atol=1e-6)
    assert by_folder.shape == (6, 16)
    assert load(trained, embedding="last").encode(files[0]).shape == (1, 3)


def test_runs_are_listed_and_removed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = json.loads(printed(capsys, "runs", str(trained.parent), "--json"))
    assert [(record["state"], record["epochs"]) for record in records] == [("finished", "4/4")]
    assert "stripes" in printed(capsys, "runs", str(trained.parent))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text("{}")  # other programs have one too
    assert "no run in" in refused(capsys, "runs", "--remove", str(copy))
    (copy / "environment.json").write_text("{}")
    printed(capsys, "runs", "--remove", str(copy))
    assert not copy.exists()


def test_a_new_run_starts_from_the_weights_of_another(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "next"
    main(["train", str(photos), "--out", str(out), "--epochs", "1", "--lr", "0", "--backbone-lr", "0",
          "--init-from", str(trained), "--val-classes", "1", *SMALL])  # fmt: skip
    before, after = weights(trained), weights(out)
    moved = [name for name in before if name.endswith("weight") and not np.array_equal(before[name], after[name])]
    assert moved == []
    given = ("--dim", "8", "--backbone", "conv4", "--init-from", str(trained))
    other = refused(capsys, "train", str(photos), "--out", str(tmp_path / "x"), *given)
    assert "--init-from has dim 16, this run 8. Use --dim 16." in other


def test_json_prints_the_results_only(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    results = json.loads(printed(capsys, "train", str(photos), "--out", str(out), "--epochs", "1", "--json", *SMALL))
    assert results["trained"]["recall_at_1"] >= 0
    again = refused(capsys, "train", str(photos), "--out", str(out), *SMALL)
    assert f"{out} is already a run" in again
    assert f"--resume {out}), replace it with --overwrite, or choose another --out." in again
    assert "has already finished. To see its results:" in refused(capsys, "train", "--resume", str(out))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "discrimnative"], "unknown loss 'discrimnative'. Did you mean 'discriminative'?"),
        (["--centroids", "simplx"], "unknown kind of centroids 'simplx'. Did you mean 'simplex'?"),
        (["--backbone", "conv5"], "unknown backbone 'conv5'. Did you mean 'conv4'"),
        (["--temperature", "0.5"], "--temperature is for --loss hard-discriminative or normface, not for disc"),
        (["--loss", "softmax", "--push", "0.1"], "--push is for --loss discriminative or hard-discriminative, not for"),
        (["--loss", "softmax", "--centroids", "simplex"], "--centroids is for --loss discriminative or hard-"),
        (["--loss", "softmax", "--log-bound"], "--log-bound is for a loss with centroids, not for softmax."),
        (["--loss", "softmax", "--centroid-dim", "9"], "--loss softmax needs one output per class: 4, not 9."),
        (["--init", "pca", "--init-from", "x"], "--init-from already initialises the layers: leave out --init."),
        (["--cut", "blocks.2"], "--cut is the lowest trainable module: it is for --train top."),
        (
            ["--views", "2"],
            "--views is the number of crops whose activations are cached: it is for --train top or --train head.",
        ),
        (["--train", "top", "--cut", "blocks.7"], "'blocks.7'"),
        (["--weights", "imagenet"], "conv4 has no ImageNet weights"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--val-classes", "many"], "--val-classes must be a fraction or a number of classes, got 'many'."),
        (["--accumulate", "0"], "--accumulate must be at least 1, got 0."),
        (["--lr", "-1"], "--lr must not be negative, got -1.0."),
        (["--no-class-layer", "--centroid-dim", "7"], "--centroid-dim is the size of the class layer, which"),
        (["--centroids", "one-hot", "--centroid-dim", "3"], "--centroids one-hot with --centroid-dim 3: one-hot"),
    ],
)
def test_errors_say_what_to_type(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = ["--backbone", "conv4", *arguments] if "--backbone" not in arguments else arguments
    assert message in refused(capsys, "train", str(photos), "--out", str(tmp_path / "run"), *given)
    assert not (tmp_path / "run").exists()


def test_the_paper_preset_is_the_paper_to_the_letter() -> None:
    paper = RECIPES["paper"]
    assert (paper.optimizer, paper.lr, paper.backbone_lr, paper.momentum) == ("sgd", 0.1, 0.01, 0.9)
    assert (paper.schedule, paper.halve_every, paper.weight_decay) == ("halve", 5, 5e-4)
    assert (paper.batch_size, paper.epochs, paper.mirror, paper.centroids) == (128, 40, True, "one-hot")


def test_options_that_change_the_way_of_training_are_honoured(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    given = ["--epochs", "2", "--accumulate", "2", "--sampler", "balanced", "--precision", "bf16", "--overwrite"]
    given += ["--embedding", "last", "--test-classes", "0.5", "--loss", "hard-discriminative", "--temperature", "0.2"]
    main(["train", str(photos), "--out", str(out), *given, *SMALL])
    config = json.loads((out / "config.json").read_text())
    assert (config["accumulate"], config["sampler"], config["precision"]) == (2, "balanced", "bf16")
    assert load(out).encode(photos / "class 0").shape == (6, 4)
    assert "leave out --epochs." in refused(capsys, "train", "--resume", str(out), "--epochs", "7")


@pytest.mark.parametrize(
    ("backbone", "changes", "number"),
    [
        ("vgg16", {}, 34),
        ("resnet18", {}, None),
        ("vgg16", {"loss": "triplet"}, None),
        ("vgg16", {"train": "top"}, None),
    ],
    ids=["each image on its own", "batch normalisation", "another kind of loss", "kept activations"],
)
def test_batches_are_computed_in_pieces_where_that_is_the_same(
    backbone: str, changes: dict[str, Any], number: int | None
) -> None:
    config = config_of(backbone=backbone, weights="none", device="cpu")
    objective = Objective(embedder_of(config, 4), DiscriminativeLoss(4))
    assert at_once(replace(config, **changes), objective) == number


def test_the_balanced_sampler_is_counted_with_its_repeats(photos: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, copy)
    for image in (copy / "class 0").glob("[1-5].png"):
        image.unlink()
    main(["train", str(copy), "--out", str(out), "--epochs", "1", "--sampler", "balanced", *SMALL])
    (line,) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert round(line["images_per_second"] * line["seconds"]) == 4 * 6
    # Classes are as large as the largest then, so the minimum is that of equal sizes.
    assert line["loss"] - line["above_minimum"] == pytest.approx(-((2 * 4 / 3) ** 0.5) / 3, abs=1e-6)


def test_curves_for_tensorboard(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    main(["train", str(photos), "--out", str(out), "--epochs", "2", "--tensorboard", *SMALL])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(out / "tensorboard"))
    curves.Reload()
    assert [point.step for point in curves.Scalars("loss")] == [1, 2]


@pytest.mark.parametrize(
    ("options", "trains"),
    [
        (["--train", "head"], "penultimate"),
        (["--train", "top", "--cut", "blocks.2", "--views", "3"], "backbone.blocks.2"),
    ],
)
def test_a_part_of_the_network_trains_on_kept_activations(
    photos: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    trains: str,
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "cache"))  # nobody has computed them
    out, file = tmp_path / "run", trained / "embedder.safetensors"
    given = ["--epochs", "3", "--weights", str(file), "--val-classes", "1", "--log-bound", *options, *SMALL]
    main(["train", str(photos), "--out", str(out), *given])
    assert "computing the activations of 24 training images" in capsys.readouterr().err
    before, after = weights(trained), weights(out)
    moved = {name for name in before if name.startswith("backbone") and not np.array_equal(before[name], after[name])}
    assert all(name.startswith(("backbone.blocks.2", "backbone.blocks.3")) for name in moved)
    assert any(name.startswith("backbone") for name in moved) == trains.startswith("backbone")
    assert any(name.startswith(trains) and not np.array_equal(before[name], after[name]) for name in before)
    # What evaluates the whole network agrees with what was evaluated from half precision.
    rows = json.loads(printed(capsys, "evaluate", str(out), "--json"))
    results = json.loads((out / "results.json").read_text())
    assert rows["trained"]["recall_at_1"] == pytest.approx(results["trained"]["recall_at_1"], abs=0.09)
    # The same again takes the activations from the cache.
    main(["train", str(photos), "--out", str(tmp_path / "again"), *given])
    assert "computing the activations" not in capsys.readouterr().err
    again = weights(tmp_path / "again")
    assert all(np.array_equal(after[name], again[name]) for name in after)


def test_a_run_begins_with_the_pooling_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = small_set(tmp_path / "few", ["a", "b", "c", "d"])
    small = ["--backbone", "timm:test_resnet", "--weights", "none", "--train", "all", "--dim", "8", "--epochs", "1"]
    main(["train", str(few), "--out", str(tmp_path / "max"), "--pool", "max", *small])
    assert load(tmp_path / "max").config.pool == "max"
    said = refused(
        capsys, "train", str(few), "--out", str(tmp_path / "b"), "--init-from", str(tmp_path / "max"), *small
    )
    assert "--init-from has pool max, this run published. Use --pool max." in said


def test_layers_may_start_from_the_features(photos: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    still = ["--lr", "0", "--backbone-lr", "0", "--epochs", "1", "--init", "pca"]
    main(["train", str(photos), "--out", str(out), "--weights", str(trained / "embedder.safetensors"), *still, *SMALL])
    weight = weights(out)["penultimate.weight"]
    np.testing.assert_allclose(weight @ weight.T, np.eye(16), atol=1e-5)


@pytest.mark.parametrize("init", ["whiten", "ridge"])
def test_a_start_can_be_kept(init: str, photos: Path, trained: Path, tmp_path: Path) -> None:
    from_features = ["--weights", str(trained / "embedder.safetensors"), "--train", "all", "--init", init]
    from_features += ["--keep-init"]
    short, long = tmp_path / "short", tmp_path / "long"
    for out, epochs in ((short, "1"), (long, "3")):
        main(["train", str(photos), "--out", str(out), "--epochs", epochs, *from_features, *SMALL])
    one, three = weights(short), weights(long)
    assert np.array_equal(one["penultimate.weight"], three["penultimate.weight"])
    assert np.array_equal(one["penultimate.bias"], three["penultimate.bias"])
    assert not np.array_equal(one["class_layer.weight"], three["class_layer.weight"])
    assert not np.array_equal(one["backbone.blocks.0.0.weight"], three["backbone.blocks.0.0.weight"])
    assert f"--init {init} --keep-init" in json.loads((long / "results.json").read_text())["command"]
    assert "all layers except the embedding layer" in (long / "log.txt").read_text()


@pytest.mark.parametrize("init", ["whiten", "ridge"])
def test_new_layers_are_found_again_from_the_trained_features(
    init: str, photos: Path, trained: Path, tmp_path: Path
) -> None:
    given = ["--weights", str(trained / "embedder.safetensors"), "--train", "all", "--init", init, "--keep-init"]
    given += ["--no-mirror", "--shift", "0", "--epochs", "1", *SMALL]  # every epoch sees the same images
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, options in {
        "kept": [],
        "refit": ["--refit"],
        "still": ["--refit", "--lr", "0", "--backbone-lr", "0"],
    }.items():
        main(["train", str(photos), "--out", str(tmp_path / name), *given, *options])
        found[name] = weights(tmp_path / name)
    layer = "penultimate.weight"
    assert all(
        np.array_equal(found["kept"][each], found["refit"][each]) for each in found["kept"] if "backbone" in each
    )
    assert not np.allclose(found["kept"][layer], found["refit"][layer], atol=1e-3)
    still, kept = (found[name][layer].T @ found[name][layer] for name in ("still", "kept"))  # whatever the signs
    np.testing.assert_allclose(still, kept, atol=1e-3)
    # A run that was stopped before its results were written finds them again.
    (tmp_path / "refit" / "results.json").unlink()
    main(["train", "--resume", str(tmp_path / "refit")])
    again = weights(tmp_path / "refit")
    assert all(np.array_equal(found["refit"][each], again[each]) for each in again)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--init", "whiten", "--refit", "--no-keep-init"], "--refit computes the embedding layer again"),
        (["--init", "whiten", "--refit", "--train", "head"], "--refit needs features that training changes"),
        (
            ["--init", "ridge", "--loss", "triplet"],
            "--init ridge initialises the class layer, and there is none with --loss triplet",
        ),
        (["--init", "ridge", "--no-class-layer"], "and --no-class-layer: use --init whiten."),
        (["--init", "random"], "--keep-init freezes the result of --init: give --init pca or --init whiten."),
        (
            ["--init", "pca", "--train", "head", "--no-class-layer"],
            "--keep-init, --train head and --no-class-layer leave nothing to train: leave one out.",
        ),
    ],
)
def test_what_would_not_train_is_refused(
    options: list[str], complaint: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "train", str(photos), "--out", str(tmp_path / "run"), "--keep-init", *options, *SMALL)
    assert complaint in said
    assert not (tmp_path / "run").exists()


def test_what_is_chosen_for_photographs() -> None:
    head, top = (recipe_of("default", "googlenet", train) for train in ("head", "top"))
    assert (head.pool, head.init, head.keep_init) == ("max", "whiten", False)
    assert (top.pool, top.init, top.keep_init) == ("max", "whiten", True)
    assert recipe_of("default", "resnet18", "top").pool == "published"
    everything = recipe_of("default", "googlenet", "all")
    assert (everything.pool, everything.init, everything.keep_init, everything.refit) == ("max", "ridge", True, True)
    for usual in (recipe_of("default", "googlenet", None), recipe_of("paper", "googlenet", "all")):
        assert (usual.pool, usual.keep_init) == ("published", False)


def test_softmax_trains_the_same_network(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    main(["train", str(photos), "--out", str(out), "--epochs", "3", "--loss", "softmax", *SMALL])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] > lines[-1]["loss"] > 0
    assert lines[0]["loss"] == lines[0]["above_minimum"]


def test_a_folder_without_classes_is_embedded(trained: Path, photos: Path, tmp_path: Path) -> None:
    flat, file = tmp_path / "flat", tmp_path / "vectors.npz"
    flat.mkdir()
    for number in (10, 9, 1):
        shutil.copy(photos / "class 2" / "0.png", flat / f"{number}.dat")  # images by content, not by name
    main(["embed", str(trained), str(flat), "--out", str(file)])
    with np.load(file) as arrays:
        assert arrays["paths"].tolist() == ["1.dat", "9.dat", "10.dat"]
        np.testing.assert_allclose(arrays["vectors"], load(trained).encode(flat), atol=1e-6)


def test_who_measures_on_trained_classes_is_told(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["evaluate", str(trained), str(photos), "--no-clustering"])
    assert "note: 3 of the 8 classes have the names of classes that the model was trained on" in capsys.readouterr().err


def test_a_run_is_gone_on_with_from_another_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    main(["train", photos.name, "--out", str(tmp_path / "run"), "--epochs", "1", *SMALL])
    (tmp_path / "run" / "results.json").unlink()
    monkeypatch.chdir(tmp_path)
    main(["train", "--resume", "run"])
    assert (tmp_path / "run" / "results.json").exists()


def test_queries_and_gallery_of_vectors_are_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = np.array([[1.0, 0], [0.99, 0.1], [0, 1.0], [0.1, 0.99], [0.98, 0.2]])
    labels, file = np.array(["a", "b", "b", "b", "a"]), tmp_path / "vectors.npz"
    query, gallery = np.array([1, 0, 0, 0, 0], bool), np.array([0, 1, 1, 1, 1], bool)
    np.savez(file, vectors=vectors, labels=labels, query=query, gallery=gallery)
    row = json.loads(printed(capsys, "evaluate", str(file), "--json", "--no-clustering"))["vectors"]
    assert (row["queries"], row["recall_at_1"], row["recall_at_2"]) == (1, 0, 1)
    np.savez(file, vectors=vectors, labels=labels, query=query, gallery=gallery, sequence=np.array([7, 7, 1, 2, 3]))
    row = json.loads(printed(capsys, "evaluate", str(file), "--json", "--no-clustering"))["vectors"]
    assert row["recall_at_1"] == 1


def test_all_classes_may_train(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    results = printed(
        capsys, "train", str(photos), "--out", str(out), "--epochs", "1", "--test-classes", "0", "--json", *SMALL
    )
    assert json.loads(results)["trained"] is None
    assert "was trained on all classes. Give it others" in refused(capsys, "evaluate", str(out))
    assert "R@1" in printed(capsys, "evaluate", str(out), str(photos))


def test_broken_images_stop_training_or_are_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, copy)
    (copy / "class 1" / "0.png").write_bytes(b"no image")
    said = refused(capsys, "train", str(copy), "--out", str(out), "--epochs", "1", *SMALL)
    assert "class 1/0.png" in said
    assert "--skip-bad" in said
    main(["train", str(copy), "--out", str(out), "--epochs", "1", "--skip-bad", *SMALL])
    assert "1 images cannot be read and are left out" in capsys.readouterr().err
    assert "R@1" in printed(capsys, "evaluate", str(out))


def test_a_run_killed_before_its_first_checkpoint_starts_again(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    main(["train", str(photos), "--out", str(out), "--epochs", "1", *SMALL])
    before = weights(out)
    for name in ("checkpoint.safetensors", "results.json", "embedder.safetensors"):
        (out / name).unlink()
    main(["train", "--resume", str(out)])
    assert all(np.array_equal(before[name], after) for name, after in weights(out).items())


def run_of(epochs: int, photos: Path, out: Path) -> list[str]:
    return ["train", str(photos), "--out", str(out), "--epochs", str(epochs), "--seed", "5", *SMALL]


def gone_on_with(capsys: pytest.CaptureFixture[str], words: list[str], out: Path) -> str:
    """Finish a run that was killed, as what the command says has it; what was there of it."""
    if not (out / "environment.json").exists():
        said = refused(capsys, "train", "--resume", str(out))
        begun = f"{out} was stopped before its first checkpoint. Start it again: tammes train DATA --out"
        assert (begun if (out / ".lock").exists() else f"no run in {out}: ") in said
        main(words)
        return "nothing"
    state = RunFolder(out).state
    if state == "finished":  # killed in its last moments
        assert f"{out} has already finished. To see its results:" in refused(capsys, "train", "--resume", str(out))
    else:
        main(["train", "--resume", str(out)])
    return {"started": "a run without a checkpoint", "interrupted": "a checkpoint", "finished": "all"}[state]


WRITING = "tammes.io.files.fsync"  # a file is written, and has no name yet


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("kills", "epochs"), [(2, 3), pytest.param(50, 30, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_goes_on_to_the_very_same_weights(
    started: Callable[..., BaseProcess],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kills: int,
    epochs: int,
) -> None:
    """In turn at a random step, and as a random file is written: of those before the first checkpoint, and after."""
    rng, found, whole = random.Random(0), Counter[str](), tmp_path / "whole"
    main(run_of(epochs, photos, whole))
    results = json.loads((whole / "results.json").read_text())["trained"]
    for killed in range(kills):
        out, said = tmp_path / f"run {killed}", tmp_path / "said.txt"
        place, call = (WRITING, rng.randint(1, 12 + 3 * epochs)) if killed % 2 else (STEP, rng.randint(1, 3 * epochs))
        process = started(run_of(epochs, photos, out), said, partial(signal_at, place, call, signal.SIGKILL))
        process.join(HANGS)
        assert process.exitcode == -signal.SIGKILL, said.read_text()
        found[gone_on_with(capsys, run_of(epochs, photos, out), out)] += 1
        assert same_end(out, whole)
        assert json.loads((out / "results.json").read_text())["trained"] == results
    print(f"{kills} killed; there was {dict(found)}")
    assert found["a checkpoint"] > 0


@pytest.mark.parametrize(
    "at", ["images", *(pytest.param(name, marks=pytest.mark.slow) for name in ("config", "classes", "environment"))]
)
def test_a_run_killed_before_it_had_begun_is_started_again(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """There is nothing to lose yet, and nobody has to remove what is there."""
    out, write = tmp_path / "run", RunFolder.write
    words = ["train", str(photos), "--out", str(out), "--epochs", "1", *SMALL]

    def stopped(self: RunFolder, name: str, content: Any) -> None:
        if name == at:
            (out / f".{name}.json.x1y2.partial").touch()
            raise KeyboardInterrupt
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", stopped)
        with pytest.raises(SystemExit):
            main([*words, "--train", "head"])
    capsys.readouterr()
    assert refused(capsys, "train", "--resume", str(out)) == (
        f"tammes: {out} was stopped before its first checkpoint. Start it again: tammes train DATA --out {out}\n"
    )
    main(words)
    assert "R@1" in printed(capsys, "evaluate", str(out))
    names = {file.name for file in out.iterdir()}
    assert "classes.json" in names
    assert not {name for name in names if name.endswith(".partial")} | names & {"frozen.safetensors"}


@pytest.mark.xdist_group("processes")
def test_ctrl_c_saves_in_the_middle_of_an_epoch_and_says_how_to_go_on(
    started: Callable[..., BaseProcess], photos: Path, tmp_path: Path
) -> None:
    """The weights it resumes to are those of tests/test_resume.py."""
    out, said = tmp_path / "run", tmp_path / "said.txt"
    process = started(run_of(3, photos, out), said, partial(signal_at, STEP, 5, signal.SIGINT))
    process.join(HANGS)
    assert process.exitcode == 130, said.read_text()
    assert f"tammes train --resume {out}" in said.read_text().splitlines()[-1]
    assert "Ctrl-C again stops at once" in said.read_text()
    with safe_open(out / "checkpoint.safetensors", framework="np") as opened:
        position = json.loads(opened.metadata()["state"])["position"]
    assert (position["epoch"], position["step"]) == (2, 2)


def test_the_command_of_a_run_repeats_it(waves: Path, tmp_path: Path) -> None:
    """It says every option, also those that do not count, such as the momentum of Adam."""
    first, again = tmp_path / "a run", tmp_path / "again"
    main(["train", str(waves), "--out", str(first), *SMALL, "--epochs", "1"])
    words = shlex.split(json.loads((first / "results.json").read_text())["command"])
    assert "--momentum" in words
    main([str(again) if word == str(first) else word for word in words[1:]])
    ours, theirs = (load_file(folder / "embedder.safetensors") for folder in (first, again))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_the_command_of_a_run_is_what_a_shell_takes() -> None:
    given = {"out": Path("sp ace"), "loss": "triplet", "loss_options": ("margin=0.2",)}
    words = ["tammes", "train", "My birds", "--out", "sp ace", "--loss", "triplet", "--loss-options", "margin=0.2"]
    assert shlex.split(command_of("My birds", given)) == words


def test_a_run_that_is_stopped_while_it_measures_for_its_curve_measures_when_it_resumes(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", str(photos), "--backbone", "conv4", "--dim", "8", "--epochs", "3", "--curve", "1", "2", "3"]
    main([*words, "--out", str(tmp_path / "whole")])
    whole = [line.get("test_recall_at_1") for line in open_run(tmp_path / "whole").epochs()]
    assert whole[0] is not None
    assert whole[1] is not None
    assert whole[2] is None  # after the last epoch the results have it
    measure, calls = evaluate_images, 0

    def interrupted(*given: Any, **options: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 3:  # the second epoch of the curve; before it is the network before training
            signal.raise_signal(signal.SIGTERM)
        return measure(*given, **options)

    monkeypatch.setattr("tammes.training.train.evaluate_images", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--out", str(tmp_path / "run")])
    assert stopped.value.code == 130
    before = [line.get("test_recall_at_1") for line in open_run(tmp_path / "run").epochs()]
    assert before == [whole[0], None]
    main(["train", "--resume", str(tmp_path / "run")])
    assert [line.get("test_recall_at_1") for line in open_run(tmp_path / "run").epochs()] == whole
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_curve_is_of_epochs_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--curve names epochs, from 1, got 0" in refused(capsys, "train", "glyphs", "--curve", "0", "2")
