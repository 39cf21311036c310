"""Presets: named sets of training options; every option given by hand overrides the preset's."""

from dataclasses import dataclass, replace

from tammes.training.options import Init, OptimizerName, Pool, Schedule


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, beside data, network and loss.

    Attributes:
        centroids: which centroids the loss measures distances to.
        optimizer: sgd (with momentum) or adam (with decoupled weight decay).
        lr: learning rate of the new layers on top of the backbone.
        backbone_lr: learning rate of the backbone.
        momentum: of sgd.
        weight_decay: of all weights, not of biases and normalisation.
        schedule: halve (every `halve_every` epochs) or cosine.
        halve_every: epochs.
        batch_size: images.
        epochs: passes over the training images.
        mirror: flip half of the images, drawn again each epoch.
        shift: pixels by which small images are moved at random; larger ones are cropped.
        init: initialisation of the embedding layer: random; pca, the principal directions of the features; whiten, the
            same after within-class whitening; or ridge, the same with the class layer in closed form too.
        keep_init: whether the embedding layer stays so, and only the layers below and above it train.
        refit: whether the new layers are found again in closed form after the last epoch.
        pool: how the backbone's last map becomes a vector: its mean or maximum, or as the network was published.
        crop_area: the smallest share of an image that a random crop covers.
        grow_from: height and width of the images in the first epoch; None: as the network has them, from the first on.
    """

    centroids: str
    optimizer: OptimizerName
    lr: float
    backbone_lr: float
    momentum: float
    weight_decay: float
    schedule: Schedule
    halve_every: int
    batch_size: int
    epochs: int
    mirror: bool
    shift: int
    init: Init = "random"
    keep_init: bool = False
    refit: bool = False
    pool: Pool = "published"
    crop_area: float = 1.0
    grow_from: int | None = None


# Do et al. 2019, section 4.2, to the letter; momentum is not stated there, and 0.9 in all of its lineage.
_PAPER = Recipe(
    centroids="one-hot",
    optimizer="sgd",
    lr=0.1,
    backbone_lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    schedule="halve",
    halve_every=5,
    batch_size=128,
    epochs=40,
    mirror=True,
    shift=0,
)
# The best of those tried on validation classes of photos, and of glyphs and Omniglot: docs/log.md.
_PHOTOS = replace(_PAPER, centroids="place", schedule="cosine", batch_size=32, epochs=10, init="pca")
_CHARACTERS = replace(
    _PHOTOS, optimizer="adam", lr=1e-3, backbone_lr=1e-3, epochs=12, mirror=False, shift=2, init="random"
)
RECIPES: dict[str, Recipe] = {"paper": _PAPER, "characters": _CHARACTERS, "photos": _PHOTOS}
# The paper's for characters, which it has none of: their small network is not pretrained, so all of it trains at the
# rate of the new layers; a mirrored character is another character; and what fills the whole image cannot be cropped,
# so it is shifted instead.
RECIPES["paper, characters"] = replace(RECIPES["paper"], backbone_lr=0.1, mirror=False, shift=2)
# And where a part of a pretrained network is frozen: trained as fast as the others, the embedding layer would learn the
# training classes by heart. What is found for it in closed form carries over to other classes better: it is trained
# gently from there, or stays so while the layers below it train.
RECIPES["photos, head"] = replace(RECIPES["photos"], init="whiten", lr=1e-3)
RECIPES["photos, top"] = replace(RECIPES["photos"], init="whiten", keep_init=True, epochs=2)
# Every layer of a pretrained network: both new layers begin in closed form (decision 0025), and are found again at the
# end (decision 0028).
RECIPES["photos, all"] = replace(
    RECIPES["photos"], centroids="one-hot", init="ridge", keep_init=True, refit=True, epochs=3
)


def recipe_of(preset: str, backbone: str, train: str | None) -> Recipe:
    """The recipe of a preset; `default` is what was found best for what the backbone is for, and what of it trains.

    Args:
        train: which layers of a pretrained network; None where the weights are random.
    """
    if preset != "default":
        return RECIPES[f"{preset}, characters" if backbone == "conv4" else preset]
    if backbone == "conv4":
        return RECIPES["characters"]
    found = RECIPES["photos" if train is None else f"photos, {train}"]
    # GoogLeNet's last map holds more in its maxima than in its means; other networks were not tried.
    return replace(found, pool="max") if backbone == "googlenet" and train is not None else found
