"""Pretrained transformers and batch normalisation in training: cut at a block, kept, warmed up, resumed, exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import tammes
from tammes.models.backbones import backbone
from tammes.training.loop import Position, fit, warm_up
from tests.compared import differing

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 8, "dim": 8, "test_classes": 0, "val_classes": 0, "device": "cpu"}


def weights_of(name: str, folder: Path) -> str:
    """A file of random weights, which stand for pretrained ones."""
    torch.manual_seed(0)
    file = folder / f"{name.replace(':', '-')}.safetensors"
    save_file(backbone(name).network.state_dict(), file)
    return str(file)


def interrupt(_run: object, _line: object) -> None:
    raise KeyboardInterrupt


def test_a_transformer_is_cut_at_a_block_resumed_and_exported(waves: Path, tmp_path: Path) -> None:
    options = OPTIONS | {"backbone": "timm:test_vit", "weights": weights_of("timm:test_vit", tmp_path), "size": 64}
    options |= {"cut": "blocks.4", "warmup": 1.5, "keep_init": False}
    whole = tammes.train(waves, out=tmp_path / "whole", **options)
    assert whole.config.train == "top"  # type: ignore[union-attr]
    with pytest.raises(KeyboardInterrupt):
        tammes.train(waves, out=tmp_path / "resumed", on_epoch=interrupt, **options)
    resumed = tammes.load_run(tmp_path / "resumed").resume()
    assert not differing(*(run.folder / "embedder.safetensors" for run in (whole, resumed)))
    after = whole.embedder.state_dict()
    before = backbone("timm:test_vit", weights=options["weights"], size=64).network.state_dict()
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[f"backbone.{name}"])}
    assert moved
    assert all(name.startswith(("blocks.4.", "blocks.5.", "norm.", "fc_norm.")) for name in moved)
    assert resumed.export(data=str(waves)).exists()  # compared with PyTorch before it is written


@pytest.mark.parametrize("trains", [False, True])
def test_batch_normalisation_of_a_pretrained_network_stays_unless_it_is_to_train(
    trains: bool, waves: Path, tmp_path: Path
) -> None:
    name = "timm:test_resnet"
    options = OPTIONS | {"backbone": name, "weights": weights_of(name, tmp_path), "train": "all", "epochs": 1}
    options |= {"train_batch_norm": True} if trains else {}
    run = tammes.train(waves, out=tmp_path / "run", size=64, **options)
    before, after = backbone(name, weights=options["weights"]).network, run.embedder.backbone
    norms = {place for place, part in before.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert norms
    moved = {
        place.rpartition(".")[0]
        for place, tensor in before.state_dict().items()
        if not torch.equal(tensor, after.state_dict()[place])
    }
    assert moved - norms
    assert moved & norms == (norms if trains else set())


def test_random_weights_train_their_batch_normalisation() -> None:
    from tests.configs import config_of

    assert config_of(backbone="conv4").train_batch_norm
    assert not config_of(backbone="resnet18").train_batch_norm
    assert config_of(backbone="resnet18", weights="none").train_batch_norm
    with pytest.raises(tammes.UserError, match="`train_batch_norm` is for trainable layers of the backbone"):
        config_of(backbone="resnet18", train="head", train_batch_norm=True)


def test_learning_rates_rise_by_the_step_and_a_resumed_training_has_the_same() -> None:
    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
            return {"loss": (images - self.point).square().mean()}

    def rates(start: Position | None, stop_after: int | None) -> tuple[list[float], Position]:
        objective = Distance()
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.5)
        found: list[float] = []
        optimizer.register_step_pre_hook(lambda own, *_: found.append(own.param_groups[0]["lr"]))
        batch = (torch.ones(2, 1), torch.zeros(2), torch.arange(2))
        *_, last = fit(
            objective, lambda _: [batch] * 4, optimizer, epochs=3, start=start,
            schedule=warm_up(lambda epoch, _: 1 / epoch, 1.5, 4), stop=lambda: len(found) == stop_after,
        )  # fmt: skip
        return found, last.position

    whole, _ = rates(None, None)
    expected = [0.5 * step / 6 for step in (1, 2, 3, 4)] + [0.25 * step / 6 for step in (5, 6)] + [0.25] * 2
    assert whole == pytest.approx(expected + [0.5 / 3] * 4)
    first, at = rates(None, 5)
    assert first + rates(at, None)[0] == pytest.approx(whole)
