"""HDC: heads at three depths of the network, each trained on harder examples than the one before."""

from collections.abc import Sequence
from math import ceil, floor
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, mean_or_zero, negatives, positives
from tammes.models.embedder import Embedder
from tammes.models.heads import parted
from tammes.training.objectives.base import Base, class_layers

Form = Literal["cascade", "released"]
_MARGIN = 1.0
_NEGATIVES = 10.0  # weight of a negative pair in the released form, as published
_DIGITS = 6  # rounding before ceil and floor: 0.29 * 100 is 28.999999999999996, 0.07 * 100 is 7.000000000000001


class HDC(nn.Module):
    """The hard-aware deeply cascaded embedding of Yuan, Yang and Zhang (ICCV 2017): a sum over three heads.

    Each head uses features from another depth of the network. The first, the shallowest, is trained on all pairs, the
    second and the third on the hardest fractions `second` and `third` of them. For the distance d of a pair of unit
    vectors of a head, and [t]+ = max(0, t):

        form        positive pair      negative pair        a head ranks                       and averages over
        cascade     d²                 [margin - d]+²       the pairs that the last head kept  the pairs that it keeps
        released    d²                 10 [margin - d²]+    all pairs, negatives listed twice  those with a loss above 0

    "cascade" is the paper's text: the hardest ceil(fraction * all pairs) of the positive and of the negative pairs are
    kept. "released" is the authors' code: positive pairs that coincide are left out, and the hardest
    floor(fraction * count) of each kind are kept. If that is no pair at all, their code divides 0 by 0; here the
    hardest pair of each kind is kept. Of equally hard pairs, the first in the batch are kept; "cascade" ranks negatives
    beyond the margin, which all cost 0, by their distance.

    With the discriminative loss as base, images take the place of pairs: each head has its own class layer, and the
    second and third use the ceil(fraction * batch) images with the largest loss, of those that the head before kept
    ("cascade") or of all ("released"). That, and the mean over them, is our choice.

    Args:
        base: "contrastive", or "discriminative".
        heads: sizes of the three heads.
        form: which of the two.
        margin: margin of the negative pairs.
        second: the fraction of the pairs, or images, on which the second head is trained.
        third: that of the third head, at most `second`.
    """

    def __init__(
        self,
        base: Base,
        heads: tuple[int, ...],
        *,
        form: Form = "cascade",
        margin: float = _MARGIN,
        second: float = 0.5,
        third: float = 0.2,
    ) -> None:
        super().__init__()
        if base.name not in METHOD.bases:
            raise unknown_name("base of HDC", base.name, METHOD.bases)
        if len(heads) != 3:
            raise UserError(f"HDC has 3 heads, got {len(heads)}.")
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        for name, fraction in (("second", second), ("third", third)):
            if not 0 < fraction <= 1:
                raise UserError(f"{name} must be in (0, 1], the share that the {name} head sees, got {fraction}.")
        if third > second:
            raise UserError(f"third must be at most second, which is {second}, got {third}.")
        if base.name == "discriminative" and margin != _MARGIN:
            raise UserError(f"margin is for pairs, and the discriminative loss has none: drop margin={margin}.")
        self.base, self.heads, self.form = base.name, tuple(heads), form
        self.margin, self.fractions = checked_margin(margin), (1.0, second, third)
        self.bases = class_layers(base, heads)

    def forward(
        self, features: Float[Tensor, "batch features"], labels: Integer[Tensor, " batch"], embedder: Embedder
    ) -> dict[str, Tensor]:
        features = features.to(next(embedder.penultimate.parameters()).dtype)
        outputs, labels = checked_batch(embedder.penultimate(features), labels)
        heads = parted(outputs, self.heads)
        if self.base == "discriminative":
            loss = self._of_images(heads, labels)
        else:
            with torch.autocast(outputs.device.type, enabled=False):
                if self.form == "cascade":
                    loss = cascade(heads, labels, fractions=self.fractions, margin=self.margin)
                else:
                    given = zip(heads, self.fractions, strict=True)
                    levels = [level(head, labels, fraction=part, margin=self.margin) for head, part in given]
                    loss = torch.stack(levels).sum()
        return {"loss": loss + 0 * outputs.sum()}  # exposes a NaN also in pairs that were not kept

    def _of_images(self, heads: Sequence[Tensor], labels: Tensor) -> Tensor:
        kept, means = torch.arange(len(labels), device=labels.device), []
        for head, layer, fraction in zip(heads, self.bases, self.fractions, strict=True):
            seen = kept if self.form == "cascade" else torch.arange(len(labels), device=labels.device)
            values: Tensor = layer.per_image(head[seen], labels[seen])  # type: ignore[operator]
            hard = hardest(values, ceil(round(fraction * len(labels), _DIGITS)))
            kept = seen[hard]
            means.append(values[hard].mean())
        return torch.stack(means).sum()

    def extra_repr(self) -> str:
        margin = "" if self.base == "discriminative" else f"margin={self.margin:.6g}, "
        _, second, third = self.fractions
        return f"base={self.base}, heads={self.heads}, form={self.form}, {margin}second={second:.6g}, third={third:.6g}"


def hardest(values: Float[Tensor, " values"], count: int) -> Int[Tensor, " hardest"]:
    """The indices of the `count` largest values, in ascending order; of equal values, the first.

    A NaN counts as the largest, so it is never dropped.
    """
    return values.detach().sort(descending=True, stable=True).indices[:count].sort().values


def cascade(
    heads: Sequence[Float[Tensor, "batch _"]],
    labels: Integer[Tensor, " batch"],
    *,
    fractions: Sequence[float],
    margin: float,
) -> Float[Tensor, ""]:
    """The sum over heads of the mean over the pairs that each keeps, out of those that the head before kept."""
    kinds = [positives(labels).triu().nonzero(), negatives(labels).triu().nonzero()]  # (pairs, 2) each
    counts, means = [len(kind) for kind in kinds], []
    for head, fraction in zip(heads, fractions, strict=True):
        unit = normalise(head)
        apart = distances(unit, unit)  # (batch, batch)
        pull, push = (apart[kind[:, 0], kind[:, 1]] for kind in kinds)  # (positive pairs,), (negative pairs,)
        costs = [pull.square(), torch.relu(margin - push).square()]
        # Ranked by distance rather than cost, as negatives beyond the margin all cost 0.
        kept = [
            hardest(hard, ceil(round(fraction * count, _DIGITS)))
            for hard, count in zip((pull, -push), counts, strict=True)
        ]
        kinds = [kind[rows] for kind, rows in zip(kinds, kept, strict=True)]
        means.append(mean_or_zero(torch.cat([cost[rows] for cost, rows in zip(costs, kept, strict=True)])))
    return torch.stack(means).sum()


def level(
    outputs: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], *, fraction: float, margin: float
) -> Float[Tensor, ""]:
    """One head of the released form: the mean of the losses above 0 over the pairs that it keeps, out of all pairs.

    >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> round(level(points, torch.tensor([0, 0, 1]), fraction=1.0, margin=1.0).item(), 6)
    4.266667
    """
    unit = normalise(outputs)
    squared = distances(unit, unit).square()  # (batch, batch)
    pull = squared[positives(labels).triu()]  # (positive pairs,)
    pull = pull[pull != 0]
    push = _NEGATIVES * torch.relu(margin - squared[negatives(labels).triu()])  # (negative pairs,)
    costs = [pull, push.repeat_interleave(2)]
    counts = [floor(round(fraction * len(cost), _DIGITS)) for cost in costs]
    if not any(counts):
        counts = [1, 1]
    kept = torch.cat([cost[hardest(cost, count)] for cost, count in zip(costs, counts, strict=True)])
    return kept.sum() / (kept > 0).sum().clamp_min(1)


def last_counts_twice(sizes: tuple[int, ...]) -> tuple[float, ...]:
    """The weight of each head in the embedding, as in the released code."""
    return (1.0,) * (len(sizes) - 1) + (2.0,)


METHOD = Method(
    loss=HDC,
    title="HDC",
    summary="heads at three depths of the network, each trained on the pairs that are hard for the one before",
    equation=(
        "sum over heads k of the mean over its pairs of  |x_i - x_j|²  (one class),  [margin - |x_i - x_j|]+²  (two)\n"
        "pairs of head k: all, the hardest half, the hardest fifth, each chosen from the pairs of head k - 1"
    ),
    cost="B² D + B² log B",
    reference="Yuan, Yang, Zhang (2017): Hard-Aware Deeply Cascaded Embedding. ICCV",
    takes=("base", "heads"),
    on="features",
    bases={"contrastive": {"images_per_class": 4}, "discriminative": {"images_per_class": 1}},
    dim=384,
    shares=(1, 1, 1),
    weigh=last_counts_twice,
    depths=True,
    images_per_class=4,
)
