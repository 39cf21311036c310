"""What every generator of centroids promises, and what the closed forms guarantee."""

import subprocess
import sys
from collections.abc import Callable
from math import isclose, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tammes import UserError, centroids
from tammes.centroids import CENTROIDS, codes, kerdock, kmeans, layers, orthogonal_simplices, quality, shells, simplex
from tammes.centroids.codes import best_code
from tammes.centroids.kerdock import largest_cosine
from tammes.centroids.shells import best_shell
from tammes.geometry import first_duplicate

# Sizes that every generator named can serve, among them the smallest.
SIZES = {
    "place": [(1, 1), (2, 1), (5, 2), (7, 9), (250, 20), (12, 8), (12, 7)],
    "one-hot": [(1, 1), (7, 7), (7, 9)],
    "kmeans": [(1, 1), (2, 1), (1, 3), (7, 2), (40, 12)],
    "random": [(1, 1), (2, 1), (1, 3), (7, 2), (40, 12), (3000, 2)],
    "simplex": [(1, 1), (2, 1), (1, 3), (9, 8), (9, 20)],
    "orthogonal-simplices": [(4, 2), (10, 8), (13, 8), (16, 8)],
    "kerdock": [(1, 4), (24, 4), (10, 7), (100, 16), (288, 18), (600, 80)],
    "codes": [(1, 1), (2, 1), (1, 4), (7, 3), (100, 12), (1000, 40)],
    "shells": [(1, 2), (8, 2), (100, 5), (500, 8), (5000, 16)],
    "layers": [(1, 2), (1, 3), (9, 2), (50, 3), (500, 6)],
    "solve": [(1, 1), (2, 1), (1, 3), (5, 4), (150, 70)],
}
CASES = [(kind, *sizes) for kind, cases in SIZES.items() for sizes in cases]
RANDOM = {"kmeans", "random", "solve"}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def largest_cosine_of(points: Tensor) -> float:
    """By the definition, one matrix of all cosines."""
    cosines = points @ points.T
    return cosines.fill_diagonal_(-1).max().item()


def test_the_cases_cover_every_generator() -> None:
    assert set(SIZES) == set(CENTROIDS)


@pytest.mark.parametrize(("kind", "num_classes", "dim"), CASES)
def test_rows_are_distinct_unit_vectors_in_the_type_asked_for(kind: str, num_classes: int, dim: int) -> None:
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        points = CENTROIDS[kind](num_classes, dim, generator=seeded(0), dtype=dtype)
        assert points.shape == (num_classes, dim)
        assert points.dtype == dtype
        assert (torch.linalg.vector_norm(points.double(), dim=1) - 1).abs().max() < tolerance
        assert first_duplicate(points) is None


@pytest.mark.parametrize("kind", sorted(CENTROIDS))
def test_the_same_seed_gives_the_same_centroids(kind: str) -> None:
    sizes = SIZES[kind][-2]
    first, again = (CENTROIDS[kind](*sizes, generator=seeded(3)) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("kind", sorted(RANDOM))
def test_another_seed_gives_other_centroids(kind: str) -> None:
    sizes = SIZES[kind][-2]
    first, other = (CENTROIDS[kind](*sizes, generator=seeded(seed)) for seed in (3, 4))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", sorted(CENTROIDS))
@pytest.mark.parametrize(
    ("num_classes", "dim", "message"),
    [
        (0, 4, "num_classes must be at least 1, got 0."),
        (-3, 4, "num_classes must be at least 1, got -3."),
        (3, 0, "dim must be at least 1, got 0."),
        (3, 1, "in dim 1 only 2 distinct unit points exist, but there are 3 classes. Raise dim to 2 or more."),
    ],
)
def test_impossible_sizes_are_refused(kind: str, num_classes: int, dim: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        CENTROIDS[kind](num_classes, dim)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", sorted(CENTROIDS))
def test_a_type_in_which_points_could_merge_is_refused(kind: str) -> None:
    with pytest.raises(UserError) as error:
        CENTROIDS[kind](4, 4, dtype=torch.float16)
    assert str(error.value) == (
        "dtype must be torch.float32 or torch.float64, got torch.float16. Convert the result instead."
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: centroids.one_hot(5, 4),
            "one-hot centroids for 5 classes need dim >= 5, got 4. Raise dim or use centroids.place.",
        ),
        (
            lambda: simplex(4, 2),
            "simplex centroids for 4 classes need dim >= 3, got 2. Raise dim or use centroids.solve.",
        ),
        (
            lambda: orthogonal_simplices(9, 8),
            "orthogonal simplices in dim 8 are for 10 to 16 classes, got 9."
            " Use centroids.simplex, whose distances are larger.",
        ),
        (
            lambda: orthogonal_simplices(17, 8),
            "orthogonal simplices for 17 classes need dim >= 9, got 8. Raise dim or use centroids.place.",
        ),
        (
            lambda: kmeans(11, 4, samples=10),
            "kmeans cannot make 11 clusters of 10 samples. Pass samples=110 or more.",
        ),
        (lambda: kerdock(5, 3), "kerdock centroids need dim >= 4, got 3. Raise dim or use centroids.place."),
        (
            lambda: kerdock(25, 15),
            "kerdock centroids in dim 15 are at most 24, got 25 classes. Raise dim or use centroids.place.",
        ),
        (
            lambda: codes(9, 3),
            "codes in dim 3 have at most 8 words, got 9 classes. Raise dim to 4 or more, or use centroids.place.",
        ),
        (lambda: shells(2, 65), "shells are for dim 2 to 64, got 65. Use centroids.place."),
        (
            lambda: shells(9999, 2),
            "shells in dim 2 have too few points for 9999 classes. Raise dim or use centroids.place.",
        ),
        (lambda: layers(2, 1), "layers need dim >= 2, got 1. Use centroids.simplex."),
    ],
)
def test_what_a_generator_cannot_do_is_said(make: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 1), (3, 2), (100, 100), (98, 97), (1000, 1024)])
def test_simplex_is_equidistant_to_the_last_digits(num_classes: int, dim: int) -> None:
    found = quality(simplex(num_classes, dim, dtype=torch.float64))
    exact = sqrt(2 * num_classes / (num_classes - 1))
    assert abs(found.min - exact) < 1e-12
    assert abs(found.max - exact) < 1e-12


@pytest.mark.parametrize(("num_classes", "dim"), [(4, 2), (100, 64), (102, 100), (110, 100), (150, 100), (200, 100)])
def test_orthogonal_simplices_have_the_smallest_largest_distance(num_classes: int, dim: int) -> None:
    found = quality(orthogonal_simplices(num_classes, dim, dtype=torch.float64))
    assert abs(found.min - sqrt(2)) < 1e-12
    assert abs(found.max - sqrt(2 + 2 / (dim // (num_classes - dim)))) < 1e-12


def test_kmeans_has_the_distances_of_the_paper() -> None:
    found = quality(kmeans(100, 100, generator=seeded(0)))
    assert 1.15 < found.min < 1.25
    assert 1.58 < found.max < 1.70
    assert abs(found.mean - 1.418) < 0.003
    assert abs(found.std - 0.062) < 0.006


@pytest.mark.parametrize(("num_classes", "dim", "cosine"), [(24, 4, 1 / 2), (288, 16, 1 / 4), (4224, 64, 1 / 8)])
def test_kerdock_sets_are_exact(num_classes: int, dim: int, cosine: float) -> None:
    assert isclose(largest_cosine_of(kerdock(num_classes, dim, dtype=torch.float64)), cosine, abs_tol=1e-12)
    # Half of them are lines: no two opposite.
    half = quality(kerdock(num_classes // 2, dim, dtype=torch.float64))
    assert isclose(half.max, sqrt(2 + 2 * cosine), abs_tol=1e-12)


@pytest.mark.parametrize(("num_classes", "dim"), [(24, 5), (13, 9), (288, 20), (1000, 100), (1000, 128), (2500, 90)])
def test_kerdock_keeps_its_guarantee_with_spare_dimensions(num_classes: int, dim: int) -> None:
    points = kerdock(num_classes, dim, dtype=torch.float64)
    assert isclose(largest_cosine_of(points), largest_cosine(num_classes, dim), abs_tol=1e-12)


def test_kerdock_uses_spare_dimensions() -> None:
    assert largest_cosine(1000, 128) < 0.105 < 1 / 8 == largest_cosine(1000, 64)


@pytest.mark.parametrize(
    ("degree", "known"),
    [
        (4, {(15, 2), (11, 4), (7, 6), (5, 8)}),
        (6, {(57, 4), (51, 6), (45, 8), (36, 12), (24, 16), (18, 22), (16, 24), (10, 28), (7, 32)}),
        (7, {(120, 4), (106, 8), (64, 22), (50, 28), (36, 32), (29, 44), (22, 48), (15, 56), (8, 64)}),
    ],
)
def test_bch_codes_have_the_published_parameters(degree: int, known: set[tuple[int, int]]) -> None:
    from tammes.centroids.codes import _bch_codes

    assert known <= {(dimension, distance + 1) for distance, dimension in _bch_codes(degree)}


@pytest.mark.parametrize(
    ("num_classes", "dim"), [(4, 2), (8, 3), (100, 10), (2048, 16), (500, 20), (3000, 37), (4000, 64), (5000, 128)]
)
def test_codes_keep_their_guarantee(num_classes: int, dim: int) -> None:
    points = codes(num_classes, dim, dtype=torch.float64)
    assert largest_cosine_of(points) <= best_code(num_classes, dim).cosine + 1e-12


def test_four_million_codewords_in_dim_128_have_cosines_of_a_quarter() -> None:
    assert best_code(1 << 22, 128).cosine == 0.25


def test_codes_have_no_opposite_points_where_half_of_the_code_suffices() -> None:
    assert quality(codes(64, 64)).max < 1.5
    assert quality(codes(4096, 64)).max < 1.7


@pytest.mark.parametrize(
    ("num_classes", "dim", "cosine"),
    [(240, 8, 1 / 2), (2160, 8, 3 / 4), (4320, 16, 1 / 2), (24, 4, 1 / 2), (72, 6, 3 / 4), (5000, 10, 0.8)],
)
def test_shells_are_the_known_lattices(num_classes: int, dim: int, cosine: float) -> None:
    shell = best_shell(num_classes, dim)
    assert shell is not None
    assert shell.cosine <= cosine
    assert largest_cosine_of(shells(num_classes, dim, dtype=torch.float64)) <= shell.cosine + 1e-12


@pytest.mark.parametrize("num_classes", [1, 2, 5, 1000])
def test_layers_in_the_plane_are_a_regular_polygon(num_classes: int) -> None:
    turn = 2 * torch.pi * torch.arange(num_classes, dtype=torch.float64) / num_classes
    torch.testing.assert_close(
        layers(num_classes, 2, dtype=torch.float64), torch.stack([turn.cos(), turn.sin()], dim=1)
    )


@pytest.mark.parametrize(("num_classes", "dim", "ratio"), [(1000, 3, 0.92), (1000, 4, 0.85), (5000, 6, 0.76)])
def test_layers_come_close_to_the_bound_in_few_dimensions(num_classes: int, dim: int, ratio: float) -> None:
    assert quality(layers(num_classes, dim)).ratio > ratio


@given(
    kind=st.sampled_from(
        ["random", "kmeans", "codes", "shells", "layers", "kerdock", "simplex", "orthogonal-simplices"]
    ),
    num_classes=st.integers(2, 300),
    dim=st.integers(2, 40),
)
def test_no_arrangement_exceeds_the_bound(kind: str, num_classes: int, dim: int) -> None:
    options = {"samples": 500} if kind == "kmeans" else {}
    if kind == "layers":
        dim = min(dim, 7)
    try:
        points = CENTROIDS[kind](num_classes, dim, generator=seeded(0), dtype=torch.float64, **options)
    except UserError:
        return  # more classes than this kind has room for
    found = quality(points)
    assert found.min > 0
    assert found.ratio < 1 + 1e-9


def test_a_rotation_leaves_the_quality_alone() -> None:
    points = centroids.random(50, 12, generator=seeded(0), dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(12, 12, generator=seeded(1), dtype=torch.float64))
    before, after = quality(points), quality(points @ turn)
    for name in ("min", "max", "mean", "std", "upper_bound", "ratio"):
        assert isclose(getattr(before, name), getattr(after, name), abs_tol=1e-12)


def test_quality_is_the_summary_of_all_pairs() -> None:
    points = centroids.random(40, 5, generator=seeded(0), dtype=torch.float64)
    distances = torch.tensor([torch.dist(points[i], points[j]) for i in range(40) for j in range(i)])
    found = quality(points)
    assert isclose(found.min, distances.min().item(), rel_tol=1e-6)
    assert isclose(found.max, distances.max().item(), rel_tol=1e-6)
    assert isclose(found.mean, distances.mean().item(), rel_tol=1e-6)
    assert isclose(found.std, distances.std(correction=0).item(), rel_tol=1e-5)
    assert isclose(found.ratio, found.min / centroids.upper_bound(40, 5), rel_tol=1e-12)


@pytest.mark.slow
def test_quality_of_a_hundred_thousand_centroids_takes_bounded_memory() -> None:
    code = (
        "from pathlib import Path\nimport torch\nfrom tammes import centroids\n"
        "points = centroids.random(100_000, 32)\nfound = centroids.quality(points)\n"
        "line = next(l for l in Path('/proc/self/status').read_text().splitlines() if l.startswith('VmHWM'))\n"
        "print(found.min <= found.upper_bound, int(line.split()[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    below, megabytes = done.stdout.split()
    assert below == "True"
    assert int(megabytes) < 2000  # all pairs in float32 would be 40,000
