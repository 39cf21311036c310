"""`place`: the best centroids for given sizes, from all generators."""

from collections.abc import Callable, Iterator
from math import cos, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.bounds import upper_bound
from tammes.centroids.codes import best_code, codes
from tammes.centroids.kerdock import capacity, kerdock, largest_cosine
from tammes.centroids.layers import layers, widest_angle
from tammes.centroids.orthogonal_simplices import orthogonal_simplices
from tammes.centroids.shells import best_shell, shells
from tammes.centroids.simplex import simplex
from tammes.centroids.solve import default_steps, solve
from tammes.centroids.validation import checked_sizes
from tammes.geometry import pairwise

_SOLVER_SECONDS = 15  # on one ordinary core
_FEWEST_STEPS = 40  # with fewer, the solver never beat the closed forms


class Placement(NamedTuple):
    """Centroids and the name of the generator that made them."""

    centroids: Tensor
    kind: str


def place(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """The centroids with the largest smallest distance that is found within a minute; optimal up to 2 dim classes.

    A simplex up to dim + 1 classes, orthogonal simplices up to 2 dim, a regular polygon in dim 2. Beyond, the closed
    form with the best guarantee (kerdock, codes, shells, layers), or the solver's result if that is affordable and
    better. The choice depends on the sizes only, never on time.
    """
    return placed(num_classes, dim, generator=generator, dtype=dtype).centroids


def placed(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Placement:
    """The result of `place`, with the name of the generator that it chose."""
    checked_sizes(num_classes, dim, dtype, generator)
    if num_classes <= dim + 1:
        return Placement(simplex(num_classes, dim, dtype=dtype), "simplex")
    if num_classes <= 2 * dim:
        return Placement(orthogonal_simplices(num_classes, dim, dtype=dtype), "orthogonal-simplices")
    if dim == 2:
        return Placement(layers(num_classes, dim, dtype=dtype), "layers")
    form = min(_closed_forms(num_classes, dim), key=lambda form: form.cosine)
    optimal = sqrt(2 - 2 * form.cosine) > (1 - 1e-9) * upper_bound(num_classes, dim)
    steps = _affordable_steps(num_classes, dim)
    if optimal or steps < _FEWEST_STEPS:
        return Placement(form.make(num_classes, dim, dtype=dtype), form.kind)
    closed = form.make(num_classes, dim, dtype=torch.float64)
    solved = solve(num_classes, dim, generator=generator, dtype=torch.float64, steps=steps)
    if pairwise(solved).min > pairwise(closed).min + 1e-9:
        return Placement(solved.to(dtype), "solve")
    return Placement(closed.to(dtype), form.kind)


class _ClosedForm(NamedTuple):
    kind: str
    cosine: float  # guaranteed maximum
    make: Callable[..., Tensor]


def _closed_forms(num_classes: int, dim: int) -> Iterator[_ClosedForm]:
    if dim >= 4 and num_classes <= capacity(dim):
        yield _ClosedForm("kerdock", largest_cosine(num_classes, dim), kerdock)
    if num_classes <= 1 << dim:
        yield _ClosedForm("codes", best_code(num_classes, dim).cosine, codes)
    shell = best_shell(num_classes, dim) if 5 <= dim <= 32 else None  # below, layers are better; above, codes
    if shell is not None:
        yield _ClosedForm("shells", shell.cosine, shells)
    if dim <= 8 or (shell is None and num_classes > 1 << dim):
        yield _ClosedForm("layers", cos(widest_angle(num_classes, dim)), layers)


def _affordable_steps(num_classes: int, dim: int) -> int:
    """The solver's budget of steps: a step costs about 8 + 0.03 dim nanoseconds per pair of classes."""
    seconds = num_classes**2 * (8 + 0.03 * dim) * 1e-9
    return min(default_steps(num_classes, dim), int(_SOLVER_SECONDS / seconds))
