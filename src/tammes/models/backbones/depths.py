"""Pooled features from several depths of a network, in addition to its final features."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.models.backbones.cuts import cut
from tammes.models.pooling import Pool, pool_layer


class Depths:
    """A network as a sequence of stages: input -> pooled feature maps between the stages, and the final features.

    It uses the modules of the network and is not a module itself: weights are saved, moved and trained under the
    network's own names.

    Args:
        at: the modules with which the stages after the first begin, lowest first: their inputs are pooled.
        pool: how feature maps are pooled.
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
        """The concatenated features of all depths; the network's final features are the last."""
        return torch.cat(self._features(inputs), dim=1)

    @torch.no_grad()
    def sizes(self, channels: int, size: int) -> list[int]:
        """The number of features of each depth, for images of this size."""
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
        """The network below a cut, and the rest with all depths; the cut must not be above the lowest depth."""
        above = Depths.__new__(Depths)
        above.at, above.pool, above.pools_what_enters = self.at, self.pool, at == self.at[0]
        if above.pools_what_enters:
            above.stages = self.stages[1:]
            return self.stages[0], above
        try:
            below, first = cut(self.stages[0], at)
        except UserError as error:
            raise UserError(
                f"the input of {self.at[0]} is used as features, so the cut cannot be above it: {at!r}. "
                f"Use `cut={self.at[0]!r}` or lower."
            ) from error
        above.stages = [first, *self.stages[1:]]
        return below, above

    def _pooled(self, maps: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch channels"]:
        if maps.ndim != 4:
            raise UserError(
                "features are taken from maps (channels, height, width), and this network has"
                f" {tuple(maps.shape[1:])} there. Use a convolutional backbone: googlenet, resnet18, …"
            )
        pooled: Tensor = pool_layer(self.pool)(maps)
        return pooled.flatten(1)
