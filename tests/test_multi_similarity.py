"""The multi-similarity loss: with its mining of pairs, and without."""

from math import cos, exp, log1p, radians

import pytest
import torch
from torch import Tensor

from tammes.losses.multi_similarity import MultiSimilarityLoss
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, multi_similarity, named, problem


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("alpha", "beta", "threshold"), [(2.0, 50.0, 0.5), (2.0, 40.0, 1.0), (10.0, 5.0, -0.2)])
@pytest.mark.parametrize("epsilon", [0.1, 0.0, 0.7])
def test_value_and_gradient_equal_the_equation(
    sizes: list[int], alpha: float, beta: float, threshold: float, epsilon: float
) -> None:
    loss = MultiSimilarityLoss(alpha=alpha, beta=beta, threshold=threshold, epsilon=epsilon)
    for seed in (0, 5):
        assert_equals(loss, multi_similarity(alpha, beta, threshold, epsilon), *problem(sizes, seed=seed))


@pytest.mark.parametrize("sizes", SIZES)
def test_without_mining_all_pairs_count(sizes: list[int]) -> None:
    assert_equals(MultiSimilarityLoss(mine=False), multi_similarity(2.0, 50.0, 0.5, None), *problem(sizes))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (MultiSimilarityLoss(), 0.461512),
        (MultiSimilarityLoss(threshold=1.0), 0.448126),
        (MultiSimilarityLoss(mine=False), 0.611062),
    ],
    ids=named,
)
def test_toy(loss: MultiSimilarityLoss, expected: float) -> None:
    assert loss(TOY, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mine", [True, False])
def test_equal_to_pytorch_metric_learning(sizes: list[int], mine: bool) -> None:
    """Also with a class of one image, which they mine nothing for either."""
    from pytorch_metric_learning.losses import MultiSimilarityLoss as Theirs
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    loss, miner = Theirs(alpha=2, beta=50, base=0.5), MultiSimilarityMiner(epsilon=0.1)

    def theirs(z: Tensor, y: Tensor) -> Tensor:
        value: Tensor = loss(z, y, miner(z, y) if mine else None)
        return value

    for seed in range(3):
        x, labels = problem(sizes, seed=seed)
        results = []
        for each in (MultiSimilarityLoss(mine=mine), theirs):
            z = x.clone().requires_grad_()
            value = each(z, labels)
            results.append((value.detach(), torch.autograd.grad(value, z)[0]))
        torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_gradient_passes_gradcheck() -> None:
    x, labels = problem([4, 2, 3], seed=7)
    for loss in (MultiSimilarityLoss(beta=5.0), MultiSimilarityLoss(mine=False)):
        assert torch.autograd.gradcheck(lambda z, loss=loss: loss(z, labels), x.clone().requires_grad_())


@pytest.mark.parametrize(
    ("degrees", "labels", "epsilon", "near", "far"),
    [
        ([0.0, 20.0, 60.0, -50.0], [0, 0, 0, 1], 0.1, [60.0], [50.0]),  # .940 is above .643 + .1
        ([0.0, 20.0, 60.0, -50.0], [0, 0, 0, 1], 0.3, [20.0, 60.0], [50.0]),
        ([0.0, 50.0, -20.0, -60.0], [0, 0, 1, 2], 0.1, [50.0], [20.0]),  # .5 is below .643 - .1
        ([0.0, 50.0, -20.0, -60.0], [0, 0, 1, 2], 0.2, [50.0], [20.0, 60.0]),
    ],
)
def test_which_pairs_are_mined(
    degrees: list[float], labels: list[int], epsilon: float, near: list[float], far: list[float]
) -> None:
    """Only the image at 0° has hard pairs; cosines of 20°, 50° and 60° are .940, .643 and .5."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    pull = log1p(sum(exp(-2 * (cos(radians(each)) - 0.5)) for each in near)) / 2
    push = log1p(sum(exp(50 * (cos(radians(each)) - 0.5)) for each in far)) / 50
    value = MultiSimilarityLoss(epsilon=epsilon)(x, torch.tensor(labels))
    assert value.item() == pytest.approx((pull + push) / 4, abs=1e-12)


def test_easy_batches_are_zero_and_have_a_gradient_of_zero() -> None:
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1, 2, 2]].requires_grad_()
    value = MultiSimilarityLoss()(x, TOY_LABELS)
    assert value.item() == MultiSimilarityLoss().minimum == 0
    assert torch.autograd.grad(value, x)[0].eq(0).all()
    assert MultiSimilarityLoss(mine=False)(x, TOY_LABELS).item() > 0


@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [3]])
def test_without_negatives_or_without_positives_nothing_is_mined(labels: list[int]) -> None:
    x = TOY[: len(labels)].clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        value = MultiSimilarityLoss()(x, torch.tensor(labels))
        value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_a_batch_of_one_class_without_mining_only_pulls() -> None:
    value = MultiSimilarityLoss(mine=False)(TOY, torch.zeros(6, dtype=torch.long))
    expected = multi_similarity(2.0, 50.0, 0.5, None)(TOY, [0] * 6)
    torch.testing.assert_close(value, expected)
    assert MultiSimilarityLoss(mine=False)(TOY[:1], torch.tensor([4])).item() == 0


def test_a_copy_of_an_image_is_a_pair_and_its_gradient_is_finite() -> None:
    x, labels = TOY[[0, 0, 0, 3, 3, 5]].clone(), torch.tensor([0, 0, 1, 1, 2, 2])
    assert_equals(MultiSimilarityLoss(), multi_similarity(2.0, 50.0, 0.5, 0.1), x, labels)
    assert_equals(MultiSimilarityLoss(mine=False), multi_similarity(2.0, 50.0, 0.5, None), x, labels)


def test_steep_slopes_do_not_overflow() -> None:
    x = TOY.float().requires_grad_()
    value = MultiSimilarityLoss(alpha=1e4, beta=1e4)(x, TOY_LABELS)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("sizes", [[4, 4], [4], [1, 1, 1, 1]])
def test_an_image_that_is_not_a_number_is_not_mined_away(mine: bool, sizes: list[int]) -> None:
    x, labels = problem(sizes, seed=1)
    x[3, 0] = float("nan")
    assert MultiSimilarityLoss(mine=mine)(x, labels).isnan()
