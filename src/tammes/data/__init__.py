"""Data sets: each reader is a function that returns a Dataset."""

from pathlib import Path

from tammes.data.cars196 import cars196, is_cars196
from tammes.data.cub import cub, is_cub
from tammes.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from tammes.data.files import of_classes
from tammes.data.folder import flat, folder, images_below
from tammes.data.glyphs import glyphs
from tammes.data.inshop import inshop, is_inshop
from tammes.data.objects import OBJECTS, dataset_of
from tammes.data.omniglot import is_omniglot, omniglot
from tammes.data.sop import is_sop, sop
from tammes.data.table import is_table, table
from tammes.data.vectors import Vectors, vectors
from tammes.errors import UserError
from tammes.io.files import is_vector_file

__all__ = [
    "READERS",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Dataset",
    "Vectors",
    "cars196",
    "check_data",
    "check_place",
    "cub",
    "dataset_of",
    "flat",
    "folder",
    "glyphs",
    "images_below",
    "inshop",
    "is_cars196",
    "is_cub",
    "is_inshop",
    "is_omniglot",
    "is_sop",
    "of_classes",
    "omniglot",
    "open_dataset",
    "sop",
    "table",
    "vectors",
]

# Published data sets in folders: (function that recognises it, reader).
READERS = {
    "cub": (is_cub, cub),
    "cars196": (is_cars196, cars196),
    "sop": (is_sop, sop),
    "inshop": (is_inshop, inshop),
    "omniglot": (is_omniglot, omniglot),
}


def check_place(data: str) -> None:
    """Raise UserError if the data does not exist, without reading it."""
    if data != "glyphs" and not Path(data).exists():
        open_dataset(data)


def check_data(data: str | None) -> None:
    """Raise UserError if images do not exist; files of vectors are checked when they are read."""
    if data is not None and not is_vector_file(data):
        check_place(data)


def open_dataset(data: str) -> Dataset:
    """A data set by its name ("glyphs"), folder or table (a CSV file, or COCO's JSON), recognised by its content.

    Raises:
        UserError: it does not exist or is invalid.
    """
    if data == "glyphs":
        return glyphs()
    if data.startswith(OBJECTS):
        raise UserError(
            "the data of this run was passed as Python objects, which are not stored in a file. Open the run in Python"
            " with the data: tammes.load_run(folder, data=data)"
        )
    path = Path(data)
    name = data.casefold()
    if name in READERS and not path.exists():
        raise UserError(
            f"no such folder: {data}. Give the folder with {name}; `tammes data {name} --to FOLDER` downloads it."
        )
    if is_table(path):
        return table(path)
    for recognised, reader in READERS.values():
        if recognised(path):
            return reader(path)
    return folder(path)
