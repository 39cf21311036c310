"""Batches of decoded images, cropped for training or evaluation, prefetched by a thread."""

from collections.abc import Callable, Generator, Sequence
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader

from tammes.data.image_cache import Decoded
from tammes.data.parallel import in_order
from tammes.data.samplers import Sampling, Turn, turns
from tammes.data.transforms import (
    Transform,
    centre_crops,
    crop_and_scale,
    crop_each,
    crop_stack,
    random_areas,
    random_crops,
    transform_each,
)
from tammes.errors import UserError

Batch = tuple[Shaped[Tensor, "batch ..."], Int64[Tensor, " batch"], Int64[Tensor, " batch"]]

_AHEAD = 2  # prefetched batches


def batches(
    decoded: Decoded,
    indices: Int64[ndarray, " chosen"],
    labels: Int64[ndarray, " chosen"],
    *,
    crop: int | tuple[int, int] | None = None,
    mirror: bool = True,
    padding: int = 0,
    area: float = 1.0,
    scaled_to: int | None = None,
    transform: Transform | None = None,
    workers: int = 0,
    **sampling: Unpack[Sampling],
) -> "Batches":
    """One epoch of batches: an iterable with a length, which can be iterated any number of times.

    For training, images are in the order of the sampler, each with a random crop, a random half of them mirrored. For
    evaluation (train=False), they are in the order of `indices` with their centre crops; sampler and `mirror` have no
    effect. The batches depend only on (seed, epoch).

    Args:
        indices: the images.
        labels: the labels of these images.
        batch_size: images in a batch, over all processes.
        crop: height and width of the crop; None for whole images.
        sampler: "shuffled": each image once, in random order. "ordered": each once, in the given order. "balanced":
            images of smaller classes are repeated, with other crops, until all classes are as large as the largest.
            "pk": each once, in batches of batch_size / images_per_class classes with `images_per_class` images each, or
            fewer if a class has no more left; a class is twice in a batch only if it has more such groups than there
            are batches.
        mirror: mirror a random half of the images; wrong for text, for example.
        padding: pixels by which the border of an image is replicated before it is cropped.
        area: for training, below 1: a crop covers a random area of the image, from this share to all of it, and is
            scaled to the size of `crop`.
        scaled_to: height and width to which random crops are scaled.
        drop_last: leave out a smaller last batch.
        rank, world_size: this process and the number of processes. For training each has a share of every batch, which
            may be empty; for evaluation each has whole batches.
        order: positions in `indices` for the epoch, triplet after triplet, instead of a sampler.
        transform: replaces crops and mirroring.
        workers: processes that run `transform`; 0 for the calling process.
    """
    turned = turns(labels, **sampling)
    train, seed, epoch = sampling["train"], sampling.get("seed", 0), sampling.get("epoch", 0)
    if np.isin(indices, decoded.bad).any():
        raise ValueError("indices hold images that could not be read: see Decoded.without_bad")
    if transform is not None:
        own = transform

        def transformed(turn: Turn) -> Shaped[Tensor, "batch channels height width"]:
            chosen = indices[turn.positions]
            if not len(chosen):  # this process has no share of a small batch
                sides = (crop, crop) if isinstance(crop, int) else crop or (1, 1)
                return torch.empty(0, decoded.channels, *sides, dtype=torch.uint8)
            pixels = [decoded[index] for index in chosen.tolist()]
            return transform_each(own, pixels, chosen, turn.repeats, seed=seed, epoch=epoch)

        # Not in a thread, as transforms use the random state of the process.
        return Batches(turned, indices, labels, transformed, ahead=False, workers=workers)
    sizes = np.stack([decoded.heights[indices], decoded.widths[indices]], axis=1)  # (chosen, 2)
    window = _window(sizes, crop, padding)
    shown = window if scaled_to is None else (scaled_to, scaled_to)
    rooms = sizes + 2 * padding - np.array(window)

    def images(turn: Turn) -> UInt8[Tensor, "batch channels height width"]:
        chosen = indices[turn.positions]
        if not len(chosen):  # this process has nothing of a small batch
            return torch.empty(0, decoded.channels, *shown, dtype=torch.uint8)
        if train and area < 1:
            crops, sides = random_areas(
                sizes[turn.positions], chosen, turn.repeats, least=area, seed=seed, epoch=epoch, mirror=mirror
            )
            return crop_and_scale([decoded[index] for index in chosen.tolist()], crops, sides, shown)
        if train:
            crops = random_crops(rooms[turn.positions], chosen, turn.repeats, seed=seed, epoch=epoch, mirror=mirror)
        else:
            crops = centre_crops(rooms[turn.positions])
        if decoded.stack is not None:
            cropped = crop_stack(decoded.stack, chosen, crops, window, padding)
        else:
            cropped = crop_each([decoded[index] for index in chosen.tolist()], crops, window, padding)
        return cropped if shown == window else interpolate(cropped, shown, mode="bilinear", antialias=True)

    return Batches(turned, indices, labels, images)


class Batches:
    """The batches of one epoch: (inputs, labels, indices), prefetched by a thread.

    Args:
        ahead: False disables prefetching, for batches that are cheap to make.
        workers: worker processes instead of a thread.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        indices: Int64[ndarray, " chosen"],
        labels: Int64[ndarray, " chosen"],
        inputs: Callable[[Turn], Tensor],
        *,
        ahead: bool = True,
        workers: int = 0,
    ) -> None:
        self._ahead, self._workers = ahead, workers
        self._turns, self._indices, self._labels, self._inputs = turns, indices, labels, inputs

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def num_images(self) -> int:
        return sum(len(turn.positions) for turn in self._turns)

    def __iter__(self) -> Generator[Batch, None, None]:
        if self._workers:
            yield from DataLoader(
                _Made(self._turns, self._made),
                batch_size=None,
                num_workers=self._workers,
                multiprocessing_context="fork",  # transforms may be functions that cannot be pickled
                generator=torch.Generator(),  # does not change the global random state
            )
            return
        if self._ahead:
            yield from in_order(lambda number: self._made(self._turns[number]), len(self._turns), 1, _AHEAD)
        else:
            yield from map(self._made, self._turns)

    def _made(self, turn: Turn) -> Batch:
        labels, indices = self._labels[turn.positions], self._indices[turn.positions]
        return self._inputs(turn), torch.from_numpy(labels), torch.from_numpy(indices)


class _Made(torch.utils.data.Dataset[Batch]):
    """Batches by index, for worker processes."""

    def __init__(self, turns: Sequence[Turn], made: Callable[[Turn], Batch]) -> None:
        self._turns, self._made = turns, made

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, number: int) -> Batch:
        return self._made(self._turns[number])


def _window(sizes: Int64[ndarray, "chosen 2"], crop: int | tuple[int, int] | None, padding: int) -> tuple[int, int]:
    smallest, largest = sizes.min(axis=0), sizes.max(axis=0)
    if crop is None:
        if (smallest != largest).any():
            raise UserError("the images differ in size, so a batch of them needs a crop of one size.")
        return int(smallest[0]), int(smallest[1])
    height, width = (crop, crop) if isinstance(crop, int) else crop
    if (smallest + 2 * padding < (height, width)).any():
        room = " x ".join(str(side) for side in (smallest + 2 * padding).tolist())
        padded = f", padded by {padding}," if padding else ""
        raise UserError(
            f"a crop of {height} x {width} does not fit into the smallest images{padded} of {room}. "
            "Scale the images up, or choose a network with a smaller input."
        )
    return height, width
