"""A CSV file becomes a data set, or an error that names the line."""

from pathlib import Path

import pytest
from PIL import Image

from tammes.data import TEST, TRAIN, VALIDATION, open_dataset, table
from tammes.data.splits import split
from tammes.errors import UserError


def draw(file: Path, colour: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, colour).save(file, format="PNG")
    return file


def write(folder: Path, text: str, images: int = 4) -> Path:
    """A table and the images 0.png, 1.png, … of the colours 0, 1, … beside it."""
    for number in range(images):
        draw(folder / f"{number}.png", number)
    file = folder / "images.csv"
    file.write_text(text, encoding="utf-8")
    return file


def refused(file: Path) -> str:
    with pytest.raises(UserError) as refusal:
        table(file)
    return str(refusal.value)


def test_path_and_label_are_enough(tmp_path: Path) -> None:
    images = table(write(tmp_path, "path,label\n2.png,class 10\n0.png,class 2\n3.png,class 10\n1.png,été\n"))
    assert images.name == "images"
    assert images.keys == ("2.png", "0.png", "3.png", "1.png")
    assert images.files == tuple(tmp_path / key for key in images.keys)
    assert images.class_names == ("class 2", "class 10", "été")
    assert images.labels.tolist() == [1, 0, 1, 2]
    assert [images.read(index).getpixel((0, 0)) for index in range(4)] == [2, 0, 3, 1]
    assert (images.part, images.query, images.gallery, images.sequence) == (None, None, None, None)
    assert images.remarks == ()


def test_labels_are_text_as_written(tmp_path: Path) -> None:
    images = table(write(tmp_path, "path,label\n0.png,7\n1.png,07\n2.png,7.0\n", 3))
    assert set(images.class_names) == {"7", "07", "7.0"}


def test_paths_are_absolute_or_beside_the_table(tmp_path: Path) -> None:
    elsewhere = draw(tmp_path / "elsewhere" / "with, comma.png", 9)
    file = write(tmp_path / "here", f'path,label\n0.png,a\n"{elsewhere}",b\n', 1)
    images = table(file)
    assert images.keys == ("0.png", str(elsewhere))
    assert images.read(1).getpixel((0, 0)) == 9


def test_a_table_as_excel_and_pandas_write_it(tmp_path: Path) -> None:
    text = "\ufeff,path , label,split,is_query\r\n0, 0.png ,a,train,\r\n\r\n1,1.png,b,Train,\r\n2,2.png,c,test,1.0\r\n"
    images = table(write(tmp_path, text, 3))
    assert images.keys == ("0.png", "1.png", "2.png")
    assert images.query is not None
    assert images.query.tolist() == [False, False, True]
    assert images.gallery is None


def test_the_split_is_that_of_the_table(tmp_path: Path) -> None:
    text = "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,c,val\n3.png,d,validation\n4.png,e,test\n"
    images = table(write(tmp_path, text, 5))
    assert images.part is not None
    assert images.part.tolist() == [TRAIN, TRAIN, VALIDATION, VALIDATION, TEST]
    assert images.remarks == ()
    result = split(images)
    assert result.val is not None
    assert (result.train.tolist(), result.val.tolist(), result.test.tolist()) == ([0, 1], [2, 3], [4])


def test_validation_is_what_is_tested_on_where_nothing_else_is(tmp_path: Path) -> None:
    text = "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,c,validation\n3.png,c,validation\n"
    images = table(write(tmp_path, text))
    assert images.part is not None
    assert images.part.tolist() == [TRAIN, TRAIN, TEST, TEST]
    assert images.remarks == ("no line of images.csv says test: its 2 validation images are tested on.",)


def test_all_lines_may_train(tmp_path: Path) -> None:
    images = table(write(tmp_path, "path,label,split\n0.png,a,train\n1.png,b,train\n", 2))
    assert split(images).test.tolist() == []
    assert images.remarks == ()


def test_a_class_on_both_sides_is_said(tmp_path: Path) -> None:
    text = "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,a,test\n3.png,b,test\n4.png,c,test\n"
    images = table(write(tmp_path, text, 5))
    assert images.remarks == ("2 of 3 test classes are also in training or validation.",)
    assert split(images).test.tolist() == [2, 3, 4]


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("1", "0"), ("yes", "no"), ("TRUE", ""), ("1.0", "0.0")])
def test_queries_and_gallery(yes: str, no: str, tmp_path: Path) -> None:
    text = (
        "path,label,split,is_query,is_gallery\n0.png,a,train,,\n1.png,b,train,,\n"
        f"2.png,c,test,{yes},{no}\n3.png,c,test,{no},{yes}\n4.png,c,test,{yes},{yes}\n5.png,c,test,{no},{no}\n"
    )
    images = table(write(tmp_path, text, 6))
    assert images.query is not None
    assert images.gallery is not None
    assert images.query.tolist() == [False, False, True, False, True, False]
    assert images.gallery.tolist() == [False, False, False, True, True, False]
    assert images.remarks == ("1 of 4 test images are neither query nor gallery, 5.png first: they are not tested on.",)


def test_an_image_without_a_sequence_is_in_one_of_its_own(tmp_path: Path) -> None:
    text = "path,label,sequence\n0.png,a,walk\n1.png,a,\n2.png,b,walk\n3.png,b,\n4.png,b,run\n"
    sequence = table(write(tmp_path, text, 5)).sequence
    assert sequence is not None
    assert sequence[0] == sequence[2]
    assert len(set(sequence.tolist())) == 4


def test_a_box_is_cut_out(tmp_path: Path) -> None:
    text = "path,label,x_1,x_2,y_1,y_2,category\n0.png,a,2,5.0,1,3,cat\n0.png,b,0,2,1,3,cat\n1.png,b,,,,,dog\n"
    file = write(tmp_path, text, 2)
    picture = Image.new("L", (8, 6))
    for x in range(8):
        for y in range(6):
            picture.putpixel((x, y), 10 * x + y)
    picture.save(tmp_path / "0.png")
    images = table(file)
    assert images.keys == ("0.png 2,1,5,3", "0.png 0,1,2,3", "1.png")
    assert images.files == (tmp_path / "0.png", tmp_path / "0.png", tmp_path / "1.png")
    cut = images.read(0)
    assert cut.size == (3, 2)
    assert [cut.getpixel((x, y)) for y in range(2) for x in range(3)] == [21, 31, 41, 22, 32, 42]
    assert images.read(2).size == (8, 6)


def test_a_box_beyond_its_picture_fails_when_it_is_read(tmp_path: Path) -> None:
    images = table(write(tmp_path, "path,label,x_1,x_2,y_1,y_2\n0.png,a,2,9,1,3\n1.png,b,0,8,0,6\n", 2))
    with pytest.raises(UserError) as refusal:
        images.read(0)
    assert str(refusal.value) == (
        f"cannot cut 0.png 2,1,9,3 out: {tmp_path / '0.png'} is 8 x 6 pixels, its box ends at 9, 3."
    )
    assert images.read(1).size == (8, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "path,class\n",
            "{file} has no column 'label'. It has path, class. Expected a header with path and label at least.",
        ),
        (
            "path;label\n",
            "{file} has no column 'path'. It has path;label. Expected a header with path and label at least.",
        ),
        ("", "{file} has no column 'path'. It is empty. Expected a header with path and label at least."),
        ("path,label\n", "{file} names no images: it has a header only."),
        ("path,label,label\n", "{file} has the column 'label' more than once."),
        ("path,label\n0.png,a\n,b\n", "{file}, line 3: the path is empty."),
        ("path,label\n0.png,\n", "{file}, line 2: the label is empty."),
        ("path,label\n0.png\n", "{file}, line 2: 1 entries where the header has 2."),
        ("path,label\n\n0.png,a,b\n", "{file}, line 3: 3 entries where the header has 2."),
        (
            "path,label,split\n0.png,a,holdout\n",
            "{file}, line 2: split is 'holdout'. Expected one of train, val, validation, test.",
        ),
        ("path,label,split\n0.png,a,\n", "{file}, line 2: split is ''. Expected one of train, val, validation, test."),
        (
            "path,label,is_query\n0.png,a,maybe\n",
            "{file}, line 2: is_query is 'maybe'. Expected one of True, False, 1, 0.",
        ),
        (
            "path,label,is_gallery\n0.png,a,2\n",
            "{file}, line 2: is_gallery is '2'. Expected one of True, False, 1, 0.",
        ),
        (
            "path,label\n0.png,a\n1.png,a\n./0.png,b\n",
            "{file}, line 4: ./0.png is already in line 2; every image must appear once.",
        ),
        (
            'path,label,note\n0.png,a,"two\nlines"\n0.png,b,x\n',
            "{file}, line 4: 0.png is already in line 2; every image must appear once.",
        ),
        (
            "path,label,split,is_query\n0.png,a,train,True\n1.png,b,test,\n",
            "{file}: is_query is True of no image that is tested on. Fill it in or remove it.",
        ),
        (
            "path,label,is_gallery\n0.png,a,\n1.png,b,\n",
            "{file}: is_gallery is True of no image that is tested on. Fill it in or remove it.",
        ),
        (
            "path,label,x_1,x_2\n",
            "{file} has no column 'y_1'. It has path, label, x_1, x_2. A box needs x_1, y_1, x_2, y_2.",
        ),
        (
            "path,label,x_1,x_2,y_1,y_2\n0.png,a,1,2,,4\n",
            "{file}, line 2: the box 1, , 2, 4 is not four numbers (x_1, y_1, x_2, y_2).",
        ),
        (
            "path,label,x_1,x_2,y_1,y_2\n0.png,a,5,2,0,4\n",
            "{file}, line 2: the box 5, 0, 2, 4 is empty or begins outside (x_1, y_1, x_2, y_2).",
        ),
        (
            "path,label,x_1,x_2,y_1,y_2\n0.png,a,inf,2,0,4\n",
            "{file}, line 2: the box inf, 0, 2, 4 is not four numbers (x_1, y_1, x_2, y_2).",
        ),
    ],
)
def test_a_table_that_cannot_be_used(text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    assert refused(file) == said.format(file=file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "images.csv"
    assert refused(file) == f"no such file: {file}. Expected a CSV file with the columns path and label."
    file.write_bytes(b"path,label\n\xff.png,a\n")
    assert refused(file) == f"cannot read {file}: it is not a text in UTF-8."
    file.write_text("path,label\n" + "a" * 200_000 + ",b\n")
    assert refused(file) == f"cannot read {file}, line 2: field larger than field limit (131072)."


def test_missing_files_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path, "path,label\n0.png,a\n1.png,b\n2.png,b\n", 2)
    assert table(file).remarks == (f"1 of 3 images is missing, such as {tmp_path / '2.png'}.",)
    assert table(file).missing == (2,)
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").unlink()
    assert refused(file) == f"all 3 images are missing; the first is {tmp_path / '0.png'}."


@pytest.mark.parametrize(
    "changed", ["1.png,b,test,0,1,x", "1.png,b,test,1,0,x", "1.png,b,test,1,1,y", "1.png,a,test,1,1,x"]
)
def test_the_fingerprint_changes_with_every_column(changed: str, tmp_path: Path) -> None:
    text = "path,label,split,is_query,is_gallery,sequence\n0.png,a,test,1,1,x\n1.png,b,test,1,1,x\n2.png,a,train,,,\n"
    assert "1.png,b,test,1,1,x" in text
    before = table(write(tmp_path, text, 3)).fingerprint
    (tmp_path / "images.csv").write_text(text.replace("1.png,b,test,1,1,x", changed))
    assert table(tmp_path / "images.csv").fingerprint != before


def test_a_csv_file_is_opened_as_a_table(tmp_path: Path) -> None:
    file = write(tmp_path, "path,label\n0.png,a\n1.png,b\n", 2)
    assert open_dataset(str(file)).keys == ("0.png", "1.png")
    with pytest.raises(UserError, match="no such file: .*nowhere.CSV"):
        open_dataset(str(tmp_path / "nowhere.CSV"))
