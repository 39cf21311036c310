"""Read an image by its content, convert it to grey or RGB, and scale it."""

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import SEEK_END, BufferedReader, BytesIO
from pathlib import Path
from threading import Condition
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image, UnidentifiedImageError

from tammes.errors import UserError
from tammes.io.files import opened
from tammes.io.limits import IMAGE

Mode = Literal["RGB", "L"]
File = BytesIO | BufferedReader

LONGEST = 50  # largest aspect ratio
_BAND = 2**20  # pixels that are brought to a mode at a time: steps in between of a large image fill no memory
_PROFILE = 4096  # bytes of a colour profile that goes with a small image; those of screens and cameras have less

_MOST_PIXELS = 1 << 26  # with the same in another mode, half a gigabyte
_USUAL_PASSES = 100  # of a progressive JPEG; writers make ten
_MOST_WORK = 2_000_000_000  # pixels times passes: a second or two, more on a busy machine

_PARTS = (273, 279, 324, 325)  # TIFF tags: where each strip or tile of the image is, and how long
_MOST_PARTS = 1 << 17  # a strip for each line of the longest image that is not very narrow; Pillow takes a second

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # that are opened, by Pillow's names
ACCEPTED = ", ".join({"WEBP": "WebP"}.get(kind, kind) for kind in FORMATS)  # the same for people
# Others that may be met, to say what a file is. Pillow would give PostScript to a program that executes it.
_REFUSED = {
    "PostScript (EPS)": rb"%!|\xc5\xd0\xd3\xc6",
    "PDF": rb"%PDF",
    "HEIC": rb"....ftyp(hei|hev|mif1|msf1)",
    "JPEG 2000": rb"\0\0\0\x0cjP|\xff\x4f\xff\x51",
    "PPM": rb"P[1-7fF]\s",
    "ICO": rb"\0\0[\1\2]\0",
    "PSD": rb"8BPS",
    "SVG": rb"(<\?xml.*)?<svg",
}

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What Pillow's readers raise on a broken file, besides OSError.
_BROKEN = (
    *(SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, struct.error, zlib.error),
    RuntimeError,  # AVIF
)


class Room:
    """Limits the total number of pixels that threads decode at the same time.

    A larger image is decoded alone.
    """

    def __init__(self, pixels: int) -> None:
        self._all = self._left = pixels
        self._given_back = Condition()

    @contextmanager
    def for_image(self, file: Path | File | None) -> Iterator[None]:
        """Wait until there is enough room for an image, according to its header; None needs no room."""
        pixels = min(_pixels(file), self._all)
        with self._given_back:
            self._given_back.wait_for(lambda: self._left >= pixels)
            self._left -= pixels
        try:
            yield
        finally:
            with self._given_back:
                self._left += pixels
                self._given_back.notify_all()


ROOM = Room(_MOST_PIXELS)


def most_pixels() -> int:
    """The largest allowed number of pixels: our limit, or Pillow's if that is lower."""
    return min(_MOST_PIXELS, Image.MAX_IMAGE_PIXELS or _MOST_PIXELS)


def _pixels(file: Path | File | None) -> int:
    if file is None:
        return 0
    with (
        suppress(Exception),  # whoever reads it will say what is wrong
        opened(file, IMAGE) if isinstance(file, Path) else nullcontext(file) as source,
        identified(source) as image,
    ):
        return image.width * image.height
    return 0


def identified(source: File, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Open an image with Pillow, without reading its pixels. All images are opened here.

    Photos of phones with more than one image (MPO) are opened as JPEG files.

    Args:
        formats: the allowed formats, some of `FORMATS`.

    Raises:
        UserError: it has another format, or is a TIFF with so many parts that Pillow would take many seconds.
    """
    parts = _tiff_parts(source)
    if parts > _MOST_PARTS:
        raise UserError(f"it is a TIFF in {parts:,} parts, which take too long. Save it again.")
    Image.init()
    try:
        return Image.open(source, formats=[kind for kind in formats if kind in Image.OPEN])
    except UnidentifiedImageError:
        raise UserError(_unidentified(source)) from None


def _tiff_parts(source: File) -> int:
    """The number of strips or tiles in the header of a TIFF; 0 for other files."""
    source.seek(0)
    head = source.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if order is None or len(head) < 16:
        return 0
    # The directory: a number of entries, then tag, type, count and value of each; BigTIFF has longer numbers.
    big = struct.unpack_from(f"{order}H", head, 2)[0] == 43
    entry = struct.Struct(f"{order}HHQ8x" if big else f"{order}HHI4x")
    (start,) = struct.unpack_from(f"{order}Q", head, 8) if big else struct.unpack_from(f"{order}I", head, 4)
    if start > source.seek(0, SEEK_END):
        return 0
    source.seek(start)
    number = int.from_bytes(source.read(8 if big else 2), "big" if order == ">" else "little")
    entries = source.read(min(number, 1 << 16) * entry.size)
    entries = entries[: len(entries) // entry.size * entry.size]
    return max((count for tag, _, count in entry.iter_unpack(entries) if tag in _PARTS), default=0)


def open_image(file: Path | File, *, name: str | None = None) -> Image.Image:
    """Read an image into memory, upright, in its stored mode; of an animation the first frame.

    Args:
        name: its name in errors, if the file has none.

    Raises:
        UserError: the file is missing, broken, truncated, of another format than `FORMATS`, or has too many pixels.
    """
    called = name or str(file if isinstance(file, Path) else getattr(file, "name", "the image"))
    if isinstance(file, Path) and file.is_dir():
        raise UserError(f"cannot read {called}: it is a folder.")
    try:
        # Never by its name: Pillow would map some files into memory, and gets turned TIFF wrong there.
        with (
            opened(file, IMAGE) if isinstance(file, Path) else nullcontext(file) as source,
            identified(source) as image,
        ):
            if image.width * image.height > most_pixels():
                raise Image.DecompressionBombError
            if image.info.get("progressive"):
                _check_passes(image, source)
            image.load()
            return _upright(image)
    except UserError as error:
        raise UserError(f"cannot read {called}: {error}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UserError(f"cannot read {called}: it has more than {most_pixels():,} pixels. Make it smaller.") from None
    except FileNotFoundError:
        raise UserError(f"cannot read {called}: no such file.") from None
    except OSError as error:
        said = error.strerror or f"it is broken ({error})"  # without a number it is Pillow's own
        raise UserError(f"cannot read {called}: {said}.") from error
    except _BROKEN as error:
        raise UserError(f"cannot read {called}: it is broken ({error}).") from error


def to_mode(image: Image.Image, mode: Mode) -> UInt8[ndarray, "height width channels"]:
    """The pixels as grey (one channel) or RGB (three), 0..255; transparency becomes white."""
    pixels = np.asarray(in_mode(image, mode))  # (height, width) or (height, width, 3)
    return pixels[:, :, None] if mode == "L" else pixels


def in_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Convert to grey or RGB. 16 bits are scaled by their full range; transparency becomes white."""
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.width * image.height <= _BAND:
        return _band_in_mode(image, mode)
    found, top = Image.new(mode, image.size), 0
    for band in bands_in_mode(image, mode):
        found.paste(band, (0, top))
        top += band.height
    return found


def bands_in_mode(image: Image.Image, mode: Mode) -> Iterator[Image.Image]:
    """The same a band of rows at a time, from above: for an image that is not wanted twice in memory."""
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        yield _band_in_mode(image.crop((0, top, image.width, min(top + rows, image.height))), mode)


def resized(image: Image.Image, *, shorter_side: int | None = None, size: tuple[int, int] | None = None) -> Image.Image:
    """Scale to a shorter side, keeping the aspect ratio, or to exactly (height, width); with neither, unchanged."""
    new_size = resized_size(image.size, shorter_side=shorter_side, size=size)
    return image if new_size == image.size else image.resize(new_size, Image.Resampling.LANCZOS)


def resized_size(
    old: tuple[int, int], *, shorter_side: int | None = None, size: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The (width, height) after resizing."""
    if size is not None and shorter_side is not None:
        raise ValueError("give shorter_side or size, not both")
    if size is not None:
        return size[1], size[0]
    if shorter_side is None:
        return old
    scale = shorter_side / min(old)
    return max(shorter_side, round(old[0] * scale)), max(shorter_side, round(old[1] * scale))


def scaled(
    image: Image.Image, mode: Mode, *, shorter_side: int | None = None, size: tuple[int, int] | None = None
) -> UInt8[ndarray, "channels height width"]:
    """The image converted and scaled. All images are scaled here, so that all commands share cached features."""
    pixels = np.asarray(resized(in_mode(image, mode), shorter_side=shorter_side, size=size))
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def centre(image: Image.Image, mode: Mode, *, shorter_side: int, size: int) -> UInt8[ndarray, "channels height width"]:
    """The image preprocessed for a network: converted, scaled, centre crop."""
    return middle(scaled(image, mode, shorter_side=shorter_side), size)


def middle(pixels: UInt8[ndarray, "channels height width"], size: int) -> UInt8[ndarray, "channels size size"]:
    """The centre crop of an image."""
    top, left = (pixels.shape[1] - size) // 2, (pixels.shape[2] - size) // 2
    return np.ascontiguousarray(pixels[:, top : top + size, left : left + size])


def small(image: Image.Image, longer_side: int) -> bytes:
    """A thumbnail as a WebP file, by the fastest settings, as every indexed image needs one."""
    shown = in_mode(image, "RGB")
    shown = shown.copy() if shown is image else shown
    shown.thumbnail((longer_side, longer_side), Image.Resampling.BILINEAR)
    profile = image.info.get("icc_profile") or b""
    kept = len(profile) <= _PROFILE and image.mode in ("RGB", "RGBA", "P")  # that of CMYK is not that of its RGB
    content = BytesIO()
    shown.save(content, format="WEBP", quality=75, method=0, icc_profile=profile if kept else None)
    return content.getvalue()


def open_small(content: bytes, longer_side: int) -> Image.Image | None:
    """Open a thumbnail by `small`; None for another file, or a larger image. Only the header is read."""
    try:
        image = identified(BytesIO(content), formats=("WEBP",))
    except (OSError, *_BROKEN, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return image if max(image.size) <= longer_side else None


def check_shape(image: Image.Image) -> None:
    """Raise UserError for an aspect ratio so extreme that the scaled image would not fit into memory."""
    if max(image.size) > LONGEST * min(image.size):
        raise UserError(f"it is {max(image.size) // min(image.size)} times as long as wide.")


def _band_in_mode(image: Image.Image, mode: Mode) -> Image.Image:
    image = _in_eight_bits(image)
    if image.mode == mode and "transparency" not in image.info:
        return image
    try:
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        # Grey goes straight to grey: through RGB it would come out the same, three times as slowly.
        return image.convert(mode) if image.mode in ("1", "L", "RGB") else image.convert("RGB").convert(mode)
    except ValueError as error:  # La, for one, has no conversion
        raise UserError(f"cannot turn an image of mode {image.mode} into {mode}.") from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit, 32-bit or floating-point pixels to 8 bits by the full range of the type, without clipping."""
    if not image.mode.startswith(("I", "F")):
        return image
    pixels = np.asarray(image)
    if image.mode == "F":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise UserError("floating-point pixels outside 0..1: their range is not known. Save it in 8 or 16 bits.")
        return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))
    if image.mode == "I" and (pixels.min() < 0 or pixels.max() > 65535):
        raise UserError("32-bit pixels outside 0..65535: their range is not known. Save it in 8 or 16 bits.")
    grey = Image.fromarray(((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255
    transparent = image.info.get("transparency")
    if transparent is None:
        return grey
    opaque = Image.fromarray(np.where(pixels == transparent, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, opaque))


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except (OSError, *_BROKEN):  # a broken note about the image does not make the image unreadable
        orientation = 1
    turn = _UPRIGHT.get(orientation)
    # Without the file that it came from, but not another copy of what is in memory: an image may be large.
    return image._new(image.im) if turn is None else image.transpose(turn)


def _check_passes(image: Image.Image, source: File) -> None:
    """Raise UserError for a progressive JPEG with thousands of passes, which would take hours to decode."""
    place = source.tell()
    source.seek(0)
    passes, before = 0, b""
    while block := source.read(1 << 20):
        passes += (before + block).count(b"\xff\xda")
        before = block[-1:]
    source.seek(place)
    if passes > _USUAL_PASSES and passes * image.width * image.height > _MOST_WORK:
        raise UserError(f"it is stored in {passes:,} passes, which take too long. Save it again.")


def _unidentified(source: File) -> str:
    """A description of a file that is not an image of a supported format."""
    source.seek(0)
    beginning = source.read(512)
    if not beginning:
        return "the file is empty."
    for kind, pattern in _REFUSED.items():
        if re.match(pattern, beginning, re.DOTALL):
            return f"it is {kind}, not one of {ACCEPTED}."
    return f"it is not an image of a known kind ({ACCEPTED})."
