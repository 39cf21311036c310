"""Directions in which labelled vectors tell their classes apart: what a layer on top of them may begin as."""

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from scipy.sparse import csr_array


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
