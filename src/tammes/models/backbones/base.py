"""What is known of a network that turns images into features."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tammes.errors import UserError
from tammes.models.backbones.cuts import cut_points, default_cut, default_depths, shares_above
from tammes.models.backbones.resnet import Form


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
        cuts: the places where it can be cut in two, lowest first; see `tammes.models.backbones.cuts`.
        default_cut: the one to use if none is named.
        depths: two of them, far apart: features are taken from what enters these, by methods that want several depths.
        form: which form of the network it is, of those that have several.
        resized: whether `size` is another than the one that it was published with.
    """

    network: nn.Module
    features: int
    mode: Literal["RGB", "L"]
    size: int
    shorter_side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    cuts: tuple[str, ...] = ()
    default_cut: str | None = None
    depths: tuple[str, ...] = ()
    form: Form | None = None
    resized: bool = False


@torch.no_grad()
def measured(
    network: nn.Module, size: int, shorter_side: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Backbone:
    """The backbone of a network that says nothing itself: its features and where it can be cut are found out."""
    cuts, was_training = cut_points(network), network.training
    features, above = shares_above(network.eval(), torch.zeros(1, len(mean), size, size), cuts)
    network.train(was_training)
    if features.ndim != 2:
        raise UserError(f"the backbone gives features of shape {tuple(features.shape)}; one vector an image is needed.")
    return Backbone(
        network,
        features.shape[1],
        "L" if len(mean) == 1 else "RGB",
        size,
        shorter_side,
        mean,
        std,
        cuts,
        default_cut(above),
        default_depths(above),
    )
