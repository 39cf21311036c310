"""Vectors that need not fit in memory: looked at a block at a time."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from tammes.errors import UserError

Scale = Literal["common", "columns"]

BLOCK = 1 << 21  # numbers that are looked at together: 16 MB of float64


class Rows:
    """Some rows of an array as if there were no others, without a copy of them: what a learner asks of an array."""

    def __init__(self, array: ndarray, rows: Int64[ndarray, " rows"]) -> None:
        self.array, self.rows = array, rows
        self.shape, self.dtype = (len(rows), array.shape[1]), array.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> ndarray:
        return np.asarray(self.array[self.rows[chosen]])


def blocks(count: int, columns: int) -> Iterator[slice]:
    """Slices of so many rows that a block of them is of bounded size."""
    step = max(1, BLOCK // columns)
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def check_finite(X: ndarray | Rows) -> None:  # noqa: N803
    """Refuse what is not finite, and say where it is."""
    if X.dtype.kind != "f":
        return
    for part in blocks(*X.shape):
        _check_block(X[part], part.start)


def _check_block(block: ndarray, begin: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise UserError(
            f"X holds NaN or infinity in row {begin + row}, column {column}. Fill it in, or leave the row out."
        )


def mean_and_variance(X: ndarray | Rows) -> tuple[Float64[ndarray, " columns"], Float64[ndarray, " columns"]]:  # noqa: N803
    """Of each column, in one pass; refuses what is not finite."""
    # Measured from the first row: a constant column is then exactly zero, and a large mean costs no digits.
    _check_block(X[:1], 0)
    first = X[0].astype(np.float64)
    total, squares = np.zeros(len(first)), np.zeros(len(first))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in blocks(*X.shape):
            _check_block(X[part], part.start)
            block = X[part].astype(np.float64) - first
            total += block.sum(axis=0)
            squares += np.einsum("ij,ij->j", block, block)
        away = total / len(X)
        variance = squares / len(X) - away**2
    if not np.isfinite(variance).all():
        column = int((~np.isfinite(variance)).argmax())
        raise UserError(f"the numbers in column {column} of X are so large that their squares overflow. Scale X down.")
    return first + away, variance.clip(min=0)


def scales(variance: Float64[ndarray, " columns"], scale: Scale, least: float = 0.0) -> Float64[ndarray, " columns"]:
    """What each column is divided by; a constant one by 1."""
    variance = np.full_like(variance, variance.mean()) if scale == "common" else variance
    return np.sqrt(np.where(variance > least, variance, 1.0))
