"""Verification: the same-class threshold on a distance, with its true and false match rates.

Two items no farther apart than the threshold are taken for the same class. Of the pairs of different classes that
happens to a share of them, the false match rate; of the pairs of the same class to another, the true match rate. Both
are counted over all pairs, in bins of distance. Pairs that share a class are not independent: intervals come from
leaving out classes, a group of them at a time (the delete-a-group jackknife), never from the number of pairs.
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
_UNIT = 1e-4  # how far from 1 the length of a unit vector may be by rounding


@dataclass(frozen=True)
class Calibration:
    """What a threshold on the distance does. Intervals are of 95 %, None where too few classes are there to tell.

    Attributes:
        threshold: two items no farther apart than this are taken for the same class.
        threshold_interval: where the threshold of the asked rate may lie; None too if the threshold was given.
        fmr: the false match rate that was asked for; None if the threshold was given, or balances the errors.
        false_match_rate: share of the pairs of different classes that are taken for the same.
        true_match_rate: share of the pairs of the same class that are.
        false_matches: how many pairs the false match rate rests on.
        same_pairs, other_pairs: pairs of the same class, and of different ones.
        classes, items: what the pairs are made of.
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
    """How many pairs lie how far apart. Bin i holds distances above edge i up to edge i+1; the first holds 0 too.

    Attributes:
        edges: of the bins, from 0 to a distance that no pair exceeds; 2 for unit vectors.
        same, other: pairs of the same class, and of different classes.
        group_same, group_other: those of them with an item of one of the classes of a group; a pair of two groups is
            counted for both. All pairs less these are the pairs without the group.
        classes, items: that pairs could be made of.
    """

    edges: Float64[np.ndarray, " edges"]
    same: Int64[np.ndarray, " bins"]
    other: Int64[np.ndarray, " bins"]
    group_same: Int64[np.ndarray, "groups bins"]
    group_other: Int64[np.ndarray, "groups bins"]
    classes: int
    items: int

    def rates(self) -> tuple[Float64[np.ndarray, " edges"], Float64[np.ndarray, " edges"]]:
        """The false and the true match rate with each edge as the threshold; at the first, 0, nothing matches."""
        return _shares(self.other), _shares(self.same)

    def area(self) -> float:
        """The area under the ROC curve: how often a pair of the same class is nearer than one of different classes.

        Two in the same bin count half, so it is exact for the binned distances.
        """
        false, true = self.rates()
        return float((np.diff(false) * (true[1:] + true[:-1]) / 2).sum())

    def equal_error_rate(self) -> float:
        """Where as many of the different pairs match as of the same pairs do not; between two edges, on the line."""
        false, true = self.rates()
        excess = false - (1 - true)  # (edges,), from -1 to 1
        after = int(np.argmax(excess >= 0))
        part = -excess[after - 1] / (excess[after] - excess[after - 1])
        return float(false[after - 1] + part * (false[after] - false[after - 1]))

    def threshold_at(self, fmr: float) -> Calibration:
        """The largest edge whose false match rate is no more than this, and what it does.

        The interval of the threshold holds the edges whose false match rate may be the one asked for.
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
                f" no farther apart than {self.edges[1]:.2g}, the least that is told apart here."
            )
        error = _standard_error(self.other, self.group_other)
        interval = None
        if error is not None:
            possible = np.flatnonzero(np.abs(false - fmr) <= _reach(len(self.group_other)) * error)
            ends = int(possible.min(initial=chosen)), int(possible.max(initial=chosen))
            interval = float(self.edges[ends[0]]), float(self.edges[ends[1]])
        return self._calibration(chosen, interval, float(fmr))

    def balanced(self) -> Calibration:
        """The edge where as many of the same pairs are missed as different pairs match, as nearly as can be."""
        false, true = self.rates()
        return self._calibration(1 + int(np.argmin(np.abs(false - (1 - true))[1:])), None, None)

    def at(self, threshold: float) -> Calibration:
        """What a threshold does that was found elsewhere; one between two edges is taken for the smaller."""
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
    """Every pair of two different items, counted once by its Euclidean distance and by whether the classes are one.

    Time is O(N² D); memory is that of a block of pairs and of groups × bins, however many items there are.

    Args:
        query, gallery: which vectors, by a mask or by numbers; all of them without. With them a pair is a query and an
            item of the gallery.
        sequence: items with the same value of this make no pair, such as frames of the same video.
        bins: of the distances. Where that is a power of two, no distance is on the wrong side of an edge by rounding.
        groups: at most so many, of classes drawn at random, for the intervals; with fewer classes one class each.
        seed: of that draw.
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

    # Other pairs come first in the table, then same pairs, then what makes no pair.
    table = np.zeros((int(group.max()) + 1, 2 * bins + 1), dtype=np.int64)
    totals = np.zeros(2 * bins + 1, dtype=np.int64)
    blocks = list(_blocks(len(order)))
    for done, (rows, columns) in enumerate(blocks, start=1):
        place = _bin_of(points(rows), points(columns), bins)  # (rows, columns)
        place += bins * (classes[rows, None] == classes[columns])
        if rows == columns:
            place[np.tri(len(place), dtype=bool)] = 2 * bins  # itself, and each pair once
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
    """A false match rate that can be asked for, or an error."""
    if not 0 < fmr < 1:
        raise UserError(f"the false match rate must be above 0 and below 1, such as 0.001, got {fmr:g}.")
    return fmr


def _in_groups(
    codes: Int64[np.ndarray, " items"], used: Int64[np.ndarray, " used"], most: int, seed: int
) -> tuple[Int64[np.ndarray, " used"], Int64[np.ndarray, " used"], Int64[np.ndarray, " used"]]:
    """The used items such that those of a group stand side by side; their classes; their groups."""
    names, classes = np.unique(codes[used], return_inverse=True)
    group_of_class = np.empty(len(names), dtype=np.int64)
    group_of_class[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % most
    group = group_of_class[classes.reshape(-1)]  # (used,)
    order = np.argsort(group, kind="stable")
    return used[order], classes.reshape(-1)[order], group[order]


def _extent(array: Numbers) -> tuple[Float64[np.ndarray, " dim"], float]:
    """A point amid the vectors, and a distance that no two of them exceed: the origin and 2 for unit vectors.

    Otherwise the mean, and a power of two, so that scaling by it does not round.
    """
    origin = np.zeros(array.shape[1])
    if abs(_farthest(array, origin) - 1) <= _UNIT:
        return origin, 2.0
    middle = array.mean(axis=0, dtype=np.float64)
    farthest = _farthest(array, middle)
    return middle, 2.0 ** ceil(log2(2 * farthest)) if farthest else 1.0


def _farthest(array: Numbers, middle: Float64[np.ndarray, " dim"]) -> float:
    """How far from a point the vectors reach."""
    parts = (array[start : start + _BLOCK] - middle for start in range(0, len(array), _BLOCK))
    return max(float(np.linalg.norm(part, axis=1).max()) for part in parts)


def _blocks(items: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns such that each pair is in one block, or above the diagonal of one."""
    for top in range(0, items, _BLOCK):
        for left in range(top, items, _BLOCK):
            yield slice(top, min(top + _BLOCK, items)), slice(left, min(left + _BLOCK, items))


def _bin_of(points: Tensor, others: Tensor, bins: int) -> Integer[np.ndarray, "rows columns"]:
    """The bin of each distance, of at most 1: above its lower edge, up to its upper."""
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
    """Count a block of pairs for the groups of both items of each, and in all."""
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
    """Where each group stands, in numbers that do not decrease."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(groups)], strict=True):
        yield int(groups[start]), slice(start, stop)


def _counted(place: Integer[np.ndarray, "rows columns"], places: int) -> Int64[np.ndarray, " places"]:
    return np.bincount(place.ravel(), minlength=places)


def _check_some(same: Int64[np.ndarray, " bins"], other: Int64[np.ndarray, " bins"], classes: int) -> None:
    """A rate over no pairs has no value."""
    if not same.any():
        raise UserError(
            f"no two items of the same class make a pair, in {classes} classes: there is nothing to find."
            " Some class needs two items."
        )
    if not other.any():
        raise UserError(
            f"no two items of different classes make a pair, in {classes} {'class' if classes == 1 else 'classes'}:"
            " nothing could be mistaken for another. Two classes are needed."
        )


def _shares(counts: Int64[np.ndarray, "*groups bins"]) -> Float64[np.ndarray, "*groups edges"]:
    """The share of the pairs that lie up to each edge, from 0 to 1."""
    sums = np.cumsum(counts, axis=-1)
    return np.concatenate([np.zeros((*counts.shape[:-1], 1)), sums / sums[..., -1:]], axis=-1)


def _standard_error(
    counts: Int64[np.ndarray, " bins"], of_groups: Int64[np.ndarray, "groups bins"]
) -> Float64[np.ndarray, " edges"] | None:
    """Of the share up to each edge, by the jackknife: sqrt((G-1)/G Σ over g of (share without g - their mean)²).

    None if without some group no pair is left, as with a single one.
    """
    without = counts - of_groups  # (groups, bins)
    if not without.any(axis=1).all():
        return None
    shares = _shares(without)  # (groups, edges)
    groups = len(shares)
    return np.asarray(np.sqrt((groups - 1) / groups * np.square(shares - shares.mean(axis=0)).sum(axis=0)))


def _reach(groups: int) -> float:
    """Standard errors to either side that hold 95 %, where so many groups tell what the error is (Student's t)."""
    from scipy.stats import t

    return float(t.ppf(0.975, groups - 1))


def _with_interval(
    counts: Int64[np.ndarray, " bins"], of_groups: Int64[np.ndarray, "groups bins"], edge: int
) -> tuple[float, Interval | None]:
    """The share up to an edge, and where it may lie for other classes of this kind."""
    share = float(_shares(counts)[edge])
    error = _standard_error(counts, of_groups)
    if error is None:
        return share, None
    reach = _reach(len(of_groups)) * float(error[edge])
    return share, (max(0.0, share - reach), min(1.0, share + reach))
