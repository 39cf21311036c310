"""Samplers: the images of each batch of an epoch."""

from collections import deque
from typing import Literal, NamedTuple, Required, TypedDict, get_args

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from tammes.errors import UserError, unknown_name

Sampler = Literal["shuffled", "ordered", "balanced", "pk"]


class Turn(NamedTuple):
    """One batch: positions in `indices`, and how often the epoch has used each of them before."""

    positions: Int64[ndarray, " batch"]
    repeats: Int64[ndarray, " batch"]


class Sampling(TypedDict, total=False):
    """The keyword arguments of `turns`, for functions that pass them on."""

    batch_size: Required[int]
    train: Required[bool]
    sampler: Sampler
    images_per_class: int
    seed: int
    epoch: int
    drop_last: bool
    rank: int
    world_size: int
    order: Int64[ndarray, " shown"] | None


def turns(
    labels: Int64[ndarray, " chosen"],
    *,
    batch_size: int,
    train: bool,
    sampler: Sampler = "shuffled",
    images_per_class: int = 4,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    order: Int64[ndarray, " shown"] | None = None,
) -> list[Turn]:
    """The batches of one epoch; for evaluation (train=False) all images in order.

    With several processes, each gets a share of every training batch, so that the training does not depend on their
    number; the share of a small last batch may be empty. For evaluation each gets whole batches, possibly none, because
    a network may give different last digits for a part of a batch.

    Args:
        order: the positions of the epoch, triplet after triplet, for a loss that mines.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} processes")
    if len(labels) == 0:
        raise UserError("no images to make batches of.")
    if batch_size < 1:
        raise UserError(f"`batch_size={batch_size}` is not a number of images from 1 up.")
    random = np.random.default_rng([seed, epoch])
    if order is not None:
        if len(order) and order.max() >= len(labels):
            raise UserError(f"triplets were mined from other images: there is no image {order.max()} of {len(labels)}.")
        found = of_triplets(order, batch_size)
    elif not train or sampler == "ordered":
        found = cut(np.arange(len(labels)), None, batch_size, drop_last)
    elif sampler == "shuffled":
        found = cut(random.permutation(len(labels)), None, batch_size, drop_last)
    elif sampler == "balanced":
        found = cut(*balanced(labels, random), batch_size, drop_last)
    elif sampler == "pk":
        if drop_last:
            raise ValueError("drop_last means nothing with the sampler 'pk': none of its batches is the last")
        found = by_class(labels, batch_size, images_per_class, random)
    else:
        raise unknown_name("sampler", sampler, get_args(Sampler))
    return [share(turn, rank, world_size) for turn in found] if train else found[rank::world_size]


def check_sampler(batch_size: int, sampler: str, images_per_class: int = 1) -> None:
    """Raise UserError for a batch size that the sampler, or whole triplets, do not allow."""
    if sampler == "triplets" and batch_size < 3:
        raise UserError(f"a batch of {batch_size} cannot hold a triplet. Use `batch_size=3` or more.")
    if sampler == "pk" and (not 1 <= images_per_class <= batch_size or batch_size % images_per_class):
        raise UserError(
            f"a batch of {batch_size} cannot hold classes of {images_per_class} images each. "
            f"Use `batch_size={images_per_class * max(1, round(batch_size / max(images_per_class, 1)))}`."
        )


def share(turn: Turn, rank: int, world_size: int) -> Turn:
    """The share of one process in a batch; sizes differ by at most one image, the larger ones first."""
    each, more = divmod(len(turn.positions), world_size)
    start = rank * each + min(rank, more)
    own = slice(start, start + each + (rank < more))
    return Turn(turn.positions[own], turn.repeats[own])


def balanced(
    labels: Int64[ndarray, " chosen"], random: np.random.Generator
) -> tuple[Int64[ndarray, " repeated"], Int64[ndarray, " repeated"]]:
    """Positions with each class as often as the largest, and how often each position came before."""
    members = _members(labels, random)
    most = max(len(own) for own in members)
    positions = np.concatenate([np.resize(own, most) for own in members])
    repeats = np.concatenate([np.arange(most) // len(own) for own in members])
    shuffle = random.permutation(len(positions))
    return positions[shuffle], repeats[shuffle]


def by_class(
    labels: Int64[ndarray, " chosen"], batch_size: int, images_per_class: int, random: np.random.Generator
) -> list[Turn]:
    """Groups of a class, distributed over the batches in rounds, with a new shuffle of the batches in each round."""
    check_sampler(batch_size, "pk", images_per_class)
    classes = [
        [own[start : start + images_per_class] for start in range(0, len(own), images_per_class)]
        for own in _members(labels, random)
    ]
    num_groups = sum(len(groups) for groups in classes)
    num_batches = -(-num_groups * images_per_class // batch_size)
    batches: list[list[ndarray]] = [[] for _ in range(num_batches)]
    deck: deque[int] = deque()
    for number in random.permutation(len(classes)).tolist():
        had: set[int] = set()
        for group in classes[number]:
            if len(had) == num_batches:
                had.clear()
            passed = []
            while True:
                if not deck:
                    deck.extend(random.permutation(num_batches).tolist())
                batch = deck.popleft()
                if batch not in had:
                    break
                passed.append(batch)
            deck.extendleft(reversed(passed))
            had.add(batch)
            batches[batch].append(group)
    turns = [np.concatenate(groups) for groups in batches]
    return [Turn(positions, np.zeros(len(positions), dtype=np.int64)) for positions in turns]


def of_triplets(order: Int64[ndarray, " shown"], batch_size: int) -> list[Turn]:
    """A given order split into batches of whole triplets."""
    check_sampler(batch_size, "triplets")
    triplets = cut(np.arange(len(order) // 3), None, batch_size // 3, drop_last=False)
    nth = _times_before(order)
    places = [(3 * turn.positions[:, None] + np.arange(3)).reshape(-1) for turn in triplets]
    return [Turn(order[place], nth[place]) for place in places]


def _times_before(order: Int64[ndarray, " shown"]) -> Int64[ndarray, " shown"]:
    """How often each entry came earlier on."""
    by_value = np.argsort(order, kind="stable")
    begins = np.flatnonzero(np.diff(order[by_value], prepend=-1))
    counts = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    nth = np.empty_like(counts)
    nth[by_value] = counts
    return nth


def _members(labels: Int64[ndarray, " chosen"], random: np.random.Generator) -> list[ndarray]:
    """The positions of each class, shuffled."""
    shuffled = random.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def cut(
    positions: Int64[ndarray, " shown"], repeats: Int64[ndarray, " shown"] | None, batch_size: int, drop_last: bool
) -> list[Turn]:
    """Positions split into batches; the last may be smaller."""
    if repeats is None:
        repeats = np.zeros(len(positions), dtype=np.int64)
    full = len(positions) // batch_size
    if drop_last and not full:
        raise UserError(f"{len(positions)} images do not fill one batch of {batch_size}. Lower `batch_size`.")
    end = full * batch_size if drop_last else len(positions)
    starts = range(0, end, batch_size)
    return [Turn(*(each[start : min(start + batch_size, end)] for each in (positions, repeats))) for start in starts]
