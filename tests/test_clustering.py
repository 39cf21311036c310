"""K-means finds clusters that are there, the same ones for the same seed."""

import numpy as np
import pytest

from tammes import UserError
from tammes.clustering import kmeans
from tammes.metrics import nmi


def test_clusters_that_are_there_are_found() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(8, size=400)
    vectors = 10 * np.eye(8)[labels] + random.standard_normal((400, 8))
    assert nmi(labels, kmeans(vectors, 8)) == pytest.approx(1)


def test_the_seed_decides() -> None:
    vectors = np.random.default_rng(1).standard_normal((200, 4))
    assert (kmeans(vectors, 20, seed=1, restarts=1) == kmeans(vectors, 20, seed=1, restarts=1)).all()
    assert (kmeans(vectors, 20, seed=1, restarts=1) != kmeans(vectors, 20, seed=2, restarts=1)).any()


def test_more_restarts_are_never_worse() -> None:
    vectors = np.random.default_rng(2).standard_normal((200, 4))

    def spread(restarts: int) -> float:
        clusters = kmeans(vectors, 20, restarts=restarts)
        centres = np.stack([vectors[clusters == i].mean(axis=0) for i in range(20)])
        return float(np.square(vectors - centres[clusters]).sum())

    assert spread(10) <= spread(1)


def test_fewer_distinct_vectors_than_clusters_leave_clusters_empty() -> None:
    assert len(set(kmeans(np.repeat(np.eye(3), 5, axis=0), 6).tolist())) == 3


def test_an_error_for_more_clusters_than_vectors() -> None:
    with pytest.raises(UserError) as error:
        kmeans(np.eye(3), 4)
    assert str(error.value) == "the number of clusters must be in 1..3, one for each vector, got 4."
