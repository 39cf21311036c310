"""A folder of images, one sub-folder per class."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tammes.data.dataset import PARTS, TEST, TRAIN, VALIDATION, Dataset
from tammes.data.files import of_files
from tammes.errors import UserError
from tammes.io.files import opened

# Suffixes of images; unreadable ones are reported. Files with other suffixes are recognised by their first bytes.
SUFFIXES = frozenset(
    (
        ".avif",
        ".bmp",
        ".gif",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    )
)
_BEGINNINGS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\x00",
    b"MM\x00*",
    b"\x00\x00\x00\x0cjP  \r\n\x87\n",
)
_BITMAP_HEADERS = (12, 40, 52, 56, 64, 108, 124)  # sizes of BMP headers, as a text may also begin with BM
_MOST_DIGITS = 4000
_EXPECTED = "Expected one sub-folder of images per class."


def folder(root: Path) -> Dataset:
    """The images below a folder: each sub-folder is a class, with everything below it.

    Classes and images are in natural order (2 before 10). Images are recognised by their suffix or their first bytes.
    Other files, and images in no sub-folder, are ignored with a remark. Names that begin with a dot are ignored. Links
    are followed.

    If all sub-folders are called train, val (valid, validation) or test, they define the split and contain the classes.
    Without test, the validation images are used for testing.

    Raises:
        UserError: the folder does not exist, or has fewer than two classes with images.
    """
    _check(root, _EXPECTED)
    class_names = sorted((entry.name for entry in _visible(root) if _is_folder(entry)), key=natural)
    if not class_names:
        loose = "its files are in no sub-folder" if any(_visible(root)) else "it is empty"
        raise UserError(f"no classes in {root}: {loose}. {_EXPECTED}")
    if {name.casefold() for name in class_names} <= PARTS.keys():
        return _in_parts(root, class_names)
    if len(class_names) == 1:
        raise UserError(f"only one class in {root}: {class_names[0]!r}. At least two are needed. {_EXPECTED}")
    files: list[Path] = []
    labels: list[int] = []
    loose_images, no_images = _sorted_out(
        root / entry.name
        for entry in sorted(_visible(root), key=lambda entry: natural(entry.name))
        if not _is_folder(entry)
    )
    for label, class_name in enumerate(class_names):
        images, others = _sorted_out(files_below(root / class_name))
        if not images:
            such = f" {others[0].name!r} is not a readable image." if others else ""
            raise UserError(f"no images in {root / class_name}.{such} Add some or remove the folder.")
        files += images
        labels += [label] * len(images)
        no_images += others
    return of_files(
        _name(root),
        [file.relative_to(root).as_posix() for file in files],
        files,
        np.array(labels, dtype=np.int64),
        class_names,
        remarks=[
            *_left_alone(no_images, root, "is not an image", "are not images"),
            *_left_alone(loose_images, root, "is in no sub-folder", "are in no sub-folder"),
        ],
    )


def _in_parts(root: Path, names: list[str]) -> Dataset:
    """A folder with sub-folders train, val or test, which contain the classes."""
    uses = {name: PARTS[name.casefold()] for name in names}
    if TRAIN not in uses.values() or len(set(uses.values())) < 2:
        raise UserError(
            f"the sub-folders of {root} are splits ({', '.join(names)}), not classes. Expected train and test, and"
            f" optionally validation; or use one of them, such as {root / names[0]}."
        )
    remarks = []
    if TEST not in uses.values():
        uses = {name: TEST if use == VALIDATION else use for name, use in uses.items()}
        remarks.append(f"{root} has no folder test: its validation images are used for testing.")
    found = {name: folder(root / name) for name in names}
    class_names = sorted({each for part in found.values() for each in part.class_names}, key=natural)
    numbers = {name: number for number, name in enumerate(class_names)}
    return of_files(
        _name(root),
        [f"{name}/{key}" for name, part in found.items() for key in part.keys],
        [file for part in found.values() for file in part.files or ()],
        np.array([numbers[part.class_names[label]] for part in found.values() for label in part.labels]),
        class_names,
        part=np.concatenate([np.full(len(part), uses[name], dtype=np.uint8) for name, part in found.items()]),
        remarks=[*remarks, *(f"{name}: {remark}" for name, part in found.items() for remark in part.remarks)],
    )


def flat(root: Path) -> Dataset:
    """Every image below a folder with any structure, to embed images that need no classes.

    The class of an image is its first sub-folder, or "." without one; there may be a single class.

    Raises:
        UserError: the folder does not exist, or has no images.
    """
    _check(root, "Expected a folder of images.")
    files, others = _sorted_out(files_below(root))
    if not files:
        such = f": {others[0].name!r} is not a readable image" if others else ""
        raise UserError(f"no images in {root}{such}. Expected a folder of images.")
    keys = [file.relative_to(root).as_posix() for file in files]
    own = [key.split("/")[0] if "/" in key else "." for key in keys]
    class_names = sorted(set(own), key=lambda name: (name != ".", natural(name)))
    numbers = {name: number for number, name in enumerate(class_names)}
    return of_files(
        _name(root),
        keys,
        files,
        np.array([numbers[name] for name in own], dtype=np.int64),
        class_names,
        remarks=_left_alone(others, root, "is not an image", "are not images"),
    )


def images_below(place: Path) -> list[Path]:
    """The images below a folder in natural order, recognised as by `folder`; may be empty.

    Raises:
        UserError: the folder does not exist.
    """
    check_folder(place)
    return _sorted_out(files_below(place))[0]


def check_folder(place: Path) -> None:
    """Raise UserError if the folder does not exist, without reading it."""
    _check(place, "Expected a folder of images.")


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key for natural order: numbers by value, letters ignoring case."""
    return [_value(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)], name


def _value(digits: str) -> int:
    return int(digits) if len(digits) < _MOST_DIGITS else 10**_MOST_DIGITS  # Python refuses to parse longer numbers


def _check(root: Path, expected: str) -> None:
    if not root.exists():
        raise UserError(f"no such folder: {root}. {expected}")
    if not root.is_dir():
        raise UserError(f"{root} is a file, not a folder. {expected}")


def _name(root: Path) -> str:
    return root.resolve().name or "folder"


def _left_alone(files: list[Path], root: Path, is_so: str, are_so: str) -> list[str]:
    if not files:
        return []
    first = files[0].relative_to(root).as_posix()
    if len(files) == 1:
        return [f"1 file {is_so} and is ignored: {first}."]
    return [f"{len(files):,} files {are_so} and are ignored, such as {first}."]


def _sorted_out(files: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The images and the other files."""
    images: list[Path] = []
    others: list[Path] = []
    for file in files:
        (images if _is_image(file) else others).append(file)
    return images, others


def files_below(root: Path) -> Iterator[Path]:
    """Every visible file below a folder; circular links are not followed."""
    waiting: list[tuple[Path, frozenset[tuple[int, int]] | None]] = [(root, frozenset())]  # a stack
    while waiting:
        place, above = waiting.pop()
        if above is None:
            yield place
            continue
        status = _status(place)
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        entries = sorted(_visible(place), key=lambda entry: natural(entry.name), reverse=True)
        waiting += [(place / entry.name, above | {here} if _is_folder(entry) else None) for entry in entries]


def _status(place: Path) -> os.stat_result:
    try:
        return place.stat()
    except OSError as error:
        raise UserError(f"cannot look into {place}: {error.strerror}.") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # for example a link to itself
        return False


def _visible(place: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            yield from (entry for entry in entries if not entry.name.startswith((".", "__MACOSX")))
    except OSError as error:
        raise UserError(f"cannot look into {place}: {error.strerror}.") from error


def _is_image(file: Path) -> bool:
    if file.suffix.lower() in SUFFIXES:
        return True
    try:
        with opened(file) as source:
            beginning = source.read(18)
    except (OSError, UserError):
        return False
    if beginning.startswith(b"BM"):
        return int.from_bytes(beginning[14:18], "little") in _BITMAP_HEADERS
    if beginning[:4] == b"RIFF":
        return beginning[8:12] == b"WEBP"
    return beginning.startswith(_BEGINNINGS) or beginning[4:12] in (b"ftypavif", b"ftypavis")
