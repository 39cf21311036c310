"""The classes that stop training early: R@1 is measured on them, and they do not train."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Integer
from numpy import ndarray

from tammes.metrics import evaluate

FEWEST_HELD_OUT = 5  # classes; a recall over fewer is noise
SURE = 2.0  # standard errors by which training must be better than the start
MOST_HELD_OUT = 4000  # vectors: a recall costs the square of them, after every epoch


def held_out(codes: Int64[ndarray, " items"], share: float, random: np.random.Generator) -> Int64[ndarray, " held"]:
    """Classes to measure R@1 on: the share of all, at least 5, and not many more vectors than `MOST_HELD_OUT`."""
    sizes = np.bincount(codes)
    candidates = np.flatnonzero(sizes > 1)  # a single vector has nothing to find
    number = max(FEWEST_HELD_OUT, round(share * len(sizes)))
    if share == 0 or len(sizes) < 4 * FEWEST_HELD_OUT or len(candidates) <= number or number > len(sizes) - 2:
        return candidates[:0]
    chosen = random.permutation(candidates)[:number]
    fitting = int((np.cumsum(sizes[chosen]) <= MOST_HELD_OUT).sum())
    return np.sort(chosen[: max(FEWEST_HELD_OUT, fitting)])


def is_better(highest: float | None, history: Sequence[Mapping[str, Any]], vectors: int) -> bool:
    """Whether training was worth it: by more than two standard errors of a recall of so many vectors, or unmeasured.

    The best of many epochs is a little better than the start by luck alone, and a start that is found in closed form
    carries over to other classes better than what was learned from these.
    """
    if highest is None:
        return True
    start = float(history[0]["recall_at_1"])
    return highest - start > SURE * sqrt(start * (1 - start) / vectors)


def recall(vectors: Float[ndarray, "items dim"], codes: Integer[ndarray, " items"]) -> float:
    """R@1 of unit vectors."""
    return float(evaluate(vectors, codes, ks=(1,), clustering=False, bootstrap=0)["recall_at_1"])
