"""Data sets: each reader is a function that returns a Dataset."""

from pathlib import Path

from tammes.datasets.dataset import Dataset
from tammes.datasets.folder import folder
from tammes.datasets.glyphs import glyphs
from tammes.datasets.omniglot import is_omniglot, omniglot

__all__ = ["Dataset", "folder", "glyphs", "is_omniglot", "omniglot", "open_dataset"]


def open_dataset(data: str) -> Dataset:
    """The data set of that name or in that folder, recognised by what is in it."""
    if data == "glyphs":
        return glyphs()
    path = Path(data)
    return omniglot(path) if is_omniglot(path) else folder(path)
