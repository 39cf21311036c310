"""Distances between points: how a distance is computed is decided only here.

The product form |a|² + |b|² - 2 a·b is one matrix product, but float32 loses half its digits where two points are
close: 2-2·cos is off by 1e-7, so a distance of 1e-4 is off by 1e-3. Entries below `CLOSE` are therefore computed
again from the difference of the two points, which keeps every distance within 1e-6 of float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from numbers import Integral, Real

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from tammes.errors import UserError, shown

CLOSE = 0.3  # product form at distance d, float32: error about 1e-7 / d, so 3e-7 here
COINCIDE = 4  # points closer than this many units in the last place coincide: their difference is rounding error
LEAST_TEMPERATURE = 1e-6  # softmax has become argmax long before
MIN_NORM = 1e-12  # below this norm, the direction of a vector is noise
_PAIRS_AT_ONCE = 1 << 22  # floats in one temporary of differences: 16 MB
_BLOCK = 2048  # rows and columns of one block of pairs


def full_precision(points: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The points in float32 (float64 stays float64): a distance in half precision has only two digits."""
    return points if points.dtype in (torch.float32, torch.float64) else points.float()


def normalise(points: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    """The points scaled to unit norm; one with a norm up to `MIN_NORM` becomes zero."""
    points = full_precision(points)
    lengths = torch.linalg.vector_norm(points, dim=1, keepdim=True)  # (rows, 1)
    scale = torch.where(lengths <= MIN_NORM, 0.0, 1 / lengths.clamp_min(MIN_NORM))
    # A norm that overflows must give NaN, not a zero vector.
    return points * torch.where(lengths.isinf(), float("nan"), scale)


def scale_down(points: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows 1"] | None:
    """A factor for each point, a power of two, so that its squares do not overflow; None if no point needs one."""
    least, most = torch.aminmax(points.detach())
    half = 64 if points.dtype == torch.float32 else 512  # the exponent from which a square overflows
    longest = 2.0 ** (half - 9)  # a sum of squares of numbers up to this does not
    if not max(-least.item(), most.item()) > longest:
        return None
    too_long = points.detach().abs().amax(1, keepdim=True) > longest  # (rows, 1)
    return torch.where(too_long, points.new_tensor(2.0 ** -(half + 12)), points.new_tensor(1.0))


def distances(points: Float[Tensor, "rows dim"], others: Float[Tensor, "columns dim"]) -> Float[Tensor, "rows columns"]:
    """Euclidean distances, within 1e-6 of float64 for unit points, in float32 or better.

    The gradient is finite everywhere, and zero where two points coincide (the subgradient that stays put).
    """
    points, others = full_precision(points), full_precision(others)
    dtype = torch.promote_types(points.dtype, others.dtype)
    return _Distances.apply(points.to(dtype), others.to(dtype))  # type: ignore[no-any-return]


def paired_squared_distances(
    points: Float[Tensor, "rows dim"], others: Float[Tensor, "rows dim"]
) -> Float[Tensor, " rows"]:
    """Squared distances between corresponding rows, computed from the difference so that no digits cancel."""
    return (points - others).square().sum(1)


def rms_norm(points: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
    """The root mean square norm, without a gradient; 1 if all points are zero."""
    norm = points.detach().double().square().sum(1).mean().sqrt()  # in float64, where no square overflows
    return torch.where(norm <= MIN_NORM, 1.0, norm).to(full_precision(points))


def absolute_distances(
    points: Float[Tensor, "rows dim"], others: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """L1 distances. No digits cancel, and the gradient is zero where two coordinates are equal."""
    return torch.cdist(points, others, p=1)


def distances_to_axes(points: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    """Distances of unit points to the one-hot points, as accurate as `distances` but without a matrix product.

    Only the axis of the largest coordinate can be closer than `CLOSE`: its distance is computed from the difference.
    """
    points = full_precision(points)
    largest, axis = points.max(dim=1, keepdim=True)  # (rows, 1)
    nearest = torch.linalg.vector_norm(points.scatter(1, axis, largest - 1), dim=1, keepdim=True)  # (rows, 1)
    # The clamp protects the gradient of the entry that is replaced: the square root of zero has an infinite one.
    return (2 - 2 * points).clamp_min(1e-12).sqrt().scatter(1, axis, nearest)


class _Distances(torch.autograd.Function):
    """Product form; close pairs are recomputed from the difference, in the value and in the gradient."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, points: Tensor, others: Tensor) -> Tensor:
        with torch.autocast(points.device.type, enabled=False):
            mean_square = (points.square().sum(1)[:, None] + others.square().sum(1)) / 2  # (rows, columns)
            squared = torch.addmm(mean_square, points, others.T, beta=2, alpha=-2)  # (rows, columns)
            row, column = (squared < CLOSE**2 * mean_square).nonzero(as_tuple=True)
            result = squared.clamp_(min=0).sqrt_()
            for part in chunks(len(row), points.shape[1]):
                point = points[row[part]]  # (close, dim)
                apart = torch.linalg.vector_norm(point - others[column[part]], dim=1)  # (close,)
                noise = COINCIDE * torch.finfo(apart.dtype).eps * torch.linalg.vector_norm(point, dim=1)
                result[row[part], column[part]] = torch.where(apart <= noise, 0.0, apart)
        ctx.save_for_backward(points, others, result, row, column)
        return result

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        refuse_second_derivative("a distance")
        points, others, result, row, column = ctx.saved_tensors  # type: ignore[attr-defined]
        with torch.autocast(points.device.type, enabled=False):
            weight = torch.where(result > 0, grad / result, 0.0)  # (rows, columns)
            close = weight[row, column]  # (close,)
            weight[row, column] = 0
            to_points, to_others = None, None
            if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
                to_points = weight.sum(1, keepdim=True) * points - weight @ others  # (rows, dim)
            if ctx.needs_input_grad[1]:  # type: ignore[attr-defined]
                to_others = weight.sum(0)[:, None] * others - weight.T @ points  # (columns, dim)
            for part in chunks(len(row), points.shape[1]):
                step = close[part, None] * (points[row[part]] - others[column[part]])  # (close, dim)
                if to_points is not None:
                    to_points.index_add_(0, row[part], step)
                if to_others is not None:
                    to_others.index_add_(0, column[part], step, alpha=-1)
        return to_points, to_others


def refuse_second_derivative(what: str) -> None:
    """Raise in the backward of a hand-written gradient, which autograd would otherwise treat as a constant.

    (`once_differentiable` checks only the incoming gradient and misses a gradient penalty.)
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the second derivative of {what} is not available: call backward without create_graph=True."
        )


def chunks(pairs: int, dim: int) -> Iterator[slice]:
    """Slices over the pairs whose differences fit in one small temporary tensor."""
    size = max(1, _PAIRS_AT_ONCE // max(1, dim))
    return (slice(start, start + size) for start in range(0, pairs, size))


@dataclass(frozen=True)
class Pairwise:
    """Statistics of the distances between all pairs of a set of points."""

    min: float
    max: float
    mean: float
    std: float


def pairwise(points: Float[Tensor, "points dim"]) -> Pairwise:
    """Min, max, mean and standard deviation of the distances between all pairs, in bounded memory."""
    count = len(points)
    if count < 2:
        raise UserError(f"distances between pairs need at least 2 points, got {count}.")
    points = full_precision(points.detach())
    if count <= _BLOCK:
        points = points.double()  # cheap at this size, and exact for the exact centroid generators
    least, most, total, squares = float("inf"), 0.0, 0.0, 0.0
    for block in blocks_of_pairs(points):
        least, most = min(least, block.min().item()), max(most, block.max().item())
        shifted = block - sqrt(2)  # most distances are near sqrt(2): shifted, the sums of squares do not cancel
        total += shifted.sum(dtype=torch.float64).item()
        squares += shifted.square_().sum(dtype=torch.float64).item()
    pairs = count * (count - 1) / 2
    mean = total / pairs
    return Pairwise(least, most, sqrt(2) + mean, sqrt(max(0.0, squares / pairs - mean**2)))


def blocks_of_pairs(points: Float[Tensor, "points dim"]) -> Iterator[Float[Tensor, "..."]]:
    """The distances of all unordered pairs, each once, a block at a time."""
    for top in range(0, len(points), _BLOCK):
        rows = points[top : top + _BLOCK]
        for left in range(top, len(points), _BLOCK):
            block = distances(rows, points[left : left + _BLOCK])
            if left > top:
                yield block
            elif len(rows) > 1:
                upper = torch.triu_indices(len(rows), len(rows), offset=1, device=points.device)
                yield block[upper[0], upper[1]]


def checked_centroids(centroids: Float[Tensor, "classes dim"] | int) -> Float[Tensor, "classes dim"] | None:
    """The validated centroids, detached and in full precision; None for one-hot centroids. Raises UserError."""
    if not isinstance(centroids, Tensor | Integral):
        raise UserError(
            "centroids must be a tensor of shape (classes, dim), or a whole number of classes for one-hot ones;"
            f" got {shown(centroids)}."
        )
    num_classes = len(centroids) if isinstance(centroids, Tensor) and centroids.ndim else int(centroids)
    if num_classes < 2:
        raise UserError(f"a loss against centroids needs at least 2 classes, got {num_classes}.")
    if not isinstance(centroids, Tensor):
        return None
    if centroids.ndim != 2 or not centroids.is_floating_point():
        raise UserError(
            f"centroids must be floating point of shape (classes, dim), or a number of classes for one-hot ones;"
            f" got {centroids.dtype} of shape {tuple(centroids.shape)}."
        )
    # Norms of half-precision centroids are off by their rounding.
    rounding = max(1e-4, torch.finfo(centroids.dtype).eps)
    centroids = full_precision(centroids.detach())
    lengths = torch.linalg.vector_norm(centroids, dim=1)  # (classes,)
    wrong = ((lengths - 1).abs() < rounding).logical_not().nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"centroids must have unit norm; that of class {row} has norm {lengths[row].item():.6g}"
            f" ({len(wrong)} of {num_classes} are off). Use torch.nn.functional.normalize(centroids)."
        )
    twin = first_duplicate(centroids)
    if twin is not None:
        raise UserError(f"classes {twin[0]} and {twin[1]} have the same centroid, so they cannot be separated.")
    if (lengths == 1).all():
        return centroids  # avoids a copy: a million centroids take half a gigabyte
    unit: Tensor = centroids / lengths[:, None]
    return unit


def check_sizes(what: str, num_classes: int, dim: int) -> None:
    """Raise UserError for fewer than 2 classes or 1 dimension."""
    if num_classes < 2 or dim < 1:
        raise UserError(f"{what} needs at least 2 classes and 1 dimension, got {num_classes} and {dim}.")


def checked_push(push: float) -> float:
    """The weight of the repelling term; UserError where it would outweigh the attracting term."""
    if not isinstance(push, Real) or not 0 <= push < 1:
        raise UserError(f"push must be in [0, 1), got {push}: from 1 on the own centroid is no longer the minimum.")
    return push


def checked_temperature(temperature: float) -> float:
    """The temperature of a softmax; UserError outside the range that float32 allows."""
    if not isinstance(temperature, Real) or not LEAST_TEMPERATURE <= temperature <= 1 / LEAST_TEMPERATURE:
        raise UserError(
            f"temperature must be from {LEAST_TEMPERATURE:g} to {1 / LEAST_TEMPERATURE:g}, got {temperature}. Most use"
            " 0.01 to 1."
        )
    return temperature


def checked_sizes(
    class_sizes: Integer[Tensor, " classes"] | Sequence[int], num_classes: int
) -> Int[Tensor, " classes"]:
    """The numbers of training images per class; UserError names an invalid class.

    A class of 0 images has a free centroid, reserved for a later class: it only repels.
    """
    sizes = torch.as_tensor(class_sizes)
    if sizes.shape != (num_classes,) or sizes.is_floating_point():
        raise UserError(
            f"class_sizes must be {num_classes} integers, one for each class,"
            f" got {sizes.dtype} of shape {tuple(sizes.shape)}."
        )
    if int(sizes.min()) < 0:
        raise UserError(f"class {int(sizes.argmin())} has {int(sizes.min())} images; it must be 0 or more.")
    if int(sizes.max()) == 0:
        raise UserError("class_sizes are all 0: at least one class must have images.")
    return sizes.long()


def first_duplicate(points: Float[Tensor, "points dim"]) -> tuple[int, int] | None:
    """The first two rows that are bitwise equal, or None; in O(points * dim) by hashing."""
    words = torch.int32 if points.dtype == torch.float32 else torch.int64
    odd = torch.randint(1 << 62, (points.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    odd = odd.to(points.device)
    # Integer arithmetic does not round, so equal rows have equal hashes in any order of summation.
    hashes = torch.empty(len(points), dtype=torch.int64, device=points.device)
    for part, own in zip(points.split(_BLOCK), hashes.split(_BLOCK), strict=True):
        torch.sum((part + 0.0).view(words).long() * odd, 1, out=own)
    order = hashes.sort(stable=True).indices
    near = (hashes[order[1:]] == hashes[order[:-1]]).nonzero().flatten()
    for place in near.tolist():
        first, second = int(order[place]), int(order[place + 1])
        if torch.equal(points[first], points[second]):
            return first, second
    return None


def checked_batch(
    embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], dim: int | None = None
) -> tuple[Float[Tensor, "batch dim"], Int[Tensor, " batch"]]:
    """Embeddings in full precision and labels as int64; UserError for a wrong shape or type.

    Label values are checked by `check_range`. Without `dim`, embeddings may have any length.
    """
    for name, given in (("embeddings", embeddings), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise UserError(f"{name} must be a tensor, got {type(given).__name__}: torch.as_tensor({name}) makes one.")
    if embeddings.ndim != 2 or dim not in (None, embeddings.shape[1]):
        raise UserError(f"embeddings must have shape (batch, {dim or 'dim'}), got {tuple(embeddings.shape)}.")
    if not embeddings.is_floating_point():
        raise UserError(f"embeddings must be floating point, got {embeddings.dtype}.")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise UserError(f"labels must be integers, got {labels.dtype}. Use labels.long().")
    if labels.shape != embeddings.shape[:1]:
        raise UserError(
            f"one label for each embedding: {len(embeddings)} embeddings, labels of shape {tuple(labels.shape)}."
        )
    if len(labels) == 0:
        raise UserError("the batch is empty: the mean over no embeddings is undefined.")
    return full_precision(embeddings), labels.long()


def check_range(labels: Integer[Tensor, " batch"], num_classes: int) -> None:
    """Raise UserError for the first label outside 0..num_classes-1."""
    least, most = torch.aminmax(labels)
    if least.item() < 0 or most.item() >= num_classes:
        row = int(((labels < 0) | (labels >= num_classes)).nonzero()[0])
        raise UserError(
            f"label {int(labels[row])} (row {row} of the batch) is outside 0..{num_classes - 1}"
            f" of {num_classes} classes. Number the classes from 0 without gaps."
        )


def evenly_spaced_rows(number: int) -> Int[Tensor, " rows"]:
    """The rows to compare with all points: every row, or evenly spaced rows if there are more than 2^29 pairs.

    >>> evenly_spaced_rows(4), len(evenly_spaced_rows(1 << 20))
    (tensor([0, 1, 2, 3]), 512)
    """
    rows = max(1, (1 << 29) // number)
    return torch.arange(number) if rows >= number else torch.linspace(0, number - 1, rows, dtype=torch.float64).long()
