"""Orthogonal simplices: the closed form for dim + 2 to 2 dim classes."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.simplex import simplex_corners
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError


def orthogonal_simplices(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """C - D balanced, mutually orthogonal simplices: smallest distance sqrt 2, which is Rankin's bound (1955).

    The largest distance is sqrt(2 + 2/floor(D/(C-D))), the lowest possible with a smallest distance of sqrt 2: such an
    arrangement splits into mutually orthogonal parts, of which at least C - D are linearly dependent; the smallest of
    those spans n <= floor(D/(C-D)) dimensions and has a pair with cosine <= -1/n.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if num_classes <= dim + 1:
        raise UserError(
            f"orthogonal simplices in dim {dim} are for {dim + 2} to {2 * dim} classes, got {num_classes}."
            " Use centroids.simplex, whose distances are larger."
        )
    if num_classes > 2 * dim:
        raise UserError(
            f"orthogonal simplices for {num_classes} classes need dim >= {(num_classes + 1) // 2}, got {dim}."
            " Raise dim or use centroids.place."
        )
    count = num_classes - dim
    points = torch.zeros(num_classes, dim, dtype=torch.float64)
    row = column = 0
    for part in range(count):
        size = dim // count + (part < dim % count)
        points[row : row + size + 1, column : column + size] = simplex_corners(size + 1)
        row, column = row + size + 1, column + size
    return points.to(dtype)
