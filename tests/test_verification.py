"""Pairs as a verification problem, against lists of all pairs in float64."""

import json
from dataclasses import asdict
from itertools import combinations, pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from tammes.errors import UserError
from tammes.metrics import verification
from tammes.metrics.verification import Calibration, PairCounts, count_pairs

Array = NDArray[Any]
Pair = tuple[float, bool, Any, Any]  # distance, same class, the two classes


def clouds(classes: int = 7, each: int = 5, dim: int = 3, seed: int = 0, spread: float = 0.5) -> tuple[Array, Array]:
    """Unit vectors in float64 around a centre for each class, in no order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(classes), each))
    vectors = random.normal(size=(classes, dim))[labels] + spread * random.normal(size=(len(labels), dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def all_pairs(
    vectors: Array, labels: Any, query: Any = None, gallery: Any = None, sequence: Any = None, leave: Any = ()
) -> list[Pair]:
    """Every pair in plain Python; classes in `leave` are not there."""
    found = []
    for i, j in combinations(range(len(vectors)), 2):
        asks = [True, True] if query is None else [bool(query[i]), bool(query[j])]
        has = [True, True] if gallery is None else [bool(gallery[i]), bool(gallery[j])]
        a_pair = (asks[0] and has[1]) or (asks[1] and has[0])
        if a_pair and (sequence is None or sequence[i] != sequence[j]) and not {labels[i], labels[j]} & set(leave):
            apart = sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(vectors[i], vectors[j], strict=True)))
            found.append((apart, bool(labels[i] == labels[j]), labels[i], labels[j]))
    return found


def histogram(pairs: list[Pair], edges: Array, same: bool) -> list[int]:
    """Pairs in (edge, next edge], and 0 in the first."""
    apart = [pair[0] for pair in pairs if pair[1] == same]
    return [sum(low < each <= high or each == low == 0 for each in apart) for low, high in pairwise(edges)]


def check_against_all_pairs(counts: PairCounts, pairs: list[Pair]) -> None:
    assert counts.other.tolist() == histogram(pairs, counts.edges, same=False)
    assert counts.same.tolist() == histogram(pairs, counts.edges, same=True)


# --- counts


@pytest.mark.parametrize("block", [1, 3, 2048])
@pytest.mark.parametrize("masks", ["none", "disjoint", "overlapping", "query only", "gallery only", "sequence", "both"])
def test_counts_are_those_of_a_list_of_all_pairs(block: int, masks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_BLOCK", block)
    vectors, labels = clouds(classes=5, each=4)
    random = np.random.default_rng(1)
    query, sequence = random.random(len(labels)) < 0.5, random.integers(4, size=len(labels))
    masks_of: dict[str, dict[str, Any]] = {
        "none": {},
        "disjoint": {"query": query, "gallery": ~query},
        "overlapping": {"query": query, "gallery": random.random(len(labels)) < 0.5},
        "query only": {"query": query},
        "gallery only": {"gallery": query},
        "sequence": {"sequence": sequence},
        "both": {"query": query, "gallery": ~query, "sequence": sequence},
    }
    given = masks_of[masks]
    counts, pairs = count_pairs(vectors, labels, bins=32, **given), all_pairs(vectors, labels, **given)
    check_against_all_pairs(counts, pairs)
    assert (counts.edges[0], counts.edges[-1], len(counts.edges)) == (0, 2, 33)


def test_what_is_neither_query_nor_gallery_is_not_counted_as_an_item() -> None:
    vectors, labels = clouds(classes=3, each=4)
    query, gallery = labels == 0, labels < 2
    counts = count_pairs(vectors, labels, query=query, gallery=gallery)
    assert (counts.items, counts.classes) == (8, 2)
    assert int(counts.same.sum() + counts.other.sum()) == 6 + 16
    by_number = count_pairs(vectors, labels, query=np.flatnonzero(query), gallery=np.flatnonzero(gallery))
    assert by_number.other.tolist() == counts.other.tolist()


@pytest.mark.parametrize(
    "named",
    [lambda n: f"class {n}", lambda n: [-7, 3, 10**15, 4, 5, 99, 0][n]],
    ids=["text", "numbers with gaps"],
)
def test_labels_may_be_text_or_numbers_with_gaps(named: Any) -> None:
    vectors, labels = clouds()
    expected = count_pairs(vectors, labels, bins=32)
    counts = count_pairs(vectors, [named(label) for label in labels.tolist()], bins=32)
    assert (counts.same.tolist(), counts.other.tolist()) == (expected.same.tolist(), expected.other.tolist())
    assert counts.classes == 7


def test_two_at_distance_0_match_at_every_threshold() -> None:
    vectors = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [-1, 0]])
    counts = count_pairs(vectors, [0, 0, 1, 1, 1], bins=8)
    assert counts.same[0] == 1
    assert counts.other[0] == 2
    assert counts.same[-1] == 1  # 2 apart, and the last edge is 2


def test_a_distance_on_an_edge_is_in_the_bin_below_it() -> None:
    vectors = np.array([[0.0], [1], [2], [4]])  # 4 is the farthest from the mean by 2.25: the edges go up to 8
    counts = count_pairs(vectors, [0, 0, 1, 1], bins=8)
    assert counts.edges.tolist() == list(range(9))
    assert counts.same.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert counts.other.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert (counts.at(2.0).false_matches, counts.at(2.9).false_matches, counts.at(3.0).false_matches) == (2, 2, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("change", ["scaled up", "scaled down", "far away"])
def test_vectors_of_any_length_have_edges_that_hold_all_distances(dtype: Any, change: str) -> None:
    vectors, labels = clouds()
    moved = {"scaled up": 1000 * vectors, "scaled down": vectors / 1000, "far away": vectors * [1, 2, 3] + 40}[change]
    moved = moved.astype(dtype)
    counts = count_pairs(moved, labels, bins=256)
    pairs = all_pairs(moved.astype(np.float64), labels)
    longest = max(pair[0] for pair in pairs)
    assert longest <= counts.edges[-1] <= 4 * longest
    width = counts.edges[1]
    for same, found in ((True, counts.same), (False, counts.other)):
        apart = np.sort([pair[0] for pair in pairs if pair[1] == same])
        centres = np.repeat((counts.edges[1:] + counts.edges[:-1]) / 2, found)
        assert np.abs(apart - centres).max() <= width / 2 * 1.01


def test_huge_numbers_do_not_overflow() -> None:
    vectors, labels = clouds()
    expected = count_pairs((vectors * 3).astype(np.float32), labels, bins=16)
    counts = count_pairs((vectors * 3 * 2.0**120).astype(np.float32), labels, bins=16)
    assert counts.other.tolist() == expected.other.tolist()
    np.testing.assert_allclose(counts.edges, expected.edges * 2.0**120)


def test_vectors_that_are_all_the_same_are_all_at_distance_0() -> None:
    counts = count_pairs(np.full((4, 3), 7.0), [0, 0, 1, 1], bins=4)
    assert (counts.same.tolist(), counts.other.tolist()) == ([2, 0, 0, 0], [4, 0, 0, 0])
    assert counts.area() == 0.5
    with pytest.raises(
        UserError,
        match="no threshold has a false match rate of 0.5: 1 of the pairs of different classes are within 0.25",
    ):
        counts.threshold_at(0.5)


def test_single_precision_and_tensors_give_what_double_precision_gives() -> None:
    vectors, labels = clouds(dim=16)
    expected = count_pairs(vectors, labels)
    for given in (vectors.astype(np.float32), torch.from_numpy(vectors).float()):
        counts = count_pairs(given, torch.from_numpy(labels))
        for found, exact in ((counts.same, expected.same), (counts.other, expected.other)):
            assert np.abs(np.cumsum(found) - np.cumsum(exact)).max() <= 2  # a distance within 1e-6 of an edge


def test_the_order_of_the_items_does_not_matter() -> None:
    vectors, labels = clouds(classes=9)
    sequence = np.random.default_rng(1).integers(6, size=len(labels))
    counts = count_pairs(vectors, labels, sequence=sequence, bins=128, groups=4)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(labels))
        again = count_pairs(vectors[order], labels[order], sequence=sequence[order], bins=128, groups=4)
        for name in ("edges", "same", "other", "group_same", "group_other"):
            np.testing.assert_array_equal(getattr(counts, name), getattr(again, name))


def test_progress_goes_up_to_the_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_BLOCK", 10)
    vectors, labels = clouds()
    said: list[tuple[int, int]] = []
    count_pairs(vectors, labels, on_progress=lambda done, total: said.append((done, total)))
    assert said == [(done, 10) for done in range(1, 11)]  # 4 blocks of rows


# --- the curve


@pytest.mark.parametrize("bins", [3, 16, 8192])
def test_the_area_is_that_of_scikit_learn_for_the_binned_distances(bins: int) -> None:
    vectors, labels = clouds(spread=0.8)
    counts = count_pairs(vectors, labels, bins=bins)
    same = np.concatenate([np.ones(counts.same.sum()), np.zeros(counts.other.sum())])
    place = np.concatenate([np.repeat(np.arange(bins), counts.same), np.repeat(np.arange(bins), counts.other)])
    assert counts.area() == pytest.approx(roc_auc_score(same, -place), abs=1e-12)
    if bins == 8192:
        pairs = all_pairs(vectors, labels)
        exact = roc_auc_score([pair[1] for pair in pairs], [-pair[0] for pair in pairs])
        assert counts.area() == pytest.approx(exact, abs=1e-3)
        assert 0.6 < exact < 0.95


def test_rates_are_shares_of_the_pairs_up_to_each_edge() -> None:
    vectors, labels = clouds()
    counts, pairs = count_pairs(vectors, labels, bins=16), all_pairs(vectors, labels)
    for rates, same in zip(counts.rates(), (False, True), strict=True):
        apart = [pair[0] for pair in pairs if pair[1] == same]
        expected = [sum(each <= edge for each in apart) / len(apart) for edge in counts.edges]
        assert rates.tolist() == pytest.approx(expected)


def test_the_equal_error_rate_is_where_both_errors_meet() -> None:
    vectors, labels = clouds(classes=20, each=6, spread=0.8)
    counts, pairs = count_pairs(vectors, labels), all_pairs(vectors, labels)
    same, other = (np.array([pair[0] for pair in pairs if pair[1] == kind]) for kind in (True, False))
    errors = [((other <= t).mean(), (same > t).mean()) for t in np.sort(same)]
    best = min(errors, key=lambda pair: abs(pair[0] - pair[1]))
    assert counts.equal_error_rate() == pytest.approx(np.mean(best), abs=5e-3)
    # By hand: at edge 1 none of the other pairs and half of the same ones match, at edge 2 all of both.
    by_hand = PairCounts(
        np.array([0.0, 1, 2]), np.array([1, 1]), np.array([0, 4]), np.zeros((1, 2), int), np.zeros((1, 2), int), 2, 4
    )
    assert by_hand.equal_error_rate() == pytest.approx(1 / 3)


# --- thresholds


def test_the_threshold_is_the_largest_edge_with_no_more_false_matches_than_asked() -> None:
    vectors, labels = clouds(spread=0.8)
    counts, pairs = count_pairs(vectors, labels, bins=256), all_pairs(vectors, labels)
    same, other = ([pair[0] for pair in pairs if pair[1] == kind] for kind in (True, False))
    for fmr in (1 / len(other), 0.01, 0.1, 0.5, 0.99):
        found = counts.threshold_at(fmr)
        allowed = [edge for edge in counts.edges if sum(each <= edge for each in other) <= fmr * len(other)]
        assert found.threshold == max(allowed)
        assert found.false_matches == sum(each <= found.threshold for each in other)
        assert found.false_match_rate == pytest.approx(found.false_matches / len(other))
        assert found.true_match_rate == pytest.approx(sum(each <= found.threshold for each in same) / len(same))
        assert (found.fmr, found.same_pairs, found.other_pairs) == (fmr, len(same), len(other))
        assert (found.classes, found.items) == (7, 35)
        assert counts.at(found.threshold) == Calibration(**{**asdict(found), "fmr": None, "threshold_interval": None})


def test_a_calibration_can_be_written_as_json() -> None:
    vectors, labels = clouds(spread=0.8)
    found = asdict(count_pairs(vectors, labels).threshold_at(0.05))
    again = json.loads(json.dumps(found))
    assert again["threshold"] == found["threshold"]
    assert again["threshold_interval"] == list(found["threshold_interval"])
    assert set(again) == {
        *("threshold", "threshold_interval", "fmr", "false_match_rate", "false_match_interval", "true_match_rate"),
        *("true_match_interval", "false_matches", "same_pairs", "other_pairs", "classes", "items"),
    }


# --- intervals


@pytest.mark.parametrize("block", [4, 2048])
@pytest.mark.parametrize("groups", [3, 256])
def test_counts_without_a_group_are_those_of_the_items_without_its_classes(
    block: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_BLOCK", block)
    vectors, labels = clouds(classes=8, each=4)
    sequence = np.random.default_rng(2).integers(5, size=len(labels))
    counts = count_pairs(vectors, labels, sequence=sequence, bins=32, groups=groups)
    assert len(counts.group_other) == min(groups, 8)
    left = set(range(8))
    for of_other, of_same in zip(counts.group_other, counts.group_same, strict=True):
        # Which classes are in the group is found by trying all sets of as many.
        for size in (1,) if groups == 256 else (2, 3):
            for leave in combinations(sorted(left), size):
                rest = all_pairs(vectors, labels, sequence=sequence, leave=leave)
                if (counts.other - of_other).tolist() == histogram(rest, counts.edges, same=False):
                    assert (counts.same - of_same).tolist() == histogram(rest, counts.edges, same=True)
                    left -= set(leave)
    assert not left


def test_intervals_are_those_of_a_literal_jackknife_over_classes() -> None:
    vectors, labels = clouds(classes=8, each=6, spread=0.8)
    kept = np.sort(np.random.default_rng(0).permutation(len(labels))[:32])  # classes of different sizes
    vectors, labels = vectors[kept], labels[kept]
    counts = count_pairs(vectors, labels, bins=64)
    without = [all_pairs(vectors, labels, leave=[name]) for name in range(8)]

    def interval(threshold: float, same: bool) -> tuple[float, float]:
        rates = []
        for pairs in without:
            apart = [pair[0] for pair in pairs if pair[1] == same]
            rates.append(sum(each <= threshold for each in apart) / len(apart))
        apart = [pair[0] for pair in all_pairs(vectors, labels) if pair[1] == same]
        rate, mean = sum(each <= threshold for each in apart) / len(apart), sum(rates) / 8
        error = sqrt(7 / 8 * sum((each - mean) ** 2 for each in rates))
        return rate - 2.364624251592784 * error, rate + 2.364624251592784 * error  # Student, 7 degrees of freedom

    found = counts.threshold_at(0.1)
    assert found.false_match_interval == pytest.approx(interval(found.threshold, same=False))
    assert found.true_match_interval == pytest.approx(interval(found.threshold, same=True))
    possible = [edge for edge in counts.edges if interval(edge, same=False)[0] <= 0.1 <= interval(edge, same=False)[1]]
    assert found.threshold_interval == (min(possible), max(possible))
    assert min(possible) < found.threshold < max(possible)
    # A rate is never below 0 or above 1, even where the interval would reach beyond.
    found = counts.threshold_at(0.003)
    low, high = interval(found.threshold, same=False)
    assert low < 0
    assert found.false_match_interval == pytest.approx((0, high))
    found = counts.at(max(pair[0] for pair in all_pairs(vectors, labels) if pair[1]) - 0.05)
    low, high = interval(found.threshold, same=True)
    assert high > 1
    assert found.true_match_interval == pytest.approx((low, 1))


def test_groups_are_drawn_by_the_seed() -> None:
    vectors, labels = clouds(classes=20, each=2)
    one, same, another = (count_pairs(vectors, labels, bins=16, groups=4, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.group_other, same.group_other)
    assert (one.group_other != another.group_other).any()
    assert one.other.tolist() == another.other.tolist()


def test_too_few_classes_have_no_interval() -> None:
    vectors, labels = clouds(classes=2, spread=0.8)
    found = count_pairs(vectors, labels).threshold_at(0.2)
    assert (found.threshold_interval, found.false_match_interval) == (None, None)  # without either no pair is left
    assert found.true_match_interval is not None
    vectors, labels = clouds(classes=5, spread=0.8)
    found = count_pairs(vectors, labels, groups=1).threshold_at(0.2)
    assert (found.threshold_interval, found.false_match_interval, found.true_match_interval) == (None, None, None)


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Centres and images are normal in the plane, so distances are Rayleigh: P(d <= t) = 1 - exp(-t² / 4 variance)."""
    spread, fmr, hits = 0.6, 0.1, np.zeros(3)
    threshold = sqrt(-4 * (1 + spread**2) * log(1 - fmr))
    repetitions = 200
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        labels = np.repeat(np.arange(40), 3)
        vectors = random.normal(size=(40, 2))[labels] + spread * random.normal(size=(120, 2))
        counts = count_pairs(vectors, labels, bins=256)
        found, there = counts.threshold_at(fmr), counts.at(threshold)
        assert found.threshold_interval is not None
        assert there.false_match_interval is not None
        assert there.true_match_interval is not None
        edge = there.threshold  # the edge below the true threshold
        truths = (threshold, 1 - exp(-(edge**2) / 4 / (1 + spread**2)), 1 - exp(-(edge**2) / 4 / spread**2))
        found_in = (found.threshold_interval, there.false_match_interval, there.true_match_interval)
        width = counts.edges[1]  # of a bin: a threshold is known no better
        for which, ((low, high), truth) in enumerate(zip(found_in, truths, strict=True)):
            slack = width if which == 0 else 0
            hits[which] += low - slack <= truth <= high + slack
    assert ((hits / repetitions >= 0.88) & (hits / repetitions <= 0.99)).all(), hits / repetitions


# --- what is refused


def test_a_rate_that_is_none_is_refused() -> None:
    counts = count_pairs(*clouds())
    for fmr in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UserError, match="the false match rate must be above 0 and below 1, such as 0.001, got"):
            counts.threshold_at(fmr)


def test_a_rate_that_the_pairs_cannot_tell_is_refused() -> None:
    counts = count_pairs(*clouds(classes=10, each=5))
    with pytest.raises(
        UserError,
        match="a false match rate of 0.0001 cannot be measured: there are only 1,125 pairs of different classes, so the"
        " smallest measurable rate is 0.00089. Ask for a larger one, or count more items.",
    ):
        counts.threshold_at(1e-4)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 2.1, float("nan")])
def test_a_threshold_that_is_no_distance_is_refused(threshold: float) -> None:
    with pytest.raises(UserError, match="the threshold must be a distance from 0.00024 to 2, got"):
        count_pairs(*clouds()).at(threshold)


def test_no_pairs_of_a_kind_are_refused() -> None:
    vectors, labels = clouds(classes=6, each=1)
    with pytest.raises(UserError, match="no two items of the same class form a pair, in 6 classes: .* needs two items"):
        count_pairs(vectors, labels)
    with pytest.raises(
        UserError, match="no two items of different classes form a pair, in 1 class. Two classes are needed"
    ):
        count_pairs(vectors, [3] * 6)
    vectors, labels = clouds(classes=3)
    with pytest.raises(UserError, match="no two items of the same class form a pair, in 3 classes"):
        count_pairs(vectors, labels, sequence=labels)
    with pytest.raises(UserError, match="no two items of different classes form a pair, in 2 classes"):
        count_pairs(vectors[:3], [0, 0, 1], query=[0], gallery=[1, 2], sequence=["a", "b", "a"])


def test_what_is_wrong_with_the_input_is_said() -> None:
    vectors, labels = clouds()
    holed = vectors.copy()
    holed[3, 1] = np.nan
    with pytest.raises(UserError, match="vectors must be finite numbers below 1e.150: row 3 is not"):
        count_pairs(holed, labels)
    with pytest.raises(UserError, match=r"vectors must have shape \(items, dim\), got \(35, 3, 1\)"):
        count_pairs(vectors[:, :, None], labels)
    with pytest.raises(UserError, match=r"labels must be 35, one for each vector, got shape \(34,\)"):
        count_pairs(vectors, labels[1:])
    with pytest.raises(UserError, match=r"sequence must be 35, one for each vector, got shape \(34,\)"):
        count_pairs(vectors, labels, sequence=labels[1:])
    with pytest.raises(UserError, match=r"query as a mask must have shape \(35,\)"):
        count_pairs(vectors, labels, query=np.ones(3, dtype=bool))
    with pytest.raises(UserError, match="gallery names no vectors"):
        count_pairs(vectors, labels, gallery=np.zeros(35, dtype=bool))
    wrong: tuple[dict[str, Any], ...] = ({"bins": 1}, {"groups": 0})
    for options in wrong:
        with pytest.raises(UserError, match="there must be at least 2 bins and 1 group, got bins="):
            count_pairs(vectors, labels, **options)
