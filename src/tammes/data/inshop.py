"""In-Shop Clothes Retrieval (Liu et al., DeepFashion, CVPR 2016): 52,712 photos of 7,982 garments."""

from pathlib import Path

import numpy as np

from tammes.data.dataset import TEST, TRAIN, Dataset
from tammes.data.files import of_files, rows, unlike_published, whole_number
from tammes.errors import UserError

_LIST = "list_eval_partition.txt"
_HEADER = ["image_name", "item_id", "evaluation_status"]
_STATUSES = ("train", "query", "gallery")


def inshop(root: Path) -> Dataset:
    """Read In-Shop Clothes; a class is a garment, such as "id_00000002".

    Training garments come first; the photos of the others are queries or gallery.

    Args:
        root: the folder with list_eval_partition.txt, there or in Eval/, and the images in img/ or Img/img/.
    """
    file = _list(root)
    if file is None:
        raise UserError(f"no In-Shop Clothes Retrieval in {root}. Expected Eval/{_LIST} and img/.")
    place = next((place for place in (root, root / "Img") if (place / "img").is_dir()), None)
    if place is None:
        raise UserError(f"no img/ in {root}, nor Img/img/. Unpack img.zip there.")
    names, garments, statuses = zip(*_listed(file), strict=True)
    trains = np.array([status == "train" for status in statuses])
    order = dict.fromkeys(garment for garment, train in zip(garments, trains, strict=True) if train)
    train_classes = len(order)
    order |= dict.fromkeys(garments)  # those that are there already keep their place
    numbers = {garment: number for number, garment in enumerate(order)}
    labels = np.array([numbers[garment] for garment in garments], dtype=np.int64)
    query = np.array([status == "query" for status in statuses])
    gallery = np.array([status == "gallery" for status in statuses])
    return of_files(
        "inshop",
        names,
        [place / name for name in names],
        labels,
        list(order),
        part=np.where(trains, TRAIN, TEST).astype(np.uint8),
        query=query,
        gallery=gallery,
        remarks=unlike_published(
            "In-Shop Clothes Retrieval",
            [
                ("training classes", 3997, train_classes),
                ("test classes", 3985, len(np.unique(labels[~trains]))),
                ("training images", 25882, int(trains.sum())),
                ("queries", 14218, int(query.sum())),
                ("gallery images", 12612, int(gallery.sum())),
            ],
        ),
    )


def is_inshop(root: Path) -> bool:
    """Whether a folder contains In-Shop Clothes; other sets have a list of the same name with other columns."""
    return _list(root) is not None


def _list(root: Path) -> Path | None:
    for file in (root / "Eval" / _LIST, root / _LIST):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as lines:
                if _HEADER in (lines.readline().split(), lines.readline().split()):
                    return file
    return None


def _listed(file: Path) -> list[list[str]]:
    """The image, garment and status of each line; above them stand the number of images and the header."""
    found = []
    stated = None
    for line, fields in rows(file, 3, " ".join(_HEADER), also=1):
        if len(fields) == 1:
            stated = whole_number(fields[0], file, line)
        elif fields != _HEADER:
            if fields[2] not in _STATUSES:
                raise UserError(f"{file}, line {line}: {fields[2]!r} is none of {', '.join(_STATUSES)}.")
            found.append(fields)
    if not found or stated not in (None, len(found)):
        raise UserError(f"{file} names {len(found):,} images and should name {stated or 52712:,}. Download it again.")
    return found
