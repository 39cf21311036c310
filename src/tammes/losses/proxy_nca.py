"""Proxy-NCA: neighbourhood component analysis with one learned proxy per class in place of the images."""

from math import exp, log, log1p

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import check_range, check_sizes, checked_batch, distances, normalise
from tammes.losses.method import Method


class ProxyNCALoss(nn.Module):
    """Proxy-NCA (Movshovitz-Attias et al., ICCV 2017), as a mean over the batch.

    For an embedding x of class y and one learned proxy p per class, all normalised and then multiplied by `scale`:

        |x - p_y|²  +  log of the sum over m != y of exp(-|x - p_m|²)

    The own proxy is not in the sum, so the loss can be negative. With `include_positive` it is: the loss is then the
    cross-entropy of softmax(-|x - p|²), as in most implementations. The sum is computed by log-sum-exp, so that an
    image far from its proxy, whose probability underflows to 0, still has a gradient.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        include_positive: include the own proxy in the sum.
        scale: factor of both embedding and proxy, so that squared distances are up to 4 scale². With 1, the paper's
            value, the softmax over many classes stays flat; 3 is a common choice.
        smoothing: label smoothing, with `include_positive`: this share is spread evenly over the other classes.
    """

    def __init__(
        self, num_classes: int, dim: int, *, include_positive: bool = False, scale: float = 1.0, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes("Proxy-NCA", num_classes, dim)
        check_positive("scale", scale)
        if not 0 <= smoothing < 1:
            raise UserError(f"smoothing must be in [0, 1), got {smoothing}.")
        if smoothing and not include_positive:
            raise UserError("smoothing is for a softmax over all classes: add include_positive=True.")
        self.num_classes, self.dim = num_classes, dim
        self.include_positive, self.scale, self.smoothing = include_positive, scale, smoothing
        self.proxies = nn.Parameter(normalise(torch.randn(num_classes, dim)))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            logits = self.get_logits(embeddings)  # (batch, classes)
            own = logits.gather(1, labels[:, None])  # (batch, 1)
            if not self.include_positive:
                others = logits.scatter(1, labels[:, None], float("-inf"))  # (batch, classes)
                return (others.logsumexp(1) - own[:, 0]).mean()
            if not self.smoothing:
                return F.cross_entropy(logits, labels)
            away = (own - logits).sum(1) / (self.num_classes - 1)  # (batch,): mean over the others
            return F.cross_entropy(logits, labels) + self.smoothing * away.mean()

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative squared distances to the proxies, times scale²."""
        return -(self.scale**2) * distances(normalise(embeddings), normalise(self.proxies)).square()

    @property
    def minimum(self) -> float:
        """The lowest value for classes of equal size, over all proxies.

        Reached where the proxies form a regular simplex and every embedding is on its proxy; with smoothing, at the
        distance that smoothing asks for. In fewer than num_classes - 1 dimensions (with smoothing, num_classes) the
        loss may stay above.
        """
        others = self.num_classes - 1
        apart = 2 * self.scale**2 * self.num_classes / others  # of two corners, squared and scaled
        if not self.include_positive:
            return log(others) - apart
        if self.smoothing:
            apart = min(apart, log(others * (1 - self.smoothing) / self.smoothing))
        return log1p(others * exp(-apart)) + self.smoothing * apart

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes} classes in {self.dim} dimensions, include_positive={self.include_positive},"
            f" scale={self.scale:.6g}, smoothing={self.smoothing:.6g}"
        )


METHOD = Method(
    loss=ProxyNCALoss,
    title="Proxy-NCA",
    summary="near the learned proxy of the own class, far from the others, by a softmax of squared distances",
    equation="|x - p_y|² + log(sum over m != y of exp(-|x - p_m|²))",
    cost="B C D",
    reference="Movshovitz-Attias, Toshev, Leung, Ioffe, Singh (2017): No Fuss Distance Metric Learning using Proxies."
    " ICCV",
    takes=("num_classes", "dim"),
    per_image_loss=True,
    lr=0.001,
    proxy_lr=100.0,  # other implementations use 20 to 200; on frozen features it makes no difference
)
