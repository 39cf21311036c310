"""The lifted structure loss."""

import pytest
import torch

from tammes.geometry import normalise
from tammes.losses.lifted import LiftedStructureLoss
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, lifted, problem


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("margin", [0.5, 1.0, 3.0])
def test_value_and_gradient_equal_the_equation(sizes: list[int], margin: float) -> None:
    assert_equals(LiftedStructureLoss(margin=margin), lifted(margin), *problem(sizes))


def test_toy() -> None:
    loss = LiftedStructureLoss()
    assert loss(TOY, TOY_LABELS).item() == pytest.approx(3.944430, abs=1e-6)
    assert loss(normalise(TOY), TOY_LABELS).item() == pytest.approx(3.944830, abs=1e-6)


@pytest.mark.parametrize("sizes", SIZES)
def test_equal_to_pytorch_metric_learning(sizes: list[int]) -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import LiftedStructureLoss as Theirs
    from pytorch_metric_learning.reducers import MeanReducer

    theirs = Theirs(distance=LpDistance(normalize_embeddings=False), reducer=MeanReducer())
    results = []
    for loss in (LiftedStructureLoss(), theirs):
        x, labels = problem(sizes)
        value = loss(x.requires_grad_(), labels)
        results.append((value.detach(), torch.autograd.grad(value, x)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_negatives_at_any_distance() -> None:
    """Near ones among far ones, all so far that the hinge is 0, and so far that exp underflows."""
    labels = torch.tensor([0, 0, 1, 1])
    for far, active in ((3.0, True), (50.0, False), (1e6, False)):
        x = torch.tensor([[0.0, 0], [1, 0], [far, 0], [far, 1]], requires_grad=True)
        value = LiftedStructureLoss()(x, labels)
        value.backward()
        assert (value.item() > 0) is active
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert bool(x.grad.abs().max() > 0) is active


def test_a_positive_pair_a_million_apart_has_a_value() -> None:
    x = torch.tensor([[0.0, 0], [1e6, 0], [0, 1]], dtype=torch.float64)
    value = LiftedStructureLoss()(x, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx(1e12 / 2, rel=1e-9)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]])
def test_without_negatives_or_without_positives_the_loss_is_zero(labels: list[int]) -> None:
    x = TOY.clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):  # a NaN on the way would be an error, even if it came to nothing
        value = LiftedStructureLoss()(x, torch.tensor(labels))
        value.backward()
    assert value.item() == LiftedStructureLoss().minimum == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()
