"""Top-k: the smallest numbers of each row of a matrix that is processed in blocks, with their columns.

A number and its column are stored as one integer that sorts like the number: NumPy sorts short rows of such integers
more than ten times as fast as torch.topk. Once the lists are full, few numbers of a block are small enough, so the
minimum of every 16 columns (a fold) is checked first.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

_FOLD = 16  # columns whose minimum is checked first
_KEYS_AT_ONCE = 1 << 20  # 8 MB
_CROWDED = 16  # new numbers per place of a list from which a row is sorted separately
_MANY = 8  # folds per place of a list from which checking folds does not pay
_NOTHING = (0x7F80_0000 << 32) | 0xFFFF_FFFF  # infinity, in column -1

_Keys = NDArray[np.int64]


class Smallest:
    """Lists of the smallest numbers of some rows, all of one length. Of equal numbers, the first ones are kept.

    >>> lists = Smallest(rows=1, length=2)
    >>> lists.put(torch.tensor([[3.0, -1.0]]), column=0)
    >>> lists.put(torch.tensor([[2.0, 4.0]]), column=2)
    >>> lists.found()
    (array([[-1.,  2.]], dtype=float32), array([[1, 2]]))
    """

    def __init__(self, rows: int, length: int) -> None:
        self._keys = np.full((rows, length), _NOTHING)  # the last of a row is its largest; the others are unordered

    def put(self, block: Float[Tensor, "rows columns"], *, column: int, row: int = 0) -> None:
        """Process a block of the matrix, float32 or bfloat16 without NaN, that begins at this row and column."""
        keys = self._keys[row : row + len(block)]
        inside = block.shape[1] // _FOLD * _FOLD
        if inside and not _put_some(keys, block[:, :inside], column):
            _put_all(keys, block[:, :inside], column)
        if inside < block.shape[1]:
            _put_all(keys, block[:, inside:], column + inside)

    def found(
        self, rows: slice | Int64[np.ndarray, " rows"] = slice(None)
    ) -> tuple[Float32[np.ndarray, "rows length"], Int64[np.ndarray, "rows length"]]:
        """The lists of some rows, smallest first, and their columns; infinity and -1 in unused places."""
        keys = np.sort(self._keys[rows], axis=1)
        return _numbers(keys), keys.astype(np.int32).astype(np.int64)


def _put_some(keys: _Keys, block: Tensor, column: int) -> bool:
    """Put the numbers that are small enough into the lists. Returns False, unchanged, if they may be too many."""
    rows, columns = block.shape
    width, length = columns // _FOLD, keys.shape[1]
    if width < 2 * length:
        return False
    minima = _minima(block)  # (rows, width)
    bar = _numbers(keys[:, -1])  # (rows,)
    fresh = np.isinf(bar)
    if fresh.any():
        # At least `length` numbers are no larger than the `length`-th smallest minimum.
        some = minima[torch.from_numpy(fresh)].numpy()
        some.partition(length - 1, axis=1)
        bar[fresh] = _as_numbers(np.maximum(some[:, length - 1], 0) if some.dtype == np.int16 else some[:, length - 1])
    compare = np.less_equal if fresh.any() else np.less
    small = compare(minima.numpy(), _as_minima(bar, minima)[:, None])  # (rows, width)
    small = torch.from_numpy(small).contiguous().numpy()  # row-major; six times as fast as NumPy
    if np.count_nonzero(small) > _MANY * length * rows:
        return False
    row, fold = np.divmod(np.flatnonzero(small), width)
    down, across = block.stride()
    memory = block.as_strided(((rows - 1) * down + (columns - 1) * across + 1,), (1,))
    within = (row * down + fold * across)[:, None] + across * width * np.arange(_FOLD)  # (folds, _FOLD)
    numbers = _as_numbers(memory.view(minima.dtype).numpy()[within])
    where = np.flatnonzero(compare(numbers, bar[row, None]))  # (numbers that are small enough,)
    which, part = np.divmod(where, _FOLD)
    row = row[which]
    new = _as_keys(numbers.reshape(-1)[where], fold[which] + width * part + column)
    counts = np.bincount(row, minlength=rows)
    crowded = np.flatnonzero(counts > _CROWDED * length)  # few rows, as checked above
    if len(crowded):
        own = keys[crowded]
        _put_all(own, block[torch.from_numpy(crowded)], column)
        keys[crowded] = own
        left = counts[row] <= _CROWDED * length
        row, new = row[left], new[left]
    starts = np.searchsorted(row, np.arange(rows + 1))  # the numbers of a row are adjacent
    step = max(1, _KEYS_AT_ONCE // ((1 + _CROWDED) * length))
    for first in range(0, rows, step):
        mine = slice(starts[first], starts[min(first + step, rows)])
        if mine.start == mine.stop:
            continue
        place = np.arange(mine.start, mine.stop) - starts[row[mine]] + length
        table = np.full((min(step, rows - first), int(place.max()) + 1), _NOTHING)
        table[:, :length] = keys[first : first + step]
        table[row[mine] - first, place] = new[mine]
        table.partition(length - 1, axis=1)
        keys[first : first + step] = table[:, :length]
    return True


def _put_all(keys: _Keys, block: Tensor, column: int) -> None:
    length, columns = keys.shape[1], np.arange(column, column + block.shape[1])
    step = max(1, _KEYS_AT_ONCE // (length + len(columns)))
    for first in range(0, len(block), step):
        new = _as_keys(block[first : first + step].float().numpy(), columns)
        table = np.concatenate([keys[first : first + step], new], axis=1)
        table.partition(length - 1, axis=1)
        keys[first : first + step] = table[:, :length]


def _minima(block: Tensor) -> Tensor:
    """The minimum of each fold of columns, in the order of memory, for row-major and column-major blocks.

    bfloat16 numbers are compared as integers of the same bits, which is four times as fast: positive numbers keep their
    order, and negative ones, which do not, come before them.
    """
    bits = block.view(torch.int16) if block.dtype == torch.bfloat16 else block
    if bits.stride(0) == 1:
        return bits.T.reshape(_FOLD, -1, len(bits)).amin(dim=0).T
    return bits.reshape(len(bits), _FOLD, -1).amin(dim=1)


def _as_minima(bar: NDArray[np.float32], minima: Tensor) -> NDArray[Any]:
    """The threshold for the minima, so that none below the bar is missed."""
    if minima.dtype == torch.int16:
        bits: NDArray[np.int16] = torch.from_numpy(bar).bfloat16().view(torch.int16).numpy()
        return np.maximum(bits, 0)
    return bar


def _as_numbers(bits: NDArray[Any]) -> NDArray[np.float32]:
    if bits.dtype == np.int16:
        return (bits.astype(np.int32) << 16).view(np.float32)
    return bits


def _as_keys(numbers: NDArray[np.float32], columns: NDArray[np.int64]) -> _Keys:
    bits = np.ascontiguousarray(numbers).view(np.int32)
    return (_in_order(bits).astype(np.int64) << 32) | columns


def _numbers(keys: _Keys) -> NDArray[np.float32]:
    return _in_order((keys >> 32).astype(np.int32)).view(np.float32)


def _in_order(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Convert float32 bits to integers that sort like the numbers, and back."""
    return bits ^ ((bits >> 31) & 0x7FFF_FFFF)
