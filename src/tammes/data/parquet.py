"""Vectors in a .parquet file, read with pyarrow."""

import re
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from tammes.data.parquet_pages import unpacked_sizes
from tammes.data.vector_names import known_names
from tammes.errors import UserError, shown
from tammes.io.console import say
from tammes.io.limits import check_unpacked

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


_TEXT = 64  # bytes that a text takes in memory beside its characters
_ROWS = 512  # that are read at a time: a few bytes may stand for long vectors and texts in each
_TEXTS = 256_000_000  # bytes that the texts of so many rows may have, or they are read fewer at a time
_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}  # of a value; others have 8, or a length that is given


def parquet_arrays(file: Path, *, labelled: bool = True) -> dict[str, ndarray]:
    """The columns of a .parquet file that `tammes.data.vectors` knows by name, as arrays.

    Vectors are a column of lists, or else a column for each of their numbers (`_wide`).

    Args:
        labelled: whether there must be labels.

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
            known = known_names(names)
            columns = [known["vectors"]] if "vectors" in known else _wide(file, source.schema_arrow)
            if not columns or (labelled and "labels" not in known):
                missing = "labels" if columns else "vectors"
                raise UserError(f"{file} has no column `{missing}`; it has {', '.join(names) or 'none'}.")
            others = {ours: name for ours, name in known.items() if ours != "vectors"}
            _check_types(source.schema_arrow, columns, others, file, lists="vectors" in known)
            pages = _check_sizes(source.schema, {*columns, *others.values()}, file)
            found = {ours: _column(_read(source, name, pages[name], file), ours, file) for ours, name in others.items()}
            found["vectors"] = _stacked(source, columns, num_rows, file, lists="vectors" in known)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {str(error).rstrip('.')}. Expected a complete .parquet file.") from error
    return found


def _wide(file: Path, schema: "pyarrow.Schema") -> list[str]:
    """The columns of a wide table that hold a number of each vector.

    They are numbered: 0, 1, 2, … or with a name in front, such as dim_0 or x1. Where none are, or several rows of
    them, all columns of floating-point numbers are taken (of whole numbers where there are no others), and a note says
    which.
    """
    from pyarrow import types

    known = set(known_names(schema.names).values())
    others = [each for each in schema if each.name not in known]
    numeric = [each for each in others if types.is_floating(each.type) or types.is_integer(each.type)]
    numbered: dict[str, dict[int, str]] = {}
    for each in others:
        matched = re.fullmatch(r"(.*?)(0|[1-9][0-9]*)", each.name)
        if matched is not None and (each in numeric or not matched[1]):  # that 0, 1, 2 are no numbers is said later
            numbered.setdefault(matched[1], {})[int(matched[2])] = each.name
    rows = [row for prefix, row in numbered.items() if len(row) > 1 or prefix == ""]
    if len(rows) == 1:
        (row,) = rows
        places = sorted(row)
        first = 1 if places[0] == 1 and row[1] != "1" else 0
        gap = next((at for at, place in enumerate(places, start=first) if place != at), None)
        if gap is not None:
            missing = row[places[-1]].removesuffix(str(places[-1])) + str(gap)
            raise UserError(
                f"{file} has no column `{missing}`, but `{row[places[-1]]}`: a number of each vector is missing."
            )
        return [row[place] for place in places]
    floats = [each.name for each in numeric if types.is_floating(each.type)]
    found = floats or [each.name for each in numeric]
    if found:
        say(f"note: the vectors of {file} are its {len(found)} columns of numbers, {found[0]} to {found[-1]}.")
    return found


def _check_types(
    schema: "pyarrow.Schema", columns: list[str], others: dict[str, str], file: Path, *, lists: bool
) -> None:
    """Raise UserError for columns of a wrong type, before they are read, as texts could have any size."""
    from pyarrow import types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    for name in columns:
        whole = schema.field(name).type
        holds_lists = any(kind(whole) for kind in kinds)
        value = whole.value_type if holds_lists else whole
        numbers = types.is_floating(value) or types.is_integer(value)
        if not types.is_null(whole) and (lists != holds_lists or not numbers):
            expected = "lists of numbers" if lists else "numbers"
            raise UserError(f"`{name}` of {file} holds {whole}. Expected {expected}.")
    for ours, name in others.items():
        if types.is_nested(schema.field(name).type):
            raise UserError(f"`{ours}` of {file} holds {schema.field(name).type}. Expected numbers or text.")


def _check_sizes(schema: "pyarrow.parquet.ParquetSchema", names: set[str], file: Path) -> dict[str, int]:
    """Raise UserError for columns that would take too much memory. Returns the size of the largest page of each."""
    places: dict[int, str] = {}
    sizes: dict[int, int] = {}
    for place in range(len(schema)):
        column = schema.column(place)
        # A list is a column below its name.
        name = next((each for each in accumulate(column.path.split("."), "{}.{}".format) if each in names), None)
        if name is not None:
            fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
            places[place], sizes[place] = name, column.length if fixed else _BYTES.get(column.physical_type, 8)
    if names - set(places.values()):
        raise UserError(f"cannot read {file}: it is damaged. Expected a complete .parquet file.")
    found = unpacked_sizes(file, sizes)
    pages = {places[place]: size.largest_page for place, size in found.items()}
    check_unpacked(max([sum(size.values for size in found.values()), *pages.values()]), file.stat().st_size, str(file))
    return pages


def _stacked(
    source: "pyarrow.parquet.ParquetFile", columns: list[str], num_rows: int, file: Path, *, lists: bool
) -> ndarray:
    """Read the vectors a few hundred rows at a time, to save memory."""
    out: ndarray | None = None
    done = 0
    for batch in source.iter_batches(batch_size=_ROWS, columns=columns):
        rows = [_numbers(batch.column(name), name, file, done, lists=lists) for name in columns]
        block = rows[0] if lists else np.stack(rows, axis=1)
        if out is None:
            check_unpacked(num_rows * block[:1].nbytes, file.stat().st_size, str(file))
            out = np.empty((num_rows, block.shape[1]), block.dtype)
        if block.shape[1] != out.shape[1]:
            raise UserError(f"vector {done} of {file} has {block.shape[1]} numbers, those before it {out.shape[1]}.")
        if done + len(block) <= num_rows:
            out[done : done + len(block)] = block
        done += len(block)
    if done != num_rows:
        raise UserError(f"{file} has {done} rows and says {num_rows}: it is damaged. Save it again.")
    return np.empty((0, 0), np.float32) if out is None else out


def _numbers(column: "pyarrow.Array", name: str, file: Path, first: int, *, lists: bool) -> ndarray:
    """The numbers of a column: (rows,) for numbers, (rows, dim) for lists."""
    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise UserError(f"`{name}` of {file} is empty in row {first + row}.")
    if not lists:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    values = column.flatten()
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != lengths[0]).any():
        row = int((lengths != lengths[0]).argmax())
        raise UserError(f"vector {first + row} of {file} has {lengths[row]} numbers, those before it {lengths[0]}.")
    if values.null_count:
        row = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // int(lengths[0])
        raise UserError(f"a vector of {file} has an empty place; it is in row {first + row}.")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _read(source: "pyarrow.parquet.ParquetFile", name: str, page: int, file: Path) -> "pyarrow.ChunkedArray":
    """A whole column, a few rows at a time: one text, stored once, may stand in every row.

    Args:
        page: the bytes of its largest page; no text is longer.
    """
    import pyarrow

    parts, total = [], 0
    rows = max(1, min(_ROWS, _TEXTS // max(1, page)))
    for batch in source.iter_batches(batch_size=rows, columns=[name]):
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
    longest = max((len(value) for value in values if isinstance(value, str | bytes)), default=0)
    check_unpacked(4 * longest * len(values), file.stat().st_size, f"`{name}` of {file}")  # NumPy makes all as long
    array = np.array(values)
    return array if len(array) else np.empty(0, np.int64)
