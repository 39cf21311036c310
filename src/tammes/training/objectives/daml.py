"""Deep adversarial metric learning: a generator makes the negatives that the embedder learns from."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.func import functional_call

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, normalise, squared_distances_of_rows, typical_length
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, mean_or_zero, pairs_in_order
from tammes.models.embedder import Embedder
from tammes.training.objectives.base import Base

_PENALTY = 0.002  # of the squared lengths, as the N-pair loss has it


class DAML(nn.Module):
    """Deep adversarial metric learning (Duan et al., CVPR 2018): hard negatives are made where the batch has none.

    Of each class the first and second image of the batch are a pair of anchor a and positive p, so are the third and
    fourth, …; the negative n of a pair is the positive of the next pair of another class, after the last the first. A
    generator of three layers makes of the features of the three those of a synthetic negative ñ. It learns to make it
    near the anchor, not far from the negative, and in the embedding no farther from the anchor than the positive is:

        generator   |ñ - a|² + to_negative |ñ - n|² + adversarial [D²(ñ, a) - D²(p, a) - margin]+

    with [t]+ = max(0, t), D the distance in the embedding, and |·| that of features. The embedder learns to tell it
    apart all the same, by the loss that the method is built on:

        npair            log(1 + sum over ñ_j of other classes of exp(a · ñ_j - a · p)) + 0.002 / 4 (|a|² + |p|²)
        triplet          [D²(a, p) - D²(a, ñ) + margin]+
        discriminative   its mean over a, p and ñ, which has the class of n

    Embeddings are scaled to unit length for D; with the N-pair loss only by what is typical of the batch. Neither of
    the two learns from the other's part: the generator sees features, and weights of the embedder, as constants, and so
    does the embedder see ñ.

    The authors train the embedder first, then the generator, then both. Here the first two run side by side: in the
    first epochs, `warm_up` of all, the embedder has the real negatives n in place of ñ. The last epoch is never one of
    them, so training of a single epoch has no warm-up; nor has the module alone, before it is told of an epoch.

    Ours: the generator's features are divided by their root mean squared length in the batch, and what it makes is
    multiplied by it; so are embeddings that are not of unit length. So the three terms weigh the same against each
    other whatever the backbone.

    A batch without two pairs of different classes has no negatives: there the generator's part is 0, and so is the
    triplet loss; the N-pair loss keeps its penalty, the discriminative loss takes the images as they are.

    Args:
        base: what it is built on: npair, triplet or discriminative.
        features: how many the backbone gives.
        dim: length of the embedding.
        to_negative: the paper's λ1, how much ñ should be like a real negative. λ1, λ2 and α are from memory
            of the paper.
        adversarial: the paper's λ2, how much ñ should be mistaken for a positive.
        margin: the paper's α, also of the triplet loss.
        hidden: units of each of the generator's two inner layers.
        warm_up: the part of the epochs with real negatives, in [0, 1).
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
            raise UserError(f"warm_up must be in [0, 1), the part of the epochs with real negatives, got {warm_up}.")
        self.on, self.to_negative, self.adversarial = base.name, to_negative, adversarial
        self.margin, self.warm_up = checked_margin(margin), warm_up
        self.synthetic = True  # whether the embedder has synthetic negatives yet
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
        """Real or synthetic negatives, from which epoch it is, from 1, of how many."""
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
            length = typical_length(features)
            given = features.detach()[triplets] / length  # (3, triplets, features)
            made = self.generator(torch.cat([*given], dim=1))  # (triplets, features)
            constant = {name: each.detach() for name, each in embedder.penultimate.named_parameters()}
            of_made = functional_call(embedder.penultimate, constant, (made * length,))  # (triplets, dim)
            compared = [outputs.detach()[triplets[0]], outputs.detach()[triplets[1]], of_made]
            if self.on == "npair":
                compared = [each / typical_length(outputs) for each in compared]
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
            # Zero times all outputs: a NaN is seen also in an image that is in no pair.
            return {"loss": loss + 0 * outputs.sum(), "generator": generator}

    def _metric(
        self, outputs: Tensor, labels: Tensor, first: Tensor, second: Tensor, triplets: Tensor, against: Tensor
    ) -> Tensor:
        """The loss that it is built on, of the pairs and their negatives, real or synthetic."""
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
    """For each pair the next one of another class, after the last the first again; -1 where all are of one class.

    >>> negatives_in_order(torch.tensor([4, 4, 7, 2])).tolist()
    [2, 2, 3, 0]
    """
    # Where a run of one class ends, the next pair is the negative of all in the run.
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
    """What the generator minimises, as a mean over triplets: of features, and of their embeddings as they are given."""
    hard = squared_distances_of_rows(synthetic, anchors)  # (triplets,)
    real = squared_distances_of_rows(synthetic, negatives)  # (triplets,)
    farther = (
        squared_distances_of_rows(of_synthetic, of_anchors)
        - squared_distances_of_rows(of_positives, of_anchors)
        - margin
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
    nearer = squared_distances_of_rows(anchors, positives) - squared_distances_of_rows(
        anchors, negatives
    )  # (triplets,)
    return mean_or_zero(torch.relu(nearer + margin))


def npair_loss(
    anchors: Float[Tensor, "pairs dim"],
    positives: Float[Tensor, "pairs dim"],
    negatives: Float[Tensor, "negatives dim"],
    labels: Integer[Tensor, " pairs"],
    negative_labels: Integer[Tensor, " negatives"],
) -> Float[Tensor, ""]:
    """The N-pair loss with negatives of their own, shared by all pairs of other classes."""
    # In float64 as the N-pair loss itself: products of long vectors need the digits.
    a, p = anchors.double(), positives.double()  # (pairs, dim)
    worse = a @ negatives.double().T - (a * p).sum(1, keepdim=True)  # (pairs, negatives)
    worse = worse.masked_fill(labels[:, None] == negative_labels, float("-inf"))
    terms = torch.cat([torch.zeros_like(a[:, :1]), worse], dim=1).logsumexp(dim=1)  # (pairs,): zero is the 1
    lengths = a.square().sum(1) + p.square().sum(1)  # (pairs,)
    return mean_or_zero(terms + _PENALTY / 4 * lengths).to(anchors.dtype)


METHOD = Method(
    loss=DAML,
    title="DAML",
    summary="negatives made by a generator, as hard as it can make them, in addition to the loss it is built on",
    equation="the base's loss of (a, p, ñ), ñ = generator(a, p, n), which minimises the mean of\n"
    "  |ñ - a|² + to_negative |ñ - n|² + adversarial [D²(ñ, a) - D²(p, a) - margin]+",
    cost="B H (F + H), and its base",
    reference="Duan, Zheng, Lin, Lu, Zhou (2018): Deep Adversarial Metric Learning. CVPR",
    takes=("base", "features", "dim"),
    on="features",
    bases={
        # What the generator makes at first is nearly nothing, and has no length to be scaled by: it bears 0.001, and
        # 0.01 where it is not scaled. Embeddings that are not of unit length bear much smaller rates only.
        "npair": {"images_per_class": 2, "initial_norm": 3.0, "lr": 0.1, "proxy_lr": 0.1},
        "triplet": {"images_per_class": 2, "proxy_lr": 0.01},
        "discriminative": {"images_per_class": 2, "proxy_lr": 0.01},
    },
    images_per_class=2,
)
