"""Whitening: directions of vectors, in closed form, to initialise an embedding layer."""

from base64 import b64decode, b64encode

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray


def directions(
    vectors: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"] | None, *, whiten: bool = False
) -> Float64[ndarray, "columns directions"]:
    """Principal directions, in the order of decreasing variance.

    With labels, after within-class whitening: each direction is divided by its within-class standard deviation. The
    mean variance is added to that of every direction, so that small ones are not amplified. Without labels, `whiten`
    does the same as if all vectors were of one class (PCA whitening).
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
    if not damped.min() > 0:  # no class has two distinct vectors
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    shrink = turn / np.sqrt(damped)  # (columns, columns)
    whitened = shrink.T @ total @ shrink
    found = shrink @ np.linalg.eigh(whitened)[1][:, ::-1]
    return np.asarray(found * np.sqrt(np.trace(total) / np.trace(whitened)))  # keeps the mean norm


def _from_class_means(
    centred: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"]
) -> Float64[ndarray, "items columns"]:
    """Each vector minus the mean of its class."""
    from scipy.sparse import csr_array

    _, own, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    member = csr_array((np.ones(len(own)), (own.reshape(-1), np.arange(len(own)))), shape=(len(sizes), len(own)))
    return np.asarray(centred - ((member @ centred) / sizes[:, None])[own.reshape(-1)])


def whitening_to_text(layer: Float[ndarray, "dim columns"]) -> str:
    """A layer in half precision as text, for the metadata of a gallery."""
    return b64encode(layer.astype("<f2").tobytes()).decode()


def whitening_from_text(text: str, columns: int) -> Float[ndarray, "dim columns"] | None:
    """The inverse of `whitening_to_text`; None if the text is not a layer with this number of columns."""
    try:
        found = np.frombuffer(b64decode(text, validate=True), "<f2").astype(np.float32)
    except ValueError:
        return None
    whole = len(found) > 0 and len(found) % columns == 0 and bool(np.isfinite(found).all())
    return found.reshape(-1, columns) if whole else None
