"""Backbones: ours, torchvision's and timm's, without their classifiers."""

import pytest
import torch

from tammes import UserError
from tammes.backbones import backbone


@pytest.mark.parametrize(
    ("name", "features", "size"), [("conv4", 64, 28), ("resnet18", 512, 224), ("timm:resnet10t", 512, 176)]
)
def test_a_backbone_gives_as_many_features_as_it_says(name: str, features: int, size: int) -> None:
    made = backbone(name)
    channels = 1 if made.mode == "L" else 3
    assert (made.features, made.size) == (features, size)
    assert made.network.eval()(torch.zeros(2, channels, size, size)).shape == (2, features)
    assert len(made.mean) == len(made.std) == channels


def test_networks_with_side_heads_lose_them() -> None:
    made = backbone("torchvision:googlenet")
    assert made.network.train()(torch.zeros(2, 3, 224, 224)).shape == (2, 1024)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv5", r"^unknown backbone 'conv5'. Did you mean 'conv4'"),
        ("torchvision:resnet10t", r"^unknown backbone 'torchvision:resnet10t'."),
        ("keras:vgg16", r"^unknown library 'keras' in backbone 'keras:vgg16'. Known: timm, torchvision.$"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(name)


def test_conv4_has_no_pretrained_weights() -> None:
    with pytest.raises(
        UserError, match=r"^conv4 has no ImageNet weights: it is trained from scratch. Use --weights none.$"
    ):
        backbone("conv4", weights="imagenet")
