"""A class for an image from its neighbours in a gallery, or the answer that it is none of them."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.store import Hit, Row, Store

UNKNOWN = "unknown"
_SAMPLE = 2000  # items of the gallery on which the threshold is found
_FEWEST_CLASSES = 20  # that the model was not trained on, to look at those alone
_BATCH = 4096  # queries of one pass over the gallery


@dataclass(frozen=True)
class Proposal:
    """What an image may be.

    Attributes:
        label: the proposed class, or "unknown".
        confidence: the share of the votes that it has, from 0 to 1; of the nearest class too where it is unknown.
        nearest: the nearest item with a label, and ...
        distance: ... how far it is; None if there is none.
        runner_up: the class with the second most votes, or "".
    """

    label: str
    confidence: float
    nearest: str
    distance: float | None
    runner_up: str


@dataclass(frozen=True)
class Threshold:
    """From which distance of the nearest neighbour on an image is taken for one of no class of the gallery.

    Attributes:
        rate: the share of images of unknown classes that are no farther, and are given a class by mistake: no more
            than was asked for, unless more than that lie at the very place of an image of another class.
        rejected: the share of the images of known classes that have none of their own class so near.
        items, classes: what it was found on.
        unseen: whether these are classes that the model was not trained on.
    """

    distance: float
    rate: float
    rejected: float
    items: int
    classes: int
    unseen: bool


def threshold_for(store: Store, rate: float, trained_on: Collection[str] = (), *, seed: int = 0) -> Threshold:
    """The distance at which a share `rate` of the images of unknown classes, or the most below it that there is, would
    be given a class of this gallery.

    For labelled items, drawn at random, the nearest item of another class is looked up: what each would find if its
    own class were not there. Items of classes that the model was trained on lie farther from others than unknown ones
    will, so they are left out where there are enough others.
    """
    if not 0 < rate < 1:
        raise UserError(f"the rate must lie between 0 and 1, got {rate}.")
    sizes = store.labels()
    names = [name for name in sizes if name]
    unseen = [name for name in names if name not in set(trained_on)]
    chosen = set(unseen if len(unseen) >= _FEWEST_CLASSES else names)
    if len(names) < 2:
        raise UserError(
            "a class can be told from another only if the gallery has two or more, one sub-folder each: "
            f"it has {len(names)}."
        )
    paths, vectors, labels = _sample(store, chosen, seed)
    other, own = [], []
    for hits, label in zip(_until_another(store, paths, vectors, labels), labels, strict=True):
        other.append(min((hit.distance for hit in hits if hit.label != label), default=np.inf))
        if sizes[label] > 1:  # farther than all that was looked at, where it was not among them
            farthest = hits[-1].distance if hits else np.inf
            own.append(min((hit.distance for hit in hits if hit.label == label), default=farthest))
    distance = _keeping(np.asarray(other), rate)
    return Threshold(
        distance=distance,
        rate=float(np.mean(np.asarray(other) <= distance)),
        rejected=float(np.mean(np.asarray(own) > distance)) if own else 0.0,
        items=len(paths),
        classes=len(set(labels)),
        unseen=chosen == set(unseen),
    )


def _keeping(distances: Float64[ndarray, " items"], rate: float) -> float:
    """The largest of the distances that no more than this share of them do not exceed.

    Where even the smallest is shared by more, just below it; 0 where there is no such distance.
    """
    values, counts = np.unique(distances, return_counts=True)
    kept = np.flatnonzero(np.cumsum(counts) <= rate * len(distances))
    return float(values[kept[-1]] if len(kept) else max(0.0, np.nextafter(values[0], -1)))


def _sample(
    store: Store, chosen: Collection[str], seed: int
) -> tuple[list[str], Float32[ndarray, "items dim"], list[str]]:
    """Labelled items at random, in one pass over the gallery (reservoir sampling)."""
    rng, seen = np.random.default_rng(seed), 0
    kept: list[Row] = []
    for rows in store.rows(_BATCH):
        for row in rows:
            if row.label not in chosen:
                continue
            seen += 1
            if len(kept) < _SAMPLE:
                kept.append(row)
            elif (place := int(rng.integers(seen))) < _SAMPLE:
                kept[place] = row
    return [row.path for row in kept], np.stack([row.vector for row in kept]), [row.label for row in kept]


def _until_another(store: Store, paths: Sequence[str], vectors: ndarray, labels: Sequence[str]) -> list[list[Hit]]:
    """Neighbours of each that have a label, as many as it takes to have one of another class, or all."""
    found: list[list[Hit]] = [[] for _ in paths]
    waiting, k, total = list(range(len(paths))), 16, store.count()
    while waiting:
        hits = store.search(vectors[waiting], k, leave_out=[paths[n] for n in waiting])
        again = []
        for number, each in zip(waiting, hits, strict=True):
            found[number] = [hit for hit in each if hit.label]
            if all(hit.label == labels[number] for hit in found[number]) and k < total - 1:
                again.append(number)
        waiting, k = again, 4 * k
    return found


def propose(
    store: Store,
    vectors: Float32[ndarray, "images dim"],
    threshold: float,
    *,
    k: int = 8,
    leave_out: Sequence[str | None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Proposal]:
    """A class for each image: its k nearest items with a label vote, the nearer the more.

    Args:
        threshold: images whose nearest neighbour is farther are unknown.
        leave_out: the path of each image itself, if it is in the gallery.
    """
    sizes, found = store.labels(), []
    labelled = sum(number for name, number in sizes.items() if name)
    for start in range(0, len(vectors), _BATCH):
        part = slice(start, start + _BATCH)
        skipped = None if leave_out is None else list(leave_out[part])
        for hits in _labelled(store, vectors[part], min(k, labelled), skipped, bool(sizes.get(""))):
            found.append(_voted(hits, threshold))
        if on_progress is not None:
            on_progress(min(start + _BATCH, len(vectors)), len(vectors))
    return found


def _labelled(
    store: Store, vectors: ndarray, k: int, leave_out: list[str | None] | None, some_without: bool
) -> list[list[Hit]]:
    """The k nearest items that have a label; one fewer where an image that is left out is one of only so many."""
    if k == 0:
        return [[] for _ in vectors]
    wanted, total = 4 * k if some_without else k, store.count()
    while True:
        found = [[hit for hit in hits if hit.label][:k] for hits in store.search(vectors, wanted, leave_out=leave_out)]
        if not some_without or wanted >= total or all(len(hits) >= k - 1 for hits in found):
            return found
        wanted = min(total, 4 * wanted)


def _voted(hits: Sequence[Hit], threshold: float) -> Proposal:
    if not hits:
        return Proposal(UNKNOWN, 0.0, "", None, "")
    # Twice as far counts a quarter; what is at the very place counts for all that is not.
    nearest = max(hits[0].distance, 1e-6)
    votes: dict[str, float] = defaultdict(float)
    for hit in hits:
        votes[hit.label] += (nearest / max(hit.distance, nearest)) ** 2
    order = sorted(votes, key=lambda name: (-votes[name], name))
    known = hits[0].distance <= threshold
    return Proposal(
        label=order[0] if known else UNKNOWN,
        confidence=votes[order[0]] / sum(votes.values()),
        nearest=hits[0].path,
        distance=hits[0].distance,
        runner_up=order[1] if len(order) > 1 else "",
    )
