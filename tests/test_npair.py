"""The N-pair loss: pairs by position, all other classes as negatives."""

import pytest
import torch

from tammes.losses.npair import Form, NPairLoss
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, named, npair, problem


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("form", ["softmax", "one-vs-one"])
@pytest.mark.parametrize("penalty", [0.0, 0.002, 0.3])
def test_value_and_gradient_equal_the_equation(sizes: list[int], form: Form, penalty: float) -> None:
    loss = NPairLoss(penalty=penalty, form=form)
    assert_equals(loss, npair(penalty, one_vs_one=form == "one-vs-one"), *problem(sizes))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (NPairLoss(penalty=0.0), 0.830413),
        (NPairLoss(), 0.831428),
        (NPairLoss(penalty=0.0, form="one-vs-one"), 0.963956),
    ],
    ids=named,
)
def test_toy(loss: NPairLoss, expected: float) -> None:
    assert loss(TOY, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


def test_two_of_each_class_equal_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import NPairsLoss
    from pytorch_metric_learning.regularizers import LpRegularizer

    theirs = NPairsLoss(
        distance=DotProductSimilarity(normalize_embeddings=False),
        embedding_regularizer=LpRegularizer(power=2),
        embedding_reg_weight=0.1 / 2,
    )
    results = []
    for loss in (NPairLoss(penalty=0.1), theirs):
        x, labels = problem([2, 2, 2, 2, 2], seed=4)
        value = loss(x.requires_grad_(), labels)
        results.append((value.detach(), torch.autograd.grad(value, x)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_a_pair_of_the_same_class_is_no_negative() -> None:
    """Four images of class 0 are two pairs; only the pair of class 1 tells them apart."""
    x = torch.eye(6, dtype=torch.float64)[[0, 0, 0, 0, 1, 1]]
    one = torch.log1p(torch.tensor(-1.0, dtype=torch.float64).exp()).item()
    two = torch.log1p(2 * torch.tensor(-1.0, dtype=torch.float64).exp()).item()
    value = NPairLoss(penalty=0.0)(x, torch.tensor([0, 0, 0, 0, 1, 1])).item()
    assert value == pytest.approx((2 * one + two) / 3, abs=1e-12)


def test_an_image_without_a_partner_takes_no_part() -> None:
    x, labels = problem([3, 2, 1])
    alone = [i for i, label in enumerate(labels.tolist()) if label == 2]
    alone.append(max(i for i, label in enumerate(labels.tolist()) if label == 0))
    moved = x.clone()
    moved[alone] += 5
    x.requires_grad_()
    value = NPairLoss()(x, labels)
    assert NPairLoss()(moved, labels).item() == value.item()
    assert torch.autograd.grad(value, x)[0][alone].eq(0).all()


def test_only_the_order_within_a_class_matters() -> None:
    x, labels = problem([4, 4, 2], seed=5)
    by_class = labels.argsort(stable=True)
    value = NPairLoss()(x, labels)
    torch.testing.assert_close(NPairLoss()(x[by_class], labels[by_class]), value)
    assert not torch.isclose(NPairLoss()(x.flip(0), labels.flip(0)), value)


@pytest.mark.parametrize("form", ["softmax", "one-vs-one"])
def test_long_embeddings_do_not_overflow(form: Form) -> None:
    x = (1e4 * TOY).float().requires_grad_()
    value = NPairLoss(penalty=0.0, form=form)(x, TOY_LABELS)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0


@pytest.mark.parametrize("form", ["softmax", "one-vs-one"])
def test_without_a_pair_the_loss_is_zero_and_of_one_class_it_is_the_penalty(form: Form) -> None:
    x = TOY.clone().requires_grad_()
    value = NPairLoss(form=form)(x, torch.arange(6))
    assert value.item() == 0
    assert torch.autograd.grad(value, x)[0].eq(0).all()
    one_class = torch.zeros(6, dtype=torch.long)
    assert NPairLoss(penalty=0.0, form=form)(TOY, one_class).item() == NPairLoss().minimum == 0
    squares = TOY.square().sum(1).mean().item()
    assert NPairLoss(penalty=0.1, form=form)(TOY, one_class).item() == pytest.approx(0.05 * squares, abs=1e-12)
