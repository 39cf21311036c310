"""Presets: named sets of training options. Options that are given override those of the preset."""

from dataclasses import dataclass, replace

from tammes.training.options import Init, OptimizerName, Pool, Schedule


@dataclass(frozen=True)
class Recipe:
    """The training options that a preset sets.

    Attributes:
        centroids: kind of class centroids.
        optimizer: sgd (with momentum) or adam (with decoupled weight decay).
        lr: learning rate of the new layers on top of the backbone.
        backbone_lr: learning rate of the backbone.
        momentum: momentum of sgd.
        weight_decay: weight decay; biases and normalisation have none.
        schedule: halve (every `halve_every` epochs) or cosine.
        halve_every: epochs.
        batch_size: images.
        epochs: passes over the training images.
        mirror: flip a random half of the images.
        shift: padding before the random crop, in pixels, for small images.
        init: initialisation of the embedding layer: random; pca, the principal directions of the features; whiten, the
            same after within-class whitening; or ridge, the same with the class layer in closed form too.
        keep_init: freeze the embedding layer after its initialisation.
        refit: compute the new layers again in closed form after the last epoch.
        pool: how the backbone's last feature map is pooled.
        crop_area: the smallest share of an image that a random crop covers.
        grow_from: height and width of the images in the first epoch; None for the network's input size.
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


# Exactly Do et al. 2019, section 4.2. Momentum is not stated there; 0.9 is that of the papers it follows.
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
# The best on validation classes of photos, and of glyphs and Omniglot: docs/log.md.
_PHOTOS = replace(_PAPER, centroids="place", schedule="cosine", batch_size=32, epochs=10, init="pca")
_CHARACTERS = replace(
    _PHOTOS, optimizer="adam", lr=1e-3, backbone_lr=1e-3, epochs=12, mirror=False, shift=2, init="random"
)
RECIPES: dict[str, Recipe] = {"paper": _PAPER, "characters": _CHARACTERS, "photos": _PHOTOS}
# The paper's recipe adapted to characters, which it does not cover: the small network is not pretrained, so all of it
# trains at the rate of the new layers; characters must not be mirrored; and they fill the image, so they are shifted
# instead of cropped.
RECIPES["paper, characters"] = replace(RECIPES["paper"], backbone_lr=0.1, mirror=False, shift=2)
# If a part of a pretrained network is frozen: at the usual learning rate the embedding layer would overfit to the
# training classes. The closed form generalises better to other classes: the layer is trained slowly from there, or
# stays frozen while the layers below it train.
RECIPES["photos, head"] = replace(RECIPES["photos"], init="whiten", lr=1e-3)
RECIPES["photos, top"] = replace(RECIPES["photos"], init="whiten", keep_init=True, epochs=2)
# All layers of a pretrained network: both new layers are initialised in closed form (decision 0025), and computed again
# at the end (decision 0028).
RECIPES["photos, all"] = replace(
    RECIPES["photos"], centroids="one-hot", init="ridge", keep_init=True, refit=True, epochs=3
)


def recipe_of(preset: str, backbone: str, train: str | None) -> Recipe:
    """The recipe of a preset; "default" depends on the backbone and on which layers train.

    Args:
        train: which layers of a pretrained network train; None for random weights.
    """
    if preset != "default":
        return RECIPES[f"{preset}, characters" if backbone == "conv4" else preset]
    if backbone == "conv4":
        return RECIPES["characters"]
    found = RECIPES["photos" if train is None else f"photos, {train}"]
    # Max pooling is better than mean pooling for GoogLeNet; other networks were not tried.
    return replace(found, pool="max") if backbone == "googlenet" and train is not None else found
