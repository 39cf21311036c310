"""How good a set of centroids is."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tammes.centroids.bounds import upper_bound
from tammes.geometry import pairwise


@dataclass(frozen=True)
class Quality:
    """The distances between all pairs of centroids, and the most that the smallest could be."""

    min: float
    max: float
    mean: float
    std: float
    upper_bound: float
    ratio: float


def quality(centroids: Float[Tensor, "classes dim"]) -> Quality:
    """Distances between all pairs in bounded memory; a `ratio` of 1 is proof that nothing is further apart."""
    found = pairwise(centroids)
    bound = upper_bound(*centroids.shape)
    return Quality(found.min, found.max, found.mean, found.std, bound, found.min / bound)
