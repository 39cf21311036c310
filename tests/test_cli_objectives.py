"""`tammes train` with what is more than a loss, on the losses of their own papers and on the discriminative loss."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tammes
from tammes.cli import main
from tammes.losses import DiscriminativeLoss
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.build import build_optimizer
from tammes.training.objectives import DAML, MORE_THAN_LOSSES, Base, ClassLayer, Objective
from tests.configs import config_of

SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "12", "--epochs", "2", "--device", "cpu")
BUILT = [(name, base) for name, method in MORE_THAN_LOSSES.items() for base in method.bases]


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        pytest.param(name, base, marks=() if base == next(iter(MORE_THAN_LOSSES[name].bases)) else pytest.mark.slow)
        for name, base in BUILT
    ],
)
def test_each_trains_on_each_of_its_bases_and_is_found_again(
    name: str, base: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    main(["train", str(waves), *SMALL, "--loss", name, "--base", base, "--out", str(run), "--json"])
    results = json.loads(capsys.readouterr().out)
    assert 0 <= results["trained"]["recall_at_1"] <= 1
    assert f"--loss {name} --base {base}" in results["command"]
    parts = {"daml": {"generator"}, "dvml": {"kl", "reconstruction"}}.get(name, set())
    assert all({"loss", *parts} <= line.keys() for line in lines_of(run))
    vectors = tammes.load(run).encode(sorted(waves.glob("class 7/*.png")))
    assert vectors.shape == (6, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    main(["evaluate", str(run), "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["trained"]["recall_at_1"] == pytest.approx(results["trained"]["recall_at_1"], abs=1e-9)


@pytest.mark.parametrize(("name", "stop_at"), [("daml", 1), ("daml", 3), ("dvml", 3), ("hdc", 3), ("bier", 3)])
def test_each_goes_on_to_the_very_same_weights(
    name: str, stop_at: int, waves: Path, tmp_path: Path, stopped_and_resumed: Callable[[list[str], Path, int], None]
) -> None:
    """Stopped in the middle of an epoch: its phase, its draws and what it learns besides are as they were."""
    from safetensors.numpy import load_file

    given = ["train", str(waves), *SMALL, "--loss", name, "--base", "discriminative"]
    main([*given, "--out", str(tmp_path / "whole")])
    stopped_and_resumed(given, tmp_path / "part", stop_at)
    whole, part = (load_file(tmp_path / run / "embedder.safetensors") for run in ("whole", "part"))
    assert all(np.array_equal(whole[key], part[key]) for key in whole)
    assert [line["loss"] for line in lines_of(tmp_path / "whole")] == [
        line["loss"] for line in lines_of(tmp_path / "part")
    ]


@pytest.mark.parametrize("part", ["head", "top"])
@pytest.mark.parametrize("base", ["contrastive", "discriminative"])
def test_hdc_trains_on_activations_that_are_kept(
    part: str, base: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--loss", "hdc", "--base", base, "--train", part, "--init", "pca", "--out", str(tmp_path / "run")]
    main(["train", str(waves), *SMALL, *given, "--json"])
    kept = json.loads(capsys.readouterr().out)["trained"]["recall_at_1"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["cut"] == (None if part == "head" else "blocks.2")
    main(["evaluate", str(tmp_path / "run"), "--json"])  # from the images themselves
    assert json.loads(capsys.readouterr().out)["trained"]["recall_at_1"] == pytest.approx(kept, abs=0.06)


def test_what_enters_the_depths_is_kept_apart_from_plain_features(waves: Path, tmp_path: Path) -> None:
    """A run of another method must not find the features of three depths in the cache, nor the other way round."""
    for loss in ("hdc", "discriminative", "hdc"):
        main(["train", str(waves), *SMALL, "--loss", loss, "--train", "head", "--out", str(tmp_path / "run"),
              "--init", "pca", "--no-keep-init", "--overwrite"])  # fmt: skip
    assert tammes.load(tmp_path / "run").penultimate.features == (64, 64, 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--loss", "hdc", "--base", "triplet"], "unknown base of HDC 'triplet'. Known: contrastive, discriminative."),
        (
            ["--base", "discriminative"],
            "--base is for objectives that are built on another loss, and discriminative is a loss: drop --base.",
        ),
        (
            ["--loss", "bier", "--centroids", "one-hot"],
            "--centroids is for --loss discriminative or hard-discriminative, not for bier with this base: "
            "add --base discriminative.",
        ),
        (
            ["--loss", "daml", "--embedding", "last"],
            "--loss daml does not compare images by a class layer: drop --embedding last.",
        ),
        (
            ["--loss", "dvml", "--centroid-dim", "3"],
            "--loss dvml is computed on the features, without a class layer: drop --centroid-dim.",
        ),
        (
            ["--loss", "hdc", "--train", "top", "--cut", "blocks.3"],
            "the input of blocks.2 is used as features, so the cut cannot be above it: 'blocks.3'. "
            "Use --cut blocks.2 or lower.",
        ),
        (["--loss", "hdc", "--dim", "2"], "HDC has 3 heads: --dim must be at least 3, got 2."),
        (
            ["--loss", "bier", "--train", "top", "--init", "pca", "--keep-init", "--loss-options",
             "diversity=1"],
            "diversity trains the embedding layer, which --keep-init freezes: drop one.",
        ),
        (["--loss", "hcd"], "unknown loss 'hcd'. Did you mean 'hdc'? Known: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(
    given: list[str], message: str, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(waves), *SMALL, *given, "--out", str(tmp_path / "run")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_embedding_has_the_length_that_the_paper_has() -> None:
    lengths = {loss: config_of("glyphs", loss=loss).dim for loss in ("hdc", "bier", "daml", "triplet")}
    assert lengths == {"hdc": 384, "bier": 512, "daml": 256, "triplet": 256}
    assert config_of("glyphs", loss="hdc", dim=30).dim == 30


def test_a_run_is_named_after_its_base() -> None:
    named = {
        loss: config_of("glyphs", loss=loss, base=base, centroids=centroids).out
        for loss, base, centroids in (
            ("hdc", None, None),
            ("bier", "discriminative", "one-hot"),
            ("softmax", None, None),
        )
    }
    assert [str(path) for path in named.values()] == [
        "runs/glyphs-hdc-contrastive-0",
        "runs/glyphs-bier-discriminative-one-hot-0",
        "runs/glyphs-softmax-0",
    ]


def test_layers_of_a_base_have_one_output_for_each_class_or_none(waves: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    shapes = {}
    for name, more in (("layer", []), ("placed", ["--no-class-layer", "--centroids", "place"])):
        main(["train", str(waves), *SMALL, "--loss", "bier", "--base", "discriminative", *more,
              "--out", str(tmp_path / name)])  # fmt: skip
        with safe_open(tmp_path / name / "checkpoint.safetensors", framework="pt") as opened:
            found = [key for key in opened.keys() if "bases" in key and "layer.weight" in key]  # noqa: SIM118
            shapes[name] = [tuple(opened.get_slice(key).get_shape()) for key in found]
    assert shapes == {"layer": [(4, 3), (4, 5), (4, 8)], "placed": []}


def test_class_layers_of_a_base_train_as_new_layers_and_what_else_is_learned_at_its_own_rate() -> None:
    config = config_of("glyphs", loss="daml", base="discriminative", optimizer="sgd", lr=0.5, dim=8)
    embedder = Embedder(EmbedderConfig("conv4", 8))
    base = Base("discriminative", lambda dim: ClassLayer(dim, DiscriminativeLoss(4)))
    loss = DAML(base, 64, 8)
    objective = Objective(embedder, loss, on_features=True)
    groups = build_optimizer(config, objective).param_groups

    def group(weight: torch.Tensor) -> dict[str, Any]:
        return next(each for each in groups if any(weight is other for other in each["params"]))

    assert isinstance(loss.base, ClassLayer)
    assert (group(loss.base.layer.weight)["lr"], group(loss.base.layer.weight)["weight_decay"]) == (0.5, 5e-4)
    generator = next(loss.generator.parameters())
    assert (group(generator)["lr"], group(generator)["weight_decay"]) == (0.005, 0.0)
    assert group(embedder.new_layers()[0].weight)["lr"] == 0.5
    assert sum(len(each["params"]) for each in groups) == len(list(objective.parameters()))


def test_what_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses"])
    listed = capsys.readouterr().out
    main(["losses", "daml"])
    explained = capsys.readouterr().out
    assert all(f"\n{name} " in listed for name in MORE_THAN_LOSSES)
    assert "built on        npair; --base triplet or discriminative" in explained
    assert "computed on     the features" in explained


def test_an_ensemble_of_heads_is_searched_as_one_vector(waves: Path, tmp_path: Path) -> None:
    """Of a run of BIER the vector is that of its heads, each by its share of the length."""
    main(["train", str(waves), *SMALL, "--loss", "bier", "--out", str(tmp_path / "run")])
    embedder = tammes.load(tmp_path / "run")
    images = torch.from_numpy(np.stack([embedder.prepared(file) for file in sorted(waves.glob("class 0/*.png"))]))
    with torch.no_grad():
        vectors = embedder(images)
    lengths = torch.stack([part.norm(dim=1) for part in vectors.split([3, 5, 8], dim=1)], dim=1)
    torch.testing.assert_close(lengths / lengths[:, 2:], torch.tensor([[3 / 8, 5 / 8, 1.0]]).expand(6, 3))
