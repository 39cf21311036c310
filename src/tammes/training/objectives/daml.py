"""Deep adversarial metric learning: a generator creates synthetic hard negatives."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.func import functional_call

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, normalise, paired_squared_distances, rms_norm
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, mean_or_zero, pairs_in_order
from tammes.models.embedder import Embedder
from tammes.training.objectives.base import Base

_PENALTY = 0.002  # weight of the squared norms, as in the N-pair loss


class DAML(nn.Module):
    """Deep adversarial metric learning (Duan et al., CVPR 2018): a generator creates hard negatives.

    The first and second image of each class in the batch are a pair of anchor a and positive p, so are the third and
    fourth, …; the negative n of a pair is the positive of the next pair of another class, cyclically. From the features
    of the three, a generator of three layers creates those of a synthetic negative ñ. It is trained to place ñ near the
    anchor, not far from the negative, and in the embedding no farther from the anchor than the positive:

        generator   |ñ - a|² + to_negative |ñ - n|² + adversarial [D²(ñ, a) - D²(p, a) - margin]+

    with [t]+ = max(0, t), D the distance in the embedding, and |·| that of features. The embedder is trained to
    separate it from the anchor, by the loss that the method is built on:

        npair            log(1 + sum over ñ_j of other classes of exp(a · ñ_j - a · p)) + 0.002 / 4 (|a|² + |p|²)
        triplet          [D²(a, p) - D²(a, ñ) + margin]+
        discriminative   its mean over a, p and ñ, which has the class of n

    Embeddings are normalised for D; with the N-pair loss they are only divided by the root mean square norm of the
    batch. Gradients are separate: features and the embedder's weights are constants for the generator, ñ is one for the
    embedder.

    The authors train the embedder first, then the generator, then both. Here the first two stages run in parallel: in
    the first epochs, a share `warm_up` of all, the embedder uses the real negatives n instead of ñ. The last epoch is
    never one of them, so a training of one epoch has no warm-up; neither has the module before `begin` is called.

    Our addition: the generator's features are divided by their root mean square norm in the batch, and its output is
    multiplied by it; likewise embeddings that are not normalised. So the relative weight of the three terms does not
    depend on the backbone.

    A batch without two pairs of different classes has no negatives: the generator's part and the triplet loss are then
    0, the N-pair loss keeps its penalty, and the discriminative loss uses all images.

    Args:
        base: the base loss: npair, triplet or discriminative.
        features: number of the backbone's features.
        dim: dimension of the embedding.
        to_negative: the paper's λ1, weight of the similarity of ñ to a real negative. λ1, λ2 and α are from memory of
            the paper.
        adversarial: the paper's λ2, weight of the adversarial term.
        margin: the paper's α, also that of the triplet loss.
        hidden: units of each of the generator's two inner layers.
        warm_up: the share of the epochs with real negatives, in [0, 1).
    """

    def __init__(
        self,
        base: Base,
        features: int,
        dim: int,
        *,
        to_negative: float = 1.0,
        adversarial: float = 50.0,
        margin: float = 1.0,
        hidden: int = 512,
        warm_up: float = 0.5,
    ) -> None:
        super().__init__()
        if base.name not in METHOD.bases:
            raise unknown_name(f"base of {METHOD.title}", base.name, METHOD.bases)
        for name, weight in (("to_negative", to_negative), ("adversarial", adversarial)):
            if not 0 <= weight < float("inf"):
                raise UserError(f"{name} must be at least 0 and finite, got {weight}.")
        if hidden < 1:
            raise UserError(f"hidden must be at least 1, got {hidden}.")
        if not 0 <= warm_up < 1:
            raise UserError(f"warm_up must be in [0, 1), the share of the epochs with real negatives, got {warm_up}.")
        self.on, self.to_negative, self.adversarial = base.name, to_negative, adversarial
        self.margin, self.warm_up = checked_margin(margin), warm_up
        self.synthetic = True  # whether the embedder uses synthetic negatives
        sizes = (3 * features, hidden, hidden, features)
        layers = [nn.Linear(*size) for size in pairwise(sizes)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.generator = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.base: nn.Module | None = None
        if base.name == "discriminative":
            if base.make is None:
                raise ValueError("the discriminative base cannot be made: it is a Base without make")
            self.base = base.make(dim)

    def begin(self, epoch: int, epochs: int) -> None:
        """Choose real or synthetic negatives for an epoch, from 1."""
        self.synthetic = epoch / epochs > self.warm_up  # not warm_up * epochs: 0.29 * 100 is below 29

    def forward(
        self, features: Float[Tensor, "batch features"], labels: Integer[Tensor, " batch"], embedder: Embedder
    ) -> dict[str, Tensor]:
        features, labels = checked_batch(features, labels)
        first, second = pairs_in_order(labels)  # (pairs,)
        following = negatives_in_order(labels[first])  # (pairs,)
        triplets = torch.stack([first, second, second[following]])[:, following >= 0]  # (3, triplets)
        with torch.autocast(features.device.type, enabled=False):
            outputs: Tensor = embedder.penultimate(features)  # (batch, dim)
            length = rms_norm(features)
            given = features.detach()[triplets] / length  # (3, triplets, features)
            made = self.generator(torch.cat([*given], dim=1))  # (triplets, features)
            constant = {name: each.detach() for name, each in embedder.penultimate.named_parameters()}
            of_made = functional_call(embedder.penultimate, constant, (made * length,))  # (triplets, dim)
            compared = [outputs.detach()[triplets[0]], outputs.detach()[triplets[1]], of_made]
            if self.on == "npair":
                compared = [each / rms_norm(outputs) for each in compared]
            else:
                compared = [normalise(each) for each in compared]
            generator = generator_loss(
                given[0],
                given[2],
                made,
                *compared,
                to_negative=self.to_negative,
                adversarial=self.adversarial,
                margin=self.margin,
            )
            against = outputs[triplets[2]]  # (triplets, dim)
            if self.synthetic:
                against = embedder.penultimate(made.detach() * length)
            loss = self._metric(outputs, labels, first, second, triplets, against)
            # Adding zero times all outputs exposes a NaN also in an image that is in no pair.
            return {"loss": loss + 0 * outputs.sum(), "generator": generator}

    def _metric(
        self, outputs: Tensor, labels: Tensor, first: Tensor, second: Tensor, triplets: Tensor, against: Tensor
    ) -> Tensor:
        """The base loss of the pairs and their negatives, real or synthetic."""
        anchor, positive, negative = triplets
        if self.on == "npair":
            return npair_loss(outputs[first], outputs[second], against, labels[first], labels[negative])
        if self.base is None:
            return triplet_loss(*map(normalise, (outputs[anchor], outputs[positive], against)), margin=self.margin)
        if not len(anchor):
            return self.base(outputs, labels)  # type: ignore[no-any-return]
        together = torch.cat([outputs[anchor], outputs[positive], against])  # (3 triplets, dim)
        return self.base(together, labels[triplets.flatten()])  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return (
            f"base={self.on}, to_negative={self.to_negative:.6g}, adversarial={self.adversarial:.6g},"
            f" margin={self.margin:.6g}, warm_up={self.warm_up:.6g}"
        )


def negatives_in_order(labels: Integer[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
    """For each pair, the next pair of another class, cyclically; -1 if all are of one class.

    >>> negatives_in_order(torch.tensor([4, 4, 7, 2])).tolist()
    [2, 2, 3, 0]
    """
    # The first pair after a run of one class is the negative of all pairs in the run.
    ends = (labels != labels.roll(-1)).nonzero().flatten()  # (runs,)
    if not len(ends):
        return torch.full_like(labels, -1, dtype=torch.int64)
    run = torch.searchsorted(ends, torch.arange(len(labels), device=labels.device))  # (pairs,)
    return (ends[run % len(ends)] + 1) % len(labels)


def generator_loss(
    anchors: Float[Tensor, "triplets features"],
    negatives: Float[Tensor, "triplets features"],
    synthetic: Float[Tensor, "triplets features"],
    of_anchors: Float[Tensor, "triplets dim"],
    of_positives: Float[Tensor, "triplets dim"],
    of_synthetic: Float[Tensor, "triplets dim"],
    *,
    to_negative: float = 1.0,
    adversarial: float = 50.0,
    margin: float = 1.0,
) -> Float[Tensor, ""]:
    """The loss of the generator, as a mean over triplets of features and of their embeddings."""
    hard = paired_squared_distances(synthetic, anchors)  # (triplets,)
    real = paired_squared_distances(synthetic, negatives)  # (triplets,)
    farther = (
        paired_squared_distances(of_synthetic, of_anchors) - paired_squared_distances(of_positives, of_anchors) - margin
    )
    return mean_or_zero(hard + to_negative * real + adversarial * torch.relu(farther))


def triplet_loss(
    anchors: Float[Tensor, "triplets dim"],
    positives: Float[Tensor, "triplets dim"],
    negatives: Float[Tensor, "triplets dim"],
    *,
    margin: float = 1.0,
) -> Float[Tensor, ""]:
    """The mean of [D²(a, p) - D²(a, n) + margin]+ over given triplets."""
    nearer = paired_squared_distances(anchors, positives) - paired_squared_distances(anchors, negatives)  # (triplets,)
    return mean_or_zero(torch.relu(nearer + margin))


def npair_loss(
    anchors: Float[Tensor, "pairs dim"],
    positives: Float[Tensor, "pairs dim"],
    negatives: Float[Tensor, "negatives dim"],
    labels: Integer[Tensor, " pairs"],
    negative_labels: Integer[Tensor, " negatives"],
) -> Float[Tensor, ""]:
    """The N-pair loss with separate negatives, shared by all pairs of other classes."""
    # float64, as in the N-pair loss: products of long vectors need the precision.
    a, p = anchors.double(), positives.double()  # (pairs, dim)
    worse = a @ negatives.double().T - (a * p).sum(1, keepdim=True)  # (pairs, negatives)
    worse = worse.masked_fill(labels[:, None] == negative_labels, float("-inf"))
    terms = torch.cat([torch.zeros_like(a[:, :1]), worse], dim=1).logsumexp(dim=1)  # (pairs,): exp(0) is the 1
    lengths = a.square().sum(1) + p.square().sum(1)  # (pairs,)
    return mean_or_zero(terms + _PENALTY / 4 * lengths).to(anchors.dtype)


METHOD = Method(
    loss=DAML,
    title="DAML",
    summary="synthetic hard negatives from a generator, in addition to the base loss",
    equation="the base's loss of (a, p, ñ), ñ = generator(a, p, n), which minimises the mean of\n"
    "  |ñ - a|² + to_negative |ñ - n|² + adversarial [D²(ñ, a) - D²(p, a) - margin]+",
    cost="B H (F + H), and its base",
    reference="Duan, Zheng, Lin, Lu, Zhou (2018): Deep Adversarial Metric Learning. CVPR",
    takes=("base", "features", "dim"),
    on="features",
    bases={
        # The generator's first outputs are nearly zero and have no stable norm: normalised, they tolerate a learning
        # rate of 0.001, otherwise 0.01. Embeddings that are not normalised tolerate only much smaller rates.
        "npair": {"images_per_class": 2, "initial_norm": 3.0, "lr": 0.1, "proxy_lr": 0.1},
        "triplet": {"images_per_class": 2, "proxy_lr": 0.01},
        "discriminative": {"images_per_class": 2, "proxy_lr": 0.01},
    },
    images_per_class=2,
)
