"""Exact nearest neighbours in bounded memory: ranked by float64 distances, with exact ties.

`reference.py` computes the same in a few lines. The optimisations and their gain (Recall@K of 60,502 x 512 unless
noted; figures from docs/log.md and docs/performance.md):

- A float32 matrix product finds candidates, with a bound on its error. Only where the bound cannot separate two
  candidates are their squared distances computed from the differences, in float64: this value defines the ranking, and
  items with the same value are tied. Where it cannot guarantee that the list is complete, float64 products are used.
  Differences for all pairs would take dim times the memory traffic.
- The gallery is searched in pieces of 16,384 columns: 90 instead of 58 billion operations per second.
- On a processor with bfloat16 instructions, a bfloat16 product with its error bound first selects the few items that
  can be candidates: 14.6 s instead of 26.4; 10 neighbours of 6,050 queries 2.9 instead of 5.2.
- If all items are compared with all others, each product is used for both: 30 s instead of 55 in float32.
- Candidates are multiplied again in float32 only until the bound rules out the rest: 1.2 s instead of 2.9.
- The lists of `topk.py`: 2.8 s instead of 7.3.
- The float64 search merges duplicates: otherwise, for a collapsed network, it would compare all with all.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from numpy.typing import NDArray
from torch import Tensor

from tammes.errors import UserError
from tammes.search.distance_tables import NUMBERS_AT_ONCE, BothWays, Numbers, Products, half_is_faster, row_blocks
from tammes.search.topk import Smallest
from tammes.search.validation import checked_vectors

_AT_ONCE = 1 << 24  # products in one block: 64 MB of float32
_GALLERY_AT_ONCE = 1 << 14  # rows of one piece of the gallery
_EXACT_AT_ONCE = 1 << 21  # pairs in one block of the float64 search, which needs about ten arrays of that size
_HALF_ROWS = 32  # smallest number of queries for which bfloat16 is tried
_HALF_FROM = 128  # gallery items per candidate from which bfloat16 saves more than it costs
_SQUARE = 3 << 10  # rows and columns of a block when all items are compared with all
_TRIED = 256  # queries with which bfloat16 is tried before all are compared with all
_HALF_FAILS = 0.25  # bfloat16 is given up above this share of queries that float32 must repeat
_SMALL = 2.0**-400  # squared differences of vectors below this size may underflow

_Found = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.floating[Any]]]
_Candidates = Callable[[NDArray[np.int64], NDArray[np.float64], int], _Found]


class Neighbours(NamedTuple):
    """The k nearest gallery items of each query, nearest first, ties in the order of the gallery."""

    distances: Float64[np.ndarray, "queries k"]
    """Euclidean distances; infinite where no item is left."""
    ids: Int64[np.ndarray, "queries k"]
    """Rows of the gallery; -1 where no item is left."""
    ties_cut: Int64[np.ndarray, " queries"]
    """How many more items have exactly the distance of the last one listed."""


class Ranking(NamedTuple):
    """Some queries with their nearest items, including all ties with the last one."""

    rows: Int64[np.ndarray, " rows"]
    """Indices of the queries."""
    ids: Int64[np.ndarray, "rows depth"]
    """Rows of the gallery, nearest first, ties in the order of the gallery; -1 after the end of the list."""
    groups: Int64[np.ndarray, "rows depth"]
    """Non-decreasing along a row; equal numbers mean equal distances."""


def search(
    queries: Float[np.ndarray, "queries dim"] | Float[Tensor, "queries dim"],
    gallery: Float[np.ndarray, "gallery dim"] | Float[Tensor, "gallery dim"],
    k: int,
    *,
    itself: Integer[np.ndarray, " queries"] | None = None,
    query_groups: Integer[np.ndarray, " queries"] | None = None,
    gallery_groups: Integer[np.ndarray, " gallery"] | None = None,
) -> Neighbours:
    """The k nearest gallery items of each query, by Euclidean distance without normalisation.

    Args:
        itself: the gallery row of the query itself, which is excluded; -1 for none. Duplicates of the query stay.
        query_groups, gallery_groups: items of the query's own group, such as frames of its video, are excluded.

    >>> search(np.array([[0.0], [3.0]]), np.array([[1.0], [-1.0], [5.0]]), k=1)
    Neighbours(distances=array([[1.],
           [2.]]), ids=array([[0],
           [0]]), ties_cut=array([1, 1]))
    """
    problem = NeighbourSearch(queries, gallery, itself, query_groups, gallery_groups)
    check_k(k, len(problem.gallery) - (itself is not None and bool((itself >= 0).any())))
    count = len(problem.queries)
    ids = np.full((count, k), -1)
    cut = np.zeros(count, dtype=np.int64)
    for ranking in problem.rankings(np.full(count, k)):
        width = min(k, ranking.ids.shape[1])
        ids[ranking.rows, :width] = ranking.ids[:, :width]
        cut[ranking.rows] = (ranking.ids[:, width:] >= 0).sum(1)
    row, place = np.nonzero(ids >= 0)
    distances = np.full((count, k), np.inf)
    distances[row, place] = np.ldexp(np.sqrt(problem.squares(row, ids[row, place])), -problem.doubled)
    return Neighbours(distances, ids, cut)


class NeighbourSearch:
    """A search problem: queries, a gallery, and exclusions. Arguments as for `search`."""

    def __init__(
        self,
        queries: Any,
        gallery: Any,
        itself: NDArray[np.integer[Any]] | None = None,
        query_groups: NDArray[np.integer[Any]] | None = None,
        gallery_groups: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        self.gallery = checked_vectors(gallery, "gallery")
        self.queries = self.gallery if queries is gallery else checked_vectors(queries, "queries")
        if self.queries.shape[1] != self.gallery.shape[1]:
            raise UserError(
                f"queries and gallery must have the same dim, got {self.queries.shape[1]} and {self.gallery.shape[1]}."
            )
        if (query_groups is None) != (gallery_groups is None):
            raise UserError("query_groups and gallery_groups go together: pass both or neither.")
        for given, wanted, what in (
            (itself, self.queries, "itself"),
            (query_groups, self.queries, "query_groups"),
            (gallery_groups, self.gallery, "gallery_groups"),
        ):
            if given is not None and np.shape(given) != (len(wanted),):
                raise UserError(f"{what} must be {len(wanted)} numbers, got shape {np.shape(given)}.")
        if itself is not None and (np.min(itself) < -1 or np.max(itself) >= len(self.gallery)):
            raise UserError(
                f"itself must be rows of the gallery, 0..{len(self.gallery) - 1}, or -1 for none;"
                f" got {np.min(itself)}..{np.max(itself)}."
            )
        self.itself = None if itself is None else np.asarray(itself, dtype=np.int64)
        self.query_groups, self.gallery_groups = query_groups, gallery_groups
        self.doubled = 0  # the vectors were multiplied by 2 to this power
        # Centring does not change distances, and makes the error of a product smaller.
        self.centre, longest = self._extent()
        if longest < _SMALL:
            self._double()
            self.centre, longest = self._extent()
        self.scale = longest or 1.0
        self.products = Products(self.gallery, self.centred, np.float32)
        self.half_helps = True
        self._of_all: Smallest | None = None

    def _extent(self) -> tuple[Float64[np.ndarray, " dim"], float]:
        """The gallery's mean, and the largest distance of a vector from it."""
        centre = self.gallery.mean(axis=0, dtype=np.float64)
        longest = max(np.linalg.norm(self.queries[part] - centre, axis=1).max() for part in row_blocks(self.queries))
        if self.queries is not self.gallery:
            longest = max(
                longest,
                *(np.linalg.norm(self.gallery[part] - centre, axis=1).max() for part in row_blocks(self.gallery)),
            )
        return centre, float(longest)

    def _double(self) -> None:
        """Multiply tiny vectors by a power of two, which is exact, so that the largest number is near 1."""
        alone = self.queries is self.gallery
        largest = max(float(np.abs(each).max()) for each in (self.queries, self.gallery))
        if 0 < largest < _SMALL:
            self.doubled = -int(np.frexp(largest)[1])
            self.gallery = np.ldexp(self.gallery, self.doubled)
            self.queries = self.gallery if alone else np.ldexp(self.queries, self.doubled)

    def centred(self, vectors: Numbers) -> Float64[np.ndarray, "rows dim"]:
        """The vectors relative to the gallery's mean, in float64, with norms up to 1."""
        moved: Float64[np.ndarray, "rows dim"] = (vectors - self.centre) / self.scale
        return moved

    @cached_property
    def distinct(self) -> tuple[Numbers, Int64[np.ndarray, " gallery"]]:
        """The gallery without duplicates, and the index of each row in it."""
        rows = np.ascontiguousarray(self.gallery)
        bits = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
        _, first, inverse = np.unique(bits, return_index=True, return_inverse=True)
        return self.gallery[first], inverse.reshape(-1)

    @cached_property
    def both_ways(self) -> BothWays:
        return BothWays(self.products, torch.bfloat16 if half_is_faster() else torch.float32)

    @cached_property
    def double_products(self) -> Products:
        return Products(self.distinct[0], self.centred, np.float64)

    def squared_distances(
        self, rows: Integer[np.ndarray, " pairs"], ids: Integer[np.ndarray, " pairs"]
    ) -> Float64[np.ndarray, " pairs"]:
        """Squared distances of pairs of a query and an item; 0 where a square underflows."""
        return np.asarray(np.ldexp(self.squares(rows, ids), -2 * self.doubled))

    def squares(
        self, rows: Integer[np.ndarray, " pairs"], ids: Integer[np.ndarray, " pairs"]
    ) -> Float64[np.ndarray, " pairs"]:
        """Squared distances of pairs from the differences, in float64: they define the ranking.

        They are those of the scaled vectors (see `doubled`), and do not depend on which other pairs are computed.
        """
        result = np.empty(len(rows))
        size = max(1, NUMBERS_AT_ONCE // self.gallery.shape[1])
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            apart = self.queries[rows[part]].astype(np.float64) - self.gallery[ids[part]]  # (pairs, dim)
            result[part] = np.square(apart, out=apart).sum(axis=1)
        return result

    def excluded(
        self, rows: Integer[np.ndarray, " rows"], columns: Integer[np.ndarray, " columns"]
    ) -> Bool[np.ndarray, "rows columns"] | None:
        """The mask of gallery items that are excluded for these queries; None if there are no exclusions."""
        if self.itself is None and self.query_groups is None:
            return None
        result = np.zeros((len(rows), len(columns)), dtype=bool)
        if self.query_groups is not None and self.gallery_groups is not None:
            result |= self.query_groups[rows, None] == self.gallery_groups[columns]
        if self.itself is not None:
            result |= self.itself[rows, None] == columns
        return result

    def _exclude(self, block: Tensor, rows: Int64[np.ndarray, " rows"], start: int) -> None:
        """Set excluded items to infinity, in a block of products whose first column is `start`."""
        stop = start + block.shape[1]
        if self.query_groups is not None and self.gallery_groups is not None:
            own = self.query_groups[rows, None] == self.gallery_groups[start:stop]
            block.masked_fill_(torch.from_numpy(own), torch.inf)
        if self.itself is not None:
            column = self.itself[rows]
            here = np.nonzero((column >= start) & (column < stop))[0]
            block[torch.from_numpy(here), torch.from_numpy(column[here] - start)] = torch.inf

    def rankings(self, depths: Integer[np.ndarray, " queries"]) -> Iterator[Ranking]:
        """The nearest items of each query, at least as many as `depths`, for all queries in some order.

        A query with depth 0 is skipped. A ranking contains whole groups of tied items, so it may be as wide as the
        gallery; it then has few rows.
        """
        order = np.argsort(depths, kind="stable")
        order = order[depths[order] > 0]
        self._of_all = None
        self._of_all = self._candidates_of_all(depths)
        left: list[NDArray[np.int64]] = []  # queries that bfloat16 could not decide, for float32
        for rows, depth in self._blocks(order, depths):
            if self._of_all is None and not self._in_half(len(rows), depth):
                left.append(rows)
                continue
            ranking, unsure = self._ranking(rows, depth, self._rough_candidates)
            self.half_helps = len(unsure) <= _HALF_FAILS * len(rows)
            left.append(unsure)
            if len(ranking.rows):
                yield ranking
        self._of_all = None
        for rows, depth in self._blocks(np.concatenate(left) if left else order, depths):
            ranking, unsure = self._ranking(rows, depth, self._candidates)
            if len(ranking.rows):
                yield ranking
            size = max(1, _EXACT_AT_ONCE // len(self.gallery))
            for first in range(0, len(unsure), size):
                yield self._ranking_in_double(unsure[first : first + size], depth)

    def _blocks(
        self, order: Int64[np.ndarray, " some"], depths: Integer[np.ndarray, " queries"]
    ) -> Iterator[tuple[Int64[np.ndarray, " rows"], int]]:
        """Blocks of queries with their depth. `order` is sorted by depth."""
        columns, start = min(len(self.gallery), _GALLERY_AT_ONCE), 0
        while start < len(order):
            # All rows of a block have the depth of its deepest; the lists must fit in memory as well as the products.
            rows = order[start : start + max(1, min(4096, _AT_ONCE // columns))]
            depth = min(int(depths[rows[-1]]), len(self.gallery))
            rows = rows[: max(1, _AT_ONCE // (4 * _listed(depth)))]
            start += len(rows)
            yield rows, min(int(depths[rows[-1]]), len(self.gallery))

    def _in_half(self, rows: int, depth: int) -> bool:
        """Whether to select candidates by bfloat16 products first."""
        return self._few(rows, depth) and self.half_helps and half_is_faster()

    def _few(self, rows: int, depth: int) -> bool:
        """Whether there are enough queries, and few enough candidates, for computing candidates twice to pay."""
        return rows >= _HALF_ROWS and len(self.gallery) >= _HALF_FROM * _listed_in_half(_listed(depth))

    def _ranking(
        self, rows: Int64[np.ndarray, " rows"], depth: int, candidates: _Candidates
    ) -> tuple[Ranking, Int64[np.ndarray, " unsure"]]:
        """The ranking of the rows for which float32 products suffice, and the other rows."""
        centred = self.centred(self.queries[rows])
        margin = 2 * self.products.error(centred)  # (rows,): products that differ by more are in the right order
        values, ids, bar = candidates(rows, centred, depth)  # (rows, listed), and a lower bound of all others
        complete = (bar > values[:, depth - 1] + margin) | np.isinf(bar)
        unsure = rows[~complete]
        if len(unsure):
            rows, values, ids, margin = rows[complete], values[complete], ids[complete], margin[complete]
        present = np.isfinite(values)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            near = (values[:, 1:] - values[:, :-1] <= margin[:, None]) & present[:, 1:]  # (rows, listed - 1)
        runs = np.cumsum(np.pad(~near, ((0, 0), (1, 0))), axis=1)  # (rows, listed): items whose order is uncertain
        same = np.zeros(near.shape, dtype=bool)
        row, place = np.nonzero(np.pad(near, ((0, 0), (1, 0))) | np.pad(near, ((0, 0), (0, 1))))
        if len(row):
            exact = self.squares(rows[row], ids[row, place])
            run = runs[row, place]
            # The members of a run are adjacent: once sorted, they go back to the same places.
            order = np.lexsort((ids[row, place], exact, run, row))
            ids[row, place] = ids[row, place][order]
            exact = exact[order]
            tied = (exact[1:] == exact[:-1]) & (run[1:] == run[:-1]) & (row[1:] == row[:-1])
            same[row[1:][tied], place[:-1][tied]] = True
        return _whole_groups(rows, np.where(present, ids, -1), same, depth), unsure

    def _candidates(
        self, rows: Int64[np.ndarray, " rows"], centred: Float64[np.ndarray, "rows dim"], depth: int
    ) -> _Found:
        """The smallest products of each row in order, their columns, and a lower bound of all others."""
        listed = min(_listed(depth), len(self.gallery))
        values, places = self._smallest_products(self.products, rows, centred, listed).found()
        none_left = listed == len(self.gallery)
        return values, places, np.full(len(rows), np.inf) if none_left else values[:, -1].astype(np.float64)

    def _rough_candidates(
        self, rows: Int64[np.ndarray, " rows"], centred: Float64[np.ndarray, "rows dim"], depth: int
    ) -> _Found:
        """Like `_candidates`, but selected by `both_ways` products and then computed again in float32."""
        if self._of_all is None:
            lists = self._smallest_products(self.both_ways, rows, centred, _listed_in_half(_listed(depth)))
            return self._in_single(lists.found(), centred, depth)
        return self._in_single(self._of_all.found(rows), centred, depth)

    def _in_single(
        self, listed: tuple[Numbers, NDArray[np.int64]], centred: Float64[np.ndarray, "rows dim"], depth: int
    ) -> _Found:
        """Compute the products of candidates again in float32.

        The first `depth` candidates are computed. The largest of these products is a limit: a candidate whose rough
        distance exceeds it by more than the error bound is not among the nearest.
        """
        rough, places = listed
        squares, error = np.square(centred).sum(axis=1), self.both_ways.error(centred)
        rounding = self.both_ways.rounding
        low = np.where(rough < 0, 1 + rounding, 1 - rounding) * rough  # (rows, listed): lower bound before rounding
        low -= (squares + error + self.products.error(centred))[:, None]
        prepared = self.products.prepared(centred)
        values = np.full(rough.shape, np.inf, dtype=np.float32)
        values[:, :depth] = self.products.chosen(prepared, places[:, :depth])
        values[np.isinf(rough)] = np.inf
        limit = values[:, :depth].max(axis=1) + 2 * self.products.error(centred)  # (rows,)
        count = depth + ((low <= limit[:, None]) & np.isfinite(rough))[:, depth:].sum(axis=1)  # (rows,)
        # Rows that need about the same number of further candidates are computed together.
        for some in np.array_split(np.argsort(count, kind="stable"), min(8, len(count))):
            more = slice(depth, int(count[some[-1]]))
            if more.start < more.stop:
                again = self.products.chosen(prepared[torch.from_numpy(some)], places[some, more])
                values[some, more] = np.where(np.isinf(rough[some, more]), np.inf, again)
                count[some] = more.stop
        length = rough.shape[1]
        bar = np.where(
            count < length, low[np.arange(len(low)), np.minimum(count, length - 1)], low[:, -1]
        )  # (rows,): of the first that was not computed
        order = np.argsort(values, axis=1, kind="stable")
        return np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1), bar

    def _candidates_of_all(self, depths: Integer[np.ndarray, " queries"]) -> Smallest | None:
        """The candidates of all items, if all are compared with all but themselves; None otherwise.

        A distance is valid for both items of a pair, so half of the products suffice.
        """
        number, depth = len(self.gallery), int(depths.max())
        everyone = self.itself is not None and self.queries is self.gallery and self.query_groups is None
        if not (everyone and number > 2 * _SQUARE and self._few(int((depths > 0).sum()), depth)):
            return None
        if not np.array_equal(np.asarray(self.itself), np.arange(number)) or _listed_in_half(_listed(depth)) > max(
            64, self.gallery.shape[1] // 4
        ):
            return None  # lists for all items would take too much memory
        some = np.linspace(0, number - 1, _TRIED).astype(np.int64)
        _, unsure = self._ranking(some, depth, self._rough_candidates)
        self.half_helps = len(unsure) <= _HALF_FAILS * len(some)
        if not self.half_helps:
            return None
        lists, starts = Smallest(number, _listed_in_half(_listed(depth))), range(0, number, _SQUARE)
        for first in starts:
            prepared = self.both_ways.prepared(self.centred(self.queries[first : first + _SQUARE]))
            for second in starts[first // _SQUARE :]:
                block = self.both_ways.block(prepared, slice(second, second + _SQUARE))
                if first == second:
                    block.fill_diagonal_(torch.inf)
                else:
                    lists.put(block.T, row=second, column=first)
                lists.put(block, row=first, column=second)
        return lists

    def _smallest_products(
        self,
        products: Products | BothWays,
        rows: Int64[np.ndarray, " rows"],
        centred: Float64[np.ndarray, "rows dim"],
        listed: int,
    ) -> Smallest:
        lists, prepared = Smallest(len(rows), listed), products.prepared(centred)
        for start in range(0, len(self.gallery), _GALLERY_AT_ONCE):
            block = products.block(prepared, slice(start, start + _GALLERY_AT_ONCE))
            self._exclude(block, rows, start)
            lists.put(block, column=start)
        return lists

    def _ranking_in_double(self, rows: Int64[np.ndarray, " rows"], depth: int) -> Ranking:
        """The ranking by float64 products with the distinct vectors, and by differences for all candidates."""
        distinct, inverse = self.distinct
        centred = self.centred(self.queries[rows])
        products = self.double_products.block(
            self.double_products.prepared(centred), slice(None)
        ).numpy()  # (rows, distinct)
        away = self.excluded(rows, np.arange(len(self.gallery)))
        values = products[:, inverse]  # (rows, gallery)
        if away is not None:
            values[away] = np.inf
        bar = np.partition(values, depth - 1, axis=1)[:, depth - 1] + 2 * self.double_products.error(centred)  # (rows,)
        row, item = np.nonzero((values <= bar[:, None]) & np.isfinite(values))  # in the order of the gallery
        wanted = np.zeros(products.shape, dtype=bool)
        wanted[row, inverse[item]] = True
        first = np.empty(len(distinct), dtype=np.int64)
        first[inverse[::-1]] = np.arange(len(inverse))[::-1]
        exact = products  # its own values are no longer needed
        pair_row, pair_item = np.nonzero(wanted)
        exact[pair_row, pair_item] = self.squares(rows[pair_row], first[pair_item])
        counts = np.bincount(row, minlength=len(rows))
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        width = max(1, int(counts.max()))
        ids, distances = np.full((len(rows), width), -1), np.full((len(rows), width), np.inf)
        ids[row, place], distances[row, place] = item, exact[row, inverse[item]]
        order = np.argsort(distances, axis=1, kind="stable")
        ids, distances = np.take_along_axis(ids, order, 1), np.take_along_axis(distances, order, 1)
        same = (distances[:, 1:] == distances[:, :-1]) & (ids[:, 1:] >= 0)
        return _whole_groups(rows, ids, same, min(depth, width))

    def nearest_of(
        self, rows: Integer[np.ndarray, " rows"], items: Integer[np.ndarray, " items"]
    ) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
        """The nearest of these gallery items to each of these queries, and how many of them are tied with it.

        Of tied items, the first. `items` must be sorted, and each query must be allowed at least one of them.
        """
        nearest, tied = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        size = max(1, _EXACT_AT_ONCE // len(items))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            some = rows[part]
            squared = self.squares(np.repeat(some, len(items)), np.tile(items, len(some)))
            squared = squared.reshape(len(some), len(items))
            away = self.excluded(some, items)
            if away is not None:
                squared[away] = np.inf
            nearest[part] = items[squared.argmin(axis=1)]
            tied[part] = (squared == squared.min(axis=1, keepdims=True)).sum(axis=1)
        return nearest, tied

    def places(
        self, rows: Integer[np.ndarray, " rows"], ids: Integer[np.ndarray, " rows"]
    ) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
        """The rank of one gallery item for each query, without computing the ranking.

        Returns how many items are nearer, how many have the same distance (including itself), and how many of those
        come before it in the gallery.
        """
        closer, tied, before = (np.zeros(len(rows), dtype=np.int64) for _ in range(3))
        bars = self.squares(rows, ids)
        columns = min(len(self.gallery), _GALLERY_AT_ONCE)
        size = max(1, min(4096, _AT_ONCE // columns))
        for first in range(0, len(rows), size):
            part = slice(first, first + size)
            centred = self.centred(self.queries[rows[part]])
            prepared = self.products.prepared(centred)
            near = bars[part] / self.scale**2  # (rows,)
            margin = self.products.error(centred, np.sqrt(near))
            bar = near - np.square(centred).sum(axis=1)  # (rows,): the exact value of its product
            low, high = torch.from_numpy(bar - margin)[:, None], torch.from_numpy(bar + margin)[:, None]
            for start in range(0, len(self.gallery), _GALLERY_AT_ONCE):
                block = self.products.block(prepared, slice(start, start + _GALLERY_AT_ONCE))
                self._exclude(block, rows[part], start)
                certain = block < low.float()
                closer[part] += certain.sum(dim=1).numpy()
                row, item = ((block <= high.float()) & ~certain).nonzero().numpy().T
                row, item = row + first, item + start
                exact = self.squares(rows[row], item)
                np.add.at(closer, row[exact < bars[row]], 1)
                np.add.at(tied, row[exact == bars[row]], 1)
                np.add.at(before, row[(exact == bars[row]) & (item < ids[row])], 1)
        return closer, tied, before


def _listed(depth: int) -> int:
    """How many candidates to list, so that the last is usually clearly farther than the one at `depth`."""
    return depth + 8 + depth // 8


def _listed_in_half(listed: int) -> int:
    """How many to list by bfloat16, so that the candidates are usually among them."""
    return listed + listed // 4 + 12


def _whole_groups(
    rows: Int64[np.ndarray, " rows"],
    ids: Int64[np.ndarray, "rows listed"],
    same: Bool[np.ndarray, "rows listed-1"],
    depth: int,
) -> Ranking:
    """Cut the lists after the group of tied items at `depth`."""
    groups = np.cumsum(np.pad(~same, ((0, 0), (1, 0)), constant_values=False), axis=1)  # (rows, listed), from 0
    kept = (groups <= groups[:, depth - 1 : depth]) & (ids >= 0)
    width = max(1, int(kept.sum(axis=1).max(initial=0)))
    return Ranking(rows, np.where(kept, ids, -1)[:, :width], groups[:, :width])


def check_k(k: int, others: int) -> None:
    """Raise UserError unless there are at least k items to find."""
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}.")
    if k > others:
        raise UserError(f"k = {k} neighbours were asked for, but a query has only {others} other items.")
