"""Slow doubles of the losses over sets of triplets and over clusterings: loops, in Python numbers, obviously right."""

from collections import Counter
from math import ceil, cos, dist, log, pi, sin, sqrt
from random import Random
from statistics import fmean, pvariance

import torch
from torch import Tensor

from tests.oracles import Points, triplets

EIGHT = [[0.0, 1.4], [1.2, -0.5], [-0.3, -0.5], [0.6, -0.1], [0.7, -1.8], [1.6, -0.1], [0.7, -0.1], [-0.4, 0.5]]
EIGHT_LABELS = [0, 0, 0, 1, 1, 1, 2, 2]
Triplet = tuple[int, int, int]


def squared(a: list[float], b: list[float]) -> float:
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def ratio_mean(x: Points, chosen: list[Triplet], margin: float = 0.01) -> float:
    return fmean(max(0.0, 1 - squared(x[a], x[n]) / (squared(x[a], x[p]) + margin)) for a, p, n in chosen)


def global_value(x: Points, chosen: list[Triplet], weight: float = 0.8, gap: float = 0.4) -> float:
    near = [squared(x[a], x[p]) / 4 for a, p, _ in chosen]
    far = [squared(x[a], x[n]) / 4 for a, _, n in chosen]
    return pvariance(near) + pvariance(far) + weight * max(0.0, fmean(near) - fmean(far) + gap)


def plain_global(
    embeddings: Tensor, chosen: list[Triplet], margin: float, weight: float, gap: float, gamma: float
) -> Tensor:
    """The whole loss in plain torch, for autograd: one row for each triplet."""
    x = embeddings / embeddings.norm(dim=1, keepdim=True)
    a, p, n = torch.tensor(chosen).T
    near, far = (x[a] - x[p]).square().sum(1), (x[a] - x[n]).square().sum(1)
    ratio = (1 - far / (near + margin)).clamp(min=0).mean()
    spread = (near / 4).var(correction=0) + (far / 4).var(correction=0)
    total: Tensor = gamma * ratio + spread + weight * ((near / 4).mean() - (far / 4).mean() + gap).clamp(min=0)
    return total


def all_triplets(y: list[int]) -> list[Triplet]:
    return list(triplets(y))


def geometric_nmi(a: list[int], b: list[int]) -> float:
    """Mutual information over the geometric mean of the entropies; two partitions of one part each are the same."""
    count = len(a)

    def entropy(parts: list[int]) -> float:
        return -sum(n / count * log(n / count) for n in Counter(parts).values() if n < count)

    in_a, in_b = Counter(a), Counter(b)
    if len(in_a) == 1 or len(in_b) == 1:
        return float(len(in_a) == len(in_b))
    both = Counter(zip(a, b, strict=True))
    shared = sum(n / count * log(count * n / (in_a[u] * in_b[v])) for (u, v), n in both.items())
    return shared / sqrt(entropy(a) * entropy(b))


class SlowClustering:
    """Every set of medoids is scored again. Whatever is compared is rounded to 1e-9 first: less than that is a tie."""

    def __init__(self, x: Points, y: list[int], gamma: float) -> None:
        self.y, self.gamma, self.everyone = y, gamma, range(len(y))
        self.exact = [[dist(a, b) for b in x] for a in x]
        self.d = [[round(1e9 * value) for value in row] for row in self.exact]

    def clusters(self, medoids: list[int]) -> list[int]:
        return [
            medoids.index(i) if i in medoids else min(range(len(medoids)), key=lambda q: self.d[i][medoids[q]])
            for i in self.everyone
        ]

    def margin(self, medoids: list[int]) -> float:
        return 1 - geometric_nmi(self.y, self.clusters(medoids))

    def whole_margin(self, medoids: list[int]) -> int:
        return round(1e9 * self.gamma * round(self.margin(medoids), 10))

    def score(self, medoids: list[int]) -> int:
        return self.whole_margin(medoids) - sum(min(self.d[i][m] for m in medoids) for i in self.everyone)

    def search(self, passes: int) -> list[int]:
        medoids: list[int] = []
        for _ in set(self.y):
            rest = [i for i in self.everyone if i not in medoids]
            medoids = [*medoids, max(rest, key=lambda i: self.score([*medoids, i]))]
        for _ in range(passes):
            clusters = self.clusters(medoids)
            for q in range(len(medoids)):
                members = [i for i in self.everyone if clusters[i] == q]
                scores = {}
                for j in members:
                    tried = [*medoids[:q], j, *medoids[q + 1 :]]
                    scores[j] = self.whole_margin(tried) - sum(self.d[j][i] for i in members)
                medoids[q] = max(members, key=scores.__getitem__)
        return medoids

    def true_medoids(self) -> dict[int, int]:
        best = {}
        for label in set(self.y):
            members = [i for i in self.everyone if self.y[i] == label]
            best[label] = min(members, key=lambda j: sum(self.d[j][i] for i in members))
        return best

    def value(self, medoids: list[int]) -> float:
        true = self.true_medoids()
        cost = sum(self.exact[i][true[self.y[i]]] - min(self.exact[i][m] for m in medoids) for i in self.everyone)
        return max(0.0, cost + self.gamma * self.margin(medoids))

    def plain(self, points: Tensor, medoids: list[int]) -> Tensor:
        """The value in plain torch, for autograd: of these medoids, pair by pair."""
        true, clusters = self.true_medoids(), self.clusters(medoids)
        total = points.sum() * 0 + self.gamma * self.margin(medoids)
        for i in self.everyone:
            own, nearest = true[self.y[i]], medoids[clusters[i]]
            total = total + (torch.dist(points[i], points[own]) if own != i else 0)
            total = total - (torch.dist(points[i], points[nearest]) if nearest != i else 0)
        return total.clamp(min=0)


def random_problem(seed: int, *, most: int = 14) -> tuple[Points, list[int]]:
    """Points with classes of uneven size, labels with gaps, and in every third problem duplicates."""
    chance = Random(seed)
    count, dim = chance.randint(2, most), chance.randint(1, 4)
    labels = [chance.choice([-3, 0, 7, 8, 40][: chance.randint(1, 5)]) for _ in range(count)]
    points = [[chance.gauss(0, 1) for _ in range(dim)] for _ in range(count)]
    if seed % 3 == 0:
        points = [chance.choice(points[: max(1, count // 2)]) for _ in range(count)]
    return points, labels


def tied_problem(seed: int) -> tuple[Points, list[int]]:
    """Many images at few places, or on a regular polygon: what is equally good is then the rule."""
    chance = Random(seed)
    count = chance.randint(6, 14)
    corners = chance.choice([5, 6, 8, 12])
    places = [[cos(2 * pi * k / corners), sin(2 * pi * k / corners)] for k in range(corners)]
    if seed % 2 == 0:
        places = [[chance.gauss(0, 1), chance.gauss(0, 1), chance.gauss(1, 0.1)] for _ in range(3)]
    points = [chance.choice(places) for _ in range(count)]
    classes = chance.randint(2, 5)
    return points, [chance.randrange(classes) for _ in range(count)]


def first_places(count: int, hardness: float) -> int:
    """How many of a list may be drawn; the number is exact in tenths of a thousandth."""
    return max(1, ceil(round((1 - hardness) * 10000) * count / 10000))


def mining_lists(
    x: Points, y: list[int], anchor: int, neighbours: int, twin: float = 0.0
) -> tuple[list[int], list[int]]:
    """The positives of an anchor, the farthest first, and the nearest of other classes, the nearest first."""
    everyone = range(len(y))
    positive = [j for j in everyone if y[j] == y[anchor] and j != anchor]
    positive.sort(key=lambda j: -round(dist(x[anchor], x[j]), 10))
    negative = [k for k in everyone if y[k] != y[anchor]]
    negative.sort(key=lambda k: squared(x[anchor], x[k]))
    negative = negative[:neighbours]
    return positive, [k for k in negative if dist(x[anchor], x[k]) >= twin] or negative
