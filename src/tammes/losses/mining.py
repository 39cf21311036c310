"""Mining: the pairs and triplets that a loss uses."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Integer
from torch import Generator, Tensor

from tammes.errors import check_positive
from tammes.geometry import distances, full_precision
from tammes.search.neighbours import NeighbourSearch

TIED = 64  # units in the last place by which a matrix product may round two equal squared distances apart


def positives(labels: Integer[Tensor, " batch"]) -> Bool[Tensor, "batch batch"]:
    """The mask of positive pairs: two different images of one class. Use `.triu()` for unordered pairs."""
    same = labels[:, None] == labels  # (batch, batch)
    return same.fill_diagonal_(False)


def negatives(labels: Integer[Tensor, " batch"]) -> Bool[Tensor, "batch batch"]:
    """The mask of negative pairs: images of two classes. Use `.triu()` for unordered pairs."""
    return labels[:, None] != labels


def mean_or_zero(terms: Float[Tensor, " terms"]) -> Float[Tensor, ""]:
    """The mean; without any terms, a differentiable zero."""
    return terms.sum() / max(1, len(terms))


def checked_margin(margin: float) -> float:
    """The margin; UserError unless it is positive."""
    check_positive("margin", margin)
    return margin


def hardest_pairs(losses: Float[Tensor, " pairs"], fraction: float) -> Int[Tensor, " hardest"]:
    """The indices of the largest losses: this fraction of them, rounded, but at least one."""
    count = max(1, round(fraction * len(losses))) if len(losses) else 0
    return losses.detach().topk(count, sorted=False).indices  # NaN counts as the largest, so it is not dropped


def semihard_negatives(
    squared_distances: Float[Tensor, "batch batch"], labels: Integer[Tensor, " batch"]
) -> Int[Tensor, "batch batch"]:
    """For each anchor (row) and positive (column) the semi-hard negative, in O(batch² log batch).

    It is the closest negative that is farther from the anchor than the positive; if there is none, the farthest
    negative. Distances that differ only by rounding count as equal. -1 where the two are not a positive pair, or the
    anchor has no negative.
    """
    apart, negative = squared_distances.detach(), negatives(labels)
    by_distance, who = apart.masked_fill(~negative, float("inf")).sort(dim=1, stable=True)  # (batch, batch)
    as_far = apart * (1 + TIED * torch.finfo(apart.dtype).eps)
    place = torch.searchsorted(by_distance, as_far, right=True)  # (batch, batch): how many are no farther
    count = negative.sum(1, keepdim=True)  # (batch, 1)
    chosen = who.gather(1, torch.minimum(place, count - 1).clamp_min(0))
    return torch.where(positives(labels) & (count > 0), chosen, -1)


def pairs_in_order(labels: Integer[Tensor, " batch"]) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Pairs by position: the first and second image of each class, the third and fourth, …; an odd last one is unused.

    Pairs are ordered by their first images.
    """
    classes, order = labels.sort(stable=True)  # (batch,)
    _, sizes = classes.unique_consecutive(return_counts=True)  # (classes,)
    within = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    second = (within % 2 == 1).nonzero().flatten()  # (pairs,)
    first, second = order[second - 1], order[second]
    by_first = first.argsort()
    return first[by_first], second[by_first]


# A point of another class within this distance is probably the same image with another label: as a negative it
# coincides with the anchor and has no gradient.
TWIN = 1e-3
_PAIRS_AT_ONCE = 1 << 22  # distances in one block: 32 MB of float64


def random_triplets(labels: Integer[Tensor, " images"], *, generator: Generator) -> Int64[Tensor, "triplets 3"]:
    """One triplet (anchor, positive, negative) per image that has both, positive and negative drawn uniformly."""
    classes = _Classes(labels)
    draws = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
    anchors = classes.anchors
    own, start = classes.size[anchors], classes.start[anchors]
    # Positions in the order of the classes: another one in the anchor's class, and one outside it.
    positive = start + _draw(draws[0, anchors], own - 1)
    positive += positive >= classes.place[anchors]
    negative = _draw(draws[1, anchors], len(labels) - own)
    negative += own * (negative >= start)
    return torch.stack([anchors, classes.order[positive], classes.order[negative]], dim=1)


def smart_triplets(
    embeddings: Float[Tensor, "images dim"],
    labels: Integer[Tensor, " images"],
    *,
    hardness: float,
    neighbours: int,
    generator: Generator,
) -> Int64[Tensor, "triplets 3"]:
    """One triplet (anchor, positive, negative) per image that has both, of the given hardness.

    The candidates of an anchor are its positives, farthest first, and the `neighbours` nearest images of other classes,
    nearest first; ties are in the order of the set. One is drawn uniformly from the first
    max(1, ceil((1 - hardness) * length)) of each list: a hardness of 1 takes the hardest, 0 any. The search is exact.
    Images of other classes within `TWIN` of the anchor are excluded, unless the whole list is.
    """
    classes = _Classes(labels)
    draws = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
    if not len(classes.anchors):
        return torch.empty(0, 3, dtype=torch.int64)
    points = full_precision(embeddings.detach()).cpu()
    positive = _positives(points, classes, draws[0], hardness)  # (images,)
    negative = _negatives(points, labels, classes, draws[1], hardness, neighbours)  # (images,)
    return torch.stack([classes.anchors, positive[classes.anchors], negative[classes.anchors]], dim=1)


def squared_distances_of(
    embeddings: Float[Tensor, "images dim"], triplets: Int64[Tensor, "triplets 3"]
) -> tuple[Float64[Tensor, " triplets"], Float64[Tensor, " triplets"]]:
    """The squared distances of each anchor to its positive and to its negative."""
    points = full_precision(embeddings.detach()).cpu().numpy()
    search = NeighbourSearch(points, points)
    anchors, positive, negative = triplets.cpu().numpy().T
    to_positive = search.squared_distances(anchors, positive)
    return torch.from_numpy(to_positive), torch.from_numpy(search.squared_distances(anchors, negative))


class _Classes:
    """The images sorted by class, and where each class begins."""

    def __init__(self, labels: Tensor) -> None:
        _, code, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
        self.order = code.argsort(stable=True)  # (images,): the images by class
        self.place = torch.empty_like(self.order)  # (images,): the position of an image in that order
        self.place[self.order] = torch.arange(len(code))
        self.size = counts[code]  # (images,): of its class
        self.start = (counts.cumsum(0) - counts)[code]  # (images,): where its class begins in the order
        self.largest = int(counts.max())
        has_both = (self.size > 1) & (self.size < len(code))  # (images,): a positive and a negative
        self.anchors = has_both.nonzero().flatten()


def _draw(uniform: Tensor, counts: Tensor) -> Tensor:
    """A uniform integer below each of `counts`."""
    return torch.minimum((uniform * counts).long(), counts - 1)


def _hardest(counts: Tensor, hardness: float) -> Tensor:
    """How many of each list may be drawn. Rounded first: (1 - 0.7) * 20 is 6.000000000000001."""
    return ((1 - hardness) * counts.double()).round(decimals=9).ceil().long().clamp_min(1)


def _positives(points: Tensor, classes: _Classes, draws: Tensor, hardness: float) -> Tensor:
    """One of the farthest positives of each anchor (images,); -1 for images that are not anchors."""
    found = torch.full((len(points),), -1)
    # Centring each class leaves distances unchanged and makes points less close relative to their norms, so that fewer
    # distances have to be recomputed from differences.
    points = points.double()
    sums = torch.zeros_like(points).index_add_(0, classes.start, points)  # (images, dim): at the start of each class
    centred = points - sums[classes.start] / classes.size[:, None]  # (images, dim)
    rank = _draw(draws, _hardest(classes.size - 1, hardness))  # (images,)
    anchors = classes.order[classes.size[classes.order] > 1]  # by class, so that many rows share few columns
    for rows in anchors.split(max(1, min(256, _PAIRS_AT_ONCE // (classes.largest + 256)))):
        first, last = rows[0], rows[-1]
        columns = classes.order[classes.start[first] : classes.start[last] + classes.size[last]]
        apart = distances(centred[rows], centred[columns]).round(decimals=12)  # (rows, columns): equal ones are equal
        others = (classes.start[rows, None] != classes.start[columns]) | (rows[:, None] == columns)
        ranked = apart.masked_fill_(others, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        found[rows] = columns[ranked.gather(1, rank[rows, None])[:, 0]]
    return found


def _negatives(
    points: Tensor, labels: Tensor, classes: _Classes, draws: Tensor, hardness: float, neighbours: int
) -> Tensor:
    """One of the nearest images of other classes of each anchor (images,); -1 for images that are not anchors."""
    listed = (len(points) - classes.size).clamp(max=neighbours)  # (images,): how long its list is
    groups = labels.cpu().numpy()
    search = NeighbourSearch(points.numpy(), points.numpy(), None, groups, groups)
    found, depths = np.full(len(points), -1), np.zeros(len(points), dtype=np.int64)
    anchors = classes.anchors.numpy()
    rank = _draw(draws, _hardest(listed, hardness)).numpy()  # (images,)
    depths[anchors] = rank[anchors] + 1  # the list is needed only up to the drawn position
    nearest = found.copy()
    for ranking in search.rankings(depths):
        found[ranking.rows] = ranking.ids[np.arange(len(ranking.rows)), rank[ranking.rows]]
        nearest[ranking.rows] = ranking.ids[:, 0]
    with_twin = anchors[search.squared_distances(anchors, nearest[anchors]) < TWIN**2]
    depths[:] = 0
    depths[with_twin] = listed.numpy()[with_twin]
    for ranking in search.rankings(depths):
        width = int(depths[ranking.rows].max())
        ids = ranking.ids[:, :width]
        row, place = np.nonzero((ids >= 0) & (np.arange(width) < depths[ranking.rows, None]))
        close = search.squared_distances(ranking.rows[row], ids[row, place]) < TWIN**2
        twins = torch.from_numpy(np.bincount(row[close], minlength=len(ids)))  # (rows,): they are the nearest
        left = torch.from_numpy(depths[ranking.rows]) - twins
        drawn = twins + _draw(draws[ranking.rows], _hardest(left, hardness))
        some = (left > 0).numpy()
        found[ranking.rows[some]] = ids[some, drawn.numpy()[some]]
    return torch.from_numpy(found)
