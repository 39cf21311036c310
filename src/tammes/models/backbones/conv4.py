"""Conv4, the small convolutional network of few-shot learning, for grey images of 28 x 28."""

from collections import OrderedDict

from torch import nn


class Conv4(nn.Sequential):
    """Grey images (batch, 1, 28, 28) -> (batch, 64).

    Four blocks of 3 x 3 convolution (64), batch normalisation, ReLU and 2 x 2 max-pooling: the network of Vinyals et
    al. (Matching networks, 2016) and Snell et al. (Prototypical networks, 2017).
    """

    def __init__(self, channels: int = 1, width: int = 64) -> None:
        blocks = nn.Sequential(
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
        super().__init__(OrderedDict(blocks=blocks, flatten=nn.Flatten()))
