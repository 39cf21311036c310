"""Custom backbones: any nn.Module from images to vectors or feature maps."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tammes.errors import UserError, check_whole
from tammes.models.backbones.base import Backbone, measured
from tammes.models.pooling import Pool, exchange_pool, pool_layer

OWN = "module:"  # prefix of the name of a custom backbone, which no file can rebuild
_LIKE = "For an ImageNet network: size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)"


class Pooled(nn.Module):
    """A network of feature maps followed by global pooling."""

    def __init__(self, network: nn.Module, pool: Pool) -> None:
        super().__init__()
        self.network, self.pool = network, pool_layer(pool)

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.network(images))
        return pooled.flatten(1)


def name_of(module: nn.Module) -> str:
    """The name of a custom backbone in a run."""
    return f"{OWN}{type(module).__name__}"


def of_module(
    module: nn.Module,
    *,
    size: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    shorter_side: int | None = None,
    pool: Pool = "published",
) -> Backbone:
    """A copy of a module as a backbone.

    Args:
        module: (batch, channels, height, width) -> (batch, features), or feature maps (batch, channels, height, width),
            which are pooled by `pool` (by default their mean).
        size: height and width of its input; for a timm model by default from its configuration.
        mean: mean of each channel, for images in 0..1; a single number for grey images. Default as for `size`.
        std: standard deviation of each channel. Default as for `size`.
        shorter_side: the length to which the shorter side is scaled before the crop; by default 256 / 224 of `size`, or
            from timm's configuration.
    """
    if isinstance(getattr(module, "pretrained_cfg", None), dict):
        from timm.data.config import resolve_model_data_config

        wants = resolve_model_data_config(module)
        size = size or wants["input_size"][-1]
        shorter_side = shorter_side or round(size / wants["crop_pct"])
        mean, std = wants["mean"] if mean is None else mean, wants["std"] if std is None else std
    missing = [name for name, given in (("size", size), ("mean", mean), ("std", std)) if given is None]
    if missing:
        raise UserError(f"the input of {type(module).__name__} is unknown: give {', '.join(missing)}. {_LIKE}.")
    assert size is not None
    check_whole("size", size)
    shorter_side = shorter_side or round(size * 256 / 224)
    if shorter_side < size:
        raise UserError(f"shorter_side must be at least size={size}, got {shorter_side}.")
    means, stds = _channels("mean", mean), _channels("std", std)
    if len(means) != len(stds):
        raise UserError(f"mean has {len(means)} channels and std {len(stds)}: they must have the same number.")
    if not all(each > 0 for each in stds):
        raise UserError(f"std must be above 0, got {std}.")
    network = deepcopy(module)
    if _output(network, torch.zeros(2, len(means), size, size)).ndim == 4:
        network = Pooled(network, pool)
    else:
        exchange_pool(network, pool, channels=len(means), size=size)
    return measured(network, size, shorter_side, means, stds)


def _channels(name: str, given: float | Sequence[float] | None) -> tuple[float, ...]:
    found = (float(given),) if isinstance(given, int | float) else tuple(float(each) for each in given or ())
    if len(found) not in (1, 3):
        raise UserError(f"{name} must have 3 entries, for RGB images, or 1, for grey ones, got {len(found)}.")
    return found


@torch.no_grad()
def _output(network: nn.Module, images: Tensor) -> Tensor:
    """The output of the network for blank images; UserError unless it is vectors or feature maps."""
    was_training, what = network.training, type(network).__name__
    given = "x".join(map(str, images.shape))
    try:
        found = network.eval()(images)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{what} does not accept images of {given}: {error}") from error
    finally:
        network.train(was_training)
    if not isinstance(found, Tensor):
        raise UserError(
            f"{what} must give a tensor, got {type(found).__name__}. Wrap it in a module that returns the features."
        )
    if found.ndim not in (2, 4) or len(found) != len(images) or not found.is_floating_point():
        raise UserError(
            f"{what} must give vectors (batch, features) or maps (batch, channels, height, width) of floats, got"
            f" {found.dtype} {tuple(found.shape)} for images of {given}."
        )
    return found
