"""The base loss of hdc, bier, daml and dvml: the loss of their own paper, or the discriminative loss."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.losses.discriminative import DiscriminativeLoss


@dataclass(frozen=True)
class Base:
    """The loss that a method is built on.

    Attributes:
        name: the value of `--base`.
        make: dimension of an embedding -> the loss for it; None if the method implements the loss itself.
    """

    name: str
    make: Callable[[int], nn.Module] | None = None


def class_layers(base: Base, heads: tuple[int, ...]) -> nn.ModuleList:
    """For the discriminative loss as base, one loss with its class layer for each head; otherwise empty."""
    if base.name != "discriminative":
        return nn.ModuleList()
    assert base.make is not None
    return nn.ModuleList(base.make(size) for size in heads)


class ClassLayer(nn.Module):
    """The discriminative loss with its own class layer: (embeddings, labels) -> scalar.

    The paper's two layers as in the Embedder; a method with several heads has one on each.
    """

    def __init__(self, dim: int, loss: DiscriminativeLoss) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(dim, loss.dim), loss
        nn.init.xavier_uniform_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        value: Tensor = self.loss(self.layer(embeddings), labels)
        return value

    def per_image(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The loss of each image."""
        return self.loss.per_image(self.layer(embeddings), labels)
