"""Faults: what was reported as saved is there, what is damaged is noticed, and one process has a run at a time."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tammes import UserError
from tammes.cli import main
from tammes.data import Dataset, open_dataset
from tammes.data.image_cache import Decoded, decode
from tammes.errors import out_of_memory
from tammes.io.files import PARTIAL, remove_partial, write_atomically
from tammes.io.tensor_files import DamagedError, check_tensors, read_tensors, shapes, write_tensors
from tammes.models.embedder import Embedder, load
from tammes.training.checkpoints import mend_checkpoint, save_checkpoint
from tammes.training.run_folder import held, open_run
from tests.commands import refused
from tests.compared import same_end
from tests.conftest import STEP, signal_at, wait_until_stopped

SMALL = ("--backbone", "conv4", "--dim", "8", "--batch-size", "8")


def flipped(file: Path, bit: int) -> None:
    """The file with one bit changed."""
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.fixture(scope="module")
def stopped(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run of three epochs, and the same as it was before it had finished: with its last checkpoints."""
    whole = tmp_path_factory.mktemp("runs") / "whole"
    main(["train", str(waves), "--out", str(whole), "--epochs", "3", *SMALL])
    part = whole.parent / "part"
    shutil.copytree(whole, part)
    for name in ("results.json", "embedder.safetensors", "embedder.json"):
        (part / name).unlink()
    return whole, part


@pytest.fixture
def part(stopped: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the run that has not finished."""
    return Path(shutil.copytree(stopped[1], tmp_path / "run"))


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(1, dtype=torch.int64)}
    write_tensors(tmp_path / "file", tensors, {"state": "{}"})
    found, said = read_tensors(tmp_path / "file")
    assert said == {"state": "{}"}
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [[0, 1, 2], [3, 4, 5]], "b": [1]}
    assert shapes(tmp_path / "file") == {"a": (2, 3), "b": (1,)}
    assert load_file(tmp_path / "file").keys() == tensors.keys()  # other programs read it too


def test_every_changed_bit_and_every_cut_of_a_file_of_tensors_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_tensors(file, {"a": torch.arange(3.0)}, {"state": "{}"})
    whole = file.read_bytes()
    for bit in range(0, 8 * len(whole), 9):  # one of each byte, in turn another
        flipped(file, bit)
        with pytest.raises(DamagedError):
            read_tensors(file)
        file.write_bytes(whole)
    for length in range(0, len(whole), 3):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            read_tensors(file)
    file.write_bytes(whole)
    assert check_tensors(file) == {"state": "{}"}


def test_a_file_of_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "file", metadata={"state": "{}"})
    assert read_tensors(tmp_path / "file")[1] == {"state": "{}"}


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{", b'{"a":1}', b'{"a":{"shape":[-1]}}', b'{"a":{"shape":["x"]}}', b'{"__metadata__":7}', b"[" * 99999],
)
def test_a_header_that_is_none_is_refused(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError, match="is damaged: its header cannot be read.$"):
        read_tensors(tmp_path / "file")


def test_a_header_longer_than_the_file_asks_for_no_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedError, match="is damaged: it is cut short, or no file of tensors.$"):
        read_tensors(tmp_path / "file")


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    stopped: tuple[Path, Path], part: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    newest = part / "checkpoint.safetensors"
    if damage == "cut":
        newest.write_bytes(newest.read_bytes()[:-100])
    else:
        flipped(newest, 8 * newest.stat().st_size // 2)
    main(["train", "--resume", str(part)])
    said = capsys.readouterr().err
    assert f"note: {newest} is damaged: " in said
    assert "The previous checkpoint is intact: training resumes from there." in said
    assert "epoch   3" in said  # which is trained again
    assert same_end(part, stopped[0])
    assert [line["epoch"] for line in open_run(part).epochs()] == [1, 2, 3]


def test_two_damaged_checkpoints_end_a_run_with_advice(part: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("checkpoint", "previous"):
        flipped(part / f"{name}.safetensors", 8 * (part / f"{name}.safetensors").stat().st_size - 5000)
    said = refused(capsys, "train", "--resume", str(part))
    assert said == (
        f"tammes: {part}/checkpoint.safetensors is damaged: its checksum is not that of its content."
        f" {part}/previous.safetensors is damaged: its checksum is not that of its content."
        " The run cannot be resumed: start over with --overwrite.\n"
    )
    (part / "previous.safetensors").unlink()
    with pytest.raises(UserError, match="content. There is no earlier one. The run cannot be resumed"):
        mend_checkpoint(open_run(part))


def test_a_kill_between_the_two_names_of_a_checkpoint_loses_nothing(stopped: tuple[Path, Path], part: Path) -> None:
    (part / "checkpoint.safetensors").replace(part / "previous.safetensors")
    assert open_run(part).state == "interrupted"
    main(["train", "--resume", str(part)])
    assert same_end(part, stopped[0])


def test_a_model_whose_file_was_damaged_is_not_used(
    stopped: tuple[Path, Path], tmp_path: Path, waves: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(stopped[0], tmp_path / "run"))
    flipped(copy / "embedder.safetensors", 8 * (copy / "embedder.safetensors").stat().st_size - 5000)
    said = refused(capsys, "embed", str(copy), str(waves), "--out", str(tmp_path / "x.npz"))
    assert said == f"tammes: {copy}/embedder.safetensors is damaged: its checksum is not that of its content.\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 10**12}, "has 8, and embedder.json 1000000000000 outputs of penultimate: they do not belong"),
        ({"class_dim": 10**12}, "has 4, and embedder.json 1000000000000 outputs of class_layer: they do not"),
        ({"class_dim": 0}, "class_dim must be greater than 0, got 0."),
        ({"dim": "8"}, "dim must be a whole number, got '8'."),
        ({"dim": True}, "dim must be a whole number, got True."),
        ({"backbone": ["conv4"]}, "backbone must be a text, got ['conv4']."),
        ({"backbone": "../../conv4"}, "unknown backbone '../../conv4'."),
        ({"backbone": "hf_hub:some/thing"}, "unknown library 'hf_hub' in backbone 'hf_hub:some/thing'."),
        ({"backbone": "timm:hf_hub:some/thing"}, "unknown library 'timm:hf_hub' in backbone"),
        ({"backbone": "googlenet"}, "are not those of the network that its description names."),
        ({"pool": "median"}, "got 'median'."),
        ({"heads": [4, 4]}, "do not fit dim=8"),
        ({"heads": 5}, "heads must be a list, got 5."),
        ({"code": "os.system"}, "code is not known to this version"),
    ],
)
def test_nothing_in_an_untrusted_model_is_believed(
    stopped: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    for name in ("embedder.json", "embedder.safetensors"):
        shutil.copy(stopped[0] / name, tmp_path)
    given = json.loads((tmp_path / "embedder.json").read_text())
    (tmp_path / "embedder.json").write_text(json.dumps(given | changes))
    with pytest.raises(UserError) as raised:
        load(tmp_path)
    assert message in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"dim": 8}'])
def test_a_description_of_a_model_that_is_none(stopped: tuple[Path, Path], tmp_path: Path, content: bytes) -> None:
    shutil.copy(stopped[0] / "embedder.safetensors", tmp_path)
    (tmp_path / "embedder.json").write_bytes(content)
    with pytest.raises(
        UserError, match=r"embedder.json(: it must be an obj| is not a complete JSON file|: backbone is miss)"
    ):
        load(tmp_path)


def test_a_second_process_is_kept_off_a_run(part: Path, waves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file.name: file.read_bytes() for file in part.iterdir() if file.is_file() and file.name != ".lock"}
    expected = (
        f"tammes: {part} is being trained by another process, {os.getpid()}. Wait until it has ended, or stop it; a new"
        " run needs another --out.\n"
    )
    with held(part):
        assert refused(capsys, "train", "--resume", str(part)) == expected
        again = ["train", str(waves), "--out", str(part), "--overwrite", "--epochs", "1", *SMALL]
        assert refused(capsys, *again).endswith(expected)
        assert refused(capsys, "runs", "--remove", str(part)) == expected
    after = {file.name: file.read_bytes() for file in part.iterdir() if file.is_file() and file.name != ".lock"}
    assert after == before
    main(["train", "--resume", str(part)])


@pytest.mark.xdist_group("processes")
def test_a_process_that_was_killed_leaves_no_run_locked(
    started: Callable[..., BaseProcess], waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said_there = tmp_path / "run", tmp_path / "said"
    words = ["train", str(waves), "--out", str(out), "--epochs", "3", *SMALL]
    process = started(words, said_there, partial(signal_at, STEP, 5, signal.SIGSTOP))  # in the second epoch
    wait_until_stopped(process, said_there)
    said = refused(capsys, "train", "--resume", str(out))
    assert said.startswith(f"tammes: {out} is being trained by another process, {process.pid}.")
    process.kill()
    process.join()
    with held(out):
        assert open_run(out).state == "interrupted"


HALF = """
import sys
from pathlib import Path
from tammes.io.files import written_whole
with written_whole(Path(sys.argv[1])) as sink:
    sink.write(b"half")
    sink.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a [1].json"  # a name that could be taken for a pattern
    with subprocess.Popen([sys.executable, "-c", HALF, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        remove_partial(tmp_path)
        write_atomically(file, b"ours")
        (half,) = tmp_path.glob(f".*{PARTIAL}")
        assert half.read_bytes() == b"half"
        process.kill()
    assert half.exists()
    write_atomically(tmp_path / "other.json", b"{}")
    assert half.exists()  # who writes another file does not look for it
    write_atomically(file, b"again")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {file.name: b"again", "other.json": b"{}"}


def test_going_on_with_a_run_removes_what_a_kill_left(stopped: tuple[Path, Path], part: Path) -> None:
    (part / "last").mkdir(exist_ok=True)
    left = [".embedder.safetensors.abc.partial", "last/.embedder.json.abc.partial", ".checkpoint.safetensors.new"]
    left += ["..checkpoint.safetensors.new.abc.partial"]
    for name in left:
        (part / name).write_bytes(b"half")
    with held(part):
        assert not [name for name in left if (part / name).exists()]
    assert check_tensors(part / "checkpoint.safetensors")
    main(["train", "--resume", str(part)])
    assert same_end(part, stopped[0])


def test_images_that_changed_since_a_run_was_started_are_refused(
    waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = Path(shutil.copytree(waves, tmp_path / "photos")), tmp_path / "run"
    main(["train", str(copy), "--out", str(out), "--epochs", "1", *SMALL])
    (out / "results.json").unlink()
    for file in copy.rglob("*.png"):
        file.touch()  # the same images: only the day has changed
    main(["train", "--resume", str(out)])
    (out / "results.json").unlink()
    shutil.copy(copy / "class 1" / "0.png", copy / "class 0" / "0.png")
    said = refused(capsys, "train", "--resume", str(out))
    assert f"the images in {copy} have changed since the run was started" in said
    assert "--overwrite" in said


def changed_in_every_way(photos: Path) -> None:
    """A file removed, one replaced, one cut short, one added: of classes that train and of classes that test."""
    for name in ("class 0", "class 7"):
        (photos / name / "0.png").unlink()
        shutil.copy(photos / "class 3" / "1.png", photos / name / "1.png")
        (photos / name / "2.png").write_bytes((photos / name / "2.png").read_bytes()[:100])
        shutil.copy(photos / "class 3" / "3.png", photos / name / "new.png")


@pytest.mark.parametrize("trained", ["all", "head"])
def test_images_that_change_while_a_run_trains_do_not_change_the_run(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trained: str
) -> None:
    """It continues with what it has decoded, or with the activations of that; also in its evaluation."""
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "cache"))
    photos, ends = tmp_path / "photos", []
    for disturbed in (False, True):
        shutil.rmtree(photos, ignore_errors=True)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shutil.copytree(waves, photos)
        real, saved = save_checkpoint, 0

        def save(*given: Any, real: Any = real, disturbed: bool = disturbed) -> None:
            nonlocal saved
            real(*given)
            saved += 1
            if disturbed and saved == 1:
                changed_in_every_way(photos)

        with monkeypatch.context() as patch:
            patch.setattr("tammes.training.train.save_checkpoint", save)
            out = tmp_path / f"run {disturbed}"
            main(["train", str(photos), "--out", str(out), "--epochs", "2", "--train", trained, *SMALL])
        assert saved == 2
        results = json.loads((out / "results.json").read_text())
        ends.append({name: results[name] for name in ("trained", "untrained", "test_images", "train_images")})
    assert same_end(tmp_path / "run True", tmp_path / "run False")
    assert ends[0] == ends[1]
    said = refused(capsys, "train", str(photos), "--out", str(tmp_path / "new"), "--train", trained, *SMALL)
    assert f"cannot read {photos}/class 0/2.png" in said  # who begins now sees what is there now


@pytest.mark.parametrize("change", ["remove", "replace", "cut"])
def test_images_that_change_while_they_are_decoded_are_refused(waves: Path, tmp_path: Path, change: str) -> None:
    """Some would be as they were, some as they are, and the cache would say that they are as they were."""
    photos = Path(shutil.copytree(waves, tmp_path / "photos"))
    dataset, file = open_dataset(str(photos)), photos / "class 7" / "5.png"
    before = file.read_bytes()

    def meanwhile(done: int, _: int) -> None:
        if done == 8:
            file.unlink()
            if change != "remove":
                file.write_bytes((photos / "class 3" / "1.png").read_bytes() if change == "replace" else before[:100])

    def read(dataset: Dataset, on_progress: Callable[[int, int], None] | None = None) -> Decoded:
        return decode(dataset, mode="L", cache=tmp_path, on_progress=on_progress, threads=1, skip_bad=True)

    with pytest.raises(UserError) as raised:
        read(dataset, meanwhile)
    text = f"{file} has changed while images were decoded. Do it again when nobody writes to them."
    assert str(raised.value) == text
    assert not list((tmp_path / "images").iterdir())
    file.write_bytes(before)
    assert len(read(open_dataset(str(photos))).bad) == 0


def test_a_batch_that_does_not_fit_into_memory_is_said_with_one_to_try_and_that_one_trains(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a machine that has room for eight images in training: for more, torch is asked for what there is not."""
    real = Embedder.normalised

    def normalised(embedder: Embedder, images: torch.Tensor) -> torch.Tensor:
        if embedder.training and len(images) > 8:
            torch.empty(len(images), 10**13)
        return real(embedder, images)

    monkeypatch.setattr(Embedder, "normalised", normalised)
    words = ["train", str(waves), "--out", str(tmp_path / "run"), "--overwrite", "--epochs", "1", *SMALL]
    for size in (24, 12):
        said = refused(capsys, *words, "--batch-size", str(size))
        assert said.endswith(
            f"tammes: out of memory with batches of {size} images. Try --batch-size {size // 2}. --accumulate 2 then"
            " combines two such batches into one step of the same size.\n"
        )
    main([*words, "--batch-size", "6"])
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you …"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("could not create a primitive"), True),  # oneDNN, seen where an address space was limited
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_every_way_to_say_that_there_is_no_memory_is_understood(error: Exception, is_so: bool) -> None:
    assert out_of_memory(error) == is_so


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--debug", "doctor", "nowhere"], ["doctor", "nowhere", "--debug"]):
        with pytest.raises(SystemExit) as stopped:
            main(given)
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert said.startswith("Traceback (most recent call last):")
        assert said.endswith("tammes: no such folder: nowhere. Expected one sub-folder of images per class.\n")


def test_a_fault_of_ours_is_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(_: str) -> None:
        raise ZeroDivisionError("division by zero\nin two lines")

    monkeypatch.setattr("tammes.data.open_dataset", fault)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "glyphs"])
    assert stopped.value.code == 3
    assert capsys.readouterr().err == (
        "tammes: this is a bug in tammes (ZeroDivisionError: division by zero). Please report it with what the same"
        " command prints with --debug.\n"
    )


def test_help_tells_of_debug(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert "--debug" in capsys.readouterr().out
