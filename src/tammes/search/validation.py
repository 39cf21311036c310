"""Validation: vectors and labels of any kind as NumPy arrays, or a UserError."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

from tammes.errors import UserError
from tammes.search.distance_tables import Numbers, row_blocks

Labels = Sequence[int] | Sequence[str] | Shaped[np.ndarray, "..."] | Shaped[Tensor, "..."]
_LARGEST = 1e150  # the square of anything larger overflows


def dense(tensor: Tensor, what: str) -> NDArray[Any]:
    """A tensor on any device as a NumPy array; UserError for sparse, meta and quantised tensors."""
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "a meta tensor" if tensor.is_meta else f"one of layout {tensor.layout}"
        raise UserError(f"{what} must be a tensor that holds all of its numbers, got {kind}.")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    known = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    try:
        return (tensor if known else tensor.float()).numpy()
    except TypeError:
        raise UserError(
            f"{what} must have a dtype that NumPy supports, got {tensor.dtype}. Use {what}.dequantize(), or"
            f" {what}.float()."
        ) from None


def as_array(given: Any, what: str) -> NDArray[Any]:
    """Array-like data as a NumPy array in native byte order; UserError for masked or ragged data."""
    if isinstance(given, Tensor):
        return dense(given, what)
    check_not_masked(given, what)
    try:
        array = np.asarray(given)
    except ValueError:
        raise UserError(f"{what} must be a table or a list of one kind: its rows differ in length.") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_not_masked(given: Any, what: str) -> None:
    """Raise UserError for an array with masked entries, whose mask NumPy would silently drop."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise UserError(
            f"{what} has a mask that hides {int(given.mask.sum())} of its entries. Fill them in: {what}.filled(…),"
            " or leave their rows out."
        )


def checked_vectors(vectors: Any, what: str = "vectors") -> Numbers:
    """The vectors as a NumPy array of float32 or float64, or a UserError."""
    array = as_array(vectors, what)
    if array.dtype == object and _is_nullable(vectors):  # missing values become NaN, which is reported below
        array = vectors.to_numpy(dtype=np.float64, na_value=np.nan)
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise UserError(f"{what} must be floating point, got {array.dtype}.")
    if array.ndim != 2:
        raise UserError(f"{what} must have shape (items, dim), got {array.shape}.")
    if 0 in array.shape:
        raise UserError(f"{what} are empty: got shape {array.shape}.")
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    limit = array.dtype.type(min(_LARGEST, float(np.finfo(array.dtype).max)))
    fine = np.concatenate([(np.abs(array[part]) <= limit).all(axis=1) for part in row_blocks(array)])  # (items,)
    if not fine.all():
        raise UserError(
            f"{what} must be finite numbers below {_LARGEST:g}: row {np.argmin(fine)} is not"
            f" ({np.sum(~fine)} of {len(fine)} rows)."
        )
    return array


def _is_nullable(given: Any) -> bool:
    """Whether it is a pandas table of nullable floats."""
    kinds = {str(kind) for kind in getattr(given, "dtypes", ())}
    return bool(kinds) and kinds <= {"Float32", "Float64"}


def label_array(labels: Any, what: str) -> Shaped[np.ndarray, "..."]:
    """Labels as an array in which different labels stay different."""
    if not isinstance(labels, list | tuple):
        return as_array(labels, what)
    if 0 < sum(isinstance(label, str) for label in labels) < len(labels):
        kinds = sorted({type(label).__name__ for label in labels})
        raise UserError(f"{what} must be all integers or all strings, got {' and '.join(kinds)}.")
    # NumPy drops trailing NULs of strings, and rounds integers that do not fit.
    kept_apart = any(isinstance(label, str) and label.endswith("\0") for label in labels)
    array = as_array(labels, what)
    whole = array.ndim == 1 and array.dtype.kind == "f" and all(type(label) is int for label in labels)
    return np.array(labels, dtype=object) if kept_apart or whole else array
