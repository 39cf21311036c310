"""The hard discriminative loss: hard negatives with fixed centroids, in linear time."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tammes.errors import UserError
from tammes.geometry import checked_temperature
from tammes.losses.fixed_centroids import FixedCentroids
from tammes.losses.method import Method


class HardDiscriminativeLoss(FixedCentroids):
    """Upper bound on the hardest-negative triplet loss with fixed centroids, as a mean over the batch.

    For a normalised embedding x of class y and fixed unit centroids c:

        f = |x - c_y|  -  push * softmin over m != y of |x - c_m|
        softmin of d = -temperature * log(sum of exp(-d / temperature)), which is never above the smallest d

    `DiscriminativeLoss` repels an embedding from all other classes equally; this loss repels it from the nearest ones,
    its hard negatives. For any push < 1, the own centroid is the only minimiser.

    With a_i = |x_i - c_y|, weights w_i proportional to n_y - 1 that sum to 1, and push = 1/3,

        sum of w_i (3 f_i - a_i)  +  max of a

    is at least the mean, over all pairs of anchor and positive, of the distance of the pair minus the distance of the
    anchor to its nearest negative (proof in docs/method.md). `class_sizes` gives these weights; without it all classes
    have the same weight, which is correct for equal sizes.

    Args:
        centroids: one unit point per class, or a number of classes for one-hot centroids.
        class_sizes: training images per class; 0 for a free centroid, which only repels.
        push: the weight of the repelling term, in [0, 1).
        temperature: towards 0 only the nearest wrong class counts; with a large value all count.
    """

    weights: Tensor | None

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None = None,
        push: float = 1 / 3,
        temperature: float = 0.1,
    ) -> None:
        super().__init__(centroids, class_sizes=class_sizes, push=push)
        self.temperature = checked_temperature(temperature)
        weights = None if self.class_sizes is None else _weights(self.class_sizes)
        self.register_buffer("weights", weights, persistent=False)

    def equation(
        self, to_centroid: Float[Tensor, "batch classes"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The loss of each image from its distances to the centroids."""
        own = to_centroid.gather(1, labels[:, None])[:, 0]  # (batch,)
        others = to_centroid.scatter(1, labels[:, None], float("inf"))  # (batch, classes)
        softmin = -self.temperature * torch.logsumexp(-others / self.temperature, dim=1)  # (batch,)
        values = own - self.push * softmin
        return values if self.weights is None else values * self.weights[labels].to(values)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature:.6g}"


def _weights(sizes: Tensor) -> Tensor:
    """N w_i of the proof, for each class: (n_y - 1) N / (number of ordered positive pairs)."""
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
    summary="near the fixed centroid of the own class, far from the nearest others: a bound on the hardest triplets",
    equation="|x - c_y| - push (softmin over m != y of |x - c_m|)",
    cost="B C D; B C with one-hot centroids",
    reference="ours, from that of Do et al. (2019); the proof is in docs/method.md",
    takes=("centroids",),
    on="class layer",
    per_image_loss=True,
)
