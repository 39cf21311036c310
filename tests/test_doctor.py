"""A data set with every fault there is, looked at by the doctor; and the exit code, which is what training would do."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main
from tammes.data import TEST, TRAIN, Dataset, doctor, folder, open_dataset
from tammes.data.doctor import ClassSizes, Duplicates, Part, Report, Unreadable, examine
from tammes.data.doctor_text import describe
from tammes.data.files import of_files
from tammes.data.image_cache import decode
from tammes.data.images import ACCEPTED
from tammes.errors import UserError
from tammes.models.backbones import backbone
from tests.configs import config_of, data_of


def picture(seed: int, height: int = 40, width: int = 40, channels: int = 3) -> Image.Image:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def sound(root: Path, num_classes: int = 4, num_images: int = 3) -> Path:
    """A folder with nothing to remark."""
    for number in range(num_classes):
        (root / f"class {number}").mkdir(parents=True)
        for image in range(num_images):
            picture(1000 * number + image).save(root / f"class {number}" / f"{image}.png")
    return root


def with_faults(root: Path) -> Path:
    """Classes a and b train, c and d test; each kind of fault once, under a name that says it."""
    for number, name in enumerate("abcd"):
        (root / name).mkdir(parents=True)
        for image in range(2):
            picture(10 * number + image).save(root / name / f"{image}.png")
    a, b, c, d = (root / name for name in "abcd")
    picture(100, channels=1).save(a / "grey.png")
    picture(101).convert("CMYK").save(a / "cmyk.jpg")
    picture(102).convert("P").save(a / "palette.png")
    picture(103, channels=4).save(a / "transparent.png")
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(a / "16-bit.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture(104, 40, 60).save(b / "turned.jpg", exif=turned)
    picture(105).save(b / "animated.gif", save_all=True, append_images=[picture(106)])
    picture(107, 31, 40).save(b / "tiny.png")
    picture(108, 40, 161).save(b / "long.png")
    Image.new("1", (401, 500)).save(b / "huge.png")
    picture(109).save(c / "named.webp")
    (c / "named.webp").rename(c / "named.jpg")
    shutil.copy(a / "0.png", c / "leak.png")
    Image.open(a / "1.png").save(b / "other class.bmp")
    shutil.copy(d / "0.png", d / "again.png")
    (d / "empty.jpg").write_bytes(b"")
    (d / "text.jpg").write_text("no image")
    (d / "cut.png").write_bytes((d / "1.png").read_bytes()[:1500])
    (d / "no file.png").symlink_to("nowhere")
    picture(110, 1, 3000).save(d / "needle.png")
    Image.new("F", (40, 40), 3.0).save(d / "float.tif")
    (root / "a" / "notes.txt").write_text("")
    (root / "b" / "phone.heic").write_bytes(b"heic")
    (root / "b" / ".hidden").write_text("")
    picture(111).save(root / "loose.png")
    (root / "e").mkdir()
    picture(112).save(root / "e" / "alone.png")
    return root


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_faults(tmp_path_factory.mktemp("faults") / "faults")


@pytest.fixture(autouse=True)
def _huge_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of 50 million pixels takes seconds."""
    monkeypatch.setattr(doctor, "HUGE_PIXELS", 200_000)


@pytest.fixture
def report(faults: Path) -> Report:
    return examine(folder(faults), threads=2)


def test_counts_are_those_of_the_folder(report: Report, faults: Path) -> None:
    images = {
        name: [file for file in (faults / name).iterdir() if file.name not in ("notes.txt", "phone.heic", ".hidden")]
        for name in "abcde"
    }
    counts = sorted(len(files) for files in images.values())
    assert (report.name, report.images, report.classes) == ("faults", sum(counts), 5)
    assert report.class_sizes == ClassSizes(counts[0], float(counts[2]), counts[-1])
    assert report.single_image_classes == ("e",)
    assert report.train == Part(sum(len(images[name]) for name in "abc"), 3)
    assert report.test == Part(sum(len(images[name]) for name in "de"), 2)


@pytest.mark.parametrize(
    ("kind", "images"),
    [
        ("grey", ("a/16-bit.png", "a/grey.png", "b/huge.png")),
        ("CMYK", ("a/cmyk.jpg",)),
        ("palette", ("a/palette.png", "b/animated.gif")),
        ("16-bit", ("a/16-bit.png",)),
        ("transparent", ("a/transparent.png",)),
        ("turned by EXIF", ("b/turned.jpg",)),
        ("animated", ("b/animated.gif",)),
        ("huge", ("b/huge.png",)),
        ("tiny", ("b/tiny.png",)),
        ("extreme shape", ("b/long.png",)),
    ],
)
def test_every_kind_of_image_is_found_and_no_other(report: Report, kind: str, images: tuple[str, ...]) -> None:
    assert tuple(sorted(report.kinds[kind])) == images


@pytest.mark.parametrize(
    ("size", "kinds"),
    [
        ((10_000, 5_000), []),
        ((10_000, 5_001), ["huge"]),
        ((32, 128), []),
        ((31, 32), ["tiny"]),
        ((129, 32), ["extreme shape"]),
        ((5, 21), ["tiny", "extreme shape"]),
    ],
)
def test_the_limits_are_as_documented(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], kinds: list[str]) -> None:
    monkeypatch.undo()  # the real limit of a huge picture
    assert list(doctor._kinds(Image.new("1", size), 256)) == ["grey", *kinds]


def test_what_cannot_be_used_is_told_with_its_reason(report: Report) -> None:
    assert report.unreadable == (
        Unreadable("d/cut.png", "it is broken (image file is truncated)"),
        Unreadable("d/empty.jpg", "the file is empty"),
        Unreadable(
            "d/float.tif", "floating-point pixels outside 0..1: their range is not known. Save it in 8 or 16 bits"
        ),
        Unreadable("d/needle.png", "scaled, it would have 768000 x 256 pixels"),
        Unreadable("d/no file.png", "no such file"),
        Unreadable("d/text.jpg", f"it is not an image of a known kind ({ACCEPTED})"),
    )
    assert report.stops == (f"6 of {report.images} images cannot be used.",)


def test_what_cannot_be_used_is_what_training_cannot_use(report: Report, faults: Path, tmp_path: Path) -> None:
    dataset = folder(faults)
    decoded = decode(dataset, mode="RGB", shorter_side=256, skip_bad=True, cache=tmp_path)
    assert [bad.image for bad in report.unreadable] == [dataset.keys[index] for index in decoded.bad.tolist()]


def test_duplicates_are_told_by_what_they_spoil(report: Report) -> None:
    assert report.duplicates == (
        Duplicates(("a/0.png", "c/leak.png"), "bytes", ("a", "c"), leaks=False),
        Duplicates(("a/1.png", "b/other class.bmp"), "pixels", ("a", "b"), leaks=False),
        Duplicates(("d/0.png", "d/again.png"), "bytes", ("d",), leaks=False),
    )
    assert report.leaks == ()


def test_the_same_image_in_training_and_test_is_a_leak(tmp_path: Path) -> None:
    root = sound(tmp_path / "photos")
    Image.open(root / "class 0" / "0.png").save(root / "class 3" / "copy.webp", lossless=True)
    found = examine(folder(root))
    assert found.leaks == (
        Duplicates(("class 0/0.png", "class 3/copy.webp"), "pixels", ("class 0", "class 3"), leaks=True),
    )
    assert found.stops == ()


def test_duplicates_agree_with_a_comparison_of_every_pair(tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        for image in range(8):
            kind = chance.choice(["png", "bmp", "webp"])
            file = tmp_path / str(number) / f"{image}.{kind}"
            seed = chance.randrange(12)
            Image.new("RGB", (40, 40 + seed % 2), (20 * seed, 7, 9)).save(file, lossless=True)
    dataset = folder(tmp_path)
    pixels = [np.asarray(dataset.read(index).convert("RGB")).tobytes() for index in range(len(dataset))]
    sizes = [dataset.read(index).size for index in range(len(dataset))]
    expected = {
        frozenset(
            dataset.keys[other]
            for other in range(len(dataset))
            if (pixels[other], sizes[other]) == (pixels[one], sizes[one])
        )
        for one in range(len(dataset))
    }
    found = examine(dataset).duplicates
    assert {frozenset(group.images) for group in found} == {group for group in expected if len(group) > 1}
    for group in found:
        one_content = len({(tmp_path / name).read_bytes() for name in group.images}) == 1
        assert group.same == ("bytes" if one_content else "pixels")
        in_train, in_test = ({name.split("/")[0] for name in group.images} & half for half in ({"0", "1"}, {"2", "3"}))
        assert group.leaks == bool(in_train and in_test)


def test_a_suffix_that_belies_the_content_isdescribe(report: Report) -> None:
    assert report.misnamed == {"WEBP named .jpg": ("c/named.jpg",)}


def test_files_that_are_no_images_of_the_set_are_listed(report: Report) -> None:
    assert report.other_files == ("loose.png", "a/notes.txt", "b/phone.heic")
    assert any("2 files are not images" in remark for remark in report.remarks)


def test_a_link_back_does_not_go_round_for_ever(tmp_path: Path) -> None:
    root = sound(tmp_path / "photos")
    (root / "class 1" / "up").symlink_to(root, target_is_directory=True)
    (root / "class 2" / "list.csv").write_text("")
    assert examine(folder(root)).other_files == ("class 2/list.csv",)


def test_nothing_is_found_in_what_is_sound(tmp_path: Path) -> None:
    found = examine(folder(sound(tmp_path / "photos")))
    assert (found.kinds, found.misnamed, found.duplicates, found.unreadable) == ({}, {}, (), ())
    assert (found.stops, found.remarks, found.other_files, found.single_image_classes) == ((), (), (), ())


def test_images_that_are_no_files_are_looked_at_too() -> None:
    def read(index: int) -> Image.Image:
        if index == 5:
            raise UserError("cannot read image 5: the drawing failed.")
        return picture(index % 4, channels=1)

    labels = np.repeat(np.arange(4), 2)
    names = tuple(f"image {index}" for index in range(8))
    found = examine(Dataset("drawn", names, labels, tuple("wxyz"), read, "1"))
    assert found.unreadable == (Unreadable("image 5", "the drawing failed"),)
    assert [(group.images, group.same, group.leaks) for group in found.duplicates] == [
        (("image 0", "image 4"), "pixels", True),
        (("image 2", "image 6"), "pixels", True),
        (("image 3", "image 7"), "pixels", True),
    ]
    assert found.other_files == ()
    assert len(found.kinds["grey"]) == 7


def test_progress_is_told_and_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    dataset = folder(sound(tmp_path / "photos", num_images=20))
    said: list[tuple[int, int]] = []
    one = examine(dataset, threads=1, on_progress=lambda done, total: said.append((done, total)))
    assert said == [(number, 80) for number in range(1, 81)]
    assert one == examine(dataset, threads=3) == examine(dataset)


def test_small_drawings_are_not_tiny_for_a_network_that_wants_them_so(tmp_path: Path) -> None:
    root = sound(tmp_path / "photos")
    picture(0, 28, 28).save(root / "class 0" / "small.png")
    assert examine(folder(root)).kinds == {"tiny": ("class 0/small.png",)}
    assert examine(folder(root), shorter_side=28).kinds == {}


@pytest.mark.parametrize(("data", "network"), [("photos", "resnet50"), ("glyphs", "conv4")])
def test_images_are_judged_in_the_size_that_training_scales_them_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, network: str
) -> None:
    asked: list[int] = []

    def look(dataset: Dataset, *, shorter_side: int, on_progress: Any) -> Report:
        asked.append(shorter_side)
        return examine(dataset, shorter_side=shorter_side, on_progress=on_progress)

    root = sound(tmp_path / "photos")
    monkeypatch.setattr("tammes.data.glyphs", lambda: folder(root))
    monkeypatch.setattr("tammes.data.doctor.examine", look)
    chosen = str(root) if data == "photos" else data
    assert config_of(chosen).backbone == network
    main(["doctor", chosen])
    assert asked == [backbone(network).shorter_side]


# The command


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    try:
        main(["doctor", *arguments])
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return code, capsys.readouterr().out


def only_single_images_test(root: Path) -> None:
    sound(root, num_images=1)
    picture(7).save(root / "class 0" / "second.png")


def leaking(root: Path) -> None:
    sound(root)
    shutil.copy(root / "class 0" / "0.png", root / "class 3" / "copy.png")


def broken(root: Path) -> None:
    sound(root)
    (root / "class 2" / "0.png").write_bytes(b"no")


def all_broken(root: Path) -> None:
    for file in sound(root).rglob("*.png"):
        file.write_bytes(b"no")


def one_empty_class(root: Path) -> None:
    sound(root)
    (root / "class 9").mkdir()


SETS: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "sound": (sound, 0, "Nothing stops training: tammes train "),
    "every fault": (with_faults, 1, "6 of 29 images cannot be used."),
    "leak": (leaking, 0, "1 image is both in training and in test"),
    "one broken": (broken, 1, "1 of 12 images cannot be used."),
    "all broken": (all_broken, 1, "12 of 12 images cannot be used."),
    "two classes": (lambda root: sound(root, num_classes=2), 1, "1 of 2 classes would train; at least 2 must."),
    "one class": (lambda root: sound(root, num_classes=1), 1, "only one class"),
    "three classes": (lambda root: sound(root, num_classes=3), 0, "train: 6 images of 2 classes"),
    "single images": (only_single_images_test, 1, "every test class has only one image"),
    "empty class": (one_empty_class, 1, "no images in"),
    "empty": (lambda root: root.mkdir(), 1, "it is empty"),
}


@pytest.mark.parametrize("name", SETS)
def test_the_exit_code_is_1_exactly_when_training_would_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make, expected, text = SETS[name]
    make(tmp_path / "photos")
    try:
        data_of(config_of(str(tmp_path / "photos"), device="cpu"))
        fails = 0
    except UserError:
        fails = 1
    capsys.readouterr()
    code, told = ran(capsys, str(tmp_path / "photos"))
    assert code == fails == expected
    assert text in told
    assert ("Training would fail:" in told) == (code == 1)
    assert ran(capsys, str(tmp_path / "photos"), "--json")[0] == code


def test_the_text_has_the_worst_first(faults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = ran(capsys, str(faults))
    lines = told.splitlines()
    assert lines[0] == "Training would fail:"
    order = [lines.index(line) for line in ("Training would fail:", "Warnings:", "Facts:")]
    assert order == sorted(order)
    for line in (
        "    d/cut.png: it is broken (image file is truncated)",
        f"  Repair or remove these, or leave them out: tammes train {faults} --skip-bad",
        "  2 images are in more than one class:",
        "    a/0.png = c/leak.png (same bytes)",
        "    a/1.png = b/other class.bmp (same pixels)",
        "  1 image is more than once in the same class:",
        "  1 class has only one image, which cannot be found: e",
        "  1 image of more than 0.2 million pixels, slow to read and scaled down anyway: b/huge.png",
        "  1 image with a side below 32 pixels, which will be enlarged: b/tiny.png",
        "  1 image more than 4 times as long as wide, of which only the centre is used for testing: b/long.png",
        "  faults: 29 images of 5 classes, 1 to 9 per class, median 7",
        "  train: 19 images of 3 classes",
        "  test: 10 images of 2 classes",
        "  1 image is in CMYK: converted to RGB",
        "  1 image is of more than 8 bits per channel: scaled to 8",
        "  1 image is transparent: composited on white",
        "  1 image is rotated by EXIF: turned upright",
        "  1 image is animated: the first frame is used",
        "  1 image is WEBP named .jpg: read by content",
        "  3 other files ignored: 1 .png, 1 .txt, 1 .heic",
    ):
        assert line in lines
    for remark in folder(faults).remarks:
        assert f"  {remark}" in lines


def test_where_no_image_is_left_skipping_is_not_advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    all_broken(tmp_path / "photos")
    assert "--skip-bad" not in ran(capsys, str(tmp_path / "photos"))[1]


def test_a_folder_with_a_blank_can_be_typed_as_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound(tmp_path / "my photos")
    _, told = ran(capsys, str(tmp_path / "my photos"))
    assert f"tammes train '{tmp_path / 'my photos'}'" in told
    assert "  my photos: 12 images of 4 classes, 3 per class" in told.splitlines()


def test_long_lists_are_cut_short_in_the_text_and_whole_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sound(tmp_path / "photos", num_classes=30)
    for number in range(12):
        (root / "class 0" / f"bad {number}.png").write_bytes(b"no")
        shutil.copy(root / "class 1" / "0.png", root / "class 1" / f"copy {number}.png")
    for number in range(17):
        shutil.copy(root / f"class {number}" / "1.png", root / f"class {number}" / "twin.png")
    _, told = ran(capsys, str(root))
    assert "    and 2 more (`tammes doctor --json` lists all)" in told.splitlines()  # of the unreadable
    assert "    and 8 more (`tammes doctor --json` lists all)" in told.splitlines()  # of the groups of duplicates
    assert "copy 8.png = and 3 more (`tammes doctor --json` lists all) (same bytes)" in told
    found = json.loads(ran(capsys, str(root), "--json")[1])
    assert len(found["unreadable"]) == 12
    assert found["unreadable"][11] == {
        "image": "class 0/bad 11.png",
        "reason": f"it is not an image of a known kind ({ACCEPTED})",
    }
    assert len(found["duplicates"]) == 18
    assert max(len(group["images"]) for group in found["duplicates"]) == 13


def test_json_has_all_of_the_report(faults: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ran(capsys, str(faults), "--json")[1])
    assert found["data"] == str(faults)
    assert found["class_sizes"] == {"fewest": 1, "median": 7.0, "most": 9}
    assert (found["images"], found["classes"]) == (report.images, report.classes)
    assert found["train"] == {"images": 19, "classes": 3}
    assert found["kinds"] == {kind: list(images) for kind, images in report.kinds.items()}
    assert found["misnamed"] == {"WEBP named .jpg": ["c/named.jpg"]}
    assert found["stops"] == list(report.stops)
    assert found["remarks"] == list(report.remarks)
    assert found["other_files"] == list(report.other_files)


def test_json_of_what_cannot_be_opened_has_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = ran(capsys, str(tmp_path), "--json")
    assert code == 1
    assert json.loads(told)["stops"] == [
        f"no classes in {tmp_path}: it is empty. Expected one sub-folder of images per class."
    ]


def test_a_path_that_is_not_there_is_an_error_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "nowhere/at/all"])
    assert stopped.value.code == 2
    assert "no such folder: nowhere/at/all" in capsys.readouterr().err


def test_a_leak_within_one_class_is_told_once(tmp_path: Path) -> None:
    """Where the data itself says what tests, a class may be on both sides."""
    root = sound(tmp_path / "photos", num_classes=2)
    shutil.copy(root / "class 0" / "0.png", root / "class 0" / "3.png")
    plain = folder(root)
    assert plain.files is not None
    part = np.array([TRAIN, TRAIN, TRAIN, TEST, TRAIN, TEST, TEST], dtype=np.uint8)
    found = examine(of_files("own", plain.keys, plain.files, plain.labels, plain.class_names, part=part))
    assert [group.leaks for group in found.duplicates] == [True]
    told = "\n".join(describe(found, "tammes train own"))
    assert told.count("class 0/0.png = class 0/3.png") == 1
    assert "1 image is both in training and in test" in told


@pytest.mark.data
def test_cub_is_sound_but_for_its_names() -> None:
    place = Path(os.environ.get("TAMMES_DATA", "")) / "CUB_200_2011"
    if "TAMMES_DATA" not in os.environ or not place.is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/")
    found = examine(open_dataset(str(place)))
    assert (found.images, found.classes) == (11788, 200)
    assert (found.train, found.test) == (Part(5864, 100), Part(5924, 100))
    assert (found.stops, found.unreadable, found.leaks) == ((), (), ())
