"""The quality of a set of centroids: their distances, compared with the upper bound."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tammes.centroids.bounds import upper_bound
from tammes.geometry import pairwise


@dataclass(frozen=True)
class Quality:
    """Statistics of the pairwise distances, and the upper bound on the smallest."""

    min: float
    max: float
    mean: float
    std: float
    upper_bound: float
    ratio: float


def quality(centroids: Float[Tensor, "classes dim"]) -> Quality:
    """Distances between all pairs, in bounded memory; a `ratio` of 1 proves that the centroids are optimal."""
    found = pairwise(centroids)
    bound = upper_bound(*centroids.shape)
    return Quality(found.min, found.max, found.mean, found.std, bound, found.min / bound)
