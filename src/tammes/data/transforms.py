"""What is done to a decoded image before the network: cropped and mirrored for each batch.

The place of a crop is decided by (seed, epoch, image, repeat) alone, so it is the same whatever the batch size, the
order of the images or the number of processes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor


class Crops(NamedTuple):
    """Where each image of a batch is cropped, counted from the corner of the padded image; which are mirrored."""

    tops: Int64[ndarray, " batch"]
    lefts: Int64[ndarray, " batch"]
    mirrored: Bool[ndarray, " batch"]


def random_crops(
    rooms: Int64[ndarray, "batch 2"],
    indices: Int64[ndarray, " batch"],
    repeats: Int64[ndarray, " batch"],
    *,
    seed: int,
    epoch: int,
    mirror: bool,
) -> Crops:
    """A crop for each image, anywhere with equal chance, and mirrored or not with equal chance.

    Args:
        rooms: by how much (height, width) of an image, with its padding, exceeds the crop.
        repeats: how many times this epoch has shown the image before: each time has its own crop.
    """
    state = np.full(len(indices), seed % 2**64, dtype=np.uint64)
    for value in (np.uint64(epoch), indices.astype(np.uint64), repeats.astype(np.uint64)):
        state = _mixed(state) ^ value
    draws = [_mixed(state + np.uint64(number)) for number in (1, 2, 3)]
    tops, lefts = (_below(draw, room) for draw, room in zip(draws, rooms.T, strict=False))
    mirrored = draws[2] >> np.uint64(63) == 1 if mirror else np.zeros(len(indices), dtype=bool)
    return Crops(tops, lefts, mirrored)


def centre_crops(rooms: Int64[ndarray, "batch 2"]) -> Crops:
    """The crop in the middle of each image, not mirrored."""
    tops, lefts = (rooms // 2).T
    return Crops(tops, lefts, np.zeros(len(rooms), dtype=bool))


def crop_stack(
    stack: UInt8[ndarray, "images channels height width"],
    indices: Int64[ndarray, " batch"],
    crops: Crops,
    crop: tuple[int, int],
    padding: int = 0,
) -> UInt8[Tensor, "batch channels cropped_height cropped_width"]:
    """Crops of images that all have one size: a few calls for the whole batch."""
    chosen = indices
    if padding:
        stack = _padded(stack[indices], padding)
        chosen = np.arange(len(indices))
    if stack.shape[2:] == crop:
        pixels = stack if padding else stack[chosen]
    else:
        windows = sliding_window_view(stack, crop, axis=(2, 3))  # (images, channels, tops, lefts, *crop): a view
        pixels = windows[chosen, :, crops.tops, crops.lefts]  # (batch, channels, *crop)
    batch = torch.from_numpy(np.ascontiguousarray(pixels))
    _mirror(batch, crops)
    return batch


def crop_each(
    images: Sequence[UInt8[ndarray, "channels _height _width"]],
    crops: Crops,
    crop: tuple[int, int],
    padding: int = 0,
) -> UInt8[Tensor, "batch channels cropped_height cropped_width"]:
    """Crops of images of different sizes, one by one into one batch."""
    height, width = crop
    batch = torch.empty(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    rows = batch.numpy()
    for row, image, top, left in zip(rows, images, crops.tops.tolist(), crops.lefts.tolist(), strict=True):
        whole = _padded(image, padding) if padding else image
        row[...] = whole[:, top : top + height, left : left + width]
    _mirror(batch, crops)
    return batch


def _mirror(batch: UInt8[Tensor, "batch channels height width"], crops: Crops) -> None:
    chosen = np.flatnonzero(crops.mirrored)
    if batch[0].numel() > 16384:  # large images one by one, small ones all at once: each three times the other's speed
        for number in chosen.tolist():
            batch[number] = batch[number].flip(2)
    else:
        images = batch.numpy()
        images[chosen] = images[chosen][..., ::-1]


def _padded(images: UInt8[ndarray, "*some height width"], padding: int) -> UInt8[ndarray, "*some higher wider"]:
    """Images with their border repeated outwards, which suits dark ink on white as well as the reverse."""
    height, width = images.shape[-2:]
    wide = np.empty((*images.shape[:-2], height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    rows = slice(padding, padding + height)
    wide[..., rows, padding : padding + width] = images
    wide[..., rows, :padding] = images[..., :1]
    wide[..., rows, padding + width :] = images[..., -1:]
    wide[..., :padding, :] = wide[..., padding : padding + 1, :]
    wide[..., padding + height :, :] = wide[..., padding + height - 1 : padding + height, :]
    return wide


def _mixed(state: ndarray) -> ndarray:
    """SplitMix64 (Steele, Lea, Flood 2014): each input bit moves half of the output bits."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: ndarray = state ^ (state >> np.uint64(31))
    return mixed


def _below(draws: ndarray, room: Int64[ndarray, " batch"]) -> Int64[ndarray, " batch"]:
    """Whole numbers 0..room from 64 random bits: the upper 32 as a fraction of room + 1."""
    below: ndarray = (draws >> np.uint64(32)) * (room.astype(np.uint64) + np.uint64(1)) >> np.uint64(32)
    return below.astype(np.int64)
