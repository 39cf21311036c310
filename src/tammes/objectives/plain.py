"""The plain objective: an Embedder and a loss on its last layer."""

from jaxtyping import Integer, Shaped
from torch import Tensor, nn

from tammes.embedder import Embedder


class Objective(nn.Module):
    """What is trained: (images, labels) -> the parts of the loss by name. Its parameters are all that trains."""

    def __init__(self, embedder: Embedder, loss: nn.Module) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss

    def forward(
        self, images: Shaped[Tensor, "batch channels height width"], labels: Integer[Tensor, " batch"]
    ) -> dict[str, Tensor]:
        return {"loss": self.loss(self.embedder.for_loss(images), labels)}
