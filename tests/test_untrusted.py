"""Untrusted files: whatever they hold, a reader understands them or says what is wrong; nothing in them runs."""

import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from tammes import UserError
from tammes.benchmark.plan import read_plan
from tammes.data import open_dataset, vectors
from tammes.data.images import _tiff_parts
from tammes.gallery.items import About
from tammes.io.tensor_files import read_tensors
from tammes.models.backbones.caffemodel import read_caffemodel
from tammes.models.embedder import load
from tammes.training.config import load_config
from tammes.training.run_folder import RunFolder
from tests.configs import config_of
from tests.conftest import HANGS
from tests.test_architecture import ROOT


@cache
def examples() -> dict[str, bytes]:
    """A whole file of each kind."""
    table = pyarrow.table({"vectors": [[1.0, 2.0], [3.0, 4.0]], "labels": ["a", "b"]})
    columns, plain, packed = BytesIO(), BytesIO(), BytesIO()
    parquet.write_table(table, columns)
    np.savez(plain, vectors=np.eye(3), labels=np.arange(3))
    np.savez_compressed(packed, vectors=np.eye(3), labels=np.array(["x", "y", "z"]), query=np.ones(3, bool))
    blob = b"\x3a\x04\x0a\x02\x01\x02\x2a\x08" + struct.pack("<2f", 1, 2)
    layer = b"\x0a\x01a\x3a" + bytes([len(blob)]) + blob
    picture = BytesIO()
    Image.new("L", (3, 5), 7).save(picture, format="TIFF", compression="tiff_adobe_deflate", strip_size=1)
    tensors = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return {
        "t.csv": b"path,label,split,x_1,y_1,x_2,y_2\na.png,1,train,0,0,1,1\nb.png,2,test,,,,\n",
        "plain.npz": plain.getvalue(),
        "packed.npz": packed.getvalue(),
        "v.parquet": columns.getvalue(),
        "plan.toml": b'data = "glyphs"\nseeds = [0]\n[train]\nepochs = 2\n[[method]]\nname = "a"\nloss = "softmax"\n',
        "n.caffemodel": b"\xa2\x06" + bytes([len(layer)]) + layer,
        "p.tiff": picture.getvalue(),
        "t.safetensors": len(tensors).to_bytes(8, "little") + tensors + bytes(4),
    }


def reader_of(name: str) -> Callable[[Path], object]:
    readers: dict[str, Callable[[Path], object]] = {
        ".csv": lambda file: open_dataset(str(file)),
        ".npz": vectors,
        ".parquet": vectors,
        ".toml": lambda file: read_plan(file),
        ".caffemodel": read_caffemodel,
        ".safetensors": read_tensors,
        ".tiff": lambda file: _tiff_parts(BytesIO(file.read_bytes())),  # the rest is Pillow's
    }
    return readers[Path(name).suffix]


def refusal(read: Callable[[], object]) -> str | None:
    """What a reader says is wrong, None if nothing is; an error that is not the user's goes on."""
    try:
        read()
    except UserError as error:
        return str(error)
    return None


def understood(name: str, content: bytes) -> bool:
    """Whether a reader takes the content."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        return refusal(lambda: reader_of(name)(file)) is None


@pytest.mark.parametrize("name", sorted(set(examples()) - {"t.csv"}))
def test_the_examples_are_whole(name: str) -> None:
    assert understood(name, examples()[name])


@pytest.mark.parametrize("name", sorted(examples()))
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_by_name(name: str, content: bytes) -> None:
    understood(name, content)


@pytest.mark.parametrize("name", sorted(examples()))
@given(st.data())
def test_damaged_files_are_understood_or_refused_by_name(name: str, data: st.DataObject) -> None:
    content = bytearray(examples()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(content) - 1)))
        new = data.draw(st.binary(max_size=3))
        content[place : place + data.draw(st.integers(0, 3))] = new
    understood(name, bytes(content))


# Of the others, libraries read all but the columns.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(examples()) - {"v.parquet"}))
def test_fuzzing_guided_by_coverage_finds_no_fault(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    words = [sys.executable, "-m", "tests.fuzz_parsers", name, str(tmp_path), "-max_total_time=60", "-timeout=100"]
    where = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(words, cwd=ROOT, env=os.environ | where, capture_output=True, text=True, timeout=HANGS)
    print("\n".join(line for line in done.stderr.splitlines() if line.startswith("stat::")))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stat::number_of_executed_units" in done.stderr


def test_what_fuzzing_has_found_is_refused() -> None:
    """A zip file whose entry has a name that is not UTF-8, where it says so; a path with a zero byte."""
    content = bytearray(examples()["plain.npz"].replace(b"labels.npy", b"\xffabels.npy"))
    place = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)  # the second in the list of entries
    content[place + 9] |= 0x08
    assert not understood("v.npz", bytes(content))
    with TemporaryDirectory() as folder:
        (Path(folder) / "t.csv").write_bytes(b"path,label\na\0.png,x\nb.png,y\n")
        said = refusal(lambda: open_dataset(f"{folder}/t.csv"))
    assert said is not None
    assert said.startswith("all 2 images are missing; ")


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)


@given(st.lists(st.lists(texts, min_size=2, max_size=3), max_size=5), st.sampled_from(["", ",split", ",sequence"]))
def test_tables_of_any_text(rows: list[list[str]], more: str) -> None:
    quoted = "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    understood("t.csv", f"path,label{more}\n{quoted}".encode())


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(texts, each, max_size=3),
    max_leaves=6,
)


def toml_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(name))} = {toml_of(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return "0" if value is None else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@given(
    st.sampled_from(["title", "data", "presets", "seeds", "layers", "paper", "train", "search", "method"]), plain_values
)
def test_plans_of_any_values(key: str, value: Any) -> None:
    known: dict[str, Any] = {"data": "glyphs", "method": [{"name": "a", "loss": "softmax"}]}
    text = "".join(f"{name} = {toml_of(each)}\n" for name, each in (known | {key: value}).items())
    understood("plan.toml", text.encode(errors="surrogateescape"))


SOUND = config_of().saved()


@given(st.sampled_from([*SOUND, "other"]), plain_values)
def test_options_of_an_untrusted_run(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "options"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SOUND, key: value}, default=str))
    said = refusal(lambda: load_config(RunFolder(folder)))
    if said is None:
        assert load_config(RunFolder(folder)).out == folder  # never where the file says
    else:
        assert key in said or "every number in it must be finite" in said


@given(st.binary(max_size=60) | plain_values.map(lambda value: json.dumps(value).encode()))
def test_what_a_gallery_or_a_run_says_of_itself(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "said"
    folder.mkdir(exist_ok=True)
    for name in ("embedder.json", "config.json"):
        (folder / name).write_bytes(content)
    readers: list[Callable[[], object]] = [
        lambda: About.from_json(content.decode(errors="replace"), "here"),
        lambda: load(folder),
        lambda: load_config(RunFolder(folder)),
    ]
    for read in readers:
        refusal(read)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "[" * 100_000, '{"format": ' + "[" * 100_000])
def test_nesting_without_end_is_refused(text: str) -> None:
    assert not understood("plan.toml", text.encode())
    with pytest.raises(UserError, match="says of its model"):
        About.from_json(text, "here")


def test_an_array_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    for name, pressed in (("a", zipfile.ZIP_STORED), ("b", zipfile.ZIP_DEFLATED)):
        file = tmp_path / f"{name}.npz"
        with zipfile.ZipFile(file, "w", pressed) as archive:
            for array in ("vectors", "labels"):
                header = BytesIO()
                shape = (10**9, 4) if array == "vectors" else (10**10,)
                np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
                archive.writestr(f"{array}.npy", header.getvalue() + bytes(64))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UserError, match="is not a complete array. Save it again.$"):
            vectors(file)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_python_objects_are_never_unpacked(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.mkdir, (str(tmp_path / "harm"),)  # type: ignore[return-value]

    array = np.empty(1, dtype=object)
    array[0] = Harm()
    for name in ("vectors", "labels"):
        whole = {"vectors": np.eye(1), "labels": np.arange(1)} | {name: array}
        np.savez(tmp_path / "v.npz", **whole)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="holds Python objects, which are not read"):
            vectors(tmp_path / "v.npz")
    assert not (tmp_path / "harm").exists()
