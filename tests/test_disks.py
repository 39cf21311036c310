"""A disk that fills up, and kills in the midst of writing: what was reported as saved is there; the rest goes on."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from tammes.cli import main
from tammes.runs import held, open_run
from tammes.runtime import PARTIAL
from tammes.tensors import check_tensors

SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "8")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own: 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Fill a disk but for so many bytes."""
    status = os.statvfs(disk)
    file = disk / "filling"
    file.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - left)))
    return file


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    try:
        main(words)
    except SystemExit as stopped:
        return int(stopped.code or 0), capsys.readouterr().err
    return 0, capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was not disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    main(["train", str(waves), "--out", str(out), "--epochs", "4", *SMALL])
    return out


def same_end(run: Path, whole: Path) -> bool:
    ours, theirs = (load_file(folder / "embedder.safetensors") for folder in (run, whole))
    return all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("left", [5_000, 700_000, 2_000_000])
def test_a_disk_that_fills_up_in_training(
    whole: Path, waves: Path, disk: Path, capsys: pytest.CaptureFixture[str], left: int
) -> None:
    """Before the first checkpoint, between two, and late."""
    filling, out = fill(disk, left), disk / "run"
    code, said = ended(capsys, "train", str(waves), "--out", str(out), "--epochs", "4", *SMALL)
    assert code == 2
    assert "tammes: cannot write " in said
    assert said.endswith(
        ": No space left on device. Free some room and do it again; what was reported as saved is safe.\n"
    )
    said_done = said.count("\nepoch ")
    filling.unlink()
    assert not list(out.glob(".*.safetensors.*"))  # nothing half written takes the room
    if (out / "environment.json").exists():
        assert said_done == 0 or check_tensors(out / "checkpoint.safetensors")
        assert ended(capsys, "train", "--resume", str(out))[0] == 0
    else:
        assert said_done == 0
        shutil.rmtree(out)
        assert ended(capsys, "train", str(waves), "--out", str(out), "--epochs", "4", *SMALL)[0] == 0
    assert same_end(out, whole)


def test_a_disk_that_is_full_when_images_are_decoded(
    waves: Path, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(disk / "cache"))
    words = ["train", str(waves), "--out", str(tmp_path / "run"), "--epochs", "1", "--train", "head", *SMALL]
    filling = fill(disk, 20_000)
    code, said = ended(capsys, *words)
    assert code == 2
    assert said.startswith(f"tammes: no room for the decoded images in {disk}/cache/images: about 37.6 kB needed, ")
    assert said.endswith("Free some, or set TAMMES_CACHE to a folder on a larger disk.\n")
    filling.unlink()
    assert ended(capsys, *words)[0] == 0


def test_a_disk_that_is_full_when_activations_are_computed(
    waves: Path, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seen before the first, and where others fill the disk meanwhile."""
    ends: list[Path] = []
    for place, full in ((tmp_path / "cache", False), (disk / "cache", True)):
        monkeypatch.setenv("TAMMES_CACHE", str(place))
        out = tmp_path / f"run {full}"
        words = ["train", str(waves), "--out", str(out), "--epochs", "1", "--train", "head", "--views", "20", *SMALL]
        if full:
            main(["embed", str(ends[0]), str(waves), "--out", str(tmp_path / "v.npz")])  # images are decoded
            filling = fill(disk, 20_000)
            code, said = ended(capsys, *words)
            assert code == 2
            text = f"tammes: no room for the activations in {place}/activations: about 61.4 kB needed, "
            assert text in said, said
            with monkeypatch.context() as patch:
                patch.setattr("tammes.activations.check_room", lambda *_: None)
                code, said = ended(capsys, *words)
            assert code == 2
            assert f"tammes: no room for the activations in {place}/activations: more needed, " in said
            assert list((place / "activations").glob(f"*{PARTIAL}"))
            filling.unlink()
        assert ended(capsys, *words)[0] == 0
        ends.append(out)
    assert same_end(ends[1], ends[0])
    assert not list((disk / "cache").rglob(f"*{PARTIAL}"))


def test_a_disk_that_fills_up_under_a_gallery(
    whole: Path, waves: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery, photos = disk / "gallery", disk / "photos"
    shutil.copytree(waves / "class 0", photos / "class 0")
    words = ["index", str(whole), str(photos), "--gallery", str(gallery), "--json"]
    assert ended(capsys, *words)[0] == 0
    shutil.copytree(waves / "class 1", photos / "class 1")
    filling = fill(disk, 3_000)
    code, said = ended(capsys, *words)
    assert code == 2, said
    assert said.startswith(f"tammes: cannot write to the gallery {gallery}: ")
    main(["search", str(gallery), str(photos / "class 0" / "0.png"), "-k", "99", "--json"])
    (found,) = json.loads(capsys.readouterr().out)["queries"]
    assert len(found["found"]) == 6  # what was reported is there
    filling.unlink()
    main(words)
    assert json.loads(capsys.readouterr().out)["images"] == 12


def test_a_disk_that_fills_up_under_a_benchmark(
    waves: Path, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (disk, tmp_path):
        (place / "plan.toml").write_text(
            f'data = "{waves}"\nseeds = [0]\n[train]\nepochs = 2\nbackbone = "conv4"\ndim = 8\n[[method]]\nname = "a"\n'
        )
    words = ["benchmark", str(disk / "plan.toml"), "--out", str(disk / "out")]
    filling = fill(disk, 300_000)  # a checkpoint is larger
    code, said = ended(capsys, *words)
    assert code == 1, said
    cell = disk / "out" / "default" / "a" / "seed-0.json"
    assert "No space left on device" in json.loads(cell.read_text())["error"]
    filling.unlink()
    assert ended(capsys, *words)[0] == 1  # what failed is not tried again without being asked
    assert ended(capsys, *words, "--retry-failed")[0] == 0
    assert ended(capsys, "benchmark", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"))[0] == 0
    assert same_end(disk / "out" / "default" / "a" / "seed-0", tmp_path / "out" / "default" / "a" / "seed-0")
    assert not list((disk / "out").rglob(f"*{PARTIAL}"))


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_while_a_checkpoint_is_written_leaves_a_whole_one(
    started: Callable[[list[str], Path], BaseProcess], waves: Path, tmp_path: Path, kills: int
) -> None:
    out, rng, inside = tmp_path / "run", np.random.default_rng(0), 0
    for number in range(kills):
        (tmp_path / "said").unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        process = started(["train", str(waves), "--out", str(out), "--epochs", "500", *SMALL], tmp_path / "said")
        fresh = out / ".checkpoint.safetensors.new"
        wanted = int(rng.integers(1, 4))
        deadline = time.monotonic() + 120
        while wanted and process.is_alive() and time.monotonic() < deadline:
            if fresh.exists() or list(out.glob("..checkpoint*")):  # it is being written at this moment
                wanted -= 1
        process.kill()
        process.join()
        inside += bool(fresh.exists() or list(out.glob("..checkpoint*")))
        run = open_run(out)
        if run.state == "interrupted":
            names = [name for name in ("checkpoint", "previous") if (out / f"{name}.safetensors").exists()]
            for name in names:
                check_tensors(out / f"{name}.safetensors")
        reported = (tmp_path / "said").read_text().count("\nepoch ")
        assert reported == 0 or run.state == "interrupted", number
        with held(out):  # as who goes on with it does
            assert not [file.name for file in out.iterdir() if file.name.startswith(".") and file.name != ".lock"]
    print(f"{inside} of {kills} kills left a checkpoint half written")
    assert kills < 20 or inside > 0


@pytest.mark.xdist_group("processes")
def test_a_kill_while_the_cache_is_built_leaves_nothing_that_is_used(
    started: Callable[[list[str], Path], BaseProcess],
    waves: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "cache"))
    images, photos = tmp_path / "cache" / "images", Path(shutil.copytree(waves, tmp_path / "photos"))
    Image.new("L", (2000, 2000)).save(photos / "class 7" / "large 0.png")
    for number in range(1, 40):  # so that it takes a while
        shutil.copy(photos / "class 7" / "large 0.png", photos / "class 7" / f"large {number}.png")
    words = ["embed", str(whole), str(photos), "--out", str(tmp_path / "v.npz")]
    process = started(words, tmp_path / "said")
    deadline = time.monotonic() + 120
    while not (left := list(images.glob(f"*{PARTIAL}"))) and process.is_alive() and time.monotonic() < deadline:
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # where it is
    try:
        assert [file.exists() for file in left] == [True]
        assert not list(images.glob("*.pixels"))
    finally:
        process.kill()
        process.join()
    assert left[0].exists()
    main(words)
    assert [file.suffix for file in images.iterdir()] == [".pixels"]  # what was left is gone
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "other"))
    main(["embed", str(whole), str(photos), "--out", str(tmp_path / "w.npz")])
    with np.load(tmp_path / "v.npz") as ours, np.load(tmp_path / "w.npz") as theirs:
        assert len(ours["vectors"]) == 48 + 40
        assert np.array_equal(ours["vectors"], theirs["vectors"])
        assert np.array_equal(ours["paths"], theirs["paths"])


def test_folders_that_cannot_be_written_are_named(
    whole: Path, waves: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, disk / "run")
    (disk / "run" / "results.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert ended(capsys, "train", "--resume", str(disk / "run"))[1] == (
        f"tammes: cannot write to {disk / 'run'}: Read-only file system.\n"
    )
    code, said = ended(capsys, "train", str(waves), "--out", str(disk / "new"), "--epochs", "1", *SMALL)
    assert (code, said) == (2, f"tammes: cannot use {disk / 'new'}: Read-only file system.\n")
    for words, text in (
        (["embed", str(whole), str(waves), "--out", str(disk / "v.npz")], f"cannot use {disk}"),
        (["index", str(whole), str(waves), "--gallery", str(disk / "g")], f"cannot open a gallery at {disk / 'g'}: "),
    ):
        code, said = ended(capsys, *words)
        assert code == 2, said
        assert said.startswith(f"tammes: {text}"), said
