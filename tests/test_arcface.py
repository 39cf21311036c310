"""ArcFace: the margin on the angle, and what happens at both of its ends."""

from math import cos, pi, sin
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss as TheirArcFaceLoss
from torch import Tensor

from tammes.centroids import simplex
from tammes.losses.arcface import ArcFaceLoss
from tammes.losses.normface import NormFaceLoss
from tests.oracles import seeded
from tests.oracles_points import POINTS, X, Y, arcface, gradients, problem, with_points

PROBLEMS = [(1, 2, 2, 0), (7, 5, 4, 10), (24, 8, 6, 20)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 11.356937), ({"scale": 30.0}, 5.323574), ({"margin": 1.4, "scale": 8.0}, 4.951961)],
)
def test_toy(options: dict[str, Any], expected: float) -> None:
    loss = with_points(ArcFaceLoss(3, 2, **options), "proxies", POINTS)
    assert loss(X, Y).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("batch", "classes", "dim", "seed"), PROBLEMS)
@pytest.mark.parametrize(("margin", "scale"), [(0.5, 64.0), (0.0, 10.0), (1.5, 4.0), (pi / 2, 2.0)])
def test_equals_its_equation(batch: int, classes: int, dim: int, seed: int, margin: float, scale: float) -> None:
    x, y, proxies = problem(batch, classes, dim, seed)
    loss = with_points(ArcFaceLoss(classes, dim, margin=margin, scale=scale), "proxies", proxies)
    value, by_x = gradients(lambda z: loss(z, y), x)
    loss(x, y).backward()
    expected = gradients(lambda z, p: arcface(z, y, p, margin, scale), x, proxies)
    torch.testing.assert_close([value, by_x, loss.get_parameter("proxies").grad], expected)


@pytest.mark.parametrize("degrees", [28.6, 80.0])
def test_it_is_that_of_others(degrees: float) -> None:
    x, y, proxies = problem(24, 8, 6, 20)
    loss = with_points(ArcFaceLoss(8, 6, margin=degrees * pi / 180), "proxies", proxies)
    theirs = TheirArcFaceLoss(8, 6, margin=degrees, scale=64)
    theirs.W.data = proxies.T.clone()
    ours = gradients(lambda z: loss(z, y), x)
    torch.testing.assert_close(ours, gradients(lambda z: theirs(z, y), x), rtol=1e-6, atol=1e-6)


def test_without_a_margin_it_is_normface() -> None:
    x, y, proxies = problem(7, 5, 4, 10)
    loss = with_points(ArcFaceLoss(5, 4, margin=0.0, scale=20.0), "proxies", proxies)
    softmax = with_points(NormFaceLoss(5, 4, temperature=0.05), "proxies", proxies)
    torch.testing.assert_close(
        gradients(lambda z: loss(z, y), x), gradients(lambda z: softmax(z, y), x), rtol=1e-6, atol=1e-6
    )


def test_gradient_passes_gradcheck() -> None:
    x, y, proxies = problem(7, 5, 4, 10)
    loss = with_points(ArcFaceLoss(5, 4, scale=8.0), "proxies", proxies)

    def of_both(z: Tensor, p: Tensor) -> Tensor:
        value: Tensor = torch.func.functional_call(loss, {"proxies": p}, (z, y))
        return value

    assert torch.autograd.gradcheck(of_both, (x.requires_grad_(), proxies.requires_grad_()))


def at(degrees: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    angle = degrees.double().deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1).to(dtype)


def of_angles(margin: float, dtype: torch.dtype = torch.float64) -> ArcFaceLoss:
    """The own proxy at 0°; the other has its cosine changed by no turn in the plane of the first two dimensions."""
    loss = ArcFaceLoss(2, 3, margin=margin, scale=1.0).to(dtype)
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 1]]))
    return loss


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.0, pi / 2])
def test_the_loss_rises_with_the_angle_all_the_way(margin: float) -> None:
    """Where cos(θ + margin) alone would turn at π - margin."""
    places = torch.nn.functional.pad(at(torch.linspace(0, 180, 181)), (0, 1))
    loss = of_angles(margin)
    values = torch.stack([loss(place[None], torch.tensor([0])) for place in places])
    assert (values.diff() > 0).all()
    beyond = torch.tensor(179.9).deg2rad().item()
    expected = torch.tensor(margin * sin(margin) - cos(beyond)).exp().log1p()
    value = loss(torch.nn.functional.pad(at(torch.tensor([179.9])), (0, 1)), torch.tensor([0]))
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 1e-6, 0.5, pi / 2])
def test_gradients_at_both_ends_are_finite_and_right(dtype: torch.dtype, margin: float) -> None:
    """On the own proxy, opposite to it, and so near that an arccosine of a float32 would see no angle at all."""
    degrees = torch.tensor([0.0, 1e-4, 1e-2, 1.0, 89.0, 179.0, 179.99, 180.0], dtype=torch.float64)
    loss = of_angles(margin, dtype)
    places = torch.nn.functional.pad(at(degrees, dtype), (0, 1))
    _, moved = gradients(lambda z: loss(z, torch.zeros(len(z), dtype=torch.long)), places)
    assert moved.isfinite().all()
    assert moved.norm(dim=1).max() < 1
    for place, angle in enumerate(degrees.deg2rad().tolist()):
        beyond = angle + margin > pi
        own = cos(angle) - margin * sin(margin) if beyond else cos(angle + margin)
        slope = sin(angle) if beyond else sin(angle + margin)  # of -own by the angle
        expected = slope / (1 + torch.tensor(own, dtype=torch.float64).exp().item()) / len(degrees)
        tangent = torch.tensor([-sin(angle), cos(angle), 0.0], dtype=torch.float64)
        if 0 < angle < pi:
            assert (moved[place].double() @ tangent).item() == pytest.approx(expected, abs=2e-6)
    assert moved[0, :2].norm() < 1e-6, "an image on its own proxy is not moved by it"


def test_the_worst_image_is_moved() -> None:
    """Beyond π - margin, with a scale that leaves it no probability at all."""
    loss = ArcFaceLoss(2, 2)
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.1]]))
    value, moved = gradients(lambda z: loss(z, torch.tensor([0])), torch.tensor([[-1.0, 0.2]]))
    assert value.item() > 100
    assert moved.norm() > 1


@pytest.mark.parametrize("options", [{}, {"margin": 0.3, "scale": 2.0}, {"margin": pi / 2, "scale": 1.0}])
def test_minimum_is_reached_at_a_simplex_and_never_passed(options: dict[str, Any]) -> None:
    corners = simplex(4, 3, generator=seeded(0)).double()
    loss = with_points(ArcFaceLoss(4, 3, **options), "proxies", corners)
    least = float(loss.minimum)  # type: ignore[arg-type]
    assert loss(5 * corners, torch.arange(4)).item() == pytest.approx(least, abs=1e-6)
    for seed in range(5):
        x, _, proxies = problem(4, 4, 3, seed)
        for near, off in ((proxies, 0.2), (corners, 0.05)):
            assert with_points(loss, "proxies", near)(near + off * x, torch.arange(4)).item() > least - 1e-12


def test_logits_have_no_margin() -> None:
    loss = with_points(ArcFaceLoss(3, 2, scale=4.0), "proxies", POINTS)
    cosines = torch.nn.functional.cosine_similarity(POINTS[:1], POINTS)
    torch.testing.assert_close(loss.get_logits(7 * POINTS[:1]), 4 * cosines[None])  # type: ignore[operator]


def test_an_embedding_without_a_direction_moves_nothing() -> None:
    torch.manual_seed(0)
    loss = ArcFaceLoss(3, 2)
    x = torch.zeros(1, 2, requires_grad=True)
    loss(x, torch.tensor([0])).backward()
    assert x.grad is not None
    assert x.grad.eq(0).all()
    assert loss.proxies.grad is not None
    assert loss.proxies.grad.abs().max() < 1e-4
