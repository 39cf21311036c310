"""The networks that turn images into features: conv4, and any name of torchvision or timm."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import torch
from torch import Tensor, nn

from tammes.backbones.conv4 import Conv4
from tammes.errors import UserError

OURS = ("conv4",)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, and the images that it wants.

    Attributes:
        network: (batch, channels, height, width) -> (batch, features).
        features: how many features it gives.
        mode: "L" for grey images, "RGB" for colour.
        size: height and width of its input.
        shorter_side: what images are scaled to before the crop of `size`.
        mean: of a channel, for images in 0..1.
        std: likewise.
    """

    network: nn.Module
    features: int
    mode: Literal["RGB", "L"]
    size: int
    shorter_side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def backbone(name: str, *, pretrained: bool = False) -> Backbone:
    """The network of that name: conv4, torchvision's, or timm's (`torchvision:NAME` or `timm:NAME` to insist)."""
    library, _, plain = name.rpartition(":")
    if library not in ("", "torchvision", "timm"):
        raise UserError(f"unknown library {library!r} in backbone {name!r}. Known: timm, torchvision.")
    if plain == "conv4" and not library:
        if pretrained:
            raise UserError("conv4 has no pretrained weights: it is trained from scratch. Drop --pretrained.")
        return Backbone(Conv4(), 64, "L", 28, 28, (0.5,), (0.5,))
    if library != "timm" and plain in _torchvision_names():
        return _of_torchvision(plain, pretrained=pretrained)
    if library != "torchvision":
        from timm import is_model

        if is_model(plain):
            return _of_timm(plain, pretrained=pretrained)
    raise _unknown(name, plain)


def _of_torchvision(name: str, *, pretrained: bool) -> Backbone:
    from torchvision.models import get_model, get_model_weights

    # These two warn that their slow initialisation will go; torch's own is as good, and the one of the others.
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") and not pretrained else {}
    network = get_model(name, weights=get_model_weights(name).DEFAULT if pretrained else None, **options)
    if hasattr(network, "aux_logits"):  # GoogLeNet and Inception: the side heads see ImageNet's classes only
        network.aux_logits, network.aux1, network.aux2, network.AuxLogits = False, None, None, None
    last = [place for place, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not last:
        raise UserError(
            f"{name} of torchvision ends in no linear layer, so its features are not known. Try timm:{name}."
        )
    parent, _, child = last[-1].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    size = 299 if name == "inception_v3" else 224
    return Backbone(
        network, _features(network, size), "RGB", size, round(size * 256 / 224), _IMAGENET_MEAN, _IMAGENET_STD
    )


def _of_timm(name: str, *, pretrained: bool) -> Backbone:
    from timm import create_model
    from timm.data.config import resolve_model_data_config

    network = create_model(name, pretrained=pretrained, num_classes=0)
    wants = resolve_model_data_config(network)
    size = wants["input_size"][-1]
    shorter_side = round(size / wants["crop_pct"])
    mean, std = tuple(map(float, wants["mean"])), tuple(map(float, wants["std"]))
    return Backbone(network, _features(network, size), "RGB", size, shorter_side, mean, std)


@torch.no_grad()
def _features(network: nn.Module, size: int) -> int:
    was_training = network.training
    features: Tensor = network.eval()(torch.zeros(1, 3, size, size))
    network.train(was_training)
    if features.ndim != 2:
        raise UserError(f"the backbone gives features of shape {tuple(features.shape)}; one vector an image is needed.")
    return features.shape[1]


def _torchvision_names() -> list[str]:
    """Its classifiers; detectors and networks for video see other things than one image."""
    from torchvision import models

    return list(models.list_models(module=models))


def _unknown(name: str, plain: str) -> UserError:
    from timm import list_models as timm_models

    known = [*OURS, *_torchvision_names(), *timm_models()]
    near = get_close_matches(plain, known, n=3)
    hint = f" Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""
    return UserError(f"unknown backbone {name!r}.{hint} Known: conv4, and every name of torchvision and timm.")
