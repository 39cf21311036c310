"""Thumbnails as data URLs."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from jaxtyping import Int64
from PIL import Image

from tammes.training.embedding import Images

_COLUMNS = 16  # a sheet has as many rows: small enough to be unpacked while a pointer rests
_QUALITY = 62


@dataclass(frozen=True)
class Sheets:
    """Sprite sheets: many thumbnails in one image, which takes less space.

    Attributes:
        side: the side of a thumbnail, in pixels.
        columns: thumbnails per row; a sheet has as many rows.
        files: the sheets as data URLs.
    """

    side: int
    columns: int
    files: list[str]


def thumbnail(images: Images, number: int, side: int) -> Image.Image:
    """The centre crop of an image, scaled to this size."""
    picture = images[number]  # (channels, height, width)
    shown = Image.fromarray(picture[0] if len(picture) == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0)))
    return square(shown.convert("RGB"), side)


def square(picture: Image.Image, side: int) -> Image.Image:
    """The centre crop of an array of pixels, scaled to this size."""
    shorter = min(picture.size)
    left, top = (picture.width - shorter) // 2, (picture.height - shorter) // 2
    return picture.crop((left, top, left + shorter, top + shorter)).resize((side, side), Image.Resampling.LANCZOS)


def as_address(picture: Image.Image, quality: int = _QUALITY) -> str:
    """An image as a data URL."""
    content = BytesIO()
    picture.save(content, format="WEBP", quality=quality, method=4)
    return f"data:image/webp;base64,{b64encode(content.getvalue()).decode()}"


def sheets(images: Images, numbers: Int64[np.ndarray, " items"], side: int) -> Sheets:
    """The thumbnails of these images, in order, on as many sheets as necessary."""
    found = []
    for part in _chunks(numbers.tolist(), _COLUMNS**2):
        rows = -(-len(part) // _COLUMNS)
        sheet = Image.new("RGB", (_COLUMNS * side, rows * side), "white")
        for place, number in enumerate(part):
            sheet.paste(thumbnail(images, number, side), (place % _COLUMNS * side, place // _COLUMNS * side))
        found.append(as_address(sheet))
    return Sheets(side, _COLUMNS, found)


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


class Album:
    """Thumbnails for a page, each created once: item -> data URL."""

    def __init__(self, images: Images, numbers: Int64[np.ndarray, " items"], side: int) -> None:
        self.images, self.numbers, self.side = images, numbers, side
        self._made: dict[int, str] = {}

    def __getitem__(self, item: int) -> str:
        if item not in self._made:
            self._made[item] = as_address(thumbnail(self.images, int(self.numbers[item]), self.side), 75)
        return self._made[item]
