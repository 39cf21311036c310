"""A disk that fills up, and kills in the midst of writing: what was reported as saved is there; the rest goes on."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, cast

import numpy as np
import pytest

from tammes.cli import main
from tammes.io import tensor_files
from tammes.io.files import PARTIAL
from tammes.io.tensor_files import check_tensors
from tammes.models.embedder import Embedder
from tammes.training.run_folder import FRESH, held, open_run
from tests.commands import ended
from tests.compared import same_end
from tests.conftest import HANGS, signal_at

CHECKPOINTS = ("checkpoint.safetensors", "previous.safetensors")
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


@pytest.fixture(scope="module")
def whole(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was not disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    main(["train", str(waves), "--out", str(out), "--epochs", "4", *SMALL])
    return out


FULL = "No space left on device. Free some space and run it again; what was reported as saved is safe.\n"


@pytest.mark.parametrize(
    ("checkpoints", "more", "epochs"), [(0, 5_000, 0), (0.5, 0, 0), (1.5, 0, 1), (2.5, 0, 2)], ids=str
)
def test_a_disk_that_fills_up_in_training(
    whole: Path, waves: Path, disk: Path, capsys: pytest.CaptureFixture[str], checkpoints: float, more: int, epochs: int
) -> None:
    """As the folder is made, and in the first checkpoint, the second, the third: two are kept while one is written."""
    out = disk / "run"
    filling = fill(disk, int(checkpoints * (whole / "checkpoint.safetensors").stat().st_size) + more)
    words = ["train", str(waves), "--out", str(out), "--epochs", "4", *SMALL]
    code, said = ended(capsys, *words)
    assert code == 2
    begun = (out / "environment.json").exists()
    assert begun == (checkpoints > 0), "one that was given too little room has not begun"
    file = f"{out}/.checkpoint.safetensors.new" if begun else f"{out}/[a-z]+.json"
    assert re.fullmatch(f"tammes: cannot write {file}: {re.escape(FULL)}", said.splitlines(keepends=True)[-1]), said
    assert said.count("\nepoch ") == epochs
    assert len([name for name in CHECKPOINTS if (out / name).exists() and check_tensors(out / name)]) == epochs
    assert not [file.name for file in out.iterdir() if file.name.startswith(".") and file.name != ".lock"]
    filling.unlink()
    assert ended(capsys, *(["train", "--resume", str(out)] if begun else words))[0] == 0
    assert same_end(out, whole)


def test_a_disk_that_fills_up_after_the_last_epoch(
    whole: Path, waves: Path, disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained network is smaller than the third checkpoint was: only what others write can take its room."""
    out, save, filling = disk / "run", Embedder.save, []

    def crowded(self: Embedder, folder: Path) -> None:
        filling.append(fill(disk, 100_000))
        save(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "save", crowded)
        code, said = ended(capsys, "train", str(waves), "--out", str(out), "--epochs", "4", *SMALL)
    assert code == 2
    assert said.endswith(f"tammes: cannot write {out}/last/embedder.safetensors: {FULL}")
    assert said.count("\nepoch ") == 4
    assert not (out / "embedder.safetensors").exists()
    filling[0].unlink()
    assert ended(capsys, "train", "--resume", str(out))[0] == 0
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
            text = f"tammes: no room for the activations in {place}/activations: about "
            assert text in said, said
            with monkeypatch.context() as patch:
                patch.setattr("tammes.models.feature_cache.check_room", lambda *_: None)
                code, said = ended(capsys, *words)
            assert code == 2
            assert f"tammes: no room for the activations in {place}/activations: more needed, " in said
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
    assert f"tammes: cannot write to the gallery {gallery}: " in said
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


class Dying:
    """A file whose writer is killed after so many bytes of it."""

    def __init__(self, sink: IO[bytes], left: int) -> None:
        self._sink, self._left = sink, left

    def write(self, content: bytes) -> None:
        self._sink.write(content[: self._left])
        self._left -= len(content)
        if self._left <= 0:
            self._sink.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def killed_in_writing(checkpoint: int, after: int) -> None:
    """Have this process be killed as it has written so many bytes of the so-manieth checkpoint."""
    usual, seen = vars(tensor_files)["written_whole"], count(1)

    @contextmanager
    def written(file: Path) -> Iterator[IO[bytes]]:
        dies = file.name == FRESH and next(seen) == checkpoint
        with usual(file) as sink:
            yield cast(IO[bytes], Dying(sink, after)) if dies else sink

    vars(tensor_files)["written_whole"] = written


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_while_a_checkpoint_is_written_leaves_whole_ones(
    started: Callable[..., BaseProcess], waves: Path, whole: Path, tmp_path: Path, kills: int
) -> None:
    rng, size = np.random.default_rng(0), (whole / "checkpoint.safetensors").stat().st_size
    for number in range(kills):
        out, said = tmp_path / f"run {number}", tmp_path / f"said {number}"
        checkpoint, after = int(rng.integers(3, 5)), int(rng.integers(0, size // 2))
        words = ["train", str(waves), "--out", str(out), "--epochs", "4", *SMALL]
        process = started(words, said, partial(killed_in_writing, checkpoint, after))
        process.join(HANGS)
        assert process.exitcode == -signal.SIGKILL, said.read_text()
        (left,) = out.glob("..checkpoint.safetensors.new.*")
        assert left.stat().st_size == after
        assert open_run(out).state == "interrupted"
        epochs = [json.loads(check_tensors(out / name)["state"])["position"]["epoch"] - 1 for name in CHECKPOINTS]
        assert epochs == [checkpoint - 1, checkpoint - 2]
        assert epochs[0] >= said.read_text().count("\nepoch "), "what was reported is there"
        with held(out):  # as whoever resumes it does
            assert not [file.name for file in out.iterdir() if file.name.startswith(".") and file.name != ".lock"]
        main(["train", "--resume", str(out)])
        assert same_end(out, whole)


@pytest.mark.xdist_group("processes")
def test_a_kill_while_the_cache_is_built_leaves_nothing_that_is_used(
    started: Callable[..., BaseProcess], waves: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "cache"))
    images = tmp_path / "cache" / "images"
    words = ["embed", str(whole), str(waves), "--out", str(tmp_path / "v.npz")]
    at = partial(signal_at, "tammes.data.image_cache._in_turn", 30, signal.SIGKILL)
    process = started(words, tmp_path / "said", at)
    process.join(HANGS)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "said").read_text()
    assert [file.suffix for file in images.iterdir()] == [PARTIAL]
    main(words)
    assert [file.suffix for file in images.iterdir()] == [".pixels"]  # what was left is gone
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "other"))
    main(["embed", str(whole), str(waves), "--out", str(tmp_path / "w.npz")])
    with np.load(tmp_path / "v.npz") as ours, np.load(tmp_path / "w.npz") as theirs:
        assert len(ours["vectors"]) == 48
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
    assert code == 2
    assert said.startswith(f"tammes: --out {disk / 'new'}: cannot write to {disk}"), said
    file = disk / "v.npz"
    for words, text in (
        (["embed", str(whole), str(waves), "--out", str(file)], f"--out {file}: cannot write to {disk}"),
        (["index", str(whole), str(waves), "--gallery", str(disk / "g")], f"cannot open a gallery at {disk / 'g'}: "),
    ):
        code, said = ended(capsys, *words)
        assert code == 2, said
        assert said.startswith(f"tammes: {text}"), said
