"""The theory: closed forms against loops over all triplets, and the certificates of the gap."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tammes import UserError, bound
from tests.oracles import (
    SIX,
    SIX_LABELS,
    TRIANGLE,
    UNEVEN_LABELS,
    Points,
    bound_sum,
    discriminative_mean,
    seeded,
    triplet_sum,
    triplets,
    unit,
    unit_points,
)


def tensors(x: Points, y: list[int], c: Points) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(x, dtype=torch.float64), torch.tensor(y), torch.tensor(c, dtype=torch.float64)


def problem(sizes: list[int], dim: int, spread: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points around the centroids of their classes, in no order; neither is on the sphere."""
    centroids = torch.randn(len(sizes), dim, generator=seeded(seed), dtype=torch.float64)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=seeded(seed + 1))]
    noise = torch.randn(len(labels), dim, generator=seeded(seed + 2), dtype=torch.float64)
    return centroids[labels] + spread * noise, labels, centroids


problems = st.builds(
    problem,
    st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    st.integers(1, 5),
    st.sampled_from([0.0, 1e-3, 0.3, 3.0]),
    st.integers(0, 10_000),
)


def test_figure_1_counts_96_triplets_against_16_distances() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert bound.num_triplets(labels) == 8 * 3 * 4 == len(list(triplets(labels.tolist()))) == 96
    embeddings, centroids = unit_points(8, 3, seed=0), unit_points(2, 3, seed=1)
    assert torch.cdist(embeddings, centroids).numel() == 8 * 2 == 16
    assert bound.discriminative_loss(embeddings, labels, centroids) >= bound.triplet_loss(embeddings, labels)


@settings(deadline=None)
@given(problems)
def test_both_losses_equal_the_sums_over_all_triplets(given_: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, c = given_
    points, labels, centres = x.tolist(), y.tolist(), c.tolist()
    triplet, discriminative = triplet_sum(points, labels), bound_sum(points, labels, centres)
    assert bound.triplet_loss(x, y).item() == pytest.approx(triplet, abs=1e-9)
    assert bound.discriminative_loss(x, y, c).item() == pytest.approx(discriminative, abs=1e-9)
    count = len(list(triplets(labels)))
    assert bound.num_triplets(y) == count
    if count:
        assert bound.triplet_loss(x, y, reduction="mean").item() == pytest.approx(triplet / count, abs=1e-9)
        mean = bound.discriminative_loss(x, y, c, reduction="mean").item()
        assert mean == pytest.approx(discriminative / count, abs=1e-9)


@settings(deadline=None)
@given(problems)
def test_each_certificate_is_above_the_one_before(given_: tuple[Tensor, Tensor, Tensor]) -> None:
    k = bound.certificate(*given_)
    slack = 1e-9 * k.triplets
    chain = [0.0, k.gap, k.certificate, k.tighter, k.lemma]
    assert all(lower <= upper + slack for lower, upper in pairwise(chain)), k
    assert k.gap == pytest.approx(k.discriminative_loss - k.triplet_loss, abs=1e-12)


@settings(deadline=None)
@given(problems)
def test_certificate_equals_its_sum_over_all_triplets(given_: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, c = given_
    own = torch.linalg.vector_norm(x - c[y], dim=1).tolist()
    expected = sum(own[i] + own[j] + 2 * own[k] for i, j, k in triplets(y.tolist()))
    assert bound.certificate(x, y, c).certificate == pytest.approx(expected, abs=1e-9)


def test_toy_values_of_the_bound() -> None:
    four = tensors(unit(SIX[:4]), SIX_LABELS[:4], [[1, 0], [0, 1]])
    assert bound.discriminative_loss(*four).item() == pytest.approx(6.201452, abs=1e-6)
    k = bound.certificate(*tensors(unit(SIX), SIX_LABELS, TRIANGLE))
    assert k.discriminative_loss == pytest.approx(6.347502, abs=1e-6)
    assert k.triplet_loss == pytest.approx(-10.005171, abs=1e-6)
    assert k.gap == pytest.approx(16.352673, abs=1e-6)
    assert k.triplets == 24
    uneven = tensors(unit(SIX), UNEVEN_LABELS, TRIANGLE)
    assert bound.discriminative_loss(*uneven).item() == pytest.approx(14.462862, abs=1e-6)
    triplet_mean = bound.triplet_loss(*tensors(unit(SIX), SIX_LABELS, TRIANGLE)[:2], reduction="mean")
    assert triplet_mean.item() == pytest.approx(-0.416882, abs=1e-6)


def test_equal_sizes_give_the_papers_closed_form() -> None:
    x, y, c = problem([4, 4, 4], dim=3, spread=0.5, seed=0)
    n, classes = 12, 3
    g = 3 * (classes - 1) * (n / classes - 1) * n / classes
    expected = g * n * discriminative_mean(x.tolist(), y.tolist(), c.tolist())
    assert bound.discriminative_loss(x, y, c).item() == pytest.approx(expected, rel=1e-12)


def test_squared_distances_would_not_be_a_bound() -> None:
    """Why the distances are not squared, as they are in the one other public implementation."""
    x, y, c = unit_points(12, 3, seed=0), torch.arange(3).repeat_interleave(4), unit_points(3, 3, seed=1)
    broken = 0
    for i, j, k in triplets(y.tolist()):
        triplet = (x[i] - x[j]).square().sum() - (x[i] - x[k]).square().sum()
        pulls = (x[i] - c[y[i]]).square().sum() + (x[j] - c[y[i]]).square().sum() + (x[k] - c[y[k]]).square().sum()
        broken += int(triplet > pulls - (x[i] - c[y[k]]).square().sum() + 1e-9)
    assert broken > 0


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]], ids=["one class", "single images"])
def test_without_triplets_everything_is_zero(labels: list[int]) -> None:
    k = bound.certificate(unit_points(3, 4, seed=0), torch.tensor(labels), unit_points(3, 4, seed=1))
    assert (k.triplets, k.triplet_loss, k.discriminative_loss, k.gap) == (0, 0, 0, 0)
    assert (k.certificate, k.tighter, k.lemma) == (0, 0, 0)


def test_triplet_loss_takes_labels_with_gaps() -> None:
    x = unit_points(6, 3, seed=0)
    odd = bound.triplet_loss(x, torch.tensor([7, 7, -3, -3, 10**12, 10**12]))
    assert odd == bound.triplet_loss(x, torch.tensor(SIX_LABELS))


def test_many_points_are_summed_in_blocks() -> None:
    x, y = unit_points(3000, 4, seed=0), torch.randint(30, (3000,), generator=seeded(1))
    sizes = y.bincount()[y].double()
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    weight = torch.where(y[:, None] == y, 3000 - sizes[:, None], 1 - sizes[:, None])
    assert bound.triplet_loss(x, y).item() == pytest.approx((apart * weight).sum().item(), rel=1e-9)


def test_both_losses_have_gradients() -> None:
    x, y, c = problem([3, 2, 1], dim=3, spread=0.5, seed=0)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bound.triplet_loss(x, y), x)
    assert torch.autograd.gradcheck(lambda x: bound.discriminative_loss(x, y, c), x)


def test_bad_input_to_the_bound() -> None:
    x, y, c = problem([3, 2, 1], dim=3, spread=0.5, seed=0)
    with pytest.raises(UserError, match=r"^label 3 \(row 0 of the batch\) is outside 0..2 of 3 classes. Number the"):
        bound.discriminative_loss(x, y * 0 + 3, c)
    with pytest.raises(UserError, match=r"^centroids must have shape \(classes, dim\) with 2 classes or more, got"):
        bound.certificate(x, y * 0, c[:1])
    with pytest.raises(UserError, match="^the batch is empty: the mean over no embeddings is undefined.$"):
        bound.triplet_loss(x[:0], y[:0])
