"""Squared distances by matrix products in float32, float64 or bfloat16, each with a bound on its error.

Vectors are passed centred, in float64, with norms up to 1. The output of a product is written into a buffer that is
reused, as allocating memory costs a tenth of the product.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from tammes.io.machine import multiplies_bfloat16

Numbers = NDArray[np.floating[Any]]

NUMBERS_AT_ONCE = 1 << 20  # 8 MB of float64
_GATHERED_AT_ONCE = 1 << 22  # numbers gathered at a time when candidates are multiplied again in float32: 16 MB


def row_blocks(vectors: Numbers) -> Iterator[slice]:
    """Consecutive slices of the vectors, small enough to copy."""
    size = max(1, NUMBERS_AT_ONCE // vectors.shape[1])
    return (slice(start, start + size) for start in range(0, len(vectors), size))


class _Table:
    """A gallery whose products with prepared queries are computed a block at a time."""

    table: Tensor
    room: Tensor | None = None

    def block(self, prepared: Tensor, columns: slice) -> Tensor:
        """The products of prepared queries with some gallery rows; overwritten by the next call."""
        gallery = self.table[columns]
        shape = (len(prepared), len(gallery))
        if self.room is None or self.room.shape != shape:
            self.room = torch.empty(shape, dtype=prepared.dtype)
        with _highest_precision():
            return torch.mm(prepared, gallery.T, out=self.room)


class Products(_Table):
    """|b|² - 2 a·b, the squared distance without |a|², as one matrix product."""

    def __init__(
        self,
        gallery: Numbers,
        centred: Callable[[Numbers], Float64[np.ndarray, "rows dim"]],
        dtype: type[np.float32] | type[np.float64],
    ) -> None:
        self.dtype = dtype
        self.table = torch.from_numpy(np.empty((len(gallery), gallery.shape[1] + 1), dtype=dtype))  # (gallery, dim + 1)
        longest = 0.0
        for part in row_blocks(gallery):
            moved = centred(gallery[part])
            squares = np.square(moved).sum(axis=1)
            self.table.numpy()[part, :-1] = moved
            self.table.numpy()[part, -1] = squares
            longest = max(longest, float(squares.max()))
        self.longest = longest**0.5

    def prepared(self, centred: Float64[np.ndarray, "rows dim"]) -> Tensor:
        """Queries in the form that `block` and `chosen` take."""
        ends = np.ones((len(centred), 1))
        return torch.from_numpy(np.concatenate([-2 * centred, ends], axis=1).astype(self.dtype))

    def chosen(self, prepared: Tensor, places: Int64[np.ndarray, "rows some"]) -> Float32[np.ndarray, "rows some"]:
        """The products of each query with its own list of items."""
        found = torch.empty(places.shape)
        size = max(1, _GATHERED_AT_ONCE // max(1, places.shape[1] * self.table.shape[1]))
        with _highest_precision():
            for start in range(0, len(places), size):
                part = slice(start, start + size)
                items = self.table[torch.from_numpy(places[part].reshape(-1))]  # (rows * some, dim + 1)
                items = items.view(*places[part].shape, -1)
                torch.bmm(items, prepared[part, :, None], out=found[part, :, None])
        return found.numpy()

    def error(
        self, centred: Float64[np.ndarray, "rows dim"], reach: Float64[np.ndarray, " rows"] | None = None
    ) -> Float64[np.ndarray, " rows"]:
        """An upper bound on the rounding error of a product, a sum of dim + 1 terms.

        The second term covers the rounding of the float64 value itself, the last one denormal terms, which a processor
        may flush to 0.

        Args:
            reach: only items nearer than this must be separated from others. An item b with |b| ≥ 2 (|a| + reach) lies
                outside by (|b| - |a|)² - reach² ≥ |b|²/4, which exceeds its own error if rounding is below 1/8, so that
                only items with a smaller norm count for the bound.
        """
        lengths = np.linalg.norm(centred, axis=1)
        rounding = 1.1 * (centred.shape[1] + 16) * float(np.finfo(self.dtype).eps) / 2
        longest: Any = self.longest
        if reach is not None and rounding < 1 / 8:
            longest = np.minimum(longest, 2 * (lengths + reach))
        of_product = rounding * (2 * lengths + longest) * longest
        return np.asarray(of_product + 2.0**-48 * (lengths + longest) ** 2 + _too_small(centred, self.dtype))


class BothWays(_Table):
    """|a|² + |b|² - 2 a·b: full squared distances, valid for both items of a pair, as one matrix product.

    In bfloat16, accumulated in float32, it is approximate, and twice as fast as float32 on a processor with bfloat16
    instructions. A squared norm is stored as three bfloat16 numbers, which together hold a float32.
    """

    def __init__(self, products: Products, dtype: torch.dtype) -> None:
        dim = products.table.shape[1] - 1
        self.of, self.dtype, self.lost = products, dtype, 0.0  # lost: the largest error of a vector in this dtype
        self.rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-23  # relative error of a product
        number = _parts_of(products.table[:1, -1], dtype).shape[1]
        self.table = torch.ones(len(products.table), dim + 2 * number, dtype=dtype)  # (gallery, dim, |b|², 1)
        for part in row_blocks(products.table.numpy()):
            vectors = products.table[part, :-1]
            self.table[part, :dim] = vectors
            self.lost = max(
                self.lost, float((vectors - self.table[part, :dim]).double().square().sum(dim=1).max()) ** 0.5
            )
            self.table[part, dim : dim + number] = _parts_of(products.table[part, -1], dtype)

    def prepared(self, centred: Float64[np.ndarray, "rows dim"]) -> Tensor:
        """Queries in the form that `block` takes."""
        squares = _parts_of(torch.from_numpy(np.square(centred).sum(axis=1)).float(), self.dtype)
        given = torch.from_numpy(centred).to(self.dtype)
        return torch.cat([-2 * given, torch.ones_like(squares), squares], dim=1)

    def error(self, centred: Float64[np.ndarray, "rows dim"]) -> Float64[np.ndarray, " rows"]:
        """An upper bound on the error of a product before its own rounding.

        a·b - a'·b' = (a - a')·b + a'·(b - b'), each at most the product of the norms; plus the float32 summation.
        """
        given = torch.from_numpy(centred)
        rounded = given.to(self.dtype).double()
        lost, lengths = (given - rounded).norm(dim=1).numpy(), rounded.norm(dim=1).numpy()
        longest = self.of.longest
        of_sums = 4 * (centred.shape[1] + 16) * float(np.finfo(np.float32).eps) * (lengths + longest) ** 2
        return np.asarray(2 * (lost * longest + lengths * self.lost) + of_sums + _too_small(centred, np.float32))


def _too_small(centred: Float64[np.ndarray, "rows dim"], dtype: type[np.float32] | type[np.float64]) -> float:
    """The error of denormal terms of a product, whose terms are at most 4."""
    return float(4 * (centred.shape[1] + 16) * np.finfo(dtype).tiny)


def _parts_of(numbers: Float32[Tensor, " some"], dtype: torch.dtype) -> Float[Tensor, "some parts"]:
    """Float32 numbers as exact sums of numbers of the dtype: three for bfloat16."""
    if dtype == torch.float32:
        return numbers[:, None]
    first = numbers.bfloat16()
    second = (numbers - first).bfloat16()
    return torch.stack([first, second, (numbers - first - second).bfloat16()], dim=1)


@cache
def half_is_faster() -> bool:
    """Whether this processor has bfloat16 instructions and accumulates their products in float32."""
    if not multiplies_bfloat16():
        return False
    left, right = torch.randn(2, 256, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    with _highest_precision():
        wide, half = left.float() @ right.float().T, left @ right.T
    return bool(((half.float() - wide).abs() <= wide.abs() * 2.0**-8 + 1e-3).all())


@contextmanager
def _highest_precision() -> Iterator[None]:
    """Compute float32 products in full precision, also if the caller has allowed bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
