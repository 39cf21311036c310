"""Which classes train, which validate, which test. The sets share no class: what is tested was never seen."""

from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from tammes.datasets.dataset import Dataset
from tammes.errors import UserError


@dataclass(frozen=True)
class Split:
    """The images of a data set by their use, and the classes they belong to; both as numbers in the data set."""

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
    """Classes to train, to validate and to test.

    By default as published for a named set; for a folder the first half of the classes trains and the second tests,
    which is the usual rule. Validation classes come out of the training classes and never out of the others.

    Args:
        test_classes: how many of the last classes test: a share of all (below 1) or a number, 0 for none;
            or a file with the name of one test class a line.
        val_classes: how many classes validate: a share of the training classes or a number. None: there are none.
        seed: decides which classes validate.
    """
    everything = np.arange(dataset.num_classes)
    if isinstance(test_classes, Path):
        test = _listed(test_classes, dataset.class_names)
    elif test_classes is not None:
        test = everything[dataset.num_classes - _number(test_classes, dataset.num_classes, "test-classes") :]
    elif dataset.train_classes is not None:
        test = everything[dataset.train_classes :]
    else:
        test = everything[(dataset.num_classes + 1) // 2 :]
    train = np.setdiff1d(everything, test)
    val = None
    if val_classes is not None:
        number = _number(val_classes, len(train), "val-classes")
        val = np.sort(np.random.default_rng(seed).permutation(train)[len(train) - number :])
        train = np.setdiff1d(train, val)
    if len(train) < 2:
        raise UserError(
            f"{len(train)} of {dataset.num_classes} classes would train; at least 2 must. "
            f"Lower {'--test-classes' if val is None else '--test-classes or --val-classes'}."
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
    """The labels of the chosen images, counted 0, 1, … without gaps, and which label of the data set each stands for.

    >>> relabel(np.array([4, 4, 7, 9, 7]), np.array([4, 3, 2]))
    (array([0, 1, 0]), array([7, 9]))
    """
    classes, new = np.unique(labels[indices], return_inverse=True)
    return new.astype(np.int64), classes


def _images_of(classes: Int64[ndarray, " classes"], dataset: Dataset) -> Int64[ndarray, " images"]:
    return np.flatnonzero(np.isin(dataset.labels, classes))


def _number(given: float | int, total: int, option: str) -> int:
    """How many classes an option asks for: a number, or a share of them rounded to at least one."""
    if isinstance(given, int):
        if not 0 <= given <= total:
            raise UserError(f"--{option} {given} is not a number of classes from 0 to {total}.")
        return given
    if not isfinite(given) or not 0 <= given < 1:
        raise UserError(
            f"--{option} {given} is not a share of the classes: from 0 to below 1, or a whole number of them."
        )
    return max(1, round(given * total)) if given > 0 else 0


def _listed(file: Path, class_names: tuple[str, ...]) -> Int64[ndarray, " classes"]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
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
