"""A class for an image from its neighbours in a gallery, and whether the image is near enough to be of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float32
from numpy import ndarray

from tammes.gallery.store import Hit, Store
from tammes.gallery.threshold import VOTES, Threshold, in_store, neighbourhoods, votes

_BATCH = 256  # queries of one pass over the gallery


@dataclass(frozen=True)
class Proposal:
    """What an image may be.

    Attributes:
        best_guess: the class with most votes; "" if no image of the gallery has a class.
        distance: to the nearest image with a class; None if there is none.
        probability: how likely the best guess is right; None if the threshold was not calibrated on a gallery.
        accepted: whether the distance is within the threshold; otherwise the image is of an unknown class.
        threshold: the distance up to which it is.
        nearest: the nearest image with a class.
        runner_up: the class with the second most votes, or "".
    """

    best_guess: str
    distance: float | None
    probability: float | None
    accepted: bool
    threshold: float
    nearest: str
    runner_up: str


def propose(
    store: Store,
    vectors: Float32[ndarray, "images dim"],
    threshold: Threshold,
    *,
    k: int = VOTES,
    leave_out: Sequence[str | None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Proposal]:
    """A class for each image: its k nearest items with a label vote, the nearer the more.

    Args:
        leave_out: the path of each image itself, if it is in the gallery.
    """
    found, total = [], store.count()
    for start in range(0, len(vectors), _BATCH):
        part = slice(start, start + _BATCH)
        without = None if leave_out is None else leave_out[part]
        classes = threshold.classes_needed
        for hits in neighbourhoods(in_store(store), vectors[part], total, classes, without, least=k):
            found.append(proposal(hits, threshold, k))
        if on_progress is not None:
            on_progress(min(start + _BATCH, len(vectors)), len(vectors))
    return found


def proposal(hits: Sequence[Hit], threshold: Threshold, k: int = VOTES) -> Proposal:
    """What an image may be by its neighbourhood (`neighbourhoods`): here it is decided whether it is accepted."""
    limit, guesses = threshold.limit(hits), [*votes(hits, k), "", ""]
    return Proposal(
        best_guess=guesses[0],
        distance=hits[0].distance if hits else None,
        probability=threshold.probability(hits),
        accepted=bool(hits) and hits[0].distance <= limit,
        threshold=limit,
        nearest=hits[0].path if hits else "",
        runner_up=guesses[1],
    )
