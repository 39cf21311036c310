"""Which vectors decide what the first layer begins as."""

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

MOST_TO_START = 16384  # vectors that decide the directions


def spread(
    codes: Int64[ndarray, " items"], rows: Int64[ndarray, " rows"], random: np.random.Generator
) -> Int64[ndarray, " chosen"]:
    """Not many more than `MOST_TO_START` of the rows: the same number of each class, or all of some classes."""
    if len(rows) <= MOST_TO_START:
        return rows
    shuffled = random.permutation(rows)
    rank = random.permutation(int(codes.max()) + 1)[codes[shuffled]]
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], rank[order])  # where the class of each begins
    each = max(16, MOST_TO_START // len(np.unique(rank)))
    return np.sort(shuffled[order[np.arange(len(rows)) - first < each]][:MOST_TO_START])
