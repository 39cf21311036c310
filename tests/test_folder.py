"""A folder of class folders becomes a data set, or an error that says what is wrong with it."""

import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from tammes.datasets.folder import folder
from tammes.errors import UserError


def draw(file: Path, colour: int = 0, kind: str = "PNG") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 3), colour).save(file, format=kind)
    return file


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        folder(root)
    return str(refusal.value)


def test_each_sub_folder_is_a_class(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        draw(tmp_path / "pets" / name)
    pets = folder(tmp_path / "pets")
    assert pets.name == "pets"
    assert pets.keys == ("cat/1.png", "cat/2.png", "dog/1.png")
    assert pets.labels.tolist() == [0, 0, 1]
    assert pets.class_names == ("cat", "dog")
    assert pets.train_classes is None


def test_read_gives_the_image_of_that_key(tmp_path: Path) -> None:
    for number, name in enumerate(("a/1.png", "a/2.png", "b/1.png")):
        draw(tmp_path / name, colour=number)
    images = folder(tmp_path)
    assert [images.read(index).getpixel((0, 0)) for index in range(3)] == [0, 1, 2]


def test_names_are_in_natural_order(tmp_path: Path) -> None:
    for name in ("class 10/x.png", "class 2/img10.png", "class 2/img9.png", "Class 1/x.png", "été/x.png", "鳥/x.png"):
        draw(tmp_path / name)
    images = folder(tmp_path)
    assert images.class_names == ("Class 1", "class 2", "class 10", "été", "鳥")
    assert images.keys[1:3] == ("class 2/img9.png", "class 2/img10.png")


def test_images_below_a_class_folder_belong_to_it(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2024/may/1.png", "b/deep/er/1.png"):
        draw(tmp_path / name)
    images = folder(tmp_path)
    assert images.keys == ("a/1.png", "a/2024/may/1.png", "b/deep/er/1.png")
    assert images.labels.tolist() == [0, 0, 1]


def test_hidden_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("a/1.PNG", "b/1.png", "a/.1.png", ".git/1.png", "__MACOSX/1.png", "loose.png"):
        draw(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("none of the images")
    assert folder(tmp_path).keys == ("a/1.PNG", "b/1.png")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
def test_a_file_without_suffix_is_judged_by_its_content(kind: str, tmp_path: Path) -> None:
    draw(tmp_path / "a" / "0f3c", kind=kind)
    draw(tmp_path / "b" / "1.png")
    (tmp_path / "b" / "README").write_text("no image")
    assert folder(tmp_path).keys == ("a/0f3c", "b/1.png")


def test_a_broken_image_fails_only_when_it_is_read(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").write_text("no image")
    images = folder(tmp_path)
    with pytest.raises(UserError) as refusal:
        images.read(1)
    assert str(refusal.value) == f"cannot read {tmp_path / 'b' / '1.png'}: it is not an image of a known kind."


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere" / "1.png")
    draw(tmp_path / "root" / "a" / "1.png")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "circle").symlink_to(tmp_path / "root" / "a")
    (tmp_path / "root" / "a" / "2.png").symlink_to(tmp_path / "gone.png")
    images = folder(tmp_path / "root")
    assert images.keys == ("a/1.png", "a/2.png", "b/1.png")
    with pytest.raises(UserError, match="no such file"):
        images.read(1)


def test_the_fingerprint_changes_with_the_files_and_only_then(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    file = draw(tmp_path / "b" / "1.png")
    prints = [folder(tmp_path).fingerprint, folder(tmp_path).fingerprint]
    assert prints[0] == prints[1]
    os.utime(file, ns=(0, 0))
    prints.append(folder(tmp_path).fingerprint)
    file.rename(file.with_name("2.png"))
    prints.append(folder(tmp_path).fingerprint)
    draw(tmp_path / "b" / "3.png")
    prints.append(folder(tmp_path).fingerprint)
    assert len(set(prints[1:])) == 4


def test_no_such_folder() -> None:
    expected = "no such folder: /nowhere. Expected one sub-folder of images per class."
    assert refused(Path("/nowhere")) == expected


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    file = draw(tmp_path / "1.png")
    assert refused(file) == f"{file} is a file, not a folder. Expected one sub-folder of images per class."


def test_an_empty_folder(tmp_path: Path) -> None:
    expected = f"no classes in {tmp_path}: it is empty. Expected one sub-folder of images per class."
    assert refused(tmp_path) == expected


def test_images_in_no_sub_folder(tmp_path: Path) -> None:
    draw(tmp_path / "1.png")
    expected = f"no classes in {tmp_path}: its files are in no sub-folder. Expected one sub-folder of images per class."
    assert refused(tmp_path) == expected


def test_a_class_without_images(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    assert refused(tmp_path) == f"no images in {tmp_path / 'b'}. Add some or remove the folder."
    (tmp_path / "b" / "photo.heic").write_bytes(b"x")
    assert refused(tmp_path) == (
        f"no images in {tmp_path / 'b'}. 'photo.heic' is none that can be read. Add some or remove the folder."
    )


def test_only_one_class(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    assert refused(tmp_path) == (
        f"only one class in {tmp_path}: 'a'. At least two are needed. Expected one sub-folder of images per class."
    )


def test_a_folder_of_splits_is_not_taken_for_two_classes(tmp_path: Path) -> None:
    for name in ("test/cat/1.png", "train/cat/1.png"):
        draw(tmp_path / name)
    assert refused(tmp_path) == (
        f"the sub-folders of {tmp_path} are parts of a data set (test, train), not classes. "
        f"Give one of them, such as {tmp_path / 'test'}."
    )


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", forbidden)
    assert refused(tmp_path) == f"cannot look into {tmp_path}: Permission denied."
