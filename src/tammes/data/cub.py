"""CUB-200-2011 (Wah et al., 2011): 11,788 photos of 200 kinds of birds.

The first 100 classes are for training and the other 100 for testing, as usual in metric learning. The official split
into training and test images has every class on both sides and is not used.
"""

from pathlib import Path

import numpy as np

from tammes.data.dataset import Dataset
from tammes.data.files import of_files, rows, unlike_published, whole_number
from tammes.errors import UserError

TRAIN_CLASSES = 100  # the numbers 1 to 100


def cub(root: Path) -> Dataset:
    """Read CUB-200-2011 in the order of images.txt; a class is a kind of bird, such as "001.Black_footed_Albatross".

    Args:
        root: the folder with images.txt and images/, or its parent, if the folder is called CUB_200_2011.
    """
    place = _place(root)
    if place is None:
        raise UserError(
            f"no CUB-200-2011 in {root}. Expected images.txt, image_class_labels.txt, classes.txt and images/."
        )
    names = _numbered(place / "classes.txt", "number name")
    paths = _numbered(place / "images.txt", "number path")
    classes = {
        image: whole_number(class_number, place / "image_class_labels.txt", line)
        for image, (line, class_number) in _numbered(place / "image_class_labels.txt", "image class").items()
    }
    if not paths:
        raise UserError(f"{place / 'images.txt'} names no images. The data set is incomplete: unpack it again.")
    for image, (line, path) in paths.items():
        if image not in classes:
            raise UserError(f"{place / 'images.txt'}, line {line}: {path} has no class in image_class_labels.txt.")
        if classes[image] not in names:
            raise UserError(f"{place / 'image_class_labels.txt'}: class {classes[image]} is not in classes.txt.")
    unknown = sorted(classes.keys() - paths.keys())
    if unknown:
        raise UserError(f"{place / 'image_class_labels.txt'}: image {unknown[0]} is not in images.txt.")
    numbers = np.array([classes[image] for image in paths], dtype=np.int64)  # (images,): 1 to 200
    present, labels = np.unique(numbers, return_inverse=True)
    trains = numbers <= TRAIN_CLASSES
    train_classes = int((present <= TRAIN_CLASSES).sum())
    keys = [f"images/{path}" for _, path in paths.values()]
    return of_files(
        "cub",
        keys,
        [place / key for key in keys],
        labels.astype(np.int64),
        [names[number][1] for number in present.tolist()],
        train_classes=train_classes if 0 < train_classes < len(present) else None,
        remarks=unlike_published(
            "CUB-200-2011",
            [
                ("classes", 200, len(present)),
                ("training images", 5864, int(trains.sum())),
                ("test images", 5924, int((~trains).sum())),
            ],
        ),
    )


def is_cub(root: Path) -> bool:
    """Whether a folder is CUB-200-2011, or contains it."""
    return _place(root) is not None


def _place(root: Path) -> Path | None:
    for place in (root, root / "CUB_200_2011"):
        if (place / "images.txt").is_file() and (place / "image_class_labels.txt").is_file():
            return place
    return None


def _numbered(file: Path, expected: str) -> dict[int, tuple[int, str]]:
    """The line and the value of each number in a list."""
    found: dict[int, tuple[int, str]] = {}
    for line, (number, value) in rows(file, 2, expected):
        key = whole_number(number, file, line)
        if key in found:
            raise UserError(f"{file}, line {line}: {key} was already in line {found[key][0]}.")
        found[key] = (line, value)
    return found
