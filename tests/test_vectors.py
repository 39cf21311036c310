"""Vectors from .npz and .parquet files, mapped into memory where they can be."""

import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tammes.data import vectors
from tammes.data.vector_files import write_vectors
from tammes.errors import UserError

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
LABELS = np.array(["a", "b", "a", "c"])


def npz(file: Path, **arrays: object) -> Path:
    np.savez(file, **({"vectors": VECTORS, "labels": LABELS} | arrays))  # type: ignore[arg-type]
    return file


def pq(file: Path, **columns: object) -> Path:
    parquet.write_table(pyarrow.table({name: column for name, column in columns.items() if column is not None}), file)
    return file


def refused(file: Path) -> str:
    with pytest.raises(UserError) as refusal:
        vectors(file)
    return str(refusal.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "vectors.npz"


@pytest.fixture
def columns(tmp_path: Path) -> Path:
    return tmp_path / "vectors.parquet"


def test_an_uncompressed_file_is_mapped_and_not_read(file: Path) -> None:
    found = vectors(npz(file))
    assert isinstance(found.vectors, np.memmap)
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.labels.tolist() == ["a", "b", "a", "c"]
    assert (found.query, found.gallery, found.sequence, found.paths) == (None, None, None, None)
    assert len(found) == 4


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    dtype=st.sampled_from(["<f2", "<f4", "<f8", ">f4", "<i4", "|u1"]),
    order=st.sampled_from(["C", "F"]),
    compressed=st.booleans(),
    before=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_whatever_numpy_writes_is_read_as_numpy_reads_it(
    shape: tuple[int, int],
    dtype: str,
    order: str,
    compressed: bool,
    before: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("vectors") / "vectors.npz"
    array = np.asarray(np.random.default_rng(seed).integers(0, 99, shape), dtype=dtype, order=order)  # type: ignore[call-overload]
    others = {f"other{number}": np.arange(number) for number in range(before)}  # entries that push the vectors back
    save = np.savez_compressed if compressed else np.savez
    save(file, **others, vectors=array, labels=np.arange(len(array)))  # type: ignore[arg-type]
    found = vectors(file).vectors
    with np.load(file) as arrays:
        np.testing.assert_array_equal(found, arrays["vectors"])
    assert found.dtype == (np.dtype(dtype).newbyteorder("=") if "f" in dtype else np.float64)
    assert isinstance(found, np.memmap) == (not compressed and dtype in ("<f2", "<f4", "<f8"))


def test_a_later_version_of_the_header(file: Path) -> None:
    for version in ((2, 0), (3, 0)):
        content, labels = BytesIO(), BytesIO()
        np.lib.format.write_array(content, VECTORS, version=version)
        np.save(labels, LABELS)
        with ZipFile(file, "w") as archive:
            archive.writestr("vectors.npy", content.getvalue())
            archive.writestr("labels.npy", labels.getvalue())
        np.testing.assert_array_equal(vectors(file).vectors, VECTORS)


def test_what_else_a_file_may_say(file: Path) -> None:
    found = vectors(
        npz(file, query=[True, False, False, True], gallery=np.array([2, 0]), sequence=[1, 1, 2, 2], paths=list("wxyz"))
    )
    assert found.query is not None
    assert found.gallery is not None
    assert found.sequence is not None
    assert found.paths is not None
    assert found.query.tolist() == [True, False, False, True]
    assert found.gallery.tolist() == [True, False, True, False]
    assert found.sequence.tolist() == [1, 1, 2, 2]
    assert found.paths.tolist() == ["w", "x", "y", "z"]


def test_text_in_bytes_is_text(file: Path) -> None:
    assert vectors(npz(file, labels=np.array([b"a", b"b", "é".encode(), b"c"]))).labels.tolist() == ["a", "b", "é", "c"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"vectors": VECTORS[0]}, "`vectors` of {file} has the shape (3,). Expected one row of numbers for each item."),
        (
            {"vectors": VECTORS[:0]},
            "`vectors` of {file} has the shape (0, 3). Expected one row of numbers for each item.",
        ),
        (
            {"vectors": np.float32(1)},
            "`vectors` of {file} has the shape (). Expected one row of numbers for each item.",
        ),
        ({"vectors": VECTORS > 1}, "`vectors` of {file} holds bool. Expected floating-point numbers."),
        ({"vectors": VECTORS * 1j}, "`vectors` of {file} holds complex64. Expected floating-point numbers."),
        (
            {"vectors": np.where(np.eye(4, 3, -2) > 0, np.nan, VECTORS)},
            "vector 2 of {file} holds a number that is not finite.",
        ),
        ({"labels": LABELS[:3]}, "`labels` of {file} has the shape (3,). Expected one for each of 4 vectors."),
        ({"labels": LABELS[:, None]}, "`labels` of {file} has the shape (4, 1). Expected one for each of 4 vectors."),
        ({"labels": np.zeros(4)}, "`labels` of {file} holds float64. Expected whole numbers or text."),
        ({"labels": np.array([b"\xff"] * 4)}, "`labels` of {file} is not a text in UTF-8."),
        (
            {"labels": LABELS.astype(object)},
            "`labels` of {file} holds Python objects, which are not read. "
            "Save it as numbers or text: np.array(labels, dtype=str).",
        ),
        ({"sequence": [1]}, "`sequence` of {file} has the shape (1,). Expected one for each of 4 vectors."),
        (
            {"query": [1, 0, 0, 1]},
            "`query` of {file} is neither a mask (4 truth values) nor different positions from 0 to 3: "
            "it holds int64 in the shape (4,).",
        ),
        (
            {"gallery": [0, 4]},
            "`gallery` of {file} is neither a mask (4 truth values) nor different positions from 0 to 3: "
            "it holds int64 in the shape (2,).",
        ),
        (
            {"gallery": [True]},
            "`gallery` of {file} is neither a mask (4 truth values) nor different positions from 0 to 3: "
            "it holds bool in the shape (1,).",
        ),
    ],
)
def test_arrays_that_cannot_be_used(arrays: dict[str, object], said: str, file: Path) -> None:
    npz(file, **arrays)
    assert refused(file) == said.format(file=file)


def test_a_number_that_is_not_finite_is_found_in_every_block(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tammes.data.vectors"], "_BLOCK", 6)
    many = np.zeros((9, 3))
    many[7, 1] = np.inf
    npz(file, vectors=many, labels=np.arange(9))
    assert refused(file) == f"vector 7 of {file} holds a number that is not finite."


def test_files_that_cannot_be_read(file: Path) -> None:
    assert refused(file) == f"no such file: {file}. Expected a .npz or .parquet file with `vectors` and `labels`."
    file.write_bytes(b"no zip file")
    assert refused(file) == f"cannot read {file}: File is not a zip file. Expected a complete .npz file."
    np.savez(file, features=VECTORS, labels=LABELS)
    assert refused(file) == f"{file} has no array `vectors`; it has features, labels."
    np.savez(file, vectors=VECTORS)
    assert refused(file) == f"{file} has no array `labels`; it has vectors."
    npz(file)
    file.write_bytes(file.read_bytes()[:-30])
    assert refused(file) == f"cannot read {file}: File is not a zip file. Expected a complete .npz file."
    other = file.with_suffix(".txt")
    other.write_text("0.1 0.2")
    assert refused(other) == (
        f"{other} is neither .npz nor .parquet. Expected a .npz or .parquet file with `vectors` and `labels`."
    )


@pytest.mark.parametrize("compression", [ZIP_STORED, ZIP_DEFLATED])
def test_entries_that_are_no_arrays(compression: int, file: Path) -> None:
    content = BytesIO()
    np.save(content, VECTORS)
    whole = content.getvalue()
    for vector_bytes, label_bytes, broken in (
        (b"no array at all", whole, "vectors"),
        (whole, b"no array at all", "labels"),
        (whole[:-4], whole, "vectors"),
        (whole[:20], whole, "vectors"),
        (whole, whole[:60], "labels"),
        (whole.replace(b"(4, 3)", b"(4, 4)"), whole, "vectors"),
    ):
        with ZipFile(file, "w", compression) as archive:
            archive.writestr("vectors.npy", vector_bytes)
            archive.writestr("labels.npy", label_bytes)
        assert refused(file) == f"`{broken}` of {file} is not a complete array. Save it again."


def test_a_file_that_was_damaged(file: Path) -> None:
    npz(file)
    content = bytearray(file.read_bytes())
    content[0:4] = b"____"  # the header of the first entry, which is `vectors`
    file.write_bytes(content)
    assert refused(file) == (
        f"cannot read {file}: an entry is not where the list of entries says. Expected a complete .npz file."
    )


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fixed", [False, True])
def test_parquet_with_lists(kind: str, fixed: bool, columns: Path) -> None:
    array = VECTORS.astype(kind)
    of = pyarrow.list_(pyarrow.from_numpy_dtype(kind), 3 if fixed else -1)
    pq(columns, vectors=pyarrow.array(list(array), of), labels=[5, 6, 5, 7], paths=list("wxyz"), query=[True] * 4)
    found = vectors(columns)
    assert found.vectors.dtype == kind
    np.testing.assert_array_equal(found.vectors, array)
    assert found.labels.tolist() == [5, 6, 5, 7]
    assert found.paths is not None
    assert found.paths.tolist() == ["w", "x", "y", "z"]
    assert found.query is not None
    assert found.query.all()


def test_parquet_with_a_column_a_number(columns: Path) -> None:
    array = np.random.default_rng(0).standard_normal((5, 12))
    numbers = {str(number): array[:, number] for number in reversed(range(12))}
    pq(columns, labels=pyarrow.array(list("abcab")).dictionary_encode(), **numbers)
    found = vectors(columns)
    np.testing.assert_array_equal(found.vectors, array)
    assert found.labels.tolist() == list("abcab")


def test_parquet_of_many_rows(columns: Path) -> None:
    array = np.random.default_rng(0).standard_normal((10_000, 2)).astype(np.float32)
    parquet.write_table(
        pyarrow.table({"vectors": list(array), "labels": np.arange(10_000)}), columns, row_group_size=3000
    )
    np.testing.assert_array_equal(vectors(columns).vectors, array)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vectors": None}, "{file} has no column `vectors`; it has labels."),
        ({"labels": None}, "{file} has no column `labels`; it has vectors."),
        (
            {"vectors": None, "0": [1.0], "2": [1.0], "labels": [1]},
            "{file} has no column `1`, but `2`: a number of each vector is missing.",
        ),
        ({"vectors": [[1.0, 2.0], [1.0]]}, "vector 1 of {file} has 1 numbers, those before it 2."),
        ({"vectors": [[1.0, 2.0], None]}, "`vectors` of {file} is empty in row 1."),
        ({"vectors": [[1.0, 2.0], [1.0, None]]}, "a vector of {file} has an empty place; it is in row 1."),
        ({"vectors": [1.0, 2.0]}, "`vectors` of {file} holds double. Expected lists of numbers."),
        ({"vectors": ["a", "b"]}, "`vectors` of {file} holds string. Expected lists of numbers."),
        (
            {"vectors": [["a"], ["b"]]},
            "`vectors` of {file} holds list<element: string>. Expected lists of numbers.",
        ),
        ({"vectors": None, "0": ["a", "b"]}, "`0` of {file} holds string. Expected numbers."),
        ({"vectors": [[1.0], [np.inf]]}, "vector 1 of {file} holds a number that is not finite."),
        ({"labels": [1, None]}, "`labels` of {file} is empty in 1 rows. Fill it in."),
        ({"labels": [1.5, 2.5]}, "`labels` of {file} holds float64. Expected whole numbers or text."),
        (
            {
                "vectors": pyarrow.array([], pyarrow.list_(pyarrow.float32())),
                "labels": pyarrow.array([], pyarrow.int64()),
            },
            "`vectors` of {file} has the shape (0, 0). Expected one row of numbers for each item.",
        ),
        ({"labels": ["a", "a\0"]}, "`labels` of {file} ends in the character NUL in row 1: 'a\\x00'. Rename it."),
    ],
)
def test_columns_that_cannot_be_used(changed: dict[str, object], said: str, columns: Path) -> None:
    pq(columns, **({"vectors": [[1.0], [2.0]], "labels": [1, 2]} | changed))
    assert refused(columns) == said.format(file=columns)


def test_vectors_whose_length_changes_between_batches(columns: Path) -> None:
    pq(columns, vectors=[[1.0, 2.0]] * 4096 + [[1.0, 2.0, 3.0]] * 3, labels=np.arange(4099))
    assert refused(columns) == f"vector 4096 of {columns} has 3 numbers, those before it 2."


def test_parquet_with_a_name_twice(columns: Path) -> None:
    twice = pyarrow.table([VECTORS.tolist(), LABELS, LABELS], names=["vectors", "labels", "labels"])
    parquet.write_table(twice, columns)
    assert refused(columns) == f"{columns} has two columns `labels`. Rename one, or leave it out."


def test_numbers_in_the_other_order_of_bytes(file: Path) -> None:
    found = vectors(npz(file, vectors=VECTORS.astype(">f4"), labels=np.array([3, 1, 3, 2], ">i8")))
    assert (found.vectors.dtype.str, found.labels.dtype.str) == (np.dtype("f4").str, np.dtype("i8").str)
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.labels.tolist() == [3, 1, 3, 2]


def test_no_parquet_file(columns: Path) -> None:
    columns.write_bytes(b"PAR1 but no more")
    assert refused(columns).startswith(f"cannot read {columns}: ")
    assert refused(columns).endswith("Expected a complete .parquet file.")


def test_without_pyarrow(columns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq(columns, vectors=[[1.0], [2.0]], labels=[1, 2])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(columns) == f"reading {columns} needs pyarrow: pip install 'tammes[vectors]'."


def test_the_names_that_others_use(file: Path, columns: Path) -> None:
    np.savez(file, X=VECTORS, y=LABELS)
    found = vectors(file)
    assert isinstance(found.vectors, np.memmap)
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.labels.tolist() == LABELS.tolist()
    assert found.keys("vector ") == ["vector 0", "vector 1", "vector 2", "vector 3"]
    np.savez(file, X=-VECTORS, y=LABELS[::-1], vectors=VECTORS, labels=LABELS)
    np.testing.assert_array_equal(vectors(file).vectors, VECTORS)  # ours come first
    pq(columns, embedding=VECTORS.tolist(), label=LABELS, id=[4, 5, 6, 7])
    found = vectors(columns)
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert (found.labels.tolist(), found.keys()) == (LABELS.tolist(), ["4", "5", "6", "7"])


@pytest.mark.parametrize(
    ("names", "others", "noted"),
    [
        (["dim_0", "dim_1", "dim_2"], {"age": [1.5] * 4}, ""),
        (["x1", "x2", "x3"], {"width": [7] * 4, "z9": [1.0] * 4}, ""),
        (["2", "0", "1"], {}, ""),
        (["red", "green", "blue"], {"count": [1] * 4, "text": list("abcd")}, "3 columns of numbers, red to blue"),
        (["a0", "a1", "b0"], {}, ""),
        (["pixel_0_0", "pixel_0_1", "pixel_1_0"], {}, ""),
    ],
)
def test_wide_tables(
    names: list[str], others: dict[str, object], noted: str, columns: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.random.default_rng(0).standard_normal((4, 3))
    pq(columns, label=LABELS, key=list("wxyz"), **others, **dict(zip(names, array.T, strict=True)))
    found = vectors(columns)
    order = np.argsort(names) if names[0] == "2" else range(len(found.vectors[0]))
    np.testing.assert_array_equal(found.vectors, array[:, order])
    assert found.keys() == ["w", "x", "y", "z"]
    assert noted in capsys.readouterr().err


def test_a_wide_table_with_a_gap(columns: Path) -> None:
    pq(columns, labels=[1, 2], dim_0=[1.0, 2.0], dim_2=[1.0, 2.0])
    assert refused(columns) == f"{columns} has no column `dim_1`, but `dim_2`: a number of each vector is missing."


def test_vectors_without_labels(file: Path, columns: Path, tmp_path: Path) -> None:
    np.savez(file, vectors=VECTORS)
    pq(columns, vectors=VECTORS.tolist())
    alone = tmp_path / "alone.npy"
    np.save(alone, VECTORS)
    for each in (file, columns, alone):
        found = vectors(each, labelled=False)
        np.testing.assert_array_equal(found.vectors, VECTORS)
        assert (found.labelled, found.labels.tolist()) == (False, [""] * 4)
        assert "labels" in refused(each)
    assert isinstance(found.vectors, np.memmap)
    np.save(alone, VECTORS[0])
    np.testing.assert_array_equal(vectors(alone, labelled=False).vectors, VECTORS[:1])
    for content in (b"", b"no array", alone.read_bytes()[:-3]):
        alone.write_bytes(content)
        with pytest.raises(UserError, match=r"alone.npy is not a complete \.npy file"):
            vectors(alone, labelled=False)
    np.save(alone, np.array([object()]), allow_pickle=True)
    with pytest.raises(UserError, match=r"alone.npy is not a complete \.npy file"):
        vectors(alone, labelled=False)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".npy"])
def test_what_is_written_is_read_back(
    suffix: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, array = tmp_path / f"out{suffix}", VECTORS.astype(kind)
    paths, query = np.array(["ä", "b", "c", "d"]), np.array([True, False, True, True])
    others = {"labels": LABELS, "paths": paths, "query": query, "sequence": None}
    write_vectors(out, [array[:3], array[3:]], array.shape, kind, others)
    found = vectors(out, labelled=False)
    assert found.vectors.dtype == kind
    np.testing.assert_array_equal(found.vectors, array)
    if suffix == ".npy":
        assert "labels and paths and query need" in capsys.readouterr().err
    else:
        assert found.labels.tolist() == LABELS.tolist()
        assert found.keys() == paths.tolist()
        assert found.query is not None
        assert found.query.tolist() == query.tolist()


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".npy"])
def test_a_file_that_cannot_be_finished_is_not_there(suffix: str, tmp_path: Path) -> None:
    def failing() -> Iterator[np.ndarray]:
        yield VECTORS[:2]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_vectors(tmp_path / f"out{suffix}", failing(), (4, 3), "float32", {"labels": LABELS})
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_not_text_are_written_to_npz_alone(tmp_path: Path) -> None:
    paths = {"paths": np.array(["a\udce9", "b", "c", "d"])}
    with pytest.raises(UserError, match=r"Write a \.npz file"):
        write_vectors(tmp_path / "out.parquet", [VECTORS], VECTORS.shape, "float32", paths)
    write_vectors(tmp_path / "out.npz", [VECTORS], VECTORS.shape, "float32", paths)
    assert vectors(tmp_path / "out.npz", labelled=False).keys()[0] == "a\udce9"
