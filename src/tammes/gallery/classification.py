"""Classify images by their neighbours in a gallery, with a threshold for unknown classes."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from numpy import ndarray

from tammes.gallery.items import Hit
from tammes.gallery.store import Store
from tammes.gallery.threshold import VOTES, Threshold, in_store, neighbourhoods, votes, with_class
from tammes.io.console import printable

_BATCH = 256  # queries of one pass over the gallery


@dataclass(frozen=True)
class Classification:
    """The classification of an image.

    Attributes:
        best_guess: the class with the most votes; "" if no image of the gallery has a class.
        distance: the distance to the nearest image with a class; None if there is none.
        probability: the probability that the best guess is right; None if the threshold was not calibrated on a
        gallery.
        accepted: whether the distance is within the threshold; otherwise the image is of an unknown class.
        threshold: the threshold of the distance.
        nearest: the path of the nearest image with a class.
        runner_up: the class with the second most votes, or "".
    """

    best_guess: str
    distance: float | None
    probability: float | None
    accepted: bool
    threshold: float
    nearest: str
    runner_up: str


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The neighbours of an image and its classification (None if the gallery has no threshold).

    A sequence of hits, nearest first, that prints as a table.
    """

    hits: list[Hit]
    classification: Classification | None

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __getitem__(self, place: int) -> Hit:
        return self.hits[place]

    def __repr__(self) -> str:
        width = max([5, *(len(printable(hit.label)) for hit in self.hits)])
        rows = [("distance", "label", "path")]
        rows += [(f"{hit.distance:.4f}", printable(hit.label), printable(hit.path)) for hit in self.hits]
        return "\n".join(f"{distance:>8}  {label:<{width}}  {path}" for distance, label, path in rows)

    @property
    def threshold(self) -> float | None:
        """The same-class threshold; None without one."""
        return None if self.classification is None else self.classification.threshold

    def within(self, hit: Hit) -> bool | None:
        """Whether an item is within the threshold; None without one."""
        return None if self.threshold is None else hit.distance <= self.threshold

    def record(self) -> dict[str, Any]:
        """The threshold, and the path, class and distance of each hit, as a dictionary."""
        found = [asdict(hit) | {"within_threshold": self.within(hit)} for hit in self.hits]
        return {"threshold": self.threshold, "found": found}


@dataclass(frozen=True)
class FolderClassification:
    """The classifications of the images of a folder, the threshold, and unreadable images with reasons."""

    files: list[Path]
    classifications: list[Classification]
    threshold: Threshold
    broken: list[str]


def classify(
    store: Store,
    vectors: Float32[ndarray, "images dim"],
    threshold: Threshold,
    *,
    k: int = VOTES,
    leave_out: Sequence[str | None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Classification]:
    """Classify vectors: the k nearest items with a label vote, weighted by distance.

    Args:
        leave_out: the path of each query itself, if it is in the gallery.
    """
    found, total = [], store.count()
    for start in range(0, len(vectors), _BATCH):
        part = slice(start, start + _BATCH)
        without = None if leave_out is None else leave_out[part]
        classes = threshold.classes_needed
        for hits in neighbourhoods(in_store(store), vectors[part], total, classes, without, voters=k):
            found.append(classify_hits(hits, threshold, k))
        if on_progress is not None:
            on_progress(min(start + _BATCH, len(vectors)), len(vectors))
    return found


def classify_hits(hits: Sequence[Hit], threshold: Threshold, k: int = VOTES) -> Classification:
    """Classify by neighbours (`neighbourhoods`): the class, and whether it is accepted."""
    hits = with_class(hits)
    limit, guesses = threshold.limit(hits), [*votes(hits, k), "", ""]
    return Classification(
        best_guess=guesses[0],
        distance=hits[0].distance if hits else None,
        probability=threshold.probability(hits),
        accepted=bool(hits) and hits[0].distance <= limit,
        threshold=limit,
        nearest=hits[0].path if hits else "",
        runner_up=guesses[1],
    )


def _cell(text: str) -> str:
    """A name that is safe for spreadsheets and terminals: no formula, no control characters."""
    text = re.sub("[\x00-\x1f\x7f-\x9f]", lambda sign: ascii(sign[0])[1:-1], text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def to_csv(paths: Sequence[Path], classifications: Sequence[Classification]) -> bytes:
    """The classifications as a CSV file."""
    content = StringIO()
    writer = csv.writer(content)
    writer.writerow(["file", "best_guess", "distance", "probability", "accepted"])
    for path, each in zip(paths, classifications, strict=True):
        distance = "" if each.distance is None else f"{each.distance:.4f}"
        probability = "" if each.probability is None else f"{each.probability:.3f}"
        names = _cell(str(path)), _cell(each.best_guess)
        writer.writerow([*names, distance, probability, "yes" if each.accepted else "no"])
    # Bytes of a file's name that are not characters are written as they are; other surrogates stand for no byte.
    text = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], content.getvalue())
    return text.encode(errors="surrogateescape")
