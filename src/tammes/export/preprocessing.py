"""`data.images.centre` as a network: any image in, the square that the embedder sees out, to the same bits.

Pillow resizes by Lanczos in two passes, along rows and then along columns, each with weights of 22 bits and a result
of 8. Only the square in the middle is needed, so each pass is a product with a matrix of (size, pixels), built for the
size of the picture that comes in; in float64 the sums of integers are exact.
"""

import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor, nn

from tammes.models.embedder import Embedder

_UNIT = 2.0**22  # of Pillow's weights
_REACH = 3.0  # of the Lanczos filter, in pixels of the smaller of the two pictures


class Centred(nn.Module):
    """A picture (height, width, channels) as the square (channels, size, size) in the middle of it, scaled."""

    def __init__(self, shorter_side: int, size: int) -> None:
        super().__init__()
        self.shorter_side, self.size = shorter_side, size

    def forward(self, picture: UInt8[Tensor, "height width channels"]) -> Float[Tensor, "channels size size"]:
        rows, columns = (torch.arange(side, dtype=torch.float64) for side in picture.shape[:2])
        height, width = rows[-1] + 1, columns[-1] + 1
        scale = self.shorter_side / torch.minimum(height, width)
        pixels = picture.permute(2, 0, 1).to(torch.float64)
        across = self._weights(columns, width, scale)  # (size, width)
        down = self._weights(rows, height, scale)  # (size, height)
        return _to_8_bits(down @ _to_8_bits(pixels @ across.T)).float()

    def _weights(
        self, pixel: Float64[Tensor, " pixels"], old: Float64[Tensor, ""], scale: Float64[Tensor, ""]
    ) -> Float64[Tensor, "size pixels"]:
        """How much each of the old pixels of a row counts in each of the new ones, in Pillow's units."""
        new = torch.round(old * scale).clamp_min(self.shorter_side)
        step = old / new
        spread = step.clamp_min(1.0)
        first = torch.floor((new - self.size) / 2)
        at = ((first + torch.arange(self.size, dtype=torch.float64) + 0.5) * step)[:, None]  # (size, 1)
        begin = torch.trunc(at - _REACH * spread + 0.5)
        end = torch.trunc(at + _REACH * spread + 0.5)
        x = (pixel - at + 0.5) / spread  # (size, old)
        angle = torch.pi * torch.where(x == 0, 1.0, x)
        lanczos = torch.sin(angle) / angle * (torch.sin(angle / _REACH) / (angle / _REACH))
        lanczos = torch.where(x == 0, 1.0, lanczos)
        lanczos = torch.where((pixel >= begin) & (pixel < end) & (x >= -_REACH) & (x < _REACH), lanczos, 0.0)
        share = lanczos / lanczos.sum(1, keepdim=True) * _UNIT
        return torch.where(share < 0, torch.ceil(share - 0.5), torch.floor(share + 0.5))


class OfPicture(nn.Module):
    """An embedder that takes one picture of any size: (height, width, channels), 0..255 -> (1, dim)."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder, self.centred = embedder, Centred(embedder.shorter_side, embedder.size)

    def forward(self, picture: UInt8[Tensor, "height width channels"]) -> Float[Tensor, "1 dim"]:
        vector: Tensor = self.embedder(self.centred(picture)[None])
        return vector


def _to_8_bits(sums: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    return torch.floor((sums + _UNIT / 2) / _UNIT).clamp(0, 255)
