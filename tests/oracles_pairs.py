"""Slow doubles of the losses over pairs and triplets: one pair at a time, for value and gradient by autograd."""

from collections.abc import Callable
from itertools import combinations
from math import pi, tan

import torch
from torch import Tensor, nn

from tests.oracles import SIX, SIX_LABELS, seeded, triplets

Oracle = Callable[[Tensor, list[int]], Tensor]

TOY = torch.tensor(SIX, dtype=torch.float64)
TOY_LABELS = torch.tensor(SIX_LABELS)
# Class sizes of the random problems: even, uneven, with a class of one image, many in one class.
SIZES = [[2, 2, 2], [4, 1, 3], [3, 3, 3, 1], [6, 2]]


def named(parameter: object) -> str:
    """For the names of tests: a loss by its options, an oracle not at all."""
    return repr(parameter) if isinstance(parameter, nn.Module | list | bool | float) else "oracle"


def problem(sizes: list[int], dim: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random embeddings of random lengths, in shuffled order."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=seeded(seed))]
    return torch.randn(len(labels), dim, generator=seeded(seed + 1), dtype=torch.float64), labels


def assert_equals(loss: nn.Module, oracle: Oracle, embeddings: Tensor, labels: Tensor) -> None:
    """The same value and the same gradient, to the digits of float64."""
    z = embeddings.clone().requires_grad_()
    ours, theirs = loss(z, labels), oracle(z, labels.tolist())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(value, z)[0] for value in (ours, theirs)), rtol=1e-8, atol=1e-9)


def unit_rows(x: Tensor) -> Tensor:
    return x / x.square().sum(1, keepdim=True).sqrt()


def apart(x: Tensor, i: int, j: int) -> Tensor:
    return (x[i] - x[j]).square().sum().sqrt()


def pairs(y: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The unordered pairs of one class, and of two."""
    every = list(combinations(range(len(y)), 2))
    return [(i, j) for i, j in every if y[i] == y[j]], [(i, j) for i, j in every if y[i] != y[j]]


def largest(terms: list[Tensor], count: int) -> list[Tensor]:
    return sorted(terms, key=Tensor.item, reverse=True)[:count]


def contrastive(pull: Callable[[Tensor, int, int], Tensor], push: Callable[[Tensor, int, int], Tensor]) -> Oracle:
    def mean(x: Tensor, y: list[int]) -> Tensor:
        positive, negative = pairs(y)
        return torch.stack([pull(x, i, j) for i, j in positive] + [push(x, i, j) for i, j in negative]).mean()

    return mean


def mined_hinge(margin: float, keep_positive: int, keep_negative: int) -> Oracle:
    def mean(x: Tensor, y: list[int]) -> Tensor:
        positive, negative = pairs(y)
        pull = largest([apart(x, i, j) for i, j in positive], keep_positive)
        push = largest([(margin - apart(x, i, j)).clamp_min(0) for i, j in negative], keep_negative)
        return torch.stack(pull + push).mean()

    return mean


def triplet(term: Callable[[Tensor, Tensor], Tensor], active_only: bool = False) -> Oracle:
    """The mean of a term of d_ap and d_an over all triplets, of unit embeddings."""

    def mean(x: Tensor, y: list[int]) -> Tensor:
        x = unit_rows(x)
        terms = [term(apart(x, a, p), apart(x, a, n)) for a, p, n in triplets(y)]
        kept = [each for each in terms if each > 0] if active_only else terms
        return torch.stack(kept).mean()

    return mean


def semihard(margin: float) -> Oracle:
    def mean(x: Tensor, y: list[int]) -> Tensor:
        x, terms = unit_rows(x), []
        for a, p in ((a, p) for a in range(len(y)) for p in range(len(y)) if a != p and y[a] == y[p]):
            own = apart(x, a, p) ** 2
            others = [apart(x, a, n) ** 2 for n in range(len(y)) if y[n] != y[a]]
            farther = [each for each in others if each > own]
            chosen = min(farther, key=Tensor.item) if farther else max(others, key=Tensor.item)
            terms.append((own - chosen + margin).clamp_min(0))
        return torch.stack(terms).mean()

    return mean


def lifted(margin: float) -> Oracle:
    def mean(x: Tensor, y: list[int]) -> Tensor:
        terms = []
        for i, j in pairs(y)[0]:
            total = torch.zeros((), dtype=x.dtype)
            for k in (k for k in range(len(y)) if y[k] != y[i]):
                total = total + (margin - apart(x, i, k)).exp() + (margin - apart(x, j, k)).exp()
            terms.append((apart(x, i, j) + total.log()).clamp_min(0) ** 2 / 2)
        return torch.stack(terms).mean()

    return mean


def pairs_by_position(y: list[int]) -> list[tuple[int, int]]:
    """Walk through the batch; an image is paired with the one of its class that still waits."""
    waiting: dict[int, int] = {}
    found = []
    for i, label in enumerate(y):
        if label in waiting:
            found.append((waiting.pop(label), i))
        else:
            waiting[label] = i
    return found


def npair(penalty: float, one_vs_one: bool = False) -> Oracle:
    def mean(x: Tensor, y: list[int]) -> Tensor:
        found, terms = pairs_by_position(y), []
        for a, p in found:
            worse = [x[a] @ x[other] - x[a] @ x[p] for first, other in found if y[first] != y[a]]
            odds = torch.stack([each.exp() for each in worse])
            term = (1 + odds).log().sum() if one_vs_one else (1 + odds.sum()).log()
            terms.append(term + penalty / 4 * (x[a] @ x[a] + x[p] @ x[p]))
        return torch.stack(terms).mean()

    return mean


def angular(alpha: float, weight: float | None = None) -> Oracle:
    """Alone, or with this weight beside the N-pair loss."""

    def mean(x: Tensor, y: list[int]) -> Tensor:
        x = unit_rows(x)
        found, terms = pairs_by_position(y), []
        squared = tan(alpha * pi / 180) ** 2
        for a, p in found:
            odds = torch.zeros((), dtype=x.dtype)
            for n in (other for first, other in found if y[first] != y[a]):
                odds = odds + (4 * squared * ((x[a] + x[p]) @ x[n]) - 2 * (1 + squared) * (x[a] @ x[p])).exp()
            terms.append((1 + odds).log())
        alone = torch.stack(terms).mean()
        return alone if weight is None else npair(0.0)(x, y) + weight * alone

    return mean


def too_wide(x: Tensor, a: int, p: int, n: int, alpha: float) -> Tensor:
    """How much the angle at the negative is above alpha, as the angular loss measures it; below 0 where it is not."""
    middle = (x[a] + x[p]) / 2
    excess: Tensor = apart(x, a, p) ** 2 - 4 * tan(alpha * pi / 180) ** 2 * (x[n] - middle).square().sum()
    return excess


def multi_similarity(alpha: float, beta: float, base: float, epsilon: float | None) -> Oracle:
    """Without an epsilon nothing is mined."""

    def mean(x: Tensor, y: list[int]) -> Tensor:
        x, terms = unit_rows(x), []
        for i in range(len(y)):
            near = [x[i] @ x[j] for j in range(len(y)) if j != i and y[j] == y[i]]
            far = [x[i] @ x[j] for j in range(len(y)) if y[j] != y[i]]
            if epsilon is not None:
                hard_near = [s for s in near if any(s < other + epsilon for other in far)]
                far = [s for s in far if any(s > other - epsilon for other in near)]
                near = hard_near
            pull, push = torch.ones((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
            for s in near:
                pull = pull + (-alpha * (s - base)).exp()
            for s in far:
                push = push + (beta * (s - base)).exp()
            terms.append(pull.log() / alpha + push.log() / beta)
        return torch.stack(terms).mean()

    return mean


def histogram(step: float) -> Oracle:
    """Each node gets max(0, 1 - distance in steps) of each cosine: a triangle around it."""

    def overlap(x: Tensor, y: list[int]) -> Tensor:
        x = unit_rows(x)
        nodes = [-1 + r * step for r in range(round(2 / step) + 1)]

        def density(listed: list[tuple[int, int]], node: float) -> Tensor:
            shares = [(1 - (x[i] @ x[j] - node).abs() / step).clamp_min(0) for i, j in listed]
            return torch.stack(shares).mean()

        positive, negative = pairs(y)
        total = torch.zeros((), dtype=x.dtype)
        below = torch.zeros((), dtype=x.dtype)
        for node in nodes:
            below = below + density(positive, node)
            total = total + density(negative, node) * below
        return total

    return overlap
