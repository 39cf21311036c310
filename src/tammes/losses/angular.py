"""The angular loss: the angle at a negative, between the two images of a positive pair, is kept small."""

from math import radians, tan
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, check_positive, unknown_name
from tammes.geometry import checked_batch, normalise
from tammes.losses.method import Method
from tammes.losses.mining import mean_or_zero, pairs_in_order, positives

Form = Literal["npair+angular", "angular"]

_WEIGHT = 2.0
_LEAST, _MOST = 1.0, 80.0  # degrees: a value below is probably in radians; above, the tangent grows without bound


class AngularLoss(nn.Module):
    """The angular loss of Wang et al. (ICCV 2017), as a mean over the pairs, of normalised embeddings.

    In the triangle of an anchor a, a positive p and a negative n, the angle at n should be at most alpha:

        |a - p|² <= 4 tan²(alpha) |n - (a + p) / 2|²

    For unit vectors, without constant terms, and with a log-sum-exp over all negatives of a pair:

        angular          log(1 + sum over j of exp(4 t (a_i + p_i) · p_j - 2 (1 + t) a_i · p_i)),  t = tan²(alpha)
        npair+angular    log(1 + sum over j of exp(a_i · p_j - a_i · p_i))  +  angular_weight * angular

    The second, added to the N-pair loss, is the authors' main form. Pairs are formed by position as in the N-pair loss:
    of each class the first and second image of the batch, the third and fourth, …; the negatives of a pair i are the
    positives of the pairs j of other classes. (The paper sums over all images of other classes, including the anchors;
    pytorch-metric-learning uses every pair of a class.)

    Both parts use unit embeddings, for which alpha has a meaning, so no penalty on the norms is needed.

    Args:
        alpha: the angle, in degrees.
        form: with the N-pair loss, or alone.
        angular_weight: weight of the angular part when added to the N-pair loss (λ).

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.0, 2.0]])
    >>> round(AngularLoss(form="angular")(embeddings, torch.tensor([0, 0, 1, 1])).item(), 6)
    1.828968
    """

    minimum = 0.0  # a lower bound; reached only if a batch has no pairs

    def __init__(self, *, alpha: float = 45.0, form: Form = "npair+angular", angular_weight: float = _WEIGHT) -> None:
        super().__init__()
        if not _LEAST <= alpha <= _MOST:
            raise UserError(
                f"alpha must be between {_LEAST:g} and {_MOST:g} degrees, got {alpha}. The usual one is 45."
            )
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        check_positive("angular_weight", angular_weight)
        if form == "angular" and angular_weight != _WEIGHT:
            raise UserError("angular_weight is for form='npair+angular'; form='angular' has one part only.")
        self.alpha, self.form, self.angular_weight = alpha, form, angular_weight

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        first, second = pairs_in_order(labels)  # (pairs,)
        with torch.autocast(embeddings.device.type, enabled=False):
            # float64 is not affected by autocast, also in the backward.
            unit = normalise(embeddings.double())
            anchors, partners = unit[first], unit[second]  # (pairs, dim)
            same_class = positives(labels[first])  # (pairs, pairs)
            alike = anchors @ partners.T  # (pairs, pairs)
            own = alike.diagonal()[:, None]  # (pairs, 1)
            squared = tan(radians(self.alpha)) ** 2
            wide = 4 * squared * (alike + partners @ partners.T) - 2 * (1 + squared) * own  # (pairs, pairs)
            terms = _log_one_plus(wide, same_class)  # (pairs,)
            if self.form == "npair+angular":
                terms = _log_one_plus(alike - own, same_class) + self.angular_weight * terms
            return mean_or_zero(terms).to(embeddings.dtype)

    def extra_repr(self) -> str:
        weight = f", angular_weight={self.angular_weight:.6g}" if self.form == "npair+angular" else ""
        return f"alpha={self.alpha:.6g}, form={self.form}{weight}"


def _log_one_plus(exponents: Tensor, same_class: Tensor) -> Tensor:
    """(pairs, pairs) -> (pairs,): log(1 + sum of exp over the pairs of other classes); the diagonal is the 1."""
    itself = torch.eye(len(exponents), dtype=torch.bool, device=exponents.device)
    return exponents.masked_fill(same_class, float("-inf")).masked_fill(itself, 0.0).logsumexp(dim=1)


METHOD = Method(
    loss=AngularLoss,
    title="angular",
    summary="N-pair loss plus a bound on the angle at a negative between the two images of a pair",
    equation="mean over pairs i of  log(1 + sum over j of exp(a_i · p_j - a_i · p_i))\n"
    "  + angular_weight log(1 + sum over j of exp(4 t (a_i + p_i) · p_j - 2 (1 + t) a_i · p_i)),  t = tan²(alpha)",
    cost="B² D",
    reference="Wang, Zhou, Wen, Liu, Lin (2017): Deep Metric Learning with Angular Loss. ICCV",
    images_per_class=2,
    lr=0.1,
)
