"""The regular simplex."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError


def simplex(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Vertices of a regular simplex: every pair of classes has the same distance, the largest possible.

    The cosine of every pair is -1/(C-1), its distance sqrt(2C/(C-1)), which is Rankin's bound (1955); the gap between
    the largest and the smallest distance, on which the bound on the triplet loss depends, is zero.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if dim < num_classes - 1:
        raise UserError(
            f"simplex centroids for {num_classes} classes need dim >= {num_classes - 1}, got {dim}."
            " Raise dim or use centroids.solve."
        )
    points = torch.zeros(num_classes, dim, dtype=torch.float64)
    if num_classes == 1:
        points[0, 0] = 1
    else:
        points[:, : num_classes - 1] = simplex_corners(num_classes)
    return points.to(dtype)


def simplex_corners(count: int) -> Float[Tensor, "count dim"]:
    """The regular simplex of `count` >= 2 corners in count - 1 dimensions, float64.

    Corner i has zeros after coordinate i; coordinate j is one constant for corner j and another for all later ones.
    """
    n = count - 1
    rest = torch.arange(n, 0, -1, dtype=torch.float64)  # (n,): dimensions from coordinate j on
    own = ((n + 1) * rest / (n * (rest + 1))).sqrt()  # (n,)
    later = -((n + 1) / (n * rest * (rest + 1))).sqrt()  # (n,)
    corners = later.expand(count, n).tril(-1).clone()  # (count, n)
    corners.diagonal().copy_(own)
    return corners
