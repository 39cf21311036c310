"""Slow doubles of the equations: loops over images and centroids, in Python floats, obviously right."""

from collections.abc import Iterator
from math import dist, exp, log

import torch
from torch import Generator, Tensor

Points = list[list[float]]

# Six points in the plane, three classes of two; the first two classes overlap. The values that the tests expect of them
# were computed by independent loops over the equations.
SIX = [[1.0, 0.2], [0.4, 0.9], [0.6, 0.7], [-0.5, 1.0], [-0.9, -0.4], [0.1, -1.0]]
SIX_LABELS = [0, 0, 1, 1, 2, 2]
UNEVEN_LABELS = [0, 0, 0, 1, 1, 2]
TRIANGLE = [[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]]


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def unit_points(count: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=seeded(seed), dtype=torch.float64)).to(dtype)


def unit(points: Points) -> Points:
    return [[x / dist(row, [0.0] * len(row)) for x in row] for row in points]


def triplets(labels: list[int]) -> Iterator[tuple[int, int, int]]:
    """All (i, j, k) with y_i = y_j, i != j, y_k != y_i: the sums of equations 1 and 7."""
    everyone = range(len(labels))
    for i in everyone:
        for j in everyone:
            for k in everyone:
                if i != j and labels[i] == labels[j] and labels[i] != labels[k]:
                    yield i, j, k


def triplet_sum(x: Points, y: list[int]) -> float:
    """Equations 1 and 2."""
    return sum(dist(x[i], x[j]) - dist(x[i], x[k]) for i, j, k in triplets(y))


def bound_sum(x: Points, y: list[int], c: Points) -> float:
    """Equations 6 and 7."""
    return sum(
        dist(x[i], c[y[i]]) - dist(x[i], c[y[k]]) + dist(x[j], c[y[i]]) + dist(x[k], c[y[k]]) for i, j, k in triplets(y)
    )


def discriminative_mean(x: Points, y: list[int], c: Points, push: float = 1 / 3) -> float:
    """Equation 8 without its constant, as a mean; x as it is."""
    total = 0.0
    for point, label in zip(x, y, strict=True):
        others = [dist(point, centre) for m, centre in enumerate(c) if m != label]
        total += dist(point, c[label]) - push * sum(others) / len(others)
    return total / len(x)


def hard_mean(x: Points, y: list[int], c: Points, temperature: float, push: float = 1 / 3) -> float:
    total = 0.0
    for point, label in zip(x, y, strict=True):
        others = [dist(point, centre) for m, centre in enumerate(c) if m != label]
        nearest = min(others)
        soft = nearest - temperature * log(sum(exp((nearest - d) / temperature) for d in others))
        total += dist(point, c[label]) - push * soft
    return total / len(x)


def hardest_negative_mean(x: Points, y: list[int]) -> float:
    """The mean over the pairs of anchor and positive of their distance minus that of the anchor's nearest negative."""
    terms = []
    for i, point in enumerate(x):
        negatives = [dist(point, x[k]) for k in range(len(x)) if y[k] != y[i]]
        terms += [dist(point, x[j]) - min(negatives) for j in range(len(x)) if j != i and y[j] == y[i]]
    return sum(terms) / len(terms)


def plain_discriminative(embeddings: Tensor, labels: Tensor, centroids: Tensor, push: float = 1 / 3) -> Tensor:
    """The equation in plain torch, for autograd: differences, no product form."""
    x = torch.nn.functional.normalize(embeddings, dim=1)
    apart = torch.linalg.vector_norm(x[:, None] - centroids, dim=2)  # (batch, classes)
    own = apart.gather(1, labels[:, None])[:, 0]
    mean: Tensor = (own - push * (apart.sum(1) - own) / (len(centroids) - 1)).mean()
    return mean
