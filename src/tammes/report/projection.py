"""Maps of embeddings: projections to two dimensions that keep neighbours together."""

from typing import Literal

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray

Way = Literal["tsne", "pca"]
_BEFORE = 50  # principal components that t-SNE uses
_PERPLEXITY = 30.0
_STEPS = 500


def flat(vectors: Float[ndarray, "items dim"], way: Way = "tsne", *, seed: int = 0) -> Float64[ndarray, "items 2"]:
    """The coordinates of each item on the map, within 0..1.

    Args:
        way: "tsne" keeps neighbours together; "pca" projects onto the two first principal components, which is instant.
            Very few items are always projected by pca.
    """
    points = np.asarray(vectors, dtype=np.float64)
    points = _principal(points - points.mean(axis=0), _BEFORE)
    if way == "tsne" and len(points) > 10:
        points = _tsne(points, seed)
    points = points[:, :2] if points.shape[1] > 1 else np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    low, high = points.min(axis=0), points.max(axis=0)
    # One scale for both directions: distances on the map can be compared.
    span = float((high - low).max()) or 1.0
    return np.asarray(0.5 + (points - (low + high) / 2) / span)


def shown_items(labels: Int64[ndarray, " items"], most: int, *, seed: int = 0) -> Int64[ndarray, " shown"]:
    """The items that a map shows: all, or a random sample."""
    if len(labels) <= most:
        return np.arange(len(labels))
    return np.sort(np.random.default_rng(seed).permutation(len(labels))[:most])


def _principal(centred: ndarray, number: int) -> ndarray:
    """The first principal components, with a deterministic sign."""
    values, directions = np.linalg.eigh(centred.T @ centred)
    directions = directions[:, np.argsort(values)[::-1][: min(number, len(centred))]]
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    return np.asarray(centred @ directions)


def _tsne(points: ndarray, seed: int) -> ndarray:
    from sklearn.manifold import TSNE

    start = points[:, :2] if points.shape[1] > 1 else np.pad(points, ((0, 0), (0, 1)))
    spread = float(start[:, 0].std())
    if not spread > 1e-12:
        return points  # all in one place: there is nothing to lay out, and scikit-learn would not survive it
    # No two items begin in the very same place, from which nothing would move them apart.
    start = start / spread + 1e-3 * np.random.default_rng(seed).normal(size=start.shape)
    found = TSNE(
        2,
        init=(1e-4 * start).astype(np.float32),
        perplexity=min(_PERPLEXITY, (len(points) - 1) / 3),
        max_iter=_STEPS,
        random_state=seed,
    ).fit_transform((points / spread).astype(np.float32))
    return np.asarray(found, dtype=np.float64)
