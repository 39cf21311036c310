"""A folder of images, one sub-folder per class."""

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np

from tammes.datasets.dataset import Dataset
from tammes.datasets.pictures import open_picture
from tammes.errors import UserError

# What Pillow reads. A file with another suffix is not an image; one without a suffix is judged by how it begins.
SUFFIXES = frozenset(
    (
        ".avif",
        ".bmp",
        ".gif",
        ".jfif",
        ".jp2",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    )
)
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_EXPECTED = "Expected one sub-folder of images per class."


def folder(root: Path) -> Dataset:
    """The images below a folder: each sub-folder is a class, whatever is below it belongs to that class.

    Classes and images come in natural order (2 before 10). Files that are no images by their suffix are left alone,
    as is everything whose name begins with a dot, and pictures that lie in no sub-folder. Links are followed.

    Raises:
        UserError: there is no such folder, or no two classes with images in it.
    """
    if not root.exists():
        raise UserError(f"no such folder: {root}. {_EXPECTED}")
    if not root.is_dir():
        raise UserError(f"{root} is a file, not a folder. {_EXPECTED}")
    class_names = sorted((entry.name for entry in _visible(root) if entry.is_dir()), key=natural)
    if not class_names:
        loose = "its files are in no sub-folder" if any(_visible(root)) else "it is empty"
        raise UserError(f"no classes in {root}: {loose}. {_EXPECTED}")
    if {name.casefold() for name in class_names} <= _SPLITS:
        raise UserError(
            f"the sub-folders of {root} are parts of a data set ({', '.join(class_names)}), not classes. "
            f"Give one of them, such as {root / class_names[0]}."
        )
    if len(class_names) == 1:
        raise UserError(f"only one class in {root}: {class_names[0]!r}. At least two are needed. {_EXPECTED}")
    keys: list[str] = []
    labels: list[int] = []
    digest = sha256(b"folder")
    for label, class_name in enumerate(class_names):
        images, others = _images(root / class_name)
        if not images:
            such = f" {others[0].name!r} is none that can be read." if others else ""
            raise UserError(f"no images in {root / class_name}.{such} Add some or remove the folder.")
        for image in images:
            key = image.relative_to(root).as_posix()
            digest.update(f"{key}\0{_state(image)}\0".encode(errors="surrogateescape"))
            keys.append(key)
            labels.append(label)
    return Dataset(
        name=root.resolve().name or "folder",
        keys=tuple(keys),
        labels=np.array(labels, dtype=np.int64),
        class_names=tuple(class_names),
        read=lambda index: open_picture(root / keys[index]),
        fingerprint=digest.hexdigest(),
    )


def natural(name: str) -> tuple[list[str | int], str]:
    """A key to sort names as a person would: numbers by their value, letters without their case."""
    return [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)], name


def _images(place: Path) -> tuple[list[Path], list[Path]]:
    """The images at or below a place in natural order, and the other files there."""
    images: list[Path] = []
    others: list[Path] = []
    for file in _files(place, set()):
        (images if _is_image(file) else others).append(file)
    return images, others


def _files(place: Path, above: set[tuple[int, int]]) -> Iterator[Path]:
    """Every visible file at or below a place; a link back to a folder it lies in is not followed again."""
    status = place.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in sorted(_visible(place), key=lambda entry: natural(entry.name)):
        if entry.is_dir():
            yield from _files(place / entry.name, above | {here})
        else:
            yield place / entry.name


def _visible(place: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            yield from (entry for entry in entries if not entry.name.startswith((".", "__MACOSX")))
    except OSError as error:
        raise UserError(f"cannot look into {place}: {error.strerror}.") from error


def _is_image(file: Path) -> bool:
    if file.suffix:
        return file.suffix.lower() in SUFFIXES
    try:
        with file.open("rb") as source:
            beginning = source.read(16)
    except OSError:
        return False
    return beginning.startswith(_BEGINNINGS) or beginning[8:12] == b"WEBP" or beginning[4:12] == b"ftypavif"


def _state(file: Path) -> str:
    """What changes when a file does. A link to nothing has none, and fails when it is read."""
    try:
        status = file.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
