"""The pooling at the end of a network, which makes one vector of a map: its mean over all places, or its maximum."""

from inspect import signature
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from tammes.errors import UserError

Pool = Literal["published", "mean", "max"]
_POOLS: dict[Pool, type[nn.Module]] = {"mean": nn.AdaptiveAvgPool2d, "max": nn.AdaptiveMaxPool2d}
_OF_TIMM: dict[Pool, str] = {"mean": "avg", "max": "max"}


def exchange_pool(network: nn.Module, pool: Pool, *, channels: int, size: int) -> None:
    """Let a network that makes vectors of images end in this pooling instead of the one that it was published with.

    Args:
        channels: of its images.
        size: their height and width.

    Raises:
        UserError: it does not end in a pooling over all places that could be exchanged.
    """
    if pool == "published":
        return
    if type(network).__module__.startswith("timm."):
        _exchange_in_timm(network, pool)
        return
    found = [
        (name, part)
        for name, part in network.named_modules()
        if isinstance(part, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d) and part.output_size in (1, (1, 1))
    ]
    if not found or not _is_last(network, found[-1][1], channels, size):
        raise _refused(network, pool)
    parent, _, child = found[-1][0].rpartition(".")
    setattr(network.get_submodule(parent), child, cast(Any, _POOLS[pool])(1))


def _exchange_in_timm(network: nn.Module, pool: Pool) -> None:
    reset: Any = getattr(network, "reset_classifier", None)
    if reset is None or "global_pool" not in signature(reset).parameters:
        raise _refused(network, pool)
    try:
        reset(0, global_pool=_OF_TIMM[pool])
    except (AssertionError, ValueError, RuntimeError) as error:  # a transformer that has a token for this
        raise _refused(network, pool) from error


@torch.no_grad()
def _is_last(network: nn.Module, part: nn.Module, channels: int, size: int) -> bool:
    """Whether the network's features are what this pooling gives: such layers are also used within blocks."""
    given: list[Tensor] = []
    hook = part.register_forward_hook(lambda _, __, output: given.append(output))
    was_training = network.training
    try:
        features: Tensor = network.eval()(torch.rand(1, channels, size, size))
    finally:
        hook.remove()
        network.train(was_training)
    return bool(given) and given[-1].flatten(1).shape == features.shape


def _refused(network: nn.Module, pool: Pool) -> UserError:
    return UserError(
        f"{type(network).__name__} does not end in a mean or maximum over all places, so `pool={pool!r}` cannot"
        " take its place. Leave `pool` out."
    )
