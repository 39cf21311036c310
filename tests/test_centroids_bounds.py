"""Upper bounds on the smallest distance, against arrangements that are known."""

from math import isclose, pi, sin, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tammes import UserError
from tammes.centroids.bounds import fejes_toth, levenshtein, rankin, upper_bound

# Sharp codes: their largest cosine is the bound itself (Levenshtein 1998; Cohn and Kumar 2007).
SHARP = [
    (12, 3, 1 / sqrt(5)),
    (16, 5, 1 / 5),
    (27, 6, 1 / 4),
    (56, 7, 1 / 3),
    (240, 8, 1 / 2),
    (112, 21, 1 / 9),
    (162, 21, 1 / 7),
    (100, 22, 1 / 11),
    (275, 22, 1 / 6),
    (891, 22, 1 / 4),
    (552, 23, 1 / 5),
    (4600, 23, 1 / 3),
    (196560, 24, 1 / 2),
]
# Arrangements that exist, by their cosine: none may exceed a bound.
KNOWN = [
    *((24, 4, 1 / 2), (120, 4, (1 + sqrt(5)) / 4), (10, 4, 1 / 6), (288, 16, 1 / 4), (4224, 64, 1 / 8)),
    *((66048, 256, 1 / 16), (1050624, 1024, 1 / 32), (4320, 16, 1 / 2), (56, 20, 1 / 15), (50, 21, 1 / 21)),
    *((77, 21, 1 / 12), (13, 3, 0.542636487), (24, 3, 0.723078468), (73, 9, 0.328681603), (99, 13, 0.244900175)),
]


@pytest.mark.parametrize(("num_classes", "dim", "cosine"), SHARP)
def test_levenshtein_is_met_by_the_sharp_codes(num_classes: int, dim: int, cosine: float) -> None:
    assert isclose(levenshtein(num_classes, dim), sqrt(2 - 2 * cosine), rel_tol=1e-12)


@pytest.mark.parametrize(("num_classes", "dim", "cosine"), [*SHARP, *KNOWN])
def test_no_known_arrangement_exceeds_the_bound(num_classes: int, dim: int, cosine: float) -> None:
    assert sqrt(2 - 2 * cosine) < upper_bound(num_classes, dim) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("num_classes", "dim", "distance"),
    [(200, 64, 1.401983), (1000, 128, 1.388101), (1000, 256, 1.409028), (11318, 512, 1.396033), (11318, 64, 1.297478)],
)
def test_bounds_have_the_values_computed_independently(num_classes: int, dim: int, distance: float) -> None:
    assert abs(upper_bound(num_classes, dim) - distance) < 1e-6


def test_the_polygon_and_the_platonic_solids_are_exact() -> None:
    assert isclose(upper_bound(7, 2), 2 * sin(pi / 7), rel_tol=1e-15)
    assert isclose(fejes_toth(4), rankin(4, 3), rel_tol=1e-12)
    assert isclose(fejes_toth(6), sqrt(2), rel_tol=1e-12)
    assert isclose(upper_bound(12, 3), sqrt(2 - 2 / sqrt(5)), rel_tol=1e-12)


def test_fejes_toth_is_the_better_bound_in_dim_3() -> None:
    assert upper_bound(24, 3) == fejes_toth(24) < levenshtein(24, 3)


@given(num_classes=st.integers(2, 10**6), dim=st.integers(3, 1024))
def test_the_bound_falls_with_classes_and_rises_with_dimensions(num_classes: int, dim: int) -> None:
    here = upper_bound(num_classes, dim)
    assert 0 < here <= 2
    assert upper_bound(num_classes + 1, dim) <= here * (1 + 1e-12)
    assert upper_bound(num_classes, dim + 1) >= here * (1 - 1e-12)


@pytest.mark.parametrize("dim", [3, 4, 8, 16, 128, 1024])
def test_the_bound_is_continuous_where_its_formula_changes(dim: int) -> None:
    sizes = [2 * dim + 1, dim * (dim + 3) // 2, dim * (dim + 1)]
    for size in sizes:  # sizes of tight designs, at which one polynomial takes over from another
        near = [upper_bound(size + step, dim) for step in (0, 1)]
        assert near[1] <= near[0] * (1 + 1e-12)
        assert near[1] > near[0] * (1 - 2 / size)


def test_one_point_has_no_distance() -> None:
    with pytest.raises(UserError) as error:
        upper_bound(1, 3)
    assert str(error.value) == "a distance needs at least 2 classes, got 1."
