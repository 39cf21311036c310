"""Cars196 in the two forms in which it is found, from MATLAB files like the original ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tammes.data import cars196, is_cars196, open_dataset
from tammes.data.splits import split
from tammes.errors import UserError

NAMES = [f"Make {number} Coupe 2012" for number in range(1, 197)]
NAMES[0] = "AM General Hummer SUV 2000"
CLASSES = [3, 1, 120, 98, 99, 3]  # of six images
COUNTS = (
    "Cars196 has 196 classes, this folder has 5.",
    "Cars196 has 8,054 training images, this folder has 4.",
    "Cars196 has 8,131 test images, this folder has 2.",
)


def cells(names: list[str]) -> np.ndarray:
    """A cell array as MATLAB has it: 1 x N."""
    array = np.empty((1, len(names)), dtype=object)
    array[0] = names
    return array


def structs(**fields: Sequence[object]) -> np.ndarray:
    """A struct array as MATLAB has it: 1 x N, every number in a 1 x 1 array."""
    length = len(next(iter(fields.values())))
    array = np.empty((1, length), dtype=[(name, object) for name in fields])
    for name, values in fields.items():
        for index, value in enumerate(values):
            array[0, index][name] = value if isinstance(value, str) else np.array([[value]], dtype=np.uint8)
    return array


def boxes(number: int) -> dict[str, Sequence[object]]:
    return {f"bbox_{edge}": list(range(1, number + 1)) for edge in ("x1", "y1", "x2", "y2")}


def draw(file: Path, colour: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 3), colour).save(file, format="PNG")


def in_one(root: Path, classes: list[int] = CLASSES) -> Path:
    paths = [f"car_ims/{index + 1:06}.jpg" for index in range(len(classes))]
    for colour, path in enumerate(paths):
        draw(root / path, colour)
    annotations = structs(relative_im_path=paths, **boxes(len(paths)), **{"class": classes}, test=[0] * len(paths))
    savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": cells(NAMES)})
    return root


def in_two(root: Path, devkit: str = "devkit", test_annotations: str = "", nested: bool = False) -> Path:
    (root / devkit).mkdir(parents=True, exist_ok=True)
    for part, place, name, classes in (
        ("cars_train", devkit, "cars_train_annos.mat", CLASSES[:4]),
        ("cars_test", test_annotations, "cars_test_annos_withlabels.mat", CLASSES[4:]),
    ):
        names = [f"{index + 1:05}.jpg" for index in range(len(classes))]
        for index, file in enumerate(names):
            draw(root / part / (part if nested else "") / file, index if part == "cars_train" else 4 + index)
        annotations = structs(**boxes(len(names)), **{"class": classes}, fname=names)
        savemat(root / place / name, {"annotations": annotations})
    savemat(root / devkit / "cars_meta.mat", {"class_names": cells(NAMES)})
    return root


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        cars196(root)
    return str(refusal.value)


def test_all_in_one_folder(tmp_path: Path) -> None:
    cars = cars196(in_one(tmp_path))
    assert cars.name == "cars196"
    assert cars.keys == tuple(f"car_ims/00000{number}.jpg" for number in range(1, 7))
    assert cars.files == tuple(tmp_path / key for key in cars.keys)
    assert cars.class_names == (NAMES[0], NAMES[2], NAMES[97], NAMES[98], NAMES[119])
    assert cars.labels.tolist() == [1, 0, 4, 2, 3, 1]
    assert [cars.read(index).getpixel((0, 0)) for index in range(6)] == [0, 1, 2, 3, 4, 5]
    assert cars.remarks == COUNTS


@pytest.mark.parametrize("devkit", ["devkit", ""])
@pytest.mark.parametrize("test_annotations", ["devkit", ""])
@pytest.mark.parametrize("nested", [False, True])
def test_training_and_test_images_apart(devkit: str, test_annotations: str, nested: bool, tmp_path: Path) -> None:
    (tmp_path / "devkit").mkdir()
    cars = cars196(in_two(tmp_path, devkit, test_annotations, nested))
    assert cars.keys == (
        *("cars_train/00001.jpg", "cars_train/00002.jpg", "cars_train/00003.jpg", "cars_train/00004.jpg"),
        *("cars_test/00001.jpg", "cars_test/00002.jpg"),
    )
    assert cars.class_names == (NAMES[0], NAMES[2], NAMES[97], NAMES[98], NAMES[119])
    assert cars.labels.tolist() == [1, 0, 4, 2, 3, 1]
    assert [cars.read(index).getpixel((0, 0)) for index in range(6)] == [0, 1, 2, 3, 4, 5]
    assert cars.remarks == COUNTS


@pytest.mark.parametrize("form", [in_one, in_two])
def test_classes_to_98_train_and_the_others_test(form: Callable[[Path], Path], tmp_path: Path) -> None:
    cars = cars196(form(tmp_path))
    assert cars.train_classes == 3
    assert split(cars).train.tolist() == [0, 1, 3, 5]
    assert split(cars).test.tolist() == [2, 4]


def test_a_single_image_of_a_class_is_no_special_case(tmp_path: Path) -> None:
    cars = cars196(in_one(tmp_path, [5]))
    assert cars.class_names == (NAMES[4],)
    assert cars.train_classes is None


@pytest.mark.parametrize("form", [in_one, in_two])
def test_it_is_recognised(form: Callable[[Path], Path], tmp_path: Path) -> None:
    assert not is_cars196(tmp_path)
    form(tmp_path)
    assert is_cars196(tmp_path)
    assert open_dataset(str(tmp_path)).name == "cars196"


def test_all_annotations_without_their_images_give_way_to_those_that_have_them(tmp_path: Path) -> None:
    in_one(tmp_path)
    in_two(tmp_path)
    assert cars196(tmp_path).keys[0] == "car_ims/000001.jpg"
    (tmp_path / "car_ims").rename(tmp_path / "elsewhere")
    assert cars196(tmp_path).keys[0] == "cars_train/00001.jpg"


def test_labels_of_the_test_images_are_needed(tmp_path: Path) -> None:
    in_two(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    needed = f"no cars_test_annos_withlabels.mat in {tmp_path}: half of the images would have no class."
    assert refused(tmp_path) == needed
    savemat(
        tmp_path / "devkit" / "cars_test_annos.mat", {"annotations": structs(**boxes(2), fname=["00001.jpg", "2.jpg"])}
    )
    assert refused(tmp_path) == f"{needed} cars_test_annos.mat does not say the classes."
    (tmp_path / "devkit" / "cars_test_annos.mat").rename(tmp_path / "cars_test_annos_withlabels.mat")
    assert refused(tmp_path) == (
        f"{tmp_path / 'cars_test_annos_withlabels.mat'} does not say the `class` of an image; "
        "it has bbox_x1, bbox_y1, bbox_x2, bbox_y2, fname."
    )


def test_annotations_that_cannot_be_used(tmp_path: Path) -> None:
    in_two(tmp_path)
    train, meta = tmp_path / "devkit" / "cars_train_annos.mat", tmp_path / "devkit" / "cars_meta.mat"
    train.unlink()
    assert refused(tmp_path) == (
        f"no cars_train_annos.mat in {tmp_path} or its devkit/: half of the images would have no class."
    )
    in_two(tmp_path)
    meta.unlink()
    assert refused(tmp_path) == f"no such file: {meta}. The data set is incomplete: unpack it again."
    savemat(meta, {"names": cells(NAMES)})
    assert refused(tmp_path) == f"{meta} has no variable `class_names`: it is not the file of Cars196."
    savemat(meta, {"class_names": cells(NAMES[:50])})
    assert refused(tmp_path) == f"class 120 of cars_train/00003.jpg in {tmp_path} is not one of the 50 classes."
    in_two(tmp_path)
    train.write_bytes(train.read_bytes()[:300])
    assert refused(tmp_path).startswith(f"cannot read {train}: not a complete MATLAB file (")
    train.write_bytes(b"<html>not found</html>" * 20)
    assert refused(tmp_path).startswith(f"cannot read {train}: not a complete MATLAB file (")
    train.write_bytes(b"")
    assert refused(tmp_path).startswith(f"cannot read {train}: not a complete MATLAB file (")


def test_no_cars196(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"no Cars196 in {tmp_path}. Expected cars_annos.mat and car_ims/, "
        "or cars_train_annos.mat and cars_test_annos_withlabels.mat."
    )
