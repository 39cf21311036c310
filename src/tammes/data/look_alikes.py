"""The characters of matplotlib's fonts, and which of them look the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from tammes.errors import UserError

TYPE_SIZE = 72  # pixels: a capital is some 52 high, two and a half times what is left of it in an image of 28 x 28
GRID = 40  # side of the image in which two characters are compared
REACH = 36  # longer side of a character in it
TOLERANCE = 1  # pixels of that image by which two strokes may lie apart and still be the same stroke

ASCII_ONLY = ("cmr10", "cmss10", "cmtt10", "cmb10")  # Computer Modern: above U+007F its codes are TeX's, not Unicode's
FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *ASCII_ONLY,
)


@dataclass(frozen=True)
class Face:
    """One font file: its characters and their ink."""

    name: str
    _drawn: dict[str, Image.Image | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def file(self) -> Path:
        import matplotlib  # not before it is needed: whoever only reads images need not wait for it

        return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{self.name}.ttf"

    @cached_property
    def characters(self) -> frozenset[str]:
        """The characters for which the file names a glyph; that glyph may still be blank or a box."""
        from matplotlib.ft2font import FT2Font

        glyph_of = FT2Font(str(self.file)).get_charmap()
        last = 0x7F if self.name in ASCII_ONLY else 0x10FFFF
        return frozenset(chr(code) for code, glyph in glyph_of.items() if glyph != 0 and code <= last)

    @cached_property
    def _type(self) -> ImageFont.FreeTypeFont:
        return ImageFont.truetype(str(self.file), TYPE_SIZE, layout_engine=ImageFont.Layout.BASIC)

    @cached_property
    def missing(self) -> Image.Image | None:
        """The drawing of a missing character, mostly a box. U+FFFF is never a character."""
        return self._ink("\uffff")

    def draw(self, character: str) -> Image.Image | None:
        """The character in white on black, cropped to its ink; None if this face does not have it."""
        if character not in self._drawn:
            ink = self._ink(character) if character in self.characters else None
            self._drawn[character] = None if ink == self.missing else ink
        return self._drawn[character]

    def _ink(self, character: str) -> Image.Image | None:
        left, top, right, bottom = (round(edge) for edge in self._type.getbbox(character))
        if right <= left or bottom <= top:
            return None
        image = Image.new("L", (right - left + 2, bottom - top + 2))
        ImageDraw.Draw(image).text((1 - left, 1 - top), character, fill=255, font=self._type)
        box = image.getbbox()
        return None if box is None else image.crop(box)


def faces() -> tuple[Face, ...]:
    """The faces that are used. Raises UserError if matplotlib lacks its font files."""
    found = tuple(Face(name) for name in FACES)
    lacking = [face.file.name for face in found if not face.file.is_file()]
    if lacking:
        raise UserError(
            f"matplotlib {version('matplotlib')} lacks the font files {', '.join(lacking)}, from which the glyphs are "
            "drawn. Install it with its fonts: pip install --force-reinstall matplotlib."
        )
    return found


def likeness(characters: Sequence[str], among: Sequence[Face]) -> Float32[ndarray, "characters characters"]:
    """How alike two characters are in the two faces that tell them least apart, from 0 to 1: the lower of the two.

    Both are brought to the same size; then it is the share of the ink of either that lies on or next to the ink of the
    other, the smaller of the two shares. So an O is like a smaller and a bolder o, and not at all like a C.
    One face does not decide, for each has its accidents: the bold Cyrillic n and p of STIX are hardly to be told apart.
    The shares are quotients of whole numbers: the same on every machine.
    """
    most = np.zeros((len(characters), len(characters)), np.float32)
    second = np.zeros_like(most)
    for face in among:
        drawn = {number: ink for number, ink in enumerate(map(face.draw, characters)) if ink is not None}
        both = np.array([_compared(ink) for ink in drawn.values()], np.float32).reshape(len(drawn), 2, GRID * GRID)
        ink, near = both[:, 0], both[:, 1]  # (drawn, pixels)
        shares = (ink @ near.T) / ink.sum(axis=1, keepdims=True)  # (drawn, drawn)
        here = np.ix_(list(drawn), list(drawn))
        alike = np.minimum(shares, shares.T)
        second[here] = np.maximum(second[here], np.minimum(most[here], alike))
        most[here] = np.maximum(most[here], alike)
    return second


def _compared(ink: Image.Image) -> tuple[Bool[ndarray, " pixels"], Bool[ndarray, " pixels"]]:
    """The pixels of a scaled character, and those within the tolerance of them."""
    shrink = REACH / max(ink.size)
    width, height = (max(1, round(side * shrink)) for side in ink.size)
    image = Image.new("L", (GRID, GRID))
    image.paste(ink.resize((width, height), Image.Resampling.BOX), ((GRID - width) // 2, (GRID - height) // 2))
    widened = image.filter(ImageFilter.MaxFilter(2 * TOLERANCE + 1))
    return np.asarray(image).ravel() >= 128, np.asarray(widened).ravel() >= 128


def groups(alike: Bool[ndarray, "characters characters"]) -> list[list[int]]:
    """Connected components of the relation, in the order of their first members."""
    parents = list(range(len(alike)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    for one, other in np.argwhere(np.triu(alike, 1)).tolist():
        first, second = sorted((root(one), root(other)))
        parents[second] = first
    members: dict[int, list[int]] = {}
    for number in range(len(alike)):
        members.setdefault(root(number), []).append(number)
    return list(members.values())
