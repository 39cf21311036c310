"""The triplet loss over all triplets of a batch, in quadratic memory."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, negatives, positives

Form = Literal["plain", "margin", "ratio"]
_MARGINS: dict[Form, float] = {"plain": 0.0, "margin": 0.2, "ratio": 0.01}


class TripletLoss(nn.Module):
    """The triplet loss as a mean over all triplets of a batch: anchor and positive of one class, a negative of another.

    With the distances d_ap of anchor and positive and d_an of anchor and negative, of normalised embeddings:

        plain     d_ap - d_an                               equation 2 of Do et al. (2019): no margin, no hinge
        margin    [d_ap² - d_an² + margin]+                 FaceNet (Schroff et al., 2015); or without the squares
        ratio     [1 - d_an² / (d_ap² + margin)]+           Kumar et al. (2016)

    where [t]+ = max(0, t). "plain" is the loss that `DiscriminativeLoss` bounds from above, in linear time.

    A batch of B images has up to B³ triplets. Here each anchor's negatives are sorted once, and a binary search finds
    for each positive how many of them violate its margin, and the sum of their distances: the exact sum in O(B²) memory
    and O(B² log B) time. It is computed in float64, as it is a small difference of large sums.

    Args:
        form: which of the three.
        margin: by default 0.2 for "margin" and 0.01 for "ratio" (the latter from memory of the paper).
        squared: whether "margin" compares squared distances (the default).
        active_only: the mean over the triplets with a positive loss instead of all; for "margin" and "ratio".

    >>> loss = TripletLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    0.650772
    """

    minimum: float  # not set for the plain form, whose minimum is unknown

    def __init__(
        self,
        *,
        form: Form = "plain",
        margin: float | None = None,
        squared: bool | None = None,
        active_only: bool = False,
    ) -> None:
        super().__init__()
        if form not in _MARGINS:
            raise unknown_name("form", form, get_args(Form))
        if form == "plain" and (margin is not None or active_only):
            raise UserError(
                "the plain form has no margin and no inactive triplets: it takes neither margin nor active_only."
                ' Use form="margin" or form="ratio".'
            )
        if form != "margin" and squared is not None:
            squares = "no squares" if form == "plain" else "squares"
            raise UserError(f'squared is for form="margin"; the {form} form is defined with {squares}.')
        self.form, self.active_only = form, active_only
        self.margin = _MARGINS[form] if margin is None else checked_margin(margin)
        self.squared = form != "plain" if squared is None else squared
        if form != "plain":
            self.minimum = 0.0

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        positive, negative = positives(labels), negatives(labels)  # (batch, batch)
        with torch.autocast(embeddings.device.type, enabled=False):
            unit = normalise(embeddings)
            apart = distances(unit, unit).double()  # (batch, batch)
            if self.squared:
                apart = apart.square()
            if self.form == "plain":
                total, count = _difference(apart, positive, negative)
            else:
                total, count = self._hinge(apart, positive, negative)
            return (total / count.clamp_min(1)).to(embeddings.dtype)

    def _hinge(self, apart: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over all triplets, and the number of triplets, or of active ones."""
        reach = apart + self.margin  # (batch, batch): a negative closer than this to the anchor violates the margin
        nearest = apart.masked_fill(~negative, float("inf")).sort(dim=1).values  # (batch, batch): negatives first
        active = torch.searchsorted(nearest.detach(), reach.detach())  # (batch, batch): how many are closer
        sums = F.pad(nearest, (1, 0)).cumsum(1)  # (batch, batch + 1): of none, of the first, of the first two, …
        closer = sums.gather(1, active)  # (batch, batch): the sum of the distances of those
        violation = active * reach - closer if self.form == "margin" else active - closer / reach
        count = active[positive].sum() if self.active_only else (positive.sum(1) * negative.sum(1)).sum()
        # A NaN is sorted last, where no positive reaches it: adding zero times all distances exposes it.
        return violation[positive].sum() + 0 * apart.sum(), count

    def extra_repr(self) -> str:
        if self.form == "plain":
            return "form=plain"
        squared = f", squared={self.squared}" if self.form == "margin" else ""
        return f"form={self.form}, margin={self.margin:.6g}{squared}, active_only={self.active_only}"


def _difference(apart: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Each positive of an anchor is in as many triplets as the anchor has negatives, and vice versa."""
    near, far = positive.sum(1, keepdim=True), negative.sum(1, keepdim=True)  # (batch, 1)
    return (apart * (positive * far - negative * near)).sum(), (near * far).sum()


METHOD = Method(
    loss=TripletLoss,
    title="triplet",
    summary="each image closer to its own class than to others, over all triplets of the batch",
    equation="mean over triplets of  |x_a - x_p| - |x_a - x_n|",
    cost="B² D + B² log B",
    reference="Schroff, Kalenichenko, Philbin (2015): FaceNet: A Unified Embedding for Face Recognition and Clustering."
    " CVPR; the plain form is equation 2 of Do et al. (2019)",
    images_per_class=4,
    lr=0.01,
)
