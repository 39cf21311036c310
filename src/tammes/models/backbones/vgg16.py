"""VGG-16 up to its last convolution, with global max pooling: the network of the paper's larger experiments.

Simonyan and Zisserman, Very deep convolutional networks, 2015, without the two layers of 4,096 outputs, which have nine
tenths of its weights.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

FEATURES = 512
BLOCKS = {"conv1": (64, 2), "conv2": (128, 2), "conv3": (256, 3), "conv4": (512, 3), "conv5": (512, 3)}  # width, depth
CUTS = ("conv2", "conv3", "conv4", "conv5")
DEFAULT_CUT = "conv5"
DEPTHS = ("conv4", "conv5")


class VGG16(nn.Sequential):
    """RGB images (batch, 3, height, width) -> (batch, 512). Initialised as in torchvision."""

    def __init__(self) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 3
        for name, (width, depth) in BLOCKS.items():
            block: list[nn.Module] = []
            for _ in range(depth):
                block += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            if name != "conv5":  # followed by global max pooling
                block.append(nn.MaxPool2d(2))
            layers[name] = nn.Sequential(*block)
        super().__init__(layers | {"pool5": nn.AdaptiveMaxPool2d(1), "flatten": nn.Flatten()})
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)


def from_torchvision(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename torchvision's tensors to our names: features.24 is conv5.0."""
    ours: dict[int, str] = {}
    start = 0
    for name, (_, depth) in BLOCKS.items():
        length = 2 * depth + 1  # convolutions, ReLUs, the pooling
        ours |= {start + layer: f"{name}.{layer}" for layer in range(length)}
        start += length

    def renamed(name: str) -> str:
        return re.sub(r"^features\.(\d+)(?=\.)", lambda found: ours.get(int(found[1]), found[0]), name)

    return {renamed(name): tensor for name, tensor in tensors.items()}
