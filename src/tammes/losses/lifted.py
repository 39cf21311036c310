"""The lifted structure loss: each positive pair against all negatives of both its images."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.geometry import checked_batch, distances
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, mean_or_zero, negatives, positives


class LiftedStructureLoss(nn.Module):
    """The lifted structured embedding of Oh Song et al. (CVPR 2016), as a mean over the unordered positive pairs.

    For a pair i, j of one class and the images k of other classes:

        J_ij = |x_i - x_j| + log( sum over k of exp(margin - |x_i - x_k|)  +  sum over k of exp(margin - |x_j - x_k|) )
        loss = mean over pairs of  max(0, J_ij)² / 2

    The embeddings are not normalised, as in the paper. The log-sum-exp is a smooth bound of the hardest negative of the
    two. For a batch of a single class, without negatives, the loss is 0.

    Args:
        margin: how far a negative should be (α).

    >>> loss = LiftedStructureLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    2.767066
    """

    minimum = 0.0  # reached where all negatives of each pair are far enough away

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = checked_margin(margin)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            apart = distances(embeddings, embeddings)  # (batch, batch)
            # Not -inf, with which the logarithm of an image without negatives would have a NaN gradient.
            nothing = torch.finfo(apart.dtype).min
            near = (self.margin - apart).masked_fill(~negatives(labels), nothing).logsumexp(dim=1)  # (batch,)
            i, j = positives(labels).triu().nonzero(as_tuple=True)  # (pairs,)
            return mean_or_zero(torch.relu(apart[i, j] + torch.logaddexp(near[i], near[j])).square() / 2)

    def extra_repr(self) -> str:
        return f"margin={self.margin:.6g}"


METHOD = Method(
    loss=LiftedStructureLoss,
    title="lifted structure",
    summary="each positive pair against all negatives of both its images",
    equation="mean over pairs (i, j) of  [|x_i - x_j| + log sum over negatives k of"
    " (e^(margin - |x_i - x_k|) + e^(margin - |x_j - x_k|))]+² / 2",
    cost="B² D",
    reference="Oh Song, Xiang, Jegelka, Savarese (2016): Deep Metric Learning via Lifted Structured Feature Embedding."
    " CVPR",
    images_per_class=4,
    initial_norm=3.0,
    lr=0.1,
)
