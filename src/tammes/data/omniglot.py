"""Omniglot (Lake et al., Science 2015): 1,623 characters of 50 alphabets, each drawn by 20 people.

Read from its own zip files or from the folders they unpack to, in any mix.
"""

import re
import zlib
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile
from zlib import crc32

import numpy as np
from PIL import Image

from tammes.data.dataset import Dataset
from tammes.data.folder import natural
from tammes.data.images import open_image
from tammes.errors import UserError
from tammes.io.files import opened
from tammes.io.limits import IMAGE

_WHOLE, _TEST = "images_background", "images_evaluation"
_SMALL = ("images_background_small1", "images_background_small2")  # each a part of the whole; two alphabets are in both
_PARTS = (_WHOLE, *_SMALL, _TEST)
_DRAWING = re.compile(r"(?:^|/)([^/.][^/]*/character\d+)/([^/.][^/]*\.png)$")  # alphabet/character, drawing


def omniglot(root: Path) -> Dataset:
    """Read Omniglot, black on white; a class is a character, such as "Greek/character01".

    The background set is for training, the evaluation set for testing. The two small background sets are used if the
    full one is missing; drawings that are in both count once.

    Args:
        root: the folder with the zip files or the unpacked folders, or one of these.
    """
    parts = _find_parts(root)
    if not parts:
        raise UserError(
            f"no Omniglot in {root}. Expected {', '.join(f'{part}.zip' for part in _PARTS)}, or some of them."
        )
    background = [_WHOLE] if _WHOLE in parts else [part for part in _SMALL if part in parts]
    train = _by_class(_once([drawing for part in background for drawing in _drawings(part, parts[part])]))
    test = _by_class(_drawings(_TEST, parts[_TEST]) if _TEST in parts else [])
    classes = [*train, *test]
    drawings = [drawing for _, own in classes for drawing in own]
    digest = sha256(b"omniglot")
    for drawing in drawings:
        digest.update(f"{drawing.key}\0{drawing.state}\0".encode())

    files = tuple(drawing.file for drawing in drawings if drawing.file is not None)

    def read(index: int) -> Image.Image:
        drawing = drawings[index]
        return open_image(BytesIO(drawing.content()), name=drawing.key)

    return Dataset(
        name="omniglot",
        keys=tuple(drawing.key for drawing in drawings),
        labels=np.repeat(np.arange(len(classes)), [len(own) for _, own in classes]).astype(np.int64),
        class_names=tuple(name for name, _ in classes),
        read=read,
        fingerprint=digest.hexdigest(),
        train_classes=len(train) if train and test else None,
        files=files if len(files) == len(drawings) else None,
    )


def is_omniglot(root: Path) -> bool:
    """Whether a path is one of Omniglot's zip files or folders, or contains one."""
    return bool(_find_parts(root))


class _Drawing(NamedTuple):
    key: str
    class_name: str
    name: str
    state: str  # changes when the file does
    content: Callable[[], bytes]
    file: Path | None = None  # None: it is in a zip file


def _find_parts(root: Path) -> dict[str, Path]:
    """The folder, or else the zip file, of each part of the data set."""
    found: dict[str, Path] = {}
    folders = (root, root / "python", root / "omniglot-py")  # its own repository and torchvision keep it one deeper
    for place in [root, *(folder / f"{part}{end}" for folder in folders for part in _PARTS for end in ("", ".zip"))]:
        is_zip = place.suffix == ".zip" and place.is_file()
        name = place.stem if is_zip else place.name
        if name in _PARTS and (is_zip or place.is_dir()):
            found.setdefault(name, place)
    return found


def _drawings(part: str, place: Path) -> list[_Drawing]:
    drawings = _zipped(part, place) if place.is_file() else _unpacked(part, place)
    if not drawings:
        raise UserError(f"no drawings in {place}. Expected alphabet/character01/0001_01.png and so on.")
    return drawings


def _zipped(part: str, place: Path) -> list[_Drawing]:
    try:
        # In memory (7 MB): threads and forked processes then share no position in a file.
        with opened(place, IMAGE) as source:
            archive = ZipFile(BytesIO(source.read()))
    except BadZipFile:
        raise UserError(f"cannot read {place}: it is not a complete zip file. Download it again.") from None
    lock = Lock()

    def content(name: str) -> bytes:
        try:
            with lock:
                return archive.read(name)
        except (BadZipFile, EOFError, zlib.error, RuntimeError) as error:  # the last: a password, another compression
            raise UserError(f"cannot read {place}: {error}. Download it again.") from error

    return [
        _Drawing(f"{part}/{match[1]}/{match[2]}", match[1], match[2], str(entry.CRC), partial(content, entry.filename))
        for entry in archive.infolist()
        if (match := _DRAWING.search(entry.filename))
    ]


def _unpacked(part: str, place: Path) -> list[_Drawing]:
    drawings = []
    for file in place.rglob("*.png"):
        if match := _DRAWING.search(file.relative_to(place).as_posix()):
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
            key = f"{part}/{match[1]}/{match[2]}"
            drawings.append(_Drawing(key, match[1], match[2], state, file.read_bytes, file))
    return drawings


def _once(drawings: list[_Drawing]) -> list[_Drawing]:
    """Each drawing once, even if several parts contain it."""
    first: dict[tuple[str, str], _Drawing] = {}
    for drawing in drawings:
        same = first.setdefault((drawing.class_name, drawing.name), drawing)
        if same is not drawing and crc32(same.content()) != crc32(drawing.content()):
            raise UserError(f"{same.key} and {drawing.key} should be the same drawing and differ. Download them again.")
    return list(first.values())


def _by_class(drawings: list[_Drawing]) -> list[tuple[str, list[_Drawing]]]:
    classes: dict[str, list[_Drawing]] = {}
    for drawing in sorted(drawings, key=lambda drawing: (natural(drawing.class_name), natural(drawing.name))):
        classes.setdefault(drawing.class_name, []).append(drawing)
    return list(classes.items())
