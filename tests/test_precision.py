"""Mixed precision: where bfloat16 is the default, and that training by it goes where float32 goes."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tammes import DiscriminativeLoss
from tammes.cli import main
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.objectives import Objective
from tests.configs import config_of
from tests.oracles import seeded


@pytest.mark.parametrize(
    ("options", "flags", "expected"),
    [
        ({"train": "all"}, {"avx512_bf16"}, "bf16"),
        ({"train": "top"}, {"fma", "amx_bf16"}, "bf16"),
        ({"train": "all"}, {"avx512f", "avx512_vnni"}, "no"),
        ({"train": "all"}, set(), "no"),
        ({"train": "head"}, {"avx512_bf16"}, "no"),
        ({"train": "all", "precision": "no"}, {"avx512_bf16"}, "no"),
        ({"train": "all", "precision": "bf16"}, set(), "bf16"),
    ],
)
def test_auto_is_bfloat16_where_layers_of_a_backbone_train_on_a_processor_that_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], flags: set[str], expected: str
) -> None:
    monkeypatch.setattr("tammes.io.machine.processor_flags", lambda: flags)
    given: dict[str, str] = {"backbone": "resnet18", "device": "cpu", **options}
    assert config_of("photos", **given).precision == expected


def test_every_layer_trains_by_default_where_that_is_fast_from_both_new_layers_in_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tammes.io.machine.processor_flags", lambda: {"avx512_bf16"})
    fast = config_of("photos", device="cpu")
    assert (fast.backbone, fast.train, fast.init, fast.keep_init) == ("resnet50", "all", "ridge", True)
    for other in ({"loss": "triplet"}, {"class_layer": False}, {"weights": "none"}):
        found = config_of("photos", device="cpu", **other)
        assert (found.train, found.init, found.keep_init, found.epochs) == ("all", "pca", False, 10)
    monkeypatch.setattr("tammes.io.machine.processor_flags", lambda: {"fma"})
    slow = config_of("photos", device="cpu")
    assert (slow.train, slow.init) == ("top", "whiten")


def test_auto_leaves_a_gpu_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.io.machine.processor_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert config_of("photos", backbone="resnet18", train="all").precision == "no"


def test_a_run_remembers_what_auto_was(waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.io.machine.processor_flags", lambda: {"avx512_bf16"})
    main(["train", str(waves), "--backbone", "conv4", "--dim", "4", "--epochs", "1", "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["precision"] == "bf16"
    assert "cpu, bfloat16;" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("name", ["googlenet", "resnet50", "vgg16"])
def test_gradients_by_bfloat16_point_where_those_of_float32_do(name: str) -> None:
    torch.manual_seed(0)
    objective = Objective(Embedder(EmbedderConfig(name, 8, 3)), DiscriminativeLoss(3))
    objective.eval()  # normalised by few random images, a random network turns rounding into anything
    images = torch.randint(256, (6, 3, 64, 64), generator=seeded(0), dtype=torch.uint8)
    gradients = []
    for half in (False, True):
        objective.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = objective(images, torch.arange(6) % 3)["loss"]
        loss.backward()
        found = [each.grad for each in objective.parameters() if each.grad is not None]
        assert {loss.dtype, *(each.dtype for each in found)} == {torch.float32}
        gradients.append(torch.cat([each.flatten() for each in found]))
    assert not torch.equal(gradients[0], gradients[1])  # it was bfloat16
    assert cosine_similarity(gradients[0], gradients[1], dim=0) > 0.98
    assert float(gradients[1].norm()) == pytest.approx(float(gradients[0].norm()), rel=0.05)
