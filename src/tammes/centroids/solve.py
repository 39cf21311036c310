"""The solver: centroids as far apart as descent on a soft maximum of the cosines can bring them."""

from math import cos, pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from tammes.centroids.checks import checked_sizes
from tammes.centroids.energy import energy
from tammes.centroids.random import uniform
from tammes.errors import UserError
from tammes.geometry import first_duplicate, normalise

_STEPS = 300
_SMALL = 2e7  # C² D up to which the precise method, which takes thousands of evaluations, ends in seconds


def solve(
    num_classes: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    spread: float = 0.0,
    start: Float[Tensor, "classes dim"] | None = None,
    starts: int | None = None,
    steps: int = _STEPS,
) -> Float[Tensor, "classes dim"]:
    """Points with a locally largest smallest distance, found by descent; the best of several starts where cheap.

    The energy is the soft maximum of all cosines, whose sharpness grows until it is the maximum itself. Small sets are
    solved by L-BFGS to 1e-6, larger ones by Riemannian Adam in O(classes² dim) a step and bounded memory.

    Args:
        spread: from 0, the largest smallest distance, to 0.6, nearly equal distances: weight of the same energy of
            the negated cosines, which shrinks the largest distance. At 1 all points could meet in one.
        start: where to begin, for instance the mean of each class; its neighbourhoods are mostly kept.
        starts: how many random starts; by default as many as a few seconds allow, 1 for large sets.
        steps: of Riemannian Adam; the precise method for small sets ends by itself.
    """
    checked_sizes(num_classes, dim, dtype)
    if not 0 <= spread <= 0.6:
        raise UserError(f"spread must be between 0 and 0.6, got {spread:g}. Larger values pull all points together.")
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}.")
    if starts is not None and starts < 1:
        raise UserError(f"starts must be at least 1, got {starts}.")
    if start is not None:
        begin = _checked_start(start, num_classes, dim)
        # A sharp energy from the first step moves a point only away from its neighbours.
        points = _adam(begin, spread, steps, sharpness=20 * sqrt(dim), rate=0.03) if num_classes > 1 else begin
        return normalise(points.double()).to(dtype)
    if dim == 1 or num_classes == 1:
        return torch.tensor([[1.0], [-1.0]], dtype=dtype)[:num_classes] if dim == 1 else uniform(1, dim, generator).to(dtype)
    best, lowest = None, float("inf")
    for _ in range(starts or _automatic_starts(num_classes, dim)):
        begin = uniform(num_classes, dim, generator)
        if num_classes**2 * dim <= _SMALL:
            points = _lbfgs(begin, spread)
        else:
            points = _adam(begin, spread, steps, sharpness=2 * sqrt(dim), rate=0.05)
        points = normalise(points.double())
        value, _ = energy(points, 1e7, spread)  # the hard maximum, nearly
        if value < lowest:
            best, lowest = points, value
    assert best is not None
    return best.to(dtype)


def _checked_start(start: Float[Tensor, "rows columns"], num_classes: int, dim: int) -> Float[Tensor, "classes dim"]:
    if start.shape != (num_classes, dim):
        raise UserError(f"start must have shape ({num_classes}, {dim}), got {tuple(start.shape)}.")
    start = normalise(start.detach().double().cpu())
    lost = (~start.isfinite().all(1) | (start == 0).all(1)).nonzero().flatten()
    if len(lost):
        raise UserError(f"start has no direction for class {int(lost[0])}: its row is zero or not finite.")
    twins = first_duplicate(start)
    if twins is not None:
        raise UserError(f"start has the same direction for classes {twins[0]} and {twins[1]}: nothing tells them apart.")
    return start


def _automatic_starts(num_classes: int, dim: int) -> int:
    size = num_classes * dim
    return 40 if size <= 100 else 8 if size <= 700 else 4 if size <= 2000 else 1


def _lbfgs(start: Float[Tensor, "points dim"], spread: float) -> Float[Tensor, "points dim"]:
    """Stationary points of ever sharper energies, to float64 precision.

    The slow beginning (a sharpness of 10, 300 iterations) decides which arrangement is found: a sharpness that
    doubles from 5.7 misses the 240 minimal vectors of E8 in every start, this schedule finds them in every start.
    """
    shape = tuple(start.shape)

    def objective(flat: np.ndarray, sharpness: float) -> tuple[float, np.ndarray]:
        raw = torch.from_numpy(flat).view(shape)
        lengths = torch.linalg.vector_norm(raw, dim=1, keepdim=True)
        points = raw / lengths
        value, gradient = energy(points, sharpness, spread)
        return value, (_tangent(gradient, points) / lengths).flatten().numpy()

    sharpness, iterations, flat = 10.0, 300, start.flatten().numpy()
    while sharpness < 3e6:
        options = {"maxiter": iterations, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-10}
        flat = minimize(objective, flat, args=(sharpness,), jac=True, method="L-BFGS-B", options=options).x
        flat = normalise(torch.from_numpy(flat).view(shape)).flatten().numpy()
        sharpness, iterations = sharpness * 1.3, 60
    return torch.from_numpy(flat).view(shape)


def _adam(
    start: Float[Tensor, "points dim"], spread: float, steps: int, *, sharpness: float, rate: float
) -> Float[Tensor, "points dim"]:
    """Riemannian Adam in float32 with one second moment per point, the sharpness growing geometrically."""
    points = start.float()
    momentum, square = torch.zeros_like(points), torch.zeros(len(points), 1)
    growth = 300 * sqrt(points.shape[1]) / sharpness
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
    """The vectors without their parts along the points: directions on the sphere."""
    return vectors - (vectors * points).sum(1, keepdim=True) * points
