"""A folder of class folders becomes a data set, or an error that says what is wrong with it."""

import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from tammes.data import TEST, TRAIN, VALIDATION, open_dataset
from tammes.data.folder import flat, folder, images_below
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
    images = folder(tmp_path)
    assert images.keys == ("a/1.PNG", "b/1.png")
    assert images.remarks == (
        "1 file is not an image and is ignored: a/notes.txt.",
        "1 file is in no sub-folder and is ignored: loose.png.",
    )


def test_what_is_left_alone_is_counted(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png", "2.png", "10.png"):
        draw(tmp_path / name)
    assert folder(tmp_path).remarks == ("2 files are in no sub-folder and are ignored, such as 2.png.",)
    for name in ("LICENSE", "a/1.json", "b/deep/1.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert folder(tmp_path).remarks[0] == "3 files are not images and are ignored, such as LICENSE."


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("name", ["0f3c", "photo.orig", "2024.05.01", "photo.txt"])
def test_a_file_of_another_suffix_or_none_is_judged_by_its_content(kind: str, name: str, tmp_path: Path) -> None:
    draw(tmp_path / "a" / name, kind=kind)
    draw(tmp_path / "b" / "1.png")
    assert folder(tmp_path).keys == (f"a/{name}", "b/1.png")
    assert folder(tmp_path).remarks == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", b"BMW and other cars", b"GIF is a format", b"RIFF\x24\x00\x00\x00AVI LIST", b"P5 is out"],
)
def test_a_text_that_begins_like_an_image_is_none(content: bytes, tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png"):
        draw(tmp_path / name)
    (tmp_path / "b" / "README").write_bytes(content)
    assert folder(tmp_path).keys == ("a/1.png", "b/1.png")
    assert folder(tmp_path).remarks == ("1 file is not an image and is ignored: b/README.",)


def test_a_broken_image_fails_only_when_it_is_read(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").write_text("no image")
    images = folder(tmp_path)
    with pytest.raises(UserError) as refusal:
        images.read(1)
    assert str(refusal.value).startswith(f"cannot read {tmp_path / 'b' / '1.png'}: it is not an image")


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere" / "1.png")
    draw(tmp_path / "root" / "a" / "1.png")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "circle").symlink_to(tmp_path / "root" / "a")
    (tmp_path / "root" / "a" / "2.png").symlink_to(tmp_path / "gone.png")
    images = folder(tmp_path / "root")
    assert images.keys == ("a/1.png", "a/2.png", "b/1.png")
    assert images.remarks == (f"1 of 3 images is missing, such as {tmp_path / 'root' / 'a' / '2.png'}.",)
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
        f"no images in {tmp_path / 'b'}. 'photo.heic' is not a readable image. Add some or remove the folder."
    )


def test_only_one_class(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png")
    assert refused(tmp_path) == (
        f"only one class in {tmp_path}: 'a'. At least two are needed. Expected one sub-folder of images per class."
    )


def test_folders_called_train_and_test_are_the_split(tmp_path: Path) -> None:
    names = ["Test/10/1.png", "Test/9/1.png", "train/2/1.png", "train/9/1.png", "train/9/2.png"]
    for name in names:
        draw(tmp_path / name)
    found = folder(tmp_path)
    assert found.class_names == ("2", "9", "10")
    assert sorted(found.keys) == names
    assert found.part is not None
    for key, part, label in zip(found.keys, found.part, found.labels, strict=True):
        use, class_name, _ = key.split("/")
        assert part == {"Test": TEST, "train": TRAIN}[use]
        assert found.class_names[label] == class_name
    assert any("also" in remark for remark in found.remarks)  # class 9 trains and tests


def test_validation_images_are_tested_on_where_there_are_no_others(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "valid/c/1.png", "valid/d/1.png"):
        draw(tmp_path / name)
    found = folder(tmp_path)
    assert found.part is not None
    assert found.part.tolist() == [TRAIN, TRAIN, TEST, TEST]
    assert any("no folder test" in remark for remark in found.remarks)
    draw(tmp_path / "test" / "e" / "1.png")
    draw(tmp_path / "test" / "f" / "1.png")
    parts = dict(zip(folder(tmp_path).keys, folder(tmp_path).part.tolist(), strict=True))  # type: ignore[union-attr]
    assert parts["valid/c/1.png"] == VALIDATION
    assert parts["test/e/1.png"] == TEST


def test_splits_without_one_to_train_on_are_refused(tmp_path: Path) -> None:
    for name in ("test/cat/1.png", "val/cat/1.png"):
        draw(tmp_path / name)
    assert "(test, val), not classes. Expected train and test" in refused(tmp_path)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", forbidden)
    assert refused(tmp_path) == f"cannot look into {tmp_path}: Permission denied."


def test_images_below_a_folder_in_natural_order(tmp_path: Path) -> None:
    for name in ("10.png", "9.png", "b/1.png", "a/deep/2.JPG", ".hidden/1.png", ".1.png"):
        draw(tmp_path / name)
    draw(tmp_path / "a" / "scan", kind="TIFF")
    (tmp_path / "notes.txt").write_text("none of the images")
    names = [file.relative_to(tmp_path).as_posix() for file in images_below(tmp_path)]
    assert names == ["9.png", "10.png", "a/deep/2.JPG", "a/scan", "b/1.png"]


def test_a_folder_may_have_no_images_below_it(tmp_path: Path) -> None:
    assert images_below(tmp_path) == []
    with pytest.raises(UserError) as refusal:
        images_below(tmp_path / "nowhere")
    assert str(refusal.value) == f"no such folder: {tmp_path / 'nowhere'}. Expected a folder of images."


def test_flat_takes_images_however_they_are_arranged(tmp_path: Path) -> None:
    for number, name in enumerate(("2.png", "class 10/1.png", "class 9/deep/1.png", "class 9/deep/2.png", "10.png")):
        draw(tmp_path / "photos" / name, colour=number)
    (tmp_path / "photos" / "class 9" / "notes.txt").write_text("none of the images")
    images = flat(tmp_path / "photos")
    assert images.name == "photos"
    assert images.keys == ("2.png", "10.png", "class 9/deep/1.png", "class 9/deep/2.png", "class 10/1.png")
    assert images.files == tuple(tmp_path / "photos" / key for key in images.keys)
    assert images.class_names == (".", "class 9", "class 10")
    assert images.labels.tolist() == [0, 0, 1, 1, 2]
    assert [images.read(index).getpixel((0, 0)) for index in range(5)] == [0, 4, 2, 3, 1]
    assert images.remarks == ("1 file is not an image and is ignored: class 9/notes.txt.",)


@pytest.mark.parametrize(
    "names", [["1.png", "2.png"], ["a/1.png"], ["train/1.png", "test/1.png"], ["1.png", "a/x.png"]]
)
def test_flat_needs_no_classes(names: list[str], tmp_path: Path) -> None:
    for name in names:
        draw(tmp_path / name)
    assert sorted(flat(tmp_path).keys) == sorted(names)


def test_flat_without_images(tmp_path: Path) -> None:
    def refused_flat(root: Path) -> str:
        with pytest.raises(UserError) as refusal:
            flat(root)
        return str(refusal.value)

    assert refused_flat(tmp_path) == f"no images in {tmp_path}. Expected a folder of images."
    (tmp_path / "notes.txt").write_text("none of the images")
    assert refused_flat(tmp_path) == (
        f"no images in {tmp_path}: 'notes.txt' is not a readable image. Expected a folder of images."
    )
    assert refused_flat(tmp_path / "x") == f"no such folder: {tmp_path / 'x'}. Expected a folder of images."
    file = tmp_path / "notes.txt"
    assert refused_flat(file) == f"{file} is a file, not a folder. Expected a folder of images."


@pytest.mark.parametrize("name", ["cub", "CUB", "cars196", "sop", "inshop", "omniglot"])
def test_the_name_of_a_set_without_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refusal:
        open_dataset(name)
    assert str(refusal.value) == (
        f"no such folder: {name}. Give the folder with {name.lower()}; "
        f"`tammes data {name.lower()} --to FOLDER` downloads it."
    )


def test_a_folder_that_is_called_like_a_set_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cub/a/1.png", "cub/b/1.png"):
        draw(tmp_path / name)
    assert open_dataset("cub").class_names == ("a", "b")
