"""The benchmark of complexity: its naive methods against loops, its fits, what it keeps and what it leaves out."""

from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from math import exp, log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import complexity
from benchmarks.complexity import Method, Options, all_pairs, all_triplets, semi_hard
from tammes.benchmark.published import published_table
from tammes.bound import num_triplets, triplet_loss

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

LABELS = torch.tensor([2, 0, 0, 1, 2, 0, 1, 2, 2, 5])  # of different sizes, one of them alone, not in order


@pytest.fixture
def embeddings() -> Tensor:
    drawn = torch.randn(len(LABELS), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return nn.functional.normalize(drawn)


def apart(embeddings: Tensor, first: int, second: int) -> Tensor:
    return (embeddings[first] - embeddings[second]).square().sum().sqrt()


def looped(value: Callable[[Tensor], Tensor], embeddings: Tensor) -> tuple[float, Tensor]:
    """A loop's value and its gradient by autograd."""
    given = embeddings.clone().requires_grad_()
    found = value(given)
    return found.item(), torch.autograd.grad(found, given)[0]


def triplets() -> Iterator[tuple[int, int, int]]:
    for i, j, k in permutations(range(len(LABELS)), 3):
        if LABELS[i] == LABELS[j] != LABELS[k]:
            yield i, j, k


@pytest.mark.parametrize("side", [1, 4, 512])
def test_all_pairs_are_a_loop_over_them(embeddings: Tensor, side: int) -> None:
    def loop(given: Tensor) -> Tensor:
        total = given.new_zeros(())
        for i, j in combinations(range(len(LABELS)), 2):
            d = apart(given, i, j)
            total = total + (d**2 / 2 if LABELS[i] == LABELS[j] else (1.2 - d).clamp(min=0) ** 2 / 2)
        return total

    value, gradient = looped(loop, embeddings)
    found = all_pairs(embeddings, LABELS, margin=1.2, side=side)
    assert found[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_all_triplets_are_a_loop_over_them(embeddings: Tensor, block: int) -> None:
    value, gradient = looped(
        lambda given: torch.stack([apart(given, i, j) - apart(given, i, k) for i, j, k in triplets()]).sum(), embeddings
    )
    found = all_triplets(embeddings, LABELS, block=block)
    assert found[0] == pytest.approx(value, rel=1e-12)
    assert found[0] == pytest.approx(triplet_loss(embeddings, LABELS).item(), rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


def test_every_triplet_is_visited_by_itself(embeddings: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = []
    summed = Tensor.sum

    def counted(each: Tensor, *more: Any, **named: Any) -> Tensor:
        if each.ndim == 3:
            visited.append(each.numel())
        return summed(each, *more, **named)

    monkeypatch.setattr(Tensor, "sum", counted)
    all_triplets(embeddings, LABELS, block=40)
    assert sum(visited) == num_triplets(LABELS) == len(list(triplets()))
    assert max(visited) <= 40  # in blocks: the largest class alone has 72


def test_semi_hard_is_a_loop_over_the_positive_pairs(embeddings: Tensor) -> None:
    kinds = set()

    def loop(given: Tensor) -> Tensor:
        values = []
        for i, j in permutations(range(len(LABELS)), 2):
            if LABELS[i] != LABELS[j]:
                continue
            positive = apart(given, i, j) ** 2
            negatives = [apart(given, i, k) ** 2 for k in range(len(LABELS)) if LABELS[k] != LABELS[i]]
            farther = [each for each in negatives if each > positive]
            kinds.add(bool(farther))
            values.append((positive - (min(farther) if farther else max(negatives)) + 0.5).clamp(min=0))
        return torch.stack(values).mean()

    value, gradient = looped(loop, embeddings)
    assert kinds == {True, False}  # both rules are met
    found = looped(lambda given: semi_hard(given, LABELS, margin=0.5), embeddings)
    assert found[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(found[1], gradient)


def test_nearest_mean_is_cross_entropy_over_squared_distances_to_the_class_means(embeddings: Tensor) -> None:
    labels = LABELS.clamp(max=2)
    means = complexity.class_means(embeddings, labels, 3)
    for label in range(3):
        torch.testing.assert_close(means[label], embeddings[labels == label].mean(dim=0))
    total = 0.0
    for point, own in zip(embeddings, labels.tolist(), strict=True):
        logits = [-(point - mean).square().sum().item() for mean in means]
        total += log(sum(exp(each) for each in logits)) - logits[own]
    found = complexity.nearest_mean(embeddings, labels, means).item()
    assert found == pytest.approx(total / len(labels), rel=1e-12)


def test_the_means_are_taken_once_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], complexity.class_means

    def counted(whole: Tensor, labels: Tensor, classes: int) -> Tensor:
        seen.append(len(whole))
        return real(whole, labels, classes)

    monkeypatch.setattr(complexity, "class_means", counted)
    epoch = complexity.centroids(24, 4, Options(dim=5, batch=8))
    seen.clear()
    epoch()
    assert seen == [24, 24, 24]  # the whole set each time


def test_an_epoch_sees_every_image_once_and_leaves_no_gradient_behind() -> None:
    weight, seen = torch.ones(5, requires_grad=True), []

    def value(embeddings: Tensor, labels: Tensor) -> Tensor:
        assert weight.grad is None
        assert embeddings.is_leaf
        seen.append(labels.tolist())
        return (embeddings @ weight).sum()

    complexity.in_batches(value, complexity.cyclic(10, 4), Options(dim=5, batch=4), weight)()
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]


def test_the_rows_are_the_papers_in_its_order_then_ours() -> None:
    names = [method.name for method in complexity.methods()]
    paper = list(published_table("complexity").rows)
    assert names[: len(paper)] == paper
    assert names[len(paper) :] == ["Discriminative, 256 classes sampled", "Hard-discriminative"]


@pytest.mark.parametrize("method", complexity.methods(), ids=lambda method: method.name)
def test_the_sizes_can_be_run(method: Method) -> None:
    batch = Options().batch
    for axis in (method.over_n, method.over_c):
        assert list(axis.sizes) == sorted(set(axis.sizes))
        assert len(axis.sizes) > 2
    assert all(size % batch == 0 for size in (*method.over_n.sizes, method.over_c.at))
    if not isinstance(method.epoch, str):
        method.epoch(256, 8 if "sampled" not in method.name else 512, Options(dim=4))()


def test_the_exponents_of_n_and_c_together() -> None:
    images, classes = [1, 2, 4], [10, 20, 80]
    seconds = [[3e-9 * n**1.1 * c**0.9 for c in classes] for n in images]
    assert complexity.joint_exponents(images, classes, seconds) == pytest.approx((1.1, 0.9, 0), abs=1e-12)
    seconds[1][1] *= 1.5  # in the middle of N: p stays, and most of it is residual
    over_n, over_c, residual = complexity.joint_exponents(images, classes, seconds)
    assert over_n == pytest.approx(1.1)
    assert over_c != pytest.approx(0.9)
    assert 0.3 < residual < log(1.5)
