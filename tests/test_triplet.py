"""The triplet loss over all triplets: three forms, each equal to the loop over triplets."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tammes.losses.triplet import Form, TripletLoss
from tests.oracles import seeded, triplet_sum, triplets, unit
from tests.oracles_pairs import SIZES, TOY, TOY_LABELS, assert_equals, named, problem, triplet

Term = Callable[[Tensor, Tensor], Tensor]


def plain(near: Tensor, far: Tensor) -> Tensor:
    return near - far


def with_margin(margin: float, power: int) -> Term:
    return lambda near, far: (near**power - far**power + margin).clamp_min(0)


def ratio(margin: float) -> Term:
    return lambda near, far: (1 - far**2 / (near**2 + margin)).clamp_min(0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("loss", "term", "active_only"),
    [
        (TripletLoss(), plain, False),
        (TripletLoss(form="margin"), with_margin(0.2, 2), False),
        (TripletLoss(form="margin", active_only=True), with_margin(0.2, 2), True),
        (TripletLoss(form="margin", margin=0.5, squared=False), with_margin(0.5, 1), False),
        (TripletLoss(form="margin", margin=9.0), with_margin(9.0, 2), False),
        (TripletLoss(form="ratio"), ratio(0.01), False),
        (TripletLoss(form="ratio", margin=0.3, active_only=True), ratio(0.3), True),
    ],
    ids=named,
)
def test_value_and_gradient_equal_the_equation(
    sizes: list[int], loss: TripletLoss, term: Term, active_only: bool
) -> None:
    assert_equals(loss, triplet(term, active_only), *problem(sizes, seed=2))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (TripletLoss(), -0.416882),
        (TripletLoss(form="margin"), 0.205435),
        (TripletLoss(form="margin", active_only=True), 0.821740),
        (TripletLoss(form="margin", margin=0.05, squared=False, active_only=True), 0.464267),
        (TripletLoss(form="ratio"), 0.147850),
    ],
    ids=named,
)
def test_toy(loss: TripletLoss, expected: float) -> None:
    assert loss(TOY, TOY_LABELS).item() == pytest.approx(expected, abs=1e-6)


def test_the_plain_form_is_equation_2_of_the_paper() -> None:
    x, labels = problem([4, 1, 3])
    count = sum(1 for _ in triplets(labels.tolist()))
    expected = triplet_sum(unit(x.tolist()), labels.tolist()) / count
    assert TripletLoss()(x, labels).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("active_only", [True, False])
def test_the_margin_form_equals_pytorch_metric_learning(squared: bool, active_only: bool) -> None:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.reducers import AvgNonZeroReducer, MeanReducer

    x, labels = problem([7, 5, 1, 9, 4], dim=6)
    theirs = TripletMarginLoss(
        margin=0.1,
        distance=LpDistance(power=2 if squared else 1),
        reducer=AvgNonZeroReducer() if active_only else MeanReducer(),
    )
    ours = TripletLoss(form="margin", margin=0.1, squared=squared, active_only=active_only)
    results = []
    for loss in (ours, theirs):
        z = x.clone().requires_grad_()
        value = loss(z, labels)
        results.append((value.detach(), torch.autograd.grad(value, z)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("active_only", [True, False])
def test_ties_among_duplicates_are_counted_as_the_loop_counts_them(active_only: bool) -> None:
    """Every point three times, twice in its own class: many distances are equal, and many are 0."""
    x, _ = problem([2, 2])
    x, labels = x.repeat(3, 1), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 2, 0])
    ours = TripletLoss(form="margin", active_only=active_only)(x, labels)
    theirs = triplet(with_margin(0.2, 2), active_only)(x, labels.tolist())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_small_difference_of_large_sums_keeps_its_digits_in_float32() -> None:
    """All distances are near sqrt 2 and the margin is small: sums in float32 would be off by 3e-5."""
    labels = torch.arange(512) % 64
    x = torch.eye(512) + 3e-4 * torch.randn(512, 512, generator=seeded(1))
    for loss in (TripletLoss(form="margin", margin=1e-3), TripletLoss(form="ratio", margin=1e-3)):
        single, double = loss(x, labels), loss(x.double(), labels)
        assert single.item() == pytest.approx(double.item(), rel=5e-6, abs=0)


def test_a_nan_among_the_negatives_is_not_hidden() -> None:
    """The image alone in its class is only ever a negative, and the farthest one."""
    x = TOY.clone()
    x[5] = float("nan")
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    for form in get_args(Form):
        assert TripletLoss(form=form)(x, labels).isnan()


@pytest.mark.parametrize("form", ["plain", "margin", "ratio"])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]])
def test_without_triplets_the_loss_is_zero(form: Form, labels: list[int]) -> None:
    x = TOY.clone().requires_grad_()
    value = TripletLoss(form=form)(x, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.eq(0).all()


@pytest.mark.parametrize("form", ["plain", "margin", "ratio"])
def test_gradient_is_finite_where_points_coincide(form: Form) -> None:
    x = TOY[[0, 0, 0, 3, 3, 5]].clone()
    x[5] = 0
    x.requires_grad_()
    value = TripletLoss(form=form)(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_no_active_triplet_gives_zero() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]], requires_grad=True)
    for active_only in (False, True):
        loss = TripletLoss(form="margin", active_only=active_only)
        value = loss(x, torch.tensor([0, 0, 1, 1]))
        assert value.item() == loss.minimum == 0
        assert torch.autograd.grad(value, x)[0].eq(0).all()


def test_the_least_value_of_the_plain_form_is_not_known() -> None:
    assert not hasattr(TripletLoss(), "minimum")
    assert TripletLoss(form="ratio").minimum == 0


@pytest.mark.parametrize("form", ["plain", "margin", "ratio"])
def test_no_tensor_is_larger_than_quadratic_in_the_batch(form: Form) -> None:
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(each.numel() for each in tree_leaves(result) if isinstance(each, Tensor))
            return result

    x, labels = torch.randn(90, 4, generator=seeded(0), requires_grad=True), torch.arange(90) % 9
    with Watch():  # type: ignore[no-untyped-call]
        TripletLoss(form=form)(x, labels).backward()
    assert 90**2 <= max(sizes) <= 90 * 91
