"""Retrieval results of each query: nearest items, margin, and confusions of classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray

from tammes.geometry import distances
from tammes.metrics import per_query
from tammes.search.neighbours import search

_ENTRIES = 1 << 22  # distances in one block


@dataclass(frozen=True)
class Findings:
    """The results of each query.

    Attributes:
        queries: the items that are queries.
        near: the nearest items of each, nearest first; -1 where no item is left.
        distances: their distances.
        hit: R@1 of each query: 1 or 0, or between with ties.
        can_hit: whether there is another item of its class.
        margin: distance of the nearest item of another class minus that of the nearest of its own; NaN if either is
            missing.
    """

    queries: Int64[ndarray, " queries"]
    near: Int64[ndarray, "queries k"]
    distances: Float64[ndarray, "queries k"]
    hit: Float64[ndarray, " queries"]
    can_hit: Bool[ndarray, " queries"]
    margin: Float64[ndarray, " queries"]


@dataclass(frozen=True)
class ClassFound:
    """The results of a class.

    Attributes:
        label: the class.
        items: its number of queries.
        recall: its R@1.
        taken_for: the most frequent class of its wrong nearest neighbours; None if there are none.
        taken: the number of these.
        shown: one of its items.
        alone: whether none of its queries has another item of the class.
    """

    label: int
    items: int
    recall: float
    taken_for: int | None
    taken: int
    shown: int
    alone: bool


@dataclass(frozen=True)
class Confusion:
    """Two classes that are often confused.

    Attributes:
        share: the share of their queries whose nearest neighbour is in the other class.
        examples: such queries with that neighbour, the nearest first.
    """

    one: int
    other: int
    share: float
    times: int
    examples: tuple[tuple[int, int], ...]


def findings(
    vectors: Float[ndarray, "items dim"],
    labels: Int64[ndarray, " items"],
    masks: dict[str, ndarray] | None = None,
    *,
    k: int = 8,
) -> Findings:
    """Search for every query and compute its margin.

    Args:
        masks: query, gallery and sequence, as in `evaluate`.
        k: number of neighbours, or fewer if there are not so many.
    """
    masks = masks or {}
    options: dict[str, Any] = {"ks": (1,), **masks}
    measured = per_query(vectors, labels, **options)
    asked, shelf = measured.queries, measured.gallery
    sequence = masks.get("sequence")
    groups = None if sequence is None else np.unique(sequence, return_inverse=True)[1].reshape(-1)
    position = np.full(len(labels), -1)
    position[shelf] = np.arange(len(shelf))
    itself = position[asked]
    k = min(k, len(shelf) - bool((itself >= 0).any()))
    found = search(
        vectors[asked],
        vectors[shelf],
        k,
        itself=itself,
        query_groups=None if groups is None else groups[asked],
        gallery_groups=None if groups is None else groups[shelf],
    )
    near = np.where(found.ids >= 0, shelf[found.ids], -1)
    return Findings(
        queries=asked,
        near=near,
        distances=found.distances,
        hit=np.nan_to_num(measured.values["recall_at_1"]),
        can_hit=measured.relevant > 0,
        margin=_margins(vectors, labels, groups, asked, shelf),
    )


def _margins(
    vectors: ndarray, labels: ndarray, groups: ndarray | None, asked: ndarray, shelf: ndarray
) -> Float64[ndarray, " queries"]:
    points, found = torch.from_numpy(np.ascontiguousarray(vectors)), []
    gallery, of_gallery = points[torch.from_numpy(shelf)], labels[shelf]
    for rows in np.array_split(asked, max(1, -(-len(asked) * len(shelf) // _ENTRIES))):
        apart = distances(points[torch.from_numpy(rows)], gallery).double().numpy()  # (rows, gallery)
        apart[rows[:, None] == shelf] = np.inf
        if groups is not None:
            apart[groups[rows][:, None] == groups[shelf]] = np.inf
        same = labels[rows][:, None] == of_gallery
        own = np.where(same, apart, np.inf).min(axis=1)
        other = np.where(same, np.inf, apart).min(axis=1)
        with np.errstate(invalid="ignore"):
            found.append(np.where(np.isfinite(own) & np.isfinite(other), other - own, np.nan))
    return np.concatenate(found)


def by_class(found: Findings, labels: Int64[ndarray, " items"]) -> list[ClassFound]:
    """The results of every class, the worst first; classes without possible hits last."""
    of = labels[found.queries]
    first = found.near[:, 0]
    neighbour = np.where(first >= 0, labels[first], -1)
    rows = []
    for label in np.unique(of).tolist():
        mine = np.flatnonzero(of == label)
        wrong = neighbour[mine][(neighbour[mine] != label) & (neighbour[mine] >= 0)]
        names, times = np.unique(wrong, return_counts=True)
        most = int(times.argmax()) if len(times) else None
        rows.append(
            ClassFound(
                label=label,
                items=len(mine),
                recall=float(found.hit[mine].mean()),
                taken_for=None if most is None else int(names[most]),
                taken=0 if most is None else int(times[most]),
                shown=int(found.queries[mine[0]]),
                alone=not found.can_hit[mine].any(),
            )
        )
    return sorted(rows, key=lambda row: (row.alone, row.recall, -row.items, row.label))


def confusions(
    found: Findings, labels: Int64[ndarray, " items"], *, pairs: int = 12, examples: int = 3
) -> list[Confusion]:
    """The most frequent confusions, by the share of the queries that can hit."""
    of, first = labels[found.queries], found.near[:, 0]
    wrong = np.flatnonzero((first >= 0) & (labels[first] != of) & found.can_hit)
    if not len(wrong):
        return []
    ends = np.sort(np.stack([of[wrong], labels[first[wrong]]], axis=1), axis=1)
    named, where, times = np.unique(ends, axis=0, return_inverse=True, return_counts=True)
    sizes = np.bincount(of[found.can_hit], minlength=int(labels.max()) + 1)
    share = times / sizes[named].sum(axis=1)
    rows = []
    for number in np.lexsort((named[:, 1], named[:, 0], -times, -share))[:pairs].tolist():
        cases = wrong[where.reshape(-1) == number]
        nearest = cases[np.argsort(found.distances[cases, 0], kind="stable")]
        rows.append(
            Confusion(
                one=int(named[number, 0]),
                other=int(named[number, 1]),
                share=float(share[number]),
                times=int(times[number]),
                examples=_apart(nearest, found, examples),
            )
        )
    return rows


def _apart(cases: ndarray, found: Findings, number: int) -> tuple[tuple[int, int], ...]:
    """The first cases without mirrored ones."""
    chosen: list[tuple[int, int]] = []
    for case in cases.tolist():
        pair = int(found.queries[case]), int(found.near[case, 0])
        if pair[::-1] not in chosen:
            chosen.append(pair)
        if len(chosen) == number:
            break
    return tuple(chosen)


def chosen_queries(
    found: Findings, labels: Int64[ndarray, " items"], *, number: int = 8, seed: int = 0
) -> dict[str, list[int]]:
    """Rows of example queries: random, clearest right and clearest wrong ones; one per class."""
    margin = found.margin
    order = np.argsort(margin, kind="stable")
    order = order[~np.isnan(margin[order])]
    at_random = np.random.default_rng(seed).permutation(len(found.queries))
    right, wrong = order[::-1][margin[order[::-1]] > 0], order[margin[order] <= 0]
    return {
        "random": _one_of_a_class(at_random, found, labels, number),
        "best": _one_of_a_class(right, found, labels, number),
        "worst": _one_of_a_class(wrong, found, labels, number),
    }


def _one_of_a_class(rows: ndarray, found: Findings, labels: ndarray, number: int) -> list[int]:
    """The first rows of different classes; then others, if there are too few classes."""
    names = labels[found.queries[rows]]
    firsts = np.sort(np.unique(names, return_index=True)[1])
    others = np.setdiff1d(np.arange(len(rows)), firsts)
    return [int(row) for row in rows[np.concatenate([firsts, others])[:number]]]
