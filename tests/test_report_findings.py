"""What a report says of queries and classes, against loops over all of them."""

from typing import Any

import numpy as np
import pytest

from tammes.metrics import evaluate
from tammes.report.findings import by_class, chosen_queries, confusions, findings
from tammes.report.projection import flat, shown_items

RNG = np.random.default_rng(3)


def some(items: int = 60, classes: int = 6, dim: int = 5, noise: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(items + classes)
    labels = np.arange(items, dtype=np.int64) % classes
    vectors = rng.normal(size=(classes, dim))[labels] + noise * rng.normal(size=(items, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def by_hand(vectors: np.ndarray, query: int, others: list[int]) -> list[int]:
    apart = {other: float(np.linalg.norm(vectors[query].astype(float) - vectors[other])) for other in others}
    return sorted(apart, key=lambda other: (apart[other], other))


def test_neighbours_hits_and_margins_are_those_of_a_loop_over_all_pairs() -> None:
    vectors, labels = some()
    found = findings(vectors, labels, k=4)
    for row in range(len(labels)):
        near = by_hand(vectors, row, [other for other in range(len(labels)) if other != row])
        assert found.near[row].tolist() == near[:4]
        assert found.hit[row] == (labels[near[0]] == labels[row])
        own = next(other for other in near if labels[other] == labels[row])
        another = next(other for other in near if labels[other] != labels[row])
        wanted = np.linalg.norm(vectors[row] - vectors[another]) - np.linalg.norm(vectors[row] - vectors[own])
        assert found.margin[row] == pytest.approx(wanted, abs=1e-5)


def test_the_mean_of_the_hits_is_recall_at_1() -> None:
    vectors, labels = some()
    assert findings(vectors, labels).hit.mean() == pytest.approx(
        evaluate(vectors, labels, clustering=False, bootstrap=0)["recall_at_1"]
    )


def test_queries_search_the_gallery_only_and_not_their_own_sequence() -> None:
    vectors, labels = some()
    query = np.arange(len(labels)) % 4 == 0
    sequence = np.arange(len(labels)) // 7
    found = findings(vectors, labels, {"query": query, "gallery": ~query, "sequence": sequence}, k=3)
    assert found.queries.tolist() == np.flatnonzero(query).tolist()
    for row, item in enumerate(found.queries.tolist()):
        allowed = [other for other in np.flatnonzero(~query).tolist() if sequence[other] != sequence[item]]
        assert found.near[row].tolist() == by_hand(vectors, item, allowed)[:3]


def test_a_query_without_another_of_its_class_has_no_margin_and_is_a_miss() -> None:
    vectors, labels = some(12, 3)
    labels[0] = 7
    found = findings(vectors, labels)
    assert np.isnan(found.margin[0])
    assert found.hit[0] == 0
    assert not np.isnan(found.margin[1:]).any()


def test_fewer_items_than_neighbours_asked_for() -> None:
    found = findings(np.eye(3, dtype=np.float32), np.array([0, 0, 1]))
    assert found.near.shape == (3, 2)


def test_classes_come_worst_first_with_what_they_are_taken_for() -> None:
    vectors, labels = some(noise=1.4)
    found = findings(vectors, labels)
    rows = by_class(found, labels)
    assert [row.recall for row in rows] == sorted(row.recall for row in rows)
    assert sorted(row.label for row in rows) == list(range(6))
    for row in rows:
        mine = np.flatnonzero(labels == row.label)
        assert row.recall == pytest.approx(found.hit[mine].mean())
        wrong = [int(labels[found.near[i, 0]]) for i in mine if labels[found.near[i, 0]] != row.label]
        assert row.taken == (max(wrong.count(each) for each in wrong) if wrong else 0)
        assert (row.taken_for is None) == (not wrong)
        assert row.taken_for is None or wrong.count(row.taken_for) == row.taken
        assert labels[row.shown] == row.label


def test_confused_pairs_are_counted_in_both_directions_and_ordered_by_their_share() -> None:
    vectors, labels = some(noise=1.6)
    found = findings(vectors, labels)
    rows = confusions(found, labels, pairs=100, examples=2)
    counted: dict[tuple[int, int], int] = {}
    for row in range(len(labels)):
        other = int(labels[found.near[row, 0]])
        if other != labels[row]:
            key = min(other, int(labels[row])), max(other, int(labels[row]))
            counted[key] = counted.get(key, 0) + 1
    assert {(pair.one, pair.other): pair.times for pair in rows} == counted
    assert [pair.share for pair in rows] == sorted((pair.share for pair in rows), reverse=True)
    for pair in rows:
        assert pair.share == pytest.approx(pair.times / (10 + 10))
        assert 1 <= len(pair.examples) <= 2
        for query, near in pair.examples:
            assert {int(labels[query]), int(labels[near])} == {pair.one, pair.other}
        assert len({frozenset(each) for each in pair.examples}) == len(pair.examples)


def test_classes_of_one_item_are_no_confusion_and_come_last() -> None:
    vectors, labels = some(noise=1.4)
    lone = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    vectors = np.concatenate([vectors, lone / np.linalg.norm(lone, axis=1, keepdims=True)])
    labels = np.concatenate([labels, np.arange(100, 120)])
    found = findings(vectors, labels)
    rows = by_class(found, labels)
    assert [row.alone for row in rows] == [False] * 6 + [True] * 20
    pairs = confusions(found, labels, pairs=100)
    assert pairs
    for pair in pairs:
        assert pair.one < 6, "a pair has a class that could be found"
        assert all(labels[query] < 6 for query, _ in pair.examples)
        assert pair.share <= 1


def test_nothing_is_confused_where_every_neighbour_is_right() -> None:
    vectors, labels = some(noise=0.01)
    found = findings(vectors, labels)
    assert confusions(found, labels) == []
    assert chosen_queries(found, labels)["worst"] == []
    assert all(row.taken_for is None for row in by_class(found, labels))


def test_chosen_queries_are_the_clearest_ones_one_of_a_class() -> None:
    vectors, labels = some(noise=1.2)
    found = findings(vectors, labels)
    chosen = chosen_queries(found, labels, number=4)
    assert found.margin[chosen["best"][0]] == found.margin.max()
    assert found.margin[chosen["worst"][0]] == found.margin.min()
    for rows in chosen.values():
        assert len({int(labels[found.queries[row]]) for row in rows}) == len(rows) == 4
    assert chosen == chosen_queries(found, labels, number=4)
    assert chosen["random"] != chosen_queries(found, labels, number=4, seed=1)["random"]


def test_too_few_classes_are_filled_up_with_other_queries() -> None:
    vectors, labels = some(20, 2)
    rows = chosen_queries(findings(vectors, labels), labels, number=8)["random"]
    assert len(set(rows)) == 8


@pytest.mark.parametrize("way", ["tsne", "pca"])
def test_a_map_keeps_clusters_apart_and_is_the_same_again(way: Any) -> None:
    vectors, labels = some(60, 3, 8, noise=0.1)
    places = flat(vectors, way)
    assert places.min() >= 0
    assert places.max() <= 1
    assert max(np.ptp(places, axis=0)) == pytest.approx(1)
    middle = np.stack([places[labels == label].mean(axis=0) for label in range(3)])
    within = max(np.linalg.norm(places[labels == label] - middle[label], axis=1).max() for label in range(3))
    assert min(np.linalg.norm(middle[a] - middle[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > within
    assert (flat(vectors, way) == places).all()


@pytest.mark.parametrize("items", [1, 2, 12])
@pytest.mark.parametrize("way", ["tsne", "pca"])
def test_a_map_of_few_or_equal_items_has_a_place_for_each(items: int, way: Any) -> None:
    for vectors in (np.ones((items, 4), dtype=np.float32), RNG.normal(size=(items, 1)).astype(np.float32)):
        places = flat(vectors, way)
        assert places.shape == (items, 2)
        assert np.isfinite(places).all()


def test_a_map_of_items_of_which_many_coincide() -> None:
    vectors = np.repeat(RNG.normal(size=(3, 4)).astype(np.float32), 40, axis=0)
    places = flat(vectors, "tsne")
    assert np.isfinite(places).all()
    middle = places.reshape(3, 40, 2).mean(axis=1)
    assert min(np.linalg.norm(middle[a] - middle[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > 0.2


def test_shown_items_are_all_or_a_sample_without_repeats() -> None:
    labels = np.zeros(50, dtype=np.int64)
    assert shown_items(labels, 50).tolist() == list(range(50))
    some_of_them = shown_items(labels, 20)
    assert len(set(some_of_them.tolist())) == 20
    assert (some_of_them == np.sort(some_of_them)).all()
