"""The objective: an Embedder and the loss that it is trained by."""

from collections.abc import Callable

from jaxtyping import Float, Integer, Shaped
from torch import Generator, Tensor, nn

from tammes.losses.method import Sees
from tammes.models.embedder import Embedder
from tammes.training.distributed import gathered
from tammes.training.objectives.distillation import Hold


class Objective(nn.Module):
    """What is trained: (inputs, labels) -> the parts of the loss by name. Its parameters are all that trains.

    Args:
        loss: (outputs of the embedder, labels) -> scalar; or, for what is more than a loss, (features, labels,
            embedder) -> the parts by name, of which "loss" is the one that the embedder is trained by.
        features: what turns the inputs into the backbone's features. By default the inputs are images, and it is the
            whole backbone; where a part of it is frozen they are activations, and it is the part above.
        sees: what the loss sees beside its batches, as its method declares it.
        on_features: whether it is more than a loss.
        gathers: whether, of several processes, each computes the loss of the batch of all of them: needed where the
            loss compares the images of a batch, or remembers them. Otherwise each has that of its own share.
        hold: what keeps embeddings of old classes in place, where a run continues with new ones.
    """

    features: Callable[[Tensor], Tensor]
    gain: float = 1.0  # what the embedding layer was multiplied by when it was initialised

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
        """In training mode but for batch normalisation whose weights do not train: its statistics stay, too."""
        super().train(mode)
        for layer in batch_norms(self.embedder.backbone):
            layer.train(mode and is_trained(layer))
        return self

    def begin(self, epoch: int, epochs: int) -> None:
        """Tell the loss which epoch begins, from 1, and how many there will be, if it asks for that."""
        if hasattr(self.loss, "begin"):
            self.loss.begin(epoch, epochs)  # type: ignore[operator]

    def look(
        self, embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], *, generator: Generator
    ) -> None:
        """Show the loss all training images."""
        self.loss.look(embeddings, labels, generator=generator)  # type: ignore[operator]

    def forward(self, inputs: Shaped[Tensor, "batch ..."], labels: Integer[Tensor, " batch"]) -> dict[str, Tensor]:
        own = len(labels)
        if own == 0:
            # This process has nothing of a small batch, but takes part in the step: by black images that count nothing.
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
    """The layers of batch normalisation in a network."""
    return [each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]


def is_trained(layer: nn.Module) -> bool:
    """Whether a layer of batch normalisation trains; one without weights does."""
    weights = list(layer.parameters(recurse=False))
    return not weights or any(each.requires_grad for each in weights)
