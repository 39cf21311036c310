"""Presets: named sets of training options; every option given by hand overrides the preset's."""

from dataclasses import dataclass, replace
from typing import Literal

from tammes.models.pooling import Pool


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, beside data, network and loss.

    Attributes:
        centroids: which centroids the loss measures distances to.
        optimizer: sgd (with momentum) or adam (with decoupled weight decay).
        rate: learning rate of the new layers on top of the backbone.
        backbone_rate: learning rate of the backbone.
        momentum: of sgd.
        weight_decay: of all weights, not of biases and normalisation.
        schedule: halve (every `halve_every` epochs) or cosine.
        halve_every: epochs.
        batch_size: images.
        epochs: passes over the training images.
        mirror: flip half of the images, fresh each epoch.
        shift: pixels by which small images are moved at random; larger ones are cropped.
        start: what the penultimate layer begins as: random; pca, the principal directions of the features; or whiten,
            the same after directions in which the images of a class differ much have been made short.
        keep_start: whether the penultimate layer stays as it began, and only what lies below and above it trains.
        pool: how the backbone's last map becomes a vector: its mean or maximum, or as the network was published.
    """

    centroids: str
    optimizer: Literal["sgd", "adam"]
    rate: float
    backbone_rate: float
    momentum: float
    weight_decay: float
    schedule: Literal["halve", "cosine"]
    halve_every: int
    batch_size: int
    epochs: int
    mirror: bool
    shift: int
    start: Literal["random", "pca", "whiten"] = "random"
    keep_start: bool = False
    pool: Pool = "published"


RECIPES: dict[str, Recipe] = {
    # Do et al. 2019, section 4.2, to the letter; momentum is not stated there, and 0.9 in all of its lineage.
    "paper": Recipe(
        centroids="one-hot",
        optimizer="sgd",
        rate=0.1,
        backbone_rate=0.01,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="halve",
        halve_every=5,
        batch_size=128,
        epochs=40,
        mirror=True,
        shift=0,
    ),
    # The best on validation classes of glyphs and Omniglot of those tried: docs/log.md.
    "characters": Recipe(
        centroids="place",
        optimizer="adam",
        rate=1e-3,
        backbone_rate=1e-3,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="cosine",
        halve_every=5,
        batch_size=32,
        epochs=12,
        mirror=False,
        shift=2,
    ),
    # The same for photographs.
    "pictures": Recipe(
        centroids="place",
        optimizer="sgd",
        rate=0.1,
        backbone_rate=0.01,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="cosine",
        halve_every=5,
        batch_size=32,
        epochs=10,
        mirror=True,
        shift=0,
        start="pca",
    ),
}
# The paper's for characters, which it has none of: their small network is not pretrained, so all of it trains at the
# rate of the new layers; a mirrored character is another character; and what fills the whole image cannot be cropped,
# so it is shifted instead.
RECIPES["paper, characters"] = replace(RECIPES["paper"], backbone_rate=0.1, mirror=False, shift=2)
# And where a part of a pretrained network is frozen: trained as fast as the others, the embedding layer would learn the
# training classes by heart. What is found for it in closed form carries over to other classes better: it is trained
# gently from there, or stays so while the layers below it train.
RECIPES["pictures, head"] = replace(RECIPES["pictures"], start="whiten", rate=1e-3)
RECIPES["pictures, top"] = replace(RECIPES["pictures"], start="whiten", keep_start=True, epochs=2)


def recipe_of(preset: str, backbone: str, train: str | None) -> Recipe:
    """The recipe of a preset; `default` is what was found best for what the backbone is for, and what of it trains."""
    if preset != "default":
        return RECIPES[f"{preset}, characters" if backbone == "conv4" else preset]
    if backbone == "conv4":
        return RECIPES["characters"]
    found = RECIPES[f"pictures, {train}" if train in ("head", "top") else "pictures"]
    # GoogLeNet's last map holds more in its maxima than in its means; other networks were not tried.
    return replace(found, pool="max") if backbone == "googlenet" and train in ("head", "top") else found
