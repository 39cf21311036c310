"""Initialisation of a learner: network, loss, and the weights of the first layer."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor

from tammes.models.whitening import directions
from tammes.vectors.loss import make_loss, placed
from tammes.vectors.network import MOST_DIMENSIONS, Network
from tammes.vectors.options import Init, widths
from tammes.vectors.ridge import Ridge, Sums
from tammes.vectors.statistics import Rows

if TYPE_CHECKING:
    from tammes.vectors.learner import MetricLearner

MOST_OUTPUTS = 512  # of the class layer: the loss costs classes × outputs for every vector

MOST_FOR_INIT = 16384  # vectors used for the initialisation


def spread(
    codes: Int64[ndarray, " items"], rows: Int64[ndarray, " rows"], random: np.random.Generator
) -> Int64[ndarray, " chosen"]:
    """Not many more than `MOST_FOR_INIT` of the rows: the same number of each class, or all of some classes."""
    if len(rows) <= MOST_FOR_INIT:
        return rows
    shuffled = random.permutation(rows)
    rank = random.permutation(int(codes.max()) + 1)[codes[shuffled]]
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], rank[order])  # where the class of each begins
    each = max(16, MOST_FOR_INIT // len(np.unique(rank)))
    return np.sort(shuffled[order[np.arange(len(rows)) - first < each]][:MOST_FOR_INIT])


def set_loss(
    learner: "MetricLearner", dim: int, codes: Int64[ndarray, " rows"] | None
) -> Float[Tensor, "classes dim"] | None:
    """Create the loss for the training vectors. Returns its centroids, or None.

    Args:
        codes: the classes of all training vectors, if they are known; held-out classes have none.
    """
    classes, outputs, one_hot = len(learner.classes_), _outputs(learner), learner.centroids == "one-hot"
    sizes = None if codes is None else np.bincount(codes, minlength=classes)
    centroids = None if learner.loss == "softmax" else placed(learner.centroids, classes, outputs or dim, learner._seed)
    learner._loss = make_loss(learner.loss, learner.loss_options, classes, outputs, centroids, sizes, one_hot=one_hot)
    return centroids


def _outputs(learner: "MetricLearner") -> int | None:
    """The outputs of the class layer; None without one."""
    classes = len(learner.classes_)
    one_each = classes <= MOST_OUTPUTS or learner.centroids == "one-hot" or learner.loss == "softmax"
    return int(learner.centroid_dim or (classes if one_each else MOST_OUTPUTS)) if learner.class_layer else None


def whitened(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    random: np.random.Generator,
) -> Network:
    """The whitening of some rows around their mean, in closed form."""
    dim = int(learner.dim or min(MOST_DIMENSIONS, max(2, X.shape[1])))
    sample = spread(codes, rows, random)
    network = Network(X.shape[1], (), dim, None)
    network.init_from(directions(learner._standardised(X, sample), codes[sample]))
    return network.eval()


def make(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    validation: Int64[ndarray, " validation"],
    random: np.random.Generator,
    *,
    init: Init,
    centre: bool | None,
    all_there: bool = True,
) -> tuple[Init, bool]:
    """The network and the loss before training, and the resolved values of `init` and `centre`.

    Args:
        rows: the training rows.
        all_there: whether these are all vectors, so that class sizes are known.
    """
    classes, columns, hidden = len(learner.classes_), X.shape[1], widths(learner.hidden)
    dim = int(learner.dim or min(MOST_DIMENSIONS, max(2, columns)))
    network = learner.network_ = Network(columns, hidden, dim, _outputs(learner), float(learner.dropout))
    centroids = set_loss(learner, dim, codes[rows] if all_there else None)
    if init == "random":
        return init, True
    kinds: list[Init] = [init]
    if init == "auto":
        kinds = ["pca"] if hidden else ["pca", "whiten"] if len(validation) else ["whiten"]
        if len(kinds) > 1 and centre is not False:
            kinds.append("ridge")
    beginnings: dict[tuple[Init, bool], Callable[[], None]] = {}
    if kinds != ["ridge"]:
        sample = spread(codes, rows, random)
        vectors, zero = learner._standardised(X, sample), -learner.mean_ / learner.scale_
        centres = [True, False] if centre is None and len(validation) and not hidden else [centre is not False]
        for kind in (each for each in kinds if each != "ridge"):
            found = directions(vectors, codes[sample] if kind == "whiten" else None)
            beginnings |= {(kind, of): partial(network.init_from, found, None if of else zero) for of in centres}
    if "ridge" in kinds:
        # Of its own accord it takes none that there may not be in this dimension, or that take long to place.
        kind_of = learner.centroids if learner.init == "ridge" else "place" if classes <= 2 * dim else "random"
        sums = Sums(columns, classes)
        sums.add_all(X, codes, rows, *learner._first)
        regression = Ridge(sums, placed(kind_of, classes, dim, learner._seed), learner.scale)
        best = learner.regularisation or regression.best_by_cross_validation()
        goal = torch.eye(classes) if centroids is None else centroids
        beginnings["ridge", True] = partial(network.init_from_ridge, regression, best, goal)
    chosen = next(iter(beginnings))
    if len(beginnings) > 1:
        before, recalls = deepcopy(network.state_dict()), {}
        for key, begin in beginnings.items():
            begin()
            recalls[key] = learner._validated(X, codes, validation) or 0.0
            network.load_state_dict(before)
        chosen = max(recalls, key=lambda key: recalls[key])
    beginnings[chosen]()
    if chosen[0] == "ridge":
        learner.regularisation_ = best
    return chosen
