"""What the tests of methods that are more than a loss share: features of labelled images, an embedder, gradients."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from tammes.models.embedder import Embedder, EmbedderConfig
from tests.oracles import seeded

FEATURES = 64  # of conv4


def problem(
    sizes: list[int], dtype: torch.dtype = torch.float64, seed: int = 0, *, features: int = FEATURES, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Features of so many images of each class, in no order, and their labels."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=seeded(seed))]
    drawn = torch.randn(len(labels), features, generator=seeded(seed + 1), dtype=torch.float64)
    return (scale * drawn).to(dtype), labels


@cache
def _embedder(dim: int, dtype: torch.dtype) -> Embedder:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("conv4", dim))
    with torch.no_grad():
        embedder.new_layers()[0].bias.normal_(generator=seeded(2))
    return embedder.to(dtype)


def embedder_of(dim: int, dtype: torch.dtype = torch.float64) -> Embedder:
    """One without heads, the same for all tests, without gradients."""
    embedder = _embedder(dim, dtype)
    embedder.zero_grad()
    return embedder


def value_and_gradients(
    network: Embedder, loss: Callable[[Tensor], Tensor], features: Tensor, more: nn.Module | None = None
) -> tuple[Tensor, ...]:
    """The loss, and its gradient by the features, the layers, and what the loss learns itself."""
    z = features.clone().requires_grad_()
    value = loss(z)
    trained = [z, *network.penultimate.parameters(), *(more.parameters() if more is not None else ())]
    return value, *torch.autograd.grad(value, trained)


def sum_of(loss: nn.Module, labels: Tensor, network: Embedder) -> Callable[[Tensor], Tensor]:
    """Features -> the sum of its parts, which whoever trains makes small."""
    return lambda z: torch.stack(list(loss(z, labels, network).values())).sum()
