"""What every reader of a data set promises, on a tiny one of each kind in its own layout."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tammes.data import READERS, Dataset, flat, open_dataset
from tammes.data.splits import split

CLASSES = (1, 2, 101, 102)  # two that train and two that test, in every set that numbers its classes


def draw(file: Path, colour: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (colour, 0, 0)).save(file, format="PNG")


def paths() -> list[tuple[int, str]]:
    """Two images of each of four classes."""
    return [(number, f"{number:03}.class/{image}.jpg") for number in CLASSES for image in ("a", "b")]


def cub(root: Path) -> None:
    for colour, (_, path) in enumerate(paths()):
        draw(root / "images" / path, colour)
    numbered = list(enumerate(paths(), start=1))
    (root / "images.txt").write_text("".join(f"{image} {path}\n" for image, (_, path) in numbered))
    (root / "image_class_labels.txt").write_text("".join(f"{image} {number}\n" for image, (number, _) in numbered))
    (root / "classes.txt").write_text("".join(f"{number} {number:03}.class\n" for number in CLASSES))


def cars196(root: Path) -> None:
    annotations = np.empty((1, 8), dtype=[("relative_im_path", object), ("class", object), ("test", object)])
    for index, (number, _) in enumerate(paths()):
        path = f"car_ims/{index:06}.jpg"
        draw(root / path, index)
        annotations[0, index] = (path, np.array([[number]]), np.array([[index % 2]]))
    names = np.array([[f"car {number}" for number in range(1, 197)]], dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": names})


def sop(root: Path) -> None:
    for colour, (_, path) in enumerate(paths()):
        draw(root / path, colour)
    for name, trains in (("Ebay_train.txt", True), ("Ebay_test.txt", False)):
        own = [(number, path) for number, path in paths() if (number < 100) == trains]
        lines = [f"{image} {number} 1 {path}\n" for image, (number, path) in enumerate(own)]
        (root / name).write_text("image_id class_id super_class_id path\n" + "".join(lines))


def inshop(root: Path) -> None:
    lines = ["8", "image_name item_id evaluation_status"]
    for colour, (number, path) in enumerate(paths()):
        draw(root / "img" / path, colour)
        status = "train" if number < 100 else "query" if path.endswith("a.jpg") else "gallery"
        lines.append(f"img/{path} id_{number} {status}")
    (root / "list_eval_partition.txt").write_text("\n".join(lines))


def omniglot(root: Path) -> None:
    for colour, (number, path) in enumerate(paths()):
        part = "images_background" if number < 100 else "images_evaluation"
        draw(root / part / "Greek" / f"character{number}" / f"{Path(path).stem}.png", colour)


def folder(root: Path) -> None:
    for colour, (_, path) in enumerate(paths()):
        draw(root / path, colour)


def table(root: Path) -> None:
    folder(root)
    lines = [f"{path},{number},{'train' if number < 100 else 'test'}\n" for number, path in paths()]
    (root / "images.csv").write_text("path,label,split\n" + "".join(lines))


WRITERS: dict[str, Callable[[Path], None]] = {
    "cub": cub,
    "cars196": cars196,
    "sop": sop,
    "inshop": inshop,
    "omniglot": omniglot,
    "folder": folder,
    "flat": folder,
    "table": table,
}


@pytest.fixture(params=sorted(WRITERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    WRITERS[name](tmp_path / "data")
    return tmp_path / "data"


def opened(name: str, root: Path) -> Dataset:
    if name == "flat":
        return flat(root)
    return open_dataset(str(root / "images.csv" if name == "table" else root))


def test_every_named_set_is_here() -> None:
    assert set(READERS) <= set(WRITERS)


def test_it_is_called_by_its_name(name: str, root: Path) -> None:
    expected = {"folder": "data", "flat": "data", "table": "images"}
    assert opened(name, root).name == expected.get(name, name)


def test_labels_count_the_classes_without_gaps(name: str, root: Path) -> None:
    dataset = opened(name, root)
    assert dataset.labels.dtype == np.int64
    assert np.bincount(dataset.labels, minlength=dataset.num_classes).tolist() == [2, 2, 2, 2]
    assert len(set(dataset.class_names)) == 4


def test_every_image_has_a_key_and_a_file_of_its_own(name: str, root: Path) -> None:
    dataset = opened(name, root)
    assert len(dataset) == len(set(dataset.keys)) == 8
    assert dataset.files is not None
    assert len(dataset.files) == len(set(dataset.files)) == 8
    assert all(file.is_file() for file in dataset.files)


def test_images_in_a_zip_file_have_no_file_of_their_own(tmp_path: Path) -> None:
    omniglot(tmp_path / "unpacked")
    part = tmp_path / "unpacked" / "images_background"
    shutil.make_archive(str(tmp_path / "images_background"), "zip", part)
    assert open_dataset(str(tmp_path / "images_background.zip")).files is None


def test_it_reads_the_image_of_each_label(name: str, root: Path) -> None:
    """Two images of a class have neighbouring colours: 0 and 1, 2 and 3, …"""
    dataset = opened(name, root)
    pictures = [dataset.read(index) for index in range(8)]
    assert {picture.size for picture in pictures} == {(5, 4)}
    colours = [picture.getpixel((0, 0))[0] for picture in pictures]  # type: ignore[index]
    assert sorted(colours) == list(range(8))
    assert len({(colour // 2, label) for colour, label in zip(colours, dataset.labels.tolist(), strict=True)}) == 4


def test_masks_and_parts_are_as_long_as_the_set(name: str, root: Path) -> None:
    dataset = opened(name, root)
    for array in (dataset.part, dataset.query, dataset.gallery, dataset.sequence):
        assert array is None or len(array) == 8


def test_training_and_test_classes_are_disjoint(name: str, root: Path) -> None:
    dataset = opened(name, root)
    result = split(dataset)
    assert len(result.train) == len(result.test) == 4
    assert not set(dataset.labels[result.train].tolist()) & set(dataset.labels[result.test].tolist())
    trained = {int(dataset.read(index).getpixel((0, 0))[0]) for index in result.train.tolist()}  # type: ignore[index]
    assert trained == {0, 1, 2, 3}


def test_the_fingerprint_is_the_same_for_the_same_files(name: str, root: Path) -> None:
    first, second = opened(name, root), opened(name, root)
    assert first.fingerprint == second.fingerprint
    moved = root.with_name("moved")
    root.rename(moved)
    assert opened(name, moved).fingerprint == first.fingerprint


@pytest.mark.parametrize("change", ["size", "time"])
def test_the_fingerprint_changes_with_a_file(change: str, name: str, root: Path) -> None:
    before = opened(name, root)
    assert before.files is not None
    file = before.files[5]
    status = file.stat()
    if change == "size":
        file.write_bytes(file.read_bytes() + b"\0")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert opened(name, root).fingerprint != before.fingerprint


def test_the_fingerprint_changes_with_what_is_said_of_an_image(name: str, root: Path) -> None:
    before = opened(name, root).fingerprint
    if name == "cars196":
        annotations = np.empty((1, 1), dtype=[("relative_im_path", object), ("class", object)])
        annotations[0, 0] = ("car_ims/000000.jpg", np.array([[1]]))
        savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": np.array([["car"]], dtype=object)})
    elif name in ("omniglot", "folder", "flat"):  # what says it is the folder
        dataset = opened(name, root)
        assert dataset.files is not None
        dataset.files[0].rename(dataset.files[-1].with_name("0_0.png"))
    else:
        file, old, new = {
            "cub": ("image_class_labels.txt", "1 1\n", "1 2\n"),
            "sop": ("Ebay_train.txt", "0 1 1", "0 2 1"),
            "inshop": ("list_eval_partition.txt", "query", "gallery"),
            "table": ("images.csv", "a.jpg,1,train", "a.jpg,1,test"),
        }[name]
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, 1))
    assert opened(name, root).fingerprint != before
