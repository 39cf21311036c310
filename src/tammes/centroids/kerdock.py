"""Kerdock sets: mutually unbiased bases, in closed form."""

from math import ceil, sqrt

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import hadamard
from torch import Tensor

from tammes.centroids.fields import LARGEST_DEGREE, Ints, bits, product, trace
from tammes.centroids.orthogonal_simplices import orthogonal_simplices
from tammes.centroids.simplex import simplex
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError


def kerdock(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Points of mutually unbiased bases: cosines are at most 1/sqrt(D0), with D0 the largest power of 4 up to dim.

    There are D0/2 + 1 orthonormal bases of D0 dimensions, and vectors of different bases have cosine ±1/sqrt(D0):
    optimal for D0 = 16, 64, 256, 1024 when full (Kerdock 1972; Cohn, de Laat and Leijenhorst, arXiv:2403.16874). Only
    one vector of each ± pair is used if that suffices, so that no distance exceeds sqrt(2 + 2/sqrt(D0)). Dimensions
    beyond D0 lower the cosine further: each basis is tilted towards its own point of a simplex in them.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if dim < 4:
        raise UserError(f"kerdock centroids need dim >= 4, got {dim}. Raise dim or use centroids.place.")
    size = base_dim(dim)
    if num_classes > capacity(dim):
        raise UserError(
            f"kerdock centroids in dim {dim} are at most {capacity(dim)}, got {num_classes} classes."
            " Raise dim or use centroids.place."
        )
    points = torch.zeros(num_classes, dim, dtype=dtype)
    count = min(num_classes, capacity(dim) // 2)  # one of each ± pair
    num_bases = ceil(count / size)
    tilt = _tilt(num_bases, dim)
    spare = _spare(num_bases, dim - size) * sqrt(tilt) if tilt else None  # (bases, dim - size)
    walsh = hadamard(size) / sqrt(size)  # (size, size)
    signs = _signs(size, min(num_bases, size // 2))  # (bases or one less, size)
    for index in range(num_bases):
        # The last basis of the full set is that of the axes; all others are signed Walsh functions.
        basis = np.eye(size) if index == size // 2 else walsh * signs[index]
        rows = slice(index * size, min((index + 1) * size, count))
        points[rows, :size] = torch.from_numpy(basis * sqrt(1 - tilt))[: rows.stop - rows.start].to(dtype)
        if spare is not None:
            points[rows, size:] = spare[index].to(dtype)
    points[count:, :size] = -points[: num_classes - count, :size]
    points[count:, size:] = points[: num_classes - count, size:]
    return points


def base_dim(dim: int) -> int:
    """D0: the largest power of 4 up to dim for which the field is tabulated."""
    return 1 << 2 * min((dim.bit_length() - 1) // 2, LARGEST_DEGREE // 2)


def capacity(dim: int) -> int:
    """The number of points: D0² + 2 D0."""
    return base_dim(dim) * (base_dim(dim) + 2)


def largest_cosine(num_classes: int, dim: int) -> float:
    """The guaranteed maximum cosine between two points."""
    size = base_dim(dim)
    num_bases = ceil(min(num_classes, capacity(dim) // 2) / size)
    if num_bases == 1:
        return 0.0
    return _tilt(num_bases, dim) or 1 / sqrt(size)


def _tilt(num_bases: int, dim: int) -> float:
    """The squared norm a² in the spare dimensions at which the cosines within and between bases are equal.

    Within a basis the cosine is a²; between bases (1-a²)µ + a²b, with b <= 0 the largest cosine of the spare points.
    """
    spare = dim - base_dim(dim)
    mu = 1 / sqrt(base_dim(dim))
    if num_bases < 2 or num_bases > 2 * spare:
        return 0.0  # nothing to gain, or too few dimensions for that many points with cosines <= 0
    b = -1 / (num_bases - 1) if num_bases <= spare + 1 else 0.0
    return mu / (1 + mu - b)


def _spare(num_bases: int, dim: int) -> Float[Tensor, "bases dim"]:
    generate = simplex if num_bases <= dim + 1 else orthogonal_simplices
    return generate(num_bases, dim, dtype=torch.float64)


def _signs(size: int, count: int) -> Ints:
    """Signs ±1 that turn the Walsh functions into the other bases: (-1)^Q_s(v) for every vector v of m bits.

    Q_s has Kantor's alternating form B_s((x,a),(y,b)) = Tr(s²xy) + Tr(sx)Tr(sy) + aTr(sy) + bTr(sx) over the field of
    2^(m-1) elements; the sum of any two of these forms is nonsingular, which makes the bases unbiased.
    """
    degree = size.bit_length() - 2  # m - 1
    basis = 1 << np.arange(degree)  # (m-1,)
    vectors = bits(np.arange(size), degree + 1).astype(np.int64)  # (size, m)
    result = np.empty((count, size), dtype=np.int64)
    for s in range(count):
        element = np.array(s)
        to_s = trace(degree, product(degree, element, basis))  # (m-1,): Tr(sx)
        square = product(degree, element, element)
        form = np.zeros((degree + 1, degree + 1), dtype=np.int64)
        pairs = product(degree, square, product(degree, basis[:, None], basis))  # (m-1, m-1)
        form[:degree, :degree] = trace(degree, pairs) ^ (to_s[:, None] & to_s)
        form[:degree, degree] = to_s
        quadratic = np.einsum("vi,ij,vj->v", vectors, np.triu(form, 1), vectors, optimize=True) % 2
        result[s] = 1 - 2 * quadratic
    return result
