"""Never worse than the pretrained network, and said so: what is kept of a training, and the sentence about it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tammes import MetricLearner
from tammes.cli import main
from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.training.build import trained_embedder
from tammes.training.config import load_config
from tammes.training.data import list_data
from tammes.training.run_folder import RunFolder, centroids_of
from tammes.training.verdict import Candidates, by_class, candidates_again, describe, measured_rows, not_judged, sure
from tests.commands import printed, small_set
from tests.compared import same_end
from tests.configs import config_of, data_of

SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "16", "--test-classes", "4")
HURTS = ("--optimizer", "sgd", "--lr", "10", "--backbone-lr", "1", "--epochs", "2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """28 classes of five images: stripes of a class's own angle and width, in noise; 24 train, 5 of them validate."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for number in range(28):
        (root / f"class {number:02}").mkdir()
        for image in range(5):
            angle, width = number % 7 * 0.45, 0.35 + 0.15 * (number // 7)
            wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * width + rng.uniform(0, 6))
            pixels = 128 + 80 * wave + rng.normal(0, 25, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class {number:02}" / f"{image}.png")
    return root


def trained(photos: Path, out: Path, *options: str) -> Path:
    main(["train", str(photos), "--out", str(out), *SMALL, *options])
    return out


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def helped(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(photos, tmp_path_factory.mktemp("runs") / "helped", "--epochs", "4", "--seed", "2")


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many classes, each of a pattern of its own in a little noise: any network tells them apart."""
    root, rng = tmp_path_factory.mktemp("patterns"), np.random.default_rng(0)
    for number in range(28):
        (root / f"class {number:02}").mkdir()
        pattern = rng.uniform(40, 215, (4, 4)).repeat(7, 0).repeat(7, 1)
        for image in range(5):
            pixels = pattern + rng.normal(0, 5, (28, 28))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class {number:02}" / f"{image}.png")
    return root


@pytest.fixture(scope="module")
def hurt(patterns: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that can only take away."""
    return trained(patterns, tmp_path_factory.mktemp("runs") / "hurt", *HURTS)


def candidates(**recalls: list[float]) -> Candidates:
    """Those of four classes of ten queries each."""
    found = Candidates()
    for name, right in recalls.items():
        found.add(name.replace("_", " "), [10] * 4, right)
    return found


def test_by_class_adds_up_to_the_recall_of_evaluate() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(60, 3)), rng.integers(5, size=60)
    queries, right = by_class(vectors, labels)
    assert queries == np.bincount(labels).tolist()
    expected = evaluate(vectors, labels, ks=(1,), clustering=False, bootstrap=0)["recall_at_1"]
    assert sum(right) / sum(queries) == pytest.approx(expected, abs=1e-9)


def test_the_standard_error_of_classes_of_one_size_is_that_of_the_mean_of_their_differences() -> None:
    found = candidates(pretrained=[5, 6, 7, 8], epoch_1=[6, 8, 7, 9])
    differences = np.array([0.1, 0.2, 0.0, 0.1])
    gain, error = found.gain("epoch 1", "pretrained")
    assert gain == pytest.approx(differences.mean())
    assert error == pytest.approx(differences.std(ddof=1) / 2)


@pytest.mark.parametrize(
    ("recalls", "kept"),
    [
        ({"pretrained": [5, 5, 5, 5], "whitened": [6, 6, 6, 6], "epoch_1": [7, 7, 7, 7]}, "epoch 1"),
        ({"pretrained": [5, 5, 5, 5], "whitened": [4, 4, 4, 4], "epoch_1": [4, 4, 4, 5]}, "pretrained"),
        ({"pretrained": [5, 5, 5, 5], "whitened": [6, 6, 6, 6], "epoch_1": [5, 8, 5, 7]}, "whitened"),  # by luck
        ({"pretrained": [5, 5, 5, 5], "epoch_1": [7, 7, 7, 7], "epoch_2": [6, 6, 9, 8]}, "epoch 2"),
        ({"pretrained": [5, 5, 5, 5], "epoch_1": [7, 7, 7, 7], "epoch_2": [6, 6, 7, 7]}, "epoch 1"),
        ({"pretrained": [5, 5, 5, 5], "epoch_1": [5, 5, 5, 5]}, "pretrained"),
    ],
)
def test_a_simpler_candidate_is_kept_unless_the_gain_exceeds_its_standard_error(
    recalls: dict[str, list[float]], kept: str
) -> None:
    assert candidates(**recalls).kept == kept


@pytest.mark.parametrize(
    ("before", "after", "clear"),
    [
        ([14, 14, 15], [15, 15, 15], False),  # two queries, though the standard error over classes is half of it
        ([14, 14], [15, 15], False),  # as much in each class, so that there is no error over classes
        ([14, 14, 14], [15, 15, 15], True),
        ([13, 14, 14], [15, 15, 15], True),
        ([10, 14, 14], [14, 14, 14], False),  # one class alone
        ([10, 14], [12, 15], False),
        ([10, 10], [15, 15], True),
    ],
)
def test_few_classes_want_more_than_one_standard_error(before: list[float], after: list[float], clear: bool) -> None:
    found = Candidates([15] * len(before), {"pretrained": before, "epoch 1": after}, "pretrained")
    assert found.is_clear("epoch 1", "pretrained") == clear


def test_a_gain_of_few_classes_is_as_unlikely_as_one_standard_error_of_many() -> None:
    rng = np.random.default_rng(0)
    for number in (2, 3, 5):
        drawn = rng.normal(size=(200_000, number))
        by_chance = drawn.mean(axis=1) > sure(number) * drawn.std(axis=1, ddof=1) / np.sqrt(number)
        assert by_chance.mean() == pytest.approx(0.1587, abs=0.004)


@pytest.mark.parametrize(("test_classes", "held_out"), [("17", 0), ("16", 3), ("9", 5), ("8", 4)])
def test_how_many_of_few_training_classes_are_held_out(photos: Path, test_classes: str, held_out: int) -> None:
    found = list_data(config_of(str(photos), backbone="conv4", test_classes=test_classes)).classes()
    assert (len(found["train"]), len(found["val"])) == (28 - int(test_classes) - held_out, held_out)


def test_an_epoch_that_is_measured_again_is_not_taken_for_another() -> None:
    found = candidates(pretrained=[5, 5, 5, 5], epoch_1=[7, 7, 7, 7])
    assert not found.add("epoch 1", [10] * 4, [7, 7, 7, 6])  # its weights are those that were saved before
    assert found.right["epoch 1"] == [7, 7, 7, 7]


def test_the_sentence_says_what_was_kept_and_by_how_much() -> None:
    helped = {"verdict": candidates(pretrained=[5, 5, 5, 5], epoch_1=[6, 7, 6, 7]).verdict()}
    assert "+15.0 points" in describe(helped)
    assert "epoch 1 is kept" in describe(helped)
    hurt = {"verdict": candidates(pretrained=[5, 5, 5, 5], epoch_1=[4, 4, 5, 5]).verdict()}
    assert "did not help" in describe(hurt)
    assert "-5.0 points" in describe(hurt)
    assert "the pretrained embedding is kept" in describe(hurt)
    between = candidates(pretrained=[5, 5, 5, 5], whitened=[6, 6, 6, 6], epoch_1=[5, 6, 5, 6]).verdict()
    assert "the whitened embedding is kept" in describe({"verdict": between})
    assert describe({}) == ""


def test_a_training_that_helped_keeps_its_best_epoch(helped: Path) -> None:
    found = results(helped)
    verdict = found["verdict"]
    assert verdict["judged"]
    assert set(verdict["candidates"]) == {"pretrained", "whitened", "epoch 1", "epoch 2", "epoch 3", "epoch 4"}
    recalls = {name: each["recall_at_1"] for name, each in verdict["candidates"].items()}
    epochs = {name: recall for name, recall in recalls.items() if name.startswith("epoch")}
    assert verdict["kept"] == max(epochs, key=lambda name: epochs[name])
    assert verdict["gain"] == pytest.approx(100 * (recalls[verdict["kept"]] - recalls["pretrained"]))
    low, high = verdict["gain_interval"]
    assert low < verdict["gain"] < high
    lines = RunFolder(helped).epochs()
    assert [line["val_recall_at_1"] for line in lines] == pytest.approx(list(epochs.values()))
    assert "Training helped" in (helped / "log.txt").read_text()
    assert not (helped / "best").exists()


def test_a_training_that_hurt_keeps_the_pretrained_embedding_and_says_so(hurt: Path) -> None:
    found = results(hurt)
    assert found["verdict"]["kept"] == "pretrained"
    assert "the pretrained embedding is kept" in (hurt / "log.txt").read_text()
    assert found["trained"]["recall_at_1"] == found["untrained"]["recall_at_1"] == 1
    assert "recall_at_1" in found["last"]
    kept, last = load(hurt), load(hurt / "last")
    assert (kept.config.dim, kept.config.class_dim, last.config.dim, last.config.class_dim) == (64, None, 16, 19)
    images = torch.rand(3, 1, 28, 28) * 255
    torch.testing.assert_close(kept(images), normalise(kept.features(images)), rtol=0, atol=0)


def test_evaluate_does_not_call_trained_what_was_not(hurt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(hurt), "--no-clustering"])
    shown = capsys.readouterr().out
    assert "kept: pretrained" in shown
    assert " trained " not in shown


def test_a_network_of_random_weights_is_not_called_pretrained() -> None:
    results = {"untrained": {"recall_at_1": 0.1}, "trained": {"recall_at_1": 0.2}}
    assert list(measured_rows(results, {"weights": "none"})) == ["random weights", "trained"]
    assert list(measured_rows(results, {"weights": "none", "init_from": "runs/a"})) == ["pretrained", "trained"]
    assert list(measured_rows(results, {"weights": "imagenet"})) == ["pretrained", "trained"]


def test_what_comes_after_training_works_on_a_pretrained_embedding(
    hurt: Path, patterns: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "the pretrained embedding is kept"
    found, run = results(hurt), str(hurt)
    rows = json.loads(printed(capsys, "evaluate", run, "--json"))
    assert rows["trained"]["mean_average_precision_at_r"] == found["trained"]["mean_average_precision_at_r"]
    assert json.loads(printed(capsys, "runs", str(hurt.parent), "--json"))[0]["verdict"] == found["verdict"]
    assert f"hurt: {describe(found)}" in printed(capsys, "runs", str(hurt.parent))
    printed(capsys, "report", run, "--map", "none", "--out", str(tmp_path / "report.html"))
    assert sentence in (tmp_path / "report.html").read_text()
    calibrated = json.loads(printed(capsys, "calibrate", run, "--fmr", "0.1", "--json"))
    assert "validation classes" in calibrated["measured_on"]
    file = tmp_path / "model"
    exported = printed(capsys, "export", run, "--format", "hub", "--out", str(file), "--json")
    assert json.loads(exported)["max_difference"] < 1e-4
    assert sentence in (file / "README.md").read_text()
    assert f"trained on {patterns.name}" not in (file / "README.md").read_text()
    assert load(file).config == load(hurt).config
    points = centroids_of(RunFolder(hurt))
    assert points is not None
    assert points.shape == (19, 19)  # those of the training, not of what is kept


def test_another_run_starts_from_the_last_epoch_where_what_is_kept_was_not_trained(
    hurt: Path,
) -> None:
    embedder = trained_embedder(hurt)
    assert embedder.config == load(hurt / "last").config
    with pytest.raises(UserError, match="`compatible`.*pretrained"):
        trained_embedder(hurt, only_kept=True)


def test_what_was_judged_survives_a_stop(
    patterns: Path, hurt: Path, tmp_path: Path, stopped_and_resumed: Callable[[list[str], Path, int], None]
) -> None:
    run = tmp_path / "stopped"
    stopped_and_resumed(["train", str(patterns), *SMALL, *HURTS], run, 8)  # six steps an epoch
    assert same_end(run, hurt)
    assert results(run)["verdict"] == results(hurt)["verdict"]
    assert json.loads((run / "candidates.json").read_text()) == json.loads((hurt / "candidates.json").read_text())
    assert (run / "embedder.safetensors").read_bytes() == (hurt / "embedder.safetensors").read_bytes()


def test_a_record_of_candidates_that_was_damaged_is_refused(hurt: Path) -> None:
    said = json.loads((hurt / "candidates.json").read_text())
    said["right"]["pretrained"].pop()
    with pytest.raises(UserError, match=r"candidates\.json.*remove it"):
        candidates_again(said, "candidates.json", "Have it made again: remove it.")


@pytest.mark.parametrize("options", [("--val-classes", "0"), ("--preset", "paper"), ("--test-classes", "17")])
def test_without_validation_classes_the_last_epoch_is_kept_and_nothing_is_judged(
    photos: Path, tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(photos, tmp_path / "run", "--epochs", "1", *options)
    verdict = results(run)["verdict"]
    assert (verdict["kept"], verdict["judged"], verdict["gain"]) == ("epoch 1", False, None)
    assert "not measured whether training helped" in capsys.readouterr().err
    assert json.loads((run / "classes.json").read_text())["val"] == []
    assert (run / "embedder.safetensors").read_bytes() == (run / "last" / "embedder.safetensors").read_bytes()


def test_an_unjudged_training_that_hurts_on_the_test_classes_says_so() -> None:
    measured = {"untrained": {"recall_at_1": 0.9911}, "trained": {"recall_at_1": 0.5725}}
    assert "41.9 points below" in describe({"verdict": not_judged("ridge"), **measured})
    assert "below" not in describe({"verdict": not_judged("ridge"), "trained": measured["untrained"]})


def test_a_run_of_before_there_were_verdicts_is_read_as_it_was_split(helped: Path) -> None:
    run = RunFolder(helped)
    classes = run.read("classes")
    before = classes | {"train": sorted([*classes["train"], *classes["val"]]), "val": []}
    assert data_of(load_config(run), before).split.val is None
    assert data_of(load_config(run), classes).classes() == {use: classes[use] for use in ("train", "val", "test")}


def test_head_trains_the_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two losses from one initialisation give two embeddings; before, both were the closed form that they began as."""
    small_set(tmp_path / "few", ["a", "b", "c", "d"])
    options = ("--backbone", "timm:test_resnet", "--weights", "none", "--train", "head", "--epochs", "1", "--dim", "8")
    images, found = sorted((tmp_path / "few").glob("*/*"))[:4], {}
    for loss in ("discriminative", "hard-discriminative"):
        run = tmp_path / loss
        main(["train", str(tmp_path / "few"), "--test-classes", "0", "--out", str(run), "--loss", loss, *options])
        assert "the embedding layer and the class layer" in capsys.readouterr().err
        found[loss] = load(run / "last").encode(images)
    assert np.abs(found["discriminative"] - found["hard-discriminative"]).max() > 1e-5


def test_the_whitened_embedding_has_no_more_dimensions_than_directions() -> None:
    embedder = Embedder(EmbedderConfig("conv4", dim=32))
    features, labels = torch.rand(12, 64), torch.arange(12) // 3
    found = embedder.closed_form(features, labels)
    assert found.config.dim == 11
    whole = Embedder(EmbedderConfig("conv4", dim=11))
    whole.init_from(features, labels)
    torch.testing.assert_close(found.embedding(features), whole.embedding(features))


def vectors(noise: float, wide: float, *, classes: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Classes around random centres; in half of the columns they spread by `wide`, in the others by `noise`."""
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(classes, 16)), np.repeat(np.arange(classes), 12)
    return centres[labels] + rng.normal(size=(len(labels), 16)) * np.repeat([noise, wide], 8), labels


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_vectors_that_nothing_improves_on_stay_as_they_are(method: Any, tmp_path: Path) -> None:
    given, labels = vectors(0.1, 0.1)
    learner = MetricLearner(method=method, random_state=0).fit(given, labels)
    assert learner.verdict_["kept"] == "pretrained"
    assert learner.verdict_["gain"] <= 0
    unit = given / np.linalg.norm(given, axis=1, keepdims=True)
    np.testing.assert_allclose(learner.transform(given), unit, atol=1e-12)
    learner.save(tmp_path)
    again = MetricLearner.load(tmp_path)
    assert again.verdict_ == learner.verdict_
    np.testing.assert_array_equal(again.transform(given), learner.transform(given))


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_vectors_are_mapped_where_that_helps(method: Any) -> None:
    given, labels = vectors(0.1, 5.0)
    learner = MetricLearner(method=method, random_state=0).fit(given, labels)
    assert learner.verdict_["kept"] != "pretrained"
    recalls = {name: each["recall_at_1"] for name, each in learner.verdict_["candidates"].items()}
    assert recalls[learner.verdict_["kept"]] > recalls["pretrained"] + 0.1


def test_vectors_as_they_are_are_not_kept_in_a_dimension_that_is_not_theirs() -> None:
    given, labels = vectors(0.1, 0.1)
    learner = MetricLearner(8, random_state=0).fit(given, labels)
    assert "pretrained" in learner.verdict_["candidates"]
    assert learner.verdict_["kept"] != "pretrained"
    assert learner.transform(given).shape[1] == 8


def test_the_verdict_on_vectors_is_in_the_run_folder_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, labels = vectors(0.1, 0.1)
    np.savez(tmp_path / "vectors.npz", vectors=given, labels=labels)
    run = tmp_path / "run"
    main(["train", str(tmp_path / "vectors.npz"), "--method", "ridge", "--out", str(run)])
    assert "the pretrained embedding is kept" in capsys.readouterr().err
    found = results(run)
    assert found["verdict"]["judged"]
    assert found["trained"]["recall_at_1"] == found["untrained"]["recall_at_1"]
    rows = json.loads(printed(capsys, "evaluate", str(run), "--json"))
    assert rows["trained"]["NMI"] == pytest.approx(found["trained"]["NMI"], abs=1e-9)
    printed(capsys, "report", str(run), "--map", "none", "--out", str(tmp_path / "report.html"))
    assert "the vectors as they are" in (tmp_path / "report.html").read_text()


def test_learning_goes_on_from_the_last_epoch_where_vectors_stay_as_they_are() -> None:
    given, labels = vectors(0.1, 0.1)
    learner = MetricLearner(random_state=0, epochs=3).fit(given, labels)
    assert learner.verdict_["kept"] == "pretrained"
    learner.partial_fit(given[:100], labels[:100])
    assert not np.allclose(learner.transform(given), given / np.linalg.norm(given, axis=1, keepdims=True))
    assert not hasattr(learner, "verdict_")
