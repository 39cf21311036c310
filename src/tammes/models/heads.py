"""Heads: the parts of a layer's outputs that are unit vectors of their own, and the one unit vector that they make."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.geometry import normalise


def parted(outputs: Float[Tensor, "batch dim"], sizes: Sequence[int]) -> tuple[Float[Tensor, "batch _"], ...]:
    """The outputs of each head; without heads, all of them in one."""
    return outputs.split(list(sizes), dim=1) if sizes else (outputs,)


def joined(
    outputs: Float[Tensor, "batch dim"], sizes: Sequence[int], weights: Sequence[float]
) -> Float[Tensor, "batch dim"]:
    """One unit vector: those of the heads, each scaled to unit length and then by its weight, one after the other."""
    if not sizes:
        return normalise(outputs)
    unit = [weight * normalise(part) for part, weight in zip(parted(outputs, sizes), weights, strict=True)]
    return normalise(torch.cat(unit, dim=1))


class Layers(nn.Module):
    """A layer for each head, side by side: each turns features of its own into its outputs.

    Args:
        features: how many each has, one after the other in what comes in.
        sizes: the lengths of the heads.
    """

    def __init__(self, features: Sequence[int], sizes: Sequence[int]) -> None:
        super().__init__()
        self.features = tuple(features)
        self.of_heads = nn.ModuleList(nn.Linear(*each) for each in zip(features, sizes, strict=True))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        return torch.cat([layer(own) for layer, own in self.with_features(features)], dim=1)

    def linear(self) -> list[nn.Linear]:
        """The layers."""
        return [layer for layer in self.of_heads if isinstance(layer, nn.Linear)]

    def with_features(
        self, features: Float[Tensor, "batch features"]
    ) -> list[tuple[nn.Linear, Float[Tensor, "batch own"]]]:
        """Each layer with those of the features that are its own."""
        return list(zip(self.linear(), features.split(list(self.features), dim=1), strict=True))
