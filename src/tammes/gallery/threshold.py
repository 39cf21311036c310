"""Which images are of no class of a gallery: one threshold, which `label`, `search`, `calibrate` and the page share.

How near is near differs from place to place: images of classes that trained the model, and of some classes by nature,
lie closer together than others. So a distance is compared with the others of the same image: its score is the distance
to the nearest image with a class over its scale, which is the mean distance to the nearest image of each of the next
classes. An image of a known class is much nearer to it than to the next ones; one of an unknown class is not. What is
left of the difference between classes is lessened by a factor of the class that is nearest: how near its own images
are to each other, compared with other classes.

The gallery calibrates it. Each image is searched with against all others, as a photo of a known class would be, and
against all others but its own class, as a photo of an unknown class would be.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.items import Hit, Row
from tammes.gallery.ranking import Block, nearest
from tammes.gallery.store import Store
from tammes.io.schema import parsed

if TYPE_CHECKING:
    from tammes.training.run_folder import RunFolder

VOTES = 8  # neighbours whose classes decide
OTHERS = 5  # classes whose distances make the scale
_TRUST, _DOUBT = 0.3, 2  # the exponent of a class's factor; images of a class whose factor counts half of that
_SAMPLE = 2000  # images of the gallery that calibrate
_IN_MEMORY = 200_000  # images up to which a gallery is searched in memory
_FEWEST_CLASSES = 5  # that the model was not trained on, to calibrate on those alone
_FIRST, _MOST = 64, 1024  # neighbours looked at: at first, and where they are of too few classes
_TOGETHER = 256  # images of one search

SearchFunction = Callable[[Float32[ndarray, "queries dim"], int, Sequence[str | None] | None], list[list[Hit]]]


@dataclass(frozen=True)
class Threshold:
    """Which images are taken for one of the classes of a gallery, and how often that is wrong.

    Attributes:
        score: up to this the nearest image is near enough.
        others: how many classes make the scale; 0: the scale is 1, and the score a distance.
        asked: the share of images of unknown classes that may be given a class; None: the two errors are balanced.
        rejected: the share of images of known classes that will be called unknown; None if that was not measured.
        accepted: the share of images of unknown classes that will be given a class; likewise.
        items, classes: what calibrated it.
        unseen: whether these are classes that the model was not trained on.
        factors: of classes; the scale of an image is multiplied by that of the class of its nearest image.
        slope, offset: the best guess is right with the probability 1 / (1 + exp(-(offset + slope * score))).
    """

    score: float
    others: int = 0
    asked: float | None = None
    rejected: float | None = None
    accepted: float | None = None
    items: int = 0
    classes: int = 0
    unseen: bool = False
    slope: float | None = None
    offset: float | None = None
    factors: dict[str, float] = field(default_factory=dict)

    def limit(self, hits: Sequence[Hit]) -> float:
        """The distance up to which a neighbour is within the threshold, by the neighbourhood of the same image."""
        return self.score * _distance_and_scale(hits, self.others, self.factors)[1]

    def probability(self, hits: Sequence[Hit]) -> float | None:
        """How likely the best guess is right, where as many images are of unknown classes as of known ones."""
        if self.slope is None or self.offset is None or not hits:
            return None
        return float(
            1 / (1 + np.exp(-np.clip(self.offset + self.slope * _score(hits, self.others, self.factors), -50, 50)))
        )

    @property
    def classes_needed(self) -> int:
        """So many classes a neighbourhood must have to tell the scale."""
        return 1 + self.others

    def describe(self) -> str:
        """Both errors for a person; empty if they were not measured."""
        if self.accepted is None:
            return ""
        known = "" if self.rejected is None else f"Of photos of known classes about {_percent(self.rejected)} will be"
        known += " called unknown; of" if known else "Of"
        return f"{known} photos of unknown classes about {_percent(self.accepted)} will be given a class."

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def stored_threshold(store: Store) -> Threshold | None:
    """The threshold that the gallery holds."""
    if not store.about.threshold:
        return None
    advice = "Calibrate it again: tammes calibrate GALLERY"
    found = Threshold(**parsed(store.about.threshold, Threshold, "the threshold of the gallery", advice))
    if not (found.score >= 0 and 0 <= found.others <= OTHERS and all(each > 0 for each in found.factors.values())):
        raise UserError(f"the threshold of the gallery has numbers out of their range. {advice}")
    return found


def run_threshold(run: "RunFolder") -> Threshold | None:
    """The threshold of a run that was calibrated: a distance, for where there is no gallery to calibrate on."""
    kept = run.read("calibration")
    return None if kept is None else Threshold(float(kept["threshold"]))


def neighbourhoods(
    search: SearchFunction,
    vectors: Float32[ndarray, "queries dim"],
    total: int,
    classes: int,
    leave_out: Sequence[str | None] | None = None,
    *,
    voters: int = VOTES,
    k: int = 0,
) -> list[list[Hit]]:
    """The neighbours of each image, nearest first: as many as it takes to classify it, and at least k.

    Among them are enough with a class to vote, of enough classes for the scale, if the gallery has them.

    Args:
        search: the nearest items of each vector, as `Store.search` finds them.
        total: images of the gallery.
        classes: how many classes the neighbours should have.
        leave_out: the path of each image itself, if it is in the gallery.
        voters: how many neighbours vote on the class.
    """
    found: list[list[Hit]] = [[] for _ in vectors]
    waiting, most = list(range(len(vectors))), min(total, max(_MOST, 4 * voters, k))
    k = min(max(_FIRST, voters, k), most)
    while waiting and k:
        without = None if leave_out is None else [leave_out[number] for number in waiting]
        again = []
        for number, hits in zip(waiting, search(vectors[waiting], k, without), strict=True):
            found[number] = hits
            labels = [hit.label for hit in hits if hit.label]
            if k < most and (len(labels) < voters or len(set(labels)) < classes):
                again.append(number)
        waiting, k = again, min(4 * k, most)
    return found


def with_class(hits: Sequence[Hit]) -> list[Hit]:
    """Those that have a class: the others have no vote and no part in the scale."""
    return [hit for hit in hits if hit.label]


def in_store(store: Store) -> SearchFunction:
    """The search of a store, for `neighbourhoods`."""
    return lambda vectors, k, leave_out: store.search(vectors, k, leave_out=leave_out)


def _in_memory(store: Store) -> SearchFunction:
    """The same for thousands of searches: a gallery that fits into memory is read once and searched there."""
    if store.count() > _IN_MEMORY:
        return in_store(store)
    rows = [row for some in store.rows(4096) for row in some]
    block = Block([row.path for row in rows], [row.label for row in rows], np.stack([row.vector for row in rows]))
    return lambda vectors, k, leave_out: nearest(vectors, [block], k, leave_out)


def votes(hits: Sequence[Hit], k: int = VOTES) -> dict[str, float]:
    """What the k nearest say of the class, the nearer the more; the class with most votes first."""
    # Twice as far counts a quarter; what is at the very place counts for all that is not.
    nearest = max(hits[0].distance, 1e-6) if hits else 1.0
    found: dict[str, float] = defaultdict(float)
    for hit in hits[:k]:
        found[hit.label] += (nearest / max(hit.distance, nearest)) ** 2
    return {name: found[name] for name in sorted(found, key=lambda name: (-found[name], name))}


def calibrated(
    store: Store, trained_on: Collection[str] = (), *, unknown_rate: float | None = None, seed: int = 0
) -> Threshold:
    """The threshold that balances the two errors on the images of a gallery, or keeps to a rate of one of them.

    Images of classes that the model was trained on do not lie as new ones will: where there are enough others, those
    calibrate. At most 2,000 images do, drawn at random.

    Args:
        unknown_rate: the share of images of unknown classes that may be given a class.
    """
    if unknown_rate is not None and not 0 < unknown_rate < 1:
        raise UserError(f"the unknown rate must lie between 0 and 1, got {unknown_rate}.")
    sizes = {name: number for name, number in store.labels().items() if name}
    if len(sizes) < 2:
        raise UserError(
            f"a threshold needs two or more classes in the gallery, one sub-folder each: it has {len(sizes)}."
        )
    unseen = sizes.keys() - set(trained_on)
    chosen = unseen if len(unseen) >= _FEWEST_CLASSES else sizes.keys()
    others = min(OTHERS, len(sizes) - 2)  # of two classes one is left where the other is left out: no scale
    rows, search = _sample(store, seed), _in_memory(store)
    found: list[list[Hit]] = []
    for start in range(0, len(rows), _TOGETHER):
        some = rows[start : start + _TOGETHER]
        vectors, paths = np.stack([row.vector for row in some]), [row.path for row in some]
        found += map(with_class, neighbourhoods(search, vectors, store.count(), others + 2, paths))
    several = [(row.label, hits) for row, hits in zip(rows, found, strict=True) if sizes[row.label] > 1]
    factors = _factors(several) if others else {}
    known, right, unknown = [], [], []
    for row, hits in zip(rows, found, strict=True):
        if row.label not in chosen:
            continue
        if sizes[row.label] > 1 and hits:
            known.append(_score(hits, others, factors))
            right.append(next(iter(votes(hits))) == row.label)
        without = [hit for hit in hits if hit.label != row.label]
        unknown.append(_score(without, others, factors) if without else np.inf)
    farthest = 1 + max([0.0, *(each for each in known + unknown if np.isfinite(each))])
    of_known, of_unknown = np.sort(known), np.sort(np.minimum(unknown, farthest))  # with none left: beyond all
    score = _chosen(of_known, of_unknown, unknown_rate)
    slope, offset = _logistic(np.array(known), np.array(right, dtype=bool), of_unknown)
    return Threshold(
        score=score,
        others=others,
        asked=unknown_rate,
        rejected=float(np.mean(of_known > score)) if known else None,
        accepted=float(np.mean(of_unknown <= score)),
        items=len(unknown),
        classes=len({row.label for row in rows if row.label in chosen}),
        unseen=chosen == unseen,
        slope=slope,
        offset=offset,
        factors=factors,
    )


def recalibrate(store: Store, trained_on: Collection[str]) -> None:
    """Calibrate the threshold of a gallery on the images it has now, and store it there.

    The rate that was asked for before is kept. A gallery with too few classes has no threshold afterwards.
    """
    before = stored_threshold(store)
    try:
        found = calibrated(store, trained_on, unknown_rate=None if before is None else before.asked).to_json()
    except UserError:  # too few classes
        found = ""
    if found != store.about.threshold:
        store.describe(threshold=found)


def _factors(of: Sequence[tuple[str, Sequence[Hit]]]) -> dict[str, float]:
    """How far images of each class are from the nearest other of it, compared with the median of all classes.

    Of a class with few images that is not certain, so it counts less.

    Args:
        of: images by their classes and neighbourhoods.
    """
    own: dict[str, list[float]] = defaultdict(list)
    for label, hits in of:
        if hits:
            own[label].append(next((hit.distance for hit in hits if hit.label == label), hits[-1].distance))
    middle = float(np.median(np.concatenate(list(own.values())))) if own else 0.0
    return {
        name: round(float((np.median(each) / middle) ** (_TRUST * len(each) / (len(each) + _DOUBT))), 4)
        for name, each in own.items()
        if middle and np.median(each)
    }


def _distance_and_scale(hits: Sequence[Hit], others: int, factors: Mapping[str, float]) -> tuple[float, float]:
    """How far the nearest is; and the mean distance of the nearest of each of the next classes, times its factor."""
    first: dict[str, float] = {}
    for hit in hits:
        first.setdefault(hit.label, hit.distance)
    distances = list(first.values())
    if not others or not distances:
        return (distances[0] if distances else 0.0), 1.0
    rest = distances[1 : 1 + others]
    rest += [hits[-1].distance] * (others - len(rest))  # not among those looked at, so no nearer than the last
    return distances[0], float(np.mean(rest)) * factors.get(hits[0].label, 1.0)


def _score(hits: Sequence[Hit], others: int, factors: Mapping[str, float]) -> float:
    """The score of an image by its neighbourhood."""
    distance, scale = _distance_and_scale(hits, others, factors)
    return distance / scale if scale else 0.0


def _chosen(known: Float64[ndarray, " known"], unknown: Float64[ndarray, " unknown"], rate: float | None) -> float:
    """The score where both errors are equal, or the largest at which no more of the unknown are accepted than this.

    Between two of the scores, so that rounding does not decide. 0 where even that accepts more.
    """
    values = np.unique(np.concatenate([[0.0], known, unknown]))
    candidates = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, values[-1:]])
    accepted = np.searchsorted(unknown, candidates, side="right") / len(unknown)
    if rate is not None or not len(known):
        within = np.flatnonzero(accepted <= (0.1 if rate is None else rate))
        return float(candidates[within[-1]]) if len(within) else 0.0
    rejected = 1 - np.searchsorted(known, candidates, side="right") / len(known)
    return float(candidates[np.lexsort((rejected + accepted, np.abs(rejected - accepted)))[0]])


def _logistic(
    known: Float64[ndarray, " known"], right: Bool[ndarray, " known"], unknown: Float64[ndarray, " unknown"]
) -> tuple[float, float]:
    """Slope and offset of the probability that the guess is right by the score, known and unknown of equal weight.

    Logistic regression by Newton's method on Platt's targets (1999), which keep it finite where a score divides all.
    """
    scores = np.concatenate([known, unknown])
    good = np.concatenate([right, np.zeros(len(unknown), dtype=bool)])
    weights = np.concatenate([np.full(len(known), len(unknown)), np.full(len(unknown), max(1, len(known)))]) / len(good)
    targets = np.where(good, (good.sum() + 1) / (good.sum() + 2), 1 / ((~good).sum() + 2))
    middle, spread = scores.mean(), scores.std() or 1.0
    inputs = np.stack([(scores - middle) / spread, np.ones(len(scores))])  # (2, scores)
    found = np.zeros(2)
    for _ in range(50):
        chances = 1 / (1 + np.exp(-np.clip(found @ inputs, -30, 30)))
        slopes = inputs @ (weights * (chances - targets)) + 1e-3 * found
        curvature = (inputs * (weights * chances * (1 - chances))) @ inputs.T + 1e-3 * np.eye(2)
        found = found - np.clip(np.linalg.solve(curvature, slopes), -2, 2)
    return float(found[0] / spread), float(found[1] - found[0] * middle / spread)


def _sample(store: Store, seed: int) -> list[Row]:
    """Images with a class, at random, in one pass over the gallery (reservoir sampling)."""
    rng, seen = np.random.default_rng(seed), 0
    kept: list[Row] = []
    for rows in store.rows(4096):
        for row in rows:
            if not row.label:
                continue
            seen += 1
            if len(kept) < _SAMPLE:
                kept.append(row)
            elif (place := int(rng.integers(seen))) < _SAMPLE:
                kept[place] = row
    return kept


def _percent(share: float) -> str:
    return "less than 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
