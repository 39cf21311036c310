"""Metrics against all orders of the tied items, plain loops, pytorch-metric-learning and scikit-learn."""

import json
import subprocess
import sys
from itertools import permutations
from math import log, sqrt
from statistics import mean
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tammes import UserError
from tammes.metrics import ami, evaluate, nmi, recall_at_k
from tammes.search.kmeans import kmeans
from tests.oracles import SIX, SIX_LABELS, unit

Array = NDArray[Any]
RETRIEVAL = (
    "recall_at_1",
    "recall_at_2",
    "precision_at_1",
    "r_precision",
    "mean_average_precision_at_r",
    "mean_reciprocal_rank",
)
OF_THOSE_THAT_CAN_HIT = RETRIEVAL[2:]


def measures(hits: list[bool], relevant: int) -> dict[str, float]:
    """The metrics of one query from its full ranking, by their definitions."""
    result = {f"recall_at_{k}": float(any(hits[:k])) for k in (1, 2)}
    if relevant:
        precisions = [mean(hits[: i + 1]) for i in range(relevant) if hits[i]]
        result["precision_at_1"] = float(hits[0])
        result["r_precision"] = sum(hits[:relevant]) / relevant
        result["mean_average_precision_at_r"] = sum(precisions) / relevant
        result["mean_reciprocal_rank"] = 1 / (hits.index(True) + 1)
    return result


def by_loops(
    vectors: Array,
    labels: Any,
    orders: str = "index",
    query: list[int] | None = None,
    gallery: list[int] | None = None,
    sequence: Any = None,
) -> dict[str, float]:
    """Every query's full ranking, by float64 distances; tied items in the given order, or in all orders in turn."""
    everyone = list(range(len(labels)))
    values: dict[str, list[float]] = {name: [] for name in RETRIEVAL}
    for i in everyone if query is None else query:
        others = [j for j in (everyone if gallery is None else gallery) if j != i]
        others = [j for j in others if sequence is None or sequence[j] != sequence[i]]
        apart = {j: float(np.square(vectors[i].astype(np.float64) - vectors[j]).sum()) for j in others}
        relevant = sum(labels[j] == labels[i] for j in others)
        each = [
            measures([bool(labels[j] == labels[i]) for j in sorted(order, key=apart.__getitem__)], relevant)
            for order in (permutations(others) if orders == "all" else [others])
        ]
        for name in each[0]:
            values[name].append(mean(one[name] for one in each))
    return {name: mean(found) for name, found in values.items() if found}


def assert_same(found: dict[str, Any], expected: dict[str, float]) -> None:
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def quick(vectors: Any, labels: Any, *args: Any, **options: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"ks": (1, 2), "clustering": False, "bootstrap": 0}
    return evaluate(vectors, labels, *args, **defaults | options)


def clustered(items: int, classes: int, dim: int, seed: int, noise: float = 1.0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=items)
    vectors = random.standard_normal((classes, dim))[labels] + noise * random.standard_normal((items, dim))
    return vectors.astype(np.float32), labels


few = st.integers(4, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=n, max_size=n),
        st.lists(st.integers(0, 2), min_size=n, max_size=n),
    )
)


@given(few)
def test_with_ties_each_metric_is_its_mean_over_all_orders(drawn: tuple[list[tuple[int, int]], list[int]]) -> None:
    points, labels = drawn
    vectors = np.array(points, dtype=np.float64)
    if max(labels.count(label) for label in labels) > 1:
        assert_same(quick(vectors, labels), by_loops(vectors, labels, orders="all"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_a_full_ranking_by_loops_with_duplicates(seed: int, dtype: type) -> None:
    random = np.random.default_rng(seed)
    vectors, labels = clustered(150, 12, 3, seed)
    twins = random.integers(150, size=40)
    vectors[random.integers(150, size=40)] = vectors[twins]
    labels[random.integers(150)] = 99  # alone in its class
    vectors = vectors.astype(dtype)
    assert_same(quick(vectors, labels, ties="index"), by_loops(vectors, labels))


@given(st.integers(0, 10**6))
def test_equal_to_a_full_ranking_by_loops_on_a_grid(seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors, labels = random.integers(0, 4, size=(40, 2)) / 7, random.integers(0, 15, size=40)
    assert_same(quick(vectors, labels, ties="index"), by_loops(vectors, labels))


def test_the_first_hit_may_be_further_than_the_rankings_reach() -> None:
    vectors, labels = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) // 2
    found = quick(vectors, labels)
    assert found["recall_at_2"] < 0.1
    assert_same(found, by_loops(vectors, labels))


def test_a_cross_class_duplicate_is_not_dropped_in_place_of_the_query() -> None:
    vectors = np.array([[0.0, 0.0], [0.0, 0.0], [5.0, 0.0], [0.0, 0.1]])
    labels = [0, 1, 0, 1]
    apart = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    drop_first = np.mean([labels[np.argsort(row, kind="stable")[1]] == labels[i] for i, row in enumerate(apart)])
    assert drop_first == 0.5
    assert quick(vectors, labels, ties="index")["recall_at_1"] == 0.25


def test_a_collapsed_network_scores_chance() -> None:
    vectors = np.zeros((6, 2))
    found = quick(vectors, SIX_LABELS)
    assert found["recall_at_1"] == pytest.approx(0.2)
    assert found["tie_rate"] == 1
    assert quick(vectors, SIX_LABELS, ties="index")["recall_at_1"] == pytest.approx(1 / 3)


def test_a_large_collapsed_network_scores_chance() -> None:
    vectors, labels = np.full((2000, 8), 0.3, dtype=np.float32), np.arange(2000) // 100
    found = quick(vectors, labels)
    assert found["recall_at_1"] == pytest.approx(99 / 1999)
    assert found["r_precision"] == pytest.approx(99 / 1999)


def test_six_points_in_the_plane() -> None:
    found = quick(np.array(unit(SIX)), SIX_LABELS, ks=(1, 2, 4))
    assert [found[f"recall_at_{k}"] for k in (1, 2, 4)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert found["tie_rate"] == 0


def test_harmless_ties_do_not_count_for_the_tie_rate() -> None:
    vectors = np.array([[0.0], [0.0], [0.0], [9.0], [9.0], [9.0]])
    assert quick(vectors, [0, 0, 0, 1, 1, 1])["tie_rate"] == 0
    assert quick(vectors, [0, 0, 1, 1, 0, 0])["tie_rate"] == pytest.approx(4 / 6)


def test_recall_grows_with_k() -> None:
    vectors, labels = clustered(200, 30, 3, seed=1)
    ks = tuple(range(1, 200))
    found = quick(vectors, labels, ks=ks)
    recalls = [found[f"recall_at_{k}"] for k in ks]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1 - found["lone_queries"] / 200


def pml(vectors: Array, labels: Array, *args: Any) -> dict[str, float]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    def clusters(of: torch.Tensor, count: int) -> torch.Tensor:
        return torch.from_numpy(kmeans(of, count))

    include = (*OF_THOSE_THAT_CAN_HIT, "NMI", "AMI")
    calculator = AccuracyCalculator(include=include, k=None, device=torch.device("cpu"), kmeans_func=clusters)
    found: dict[str, float] = calculator.get_accuracy(vectors, labels, *args)
    return found


def assert_same_as_pml(found: dict[str, Any], expected: dict[str, float]) -> None:
    assert found["mean_reciprocal_rank"] == pytest.approx(expected.pop("mean_reciprocal_rank"), abs=1e-6)  # in float32
    assert_same(found, expected)


def test_equal_to_pytorch_metric_learning() -> None:
    vectors, labels = clustered(400, 25, 16, seed=2, noise=1.5)
    labels[:3] = [100, 101, 102]  # alone in their classes
    found = quick(vectors, labels, clustering=True, seeds=(0,))
    assert found["lone_queries"] == 3
    assert_same_as_pml(found, pml(vectors, labels))


def test_equal_to_pytorch_metric_learning_with_a_gallery() -> None:
    vectors, labels = clustered(400, 25, 16, seed=3, noise=1.5)
    found = quick(vectors, labels, np.arange(100), np.arange(100, 400), clustering=True, seeds=(0,))
    assert_same_as_pml(found, pml(vectors[:100], labels[:100], vectors[100:], labels[100:]))


def test_labels_beyond_the_integers_of_float32() -> None:
    vectors, labels = clustered(100, 10, 4, seed=4)
    huge = labels + 2**24 + 2**53
    assert pml(vectors, huge)["precision_at_1"] == 1  # all classes are one
    assert quick(vectors, huge) == quick(vectors, labels)


@pytest.mark.parametrize(
    "rename",
    [
        lambda labels: [f"class {label}" for label in labels],
        lambda labels: np.array([f"class {label}" for label in labels], dtype=object),
        lambda labels: -labels * 1000 - 7,
        lambda labels: [3**50 * int(label) for label in labels],
        lambda labels: torch.from_numpy(labels)[:],
        lambda labels: labels.astype(np.uint8),
    ],
    ids=["strings", "objects", "negative with gaps", "beyond int64", "tensor", "bytes"],
)
def test_only_which_labels_are_equal_matters(rename: Any) -> None:
    vectors, labels = clustered(60, 5, 4, seed=5)
    options: dict[str, Any] = {"clustering": True, "seeds": (0,), "restarts": 2}
    assert_same(
        quick(vectors, rename(labels), **options),
        {name: value for name, value in quick(vectors, labels, **options).items() if isinstance(value, float)},
    )


def test_the_order_of_the_items_does_not_matter() -> None:
    vectors, labels = clustered(80, 6, 2, seed=6)
    vectors = np.round(vectors)  # ties
    order = np.random.default_rng(7).permutation(80)
    found = quick(vectors, labels)
    assert found["tie_rate"] > 0.1
    assert_same(quick(vectors[order], labels[order]), {name: found[name] for name in (*RETRIEVAL, "tie_rate")})


def test_tensors_and_arrays_give_the_same() -> None:
    vectors, labels = clustered(50, 4, 3, seed=8)
    assert quick(torch.from_numpy(vectors).requires_grad_(), torch.from_numpy(labels)) == quick(vectors, labels)


def test_queries_and_gallery_that_overlap() -> None:
    vectors, labels = clustered(90, 8, 3, seed=9)
    query, gallery = list(range(60)), list(range(30, 90))
    found = quick(vectors, labels, query, np.isin(np.arange(90), gallery), ties="index")
    assert_same(found, by_loops(vectors, labels, query=query, gallery=gallery))
    assert (found["queries"], found["gallery"]) == (60, 60)


def test_the_own_sequence_is_left_out() -> None:
    vectors, labels = clustered(120, 6, 3, seed=10)
    sequence = np.random.default_rng(11).integers(15, size=120)
    found = quick(vectors, labels, sequence=[f"video {s}" for s in sequence], ties="index")
    assert_same(found, by_loops(vectors, labels, sequence=sequence))


def test_single_images_stay_in_the_recall_and_are_counted() -> None:
    vectors, labels = np.array([[0.0], [0.1], [5.0], [5.2]]), ["a", "a", "b", "c"]
    found = quick(vectors, labels)
    assert found["recall_at_1"] == 0.5
    assert found["precision_at_1"] == found["r_precision"] == found["mean_average_precision_at_r"] == 1
    assert (found["lone_queries"], found["single_image_classes"], found["classes"]) == (2, 2, 3)


def test_every_fraction_is_one_for_separated_classes() -> None:
    labels = np.arange(60) % 6
    vectors = np.eye(6)[labels] + 0.01 * np.random.default_rng(12).standard_normal((60, 6))
    found = evaluate(vectors, labels, seeds=(0, 1))
    names = [*RETRIEVAL, "recall_at_4", "recall_at_8", "NMI", "AMI"]
    assert [found[name] for name in names] == pytest.approx([1.0] * len(names))
    assert found["intervals"]["recall_at_1"] == [1.0, 1.0]


def test_intervals_hold_the_value_and_follow_the_seed() -> None:
    vectors, labels = clustered(400, 40, 8, seed=13)
    found = quick(vectors, labels, bootstrap=300)
    assert set(found["intervals"]) == set(RETRIEVAL)
    for name, (low, high) in found["intervals"].items():
        assert 0 < low < found[name] < high < 1
    assert quick(vectors, labels, bootstrap=300) == found
    assert quick(vectors, labels, bootstrap=300, bootstrap_seed=1)["intervals"] != found["intervals"]


def test_intervals_are_over_classes() -> None:
    """Three classes, one always found and two never: a set of three draws may be all 0 or all 1."""
    far = 100.0 * np.arange(1, 51)[:, None]
    vectors = np.concatenate([np.zeros((50, 1)), far, far + 1])  # the neighbour of a far one is of the other class
    found = quick(vectors, np.repeat([0, 1, 2], 50), bootstrap=200, ks=(1,))
    assert found["recall_at_1"] == pytest.approx(1 / 3)
    assert found["intervals"]["recall_at_1"] == [0.0, 1.0]


def test_the_mean_and_spread_of_nmi_over_seeds() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    vectors, labels = clustered(200, 10, 4, seed=14)
    runs = [KMeans(10, n_init=10, random_state=seed).fit(vectors).labels_ for seed in (3, 4, 5)]
    found = evaluate(vectors, labels, seeds=(3, 4, 5), bootstrap=0)
    for name, score in (("NMI", normalized_mutual_info_score), ("AMI", adjusted_mutual_info_score)):
        each = [score(labels, run) for run in runs]
        assert found[name] == pytest.approx(np.mean(each))
        assert found[f"{name}_std"] == pytest.approx(np.std(each, ddof=1))
    assert found["seeds"] == [3, 4, 5]


def entropy(labels: list[Any]) -> float:
    shares = [labels.count(label) / len(labels) for label in set(labels)]
    return -sum(share * log(share) for share in shares)


@pytest.mark.parametrize(("normaliser", "value"), [("arithmetic", 0.520665), ("geometric", 0.521111)])
def test_nmi_is_its_definition(normaliser: str, value: float) -> None:
    clusters = [0, 0, 0, 1, 1, 2]
    h, h2 = entropy(SIX_LABELS), entropy(clusters)
    information = h + h2 - entropy(list(zip(SIX_LABELS, clusters, strict=True)))
    norm = (h + h2) / 2 if normaliser == "arithmetic" else sqrt(h * h2)
    assert nmi(SIX_LABELS, clusters, normaliser) == pytest.approx(information / norm)
    assert nmi(SIX_LABELS, clusters, normaliser) == pytest.approx(value, abs=5e-7)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30), st.permutations(range(5)))
def test_renaming_clusters_leaves_nmi_and_ami_alone(pairs: list[tuple[int, int]], names: list[int]) -> None:
    labels, clusters = [a for a, _ in pairs], [b for _, b in pairs]
    renamed = [f"cluster {names[b]}" for b in clusters]
    assert nmi(labels, renamed) == pytest.approx(nmi(labels, clusters), abs=1e-9)
    assert ami(labels, renamed) == pytest.approx(ami(labels, clusters), abs=1e-6)


def test_what_was_not_computed_is_said() -> None:
    vectors, labels = clustered(40, 4, 3, seed=15)
    found = quick(vectors, labels)
    assert found["NMI"] is found["AMI"] is None
    assert found["not_computed"] == {
        "NMI": "clustering=False",
        "AMI": "clustering=False",
        "intervals": "bootstrap=0",
    }
    assert evaluate(vectors, labels, seeds=(0,), restarts=1)["not_computed"] == {}


def test_the_result_goes_through_json() -> None:
    vectors, labels = clustered(40, 4, 3, seed=16)
    found = evaluate(vectors, labels, seeds=(0,), restarts=1, bootstrap=10)
    assert json.loads(json.dumps(found)) == found


RANKED = np.array([["a", "b", "a"], ["b", "a", "b"], ["b", "b", "b"]])
QUERIES = np.array(["a", "a", "c"])


def test_recall_of_ranked_labels() -> None:
    assert recall_at_k(RANKED, QUERIES, 1) == pytest.approx(1 / 3)
    assert recall_at_k(RANKED, QUERIES, 2) == pytest.approx(2 / 3)
    groups = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 2]])
    assert recall_at_k(RANKED, QUERIES, 1, groups) == pytest.approx((2 / 3 + 1 / 2) / 3)


def bad(**changes: Any) -> dict[str, Any]:
    vectors, labels = clustered(12, 3, 2, seed=17)
    return {"vectors": vectors, "labels": labels, "ks": (1,)} | changes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (bad(labels=np.arange(11)), "labels must be 12, one for each vector, got shape (11,)."),
        (bad(labels=np.zeros(12)), "labels must be integers or strings, got float64."),
        (bad(labels=["a"] * 6 + [1] * 6), "labels must be all integers or all strings, got int and str."),
        (bad(labels=np.arange(12)), "no query has another item of its class: there is nothing to measure."),
        (
            bad(labels=np.zeros(12, int)),
            "NMI needs at least 2 classes, got 1. Pass clustering=False for the other metrics.",
        ),
        (
            bad(labels=np.ma.masked_equal(np.arange(12) % 3, 2)),
            "labels has a mask that hides 4 of its entries. Fill them in: labels.filled(…), or leave their rows out.",
        ),
        (bad(query=[]), "query names no vectors."),
        (bad(sequence=[1, 2]), "sequence must be 12, one for each vector, got shape (2,)."),
        (bad(vectors=np.zeros((0, 2))), "vectors are empty: got shape (0, 2)."),
        (
            bad(vectors=np.full((12, 2), np.nan)),
            "vectors must be finite numbers below 1e+150: row 0 is not (12 of 12 rows).",
        ),
        (bad(ks=(1, 12)), "recall at 12 needs k in 1..11, the other items in the gallery. Pass other ks."),
        (bad(ks=()), "ks is empty: pass at least one k."),
        (bad(seeds=()), "seeds is empty: pass at least one seed, or clustering=False."),
        (bad(restarts=0), "restarts must be at least 1, got 0."),
        (bad(seeds=[-1]), "each of seeds must be a whole number from 0 to 4294967295, got -1."),
        (
            bad(gallery=[0], query=[0]),
            "there is nothing to find but the query itself: at least 2 vectors are needed.",
        ),
        (bad(bootstrap=-1), "bootstrap, the number of resamples, must be at least 0, got -1."),
        (bad(query=[0, 12]), "query must name vectors 0..11, got 0..12."),
        (bad(query=[3, 3]), "query names vector 3 more than once."),
        (bad(gallery=np.zeros(12, bool)), "gallery names no vectors."),
        (bad(gallery=np.zeros(5, bool)), "gallery as a mask must have shape (12,), got (5,)."),
        (bad(gallery=np.zeros(5)), "gallery must be a mask or numbers of vectors, got float64 of shape (5,)."),
        (bad(ties="expect"), "unknown ties 'expect'. Did you mean 'expected'? Known: expected, index."),
        (
            bad(normaliser="geometri"),
            "unknown normaliser 'geometri'. Did you mean 'geometric'? Known: arithmetic, geometric.",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_errors(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as error:
        evaluate(**arguments)
    assert str(error.value) == text


def test_errors_of_ranked_labels() -> None:
    with pytest.raises(UserError) as error:
        recall_at_k(RANKED, QUERIES, 4)
    assert str(error.value) == "k = 4 neighbours were asked for, but a query has only 3 other items."
    with pytest.raises(UserError) as error:
        recall_at_k(RANKED, QUERIES, 1, np.array([[0, 1, 0]] * 3))
    assert str(error.value) == "groups must have the shape of ranked, and must not decrease along a row."


def test_labels_that_differ_stay_different() -> None:
    vectors, labels = clustered(12, 3, 2, seed=17)
    expected = evaluate(vectors, labels, ks=(1,), clustering=False, bootstrap=0)
    for names in (["a", "a\0", "a\0b"], [2**63, -1, 2**63 + 1]):
        found = evaluate(vectors, [names[label] for label in labels], ks=(1,), clustering=False, bootstrap=0)
        assert found == expected
    other_order = labels.astype(np.dtype(labels.dtype).newbyteorder())
    assert evaluate(vectors.astype(">f4"), other_order, ks=(1,), clustering=False, bootstrap=0) == expected


@pytest.mark.parametrize("scale", [1e-140, 1e-160, 1e-165, 1e-290])
def test_tiny_vectors_are_told_apart(scale: float) -> None:
    vectors, labels = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 6
    power = 2.0 ** round(np.log2(scale))
    options: dict[str, Any] = {"bootstrap": 0, "clustering": False}
    assert evaluate(vectors * power, labels, **options) == evaluate(vectors, labels, **options)


def megabytes_beyond_the_vectors(items: int, dim: int) -> float:
    """The peak of a fresh process, less what it held before the evaluation."""
    code = f"""
        from pathlib import Path
        import numpy as np
        import torch
        from tammes.metrics import evaluate

        torch.set_num_threads(1)
        vectors = np.random.default_rng(0).standard_normal(({items}, {dim}), dtype=np.float32)
        labels = np.arange({items}) // 6
        evaluate(vectors[:100], labels[:100], clustering=False)

        def kilobytes(name):  # not getrusage: its maximum is that of the parent where that is larger
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name))

        before = kilobytes("VmRSS")
        evaluate(vectors, labels, clustering=False, bootstrap=0)
        print((kilobytes("VmHWM") - before) / 1024)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    return float(done.stdout)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@needs_proc
def test_memory_does_not_hold_all_pairs() -> None:
    assert megabytes_beyond_the_vectors(20_000, 8) < 900  # all pairs: 1,600 MB in float32


@pytest.mark.slow
@needs_proc
def test_memory_at_the_size_of_online_products() -> None:
    assert megabytes_beyond_the_vectors(60_502, 512) < 1500
