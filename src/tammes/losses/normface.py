"""NormFace: cross-entropy of scaled cosines to learned proxies, or a margin on the distances to them."""

from math import exp, log1p
from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive, unknown_name
from tammes.geometry import (
    check_range,
    check_sizes,
    checked_batch,
    checked_temperature,
    distances,
    full_precision,
    normalise,
)
from tammes.losses.method import Method

Form = Literal["softmax", "contrastive", "triplet"]

_SCALE = 10.0
_MARGINS = {"contrastive": 1.0, "triplet": 0.8}


class NormFaceLoss(nn.Module):
    """Softmax and two margin losses on unit embeddings and unit proxies (Wang et al., 2017), as a mean over the batch.

    For an embedding x of class y and one learned proxy p per class, all normalised:

        softmax      -log softmax(s cos(x, p))_y
        contrastive  |x - p_y|²  +  sum over m != y of [margin - |x - p_m|²]+
        triplet      sum over m != y of [margin + |x - p_y|² - |x - p_m|²]+

    The scale s is learned and stays positive (it is the softplus of a parameter); without a scale, cosines of at most 1
    could never saturate the softmax. `temperature` fixes s = 1 / temperature: the usual normalised softmax.
    The initial scale and the margins are those of the authors' code; its centre term of the triplet form is left out.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        form: which of the three.
        temperature: for softmax: a fixed 1 / s.
        scale: for softmax without a temperature: the initial value of s.
        margin: for the other two; by default 1 (contrastive) or 0.8 (triplet).
        hardest: for triplet: only the nearest wrong proxy instead of the sum.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        form: Form = "softmax",
        temperature: float | None = None,
        scale: float = _SCALE,
        margin: float | None = None,
        hardest: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("NormFace", num_classes, dim)
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        if form == "softmax":
            _check_softmax(temperature, scale, margin)
        elif temperature is not None or scale != _SCALE:
            raise UserError(f"temperature and scale are for form='softmax'; form={form!r} has a margin.")
        if margin is not None:
            check_positive("margin", margin)
        if hardest and form != "triplet":
            raise UserError(f"hardest is for form='triplet'; form={form!r} has no triplets.")
        self.num_classes, self.dim, self.form = num_classes, dim, form
        self.temperature, self.hardest = temperature, hardest
        self.margin = _MARGINS.get(form) if margin is None else margin
        self.proxies = nn.Parameter(normalise(torch.randn(num_classes, dim)))
        learns = form == "softmax" and temperature is None
        first = torch.tensor(scale, dtype=torch.float64)
        # The softplus of this is `scale`.
        self.raw_scale = nn.Parameter((first + (-torch.expm1(-first)).log()).float()) if learns else None

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            logits = self.get_logits(embeddings)  # (batch, classes)
            if self.margin is None:  # softmax
                return F.cross_entropy(logits, labels)
            own = -logits.gather(1, labels[:, None])  # (batch, 1)
            others = (-logits).scatter(1, labels[:, None], float("inf"))  # (batch, classes)
            if self.form == "contrastive":
                return (own[:, 0] + F.relu(self.margin - others).sum(1)).mean()
            if self.hardest:
                others = others.amin(1, keepdim=True)  # (batch, 1)
            return F.relu(self.margin + own - others).sum(1).mean()

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Scaled cosines to the proxies, or negative squared distances for a form with a margin."""
        squared = distances(normalise(embeddings), normalise(self.proxies)).square()  # (batch, classes)
        if self.form != "softmax":
            return -squared
        # The cosine of unit vectors; a zero embedding has the same logit for all classes.
        return self.scale.to(squared.dtype) * (1 - squared / 2)

    @property
    def scale(self) -> Float[Tensor, ""]:
        """The factor of the cosines, for the softmax form."""
        if self.raw_scale is not None:
            return F.softplus(full_precision(self.raw_scale))
        if self.temperature is not None:
            return self.proxies.new_tensor(
                1 / self.temperature, dtype=torch.promote_types(self.proxies.dtype, torch.float32)
            )
        raise UserError(f"form={self.form!r} has a margin, not a scale.")

    @property
    def noted(self) -> dict[str, float]:
        """The learned scale, for the epoch's log."""
        return {} if self.raw_scale is None else {"scale": self.scale.item()}

    @property
    def minimum(self) -> float:
        """The lowest value for classes of equal size, over all proxies; approached as a learned scale grows.

        Reached where the proxies form a regular simplex and every embedding is on its proxy. In fewer than
        num_classes - 1 dimensions, where there is no such simplex, and for a wider margin, the loss stays above.
        """
        if self.temperature is None:
            return 0.0
        others = self.num_classes - 1
        return log1p(others * exp(-self.scale.item() * self.num_classes / others))

    def extra_repr(self) -> str:
        kind = f"scale={self.scale.item():.6g}" if self.form == "softmax" else f"margin={self.margin:.6g}"
        if self.hardest:
            kind += ", hardest=True"
        return f"{self.num_classes} classes in {self.dim} dimensions, form={self.form!r}, {kind}"


def _check_softmax(temperature: float | None, scale: float, margin: float | None) -> None:
    if margin is not None:
        raise UserError("margin is for form='contrastive' or 'triplet'; form='softmax' has none.")
    check_positive("scale", scale)
    if temperature is None:
        return
    checked_temperature(temperature)
    if scale != _SCALE:
        raise UserError("temperature fixes the scale at 1 / temperature; give one of the two.")


METHOD = Method(
    loss=NormFaceLoss,
    title="NormFace",
    summary="cross-entropy of cosines to learned unit proxies, times a learned scale",
    equation="-log softmax(s cos(x, p))_y",
    cost="B C D",
    reference="Wang, Xiang, Cheng, Yuille (2017): NormFace: L2 Hypersphere Embedding for Face Verification. ACM MM",
    takes=("num_classes", "dim"),
    per_image_loss=True,
    lr=0.1,
    proxy_lr=100.0,  # as in the authors' code; on frozen features 10 did as well and 1 a little worse
)
