"""Features from several depths of a network, pooled, in addition to those of its end."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.models.backbones.cuts import cut
from tammes.models.pooling import Pool, pool_layer


class Depths:
    """A network as a row of stages: what enters the first -> the pooled maps between them, and the features of the end.

    It has the very parts of the network, and is no module itself: weights are saved, moved and trained under the
    network's own names.

    Args:
        at: the parts that the stages after the first begin with, lowest first: what enters them is what is pooled.
        pool: how a map becomes a vector.
    """

    def __init__(self, network: nn.Module, at: Sequence[str], pool: Pool) -> None:
        self.at, self.pool, self.stages = tuple(at), pool, list[nn.Module]()
        self.pools_what_enters = False
        rest = network
        for name in at:
            below, rest = cut(rest, name)
            self.stages.append(below)
        self.stages.append(rest)

    def __call__(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """The features of all depths, one after the other; the network's own are the last."""
        return torch.cat(self._features(inputs), dim=1)

    @torch.no_grad()
    def sizes(self, channels: int, size: int) -> list[int]:
        """How many features each depth has, of images of so many channels and this height and width."""
        modes = [(part, part.training) for stage in self.stages for part in stage.modules()]
        for stage in self.stages:
            stage.eval()
        found = [features.shape[1] for features in self._features(torch.zeros(1, channels, size, size))]
        for part, was_training in modes:
            part.training = was_training
        return found

    def _features(self, inputs: Tensor) -> list[Tensor]:
        found = [self._pooled(inputs)] if self.pools_what_enters else []
        for stage in self.stages:
            inputs = stage(inputs)
            found.append(inputs if stage is self.stages[-1] else self._pooled(inputs))
        return found

    def from_cut(self, at: str) -> tuple[nn.Module, "Depths"]:
        """The network below a cut, and the rest with all its depths; the cut must not be above the lowest of them."""
        above = Depths.__new__(Depths)
        above.at, above.pool, above.pools_what_enters = self.at, self.pool, at == self.at[0]
        if above.pools_what_enters:
            above.stages = self.stages[1:]
            return self.stages[0], above
        try:
            below, first = cut(self.stages[0], at)
        except UserError as error:
            raise UserError(
                f"features are taken from what enters {self.at[0]}, so nothing above it can be the cut: {at!r}. "
                f"Use `cut={self.at[0]!r}` or lower."
            ) from error
        above.stages = [first, *self.stages[1:]]
        return below, above

    def _pooled(self, maps: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch channels"]:
        if maps.ndim != 4:
            raise UserError(
                "features are taken from maps (channels, height, width), and between the parts of this network there"
                f" is {tuple(maps.shape[1:])}. Use a convolutional backbone: googlenet, resnet18, …"
            )
        pooled: Tensor = pool_layer(self.pool)(maps)
        return pooled.flatten(1)
