"""Training, runs and pretrained networks from Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tammes
from tammes import UserError
from tammes.training.config import TrainConfig
from tammes.vectors.config import VectorConfig

SMALL: dict[str, Any] = {"backbone": "conv4", "dim": 8, "batch_size": 32, "epochs": 2}


@pytest.fixture(scope="module")
def trained(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> tammes.Run:
    return tammes.train(waves, out=tmp_path_factory.mktemp("runs") / "waves", **SMALL)


def test_a_run_says_what_it_is(trained: tammes.Run) -> None:
    assert trained.state == "finished"
    assert isinstance(trained.config, TrainConfig)
    assert (trained.config.dim, trained.config.epochs) == (8, 2)
    assert 0 <= trained.metrics["recall_at_1"] <= 1
    assert trained.verdict["kept"] == "epoch 2"
    assert list(trained.history["epoch"]) == [1, 2]
    assert repr(trained) == f"Run({str(trained.folder)!r})"


def test_the_embedder_of_a_run_is_the_one_that_load_gives(trained: tammes.Run, waves: Path) -> None:
    image = next(waves.rglob("*.png"))
    ours = trained.embedder.encode([image])
    np.testing.assert_array_equal(ours, tammes.load(trained.folder).encode([image]))


def test_a_run_is_evaluated_reported_and_exported(trained: tammes.Run, waves: Path, tmp_path: Path) -> None:
    rows = trained.evaluate(clustering=False)
    assert rows["trained"]["recall_at_1"] == trained.metrics["recall_at_1"]
    assert trained.evaluate(waves, clustering=False)["trained"]["classes"] == 8
    page = trained.report(tmp_path / "page.html")
    assert "<html" in page.read_text()[:200].lower()
    assert trained.export(tmp_path / "x.safetensors", "safetensors").stat().st_size > 1000


def test_a_callback_sees_each_epoch_and_may_stop(waves: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def on_epoch(run: tammes.Run, epoch: dict[str, Any]) -> bool:
        seen.append((run.folder.name, epoch["epoch"]))
        return bool(epoch["epoch"] == 2)

    run = tammes.train(waves, out=tmp_path / "run", on_epoch=on_epoch, **SMALL | {"epochs": 5})
    assert seen == [("run", 1), ("run", 2)]
    assert run.state == "finished"
    assert run.verdict["kept"] == "epoch 2"


def test_a_callback_that_raises_leaves_a_run_that_resumes_to_the_same_weights(waves: Path, tmp_path: Path) -> None:
    def broken(_run: tammes.Run, epoch: dict[str, Any]) -> None:
        if epoch["epoch"] == 1:
            raise RuntimeError("the tracker is down")

    with pytest.raises(RuntimeError, match="tracker"):
        tammes.train(waves, out=tmp_path / "run", on_epoch=broken, **SMALL)
    run = tammes.load_run(tmp_path / "run")
    assert (run.state, run.metrics, run.verdict) == ("interrupted", {}, {})
    resumed = run.resume()
    whole = tammes.train(waves, out=tmp_path / "whole", **SMALL)
    ours, theirs = (each.embedder.state_dict() for each in (resumed, whole))
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


def test_vectors_are_trained_on_by_the_same_call(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 10)
    np.savez(
        tmp_path / "v.npz", vectors=random.normal(size=(8, 6))[labels] + random.normal(size=(80, 6)), labels=labels
    )
    run = tammes.train(tmp_path / "v.npz", out=tmp_path / "run", epochs=2)
    assert isinstance(run.config, VectorConfig)
    assert isinstance(run.embedder, tammes.MetricLearner)
    assert run.evaluate(clustering=False)["trained"]["recall_at_1"] == run.metrics["recall_at_1"]
    with pytest.raises(UserError, match="vectors"):
        run.export()


def test_options_may_be_python_values(waves: Path, tmp_path: Path) -> None:
    given = SMALL | {"loss": "lifted", "loss_options": {"margin": 0.3}, "test_classes": 4, "seed": None, "epochs": 1}
    config = tammes.train(waves, out=tmp_path / "run", **given).config
    assert isinstance(config, TrainConfig)
    assert (config.loss_options, config.test_classes, config.seed) == (("margin=0.3",), "4", 0)
    with pytest.raises(TypeError, match="epoch"):
        tammes.train(waves, out=tmp_path / "other", epoch=3)


def test_a_pretrained_network_compares_images_by_its_features(waves: Path) -> None:
    embedder = tammes.pretrained("conv4", weights="none")
    images = sorted(waves.rglob("*.png"))[:3]
    found = embedder.encode(images)
    assert found.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_the_package_shows_its_public_names() -> None:
    assert set(dir(tammes)) == {*tammes.__all__, "__version__"}
    assert {"train", "load_run", "pretrained", "Run", "load", "evaluate"} <= set(tammes.__all__)
