"""The centre loss: its equation, and the rule by which the centres move."""

from math import log

import pytest
import torch

from tammes import UserError
from tammes.losses.center import CenterLoss
from tests.oracles_points import POINTS, X, Y, center, gradients, moved_centers, problem, with_points


def test_toy() -> None:
    loss = CenterLoss(3, 2, weight=1.0)
    with_points(loss, "centers", POINTS)
    torch.nn.init.zeros_(loss.classifier.weight)  # the softmax then gives log 3
    assert loss(X, Y).item() - log(3) == pytest.approx(0.172500, abs=1e-6)
    assert loss.centers[0, 0].item() == pytest.approx(0.833333, abs=1e-6)
    assert loss.centers[2, 1].item() == pytest.approx(-0.766667, abs=1e-6)
    assert loss(X, Y).item() - log(3) == pytest.approx(0.157917, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)])
@pytest.mark.parametrize(("weight", "alpha"), [(0.003, 0.5), (1.0, 1.0), (0.0, 0.1)])
def test_equals_its_equation_with_the_old_centers_and_then_moves_them(
    batch: int, classes: int, dim: int, seed: int, weight: float, alpha: float
) -> None:
    x, y, centers = problem(batch, classes, dim, seed)
    loss = CenterLoss(classes, dim, weight=weight, alpha=alpha)
    with_points(loss, "centers", centers)
    with torch.no_grad():
        loss.classifier.bias.normal_()
    z = x.clone().requires_grad_()
    value = loss(z, y)
    value.backward()
    torch.testing.assert_close(loss.centers, moved_centers(x, y, centers, alpha))
    layer = loss.classifier
    expected = gradients(lambda z, w, b: center(z, y, w, b, centers, weight), x, layer.weight, layer.bias)
    torch.testing.assert_close([value.detach(), z.grad, layer.weight.grad, layer.bias.grad], expected)


def test_second_derivative_of_the_softmax() -> None:
    loss = CenterLoss(3, 2).double().eval()
    assert torch.autograd.gradgradcheck(lambda z: loss(z, Y), X.clone().requires_grad_())


def test_centers_of_classes_not_in_the_batch_stay() -> None:
    loss = CenterLoss(3, 2)
    with_points(loss, "centers", POINTS)
    loss(X[:2], Y[:2])
    assert torch.equal(loss.centers[1:], POINTS[1:])
    assert not torch.equal(loss.centers[0], POINTS[0])


def test_centers_begin_at_the_origin_and_stay_in_evaluation() -> None:
    loss = CenterLoss(3, 2).eval()
    loss(X.float(), Y)
    assert loss.centers.eq(0).all()
    loss.train()(X.float(), Y)
    assert loss.centers.ne(0).any()


def test_centers_are_no_parameters_but_are_saved() -> None:
    loss = CenterLoss(3, 2)
    assert [name for name, _ in loss.named_parameters()] == ["classifier.weight", "classifier.bias"]
    assert "centers" in loss.state_dict()
    assert loss.classifier.bias.eq(0).all()


def test_logits_are_the_classifiers() -> None:
    loss = CenterLoss(3, 2)
    torch.testing.assert_close(loss.get_logits(X.float()), loss.classifier(X.float()))


def test_minimum_is_approached() -> None:
    loss = CenterLoss(2, 1, weight=1.0, alpha=1.0)
    with torch.no_grad():
        loss.classifier.weight.copy_(torch.tensor([[100.0], [-100.0]]))
        loss.centers.copy_(torch.tensor([[1.0], [-1.0]]))
    assert 0 <= loss(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])).item() - loss.minimum < 1e-9


def test_a_bad_batch_moves_nothing() -> None:
    loss = CenterLoss(3, 2)
    with pytest.raises(UserError, match=r"^label 3 \(row 4 of the batch\) is outside 0..2 of 3 classes."):
        loss(X.float(), Y + torch.tensor([0, 0, 0, 0, 1, 0]))
    with pytest.raises(UserError, match=r"^embeddings must have shape \(batch, 2\), got \(6, 1\).$"):
        loss(X[:, :1].float(), Y)
    assert loss.centers.eq(0).all()
