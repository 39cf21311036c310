"""Models that diverged, files replaced unseen, archives and names that libraries do not take, processes that hang."""

import csv
import io
import os
import shutil
import time
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

import tammes
from tammes.cli import main
from tammes.errors import UserError
from tammes.gallery.classification import Classification, to_csv
from tammes.io.downloads import unpack
from tammes.io.tensor_files import read_tensors, write_tensors
from tammes.search.validation import checked_vectors
from tammes.training import heartbeat
from tammes.training.heartbeat import Heartbeats
from tests.commands import ended
from tests.conftest import HANGS


@pytest.fixture(scope="module")
def run(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "waves"
    main(["train", str(waves), "--out", str(folder), "--backbone", "conv4", "--dim", "8", "--epochs", "1"])
    return folder


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_model_whose_weights_are_not_finite_is_refused(
    number: float, run: Path, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "embedder.safetensors"
    before = file.read_bytes()
    tensors, said = read_tensors(file)
    tensors["penultimate.weight"][0, 0] = number
    try:
        write_tensors(file, tensors, said)
        code, text = ended(capsys, "embed", str(run), str(waves), "--out", str(tmp_path / "v.npz"))
    finally:
        file.write_bytes(before)
    assert (code, "penultimate.weight" in text) == (2, True), text
    assert not (tmp_path / "v.npz").exists()


def test_a_vector_that_is_not_finite_is_not_written(
    run: Path, waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a network whose weights are finite, and whose variances are none."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    tensors, said = read_tensors(copy / "embedder.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("running_var"):
            tensor.fill_(-1)
    write_tensors(copy / "embedder.safetensors", tensors, said)
    code, text = ended(capsys, "embed", str(copy), str(waves), "--out", str(tmp_path / "v.npz"))
    assert (code, "not finite" in text) == (2, True), text
    assert not (tmp_path / "v.npz").exists()


@pytest.fixture
def replaced(tmp_path: Path) -> tuple[Path, bytes]:
    """Images, and other content of the same size for the first of them."""
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.bmp")
    return tmp_path / "0.bmp", (tmp_path / "3.bmp").read_bytes()


def replace_unseen(file: Path, content: bytes) -> None:
    status = file.stat()
    assert len(content) == status.st_size
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_embed_sees_a_file_that_was_replaced_unseen_if_it_is_asked_to(
    replaced: tuple[Path, bytes], run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file, other = replaced
    out = tmp_path_factory.mktemp("out") / "v.npz"
    found = []
    for more in ((), (), ("--verify",)):
        main(["embed", str(run), str(file.parent), "--out", str(out), "--overwrite", *more])
        with np.load(out) as arrays:
            found.append(arrays["vectors"])
        if len(found) == 1:
            replace_unseen(file, other)
    assert (found[1] == found[0]).all()
    assert (found[2][0] == found[2][3]).all()


def test_index_sees_a_file_that_was_replaced_unseen_if_it_is_asked_to(
    replaced: tuple[Path, bytes],
    run: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, other = replaced
    command = ["index", str(run), str(file.parent), "--gallery", str(tmp_path_factory.mktemp("out") / "g"), "--json"]
    main(command)
    replace_unseen(file, other)
    capsys.readouterr()
    main(command)
    assert '"changed": 0' in capsys.readouterr().out
    main([*command, "--verify"])
    assert '"changed": 1' in capsys.readouterr().out


def test_what_a_killed_export_left_is_removed_and_never_uploaded(
    run: Path, waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    out, api = tmp_path / "hub", Mock()
    left, fresh = out / ".writing-old", out / ".writing-new"
    for each in (left, fresh):
        each.mkdir(parents=True)
        (each / "model.safetensors").touch()
    hours = time.time() - 2 * 3600
    os.utime(left, (hours, hours))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    main(["export", str(run), "--format", "hub", "--out", str(out), "--push", "me/waves"])
    assert (left.exists(), fresh.exists()) == (False, True)
    ignored = api.upload_folder.call_args.kwargs["ignore_patterns"]
    names = [str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()]
    kept = list(filter_repo_objects(names, ignore_patterns=ignored))
    assert "model.safetensors" in kept
    assert not any("writing" in name for name in kept)
    assert waves.exists()


def test_a_process_that_hangs_is_named_after_a_minute_once(capsys: pytest.CaptureFixture[str]) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    first, second = (Heartbeats(store, rank, 2) for rank in range(2))
    began = time.monotonic()
    for seconds in range(0, 200, 5):
        first.beat()
        if seconds < 30 or seconds > 150:
            second.beat()
        first.look(began + seconds)
    said = capsys.readouterr().err
    assert said.count("no sign of process 1 of 2 for a minute") == 1
    assert said.count("process 1 of 2 is back") == 1
    assert "process 0" not in said


def test_heartbeats_come_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_EVERY", 0.01)
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    found = Heartbeats(store, 1, 2)
    found.start()
    end = time.monotonic() + HANGS
    while store.add("beat 1", 0) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    found.stop()
    assert store.add("beat 1", 0) >= 3
    assert store.add("beat 0", 0) == 0


@pytest.mark.parametrize("name", ["names-one.csv", "is-one.csv"])
def test_a_device_is_not_read_as_an_image_or_a_csv_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what it is, not by what it gives: /dev/zero would never end, and neither would this test without the check."""
    (tmp_path / "names-one.csv").write_text("path,label\n/dev/null,a\nnone.jpg,b\n")
    (tmp_path / "is-one.csv").symlink_to("/dev/null")
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", str(tmp_path / name)])
    assert stopped.value.code == 1
    assert "it is not a file, but a pipe, a device or the like" in capsys.readouterr().out


def deflate64(file: Path) -> Path:
    """An archive in a compression that Python does not know."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", b"text" * 100)
    content = bytearray(file.read_bytes())
    content[8:10] = b"\x09\x00"
    central = content.index(b"PK\x01\x02")
    content[central + 10 : central + 12] = b"\x09\x00"
    file.write_bytes(content)
    return file


def test_a_zip_file_in_another_compression_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.zip cannot be unpacked here.*by hand"):
        unpack(deflate64(tmp_path / "a.zip"), tmp_path / "to")


def test_thousands_of_folders_in_one_another_are_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/" * 2000 + "a.txt", b"text")
    with pytest.raises(UserError, match=r"a\.zip holds 2001 folders in one another"):
        unpack(tmp_path / "a.zip", tmp_path / "to")


@pytest.mark.parametrize("name", ["a..b/c", "a/b--c", "a b/c", "a/b/c", "c", "-a/b", ""])
def test_a_name_that_the_hub_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"hf://owner/name.*got '"):
        tammes.load(f"hf://{name}")


def test_names_in_a_table_are_neither_formulas_nor_move_the_cursor() -> None:
    names = ["=1+1", "+1", "-1", "@x", "\x1b[2Jred", "a\rb", "\t=1", "plain - name"]
    found = [Classification(name, 0.5, 0.5, True, 1.0, "", "") for name in names]
    table = to_csv([Path("/p") / f"{number}\x1b.jpg" for number in range(len(names))], found)
    assert not any(sign in table for sign in (b"\x1b", b"\t"))
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert [row["best_guess"] for row in rows] == [
        "'=1+1", "'+1", "'-1", "'@x", "\\x1b[2Jred", "a\\rb", "\\t=1", "plain - name",
    ]  # fmt: skip


def test_vectors_may_be_the_floats_of_pandas_that_may_be_missing() -> None:
    pandas = pytest.importorskip("pandas")
    vectors = np.random.default_rng(0).standard_normal((20, 4))
    table = pandas.DataFrame(vectors).astype("Float64")
    assert (checked_vectors(table) == vectors).all()
    table.iloc[3, 1] = pandas.NA
    with pytest.raises(UserError, match="row 3"):
        checked_vectors(table)
    with pytest.raises(UserError, match="floating point"):
        checked_vectors(pandas.DataFrame(vectors).astype(str))
