"""Proxy-NCA: as the paper has it, and as most implementations do."""

from math import log, sqrt
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ProxyNCALoss as TheirProxyNCALoss

from tammes.centroids import simplex
from tammes.losses.proxy_nca import ProxyNCALoss
from tests.oracles import seeded
from tests.oracles_points import POINTS, X, Y, gradients, problem, proxy_nca, with_points


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -1.043119),
        ({"include_positive": True}, 0.409739),
        ({"include_positive": True, "scale": 3.0, "smoothing": 0.1}, 3.062096),
    ],
)
def test_toy(options: dict[str, Any], expected: float) -> None:
    loss = with_points(ProxyNCALoss(3, 2, **options), "proxies", POINTS)
    assert loss(X, Y).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)])
@pytest.mark.parametrize(
    ("scale", "included", "smoothing"), [(1.0, False, 0.0), (3.0, False, 0.0), (2.0, True, 0.0), (1.5, True, 0.3)]
)
def test_equals_its_equation(
    batch: int, classes: int, dim: int, seed: int, scale: float, included: bool, smoothing: float
) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss = ProxyNCALoss(classes, dim, include_positive=included, scale=scale, smoothing=smoothing)
    with_points(loss, "proxies", proxies)
    value, by_x = gradients(lambda z: loss(z, y), x)
    loss(x, y).backward()
    expected = gradients(lambda z, p: proxy_nca(z, y, p, scale, included, smoothing), x, proxies)
    torch.testing.assert_close([value, by_x, loss.proxies.grad], expected)


def test_with_the_positive_it_is_that_of_others() -> None:
    x, y, proxies = problem(24, 8, 6, 20)
    loss = with_points(ProxyNCALoss(8, 6, include_positive=True, scale=3.0), "proxies", proxies)
    theirs = TheirProxyNCALoss(8, 6, softmax_scale=9)
    theirs.proxies.data = proxies.clone()
    torch.testing.assert_close(gradients(lambda z: loss(z, y), x), gradients(lambda z: theirs(z, y), x))


@pytest.mark.parametrize("included", [False, True])
def test_an_image_on_a_wrong_proxy_is_moved_however_large_the_scale(included: bool) -> None:
    """Its probability is 0 in float32, which must not take it out of the loss."""
    proxies = torch.tensor([[1.0, 0.0], [-0.8, 0.6]])
    loss = ProxyNCALoss(2, 2, include_positive=included, scale=8.0)
    with_points(loss, "proxies", proxies).float()
    value, moved = gradients(lambda z: loss(z, torch.tensor([1])), proxies[:1])
    assert value.item() > 100
    assert moved.norm() > 10


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_minimum_is_reached_at_a_simplex_and_never_passed(included: bool, scale: float) -> None:
    corners = simplex(4, 3, generator=seeded(0)).double()
    loss = ProxyNCALoss(4, 3, include_positive=included, scale=scale)
    with_points(loss, "proxies", corners)
    assert loss(5 * corners, torch.arange(4)).item() == pytest.approx(loss.minimum, abs=1e-7)
    for seed in range(5):
        x, _, proxies = problem(4, 4, 3, seed)
        assert with_points(loss, "proxies", proxies)(proxies + 0.2 * x, torch.arange(4)) > loss.minimum


@pytest.mark.parametrize(("scale", "smoothing"), [(3.0, 0.1), (1.0, 0.1), (1.0, 0.4)])
def test_minimum_with_smoothing_is_reached_where_the_proxies_are_as_far_apart_as_it_asks(
    scale: float, smoothing: float
) -> None:
    loss = ProxyNCALoss(4, 4, include_positive=True, scale=scale, smoothing=smoothing)
    wanted = min(log(3 * (1 - smoothing) / smoothing), 8 / 3 * scale**2)
    across = sqrt(wanted / (8 / 3 * scale**2))  # of a pyramid whose base is a simplex
    corners = across * simplex(4, 4, generator=seeded(0)).double()
    axis = torch.linalg.svd(corners)[2][-1:]  # the direction that the simplex leaves free
    proxies = corners + sqrt(1 - across**2) * axis
    with_points(loss, "proxies", proxies)
    assert loss(proxies, torch.arange(4)).item() == pytest.approx(loss.minimum, abs=1e-6)
    for seed in range(5):
        x, _, others = problem(4, 4, 4, seed)
        for near in (others + 0.2 * x, proxies + 0.01 * x):
            assert with_points(loss, "proxies", near)(near, torch.arange(4)) > loss.minimum - 1e-9


def test_logits_are_negative_squared_distances() -> None:
    loss = with_points(ProxyNCALoss(3, 2, scale=2.0), "proxies", POINTS)
    cosines = torch.nn.functional.cosine_similarity(POINTS[:1], POINTS)
    torch.testing.assert_close(loss.get_logits(3 * POINTS[:1]), 8 * cosines[None] - 8)  # type: ignore[operator]
