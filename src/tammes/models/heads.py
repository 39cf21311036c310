"""Heads: parts of an embedding layer that are normalised separately and joined into one unit vector."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.geometry import normalise


def parted(outputs: Float[Tensor, "batch dim"], sizes: Sequence[int]) -> tuple[Float[Tensor, "batch _"], ...]:
    """The outputs of each head; without heads, all outputs."""
    return outputs.split(list(sizes), dim=1) if sizes else (outputs,)


def joined(
    outputs: Float[Tensor, "batch dim"], sizes: Sequence[int], weights: Sequence[float]
) -> Float[Tensor, "batch dim"]:
    """One unit vector: the heads, each normalised and multiplied by its weight, concatenated and normalised."""
    if not sizes:
        return normalise(outputs)
    unit = [weight * normalise(part) for part, weight in zip(parted(outputs, sizes), weights, strict=True)]
    return normalise(torch.cat(unit, dim=1))


class Layers(nn.Module):
    """One linear layer for each head, each with its own features.

    Args:
        features: the number of features of each head, in the order in which they are concatenated.
        sizes: the sizes of the heads.
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
        """Each layer with its own features."""
        return list(zip(self.linear(), features.split(list(self.features), dim=1), strict=True))
