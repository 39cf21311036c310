"""The embedded data set: characters of many scripts, drawn from the font files that come with matplotlib.

A class is a character; its images show it in several faces, rotated, slanted, stretched, shifted, bolder or thinner and
with noise. Latin, Greek and Cyrillic letters, digits and mathematical operators are for training; Armenian, Georgian,
Hebrew, Arabic and Lao, scripts never seen in training, are for testing. Nothing is downloaded: the set is drawn once,
in seconds, and cached.
"""

import hashlib
import json
import math
import sys
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image, ImageFilter
from rich.console import Console
from rich.progress import track

from tammes.data.dataset import Dataset
from tammes.data.look_alikes import Face, faces, groups, likeness
from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tammes.io.files import folder_inside, write_atomically

DRAWING_VERSION = 1  # increased with every change to the drawing

SIDE = 28  # of a picture, in pixels
IMAGES_PER_CLASS = 20

# By the first words of a character's Unicode name.
TRAIN_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC", "DIGIT")
TEST_SCRIPTS = ("ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC LETTER", "LAO")
OPERATORS = range(0x2200, 0x2300)  # the block of mathematical operators; they train too
TRAIN_FACES = 12  # faces that a character needs to train ...
TEST_FACES = 4  # ... and to test: few faces know the other scripts

ALIKE = 0.98  # likeness from which two characters are one class: C and c, I and l; with 0.975, T and Ш are too
TOO_CLOSE = 0.93  # likeness to a training character from which one does not test

# How far a picture may be off. Together they leave an untrained conv4 a Recall@1 near 44 % (raw pixels: 69 %).
FINE = 2  # it is drawn this many times larger, then made small
REACH = 20.0  # pixels: longer side of the character before it is stretched
TURN = 11.0  # degrees
SLANT = 0.12
STRETCH = 0.12  # natural logarithm, of width and of height apart
MOVE = 1.5  # pixels
BLUR = 1.0  # standard deviation in fine pixels; at which grey it is then cut decides the weight of the strokes
CUT = (0.12, 0.45)  # of 1; higher, and the hairlines of STIX break
SHARPNESS = 25  # of that cut
FAINT = 0.9  # the faintest ink, of 1
NOISE = 0.06  # the largest standard deviation, of 1


class Chosen(NamedTuple):
    """The classes, each as the characters that look the same; the first of them is the one that is drawn."""

    train: tuple[str, ...]
    test: tuple[str, ...]


def glyphs(*, cache: Path | None = None) -> Dataset:
    """The embedded data set, drawn on the first call and then read from `cache` (or the cache folder).

    Grey images of 28 x 28, white on black, the input size of `conv4`, 20 per class. Characters that look the same, such
    as A, Alpha and the Cyrillic A, are one class; those that resemble a training character are not used for testing.

    Raises:
        UserError: the cache is not writable, or matplotlib lacks its fonts.
    """
    folder = cache if cache is not None else cache_folder() / "glyphs"
    among = faces()
    key = version_key(among)
    kept = _kept(folder, key)
    if kept is None:
        _keep(folder, key, *_drawn(among))
        kept = _kept(folder, key)
        assert kept is not None, f"{folder} does not give back what was written to it"
    return kept


def version_key(among: Sequence[Face]) -> str:
    """The cache key: it depends on the drawing version, the libraries and the fonts."""
    digest = hashlib.sha256(f"{DRAWING_VERSION} {version('matplotlib')} {PIL.__version__}".encode())
    for face in among:
        digest.update(face.name.encode() + face.file.read_bytes())
    return digest.hexdigest()[:16]


def chosen(among: Sequence[Face]) -> Chosen:
    """The training and test characters, with look-alikes merged or left out."""
    train = _candidates(TRAIN_SCRIPTS, OPERATORS, among, TRAIN_FACES)
    test = _candidates(TEST_SCRIPTS, range(0), among, TEST_FACES)
    alike = likeness(train + test, among)  # (characters, characters)
    classes = groups(alike >= ALIKE)
    too_close = set((alike[:, : len(train)].max(axis=1) >= TOO_CLOSE).nonzero()[0].tolist())

    def text(group: list[int]) -> str:
        return "".join((train + test)[number] for number in group)

    return Chosen(
        train=tuple(text(group) for group in classes if group[0] < len(train)),
        test=tuple(text(group) for group in classes if too_close.isdisjoint(group)),
    )


def _candidates(scripts: Sequence[str], block: range, among: Sequence[Face], enough: int) -> list[str]:
    """The letters, digits and operators of the scripts that enough faces can draw, without those that have an accent.

    A character with a decomposition is another with an accent, or another in a different dress (bold, wide, raised).
    """
    found = []
    for character in sorted(set().union(*(face.characters for face in among))):
        named = unicodedata.name(character, "").startswith(tuple(f"{script} " for script in scripts))
        plain = unicodedata.category(character) in {"Lu", "Ll", "Lo", "Nd", "Sm"}
        if not (plain and (named or ord(character) in block)) or unicodedata.decomposition(character):
            continue
        if sum(face.draw(character) is not None for face in among) >= enough:
            found.append(character)
    return found


def picture(character: str, face: Face, draw: int) -> UInt8[ndarray, "28 28"]:
    """One image of a character, determined by the three arguments alone."""
    ink = face.draw(character)
    if ink is None:
        raise ValueError(f"{face.name} cannot draw {character!r}")
    generator = np.random.default_rng((ord(character), zlib.crc32(face.name.encode()), draw))

    turn = math.radians(generator.uniform(-TURN, TURN))
    slant = generator.uniform(-SLANT, SLANT)
    wide, high = np.exp(generator.uniform(-STRETCH, STRETCH, 2))
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    forward = rotation @ np.array([[1.0, slant], [0.0, 1.0]]) @ np.diag([wide, high]) * (REACH / max(ink.size))
    extent = np.abs(forward) @ np.array(ink.size)  # of the box around the turned box, in pixels
    fit = min(1.0, (SIDE - 2) / extent.max())  # no character is cut off at an edge
    room = np.minimum(MOVE, (SIDE - fit * extent) / 2)
    centre = SIDE / 2 + generator.uniform(-1, 1, 2) * room

    backward = np.linalg.inv(forward * fit) / FINE  # PIL asks where in the ink a pixel of the picture comes from
    origin = np.array(ink.size) / 2 - backward @ (centre * FINE)
    affine = (*backward[0], origin[0], *backward[1], origin[1])
    fine = ink.transform((SIDE * FINE, SIDE * FINE), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)

    cut = generator.uniform(*CUT)
    strokes = 1 / (1 + np.exp((cut - np.arange(256) / 255) * SHARPNESS))  # (256,): what becomes of each grey
    weighed = strokes[np.asarray(fine.filter(ImageFilter.GaussianBlur(BLUR)))]  # (56, 56)
    grey = weighed.reshape(SIDE, FINE, SIDE, FINE).mean((1, 3)) * generator.uniform(FAINT, 1)  # (28, 28)
    noise = generator.uniform(0, NOISE) * generator.standard_normal((SIDE, SIDE))
    pixels: UInt8[ndarray, "28 28"] = np.rint(255 * np.clip(grey + noise, 0, 1)).astype(np.uint8)
    return pixels


@dataclass(frozen=True)
class _Index:
    """The labels, keys and other metadata of the images."""

    keys: list[str]
    labels: list[int]
    class_names: list[str]
    train_classes: int


def _drawn(among: Sequence[Face]) -> tuple[UInt8[ndarray, "images 28 28"], _Index]:
    """All images, class by class, cycling through the faces."""
    classes = chosen(among)
    index = _Index([], [], [], len(classes.train))
    pictures = []
    shown = track(
        classes.train + classes.test,
        description="Drawing the glyphs (once)",
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    for label, characters in enumerate(shown):
        character = characters[0]
        code = f"U+{ord(character):04X}"
        index.class_names.append(f"{code} {character} {unicodedata.name(character)}")
        able = [face for face in among if face.draw(character) is not None]
        for number in range(IMAGES_PER_CLASS):
            draw, turn = divmod(number, len(able))
            pictures.append(picture(character, able[turn], draw))
            index.keys.append(f"{code}/{able[turn].name}/{draw}")
            index.labels.append(label)
    return np.stack(pictures), index


def _kept(folder: Path, key: str) -> Dataset | None:
    """The cached data set; None if there is none, or if it is damaged."""
    file = folder / f"{key}.npy"
    try:
        kept = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        index = _Index(**kept["index"])
        digest = _digest(file.read_bytes(), index)
        if digest != kept["sha256"]:
            return None
        pictures = np.load(file, mmap_mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Dataset(
        name="glyphs",
        keys=tuple(index.keys),
        labels=np.array(index.labels, np.int64),
        class_names=tuple(index.class_names),
        read=partial(_read, pictures),
        fingerprint=f"glyphs-{key}-{digest[:16]}",
        train_classes=index.train_classes,
    )


def _read(pictures: UInt8[ndarray, "images 28 28"], number: int) -> Image.Image:
    return Image.fromarray(pictures[number])


def _keep(folder: Path, key: str, pictures: UInt8[ndarray, "images 28 28"], index: _Index) -> None:
    """Write the images, then the metadata. Several processes may do so at once, as they write the same."""
    buffer = BytesIO()
    np.save(buffer, pictures)
    kept = {"sha256": _digest(buffer.getvalue(), index), "index": asdict(index)}
    try:
        folder_inside(folder)
        write_atomically(folder / f"{key}.npy", buffer.getvalue())
        write_atomically(folder / f"{key}.json", json.dumps(kept, ensure_ascii=False).encode())
    except OSError as error:
        raise UserError(
            f"cannot keep the drawn glyphs in {folder}: {error.strerror or error}. "
            "Set TAMMES_CACHE to a folder that can be written to."
        ) from error


def _digest(pictures: bytes, index: _Index) -> str:
    digest = hashlib.sha256(pictures)
    digest.update(json.dumps(asdict(index)).encode())
    return digest.hexdigest()
