"""Omniglot in the layout of its zip files, unpacked or not, whole or in parts."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
from PIL import Image

from tammes.data.omniglot import is_omniglot, omniglot
from tammes.errors import UserError

PARTS = {
    "images_background_small1": {"Balinese": 2, "Greek": 2, "Latin": 1},
    "images_background_small2": {"Greek": 2, "Latin": 1, "Tagalog": 1},
    "images_evaluation": {"Atlantean": 1, "Tibetan": 2},
}
SMALL_CLASSES = (
    *("Balinese/character01", "Balinese/character02", "Greek/character01", "Greek/character02"),
    *("Latin/character01", "Tagalog/character01"),
)
TEST_CLASSES = ("Atlantean/character01", "Tibetan/character01", "Tibetan/character02")
DRAWINGS = 3


def drawing(name: str, number: int) -> bytes:
    """A 1-bit PNG of 105 x 105 that depends on what is drawn alone: white, with its own black pixels."""
    image = Image.new("1", (105, 105), 1)
    for x in np.random.default_rng([*name.encode(), number]).integers(0, 105, 20).tolist():
        image.putpixel((x, number), 0)
    file = BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def pack(root: Path, part: str, alphabets: dict[str, int], compression: int = ZIP_DEFLATED) -> Path:
    root.mkdir(exist_ok=True)
    with ZipFile(root / f"{part}.zip", "w", compression) as archive:
        archive.mkdir(part)
        for alphabet in sorted(alphabets, reverse=True):  # as in the real ones, in no order
            archive.mkdir(f"{part}/{alphabet}")
            for character in range(1, alphabets[alphabet] + 1):
                archive.mkdir(f"{part}/{alphabet}/character{character:02}")
                for number in range(1, DRAWINGS + 1):
                    name = f"{alphabet}/character{character:02}"
                    archive.writestr(f"{part}/{name}/0{character:03}_{number:02}.png", drawing(name, number))
    return root / f"{part}.zip"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part, alphabets in PARTS.items():
        pack(tmp_path / "omniglot", part, alphabets, ZIP_STORED if part == "images_evaluation" else ZIP_DEFLATED)
    return tmp_path / "omniglot"


def unpack(file: Path) -> Path:
    with ZipFile(file) as archive:
        archive.extractall(file.parent)
    file.unlink()
    return file.with_suffix("")


def refused(root: Path) -> str:
    with pytest.raises(UserError) as refusal:
        omniglot(root)
    return str(refusal.value)


def test_background_classes_come_first_and_train(root: Path) -> None:
    characters = omniglot(root)
    assert characters.class_names == SMALL_CLASSES + TEST_CLASSES
    assert characters.train_classes == len(SMALL_CLASSES)
    assert characters.labels.tolist() == np.repeat(np.arange(9), DRAWINGS).tolist()


def test_a_drawing_in_both_small_sets_counts_once(root: Path) -> None:
    characters = omniglot(root)
    names = [key.split("/", 1)[1] for key in characters.keys]
    assert len(set(names)) == len(names) == 9 * DRAWINGS
    contents = {characters.read(index).tobytes() for index in range(len(characters))}
    assert len(contents) == len(characters)


def test_drawings_are_as_stored(root: Path) -> None:
    image = omniglot(root).read(0)
    assert (image.mode, image.size, image.getpixel((0, 50))) == ("1", (105, 105), 255)


def test_every_key_reads_its_own_drawing(root: Path) -> None:
    characters = omniglot(root)
    for index, key in enumerate(characters.keys):
        _, alphabet, character, file = key.split("/")
        expected = Image.open(BytesIO(drawing(f"{alphabet}/{character}", int(file[5:7]))))
        assert characters.read(index).tobytes() == expected.tobytes()


@pytest.mark.parametrize("unpacked", [list(PARTS), ["images_evaluation"], ["images_background_small2"]])
def test_folders_and_zips_in_any_mix(unpacked: list[str], root: Path) -> None:
    zipped = omniglot(root)
    for part in unpacked:
        unpack(root / f"{part}.zip")
    mixed = omniglot(root)
    assert (mixed.keys, mixed.class_names, mixed.train_classes) == (zipped.keys, zipped.class_names, 6)
    assert [mixed.read(index).tobytes() for index in range(27)] == [zipped.read(index).tobytes() for index in range(27)]


def test_a_folder_unpacked_into_a_folder_of_its_own_name(root: Path) -> None:
    inner = unpack(root / "images_evaluation.zip")
    inner.rename(root / "inner")
    inner.mkdir()
    (root / "inner").rename(inner / "images_evaluation")
    assert omniglot(root).class_names == SMALL_CLASSES + TEST_CLASSES


@pytest.mark.parametrize("folder", ["python", "omniglot-py"])
def test_one_folder_deeper(folder: str, root: Path) -> None:
    root.rename(root.with_name(folder))
    assert is_omniglot(root.parent)
    assert omniglot(root.parent).class_names == SMALL_CLASSES + TEST_CLASSES


def test_the_whole_background_set_replaces_the_small_ones(root: Path) -> None:
    pack(root, "images_background", {"Greek": 2, "Hebrew": 1})
    characters = omniglot(root)
    assert characters.class_names[:3] == ("Greek/character01", "Greek/character02", "Hebrew/character01")
    assert characters.train_classes == 3


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_one_part_alone_leaves_the_split_to_the_user(form: str, root: Path) -> None:
    part = root / "images_evaluation.zip"
    characters = omniglot(part if form == "zip" else unpack(part))
    assert characters.class_names == TEST_CLASSES
    assert characters.train_classes is None


def test_several_threads_read_the_same_drawings_as_one(root: Path) -> None:
    characters = omniglot(root)
    several = list(range(len(characters))) * 20
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda index: characters.read(index).tobytes(), several))
    assert read == [characters.read(index).tobytes() for index in several]


def test_the_fingerprint_follows_the_content(root: Path) -> None:
    before = omniglot(root).fingerprint
    assert omniglot(root).fingerprint == before
    pack(root, "images_evaluation", {"Atlantean": 1, "Tibetan": 1})
    assert omniglot(root).fingerprint != before


def test_is_omniglot(root: Path, tmp_path: Path) -> None:
    assert is_omniglot(root)
    assert is_omniglot(root / "images_evaluation.zip")
    assert is_omniglot(unpack(root / "images_evaluation.zip"))
    assert not is_omniglot(tmp_path)
    assert not is_omniglot(tmp_path / "nowhere")


def test_no_omniglot(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"no Omniglot in {tmp_path}. Expected images_background.zip, images_background_small1.zip, "
        "images_background_small2.zip, images_evaluation.zip, or some of them."
    )


def test_a_zip_cut_short(root: Path) -> None:
    file = root / "images_evaluation.zip"
    file.write_bytes(file.read_bytes()[:500])
    assert refused(root) == f"cannot read {file}: it is not a complete zip file. Download it again."


def test_an_empty_part(root: Path) -> None:
    shutil.rmtree(unpack(root / "images_evaluation.zip"))
    (root / "images_evaluation").mkdir()
    expected = f"no drawings in {root / 'images_evaluation'}. Expected alphabet/character01/0001_01.png and so on."
    assert refused(root) == expected


def test_a_drawing_that_differs_between_the_small_sets(root: Path) -> None:
    file = unpack(root / "images_background_small2.zip") / "Greek" / "character01" / "0001_02.png"
    file.write_bytes(drawing("another", 1))
    assert refused(root) == (
        "images_background_small1/Greek/character01/0001_02.png and "
        "images_background_small2/Greek/character01/0001_02.png should be the same drawing and differ. "
        "Download them again."
    )


@pytest.mark.data
def test_the_real_one() -> None:
    folder = Path(os.environ.get("TAMMES_DATA", "")) / "omniglot"
    if "TAMMES_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds omniglot/")
    characters = omniglot(folder)
    train = characters.train_classes
    assert train in (242, 964)
    assert characters.num_classes - train == 659
    assert set(np.bincount(characters.labels).tolist()) == {20}
    contents = {characters.read(index).tobytes() for index in range(20 * train)}
    assert len(contents) == 20 * train
    assert {characters.read(index).size for index in range(0, len(characters), 97)} == {(105, 105)}
