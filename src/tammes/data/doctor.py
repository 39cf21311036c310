"""Check a data set before training: every image is read once, and none is kept in memory."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16
from numpy import ndarray
from PIL import ExifTags, Image

from tammes.data.dataset import Dataset
from tammes.data.folder import files_below
from tammes.data.images import ROOM, bands_in_mode, identified, resized_size
from tammes.data.parallel import in_order
from tammes.data.perceptual_hash import CROPS, alike_pairs, hashes
from tammes.data.splits import Split, split
from tammes.errors import UserError
from tammes.io.files import opened
from tammes.io.limits import IMAGE

HUGE_PIXELS = 50_000_000  # images above are slow to decode, with no benefit once scaled down
CROPPED_UP_TO = 20_000  # number of images above which crops are not compared, as that doubles the time
TINY_SIDE = 32  # images with a shorter side below are mostly interpolated when scaled up
EXTREME_RATIO = 4.0  # aspect ratio above which the centre crop is less than a quarter of the image

# Kinds of images, in the order of the report.
KINDS = (
    "grey",
    "CMYK",
    "palette",
    "16-bit",
    "transparent",
    "turned by EXIF",
    "animated",
    "huge",
    "tiny",
    "extreme shape",
)


@dataclass(frozen=True)
class Unreadable:
    image: str
    reason: str


@dataclass(frozen=True)
class Duplicates:
    """Images that are the same, or nearly.

    Attributes:
        same: "bytes" if the files are identical, "pixels" if only the pixels are, "nearly" if they look the same:
            scaled, mirrored, lightly cropped, brighter or darker, or saved again.
        classes: the names of their classes.
        leaks: whether some are in the training classes and others in the test classes.
    """

    images: tuple[str, ...]
    same: str
    classes: tuple[str, ...]
    leaks: bool


@dataclass(frozen=True)
class ClassSizes:
    fewest: int
    median: float
    most: int


@dataclass(frozen=True)
class Part:
    images: int
    classes: int


@dataclass(frozen=True)
class Report:
    """The findings.

    Attributes:
        class_sizes: images per class.
        train, test: sizes of the default split; None if there is none.
        kinds: the images of each of KINDS.
        misnamed: images whose suffix is that of another format, by description, such as "WEBP named .jpg".
        other_files: other files in the folder, if it has one sub-folder per class.
        stops: reasons why `tammes train` would fail with its default options.
        remarks: `Dataset.remarks`.
    """

    name: str
    images: int
    classes: int
    class_sizes: ClassSizes
    single_image_classes: tuple[str, ...]
    train: Part | None
    test: Part | None
    unreadable: tuple[Unreadable, ...]
    kinds: dict[str, tuple[str, ...]]
    misnamed: dict[str, tuple[str, ...]]
    duplicates: tuple[Duplicates, ...]
    other_files: tuple[str, ...]
    stops: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def leaks(self) -> tuple[Duplicates, ...]:
        """The same image in training and in test, which makes test results too good."""
        return tuple(group for group in self.duplicates if group.leaks)


def examine(
    dataset: Dataset,
    *,
    shorter_side: int = 256,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check every image of a data set.

    Args:
        shorter_side: the length to which training scales the shorter side; images that get too large are unusable.
        threads: number of threads that read images; by default one per core.
        on_progress: called with (images done, images in all).
    """
    seen: list[_Seen] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's warnings are in the report, or harmless
        for look in _looks(dataset, shorter_side, threads or os.cpu_count() or 1):
            seen.append(look)
            if on_progress is not None:
                on_progress(len(seen), len(dataset))
    unreadable = tuple(Unreadable(key, look.bad) for key, look in zip(dataset.keys, seen, strict=True) if look.bad)
    kinds: dict[str, list[str]] = {}
    misnamed: dict[str, list[str]] = {}
    for key, look in zip(dataset.keys, seen, strict=True):
        for kind in look.kinds:
            kinds.setdefault(kind, []).append(key)
        if look.misnamed:
            misnamed.setdefault(look.misnamed, []).append(key)
    parts, stops = _split(dataset, unreadable)
    sizes = np.bincount(dataset.labels, minlength=max(1, dataset.num_classes))
    return Report(
        name=dataset.name,
        images=len(dataset),
        classes=dataset.num_classes,
        class_sizes=ClassSizes(int(sizes.min()), float(np.median(sizes)), int(sizes.max())),
        single_image_classes=tuple(dataset.class_names[number] for number in np.flatnonzero(sizes == 1).tolist()),
        train=None if parts is None else Part(len(parts.train), len(parts.train_classes)),
        test=None if parts is None else Part(len(parts.test), len(parts.test_classes)),
        unreadable=unreadable,
        kinds={kind: tuple(kinds[kind]) for kind in KINDS if kind in kinds},
        misnamed={what: tuple(images) for what, images in sorted(misnamed.items())},
        duplicates=_duplicates(dataset, seen, parts),
        other_files=_other_files(dataset),
        stops=stops,
        remarks=dataset.remarks,
    )


class _Seen(NamedTuple):
    """The findings about one image."""

    bad: str = ""  # the reason why it is unusable
    kinds: tuple[str, ...] = ()
    misnamed: str = ""
    of_bytes: bytes = b""
    of_pixels: bytes = b""
    hashes: Float16[ndarray, "crops hash"] | None = None


def _looks(dataset: Dataset, shorter_side: int, threads: int) -> Iterator[_Seen]:
    """The findings about each image, in order."""
    return in_order(lambda index: _look_in_turn(dataset, index, shorter_side), len(dataset), threads, 32 * threads)


def _look_in_turn(dataset: Dataset, index: int, shorter_side: int) -> _Seen:
    with ROOM.for_image(None if dataset.files is None else dataset.files[index]):
        return _look(dataset, index, shorter_side)


def _look(dataset: Dataset, index: int, shorter_side: int) -> _Seen:
    kinds: list[str] = []
    misnamed, of_bytes = "", b""
    if dataset.files is not None:
        with suppress(Exception):  # a broken file fails in many ways; it is reported below
            of_bytes, of_file, misnamed = _look_at_file(dataset.files[index])
            kinds += of_file
    try:
        stored = dataset.read(index)
        width, height = resized_size(stored.size, shorter_side=shorter_side)
        if width * height > (Image.MAX_IMAGE_PIXELS or float("inf")):
            return _Seen(f"scaled, it would have {width} x {height} pixels", tuple(kinds), misnamed)
        digest = blake2b(str(stored.size).encode(), digest_size=16)
        for band in bands_in_mode(stored, "RGB"):
            digest.update(band.tobytes())
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # UserError is a ValueError
        return _Seen(_reason(error), tuple(kinds), misnamed)
    kinds += _kinds(stored, shorter_side)
    look = hashes(stored, len(CROPS) if len(dataset) <= CROPPED_UP_TO else 1).astype(np.float16)
    return _Seen("", tuple(kinds), misnamed, of_bytes, digest.digest(), look)


def _look_at_file(file: Path) -> tuple[bytes, list[str], str]:
    """The digest of its bytes, the kinds that only the file shows, and whether its suffix is wrong."""
    with opened(file, IMAGE) as source:
        digest = blake2b(digest_size=16)
        while block := source.read(1 << 20):
            digest.update(block)
        source.seek(0)
        with identified(source) as image:
            kinds = []
            with suppress(Exception):  # broken EXIF data
                if image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9):
                    kinds.append("turned by EXIF")
            with suppress(Exception):
                if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # other frames of MPO are previews
                    kinds.append("animated")
            found = {"MPO": "JPEG"}.get(image.format or "", image.format or "")
            suffix = file.suffix.lower()
            misnamed = "" if Image.registered_extensions().get(suffix, found) == found else f"{found} named {suffix}"
    return digest.digest(), kinds, misnamed


def _kinds(image: Image.Image, shorter_side: int) -> Iterator[str]:
    if image.mode in ("1", "L", "LA", "La") or image.mode.startswith(("I", "F")):
        yield "grey"
    if image.mode == "CMYK":
        yield "CMYK"
    if image.mode in ("P", "PA"):
        yield "palette"
    if image.mode.startswith(("I", "F")):
        yield "16-bit"
    if image.has_transparency_data:
        yield "transparent"
    if image.width * image.height > HUGE_PIXELS:
        yield "huge"
    if min(image.size) < min(TINY_SIDE, shorter_side):
        yield "tiny"
    if max(image.size) > EXTREME_RATIO * min(image.size):
        yield "extreme shape"


def _reason(error: Exception) -> str:
    """The reason of an error, without the name of the file."""
    text = str(error)
    _, _, after = text.partition(": ") if text.startswith("cannot read") else ("", "", text)
    return after.rstrip(".") or type(error).__name__


def _split(dataset: Dataset, unreadable: tuple[Unreadable, ...]) -> tuple[Split | None, tuple[str, ...]]:
    """The default split, and the reasons why training would fail, in the order in which `tammes train` checks them."""
    stops = []
    try:
        parts = split(dataset)
    except UserError as error:
        parts = None
        stops.append(str(error))
    if unreadable:
        stops.append(f"{len(unreadable):,} of {len(dataset):,} images cannot be used.")
    if parts is not None:
        for use, chosen in (("test", parts.test), ("validation", parts.val)):
            if chosen is not None and len(chosen) and np.bincount(dataset.labels[chosen]).max() < 2:
                stops.append(f"every {use} class has only one image, so nothing can be found. Choose other classes.")
    return parts, tuple(stops)


def _duplicates(dataset: Dataset, seen: list[_Seen], parts: Split | None) -> tuple[Duplicates, ...]:
    times = Counter(look.of_pixels for look in seen if look.of_pixels)
    groups: dict[bytes, list[int]] = {}
    for index, look in enumerate(seen):
        if times[look.of_pixels] > 1:
            groups.setdefault(look.of_pixels, []).append(index)
    trains, tests = np.zeros((2, len(dataset)), dtype=bool)
    if parts is not None:
        trains[parts.train] = tests[parts.test] = True
    found = []
    for group in [*groups.values(), *_near(seen)]:
        of_bytes = {seen[index].of_bytes for index in group}
        same = "pixels" if len({seen[index].of_pixels for index in group}) == 1 else "nearly"
        labels = np.unique(dataset.labels[group]).tolist()
        found.append(
            Duplicates(
                images=tuple(dataset.keys[index] for index in group),
                same="bytes" if len(of_bytes) == 1 and b"" not in of_bytes else same,
                classes=tuple(dataset.class_names[label] for label in labels),
                leaks=bool(trains[group].any() and tests[group].any()),
            )
        )
    return tuple(found)


def _near(seen: list[_Seen]) -> list[list[int]]:
    """Groups of images that look nearly the same but differ in pixels."""
    firsts = {look.of_pixels: index for index, look in reversed(list(enumerate(seen))) if look.hashes is not None}
    numbers = sorted(firsts.values())
    if not numbers:
        return []
    group = {index: [index] for index in numbers}
    every = np.stack([seen[index].hashes for index in numbers]).astype(np.float32)
    for one, other in alike_pairs(every):
        first, second = group[numbers[one]], group[numbers[other]]
        if first is not second:
            first += second
            group.update(dict.fromkeys(second, first))
    return [sorted(each) for index, each in group.items() if len(each) > 1 and index == min(each)]


def _other_files(dataset: Dataset) -> tuple[str, ...]:
    """The visible files below the root that are not images of the set, if each class is a sub-folder."""
    if dataset.files is None:
        return ()
    names = [dataset.class_names[label] for label in dataset.labels.tolist()]
    if not all(key.startswith(f"{name}/") for key, name in zip(dataset.keys, names, strict=True)):
        return ()
    root = dataset.files[0].parents[dataset.keys[0].count("/")]
    images = set(dataset.files)
    others = sorted((file for file in files_below(root) if file not in images), key=lambda file: (file.parent, file))
    return tuple(file.relative_to(root).as_posix() for file in others)
