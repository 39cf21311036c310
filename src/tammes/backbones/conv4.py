"""The small convolutional network of few-shot learning: four blocks, for grey images of 28 x 28."""

from jaxtyping import Float
from torch import Tensor, nn


class Conv4(nn.Module):
    """Four blocks of 3 x 3 convolution (64), batch normalisation, ReLU and 2 x 2 max-pooling: 64 features.

    The network of Vinyals et al. (Matching networks, 2016) and Snell et al. (Prototypical networks, 2017).
    """

    def __init__(self, channels: int = 1, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(2),
                )
                for inputs in (channels, width, width, width)
            )
        )

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        features: Tensor = self.blocks(images).flatten(1)
        return features
