"""Sizes are checked before memory is asked for, against limits that are raised by name."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.cli import main
from tammes.data.images import open_image
from tammes.data.vectors import vectors
from tammes.errors import UserError
from tammes.gallery.indexing import vectors_of
from tammes.io.files import read_text
from tammes.io.schema import read_json
from tammes.io.tensor_files import write_tensors
from tammes.models.backbones import backbone
from tammes.models.embedder import Embedder, EmbedderConfig, load

GIANT = "timm:vit_giant_patch14_224"  # a billion weights


def sparse(file: Path, beginning: bytes = b"", size: int = 6_000_000_000) -> Path:
    with file.open("wb") as sink:
        sink.write(beginning)
        sink.truncate(size)
    return file


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "photo.webp"
    Image.new("RGB", (8, 8)).save(file)
    return sparse(tmp_path / "photo.jpg", file.read_bytes())


def test_a_file_of_an_image_has_a_size_that_is_raised_by_name(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"photo\.jpg.*6,000 MB.*512.*TAMMES_MAX_IMAGE_MB=6001"):
        open_image(photo)
    sparse(photo, photo.with_suffix(".webp").read_bytes(), 2_000_000)
    monkeypatch.setenv("TAMMES_MAX_IMAGE_MB", "1")
    with pytest.raises(UserError, match="TAMMES_MAX_IMAGE_MB=3"):
        open_image(photo)
    monkeypatch.setenv("TAMMES_MAX_IMAGE_MB", "3")
    assert open_image(photo).size == (8, 8)


@pytest.mark.parametrize("value", ["0", "-1", "much", "nan"])
def test_a_limit_is_a_number_above_0(value: str, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMMES_MAX_IMAGE_MB", value)
    with pytest.raises(UserError, match=f"TAMMES_MAX_IMAGE_MB must be a number above 0, got '{value}'"):
        open_image(photo)


def test_a_sparse_file_among_images_is_named(photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `doctor`, which decodes as training does, and by `index`, which reads files whole."""
    for number in range(2):
        (photo.parent / "own" / str(number)).mkdir(parents=True)
        Image.new("L", (9, 9), 99 * number).save(photo.parent / "own" / str(number) / "1.png")
    photo.rename(photo.parent / "own" / "0" / photo.name)
    with pytest.raises(SystemExit):
        main(["doctor", str(photo.parent / "own")])
    assert "TAMMES_MAX_IMAGE_MB" in capsys.readouterr().out
    (broken,) = vectors_of(Embedder(EmbedderConfig("conv4", dim=4)), [photo.parent / "own" / "0" / photo.name])[2]
    assert "TAMMES_MAX_IMAGE_MB" in broken


@pytest.mark.parametrize("read", [read_text, lambda file: read_json(file, dict, "Remove it.")], ids=["text", "json"])
def test_a_text_has_a_size(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"large\.json.*TAMMES_MAX_TEXT_MB=6001"):
        read(sparse(tmp_path / "large.json"))


def model(folder: Path, name: str) -> Path:
    """A model of a few bytes that names a network."""
    folder.mkdir()
    (folder / "embedder.json").write_text(json.dumps({"backbone": name, "dim": 2, "class_dim": None}))
    write_tensors(folder / "embedder.safetensors", {"penultimate.weight": torch.zeros(2, 3)})
    return folder


def test_a_model_of_a_few_bytes_does_not_build_a_giant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, giant = model(tmp_path / "small", "timm:vit_base_patch16_224"), model(tmp_path / "giant", GIANT)
    monkeypatch.setattr("tammes.models.embedder.Embedder", lambda *_, **__: pytest.fail("the network was built"))
    with pytest.raises(UserError, match=r"vit_base_patch16_224 has 85,798,656 weights, and 6 numbers"):
        load(small)
    with pytest.raises(UserError, match=rf"{GIANT} has 1,011,202,432 weights, and 6 numbers"):
        load(giant)


def test_a_giant_is_refused_wherever_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=rf"{GIANT}.*TAMMES_MAX_WEIGHTS_MILLIONS"):
        backbone(GIANT)
    monkeypatch.setenv("TAMMES_MAX_WEIGHTS_MILLIONS", "1")
    with pytest.raises(UserError, match="timm:resnet18 has 11 million weights"):
        backbone("timm:resnet18")
    monkeypatch.setenv("TAMMES_MAX_WEIGHTS_MILLIONS", "12")
    assert backbone("timm:resnet18").features == 512


def few_bytes(file: Path, what: str) -> Path:
    """A small .parquet file of many rows, long vectors or long texts."""
    import pyarrow
    from pyarrow import parquet

    rows = {"rows": 600_000, "columns": 16_384}.get(what, 1024)
    dim = 4000 if what == "vectors" else 1
    zeros = pyarrow.array(np.zeros(rows * dim, np.float32))
    label = "x" * 20_000 if what == "texts" else "x"
    labels = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [label])
    table = {"vectors": pyarrow.FixedSizeListArray.from_arrays(zeros, dim), "labels": labels}
    if what == "columns":
        del table["vectors"]
        table |= {str(number): pyarrow.array(np.zeros(rows, np.float32)) for number in range(400)}
    parquet.write_table(pyarrow.table(table), file, compression="zstd")
    return file


@pytest.mark.parametrize("what", ["rows", "vectors", "texts", "columns"])
def test_a_few_bytes_of_parquet_do_not_become_gigabytes(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    file = few_bytes(tmp_path / "v.parquet", what)
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "2")
    with pytest.raises(UserError, match=r"v\.parquet.*TAMMES_MAX_UNPACKED_MB="):
        vectors(file)
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "2000")
    if what in ("rows", "vectors"):
        assert len(vectors(file)) == (600_000 if what == "rows" else 1024)


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """pyarrow has no more than so many bytes at once in here."""
    import pyarrow

    before = pyarrow.default_memory_pool()
    counted = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(counted)
    try:
        yield
    finally:
        pyarrow.set_memory_pool(before)
    assert (counted.max_memory() or 0) < most


def varint(number: int, length: int = 1) -> bytes:
    """A number as the metadata of a .parquet file has it, of as many bytes at least."""
    groups: list[int] = []
    number *= 2
    while number or len(groups) < length:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups[:-1], groups[-1] & 127])


def say_otherwise(file: Path, true: int, false: int, places: int = -1) -> None:
    """Change a number at the end of a .parquet file, where the file says what is in it."""
    content = file.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    old = varint(true)
    assert old in content[begin:]
    file.write_bytes(content[:begin] + content[begin:].replace(old, varint(false, len(old)), places))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("said", [10_000_000, 1])
def test_one_row_of_parquet_is_measured_before_it_is_decoded(
    said: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pages themselves: the end of the file may say anything."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "20")
    zeros = pyarrow.ListArray.from_arrays([0, 10_000_000], np.zeros(10_000_000, np.float32))
    file = tmp_path / "v.parquet"
    parquet.write_table(pyarrow.table({"vectors": zeros, "labels": [1]}), file, data_page_version=version)
    assert file.stat().st_size < 1_000_000
    say_otherwise(file, 10_000_000, said)
    with at_most(5_000_000), pytest.raises(UserError, match=r"v\.parquet.* 40 MB.*TAMMES_MAX_UNPACKED_MB=41"):
        vectors(file)


@pytest.mark.parametrize("rows", [1, 200])
def test_long_texts_of_parquet_are_measured_before_they_are_decoded(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "20")
    monkeypatch.setattr("tammes.data.parquet._TEXTS", 4_000_000)
    labels = pyarrow.array(["x" * (1_000_000 if rows > 1 else 30_000_000)]).take([0] * rows)
    file = tmp_path / "v.parquet"
    parquet.write_table(pyarrow.table({"vectors": [[1.0]] * rows, "labels": labels}), file, compression="zstd")
    most = 5_000_000 if rows == 1 else 60_000_000
    with at_most(most), pytest.raises(UserError, match=r"v\.parquet.*TAMMES_MAX_UNPACKED_MB="):
        vectors(file)


def test_one_long_label_does_not_make_all_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"vectors": [[1.0]] * 2000, "labels": [*["x"] * 1999, "x" * 10_000]}
    parquet.write_table(pyarrow.table(table), tmp_path / "v.parquet")
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "20")
    with pytest.raises(UserError, match=r"`labels` of .*v\.parquet.* 80 MB.*TAMMES_MAX_UNPACKED_MB="):
        vectors(tmp_path / "v.parquet")


def test_a_label_of_parquet_is_not_a_list(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"vectors": [[1.0]], "labels": [["a", "b"]]}), tmp_path / "v.parquet")
    with pytest.raises(UserError, match=r"`labels` of .* holds list<.*Expected numbers or text"):
        vectors(tmp_path / "v.parquet")


@pytest.mark.parametrize("said", [299, 301])
def test_parquet_of_more_or_fewer_rows_than_it_says(said: int, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "v.parquet"
    parquet.write_table(pyarrow.table({"vectors": [[1.0]] * 300, "labels": [1] * 300}), file, store_schema=False)
    say_otherwise(file, 300, said, 1)  # of the whole file, not of its part
    with pytest.raises(UserError, match=f"300 rows and says {said}"):
        vectors(file)


@pytest.mark.parametrize("kind", ["string", "large_string", "category", "category of numbers"])
def test_labels_of_every_kind_of_column_are_read(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pyarrow.array(["b", "a", "b", "ä"], pyarrow.large_string() if kind == "large_string" else pyarrow.string())
    labels = pyarrow.array([3, 1, 3, 2]) if kind == "category of numbers" else texts
    column = labels.dictionary_encode() if kind.startswith("category") else labels
    table = {"0": np.arange(4.0), "1": np.ones(4), "labels": column}
    parquet.write_table(pyarrow.table(table), tmp_path / "v.parquet")
    assert vectors(tmp_path / "v.parquet").labels.tolist() == labels.to_pylist()


def test_a_few_bytes_of_npz_do_not_become_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "v.npz"
    np.savez_compressed(file, vectors=np.zeros((100_000, 8), np.float64), labels=np.zeros(100_000, np.int64))
    assert len(vectors(file)) == 100_000
    monkeypatch.setenv("TAMMES_MAX_UNPACKED_MB", "1")
    with pytest.raises(UserError, match=r"`vectors` of .*v\.npz.*TAMMES_MAX_UNPACKED_MB=7"):
        vectors(file)
