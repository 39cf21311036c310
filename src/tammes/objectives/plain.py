"""The plain objective: an Embedder and a loss on its last layer."""

from collections.abc import Callable

from jaxtyping import Integer, Shaped
from torch import Tensor, nn

from tammes.embedder import Embedder


class Objective(nn.Module):
    """What is trained: (inputs, labels) -> the parts of the loss by name. Its parameters are all that trains.

    Args:
        features: what turns the inputs into the backbone's features. By default the inputs are images, and it is the
            whole backbone; where a part of it is frozen they are activations, and it is the part above.
    """

    features: Callable[[Tensor], Tensor]

    def __init__(
        self, embedder: Embedder, loss: nn.Module, *, features: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss
        self.features = features or embedder.features

    def forward(self, inputs: Shaped[Tensor, "batch ..."], labels: Integer[Tensor, " batch"]) -> dict[str, Tensor]:
        return {"loss": self.loss(self.embedder.outputs(self.features(inputs)), labels)}
