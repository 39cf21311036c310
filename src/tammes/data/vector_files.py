"""Write vectors to a .npz, .parquet or .npy file, block by block and atomically."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy import ndarray

from tammes.errors import UserError
from tammes.io.console import say
from tammes.io.files import written_whole

WRITTEN = (".npz", ".parquet", ".npy")


def check_writable(file: Path) -> None:
    """Raise UserError early for a kind of file that cannot be written."""
    if file.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UserError(f"writing {file} needs pyarrow: pip install 'tammes[vectors]'.") from None


def write_vectors(
    file: Path, blocks: Iterable[ndarray], shape: tuple[int, int], dtype: Any, others: Mapping[str, ndarray | None]
) -> None:
    """Write vectors with labels, paths and the like, in the format of the file's suffix.

    Args:
        blocks: the vectors in blocks of rows.
        shape: the shape of all vectors.
        others: further columns; None for missing ones. A .npy file cannot store them, which a note says.
    """
    given = {name: array for name, array in others.items() if array is not None}
    with written_whole(file) as sink:
        if file.suffix.lower() == ".parquet":
            _write_parquet(file, sink, blocks, shape, dtype, given)
        elif file.suffix.lower() == ".npy":
            _write_blocks(sink, blocks, shape, dtype)
        else:
            with ZipFile(sink, "w", ZIP_STORED) as archive:
                with archive.open("vectors.npy", "w", force_zip64=True) as entry:
                    _write_blocks(entry, blocks, shape, dtype)
                for name, array in given.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
    if file.suffix.lower() == ".npy" and given:
        say(f"note: {file} holds the vectors alone; their {' and '.join(given)} need a .npz or .parquet file.")


def _write_blocks(sink: Any, blocks: Iterable[ndarray], shape: tuple[int, int], dtype: Any) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(sink, header)
    for block in blocks:
        sink.write(block.astype(dtype).tobytes())


def _write_parquet(
    file: Path, sink: Any, blocks: Iterable[ndarray], shape: tuple[int, int], dtype: Any, others: Mapping[str, ndarray]
) -> None:
    import pyarrow
    from pyarrow import parquet

    number = pyarrow.from_numpy_dtype(np.dtype(dtype))
    try:
        columns = {name: pyarrow.array(array.tolist()) for name, array in others.items()}
    except UnicodeEncodeError:  # the name of a file need not be text
        raise UserError(f"{file} cannot hold names that are not valid Unicode. Write a .npz file.") from None
    fields = [("vectors", pyarrow.list_(number, shape[1])), *((name, each.type) for name, each in columns.items())]
    done = 0
    with parquet.ParquetWriter(sink, pyarrow.schema(fields)) as writer:
        for block in blocks:
            numbers = pyarrow.array(np.ascontiguousarray(block, dtype=dtype).reshape(-1))
            rows = [pyarrow.FixedSizeListArray.from_arrays(numbers, shape[1])]
            rows += [each.slice(done, len(block)) for each in columns.values()]
            writer.write_table(pyarrow.table(rows, schema=pyarrow.schema(fields)))
            done += len(block)
