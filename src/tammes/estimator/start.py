"""What the first layer begins as: directions that are found in the vectors."""

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from scipy.sparse import csr_array

MOST_TO_START = 16384  # vectors that decide the principal directions


def spread(
    codes: Int64[ndarray, " items"], rows: Int64[ndarray, " rows"], random: np.random.Generator
) -> Int64[ndarray, " chosen"]:
    """Not many more than `MOST_TO_START` of the rows: the same number of each class, or all of some classes."""
    if len(rows) <= MOST_TO_START:
        return rows
    shuffled = random.permutation(rows)
    rank = random.permutation(int(codes.max()) + 1)[codes[shuffled]]
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], rank[order])  # where the class of each begins
    each = max(16, MOST_TO_START // len(np.unique(rank)))
    return np.sort(shuffled[order[np.arange(len(rows)) - first < each]][:MOST_TO_START])


def directions(
    vectors: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"] | None
) -> Float64[ndarray, "columns directions"]:
    """Principal directions, the one along which the vectors vary most first.

    With labels, of the vectors after each direction has been divided by how much the members of a class differ in it.
    A direction in which they hardly do is not blown up: their mean variance is added to that of every direction.
    """
    centred = vectors - vectors.mean(axis=0)
    total = centred.T @ centred
    if codes is None:
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    _, own, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    member = csr_array((np.ones(len(own)), (own.reshape(-1), np.arange(len(own)))), shape=(len(sizes), len(own)))
    apart = centred - ((member @ centred) / sizes[:, None])[own.reshape(-1)]
    values, turn = np.linalg.eigh(apart.T @ apart)
    damped = values.clip(min=0) + values.mean()
    if not damped.min() > 0:  # no class has two different vectors
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    shrink = turn / np.sqrt(damped)  # (columns, columns)
    whitened = shrink.T @ total @ shrink
    found = shrink @ np.linalg.eigh(whitened)[1][:, ::-1]
    return np.asarray(found * np.sqrt(np.trace(total) / np.trace(whitened)))  # vectors as long as before
