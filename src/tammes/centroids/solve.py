"""The solver: centroids by gradient descent on a soft maximum of the pairwise cosines."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import cos, inf, log, pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from tammes.centroids.bounds import upper_bound
from tammes.centroids.energy import energy
from tammes.centroids.random import uniform
from tammes.centroids.simplex import simplex
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError
from tammes.geometry import first_duplicate, normalise

_PRECISE = 1e6  # C² D up to which L-BFGS, with thousands of evaluations, ends in seconds
_HARD = 3e6  # a sharpness at which the soft maximum equals the maximum to 1e-5 or better
_HALF = 3e3  # a sharpness at which the arrangement is determined
_TINY = 100  # C D up to which there are many local optima, and restarts are cheap


def solve(
    num_classes: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    spread: float = 0.0,
    start: Float[Tensor, "classes dim"] | None = None,
    starts: int | None = None,
    steps: int | None = None,
) -> Float[Tensor, "classes dim"]:
    """Points whose smallest distance is locally maximal, found by descent; the best of several starts if cheap.

    The energy is the soft maximum of all cosines, with a sharpness that grows until it is the maximum itself. Small
    sets are solved by L-BFGS to 1e-6, larger ones by Riemannian Adam in O(classes² dim) per step and bounded memory.

    Args:
        spread: from 0, the largest smallest distance, to 0.6, nearly equal distances: the weight of the same energy of
            the negated cosines, which reduces the largest distance.
        start: initial points, for instance the mean of each class; their neighbourhoods are mostly kept.
        starts: number of random starts; by default as many as a few seconds allow, 1 for large sets.
        steps: steps of Riemannian Adam, by default 300, or 1000 where they take a second; L-BFGS runs to convergence.
    """
    checked_sizes(num_classes, dim, dtype, generator)
    if not 0 <= spread <= 0.6:
        raise UserError(f"spread must be between 0 and 0.6, got {spread:g}. Larger values pull all points together.")
    if steps is not None and steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}.")
    if starts is not None and starts < 1:
        raise UserError(f"starts must be at least 1, got {starts}.")
    if num_classes == 1 or dim == 1:
        return simplex(num_classes, dim, dtype=dtype)
    with _threads(1 if num_classes <= 1024 else torch.get_num_threads()):
        return _solved(num_classes, dim, generator, spread, start, starts, steps).to(dtype)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Limit torch's threads: for millisecond operations two gain nothing, and lose tenfold on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _solved(
    num_classes: int,
    dim: int,
    generator: torch.Generator | None,
    spread: float,
    start: Float[Tensor, "rows columns"] | None,
    starts: int | None,
    steps: int | None,
) -> Float[Tensor, "classes dim"]:
    """The result in float64."""
    if start is not None:
        begin = _checked_start(start, num_classes, dim)
        # A sharp energy from the first step moves a point away from its neighbours only.
        points = _adam(begin, spread, steps or 300, sharpness=20.0, rate=0.03)
        return normalise(points.double())
    steps = steps or default_steps(num_classes, dim)
    if num_classes**2 * dim <= _PRECISE:
        return _best_of(starts or _automatic_starts(num_classes, dim), num_classes, dim, spread, generator)
    best, lowest = torch.empty(0), inf
    for _ in range(starts or 1):
        points = _adam(uniform(num_classes, dim, generator), spread, steps, sharpness=2.0, rate=0.05)
        points = normalise(points.double())
        value, _ = energy(points, _HARD, spread)
        if value < lowest:
            best, lowest = points, value
    return best


def _best_of(
    starts: int, num_classes: int, dim: int, spread: float, generator: torch.Generator | None
) -> Float[Tensor, "classes dim"]:
    """The best result of L-BFGS from several random starts; only those leading at half sharpness are finished."""
    best, lowest, ahead = torch.empty(0), inf, inf
    attainable = 1 - upper_bound(num_classes, dim) ** 2 / 2 if not spread else -inf
    for attempt in range(starts):
        first = _first_sharpness(num_classes * dim, attempt)
        points = _lbfgs(uniform(num_classes, dim, generator), spread, first, _HALF)
        value, _ = energy(points, _HALF, spread)
        if value > ahead - 1e-9:
            continue
        ahead = value
        points = _lbfgs(points, spread, _HALF, _HARD)
        value, _ = energy(points, _HARD, spread)
        if value < lowest:
            best, lowest = points, value
        if lowest < attainable + log(num_classes**2) / _HARD:
            break  # it meets the upper bound, so it is optimal
    return best


def default_steps(num_classes: int, dim: int) -> int:
    """Steps of Riemannian Adam. 1000 instead of 300 gains about 0.2 % of the distance."""
    return 1000 if num_classes**2 * dim < 1e7 else 300


def _checked_start(start: Float[Tensor, "rows columns"], num_classes: int, dim: int) -> Float[Tensor, "classes dim"]:
    if start.shape != (num_classes, dim):
        raise UserError(f"start must have shape ({num_classes}, {dim}), got {tuple(start.shape)}.")
    start = normalise(start.detach().double().cpu())
    lost = (~start.isfinite().all(1) | (start == 0).all(1)).nonzero().flatten()
    if len(lost):
        raise UserError(f"start has no direction for class {int(lost[0])}: its row is zero or not finite.")
    twins = first_duplicate(start)
    if twins is not None:
        raise UserError(
            f"start has the same direction for classes {twins[0]} and {twins[1]}, so they cannot be separated."
        )
    return start


def _automatic_starts(num_classes: int, dim: int) -> int:
    size = num_classes * dim
    if size <= 700:
        return 24 if size <= _TINY else 6
    if size <= 2500:
        return 4 if size * num_classes <= 3e5 else 2
    return 1


def _first_sharpness(size: int, attempt: int) -> float:
    """The initial sharpness, which decides the arrangement; no single value finds all the best ones.

    Doubling from 5.7 misses the 240 minimal vectors of E8 in every start, from 10 finds them in every start; the
    24-cell is found from 2 only, 13 points in dim 3 from 100 or more.
    """
    return (10.0, 2.0, 1000.0, 100.0)[attempt % 4] if size <= _TINY else 10.0


def _lbfgs(
    start: Float[Tensor, "points dim"], spread: float, sharpness: float, last: float
) -> Float[Tensor, "points dim"]:
    """Stationary points of increasingly sharp energies, to float64 precision.

    The first stages are slow (300 iterations, then a growth of 1.3) because they decide which arrangement is found.
    """
    shape = tuple(start.shape)

    def objective(flat: np.ndarray, sharpness: float) -> tuple[float, np.ndarray]:
        raw = torch.from_numpy(flat).view(shape)
        lengths = torch.linalg.vector_norm(raw, dim=1, keepdim=True)
        points = raw / lengths
        value, gradient = energy(points, sharpness, spread)
        return value, (_tangent(gradient, points) / lengths).flatten().numpy()

    iterations, flat = 300, start.flatten().numpy()
    while sharpness <= last:
        options = {"maxiter": iterations, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-10}
        flat = minimize(objective, flat, args=(sharpness,), jac=True, method="L-BFGS-B", options=options).x
        flat = normalise(torch.from_numpy(flat).view(shape)).flatten().numpy()
        sharpness, iterations = sharpness * (1.3 if sharpness < 1000 else 2), 60
    return torch.from_numpy(flat).view(shape)


def _adam(
    start: Float[Tensor, "points dim"], spread: float, steps: int, *, sharpness: float, rate: float
) -> Float[Tensor, "points dim"]:
    """Riemannian Adam in float32 with one second moment per point; the sharpness grows geometrically to 300.

    Sharpness and rate are relative to the standard deviation of random cosines, 1/sqrt D, and to the distance between
    neighbours if that is below a right angle.
    """
    points = start.float()
    closeness = min(1.0, upper_bound(*points.shape) ** 2 / 2)  # 1 - cos of neighbours
    growth = 300 / sharpness
    sharpness, rate = sharpness * sqrt(points.shape[1]) / closeness, rate * sqrt(closeness)
    momentum, square = torch.zeros_like(points), torch.zeros(len(points), 1)
    for step in range(steps):
        progress = step / max(1, steps - 1)
        _, gradient = energy(points, sharpness * growth**progress, spread)
        gradient = _tangent(gradient, points)
        momentum = _tangent(momentum.mul_(0.9).add_(gradient, alpha=0.1), points)
        square.mul_(0.999).add_(gradient.square().sum(1, keepdim=True), alpha=0.001)
        scale = (square / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-12) * (1 - 0.9 ** (step + 1))
        points = normalise(points - rate * (1 + cos(pi * progress)) / 2 * momentum / scale)
    return points


def _tangent(vectors: Float[Tensor, "points dim"], points: Float[Tensor, "points dim"]) -> Float[Tensor, "points dim"]:
    """The tangential components of the vectors on the sphere."""
    return vectors - (vectors * points).sum(1, keepdim=True) * points
