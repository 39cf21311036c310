"""Cars196 (Krause et al., 2013): 16,185 photos of 196 kinds of cars.

The first 98 classes are for training and the other 98 for testing, as usual in metric learning. The official split into
training and test images has every class on both sides and is not used.
"""

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from tammes.data.dataset import Dataset
from tammes.data.files import of_files, unlike_published
from tammes.errors import UserError

TRAIN_CLASSES = 98  # the numbers 1 to 98

_WHOLE = "cars_annos.mat"  # beside car_ims/
_TRAIN, _TEST, _NAMES = "cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_meta.mat"
_UNLABELLED = "cars_test_annos.mat"


def cars196(root: Path) -> Dataset:
    """Read Cars196; a class is a kind of car, such as "AM General Hummer SUV 2000".

    Both published layouts are accepted: cars_annos.mat with car_ims/, or cars_train_annos.mat,
    cars_test_annos_withlabels.mat and cars_meta.mat (in the folder itself or in devkit/) with cars_train/ and
    cars_test/, which are combined.

    Args:
        root: the folder with these files.
    """
    if _in_one(root):
        file = _found(root, _WHOLE)
        names, images = _class_names(file), _annotated(file, "relative_im_path", root, "")
    elif _found(root, _TRAIN).is_file() or _found(root, _TEST).is_file():
        names, images = _class_names(_found(root, _NAMES)), _in_two(root)
    else:
        raise UserError(f"no Cars196 in {root}. Expected {_WHOLE} and car_ims/, or {_TRAIN} and {_TEST}.")
    if not images:
        raise UserError(f"the annotations in {root} name no images. The data set is incomplete: download it again.")
    for image in images:
        if not 1 <= image.number <= len(names):
            raise UserError(f"class {image.number} of {image.key} in {root} is not one of the {len(names)} classes.")
    numbers = np.array([image.number for image in images], dtype=np.int64)  # (images,): 1 to 196
    present, labels = np.unique(numbers, return_inverse=True)
    trains = numbers <= TRAIN_CLASSES
    train_classes = int((present <= TRAIN_CLASSES).sum())
    return of_files(
        "cars196",
        [image.key for image in images],
        [image.file for image in images],
        labels.astype(np.int64),
        [names[number - 1] for number in present.tolist()],
        train_classes=train_classes if 0 < train_classes < len(present) else None,
        remarks=unlike_published(
            "Cars196",
            [
                ("classes", 196, len(present)),
                ("training images", 8054, int(trains.sum())),
                ("test images", 8131, int((~trains).sum())),
            ],
        ),
    )


def is_cars196(root: Path) -> bool:
    """Whether a folder contains Cars196 in one of its two layouts."""
    return _in_one(root) or any(_found(root, name).is_file() for name in (_TRAIN, _TEST))


class _Image(NamedTuple):
    key: str
    file: Path
    number: int  # of its class, from 1


def _in_one(root: Path) -> bool:
    return _found(root, _WHOLE).is_file() and (root / "car_ims").is_dir()


def _in_two(root: Path) -> list[_Image]:
    if not _found(root, _TEST).is_file():
        without = f"{_UNLABELLED} does not say the classes." if _found(root, _UNLABELLED).is_file() else ""
        raise UserError(f"no {_TEST} in {root}: half of the images would have no class. {without}".rstrip())
    if not _found(root, _TRAIN).is_file():
        raise UserError(f"no {_TRAIN} in {root} or its devkit/: half of the images would have no class.")
    return [
        image
        for name, folder in ((_TRAIN, "cars_train"), (_TEST, "cars_test"))
        for image in _annotated(_found(root, name), "fname", root, folder)
    ]


def _found(root: Path, name: str) -> Path:
    """The path of an annotation file, which some copies have in devkit/."""
    return root / name if (root / name).is_file() else root / "devkit" / name


def _annotated(file: Path, path_field: str, root: Path, folder: str) -> list[_Image]:
    annotations = _variable(file, "annotations")
    fields = annotations.dtype.names or ()
    for field in (path_field, "class"):
        if field not in fields:
            raise UserError(f"{file} does not say the `{field}` of an image; it has {', '.join(fields) or 'nothing'}.")
    keys = [f"{folder}/{path}" if folder else str(path) for path in annotations[path_field]]
    place = (
        root / folder if (root / folder / folder).is_dir() and folder else root
    )  # one copy has cars_train/cars_train
    return [
        _Image(key, place / key, int(number)) for key, number in zip(keys, annotations["class"].tolist(), strict=True)
    ]


def _class_names(file: Path) -> list[str]:
    return [str(name) for name in _variable(file, "class_names")]


def _variable(file: Path, name: str) -> ndarray:
    """A struct array or a cell array of a MATLAB file, as a one-dimensional array."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with file.open("rb") as source:
            variables = loadmat(source, squeeze_me=True, variable_names=[name])
    except FileNotFoundError:
        raise UserError(f"no such file: {file}. The data set is incomplete: unpack it again.") from None
    except (MatReadError, NotImplementedError, OSError, LookupError, TypeError, ValueError, zlib.error) as error:
        raise UserError(f"cannot read {file}: not a complete MATLAB file ({error}). Download it again.") from error
    if name not in variables:
        raise UserError(f"{file} has no variable `{name}`: it is not the file of Cars196.")
    return np.atleast_1d(variables[name])
