"""The embedded data set: what is drawn, what looks alike, and the cache."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image, ImageChops
from torch import Tensor, nn

from tammes.data.dataset import Dataset
from tammes.data.glyphs import (
    IMAGES_PER_CLASS,
    OPERATORS,
    TEST_FACES,
    TEST_SCRIPTS,
    TOO_CLOSE,
    TRAIN_SCRIPTS,
    Chosen,
    chosen,
    glyphs,
    picture,
    version_key,
)
from tammes.data.look_alikes import FACES, Face, faces, groups, likeness
from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tests.conftest import HANGS

# In one worker, with what else takes the whole data set, so that it is drawn once.
pytestmark = pytest.mark.xdist_group("glyphs")

# The module, which the function of the same name hides.
MODULE = sys.modules["tammes.data.glyphs"]

# Draws next to nothing, for the tests of the cache: digits to train, Hebrew to test.
LITTLE = {"TRAIN_SCRIPTS": ("DIGIT",), "TEST_SCRIPTS": ("HEBREW",), "OPERATORS": range(0), "IMAGES_PER_CLASS": 2}


@pytest.fixture(scope="session")
def among() -> tuple[Face, ...]:
    return faces()


@pytest.fixture(scope="session")
def classes(among: tuple[Face, ...]) -> Chosen:
    return chosen(among)


@pytest.fixture(scope="session")
def drawn_to(among: tuple[Face, ...], classes: Chosen) -> Path:
    """The cache folder with the whole data set in it; the classes are not chosen a second time."""
    folder = cache_folder() / "glyphs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "faces", lambda: among)
        patch.setattr(MODULE, "chosen", lambda _: classes)
        glyphs(cache=folder)
    return folder


@pytest.fixture(scope="session")
def dataset(drawn_to: Path) -> Dataset:
    return glyphs(cache=drawn_to)


@pytest.fixture(scope="session")
def everything(dataset: Dataset) -> UInt8[ndarray, "images 28 28"]:
    return pixels(dataset)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LITTLE.items():
        monkeypatch.setattr(MODULE, name, value)


def pixels(dataset: Dataset) -> UInt8[ndarray, "images 28 28"]:
    return np.stack([np.asarray(dataset.read(number)) for number in range(len(dataset))])


def character_of(class_name: str) -> str:
    return chr(int(class_name.split()[0].removeprefix("U+"), 16))


# What is in it


def test_the_counts_are_those_promised(dataset: Dataset) -> None:
    assert dataset.train_classes is not None
    assert 250 <= dataset.train_classes <= 450
    assert 150 <= dataset.num_classes - dataset.train_classes <= 300
    assert len(dataset) <= 15_000
    assert (np.bincount(dataset.labels) == IMAGES_PER_CLASS).all()


def test_keys_labels_and_class_names_belong_together(dataset: Dataset) -> None:
    assert len(set(dataset.keys)) == len(dataset) == len(dataset.labels)
    assert len(set(dataset.class_names)) == dataset.num_classes == dataset.labels.max() + 1
    assert dataset.class_names[dataset.labels[dataset.keys.index("U+0041/DejaVuSans-Bold/0")]] == (
        "U+0041 A LATIN CAPITAL LETTER A"
    )
    for key, label in zip(dataset.keys, dataset.labels.tolist(), strict=True):
        code, face, draw = key.split("/")
        assert dataset.class_names[label].startswith(f"{code} ")
        assert face in FACES
        assert 0 <= int(draw) < IMAGES_PER_CLASS


def test_an_image_is_the_picture_that_its_key_names(dataset: Dataset) -> None:
    for number in range(0, len(dataset), 997):
        code, face, draw = dataset.keys[number].split("/")
        image = dataset.read(number)
        assert (image.mode, image.size) == ("L", (28, 28))
        np.testing.assert_array_equal(np.asarray(image), picture(chr(int(code[2:], 16)), Face(face), int(draw)))


def test_training_classes_come_first_and_no_script_is_in_both(dataset: Dataset) -> None:
    names = [unicodedata.name(character_of(name)) for name in dataset.class_names]
    codes = [ord(character_of(name)) for name in dataset.class_names]
    assert all(
        name.startswith(TRAIN_SCRIPTS) or code in OPERATORS
        for name, code in zip(names[: dataset.train_classes], codes, strict=False)
    )
    assert all(name.startswith(TEST_SCRIPTS) for name in names[dataset.train_classes :])
    assert {script for script in TEST_SCRIPTS if any(name.startswith(script) for name in names)} == set(TEST_SCRIPTS)


def test_no_two_images_are_the_same(everything: UInt8[ndarray, "images 28 28"]) -> None:
    assert len({image.tobytes() for image in everything}) == len(everything)


def test_every_image_shows_something_and_cuts_nothing_off(everything: UInt8[ndarray, "images 28 28"]) -> None:
    assert (everything.max(axis=(1, 2)) >= 200).all()
    assert (everything > 128).mean(axis=(1, 2)).max() < 0.7
    frame = np.ones((28, 28), bool)
    frame[1:-1, 1:-1] = False
    assert (everything[:, frame] > 128).mean(axis=1).max() < 0.1  # a stroke may touch the edge, not run along it


@pytest.mark.slow  # of the drawings, which do not change
def test_neither_an_untrained_network_nor_the_pixels_solve_it(
    dataset: Dataset, everything: UInt8[ndarray, "images 28 28"]
) -> None:
    assert dataset.train_classes is not None
    tested = dataset.labels >= dataset.train_classes
    images = torch.from_numpy(everything[tested]).float()[:, None]  # (images, 1, 28, 28)
    labels = torch.from_numpy(dataset.labels[tested])
    standard = (images - images.mean()) / images.std()
    network = untrained_conv4(seed=0)
    with torch.no_grad():
        embeddings = torch.cat([network(batch) for batch in standard.split(500)])
    assert 0.30 <= recall_at_1(embeddings, labels) <= 0.60
    assert recall_at_1(standard.flatten(1), labels) <= 0.75


def untrained_conv4(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for channels in (1, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten()).eval()


def recall_at_1(embeddings: Float[Tensor, "images dim"], labels: Tensor) -> float:
    unit = nn.functional.normalize(embeddings)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    return (labels[cosines.argmax(dim=1)] == labels).double().mean().item()


# Drawing


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    first = [picture(character, Face("DejaVuSans"), draw) for character in "Aяב" for draw in range(3)]
    np.random.default_rng().random()
    again = [picture(character, Face("DejaVuSans"), draw) for character in reversed("Aяב") for draw in range(3)]
    np.testing.assert_array_equal(first, again[6:] + again[3:6] + again[:3])


def test_two_draws_differ() -> None:
    assert (picture("A", Face("DejaVuSans"), 0) != picture("A", Face("DejaVuSans"), 1)).any()


@pytest.mark.parametrize("character", ["\ue123", "\uffff", "\U000f0000", "漢", " ", "\u00a0", "\n"])
def test_a_character_that_a_face_lacks_or_leaves_blank_is_not_drawn(character: str) -> None:
    assert [name for name in FACES if Face(name).draw(character) is not None] == []


def test_the_box_for_a_missing_glyph_is_not_drawn_even_if_a_file_claims_to_have_it() -> None:
    face = Face("DejaVuSans")
    assert face.missing is not None
    face.__dict__["characters"] = frozenset("\ue123")
    assert face.draw("\ue123") is None


def test_a_character_is_cut_to_its_ink() -> None:
    ink = Face("DejaVuSerif").draw("A")
    assert ink is not None
    assert ink.getbbox() == (0, 0, *ink.size)
    assert ink.getextrema() == (0, 255)


def test_the_computer_modern_faces_draw_ascii_only() -> None:
    assert Face("cmr10").draw("A") is not None
    assert Face("cmr10").draw("À") is None  # where TeX keeps a capital gamma or the like


def test_a_picture_of_a_character_that_the_face_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cmr10 cannot draw 'я'$"):
        picture("я", Face("cmr10"), 0)


def test_fonts_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(
        UserError, match=r"lacks the font files DejaVuSans\.ttf, .*Install it with its fonts: pip install"
    ):
        faces()


# Look-alikes


def test_letters_drawn_alike_are_one_class(classes: Chosen) -> None:
    for alike in ("AΑА", "OoΟοОо", "XxΧХ", "Cс", "IlІ", "Ss", "KКκ"):  # noqa: RUF001
        assert any(set(alike) <= set(group) for group in classes.train), alike


def test_letters_drawn_apart_are_not_one_class(classes: Chosen) -> None:
    for apart in ("AB", "HU", "HП", "OQ", "OC", "Oe", "69", "bd", "ΔΛ", "ЯR", "∈∋", "Hn", "тш", "uU", "TШ"):
        assert not any(set(apart) <= set(group) for group in classes.train), apart


def test_every_character_is_in_one_class_only(classes: Chosen) -> None:
    together = "".join(classes.train + classes.test)
    assert len(together) == len(set(together))


def test_no_test_class_looks_like_a_training_class(classes: Chosen, among: tuple[Face, ...]) -> None:
    """Over again for some, in fewer faces, and by another measure."""
    tested = [group[0] for group in classes.test[::8]]
    trained = [group[0] for group in classes.train]
    assert likeness(tested + trained, among[:4])[: len(tested), len(tested) :].max() < TOO_CLOSE
    face = among[0]
    for one in tested:
        nearest = max(trained, key=lambda other: overlap(face, one, other))
        assert overlap(face, one, nearest) < 0.9, f"{one} looks like {nearest}"
    assert overlap(face, "O", "О") == 1.0  # noqa: RUF001


def overlap(face: Face, one: str, other: str) -> float:
    """Ink that two characters share over the ink of both, each stretched to the same square."""
    inks = [face.draw(one), face.draw(other)]
    if any(ink is None for ink in inks):
        return 0.0
    first, second = (ink.resize((24, 24)) for ink in inks if ink is not None)
    shared = np.asarray(ImageChops.darker(first, second)).sum(dtype=float)
    return float(shared / np.asarray(ImageChops.lighter(first, second)).sum(dtype=float))


def test_a_letter_with_an_accent_is_no_class_of_its_own(classes: Chosen) -> None:
    everyone = set("".join(classes.train + classes.test))
    assert everyone.isdisjoint("ÀéüñйЁά\u0301ﬁ")


def test_enough_faces_draw_every_test_class(classes: Chosen, among: tuple[Face, ...]) -> None:
    assert min(sum(face.draw(group[0]) is not None for face in among) for group in classes.test) >= TEST_FACES


def test_likeness_forgives_size_and_weight_and_nothing_else() -> None:
    measured = likeness(["O", "o", "C", "漢"], [Face("DejaVuSans"), Face("DejaVuSans-Bold")])
    np.testing.assert_array_equal(measured, measured.T)
    assert measured[0, 0] == 1
    assert measured[0, 1] > 0.98
    assert measured[0, 2] < 0.9
    assert measured[3].max() == 0  # no face has it, so it is like nothing


def test_likeness_in_a_single_face_does_not_count() -> None:
    assert likeness(["O", "C"], [Face("DejaVuSans")])[0, 0] == 0
    assert likeness(["O", "C"], [Face("DejaVuSans"), Face("cmr10")])[0, 0] == 1


def test_groups_are_chains_of_those_alike() -> None:
    alike = np.eye(6, dtype=bool)
    for one, other in ((0, 4), (4, 2), (3, 5)):
        alike[one, other] = alike[other, one] = True
    assert groups(alike) == [[0, 2, 4], [1], [3, 5]]


# The cache


def test_a_second_call_reads_and_does_not_draw(drawn_to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_drawn", lambda _: pytest.fail("drawn again"))
    first, second = glyphs(cache=drawn_to), glyphs(cache=drawn_to)
    assert first.fingerprint == second.fingerprint
    said = [
        {name: value for name, value in vars(each).items() if name not in ("labels", "read")}
        for each in (first, second)
    ]
    assert said[0] == said[1]
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.usefixtures("little")
def test_the_cache_folder_is_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path))
    glyphs()
    assert sorted(file.suffix for file in (tmp_path / "glyphs").iterdir()) == [".json", ".npy"]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        *((".npy", harm) for harm in ("truncated", "one byte", "gone")),
        *((".json", harm) for harm in ("truncated", "emptied", "one byte", "other")),
    ],
)
def test_a_cache_that_was_harmed_is_drawn_again(tmp_path: Path, suffix: str, harm: str) -> None:
    right = glyphs(cache=tmp_path)
    (file,) = tmp_path.glob(f"*{suffix}")
    content = file.read_bytes()
    middle = len(content) // 2
    file.unlink()
    if harm != "gone":
        file.write_bytes(
            {
                "truncated": content[:middle],
                "emptied": b"",
                "one byte": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "other": b'{"index": [], "sha256": 1}',
            }[harm]
        )
    again = glyphs(cache=tmp_path)
    assert again.fingerprint == right.fingerprint
    np.testing.assert_array_equal(pixels(again), pixels(right))
    assert file.read_bytes() == content


@pytest.mark.usefixtures("little")
def test_nothing_is_left_behind_by_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as refused:
        glyphs(cache=tmp_path)
    assert str(refused.value) == (
        f"cannot keep the drawn glyphs in {tmp_path}: No space left on device. "
        "Set TAMMES_CACHE to a folder that can be written to."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("little")
def test_two_processes_at_once_get_the_same(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
import tammes.data.glyphs
module = sys.modules["tammes.data.glyphs"]
for name, value in {LITTLE!r}.items():
    setattr(module, name, value)
dataset = module.glyphs(cache=Path({str(tmp_path)!r}))
assert dataset.read(len(dataset) - 1).size == (28, 28)
print(dataset.fingerprint)
"""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=alone) for _ in "ab"
    ]
    printed = [process.communicate(timeout=HANGS)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert set(printed) == {glyphs(cache=tmp_path).fingerprint}
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".npy"]


def test_the_key_follows_the_version_of_the_drawing(among: tuple[Face, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_key(among)
    assert version_key(faces()) == before
    assert version_key(among[1:]) != before
    monkeypatch.setattr(MODULE, "DRAWING_VERSION", -1)
    assert version_key(among) != before


def test_the_fingerprint_holds_the_key(dataset: Dataset, drawn_to: Path, among: tuple[Face, ...]) -> None:
    assert dataset.fingerprint.startswith(f"glyphs-{version_key(among)}-")
    (index,) = drawn_to.glob("*.json")
    assert dataset.fingerprint.endswith(json.loads(index.read_text())["sha256"][:16])


def test_an_image_may_be_changed_without_changing_the_cache(dataset: Dataset) -> None:
    image = dataset.read(0)
    before = image.copy()
    image.paste(255, (0, 0, 28, 28))
    assert dataset.read(0) == before
    assert isinstance(before, Image.Image)
