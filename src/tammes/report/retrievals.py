"""An image of retrievals: queries and their nearest neighbours, right ones framed green, wrong ones red."""

from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from PIL import Image, ImageDraw

from tammes.data.image_cache import Decoded
from tammes.io.files import write_atomically
from tammes.report.thumbnails import thumbnail
from tammes.search.neighbours import search

GREEN, RED, BLUE = (34, 150, 80), (205, 50, 50), (70, 90, 160)
_SIDE, _FRAME, _GAP = 64, 4, 6


def draw_retrievals(
    file: Path,
    images: Decoded,
    indices: Int64[np.ndarray, " images"],
    vectors: Float32[np.ndarray, "images dim"],
    labels: Int64[np.ndarray, " images"],
    *,
    queries: int = 10,
    neighbours: int = 10,
    seed: int = 0,
) -> None:
    """Write a PNG with a row for each query, drawn at random: the query, then its nearest other images."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(indices))[:queries])
    neighbours = min(neighbours, len(indices) - 1)
    found = search(vectors[chosen], vectors, neighbours, itself=chosen).ids
    step = _SIDE + 2 * _FRAME + _GAP
    sheet = Image.new("RGB", (step * (neighbours + 1) + 3 * _GAP, step * len(chosen) + _GAP), "white")
    for row, (query, near) in enumerate(zip(chosen.tolist(), found.tolist(), strict=True)):
        top = _GAP + row * step
        _paste(sheet, images, int(indices[query]), _GAP, top, BLUE)
        for column, other in enumerate(near, start=1):
            colour = GREEN if labels[other] == labels[query] else RED
            _paste(sheet, images, int(indices[other]), 3 * _GAP + column * step, top, colour)
    content = BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(file, content.getvalue())


def _paste(sheet: Image.Image, images: Decoded, number: int, left: int, top: int, colour: tuple[int, int, int]) -> None:
    side = _SIDE + 2 * _FRAME
    ImageDraw.Draw(sheet).rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
    sheet.paste(thumbnail(images, number, _SIDE), (left + _FRAME, top + _FRAME))
