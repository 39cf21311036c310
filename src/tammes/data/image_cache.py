"""The cache of decoded images: every image of a data set, decoded and resized once into a memory-mapped file."""

import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray
from PIL import Image

from tammes.data.dataset import Dataset
from tammes.data.images import ROOM, Mode, resized_size, scaled
from tammes.data.parallel import in_order
from tammes.errors import UserError
from tammes.io.cache import check_room, writing
from tammes.io.environment import cache_folder
from tammes.io.files import folder_inside, fsync, new_partial, remove_partial

# A cache file: this header, the pixels of all images one after another (channels, height, width), then the tail:
# heights, widths, a digest of each image, and a record in JSON. The header is written last, so a file cut short has
# none or the wrong size.
_MAGIC, _VERSION = b"TAMMESPX", 5
_HEADER = struct.Struct("<8sIQQQI")  # magic, version, images, bytes of pixels, bytes of tail, CRC-32 of the tail
_PIXELS_START = 64
DIGEST = 16  # bytes of the digest of an image
_SUFFIX, _WHAT = ".pixels", "the decoded images"
_BEGUN = ".begun"  # the suffix of an incomplete file, after Ctrl-C
_SHOWN = 10  # broken images named in an error
_WAITING = 1 << 28  # largest number of decoded bytes that wait to be written


@dataclass(frozen=True)
class Decoded:
    """The decoded images of a data set, in a memory-mapped file, indexed as in the data set.

    Attributes:
        pixels: the concatenated images, each (channels, height, width).
        heights, widths: the size of each image.
        bad: the images that could not be read (with `skip_bad`); the indices of the others are unchanged.
        reasons: the reason for each bad image.
        digest: a digest of all pixels and sizes.
        digests: a digest of each image, the key of its features in the cache.
    """

    file: Path
    pixels: UInt8[ndarray, " bytes"]
    heights: Int64[ndarray, " images"]
    widths: Int64[ndarray, " images"]
    channels: int
    bad: Int64[ndarray, " bad"]
    reasons: tuple[str, ...]
    digest: str
    digests: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.heights)

    def __getitem__(self, index: int) -> UInt8[ndarray, "channels height width"]:
        start, shape = self._starts[index], (self.channels, int(self.heights[index]), int(self.widths[index]))
        return self.pixels[start : start + shape[0] * shape[1] * shape[2]].reshape(shape)

    def without_bad(self, indices: Int64[ndarray, " some"]) -> Int64[ndarray, " kept"]:
        """These indices without unreadable images."""
        return indices[~np.isin(indices, self.bad)]

    @cached_property
    def stack(self) -> UInt8[ndarray, "images channels height width"] | None:
        """All images as one array, if they have the same size."""
        if len(np.unique(self.heights)) > 1 or len(np.unique(self.widths)) > 1:
            return None
        return self.pixels.reshape(len(self), self.channels, int(self.heights[0]), int(self.widths[0]))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *np.cumsum(self.heights * self.widths * self.channels).tolist()]


def decode(
    dataset: Dataset,
    *,
    mode: Mode,
    shorter_side: int | None = None,
    size: int | tuple[int, int] | None = None,
    cache: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    skip_bad: bool = False,
    again: bool = False,
    threads: int | None = None,
) -> Decoded:
    """Decode and resize every image, or read the result from the cache.

    Several processes may decode the same images at once: each builds its own file, and all use that of the first to
    finish. After Ctrl-C, decoding continues the next time.

    Args:
        shorter_side: scale the shorter side of each image to this length.
        size: scale each image to this square or (height, width) instead. With neither, images keep their size.
        cache: the folder of the cache.
        on_progress: called with (images done, images in all); not called if all are in the cache.
        skip_bad: leave out unreadable images, listed in `Decoded.bad`.
        again: ignore the cache, as a file may have been replaced by another of the same size and time.

    Raises:
        UserError: images are missing, unreadable or change meanwhile; the disk is full; the cache is not writable.
    """
    check_there(dataset, skip_bad=skip_bad)
    form = _Form(mode, shorter_side, (size, size) if isinstance(size, int) else size)
    folder = (cache or cache_folder()) / "images"
    key = sha256(json.dumps([_VERSION, dataset.fingerprint, *form]).encode()).hexdigest()[:16]
    file = folder / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', dataset.name).strip('-') or 'images'}-{key}{_SUFFIX}"
    if again:
        for kept in (file, file.with_suffix(_BEGUN)):
            kept.unlink(missing_ok=True)
    decoded = _opened(file, len(dataset))
    if decoded is not None and _can_be_read_now(decoded, dataset, form):
        file.unlink(missing_ok=True)
        decoded = None
    if decoded is None:
        decoded = _build(dataset, form, file, on_progress, threads or os.cpu_count() or 1)
    if len(decoded.bad) == len(dataset) or (len(decoded.bad) and not skip_bad):
        raise _unusable(decoded.reasons, len(decoded), "cannot be used")
    return decoded


def check_there(dataset: Dataset, *, skip_bad: bool = False) -> None:
    """Raise UserError if files are missing, as `decode` does before it begins."""
    if dataset.missing and not skip_bad:
        raise _unusable([dataset.keys[index] for index in dataset.missing], len(dataset), "are missing")


class _Form(NamedTuple):
    """The mode and size of decoded images."""

    mode: Mode
    shorter_side: int | None
    size: tuple[int, int] | None

    @property
    def channels(self) -> int:
        return len(self.mode)


def _one(dataset: Dataset, index: int, form: _Form) -> UInt8[ndarray, "channels height width"] | str:
    """One image in the form in which it is cached, or the reason why it cannot be."""
    try:
        stored = dataset.read(index)
        width, height = resized_size(stored.size, shorter_side=form.shorter_side, size=form.size)
        if _is_too_large(width, height):
            return f"cannot use {dataset.keys[index]}: scaled, it would have {width} x {height} pixels."
        return scaled(stored, form.mode, size=(height, width))
    except UserError as error:
        text = str(error)
        return text if text.startswith("cannot read") else f"cannot read {dataset.keys[index]}: {text}"
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        return f"cannot read {dataset.keys[index]}: {error}."


def _can_be_read_now(decoded: Decoded, dataset: Dataset, form: _Form) -> bool:
    """Whether a formerly unreadable image is now readable."""
    return any(not isinstance(_one(dataset, int(index), form), str) for index in decoded.bad)


def _is_too_large(width: int, height: int) -> bool:
    return width * height > (Image.MAX_IMAGE_PIXELS or float("inf"))


def _in_turn(dataset: Dataset, index: int, form: _Form) -> UInt8[ndarray, "channels height width"] | str:
    """Decode an image as soon as there is enough memory."""
    with ROOM.for_image(None if dataset.files is None else dataset.files[index]):
        return _one(dataset, index, form)


def _num_bytes(image: UInt8[ndarray, "channels height width"] | str) -> int:
    return 0 if isinstance(image, str) else image.nbytes


def _build(
    dataset: Dataset, form: _Form, file: Path, on_progress: Callable[[int, int], None] | None, threads: int
) -> Decoded:
    with writing(file.parent, _WHAT):
        folder_inside(file.parent)
        remove_partial(file.parent)
        _check_room(dataset, form, file.parent)
        with new_partial(file.parent, f"{file.stem}-") as sink:
            try:
                _write(dataset, form, sink, on_progress, threads, _begun(file, dataset, form))
                _check_unchanged(dataset)
                sink.flush()
                fsync(sink.fileno())
                # Another process may have finished first; its file is the same.
                decoded = _opened(file, len(dataset))
                if decoded is None:
                    Path(sink.name).replace(file)
                    decoded = _opened(file, len(dataset))
                file.with_suffix(_BEGUN).unlink(missing_ok=True)
            except KeyboardInterrupt:
                with suppress(OSError, UserError):
                    _check_unchanged(dataset)
                    sink.flush()
                    if _opened(Path(sink.name)) is not None:
                        Path(sink.name).replace(file.with_suffix(_BEGUN))
                raise
            finally:
                with suppress(OSError):
                    Path(sink.name).unlink(missing_ok=True)
    assert decoded is not None, "what was just written can be read"
    return decoded


def _check_unchanged(dataset: Dataset) -> None:
    """Raise UserError if images changed while they were decoded, as the fingerprint would be wrong."""
    changed = None if dataset.changed is None else dataset.changed()
    if changed is not None:
        raise UserError(f"{changed} has changed while images were decoded. Do it again when nobody writes to them.")


def _begun(file: Path, dataset: Dataset, form: _Form) -> Decoded | None:
    """The images that were decoded before Ctrl-C, if they have not changed."""
    found = _opened(file.with_suffix(_BEGUN))
    if found is None or len(found) > len(dataset) or _can_be_read_now(found, dataset, form):
        return None
    digest = sha256(found.pixels.data)
    digest.update(_table(found.heights, found.widths))
    return found if digest.hexdigest() == found.digest else None


def _write(
    dataset: Dataset,
    form: _Form,
    sink: IO[bytes],
    on_progress: Callable[[int, int], None] | None,
    threads: int,
    begun: Decoded | None,
) -> None:
    """Write all images after those that exist; at Ctrl-C the file has the finished ones."""
    sizes = np.zeros((2, len(dataset)), dtype=np.int64)  # heights, widths
    digests: list[bytes] = []
    bad: list[tuple[int, str]] = []
    digest, first = sha256(), 0
    sink.write(bytes(_PIXELS_START))
    if begun is not None:
        first, bad = len(begun), list(zip(begun.bad.tolist(), begun.reasons, strict=True))
        sizes[:, :first] = begun.heights, begun.widths
        digests += begun.digests
        sink.write(begun.pixels.data)
        digest.update(begun.pixels.data)
    done = first

    def finish() -> None:
        num_bytes = int((sizes[0, :done] * sizes[1, :done]).sum()) * form.channels
        table = _table(sizes[0, :done], sizes[1, :done])
        digest.update(table)
        record = {"channels": form.channels, "bad": bad, "digest": digest.hexdigest()}
        tail = table + b"".join(digests[:done]) + json.dumps(record).encode()
        sink.seek(_PIXELS_START + num_bytes)  # at Ctrl-C an image may be half written
        sink.truncate()
        sink.write(tail)
        sink.seek(0)
        sink.write(_HEADER.pack(_MAGIC, _VERSION, done, num_bytes, len(tail), zlib.crc32(tail)))

    def work(index: int) -> UInt8[ndarray, "channels height width"] | str:
        return _in_turn(dataset, first + index, form)

    try:
        with closing(in_order(work, len(dataset) - first, threads, _WAITING, _num_bytes)) as rest:
            for image in rest:
                if isinstance(image, str):
                    bad.append((done, image))
                    # A blank keeps images of one size in one array.
                    image = np.zeros((form.channels, *(form.size or (0, 0))), dtype=np.uint8)
                sizes[:, done] = image.shape[1:]
                digests.append(image_digest(image))
                sink.write(image.data)
                with_image = digest.copy()
                with_image.update(image.data)
                digest, done = with_image, done + 1  # Ctrl-C comes before both or after both
                if on_progress is not None:
                    on_progress(done, len(dataset))
    except KeyboardInterrupt:
        finish()
        raise
    finish()


def image_digest(image: UInt8[ndarray, "channels height width"]) -> bytes:
    """A digest of a scaled image."""
    return blake2b(image.data, digest_size=DIGEST, salt=f"{image.shape[1]}x{image.shape[2]}".encode()[:16]).digest()


def _table(heights: ndarray, widths: ndarray) -> bytes:
    return np.stack([heights, widths]).astype("<i8").tobytes()


def _opened(file: Path, num_images: int | None = None) -> Decoded | None:
    """The content of a cache file; None if it is missing or damaged.

    Args:
        num_images: the expected number of images; None for any.
    """
    try:
        with file.open("rb") as source:
            magic, version, count, num_bytes, tail_bytes, crc = _HEADER.unpack(source.read(_HEADER.size))
            whole = file.stat().st_size == _PIXELS_START + num_bytes + tail_bytes
            expected = count > 0 if num_images is None else count == num_images
            if (magic, version, whole, expected) != (_MAGIC, _VERSION, True, True):
                return None
            source.seek(_PIXELS_START + num_bytes)
            tail = source.read(tail_bytes)
    except (OSError, struct.error):
        return None
    if zlib.crc32(tail) != crc:
        return None
    heights, widths = np.frombuffer(tail, dtype="<i8", count=2 * count).reshape(2, count).astype(np.int64)
    said = 2 * count * 8 + count * DIGEST
    record = json.loads(tail[said:])
    shape = (num_bytes,)
    return Decoded(
        file=file,
        pixels=np.asarray(np.memmap(file, dtype=np.uint8, mode="r", offset=_PIXELS_START, shape=shape)),
        heights=heights,
        widths=widths,
        channels=record["channels"],
        bad=np.array([index for index, _ in record["bad"]], dtype=np.int64),
        reasons=tuple(reason for _, reason in record["bad"]),
        digest=record["digest"],
        digests=tuple(tail[start : start + DIGEST] for start in range(2 * count * 8, said, DIGEST)),
    )


def _unusable(lines: Sequence[str], total: int, are_so: str) -> UserError:
    """The error for images that cannot be used, the first of them named."""
    count = len(lines)
    more = [f"and {count - _SHOWN} more."] if count > _SHOWN else []
    put_right = "Put them back" if are_so == "are missing" else "Repair or remove them"
    advice = "None is left." if count == total else f"{put_right}, or leave them out with `skip_bad=True`."
    listed = "\n".join(f"  {line}" for line in (*lines[:_SHOWN], *more))
    return UserError(f"{count} of {total} images {are_so}:\n{listed}\n{advice}")


def _check_room(dataset: Dataset, form: _Form, folder: Path) -> None:
    """Raise UserError early if the disk is too small, estimated from a few images unless all have one size.

    Unreadable images count as 0 bytes; they are reported later.
    """
    if form.size is not None:
        areas = [form.size[0] * form.size[1]]
    else:
        few = np.linspace(0, len(dataset) - 1, min(len(dataset), 16)).astype(int).tolist()
        areas = [_area(dataset, index, form) for index in few]
    needed = int(sum(areas) / max(len(areas), 1) * form.channels * len(dataset))
    check_room(folder, needed, _WHAT)


def _area(dataset: Dataset, index: int, form: _Form) -> int:
    """The number of pixels of a scaled image; 0 if it is unreadable."""
    try:
        width, height = resized_size(dataset.read(index).size, shorter_side=form.shorter_side)
    except (OSError, SyntaxError, ValueError, EOFError):
        return 0
    return 0 if _is_too_large(width, height) else width * height
