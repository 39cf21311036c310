"""The histogram loss: how often a pair of two classes is more alike than a pair of one."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import checked_batch, normalise
from tammes.losses.method import Method
from tammes.losses.mining import negatives, positives


class HistogramLoss(nn.Module):
    """The histogram loss of Ustinova and Lempitsky (NIPS 2016).

    The cosines of all unordered pairs of a batch go into two histograms with nodes -1, -1 + step, …, 1: h⁺ of the pairs
    of one class, h⁻ of the others. A cosine adds to the two nodes that it lies between, to the nearer one more, so that
    the histograms have a gradient; each sums up to 1.

        loss = sum over nodes r of  h⁻_r * (sum over q <= r of h⁺_q)

    which estimates the probability that a random negative pair is more alike than a random positive one. There is no
    margin, but an estimate of a density wants large batches. A batch with only one of the two kinds of pairs has
    nothing to compare, and the loss is 0.

    Args:
        step: between two nodes (Δ); a whole number of them must fit between -1 and 1.

    >>> loss = HistogramLoss(step=0.5)
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    1.0
    """

    minimum = 0.0  # reached where every negative pair is less alike than every positive one, by two steps

    def __init__(self, *, step: float = 0.01) -> None:
        super().__init__()
        self.bins = round(2 / step) if 0 < step <= 2 else 0
        if self.bins == 0 or abs(self.bins * step - 2) > 1e-6:
            near = f" The nearest is {2 / self.bins:.6g}." if self.bins else ""
            raise UserError(f"step must be 2 divided by a whole number, as 0.01 or 0.02 are, got {step}.{near}")
        self.step = step

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            # In float64, for a cosine's last digits count in steps; and autocast leaves it alone, also in the backward.
            unit = normalise(embeddings).double()
            cosine = unit @ unit.T  # (batch, batch)
            alike = self._histogram(cosine[positives(labels).triu()])  # (nodes,)
            different = self._histogram(cosine[negatives(labels).triu()])  # (nodes,)
            return (different * alike.cumsum(0)).sum().to(embeddings.dtype)

    def _histogram(self, cosine: Tensor) -> Tensor:
        """(pairs,) -> (nodes,)"""
        # A cosine beyond 1 is rounding, and one of 1 has no gradient anyway: it does not change when a point is turned.
        place = (cosine.clamp(-1, 1) + 1) * (self.bins / 2)  # (pairs,): in steps from the first node
        below = place.detach().long().clamp(0, self.bins - 1)  # (pairs,): a cosine of 1 belongs to the last bin
        above = place - below  # (pairs,): the share of the upper node
        nodes = place.new_zeros(self.bins + 1).index_add(0, below, 1 - above).index_add(0, below + 1, above)
        return nodes / max(1, len(cosine))

    def extra_repr(self) -> str:
        return f"step={self.step:.6g}"


METHOD = Method(
    loss=HistogramLoss,
    title="histogram",
    summary="how probable it is that a pair of two classes is more alike than a pair of one",
    equation="sum over r of  h⁻_r * (sum over q <= r of h⁺_q),  histograms of the cosines of all pairs",
    cost="B² D + 1 / step",
    reference="Ustinova, Lempitsky (2016): Learning Deep Embeddings with Histogram Loss. NIPS",
    images_per_class=4,
)
