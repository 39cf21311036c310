"""Prototypical networks: each batch is an episode of support and query images."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import checked_batch, distances
from tammes.losses.method import Method


class PrototypicalLoss(nn.Module):
    """The loss of prototypical networks (Snell, Swersky and Zemel, NeurIPS 2017), as a mean over the queries.

    The first `shot` images of each class in the batch are its support, the others are queries. With a prototype r per
    class, the mean of its support, and a query x of class y, not normalised:

        -log softmax(-|x - r|²)_y

    The gradient also flows through the prototypes. A class whose images are all support has no queries, but its
    prototype still counts. A batch without queries, or with a single class, gives 0. Labels may be any integers.

    Args:
        shot: support images per class. A batch needs more images of each class, usually twice as many.
    """

    minimum = 0.0  # approached, never reached

    def __init__(self, *, shot: int = 2) -> None:
        super().__init__()
        if shot < 1:
            raise UserError(f"shot must be at least 1, got {shot}.")
        self.shot = shot

    @property
    def fewest_per_class(self) -> int:
        """The fewest images per class with which a batch has queries."""
        return self.shot + 1

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        classes, labels = labels.unique(return_inverse=True)  # from here on 0, 1, ...
        support = _positions(labels) < self.shot  # (batch,)
        if support.all():
            return (embeddings * 0).sum()
        with torch.autocast(embeddings.device.type, enabled=False):
            prototypes = _prototypes(embeddings, labels, support, len(classes))  # (classes, dim)
            logits = -distances(embeddings[~support], prototypes).square()  # (queries, classes)
            return F.cross_entropy(logits, labels[~support])

    def extra_repr(self) -> str:
        return f"shot={self.shot}"


def _positions(labels: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """How many images of its class come before each image."""
    ordered, order = labels.sort(stable=True)
    begins = torch.searchsorted(ordered, ordered)  # (batch,): where its class begins
    places = torch.arange(len(labels), device=labels.device) - begins
    return torch.empty_like(places).scatter(0, order, places)


def _prototypes(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    support: Bool[Tensor, " batch"],
    num_classes: int,
) -> Float[Tensor, "classes dim"]:
    total = embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add(0, labels[support], embeddings[support])
    return total / torch.bincount(labels[support], minlength=num_classes)[:, None]


METHOD = Method(
    loss=PrototypicalLoss,
    title="prototypical networks",
    summary="each batch an episode: queries are classified by the nearest class mean of the support images",
    equation="-log softmax(-|x - r|²)_y, r the mean of the first images of a class, x the others",
    cost="B K D, K classes in the batch",
    reference="Snell, Swersky, Zemel (2017): Prototypical Networks for Few-shot Learning. NeurIPS",
    images_per_class=4,
    initial_norm=3.0,
    lr=0.1,
)
