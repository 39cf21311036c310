"""The histogram loss: the probability that a negative pair is more similar than a positive pair."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import checked_batch, normalise
from tammes.losses.method import Method
from tammes.losses.mining import negatives, positives


class HistogramLoss(nn.Module):
    """The histogram loss of Ustinova and Lempitsky (NIPS 2016).

    The cosines of all unordered pairs of a batch form two histograms with nodes -1, -1 + step, …, 1: h⁺ of the positive
    pairs and h⁻ of the negative pairs. A cosine is split linearly between its two nearest nodes, which gives the
    histograms a gradient; each histogram sums to 1.

        loss = sum over nodes r of  h⁻_r * (sum over q <= r of h⁺_q)

    which estimates the probability that a random negative pair is more similar than a random positive pair. There is no
    margin, but a density estimate needs large batches. For a batch with only one of the two kinds of pairs the loss is
    0.

    Args:
        step: distance between two nodes (Δ); 2 / step must be an integer.

    >>> loss = HistogramLoss(step=0.5)
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    1.0
    """

    minimum = 0.0  # reached where every negative pair is less similar than every positive pair, by two steps

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
            # float64, because a node is chosen by the last digits of a cosine; autocast does not affect it.
            unit = normalise(embeddings).double()
            cosine = unit @ unit.T  # (batch, batch)
            alike = self._histogram(cosine[positives(labels).triu()])  # (nodes,)
            different = self._histogram(cosine[negatives(labels).triu()])  # (nodes,)
            return (different * alike.cumsum(0)).sum().to(embeddings.dtype)

    def _histogram(self, cosine: Tensor) -> Tensor:
        """(pairs,) -> (nodes,)"""
        # A cosine beyond 1 is rounding error; clamping it removes no gradient, as the gradient of a cosine of 1 is 0.
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
    summary="the probability that a negative pair is more similar than a positive pair",
    equation="sum over r of  h⁻_r * (sum over q <= r of h⁺_q),  histograms of the cosines of all pairs",
    cost="B² D + 1 / step",
    reference="Ustinova, Lempitsky (2016): Learning Deep Embeddings with Histogram Loss. NIPS",
    images_per_class=4,
)
