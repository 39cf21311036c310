"""NormFace: softmax of scaled cosines, and its two forms with a margin."""

from math import log
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

from tammes import UserError
from tammes.centroids import simplex
from tammes.losses.normface import NormFaceLoss
from tests.oracles import seeded
from tests.oracles_points import POINTS, X, Y, agents, gradients, normface, problem, with_points

PROBLEMS = [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.614560),
        ({"temperature": 0.05}, 1.098115),
        ({"form": "contrastive"}, 0.629249),
        ({"form": "triplet"}, 0.362266),
        ({"form": "triplet", "margin": 3.0}, 1.814621),
        ({"form": "triplet", "margin": 3.0, "hardest": True}, 1.777739),
    ],
)
def test_toy(options: dict[str, Any], expected: float) -> None:
    loss = with_points(NormFaceLoss(3, 2, **options), "proxies", POINTS)
    assert loss(X, Y).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), PROBLEMS)
def test_softmax_equals_its_equation_and_so_does_the_gradient_of_the_scale(
    batch: int, classes: int, dim: int, seed: int
) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss = with_points(NormFaceLoss(classes, dim, scale=3.0), "proxies", proxies)
    value, by_x = gradients(lambda z: loss(z, y), x)
    loss(x, y).backward()
    expected = gradients(lambda z, p, s: normface(z, y, p, s), x, proxies, loss.scale.detach())  # type: ignore[operator]
    torch.testing.assert_close([value, by_x, loss.get_parameter("proxies").grad], expected[:3])
    raw = loss.get_parameter("raw_scale")
    torch.testing.assert_close(raw.grad, expected[3] * raw.detach().sigmoid())


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), PROBLEMS)
@pytest.mark.parametrize(
    ("form", "margin", "hardest"),
    [("contrastive", 1.0, False), ("contrastive", 3.5, False), ("triplet", 0.8, False), ("triplet", 2.0, True)],
)
def test_forms_with_a_margin_equal_their_equations(
    batch: int, classes: int, dim: int, seed: int, form: Any, margin: float, hardest: bool
) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss = with_points(NormFaceLoss(classes, dim, form=form, margin=margin, hardest=hardest), "proxies", proxies)
    value, by_x = gradients(lambda z: loss(z, y), x)
    loss(x, y).backward()
    expected = gradients(lambda z, p: agents(z, y, p, form, margin, hardest), x, proxies)
    torch.testing.assert_close([value, by_x, loss.get_parameter("proxies").grad], expected)


def test_fixed_temperature_is_the_normalised_softmax_of_others() -> None:
    x, y, proxies = problem(24, 8, 6, 20)
    loss = with_points(NormFaceLoss(8, 6, temperature=0.05), "proxies", proxies)
    theirs = NormalizedSoftmaxLoss(8, 6, temperature=0.05)
    theirs.W.data = proxies.T.clone()
    torch.testing.assert_close(gradients(lambda z: loss(z, y), x), gradients(lambda z: theirs(z, y), x))
    assert [name for name, _ in loss.named_parameters()] == ["proxies"]


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 64.0])
def test_scale_begins_where_asked_is_learned_and_stays_positive(scale: float) -> None:
    loss = NormFaceLoss(3, 2, scale=scale)
    assert loss.scale.item() == pytest.approx(scale, rel=1e-5)
    assert loss.raw_scale is not None
    optimizer = torch.optim.SGD([loss.raw_scale], lr=10.0)
    wrong = -loss.proxies.detach()  # every embedding opposite to its own proxy: a smaller scale is better
    for _ in range(20):
        loss.zero_grad()
        loss(wrong, torch.arange(3)).backward()
        optimizer.step()
    assert 0 < loss.scale.item() < scale


@pytest.mark.parametrize(
    "options", [{"temperature": 0.1}, {"temperature": 0.5}, {"form": "contrastive"}, {"form": "triplet"}]
)
def test_minimum_is_reached_at_a_simplex_and_never_passed(options: dict[str, Any]) -> None:
    corners = simplex(4, 3, generator=seeded(0)).double()
    loss = with_points(NormFaceLoss(4, 3, **options), "proxies", corners)
    least = float(loss.minimum)  # type: ignore[arg-type]
    assert loss(5 * corners, torch.arange(4)).item() == pytest.approx(least, abs=1e-7)
    for seed in range(5):
        x, _, proxies = problem(4, 4, 3, seed)
        near = proxies + 0.2 * x
        assert with_points(loss, "proxies", proxies)(near, torch.arange(4)) >= least


def test_minimum_of_a_hundred_classes() -> None:
    assert NormFaceLoss(100, 99, temperature=0.1).minimum == pytest.approx(0.004055, abs=1e-6)
    assert NormFaceLoss(100, 99).minimum == 0, "a learned scale may grow"


def test_logits() -> None:
    on_the_first = 7 * POINTS[:1]
    loss = with_points(NormFaceLoss(3, 2, temperature=0.25), "proxies", POINTS)
    logits = loss.get_logits(on_the_first)  # type: ignore[operator]
    cosines = torch.nn.functional.cosine_similarity(POINTS[:1], POINTS)
    torch.testing.assert_close(logits, 4 * cosines[None])
    margin = with_points(NormFaceLoss(3, 2, form="triplet"), "proxies", POINTS)
    torch.testing.assert_close(margin.get_logits(on_the_first), 2 * cosines[None] - 2)  # type: ignore[operator]


def test_an_embedding_without_a_direction_says_nothing() -> None:
    value, moved = gradients(lambda z: NormFaceLoss(3, 2)(z, torch.tensor([0])), torch.zeros(1, 2))
    assert value.item() == pytest.approx(log(3), abs=1e-6)
    assert moved.eq(0).all()


def test_triplets_have_no_scale() -> None:
    with pytest.raises(UserError, match="^form='triplet' has a margin, not a scale.$"):
        _ = NormFaceLoss(3, 2, form="triplet").scale


def test_the_scale_is_learned_and_noted() -> None:
    loss = NormFaceLoss(3, 2)
    assert loss.noted == {"scale": pytest.approx(10, abs=1e-5)}
    loss(torch.tensor([[1.0, 0.2], [-0.3, 1.0]]), torch.tensor([0, 1])).backward()
    assert loss.raw_scale is not None
    assert loss.raw_scale.grad is not None
    assert loss.raw_scale.grad.abs() > 0
    assert NormFaceLoss(3, 2, temperature=0.1).noted == NormFaceLoss(3, 2, form="triplet").noted == {}
