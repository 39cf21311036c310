"""Presets: the paper's is the paper on any machine, and under each of them every method trains."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tammes import UserError
from tammes.cli import main
from tammes.data.batches import Batches
from tammes.training.build import (
    build_backbone,
    build_loss,
    build_objective,
    build_optimizer,
    cut_of,
    freeze,
    init_layers,
    leaving_no_trace,
)
from tammes.training.config import TrainConfig
from tammes.training.data import Data, centre_batches, keep_activations, load_data, size_of_epoch, training_batches
from tammes.training.evaluation import all_loss_inputs
from tammes.training.loop import cosine, fit, halved_every
from tammes.training.objectives import METHODS, Objective
from tests.configs import config_of, data_of, embedder_of

STEPS = 60
EVERY = pytest.mark.parametrize(
    ("name", "base"), [(name, base) for name, method in METHODS.items() for base in (method.bases or [None])]
)
# What is in every run of the tests; the rest is `slow`.
USUAL = {
    ("discriminative", "default"),
    ("discriminative", "paper"),
    ("hard-discriminative", "default"),
    ("softmax", "default"),
    ("triplet-semihard", "paper"),
    ("proxy-anchor", "default"),
    ("npair", "paper"),
}
ON_GLYPHS = [
    pytest.param(name, base, preset, marks=() if (name, preset) in USUAL else pytest.mark.slow)
    for name, method in METHODS.items()
    for base in (method.bases or [None])
    for preset in ("default", "paper")
]
PRESETS = pytest.mark.parametrize("preset", ["default", "paper"])


# ---- what the preset is


def test_the_paper_is_the_paper_without_a_gpu() -> None:
    config = config_of("photos", preset="paper", device="cpu")
    assert (config.backbone, config.weights, config.train, config.views) == ("googlenet", "imagenet", "all", None)
    assert (config.centroids, config.batch_size, config.epochs, config.dim) == ("one-hot", 128, 40, 256)
    assert (config.optimizer, config.lr, config.backbone_lr, config.momentum) == ("sgd", 0.1, 0.01, 0.9)
    assert (config.schedule, config.halve_every, config.weight_decay) == ("halve", 5, 5e-4)
    assert (config.pool, config.init, config.keep_init) == ("published", "random", False)
    assert (config.mirror, config.shift, config.sampler) == (True, 0, "shuffled")


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"grow_from": 96, "epochs": 5}, [96, 128, 160, 192, 224]),
        ({"grow_from": 100, "epochs": 2}, [96, 224]),
        ({"epochs": 2, "preset": "paper"}, [224, 224]),
    ],
)
def test_images_grow_from_epoch_to_epoch(given: dict[str, Any], sizes: list[int]) -> None:
    config = config_of("photos", device="cpu", backbone="googlenet", train="all", **given)
    assert [size_of_epoch(config, 224, epoch) for epoch in range(1, config.epochs + 1)] == sizes
    assert size_of_epoch(config, 224, 0) == sizes[0]  # what the new layers are initialised on


def test_training_images_are_crops_of_any_area_in_the_size_of_the_epoch(waves: Path) -> None:
    config = config_of(
        str(waves), device="cpu", backbone="timm:test_resnet", weights="none", crop_area=0.2, grow_from=64
    )
    data = load_data(config, build_backbone(config))
    assert data.size == 160
    shapes = [next(iter(training_batches(config, data, epoch)))[0].shape[2:] for epoch in (1, config.epochs)]
    assert shapes == [(64, 64), (160, 160)]
    assert centre_batches(data, data.split.train, torch.device("cpu")).num_images == len(data.split.train)


def test_what_is_given_overrides_the_paper() -> None:
    config = config_of("photos", preset="paper", device="cpu", backbone="resnet18", train="top", epochs=3, lr=0.5)
    assert (config.backbone, config.train, config.epochs, config.lr) == ("resnet18", "top", 3, 0.5)
    assert (config.batch_size, config.centroids) == (128, "one-hot")


@pytest.mark.parametrize("given", [{"data": "glyphs"}, {"data": "photos", "backbone": "conv4"}])
def test_characters_have_the_papers_recipe_without_what_presumes_pretrained_photos(given: dict[str, str]) -> None:
    config = config_of(**given, preset="paper", device="cpu")
    assert (config.backbone, config.weights, config.train) == ("conv4", "none", "all")
    assert (config.mirror, config.shift, config.backbone_lr) == (False, 2, config.lr)
    assert (config.lr, config.batch_size, config.epochs, config.centroids) == (0.1, 128, 40, "one-hot")


def test_the_time_is_said_before_any_image_is_decoded(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("decoding begins")

    monkeypatch.setattr("tammes.training.data.decode_for", refuse)
    given = ["train", str(waves), "--backbone", "conv4", "--device", "cpu", "--out", str(tmp_path / "run")]

    def said(*more: str) -> str:
        with pytest.raises(SystemExit):
            main([*given, *more])
        return capsys.readouterr().err

    found = said("--preset", "paper")
    assert "40 epochs of 24 images, about" in found
    assert "Cheaper: --epochs 5" in found
    assert found.index("about") < found.index("decoding begins")
    assert "Cheaper: --epochs" not in said("--preset", "paper", "--epochs", "2")
    assert "epochs of" not in said()


def made(config: TrainConfig, data: Data) -> tuple[TrainConfig, Data, Objective]:
    """Network and loss as training begins, in full precision."""
    config = replace(config, precision="no")
    embedder = embedder_of(config, data.num_slots)
    config = replace(config, cut=cut_of(config, embedder))
    loss, frozen = build_loss(config, data, embedder), freeze(config, embedder)
    objective = build_objective(config, embedder, loss, frozen)
    data = replace(data, kept=keep_activations(config, data, frozen))
    init_layers(config, data, objective)
    return config, data, objective


# ---- the norm that embeddings begin at


@pytest.mark.xdist_group("glyphs")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_embeddings_that_a_loss_does_not_normalise_begin_at_its_norm(optimizer: str) -> None:
    given = config_of(device="cpu", loss="npair", optimizer=optimizer, lr=0.5, batch_size=32)
    config, data, objective = made(given, glyphs())
    inputs, _, _ = next(iter(training_batches(config, data, 1)))
    with torch.no_grad(), leaving_no_trace(objective):
        norms = objective.embedder.penultimate(objective.features(inputs)).norm(dim=1)
    assert norms.mean().item() == pytest.approx(3, rel=0.15)
    assert objective.gain < 0.5
    groups = build_optimizer(config, objective).param_groups
    rates = {id(each): (group["lr"], group["weight_decay"]) for group in groups for each in group["params"]}
    layer, factor = objective.embedder.embedding_layers()[0], objective.gain ** (2 if optimizer == "sgd" else 1)
    assert rates[id(layer.weight)] == pytest.approx((0.5 * factor, 5e-4 / factor))
    assert rates[id(layer.bias)] == (0.5, 0)


@pytest.mark.xdist_group("glyphs")
def test_a_loss_that_normalises_leaves_the_layer_as_it_was_initialised() -> None:
    """The paper's own loss above all: it is trained to the letter."""
    for name, method in METHODS.items():
        if method.built_on(None).initial_norm is None:
            continue
        assert name in ("softmax", "lifted", "npair", "center", "deepncm", "prototypical", "daml", "dvml")
    given = config_of(device="cpu", preset="paper")
    config, _, objective = made(given, glyphs())
    fresh = embedder_of(config, 20)
    assert objective.gain == 1
    torch.testing.assert_close(objective.embedder.penultimate.weight, fresh.penultimate.weight)
    assert {group["lr"] for group in build_optimizer(config, objective).param_groups} == {0.1}


# ---- every method trains


@cache
def glyphs() -> Data:
    """The embedded data set, of which 20 classes train."""
    data = data_of(config_of("glyphs", device="cpu"))
    few = data.labels < 20
    parts = replace(data.split, train=data.split.train[few])
    return replace(data, split=parts, labels=data.labels[few], class_names=data.class_names[:20])


def trained(given: TrainConfig, data: Data) -> tuple[list[float], float, float, Objective]:
    """The losses of so many steps as the preset has them, and that of the same few batches before and after them."""
    config, data, objective = made(given, data)
    schedule = halved_every(config.halve_every) if config.schedule == "halve" else cosine(config.epochs)
    steps: list[float] = []
    some: list[tuple[Tensor, Tensor, Tensor]] = []

    def total(inputs: Tensor, labels: Tensor) -> float:
        return sum(float(part.detach()) for part in objective(inputs, labels).values())

    @torch.no_grad()
    def on_the_same() -> float:
        with leaving_no_trace(objective):
            return float(np.mean([total(inputs, labels) for inputs, labels, _ in some]))

    before: list[float] = []

    def batches(epoch: int) -> Batches:
        found = training_batches(config, data, epoch, loss=objective.loss)
        if not before:  # here the loss has looked at all images, and mined its batches
            some.extend(islice(found, 6))
            before.append(on_the_same())
        return found

    def see(_module: object, _given: object, parts: dict[str, Tensor]) -> None:
        if torch.is_grad_enabled():
            steps.append(sum(float(part.detach()) for part in parts.values()))

    objective.register_forward_hook(see)
    for _ in fit(
        objective, batches, build_optimizer(config, objective), epochs=config.epochs, schedule=schedule,
        stop=lambda: len(steps) >= STEPS, everything=lambda: all_loss_inputs(data, objective),
    ):  # fmt: skip
        pass
    objective.train()
    return steps, before[0], on_the_same(), objective


@pytest.mark.xdist_group("glyphs")
@pytest.mark.parametrize(("name", "base", "preset"), ON_GLYPHS)
def test_sixty_steps_on_glyphs(name: str, base: str | None, preset: str) -> None:
    given = config_of(device="cpu", loss=name, preset=preset, batch_size=16, **({} if base is None else {"base": base}))
    steps, before, after, _ = trained(given, glyphs())
    assert len(steps) == STEPS
    assert np.isfinite(steps).all()
    assert after < before - 1e-3 * abs(before)


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainConfig]:
    """Options with a few classes of CUB and real weights; the features are kept in the cache."""
    place = Path(os.environ.get("TAMMES_DATA", ""))
    weights = place.parent / "weights" / "googlenet-bvlc-imagenet.fp16.safetensors"
    if "TAMMES_DATA" not in os.environ or not weights.is_file() or not (place / "CUB_200_2011").is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/, beside weights/")
    rows = ["path,label"]
    for number, folder in enumerate(sorted((place / "CUB_200_2011" / "images").iterdir())[:26]):
        rows += [f"{file},{folder.name}" for file in sorted(folder.iterdir())[: 25 if number < 24 else 5]]
    table = tmp_path_factory.mktemp("birds") / "birds.csv"
    table.write_text("\n".join(rows) + "\n")
    real: dict[str, Any] = {"data": str(table), "test_classes": "2", "backbone": "googlenet", "weights": str(weights)}
    return lambda **given: config_of(**real, **given, train="head", device="cpu")


@pytest.mark.data
@PRESETS
@EVERY
def test_sixty_steps_on_real_features(
    birds: Callable[..., TrainConfig], name: str, base: str | None, preset: str
) -> None:
    given = birds(loss=name, preset=preset, **({} if base is None else {"base": base}))
    steps, before, after, objective = trained(given, data_of(given))
    assert len(steps) == STEPS
    assert np.isfinite(steps).all()
    assert after < before
    print(
        f"\n{name} {base or ''} {preset}: step 1 {steps[0]:.4f}, step 60 {steps[-1]:.4f}; {before:.4f} -> {after:.4f}"
    )
    assert objective.gain == 1 or METHODS[name].built_on(base).initial_norm is not None
