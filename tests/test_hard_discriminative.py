"""The hard discriminative loss: its equation, and the bound that it is made for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tammes import HardDiscriminativeLoss
from tammes.geometry import normalise
from tests.oracles import hard_mean, hardest_negative_mean, seeded, unit_points


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 5.0])
@pytest.mark.parametrize(("batch", "classes", "dim"), [(1, 2, 2), (7, 5, 4), (32, 20, 8)])
def test_value_equals_the_equation(batch: int, classes: int, dim: int, temperature: float) -> None:
    embeddings = torch.randn(batch, dim, generator=seeded(0), dtype=torch.float64)
    labels, centroids = torch.randint(classes, (batch,), generator=seeded(1)), unit_points(classes, dim, seed=2)
    ours = HardDiscriminativeLoss(centroids, temperature=temperature, push=0.3)(embeddings, labels)
    expected = hard_mean(normalise(embeddings).tolist(), labels.tolist(), centroids.tolist(), temperature, push=0.3)
    assert ours.item() == pytest.approx(expected, abs=1e-12)


def test_gradient_passes_gradcheck() -> None:
    centroids, labels = unit_points(5, 4, seed=0), torch.arange(5).repeat(2)
    near = torch.cat([centroids + 0.05 * unit_points(5, 4, seed=1), unit_points(5, 4, seed=2)]).requires_grad_()
    loss = HardDiscriminativeLoss(centroids, class_sizes=[3, 1, 2, 5, 4])
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), near)


def test_one_hot_equals_the_general_path() -> None:
    embeddings, labels = torch.randn(7, 6, generator=seeded(0)).requires_grad_(), torch.tensor([0, 5, 2, 2, 1, 3, 4])
    values = [HardDiscriminativeLoss(given_)(embeddings, labels) for given_ in (6, torch.eye(6))]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings)[0] for value in values))


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(lambda n: max(n) > 1 and sum(k > 0 for k in n) > 1),
    st.sampled_from([1e-3, 0.1, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5, 5.0]),
    st.integers(0, 9999),
)
def test_the_bound_on_the_hardest_negative_triplet_loss(
    sizes: list[int], temperature: float, spread: float, seed: int
) -> None:
    """The sum of w (3 f - a), plus the largest a, is at least the mean over the pairs of anchor and positive."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    centroids = unit_points(len(sizes), 3, seed)
    noise = torch.randn(len(labels), 3, generator=seeded(seed + 1), dtype=torch.float64)
    x = normalise(centroids[labels] + spread * noise)
    loss = HardDiscriminativeLoss(centroids, temperature=temperature)
    f = torch.stack([loss(x[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])  # (batch,)
    a = torch.linalg.vector_norm(x - centroids[labels], dim=1)  # (batch,)
    w = torch.tensor(sizes)[labels] - 1.0
    w = w.double() / w.sum()
    assert (w * (3 * f - a)).sum() + a.max() >= hardest_negative_mean(x.tolist(), labels.tolist()) - 1e-9


def test_class_sizes_weight_by_the_positives_of_an_anchor() -> None:
    sizes = torch.tensor([4, 1, 2])
    labels = torch.repeat_interleave(torch.arange(3), sizes)
    x, centroids = unit_points(7, 3, seed=0), unit_points(3, 3, seed=1)
    plain = HardDiscriminativeLoss(centroids)
    f = torch.stack([plain(x[i : i + 1], labels[i : i + 1]) for i in range(7)])
    w = (sizes[labels] - 1.0).double()
    weighted = HardDiscriminativeLoss(centroids, class_sizes=sizes)(x, labels)
    assert weighted.item() == pytest.approx((w * f).sum().item() / w.sum().item(), abs=1e-7)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("sizes", [None, [4, 1, 2, 7, 3], [4, 1, 0, 7, 0], [4, 4, 4, 0, 0]])
def test_minimum_is_the_value_where_every_image_is_its_centroid(one_hot: bool, sizes: list[int] | None) -> None:
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor(sizes or [1] * 5))
    centroids = torch.eye(5, dtype=torch.float64) if one_hot else unit_points(5, 5, seed=0)
    loss = HardDiscriminativeLoss(5 if one_hot else centroids, class_sizes=sizes)
    assert loss.minimum == pytest.approx(loss(centroids[labels], labels).item(), abs=1e-7)


def test_the_nearest_wrong_class_repels_most() -> None:
    z, label = torch.tensor([[0.8, 0.5, 0.1]], requires_grad=True), torch.tensor([0])
    both, pull = (HardDiscriminativeLoss(3, temperature=0.01, push=push)(z, label) for push in (0.3, 0.0))
    repulsion = -torch.autograd.grad(both - pull, z)[0][0]  # (3,): where a step goes
    assert repulsion.argmin() == 1
    assert repulsion[1] < -0.1
    assert repulsion[2] > -0.02
