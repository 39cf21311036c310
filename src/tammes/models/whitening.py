"""Whitening: the directions that separate the classes of labelled vectors, to initialise a layer with."""

from base64 import b64decode, b64encode

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray


def directions(
    vectors: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"] | None, *, whiten: bool = False
) -> Float64[ndarray, "columns directions"]:
    """Principal directions, the one along which the vectors vary most first.

    With labels, of the vectors after each direction has been divided by how much the members of a class differ in it.
    A direction in which they hardly do is not blown up: their mean variance is added to that of every direction.
    Without labels, `whiten` does so as if all were of one class (PCA whitening).
    """
    centred = vectors - vectors.mean(axis=0)
    total = centred.T @ centred
    if codes is None and not whiten:
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    apart, rank = centred, min(vectors.shape[1], max(1, len(vectors) - 1))
    if codes is not None:
        apart, rank = _from_class_means(centred, codes), vectors.shape[1]
    values, turn = np.linalg.eigh(apart.T @ apart)
    damped = values.clip(min=0) + values.sum() / rank
    if not damped.min() > 0:  # no class has two different vectors
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    shrink = turn / np.sqrt(damped)  # (columns, columns)
    whitened = shrink.T @ total @ shrink
    found = shrink @ np.linalg.eigh(whitened)[1][:, ::-1]
    return np.asarray(found * np.sqrt(np.trace(total) / np.trace(whitened)))  # vectors as long as before


def _from_class_means(
    centred: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"]
) -> Float64[ndarray, "items columns"]:
    """Each vector as seen from the mean of its class."""
    from scipy.sparse import csr_array

    _, own, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    member = csr_array((np.ones(len(own)), (own.reshape(-1), np.arange(len(own)))), shape=(len(sizes), len(own)))
    return np.asarray(centred - ((member @ centred) / sizes[:, None])[own.reshape(-1)])


def whitening_to_text(layer: Float[ndarray, "dim columns"]) -> str:
    """A layer in half precision, as a gallery keeps it."""
    return b64encode(layer.astype("<f2").tobytes()).decode()


def whitening_from_text(text: str, columns: int) -> Float[ndarray, "dim columns"] | None:
    """The layer that `whitening_to_text` was given, but for its precision; None if it is not one of so many columns."""
    try:
        found = np.frombuffer(b64decode(text, validate=True), "<f2").astype(np.float32)
    except ValueError:
        return None
    whole = len(found) > 0 and len(found) % columns == 0 and bool(np.isfinite(found).all())
    return found.reshape(-1, columns) if whole else None
