"""The hard discriminative loss: the nearest wrong class counts most, still in linear time."""

from collections.abc import Callable, Sequence
from math import log, sqrt

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import (
    check_range,
    checked_batch,
    checked_centroids,
    checked_push,
    checked_sizes,
    checked_temperature,
    distances,
    distances_to_axes,
    keep_full_precision,
    normalise,
    shortening,
    some_rows,
)
from tammes.losses.method import Method


class HardDiscriminativeLoss(nn.Module):
    """Upper bound on the hardest-negative triplet loss by fixed centroids, as a mean over the batch.

    For an embedding x, scaled to unit length, of class y, and unit centroids c that never move:

        f = |x - c_y|  -  push * softmin over m != y of |x - c_m|
        softmin of d = -temperature * log(sum of exp(-d / temperature)), which is never above the smallest d

    Against `DiscriminativeLoss`, which repels an embedding from all other classes alike, this one repels it from those
    that it could be confused with. As there, any push < 1 keeps the own centroid the one minimiser.

    With a_i = |x_i - c_y|, weights w_i proportional to n_y - 1 that sum to 1, and push = 1/3,

        sum of w_i (3 f_i - a_i)  +  max of a

    is at least the mean, over all pairs of anchor and positive, of the distance of the pair minus the distance of the
    anchor to its nearest negative (proof in docs/method.md). `class_sizes` gives these weights; without them every
    class counts alike, which is the same for equal sizes.

    Args:
        centroids: one unit point per class, or a number of classes for one-hot centroids.
        class_sizes: training images per class; 0 for one that only repels, as a centroid that is kept free.
        push: the weight of the repelling term, in [0, 1).
        temperature: how soft the minimum is: towards 0 only the nearest wrong class counts, a large one counts all.
    """

    centroids: Tensor | None
    class_sizes: Tensor | None
    weights: Tensor | None

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None = None,
        push: float = 1 / 3,
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        points = checked_centroids(centroids)
        self.num_classes, self.dim = points.shape if points is not None else (int(centroids), int(centroids))
        self.push, self.temperature = checked_push(push), checked_temperature(temperature)
        sizes = None if class_sizes is None else checked_sizes(class_sizes, self.num_classes)
        self.register_buffer("centroids", points)  # fixed: saved and moved with the module, never trained
        self.register_buffer("class_sizes", sizes, persistent=False)
        self.register_buffer("weights", None if sizes is None else _weights(sizes), persistent=False)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        factor = shortening(embeddings)
        embeddings = embeddings if factor is None else embeddings * factor
        to_centroid = self._distances(normalise(embeddings))  # (batch, classes)
        own = to_centroid.gather(1, labels[:, None])  # (batch, 1)
        per_image = (own - self.push * self._soft_minimum(to_centroid, labels))[:, 0]  # (batch,)
        return (per_image if self.weights is None else per_image * self.weights[labels].to(per_image)).mean()

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative distances to the centroids: the largest is the class that the embedding lies nearest to."""
        return -self._distances(normalise(embeddings))

    @property
    def minimum(self) -> float:
        """The least value over the training set, reached where every embedding is its own centroid.

        Without `class_sizes`, that for classes of equal size. Costs the distances of all pairs of centroids, so keep
        the value; of more than 2^29 pairs that many are taken, for centroids evenly spaced in their order.
        """
        if self.centroids is None:  # all the others are sqrt 2 away
            return -self.push * (sqrt(2) - self.temperature * log(self.num_classes - 1))
        sizes = torch.ones(self.num_classes) if self.class_sizes is None else self.class_sizes
        share = sizes.double() / sizes.sum() * (1 if self.weights is None else self.weights.double())  # (classes,)
        labels = some_rows(self.num_classes).to(self.centroids.device)
        share, total = share / share[labels.to(share.device)].sum() * share.sum(), 0.0
        rows = max(1, (1 << 22) // self.num_classes)  # 16 MB of distances at a time
        for part in labels.split(rows):
            repelled = self._soft_minimum(distances(self.centroids[part], self.centroids), part)  # (rows, 1)
            total += float((share[part].to(repelled.device) * repelled[:, 0]).sum())
        return -self.push * total

    def _distances(self, unit: Tensor) -> Tensor:
        return distances_to_axes(unit) if self.centroids is None else distances(unit, self.centroids)

    def _soft_minimum(self, to_centroid: Tensor, labels: Tensor) -> Tensor:
        """(batch, 1): a smooth minimum over the other classes, never above the true one."""
        others = to_centroid.scatter(1, labels[:, None], float("inf"))  # (batch, classes)
        return -self.temperature * torch.logsumexp(-others / self.temperature, dim=1, keepdim=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_full_precision(self._buffers, before)
        return self

    def extra_repr(self) -> str:
        kind = "one-hot" if self.centroids is None else f"in {self.dim} dimensions"
        return f"{self.num_classes} classes {kind}, push={self.push:.6g}, temperature={self.temperature:.6g}"


def _weights(sizes: Tensor) -> Tensor:
    """w_i of the proof times N, by class: (n_y - 1) N / (number of ordered positive pairs)."""
    n = sizes.double()
    positive_pairs = (n * (n - 1)).sum()
    if positive_pairs == 0:
        raise UserError(
            "class_sizes need a class with at least 2 images: there is no pair of anchor and positive here."
        )
    return ((n - 1).clamp_min(0) * n.sum() / positive_pairs).float()


METHOD = Method(
    loss=HardDiscriminativeLoss,
    title="hard discriminative",
    summary="near the own class's fixed centroid, far from the nearest others: a bound on the hardest triplets",
    equation="|x - c_y| - push (softmin over m != y of |x - c_m|)",
    cost="B C D; B C with one-hot centroids",
    reference="ours, from that of Do et al. (2019); the proof is in docs/method.md",
    takes=("centroids",),
    on="class layer",
    each_on_its_own=True,
)
