"""Base classes of losses with class centroids: buffers that stay in full precision, distances to fixed centroids."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import sqrt

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn.functional import one_hot

from tammes.geometry import (
    check_range,
    checked_batch,
    checked_centroids,
    checked_push,
    checked_sizes,
    distances,
    distances_to_axes,
    evenly_spaced_rows,
    full_precision,
    normalise,
    scale_down,
)


class FullPrecisionBuffers(nn.Module):
    """A module whose buffers move between devices but are never cast to half precision.

    Half-precision centroids would be off by 4e-3, and no optimizer would correct them.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            cast = self._buffers[name]
            if kept is not None and cast is not None and cast.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = kept.to(cast.device)
        return self


class FixedCentroids(FullPrecisionBuffers, ABC):
    """A loss with one fixed unit centroid per class. A subclass defines the equation."""

    centroids: Tensor | None
    class_sizes: Tensor | None

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None,
        push: float,
    ) -> None:
        super().__init__()
        points = checked_centroids(centroids)
        self.num_classes, self.dim = points.shape if points is not None else (int(centroids), int(centroids))
        self.push = checked_push(push)
        sizes = None if class_sizes is None else checked_sizes(class_sizes, self.num_classes)
        self.register_buffer("centroids", points)  # fixed: saved and moved with the module, never trained
        self.register_buffer("class_sizes", sizes, persistent=False)

    @abstractmethod
    def equation(
        self, to_centroid: Float[Tensor, "batch classes"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The loss of each image from its distances to the centroids."""

    def per_image(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The loss of each image; needs memory for all distances, (batch, classes)."""
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        return self.equation(self.distances(embeddings), labels)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        return self.per_image(embeddings, labels).mean()

    def distances(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Distances of the normalised embeddings to the centroids."""
        embeddings = full_precision(embeddings)
        factor = scale_down(embeddings)
        unit = normalise(embeddings if factor is None else embeddings * factor)
        return distances_to_axes(unit) if self.centroids is None else distances(unit, self.centroids)

    def targets_of(self, labels: Integer[Tensor, " some"]) -> Float[Tensor, "some dim"]:
        """The centroids of these classes, the targets of their embeddings."""
        return one_hot(labels, self.dim).float() if self.centroids is None else self.centroids[labels]

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative distances to the centroids: the largest belongs to the class of the nearest centroid."""
        return -self.distances(embeddings)

    @property
    def minimum(self) -> float:
        """The lowest value over the training set, reached where every embedding is on its own centroid.

        Without `class_sizes`, classes count as equal in size. Computes the distances of all pairs of centroids, so keep
        the value; above 2^29 pairs it is estimated from evenly spaced centroids.
        """
        some, total = evenly_spaced_rows(self.num_classes), 0.0
        sizes = torch.ones(self.num_classes) if self.class_sizes is None else self.class_sizes.cpu()
        for labels in some.split(max(1, (1 << 22) // self.num_classes)):  # 16 MB of distances at a time
            if self.centroids is None:
                apart = torch.full((len(labels), self.num_classes), sqrt(2), dtype=torch.float64)
                apart.scatter_(1, labels[:, None], 0.0)
            else:
                apart = distances(self.centroids[labels], self.centroids)  # (rows, classes)
            values = self.equation(apart, labels.to(apart.device)).cpu()  # (rows,)
            total += float((sizes[labels] * values).sum(dtype=torch.float64))
        return total / float(sizes[some].sum())

    def extra_repr(self) -> str:
        kind = "one-hot" if self.centroids is None else f"in {self.dim} dimensions"
        return f"{self.num_classes} classes {kind}, push={self.push:.6g}"
