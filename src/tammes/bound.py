"""The paper's theory as functions: the triplet loss over all triplets, its upper bound, and the gap between them.

Do et al., "A Theoretically Sound Upper Bound on the Triplet Loss", CVPR 2019. A triplet (i, j, k) has y_i = y_j,
i != j and y_k != y_i. Everything is computed in float64; inputs are not normalised.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tammes.errors import UserError
from tammes.geometry import check_range, checked_batch, distances, pairwise

Reduction = Literal["sum", "mean"]

_ENTRIES = 1 << 21  # distances in one block: 16 MB


def num_triplets(labels: Integer[Tensor, " batch"]) -> int:
    """H, the number of triplets: the sum over the classes of n (n - 1) (N - n).

    >>> num_triplets(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))  # Figure 1 of the paper
    96
    """
    sizes = labels.unique(return_counts=True)[1].tolist()
    return sum(n * (n - 1) * (len(labels) - n) for n in sizes)


def triplet_loss(
    embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], *, reduction: Reduction = "sum"
) -> Float[Tensor, ""]:
    """L_t, equations 1 and 2: |x_i - x_j| - |x_i - x_k| over all triplets, exactly, in O(N² D).

    No triplet is enumerated: a positive pair (i, j) is in N - n triplets, a negative pair (i, k) in n - 1.
    Labels may be any integers.
    """
    codes, sizes = _codes(embeddings, labels)
    points = embeddings.double()
    size = sizes[codes].double()  # (batch,)
    total = points.new_zeros(())
    for rows in torch.arange(len(points), device=points.device).split(max(1, _ENTRIES // max(1, len(points)))):
        apart = distances(points[rows], points)  # (rows, batch); 0 on the diagonal
        same = codes[rows, None] == codes  # (rows, batch)
        each = size[rows, None]
        total = total + (apart * torch.where(same, len(points) - each, 1 - each)).sum()
    return _reduced(total, num_triplets(labels), reduction)


def discriminative_loss(
    embeddings: Float[Tensor, "batch dim"],
    labels: Integer[Tensor, " batch"],
    centroids: Float[Tensor, "classes dim"],
    *,
    reduction: Reduction = "sum",
) -> Float[Tensor, ""]:
    """L_d, equation 8: the upper bound over all triplets, in O(N C), for classes of any size.

    With n the size of x_i's class and S the sum of n_c (n_c - 1), the sum of ℓ_d (equation 6) over all triplets is

        sum over i of [2 (n-1) (N-n) + S - n (n-1)] |x_i - c_y|  -  (n-1) sum over m != y of n_m |x_i - c_m|

    For equal sizes that is the paper's G times the sum of |x_i - c_y| - 1/(3(C-1)) sum of |x_i - c_m|.
    """
    labels = _checked(embeddings, labels, centroids)
    own, others = _own_and_others(embeddings, labels, centroids)
    n, sizes = _sizes(labels, len(centroids))
    as_anchor = 2 * (n - 1) * (len(labels) - n)  # as the positive too
    as_negative = (sizes * (sizes - 1)).sum() - n * (n - 1)
    total = ((as_anchor + as_negative) * own - (n - 1) * others).sum()
    return _reduced(total, num_triplets(labels), reduction)


@dataclass(frozen=True)
class Certificate:
    """The gap between bound and triplet loss: 0 <= gap <= certificate <= tighter <= lemma, as sums over all triplets.

    Attributes:
        triplet_loss: L_t.
        discriminative_loss: L_d.
        gap: L_d - L_t.
        certificate: an upper bound on the gap from the distances to the own centroids alone, in O(N).
        tighter: 2 H ε, for any centroids.
        lemma: the paper's H (κ_max - κ_min + 3 ε).
        epsilon: ε, twice the largest distance of an embedding to its centroid.
        kappa_min: κ_min, the smallest distance between two centroids.
        kappa_max: κ_max, the largest.
        triplets: H.
    """

    triplet_loss: float
    discriminative_loss: float
    gap: float
    certificate: float
    tighter: float
    lemma: float
    epsilon: float
    kappa_min: float
    kappa_max: float
    triplets: int


def certificate(
    embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], centroids: Float[Tensor, "classes dim"]
) -> Certificate:
    """The bound, the triplet loss, and the certificates of their gap: the paper's Lemma and two tighter ones.

    By the triangle inequality, ℓ_d - ℓ_t of one triplet is at most d_i + d_j + 2 d_k, with d_i = |x_i - c_y|. Its sum
    over all triplets is the certificate; with d <= ε/2 it is 2 H ε. Neither depends on the distances between centroids.
    """
    labels = _checked(embeddings, labels, centroids)
    with torch.no_grad():
        own = torch.linalg.vector_norm(embeddings.double() - centroids.double()[labels], dim=1)  # (batch,)
        n, sizes = _sizes(labels, len(centroids))
        weights = 2 * (n - 1) * (len(labels) - n) + 2 * ((sizes * (sizes - 1)).sum() - n * (n - 1))
        least_loss = triplet_loss(embeddings, labels).item()
        bound = discriminative_loss(embeddings, labels, centroids).item()
        kappa = pairwise(centroids)
    triplets, epsilon = num_triplets(labels), 2 * own.max().item()
    return Certificate(
        triplet_loss=least_loss,
        discriminative_loss=bound,
        gap=bound - least_loss,
        certificate=(weights * own).sum().item() if triplets else 0.0,
        tighter=2 * triplets * epsilon,
        lemma=triplets * (kappa.max - kappa.min + 3 * epsilon),
        epsilon=epsilon,
        kappa_min=kappa.min,
        kappa_max=kappa.max,
        triplets=triplets,
    )


def _checked(embeddings: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    if centroids.ndim != 2 or len(centroids) < 2:
        raise UserError(
            f"centroids must have shape (classes, dim) with 2 classes or more, got {tuple(centroids.shape)}."
        )
    labels = checked_batch(embeddings, labels, centroids.shape[1])[1]
    check_range(labels, len(centroids))
    return labels


def _codes(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The labels as 0..classes-1, and the sizes of the classes."""
    _, codes, sizes = labels.unique(return_inverse=True, return_counts=True)
    checked_batch(embeddings, codes, embeddings.shape[-1])
    return codes, sizes


def _sizes(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The class size n of each embedding (batch,), and the class sizes n_c (classes,)."""
    sizes = torch.bincount(labels, minlength=num_classes).double()
    return sizes[labels], sizes


def _own_and_others(embeddings: Tensor, labels: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """|x - c_y| (batch,), and the sum over m != y of n_m |x - c_m| (batch,)."""
    points, centroids = embeddings.double(), centroids.double()
    own = torch.linalg.vector_norm(points - centroids[labels], dim=1)
    n, sizes = _sizes(labels, len(centroids))
    rows = max(1, _ENTRIES // len(centroids))
    everyone = torch.cat([distances(part, centroids) @ sizes for part in points.split(rows)])
    return own, everyone - n * own


def _reduced(total: Tensor, triplets: int, reduction: Reduction) -> Tensor:
    if reduction not in ("sum", "mean"):
        raise UserError(f"reduction must be 'sum' or 'mean', got {reduction!r}.")
    if triplets == 0:
        return total * 0  # an empty sum, without what rounding leaves
    return total / triplets if reduction == "mean" else total
