"""The triplet loss with one semi-hard negative for each pair of anchor and positive."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, mean_or_zero, semihard_negatives


class TripletSemihardLoss(nn.Module):
    """The triplet loss with semi-hard negatives (FaceNet), as a mean over all ordered pairs of anchor and positive.

    For an anchor a, a positive p and the negative n that is chosen for the two, of normalised embeddings:

        [|x_a - x_p|² - |x_a - x_n|² + margin]+,   [t]+ = max(0, t)

    The negative is the closest one that is farther from the anchor than the positive, or the farthest one if there is
    none: the rule of TensorFlow's implementation, whose margin of 1 is the default. FaceNet has 0.2 (from memory of the
    paper). The hardest negatives, nearer than the positive, tend to collapse the embedding.

    Args:
        margin: by how much the squared distances should differ.

    >>> loss = TripletSemihardLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    2.4
    """

    minimum = 0.0  # reached if every chosen negative is farther than the positive by the margin

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = checked_margin(margin)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            unit = normalise(embeddings)
            apart = distances(unit, unit).square()  # (batch, batch)
            chosen = semihard_negatives(apart, labels)  # (batch, batch)
            anchor, positive = (chosen >= 0).nonzero(as_tuple=True)  # (pairs,)
            negative = chosen[anchor, positive]
            terms = torch.relu(apart[anchor, positive] - apart[anchor, negative] + self.margin)
            # A NaN is sorted last, where it is never chosen: adding zero times all distances exposes it.
            return mean_or_zero(terms) + 0 * apart.sum()

    def extra_repr(self) -> str:
        return f"margin={self.margin:.6g}"


METHOD = Method(
    loss=TripletSemihardLoss,
    title="semi-hard triplet",
    summary="each positive pair against the closest negative that is farther than the positive",
    equation="mean over (a, p) of  [|x_a - x_p|² - |x_a - x_n|² + margin]+,  n the semi-hard negative of (a, p)",
    cost="B² D + B² log B",
    reference="Schroff, Kalenichenko, Philbin (2015): FaceNet: A Unified Embedding for Face Recognition and Clustering."
    " CVPR",
    images_per_class=4,
    lr=0.01,
)
