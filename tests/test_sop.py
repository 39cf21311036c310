"""Stanford Online Products: two lists, one to train and one to test."""

from pathlib import Path

import pytest
from PIL import Image

from tammes.data import TEST, TRAIN, is_sop, open_dataset, sop
from tammes.data.splits import split
from tammes.errors import UserError

HEADER = "image_id class_id super_class_id path\n"
TRAIN_LINES = [(1, 1, 1, "bicycle_final/1_0.JPG"), (2, 1, 1, "bicycle_final/1_1.JPG"), (3, 2, 4, "chair_final/2_0.JPG")]
TEST_LINES = [(4, 11320, 1, "bicycle_final/4_0.JPG"), (5, 11319, 4, "chair_final/3_0.JPG")]
COUNTS = (
    "Stanford Online Products has 11,318 training classes, this folder has 2.",
    "Stanford Online Products has 11,316 test classes, this folder has 2.",
    "Stanford Online Products has 59,551 training images, this folder has 3.",
    "Stanford Online Products has 60,502 test images, this folder has 2.",
)


def as_list(lines: list[tuple[int, int, int, str]]) -> str:
    return HEADER + "".join(" ".join(str(field) for field in line) + "\n" for line in lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "Stanford_Online_Products"
    for colour, (_, _, _, path) in enumerate(TRAIN_LINES + TEST_LINES):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), colour).save(root / path, format="PNG")
    (root / "Ebay_train.txt").write_text(as_list(TRAIN_LINES))
    (root / "Ebay_test.txt").write_text(as_list(TEST_LINES))
    return root


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        sop(root)
    return str(refusal.value)


def test_images_and_classes_are_those_of_the_lists(root: Path) -> None:
    products = sop(root)
    assert products.name == "sop"
    assert products.keys == tuple(path for _, _, _, path in TRAIN_LINES + TEST_LINES)
    assert products.files == tuple(root / key for key in products.keys)
    assert products.class_names == ("1", "2", "11320", "11319")
    assert products.labels.tolist() == [0, 0, 1, 2, 3]
    assert [products.read(index).getpixel((0, 0)) for index in range(5)] == [0, 1, 2, 3, 4]
    assert products.remarks == COUNTS


def test_each_list_has_its_use(root: Path) -> None:
    products = sop(root)
    assert products.part is not None
    assert products.part.tolist() == [TRAIN, TRAIN, TRAIN, TEST, TEST]
    result = split(products)
    assert (result.train.tolist(), result.test.tolist()) == ([0, 1, 2], [3, 4])
    assert (result.train_classes.tolist(), result.test_classes.tolist()) == ([0, 1], [2, 3])
    assert result.val is None


def test_a_class_in_both_lists_is_said(root: Path) -> None:
    (root / "Ebay_test.txt").write_text(as_list([*TEST_LINES[:1], (5, 2, 4, "chair_final/3_0.JPG")]))
    assert sop(root).remarks[-1] == "1 of 2 test classes is also in training or validation."


@pytest.mark.parametrize("above", [False, True])
def test_it_is_recognised_also_from_the_folder_above(above: bool, root: Path) -> None:
    place = root.parent if above else root
    assert is_sop(place)
    assert open_dataset(str(place)).name == "sop"
    assert not is_sop(root / "chair_final")


def test_lists_that_cannot_be_used(root: Path) -> None:
    train, test = root / "Ebay_train.txt", root / "Ebay_test.txt"
    train.write_text(HEADER + "\n1 1 1\n")
    assert refused(root) == f"{train}, line 3: '1 1 1' is not `image_id class_id super_class_id path`."
    train.write_text(HEADER + "1 one 1 a.JPG\n")
    assert refused(root) == f"{train}, line 2: 'one' is not a whole number."
    train.write_text(as_list([*TRAIN_LINES, TRAIN_LINES[0]]))
    assert refused(root) == "bicycle_final/1_0.JPG appears 2 times in sop; every image must appear once."
    train.write_text(HEADER)
    test.write_text(HEADER)
    assert refused(root) == f"{train} and Ebay_test.txt name no images. Unpack the data set again."
    test.unlink()
    assert refused(root) == f"no such file: {test}. The data set is incomplete: unpack it again."


def test_no_sop(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"no Stanford Online Products in {tmp_path}. Expected Ebay_train.txt and Ebay_test.txt."
    )
