"""In-Shop Clothes Retrieval: garments that train, and others of which some images are searched among the rest."""

from pathlib import Path

import pytest
from PIL import Image

from tammes.data import TEST, TRAIN, inshop, is_inshop, open_dataset
from tammes.data.splits import split
from tammes.errors import UserError

LINES = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "query"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "gallery"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "train"),
    ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "train"),
    ("img/MEN/Denim/id_00000001/01_2_side.jpg", "id_00000001", "train"),
    ("img/WOMEN/Tees/id_00000003/02_2_side.jpg", "id_00000003", "gallery"),
]
COUNTS = (
    "In-Shop Clothes Retrieval has 3,997 training classes, this folder has 2.",
    "In-Shop Clothes Retrieval has 3,985 test classes, this folder has 2.",
    "In-Shop Clothes Retrieval has 25,882 training images, this folder has 3.",
    "In-Shop Clothes Retrieval has 14,218 queries, this folder has 1.",
    "In-Shop Clothes Retrieval has 12,612 gallery images, this folder has 2.",
)


def as_list(lines: list[tuple[str, str, str]]) -> str:
    rows = "".join(f"{path:<70} {garment} {status}\n" for path, garment, status in lines)
    return f"{len(lines)}\nimage_name item_id evaluation_status\n{rows}"


def write(root: Path, listed: str = "Eval", images: str = "") -> Path:
    (root / listed).mkdir(parents=True, exist_ok=True)
    (root / listed / "list_eval_partition.txt").write_text(as_list(LINES))
    for colour, (path, _, _) in enumerate(LINES):
        (root / images / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), colour).save(root / images / path, format="PNG")
    return root


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        inshop(root)
    return str(refusal.value)


@pytest.mark.parametrize("listed", ["Eval", ""])
@pytest.mark.parametrize("images", ["Img", ""])
def test_images_and_classes_are_those_of_the_list(listed: str, images: str, tmp_path: Path) -> None:
    clothes = inshop(write(tmp_path, listed, images))
    assert clothes.name == "inshop"
    assert clothes.keys == tuple(path for path, _, _ in LINES)
    assert clothes.files == tuple(tmp_path / images / key for key in clothes.keys)
    assert clothes.class_names == ("id_00000080", "id_00000001", "id_00000002", "id_00000003")
    assert clothes.labels.tolist() == [2, 2, 0, 0, 1, 3]
    assert [clothes.read(index).getpixel((0, 0)) for index in range(6)] == [0, 1, 2, 3, 4, 5]
    assert clothes.remarks == COUNTS


def test_queries_are_searched_in_the_gallery(tmp_path: Path) -> None:
    clothes = inshop(write(tmp_path))
    assert clothes.part is not None
    assert clothes.query is not None
    assert clothes.gallery is not None
    assert clothes.part.tolist() == [TEST, TEST, TRAIN, TRAIN, TRAIN, TEST]
    assert clothes.query.tolist() == [True, False, False, False, False, False]
    assert clothes.gallery.tolist() == [False, True, False, False, False, True]
    result = split(clothes)
    assert (result.train.tolist(), result.test.tolist()) == ([2, 3, 4], [0, 1, 5])


def test_a_garment_on_both_sides_is_said(tmp_path: Path) -> None:
    file = write(tmp_path) / "Eval" / "list_eval_partition.txt"
    file.write_text(as_list([*LINES[:4], (LINES[4][0], "id_00000003", "train"), LINES[5]]))
    assert inshop(tmp_path).remarks[-1] == "1 of 2 test classes is also in training or validation."


def test_it_is_recognised_by_its_columns(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    assert is_inshop(tmp_path / "shop")
    assert open_dataset(str(tmp_path / "shop")).name == "inshop"
    faces = tmp_path / "faces"  # a set of another kind with a list of the same name
    (faces / "Eval").mkdir(parents=True)
    (faces / "Eval" / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 0\n")
    assert not is_inshop(faces)
    assert not is_inshop(tmp_path)


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    file = write(tmp_path) / "Eval" / "list_eval_partition.txt"
    whole = file.read_text()
    file.write_text(whole.replace("query", "search"))
    assert refused(tmp_path) == f"{file}, line 3: 'search' is none of train, query, gallery."
    file.write_text(whole + "img/a.jpg id_4\n")
    assert refused(tmp_path) == f"{file}, line 9: 'img/a.jpg id_4' is not `image_name item_id evaluation_status`."
    file.write_text("\n".join(whole.split("\n")[:5]))
    assert refused(tmp_path) == f"{file} names 3 images and should name 6. Download it again."
    file.write_text("image_name item_id evaluation_status\n")
    assert refused(tmp_path) == f"{file} names 0 images and should name 52,712. Download it again."


def test_without_its_images(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "img").rename(tmp_path / "images")
    assert refused(tmp_path) == f"no img/ in {tmp_path}, nor Img/img/. Unpack img.zip there."


def test_no_inshop(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"no In-Shop Clothes Retrieval in {tmp_path}. Expected Eval/list_eval_partition.txt and img/."
    )
