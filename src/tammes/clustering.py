"""K-means, for the cluster measures: scikit-learn's starts, Lloyd's iterations without what cannot have changed."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from tammes.errors import UserError
from tammes.neighbours import checked_vectors, highest_precision

_AT_ONCE = 1 << 22  # products in one block: 16 MB of float32
_ROWS_AT_ONCE = 1 << 20  # numbers that are added up in one block
_ITERATIONS, _TOLERANCE = 300, 1e-4  # those of scikit-learn


class Clustering(NamedTuple):
    """Where Lloyd's iterations end."""

    clusters: Int64[np.ndarray, " items"]
    centres: Float64[np.ndarray, "clusters dim"]
    spread: float
    """The sum of the squared distances of the vectors from their centres."""
    iterations: int


def kmeans(
    vectors: Float[np.ndarray, "items dim"] | Float[Tensor, "items dim"],
    num_clusters: int,
    *,
    seed: int = 0,
    restarts: int = 10,
) -> Int64[np.ndarray, " items"]:
    """The cluster of each vector, 0..num_clusters-1: k-means++ and Lloyd's iterations, the best of some restarts.

    The starts are those of scikit-learn's KMeans with the same seed, and so are the clusters but for rounding. The same
    seed gives the same clusters on the same number of threads. Where there are fewer distinct vectors than clusters,
    some clusters stay empty.
    """
    from sklearn.cluster import kmeans_plusplus  # a second to import

    array = checked_vectors(vectors)
    if not 1 <= num_clusters <= len(array):
        raise UserError(f"the number of clusters must be in 1..{len(array)}, one for each vector, got {num_clusters}.")
    centred = array - array.mean(axis=0, dtype=np.float64).astype(array.dtype)
    tolerance = _TOLERANCE * float(np.var(centred, axis=0).mean())
    random = np.random.RandomState(seed)
    best: Clustering | None = None
    for _ in range(restarts):
        centres, _ = kmeans_plusplus(centred, num_clusters, random_state=random)
        found = lloyd(centred, centres, tolerance=tolerance)
        if best is None or found.spread < best.spread:
            best = found
    assert best is not None, "restarts are at least 1"
    return best.clusters


def lloyd(
    vectors: Float[np.ndarray, "items dim"],
    centres: Float[np.ndarray, "clusters dim"],
    *,
    iterations: int = _ITERATIONS,
    tolerance: float = 0.0,
) -> Clustering:
    """Lloyd's iterations from given centres: each vector to its nearest centre, each centre to the mean of its vectors.

    They end when no vector changes its cluster, when the centres together move by no more than the tolerance (the sum
    of their squared ways), or after so many. A cluster that loses all its vectors takes the one that is farthest from
    its own centre. Products are in float32 about the mean of the vectors, the means in float64.

    What cannot have changed is not computed again: a vector whose own centre has stayed, or come nearer, is compared
    with the centres that have moved, and with no others.
    """
    middle = vectors.mean(axis=0, dtype=np.float64)
    points = torch.from_numpy((vectors - middle).astype(np.float32))  # (items, dim)
    means = torch.from_numpy(centres - middle)  # (clusters, dim), float64
    clusters = torch.zeros(len(points), dtype=torch.int64)
    nearest = torch.full((len(points),), torch.inf)  # |c|² - 2 x·c of the own centre
    moved = torch.ones(len(means), dtype=torch.bool)
    done = 0
    with highest_precision():
        while done < iterations:
            changed = _assign(points, means, moved, clusters, nearest)
            done += 1
            if not changed.any():
                moved[:] = False
                break
            before = means.clone()
            _average(points, clusters, nearest, changed, means)
            ways = (means - before).square().sum(dim=1)  # (clusters,)
            moved = ways > 0
            if float(ways.sum()) <= tolerance:
                break
        if bool(moved.any()):
            _assign(points, means, moved, clusters, nearest)  # the clusters are those of the centres that are returned
    found = clusters.numpy()
    spread = _spread(points, means, clusters)
    return Clustering(found, means.numpy() + middle, spread, done)


def _assign(
    points: Tensor, means: Tensor, moved: Tensor, clusters: Tensor, nearest: Tensor
) -> Bool[Tensor, " clusters"]:
    """Each vector to its nearest centre, in place; and which clusters have lost or won one."""
    changed = torch.zeros(len(means), dtype=torch.bool)
    table = torch.cat([means, means.square().sum(dim=1, keepdim=True)], dim=1).float()  # (clusters, dim + 1)
    which = moved.nonzero().squeeze(1)
    parts: list[tuple[Tensor, Tensor | None]]  # which vectors, and with which centres; None: all
    if len(which) < len(means):
        own = moved[clusters].nonzero().squeeze(1)  # vectors whose own centre has moved
        value = (points[own] * table[clusters[own], :-1]).sum(dim=1).mul_(-2).add_(table[clusters[own], -1])
        away = value > nearest[own]
        nearest[own[~away]] = value[~away]
        everything = torch.zeros(len(points), dtype=torch.bool)
        everything[own[away]] = True
        parts = [(everything.nonzero().squeeze(1), None), ((~everything).nonzero().squeeze(1), which)]
    else:
        parts = [(torch.arange(len(points)), None)]
    for rows, columns in parts:
        against = table if columns is None else table[columns]
        size = max(1, _AT_ONCE // max(1, len(against)))
        for start in range(0, len(rows) if len(against) else 0, size):
            some = rows[start : start + size]
            block = torch.addmm(against[:, -1], points[some], against[:, :-1].T, alpha=-2)  # (rows, centres)
            value, place = block.min(dim=1)
            place = place if columns is None else columns[place]
            nearer = torch.ones_like(value, dtype=torch.bool) if columns is None else value < nearest[some]
            some, value, place = some[nearer], value[nearer], place[nearer]
            other = place != clusters[some]
            if bool(torch.isinf(nearest[some]).any()):
                other = torch.ones_like(other)  # the first time
            changed[clusters[some][other]] = True
            changed[place[other]] = True
            clusters[some], nearest[some] = place, value
    return changed


def _average(points: Tensor, clusters: Tensor, nearest: Tensor, changed: Tensor, means: Tensor) -> None:
    """Each centre to the mean of its vectors, in place, where the cluster has changed."""
    owner = clusters
    sizes = torch.bincount(clusters, minlength=len(means))
    empty = (sizes == 0).nonzero().squeeze(1)
    if len(empty):
        distances = nearest.double() + _squares(points)
        far = distances.topk(len(empty)).indices
        if float(distances[far[0]]) > 1e-6 * float(_squares(points).max()):  # else all lie on their centres
            owner, changed = clusters.clone(), changed.clone()
            changed[clusters[far]] = True
            owner[far] = empty
            changed[empty] = True
            sizes = torch.bincount(owner, minlength=len(means))
    rows = changed[owner].nonzero().squeeze(1)
    sums = torch.zeros_like(means)
    size = max(1, _ROWS_AT_ONCE // points.shape[1])
    for some in rows.split(size):
        sums.index_add_(0, owner[some], points[some].double())
    filled = changed & (sizes > 0)
    means[filled] = sums[filled] / sizes[filled, None]


def _squares(points: Tensor) -> Float64[Tensor, " items"]:
    size = max(1, _ROWS_AT_ONCE // points.shape[1])
    return torch.cat([part.double().square().sum(dim=1) for part in points.split(size)])


def _spread(points: Tensor, means: Tensor, clusters: Tensor) -> float:
    size = max(1, _ROWS_AT_ONCE // points.shape[1])
    parts = zip(points.split(size), clusters.split(size), strict=True)
    return float(sum((part.double() - means[own]).square().sum() for part, own in parts))
