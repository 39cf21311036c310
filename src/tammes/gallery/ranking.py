"""Exact ranking of search results of stores, which compute in float32; the order is that of `search.neighbours`."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.gallery.items import Hit
from tammes.search.neighbours import NeighbourSearch

_UNDERFLOW = 1e-17  # squares of differences so small vanish in float32


class Block(NamedTuple):
    """Some rows of a gallery."""

    paths: list[str]
    labels: list[str]
    vectors: Float32[ndarray, "rows dim"]


class Candidates(NamedTuple):
    """The candidates that a store returns."""

    block: Block
    reach: float
    """The largest distance among them as computed by the store; other rows are at least as far."""


def nearest(
    vectors: Float32[ndarray, "queries dim"],
    blocks: Iterable[Block],
    k: int,
    leave_out: Sequence[str | None] | None = None,
) -> list[list[Hit]]:
    """The k nearest rows of each query, in one pass over the rows; ties are sorted by path."""
    best: list[list[tuple[float, str, str]]] = [[] for _ in vectors]
    wanted = k + (leave_out is not None)
    for block in blocks:
        if not block.paths:
            continue
        order = sorted(range(len(block.paths)), key=block.paths.__getitem__)  # ties are then in the order of the paths
        problem = NeighbourSearch(vectors, block.vectors[order])
        for ranking in problem.rankings(np.full(len(vectors), min(wanted, len(order)))):
            ids = ranking.ids[:, :wanted]
            row, place = np.nonzero(ids >= 0)
            squared = problem.squared_distances(ranking.rows[row], ids[row, place])
            for query, number, value in zip(
                ranking.rows[row].tolist(), ids[row, place].tolist(), squared.tolist(), strict=True
            ):
                best[query].append((value, block.paths[order[number]], block.labels[order[number]]))
        best = [sorted(each)[:wanted] for each in best]
    without = leave_out if leave_out is not None else [None] * len(vectors)
    return [
        [Hit(path, label, float(np.sqrt(squared))) for squared, path, label in each if path != own][:k]
        for each, own in zip(best, without, strict=True)
    ]


def ranked(
    vector: Float32[ndarray, " dim"],
    fetch: Callable[[int], Candidates],
    k: int,
    leave_out: str | None,
    *,
    complete: bool,
) -> list[Hit]:
    """The k nearest rows of a query among the candidates of a store.

    Args:
        fetch: asks the store for a number of candidates.
        complete: the store compares with every row, so ask for more until rounding errors cannot hide a nearer row.
    """
    wanted = k + (leave_out is not None)
    asked = wanted + 8 + wanted // 8
    rounding = (len(vector) + 16) * 2.0**-24  # the worst that a sum of so many squares in float32 can do, and more
    while True:
        found = fetch(asked)
        hits = nearest(vector[None], [found.block], wanted)[0]
        whole = len(found.block.paths) < asked
        if whole or not complete or hits[-1].distance < found.reach * (1 - rounding) - _UNDERFLOW:
            return [hit for hit in hits if hit.path != leave_out][:k]
        asked *= 4


def recall_at_10(approximate: Sequence[Sequence[Hit]], exact: Sequence[Sequence[Hit]]) -> float:
    """The share of the ten nearest that are found; ties with the tenth count as found."""
    shares = [
        sum(hit.distance <= true[-1].distance for hit in found[: len(true)]) / len(true)
        for found, true in zip(approximate, exact, strict=True)
        if true
    ]
    return float(np.mean(shares))
