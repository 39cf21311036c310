"""Held-out classes for early stopping: R@1 is measured on them, and they are not trained on."""

import numpy as np
from jaxtyping import Float, Int64, Integer
from numpy import ndarray

from tammes.metrics import evaluate

FEWEST_HELD_OUT = 5  # classes; a recall over fewer is noise
MOST_HELD_OUT = 4000  # vectors: a recall costs the square of them, after every epoch


def held_out(codes: Int64[ndarray, " items"], share: float, random: np.random.Generator) -> Int64[ndarray, " held"]:
    """The held-out classes: this share of all, at least 5, with at most about `MOST_HELD_OUT` vectors."""
    sizes = np.bincount(codes)
    candidates = np.flatnonzero(sizes > 1)  # a single vector has nothing to find
    number = max(FEWEST_HELD_OUT, round(share * len(sizes)))
    if share == 0 or len(sizes) < 4 * FEWEST_HELD_OUT or len(candidates) <= number or number > len(sizes) - 2:
        return candidates[:0]
    chosen = random.permutation(candidates)[:number]
    fitting = int((np.cumsum(sizes[chosen]) <= MOST_HELD_OUT).sum())
    return np.sort(chosen[: max(FEWEST_HELD_OUT, fitting)])


def recall(vectors: Float[ndarray, "items dim"], codes: Integer[ndarray, " items"]) -> float:
    """R@1 of unit vectors."""
    return float(evaluate(vectors, codes, ks=(1,), clustering=False, bootstrap=0)["recall_at_1"])
