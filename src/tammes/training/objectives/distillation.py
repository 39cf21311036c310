"""Distillation: keeps the embeddings of old classes in place, so that an old gallery can still be searched."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Hold:
    """The mean over a batch of  weight * |x - x_old|²,  for images of old classes; 0 for the others.

    A mean over independent images, like the discriminative loss, so it can be computed in pieces.

    Attributes:
        embed: inputs -> unit vectors of the old network.
        old: whether the old network was trained on each class.
        weight: weight of the term.
    """

    embed: Callable[[Tensor], Tensor]
    old: Bool[Tensor, " classes"]
    weight: float

    def __call__(
        self,
        inputs: Shaped[Tensor, "batch ..."],
        labels: Integer[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, ""]:
        with torch.no_grad():
            before = self.embed(inputs).to(embeddings)
        moved = (embeddings - before).square().sum(1)  # (batch,)
        return self.weight * (moved * self.old.to(labels.device)[labels]).mean()
