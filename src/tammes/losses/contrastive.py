"""The contrastive loss: positive pairs are pulled together, negative pairs pushed apart up to a margin."""

from math import sqrt
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import absolute_distances, checked_batch, distances, normalise
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, hardest_pairs, mean_or_zero, negatives, positives

Form = Literal["squared", "hinge", "exponential"]
_MARGINS: dict[Form, float | None] = {"squared": 1.0, "hinge": 4.0, "exponential": None}
_FALL = 2.77  # of the exponential form, as published


class ContrastiveLoss(nn.Module):
    """The contrastive loss over all unordered pairs of a batch, as a mean over the pairs.

    For the distance d of a pair, with [t]+ = max(0, t), there are three forms:

        form           positive pair      negative pair             d
        squared        d² / 2             [margin - d]+² / 2        Euclidean, of unit embeddings
        hinge          d                  [margin - d]+             Euclidean, of embeddings without normalisation
        exponential    2 d² / margin      2 margin exp(-2.77 d / margin)    L1, of unit embeddings

    "squared" is from Hadsell, Chopra and LeCun (2006). "hinge" is from Simo-Serra et al. (2015), who also mine hard
    pairs: with `hardest` below 1, only this fraction of the positive pairs and of the negative pairs counts, those
    with the largest loss; their mining ratio r is 1 / hardest. "exponential" is from Chopra, Hadsell and LeCun (2005),
    whose Q, a bound on d, is the margin here; normalising the embeddings is our choice, as there is no bound without.
    Wrong labels make hard pairs: start with `hardest=1`, and do not go below 1/8, the best value that Simo-Serra et al.

    report (this, and their margin of 4, from memory of the paper).

    Args:
        form: which of the three.
        margin: by default 1 for "squared", 4 for "hinge", and 2 sqrt(dim) for "exponential", the largest L1 distance
            between unit embeddings.
        hardest: the fraction of the positive and of the negative pairs that counts; at least one of each.

    >>> loss = ContrastiveLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    0.357706
    """

    minimum = 0.0  # a lower bound

    def __init__(self, *, form: Form = "squared", margin: float | None = None, hardest: float = 1.0) -> None:
        super().__init__()
        if form not in _MARGINS:
            raise unknown_name("form", form, get_args(Form))
        if not 0 < hardest <= 1:
            raise UserError(f"hardest must be in (0, 1], the part of the pairs that counts, got {hardest}.")
        self.form, self.hardest = form, hardest
        self.margin = _MARGINS[form] if margin is None else checked_margin(margin)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            apart = self._distances(embeddings)  # (batch, batch)
            margin = 2 * sqrt(embeddings.shape[1]) if self.margin is None else self.margin
            pull = self._pull(apart[positives(labels).triu()], margin)  # (positive pairs,)
            push = self._push(apart[negatives(labels).triu()], margin)  # (negative pairs,)
            if self.hardest < 1:
                pull, push = (each[hardest_pairs(each, self.hardest)] for each in (pull, push))
            return mean_or_zero(torch.cat([pull, push]))

    def _distances(self, embeddings: Tensor) -> Tensor:
        if self.form == "hinge":
            return distances(embeddings, embeddings)
        unit = normalise(embeddings)
        return absolute_distances(unit, unit) if self.form == "exponential" else distances(unit, unit)

    def _pull(self, apart: Tensor, margin: float) -> Tensor:
        if self.form == "hinge":
            return apart
        return apart.square() * (0.5 if self.form == "squared" else 2 / margin)

    def _push(self, apart: Tensor, margin: float) -> Tensor:
        if self.form == "exponential":
            return 2 * margin * torch.exp(-_FALL / margin * apart)
        short = torch.relu(margin - apart)
        return short if self.form == "hinge" else short.square() / 2

    def extra_repr(self) -> str:
        margin = "2 sqrt(dim)" if self.margin is None else f"{self.margin:.6g}"
        return f"form={self.form}, margin={margin}, hardest={self.hardest:.6g}"


METHOD = Method(
    loss=ContrastiveLoss,
    title="contrastive",
    summary="positive pairs pulled together, negative pairs pushed apart up to a margin",
    equation="mean over pairs of  |x_i - x_j|² / 2  (one class),  [margin - |x_i - x_j|]+² / 2  (two classes)",
    cost="B² D",
    reference="Hadsell, Chopra, LeCun (2006): Dimensionality Reduction by Learning an Invariant Mapping. CVPR",
    images_per_class=4,
)
