"""GoogLeNet as published: the network of the paper and of most results in this field.

Szegedy et al., Going deeper with convolutions, 2015, in the form of the usual weights (BVLC's, for Caffe).
torchvision's `googlenet` is a different network: batch normalisation, 3 x 3 instead of 5 x 5, no response
normalisation.
"""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.models.backbones.response_norm import ResponseNorm

FEATURES = 1024
# Outputs of each block's convolutions: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, projection after the pooling.
BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
CUTS = ("conv2_reduce", *(f"inception_{name}" for name in BLOCKS))
DEFAULT_CUT = "inception_5a"
DEPTHS = ("inception_4b", "inception_4e")  # their inputs are the outputs of 4a and 4d, as in Yuan et al. (2017)


class GoogLeNet(nn.Sequential):
    """RGB images (batch, 3, height, width), 0 to 255 minus the mean, -> (batch, 1024).

    Without classifier, auxiliary classifiers and dropout: 5,973,552 weights, initialised as in Caffe.
    """

    def __init__(self) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=Convolution(3, 64, 7, stride=2, padding=3),
            pool1=_halve(),
            norm1=ResponseNorm(),
            conv2_reduce=Convolution(64, 64, 1),
            conv2=Convolution(64, 192, 3, padding=1),
            norm2=ResponseNorm(),
            pool2=_halve(),
        )
        inputs = 192
        for name, widths in BLOCKS.items():
            layers[f"inception_{name}"] = block = Inception(inputs, *widths)
            inputs = block.outputs
            if name in ("3b", "4e"):
                layers[f"pool{name[0]}"] = _halve()
        layers["pool5"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        super().__init__(layers)


class Convolution(nn.Conv2d):
    """A convolution followed by ReLU."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, nonlinearity="linear")  # Caffe's "xavier": of variance 1 / inputs
        assert self.bias is not None
        nn.init.constant_(self.bias, 0.2)

    def forward(
        self, images: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs height_out width_out"]:
        return super().forward(images).relu_()


class Inception(nn.Module):
    """Four parallel branches: 1 x 1; 3 x 3 and 5 x 5 after a reduction; 3 x 3 max-pooling with a projection."""

    def __init__(
        self, inputs: int, one: int, three_reduce: int, three: int, five_reduce: int, five: int, project: int
    ) -> None:
        super().__init__()
        self.outputs = one + three + five + project
        self.one = Convolution(inputs, one, 1)
        self.three_reduce = Convolution(inputs, three_reduce, 1)
        self.three = Convolution(three_reduce, three, 3, padding=1)
        self.five_reduce = Convolution(inputs, five_reduce, 1)
        self.five = Convolution(five_reduce, five, 5, padding=2)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.project = Convolution(inputs, project, 1)

    def forward(
        self, images: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs height width"]:
        branches = (
            self.one(images),
            self.three(self.three_reduce(images)),
            self.five(self.five_reduce(images)),
            self.project(self.pool(images)),
        )
        return torch.cat(branches, dim=1)


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)  # Caffe rounds up: 112 -> 56 -> 28 -> 14 -> 7


_CAFFE = {
    "1x1": "one",
    "3x3_reduce": "three_reduce",
    "3x3": "three",
    "5x5_reduce": "five_reduce",
    "5x5": "five",
    "pool_proj": "project",
}
_CAFFE_BEGINNING = {"conv1/7x7_s2": "conv1", "conv2/3x3_reduce": "conv2_reduce", "conv2/3x3": "conv2"}


def from_caffe(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename Caffe's tensors to our names, and reorder the first convolution from BGR to RGB."""

    def renamed(name: str) -> str:
        layer, _, kind = name.rpartition(".")
        block, _, branch = layer.partition("/")
        ours = _CAFFE_BEGINNING.get(layer) or (f"{block}.{_CAFFE[branch]}" if branch in _CAFFE else layer)
        return f"{ours}.{kind}"

    result = {renamed(name): tensor for name, tensor in tensors.items()}
    if "conv1/7x7_s2.weight" in tensors:
        result["conv1.weight"] = result["conv1.weight"].flip(1)
    return result
