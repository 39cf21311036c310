"""The log-sum-exp energy of a set of points, and its gradient, in bounded memory."""

from math import exp, inf, log

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 1024  # rows and columns of one block of cosines: 4 MB in float32, which fits the processor cache
_LEAST = -80.0  # below, exp is denormal in float32: negligible, and several times slower


def energy(
    points: Float[Tensor, "points dim"], sharpness: float, spread: float = 0.0
) -> tuple[float, Float[Tensor, "points dim"]]:
    """The soft maximum E of the cosines of all pairs, plus `spread` times that of their negatives, and its gradient.

        E(sharpness β) = 1/β log Σ_{i<j} exp(β <x_i, x_j>),    max cos <= E <= max cos + log(C(C-1)/2)/β

    Blocks on and above the diagonal only, with a running maximum: O(block² + C D) memory and 3 C² D operations.
    """
    near = _SoftMaximum(points)
    far = _SoftMaximum(points) if spread else None
    for top in range(0, len(points), _BLOCK):
        rows = slice(top, min(top + _BLOCK, len(points)))
        for left in range(top, len(points), _BLOCK):
            columns = slice(left, min(left + _BLOCK, len(points)))
            cosines = (points[rows] * sharpness) @ points[columns].T  # (rows, columns), times the sharpness
            if far is not None:
                far.add(rows, columns, -cosines)
            near.add(rows, columns, cosines)
    value, gradient = near.result(sharpness)
    if far is not None:
        far_value, far_gradient = far.result(sharpness)
        value, gradient = value + spread * far_value, gradient - spread * far_gradient
    return value, gradient


class _SoftMaximum:
    """log-sum-exp over blocks of pairs, relative to the largest value so far."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self.gradient = torch.zeros_like(points)
        self.largest, self.total = -inf, 0.0

    def add(self, rows: slice, columns: slice, values: Tensor) -> None:
        """Add the pairs rows x columns; overwrites `values`."""
        same = rows == columns
        if same:
            if len(values) == 1:
                return
            values.fill_diagonal_(-inf)
        largest = values.max().item()
        if largest > self.largest:
            if self.total:
                scale = exp(self.largest - largest)
                self.gradient *= scale
                self.total *= scale
            self.largest = largest
        weights = values.sub_(self.largest).clamp_(min=_LEAST).exp_()  # (rows, columns)
        self.total += weights.sum(dtype=torch.float64).item() / (2 if same else 1)
        self.gradient[rows].addmm_(weights, self.points[columns])
        if not same:
            self.gradient[columns].addmm_(weights.T, self.points[rows])

    def result(self, sharpness: float) -> tuple[float, Tensor]:
        return (self.largest + log(self.total)) / sharpness, self.gradient / self.total
