"""Ridge regression of vectors onto the centroids of their classes (Perrot and Habrard 2015), in closed form."""

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from scipy.sparse import csr_array
from torch import Tensor

from tammes.vectors.statistics import Rows, Scale, blocks, scales

REGULARISATIONS: tuple[float, ...] = tuple(10.0 ** (n / 2) for n in range(-6, 7))  # the values that are tried
_STRONG = 1e6  # regularisation from which all directions are damped nearly equally


class Sums:
    """The sufficient statistics of ridge: counts, sums by class, and products, accumulated in float64."""

    def __init__(self, columns: int, classes: int) -> None:
        self.counts = np.zeros(classes)
        self.by_class = np.zeros((classes, columns))
        self.products = np.zeros((columns, columns))

    def add_all(
        self,
        X: ndarray | Rows,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"] | None,
        mean: Float64[ndarray, " columns"],
        scale: Float64[ndarray, " columns"],
    ) -> None:
        """Add rows, centred and scaled by the given values."""
        for part in blocks(len(X) if rows is None else len(rows), X.shape[1]):
            chosen = part if rows is None else rows[part]
            block, own = (X[chosen].astype(np.float64) - mean) / scale, codes[chosen]
            one_each = csr_array((np.ones(len(own)), (own, np.arange(len(own)))), shape=(len(self.counts), len(own)))
            self.counts += np.bincount(own, minlength=len(self.counts))
            self.by_class += one_each @ block
            self.products += block.T @ block


class Ridge:
    """W = (X'X + λ I)^-1 X'V for every λ at the cost of one, with X standardised by the current sums.

    A row of V is the centroid of the vector's class, so that X'V needs only the sums of X by class.
    """

    def __init__(self, sums: Sums, centroids: Float[Tensor, "classes dim"], scale: Scale) -> None:
        self.count, self.targets = float(sums.counts.sum()), centroids.double().numpy()
        self.mean = sums.by_class.sum(axis=0) / self.count
        gram = sums.products - self.count * np.outer(self.mean, self.mean)
        self.scale = scales(np.diag(gram).clip(min=0) / self.count, scale, least=1e-18)
        self.gram = gram / np.outer(self.scale, self.scale)  # X'X
        by_class = (sums.by_class - sums.counts[:, None] * self.mean) / self.scale
        self.values, self.vectors = np.linalg.eigh(self.gram)
        self.values = self.values.clip(min=0)
        self.projected = self.vectors.T @ (by_class.T @ self.targets)  # (columns, dim): X'V along the eigenvectors
        centred = self.targets - sums.counts @ self.targets / self.count
        self.spread = float(sums.counts @ np.square(centred).sum(axis=1))

    def map(self, regularisation: float) -> Float64[ndarray, "columns dim"]:
        """W for λ = regularisation × vectors; from `_STRONG` on up to a factor, as it would vanish."""
        damped = self.values + regularisation * self.count  # (columns,)
        if regularisation > _STRONG:
            damped = (self.values / (regularisation * self.count) + 1) * _STRONG * self.count
        return np.asarray(self.vectors @ (self.projected / damped[:, None]))

    def best_by_cross_validation(self) -> float:
        """The regularisation with the lowest generalised cross-validation error (Golub, Heath and Wahba 1979).

        It approximates leave-one-out with the mean leverage and needs only the sums.
        """
        powers = np.square(self.projected).sum(axis=1)  # (columns,)
        errors = []
        for candidate in REGULARISATIONS:
            damped = self.values + candidate * self.count
            residual = self.spread - float((powers * (2 / damped - self.values / damped**2)).sum())
            errors.append(residual / (1 - float((self.values / damped).sum()) / self.count) ** 2)
        return REGULARISATIONS[int(np.argmin(errors))]
