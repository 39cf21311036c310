"""One-hot centroids."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError


def one_hot(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """The unit vectors along the axes, as in Do et al. (2019): every pair of classes at distance sqrt 2.

    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if dim < num_classes:
        raise UserError(
            f"one-hot centroids for {num_classes} classes need dim >= {num_classes}, got {dim}."
            " Raise dim or use centroids.place."
        )
    return torch.eye(num_classes, dim, dtype=dtype)
