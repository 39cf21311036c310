"""Residual networks without classifier.

He et al., Deep residual learning for image recognition, 2016, with the stride of a bottleneck in its 3 x 3 convolution
(v1.5). They equal torchvision's bit for bit: names of weights, and random weights with the same seed. We have our own
because importing torchvision imports torch's compiler, which would delay every command
(docs/decisions/0016-own-residual-networks.md).

Networks with bottlenecks also exist in the original form (v1), which Keras has: the stride is in the first 1 x 1
convolution. Names and shapes of weights are the same, so the two forms cannot be told apart from a file.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

Form = Literal["torchvision", "keras"]


class Kind(NamedTuple):
    """The depths of the four stages, the kind of block, and the cuts of the network."""

    depths: tuple[int, int, int, int]
    narrow: bool
    default_cut: str
    taken_from: tuple[str, str]

    @property
    def cuts(self) -> tuple[str, ...]:
        return tuple(
            f"layer{number}.{block}" if block else f"layer{number}"
            for number, depth in enumerate(self.depths, start=1)
            for block in range(depth)
        )


KINDS = {
    "resnet18": Kind((2, 2, 2, 2), False, "layer4", ("layer2.1", "layer4")),
    "resnet34": Kind((3, 4, 6, 3), False, "layer3.5", ("layer2.2", "layer3.4")),
    "resnet50": Kind((3, 4, 6, 3), True, "layer4", ("layer2.2", "layer3.4")),
    "resnet101": Kind((3, 4, 23, 3), True, "layer3.18", ("layer3.3", "layer3.15")),
    "resnet152": Kind((3, 8, 36, 3), True, "layer3.27", ("layer3.5", "layer3.23")),
}


FORMS = tuple(name for name, kind in KINDS.items() if kind.narrow)  # networks that exist in two forms


class ResNet(nn.Sequential):
    """RGB images (batch, 3, height, width) -> (batch, features)."""

    def __init__(self, kind: Kind, form: Form = "torchvision") -> None:
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=_convolution(3, 64, 7, stride=2),
            bn1=nn.BatchNorm2d(64),
            relu=nn.ReLU(inplace=True),
            maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        )
        inputs = 64
        for number, depth in enumerate(kind.depths):
            blocks = []
            for block in range(depth):
                stride = 2 if number and not block else 1
                made = _Block(inputs, 64 << number, stride=stride, narrow=kind.narrow, form=form)
                inputs = made.outputs
                blocks.append(made)
            parts[f"layer{number + 1}"] = nn.Sequential(*blocks)
        super().__init__(parts | {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()})
        self.features = inputs
        nn.Linear(inputs, 1000)  # torchvision draws a classifier here; needed for the same weights with the same seed
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class _Block(nn.Module):
    """A residual block: two 3 x 3 convolutions, or a bottleneck (1 x 1, 3 x 3, 1 x 1) if `narrow`."""

    def __init__(self, inputs: int, width: int, *, stride: int, narrow: bool, form: Form) -> None:
        super().__init__()
        self.outputs = 4 * width if narrow else width
        first, second = (1, stride) if narrow and form == "torchvision" else (stride, 1)
        self.conv1 = _convolution(inputs, width, 1 if narrow else 3, first)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, second)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, self.outputs, 1) if narrow else None
        self.bn3 = nn.BatchNorm2d(self.outputs) if narrow else None
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inputs != self.outputs:
            past = _convolution(inputs, self.outputs, 1, stride)
            self.downsample = nn.Sequential(past, nn.BatchNorm2d(self.outputs))

    def forward(self, maps: Any) -> Any:  # a Tensor, or a proxy while the network is traced
        past = maps if self.downsample is None else self.downsample(maps)
        maps = self.relu(self.bn1(self.conv1(maps)))
        maps = self.bn2(self.conv2(maps))
        if self.conv3 is not None and self.bn3 is not None:
            maps = self.bn3(self.conv3(self.relu(maps)))
        maps += past
        return self.relu(maps)


def from_keras(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reorder the first convolution of Keras' networks from BGR to RGB."""
    return {name: tensor.flip(1) if name == "conv1.weight" else tensor for name, tensor in tensors.items()}


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
