"""Prototypical networks: each batch is an episode, in which some images of a class stand for it."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import checked_batch, distances
from tammes.losses.method import Method


class PrototypicalLoss(nn.Module):
    """The loss of prototypical networks (Snell, Swersky and Zemel, NeurIPS 2017), as a mean over the queries.

    Of each class in the batch the first `shot` images, in the order of the batch, are the support and the others are
    queries. With a prototype r per class, the mean of its support, and a query x of class y, as the network gives them,
    not normalised:

        -log softmax(-|x - r|²)_y

    The gradient also flows through the prototypes. A class with no image beyond its support has no query, but its
    prototype counts for the others'; one with fewer than `shot` has those that it has for support. A batch without any
    query, or of one class, gives 0. Labels are any integers.

    Args:
        shot: images of a class that are its support. A batch needs more of each class: twice as many is usual.
    """

    minimum = 0.0  # approached, never reached

    def __init__(self, *, shot: int = 2) -> None:
        super().__init__()
        if shot < 1:
            raise UserError(f"shot must be at least 1, got {shot}.")
        self.shot = shot

    @property
    def fewest_per_class(self) -> int:
        """Images of a class that a batch needs for one of them to be a query."""
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
    """How many images of its class stand before each image."""
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
    summary="each batch an episode: images are told by the nearest mean of a few others of each class",
    equation="-log softmax(-|x - r|²)_y, r the mean of the first images of a class, x the others",
    cost="B K D, K classes in the batch",
    reference="Snell, Swersky, Zemel (2017): Prototypical Networks for Few-shot Learning. NeurIPS",
    images_per_class=4,
    initial_norm=3.0,
    lr=0.1,
)
