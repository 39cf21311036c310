"""The clustering loss: the true classes must score higher than any other clustering of the batch, by a margin."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Integer
from torch import Tensor, nn

from tammes.errors import check_positive, check_whole
from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.method import Method

# The search counts in whole billionths: distances and scores that differ by rounding only are then tied, wherever and
# in whatever order they were added up, and a tie goes to the lowest index.
_UNIT = 1e-9


class ClusteringLoss(nn.Module):
    """Structured prediction of a clustering by facility location (Oh Song et al., CVPR 2017).

    For normalised embeddings and a set S of images of the batch, the medoids, as many as there are classes:

        F(S) = - sum over images i of the distance to the nearest medoid
        F~   = the same with the best medoid of each class, each image to that of its class
        loss = [ max over S of (F(S) + gamma * (1 - NMI(classes, clusters of S)))  -  F~ ]+

    where [t]+ = max(0, t), distances are not squared, and NMI is normalised by the geometric mean of the entropies.
    Every other clustering should cost more than the true one, by a margin that grows with its error.

    The maximum is searched as in the paper: medoids are added greedily, then each is replaced by the best member of its
    cluster, up to `passes` times (fewer if a pass changes nothing). This may miss the best S. The search has no
    gradient; the value and its gradient are those of the S that was found. A tie goes to the image that comes first in
    the batch, and a medoid belongs to its own cluster even if another medoid coincides with it.

    The paper's value of gamma could not be recovered: 1 is ours.

    Args:
        gamma: the weight of the margin (γ); large values find clusterings that are wrong rather than good.
        passes: how often the medoids are refined; 0 keeps those of the greedy search.

    >>> loss = ClusteringLoss()
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> round(loss(embeddings, torch.tensor([0, 0, 1])).item(), 6)
    1.50774
    """

    minimum = 0.0  # reached if the search finds no clustering that scores higher than the true one

    def __init__(self, *, gamma: float = 1.0, passes: int = 5) -> None:
        super().__init__()
        check_positive("gamma", gamma, or_zero=True)
        check_whole("passes", passes, 0)
        self.gamma, self.passes = gamma, passes

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            return clustering_loss(normalise(embeddings), labels, self.gamma, self.passes)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma:.6g}, passes={self.passes}"


def clustering_loss(
    points: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"], gamma: float, passes: int
) -> Float[Tensor, ""]:
    """The loss of the points, without normalising them."""
    apart = distances(points, points)  # (batch, batch)
    if not apart.isfinite().all():  # NaN stays NaN
        return apart.sum()
    classes = np.unique(labels.cpu().numpy(), return_inverse=True)[1].reshape(-1)  # (batch,)
    search = _Search(points.detach().double().cpu(), classes, gamma)
    medoids = search.refined(search.greedy(), passes)
    clusters = search.assigned(medoids)
    true, found = (torch.from_numpy(each).to(labels.device) for each in (search.of_classes(), medoids[clusters]))
    # Distance to the medoid of the class minus distance to the medoid of the cluster: exactly 0 where they agree.
    difference = apart.gather(1, true[:, None]) - apart.gather(1, found[:, None])  # (batch, 1)
    return torch.relu(difference.sum() + gamma * search.disagreement(clusters))


class _Search:
    """Searches for the medoids with the largest F(S) + gamma * (1 - NMI), in integer billionths."""

    def __init__(
        self, points: Float64[Tensor, "batch dim"], classes: Int64[np.ndarray, " batch"], gamma: float
    ) -> None:
        apart = np.rint(distances(points, points).numpy() / _UNIT)
        self.apart = np.minimum(apart, apart.T)  # (batch, batch): the same in both directions
        self.classes, self.num_classes = classes, int(classes.max()) + 1
        self.gamma = gamma / _UNIT
        counts = np.arange(len(classes) + 1.0)
        self.n_log_n = counts * np.log(np.maximum(counts, 1))  # (batch + 1,): a table for entropies

    def greedy(self) -> Int64[np.ndarray, " classes"]:
        """Medoids added one at a time, each the best given those before it."""
        medoids: list[int] = []
        clusters, nearest = np.zeros_like(self.classes), np.full(len(self.classes), np.inf)  # (batch,)
        for number in range(self.num_classes):
            score = -np.minimum(self.apart, nearest).sum(axis=1)  # (batch,): F with each image added
            score[medoids] = -np.inf
            rows = self._contenders(score)
            takes = self.apart[rows] < nearest  # (rows, batch): the images that would join its cluster
            takes[np.arange(len(rows)), rows] = True
            best = self._best(score[rows], clusters, takes)
            clusters[takes[best]] = number
            nearest = np.minimum(nearest, self.apart[rows[best]])
            medoids.append(int(rows[best]))
        return np.array(medoids)

    def refined(self, medoids: Int64[np.ndarray, " classes"], passes: int) -> Int64[np.ndarray, " classes"]:
        """Each medoid replaced in turn by the best member of its cluster."""
        numbers = np.arange(self.num_classes)
        for _ in range(passes):
            before, medoids = medoids, medoids.copy()
            clusters = self.assigned(medoids)
            for number in numbers:
                members = np.nonzero(clusters == number)[0]
                score = -self.apart[members[:, None], members].sum(axis=1)  # (members,)
                contenders = self._contenders(score)
                if len(contenders) > 1:
                    rows = members[contenders]
                    others = numbers != number
                    to_medoid = np.where(others[:, None], self.apart[medoids], np.inf)  # (classes, batch)
                    elsewhere, nearest = to_medoid.argmin(axis=0), to_medoid.min(axis=0)  # (batch,): without this one
                    elsewhere[medoids[others]] = numbers[others]
                    takes = (self.apart[rows] < nearest) | ((self.apart[rows] == nearest) & (number < elsewhere))
                    takes[:, medoids[others]] = False
                    takes[np.arange(len(rows)), rows] = True
                    contenders = contenders[[self._best(score[contenders], elsewhere, takes)]]
                medoids[number] = members[contenders[0]]
            if np.array_equal(before, medoids):  # the next pass would change nothing either
                break
        return medoids

    def assigned(self, medoids: Int64[np.ndarray, " classes"]) -> Int64[np.ndarray, " batch"]:
        """The number of the nearest medoid of each image; a medoid is nearest to itself."""
        clusters: Int64[np.ndarray, " batch"] = self.apart[medoids].argmin(axis=0)
        clusters[medoids] = np.arange(len(medoids))
        return clusters

    def of_classes(self) -> Int64[np.ndarray, " batch"]:
        """The best medoid of each image's class."""
        same = self.classes[:, None] == self.classes
        cost = np.where(same, self.apart, 0).sum(axis=1)  # (batch,): cost of the class with this image as its medoid
        order = np.lexsort((cost, self.classes))
        first = np.unique(self.classes[order], return_index=True)[1]  # (classes,)
        medoids: Int64[np.ndarray, " batch"] = order[first][self.classes]
        return medoids

    def disagreement(self, clusters: Int64[np.ndarray, " batch"]) -> float:
        """1 - NMI between the classes and these clusters; exactly 0 if they are the same."""
        return float(self._margins(clusters, np.zeros((1, len(clusters)), dtype=bool))[0])

    def _contenders(self, score: Float64[np.ndarray, " rows"]) -> Int64[np.ndarray, " contenders"]:
        """The rows that can still be the best, since 1 - NMI is between 0 and 1."""
        return np.nonzero(score + (self.gamma + 1) >= score.max())[0]

    def _best(
        self,
        score: Float64[np.ndarray, " rows"],
        clusters: Int64[np.ndarray, " batch"],
        takes: Bool[np.ndarray, "rows batch"],
    ) -> int:
        """The first row with the largest score plus margin."""
        if (takes == takes[0]).all():  # the same clusters, so the same margin
            return int(np.argmax(score))
        return int(np.argmax(score + np.rint(self.gamma * self._margins(clusters, takes))))

    def _margins(
        self, clusters: Int64[np.ndarray, " batch"], takes: Bool[np.ndarray, "rows batch"]
    ) -> Float64[np.ndarray, " rows"]:
        """For each row, 1 - NMI between the classes and the clusters after a new cluster has taken its images.

        The sums of n log n are updated from the few images that move.
        """
        rows, count, table = len(takes), len(clusters), self.n_log_n
        row, image = np.nonzero(takes)
        cells = clusters * self.num_classes + self.classes  # (batch,): cluster and class
        over_clusters = self._without(clusters, row, image, rows) + table[takes.sum(axis=1)]  # (rows,)
        over_cells = self._without(cells, row, image, rows)
        taken, size = np.unique(row * self.num_classes + self.classes[image], return_counts=True)
        over_cells += np.bincount(taken // self.num_classes, table[size], rows)
        over_classes = table[np.bincount(self.classes)].sum()
        # Entropies times the number of images. The smallest nonzero value is 2 log 2, for two images.
        of_classes, of_clusters = table[count] - over_classes, table[count] - over_clusters
        shared = table[count] + over_cells - over_classes - over_clusters
        if of_classes < 1:  # a single class agrees only with a single cluster
            return np.where(of_clusters < 1, 0.0, 1.0)
        whole = of_clusters < 1
        alike = np.where(whole, 0, shared) / np.sqrt(of_classes * np.where(whole, 1, of_clusters))
        return np.asarray(np.round(1 - alike, 10))  # a permutation of cluster numbers must not change the value

    def _without(
        self,
        codes: Int64[np.ndarray, " batch"],
        row: Int64[np.ndarray, " moved"],
        image: Int64[np.ndarray, " moved"],
        rows: int,
    ) -> Float64[np.ndarray, " rows"]:
        """For each row, the sum of n log n over the groups of equal codes without the images that have moved."""
        size = np.bincount(codes)
        left, gone = np.unique(row * len(size) + codes[image], return_counts=True)
        before = size[left % len(size)]
        change = self.n_log_n[before - gone] - self.n_log_n[before]
        return np.asarray(self.n_log_n[size].sum() + np.bincount(left // len(size), change, rows))


METHOD = Method(
    loss=ClusteringLoss,
    title="clustering (facility location)",
    summary="the true classes must be a better clustering of the batch than any other, by a margin",
    equation="[max over S of (F(S) + gamma * (1 - NMI(S))) - F~]+\n  F(S) = -sum over i of |x_i - nearest medoid of S|",
    cost="B² D + B² C for the search, outside the gradient; C classes of the batch",
    reference="Oh Song, Jegelka, Rathod, Murphy (2017): Deep Metric Learning via Facility Location. CVPR",
    images_per_class=4,
    lr=0.01,
)
