"""The centre loss: softmax plus the squared distance to the running centre of the own class."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive
from tammes.geometry import check_range, check_sizes, checked_batch, full_precision
from tammes.losses.fixed_centroids import FullPrecisionBuffers
from tammes.losses.method import Method


class CenterLoss(FullPrecisionBuffers):
    """Softmax with the centre loss (Wen et al., ECCV 2016), as a mean over the batch.

    For an embedding x of class y, not normalised, a linear classifier that belongs to the loss, and one centre c per
    class:

        -log softmax(W x + b)_y  +  weight * |x - c_y|² / 2

    The centres are not trained by the optimizer. In training mode, each call updates the centres of the classes in the
    batch, after computing the loss with the old ones:

        c_j  <-  c_j - alpha * (sum over the n_j images of class j of (c_j - x)) / (1 + n_j)

    like the running statistics of BatchNorm; in evaluation mode they are fixed. So the step of a centre does not
    depend on `weight`, as it would with an optimizer. Centres are initialised at the origin, which is our choice.

    The paper sums over the batch; we take the mean. The defaults of `weight` (λ) and `alpha` (α) are the paper's from
    memory; we could not check them.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        weight: weight of the centre term.
        alpha: update rate of the centres, in (0, 1].
    """

    centers: Tensor

    minimum = 0.0  # approached, never reached

    def __init__(self, num_classes: int, dim: int, *, weight: float = 0.003, alpha: float = 0.5) -> None:
        super().__init__()
        check_sizes("the centre loss", num_classes, dim)
        check_positive("weight", weight, or_zero=True)
        if not 0 < alpha <= 1:
            raise UserError(f"alpha must be in (0, 1], got {alpha}.")
        self.num_classes, self.dim, self.weight, self.alpha = num_classes, dim, weight, alpha
        self.classifier = nn.Linear(dim, num_classes)
        nn.init.xavier_uniform_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.register_buffer("centers", torch.zeros(num_classes, dim))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            centers = self.centers[labels].to(torch.promote_types(embeddings.dtype, self.centers.dtype))  # (batch, dim)
            pull = F.mse_loss(embeddings.to(centers.dtype), centers, reduction="sum") / (2 * len(labels))
            value: Tensor = F.cross_entropy(self.get_logits(embeddings), labels) + self.weight * pull
            if self.training:
                self._move_centers(embeddings.detach() - centers, labels)
        return value

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """The classifier's outputs."""
        weight, bias = full_precision(self.classifier.weight), full_precision(self.classifier.bias)
        embeddings = full_precision(embeddings)
        dtype = torch.promote_types(embeddings.dtype, weight.dtype)
        return _Linear.apply(embeddings.to(dtype), weight.to(dtype), bias.to(dtype))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _move_centers(self, away: Tensor, labels: Tensor) -> None:
        """Along (batch, dim) from the own centre to each embedding."""
        step = torch.zeros_like(self.centers, dtype=away.dtype).index_add_(0, labels, away)  # (classes, dim)
        images = torch.bincount(labels, minlength=self.num_classes)[:, None]  # (classes, 1)
        self.centers += self.alpha * step / (1 + images)

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes in {self.dim} dimensions, weight={self.weight:.6g}, alpha={self.alpha:.6g}"


class _Linear(torch.autograd.Function):
    """A linear layer in full precision, also in a backward inside autocast."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(embeddings, weight)
        with torch.autocast(embeddings.device.type, enabled=False):
            return F.linear(embeddings, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embeddings, weight = ctx.saved_tensors
        with torch.autocast(embeddings.device.type, enabled=False):
            return grad @ weight, grad.T @ embeddings, grad.sum(0)


METHOD = Method(
    loss=CenterLoss,
    title="centre loss",
    summary="softmax plus the squared distance to the running centre of the own class",
    equation="-log softmax(W x + b)_y + weight |x - c_y|² / 2",
    cost="B C D",
    reference="Wen, Zhang, Li, Qiao (2016): A Discriminative Feature Learning Approach for Deep Face Recognition. ECCV",
    takes=("num_classes", "dim"),
    proxy_decay=True,  # the classifier's, as that of softmax
    initial_norm=3.0,
    lr=0.1,
)
