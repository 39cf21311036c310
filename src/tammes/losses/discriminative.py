"""The discriminative loss: a linear-time upper bound on the triplet loss."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_whole, unknown_name
from tammes.geometry import (
    CLOSE,
    COINCIDE,
    NO_LENGTH,
    check_range,
    checked_batch,
    checked_centroids,
    checked_push,
    checked_sizes,
    chunks,
    distances,
    distances_to_axes,
    keep_full_precision,
    normalise,
    refuse_second_derivative,
    shortening,
    some_rows,
)
from tammes.losses.method import Method

Weighting = Literal["none", "balanced", "triplet"]

# Pairs in one go: a block of 1 MB stays in the cache between the two matrix products, which is faster than whole rows
# (in a prototype 0.45 against 0.54 of a linear layer with cross-entropy at 11,318 classes) and bounds the memory.
_BLOCK = 1 << 18


class DiscriminativeLoss(nn.Module):
    """Linear-time upper bound on the triplet loss (Do et al., CVPR 2019, equation 8), as a mean over the batch.

    For an embedding x, scaled to unit length, of class y, and unit centroids c that never move:

        |x - c_y|  -  push * (mean over m != y of |x - c_m|)

    The paper has push = 1/3. Any push <= 1/3 keeps three times the mean an upper bound on the mean of the margin-free
    triplet loss over all triplets; any push < 1 keeps the own centroid the one minimiser. No mining, no margin, no
    sampler: a batch of one is as good as any, and the loss has nothing to train.

    Classes of different size: `weighting="balanced"` weights each image by N / (C n_y), as if every class had been
    filled up to the same size; `weighting="triplet"` is the exact sum over all triplets of the training set, in which
    class a with n_a images has

        pull  2 (n_a - 1) (N - n_a) + S - n_a (n_a - 1),   S = sum of n_c (n_c - 1)
        push  (n_a - 1) n_m  for the centroid of class m

    Both take `class_sizes`, the numbers of training images. For equal sizes all three give the same value.

    Not to be confused with the loss of the same name for instance segmentation (De Brabandere et al., 2017).

    Args:
        centroids: one unit point per class, or a number of classes: one-hot centroids, which take no memory and no
            matrix product. The embeddings then have one coordinate per class.
        class_sizes: training images per class, for `weighting`; 0 for one whose centroid is kept free: it has a part
            in the push of the others only, and where classes are weighted by their triplets none.
        push: the weight β of the repelling term, in [0, 1).
        chunk_classes: how many classes to compute at a time, which bounds the memory to (batch, chunk_classes); by
            default as many as fit the cache.
        sample_classes: repel from this many random classes, drawn anew in each call and shared by the batch, instead
            of all: an unbiased estimate of the loss and its gradient at a cost that does not depend on the number of
            classes.

    >>> loss = DiscriminativeLoss(2)
    >>> round(loss(torch.tensor([[1.0, 0.2], [0.4, 0.9]]), torch.tensor([0, 0])).item(), 6)
    0.362924
    """

    centroids: Tensor | None
    class_sizes: Tensor | None
    pull_weights: Tensor | None
    push_weights: Tensor | None
    class_weights: Tensor | None

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None = None,
        weighting: Weighting = "none",
        push: float = 1 / 3,
        chunk_classes: int | None = None,
        sample_classes: int | None = None,
    ) -> None:
        super().__init__()
        points = checked_centroids(centroids)
        self.num_classes, self.dim = points.shape if points is not None else (int(centroids), int(centroids))
        if chunk_classes is not None:
            check_whole("chunk_classes", chunk_classes)
        if points is None and (chunk_classes is not None or sample_classes is not None):
            raise UserError(
                "one-hot centroids need every coordinate of an embedding for its length, so chunk_classes and"
                " sample_classes save nothing. Use centroids in fewer dimensions: centroids.place(num_classes, dim)."
            )
        if sample_classes is not None:
            check_whole("sample_classes", sample_classes, 2, self.num_classes)
        self.push, self.weighting = checked_push(push), weighting
        self.chunk_classes, self.sample_classes = chunk_classes, sample_classes
        sizes = None if class_sizes is None else checked_sizes(class_sizes, self.num_classes)
        pull, repel, per_class = _weights(weighting, push, self.num_classes, sizes)
        self.register_buffer("centroids", points)  # fixed: saved and moved with the module, never trained
        self.register_buffer("class_sizes", sizes, persistent=False)
        dtype = torch.float32 if points is None else points.dtype
        for name, weights in (("pull_weights", pull), ("push_weights", repel), ("class_weights", per_class)):
            self.register_buffer(name, None if weights is None else weights.to(dtype), persistent=False)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        centroids, classes = self.centroids, None
        if centroids is not None and centroids.dtype != embeddings.dtype:  # the finer of the two
            dtype = torch.promote_types(centroids.dtype, embeddings.dtype)
            centroids, embeddings = centroids.to(dtype), embeddings.to(dtype)
        if self.sample_classes is not None:
            sample = _compiled_sample if torch.compiler.is_compiling() else _sample
            classes = sample(self.num_classes, self.sample_classes, labels.device)  # (sample,)
        weights = (self.pull_weights, self.push_weights, self.class_weights, self.push / (self.num_classes - 1))
        arguments = (embeddings, labels, centroids, classes, *weights)
        chunk = self.chunk_classes or max(512, _BLOCK // len(labels))
        if torch.compiler.is_compiling():
            return _compiled(*arguments, chunk)[0]  # type: ignore[no-any-return]
        return _Fused.apply(*arguments, chunk)  # type: ignore[no-any-return]

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative distances to the centroids: the largest is the class that the embedding lies nearest to."""
        unit = normalise(embeddings)
        return -(distances_to_axes(unit) if self.centroids is None else distances(unit, self.centroids))

    def per_image(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The value of each image, whose mean is the loss; for methods that weigh or choose images by it.

        Takes the memory of all distances, (batch, classes), and repels from all classes.
        """
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            apart = -self.get_logits(embeddings)  # (batch, classes)
            own = apart.gather(1, labels[:, None])[:, 0]  # (batch,)
            if self.class_weights is None:
                others = apart.sum(1) - own
            else:
                others = apart @ self.class_weights.to(apart) - self.class_weights.to(apart)[labels] * own
            pull = 1.0 if self.pull_weights is None else self.pull_weights.to(apart)[labels]
            uniform = self.push / (self.num_classes - 1)
            return pull * own - (uniform if self.push_weights is None else self.push_weights.to(apart)[labels]) * others

    @property
    def minimum(self) -> float:
        """The least value over the training set, reached where every embedding is its own centroid.

        Without `class_sizes`, that for classes of equal size. Costs the distances of all pairs of centroids, so keep
        the value; of more than 2^29 pairs that many are taken, for centroids evenly spaced in their order.
        """
        chosen = some_rows(self.num_classes)
        if self.centroids is None:
            weights = torch.ones(self.num_classes) if self.class_weights is None else self.class_weights
            repelled = sqrt(2) * (weights.double().sum() - weights.double())[chosen]  # (chosen,)
        else:
            weights = self.centroids.new_ones(self.num_classes) if self.class_weights is None else self.class_weights
            rows = max(1, (1 << 22) // self.num_classes)  # 16 MB of distances at a time
            parts = [distances(self.centroids[part], self.centroids) @ weights for part in chosen.split(rows)]
            repelled = torch.cat(parts)
        sizes = torch.ones_like(repelled) if self.class_sizes is None else self.class_sizes[chosen]
        push = self.push / (self.num_classes - 1) if self.push_weights is None else self.push_weights[chosen]
        return -float((sizes / sizes.sum() * push * repelled).sum(dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_full_precision(self._buffers, before)
        return self

    def extra_repr(self) -> str:
        kind = "one-hot" if self.centroids is None else f"in {self.dim} dimensions"
        return f"{self.num_classes} classes {kind}, weighting={self.weighting!r}, push={self.push:.6g}"


def _weights(
    weighting: Weighting, push: float, num_classes: int, sizes: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The weights of the pull and the push by own class, and of the other classes within the push; None: all alike."""
    if weighting not in get_args(Weighting):
        raise unknown_name("weighting", weighting, get_args(Weighting))
    if weighting == "none":
        return None, None, None
    if sizes is None:
        raise UserError(f"weighting={weighting!r} needs class_sizes, the training images of each class.")
    n, total = sizes.double(), sizes.double().sum()
    if weighting == "balanced":
        pull = torch.where(n > 0, total / ((n > 0).sum() * n), 0.0)
        return pull, push * pull / (num_classes - 1), None
    triplets = (n * (n - 1) * (total - n)).sum()
    if triplets == 0:
        raise UserError("weighting='triplet' needs a class with at least 2 images: there is no triplet here.")
    positive_pairs = (n * (n - 1)).sum()
    others = (n - 1).clamp_min(0)
    pull = 2 * others * (total - n) + positive_pairs - n * others
    # L_d / H is three times the mean form, and a batch mean stands for the sum over N images: hence N / (3 H).
    return pull * total / (3 * triplets), push * others * total / triplets, n


def _sample(num_classes: int, size: int, device: torch.device) -> Tensor:
    """`size` different classes, every set equally likely, in O(size)."""
    if 2 * size > num_classes:
        return torch.randperm(num_classes, device=device)[:size].clone()
    drawn = torch.empty(0, dtype=torch.long, device=device)
    while len(drawn) < size:
        # The first `size` different values of an endless sequence are a uniform draw without replacement.
        # Sorting stably brings equal values together, the first drawn in front.
        drawn = torch.cat([drawn, torch.randint(num_classes, (size,), device=device)])
        ordered, order = drawn.sort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        drawn = drawn[order[first].sort().values]
    return drawn[:size].clone()


# An operator of its own for torch.compile, as the loop ends where the draw does. (torch.compiler.disable would do, but
# takes longer to import than half of torch.)
_compiled_sample = torch.library.custom_op(
    "tammes::sample_classes", _sample, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)


@_compiled_sample.register_fake
def _(num_classes: int, size: int, device: torch.device) -> Tensor:  # noqa: ARG001
    return torch.empty(size, dtype=torch.long, device=device)


class _Fused(torch.autograd.Function):
    """Value and gradient in one pass, so that nothing of size (batch, classes) waits for the backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        loss, gradient = _value_and_gradient(*arguments)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("the discriminative loss")
        (gradient,) = ctx.saved_tensors
        return (gradient * grad, *[None] * 8)


def _value_and_gradient(
    embeddings: Tensor,
    labels: Tensor,
    centroids: Tensor | None,
    classes: Tensor | None,
    pull: Tensor | None,
    push: Tensor | None,
    class_weights: Tensor | None,
    uniform_push: float,
    block: int,
) -> tuple[Tensor, Tensor]:
    """The mean loss, and its gradient by the embeddings before they are normalised (batch, dim)."""
    device = embeddings.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return _value_and_gradient(
                embeddings, labels, centroids, classes, pull, push, class_weights, uniform_push, block
            )
    check_range(labels, embeddings.shape[1] if centroids is None else len(centroids))
    dtype = embeddings.dtype
    weights = (
        None if pull is None else pull[labels, None].to(dtype),  # (batch, 1)
        uniform_push if push is None else push[labels, None].to(dtype),  # (batch, 1)
        None if class_weights is None else class_weights.to(dtype),  # (classes,)
    )
    try:
        if centroids is None:
            return _against_axes(embeddings, labels, *weights)
        return _against_centroids(embeddings, labels, centroids, classes, *weights, block)
    except _TooLongError:
        factor = shortening(embeddings)
        assert factor is not None
        loss, gradient = _value_and_gradient(
            embeddings * factor, labels, centroids, classes, pull, push, class_weights, uniform_push, block
        )
        return loss, gradient * factor


# torch.compile looks into an autograd.Function and stops where the number of close pairs decides what to do next.
# As an operator of its own the loss is one node of the graph.
_compiled = torch.library.custom_op("tammes::discriminative_loss", _value_and_gradient, mutates_args=())


@_compiled.register_fake
def _(embeddings: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return embeddings.new_empty(()), torch.empty_like(embeddings)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    ctx.save_for_backward(output[1])


def _scale_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (gradient,) = ctx.saved_tensors
    return (gradient * grad, *[None] * 8)


_compiled.register_autograd(_scale_gradient, setup_context=_keep_gradient)


class _TooLongError(Exception):
    """Embeddings must be shortened first. Said where lengths are looked at anyway, it costs all others nothing."""


def _lengths(embeddings: Tensor) -> tuple[Tensor, Tensor | float]:
    """|z|, (batch, 1), and 1 + |x|²: an embedding without a direction is the zero vector and stays there."""
    length = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    shortest, longest = torch.aminmax(length)
    if longest.item() == float("inf"):  # squares that overflow must not pass for a loss without a gradient
        if bool(embeddings.isfinite().all()):
            raise _TooLongError
        length = torch.where(length.isinf(), float("nan"), length)
    if not shortest.item() <= NO_LENGTH:
        return length, 2.0
    length = torch.where(length <= NO_LENGTH, float("inf"), length)
    return length, torch.where(length.isinf(), 1.0, 2.0).to(length)


def _reciprocal(distance: Tensor) -> Tensor:
    """1 / distance, and 0 where the points coincide but for rounding: the subgradient that stays put."""
    return distance.reciprocal().masked_fill_(distance <= COINCIDE * torch.finfo(distance.dtype).eps, 0)


def _against_centroids(
    embeddings: Tensor,
    labels: Tensor,
    centroids: Tensor,
    classes: Tensor | None,
    pull: Tensor | None,
    push: Tensor | float,
    class_weights: Tensor | None,
    block: int,
) -> tuple[Tensor, Tensor]:
    """Stream over blocks of centroids with two matrix products each.

    With r = 1 / |x - c| for each pair, the sum over the classes of r c is all that the gradient needs; and as
    |x - c| = r |x - c|² = r (2 - 2 x·c), it gives the sum of the distances too: no root is taken but r itself.
    Pairs whose r would be inaccurate (the own centroid, and any closer than CLOSE) enter the products with r = 1,
    and what that leaves out is computed from the difference c - x.
    """
    length, base = _lengths(embeddings)  # (batch, 1)
    minus_2x = embeddings / (length * -0.5)  # (batch, dim)
    own_gap = centroids.index_select(0, labels).add_(minus_2x, alpha=0.5)  # (batch, dim): c_y - x
    own = torch.linalg.vector_norm(own_gap, dim=1, keepdim=True)  # (batch, 1)
    own_weight = None if class_weights is None else class_weights[labels, None]  # (batch, 1)
    if classes is not None:
        drawn = torch.isin(labels, classes)[:, None].to(own)  # (batch, 1)
        own_weight = drawn if own_weight is None else own_weight * drawn
        push = push * (len(centroids) - 1) / (len(classes) - drawn)  # (batch, 1)

    inverses = pulled = None  # (batch, 1): sum of r, and (batch, dim): sum of r c
    near = _Near(own, own_gap)
    number = len(centroids) if classes is None else len(classes)
    for start in range(0, number, block):
        chosen = slice(start, start + block) if classes is None else classes[start : start + block]
        part = centroids[chosen]  # (block, dim)
        weights = None if class_weights is None else class_weights[chosen]  # (block,)
        squared = (minus_2x @ part.T).add_(base)  # (batch, block)
        if classes is not None:
            squared[labels[:, None] == chosen] = 1
        elif number <= block:
            squared.scatter_(1, labels[:, None], 1.0)
        else:
            row = ((labels >= start) & (labels < start + block)).nonzero().flatten()
            squared[row, labels[row] - start] = 1
        if squared.min().item() < CLOSE**2:
            near.add(squared, minus_2x, part, weights)
        inverse = squared.rsqrt_()
        if weights is not None:
            inverse *= weights
        sums = inverse.sum(1, keepdim=True)
        inverses = sums if inverses is None else inverses.add_(sums)
        pulled = inverse @ part if pulled is None else pulled.addmm_(inverse, part)
    assert inverses is not None and pulled is not None  # noqa: PT018

    along = (pulled * minus_2x).sum(1, keepdim=True)  # (batch, 1): -2 x · sum of r c
    along = along.addcmul_(own, own if own_weight is None else own * own_weight, value=-1)
    repelled = _plus(along, base, inverses)  # (batch, 1): sum of the distances to the others
    if near.any:
        repelled += near.missing
    own_pull, weighted_own = _reciprocal(own), own  # (batch, 1)
    if pull is not None:
        own_pull, weighted_own = own_pull * pull, own * pull
    loss = _plus(weighted_own, -push, repelled).mean()
    # The gradient of |x - c| is r (x - c). What is parallel to x is projected away, so c may stand for c - x.
    own_pull += push if own_weight is None else push * own_weight
    gradient = pulled.mul_(push).addcmul_(own_gap, own_pull, value=-1)
    along = along.mul_(push).sub_(weighted_own)  # (batch, 1): -2 x · gradient, as -2 x · (c - x) = |x - c|²
    if near.any:
        gradient += push * near.pulled
        along += push * near.along
    gradient.addcmul_(minus_2x, along, value=-0.25)
    return loss, gradient.div_(length * len(embeddings))


def _plus(a: Tensor, factor: Tensor | float, b: Tensor) -> Tensor:
    """a + factor * b, in one operation where it can be: small operations are what a step at 100 classes is made of."""
    return a + factor * b if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


class _Near:
    """What the close pairs need beyond r = 1, summed over the classes of each embedding."""

    def __init__(self, own: Tensor, own_gap: Tensor) -> None:
        self.any = False
        self._shapes = own, own_gap

    def add(self, squared: Tensor, minus_2x: Tensor, part: Tensor, weights: Tensor | None) -> None:
        """Set the close entries to 1, and add what that leaves out of the distances and of the gradient."""
        if not self.any:
            self.any = True
            self.missing, self.along = (torch.zeros_like(self._shapes[0]) for _ in range(2))  # (batch, 1)
            self.pulled = torch.zeros_like(self._shapes[1])  # (batch, dim)
        rows, columns = (squared < CLOSE**2).nonzero(as_tuple=True)
        squared[rows, columns] = 1
        for some in chunks(len(rows), part.shape[1]):
            row, column = rows[some], columns[some]
            gap = torch.add(part[column], minus_2x[row], alpha=0.5)  # (close, dim): c - x
            distance = torch.linalg.vector_norm(gap, dim=1, keepdim=True)  # (close, 1)
            weight = 1.0 if weights is None else weights[column, None]
            more = weight * (_reciprocal(distance) - 1)  # (close, 1)
            self.missing.index_add_(0, row, weight * (distance - distance**2))
            self.pulled.index_add_(0, row, more * gap)
            self.along.index_add_(0, row, more * distance**2)


def _against_axes(
    embeddings: Tensor, labels: Tensor, pull: Tensor | None, push: Tensor | float, class_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `_against_centroids` for one-hot centroids: x·c_m is the coordinate x_m, so there is no matrix product."""
    label = labels[:, None]
    length, base = _lengths(embeddings)  # (batch, 1)
    scale = length.reciprocal()
    squared = (embeddings * (scale * -2)).add_(base)  # (batch, classes)
    near = None
    if squared.min().item() < CLOSE**2:
        near = _NearAxis(embeddings, scale, squared, label, class_weights)
        squared[near.row, near.axis] = 1
    own_squared = squared.gather(1, label)  # (batch, 1)
    own_x = (base - own_squared) * 0.5  # (batch, 1)
    own_rest = (base - 1) - own_x * own_x  # (batch, 1): 1 - x_y²
    if near is not None:
        own_squared[near.own], own_rest[near.own] = near.own_squared, near.own_rest
    squared.scatter_(1, label, 1.0)
    own = own_squared.sqrt()  # (batch, 1)
    inverse = squared.rsqrt_()  # (batch, classes): r
    own_weight = None if class_weights is None else class_weights[labels, None]  # (batch, 1)
    if class_weights is not None:
        inverse *= class_weights
    buffer = inverse * embeddings  # (batch, classes)
    along = buffer.sum(1, keepdim=True).mul_(scale)  # (batch, 1): x · sum of r c
    repelled = _plus(-2 * along, base, inverse.sum(1, keepdim=True))  # (batch, 1)
    repelled -= own_squared if own_weight is None else own_weight * own_squared
    if near is not None:
        repelled[near.row] += near.missing
        inverse[near.row, near.axis] += near.more[:, 0]
        along[near.row] += near.more * embeddings[near.row, near.axis][:, None] * scale[near.row]
    own_pull, weighted_own = _reciprocal(own), own  # (batch, 1)
    if pull is not None:
        own_pull, weighted_own = own_pull * pull, own * pull
    loss = _plus(weighted_own, -push, repelled).mean()
    own_push = push if own_weight is None else push * own_weight
    own_pull += own_push
    # What is parallel to x goes; then the own coordinate anew, where 1 - x_y² would cancel.
    along *= push
    step = scale / len(embeddings)
    gradient = inverse.mul_(push * step)
    gradient -= torch.mul(embeddings, (along - own_pull * own_x) * step * scale, out=buffer)
    return loss, gradient.scatter_(1, label, (own_push - own_x * along - own_pull * own_rest) * step)


class _NearAxis:
    """The embeddings with a close axis, by difference; it is one at most, that of the largest coordinate."""

    def __init__(
        self, embeddings: Tensor, scale: Tensor, squared: Tensor, label: Tensor, class_weights: Tensor | None
    ) -> None:
        row = (squared.amin(1) < CLOSE**2).nonzero().flatten()  # (close,)
        x = embeddings[row] * scale[row]  # (close, classes)
        largest, axis = x.max(1, keepdim=True)  # (close, 1)
        rest = x.scatter_(1, axis, 0.0).square_().sum(1, keepdim=True)  # (close, 1): without what would cancel
        exact = (1 - largest) ** 2 + rest
        own = (axis == label[row])[:, 0]  # (close,)
        self.own, self.own_squared, self.own_rest = row[own], exact[own], rest[own]
        self.row, self.axis = row[~own], axis[~own][:, 0]  # (near,): these enter with r = 1, which leaves out
        distance = exact[~own].sqrt()  # (near, 1)
        weight = 1.0 if class_weights is None else class_weights[self.axis, None]
        self.missing = weight * (distance - distance**2)
        self.more = weight * (_reciprocal(distance) - 1)


METHOD = Method(
    loss=DiscriminativeLoss,
    title="discriminative",
    summary="near the own class's fixed centroid, far from all others: a bound on the triplet loss in linear time",
    equation="|x - c_y| - push (mean over m != y of |x - c_m|)",
    cost="B C D; B C with one-hot centroids",
    reference="Do, Tran, Reid, Kumar, Hoang, Carneiro (2019): A Theoretically Sound Upper Bound on the Triplet Loss for"
    " Improving the Efficiency of Deep Distance Metric Learning. CVPR",
    takes=("centroids",),
    on="class layer",
    each_on_its_own=True,
)
