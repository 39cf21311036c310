"""New classes: centroids are kept free for them, the old ones stay where they are, an old gallery keeps answering."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tammes.cli import main
from tammes.data import open_dataset
from tammes.errors import UserError
from tammes.models.embedder import load
from tammes.training.build import build_loss
from tammes.training.objectives import Hold
from tammes.training.run_folder import RunFolder, centroids_of
from tests.several_processes import exit_code, stopped_after

SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "8", "--shift", "2", "--test-classes", "0")


@pytest.fixture(scope="module")
def folders(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images of some classes; and of these and others, one of which comes before them in the alphabet."""
    root = tmp_path_factory.mktemp("new")
    for number in range(6):
        shutil.copytree(waves / f"class {number}", root / "more" / f"class {number}")
    for number in range(1, 5):
        shutil.copytree(waves / f"class {number}", root / "few" / f"class {number}")
    return root / "few", root / "more"


@pytest.fixture(scope="module", params=["place", "one-hot"])
def first(request: pytest.FixtureRequest, folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "first"
    kind = ("--centroids", request.param, "--seed", "5", "--loss", "hard-discriminative")
    main(["train", str(folders[0]), "--out", str(run), "--epochs", "2", "--reserve-classes", "2", *kind, *SMALL])
    return run


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert exit_code(*arguments) == 2
    return re.sub(r"\s+", " ", capsys.readouterr().err).partition("tammes: ")[2].strip()


def places(run: Path) -> dict[str, int]:
    return dict(json.loads((run / "classes.json").read_text())["places"]["of"])


def test_reserved_centroids_are_free_and_recorded(first: Path) -> None:
    assert places(first) == {f"class {number}": number - 1 for number in range(1, 5)}
    assert json.loads((first / "classes.json").read_text())["places"]["number"] == 6
    assert load(first).config.class_dim == 6
    assert "4 classes, centroids for 2 more" in (first / "log.txt").read_text()
    found = centroids_of(RunFolder(first))
    assert found is not None
    assert found.shape == (4, 6)


@pytest.mark.parametrize("sampler", ["shuffled", "balanced"])
def test_free_centroids_count_as_no_images(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    """They only repel: the loss of images at their centroids is the least that is reported."""
    losses: list[Any] = []

    def noted(*given: Any) -> Any:
        losses.append(build_loss(*given))
        return losses[-1]

    monkeypatch.setattr("tammes.training.train.build_loss", noted)
    options = ("--loss", "hard-discriminative", "--reserve-classes", "2", "--sampler", sampler, "--epochs", "1")
    main(["train", str(folders[0]), "--out", str(tmp_path / "run"), *options, *SMALL])
    loss = losses[-1]
    assert loss.class_sizes.tolist() == [6, 6, 6, 6, 0, 0]
    at_the_least = loss(loss.centroids[:4], torch.arange(4))
    assert loss.minimum == pytest.approx(at_the_least.item(), abs=1e-6)


def test_new_classes_get_free_centroids_and_old_ones_keep_theirs(
    first: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = tmp_path / "second"
    with stopped_after(3, here=True):
        assert exit_code("train", str(folders[1]), "--continue-from", str(first), "--out", str(run)) == 130
    main(["train", "--resume", str(run)])
    assert places(run) == places(first) | {"class 0": 4, "class 5": 5}
    assert "6 classes (2 new), centroids for 0 more" in (run / "log.txt").read_text()
    old, new = centroids_of(RunFolder(first)), centroids_of(RunFolder(run))
    assert old is not None
    assert new is not None
    assert torch.equal(new[1:5], old)  # in the order of their names
    assert json.loads((run / "config.json").read_text())["dim"] == 16
    assert exit_code("evaluate", str(run)) == 2  # no class was left to test on; the run is read all the same


def test_an_untrusted_number_of_centroids_is_checked(
    first: Path, folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(first, tmp_path / "first")
    file = tmp_path / "first" / "classes.json"
    said = json.loads(file.read_text())
    said["places"]["number"] = 10**15
    file.write_text(json.dumps(said))
    words = ("train", str(folders[1]), "--continue-from", str(tmp_path / "first"), "--out", str(tmp_path / "second"))
    assert "memory" in refused(capsys, *words)
    with pytest.raises(UserError, match="1000000000000000 centroids of .* memory"):
        centroids_of(RunFolder(tmp_path / "first"))


def test_a_run_begins_with_the_weights_of_the_one_that_it_goes_on_from(
    first: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = tmp_path / "second"
    still = ("--lr", "0", "--backbone-lr", "0", "--epochs", "1", "--compatible", "1")
    main(["train", str(folders[1]), "--continue-from", str(first), "--out", str(run), *still])
    before, after = (load_file(folder / "embedder.safetensors") for folder in (first, run))
    assert all(
        torch.equal(before[name], after[name]) for name in before if "running" not in name and "num_" not in name
    )
    assert "hold" in json.loads((run / "metrics.jsonl").read_text().splitlines()[0])


def test_only_old_classes_are_held() -> None:
    hold = Hold(lambda inputs: inputs, torch.tensor([True, False]), 2.0)
    inputs, now = torch.zeros(4, 3), torch.tensor([[3.0, 4, 0], [1, 0, 0], [9, 9, 9], [0, 0, 0]])
    assert hold(inputs, torch.tensor([0, 0, 1, 0]), now).item() == pytest.approx(2 * (25 + 1) / 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--init-from", "x"), "--continue-from already initialises the network: leave out --init-from."),
        (("--init", "pca"), "--continue-from already initialises the network: leave out --init."),
        (("--dim", "8"), "--continue-from keeps the network and the centroids of {first}, which has --dim 16: leave"),
        (("--backbone", "resnet18"), "which has --backbone conv4: leave out --backbone."),
        (("--seed", "0"), "which has --seed 5: leave out --seed."),
        (("--loss", "discriminative"), "which has --loss hard-discriminative: leave out --loss."),
        (("--compatible", "0"), "--compatible is a weight above 0, got 0.0."),
        (("--out", "{first}"), "--continue-from and --out are the same folder. Choose another --out."),
        (("--test-classes", "1"), "'class 4', so it cannot be used to evaluate."),
        (("--weighting", "balanced"), "weights classes by their images, and reserved ones have none: leave one out."),
        (("--resume", "{first}"), "--resume takes the run's own options: leave out DATA."),
    ],
)  # fmt: skip
def test_what_does_not_go_with_new_classes(
    first: Path, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], text: str
) -> None:
    given = [option.format(first=first) for option in options]
    data = folders[0] if "--test-classes" in options else folders[1]
    out = () if "--out" in options else ("--out", str(first.parent / "never"))
    said = refused(capsys, "train", str(data), "--continue-from", str(first), *out, *given)
    assert text.format(first=first) in said


def test_what_needs_another_option(first: Path, waves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "train", str(waves), "--continue-from", str(first)) == (
        "--continue-from creates a new run: give its folder with --out."
    )
    assert refused(
        capsys, "train", str(waves), "--continue-from", str(first), "--out", str(first.parent / "never")
    ).endswith(
        f"has 4 classes that {first} lacks, and that run has 2 free centroids."
        " Train again and reserve more: --reserve-classes 4."
    )
    assert refused(capsys, "train", str(waves), "--compatible", "1") == (
        "--compatible keeps the embeddings of another run: name it with --continue-from RUN."
    )
    assert refused(capsys, "train", str(waves), "--loss", "softmax", "--reserve-classes", "3") == (
        "--reserve-classes reserves centroids, and --loss softmax has none: leave it out, or use"
        " --loss discriminative or hard-discriminative."
    )
    assert refused(capsys, "train", str(waves), "--reserve-classes", "-1") == (
        "--reserve-classes must not be negative, got -1."
    )


@pytest.mark.slow
def test_an_old_gallery_keeps_answering_and_new_classes_gain(tmp_path: Path) -> None:
    """Characters of 100 classes, then of 40 more; half of the images of each are queries, never trained on."""
    glyphs = open_dataset("glyphs")
    chosen = np.random.default_rng(0).permutation(glyphs.num_classes)[:140].tolist()
    pictures = {n: [glyphs.read(int(i)) for i in np.flatnonzero(glyphs.labels == n)] for n in chosen}
    for name, classes in (("few", chosen[:100]), ("more", chosen)):
        for number in classes:
            (tmp_path / name / f"{number:04d}").mkdir(parents=True)
            for place, picture in enumerate(pictures[number][:10]):
                picture.save(tmp_path / name / f"{number:04d}" / f"{place}.png")
    options = ("--backbone", "conv4", "--dim", "64", "--test-classes", "0", "--no-mirror", "--epochs", "12")
    first, second = tmp_path / "first", tmp_path / "second"
    reserved = ("--reserve-classes", "40", "--val-classes", "0")
    main(["train", str(tmp_path / "few"), "--out", str(first), *reserved, *options])
    more = ("--continue-from", str(first), "--compatible", "1", "--epochs", "6")
    main(["train", str(tmp_path / "more"), "--out", str(second), *more])

    def vectors(run: Path, classes: list[int], part: slice) -> tuple[np.ndarray, np.ndarray]:
        return load(run).encode([p for n in classes for p in pictures[n][part]]), np.repeat(classes, 10)

    def found(queries: tuple[np.ndarray, np.ndarray], gallery: tuple[np.ndarray, np.ndarray]) -> float:
        return float(100 * (gallery[1][(queries[0] @ gallery[0].T).argmax(1)] == queries[1]).mean())

    old, new, own, asked = chosen[:100], chosen[100:], slice(0, 10), slice(10, 20)
    gallery = vectors(first, old, own)
    before = found(vectors(first, old, asked), gallery)
    across = found(vectors(second, old, asked), gallery)
    print(f"old classes, old vectors: {before:.2f} by the old model, {across:.2f} by the new")
    assert across >= before - 1
    known = found(vectors(first, new, asked), vectors(first, chosen, own))
    added = vectors(second, new, own)
    both = np.concatenate([gallery[0], added[0]]), np.concatenate([gallery[1], added[1]])
    gained = found(vectors(second, new, asked), both)
    print(f"new classes among all: {known:.2f} by the old model, {gained:.2f} by the new, old vectors kept")
    assert gained > known
