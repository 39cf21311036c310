"""Cross-entropy of a linear classifier: the baseline in every table."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.geometry import check_range, checked_batch
from tammes.losses.method import Method


class SoftmaxLoss(nn.Module):
    """-log softmax(outputs)_y, as a mean over the batch.

    The outputs come from the Embedder's class layer, a linear layer with one output per class and a bias; they are not
    normalised. This is the row "SoftMax" of the paper, where images are compared by the layer below.

    Args:
        num_classes: how many there are.
    """

    minimum = 0.0  # approached, never reached

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise UserError(f"softmax needs at least 2 classes, got {num_classes}.")
        self.num_classes = num_classes

    def forward(self, outputs: Float[Tensor, "batch classes"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        outputs, labels = checked_batch(outputs, labels, self.num_classes)
        check_range(labels, self.num_classes)
        return F.cross_entropy(outputs, labels)

    def targets_of(self, labels: Integer[Tensor, " some"]) -> Float[Tensor, "some classes"]:
        """One-hot targets, for initialising the class layer by linear regression."""
        return F.one_hot(labels, self.num_classes).float()

    def best_scale(
        self, outputs: Float[Tensor, "batch classes"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """The factor, out of 49 between 1/16 and 256, with the lowest loss for these outputs."""
        factors = torch.logspace(-4, 8, 49, base=2, device=outputs.device)
        return factors[torch.stack([self(outputs * factor, labels) for factor in factors]).argmin()]

    def get_logits(self, outputs: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
        """The outputs are the logits."""
        return outputs

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes"


METHOD = Method(
    loss=SoftmaxLoss,
    title="softmax",
    summary="cross-entropy of a linear classifier on the embedding",
    equation="-log softmax(W x + b)_y",
    cost="B C D",
    reference="the usual classifier; the row SoftMax of Do et al. (2019)",
    takes=("num_classes",),
    on="class layer",
    per_image_loss=True,
    initial_norm=3.0,
    lr=0.1,
)
