"""Stanford Online Products (Oh Song et al., CVPR 2016): 120,053 photos of 22,634 products from eBay."""

from pathlib import Path

import numpy as np

from tammes.data.dataset import TEST, TRAIN, Dataset
from tammes.data.files import of_files, rows, unlike_published, whole_number
from tammes.errors import UserError

_LISTS = (("Ebay_train.txt", TRAIN), ("Ebay_test.txt", TEST))


def sop(root: Path) -> Dataset:
    """Read Stanford Online Products; a class is a product. Ebay_train.txt and Ebay_test.txt define the split.

    Args:
        root: the folder with these two lists, or its parent, if the folder is called Stanford_Online_Products.
    """
    place = _place(root)
    if place is None:
        raise UserError(f"no Stanford Online Products in {root}. Expected Ebay_train.txt and Ebay_test.txt.")
    keys: list[str] = []
    numbers: list[int] = []
    parts: list[int] = []
    for name, part in _LISTS:
        for line, fields in rows(place / name, 4, "image_id class_id super_class_id path"):
            if fields[0] == "image_id":
                continue
            keys.append(fields[3])
            numbers.append(whole_number(fields[1], place / name, line))
            parts.append(part)
    if not keys:
        raise UserError(f"{place / 'Ebay_train.txt'} and Ebay_test.txt name no images. Unpack the data set again.")
    order = {number: label for label, number in enumerate(dict.fromkeys(numbers))}  # as listed: training classes first
    labels = np.array([order[number] for number in numbers], dtype=np.int64)
    of_part = np.array(parts, dtype=np.uint8)
    return of_files(
        "sop",
        keys,
        [place / key for key in keys],
        labels,
        [str(number) for number in order],
        part=of_part,
        remarks=unlike_published(
            "Stanford Online Products",
            [
                ("training classes", 11318, len(np.unique(labels[of_part == TRAIN]))),
                ("test classes", 11316, len(np.unique(labels[of_part == TEST]))),
                ("training images", 59551, int((of_part == TRAIN).sum())),
                ("test images", 60502, int((of_part == TEST).sum())),
            ],
        ),
    )


def is_sop(root: Path) -> bool:
    """Whether a folder is Stanford Online Products, or contains it."""
    return _place(root) is not None


def _place(root: Path) -> Path | None:
    for place in (root, root / "Stanford_Online_Products"):
        if any((place / name).is_file() for name, _ in _LISTS):
            return place
    return None
