"""Proxy-Anchor: each learned proxy against all images of the batch, weighted by hardness."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import check_range, check_sizes, checked_batch, full_precision, normalise
from tammes.losses.method import Method


class ProxyAnchorLoss(nn.Module):
    """Proxy-Anchor (Kim et al., CVPR 2020): proxies are the anchors, images of the batch the positives and negatives.

    For one learned proxy p per class and the cosines s(x, p) of the batch's images x:

        pull(p) = log(1 + sum over x of p's class of exp(-scale (s(x, p) - margin)))
        push(p) = log(1 + sum over the other x of exp(scale (s(x, p) + margin)))

        loss = mean over the classes in the batch of pull(p)  +  mean over all classes of push(p)

    The log-sum-exp weights the images of a batch by how hard they are for a proxy, which Proxy-NCA, one image at a
    time, cannot. The loss is therefore not a mean over images. The proxies stay in float32.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        scale: factor of the cosines (α).
        margin: cosines should be above it for the own proxy and below minus it for the others (δ).

    >>> loss = ProxyAnchorLoss(2, 2)
    >>> _ = loss.proxies.data.copy_(torch.eye(2))
    >>> round(loss(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])).item(), 6)
    12.819977
    """

    minimum = 0.0  # a lower bound; the value that is reached depends on the dimensions and on the batch

    def __init__(self, num_classes: int, dim: int, *, scale: float = 32.0, margin: float = 0.1) -> None:
        super().__init__()
        check_sizes("Proxy-Anchor", num_classes, dim)
        check_positive("scale", scale)
        if not 0 <= margin < 1:
            raise UserError(f"margin must be in [0, 1), for it is one of cosines, got {margin}.")
        self.num_classes, self.dim, self.scale, self.margin = num_classes, dim, scale, margin
        self.proxies = nn.Parameter(normalise(torch.randn(num_classes, dim)))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            logits, gap = self._logits(embeddings), self.scale * self.margin  # (batch, classes)
            own = labels[:, None] == torch.arange(self.num_classes, device=labels.device)  # (batch, classes)
            pull = (gap - logits).masked_fill(~own, float("-inf"))  # (batch, classes)
            push = (gap + logits).masked_fill(own, float("-inf"))  # (batch, classes)
            # The row of zeros is the 1 in the logarithm; a class without images gives log 1 = 0.
            pull, push = (F.pad(each, (0, 0, 1, 0)).logsumexp(0) for each in (pull, push))  # (classes,)
            return (pull.sum() / own.any(0).sum() + push.mean()).to(embeddings.dtype)

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Scaled cosines to the proxies."""
        return self._logits(embeddings).to(full_precision(embeddings).dtype)

    def _logits(self, embeddings: Tensor) -> Tensor:
        # float64 is not affected by autocast, also in the backward; a zero embedding has cosines of 0.
        return self.scale * normalise(embeddings.double()) @ normalise(self.proxies.double()).T

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes in {self.dim} dimensions, scale={self.scale:.6g}, margin={self.margin:.6g}"


METHOD = Method(
    loss=ProxyAnchorLoss,
    title="Proxy-Anchor",
    summary="each learned proxy near the images of its class and far from the others, weighted by hardness",
    equation="mean over classes p in the batch of  log(1 + sum over x of p of exp(-scale (cos(x, p) - margin)))\n"
    "  + mean over all classes p of  log(1 + sum over x not of p of exp(scale (cos(x, p) + margin)))",
    cost="B C D",
    reference="Kim, Kim, Cho, Kwak (2020): Proxy Anchor Loss for Deep Metric Learning. CVPR",
    takes=("num_classes", "dim"),
    proxy_lr=100.0,  # as in the authors' code
    lr=0.1,
)
