"""The objective: an Embedder with its loss."""

from collections.abc import Callable

from jaxtyping import Float, Integer, Shaped
from torch import Generator, Tensor, nn

from tammes.losses.method import Sees
from tammes.models.embedder import Embedder
from tammes.training.distributed import gathered
from tammes.training.objectives.distillation import Hold


class Objective(nn.Module):
    """The module that is trained: (inputs, labels) -> the parts of the loss by name.

    Args:
        loss: (outputs of the embedder, labels) -> scalar; or, for a method that is more than a loss, (features, labels,
            embedder) -> the parts by name.
        features: inputs -> the backbone's features. By default inputs are images, and it is the whole backbone; if a
            part of it is frozen, inputs are cached activations, and it is the part above.
        sees: `Method.sees` of the loss.
        on_features: whether the loss takes features and the embedder.
        gathers: whether each process computes the loss of the whole batch of all processes: needed if the loss compares
            the images of a batch, or remembers them. Otherwise each computes that of its own share.
        hold: the term that keeps embeddings of old classes in place, if a run continues with new ones.
    """

    features: Callable[[Tensor], Tensor]
    gain: float = 1.0  # the factor by which the embedding layer was scaled at initialisation

    def __init__(
        self,
        embedder: Embedder,
        loss: nn.Module,
        *,
        features: Callable[[Tensor], Tensor] | None = None,
        sees: Sees = "batches",
        on_features: bool = False,
        gathers: bool = False,
        hold: Hold | None = None,
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.loss = loss
        self.features = features or embedder.features
        self.sees, self.on_features, self.gathers, self.hold = sees, on_features, gathers, hold

    def train(self, mode: bool = True) -> "Objective":
        """Set the training mode; frozen batch normalisation stays in evaluation mode."""
        super().train(mode)
        for layer in batch_norms(self.embedder.backbone):
            layer.train(mode and is_trained(layer))
        return self

    def begin(self, epoch: int, epochs: int) -> None:
        """Pass the number of the epoch, from 1, to the loss, if it has `begin`."""
        if hasattr(self.loss, "begin"):
            self.loss.begin(epoch, epochs)  # type: ignore[operator]

    def look(
        self, embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], *, generator: Generator
    ) -> None:
        """Pass all training images to the loss."""
        self.loss.look(embeddings, labels, generator=generator)  # type: ignore[operator]

    def forward(self, inputs: Shaped[Tensor, "batch ..."], labels: Integer[Tensor, " batch"]) -> dict[str, Tensor]:
        own = len(labels)
        if own == 0:
            # This process has no share of a small batch, but must take part in the step: two zero images, not counted.
            inputs, labels = inputs.new_zeros(2, *inputs.shape[1:]), labels.new_zeros(2)
        features = rows = self.features(inputs)
        if not self.on_features:
            rows = self.embedder.outputs(rows)
        if self.gathers:
            rows, labels = gathered(rows[:own], labels[:own])
        if self.on_features:
            several: dict[str, Tensor] = self.loss(rows, labels, self.embedder)
            return several
        parts = {"loss": self.loss(rows, labels)}
        if self.hold is not None:
            parts["hold"] = self.hold(inputs, labels, self.embedder.embedding(features))
        return parts


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """The batch normalisation layers of a network."""
    return [each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]


def is_trained(layer: nn.Module) -> bool:
    """Whether a batch normalisation layer trains; one without weights does."""
    weights = list(layer.parameters(recurse=False))
    return not weights or any(each.requires_grad for each in weights)
