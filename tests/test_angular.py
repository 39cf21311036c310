"""The angular loss: alone, and beside the N-pair loss."""

from math import radians, tan

import pytest
import torch

from tammes.geometry import normalise
from tammes.losses.angular import METHOD, AngularLoss
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, angular, assert_equals, named, problem, too_wide

UNIT_TOY = normalise(TOY)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("alpha", [9.0, 45.0, 70.0])
def test_value_and_gradient_equal_the_equation(sizes: list[int], alpha: float) -> None:
    assert_equals(AngularLoss(alpha=alpha, form="angular"), angular(alpha), *problem(sizes))
    assert_equals(AngularLoss(alpha=alpha), angular(alpha, weight=2.0), *problem(sizes))
    assert_equals(AngularLoss(alpha=alpha, angular_weight=0.3), angular(alpha, weight=0.3), *problem(sizes))


@pytest.mark.parametrize(
    ("loss", "expected"), [(AngularLoss(form="angular"), 1.735413), (AngularLoss(), 4.319246)], ids=named
)
@pytest.mark.parametrize("points", [UNIT_TOY, TOY], ids=["unit", "as they are"])
def test_toy(loss: AngularLoss, expected: float, points: torch.Tensor) -> None:
    assert loss(points, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


def test_toy_of_the_triplets() -> None:
    """The form for single triplets, which the other is derived from: two with each pair, one negative each."""
    chosen = [(0, 1, 2), (2, 3, 1), (4, 5, 0), (1, 0, 2), (3, 2, 1), (5, 4, 0)]
    hinges = [too_wide(UNIT_TOY, *each, alpha=45.0).clamp_min(0) for each in chosen]
    assert torch.stack(hinges).mean().item() == pytest.approx(0.497999, abs=1e-6)


@pytest.mark.parametrize("alpha", [30.0, 45.0, 60.0])
def test_an_exponent_is_how_much_the_angle_is_too_wide_but_for_a_constant(alpha: float) -> None:
    """For unit vectors the constant is 2 - 6 tan²(alpha)."""
    x, squared = normalise(problem([2, 2], seed=3)[0]), tan(radians(alpha)) ** 2
    terms = [(too_wide(x, *each, alpha=alpha) - 2 + 6 * squared).exp().log1p() for each in ((0, 1, 3), (2, 3, 1))]
    value = AngularLoss(alpha=alpha, form="angular")(x, torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(value, torch.stack(terms).mean())


def test_two_of_each_class_equal_pytorch_metric_learning() -> None:
    """Given the anchors, and the positives to compare them with; unit vectors, for it scales only some."""
    from pytorch_metric_learning.losses import AngularLoss as Theirs

    x, labels = problem([2, 2, 2, 2, 2], seed=4)
    order = labels.argsort(stable=True)

    def theirs(z: torch.Tensor) -> torch.Tensor:
        unit, classes = normalise(z)[order], labels[order][::2]
        apart = classes.clone()  # the very same labels would mean the very same images
        value: torch.Tensor = Theirs(alpha=40)(unit[::2], classes, ref_emb=unit[1::2], ref_labels=apart)
        return value

    results = []
    for loss in (lambda z: AngularLoss(alpha=40.0, form="angular")(z, labels), theirs):
        z = x.clone().requires_grad_()
        value = loss(z)
        results.append((value.detach(), torch.autograd.grad(value, z)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)


def test_gradient_passes_gradcheck() -> None:
    x, labels = problem([4, 2, 3], seed=7)
    for loss in (AngularLoss(), AngularLoss(form="angular")):
        assert torch.autograd.gradcheck(lambda z, loss=loss: loss(z, labels), x.clone().requires_grad_())


def test_lengths_do_not_matter() -> None:
    x, labels = problem([2, 4, 2], seed=1)
    longer = x * torch.linspace(0.1, 1e6, len(x), dtype=torch.float64)[:, None]
    torch.testing.assert_close(AngularLoss()(longer, labels), AngularLoss()(x, labels))


def test_an_image_without_a_partner_takes_no_part() -> None:
    x, labels = problem([2, 2, 1])
    alone = int((labels == 2).nonzero())
    moved = x.clone()
    moved[alone] = -moved[alone]
    x.requires_grad_()
    value = AngularLoss()(x, labels)
    assert AngularLoss()(moved, labels).item() == value.item()
    assert torch.autograd.grad(value, x)[0][alone].eq(0).all()


@pytest.mark.parametrize("form", ["angular", "npair+angular"])
@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [0]])
def test_with_nothing_to_compare_the_loss_is_zero(labels: list[int], form: str) -> None:
    loss = METHOD.make({}, {"form": form})
    x = TOY[: len(labels)].clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        value = loss(x, torch.tensor(labels))
        value.backward()
    assert value.item() == loss.minimum == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_the_widest_angle_does_not_overflow_float32() -> None:
    x = torch.eye(4)[[0, 1, 0, 1]].requires_grad_()
    value = AngularLoss(alpha=80.0)(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() > 100
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_gradient_is_finite_where_points_coincide() -> None:
    x = TOY[[0, 0, 0, 0, 3, 3]].clone().requires_grad_()
    AngularLoss()(x, TOY_LABELS).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
