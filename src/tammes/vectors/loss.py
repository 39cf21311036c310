"""The loss of a learner, and its centroids."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor, nn

from tammes.centroids import CENTROIDS
from tammes.errors import UserError
from tammes.losses import OF_CLASS_LAYER

MOST_SAMPLED = 512  # classes that the loss samples for a batch, if it can


def placed(kind: str, classes: int, dim: int, seed: int) -> Float[Tensor, "classes dim"]:
    """The centroids of a kind, reproducible by the seed."""
    try:
        return CENTROIDS[kind](classes, dim, generator=torch.Generator().manual_seed(seed))
    except UserError as error:
        raise UserError(f"centroids={kind!r} for {classes} classes in {dim} dimensions: {error}") from None


def make_loss(
    name: str,
    options: Mapping[str, Any] | None,
    classes: int,
    outputs: int | None,
    centroids: Float[Tensor, "classes dim"] | None,
    sizes: Int64[ndarray, " classes"] | None,
    *,
    one_hot: bool,
) -> nn.Module:
    """A loss of `tammes.losses` by its name.

    Args:
        options: further options of the loss.
        outputs: outputs of the class layer; None without one.
        centroids: None for a loss without centroids.
        sizes: vectors of each class; None if unknown.
        one_hot: whether the centroids are one-hot.
    """
    given = dict(options or {})
    first: Any = classes
    if name == "softmax":
        if outputs != classes:
            raise UserError(
                f"loss='softmax' needs a class layer with one output for each of {classes} classes. "
                "Leave class_layer and centroid_dim out."
            )
    else:
        assert centroids is not None
        if not (one_hot and centroids.shape[1] == classes):  # these take no matrix product
            first = centroids
        given = {"class_sizes": None if sizes is None else sizes.tolist()} | given
    if name == "discriminative" and classes > MOST_SAMPLED and first is centroids:
        given = {"sample_classes": MOST_SAMPLED} | given
    try:
        return OF_CLASS_LAYER[name](first, **given)
    except TypeError as error:
        raise UserError(f"loss_options do not suit loss={name!r}: {error}.") from None
