"""Nearest neighbours in a few lines: the slow reference that `neighbours` is tested against.

Distances are computed from the differences in float64, and the whole gallery is sorted for every query.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64, Integer

from tammes.search.neighbours import Neighbours


def squared_distances(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "gallery dim"],
    *,
    itself: Integer[np.ndarray, " queries"] | None = None,
    query_groups: Integer[np.ndarray, " queries"] | None = None,
    gallery_groups: Integer[np.ndarray, " gallery"] | None = None,
) -> Float64[np.ndarray, "queries gallery"]:
    """Squared distances of every query to every item; infinite for excluded items. Arguments as for `search`."""
    result = np.stack([np.square(query.astype(np.float64) - gallery).sum(axis=1) for query in queries])
    if itself is not None:
        result[itself[:, None] == np.arange(len(gallery))] = np.inf
    if query_groups is not None and gallery_groups is not None:
        result[query_groups[:, None] == gallery_groups] = np.inf
    return result


def search(
    queries: Float[np.ndarray, "queries dim"], gallery: Float[np.ndarray, "gallery dim"], k: int, **left_out: Any
) -> Neighbours:
    """The same result as `neighbours.search`.

    >>> search(np.array([[0.0], [3.0]]), np.array([[1.0], [-1.0], [5.0]]), k=1).ids.tolist()
    [[0], [0]]
    """
    squared = squared_distances(queries, gallery, **left_out)
    ids = np.argsort(squared, axis=1, kind="stable")[:, :k]  # tied ones in the order of the gallery
    found = np.take_along_axis(squared, ids, axis=1)  # (queries, k)
    last, nothing = found[:, -1:], np.isinf(found)
    cut: Int64[np.ndarray, " queries"] = (squared == last).sum(axis=1) - (found == last).sum(axis=1)
    return Neighbours(np.sqrt(found), np.where(nothing, -1, ids), np.where(nothing[:, -1], 0, cut))
