"""The solver against the best known arrangements, and the choice among all generators."""

from collections.abc import Callable
from math import inf, nan, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tammes import UserError
from tammes.centroids import kerdock, kmeans, place, placed, quality, random, solve, upper_bound
from tammes.centroids.energy import energy
from tammes.geometry import distances, first_duplicate, normalise, pairwise


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def solved(num_classes: int, dim: int) -> float:
    return pairwise(solve(num_classes, dim, generator=seeded(0), dtype=torch.float64)).min


def slow(*sizes: float) -> object:
    return pytest.param(*sizes, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("num_classes", "dim", "cosine"),
    [
        (12, 3, 1 / sqrt(5)),
        slow(24, 4, 1 / 2),
        (16, 5, 1 / 5),
        (27, 6, 1 / 4),
        (56, 7, 1 / 3),
        slow(120, 4, (1 + sqrt(5)) / 4),
        (240, 8, 1 / 2),
        slow(100, 22, 1 / 11),
    ],
)
def test_solve_finds_the_symmetric_arrangements(num_classes: int, dim: int, cosine: float) -> None:
    assert solved(num_classes, dim) > (1 - 1e-6) * sqrt(2 - 2 * cosine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_classes", "dim", "cosine"),
    [
        *((13, 3, 0.542636487), (14, 3, 0.563950300), (15, 3, 0.592605903), (16, 3, 0.612294617)),
        *((20, 3, 0.676477138), (24, 3, 0.723078468), (10, 4, 1 / 6)),
    ],
)
def test_solve_finds_the_best_known_small_arrangements(num_classes: int, dim: int, cosine: float) -> None:
    assert solved(num_classes, dim) > (1 - 1e-4) * sqrt(2 - 2 * cosine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_classes", "dim", "cosine", "ratio"),
    [
        *((73, 9, 0.328681603, 0.995), (88, 10, 0.324001091, 0.995), (63, 16, 0.127282275, 0.995)),
        *((73, 11, 0.252831336, 0.985), (59, 13, 0.171378281, 0.985), (99, 13, 0.244900175, 0.985)),
        *((72, 17, 0.127279803, 0.985), (77, 19, 0.112762651, 0.985)),
    ],
)
def test_solve_comes_close_to_the_best_known(num_classes: int, dim: int, cosine: float, ratio: float) -> None:
    assert solved(num_classes, dim) > ratio * sqrt(2 - 2 * cosine)


@pytest.mark.parametrize(
    ("num_classes", "dim", "ratio"), [(200, 64, 0.975), slow(1000, 128, 0.975), slow(1000, 256, 0.983)]
)
def test_solve_comes_close_to_the_bound(num_classes: int, dim: int, ratio: float) -> None:
    assert solved(num_classes, dim) > ratio * upper_bound(num_classes, dim)


def energy_oracle(points: Tensor, sharpness: float, spread: float) -> Tensor:
    """The equation, over all pairs at once."""
    row, column = torch.triu_indices(len(points), len(points), offset=1)
    cosines = (points[row] * points[column]).sum(1)
    near, far = (torch.logsumexp(sharpness * sign * cosines, 0) / sharpness for sign in (1, -1))
    return near + spread * far


@pytest.mark.parametrize("count", [2, 9, 1024, 1025, 2100])
@pytest.mark.parametrize(("sharpness", "spread"), [(3.0, 0.0), (3.0, 0.5), (1e4, 0.0), (1e4, 0.5)])
def test_energy_in_blocks_equals_its_equation(count: int, sharpness: float, spread: float) -> None:
    points = random(count, 6, generator=seeded(count), dtype=torch.float64).requires_grad_()
    expected = energy_oracle(points, sharpness, spread)
    (gradient,) = torch.autograd.grad(expected, points)
    value, ours = energy(points.detach(), sharpness, spread)
    assert abs(value - expected.item()) < 1e-12
    torch.testing.assert_close(ours, gradient, rtol=1e-9, atol=1e-12)


def test_spread_trades_the_smallest_distance_for_more_equal_ones() -> None:
    apart, equal = (quality(solve(200, 100, generator=seeded(0), spread=spread)) for spread in (0.0, 0.3))
    assert apart.max - apart.min > 0.3
    assert equal.max - equal.min < 0.14
    assert 1.37 < equal.min < apart.min


def test_a_warm_start_keeps_its_neighbourhoods_and_gains_distance() -> None:
    means = torch.randn(60, 20, generator=seeded(0))  # of any length
    points = solve(60, 20, start=means)
    assert pairwise(points).min > 1.3 * pairwise(normalise(means)).min
    assert pairwise(points).min > 0.95 * upper_bound(60, 20)
    cosines = normalise(means) @ points.T  # (60, 60): each mean with every centroid
    assert torch.equal(cosines.argmax(dim=1), torch.arange(60))


def test_a_warm_start_needs_no_generator_to_be_deterministic() -> None:
    means = torch.randn(60, 20, generator=seeded(0))
    assert torch.equal(solve(60, 20, start=means), solve(60, 20, start=means))


def with_row(row: int, values: Tensor | float) -> Tensor:
    start = torch.randn(5, 3, generator=seeded(0))
    start[row] = values
    return start


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: solve(5, 3, spread=0.7),
            "spread must be between 0 and 0.6, got 0.7. Larger values pull all points together.",
        ),
        (
            lambda: solve(5, 3, spread=nan),
            "spread must be between 0 and 0.6, got nan. Larger values pull all points together.",
        ),
        (lambda: solve(5, 3, steps=0), "steps must be at least 1, got 0."),
        (lambda: solve(5, 3, starts=0), "starts must be at least 1, got 0."),
        (lambda: solve(5, 3, start=torch.ones(4, 3)), "start must have shape (5, 3), got (4, 3)."),
        (
            lambda: solve(5, 3, start=with_row(2, 0.0)),
            "start has no direction for class 2: its row is zero or not finite.",
        ),
        (
            lambda: solve(5, 3, start=with_row(3, inf)),
            "start has no direction for class 3: its row is zero or not finite.",
        ),
        (
            lambda: solve(5, 3, start=torch.ones(5, 3)),
            "start has the same direction for classes 0 and 1, so they cannot be separated.",
        ),
    ],
)
def test_what_solve_refuses(make: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("num_classes", "dim", "kind"),
    [
        *((1, 1, "simplex"), (2, 1, "simplex"), (100, 100, "simplex"), (101, 100, "simplex"), (3, 2, "simplex")),
        *((102, 100, "orthogonal-simplices"), (200, 100, "orthogonal-simplices"), (4, 2, "orthogonal-simplices")),
        *((5, 2, "layers"), (20_000, 3, "layers"), (288, 16, "kerdock")),
        *((200, 64, "solve"), (11318, 64, "codes"), (30_000, 16, "shells")),
    ],
)
def test_place_chooses_by_the_sizes(num_classes: int, dim: int, kind: str) -> None:
    assert placed(num_classes, dim, generator=seeded(0)).kind == kind


def test_place_is_98_percent_of_the_bound_for_11318_classes() -> None:
    points = place(11318, 512)
    assert pairwise(points).min >= 1.3728


@pytest.mark.parametrize(("num_classes", "dim"), [(100, 100), (150, 100), (500, 32), (40, 2)])
def test_place_is_better_than_random_and_kmeans(num_classes: int, dim: int) -> None:
    ours, others = (
        [pairwise(make(num_classes, dim, generator=seeded(0))).min for make in makes]
        for makes in ([place], [random, kmeans])
    )
    assert ours[0] > 1.05 * max(others)


def test_place_is_never_worse_than_kerdock() -> None:
    assert pairwise(place(288, 20, generator=seeded(0))).min >= pairwise(kerdock(288, 20)).min - 1e-6


@settings(deadline=None, max_examples=15)
@given(num_classes=st.integers(2, 60_000), dim=st.integers(2, 100))
def test_place_never_exceeds_the_bound(num_classes: int, dim: int) -> None:
    if num_classes**2 < 1e9 and num_classes > 2 * dim:
        num_classes = 2 * dim  # where the solver would run for seconds: tested above
    points = place(num_classes, dim, generator=seeded(0), dtype=torch.float64)
    assert points.shape == (num_classes, dim)
    assert first_duplicate(points.float()) is None
    some = points[torch.randperm(num_classes, generator=seeded(1))[:200]]
    cosines = (some @ points.T).topk(2, dim=1).values[:, 1]  # the first is itself
    assert torch.all(cosines < 1 - 1e-10)
    if num_classes <= 1000:
        assert pairwise(points).min <= upper_bound(num_classes, dim) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 4, 8, 9, 16, 33, 100, 128, 512])
def test_a_million_classes_are_placed(dim: int) -> None:
    points = place(1_000_000, dim)
    assert points.shape == (1_000_000, dim)
    assert (torch.linalg.vector_norm(points, dim=1) - 1).abs().max() < 1e-5
    nearest = distances(points[::20_000], points).topk(2, dim=1, largest=False).values  # (50, 2): itself, neighbour
    assert nearest[:, 0].max() == 0
    assert nearest[:, 1].min() > 0.5 * upper_bound(1_000_000, dim)
