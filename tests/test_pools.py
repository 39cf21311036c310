"""The pooling at the end of a network can be exchanged, or it is said that it cannot."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tammes.errors import UserError
from tammes.models.backbones import backbone
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.feature_cache import Frozen, kept_by
from tammes.models.pooling import exchange_pool


def seeded(name: str, pool: str) -> nn.Module:
    torch.manual_seed(0)
    return backbone(name, pool=pool).network.eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["googlenet", "resnet18", "timm:resnet18"])
def test_the_last_map_is_pooled_as_was_asked(name: str) -> None:
    images = torch.rand(2, 3, 64, 64)
    own, mean, highest = (seeded(name, pool) for pool in ("published", "mean", "max"))
    maps: list[torch.Tensor] = []
    last = {"googlenet": "inception_5b", "resnet18": "layer4", "timm:resnet18": "layer4"}[name]
    own.get_submodule(last).register_forward_hook(lambda _, __, output: maps.append(output))
    with torch.inference_mode():
        torch.testing.assert_close(own(images), mean(images))
        torch.testing.assert_close(own(images), maps[0].mean((2, 3)))
        torch.testing.assert_close(highest(images), maps[0].amax((2, 3)))


def test_poolings_within_blocks_are_left_alone() -> None:
    network = seeded("efficientnet_b0", "max")
    kinds = [type(part) for part in network.modules() if isinstance(part, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d)]
    assert kinds.count(nn.AdaptiveMaxPool2d) == 1
    assert kinds[-1] is nn.AdaptiveMaxPool2d
    assert len(kinds) > 5


@pytest.mark.parametrize(
    "name",
    ["conv4", "torchvision:densenet121", "timm:mixer_s32_224", pytest.param("vit_b_32", marks=pytest.mark.slow)],
)
def test_a_network_without_such_a_pooling_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"does not end in global mean or max pooling, so it cannot have"):
        seeded(name, "max")


def test_a_pooling_that_is_not_the_last_is_refused() -> None:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 5, 1), nn.Flatten())
    with pytest.raises(UserError, match=r"^Sequential does not end in"):
        exchange_pool(gate, "max", channels=3, size=8)


def test_an_embedder_remembers_its_pooling(tmp_path: Path) -> None:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("resnet18", 8, pool="max")).eval()
    embedder.save(tmp_path)
    images = torch.randint(255, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        torch.testing.assert_close(load(tmp_path)(images), embedder(images))
    assert load(tmp_path).config.pool == "max"


def test_activations_of_another_pooling_are_others(tmp_path: Path) -> None:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("resnet18", 8))

    def file(pool: str, at: str | None) -> Path:
        embedder.config = EmbedderConfig("resnet18", 8, pool=pool)  # type: ignore[arg-type]
        return kept_by(Frozen(embedder, at), crop=32, cache=tmp_path).file

    assert file("max", None) != file("published", None)
    assert file("max", "layer4") == file("published", "layer4")  # the pooling is above the cut
