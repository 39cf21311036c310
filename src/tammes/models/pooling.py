"""Global pooling: the last feature map of a network as one vector."""

from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tammes.errors import UserError

Pool = Literal["published", "token", "mean", "max", "mean-max", "gem"]
# timm's names. Its networks have no generalised mean; for that, their pooling layer is replaced.
TIMM_NAMES: dict[Pool, str] = {"token": "token", "mean": "avg", "max": "max", "mean-max": "avgmax"}
GEM_POWER = 3.0
_SMALLEST = 1e-6  # 0 has no gradient under the root


class MeanMaxPool(nn.Module):
    """The mean of global mean pooling and global max pooling."""

    def forward(self, maps: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels 1 1"]:
        return (maps.mean((2, 3), keepdim=True) + maps.amax((2, 3), keepdim=True)) / 2


class GeM(nn.Module):
    """Generalised mean pooling, (mean x^p)^(1/p) with p = 3: between mean (p = 1) and maximum (p = infinity).

    Radenović et al., Fine-tuning CNN Image Retrieval with No Human Annotation. The power is fixed, not learned.
    """

    def forward(self, maps: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels 1 1"]:
        powers = maps.float().clamp(min=_SMALLEST) ** GEM_POWER  # overflows in half precision
        return (powers.mean((2, 3), keepdim=True) ** (1 / GEM_POWER)).to(maps.dtype)


def pool_layer(pool: Pool) -> nn.Module:
    """A global pooling layer: (batch, channels, height, width) -> (batch, channels, 1, 1)."""
    if pool == "token":
        raise UserError("`pool='token'` is the class token of a transformer, and this network has feature maps.")
    if pool == "mean-max":
        return MeanMaxPool()
    if pool == "gem":
        return GeM()
    return nn.AdaptiveMaxPool2d(1) if pool == "max" else nn.AdaptiveAvgPool2d(1)


def exchange_pool(network: nn.Module, pool: Pool, *, channels: int, size: int) -> None:
    """Replace the final pooling of a network.

    Args:
        channels: channels of its input.
        size: height and width of its input.

    Raises:
        UserError: it does not end in a global pooling that can be replaced.
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
    if pool == "token" or not found or not _is_last(network, found[-1][1], channels, size):
        raise _refused(network, pool)
    _put(network, found[-1][0], pool_layer(pool))


def _exchange_in_timm(network: nn.Module, pool: Pool) -> None:
    if pool == "gem":
        from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d

        found = [(name, part) for name, part in network.named_modules() if isinstance(part, SelectAdaptivePool2d)]
        # Networks with channels last pass maps of another shape to their pooling.
        if not found or getattr(network, "output_fmt", "NCHW") != "NCHW":
            raise _refused(network, pool)
        name, part = found[-1]
        _put(network, name, nn.Sequential(GeM(), part.flatten))
        return
    reset: Any = getattr(network, "reset_classifier", None)
    if reset is None or "global_pool" not in signature(reset).parameters:
        raise _refused(network, pool)
    try:
        reset(0, global_pool=TIMM_NAMES[pool])
    except (AssertionError, ValueError, RuntimeError) as error:  # no class token, or nothing but one
        raise _refused(network, pool) from error


def _put(network: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)


@torch.no_grad()
def _is_last(network: nn.Module, part: nn.Module, channels: int, size: int) -> bool:
    """Whether the network's features are the output of this pooling layer, as such layers are also used in blocks."""
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
    what = "has no class token" if pool == "token" else "does not end in global mean or max pooling"
    return UserError(f"{type(network).__name__} {what}, so it cannot have `pool={pool!r}`. Leave `pool` out.")
