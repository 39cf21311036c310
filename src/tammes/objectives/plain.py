"""The plain objective: an Embedder and a loss on its last layer."""

from collections.abc import Callable

from jaxtyping import Float, Integer, Shaped
from torch import Generator, Tensor, nn

from tammes.embedder import Embedder
from tammes.losses.method import Sees


class Objective(nn.Module):
    """What is trained: (inputs, labels) -> the parts of the loss by name. Its parameters are all that trains.

    Args:
        features: what turns the inputs into the backbone's features. By default the inputs are images, and it is the
            whole backbone; where a part of it is frozen they are activations, and it is the part above.
        sees: what the loss sees beside its batches, as its method declares it.
    """

    features: Callable[[Tensor], Tensor]

    def __init__(
        self,
        embedder: Embedder,
        loss: nn.Module,
        *,
        features: Callable[[Tensor], Tensor] | None = None,
        sees: Sees = "batches",
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss
        self.features = features or embedder.features
        self.sees = sees

    def look(
        self, embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], *, generator: Generator
    ) -> None:
        """Show the loss all training images."""
        self.loss.look(embeddings, labels, generator=generator)  # type: ignore[operator]

    def forward(self, inputs: Shaped[Tensor, "batch ..."], labels: Integer[Tensor, " batch"]) -> dict[str, Tensor]:
        return {"loss": self.loss(self.embedder.outputs(self.features(inputs)), labels)}
