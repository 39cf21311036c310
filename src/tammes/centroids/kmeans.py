"""K-means centroids, as in the paper."""

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.random import uniform
from tammes.centroids.simplex import simplex
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError
from tammes.geometry import normalise


def kmeans(
    num_classes: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    samples: int = 10_000,
) -> Float[Tensor, "classes dim"]:
    """Centres of K-means over uniform points on the sphere, normalised, as in Do et al. (2019).

    The paper does not say how many points it clustered, and no number reproduces both rows of its table
    (docs/method.md); 10,000 lies between the two.
    """
    from sklearn.cluster import KMeans  # a second to import

    checked_sizes(num_classes, dim, dtype, generator)
    if num_classes > samples:
        raise UserError(
            f"kmeans cannot make {num_classes} clusters of {samples} samples. Pass samples={10 * num_classes} or more."
        )
    if dim == 1:  # all samples are one of two points, which Lloyd's algorithm may not separate
        return simplex(num_classes, dim, dtype=dtype)
    points = uniform(samples, dim, generator)  # (samples, dim)
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    lloyd = KMeans(num_classes, init="random", n_init=1, algorithm="lloyd", random_state=seed)
    centres = torch.from_numpy(lloyd.fit(points.numpy()).cluster_centers_)  # (classes, dim)
    return normalise(centres).to(dtype)
