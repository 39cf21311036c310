"""Distances: right to 1e-6 at every distance, with a gradient everywhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tammes import UserError
from tammes.geometry import (
    blocks_of_pairs,
    checked_centroids,
    distances,
    distances_to_axes,
    first_duplicate,
    normalise,
    pairwise,
)
from tests.oracles import seeded, unit_points


def exact(points: Tensor, others: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(points.double()[:, None] - others.double(), dim=2)
    return result


def around(centroids: Tensor, radius: float, seed: int = 0) -> Tensor:
    """Unit points at about `radius` from each centroid."""
    step = torch.randn(centroids.shape, generator=seeded(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(centroids.double() + radius * torch.nn.functional.normalize(step)).float()


@pytest.mark.parametrize("radius", [0.0, 1e-7, 1e-4, 1e-3, 1e-2, 0.1, 0.29, 0.31, 1.0])
@pytest.mark.parametrize("dim", [2, 64, 1024])
def test_distances_are_within_1e_6_of_float64_at_every_distance(radius: float, dim: int) -> None:
    centroids = unit_points(50, dim, seed=1, dtype=torch.float32)
    points = around(centroids, radius)
    assert (distances(points, centroids) - exact(points, centroids)).abs().max() < 1e-6


def test_the_default_mode_of_cdist_would_fail_that() -> None:
    centroids = unit_points(50, 64, seed=1, dtype=torch.float32)
    points = around(centroids, 1e-4)
    assert (torch.cdist(points, centroids) - exact(points, centroids)).abs().max() > 1e-5


def test_distances_between_points_that_are_not_unit() -> None:
    points = 300 * torch.randn(40, 8, generator=seeded(0))
    torch.testing.assert_close(distances(points, points).double(), exact(points, points), rtol=1e-5, atol=1e-4)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
def test_distances_are_symmetric_and_never_negative(rows: int, columns: int, dim: int, seed: int) -> None:
    a, b = unit_points(rows, dim, seed), unit_points(columns, dim, seed + 1)
    forth, back = distances(a, b), distances(b, a)
    torch.testing.assert_close(forth, back.T)
    assert (forth >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_points_give_float32_distances(dtype: torch.dtype) -> None:
    points = unit_points(30, 16, seed=0).to(dtype)
    result = distances(points, points)
    assert result.dtype == torch.float32
    assert (result - exact(points, points)).abs().max() < 1e-6


def test_autocast_leaves_distances_in_float32() -> None:
    points, others = unit_points(30, 16, seed=0, dtype=torch.float32), unit_points(20, 16, seed=1, dtype=torch.float32)
    points.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = distances(points, others)
        result.sum().backward()
    assert result.dtype == torch.float32
    assert (result - exact(points, others)).abs().max() < 1e-6
    assert points.grad is not None
    outside = points.detach().clone().requires_grad_()
    distances(outside, others).sum().backward()
    torch.testing.assert_close(points.grad, outside.grad)


def test_gradient_of_distances_passes_gradcheck_also_for_close_points() -> None:
    others = unit_points(6, 5, seed=1)
    points = torch.cat([unit_points(4, 5, seed=0), others[:2] + 1e-3 * unit_points(2, 5, seed=2)]).requires_grad_()
    assert torch.autograd.gradcheck(distances, (points, others.requires_grad_()))


def test_gradient_is_zero_where_two_points_coincide() -> None:
    others = unit_points(3, 5, seed=1)
    points = others[:1].clone().requires_grad_()
    distances(points, others)[0, 0].backward()
    assert points.grad is not None
    assert points.grad.eq(0).all()


def test_gradient_of_a_close_pair_has_length_one() -> None:
    centroid = unit_points(1, 64, seed=1, dtype=torch.float32)
    point = around(centroid, 1e-3).requires_grad_()
    distances(point, centroid).sum().backward()
    assert point.grad is not None
    assert point.grad.norm().item() == pytest.approx(1, abs=1e-5)


def test_second_derivative_of_distances_is_refused() -> None:
    points = unit_points(3, 5, seed=0).requires_grad_()
    total = distances(points, unit_points(4, 5, seed=1)).sum()
    with pytest.raises(RuntimeError, match="^the second derivative of a distance is not available: call backward"):
        torch.autograd.grad(total, points, create_graph=True)


@pytest.mark.parametrize("radius", [0.0, 1e-4, 0.1, 1.0])
def test_distances_to_axes_equal_distances_to_one_hot_points(radius: float) -> None:
    axes = torch.eye(12)
    points = around(axes, radius)
    assert (distances_to_axes(points) - exact(points, axes)).abs().max() < 1e-6


def test_gradient_of_distances_to_axes_equals_that_of_distances() -> None:
    points = torch.cat([unit_points(4, 6, seed=0), around(torch.eye(6), 0.05).double()])
    gradients = []
    for apart in (distances_to_axes, lambda x: distances(x, torch.eye(6, dtype=torch.float64))):
        z = points.clone().requires_grad_()
        apart(normalise(z)).sum().backward()
        gradients.append(z.grad)
    torch.testing.assert_close(*gradients)


def test_normalise_keeps_a_vector_without_direction_at_zero_and_its_gradient_finite() -> None:
    points = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    result = normalise(points)
    result.sum().backward()
    assert result.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
    assert points.grad is not None
    assert points.grad.isfinite().all()


@pytest.mark.parametrize(("count", "dim"), [(2, 2), (50, 8), (2100, 5)])
def test_pairwise_sums_up_the_upper_triangle(count: int, dim: int) -> None:
    points = unit_points(count, dim, seed=0)
    upper = torch.triu_indices(count, count, 1)
    every = exact(points, points)[upper[0], upper[1]]
    result = pairwise(points)
    assert result.min == pytest.approx(every.min().item(), abs=1e-9)
    assert result.max == pytest.approx(every.max().item(), abs=1e-9)
    assert result.mean == pytest.approx(every.mean().item(), abs=1e-9)
    assert result.std == pytest.approx(every.std(correction=0).item(), abs=1e-9)


def test_blocks_of_pairs_hold_each_pair_once() -> None:
    assert sum(block.numel() for block in blocks_of_pairs(unit_points(2100, 2, seed=0))) == 2100 * 2099 // 2


def test_pairwise_of_one_point_is_an_error() -> None:
    with pytest.raises(UserError, match="^distances between pairs need at least 2 points, got 1.$"):
        pairwise(torch.ones(1, 3))


def test_first_duplicate_names_two_equal_rows_and_no_others() -> None:
    points = unit_points(5000, 3, seed=0)
    assert first_duplicate(points) is None
    points[4321] = points[17]
    assert first_duplicate(points) == (17, 4321)
    points[4321, 0] += 1e-15
    assert first_duplicate(points) is None


def test_first_duplicate_takes_minus_zero_for_zero() -> None:
    assert first_duplicate(torch.tensor([[0.0, 1.0], [-0.0, 1.0]])) == (0, 1)


def test_centroids_stay_in_the_precision_that_they_came_in_but_not_below_float32() -> None:
    for given_, kept in [(torch.float64, torch.float64), (torch.float32, torch.float32)]:
        checked = checked_centroids(unit_points(4, 3, seed=0).to(given_))
        assert checked is not None
        assert checked.dtype == kept
    assert checked_centroids(5) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_unit_centroids_of_half_precision_are_unit_centroids(dtype: torch.dtype) -> None:
    given = unit_points(20, 16, seed=0).to(dtype)
    found = checked_centroids(given)
    assert found is not None
    assert found.dtype == torch.float32
    torch.testing.assert_close(torch.linalg.vector_norm(found, dim=1), torch.ones(20))
    with pytest.raises(UserError, match="centroids must have unit norm; that of class 0 has norm 1.0"):
        checked_centroids(given * 1.05)
