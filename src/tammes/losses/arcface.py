"""ArcFace: cross-entropy of scaled cosines to learned proxies, with a margin on the angle to the own proxy."""

from math import cos, exp, log1p, pi, radians, sin

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import check_range, check_sizes, checked_batch, distances, normalise
from tammes.losses.method import Method


class ArcFaceLoss(nn.Module):
    """The additive angular margin of Deng et al. (CVPR 2019), as a mean over the batch.

    For an embedding x of class y, one learned proxy p per class, and the angles θ between x and the proxies:

        -log( exp(scale cos(θ_y + margin)) / (exp(scale cos(θ_y + margin)) + sum over m != y of exp(scale cos θ_m)) )

    Beyond π the cosine of θ_y + margin would rise again and push the worst images away: there it is replaced by
    cos θ_y - margin sin(margin), which keeps falling, as in the authors' code.

    The gradient of an arccosine is unbounded at ±1, so none is taken: cos(θ + margin) = cos θ cos(margin) - sin θ
    sin(margin), with cos θ = 1 - d² / 2 and sin θ = d cos(θ / 2) from the distance d = |x - p_y|, which is accurate for
    small angles. An embedding on its own proxy gets no gradient from it.

    The scale of 64 is the paper's; with 30, also common, well-classified images keep a gradient for longer.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        margin: the angle, in radians; 0 gives the normalised softmax.
        scale: factor of the cosines (s).

    >>> loss = ArcFaceLoss(2, 2, scale=1.0)
    >>> _ = loss.proxies.data.copy_(torch.eye(2))
    >>> round(loss(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])).item(), 6)
    0.568963
    """

    def __init__(self, num_classes: int, dim: int, *, margin: float = 0.5, scale: float = 64.0) -> None:
        super().__init__()
        check_sizes("ArcFace", num_classes, dim)
        if not 0 <= margin <= pi / 2:
            hint = f" {margin:g} degrees are {radians(margin):.4g}." if pi / 2 < margin <= 90 else ""
            raise UserError(f"margin must be in [0, pi/2], an angle in radians, got {margin}.{hint}")
        check_positive("scale", scale)
        self.num_classes, self.dim, self.margin, self.scale = num_classes, dim, margin, scale
        self.proxies = nn.Parameter(normalise(torch.randn(num_classes, dim)))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            apart = self._distances(embeddings)  # (batch, classes)
            own = self._with_margin(apart.gather(1, labels[:, None]))  # (batch, 1)
            logits = self.scale * (1 - apart.square() / 2).scatter(1, labels[:, None], own)  # (batch, classes)
            return F.cross_entropy(logits, labels)

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Scaled cosines to the proxies, without the margin, which is for training only."""
        return self.scale * (1 - self._distances(embeddings).square() / 2)

    def _distances(self, embeddings: Tensor) -> Tensor:
        # A zero embedding is equally far from all proxies.
        return distances(normalise(embeddings), normalise(self.proxies))

    def _with_margin(self, apart: Tensor) -> Tensor:
        """cos(θ + margin) from the distance to the own proxy, and its replacement beyond π."""
        cosine = 1 - apart.square() / 2
        # cos²(θ / 2) is at least this wherever it is used; below, the gradient of the root would be unbounded.
        floor = max(sin(self.margin / 2) ** 2, 1e-12)
        sine = apart * (1 - apart.square() / 4).clamp_min(floor).sqrt()
        turned = cosine * cos(self.margin) - sine * sin(self.margin)
        return torch.where(cosine < -cos(self.margin), cosine - self.margin * sin(self.margin), turned)

    @property
    def minimum(self) -> float:
        """The lowest value for classes of equal size, over all proxies.

        Reached where the proxies form a regular simplex and every embedding is on its proxy; the margin costs at least
        1 - cos(margin). In fewer than num_classes - 1 dimensions the loss stays above.
        """
        others = self.num_classes - 1
        return log1p(others * exp(-self.scale * (1 / others + cos(self.margin))))

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes in {self.dim} dimensions, margin={self.margin:.6g}, scale={self.scale:.6g}"


METHOD = Method(
    loss=ArcFaceLoss,
    title="ArcFace",
    summary="cross-entropy of scaled cosines to learned unit proxies, the angle to the own one widened by a margin",
    equation="-log softmax of scale (cos(θ_y + margin) for the own class y, cos θ_m for the others)",
    cost="B C D",
    reference="Deng, Guo, Xue, Zafeiriou (2019): ArcFace: Additive Angular Margin Loss for Deep Face Recognition. CVPR",
    takes=("num_classes", "dim"),
    per_image_loss=True,
    lr=0.0001,
)
