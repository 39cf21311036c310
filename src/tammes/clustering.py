"""K-means, for the cluster measures."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from tammes.errors import UserError
from tammes.neighbours import checked_vectors


def kmeans(
    vectors: Float[np.ndarray, "items dim"] | Float[Tensor, "items dim"],
    num_clusters: int,
    *,
    seed: int = 0,
    restarts: int = 10,
) -> Int64[np.ndarray, " items"]:
    """The cluster of each vector, 0..num_clusters-1: k-means++ and Lloyd's iterations, the best of some restarts.

    The same seed gives the same clusters on the same number of threads. Where there are fewer distinct vectors than
    clusters, some clusters stay empty.
    """
    from sklearn.cluster import KMeans  # a second to import
    from sklearn.exceptions import ConvergenceWarning

    array = checked_vectors(vectors)
    if not 1 <= num_clusters <= len(array):
        raise UserError(f"the number of clusters must be in 1..{len(array)}, one for each vector, got {num_clusters}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of duplicate vectors: see above
        fitted: Any = KMeans(num_clusters, init="k-means++", n_init=restarts, max_iter=300, random_state=seed).fit(
            array
        )
    return np.asarray(fitted.labels_, dtype=np.int64)
