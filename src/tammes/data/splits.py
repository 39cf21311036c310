"""Splits: the training, validation and test classes.

They share no class, so that test classes are unseen; a split that the data itself defines is used as it is.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from tammes.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from tammes.errors import UserError
from tammes.io.files import read_text


@dataclass(frozen=True)
class Split:
    """The images and classes of each split, as indices of the data set."""

    train: Int64[ndarray, " train"]
    val: Int64[ndarray, " val"] | None
    test: Int64[ndarray, " test"]
    train_classes: Int64[ndarray, " train_classes"]
    val_classes: Int64[ndarray, " val_classes"] | None
    test_classes: Int64[ndarray, " test_classes"]


def split(
    dataset: Dataset,
    *,
    test_classes: float | int | Path | None = None,
    val_classes: float | int | None = None,
    seed: int = 0,
) -> Split:
    """Split a data set into training, validation and test classes.

    By default the published split, or the one that the data itself defines; for a folder the first half of the classes
    is for training and the second for testing, as usual. Validation classes are taken from the training classes.
        test_classes: how many of the last classes are for testing: a share (below 1) or a number, 0 for none; or a file

    Args:
            with one class name per line. The split of the data is then ignored.
        val_classes: how many training classes are for validation: a share or a number. None for none, except those that
            the data itself defines; these are for training if a number is given.
        seed: chooses the validation classes.
    """
    if test_classes is None and dataset.part is not None:
        return _as_the_data_says(dataset, dataset.part, val_classes, seed)
    everything = np.arange(dataset.num_classes)
    if isinstance(test_classes, Path):
        test = _listed(test_classes, dataset.class_names)
    elif test_classes is not None:
        test = everything[dataset.num_classes - _number(test_classes, dataset.num_classes, "test_classes") :]
    elif dataset.train_classes is not None:
        test = everything[dataset.train_classes :]
    else:
        test = everything[(dataset.num_classes + 1) // 2 :]
    train = np.setdiff1d(everything, test)
    val = None
    if val_classes is not None:
        val = _held_out(train, val_classes, seed)
        train = np.setdiff1d(train, val)
    if len(train) < 2:
        raise UserError(
            f"{len(train)} of {dataset.num_classes} classes would train; at least 2 must. "
            f"Lower {'`test_classes`' if val is None else '`test_classes` or `val_classes`'}."
        )
    return Split(
        train=_images_of(train, dataset),
        val=None if val is None else _images_of(val, dataset),
        test=_images_of(test, dataset),
        train_classes=train,
        val_classes=val,
        test_classes=test,
    )


def relabel(
    labels: Int64[ndarray, " images"], indices: Int64[ndarray, " chosen"]
) -> tuple[Int64[ndarray, " chosen"], Int64[ndarray, " classes"]]:
    """The labels of the chosen images, renumbered 0, 1, … without gaps, and the original label of each.

    >>> relabel(np.array([4, 4, 7, 9, 7]), np.array([4, 3, 2]))
    (array([0, 1, 0]), array([7, 9]))
    """
    classes, new = np.unique(labels[indices], return_inverse=True)
    return new.astype(np.int64), classes


def _as_the_data_says(
    dataset: Dataset, part: UInt8[ndarray, " images"], val_classes: float | int | None, seed: int
) -> Split:
    if val_classes is None:
        train, validates = part == TRAIN, part == VALIDATION
    else:
        held_out = _held_out(np.unique(dataset.labels[part != TEST]), val_classes, seed)
        validates = (part != TEST) & np.isin(dataset.labels, held_out)
        train = (part != TEST) & ~validates
    train_classes = np.unique(dataset.labels[train])
    if len(train_classes) < 2:
        advice = "Say otherwise in the data, or with `test_classes`." if val_classes is None else "Lower `val_classes`."
        raise UserError(f"{len(train_classes)} of {dataset.num_classes} classes would train; at least 2 must. {advice}")
    has_val = val_classes is not None or bool(validates.any())
    return Split(
        train=np.flatnonzero(train),
        val=np.flatnonzero(validates) if has_val else None,
        test=np.flatnonzero(part == TEST),
        train_classes=train_classes,
        val_classes=np.unique(dataset.labels[validates]) if has_val else None,
        test_classes=np.unique(dataset.labels[part == TEST]),
    )


def _held_out(train: Int64[ndarray, " train"], asked: float | int, seed: int) -> Int64[ndarray, " held_out"]:
    number = _number(asked, len(train), "val_classes")
    return np.sort(np.random.default_rng(seed).permutation(train)[len(train) - number :])


def _images_of(classes: Int64[ndarray, " classes"], dataset: Dataset) -> Int64[ndarray, " images"]:
    return np.flatnonzero(np.isin(dataset.labels, classes))


def _number(given: float | int, total: int, option: str) -> int:
    """The number of classes of an option: a number, or a share rounded to at least one."""
    if isinstance(given, int):
        if not 0 <= given <= total:
            raise UserError(f"`{option}={given}` is not a number of classes from 0 to {total}.")
        return given
    if not isfinite(given) or not 0 <= given < 1:
        raise UserError(
            f"`{option}={given}` is not a share of the classes: from 0 to below 1, or a whole number of them."
        )
    return max(1, round(given * total)) if given > 0 else 0


def _listed(file: Path, class_names: tuple[str, ...]) -> Int64[ndarray, " classes"]:
    try:
        lines = read_text(file).splitlines()
    except OSError as error:
        raise UserError(f"cannot read the test classes from {file}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UserError(f"cannot read the test classes from {file}: it is not a text in UTF-8.") from None
    known = {name: number for number, name in enumerate(class_names)}
    listed = set()
    for number, name in enumerate((line.strip() for line in lines), start=1):
        if name and name not in known:
            near = get_close_matches(name, class_names, n=1, cutoff=0)
            raise UserError(f"unknown class {name!r} in {file}, line {number}. The nearest known is {near[0]!r}.")
        if name:
            listed.add(known[name])
    if not listed:
        raise UserError(f"no classes in {file}. Expected the name of one test class a line.")
    return np.array(sorted(listed), dtype=np.int64)
