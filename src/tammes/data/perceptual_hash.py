"""A perceptual hash: images that look the same have similar hashes, regardless of size, format and brightness.

The hash consists of the low frequencies of the grey image (discrete cosine transform), each weighted by its frequency,
so that coarse light and shade, which many photos share, does not dominate; normalised. Two images are near duplicates
if the cosine of their hashes is high. An image is also hashed mirrored and lightly cropped, to find such copies.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from tammes.data.images import in_mode

ALIKE = 0.9  # the cosine from which on two images are copies of one: benchmarks/near_duplicates.py measures it
SMALLEST = 64  # pixels of the shorter side: of smaller images, such as drawings of 28 x 28, too many look alike
CROPS = (  # left, top and side of what is hashed, in shares of the image: the whole first, then light crops
    (0.0, 0.0, 1.0),
    *((left * (1 - side), top * (1 - side), side)
      for side in (0.95, 0.9) for left, top in ((0.5, 0.5), (0, 0), (1, 0), (0, 1), (1, 1))),
    (0.075, 0.075, 0.85),
)  # fmt: skip

_SIDE, _GRID, _KEPT = (
    128,
    32,
    14,
)  # pixels that are cropped from, pixels that are transformed, frequencies that are kept
_WEIGHTS = np.hypot(*np.mgrid[:_KEPT, :_KEPT]).astype(np.float32)  # 0 for the mean, so brightness does not count
_MIRROR = np.tile(np.where(np.arange(_KEPT) % 2, -1, 1), _KEPT).astype(np.float32)  # odd waves change their sign
_ROWS = 1024


def hashes(image: Image.Image, crops: int = len(CROPS)) -> Float32[ndarray, "crops hash"]:
    """The hashes of an image and of light crops of it; zeros for a small or single-coloured image.

    Args:
        crops: the number of CROPS; the first is the whole image.
    """
    from scipy.fft import dctn

    if min(image.size) < SMALLEST:
        return np.zeros((crops, _KEPT * _KEPT), np.float32)
    grey = in_mode(image, "L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    found = []
    for left, top, side in CROPS[:crops]:
        box = (left * _SIDE, top * _SIDE, min(_SIDE, (left + side) * _SIDE), min(_SIDE, (top + side) * _SIDE))
        found.append(np.asarray(grey.resize((_GRID, _GRID), Image.Resampling.BOX, box=box), np.float32))
    waves = dctn(np.stack(found), axes=(1, 2), norm="ortho")[:, :_KEPT, :_KEPT] * _WEIGHTS  # (crops, kept, kept)
    flat = waves.reshape(crops, -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.asarray(np.where(lengths > _GRID, flat / np.maximum(lengths, 1), 0), np.float32)  # a grey level in all


def likeness(
    of: Float32[ndarray, "crops hash"], others: Float32[ndarray, "others hash"]
) -> Float32[ndarray, " others"]:
    """The highest cosine between an image's crops, mirrored or not, and each of the other whole images."""
    return np.asarray(np.maximum(of @ others.T, (of * _MIRROR) @ others.T).max(axis=0))


def alike_pairs(every: Float32[ndarray, "images crops hash"]) -> Iterator[tuple[int, int]]:
    """The pairs of near duplicates, smaller index first; some more than once."""
    whole = every[:, 0]
    for crop in range(every.shape[1]):
        for sign in (np.ones_like(_MIRROR), _MIRROR):
            for start in range(0, len(every), _ROWS):
                cosines = (every[start : start + _ROWS, crop] * sign) @ whole.T  # (rows, images)
                for row, other in np.argwhere(cosines >= ALIKE).tolist():
                    if start + row != other:
                        yield min(start + row, other), max(start + row, other)
