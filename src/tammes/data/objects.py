"""Data sets from Python objects: a Dataset, pairs of image and label, Hugging Face or torchvision datasets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

from tammes.data.dataset import PARTS, TEST, TRAIN, VALIDATION, Dataset
from tammes.data.files import of_files
from tammes.data.folder import natural
from tammes.data.images import open_image
from tammes.errors import UserError, shown

OBJECTS = "python:"  # begins the name of data that was given as Python objects, which no file can make again
_EXPECTED = (
    "Expected a folder, a .csv file, a tammes Dataset, a Hugging Face dataset with an image and a label column, or a"
    " sequence of (image, label)"
)


def dataset_of(data: Any, name: str = "data") -> Dataset:
    """A Dataset from Python objects.

    Args:
        data: a Dataset, returned unchanged; a `datasets.Dataset` with an image column and a label column, or a
            `datasets.DatasetDict` with splits train, test and optionally validation, which define the split; or any
            sequence of (image, label), such as a list or a torchvision dataset. An image is a path, a Pillow image, or
            pixels in uint8: an array (height, width) or (height, width, 3), or a tensor (channels, height, width). A
            label is a number or a text.
        name: its name.

    Raises:
        UserError: it is anything else, or invalid.
    """
    if isinstance(data, Dataset):
        return data
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _hugging_face({None: data}, name)
    if isinstance(data, Mapping) and data and all(hasattr(each, "column_names") for each in data.values()):
        return _hugging_face(data, name)
    if isinstance(data, str | bytes | Mapping) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UserError(f"data is a {type(data).__name__}. {_EXPECTED}.")
    return _sequence(data, name)


def _sequence(data: Any, name: str) -> Dataset:
    if not len(data):
        raise UserError(f"data is empty. {_EXPECTED}.")
    targets, names = getattr(data, "targets", None), getattr(data, "classes", None)  # of torchvision
    if targets is not None and len(targets) == len(data):
        labels = [_plain(each) for each in targets]
        if names is not None and all(isinstance(each, int) and 0 <= each < len(names) for each in labels):
            labels = [str(names[each]) for each in labels]
    else:
        labels = [_plain(_pair(data, index)[1]) for index in range(len(data))]
    if all(
        isinstance(each, list | tuple) and isinstance(each[0], str | Path) for each in (data[0], data[len(data) - 1])
    ):
        files = [Path(_pair(data, index)[0]).absolute() for index in range(len(data))]
        numbers, class_names = _classes(labels)
        return of_files(name, [str(file) for file in files], files, numbers, class_names)
    return _of_images(lambda index: _image(_pair(data, index)[0], index), labels, name, None, None)


def _hugging_face(splits: Mapping[Any, Any], name: str) -> Dataset:
    images: list[tuple[Any, str, int]] = []
    labels: list[Any] = []
    parts: list[int] = []
    prints: list[str] = []
    for split, data in splits.items():
        if split is not None and str(split) not in PARTS:
            raise UserError(f"data has the split {split!r}. Known: {', '.join(PARTS)}. Leave it out, or rename it.")
        image, label = _columns(data)
        kind = data.features[label]
        named = getattr(kind, "names", None)
        values = data[label]
        labels += [named[each] if named is not None else _plain(each) for each in values]
        images += [(data, image, row) for row in range(len(values))]
        parts += [PARTS.get(str(split), TRAIN)] * len(values)
        prints.append(str(getattr(data, "_fingerprint", "")))
    if not labels:
        raise UserError(f"data is empty. {_EXPECTED}.")

    def read(index: int) -> Image.Image:
        data, column, row = images[index]
        return _image(data[row][column], index)

    part = None if None in splits else np.array(parts, dtype=np.uint8)
    if part is not None and TEST not in part and VALIDATION in part:
        part[part == VALIDATION] = TEST
    return _of_images(read, labels, name, part, " ".join(prints) if all(prints) else None)


def _columns(data: Any) -> tuple[str, str]:
    """The image column and the label column of a Hugging Face dataset."""
    kinds = {column: type(kind).__name__ for column, kind in data.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"] or [
        each for each in kinds if each == "image"
    ]
    labels = [each for each in ("label", "labels") if each in kinds]
    labels = labels or [column for column, kind in kinds.items() if kind == "ClassLabel"]
    for what, found in (("image", images), ("label", labels)):
        if len(found) != 1:
            have = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
            raise UserError(
                f"data has {len(found) or 'no'} {what} columns; its columns are {have}. One must be called {what!r}:"
                f" data.rename_column(old, {what!r}), and data.remove_columns for others."
            )
    return images[0], labels[0]


def _of_images(
    read: Callable[[int], Image.Image],
    labels: list[Any],
    name: str,
    part: UInt8[ndarray, " images"] | None,
    fingerprint: str | None,
) -> Dataset:
    numbers, class_names = _classes(labels)
    digest = sha256("\0".join(class_names).encode())
    digest.update(numbers.tobytes() + (b"" if part is None else part.tobytes()))
    if fingerprint is not None:
        digest.update(fingerprint.encode())
    else:  # nothing but the pixels says whether an image is still the same
        for index in range(len(labels)):
            image = read(index)
            digest.update(f"{image.mode} {image.size}".encode() + image.tobytes())
    keys = tuple(f"{index:06d}" for index in range(len(labels)))
    dataset = Dataset(name, keys, numbers, class_names, read, digest.hexdigest())
    return dataset if part is None else replace(dataset, part=part)


def _classes(labels: list[Any]) -> tuple[ndarray, tuple[str, ...]]:
    """The labels as numbers, and the names of the classes."""
    if len({str(each) for each in labels}) < len(set(labels)):
        raise UserError("data has labels that differ only in their type, such as 1 and '1': use one type for all.")
    names = sorted({str(each) for each in labels}, key=natural)
    if len(names) < 2:
        raise UserError(f"data has only one class, {names[0]!r}: at least two are needed.")
    numbers = {each: number for number, each in enumerate(names)}
    return np.array([numbers[str(each)] for each in labels], dtype=np.int64), tuple(names)


def _pair(data: Any, index: int) -> tuple[Any, Any]:
    found = data[index]
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise UserError(f"data[{index}] must be a pair (image, label), got {shown(found)}.")
    return found[0], found[1]


def _plain(label: Any) -> Any:
    """A label as a Python number or text. Raises UserError for anything else, including NaN."""
    label = label.item() if (hasattr(label, "item") and getattr(label, "size", 1) == 1) or _is_tensor(label) else label
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, int | str) or label == "":
        raise UserError(f"a label must be a whole number or a text, got {shown(label)}.")
    return label


def _is_tensor(given: Any) -> bool:
    """Whether it is a PyTorch tensor, without importing torch."""
    return type(given).__module__.partition(".")[0] == "torch"


def _image(given: Any, index: int) -> Image.Image:
    """An image as a Pillow image."""
    if isinstance(given, Image.Image):
        return given
    if isinstance(given, str | Path):
        return open_image(Path(given))
    pixels = given.numpy() if _is_tensor(given) else given
    if _is_tensor(given) and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if isinstance(pixels, ndarray) and pixels.dtype == np.uint8:
        pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
        if pixels.size and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
            return Image.fromarray(np.ascontiguousarray(pixels))
    what = f"{type(given).__name__}"
    what += f" of {given.dtype} {tuple(given.shape)}" if hasattr(given, "shape") and hasattr(given, "dtype") else ""
    raise UserError(
        f"the image of data[{index}] is a {what}. Give a path, a Pillow image, or pixels in uint8: an array (height,"
        " width, 3) or a tensor (3, height, width)."
    )
