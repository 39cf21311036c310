"""The characters that matplotlib's font files can draw, and which of them look the same."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float32
from matplotlib.ft2font import FT2Font
from numpy import ndarray
from PIL import Image, ImageFilter, ImageFont

DEJAVU = tuple(
    f"DejaVu{family}"
    for family in (
        *("Sans", "Sans-Bold", "Sans-Oblique", "Sans-BoldOblique"),
        *("Serif", "Serif-Bold", "Serif-Italic", "Serif-BoldItalic"),
        *("SansMono", "SansMono-Bold", "SansMono-Oblique", "SansMono-BoldOblique"),
    )
)
STIX = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")
COMPUTER_MODERN = (
    "cmr10",
    "cmss10",
    "cmtt10",
    "cmb10",
)  # below U+0080 only: their other codes are TeX's, not Unicode's

FACES = (*DEJAVU, *STIX, *COMPUTER_MODERN)

SIZE = 96  # of the type, in pixels: a capital is some 70 high, three times what is needed in the end
GRID = 32  # of the picture in which two characters are compared
REACH = 26  # the longer side of a character in that picture


def fonts_folder() -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@dataclass(frozen=True)
class Face:
    """One font file: which characters it has, and their outlines in black and white."""

    name: str

    @property
    def file(self) -> Path:
        return fonts_folder() / f"{self.name}.ttf"

    @cached_property
    def characters(self) -> frozenset[str]:
        """The characters that this file maps to a glyph of their own; none of them need have any ink."""
        last = 0x7F if self.name in COMPUTER_MODERN else 0x10FFFF
        return frozenset(
            chr(code) for code, glyph in FT2Font(str(self.file)).get_charmap().items() if glyph and code <= last
        )

    @cached_property
    def _type(self) -> ImageFont.FreeTypeFont:
        return ImageFont.truetype(str(self.file), SIZE, layout_engine=ImageFont.Layout.BASIC)

    @cached_property
    def _missing(self) -> Image.Image | None:
        """What the file draws for a character that it does not have: U+FFFF never is one."""
        return self._ink("\uffff")

    def _ink(self, character: str) -> Image.Image | None:
        left, top, right, bottom = (int(edge) for edge in self._type.getbbox(character))
        if right <= left or bottom <= top:
            return None
        mask = self._type.getmask(character, mode="L")
        width, height = mask.size
        picture = Image.frombytes("L", (width, height), bytes(mask))
        box = picture.getbbox()
        return picture.crop(box) if box else None

    def draw(self, character: str) -> Image.Image | None:
        """The character in white on black, cut to its ink; None if this face lacks it, or has but a blank or a box."""
        if character not in self.characters:
            return None
        ink = self._ink(character)
        return None if ink is None or ink == self._missing else ink


if __name__ == "__main__":
    import time

    t = time.time()
    for n in FACES:
        f = Face(n)
        print(
            n,
            len(f.characters),
            f.draw("A").size,
            f.draw("\ue123"),
            f.draw(" "),
            f._missing and f._missing.size,
            time.time() - t,
        )
