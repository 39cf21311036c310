"""Random centroids."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.validation import checked_sizes
from tammes.geometry import normalise


def random(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Independent uniform points on the sphere, redrawn in the rare case that two coincide after rounding."""
    checked_sizes(num_classes, dim, dtype, generator)
    points = uniform(num_classes, dim, generator).to(dtype)
    # In 4 or more dimensions, the probability that two of a million float32 points coincide is below 1e-10.
    while dim < 4 and len(repeated := _repeated(points)):
        points[repeated] = uniform(len(repeated), dim, generator).to(dtype)
    return points


def uniform(count: int, dim: int, generator: torch.Generator | None) -> Float[Tensor, "count dim"]:
    """Normalised Gaussian vectors in float64."""
    return normalise(torch.randn(count, dim, generator=generator, dtype=torch.float64))


def _repeated(points: Float[Tensor, "points dim"]) -> Tensor:
    """Indices of the rows that equal an earlier one."""
    _, group = torch.unique(points, dim=0, return_inverse=True)
    values, indices = group.sort(stable=True)
    repeated: Tensor = indices[1:][values[1:] == values[:-1]]
    return repeated
