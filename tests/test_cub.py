"""CUB-200-2011 in its own layout: the first hundred classes train, whatever its own division says."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.data import cub, is_cub, open_dataset
from tammes.data.splits import split
from tammes.errors import UserError

# Image number, class number, path: neither numbers nor classes are in order.
IMAGES = [
    (3, 2, "002.Laysan_Albatross/b.jpg"),
    (1, 1, "001.Black_footed_Albatross/a.jpg"),
    (7, 101, "101.White_Pelican/c.jpg"),
    (8, 100, "100.Brown_Pelican/d.jpg"),
    (9, 2, "002.Laysan_Albatross/e.jpg"),
]
COUNTS = (
    "CUB-200-2011 has 200 classes, this folder has 4.",
    "CUB-200-2011 has 5,864 training images, this folder has 4.",
    "CUB-200-2011 has 5,924 test images, this folder has 1.",
)


def write(root: Path) -> Path:
    classes = sorted({(number, path.split("/")[0]) for _, number, path in IMAGES})
    for colour, (_, _, path) in enumerate(IMAGES):
        (root / "images" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (colour, 0, 0)).save(root / "images" / path, format="WEBP", lossless=True)
    (root / "images.txt").write_text("".join(f"{image} {path}\n" for image, _, path in IMAGES))
    (root / "image_class_labels.txt").write_text("".join(f"{image} {number}\n" for image, number, _ in IMAGES[::-1]))
    (root / "classes.txt").write_text("".join(f"{number} {name}\r\n" for number, name in classes))
    (root / "train_test_split.txt").write_text("".join(f"{image} {image % 2}\n" for image, _, _ in IMAGES))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data" / "CUB_200_2011").mkdir(parents=True)
    return write(tmp_path / "data" / "CUB_200_2011")


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        cub(root)
    return str(refusal.value)


def test_images_and_classes_are_those_of_the_lists(root: Path) -> None:
    birds = cub(root)
    assert birds.name == "cub"
    assert birds.keys == tuple(f"images/{path}" for _, _, path in IMAGES)
    assert birds.files == tuple(root / key for key in birds.keys)
    assert birds.class_names == (
        *("001.Black_footed_Albatross", "002.Laysan_Albatross"),
        *("100.Brown_Pelican", "101.White_Pelican"),
    )
    assert birds.labels.tolist() == [1, 0, 3, 2, 1]
    assert birds.remarks == COUNTS


def test_images_are_read_by_content_not_by_name(root: Path) -> None:
    birds = cub(root)
    assert [birds.read(index).getpixel((0, 0)) for index in range(5)] == [(number, 0, 0) for number in range(5)]


def test_classes_to_a_hundred_train_and_the_others_test(root: Path) -> None:
    birds = cub(root)
    assert birds.train_classes == 3
    assert birds.part is None
    assert split(birds).train.tolist() == [0, 1, 3, 4]
    assert split(birds).test.tolist() == [2]


def test_a_half_alone_leaves_the_split_to_the_user(root: Path) -> None:
    kept = [image for image in IMAGES if image[1] <= 100]
    (root / "images.txt").write_text("".join(f"{image} {path}\n" for image, _, path in kept))
    (root / "image_class_labels.txt").write_text("".join(f"{image} {number}\n" for image, number, _ in kept))
    birds = cub(root)
    assert birds.train_classes is None
    assert "CUB-200-2011 has 5,924 test images, this folder has 0." in birds.remarks


@pytest.mark.parametrize("above", [False, True])
def test_it_is_recognised_by_its_lists_also_from_the_folder_above(above: bool, root: Path) -> None:
    place = root.parent if above else root
    assert is_cub(place)
    assert open_dataset(str(place)).name == "cub"
    assert not is_cub(root / "images")
    assert not is_cub(root / "nowhere")


def test_a_missing_file_is_counted_and_fails_when_it_is_read(root: Path) -> None:
    file = root / "images" / IMAGES[2][2]
    file.unlink()
    birds = cub(root)
    assert len(birds) == 5
    assert birds.remarks == (*COUNTS, f"1 of 5 images is missing, such as {file}.")
    with pytest.raises(UserError) as refusal:
        birds.read(2)
    assert str(refusal.value) == f"cannot read {file}: no such file."
    (root / "images" / IMAGES[1][2]).unlink()
    assert cub(root).remarks[-1] == f"2 of 5 images are missing, such as {root / 'images' / IMAGES[1][2]}."


def test_without_any_image_it_is_refused_at_once(root: Path) -> None:
    (root / "images").rename(root / "pictures")
    assert refused(root) == f"all 5 images are missing; the first is {root / 'images' / IMAGES[0][2]}."


def test_lists_that_cannot_be_used(root: Path) -> None:
    labels, images, names = (root / name for name in ("image_class_labels.txt", "images.txt", "classes.txt"))
    labels.write_text("1 1\n")
    assert refused(root) == f"{images}, line 1: {IMAGES[0][2]} has no class in image_class_labels.txt."
    write(root)
    labels.write_text(labels.read_text() + "10 2\n")
    assert refused(root) == f"{labels}: image 10 is not in images.txt."
    labels.write_text("3 two\n")
    assert refused(root) == f"{labels}, line 1: 'two' is not a whole number."
    write(root)
    labels.write_text(labels.read_text().replace("3 2", "3 9"))
    assert refused(root) == f"{labels}: class 9 is not in classes.txt."
    write(root)
    images.write_text("1 a.jpg\n\n1 b.jpg\n")
    assert refused(root) == f"{images}, line 3: 1 was already in line 1."
    images.write_text("1 a.jpg\n2\n")
    assert refused(root) == f"{images}, line 2: '2' is not `number path`."
    images.write_text("1 a.jpg\n2 a.jpg\n")
    labels.write_text("1 1\n2 1\n")
    assert refused(root) == "images/a.jpg appears 2 times in cub; every image must appear once."
    images.write_bytes(b"\xff\xfe")
    assert refused(root) == f"cannot read {images}: it is not a text in UTF-8."
    write(root)
    images.write_text("")
    labels.write_text("")
    assert refused(root) == f"{images} names no images. The data set is incomplete: unpack it again."
    write(root)
    names.unlink()
    assert refused(root) == f"no such file: {names}. The data set is incomplete: unpack it again."


def test_no_cub(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"no CUB-200-2011 in {tmp_path}. Expected images.txt, image_class_labels.txt, classes.txt and images/."
    )


@pytest.mark.data
def test_the_real_one() -> None:
    folder = Path(os.environ.get("TAMMES_DATA", "")) / "CUB_200_2011"
    if "TAMMES_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/")
    birds = open_dataset(str(folder))
    result = split(birds)
    assert (len(result.train), len(result.test)) == (5864, 5924)
    assert birds.num_classes == 200
    assert birds.remarks == ()
    assert birds.class_names[0] == "001.Black_footed_Albatross"
    assert all(
        key.split("/")[1] == birds.class_names[label] for key, label in zip(birds.keys, birds.labels, strict=True)
    )
    sizes = [birds.read(index).size for index in np.linspace(0, 11787, 20).astype(int).tolist()]
    assert min(min(size) for size in sizes) > 100
