"""Uploads that mean harm, or look as if they did: made by code from a seed, each with the answers that are right to it.

A kind is a function of a random generator, a number and the good pictures of a gallery. `File` is what lies in a file,
sent in several ways; `Request` is what is sent, byte for byte, where the way is the attack.
"""

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import repeat
from math import isqrt
from typing import Any

import numpy as np
from PIL import Image

from tammes.serve.limits import Limits

Rng = np.random.Generator
GOOD, CLOSED = 200, 0  # CLOSED: the server ends the connection without an answer
ANY_FILE = {GOOD, 415, 422}  # whatever is left of a picture that was damaged at random
MEGABYTE = 1_000_000
BOUNDARY = b"----one"
_SIDE = isqrt(Limits().upload_pixels)  # of the largest square


@dataclass(frozen=True)
class Picture:
    """A picture of the gallery, and the name it has there."""

    name: str
    image: Image.Image


@dataclass(frozen=True)
class File:
    """What is in a file.

    Attributes:
        statuses: any of which is right.
        right: the item that must be the nearest if the status is 200.
    """

    what: str
    content: bytes
    statuses: set[int]
    right: str | None = None


@dataclass(frozen=True)
class Request:
    """What goes over the wire; `half`: and then the client says that it has no more to send."""

    what: str
    head: bytes
    body: Iterable[bytes]
    statuses: set[int]
    right: str | None = None
    half: bool = False


def stored(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = BytesIO()
    image.save(content, format=kind, **options)
    return content.getvalue()


def _one(rng: Rng, pictures: Sequence[Picture]) -> Picture:
    return pictures[int(rng.integers(len(pictures)))]


def _pick(number: int, *choices: Any) -> Any:
    return choices[number % len(choices)]


def _encoded(image: Image.Image, number: int) -> tuple[str, bytes]:
    """The picture as one of the kinds of file that are read."""
    colour = image.convert("RGB")
    makers: dict[str, Callable[[], bytes]] = {
        "JPEG": lambda: stored(colour, "JPEG", quality=90),
        "progressive JPEG": lambda: stored(colour, "JPEG", progressive=True),
        "PNG": lambda: stored(colour, "PNG"),
        "palette PNG": lambda: stored(image.convert("P"), "PNG"),
        "WebP": lambda: stored(colour, "WEBP"),
        "lossless WebP": lambda: stored(colour, "WEBP", lossless=True),
        "GIF": lambda: stored(image, "GIF"),
        "BMP": lambda: stored(colour, "BMP"),
        "TIFF": lambda: stored(colour, "TIFF"),
        "LZW TIFF": lambda: stored(colour, "TIFF", compression="tiff_lzw"),
        "JPEG TIFF": lambda: stored(colour, "TIFF", compression="jpeg"),
        "AVIF": lambda: stored(colour, "AVIF", speed=10),
    }
    kind = _pick(number, *makers)
    return kind, makers[kind]()


# Damage.


def truncated(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    kind, whole = _encoded(_one(rng, pictures).image, number)
    places = (
        int(rng.integers(1, 12)),
        int(rng.integers(12, 64)),
        int(rng.integers(64, len(whole))),
        len(whole) - int(rng.integers(1, 12)),
    )
    length = _pick(number // 12, *places)
    return File(f"{kind} cut after {length} of {len(whole)}", whole[:length], ANY_FILE)


def flipped(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    kind, whole = _encoded(_one(rng, pictures).image, number)
    content = bytearray(whole)
    bits = _pick(number // 12, 1, 4, 40)
    end = _pick(number // 36, 64, len(content))  # the header, or anywhere
    for place in rng.integers(0, end, bits):
        content[place] ^= 1 << int(rng.integers(8))
    return File(f"{kind} with {bits} bits flipped", bytes(content), ANY_FILE)


def zeros(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    if number % 3 == 0:
        return File("zeros", bytes(int(rng.choice([1, 16, 1000, MEGABYTE]))), {415})
    kind, whole = _encoded(_one(rng, pictures).image, number)
    start = int(rng.integers(4, len(whole)))
    end = int(rng.integers(start, len(whole))) if number % 3 == 1 else len(whole)
    return File(f"{kind}, zeros in it", whole[:start] + bytes(end - start) + whole[end:], ANY_FILE)


def shuffled(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """Pieces of one file in another."""
    kind, one = _encoded(_one(rng, pictures).image, number)
    other_kind, other = _encoded(_one(rng, pictures).image, number + 1 + number // 12)
    cut = int(rng.integers(16, len(one)))
    return File(f"{kind}, then {other_kind}", one[:cut] + other[int(rng.integers(len(other))) :], ANY_FILE)


def wrong_type(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    what, content = _pick(
        number,
        ("text", b"not a picture\n" * 100),
        ("HTML", b"<!doctype html><script>alert(1)</script>"),
        ("JSON", b'{"vector": [1, 2, 3]}'),
        ("PDF", b"%PDF-1.7\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj"),
        ("ZIP", b"PK\x03\x04" + rng.bytes(500)),
        ("ELF", b"\x7fELF\x02\x01\x01" + bytes(9) + rng.bytes(500)),
        ("PE", b"MZ" + rng.bytes(500)),
        ("gzip", gzip.compress(rng.bytes(500))),
        ("pickle", b"\x80\x04\x95\x1a\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."),
        ("random", rng.bytes(2000)),
        ("PPM", b"P6 4 4 255\n" + bytes(48)),
        ("ICO", b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" + bytes(60)),
        ("PSD", b"8BPS\0\1" + bytes(60)),
        ("FITS", b"SIMPLE  =                    T" + bytes(3000)),
        ("SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'),
        (
            "SVG with entities",
            b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaa">]><svg onload="alert(1)">&a;</svg>',
        ),
        ("PostScript", b"%!PS-Adobe-3.0\n(/etc/passwd) (r) file\nshowpage"),
        ("EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%pipe%id\nshowpage"),
        (
            "EPS in DOS",
            b"\xc5\xd0\xd3\xc6" + struct.pack("<6I", 30, 200, 0, 0, 0, 0) + b"\xff\xff%!PS-Adobe-3.0 EPSF-3.0",
        ),
    )
    return File(what, content, {415})


def wrong_family(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """The container of a picture, with something else in it."""
    what, content = _pick(
        number,
        ("WAV", b"RIFF\x24\0\0\0WAVEfmt " + bytes(100)),
        ("MP4", b"\0\0\0\x20ftypisom" + bytes(100)),
        ("HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)),
        ("mif1", b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif" + rng.bytes(300)),
        ("empty WebP", b"RIFF\x04\0\0\0WEBP"),
        ("DNG", b"II*\0" + rng.bytes(300)),
        ("JPEG start", b"\xff\xd8\xff" + rng.bytes(300)),
        ("GIF start", b"GIF89a" + rng.bytes(300)),
        ("BMP start", b"BM" + rng.bytes(300)),
        ("PNG start", b"\x89PNG\r\n\x1a\n" + rng.bytes(300)),
    )
    return File(what, content, {415, 422})


# Bombs.


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 0, before: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@cache
def _many_zeros(length: int) -> bytes:
    """That many zero bytes, compressed, without ever having them: one block over and over."""
    packer = zlib.compressobj(9)
    block = 10 * MEGABYTE
    first = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (length // block)


def bomb(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """Small files that say, or hide, that they are huge."""
    side = int(rng.choice([30_000, 60_000]))
    webp_size = struct.pack("<I", 16383 | 16383 << 14)
    gif_screen = struct.pack("<HHBBB", 65535, 65535, 0xF0, 0, 0) + bytes(6)
    gif_frame = b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x4c\x01\0;"
    bmp = struct.pack("<IIiiHHIIiiII", 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    jpeg = bytearray(stored(Image.new("L", (8, 8)), "JPEG"))
    size = jpeg.index(b"\xff\xc0") + 5
    jpeg[size : size + 4] = struct.pack(">HH", 65535, 65535)
    what, content = _pick(
        number,
        ("PNG", png(side, side, _many_zeros(side * side // 8), depth=1)),
        ("RGBA PNG", png(side, side, _many_zeros(100 * MEGABYTE), colour=6)),
        ("GIF", b"GIF89a" + gif_screen + gif_frame),
        ("GIF, the frame only", b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0xF0, 0, 0) + bytes(6) + gif_frame),
        ("BMP", b"BM" + struct.pack("<IHH", 60, 0, 0) + bmp + bytes(100)),
        ("JPEG", bytes(jpeg)),
        (
            "WebP",
            b"RIFF" + struct.pack("<I", 300) + b"WEBPVP8L" + struct.pack("<I", 280) + b"\x2f" + webp_size + bytes(275),
        ),
        (
            "extended WebP",
            b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + b"\xff\x3f\0" * 2,
        ),
        ("TIFF", tiff(side, side, [(_STRIP_OFFSETS, 4, 1, 8), (_STRIP_BYTES, 4, 1, 100), (_ROWS, 4, 1, side)])),
        (
            "tiled TIFF",
            tiff(
                side,
                side,
                [(322, 4, 1, side // 16 * 16), (323, 4, 1, side // 16 * 16), (324, 4, 1, 8), (325, 4, 1, 100)],
            ),
        ),
        ("PNG, width of 32 bits", png(2**31 - 1, 1, zlib.compress(bytes(100)))),
        ("PNG, height of 32 bits", png(1, 2**31 - 1, zlib.compress(bytes(100)))),
    )
    return File(f"{what} of {side}", content, {415, 422})


def liar(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """The header says one thing and the data another; the size itself is allowed."""
    what, content = _pick(
        number,
        ("PNG with more data than told", png(100, 100, _many_zeros(200 * MEGABYTE))),
        ("PNG with less data than told", png(4000, 4000, zlib.compress(bytes(1000)))),
        ("PNG with no data", png(4000, 4000, b"")),
        ("PNG of 0 x 0", png(0, 0, zlib.compress(b"\0"))),
        ("PNG of an unknown depth", png(8, 8, zlib.compress(bytes(100)), depth=7, colour=5)),
        ("PNG, palette missing", png(8, 8, zlib.compress(bytes(100)), colour=3)),
        (
            "PNG, header twice",
            png(
                8,
                8,
                zlib.compress(bytes(72)),
                before=chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)),
            ),
        ),
        (
            "PNG, a chunk of 2 GB",
            png(8, 8, zlib.compress(bytes(72)))[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + bytes(50),
        ),
        (
            "BMP, offset beyond its end",
            b"BM"
            + struct.pack("<IHHI", 60, 0, 0, 2**31)
            + struct.pack("<IiiHHIIiiII", 40, 9, 9, 1, 24, 0, 0, 0, 0, 0, 0),
        ),
        (
            "BMP of negative size",
            b"BM"
            + struct.pack("<IHHI", 60, 0, 0, 54)
            + struct.pack("<IiiHHIIiiII", 40, -9, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0),
        ),
        ("BMP, runs that jump", _run_length_bmp(b"\0\2\xff\xff" * 20_000)),
        ("BMP, runs without end", _run_length_bmp(b"\x01\0" * 200_000)),
    )
    return File(what, content, ANY_FILE)


def _run_length_bmp(runs: bytes) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, 3000, 3000, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(runs), 0, 0, 1078) + header + bytes(1024) + runs


def notes(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """A good picture with much beside it."""
    good = _one(rng, pictures)
    whole = stored(good.image, "PNG")
    start, rest = whole[:33], whole[33:]
    packed = _many_zeros(30 * MEGABYTE)
    what, content, spoilt = _pick(
        number,
        ("zTXt bomb", start + chunk(b"zTXt", b"a\0\0" + packed) + rest, True),
        ("iTXt bomb", start + chunk(b"iTXt", b"a\0\1\0\0\0" + packed) + rest, True),
        ("iCCP bomb", start + chunk(b"iCCP", b"a\0\0" + packed) + rest, True),
        ("iCCP of rubbish", start + chunk(b"iCCP", b"a\0\0" + rng.bytes(500)) + rest, True),
        ("10 MB of text", start + chunk(b"tEXt", b"a\0" + b"<script>" * (10 * MEGABYTE // 8)) + rest, True),
        ("200 texts of 0.9 MB", start + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000))) * 200 + rest, True),
        ("100,000 chunks", start + chunk(b"teSt", b"") * 100_000 + rest, False),
        ("rubbish after the end", whole + rng.bytes(100_000), False),
        (
            "XMP",
            start + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"<x>" * 200_000 + b"tiff:Orientation=") + rest,
            False,
        ),
    )
    return File(what, content, ANY_FILE if spoilt else {GOOD}, good.name)


_STRIP_OFFSETS, _STRIP_BYTES, _ROWS = 273, 279, 278


def tiff(
    width: int, height: int, entries: list[tuple[int, int, int, int]], tail: bytes = b"", following: int = 0
) -> bytes:
    """A grey TIFF whose tags say (type, count, value) whatever one likes; its first directory is at 8."""
    known = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1), 277: (3, 1, 1)}
    tags = {**known, **{tag: (kind, count, value) for tag, kind, count, value in entries}}
    directory = struct.pack("<H", len(tags))
    for tag in sorted(tags):
        directory += struct.pack("<HHII", tag, *tags[tag])
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", following) + tail


def tags(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """TIFF that counts wrongly."""
    strips = [(_STRIP_OFFSETS, 4, 1, 8), (_STRIP_BYTES, 4, 1, 64)]
    most = 2**32 - 1
    loop = b"".join(struct.pack("<HHHIII", 1, 256, 4, 1, 8, 200 + 18 * (each + 1)) for each in range(5000))
    what, content = _pick(
        number,
        ("4 billion strips", tiff(8, 8, [(_STRIP_OFFSETS, 4, most, 8), (_STRIP_BYTES, 4, most, 8)])),
        (
            "a million strips of a line",
            tiff(
                1,
                MEGABYTE,
                [(_STRIP_OFFSETS, 4, MEGABYTE, 8), (_STRIP_BYTES, 4, MEGABYTE, 8), (_ROWS, 4, 1, 1)],
                bytes(4 * MEGABYTE),
            ),
        ),
        ("no rows in a strip", tiff(8, 8, [*strips, (_ROWS, 4, 1, 0)], bytes(64))),
        ("tiles of nothing", tiff(8, 8, [(322, 4, 1, 0), (323, 4, 1, 0), (324, 4, 1, 8), (325, 4, 1, 64)], bytes(64))),
        (
            "tiles of 2 billion",
            tiff(8, 8, [(322, 4, 1, 2**31), (323, 4, 1, 2**31), (324, 4, 1, 8), (325, 4, 1, 64)], bytes(64)),
        ),
        ("a directory that follows itself", tiff(8, 8, strips, bytes(64), following=8)),
        ("5,000 directories", tiff(8, 8, strips, bytes(90) + loop, following=200)),
        (
            "sub-directories that hold themselves",
            tiff(8, 8, [*strips, (330, 4, 1, 8), (34665, 4, 1, 8), (34853, 4, 1, 8)], bytes(64)),
        ),
        ("4 billion samples", tiff(8, 8, [*strips, (277, 4, 1, most)], bytes(64))),
        ("65,535 samples", tiff(8, 8, [*strips, (277, 3, 1, 65535), (258, 3, 65535, 8)], bytes(200_000))),
        ("a description of 4 GB", tiff(8, 8, [*strips, (270, 2, most, 8)], bytes(64))),
        (
            "LZW of rubbish",
            tiff(900, 900, [*strips, (259, 3, 1, 5), (_STRIP_BYTES, 4, 1, 5000), (_ROWS, 4, 1, 900)], rng.bytes(6000)),
        ),
        ("deflate bomb", _deflated_tiff(_many_zeros(300 * MEGABYTE))),
        (
            "fax of rubbish",
            tiff(
                3000,
                3000,
                [*strips, (258, 3, 1, 1), (259, 3, 1, 4), (_STRIP_BYTES, 4, 1, 5000), (_ROWS, 4, 1, 3000)],
                rng.bytes(6000),
            ),
        ),
        ("an unknown compression", tiff(8, 8, [*strips, (259, 3, 1, 50001)], bytes(64))),
        ("BigTIFF", b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**63) + bytes(64)),
        ("a directory beyond its end", b"MM\0*" + struct.pack(">I", 2**31)),
        ("65,535 tags", b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 256, 4, 1, 8) * 65535 + bytes(4)),
    )
    return File(what, content, {415, 422} if "strips" in what else ANY_FILE)


def _deflated_tiff(data: bytes) -> bytes:
    where = 8 + 2 + 9 * 12 + 4
    entries = [(_STRIP_OFFSETS, 4, 1, where), (_STRIP_BYTES, 4, 1, len(data)), (_ROWS, 4, 1, 4000), (259, 3, 1, 8)]
    return tiff(4000, 4000, entries, data)


# Slow ones.


def scans(width: int, height: int, number: int) -> bytes:
    """A progressive JPEG that has its last pass so many times: little to read, much to do."""
    whole = stored(Image.new("L", (width, height), 77), "JPEG", progressive=True)
    starts = [place for place in range(len(whole) - 1) if whole[place : place + 2] == b"\xff\xc4"]
    last, end = starts[-1], len(whole) - 2
    return whole[:end] + whole[last:end] * number + whole[end:]


def markers(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """A good JPEG with thousands of segments before its picture."""
    good = _one(rng, pictures)
    whole = stored(good.image, "JPEG", quality=100)

    def segment(mark: int, content: bytes) -> bytes:
        return bytes([0xFF, mark]) + struct.pack(">H", len(content) + 2) + content

    what, more, spoilt = _pick(
        number,
        ("20,000 comments", segment(0xFE, b"x") * 20_000, False),
        ("300 comments of 64 KB", segment(0xFE, b"x" * 65_000) * 300, False),
        ("5,000 application segments", segment(0xEA, b"x" * 10) * 5000, False),
        (
            "255 pieces of a colour profile",
            b"".join(segment(0xE2, b"ICC_PROFILE\0" + bytes([each, 255]) + rng.bytes(5000)) for each in range(1, 256)),
            False,
        ),
        ("a colour profile of rubbish", segment(0xE2, b"ICC_PROFILE\0\1\1" + rng.bytes(3000)), False),
        ("2,000 Huffman tables", whole[whole.index(b"\xff\xc4") : whole.index(b"\xff\xda")] * 500, False),
        ("Photoshop's notes of rubbish", segment(0xED, b"Photoshop 3.0\x008BIM" + rng.bytes(2000)), True),
        ("an index of pictures", segment(0xE2, b"MPF\0II*\0\x08\0\0\0" + rng.bytes(200)), True),
        ("a segment without length", b"\xff\xe5\0\0", True),
        ("fill bytes", b"\xff" * 100_000, True),
    )
    return File(what, whole[:2] + more + whole[2:], ANY_FILE if spoilt else {GOOD}, good.name if not spoilt else None)


def passes(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    side, times = _pick(number, (64, 2000), (800, 200), (64, 20_000), (2000, 20))
    return File(f"{side} x {side} in {times} passes", scans(side, side, times), ANY_FILE)


def endless(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """To be ended by the clock."""
    return File("16 million pixels in 40,000 passes", scans(4000, 4000, 40_000), {422})


def largest(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """As large as is allowed, in the modes that take most memory; WebP's reader alone takes four pictures' worth."""
    modes = ("RGBA", "PNG"), ("LA", "PNG"), ("RGB", "WEBP"), ("I;16", "PNG"), ("CMYK", "JPEG"), ("P", "GIF")
    mode, kind = _pick(number, *modes)
    image = Image.new(mode, (_SIDE, _SIDE))
    options: dict[str, dict[str, Any]] = {
        "PNG": {"compress_level": 1},
        "JPEG": {"progressive": True, "subsampling": 0},
        "WEBP": {"method": 0},
    }
    content = stored(image, kind, **options.get(kind, {}))
    return File(f"{_SIDE} x {_SIDE} {mode} {kind}", content, {GOOD, 422} if kind == "WEBP" else {GOOD})


def too_large(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    size = _pick(number, (_SIDE + 1, _SIDE + 1), (2 * _SIDE, _SIDE), (7000, 7000))
    return File(f"{size[0]} x {size[1]}", stored(Image.new("1", size), "PNG"), {422})


def frames(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """Animations: the first frame counts."""
    good = _one(rng, pictures)
    grey = good.image
    others = [Image.fromarray(rng.integers(0, 256, (40, 40), dtype=np.uint8)) for _ in range(5)]
    what, content = _pick(
        number,
        ("GIF", lambda: stored(grey, "GIF", save_all=True, append_images=others * 100)),
        ("WebP", lambda: stored(grey.convert("RGB"), "WEBP", lossless=True, save_all=True, append_images=others * 10)),
        ("PNG", lambda: stored(grey, "PNG", save_all=True, append_images=others * 20)),
        ("TIFF", lambda: stored(grey, "TIFF", save_all=True, append_images=others * 60)),
        (
            "MPO",
            lambda: stored(grey.convert("RGB"), "MPO", quality=100, subsampling=0, save_all=True, append_images=others),
        ),
        (
            "GIF of 20,000 empty frames",
            lambda: _gif_frames(grey, b"!\xf9\x04\0\0\0\0\0,\0\0\0\0\1\0\1\0\0\x02\x02\x4c\x01\0" * 20_000),
        ),
        ("GIF of 100,000 notes", lambda: _gif_frames(grey, b"!\xfe\x01x\0" * 100_000)),
        ("GIF, a note without end", lambda: _gif_frames(grey, b"!\xfe" + b"\xff" * 100_000)),
        (
            "AVIF",
            lambda: stored(
                grey.convert("RGB"),
                "AVIF",
                quality=100,
                speed=10,
                subsampling="4:4:4",
                save_all=True,
                append_images=others,
            ),
        ),
    )
    return File(what, content(), {GOOD}, good.name)


def _gif_frames(image: Image.Image, more: bytes) -> bytes:
    return stored(image, "GIF")[:-1] + more + b";"


# What is unusual and right.


def shapes(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    size, status = _pick(
        number,
        ((1, 10_000), 422),
        ((10_000, 1), 422),
        ((1, 1), GOOD),
        ((1, 50), GOOD),
        ((50, 1), GOOD),
        ((51, 1), 422),
        ((1, 51), 422),
        ((2, 101), 422),
        ((3, 150), GOOD),
        ((5000, 100), GOOD),
        ((65_535, 1), 422),
        ((2, 1), GOOD),
    )
    kind = _pick(number // 12, "PNG", "GIF", "BMP", "TIFF", "JPEG")
    mode = "RGB" if kind in ("PNG", "JPEG") else "L"
    if kind == "JPEG" and max(size) > 65_500:  # as far as its writer goes
        kind = "PNG"
    return File(f"{size[0]} x {size[1]} {kind}", stored(Image.new(mode, size, "grey"), kind), {status})


def variants(grey: Image.Image) -> dict[str, Callable[[], bytes]]:
    """The same picture in every mode: all of these have the same pixels, or nearly so where a kind is lossy."""
    colour, values = grey.convert("RGB"), np.asarray(grey)
    opaque = Image.new("L", grey.size, 255)
    clear = Image.merge("LA", (grey, opaque))
    palette = Image.fromarray(255 - values).convert("P")
    palette.putpalette([value for grey_value in range(255, -1, -1) for value in [grey_value] * 3])
    wide = values.astype(np.uint16) * 257
    return {
        "L PNG": lambda: stored(grey, "PNG"),
        "RGB PNG": lambda: stored(colour, "PNG"),
        "LA PNG": lambda: stored(clear, "PNG"),
        "RGBA PNG": lambda: stored(clear.convert("RGBA"), "PNG"),
        "P PNG": lambda: stored(palette, "PNG"),
        "16-bit PNG": lambda: stored(Image.fromarray(wide), "PNG"),
        "16-bit TIFF": lambda: stored(Image.fromarray(wide), "TIFF"),
        "32-bit TIFF": lambda: stored(Image.fromarray(wide.astype(np.int32)), "TIFF"),
        "float TIFF": lambda: stored(Image.fromarray((values / 255).astype(np.float32)), "TIFF"),
        "CMYK TIFF": lambda: stored(colour.convert("CMYK"), "TIFF"),
        "CMYK JPEG": lambda: stored(colour.convert("CMYK"), "JPEG", quality=100),
        "L JPEG": lambda: stored(grey, "JPEG", quality=100),
        "YCbCr JPEG": lambda: stored(colour, "JPEG", quality=100, subsampling=0),
        "P GIF": lambda: stored(palette, "GIF"),
        "P BMP": lambda: stored(palette, "BMP"),
        "RGB BMP": lambda: stored(colour, "BMP"),
        "RGBA WebP": lambda: stored(clear.convert("RGBA"), "WEBP", lossless=True),
        "RGB AVIF": lambda: stored(colour, "AVIF", quality=100, subsampling="4:4:4", speed=10),
        "PackBits TIFF": lambda: stored(grey, "TIFF", compression="packbits"),
        "deflate TIFF": lambda: stored(colour, "TIFF", compression="tiff_adobe_deflate"),
        "big-endian TIFF": lambda: _big_endian(values),
    }


def _big_endian(values: np.ndarray) -> bytes:
    height, width = values.shape
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 4, height), (279, 4, values.size)]
    directory = struct.pack(">H", len(tags))
    for tag, kind, value in tags:
        directory += struct.pack(">HHI", tag, kind, 1) + (
            struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value)
        )
    return b"MM\0*" + struct.pack(">I", 8 + values.size) + values.tobytes() + directory + bytes(4)


def modes(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    good = _one(rng, pictures)
    made = variants(good.image)
    what = _pick(number, *made)
    return File(what, made[what](), {GOOD}, good.name)


def ranges(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:  # noqa: ARG001
    """Numbers that are no brightness."""
    pixels = rng.random((40, 40)).astype(np.float32)
    pixels[3, 4] = _pick(number, np.nan, np.inf, -np.inf, -0.5, 1e30)
    whole = np.full((40, 40), 5, dtype=np.int32)
    whole[3, 4] = _pick(number, -1, 70_000, 2**31 - 1, -(2**31))
    image = Image.fromarray(pixels if number % 2 else whole)
    return File(f"{image.mode} with {pixels[3, 4] if number % 2 else whole[3, 4]}", stored(image, "TIFF"), {422})


_LYING: dict[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def turned(grey: Image.Image, orientation: int, kind: str) -> bytes:
    """The picture as a camera held that way stores it."""
    lying = grey.transpose(_LYING[orientation]) if orientation in _LYING else grey
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}
    return stored(
        lying.convert("RGB") if kind == "WEBP" else lying, kind, exif=exif.tobytes(), **lossless.get(kind, {})
    )


def orientations(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    good = _one(rng, pictures)
    kind = _pick(number // 8, "JPEG", "PNG", "TIFF", "WEBP")
    return File(f"{kind} held as {number % 8 + 1}", turned(good.image, number % 8 + 1, kind), {GOOD}, good.name)


def exif(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """Notes of a camera that are broken, in a picture that is not."""
    good = _one(rng, pictures)

    def entry(tag: int, kind: int, count: int, value: int) -> bytes:
        return b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", tag, kind, count, value) + struct.pack("<I", 8)

    what, broken = _pick(
        number,
        ("rubbish", rng.bytes(200)),
        ("an orientation of 99", entry(0x0112, 3, 1, 99)),
        ("4 billion orientations", entry(0x0112, 3, 2**32 - 1, 8)),
        ("an orientation in words", entry(0x0112, 2, 4, int.from_bytes(b"six\0", "little"))),
        ("an orientation by nothing", entry(0x0112, 5, 1, 26) + bytes(8)),
        ("an orientation as a double", entry(0x0112, 12, 1, 26) + struct.pack("<d", float("nan"))),
        ("an unknown type", entry(0x0112, 77, 1, 6)),
        ("a directory that holds itself", entry(0x8769, 4, 1, 8)),
        ("a maker's note of 60 KB", entry(0x927C, 7, 60_000, 26) + rng.bytes(60_000)),
        ("65,535 tags", b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 0x0112, 3, 1, 1) * 5000),
        ("nothing", b""),
        ("a directory beyond its end", b"MM\0*\xff\xff\xff\xf0"),
    )
    if number // 12 % 2:
        return File(f"PNG, {what}", stored(good.image, "PNG", exif=b"Exif\0\0" + broken), {GOOD}, good.name)
    whole = stored(good.image, "JPEG", quality=100)
    segment = b"\xff\xe1" + struct.pack(">H", len(broken) + 8) + b"Exif\0\0" + broken
    return File(f"JPEG, {what}", whole[:2] + segment + whole[2:], {GOOD}, good.name)


def polyglots(rng: Rng, number: int, pictures: Sequence[Picture]) -> File:
    """Two kinds of file at once. What can be read as a picture is one, and is never given back as it came."""
    good = _one(rng, pictures)
    jpeg, whole_png = stored(good.image, "JPEG", quality=100), stored(good.image, "PNG")
    script = b"/*<script>alert(document.domain)</script>*/=1;alert(1)//"
    archive = b"PK\x03\x04" + rng.bytes(300) + b"PK\x05\x06" + bytes(18)
    what, content, read = _pick(
        number,
        ("GIF and script", stored(good.image, "GIF") + script, True),
        ("JPEG and HTML", jpeg[:2] + b"\xff\xfe" + struct.pack(">H", 2 + len(script)) + script + jpeg[2:], True),
        ("PNG and ZIP", whole_png + archive, True),
        ("JPEG and ZIP", jpeg + archive, True),
        ("PNG and PHP", whole_png[:33] + chunk(b"tEXt", b"a\0<?php system('id') ?>") + whole_png[33:], True),
        ("PDF and JPEG", b"%PDF-1.4\n" + jpeg, False),
        ("HTML and PNG", b"<html>" + whole_png, False),
        ("ZIP and JPEG", archive + jpeg, False),
        ("PostScript and JPEG", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + jpeg, False),
        ("BMP and script", b"BM/*" + b"\0" * 10 + script, False),
    )
    return File(what, content, {GOOD} if read else {415, 422}, good.name if read else None)


# Requests that are the attack themselves.


def head(path: bytes = b"/api/search", *headers: bytes, length: int | None = None) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: 127.0.0.1", *headers]
    if length is not None:
        lines.append(b"Content-Length: %d" % length)
    if not any(line.lower().startswith(b"connection:") for line in headers):
        lines.append(b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])


def part(disposition: bytes, content: bytes, *headers: bytes) -> bytes:
    lines = [b"--" + BOUNDARY, b"Content-Disposition: " + disposition, *headers, b"", content]
    return b"\r\n".join(lines) + b"\r\n"


IMAGE = b'form-data; name="image"; filename="a.png"'
FORM = b"Content-Type: multipart/form-data; boundary=" + BOUNDARY
END = b"--" + BOUNDARY + b"--\r\n"


def as_request(file: File, number: int) -> Request:
    """A file, in one of the ways to send it."""
    way = number % 4
    path = b"/search" if way in (2, 3) else b"/api/search"
    if way in (0, 2):
        body, kind = part(IMAGE, file.content) + END, FORM
    else:
        body, kind = file.content, b"Content-Type: " + _pick(number // 4, b"image/png", b"application/octet-stream")
    accept = b"Accept: " + (b"text/html" if way == 3 else b"*/*")
    # The form of a page leads on to the page of what was found.
    statuses = {303 if status == GOOD and path == b"/search" else status for status in file.statuses}
    sent = head(path, kind, accept, length=len(body))
    return Request(file.what, sent, [body], statuses, file.right)


def _form(what: str, body: bytes, statuses: set[int], right: str | None = None, kind: bytes = FORM) -> Request:
    return Request(what, head(b"/api/search", kind, length=len(body)), [body], statuses, right)


def names(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:
    """What a file or a field is called: nobody reads it, and nothing comes of it."""
    good = _one(rng, pictures)
    content = stored(good.image, "PNG")
    name = _pick(
        number,
        b"<script>alert(1)</script>.png",
        b"../../../../etc/passwd",
        b"..\\..\\windows\\system32\\a.png",
        b'a\\"b.png',
        b"C:\\\\con.png",
        b"'; DROP TABLE items; --",
        b"%00.png",
        b"\xff\xfe\xfd.png",
        "鳥.png".encode(),
        b"x" * 3000,
        b"$(id).png",
        b"`id`",
        b"|id",
        b"a.svg",
        b"a.php",
        b".htaccess",
        b"",
        b"a\tb",
        b"{{7*7}}",
        b"/dev/stdin",
    )
    if number // 20 % 3 == 1:
        body = part(b'form-data; name="' + (name or b"x") + b'"', b"value") + part(IMAGE, content) + END
        return _form(f"a field called {name[:30]!r}", body, {GOOD}, good.name)
    if number // 20 % 3 == 2:
        body = part(b'form-data; name="label"', name) + part(IMAGE, content) + END
        return _form(f"a field of {name[:30]!r}", body, {GOOD}, good.name)
    body = part(b'form-data; name="image"; filename="' + name + b'"', content) + END
    return _form(f"a file called {name[:30]!r}", body, {GOOD}, good.name)


def headers_in_names(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:
    """Ends of lines, NUL and much text where a name is."""
    good = _one(rng, pictures)
    name = _pick(
        number,
        b"a\r\nSet-Cookie: x=1",
        b"a\nX: y",
        b"a\0b.png",
        b"x" * 10_000,
        b"a\r\n\r\n<script>",
        b"\r\n--" + BOUNDARY,
    )
    body = part(b'form-data; name="image"; filename="' + name + b'"', stored(good.image, "PNG")) + END
    return _form(f"a file called {name[:30]!r}", body, ANY_FILE | {400})


def forms(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:
    """Forms that are none."""
    good = _one(rng, pictures)
    content = stored(good.image, "PNG")
    file = part(IMAGE, content)
    nested = part(b"form-data; name=image", file + END, b"Content-Type: multipart/mixed; boundary=two")
    field = part(b'form-data; name="a"', b"b")
    slow = part(b'form-data; name="a"', b"a" * 500_000 + b"-" + b"b9" * 250_000)
    alike = part(IMAGE, (b"\r\n--" + BOUNDARY[:-1]) * 50_000)
    choices: tuple[tuple[Any, ...], ...] = (
        ("another boundary", file.replace(BOUNDARY, b"----two") + END, {400}),
        ("no boundary", file + END, {400}, b"Content-Type: multipart/form-data"),
        ("an empty boundary", file + END, {400}, b"Content-Type: multipart/form-data; boundary="),
        (
            "a boundary of 5,000 characters",
            file + END,
            {400},
            b"Content-Type: multipart/form-data; boundary=" + b"x" * 5000,
        ),
        ("a boundary with quotes", file + END, {400}, b'Content-Type: multipart/form-data; boundary="a\\"b"'),
        ("two boundaries", file + END, {GOOD, 400}, FORM + b"; boundary=two"),
        ("3,000 fields", field * 3000 + file + END, {400}),
        ("16 fields", field * 16 + file + END, {GOOD}),
        ("200 files", file * 200 + END, {400}),
        ("two files, the last counts", part(IMAGE, b"no picture") + file + END, {GOOD, 415}),
        ("a field in place of a file", part(b'form-data; name="image"', b"text") + END, {400}),
        ("a picture as a field", part(b'form-data; name="image"', content) + END, {400}),
        ("a file of another name", part(b'form-data; name="photo"; filename="a.png"', content) + END, {400}),
        ("a form in a form", nested + END, {400}),
        ("no end", file, {GOOD, 400}),
        ("an end in the middle", file[: len(file) // 2] + b"\r\n" + END, ANY_FILE | {400}),
        ("nothing but an end", END, {400}),
        ("nothing", b"", {400}),
        ("no disposition", b"--" + BOUNDARY + b"\r\n\r\nx\r\n" + END, {400}),
        ("a field without a name", part(b"form-data", b"x") + END, {400}),
        ("10,000 headers of a part", part(IMAGE, content, *[b"X-A: b"] * 10_000) + END, {400}),
        ("a header of 1 MB", part(IMAGE, content, b"X-A: " + b"b" * MEGABYTE) + END, {400}),
        ("a field of 2 MB", part(b'form-data; name="a"', b"b" * 2 * MEGABYTE) + file + END, {400}),
        ("much before and after", b"x\r\n" * 10_000 + file + END + b"x" * MEGABYTE, {GOOD, 400}),
        ("nearly the boundary, 50,000 times", alike + END, {415}),
        ("ends of lines", part(IMAGE, b"\r\n" * MEGABYTE) + END, {415}),
        ("punycode", slow + file + END, {400}, FORM + b"; charset=punycode"),
        ("punycode in stars", slow + file + END, {400}, FORM + b"; charset*=utf-8''punycode"),
        ("an unknown character set", field + file + END, {GOOD}, FORM + b"; charset=" + b"x" * 2000),
        ("UTF-7", field + file + END, {GOOD}, FORM + b"; charset=utf-7"),
        ("base64 inside", part(IMAGE, content, b"Content-Transfer-Encoding: base64") + END, {GOOD}),
        ("a part that says it is HTML", part(IMAGE, content, b"Content-Type: text/html") + END, {GOOD}),
        ("mixed in place of form-data", file + END, {415}, b"Content-Type: multipart/mixed; boundary=" + BOUNDARY),
    )
    what, body, statuses, *kind = _pick(number, *choices)
    right = good.name if statuses == {GOOD} else None
    return _form(what, body, statuses, right, *kind)


def _chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def floods(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:  # noqa: ARG001
    """A gigabyte, said or not said."""
    path = _pick(number // 4, b"/api/search", b"/search")
    piece, times = bytes(65536), 2**30 // 65536
    kind = b"Content-Type: image/png"
    opening = part(IMAGE, b"")[:-2]
    what, sent, body = _pick(
        number,
        ("said", head(path, kind, length=2**30), repeat(piece, times)),
        ("not said", head(path, kind, b"Transfer-Encoding: chunked"), _chunked(repeat(piece, times))),
        ("said, of a form", head(path, FORM, length=2**30), (opening if not each else piece for each in range(times))),
        (
            "not said, of a form",
            head(path, FORM, b"Transfer-Encoding: chunked"),
            _chunked(opening if not each else piece for each in range(times)),
        ),
    )
    return Request(f"1 GB, {what}", sent, body, {413})


def nothing(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:  # noqa: ARG001
    path = _pick(number // 6, b"/api/search", b"/search")
    what, sent, body = _pick(
        number,
        ("no body", head(path), b""),
        ("a length of 0", head(path, b"Content-Type: image/png", length=0), b""),
        ("no chunk", head(path, b"Transfer-Encoding: chunked"), b"0\r\n\r\n"),
        ("an empty file", head(path, FORM, length=len(part(IMAGE, b"") + END)), part(IMAGE, b"") + END),
        ("an empty form", head(path, FORM, length=0), b""),
        (
            "an empty field",
            head(path, FORM, length=len(part(b"form-data; name=image", b"") + END)),
            part(b"form-data; name=image", b"") + END,
        ),
    )
    return Request(what, sent, [body], {400})


def wires(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:
    """HTTP that is not quite HTTP."""
    good = _one(rng, pictures)
    content = stored(good.image, "PNG")
    kind, length = b"Content-Type: image/png", len(content)
    path = b"/api/search"
    packed = gzip.compress(content)
    chunked = b"Transfer-Encoding: chunked"
    choices: tuple[tuple[Any, ...], ...] = (
        ("packed", head(path, kind, b"Content-Encoding: gzip", length=len(packed)), [packed], {415}),
        ("too short a length", head(path, kind, length=length // 2), [content], {422}),
        ("too long a length", head(path, kind, length=length + 20), [content], {CLOSED, 400}, True),
        ("a negative length", head(path, kind, b"Content-Length: -5"), [content], {400}),
        ("a length in words", head(path, kind, b"Content-Length: many"), [content], {400}),
        ("a length of 5,000 digits", head(path, kind, b"Content-Length: " + b"9" * 5000), [content], {400, 413}),
        ("two lengths", head(path, kind, b"Content-Length: 5", length=length), [content], {400}),
        ("a length and chunks", head(path, kind, chunked, length=5), list(_chunked([content])), {GOOD, 400}),
        ("chunks of a byte", head(path, kind, chunked), list(_chunked(bytes([each]) for each in content)), {GOOD}),
        ("a chunk without length", head(path, kind, chunked), [b"zz\r\nabc\r\n"], {400, CLOSED}),
        ("a chunk of 16 digits", head(path, kind, chunked), [b"f" * 16 + b"\r\nabc"], {400, CLOSED}, True),
        ("chunks that stop", head(path, kind, chunked), [b"5\r\nab"], {CLOSED, 400}, True),
        ("a trailer", head(path, kind, chunked), [b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (length, content)], {GOOD}),
        ("an unknown encoding", head(path, kind, b"Transfer-Encoding: gzip"), [content], {400, 501}),
        ("a header of 200 KB", head(path, kind, b"X: " + b"y" * 200_000, length=length), [content], {400, 431}),
        ("1,000 headers", head(path, kind, *[b"X: y"] * 1000, length=length), [content], {GOOD, 400, 431}),
        ("20,000 headers", head(path, kind, *[b"X: y"] * 20_000, length=length), [content], {GOOD, 400, 431}),
        ("NUL in a header", head(path, kind, b"X: \0", length=length), [content], {400}),
        ("an end of line in a header", head(path, kind, b"X: a\rb", length=length), [content], {400}),
        ("a kind of 10,000 characters", head(path, b"Content-Type: " + b"x" * 10_000, length=length), [content], {415}),
        ("a kind of script", head(path, b"Content-Type: <script>alert(1)</script>", length=length), [content], {415}),
        ("text", head(path, b"Content-Type: text/html", length=length), [content], {415}),
        ("JSON", head(path, b"Content-Type: application/json", length=length), [content], {415}),
        (
            "a form of the other kind",
            head(path, b"Content-Type: application/x-www-form-urlencoded", length=length),
            [content],
            {GOOD},
        ),
        ("no kind", head(path, length=length), [content], {GOOD}),
        ("asked to go on", head(path, kind, b"Expect: 100-continue", length=length), [content], {GOOD}),
        (
            "another host",
            head(path, kind, length=length).replace(b"Host: 127.0.0.1", b"Host: evil.example"),
            [content],
            {421},
        ),
        ("no host", head(path, kind, length=length).replace(b"Host: 127.0.0.1\r\n", b""), [content], {400, 421}),
        (
            "two requests in one",
            head(path, kind, b"Connection: keep-alive", length=length),
            [content, b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
            {GOOD},
        ),
        ("HTTP/9", head(path, kind, length=length).replace(b"HTTP/1.1", b"HTTP/9.9"), [content], {GOOD, 400, CLOSED}),
        ("half a header", b"POST /api/search HTTP/1.1\r\nHost: 127", [], {CLOSED, 400}, True),
        ("TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + rng.bytes(100) + b"\r\n\r\n", [], {400, CLOSED}, True),
        ("gone in the middle", head(path, kind, length=10 * MEGABYTE), [bytes(MEGABYTE)], {CLOSED, 400}, True),
        (
            "gone in the middle of a form",
            head(path, FORM, length=10 * MEGABYTE),
            [part(IMAGE, bytes(2 * MEGABYTE))],
            {CLOSED, 400},
            True,
        ),
    )
    what, sent, body, statuses, *half = _pick(number, *choices)
    return Request(what, sent, body, statuses, good.name if statuses == {GOOD} else None, bool(half))


def queries(rng: Rng, number: int, pictures: Sequence[Picture]) -> Request:
    """A good picture with an address that is not."""
    good = _one(rng, pictures)
    content = stored(good.image, "PNG")
    query, statuses = _pick(
        number,
        (b"k=0", {422}),
        (b"k=201", {422}),
        (b"k=-1", {422}),
        (b"k=1e9", {422}),
        (b"k=%00", {422}),
        (b"k=1&k=2", {GOOD, 422}),
        (b"label=%3Cscript%3E", {404}),
        (b"label=%00", {404}),
        (b"label=%ED%A0%80", {404}),
        (b"label=" + b"x" * 5000, {422}),
        (b"label=%0D%0ASet-Cookie:%20a=b", {404}),
        (b"exact=perhaps", {422}),
        (b"x=y", {GOOD}),
        (b"%", {GOOD}),
        (b"&&&;;;===", {GOOD}),
        (b"label=..%2F..%2Fetc", {404}),
        (b"k=" + b"9" * 5000, {422}),
        (b"label='%20OR%20''='", {404}),
    )
    sent = head(b"/api/search?" + query, b"Content-Type: image/png", length=len(content))
    return Request(repr(query[:40]), sent, [content], statuses, good.name if statuses == {GOOD} else None)


Kind = Callable[[Rng, int, Sequence[Picture]], "File | Request"]

# How often each kind comes.
KINDS: dict[Kind, int] = {
    truncated: 10,
    flipped: 12,
    zeros: 4,
    shuffled: 5,
    wrong_type: 4,
    wrong_family: 2,
    bomb: 3,
    liar: 3,
    notes: 3,
    tags: 4,
    markers: 3,
    passes: 1,
    frames: 3,
    shapes: 3,
    modes: 5,
    ranges: 1,
    orientations: 5,
    exif: 4,
    polyglots: 3,
    names: 5,
    headers_in_names: 1,
    forms: 6,
    floods: 2,
    nothing: 2,
    wires: 6,
    queries: 3,
}
RARE: dict[Kind, int] = {endless: 1, largest: 1, too_large: 2}  # of two hundred


def cases(number: int) -> list[tuple[Kind, int]]:
    """So many cases: each kind with its numbers from 0 on, spread over the whole."""
    turns = [(turn / often, kind) for kind, often in KINDS.items() for turn in range(1, often * (1 + number // 50))]
    order = [kind for _, kind in sorted(turns, key=lambda turn: turn[0])]
    rare = [kind for kind, often in RARE.items() for _ in range(often * max(1, number // 400))]
    chosen = order[: number - len(rare)]
    for place, kind in enumerate(rare):
        chosen.insert(place * len(chosen) // len(rare), kind)
    seen: dict[Kind, int] = {}
    found = []
    for kind in chosen:
        found.append((kind, seen.get(kind, 0)))
        seen[kind] = seen.get(kind, 0) + 1
    return found


def made(kind: Kind, number: int, seed: int, pictures: Sequence[Picture]) -> Request:
    """A case, to be sent."""
    order = [*KINDS, *RARE].index(kind)
    found = kind(np.random.default_rng([seed, order, number]), number, pictures)
    # Each round of a kind's choices goes another way.
    return as_request(found, number + number // 12 + order) if isinstance(found, File) else found
