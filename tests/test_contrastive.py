"""The contrastive loss: its three forms, and the hardest pairs."""

import pytest
import torch
from torch import Tensor

from tammes import UserError
from tammes.losses.contrastive import METHOD, ContrastiveLoss, Form
from tammes.losses.mining import hardest_pairs
from tests.oracles_pairs import (
    SIZES,
    TOY,
    TOY_LABELS,
    Oracle,
    apart,
    assert_equals,
    contrastive,
    mined_hinge,
    named,
    pairs,
    problem,
    unit_rows,
)


def on_unit(oracle: Oracle) -> Oracle:
    return lambda x, y: oracle(unit_rows(x), y)


def squared(margin: float) -> Oracle:
    return on_unit(
        contrastive(
            lambda x, i, j: apart(x, i, j) ** 2 / 2, lambda x, i, j: (margin - apart(x, i, j)).clamp_min(0) ** 2 / 2
        )
    )


def hinge(margin: float) -> Oracle:
    return contrastive(apart, lambda x, i, j: (margin - apart(x, i, j)).clamp_min(0))


def exponential(bound: float) -> Oracle:
    def manhattan(x: Tensor, i: int, j: int) -> Tensor:
        return (x[i] - x[j]).abs().sum()

    return on_unit(
        contrastive(
            lambda x, i, j: 2 / bound * manhattan(x, i, j) ** 2,
            lambda x, i, j: 2 * bound * (-2.77 / bound * manhattan(x, i, j)).exp(),
        )
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("loss", "oracle"),
    [
        (ContrastiveLoss(), squared(1.0)),
        (ContrastiveLoss(margin=1.7), squared(1.7)),
        (ContrastiveLoss(form="hinge"), hinge(4.0)),
        (ContrastiveLoss(form="hinge", margin=2.0), hinge(2.0)),
        (ContrastiveLoss(form="exponential", margin=2.5), exponential(2.5)),
        (ContrastiveLoss(form="exponential"), exponential(2 * 3**0.5)),
    ],
    ids=named,
)
def test_value_and_gradient_equal_the_equation(sizes: list[int], loss: ContrastiveLoss, oracle: Oracle) -> None:
    assert_equals(loss, oracle, *problem(sizes))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (ContrastiveLoss(), 0.136322),
        (ContrastiveLoss(form="hinge"), 2.217929),
        (ContrastiveLoss(form="exponential", margin=2.0), 0.800341),
    ],
    ids=named,
)
def test_toy(loss: ContrastiveLoss, expected: float) -> None:
    assert loss(TOY, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("hardest", "positive", "negative"), [(0.6, 5, 11), (0.25, 2, 5), (0.01, 1, 1)])
def test_hardest_counts_that_part_of_each_kind(hardest: float, positive: int, negative: int) -> None:
    x, labels = problem([4, 1, 3])  # 9 positive pairs, 19 negative
    assert [len(kind) for kind in pairs(labels.tolist())] == [9, 19]
    loss = ContrastiveLoss(form="hinge", hardest=hardest)
    assert_equals(loss, mined_hinge(4.0, positive, negative), x, labels)


def test_two_hardest_of_each_kind_of_the_toy() -> None:
    """The ratio differs, 2 of 3 and 2 of 12: not one fraction, so by the function that chooses."""
    positive, negative = pairs(TOY_LABELS.tolist())
    pull = torch.stack([apart(TOY, i, j) for i, j in positive])
    push = torch.stack([4 - apart(TOY, i, j) for i, j in negative])
    kept = torch.cat([pull[hardest_pairs(pull, 2 / 3)], push[hardest_pairs(push, 2 / 12)]])
    assert len(kept) == 4
    assert kept.mean().item() == pytest.approx(2.345803, abs=1e-6)
    assert mined_hinge(4.0, 2, 2)(TOY, TOY_LABELS.tolist()).item() == pytest.approx(2.345803, abs=1e-6)


def test_a_pair_that_is_not_among_the_hardest_has_no_gradient() -> None:
    x = torch.tensor([[0.0], [3.0], [10.0], [10.5], [20.0]], requires_grad=True)
    loss = ContrastiveLoss(form="hinge", margin=1.0, hardest=0.5)  # of two positive pairs one; no negative is close
    loss(x, torch.tensor([0, 0, 1, 1, 2])).backward()
    assert x.grad is not None
    assert x.grad[:2].abs().min() > 0
    assert x.grad[2:].eq(0).all()


@pytest.mark.parametrize(("form", "scaled"), [("squared", True), ("exponential", True), ("hinge", False)])
def test_which_forms_scale_the_embeddings_to_unit_length(form: Form, scaled: bool) -> None:
    loss = ContrastiveLoss(form=form)
    assert torch.isclose(loss(3 * TOY, TOY_LABELS), loss(TOY, TOY_LABELS)).item() is scaled


def test_the_hinge_equals_pytorch_metric_learning() -> None:
    """It means the non-zero pairs of each kind on their own and adds the two."""
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import ContrastiveLoss as Theirs

    x, labels = problem([4, 1, 3])
    theirs = Theirs(neg_margin=9.0, distance=LpDistance(normalize_embeddings=False))(x, labels).item()
    positive, negative = pairs(labels.tolist())
    pull_only = ContrastiveLoss(form="hinge", margin=1e-9)(x, labels).item() * 28 / len(positive)
    both = ContrastiveLoss(form="hinge", margin=9.0)(x, labels).item() * 28
    assert pull_only + (both - pull_only * len(positive)) / len(negative) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("form", ["squared", "hinge", "exponential"])
@pytest.mark.parametrize("hardest", [1.0, 0.3])
def test_without_pairs_the_loss_is_zero_and_with_one_kind_it_is_of_that_kind(form: Form, hardest: float) -> None:
    loss = ContrastiveLoss(form=form, hardest=hardest)
    alone = TOY[:1].clone().requires_grad_()
    value = loss(alone, torch.tensor([4]))
    value.backward()
    assert value.item() == 0
    assert alone.grad is not None
    assert alone.grad.eq(0).all()
    same, different = loss(TOY, torch.zeros(6, dtype=torch.long)), loss(TOY, torch.arange(6))
    assert 0 < same.item() < float("inf")
    assert 0 < different.item() < float("inf")


@pytest.mark.parametrize("form", ["squared", "hinge", "exponential"])
def test_gradient_is_finite_where_points_coincide(form: Form) -> None:
    x = TOY[[0, 0, 0, 3, 3, 5]].clone().requires_grad_()
    ContrastiveLoss(form=form)(x, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_minimum_is_reached() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    for loss in (ContrastiveLoss(), ContrastiveLoss(form="hinge", margin=2.0)):
        assert loss(x, torch.tensor([0, 0, 1])).item() == loss.minimum


def test_bad_options() -> None:
    for hardest in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(
            UserError, match=rf"^hardest must be in .0, 1., the part of the pairs that counts, got {hardest}\.$"
        ):
            ContrastiveLoss(hardest=hardest)
    with pytest.raises(UserError, match=r"^margin must be above 0 and finite, got 0\.0\.$"):
        ContrastiveLoss(margin=0.0)


def test_what_it_says_of_itself() -> None:
    assert repr(ContrastiveLoss()) == "ContrastiveLoss(form=squared, margin=1, hardest=1)"
    assert "margin=2 sqrt(dim)" in repr(ContrastiveLoss(form="exponential"))
    assert METHOD.images_per_class == 4
    assert list(METHOD.options) == ["form", "margin", "hardest"]
