"""Contact sheets: a row per query with its neighbours, framed green if of the same class, otherwise red."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from PIL import Image, ImageDraw, ImageFont

from tammes.data.image_cache import Decoded
from tammes.data.images import in_mode, open_small
from tammes.gallery.items import THUMBNAIL
from tammes.io.files import write_atomically
from tammes.report.thumbnails import square, thumbnail
from tammes.search.neighbours import search

_GREEN, _RED, _BLUE, _GREY = (34, 150, 80), (205, 50, 50), (70, 90, 160), (150, 156, 162)
_FRAME, _GAP, _TEXT = 4, 6, 16
_MOST_TEXT = 200  # characters that are measured: below a picture there is room for fewer
Found = tuple[bytes, str, bool | None]  # a thumbnail, what stands below it, and whether it is of the same class


class _Framed(NamedTuple):
    """An image (None for an empty place), the colour of its frame, and the text below it."""

    picture: Image.Image | None
    colour: tuple[int, int, int]
    text: str = ""


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
    """Write a PNG with a row per random query: the query and its nearest other images."""
    side = 64
    chosen = np.sort(np.random.default_rng(seed).permutation(len(indices))[:queries])
    near = search(vectors[chosen], vectors, min(neighbours, len(indices) - 1), itself=chosen).ids

    def framed(place: int, colour: tuple[int, int, int]) -> _Framed:
        return _Framed(thumbnail(images, int(indices[place]), side), colour)

    rows = [
        [framed(query, _BLUE), *(framed(each, _GREEN if labels[each] == labels[query] else _RED) for each in found)]
        for query, found in zip(chosen.tolist(), near.tolist(), strict=True)
    ]
    _write(file, rows, side, 0)


def contact_sheet(file: Path, queries: Sequence[Image.Image], found: Sequence[Sequence[Found]]) -> None:
    """Write a PNG with a row per query: the query and its neighbours.

    An invalid thumbnail, as an untrusted gallery may have, is left out.
    """
    colours = {None: _GREY, True: _GREEN, False: _RED}
    rows = [
        [
            _Framed(in_mode(query, "RGB"), _BLUE, "query"),
            *(_Framed(_thumbnail(content), colours[same], text) for content, text, same in hits),
        ]
        for query, hits in zip(queries, found, strict=True)
    ]
    _write(file, rows, 128, _TEXT)


def _thumbnail(content: bytes) -> Image.Image | None:
    found = open_small(content, THUMBNAIL)
    try:
        return found if found is None else in_mode(found, "RGB")
    except (OSError, ValueError, RuntimeError):  # its header is right, the rest is not
        return None


def _write(file: Path, rows: Sequence[Sequence[_Framed]], side: int, text: int) -> None:
    """The sheet as a PNG, with so many pixels for text below each picture; queries stand a little apart."""
    step = side + 2 * _FRAME + _GAP
    size = step * max(map(len, rows), default=1) + 3 * _GAP, (step + text) * len(rows) + _GAP
    sheet = Image.new("RGB", size, "white")
    for row, of_query in enumerate(rows):
        for column, framed in enumerate(of_query):
            left = _GAP + column * step + (2 * _GAP if column else 0)
            _paste(sheet, framed, left, _GAP + row * (step + text), side)
    content = BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(file, content.getvalue())


def _paste(sheet: Image.Image, framed: _Framed, left: int, top: int, side: int) -> None:
    whole, pen = side + 2 * _FRAME, ImageDraw.Draw(sheet)
    pen.rectangle((left, top, left + whole - 1, top + whole - 1), fill=framed.colour)
    place = left + _FRAME, top + _FRAME
    if framed.picture is None:
        sheet.paste("white", (*place, place[0] + side, place[1] + side))
    else:
        sheet.paste(square(framed.picture, side), place)
    font, text = ImageFont.load_default(12), " ".join(framed.text[:_MOST_TEXT].split())
    while text and pen.textlength(text, font) > whole:
        text = text[:-2] + "…" if len(text) > 2 else ""
    pen.text((left, top + whole + 2), text, fill=(40, 44, 48), font=font)
