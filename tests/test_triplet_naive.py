"""L_t as a loss: the triplet loss of the theory on the outputs that the bound is computed on."""

import pytest
import torch
from torch import Tensor

from tammes import bound
from tammes.geometry import normalise
from tammes.losses import METHODS, OF_CLASS_LAYER, DiscriminativeLoss, NaiveTripletLoss
from tests.configs import config_of
from tests.oracles import seeded, triplets
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, problem


def value_and_gradient(loss: object, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    z = points.clone().requires_grad_()
    value: Tensor = loss(z, labels)  # type: ignore[operator]
    (moved,) = torch.autograd.grad(value, z)
    return value.detach(), moved


@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_triplet_loss_of_the_theory(sizes: list[int]) -> None:
    points, labels = problem(sizes, seed=3)
    ours = value_and_gradient(NaiveTripletLoss(), points, labels)
    theory = value_and_gradient(lambda z, y: bound.triplet_loss(normalise(z), y, reduction="mean"), points, labels)
    torch.testing.assert_close(ours, theory)


def test_it_is_the_mean_over_the_triplets_one_by_one() -> None:
    x = normalise(TOY)
    each = [(x[a] - x[p]).norm() - (x[a] - x[n]).norm() for a, p, n in triplets(TOY_LABELS.tolist())]
    expected = torch.stack(each).mean()
    assert expected.item() == pytest.approx(-0.416882, abs=1e-6)
    torch.testing.assert_close(NaiveTripletLoss()(TOY, TOY_LABELS), expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_discriminative_loss_bounds_it(seed: int) -> None:
    """Three times the mean of the bound, for classes of equal size."""
    labels = torch.arange(4).repeat_interleave(3)
    points = torch.randn(12, 4, generator=seeded(seed), dtype=torch.float64)
    assert 3 * DiscriminativeLoss(4)(points, labels) >= NaiveTripletLoss()(points, labels)


def test_minimising_the_bound_minimises_it() -> None:
    """At the minimum of the bound each class is in one point, √2 from the others; on its own it finds a simplex."""
    labels = torch.arange(4).repeat_interleave(4)
    reached = {}
    for name, loss in (("bound", DiscriminativeLoss(4)), ("itself", NaiveTripletLoss())):
        points = torch.randn(16, 4, generator=seeded(0), dtype=torch.float64).requires_grad_()
        before = NaiveTripletLoss()(points, labels).item()
        optimizer = torch.optim.Adam([points], lr=0.05)
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 300)
            optimizer.zero_grad()
            loss(points, labels).backward()
            optimizer.step()
        reached[name] = NaiveTripletLoss()(points, labels).item()
        assert reached[name] < before - 1
    assert reached["bound"] == pytest.approx(-(2**0.5), abs=0.02)
    assert reached["itself"] == pytest.approx(-((2 * 4 / 3) ** 0.5), abs=0.02)


def test_it_is_computed_on_the_layer_that_the_centroids_are_in() -> None:
    config = config_of("glyphs", loss="triplet-naive")
    assert (METHODS["triplet-naive"].on, config.sampler, config.images_per_class) == ("class layer", "pk", 4)
    assert "triplet-naive" not in OF_CLASS_LAYER, "vectors come in any batch"
