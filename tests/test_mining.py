"""Which pairs and triplets a loss looks at: masks of a batch, hardest pairs, semi-hard negatives, pairs by position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tammes import UserError
from tammes.geometry import distances, normalise
from tammes.losses.mining import (
    checked_margin,
    hardest_pairs,
    mean_or_zero,
    negatives,
    pairs_in_order,
    positives,
    semihard_negatives,
)
from tests.oracles import seeded
from tests.oracles_pairs import TOY, TOY_LABELS, pairs, pairs_by_position, problem


def test_positives_and_negatives_are_the_two_kinds_of_pairs() -> None:
    labels = torch.tensor([3, -1, 3, 7, 3])
    positive, negative = pairs(labels.tolist())
    assert positives(labels).triu().nonzero().tolist() == [list(pair) for pair in positive]
    assert negatives(labels).triu().nonzero().tolist() == [list(pair) for pair in negative]
    assert torch.equal(positives(labels), positives(labels).T)
    assert torch.equal(positives(labels) ^ negatives(labels), ~torch.eye(5, dtype=torch.bool))


def test_mean_of_nothing_is_a_zero_that_has_a_gradient() -> None:
    x = torch.tensor([1.0, 4.0], requires_grad=True)
    assert mean_or_zero(x).item() == 2.5
    zero = mean_or_zero(x[:0])
    zero.backward()
    assert zero.item() == 0
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0]


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_that_separates_nothing(margin: float) -> None:
    with pytest.raises(UserError, match=rf"^margin must be above 0 and finite, got {margin}\.$"):
        checked_margin(margin)
    assert checked_margin(0.5) == 0.5


def test_hardest_pairs_are_those_of_the_largest_loss() -> None:
    losses = torch.tensor([0.1, 5.0, 0.3, 4.0, 0.2, 0.0])
    assert sorted(hardest_pairs(losses, 1 / 3).tolist()) == [1, 3]
    assert sorted(hardest_pairs(losses, 1.0).tolist()) == list(range(6))
    assert hardest_pairs(losses, 1e-9).tolist() == [1]
    assert hardest_pairs(losses[:0], 0.5).tolist() == []


def test_hardest_pairs_counts_are_rounded_not_cut() -> None:
    assert [len(hardest_pairs(torch.rand(30), fraction)) for fraction in (0.1, 0.3, 0.7, 0.96)] == [3, 9, 21, 29]


def test_a_pair_of_nan_is_among_the_hardest() -> None:
    assert hardest_pairs(torch.tensor([1.0, float("nan"), 2.0]), 1 / 3).tolist() == [1]


def by_rule(apart: list[list[float]], labels: list[int]) -> list[list[int]]:
    """The rule of semi-hard negatives, one anchor and positive at a time; the first of several that are equally far."""
    everyone, chosen = range(len(labels)), []
    for a in everyone:
        others = [n for n in everyone if labels[n] != labels[a]]
        row = []
        for p in everyone:
            farther = [n for n in others if apart[a][n] > apart[a][p]]
            if p == a or labels[p] != labels[a] or not others:
                row.append(-1)
            elif farther:
                row.append(min(farther, key=lambda n: apart[a][n]))
            else:
                row.append(max(others, key=lambda n: apart[a][n]))
        chosen.append(row)
    return chosen


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 9999))
def test_semihard_negatives_are_those_of_the_rule(labels: list[int], seed: int) -> None:
    apart = torch.rand(len(labels), len(labels), generator=seeded(seed), dtype=torch.float64)
    assert semihard_negatives(apart, torch.tensor(labels)).tolist() == by_rule(apart.tolist(), labels)


def test_semihard_negatives_of_the_toy() -> None:
    unit = normalise(TOY)
    apart = distances(unit, unit).square()
    chosen = semihard_negatives(apart, TOY_LABELS)
    assert chosen.tolist() == by_rule(apart.tolist(), TOY_LABELS.tolist())
    assert chosen[0].tolist() == [-1, 5, -1, -1, -1, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_negative_as_far_as_the_positive_is_not_farther_however_it_rounds(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 0, 1, 1])
    for seed in range(20):
        x = torch.randn(4, 300, generator=seeded(seed), dtype=dtype)
        x[2] = x[1]  # one image twice, of two classes
        x[3] = -x[0]  # the farthest there is
        unit = normalise(x)
        apart = distances(unit, unit).square()
        apart[0, 2] *= 1 + 3 * torch.finfo(dtype).eps
        assert semihard_negatives(apart, labels)[0, 1] == 3


def test_a_negative_where_the_positive_and_the_anchor_are_is_not_farther() -> None:
    apart = torch.zeros(4, 4)
    apart[:, 3] = apart[3] = 2.0
    assert semihard_negatives(apart, torch.tensor([0, 0, 1, 2]))[0, 1] == 3


def test_pairs_in_order() -> None:
    labels = torch.tensor([5, -2, 5, 5, 9, -2, 5, -2])
    first, second = pairs_in_order(labels)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 2), (1, 5), (3, 6)]


@pytest.mark.parametrize("labels", [[0], [3, 1, 2]])
def test_no_pairs_in_order_where_no_class_has_two(labels: list[int]) -> None:
    first, second = pairs_in_order(torch.tensor(labels))
    assert first.shape == second.shape == (0,)


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_in_order_equal_a_walk_through_the_batch(seed: int) -> None:
    _, labels = problem([5, 4, 1, 7, 2], seed=seed)
    first, second = pairs_in_order(labels)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == sorted(pairs_by_position(labels.tolist()))
