"""BIER: an ensemble of heads, each trained on the pairs that the heads before it get wrong (boosting)."""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, full_precision, normalise, rms_norm
from tammes.losses.method import Method
from tammes.models.embedder import Embedder
from tammes.models.heads import parted
from tammes.training.objectives.base import Base, ClassLayer, class_layers

Form = Literal["shrinkage", "eta"]
_ALPHA, _BETA, _COST, _SHRINKAGE = 2.0, 0.5, 25.0, 0.06
# 5e-5 and 1e5 of the authors' script, in units of features of norm 47, as those of GoogLeNet.
_DIVERSITY, _UNIT_WEIGHTS = 250.0, 0.02
_START = 0.5  # the ensemble's activation before the first head, as in the released code
_NEGATIVES = 2.0  # factor on the weight of negative pairs from the second head on, as in the released code


class BIER(nn.Module):
    """Boosting independent embeddings robustly, of Opitz, Waltner, Possegger and Bischof (ICCV 2017).

    The embedding layer is split into heads, each normalised. For the cosine s of a pair in a head, and m = 1 for a
    positive pair, -cost for a negative pair, the activation is a = alpha (s - beta) m and the binomial deviance is

        log(1 + exp(-a))

    The loss is the mean over heads of the sum over ordered pairs of w times the deviance, positive pairs divided by
    their number, negative pairs by theirs; as in the released code, an image with itself counts in the number of
    positive pairs, but not in the sum. The weights w are 1 for the first head, and for the others the negative slope
    of the deviance at the ensemble's activation A so far, 1 / (1 + exp(A)), without a gradient:

        form         A begins at   after head k = 0, 1, …                     w of a negative pair
        shrinkage    0.5           A + shrinkage * a                          twice the slope
        eta          0             (1 - nu) A + nu a,  nu = 2 / (2 + k)       the slope

    "shrinkage" is the released code, "eta" the text of the paper.

    With the discriminative loss as base, images take the place of pairs, and each head has its own class layer. The
    loss is the mean over heads and images of w times the loss of the image, where w is 1 for the first head, and for
    the others D / (mean of D) without a gradient: D is the excess of the image's loss over its minimum in the heads
    before, averaged as A in "eta". The slope is not used: it grows towards the centroid, so it would give the best
    placed images the largest weight. Weights proportional to the remaining error are those of boosting for regression
    (AdaBoost.R2, Drucker 1997). This combination is ours.

    The second part, "diversity", keeps the heads from becoming alike. It trains the embedding layer only:

        diversity * (activation loss + unit_weights * mean over rows w of the layer of (|w|² - 1)²)

    The activation loss is that of the heads' outputs without normalisation, in units of the features' root mean square
    norm, so that the weight does not depend on the network. The other term prevents the layer from shrinking. The
    weights are those of the authors' script, converted to these units for features of norm 47. The script's other way
    to diversity, an adversarial network, is not implemented.

    Args:
        base: "deviance", or "discriminative".
        heads: sizes of the heads.
        form: which of the two.
        alpha: slope of the deviance.
        beta: the cosine at which the activation is 0.
        cost: factor on the slope for negative pairs.
        shrinkage: weight of a head's activation in that of the ensemble.
        diversity: the weight of the second part; 0 leaves it out.
        unit_weights: within it, the weight of the term of the row norms.
    """

    def __init__(
        self,
        base: Base,
        heads: tuple[int, ...],
        *,
        form: Form = "shrinkage",
        alpha: float = _ALPHA,
        beta: float = _BETA,
        cost: float = _COST,
        shrinkage: float = _SHRINKAGE,
        diversity: float = _DIVERSITY,
        unit_weights: float = _UNIT_WEIGHTS,
    ) -> None:
        super().__init__()
        if base.name not in METHOD.bases:
            raise unknown_name("base of BIER", base.name, METHOD.bases)
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        for name, value in (("alpha", alpha), ("cost", cost)):
            if not 0 < value < float("inf"):
                raise UserError(f"{name} must be above 0 and finite, got {value}.")
        if not -1 <= beta <= 1:
            raise UserError(f"beta must be in [-1, 1], for it is a cosine, got {beta}.")
        if not 0 <= shrinkage <= 1:
            raise UserError(f"shrinkage must be in [0, 1], got {shrinkage}.")
        for name, value in (("diversity", diversity), ("unit_weights", unit_weights)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{name} must be at least 0 and finite, got {value}.")
        if base.name == "discriminative":
            for name, got, usual in (
                ("form", form, "shrinkage"),
                ("alpha", alpha, _ALPHA),
                ("beta", beta, _BETA),
                ("cost", cost, _COST),
                ("shrinkage", shrinkage, _SHRINKAGE),
            ):
                if got != usual:
                    raise UserError(f"{name} is for pairs, and the discriminative loss has none: drop {name}={got}.")
        if form == "eta" and shrinkage != _SHRINKAGE:
            raise UserError(f"shrinkage is for form=shrinkage, form=eta has none: drop shrinkage={shrinkage}.")
        if diversity == 0 and unit_weights != _UNIT_WEIGHTS:
            raise UserError(f"unit_weights is a part of diversity, which is 0: drop unit_weights={unit_weights}.")
        self.base, self.heads, self.form = base.name, tuple(heads), form
        self.alpha, self.beta, self.cost, self.shrinkage = alpha, beta, cost, shrinkage
        self.diversity, self.unit_weights = diversity, unit_weights
        self.bases = class_layers(base, heads)
        losses = [each.loss if isinstance(each, ClassLayer) else each for each in self.bases]
        self.minima = [float(each.minimum) for each in losses]  # type: ignore[arg-type]

    def forward(
        self, features: Float[Tensor, "batch features"], labels: Integer[Tensor, " batch"], embedder: Embedder
    ) -> dict[str, Tensor]:
        features = features.to(next(embedder.penultimate.parameters()).dtype)
        outputs, labels = checked_batch(embedder.penultimate(features), labels)
        heads = parted(outputs, self.heads)
        if self.base == "discriminative":
            values = [
                layer.per_image(head, labels)  # type: ignore[operator]
                for head, layer in zip(heads, self.bases, strict=True)
            ]
            loss = weighed(values, self.minima)
        else:
            loss = deviance(
                heads,
                labels,
                form=self.form,
                alpha=self.alpha,
                beta=self.beta,
                cost=self.cost,
                shrinkage=self.shrinkage,
            )
        return (
            {"loss": loss} if self.diversity == 0 else {"loss": loss, "diversity": self._diversity(features, embedder)}
        )

    def _diversity(self, features: Tensor, embedder: Embedder) -> Tensor:
        layers = [each for each in embedder.penultimate.modules() if isinstance(each, nn.Linear)]
        if not all(each.weight.requires_grad for each in layers):
            raise UserError("diversity trains the embedding layer, which `keep_init` freezes: drop one.")
        outputs = full_precision(embedder.penultimate(features.detach()))
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs / rms_norm(features)
            rows = torch.cat([full_precision(each.weight).square().sum(1) for each in layers])  # (dim,)
            penalty = (rows - 1).square().mean()
            return self.diversity * (activation_loss(parted(outputs, self.heads)) + self.unit_weights * penalty)

    def extra_repr(self) -> str:
        words = [f"base={self.base}", f"heads={self.heads}"]
        if self.base == "deviance":
            words += [f"form={self.form}", f"alpha={self.alpha:.6g}", f"beta={self.beta:.6g}", f"cost={self.cost:.6g}"]
            words += [f"shrinkage={self.shrinkage:.6g}"] if self.form == "shrinkage" else []
        if self.diversity:
            words += [f"diversity={self.diversity:.6g}", f"unit_weights={self.unit_weights:.6g}"]
        return ", ".join(words)


def deviance(
    heads: Sequence[Float[Tensor, "batch _"]],
    labels: Integer[Tensor, " batch"],
    *,
    form: Form,
    alpha: float,
    beta: float,
    cost: float,
    shrinkage: float,
) -> Float[Tensor, ""]:
    """The boosted binomial deviance, as a mean over heads; without positive (or negative) pairs their part is 0."""
    with torch.autocast(labels.device.type, enabled=False):
        heads = [normalise(head) for head in heads]
        same = (labels[:, None] == labels).to(heads[0].dtype)  # (batch, batch)
        other = 1 - same
        each = same / same.sum() + other / other.sum().clamp_min(1)  # (batch, batch)
        each.fill_diagonal_(0)
        sign = same - cost * other
        ensemble, weight = torch.full_like(same, _START if form == "shrinkage" else 0.0), torch.ones_like(same)
        terms = []
        for number, head in enumerate(heads):
            active = alpha * (head @ head.T - beta) * sign  # (batch, batch)
            terms.append((weight * each * F.softplus(-active)).sum())
            if form == "shrinkage":
                ensemble = ensemble + shrinkage * active.detach()
                weight = torch.sigmoid(-ensemble) * (same + _NEGATIVES * other)
            else:
                ensemble = ensemble.lerp(active.detach(), 2 / (2 + number))
                weight = torch.sigmoid(-ensemble)
        return torch.stack(terms).mean()


def weighed(values: Sequence[Float[Tensor, " batch"]], minima: Sequence[float]) -> Float[Tensor, ""]:
    """The mean of the values over heads and images, each image weighted by the remaining error of the heads before.

    >>> values = [torch.tensor([3.0, 1.0]), torch.tensor([2.0, 4.0])]
    >>> weighed(values, [0.0, 0.0]).item()
    2.25
    """
    weight, left, terms = torch.ones_like(values[0]), torch.zeros_like(values[0]), []
    for number, (value, minimum) in enumerate(zip(values, minima, strict=True)):
        terms.append((weight * value).mean())
        left = left.lerp((value.detach() - minimum).clamp_min(0), 2 / (2 + number))  # (batch,)
        weight = torch.where(left.mean() > 0, left / left.mean(), 1.0)
    return torch.stack(terms).mean()


def activation_loss(heads: Sequence[Float[Tensor, "batch _"]]) -> Float[Tensor, ""]:
    """The sum over pairs of heads f, g of the mean over images and coordinates a, b of (f[a] g[b])².

    The mean over a and b is computed as the product of the two means of squares.
    """
    squares = torch.stack([full_precision(head).square().mean(1) for head in heads])  # (heads, batch)
    pairs = [(squares[first] * squares[second]).mean() for first, second in combinations(range(len(heads)), 2)]
    return torch.stack(pairs).sum() if pairs else 0 * squares.sum()


def by_size(sizes: tuple[int, ...]) -> tuple[float, ...]:
    """The weight of each head in the embedding: its share of the dimensions."""
    return tuple(size / sum(sizes) for size in sizes)


METHOD = Method(
    loss=BIER,
    title="BIER",
    summary="an ensemble of heads, each trained on the pairs that those before it get wrong",
    equation=(
        "mean over heads of the sum over pairs of  w log(1 + exp(-alpha (s - beta) m)) / number of its kind\n"
        "m = 1 (one class), -cost (two classes);  w = slope of the deviance at what the heads before add up to\n"
        "plus diversity * (sum over heads f, g of  mean (f[a] g[b])²  +  unit_weights * mean (|w|² - 1)²)"
    ),
    cost="B² D",
    reference=("Opitz, Waltner, Possegger, Bischof (2017): BIER - Boosting Independent Embeddings Robustly. ICCV"),
    takes=("base", "heads"),
    on="features",
    bases={"deviance": {"images_per_class": 4, "lr": 0.1}, "discriminative": {"images_per_class": 1}},
    dim=512,
    shares=(3, 5, 8),
    weigh=by_size,
    images_per_class=4,
    trains_embedding=True,
)
