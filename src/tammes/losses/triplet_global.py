"""The triplet loss with the global loss, which also minimises the variance of the distances in a batch."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, negatives, positives
from tammes.losses.triplet import TripletLoss


class TripletGlobalLoss(nn.Module):
    """The triplet loss (ratio form) plus the global loss of Kumar et al. (CVPR 2016), over all triplets of a batch.

    For normalised embeddings, d⁺ = |x_a - x_p|² / 4 and d⁻ = |x_a - x_n|² / 4 of the triplets, which are in
    [0, 1], and [t]+ = max(0, t):

        gamma * mean of [1 - d_an² / (d_ap² + margin)]+  +  var(d⁺) + var(d⁻) + weight * [mean(d⁺) - mean(d⁻) + gap]+

    A triplet loss considers one triplet at a time; the global loss makes the two distributions of distances narrow and
    separate. The variances alone would be minimal if all points coincided; the last term prevents that. They are
    population variances (divided by the number of triplets), which is our choice. All triplets of the batch are used
    without enumerating them: O(B²) memory.

    The defaults are from memory of the paper.

    Args:
        margin: keeps the ratio finite (m), above 0.
        weight: weight of the difference of the means (λ), above 0.
        gap: the wanted difference of the means (t), in (0, 1].
        gamma: the weight of the triplet loss (γ); with 0 only the global loss remains.

    >>> loss = TripletGlobalLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    1.303993
    """

    # Reached where each class is a point and all classes have the same distance, at least that of the gap.
    minimum = 0.0

    def __init__(self, *, margin: float = 0.01, weight: float = 0.8, gap: float = 0.4, gamma: float = 1.0) -> None:
        super().__init__()
        self.margin, (self.weight, self.gap, self.gamma) = checked_margin(margin), checked_global(weight, gap, gamma)
        self.triplet = TripletLoss(form="ratio", margin=margin)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        ratio: Tensor = self.gamma * self.triplet(embeddings, labels)
        positive, negative = positives(labels), negatives(labels)  # (batch, batch)
        # Each positive of an anchor is in as many triplets as the anchor has negatives, and vice versa.
        positive_counts = negative.sum(1, keepdim=True).expand_as(positive)[positive]  # (positive pairs,)
        negative_counts = positive.sum(1, keepdim=True).expand_as(negative)[negative]  # (negative pairs,)
        if not positive_counts.any():  # no triplet in the batch
            return ratio
        with torch.autocast(embeddings.device.type, enabled=False):
            unit = normalise(embeddings)
            squared = distances(unit, unit).square()  # (batch, batch)
            counts = {"positive_counts": positive_counts, "negative_counts": negative_counts}
            return ratio + global_part(squared[positive], squared[negative], self.weight, self.gap, **counts)

    def extra_repr(self) -> str:
        return f"margin={self.margin:.6g}, weight={self.weight:.6g}, gap={self.gap:.6g}, gamma={self.gamma:.6g}"


def checked_global(weight: float, gap: float, gamma: float) -> tuple[float, float, float]:
    """The validated options of the global loss. Raises UserError."""
    if not 0 < weight < float("inf"):
        raise UserError(
            f"weight must be above 0 and finite, got {weight}: without it the loss is minimal if all points coincide."
        )
    if not 0 < gap <= 1:
        raise UserError(f"gap must be in (0, 1], got {gap}: a squared distance of unit vectors is never above 4.")
    check_positive("gamma", gamma, or_zero=True)
    return weight, gap, gamma


def ratio_triplet(
    to_positive: Float[Tensor, " triplets"], to_negative: Float[Tensor, " triplets"], margin: float
) -> Float[Tensor, " triplets"]:
    """[1 - d_an² / (d_ap² + margin)]+ of each triplet, of squared distances."""
    return torch.relu(1 - to_negative / (to_positive + margin))


def global_part(
    to_positive: Float[Tensor, " positives"],
    to_negative: Float[Tensor, " negatives"],
    weight: float,
    gap: float,
    *,
    positive_counts: Integer[Tensor, " positives"] | None = None,
    negative_counts: Integer[Tensor, " negatives"] | None = None,
) -> Float[Tensor, ""]:
    """var(d⁺) + var(d⁻) + weight * [mean(d⁺) - mean(d⁻) + gap]+, of squared distances, which it divides by 4.

    Args:
        positive_counts, negative_counts: the number of triplets that contain each of them; by default one.
    """
    near, near_spread = _mean_and_variance(to_positive / 4, positive_counts)
    far, far_spread = _mean_and_variance(to_negative / 4, negative_counts)
    return near_spread + far_spread + weight * torch.relu(near - far + gap)


def _mean_and_variance(values: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    share = torch.full_like(values, 1 / len(values)) if counts is None else counts.to(values) / counts.sum()
    mean = (share * values).sum()
    return mean, (share * (values - mean).square()).sum()


METHOD = Method(
    loss=TripletGlobalLoss,
    title="triplet + global loss",
    summary="the triplet loss plus a term that makes the distributions of distances narrow and far apart",
    equation="gamma * mean of [1 - d_an² / (d_ap² + margin)]+\n"
    "  + var(d⁺) + var(d⁻) + weight * [mean(d⁺) - mean(d⁻) + gap]+,   d⁺ = d_ap² / 4, d⁻ = d_an² / 4",
    cost="B² D + B² log B",
    reference="Kumar, Carneiro, Reid (2016): Learning Local Image Descriptors with Deep Siamese and Triplet"
    " Convolutional Networks by Minimising Global Loss Functions. CVPR",
    images_per_class=4,
    lr=0.01,
)
