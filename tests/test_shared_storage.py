"""File systems without locks, and storage that fails: one warning, or one line that says what to type."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tammes.errors import UserError
from tammes.io import files
from tammes.io.files import PARTIAL, lock, new_partial, open_inside, remove_partial, write_atomically
from tests.commands import ended

NO_LOCKS = ["ENOLCK", "EOPNOTSUPP", "ENOSYS"]
SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "16", "--epochs", "1", "--val-classes", "0")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def break_locks(name: str) -> None:
        monkeypatch.setattr(files, "_warned", [])
        monkeypatch.setattr(fcntl, "flock", failing(name))

    return break_locks


def failing(name: str) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    return fail


@pytest.mark.parametrize("name", NO_LOCKS)
def test_every_command_works_without_locks_after_one_warning(
    name: str, waves: Path, tmp_path: Path, no_locks: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    no_locks(name)
    run = str(tmp_path / "run")
    code, said = ended(capsys, "train", str(waves), "--out", run, *SMALL, "--train", "head")
    assert (code, said.count("without locks")) == (0, 1), said
    for command in (("report", run), ("embed", run, str(waves), "--out", str(tmp_path / "v.npz"))):
        code, said = ended(capsys, *command)
        assert (code, said.count("without locks")) == (0, 0), said
    assert list(tmp_path.rglob(f"*{PARTIAL}")) == []


def test_vectors_train_without_locks(
    tmp_path: Path, no_locks: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    no_locks("ENOLCK")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", vectors=rng.standard_normal((60, 8)).astype(np.float32), labels=np.arange(60) % 6)
    code, said = ended(capsys, "train", str(tmp_path / "v.npz"), "--out", str(tmp_path / "run"), "--epochs", "1")
    assert (code, said.count("without locks")) == (0, 1), said


def test_without_locks_a_file_that_another_writes_is_not_removed(
    tmp_path: Path, no_locks: Callable[[str], None]
) -> None:
    no_locks("ENOLCK")
    day = time.time() - 2 * 24 * 3600
    with new_partial(tmp_path, "mine-") as writing, new_partial(tmp_path, "left-") as left:
        os.utime(left.name, (day, day))
        remove_partial(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [Path(writing.name).name]


def test_a_lock_that_fails_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing("ESTALE"))
    with open_inside(tmp_path / "a") as file, pytest.raises(UserError, match=f"{tmp_path / 'a'}.*[Ss]tale.*again"):
        lock(file)


@pytest.mark.parametrize(("name", "advice"), [("EIO", "dmesg"), ("ESTALE", "remounted"), ("EXDEV", "choose another")])
def test_a_rename_that_fails_is_named_and_leaves_the_old_file(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    write_atomically(file, b"old")
    monkeypatch.setattr(Path, "replace", failing(name))
    with pytest.raises(UserError, match=rf"results\.json.*{advice}"):
        write_atomically(file, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]
    assert file.read_bytes() == b"old"


def test_a_file_that_does_not_reach_the_disk_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    write_atomically(file, b"old")
    monkeypatch.setattr(os, "fsync", failing("EIO"))
    with pytest.raises(UserError, match=r"results\.json.*dmesg"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("name", ["EINVAL", "EOPNOTSUPP"])
def test_a_file_system_that_cannot_synchronise_is_used_all_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(name))
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "EXDEV"])
@pytest.mark.parametrize("call", ["replace", "fsync", "fsync of folders"])
def test_a_command_says_in_one_line_what_the_storage_did(
    name: str,
    call: str,
    waves: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, fsync = tmp_path / "run", os.fsync

    def of_folders(opened: int) -> None:
        failing(name)() if stat.S_ISDIR(os.fstat(opened).st_mode) else fsync(opened)

    if call == "replace":
        monkeypatch.setattr(Path, "replace", failing(name))
    else:
        monkeypatch.setattr(os, "fsync", failing(name) if call == "fsync" else of_folders)
    code, said = ended(capsys, "train", str(waves), "--out", str(run), *SMALL)
    last = said.splitlines()[-1]
    assert code == 2, said
    assert last.startswith("tammes: cannot ")
    assert os.strerror(getattr(errno, name)) in last
    assert "bug" not in said
