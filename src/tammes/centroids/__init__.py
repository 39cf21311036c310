"""Generators of class centroids: unit vectors as far apart as possible, and measures of their distances.

All share one signature: (num_classes, dim, *, generator=None, dtype=torch.float32) -> (classes, dim), unit rows,
computed in float64 where it matters and reproducible by the seed of the generator. `place` picks the best.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tammes.centroids.bounds import upper_bound
from tammes.centroids.codes import codes
from tammes.centroids.kerdock import kerdock
from tammes.centroids.kmeans import kmeans
from tammes.centroids.layers import layers
from tammes.centroids.one_hot import one_hot
from tammes.centroids.orthogonal_simplices import orthogonal_simplices
from tammes.centroids.place import Placement, place, placed
from tammes.centroids.quality import Quality, quality
from tammes.centroids.random import random
from tammes.centroids.shells import shells
from tammes.centroids.simplex import simplex
from tammes.centroids.solve import solve
from tammes.errors import unknown_name

CENTROIDS: dict[str, Callable[..., Tensor]] = {
    "place": place,
    "one-hot": one_hot,
    "kmeans": kmeans,
    "random": random,
    "simplex": simplex,
    "orthogonal-simplices": orthogonal_simplices,
    "kerdock": kerdock,
    "codes": codes,
    "shells": shells,
    "layers": layers,
    "solve": solve,
}

__all__ = [
    "CENTROIDS",
    "Placement",
    "Quality",
    "codes",
    "kerdock",
    "kmeans",
    "layers",
    "make_centroids",
    "one_hot",
    "orthogonal_simplices",
    "place",
    "placed",
    "quality",
    "random",
    "shells",
    "simplex",
    "solve",
    "upper_bound",
]


def make_centroids(kind: str, num_classes: int, dim: int, *, seed: int = 0, **options: float | int) -> Placement:
    """Centroids by the name of their generator, and the generator that made them, as `place` picks one.

    >>> make_centroids("place", 4, 3).kind
    'simplex'
    """
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    generator = torch.Generator().manual_seed(seed)
    if kind == "place":
        return placed(num_classes, dim, generator=generator)
    return Placement(CENTROIDS[kind](num_classes, dim, generator=generator, **options), kind)
