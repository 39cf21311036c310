"""The triplet loss with smart mining: triplets from all training images, with an adaptive hardness."""

import torch
from jaxtyping import Float, Int64, Integer
from torch import Generator, Tensor

from tammes.errors import UserError
from tammes.geometry import checked_batch, distances, normalise
from tammes.losses.fixed_centroids import FullPrecisionBuffers
from tammes.losses.method import Method
from tammes.losses.mining import checked_margin, smart_triplets, squared_distances_of
from tammes.losses.triplet_global import checked_global, global_part, ratio_triplet

TOO_EASY, TOO_HARD = 0.5, 0.9  # shares of active triplets between which the hardness does not change
STEP = 0.05  # change of the hardness from one epoch to the next


class SmartMiningLoss(FullPrecisionBuffers):
    """The triplet loss and the global loss over mined triplets, after Harwood et al. (ICCV 2017): our reconstruction.

    From the paper we know the parts: once an epoch all training images are embedded and their neighbours searched, each
    anchor gets a positive and a negative that are hard but not the hardest, a controller adapts the hardness during
    training, and the loss is that of `TripletGlobalLoss`. The details of the parts are ours, and so are the defaults of
    `neighbours` and `hardness`; the other defaults are from memory.

    `look` mines one triplet for each image that has a positive and a negative. The candidates are its positives,
    farthest first, and the `neighbours` nearest images of other classes, nearest first (an exact search, where the
    paper approximates). One of each is drawn from the first max(1, ceil((1 - hardness) * length)): a hardness of 1
    takes the hardest, 0 any. Images of other classes that almost coincide with the anchor, such as the same image with
    two labels, are excluded unless all neighbours are. Before mining, `look` measures the share of the previous
    triplets that still have a loss: below 0.5 the mining was too easy and the hardness grows by 0.05, above 0.9 it was
    too hard and shrinks by 0.05.

    One triplet per image makes an epoch three times as long as that of other losses; a `share` of 1/3 uses a random
    third of the triplets.

    `order` then lists the images of the batches: rows 3t, 3t + 1, 3t + 2 are anchor, positive and negative.

    Args:
        margin, weight, gap, gamma: as in `TripletGlobalLoss`.
        neighbours: number of nearest images of other classes from which a negative is drawn.
        hardness: initial hardness, in [0, 1].
        share: the share of the mined triplets that an epoch uses, in (0, 1].

    Attributes:
        hardness_now: the current hardness.
        active: the share of the previous triplets that still had a loss at the last `look`; 0 before.
    """

    hardness_now: Tensor
    active: Tensor

    # Reached where each class is a point and all classes have the same distance, at least that of the gap.
    minimum = 0.0

    def __init__(
        self,
        *,
        margin: float = 0.01,
        weight: float = 0.8,
        gap: float = 0.4,
        gamma: float = 1.0,
        neighbours: int = 256,
        hardness: float = 0.2,
        share: float = 1.0,
    ) -> None:
        super().__init__()
        self.margin, (self.weight, self.gap, self.gamma) = checked_margin(margin), checked_global(weight, gap, gamma)
        if neighbours < 1:
            raise UserError(f"neighbours must be at least 1, got {neighbours}.")
        if not 0 <= hardness <= 1:
            raise UserError(f"hardness must be in [0, 1], got {hardness}: 1 takes the hardest triplets, 0 any.")
        if not 0 < share <= 1:
            raise UserError(f"share must be above 0 and at most 1, got {share}: 1 uses every mined triplet.")
        self.neighbours, self.hardness, self.share = neighbours, hardness, share
        self._order: Tensor | None = None
        self.register_buffer("hardness_now", torch.tensor(hardness))
        self.register_buffer("active", torch.tensor(0.0))

    @property
    def order(self) -> Int64[Tensor, " images"] | None:
        """Positions in the training set, triplet after triplet, in the order of the epoch; None before `look`."""
        return self._order

    @property
    def noted(self) -> dict[str, float]:
        """The state of the mining, for the epoch's log."""
        return {"hardness": round(self.hardness_now.item(), 6), "active": self.active.item()}

    @torch.no_grad()
    def look(
        self, embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], *, generator: Generator
    ) -> None:
        """Adapt the hardness to the current loss of the last triplets, then mine new ones from all training images."""
        embeddings, labels = checked_batch(embeddings, labels)
        unit, labels = normalise(embeddings).cpu(), labels.cpu()
        fine = unit.isfinite().all(dim=1)  # (images,)
        if not fine.all():
            raise UserError(
                f"triplets cannot be mined: the embedding of image {int(fine.long().argmin())} is not finite"
                f" ({int((~fine).sum())} of {len(fine)} are not). Training has diverged: lower the learning rate."
            )
        if self._order is not None:
            self._adapt(unit, labels, self._order.view(-1, 3))
        hardness = round(self.hardness_now.item(), 6)  # 0.35, not the nearest float32
        triplets = smart_triplets(unit, labels, hardness=hardness, neighbours=self.neighbours, generator=generator)
        if not len(triplets):
            raise UserError(
                "there is no triplet to mine: the training set needs at least 2 classes, and one of them 2 images."
            )
        shuffled = triplets[torch.randperm(len(triplets), generator=generator)]
        self._order = shuffled[: max(1, round(len(triplets) * self.share))].flatten()

    def _adapt(self, unit: Tensor, labels: Tensor, triplets: Tensor) -> None:
        """Set the hardness from the share of the last triplets that still have a loss."""
        if int(triplets.max()) >= len(labels) or not _are_triplets(*labels[triplets].T):
            raise UserError(
                "the triplets of the last look were mined from other images: a loss that mines belongs to one training"
                " set. Create a new one for another."
            )
        active = (ratio_triplet(*squared_distances_of(unit, triplets), self.margin) > 0).double().mean().item()
        step = STEP * ((active < TOO_EASY) - (active > TOO_HARD))
        self.active.fill_(active)
        self.hardness_now.fill_(min(1.0, max(0.0, round(self.hardness_now.item(), 6) + step)))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        if len(labels) % 3 or not _are_triplets(*labels.view(-1, 3).T):
            raise UserError(_not_triplets(labels))
        with torch.autocast(embeddings.device.type, enabled=False):
            unit = normalise(embeddings)
            squared = distances(unit[::3], unit).square()  # (triplets, batch)
            anchor = torch.arange(len(squared), device=squared.device)
            to_positive, to_negative = squared[anchor, 3 * anchor + 1], squared[anchor, 3 * anchor + 2]  # (triplets,)
            ratio = ratio_triplet(to_positive, to_negative, self.margin).mean()
            return self.gamma * ratio + global_part(to_positive, to_negative, self.weight, self.gap)

    def get_extra_state(self) -> Tensor:
        """`order`, so that a resumed run has the same batches; empty before `look`."""
        return torch.empty(0, dtype=torch.int64) if self._order is None else self._order.clone()

    def set_extra_state(self, state: Tensor) -> None:
        if state.ndim != 1 or len(state) % 3 or state.is_floating_point() or bool((state < 0).any()):
            raise UserError(
                f"an order of triplets cannot be {tuple(state.shape)} of {state.dtype}, or have numbers < 0."
            )
        self._order = state.detach().long().cpu().clone() if state.numel() else None

    def extra_repr(self) -> str:
        options = f"margin={self.margin:.6g}, weight={self.weight:.6g}, gap={self.gap:.6g}, gamma={self.gamma:.6g}"
        share = "" if self.share == 1 else f", share={self.share:.6g}"
        return f"{options}, neighbours={self.neighbours}, hardness={self.hardness:.6g}{share}"


def _are_triplets(anchor: Tensor, positive: Tensor, negative: Tensor) -> bool:
    return bool(((anchor == positive) & (anchor != negative)).all())


def _not_triplets(labels: Tensor) -> str:
    """The error message for a batch that is not made of triplets."""
    what = "a batch must be triplets: rows 3t, 3t + 1, 3t + 2 are an anchor, a positive and a negative"
    todo = "Take the images in the order of loss.order, whole triplets a batch; loss.look(...) mines them."
    if len(labels) % 3:
        return f"{what}; {len(labels)} rows are not a multiple of 3. {todo}"
    anchor, positive, negative = labels.view(-1, 3).T
    row = 3 * int(((anchor != positive) | (anchor == negative)).long().argmax())
    return (
        f"{what}; those from row {row} have the classes {', '.join(map(str, labels[row : row + 3].tolist()))}. {todo}"
    )


METHOD = Method(
    loss=SmartMiningLoss,
    title="triplet + smart mining",
    summary="the triplet loss and the global loss over triplets mined from all images, with an adaptive hardness",
    equation="gamma * mean of [1 - d_an² / (d_ap² + margin)]+\n"
    "  + var(d⁺) + var(d⁻) + weight * [mean(d⁺) - mean(d⁻) + gap]+,   d⁺ = d_ap² / 4, d⁻ = d_an² / 4",
    cost="B² D, and N² D for each epoch of N images",
    reference="Harwood, Kumar, Carneiro, Reid, Drummond (2017): Smart Mining for Deep Metric Learning. ICCV;"
    " our reconstruction",
    sees="all images each epoch",
    lr=0.1,
)
