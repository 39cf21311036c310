"""The threshold between known and unknown classes: by an oracle, by what it promises, and for classes only indexed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from tammes.cli import main
from tammes.data import open_dataset
from tammes.errors import UserError
from tammes.gallery import About, Row, Store, open_gallery
from tammes.gallery.classification import classify
from tammes.gallery.threshold import OTHERS, Threshold, calibrated, neighbourhoods

pytest.importorskip("lancedb")

DIM = 16


def store_of(folder: Path, vectors: ndarray, labels: list[str]) -> Store:
    about = About(model="drawn", run="/nowhere", dim=vectors.shape[1], roots=("/drawn",), created="")
    store = open_gallery(str(folder), create=about)
    store.upsert(
        [
            Row(f"/drawn/{number}", vector, label, 8, 8, f"{number}", b"")
            for number, (vector, label) in enumerate(zip(vectors, labels, strict=True))
        ]
    )
    return store


def drawn(classes: range, each: int, seed: int) -> tuple[ndarray, list[str]]:
    """Unit vectors around the middles of classes, some of which spread more than others."""
    random, labels = np.random.default_rng(seed), np.repeat(list(classes), each)
    middles = np.stack([np.random.default_rng(1000 + number).normal(size=DIM) for number in range(max(classes) + 1)])
    spread = 0.35 + 0.25 * (labels % 3)
    vectors = middles[labels] + spread[:, None] * random.normal(size=(len(labels), DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), [f"c{n}" for n in labels]


def nearest_of_classes(vector: ndarray, vectors: ndarray, labels: ndarray) -> list[tuple[float, str]]:
    """How far the nearest image of each class is, one image at a time."""
    return sorted(
        (
            min(float(np.linalg.norm(vector.astype(float) - other)) for other in vectors[labels == name].astype(float)),
            name,
        )
        for name in set(labels.tolist())
    )


def slow_score(vector: ndarray, vectors: ndarray, labels: ndarray, factors: dict[str, float]) -> float:
    """The nearest class over the mean of the next, and over the factor of the class."""
    (first, name), *rest = nearest_of_classes(vector, vectors, labels)
    return first / float(np.mean([distance for distance, _ in rest[:OTHERS]])) / factors[name]


def slow_factors(vectors: ndarray, labels: ndarray) -> dict[str, float]:
    """How near images of a class are to each other, compared with all; the more images, the nearer to power 0.3."""
    own = []
    for number, vector in enumerate(vectors):
        mine = (labels == labels[number]) & (np.arange(len(vectors)) != number)
        own.append(nearest_of_classes(vector, vectors[mine], labels[mine])[0][0])
    return {
        name: float((np.median(np.array(own)[labels == name]) / np.median(own)) ** (0.3 * number / (number + 2)))
        for name, number in zip(*np.unique(labels, return_counts=True), strict=True)
    }


def test_the_rates_are_those_of_each_image_against_the_others_with_and_without_its_class(tmp_path: Path) -> None:
    vectors, names = drawn(range(9), 6, 0)
    labels = np.array(names)
    found = calibrated(store_of(tmp_path / "g", vectors, names))
    assert found.rejected is not None
    assert found.accepted is not None
    factors = slow_factors(vectors, labels)
    assert found.factors == pytest.approx(factors, abs=1e-3)
    known, unknown = [], []
    for number, vector in enumerate(vectors):
        rest = np.arange(len(vectors)) != number
        known.append(slow_score(vector, vectors[rest], labels[rest], found.factors))
        other = labels != labels[number]
        unknown.append(slow_score(vector, vectors[other], labels[other], found.factors))
    assert found.rejected == np.mean(np.array(known) > found.score)
    assert found.accepted == np.mean(np.array(unknown) <= found.score)
    gap = [abs(np.mean(np.array(known) > score) - np.mean(np.array(unknown) <= score)) for score in known + unknown]
    assert abs(found.rejected - found.accepted) <= min(gap) + 1e-9
    asked = calibrated(store_of(tmp_path / "g", vectors, names), unknown_rate=0.1)
    assert asked.accepted is not None
    assert asked.accepted == np.mean(np.array(unknown) <= asked.score)
    assert asked.accepted <= 0.1 < asked.accepted + 1.5 / len(unknown)


def test_new_images_keep_to_what_was_promised(tmp_path: Path) -> None:
    """Also the probability: of guesses that are said to be right with 70 %, some 70 % are."""
    store = store_of(tmp_path / "g", *drawn(range(40), 12, 0))
    threshold = calibrated(store)
    assert threshold.rejected is not None
    assert threshold.accepted is not None
    (known, names), (unknown, _) = drawn(range(40), 25, 7), drawn(range(40, 80), 25, 8)
    of_known, of_unknown = classify(store, known, threshold), classify(store, unknown, threshold)
    assert np.mean([not each.accepted for each in of_known]) == pytest.approx(threshold.rejected, abs=0.06)
    assert np.mean([each.accepted for each in of_unknown]) == pytest.approx(threshold.accepted, abs=0.06)
    right = [each.best_guess == name for each, name in zip(of_known, names, strict=True)] + [False] * len(unknown)
    said = np.array([each.probability for each in of_known + of_unknown], dtype=float)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        chosen = (said >= low) & (said < low + 0.2)
        if chosen.sum() > 100:
            assert np.mean(np.array(right)[chosen]) == pytest.approx(said[chosen].mean(), abs=0.12)
    assert np.mean(right) == pytest.approx(said.mean(), abs=0.05)


def test_what_trained_the_model_does_not_calibrate_where_other_classes_are_enough(tmp_path: Path) -> None:
    vectors, names = drawn(range(12), 6, 0)
    store = store_of(tmp_path / "g", vectors, names)
    some = calibrated(store, [f"c{number}" for number in range(6)])
    assert (some.classes, some.items, some.unseen) == (6, 36, True)
    few = calibrated(store, [f"c{number}" for number in range(10)])
    assert (few.classes, few.items, few.unseen) == (12, 72, False)


def test_two_classes_are_told_by_the_distance_alone_and_one_is_refused(tmp_path: Path) -> None:
    vectors, names = drawn(range(2), 10, 0)
    found = calibrated(store_of(tmp_path / "two", vectors, names))
    assert found.others == 0
    with pytest.raises(UserError, match="it has 1"):
        calibrated(store_of(tmp_path / "one", vectors[:10], names[:10]))
    with pytest.raises(UserError, match=r"1\.5"):
        calibrated(store_of(tmp_path / "two", vectors, names), unknown_rate=1.5)


def test_a_neighbourhood_goes_on_until_it_has_enough_classes(tmp_path: Path) -> None:
    vectors, names = drawn(range(7), 40, 0)
    vectors[:200] = vectors[0] + np.float32(1e-3) * vectors[:200]  # five classes at one place
    store = store_of(tmp_path / "g", vectors, ["crowd"] * 200 + names[200:])
    asked: list[int] = []

    def search(given: ndarray, k: int, _: object) -> list[list[object]]:
        asked.append(k)
        return store.search(given, k)  # type: ignore[return-value]

    (found,) = neighbourhoods(search, vectors[:1], store.count(), 3)  # type: ignore[arg-type]
    assert len({hit.label for hit in found}) == 3
    assert asked == [64, 256]


def test_a_threshold_that_was_given_is_a_distance(tmp_path: Path) -> None:
    vectors, names = drawn(range(4), 5, 0)
    store = store_of(tmp_path / "g", vectors, names)
    (same, other) = (classify(store, vectors[:1], Threshold(distance))[0] for distance in (0.0, 2.0))
    assert same.accepted  # it finds itself
    assert other.threshold == 2.0
    assert (same.probability, same.best_guess) == (None, "c0")


def unknown_of(run: Path, photos: dict[str, list[Path]], indexed: int, root: Path) -> dict[str, float]:
    """The share of new photos that label calls unknown, of classes that trained and of classes only indexed."""
    for name, files in photos.items():
        for number, file in enumerate(files):
            to = root / ("gallery photos" if number < indexed else "new photos") / name
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to / file.name)
    main(["index", str(run), str(root / "gallery photos"), "--gallery", str(root / "g")])
    main(["label", str(root / "g"), str(root / "new photos"), "--json", "--out", str(root / "new.csv")])
    trained = set(json.loads((run / "classes.json").read_text())["train"])
    found: dict[str, list[bool]] = {"trained": [], "only indexed": []}
    for line in (root / "new.csv").read_text().splitlines()[1:]:
        name = Path(line.rsplit(",", 4)[0]).parent.name
        found["trained" if name in trained else "only indexed"].append(line.endswith("no"))
    return {name: float(np.mean(each)) for name, each in found.items()}


@pytest.mark.slow  # four models; what one threshold promises is tested below
@pytest.mark.xdist_group("glyphs")
def test_new_classes_need_no_training_on_glyphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images of a class that was only indexed are called unknown hardly more often than those of one that trained.

    Two models, each trained on the classes that the other has only indexed: so no class is harder than another.
    """
    glyphs, found = open_dataset("glyphs"), []
    chosen = np.random.default_rng(0).permutation(glyphs.num_classes)[:40].tolist()
    small = ("--backbone", "conv4", "--dim", "32", "--batch-size", "32", "--shift", "2", "--epochs", "3")
    for number, order in enumerate((chosen, chosen[20:] + chosen[:20])):
        root, photos = tmp_path / str(number), {}
        for place, label in enumerate(order):  # by their names the first half trains
            folder = root / "all" / f"class {place:02}"
            (root / "training" / folder.name).mkdir(parents=True)
            folder.mkdir(parents=True)
            photos[folder.name] = [folder / f"{image:02}.png" for image in range(16)]
            for image, file in zip(np.flatnonzero(glyphs.labels == label).tolist(), photos[folder.name], strict=False):
                glyphs.read(image).save(file)
            for file in photos[folder.name][:8]:  # what is new has not trained
                shutil.copy(file, root / "training" / folder.name)
        main(["train", str(root / "training"), "--out", str(root / "run"), *small])
        found.append(unknown_of(root / "run", photos, 8, root))
    capsys.readouterr()
    trained, indexed = (float(np.mean([each[name] for each in found])) for name in ("trained", "only indexed"))
    assert indexed <= trained + 0.05
    assert max(trained, indexed) < 0.5


@pytest.mark.data
@pytest.mark.slow
def test_new_classes_need_no_training_on_birds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(os.environ.get("TAMMES_DATA", ""))
    weights = place.parent / "weights" / "googlenet-bvlc-imagenet.fp16.safetensors"
    birds = place / "CUB_200_2011" / "images"
    if "TAMMES_DATA" not in os.environ or not weights.is_file() or not birds.is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/, beside weights/")
    # Drawn at random: neighbours in the alphabet are kin. Two models, as above: twelve species differ by chance alone.
    drawn_birds = np.random.default_rng(0).permutation(sorted(birds.iterdir())).tolist()
    species = [each for each in drawn_birds if len(list(each.iterdir())) > 44][:24]
    found = []
    for number, order in enumerate((species, species[12:] + species[:12])):
        root = tmp_path / str(number)
        of = {f"{place:02} {each.name}": sorted(each.iterdir())[:45] for place, each in enumerate(order)}
        for name, files in of.items():
            (root / "training" / name).mkdir(parents=True)
            for file in files[:25]:
                shutil.copy(file, root / "training" / name)
        network = ("--backbone", "googlenet", "--weights", str(weights), "--train", "head")
        main(["train", str(root / "training"), "--out", str(root / "run"), *network])
        found.append(unknown_of(root / "run", of, 25, root))
    capsys.readouterr()
    trained, indexed = (float(np.mean([each[name] for each in found])) for name in ("trained", "only indexed"))
    assert indexed <= trained + 0.05, found
    assert max(trained, indexed) < 0.5
