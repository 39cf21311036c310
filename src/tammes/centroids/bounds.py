"""Upper bounds on the smallest distance between C points of the unit sphere in D dimensions."""

from math import comb, inf, pi, sin, sqrt

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal
from scipy.optimize import brentq

from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError


def upper_bound(num_classes: int, dim: int) -> float:
    """The lowest known upper bound on the smallest distance; attained for dim 2 and for num_classes <= 2 dim.

    >>> round(upper_bound(12, 3), 6)  # the icosahedron
    1.051462
    """
    checked_sizes(num_classes, dim)
    if num_classes < 2:
        raise UserError(f"a distance needs at least 2 classes, got {num_classes}.")
    if dim == 2:
        return 2 * sin(pi / num_classes)
    if num_classes <= 2 * dim:
        return rankin(num_classes, dim)
    if dim == 3:
        return min(fejes_toth(num_classes), levenshtein(num_classes, dim))
    return levenshtein(num_classes, dim)


def rankin(num_classes: int, dim: int) -> float:
    """Rankin (1955): that of a regular simplex up to dim + 1 points, a right angle beyond; attained up to 2 dim."""
    return sqrt(2 * num_classes / (num_classes - 1)) if num_classes <= dim + 1 else sqrt(2)


def fejes_toth(num_classes: int) -> float:
    """Fejes Tóth (1943) for dim 3 and num_classes >= 3: the side of the average triangle between neighbours."""
    return sqrt(4 - 1 / sin(pi * num_classes / (6 * (num_classes - 2))) ** 2)


def levenshtein(num_classes: int, dim: int) -> float:
    """Levenshtein's universal bound (1979, 1998) for dim >= 3 and num_classes > 2 dim.

    The bound L_t(dim, s) on the number of points with cosines <= s applies between the sizes of tight spherical
    t-designs and (t+1)-designs; L_t = num_classes is solved for s there.
    """
    strength = 1
    while _design_size(dim, strength + 1) < num_classes:
        strength += 1
    k = (strength + 1) // 2
    if strength % 2:  # t = 2k-1
        low, high = _largest_zero(k - 1, dim, both=True), _largest_zero(k, dim, both=False)
    else:  # t = 2k
        low, high = _largest_zero(k, dim, both=False), _largest_zero(k, dim, both=True)

    def excess(cosine: float) -> float:
        return _levenshtein_size(dim, strength, cosine) / num_classes - 1

    if excess(low) >= 0:  # num_classes is a design size itself: the root is the end of the interval
        cosine = low
    elif excess(high) <= 0:
        cosine = high
    else:
        cosine = brentq(excess, low, high, xtol=1e-15, rtol=1e-15)
    return sqrt(2 - 2 * cosine)


def _design_size(dim: int, strength: int) -> int:
    """Fewest points that a spherical design of this strength can have (Delsarte, Goethals and Seidel, 1977)."""
    k = strength // 2
    if strength % 2:
        return 2 * comb(dim + k - 1, dim - 1)
    return comb(dim + k - 1, dim - 1) + comb(dim + k - 2, dim - 1)


def _levenshtein_size(dim: int, strength: int, cosine: float) -> float:
    """L_t(dim, s): the most points with cosines <= s that the bound allows."""
    k = (strength + 1) // 2
    before, at, after = _gegenbauer(dim, k, cosine)
    if strength % 2:
        return comb(k + dim - 3, k - 1) * ((2 * k + dim - 3) / (dim - 1) - (before - at) / ((1 - cosine) * at))
    ratio = (1 + cosine) * (at - after) / ((1 - cosine) * (at + after))
    return comb(k + dim - 2, k) * ((2 * k + dim - 1) / (dim - 1) - ratio)


def _gegenbauer(dim: int, degree: int, cosine: float) -> tuple[float, float, float]:
    """P_{k-1}, P_k, P_{k+1} at the cosine, scaled so that P(1) = 1."""
    before, at = 0.0, 1.0
    for k in range(degree):
        before, at = at, ((2 * k + dim - 2) * cosine * at - k * before) / (k + dim - 2)
    after = ((2 * degree + dim - 2) * cosine * at - degree * before) / (degree + dim - 2)
    return before, at, after


def _largest_zero(degree: int, dim: int, *, both: bool) -> float:
    """Largest zero of the polynomial adjacent to P_k: weight times (1-s), and times (1+s) too if `both`.

    It is the largest eigenvalue of the three-term recurrence of the Jacobi polynomials (Golub and Welsch, 1969).
    """
    if degree == 0:
        return -1.0
    a, b = (dim - 3) / 2 + 1, (dim - 3) / 2 + both
    n = np.arange(degree)
    total = 2 * n + a + b
    middle = (b * b - a * a) / (total * (total + 2))
    m, up = n[1:], total[1:]
    square = 4 * m * (m + a) * (m + b) * (m + a + b) / (up**2 * (up + 1) * (up - 1))
    last = (degree - 1, degree - 1)
    zeros = eigvalsh_tridiagonal(middle, np.sqrt(square), select="i", select_range=last)
    return min(float(zeros[0]), 1 - np.finfo(float).eps) if zeros[0] < inf else 1.0
