"""Backbone: a network from images to features, with its input size and normalisation."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tammes.errors import UserError
from tammes.models.backbones.cuts import cut_points, default_cut, default_depths, shares_above
from tammes.models.backbones.resnet import Form


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, and its input.

    Attributes:
        network: (batch, channels, height, width) -> (batch, features).
        features: number of features.
        mode: "L" for grey images, "RGB" for colour.
        size: height and width of its input.
        shorter_side: length of the shorter side to which images are scaled before the crop of `size`.
        mean: mean of each channel, for images in 0..1.
        std: standard deviation of each channel, for images in 0..1.
        cuts: the modules at which it can be cut in two, lowest first; see `tammes.models.backbones.cuts`.
        default_cut: the default cut.
        depths: two modules whose inputs are features for methods that use several depths.
        form: the form of the network, for those that have several.
        resized: whether `size` differs from the published size.
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
    """The Backbone of any network: number of features, cuts and depths are determined by a forward pass."""
    cuts, was_training = cut_points(network), network.training
    features, above = shares_above(network.eval(), torch.zeros(1, len(mean), size, size), cuts)
    network.train(was_training)
    if features.ndim != 2:
        raise UserError(
            f"the backbone gives features of shape {tuple(features.shape)}; one vector per image is needed."
        )
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
