"""A contact sheet: queries and what was found for them, as one image."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tammes.data.images import in_mode, open_small
from tammes.gallery.items import THUMBNAIL
from tammes.io.files import write_atomically
from tammes.report.retrievals import BLUE, GREEN, RED
from tammes.report.thumbnails import square

_SIDE, _FRAME, _GAP, _TEXT = 128, 4, 8, 16
_GREY = (150, 156, 162)
_MOST_TEXT = 200  # characters that are measured: below a picture there is room for fewer
Found = tuple[bytes, str, bool | None]  # a thumbnail, what stands below it, and whether it is of the same class


def contact_sheet(file: Path, queries: Sequence[Image.Image], found: Sequence[Sequence[Found]]) -> None:
    """Write a PNG with a row for each query: the query, then what was found, green if the same, red if not.

    What is not a thumbnail, as in an untrusted gallery, leaves its place empty.
    """
    most = max(map(len, found), default=0)
    step, row_height = _SIDE + 2 * _FRAME + _GAP, _SIDE + 2 * _FRAME + _GAP + _TEXT
    sheet = Image.new("RGB", (_GAP + step * (most + 1) + 2 * _GAP, _GAP + row_height * len(queries)), "white")
    for row, (query, hits) in enumerate(zip(queries, found, strict=True)):
        top = _GAP + row * row_height
        _paste(sheet, in_mode(query, "RGB"), _GAP, top, BLUE, "query")
        for column, (picture, text, same) in enumerate(hits, start=1):
            colour = _GREY if same is None else GREEN if same else RED
            _paste(sheet, _thumbnail(picture), 3 * _GAP + column * step, top, colour, text)
    content = BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(file, content.getvalue())


def _thumbnail(content: bytes) -> Image.Image | None:
    found = open_small(content, THUMBNAIL)
    try:
        return found if found is None else in_mode(found, "RGB")
    except (OSError, ValueError, RuntimeError):  # its header is right, the rest is not
        return None


def _paste(
    sheet: Image.Image, picture: Image.Image | None, left: int, top: int, colour: tuple[int, int, int], text: str
) -> None:
    side, pen = _SIDE + 2 * _FRAME, ImageDraw.Draw(sheet)
    pen.rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
    place = left + _FRAME, top + _FRAME
    if picture is None:
        sheet.paste("white", (*place, place[0] + _SIDE, place[1] + _SIDE))
    else:
        sheet.paste(square(picture, _SIDE), place)
    font, text = ImageFont.load_default(12), " ".join(text[:_MOST_TEXT].split())
    while text and pen.textlength(text, font) > side:
        text = text[:-2] + "…" if len(text) > 2 else ""
    pen.text((left, top + side + 2), text, fill=(40, 44, 48), font=font)
