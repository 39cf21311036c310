"""Retrieval and clustering metrics: Recall@K, MAP@R, R-precision, reciprocal rank, NMI and AMI, with intervals.

Metrics take the labels of ranked items, never scores. For ties, marked by `groups`, a metric is its exact expectation
over all orders of the tied items. All values are fractions. docs/decisions/0004-what-recall-at-k-means.md defines what
is counted.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Integer, Shaped
from numpy.typing import NDArray
from torch import Tensor

from tammes.errors import UserError, check_seed, check_whole, shown, unknown_name
from tammes.search.kmeans import kmeans
from tammes.search.neighbours import NeighbourSearch, check_k
from tammes.search.validation import Labels, as_array, checked_vectors, label_array

Members = Sequence[int] | Shaped[np.ndarray, "..."] | Shaped[Tensor, "..."]
Ranked = Shaped[np.ndarray, "queries depth"]
Groups = Integer[np.ndarray, "queries depth"]

TIES = ("expected", "index")
NORMALISERS = ("arithmetic", "geometric")

# Column titles in tables.
TITLES = {
    "recall_at_1": "R@1",
    "recall_at_2": "R@2",
    "recall_at_4": "R@4",
    "recall_at_8": "R@8",
    "r_precision": "RP",
    "mean_average_precision_at_r": "MAP@R",
    "NMI": "NMI",
}


def recall_at_k(ranked: Ranked, labels: Shaped[np.ndarray, " queries"], k: int, groups: Groups | None = None) -> float:
    """Share of the queries with an item of their class among the k nearest (torchmetrics: hit rate).

    Args:
        ranked: labels of each query's nearest items, nearest first, at least k, including all ties with the k-th.
        labels: labels of the queries.
        groups: equal numbers for tied items, non-decreasing along a row; None if there are no ties.

    >>> recall_at_k(np.array([["cat", "dog"], ["dog", "cat"]]), np.array(["cat", "cat"]), 1)
    0.5
    """
    hits = _hits(ranked, labels)
    check_whole("k", k)
    check_k(k, hits.shape[1])
    return float(_recall(_first_hits(hits, _checked_groups(hits, groups)), k).mean())


def nmi(labels: Labels, clusters: Labels, normaliser: str = "arithmetic") -> float:
    """Normalised mutual information 2 I / (H + H'), or I / sqrt(H H') with the geometric normaliser.

    The arithmetic normaliser is that of Manning et al., which papers cite; scikit-learn before 0.22 had the geometric.

    >>> round(nmi([0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2]), 6)
    0.520665
    """
    from sklearn.metrics import normalized_mutual_info_score  # a second to import

    _check_name("normaliser", normaliser, NORMALISERS)
    return float(normalized_mutual_info_score(*_two_labellings(labels, clusters), average_method=normaliser))


def ami(labels: Labels, clusters: Labels, normaliser: str = "arithmetic") -> float:
    """Mutual information adjusted for chance and normalised: 0 for random clusters, however many."""
    from sklearn.metrics import adjusted_mutual_info_score

    _check_name("normaliser", normaliser, NORMALISERS)
    return float(adjusted_mutual_info_score(*_two_labellings(labels, clusters), average_method=normaliser))


def evaluate(
    vectors: Float[np.ndarray, "..."] | Float[Tensor, "..."],
    labels: Labels,
    query: Members | None = None,
    gallery: Members | None = None,
    *,
    sequence: Labels | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    ties: str = "expected",
    clustering: bool = True,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    restarts: int = 10,
    normaliser: str = "arithmetic",
    bootstrap: int = 1000,
    bootstrap_seed: int = 0,
) -> dict[str, Any]:
    """All metrics of a set of embeddings, as a dictionary that can be written as JSON.

    Distances are Euclidean, without normalisation: normalise first if the network does not. Memory is bounded: at most
    as many neighbours as the largest class has items are listed, for a few hundred queries at a time.

    Returns:
        recall_at_1, … : over all queries; a query without another item of its class counts as a miss.
        precision_at_1, r_precision, mean_average_precision_at_r, mean_reciprocal_rank: over the queries that have
            another item of their class, as in pytorch-metric-learning.
        NMI, AMI, NMI_std, AMI_std: K-means on the queries, with as many clusters as classes; mean and standard
            deviation over `seeds` (None for a single seed). None if not computed, for a reason given in `not_computed`.
        intervals: the 95 % interval of each retrieval metric: classes are resampled `bootstrap` times.
        tie_rate: share of the queries for which a recall depends on the order of ties.
        queries, gallery, classes (of the queries), lone_queries (without another item of their class),
            single_image_classes.
        ties, seeds, restarts, normaliser, bootstrap: how it was computed.

    Args:
        query: the vectors that are queries, as a mask or indices; all by default.
        gallery: the vectors that are searched, as a mask or indices; all by default. A query never finds itself.
        sequence: a query does not find items with the same value, such as frames of the same video.
        ks: the ranks at which recall is measured.
        ties: "expected", or "index", which ranks ties in the given order and so favours sorted data sets.
        clustering: whether to compute NMI and AMI, which take much longer than the rest if there are many classes.
        restarts: restarts of K-means for each seed.
    """
    _check_name("normaliser", normaliser, NORMALISERS)
    check_whole("bootstrap, the number of resamples,", bootstrap, 0)
    check_seed("bootstrap_seed", bootstrap_seed, bits=64)
    if clustering:
        check_whole("restarts", restarts)
        seeds = _several("seeds", seeds)
        for seed in seeds:
            check_seed("each of seeds", seed)
    array = checked_vectors(vectors)
    values, asked, shelf, relevant, tie_rate = per_query(
        array, labels, query, gallery, sequence=sequence, ks=ks, ties=ties
    )
    classes = _codes(labels, "labels", len(array))
    queries = array if query is None and gallery is None else array[asked]

    query_classes = np.unique(classes[asked], return_inverse=True)[1].reshape(-1)
    num_classes = int(query_classes.max()) + 1
    everyone = np.union1d(asked, shelf)
    result: dict[str, Any] = {name: _mean(each) for name, each in values.items()}
    result |= _cluster_measures(queries, query_classes, seeds, restarts, normaliser) if clustering else _NO_CLUSTERS
    result["intervals"] = _intervals(values, query_classes, bootstrap, bootstrap_seed) if bootstrap else {}
    result["not_computed"] = {} if clustering else {"NMI": "clustering=False", "AMI": "clustering=False"}
    if not bootstrap:
        result["not_computed"]["intervals"] = "bootstrap=0"
    result |= {
        "tie_rate": tie_rate,
        "queries": len(asked),
        "gallery": len(shelf),
        "classes": num_classes,
        "lone_queries": int((relevant == 0).sum()),
        "single_image_classes": int((np.bincount(classes[everyone]) == 1).sum()),
        "ties": ties,
        "seeds": list(seeds) if clustering else [],
        "restarts": restarts,
        "normaliser": normaliser,
        "bootstrap": bootstrap,
    }
    return result


class PerQuery(NamedTuple):
    """The retrieval metrics of each query."""

    values: dict[str, Float64[np.ndarray, " queries"]]
    """recall_at_1, …, r_precision, …: NaN for a query that does not count."""
    queries: Int64[np.ndarray, " queries"]
    """Indices of the queries among the items."""
    gallery: Int64[np.ndarray, " gallery"]
    """Indices of the gallery among the items."""
    relevant: Int64[np.ndarray, " queries"]
    """How many items of its class each query can find."""
    tie_rate: float


def per_query(
    vectors: Float[np.ndarray, "..."] | Float[Tensor, "..."],
    labels: Labels,
    query: Members | None = None,
    gallery: Members | None = None,
    *,
    sequence: Labels | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    ties: str = "expected",
) -> PerQuery:
    """The metrics of each query, whose means `evaluate` returns. Arguments as for `evaluate`."""
    _check_name("ties", ties, TIES)
    array = checked_vectors(vectors)
    items = len(array)
    classes = _codes(labels, "labels", items)
    asked, shelf = _members(query, "query", items), _members(gallery, "gallery", items)
    position = np.full(items, -1)
    position[shelf] = np.arange(len(shelf))
    itself = position[asked]  # (queries,)
    ks, others = _several("ks", ks), len(shelf) - bool((itself >= 0).any())
    if others < 1:
        raise UserError("there is nothing to find but the query itself: at least 2 vectors are needed.")
    for k in ks:
        check_whole("each of ks", k)
        if not 1 <= k <= others:
            raise UserError(f"recall at {k} needs k in 1..{others}, the other items in the gallery. Pass other ks.")
    if not ks:
        raise UserError("ks is empty: pass at least one k.")
    groups = None if sequence is None else _codes(sequence, "sequence", items)
    whole = array if len(shelf) == items and gallery is None else array[shelf]
    problem = NeighbourSearch(
        whole if query is None and gallery is None else array[asked],
        whole,
        itself if (itself >= 0).any() else None,
        None if groups is None else groups[asked],
        None if groups is None else groups[shelf],
    )
    relevant = _relevant(classes, groups, asked, shelf, itself >= 0)  # (queries,)
    values, tie_rate = _retrieval(problem, classes[asked], classes[shelf], relevant, tuple(ks), ties)
    return PerQuery(values, asked, shelf, relevant, tie_rate)


class FirstHits(NamedTuple):
    """The group of ties with a query's first hit; it determines recall at every k and the reciprocal rank."""

    closer: Int64[np.ndarray, " queries"]
    """Number of items before the group."""
    tied: Int64[np.ndarray, " queries"]
    """Number of items in the group."""
    relevant: Int64[np.ndarray, " queries"]
    """Number of items in the group with the query's class; 0 if there is no hit."""


def _first_hits(hits: Bool[np.ndarray, "queries depth"], groups: Groups) -> FirstHits:
    group = np.take_along_axis(groups, hits.argmax(axis=1)[:, None], axis=1)  # (queries, 1)
    inside = groups == group  # (queries, depth)
    return FirstHits((groups < group).sum(axis=1), inside.sum(axis=1), (inside & hits).sum(axis=1))


def _recall(first: FirstHits, k: int) -> Float64[np.ndarray, " queries"]:
    """1 - C(t-r, s) / C(t, s): one minus the probability that the s places left for t ties all go to the t-r misses."""
    left = np.minimum(k - first.closer, first.tied)  # (queries,)
    miss = np.ones(len(left))
    for place in range(min(k, int(left.max(initial=0)))):
        takes = place < left
        others = np.maximum(first.tied - first.relevant - place, 0)
        miss[takes] *= others[takes] / (first.tied - place)[takes]
    return np.where((first.relevant > 0) & (left > 0), 1 - miss, 0.0)


def _reciprocal_rank(first: FirstHits) -> Float64[np.ndarray, " queries"]:
    """Σ over j of P(first hit is the j-th of its group) / (closer + j); P(j) = C(t-j, r-1) / C(t, r)."""
    cases, which = np.unique(np.stack(first, axis=1), axis=0, return_inverse=True)
    values = np.zeros(len(cases))
    for case, (closer, tied, relevant) in enumerate(cases.tolist()):
        if relevant > 0:
            place = np.arange(1, tied - relevant + 2)
            odds = np.cumprod(
                np.concatenate([[relevant / tied], (tied - relevant - place + 1)[:-1] / (tied - place)[:-1]])
            )
            values[case] = (odds / (closer + place)).sum()
    return values[which.reshape(-1)]


def _precisions(
    hits: Bool[np.ndarray, "queries depth"], groups: Groups, relevant: Integer[np.ndarray, " queries"]
) -> tuple[Float64[np.ndarray, " queries"], Float64[np.ndarray, " queries"]]:
    """R-precision and average precision at R of each query, 0 where R is 0.

    In a group of t ties with r hits, after h hits: a place is a hit with probability r/t, and then each earlier place
    of the group is one with probability (r-1)/(t-1).
    """
    depth = hits.shape[1]
    place = np.arange(depth)
    new = np.pad(groups[:, 1:] != groups[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start = np.maximum.accumulate(np.where(new, place, 0), axis=1)  # (queries, depth): where the place's group begins
    last = np.pad(new[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    stop = np.minimum.accumulate(np.where(last, place + 1, depth)[:, ::-1], axis=1)[:, ::-1]  # and ends
    so_far = np.pad(np.cumsum(hits, axis=1), ((0, 0), (1, 0)))  # (queries, depth + 1)
    before = np.take_along_axis(so_far, start, axis=1)
    inside = np.take_along_axis(so_far, stop, axis=1) - before
    size = stop - start
    chance = np.where(place < relevant[:, None], inside / size, 0.0)  # (queries, depth)
    earlier = (place - start) * (inside - 1) / np.maximum(size - 1, 1)
    average = chance * (before + 1 + earlier) / (place + 1)
    count = np.maximum(relevant, 1)
    return chance.sum(axis=1) / count, average.sum(axis=1) / count


def _retrieval(
    problem: NeighbourSearch,
    query_classes: Int64[np.ndarray, " queries"],
    gallery_classes: Int64[np.ndarray, " gallery"],
    relevant: Int64[np.ndarray, " queries"],
    ks: tuple[int, ...],
    ties: str,
) -> tuple[dict[str, Float64[np.ndarray, " queries"]], float]:
    """Each metric of each query (NaN if the query does not count for it), and the tie rate."""
    count = len(relevant)
    found = _some(relevant > 0)
    precision, average = np.full(count, np.nan), np.full(count, np.nan)
    expected = FirstHits(*(np.zeros(count, dtype=np.int64) for _ in range(3)))
    by_index = FirstHits(*(np.zeros(count, dtype=np.int64) for _ in range(3)))
    for rows, ids, groups in problem.rankings(np.where(found, np.maximum(relevant, max(ks)), 0)):
        hits = (gallery_classes[ids] == query_classes[rows, None]) & (ids >= 0)
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        for kept, order in ((expected, groups), (by_index, places)):
            for whole, part in zip(kept, _first_hits(hits, order), strict=True):
                whole[rows] = part
        precision[rows], average[rows] = _precisions(hits, groups if ties == "expected" else places, relevant[rows])
    deep = np.nonzero(found & (expected.relevant == 0))[0]  # their first hit is beyond the rankings
    if len(deep):
        nearest, tied_hits = _nearest_of_class(problem, deep, query_classes, gallery_classes)
        closer, tied, before = problem.places(deep, nearest)
        expected.closer[deep], expected.tied[deep], expected.relevant[deep] = closer, tied, tied_hits
        by_index.closer[deep], by_index.tied[deep], by_index.relevant[deep] = closer + before, 1, 1
    first = expected if ties == "expected" else by_index
    recalls = {f"recall_at_{k}": _recall(first, k) for k in ks}
    undecided = [(each > 0) & (each < 1) for each in (_recall(expected, k) for k in ks)]
    metrics = {
        "precision_at_1": np.where(found, _recall(first, 1), np.nan),
        "r_precision": precision,
        "mean_average_precision_at_r": average,
        "mean_reciprocal_rank": np.where(found, _reciprocal_rank(first), np.nan),
    }
    return recalls | metrics, float(np.any(undecided, axis=0).mean())


def _nearest_of_class(
    problem: NeighbourSearch,
    rows: Int64[np.ndarray, " rows"],
    query_classes: Int64[np.ndarray, " queries"],
    gallery_classes: Int64[np.ndarray, " gallery"],
) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
    """The nearest item of the query's class, and how many of that class are tied with it, for these queries."""
    nearest, tied = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    shelf = np.argsort(gallery_classes, kind="stable")
    for name in np.unique(query_classes[rows]):
        mine = np.nonzero(query_classes[rows] == name)[0]
        low, high = np.searchsorted(gallery_classes, [name, name + 1], sorter=shelf)
        nearest[mine], tied[mine] = problem.nearest_of(rows[mine], shelf[low:high])
    return nearest, tied


def _relevant(
    classes: Int64[np.ndarray, " items"],
    groups: Int64[np.ndarray, " items"] | None,
    asked: Int64[np.ndarray, " queries"],
    shelf: Int64[np.ndarray, " gallery"],
    inside: Bool[np.ndarray, " queries"],
) -> Int64[np.ndarray, " queries"]:
    """How many items of its class each query can find."""
    of_class = np.bincount(classes[shelf], minlength=int(classes.max()) + 1)[classes[asked]]
    if groups is None:
        return np.asarray(of_class - inside)
    pair = np.unique(np.stack([classes, groups]), axis=1, return_inverse=True)[1].reshape(-1)  # (items,)
    return np.asarray(of_class - np.bincount(pair[shelf], minlength=int(pair.max()) + 1)[pair[asked]])


def _intervals(
    values: dict[str, Float64[np.ndarray, " queries"]],
    classes: Int64[np.ndarray, " queries"],
    resamples: int,
    seed: int,
) -> dict[str, list[float]]:
    """The 2.5 % and 97.5 % quantiles of each metric over sets of classes drawn with replacement (bootstrap).

    Classes are resampled, not queries: the items of a class are not independent, and the embedding must work for other
    classes. The value of each query is kept. A drawn set in which no query counts is skipped.
    """
    num_classes = int(classes.max()) + 1
    table = np.stack([np.bincount(classes, np.nan_to_num(each), num_classes) for each in values.values()], axis=1)
    counts = np.stack([np.bincount(classes, ~np.isnan(each), num_classes) for each in values.values()], axis=1)
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        times = np.bincount(random.integers(num_classes, size=num_classes), minlength=num_classes)  # (classes,)
        with np.errstate(invalid="ignore"):
            drawn.append((times @ table) / (times @ counts))
    low, high = np.nanpercentile(np.stack(drawn), [2.5, 97.5], axis=0)
    return {name: [float(low[i]), float(high[i])] for i, name in enumerate(values)}


_NO_CLUSTERS = {"NMI": None, "NMI_std": None, "AMI": None, "AMI_std": None}


def _cluster_measures(
    vectors: NDArray[np.floating[Any]],
    classes: Int64[np.ndarray, " queries"],
    seeds: Sequence[int],
    restarts: int,
    normaliser: str,
) -> dict[str, float | None]:
    num_classes = int(classes.max()) + 1
    if num_classes < 2:
        raise UserError("NMI needs at least 2 classes, got 1. Pass clustering=False for the other metrics.")
    if not seeds:
        raise UserError("seeds is empty: pass at least one seed, or clustering=False.")
    clusters = [kmeans(vectors, num_classes, seed=seed, restarts=restarts) for seed in seeds]
    result: dict[str, float | None] = {}
    for name, measure in (("NMI", nmi), ("AMI", ami)):
        each = np.array([measure(classes, found, normaliser) for found in clusters])
        result[name] = float(each.mean())
        result[f"{name}_std"] = float(each.std(ddof=1)) if len(each) > 1 else None
    return result


def _mean(values: Float64[np.ndarray, " queries"]) -> float:
    return float(values[~np.isnan(values)].mean())


def _hits(ranked: Ranked, labels: Shaped[np.ndarray, " queries"]) -> Bool[np.ndarray, "queries depth"]:
    ranked, labels = as_array(ranked, "ranked"), as_array(labels, "labels")
    if ranked.ndim != 2 or labels.shape != ranked.shape[:1]:
        raise UserError(
            f"ranked must have shape (queries, depth) and labels (queries,), got {ranked.shape} and {labels.shape}."
        )
    if ranked.size == 0:
        raise UserError(f"nothing is ranked: got shape {ranked.shape}.")
    return np.asarray(ranked == labels[:, None])


def _checked_groups(hits: Bool[np.ndarray, "queries depth"], groups: Groups | None) -> Groups:
    if groups is None:
        return np.broadcast_to(np.arange(hits.shape[1]), hits.shape)
    groups = as_array(groups, "groups")
    if groups.dtype.kind not in "iu":
        raise UserError(f"groups must be whole numbers, the same for tied items, got {groups.dtype}.")
    if groups.shape != hits.shape or (groups[:, 1:] < groups[:, :-1]).any():
        raise UserError("groups must have the shape of ranked, and must not decrease along a row.")
    return groups


def _some(found: Bool[np.ndarray, " queries"]) -> Bool[np.ndarray, " queries"]:
    if not found.any():
        raise UserError("no query has another item of its class: there is nothing to measure.")
    return found


def _two_labellings(labels: Labels, clusters: Labels) -> tuple[Int64[np.ndarray, "..."], Int64[np.ndarray, "..."]]:
    first = _codes(labels, "labels")
    return first, _codes(clusters, "clusters", len(first))


def _codes(labels: Labels, what: str, items: int | None = None) -> Int64[np.ndarray, " items"]:
    """Labels of any kind numbered from 0: strings, negative, with gaps, or too large for a float."""
    array = label_array(labels, what)
    if array.ndim != 1 or (items is not None and len(array) != items):
        wanted = "one-dimensional" if items is None else f"{items}, one for each vector"
        raise UserError(f"{what} must be {wanted}, got shape {array.shape}.")
    if len(array) == 0:
        raise UserError(f"{what} are empty.")
    if array.dtype.kind not in "iuUS" and not (array.dtype.kind == "T" or _all_alike(array)):
        raise UserError(f"{what} must be integers or strings, got {array.dtype}.")
    return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _several(what: str, given: Any) -> list[Any]:
    """An iterable as a list; UserError for a string or a scalar."""
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) != 1:
        raise UserError(f"{what} must be a list of whole numbers, such as {what}=[1, 2], got {shown(given)}.")
    return given.tolist() if isinstance(given, np.ndarray | Tensor) else list(given)


def _all_alike(array: NDArray[Any]) -> bool:
    """Whether an array of Python objects is all strings or all integers."""
    return array.dtype.kind == "O" and any(all(type(label) is kind for label in array) for kind in (str, int))


def _members(which: Members | None, what: str, items: int) -> Int64[np.ndarray, " members"]:
    """A mask or indices as indices; all indices for None."""
    if which is None:
        return np.arange(items)
    array = as_array(which, what)
    if array.shape == (0,):
        raise UserError(f"{what} names no vectors.")
    if array.dtype == bool:
        if array.shape != (items,):
            raise UserError(f"{what} as a mask must have shape ({items},), got {array.shape}.")
        array = np.nonzero(array)[0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{what} must be a mask or numbers of vectors, got {array.dtype} of shape {array.shape}.")
    if len(array) == 0:
        raise UserError(f"{what} names no vectors.")
    if array.min() < 0 or array.max() >= items:
        raise UserError(f"{what} must name vectors 0..{items - 1}, got {array.min()}..{array.max()}.")
    if len(np.unique(array)) < len(array):
        values, counts = np.unique(array, return_counts=True)
        raise UserError(f"{what} names vector {values[counts.argmax()]} more than once.")
    return array.astype(np.int64)


def _check_name(what: str, got: str, known: Sequence[str]) -> None:
    if not isinstance(got, str) or got not in known:
        raise unknown_name(what, str(got), known)
