"""Prototypical networks: episodes inside a batch."""

import pytest
import torch

from tammes import UserError
from tammes.losses.prototypical import PrototypicalLoss
from tests.oracles import seeded
from tests.oracles_points import X, Y, gradients, problem, prototypical


def test_toy() -> None:
    assert PrototypicalLoss(shot=1)(X, Y).item() == pytest.approx(0.709908, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), [(5, 2, 2, 0), (9, 4, 4, 10), (30, 6, 6, 20)])
@pytest.mark.parametrize("shot", [1, 2, 3])
def test_equals_its_equation_with_the_gradient_through_the_prototypes(
    batch: int, classes: int, dim: int, seed: int, shot: int
) -> None:
    x, y, _ = problem(batch, classes, dim, seed)  # classes of uneven size, some without a query
    loss = PrototypicalLoss(shot=shot)
    torch.testing.assert_close(gradients(lambda z: loss(z, y), x), gradients(lambda z: prototypical(z, y, shot), x))


def test_a_class_without_a_query_has_a_prototype_of_what_it_has() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    loss, x = PrototypicalLoss(), X  # only row 2 is a query
    value, moved = gradients(lambda z: loss(z, y), x)
    assert value.item() == pytest.approx(prototypical(x, y, 2).item(), abs=1e-12)
    assert moved.norm(dim=1).min() > 0  # also that of the class with one image
    without = loss(x[:5], y[:5])
    assert without.item() < value.item()


def test_only_the_order_within_a_class_matters() -> None:
    x, y, _ = problem(30, 6, 4, 20)
    loss = PrototypicalLoss()
    by_class = y.sort(stable=True).indices
    torch.testing.assert_close(loss(x[by_class], y[by_class]), loss(x, y))
    assert not torch.isclose(loss(x.flip(0), y.flip(0)), loss(x, y))


@pytest.mark.parametrize("labels", [[5], [5, 5], [5] * 6, [0, 0, 1, 1, 2, 2], [0, 1, 2, 3]])
def test_a_batch_of_one_class_or_without_a_query_gives_zero_and_no_gradient(labels: list[int]) -> None:
    x = torch.randn(len(labels), 3, generator=seeded(0))
    value, moved = gradients(lambda z: PrototypicalLoss()(z, torch.tensor(labels)), x)
    assert value.item() == 0
    assert moved.eq(0).all()


def test_minimum_is_approached() -> None:
    loss = PrototypicalLoss(shot=1)
    apart = torch.tensor([[20.0], [20.0], [-20.0], [-20.0]])
    assert 0 <= loss(apart, torch.tensor([0, 0, 1, 1])).item() - loss.minimum < 1e-9


def test_what_is_printed_and_what_is_refused() -> None:
    assert repr(PrototypicalLoss()) == "PrototypicalLoss(shot=2)"
    with pytest.raises(UserError, match="^shot must be at least 1, got 0.$"):
        PrototypicalLoss(shot=0)
    with pytest.raises(UserError, match="^the batch is empty: the mean over no embeddings is undefined.$"):
        PrototypicalLoss()(X[:0], Y[:0])
