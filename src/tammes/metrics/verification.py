"""Verification: the same-class threshold on a distance, with its true and false match rates.

Two items within the threshold match: they are taken to be of the same class. The false match rate is the share of pairs
of different classes that match, the true match rate the share of pairs of the same class that match. Both are counted
over all pairs, in bins of distance. Pairs that share a class are not independent: intervals come from leaving out
groups of classes (the delete-a-group jackknife), never from the number of pairs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from tammes.errors import UserError
from tammes.geometry import distances
from tammes.metrics.retrieval import Members, _codes, _members
from tammes.search.distance_tables import Numbers
from tammes.search.validation import Labels, checked_vectors

Interval = tuple[float, float]

_BLOCK = 2048  # rows and columns of one block of pairs
_UNIT = 1e-4  # tolerance of the norm of a unit vector


@dataclass(frozen=True)
class Calibration:
    """A same-class threshold with its error rates. Intervals are at 95 %; None if there are too few classes.

    Attributes:
        threshold: two items within this distance match.
        threshold_interval: the interval of the threshold for the requested rate; None if the threshold was given.
        fmr: the requested false match rate; None if the threshold was given, or balances the errors.
        false_match_rate: share of the pairs of different classes that match.
        true_match_rate: share of the pairs of the same class that match.
        false_matches: number of pairs of different classes that match.
        same_pairs, other_pairs: pairs of the same class, and of different ones.
        classes, items: how many classes and items form the pairs.
    """

    threshold: float
    threshold_interval: Interval | None
    fmr: float | None
    false_match_rate: float
    false_match_interval: Interval | None
    true_match_rate: float
    true_match_interval: Interval | None
    false_matches: int
    same_pairs: int
    other_pairs: int
    classes: int
    items: int


@dataclass(frozen=True)
class PairCounts:
    """A histogram of pair distances. Bin i holds distances above edge i up to edge i+1; the first also holds 0.

    Attributes:
        edges: the edges of the bins, from 0 to an upper bound of all distances; 2 for unit vectors.
        same, other: pairs of the same class, and of different classes.
        group_same, group_other: the pairs that involve each group of classes; a pair of two groups counts for both.
            Subtracted from all pairs, they give the pairs without the group.
        classes, items: how many classes and items can form pairs.
    """

    edges: Float64[np.ndarray, " edges"]
    same: Int64[np.ndarray, " bins"]
    other: Int64[np.ndarray, " bins"]
    group_same: Int64[np.ndarray, "groups bins"]
    group_other: Int64[np.ndarray, "groups bins"]
    classes: int
    items: int

    def rates(self) -> tuple[Float64[np.ndarray, " edges"], Float64[np.ndarray, " edges"]]:
        """The false and the true match rate with each edge as the threshold; at the first, 0, both are 0."""
        return _shares(self.other), _shares(self.same)

    def area(self) -> float:
        """The area under the ROC curve: the probability that a same-class pair is nearer than a different-class pair.

        Two pairs in the same bin count half.
        """
        false, true = self.rates()
        return float((np.diff(false) * (true[1:] + true[:-1]) / 2).sum())

    def equal_error_rate(self) -> float:
        """The rate at which false matches and false non-matches are equal, interpolated between two edges."""
        false, true = self.rates()
        excess = false - (1 - true)  # (edges,), from -1 to 1
        after = int(np.argmax(excess >= 0))
        part = -excess[after - 1] / (excess[after] - excess[after - 1])
        return float(false[after - 1] + part * (false[after] - false[after - 1]))

    def threshold_at(self, fmr: float) -> Calibration:
        """The largest edge whose false match rate is at most `fmr`, with its rates.

        The interval of the threshold contains the edges whose false match rate may equal `fmr`.
        """
        pairs = int(self.other.sum())
        checked_fmr(fmr)
        if fmr < 1 / pairs:
            raise UserError(
                f"a false match rate of {fmr:g} cannot be measured: there are only {pairs:,} pairs of different"
                f" classes, so the smallest measurable rate is {1 / pairs:.2g}. Ask for a larger one, or count more"
                " items."
            )
        false = _shares(self.other)
        chosen = int(np.searchsorted(false, fmr, side="right")) - 1
        if chosen == 0:
            raise UserError(
                f"no threshold has a false match rate of {fmr:g}: {false[1]:.2g} of the pairs of different classes are"
                f" within {self.edges[1]:.2g}, the smallest threshold that is measured."
            )
        error = _standard_error(self.other, self.group_other)
        interval = None
        if error is not None:
            possible = np.flatnonzero(np.abs(false - fmr) <= _reach(len(self.group_other)) * error)
            ends = int(possible.min(initial=chosen)), int(possible.max(initial=chosen))
            interval = float(self.edges[ends[0]]), float(self.edges[ends[1]])
        return self._calibration(chosen, interval, float(fmr))

    def balanced(self) -> Calibration:
        """The edge at which the false match rate and the false non-match rate are closest."""
        false, true = self.rates()
        return self._calibration(1 + int(np.argmin(np.abs(false - (1 - true))[1:])), None, None)

    def at(self, threshold: float) -> Calibration:
        """The rates of a given threshold, rounded down to an edge."""
        if not self.edges[1] <= threshold <= self.edges[-1]:
            raise UserError(
                f"the threshold must be a distance from {self.edges[1]:.2g} to {self.edges[-1]:g}, got {threshold:g}."
            )
        return self._calibration(int(np.searchsorted(self.edges, threshold, side="right")) - 1, None, None)

    def _calibration(self, edge: int, interval: Interval | None, fmr: float | None) -> Calibration:
        false_match_rate, false_match_interval = _with_interval(self.other, self.group_other, edge)
        true_match_rate, true_match_interval = _with_interval(self.same, self.group_same, edge)
        return Calibration(
            threshold=float(self.edges[edge]),
            threshold_interval=interval,
            fmr=fmr,
            false_match_rate=false_match_rate,
            false_match_interval=false_match_interval,
            true_match_rate=true_match_rate,
            true_match_interval=true_match_interval,
            false_matches=int(self.other[:edge].sum()),
            same_pairs=int(self.same.sum()),
            other_pairs=int(self.other.sum()),
            classes=self.classes,
            items=self.items,
        )


def count_pairs(
    vectors: Float[np.ndarray, "..."] | Float[Tensor, "..."],
    labels: Labels,
    *,
    query: Members | None = None,
    gallery: Members | None = None,
    sequence: Labels | None = None,
    bins: int = 8192,
    groups: int = 256,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> PairCounts:
    """Count every pair of different items once, by its Euclidean distance and by whether the classes are the same.

    Time is O(N² D); memory is one block of pairs plus groups × bins.

    Args:
        query, gallery: masks or indices of vectors; all by default. If given, pairs are a query and a gallery item.
        sequence: items with the same value form no pair, such as frames of the same video.
        bins: number of bins. With a power of two, edges are exact and rounding puts no distance in a wrong bin.
        groups: number of random groups of classes for the intervals; with fewer classes, one class each.
        seed: random seed of the groups.
        on_progress: called with (blocks done, blocks in all).
    """
    array = checked_vectors(vectors)
    if bins < 2 or groups < 1:
        raise UserError(f"there must be at least 2 bins and 1 group, got bins={bins} and groups={groups}.")
    codes = _codes(labels, "labels", len(array))
    asks, found = (
        np.isin(np.arange(len(array)), _members(*given, len(array)))
        for given in ((query, "query"), (gallery, "gallery"))
    )
    order, classes, group = _in_groups(codes, np.flatnonzero(asks | found), groups, seed)
    asks, found = asks[order], found[order]
    takes = None if sequence is None else _codes(sequence, "sequence", len(array))[order]
    middle, largest = _extent(array)

    def points(part: slice) -> Tensor:
        """Scaled such that no distance exceeds 1."""
        return torch.from_numpy(((array[order[part]] - middle) / largest).astype(array.dtype))

    # Columns of the table: pairs of different classes, pairs of the same class, and excluded pairs.
    table = np.zeros((int(group.max()) + 1, 2 * bins + 1), dtype=np.int64)
    totals = np.zeros(2 * bins + 1, dtype=np.int64)
    blocks = list(_blocks(len(order)))
    for done, (rows, columns) in enumerate(blocks, start=1):
        place = _bin_of(points(rows), points(columns), bins)  # (rows, columns)
        place += bins * (classes[rows, None] == classes[columns])
        if rows == columns:
            place[np.tri(len(place), dtype=bool)] = 2 * bins  # each pair once, and no item with itself
        if query is not None or gallery is not None:
            pair = asks[rows, None] & found[columns] | found[rows, None] & asks[columns]
            place[~pair] = 2 * bins
        if takes is not None:
            place[takes[rows, None] == takes[columns]] = 2 * bins
        totals += _add_block(table, place, group[rows], group[columns])
        if on_progress is not None:
            on_progress(done, len(blocks))
    other, same = totals[:bins], totals[bins:-1]
    _check_some(same, other, len(np.unique(classes)))
    return PairCounts(
        edges=np.arange(bins + 1) * (largest / bins),
        same=same,
        other=other,
        group_same=table[:, bins:-1],
        group_other=table[:, :bins],
        classes=len(np.unique(classes)),
        items=len(order),
    )


def checked_fmr(fmr: float) -> float:
    """A valid false match rate. Raises UserError."""
    if not 0 < fmr < 1:
        raise UserError(f"the false match rate must be above 0 and below 1, such as 0.001, got {fmr:g}.")
    return fmr


def _in_groups(
    codes: Int64[np.ndarray, " items"], used: Int64[np.ndarray, " used"], most: int, seed: int
) -> tuple[Int64[np.ndarray, " used"], Int64[np.ndarray, " used"], Int64[np.ndarray, " used"]]:
    """The used items sorted by group; their classes; their groups."""
    names, classes = np.unique(codes[used], return_inverse=True)
    group_of_class = np.empty(len(names), dtype=np.int64)
    group_of_class[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % most
    group = group_of_class[classes.reshape(-1)]  # (used,)
    order = np.argsort(group, kind="stable")
    return used[order], classes.reshape(-1)[order], group[order]


def _extent(array: Numbers) -> tuple[Float64[np.ndarray, " dim"], float]:
    """A centre of the vectors, and an upper bound of their distances: the origin and 2 for unit vectors.

    Otherwise the mean, and a power of two, so that scaling by it is exact.
    """
    origin = np.zeros(array.shape[1])
    if abs(_farthest(array, origin) - 1) <= _UNIT:
        return origin, 2.0
    middle = array.mean(axis=0, dtype=np.float64)
    farthest = _farthest(array, middle)
    return middle, 2.0 ** ceil(log2(2 * farthest)) if farthest else 1.0


def _farthest(array: Numbers, middle: Float64[np.ndarray, " dim"]) -> float:
    """The largest distance of a vector from a point."""
    parts = (array[start : start + _BLOCK] - middle for start in range(0, len(array), _BLOCK))
    return max(float(np.linalg.norm(part, axis=1).max()) for part in parts)


def _blocks(items: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows and columns that contain each pair once, above the diagonal."""
    for top in range(0, items, _BLOCK):
        for left in range(top, items, _BLOCK):
            yield slice(top, min(top + _BLOCK, items)), slice(left, min(left + _BLOCK, items))


def _bin_of(points: Tensor, others: Tensor, bins: int) -> Integer[np.ndarray, "rows columns"]:
    """The bin of each distance, which is at most 1."""
    with torch.no_grad():
        apart = distances(points, others)  # (rows, columns)
        place: Integer[np.ndarray, "rows columns"] = apart.mul_(bins).ceil_().sub_(1).clamp_(0, bins - 1).int().numpy()
    return place


def _add_block(
    table: Int64[np.ndarray, "groups places"],
    place: Integer[np.ndarray, "rows columns"],
    row_groups: Int64[np.ndarray, " rows"],
    column_groups: Int64[np.ndarray, " columns"],
) -> Int64[np.ndarray, " places"]:
    """Add a block of pairs to the groups of both items. Returns the total counts."""
    columns_of = dict(_runs(column_groups))
    total = np.zeros(table.shape[1], dtype=np.int64)
    for group, rows in _runs(row_groups):
        counts = _counted(place[rows], table.shape[1])
        table[group] += counts
        total += counts
        if group in columns_of:  # a pair within the group is counted with the rows and with the columns
            table[group] -= _counted(place[rows, columns_of[group]], table.shape[1])
    for group, columns in columns_of.items():
        table[group] += _counted(place[:, columns], table.shape[1])
    return total


def _runs(groups: Int64[np.ndarray, " items"]) -> Iterator[tuple[int, slice]]:
    """The slice of each group in a sorted array."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(groups)], strict=True):
        yield int(groups[start]), slice(start, stop)


def _counted(place: Integer[np.ndarray, "rows columns"], places: int) -> Int64[np.ndarray, " places"]:
    return np.bincount(place.ravel(), minlength=places)


def _check_some(same: Int64[np.ndarray, " bins"], other: Int64[np.ndarray, " bins"], classes: int) -> None:
    """Raise UserError without pairs of the same class, or of different classes."""
    if not same.any():
        raise UserError(
            f"no two items of the same class form a pair, in {classes} classes: there is nothing to find."
            " At least one class needs two items."
        )
    if not other.any():
        raise UserError(
            f"no two items of different classes form a pair, in {classes} {'class' if classes == 1 else 'classes'}."
            " Two classes are needed."
        )


def _shares(counts: Int64[np.ndarray, "*groups bins"]) -> Float64[np.ndarray, "*groups edges"]:
    """The cumulative share of the pairs up to each edge, from 0 to 1."""
    sums = np.cumsum(counts, axis=-1)
    return np.concatenate([np.zeros((*counts.shape[:-1], 1)), sums / sums[..., -1:]], axis=-1)


def _standard_error(
    counts: Int64[np.ndarray, " bins"], of_groups: Int64[np.ndarray, "groups bins"]
) -> Float64[np.ndarray, " edges"] | None:
    """Standard error of the cumulative share, by the jackknife: sqrt((G-1)/G Σ over g of (share without g - mean)²).

    None if some group is in all pairs, as with a single group.
    """
    without = counts - of_groups  # (groups, bins)
    if not without.any(axis=1).all():
        return None
    shares = _shares(without)  # (groups, edges)
    groups = len(shares)
    return np.asarray(np.sqrt((groups - 1) / groups * np.square(shares - shares.mean(axis=0)).sum(axis=0)))


def _reach(groups: int) -> float:
    """The half-width of a 95 % interval in standard errors (Student's t)."""
    from scipy.stats import t

    return float(t.ppf(0.975, groups - 1))


def _with_interval(
    counts: Int64[np.ndarray, " bins"], of_groups: Int64[np.ndarray, "groups bins"], edge: int
) -> tuple[float, Interval | None]:
    """The share up to an edge, and its 95 % interval."""
    share = float(_shares(counts)[edge])
    error = _standard_error(counts, of_groups)
    if error is None:
        return share, None
    reach = _reach(len(of_groups)) * float(error[edge])
    return share, (max(0.0, share - reach), min(1.0, share + reach))
