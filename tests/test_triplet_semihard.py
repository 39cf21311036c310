"""The triplet loss with semi-hard negatives."""

import pytest
import torch

from tammes.losses.triplet_semihard import TripletSemihardLoss
from tests.oracles import seeded
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, problem, semihard


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("margin", [0.2, 1.0, 5.0])
def test_value_and_gradient_equal_the_rule(sizes: list[int], margin: float) -> None:
    assert_equals(TripletSemihardLoss(margin=margin), semihard(margin), *problem(sizes, seed=3))


@pytest.mark.parametrize(("margin", "expected"), [(1.0, 0.159599), (0.8, 0.063188), (0.2, 0.0)])
def test_toy(margin: float, expected: float) -> None:
    assert TripletSemihardLoss(margin=margin)(TOY, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


def test_two_of_each_class_equal_pytorch_metric_learning_where_every_pair_has_a_semihard_negative() -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchEasyHardMiner
    from pytorch_metric_learning.reducers import MeanReducer

    labels = torch.arange(16) // 2
    centres = torch.randn(8, 6, generator=seeded(0), dtype=torch.float64)
    x = centres[labels] + 0.4 * torch.randn(16, 6, generator=seeded(1), dtype=torch.float64)
    squared = LpDistance(power=2)
    mined = BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard", distance=squared)(x, labels)
    assert len(mined[0]) == 16  # none was dropped for want of a semi-hard negative
    theirs = TripletMarginLoss(margin=1.0, distance=squared, reducer=MeanReducer())(x, labels, mined)
    assert theirs > 0.01
    torch.testing.assert_close(TripletSemihardLoss()(x, labels), theirs, rtol=1e-9, atol=1e-9)


def test_without_a_farther_negative_the_farthest_is_taken() -> None:
    """The pair is opposite: no negative is farther, and the hinge is 4 minus the farthest plus the margin."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    expected = ((4 - 0.8 + 1) + (4 - 3.6 + 1)) / 2
    assert TripletSemihardLoss()(x, torch.tensor([0, 0, 1, 2])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_in_two_classes_is_not_semihard_for_its_twin_whatever_the_order(dtype: torch.dtype) -> None:
    """Where products of matrices round, the two distances of the twins may differ in the last digits."""
    labels = torch.cat([torch.arange(60) % 20, torch.arange(60) % 20 + 20])
    x = torch.randn(60, 100, generator=seeded(0), dtype=dtype).repeat(2, 1)  # every image in two classes
    loss = TripletSemihardLoss()
    value = loss(x, labels)
    for seed in range(3):
        order = torch.randperm(120, generator=seeded(seed))
        torch.testing.assert_close(loss(x[order], labels[order]), value, rtol=1e-5, atol=1e-6)


def test_a_nan_among_the_negatives_is_not_hidden() -> None:
    x = TOY.clone()
    x[5] = float("nan")
    assert TripletSemihardLoss()(x, torch.tensor([0, 0, 1, 1, 1, 2])).isnan()


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]])
def test_without_triplets_the_loss_is_zero(labels: list[int]) -> None:
    x = TOY.clone().requires_grad_()
    value = TripletSemihardLoss()(x, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_minimum_is_reached() -> None:
    loss = TripletSemihardLoss(margin=0.2)
    assert loss(TOY, TOY_LABELS).item() == loss.minimum
