"""Statistics of vectors that need not fit into memory, block by block."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from tammes.errors import UserError

Scale = Literal["common", "columns"]

REACH = 1e140  # scales from the mean; the squares of all that is nearer can be added up
_LOST = 1e-150  # the squares of smaller differences, or what is left of them, are too small for float64
BLOCK = 1 << 21  # numbers in one block: 16 MB of float64


class Rows:
    """A view of some rows of an array, without a copy, with the interface that a learner needs."""

    def __init__(self, array: "ndarray | Rows", rows: Int64[ndarray, " rows"]) -> None:
        self.array, self.rows = array, rows
        self.shape: tuple[int, int] = (len(rows), array.shape[1])
        self.dtype: np.dtype[Any] = array.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> ndarray:
        return np.asarray(self.array[self.rows[chosen]])


def blocks(count: int, columns: int) -> Iterator[slice]:
    """Slices of rows with a bounded block size."""
    step = max(1, BLOCK // columns)
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def check_within_reach(
    X: ndarray | Rows,  # noqa: N803
    mean: Float64[ndarray, " columns"],
    scale: Float64[ndarray, " columns"],
) -> None:
    """Raise UserError for rows that are not finite, or so far from the training data that squares overflow."""
    for part in blocks(*X.shape):
        _check_block(X[part], part.start)
        with np.errstate(over="ignore"):
            near = (np.abs(X[part].astype(np.float64) - mean) <= REACH * scale).all(axis=1)  # (rows,)
        if not near.all():
            raise UserError(
                f"the numbers in row {part.start + int((~near).argmax())} of X are so much larger than those that were"
                " learned from that their squares overflow. Scale X as it was then."
            )


def _check_block(block: ndarray, begin: int) -> None:
    if block.dtype.kind != "f":
        return
    finite = np.isfinite(block)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise UserError(
            f"X holds NaN or infinity in row {begin + row}, column {column}. Fill it in, or leave the row out."
        )


def mean_and_variance(
    X: ndarray | Rows,  # noqa: N803
    scale: Scale,
) -> tuple[Float64[ndarray, " columns"], Float64[ndarray, " columns"]]:
    """Mean and variance of each column, in one pass. Raises UserError for data that is not finite or not scalable."""
    # Relative to the first row: a constant column is then exactly zero, and a large mean costs no digits.
    _check_block(X[:1], 0)
    first = X[0].astype(np.float64)
    total, squares, farthest = np.zeros(len(first)), np.zeros(len(first)), np.zeros(len(first))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in blocks(*X.shape):
            _check_block(X[part], part.start)
            block = X[part].astype(np.float64) - first
            total += block.sum(axis=0)
            squares += np.einsum("ij,ij->j", block, block)
            farthest = np.maximum(farthest, np.abs(block, out=block).max(axis=0))
        away = total / len(X)
        variance = squares / len(X) - away**2
    if not np.isfinite(variance).all():
        column = int((~np.isfinite(variance)).argmax())
        raise UserError(f"the numbers in column {column} of X are so large that their squares overflow. Scale X down.")
    _check_spread(farthest, scale, whole=X.dtype.kind in "iu")
    return first + away, variance.clip(min=0)


def _check_spread(farthest: Float64[ndarray, " columns"], scale: Scale, *, whole: bool) -> None:
    """Raise UserError if all vectors are equal, or squares of a column underflow.

    Args:
        farthest: the largest distance of each column from its first number.
        whole: whether they were integers before the conversion to float64.
    """
    if not farthest.any():
        lost = " (whole numbers above 2**53 are rounded: take from them what they have in common first)" * whole
        raise UserError(f"all vectors in X are the same{lost}: there is nothing to learn from them. Add others.")
    small = (farthest > 0) & (farthest < _LOST) if scale == "columns" else np.full(1, farthest.max() < _LOST)
    if small.any():
        which = f"column {int(small.argmax())} of X" if scale == "columns" else "X"
        raise UserError(f"the numbers in {which} differ by so little that their squares vanish. Scale X up.")


def scales(variance: Float64[ndarray, " columns"], scale: Scale, least: float = 0.0) -> Float64[ndarray, " columns"]:
    """The divisor of each column; 1 for a constant column."""
    variance = np.full_like(variance, variance.mean()) if scale == "common" else variance
    return np.sqrt(np.where(variance > least, variance, 1.0))
