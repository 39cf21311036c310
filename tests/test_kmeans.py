"""K-means finds clusters that are there, the same ones for the same seed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus

from tammes import UserError
from tammes.metrics import nmi
from tammes.search import kmeans as kmeans_module
from tammes.search.kmeans import kmeans, lloyd, plusplus


@pytest.fixture(params=["scikit-learn's", "our own"])
def starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans_module, "_OWN_STARTS_FROM", 0 if request.param == "our own" else 1 << 60)


@pytest.mark.usefixtures("starts")
def test_clusters_that_are_there_are_found() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(8, size=400)
    vectors = 10 * np.eye(8)[labels] + random.standard_normal((400, 8))
    assert nmi(labels, kmeans(vectors, 8)) == pytest.approx(1)


@pytest.mark.usefixtures("starts")
def test_the_seed_decides() -> None:
    vectors = np.random.default_rng(1).standard_normal((200, 4))
    assert (kmeans(vectors, 20, seed=1, restarts=1) == kmeans(vectors, 20, seed=1, restarts=1)).all()
    assert (kmeans(vectors, 20, seed=1, restarts=1) != kmeans(vectors, 20, seed=2, restarts=1)).any()


@pytest.mark.usefixtures("starts")
def test_more_restarts_are_never_worse() -> None:
    vectors = np.random.default_rng(2).standard_normal((200, 4))

    def spread(restarts: int) -> float:
        clusters = kmeans(vectors, 20, restarts=restarts)
        centres = np.stack([vectors[clusters == i].mean(axis=0) for i in range(20)])
        return float(np.square(vectors - centres[clusters]).sum())

    assert spread(10) <= spread(1)


@pytest.mark.usefixtures("starts")
def test_fewer_distinct_vectors_than_clusters_leave_clusters_empty() -> None:
    assert len(set(kmeans(np.repeat(np.eye(3), 5, axis=0), 6).tolist())) == 3


def test_an_error_for_more_clusters_than_vectors() -> None:
    with pytest.raises(UserError) as error:
        kmeans(np.eye(3), 4)
    assert str(error.value) == "the number of clusters must be in 1..3, one for each vector, got 4."


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 1 << 20])  # candidates of few centres together, and of all
def test_own_starts_are_as_good_as_those_of_scikit_learn(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same method with other random numbers: what the starts leave has the same mean over many seeds."""
    monkeypatch.setattr(kmeans_module, "_AT_ONCE", at_once)
    vectors = np.random.default_rng(3).standard_normal((400, 6)).astype(np.float32)
    vectors[:100] *= 5

    def left(centres: NDArray[Any]) -> float:
        return float(np.square(vectors[:, None] - centres).sum(axis=2).min(axis=1).sum())

    ours, theirs = [], []
    for seed in range(150):
        chosen = plusplus(vectors, 40, np.random.RandomState(seed))
        assert len(set(chosen.tolist())) == 40
        ours.append(left(vectors[chosen]))
        theirs.append(left(kmeans_plusplus(vectors, 40, random_state=seed)[0]))
    error = np.sqrt((np.var(ours) + np.var(theirs)) / len(ours))
    assert abs(np.mean(ours) - np.mean(theirs)) < 3 * error
    blind = [left(vectors[np.random.default_rng(seed).choice(400, 40)]) for seed in range(150)]
    assert np.mean(blind) - np.mean(ours) > 30 * error, "and both are far from a blind choice"


@pytest.mark.parametrize(
    ("items", "clusters", "dim"), [(300, 5, 3), (400, 60, 8), (500, 250, 16), (60, 60, 4), (80, 1, 2)]
)
def test_the_clusters_are_those_of_scikit_learn(items: int, clusters: int, dim: int) -> None:
    vectors = np.random.default_rng(items).standard_normal((items, dim)).astype(np.float32) + 3
    theirs = KMeans(clusters, n_init=2, random_state=5).fit(vectors)
    ours = kmeans(vectors, clusters, seed=5, restarts=2)
    assert nmi(theirs.labels_, ours) == pytest.approx(1)


def lloyd_by_loops(vectors: NDArray[Any], centres: NDArray[Any], iterations: int) -> NDArray[Any]:
    """Every vector with every centre in every iteration; a centre without vectors stays."""
    for _ in range(iterations):
        clusters = np.square(vectors[:, None] - centres).sum(axis=2).argmin(axis=1)
        centres = np.stack(
            [vectors[clusters == i].mean(axis=0) if (clusters == i).any() else own for i, own in enumerate(centres)]
        )
    return np.asarray(np.square(vectors[:, None] - centres).sum(axis=2).argmin(axis=1))


@pytest.mark.parametrize("at_once", [1 << 20, 100])
@pytest.mark.parametrize("iterations", [1, 2, 5, 50])
def test_what_is_skipped_could_not_have_changed(iterations: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.search.kmeans._AT_ONCE", at_once)
    vectors = np.random.default_rng(3).standard_normal((400, 6))
    centres = vectors[:40].copy()
    found = lloyd(vectors, centres, iterations=iterations)
    assert (found.clusters == lloyd_by_loops(vectors, centres, iterations)).all()
    assert found.spread == pytest.approx(np.square(vectors - found.centres[found.clusters]).sum())
    assert found.iterations <= iterations


def test_iterations_end_when_nothing_changes() -> None:
    vectors = np.repeat(np.eye(3), 4, axis=0)
    found = lloyd(vectors, np.eye(3) * 0.9)
    assert found.iterations == 2
    assert found.spread == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(found.centres, np.eye(3), atol=1e-7)  # vectors are rounded to float32


def test_a_centre_that_nobody_is_near_takes_the_farthest_vector() -> None:
    vectors = np.array([[0.0], [1.0], [2.0], [10.0]])
    found = lloyd(vectors, np.array([[1.0], [500.0]]))
    assert sorted(found.centres[:, 0].tolist()) == [1, 10]
    assert found.clusters.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("factor", "dtype"),
    [(1e-30, np.float32), (1e-25, np.float32), (1e20, np.float32), (1e40, np.float64), (1e-100, np.float64)],
)
def test_vectors_of_any_length_are_clustered_alike(factor: float, dtype: type) -> None:
    random = np.random.default_rng(4)
    labels = random.integers(5, size=300)
    vectors = 10 * np.eye(5)[labels] + random.standard_normal((300, 5))
    assert nmi(labels, kmeans((factor * vectors).astype(dtype), 5)) == pytest.approx(1)
    plain, scaled = (lloyd((by * vectors).astype(dtype), by * vectors[:5], tolerance=0.1 * by**2) for by in (1, factor))
    assert (plain.clusters == scaled.clusters).all()
    assert plain.iterations == scaled.iterations
    assert scaled.spread / factor**2 == pytest.approx(plain.spread, rel=1e-5)
    np.testing.assert_allclose(scaled.centres / factor, plain.centres, rtol=1e-4, atol=1e-4)


def test_vectors_far_from_the_origin_have_their_own_means_for_centres() -> None:
    vectors = (np.random.default_rng(5).standard_normal((1000, 4)) + 1e6).astype(np.float32)
    found = lloyd(vectors, vectors[:6].astype(np.float64))
    means = np.stack([vectors[found.clusters == own].mean(axis=0, dtype=np.float64) for own in range(6)])
    np.testing.assert_allclose(found.centres, means, rtol=0, atol=1e-6)
    distances = np.square(vectors[:, None].astype(np.float64) - found.centres).sum(axis=2)
    assert (distances.argmin(axis=1) == found.clusters).all()


def test_vectors_may_lie_in_memory_as_they_like_and_be_fewer_than_the_centres() -> None:
    vectors = np.random.default_rng(6).standard_normal((30, 3))
    assert (lloyd(vectors[::-1], vectors[:4]).clusters == lloyd(vectors[::-1].copy(), vectors[:4]).clusters).all()
    assert lloyd(np.eye(3), np.random.default_rng(7).random((10, 3))).spread == pytest.approx(0, abs=1e-12)
