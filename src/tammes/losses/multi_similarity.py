"""The multi-similarity loss: pairs weighted by their own similarity and by the similarity of their anchor's others."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import checked_batch, normalise
from tammes.losses.method import Method
from tammes.losses.mining import negatives, positives

_EPSILON = 0.1


class MultiSimilarityLoss(nn.Module):
    """The multi-similarity loss of Wang et al. (CVPR 2019), as a mean over the batch.

    For the cosines s of an anchor with its positives p and negatives n:

        log(1 + sum over p of exp(-alpha (s_p - threshold))) / alpha
          + log(1 + sum over n of exp(beta (s_n - threshold))) / beta

    Only hard pairs are summed: positives less similar than the most similar negative plus epsilon, and negatives more
    similar than the least similar positive minus epsilon. An anchor without positives, without negatives or without
    hard pairs counts as 0.

    `threshold` is 0.5, as in the authors' code; the paper has 1. The mean is over all images of the batch, including
    those that count as 0, as in the authors' code and in pytorch-metric-learning 2. The authors' code drops positives
    with a cosine of 1, to exclude the image itself; here only the image itself is excluded, and a copy of it is a pair.

    Args:
        alpha: scale of the positive term.
        beta: scale of the negative term.
        threshold: the cosine above which a positive is similar enough and a negative too similar (λ).
        epsilon: margin of the mining: pairs this close to a violation still count as hard.
        mine: use only hard pairs; if False, all pairs count.

    >>> loss = MultiSimilarityLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    0.571132
    """

    minimum = 0.0  # reached where no pair is hard

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 0.5,
        epsilon: float = _EPSILON,
        mine: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("beta", beta)):
            check_positive(name, value)
        if not -1 <= threshold <= 1:
            raise UserError(f"threshold must be in [-1, 1], for it is a cosine, got {threshold}.")
        check_positive("epsilon", epsilon, or_zero=True)
        if not mine and epsilon != _EPSILON:
            raise UserError("epsilon is for mining; with mine=False all pairs count.")
        self.alpha, self.beta, self.threshold, self.epsilon, self.mine = alpha, beta, threshold, epsilon, mine

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            # float64 is not affected by autocast, also in the backward.
            unit = normalise(embeddings.double())
            cosine = unit @ unit.T  # (batch, batch)
            near, far = positives(labels), negatives(labels)  # (batch, batch)
            if self.mine:
                near, far = self._hard(cosine.detach(), near, far)
            pull = (self.alpha * (self.threshold - cosine)).masked_fill(~near, float("-inf"))  # (batch, batch)
            push = (self.beta * (cosine - self.threshold)).masked_fill(~far, float("-inf"))  # (batch, batch)
            # The column of zeros is the 1 in the logarithm.
            pull, push = (F.pad(each, (1, 0)).logsumexp(1) for each in (pull, push))  # (batch,)
            return (pull / self.alpha + push / self.beta).mean().to(embeddings.dtype)

    def _hard(self, cosine: Tensor, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
        """The masks of hard positive and hard negative pairs, (batch, batch) each."""
        least = cosine.masked_fill(~near, float("inf")).amin(1, keepdim=True)  # (batch, 1)
        most = cosine.masked_fill(~far, float("-inf")).amax(1, keepdim=True)  # (batch, 1)
        # Written as "not easy", so that a NaN is kept and noticed.
        return near & ~(cosine >= most + self.epsilon), far & ~(cosine <= least - self.epsilon)

    def extra_repr(self) -> str:
        mined = f"epsilon={self.epsilon:.6g}" if self.mine else "mine=False"
        return f"alpha={self.alpha:.6g}, beta={self.beta:.6g}, threshold={self.threshold:.6g}, {mined}"


METHOD = Method(
    loss=MultiSimilarityLoss,
    title="multi-similarity",
    summary="hard pairs, weighted by their similarity relative to the other pairs of their anchor",
    equation="log(1 + sum over hard positives p of exp(-alpha (cos(x, p) - threshold))) / alpha\n"
    "  + log(1 + sum over hard negatives n of exp(beta (cos(x, n) - threshold))) / beta",
    cost="B² D",
    reference="Wang, Han, Huang, Dong, Scott (2019): Multi-Similarity Loss with General Pair Weighting for Deep Metric"
    " Learning. CVPR",
    images_per_class=4,
)
