"""Vectors in a .parquet file, read with pyarrow."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from tammes.errors import UserError, shown
from tammes.io.limits import check_unpacked

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


_TEXT = 64  # bytes that a text takes in memory beside its characters
_ROWS = 512  # that are read at a time: a few bytes may stand for long vectors and texts in each


def parquet_arrays(file: Path) -> dict[str, ndarray]:
    """The columns of a .parquet file that `tammes.data.vectors` knows by name, as arrays.

    Raises:
        UserError: pyarrow is not installed, the file is not whole, or the columns of vectors or labels are missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {file} needs pyarrow: pip install 'tammes[vectors]'.") from None
    try:
        with parquet.ParquetFile(file, memory_map=True) as source:
            names, num_rows = source.schema_arrow.names, source.metadata.num_rows
            twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
            if twice is not None:
                raise UserError(f"{file} has two columns `{twice}`. Rename one, or leave it out.")
            numbered = sorted((name for name in names if re.fullmatch(r"0|[1-9][0-9]*", name)), key=int)
            columns = ["vectors"] if "vectors" in names else numbered
            if not columns or "labels" not in names:
                missing = "labels" if columns else "vectors"
                raise UserError(f"{file} has no column `{missing}`; it has {', '.join(names) or 'none'}.")
            gap = next((number for number, name in enumerate(numbered) if int(name) != number), None)
            if columns == numbered and gap is not None:
                raise UserError(
                    f"{file} has no column `{gap}`, but `{numbered[-1]}`: a number of each vector is missing."
                )
            others = [name for name in ("labels", "query", "gallery", "sequence", "paths") if name in names]
            found = {name: _column(_read(source, name, file), name, file) for name in others}
            found["vectors"] = _stacked(source, columns, num_rows, file)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {str(error).rstrip('.')}. Expected a whole .parquet file.") from error
    return found


def _stacked(source: "pyarrow.parquet.ParquetFile", columns: list[str], num_rows: int, file: Path) -> ndarray:
    """The vectors, some hundred rows at a time: no more than they themselves are in memory.

    How large a column is stands in the file too, but pyarrow ends the process where that is damaged.
    """
    out: ndarray | None = None
    done = 0
    for batch in source.iter_batches(batch_size=_ROWS, columns=columns):
        rows = [_numbers(batch.column(number), name, file, done) for number, name in enumerate(batch.schema.names)]
        block = rows[0] if columns == ["vectors"] else np.stack(rows, axis=1)
        if out is None:
            check_unpacked(num_rows * block[:1].nbytes, file.stat().st_size, str(file))
            out = np.empty((num_rows, block.shape[1]), block.dtype)
        if block.shape[1] != out.shape[1]:
            raise UserError(f"vector {done} of {file} has {block.shape[1]} numbers, those before it {out.shape[1]}.")
        out[done : done + len(block)] = block
        done += len(block)
    return np.empty((0, 0), np.float32) if out is None else out


def _numbers(column: "pyarrow.Array", name: str, file: Path, first: int) -> ndarray:
    """The numbers of a column: (rows,) if it holds numbers, (rows, dim) if it holds lists of them."""
    from pyarrow import types

    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise UserError(f"`{name}` of {file} is empty in row {first + row}.")
    lists = types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
    values = column.flatten() if lists else column
    if lists != (name == "vectors") or not (types.is_floating(values.type) or types.is_integer(values.type)):
        expected = "lists of numbers" if name == "vectors" else "numbers"
        raise UserError(f"`{name}` of {file} holds {column.type}. Expected {expected}.")
    if not lists:
        return np.asarray(values.to_numpy(zero_copy_only=False))
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != lengths[0]).any():
        row = int((lengths != lengths[0]).argmax())
        raise UserError(f"vector {first + row} of {file} has {lengths[row]} numbers, those before it {lengths[0]}.")
    if values.null_count:
        row = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // int(lengths[0])
        raise UserError(f"a vector of {file} has an empty place; it is in row {first + row}.")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _read(source: "pyarrow.parquet.ParquetFile", name: str, file: Path) -> "pyarrow.ChunkedArray":
    """A whole column, a few rows at a time: one text, stored once, may stand in every row."""
    import pyarrow

    parts, total = [], 0
    for batch in source.iter_batches(batch_size=_ROWS, columns=[name]):
        part = batch.column(0)
        if pyarrow.types.is_dictionary(part.type):
            part.validate(full=True)  # pyarrow takes the numbers of a damaged one on trust
            part = part.cast(part.type.value_type)
        parts.append(part)
        total += part.nbytes + _TEXT * len(part)
        check_unpacked(total, file.stat().st_size, str(file))
    return pyarrow.chunked_array(parts, None if parts else source.schema_arrow.field(name).type)


def _column(column: "pyarrow.ChunkedArray", name: str, file: Path) -> ndarray:
    """A column of numbers, truth values or text."""
    if column.null_count:
        raise UserError(f"`{name}` of {file} is empty in {column.null_count} rows. Fill it in.")
    values = column.to_pylist()
    row = next((row for row, value in enumerate(values) if isinstance(value, str) and value.endswith("\0")), None)
    if row is not None:  # NumPy would drop it, and take two labels for one
        raise UserError(f"`{name}` of {file} ends in the character NUL in row {row}: {shown(values[row])}. Rename it.")
    array = np.array(values)
    return array if len(array) else np.empty(0, np.int64)
