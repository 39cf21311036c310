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

# The named sets that are folders: how each is recognised, and what then reads it.
READERS = {
    "cub": (is_cub, cub),
    "cars196": (is_cars196, cars196),
    "sop": (is_sop, sop),
    "inshop": (is_inshop, inshop),
    "omniglot": (is_omniglot, omniglot),
}


def check_place(data: str) -> None:
    """Refuse what is not there at all, as `open_dataset` does, and look no further."""
    if data != "glyphs" and not Path(data).exists():
        open_dataset(data)


def check_data(data: str | None) -> None:
    """Refuse images that are not there at all; a file of vectors is looked at by whoever reads it."""
    if data is not None and not is_vector_file(data):
        check_place(data)


def open_dataset(data: str) -> Dataset:
    """The data set of that name, in that folder or table (a CSV file, or COCO's JSON), recognised by what is in it.

    Raises:
        UserError: there is none, or something is wrong with it.
    """
    if data == "glyphs":
        return glyphs()
    if data.startswith(OBJECTS):
        raise UserError(
            "the data of this run was given as Python objects, which no file contains. Open the run there, with the"
            " data: tammes.load_run(folder, data=data)"
        )
    path = Path(data)
    name = data.casefold()
    if name in READERS and not path.exists():
        raise UserError(
            f"no such folder: {data}. Give the folder that {name} is in; `tammes data {name} --to FOLDER` gets it."
        )
    if is_table(path):
        return table(path)
    for recognised, reader in READERS.values():
        if recognised(path):
            return reader(path)
    return folder(path)
