"""Proxy-Anchor: positives over the classes of the batch, negatives over all."""

from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss as TheirProxyAnchorLoss

from tammes.losses.proxy_anchor import ProxyAnchorLoss
from tests.oracles_points import POINTS, X, Y, gradients, problem, proxy_anchor, with_points

PROBLEMS = [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)]


@pytest.mark.parametrize(("options", "expected"), [({}, 21.687565), ({"scale": 4.0, "margin": 0.0}, 2.643675)])
def test_toy(options: dict[str, Any], expected: float) -> None:
    loss = with_points(ProxyAnchorLoss(3, 2, **options), "proxies", POINTS)
    assert loss(X, Y).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), PROBLEMS)
@pytest.mark.parametrize(("scale", "margin"), [(32.0, 0.1), (5.0, 0.0), (10.0, 0.6)])
def test_equals_its_equation(batch: int, classes: int, dim: int, seed: int, scale: float, margin: float) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss = with_points(ProxyAnchorLoss(classes, dim, scale=scale, margin=margin), "proxies", proxies)
    value, by_x = gradients(lambda z: loss(z, y), x)
    loss(x, y).backward()
    expected = gradients(lambda z, p: proxy_anchor(z, y, p, scale, margin), x, proxies)
    torch.testing.assert_close([value, by_x, loss.get_parameter("proxies").grad], expected)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), PROBLEMS)
def test_it_is_that_of_others(batch: int, classes: int, dim: int, seed: int) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss, theirs = ProxyAnchorLoss(classes, dim), TheirProxyAnchorLoss(classes, dim)
    with_points(loss, "proxies", proxies)
    theirs.proxies.data = proxies.clone()
    ours = gradients(lambda z: loss(z, y), x)
    torch.testing.assert_close(ours, gradients(lambda z: theirs(z, y), x), rtol=1e-6, atol=1e-6)


def test_gradient_passes_gradcheck() -> None:
    x, y, proxies = problem(7, 5, 4, 10)
    loss = with_points(ProxyAnchorLoss(5, 4, scale=8.0), "proxies", proxies)

    def of_both(z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = torch.func.functional_call(loss, {"proxies": p}, (z, y))
        return value

    assert torch.autograd.gradcheck(of_both, (x.requires_grad_(), proxies.requires_grad_()))


def test_positives_are_averaged_over_the_classes_of_the_batch_and_negatives_over_all() -> None:
    """An image on its proxy, orthogonal to nine others: its own class is one of one, each other one of ten."""
    loss = with_points(ProxyAnchorLoss(10, 10, scale=3.0, margin=0.5), "proxies", torch.eye(10))
    x = torch.eye(10, dtype=torch.float64)[:1]
    pull, push = (torch.tensor(each, dtype=torch.float64).exp().log1p().item() for each in (-1.5, 1.5))
    assert loss(x, torch.tensor([0])).item() == pytest.approx(pull + 9 / 10 * push, abs=1e-12)
    assert loss(x[[0, 0]], torch.tensor([0, 0])).item() > loss(x, torch.tensor([0])).item()


def test_a_class_that_is_not_in_the_batch_is_pushed_only() -> None:
    x, _, proxies = problem(4, 3, 2, 1)
    loss = with_points(ProxyAnchorLoss(3, 2), "proxies", proxies)
    for y in (torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0])):
        loss.zero_grad()
        value = loss(x, y)
        value.backward()
        moved = loss.get_parameter("proxies").grad
        assert moved is not None
        assert value.isfinite()
        assert moved.isfinite().all()
        assert moved[2].norm() > 0
    # One class has no negatives: it is only pulled.
    alone = gradients(lambda p: proxy_anchor(x, y, p, 32.0, 0.1), proxies)[1]
    torch.testing.assert_close(moved, alone)


def test_a_large_scale_does_not_overflow_and_the_worst_image_is_moved() -> None:
    loss = ProxyAnchorLoss(2, 2, scale=1e4)
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(2))
    value, moved = gradients(lambda z: loss(z, torch.tensor([0, 1])), torch.tensor([[1e-3, 1.0], [0.0, 1.0]]))
    assert value.isfinite()
    assert value.item() > 5e3
    assert moved.isfinite().all()
    assert moved[0].norm() > 1e3


def test_duplicates_and_images_on_proxies_have_finite_gradients() -> None:
    loss = ProxyAnchorLoss(3, 2)
    with torch.no_grad():
        loss.proxies.copy_(POINTS)
    on_proxies = torch.cat([POINTS, POINTS, -POINTS]).float()
    value, moved = gradients(lambda z: loss(z, torch.arange(3).repeat(3)), on_proxies)
    assert value.isfinite()
    assert moved.isfinite().all()


def test_an_embedding_without_a_direction_leaves_the_others_their_weight() -> None:
    """Its cosines are 0: it neither moves nor outweighs the images that do."""
    x, y, proxies = problem(6, 3, 4, 3)
    x[2] = 0
    loss = with_points(ProxyAnchorLoss(3, 4, scale=4.0), "proxies", proxies)
    torch.testing.assert_close(loss.get_logits(x)[2], torch.zeros(3, dtype=torch.float64))  # type: ignore[operator]
    _, moved = gradients(lambda z: loss(z, y), x)
    assert moved[2].eq(0).all()
    assert moved[[0, 1, 3, 4, 5]].norm(dim=1).min() > 1e-3


def test_logits_are_scaled_cosines() -> None:
    loss = with_points(ProxyAnchorLoss(3, 2, scale=8.0), "proxies", POINTS)
    cosines = torch.nn.functional.cosine_similarity(POINTS[:1], POINTS)
    torch.testing.assert_close(loss.get_logits(3 * POINTS[:1]), 8 * cosines[None])  # type: ignore[operator]
    assert loss.get_logits(POINTS.half()).dtype == torch.float32  # type: ignore[operator]


def test_nothing_is_below_the_minimum() -> None:
    loss = with_points(ProxyAnchorLoss(2, 2, margin=0.0), "proxies", torch.tensor([[1.0, 0], [-1, 0]]))
    at_best = loss(torch.tensor([[2.0, 0], [-3, 0]]), torch.tensor([0, 1])).item()
    assert 0 <= at_best - float(loss.minimum) < 1e-9  # type: ignore[arg-type]
