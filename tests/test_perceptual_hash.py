"""The perceptual hash: copies of a photo are alike, other photos are not; `duplicates` and `doctor` list them."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tammes.data import open_dataset
from tammes.data.doctor import examine
from tammes.data.perceptual_hash import ALIKE, CROPS, alike_pairs, hashes, likeness
from tammes.gallery import About, Row, open_gallery
from tammes.gallery.duplicates import duplicates
from tammes.gallery.items import THUMBNAIL


def scene(seed: int, size: tuple[int, int] = (200, 150)) -> Image.Image:
    """Something like a photo: coarse shapes with finer ones on them, of a random kind."""
    random, layers = np.random.default_rng(seed), np.zeros((size[1], size[0], 3))
    for cells, weight in ((4, 60), (9, 40), (20, 25)):
        coarse = Image.fromarray(random.integers(0, 255, (cells, cells, 3), dtype=np.uint8))
        layers += weight / 128 * (np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), float) - 128)
    return Image.fromarray((128 + layers).clip(0, 255).astype(np.uint8))


def saved(image: Image.Image) -> Image.Image:
    content = BytesIO()
    image.save(content, "JPEG", quality=50)
    return Image.open(content)


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half": lambda image: image.resize((image.width // 2, image.height // 2)),
    "mirrored": ImageOps.mirror,
    "cropped": lambda image: image.crop((10, 7, image.width - 10, image.height - 8)),
    "cornered": lambda image: image.crop((0, 0, round(0.95 * image.width), round(0.95 * image.height))),
    "saved": saved,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.25),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_copy_is_alike_and_another_photo_is_not(edit: str) -> None:
    for seed in range(5):
        original, copy, other = scene(seed), EDITS[edit](scene(seed)), scene(100 + seed)
        for image, alike in ((original, True), (other, False)):
            one, back = (likeness(hashes(a), hashes(b)[:1])[0] for a, b in ((copy, image), (image, copy)))
            assert max(one, back) >= ALIKE if alike else max(one, back) < 0.7


def test_hashes_are_of_length_1_or_of_nothing() -> None:
    assert np.linalg.norm(hashes(scene(0)), axis=1) == pytest.approx(np.ones(len(CROPS)), abs=1e-5)
    for image in (Image.new("RGB", (100, 100), "red"), scene(0, (63, 200)), Image.new("L", (1, 1))):
        assert not hashes(image).any()
    assert list(alike_pairs(np.stack([hashes(Image.new("L", (80, 80)))] * 3))) == []


def test_doctor_lists_copies_by_whether_they_leak(tmp_path: Path) -> None:
    for label in range(4):
        (tmp_path / f"class {label}").mkdir()
        for number in range(4):
            scene(10 * label + number).save(tmp_path / f"class {label}" / f"{number}.png")
    copies = [(0, 0, 0), (0, 1, 3), (1, 2, 1), (2, 1, 2), (2, 3, 0), (3, 0, 3)]  # of which class and image, to which
    for edit, (label, number, to) in zip(EDITS, copies, strict=True):
        EDITS[edit](scene(10 * label + number)).save(tmp_path / f"class {to}" / f"{edit}.png")
    found = examine(open_dataset(str(tmp_path)))
    assert {(frozenset(group.images), group.same, group.leaks) for group in found.duplicates} == {
        (frozenset({"class 0/0.png", "class 0/half.png"}), "nearly", False),
        (frozenset({"class 0/1.png", "class 3/mirrored.png"}), "nearly", True),
        (frozenset({"class 1/2.png", "class 1/cropped.png"}), "nearly", False),
        (frozenset({"class 2/1.png", "class 2/cornered.png"}), "nearly", False),
        (frozenset({"class 2/3.png", "class 0/saved.png"}), "nearly", True),
        (frozenset({"class 3/0.png", "class 3/brighter.png"}), "nearly", False),
    }


def test_duplicates_of_a_gallery_are_found_though_their_embeddings_are_apart(tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    about = About(model="drawn", run="/nowhere", dim=8, roots=("/drawn",), created="")
    store = open_gallery(str(tmp_path / "g"), create=about)
    pictures = {f"/drawn/{seed}": scene(seed) for seed in range(6)}
    pictures |= {f"/drawn/{edit}": change(scene(number)) for number, (edit, change) in enumerate(EDITS.items())}
    random, rows = np.random.default_rng(0), []
    for path, image in pictures.items():
        content = BytesIO()
        image.convert("RGB").resize((THUMBNAIL, 120)).save(content, "WEBP")
        vector = random.normal(size=8)
        vector = (vector / np.linalg.norm(vector)).astype(np.float32)
        rows.append(Row(path, vector, "", *image.size, path, content.getvalue()))
    rows.append(Row("/drawn/broken", rows[0].vector * np.float32(-1), "", 100, 100, "x", rows[0].thumbnail[:200]))
    store.upsert(rows)
    groups = {group.paths for group in duplicates(store, 1e-6)}
    assert groups == {(f"/drawn/{number}", f"/drawn/{edit}") for number, edit in enumerate(EDITS)}


def test_the_benchmark_says_what_docs_say() -> None:
    root = Path(__file__).parents[1]
    stored = json.loads((root / "benchmarks" / "results" / "near_duplicates.json").read_text())
    guide = (root / "docs" / "guides" / "folder.md").read_text()
    for row in stored["rows"]:
        assert f"| {row['edit']} | {100 * row['recall']:.1f} | {100 * row['precision']:.1f} |" in guide
