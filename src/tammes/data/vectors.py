"""Read vectors and labels from a .npz or .parquet file, or vectors alone from a .npy file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray

from tammes.data.npz import npy_array, npz_arrays
from tammes.data.parquet import parquet_arrays
from tammes.errors import UserError

_BLOCK = 1 << 22  # numbers that are looked at together
_EXPECTED = "Expected a .npz or .parquet file with `vectors` and `labels`."
_READ = (".npz", ".parquet", ".npy")


@dataclass(frozen=True)
class Vectors:
    """Vectors with labels and other columns of a file.

    Attributes:
        vectors: in their stored precision; memory-mapped if possible.
        labels: integers or text; all empty if there are none.
        query, gallery: masks of the queries and of the gallery; None for all.
        sequence: numbers or text; a query does not find items of its own sequence. None if there are none.
        paths: the path of each vector's item; None if the file has none.
        labelled: whether the file has labels.
    """

    vectors: Float[ndarray, "items dim"]
    labels: Shaped[ndarray, " items"]
    query: Bool[ndarray, " items"] | None = None
    gallery: Bool[ndarray, " items"] | None = None
    sequence: Shaped[ndarray, " items"] | None = None
    paths: Shaped[ndarray, " items"] | None = None
    labelled: bool = True

    def __len__(self) -> int:
        return len(self.vectors)

    def keys(self, otherwise: str = "") -> list[str]:
        """What each is called: its path, or where the file does not say it, its number, with this in front."""
        return [f"{otherwise}{n}" for n in range(len(self))] if self.paths is None else list(map(str, self.paths))


def vectors(file: Path, *, labelled: bool = True) -> Vectors:
    """Read a file of vectors.

    A .npz file has the arrays `vectors` and `labels` (or `X` and `y`), and optionally `query`, `gallery` (masks or
    positions), `sequence` and `paths`. An uncompressed one, as written by `numpy.savez`, is memory-mapped and may be
    larger than memory. A .parquet file has columns of the same names, `vectors` as lists of numbers, or one column per
    number: 0, 1, 2, … or dim_0, dim_1, … A .npy file has vectors alone.

    Args:
        labelled: whether labels are needed.

    Raises:
        UserError: the file cannot be read, something is missing, of the wrong shape or kind, or not finite.
    """
    expected = _EXPECTED if labelled else "Expected a .npz, .parquet or .npy file of vectors."
    if not file.exists():
        raise UserError(f"no such file: {file}. {expected}")
    suffix = file.suffix.lower()
    if suffix not in _READ:
        raise UserError(f"{file} is neither .npz nor .parquet. {expected}")
    if suffix == ".npy":
        if labelled:
            raise UserError(
                f"{file} holds vectors alone, and labels are needed. Save both:"
                f" np.savez({str(file.with_suffix('.npz'))!r}, vectors=vectors, labels=labels)"
            )
        return _checked(file, {"vectors": npy_array(file)})
    read = npz_arrays if suffix == ".npz" else parquet_arrays
    return _checked(file, read(file, labelled=labelled))


def _checked(file: Path, arrays: dict[str, ndarray]) -> Vectors:
    array = arrays["vectors"]
    if array.ndim != 2 or 0 in array.shape:
        raise UserError(f"`vectors` of {file} has the shape {array.shape}. Expected one row of numbers for each item.")
    if array.dtype.kind not in "fiu":
        raise UserError(f"`vectors` of {file} holds {array.dtype}. Expected floating-point numbers.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        array = array.astype(np.float64, subok=False)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), subok=False)
    step = max(1, _BLOCK // array.shape[1])
    for begin in range(0, len(array), step):
        finite = np.isfinite(array[begin : begin + step]).all(axis=1)
        if not finite.all():
            raise UserError(f"vector {begin + int((~finite).argmax())} of {file} holds a number that is not finite.")
    named = {
        name: _names(file, name, arrays[name], len(array)) for name in ("labels", "sequence", "paths") if name in arrays
    }
    masks = {name: _mask(file, name, arrays[name], len(array)) for name in ("query", "gallery") if name in arrays}
    labels = named.pop("labels", np.zeros(len(array), dtype="U1"))
    return Vectors(array, labels, **named, **masks, labelled="labels" in arrays)


def _names(file: Path, name: str, array: ndarray, num_items: int) -> Shaped[ndarray, " items"]:
    if array.shape != (num_items,):
        raise UserError(
            f"`{name}` of {file} has the shape {array.shape}. Expected one for each of {num_items} vectors."
        )
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"`{name}` of {file} is not a text in UTF-8.") from None
    if array.dtype.kind not in "iuU":
        raise UserError(f"`{name}` of {file} holds {array.dtype}. Expected whole numbers or text.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _mask(file: Path, name: str, array: ndarray, num_items: int) -> Bool[ndarray, " items"]:
    if array.dtype == bool and array.shape == (num_items,):
        return array
    positions = array.dtype.kind in "iu" and array.ndim == 1
    if not positions or len(np.unique(array)) < len(array) or ((array < 0) | (array >= num_items)).any():
        raise UserError(
            f"`{name}` of {file} is neither a mask ({num_items} truth values) nor different positions from 0 to "
            f"{num_items - 1}: it holds {array.dtype} in the shape {array.shape}."
        )
    mask = np.zeros(num_items, dtype=bool)
    mask[array] = True
    return mask
