"""Transforms of decoded images before the network: crops, mirroring, and custom transforms.

Randomness depends only on (seed, epoch, image, repeat), not on the batch size, the order of the images or the number of
processes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, Shaped, UInt8
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from tammes.errors import UserError


class Crops(NamedTuple):
    """The crop of each image in a batch, relative to the padded image, and whether it is mirrored."""

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
    """A uniformly random crop for each image, mirrored with probability 1/2.

    Args:
        rooms: (height, width) of each padded image minus that of the crop.
        repeats: how often the epoch has used the image before; each time has its own crop.
    """
    state = _states(indices, repeats, seed=seed, epoch=epoch)
    draws = [_mixed(state + np.uint64(number)) for number in (1, 2, 3)]
    tops, lefts = (_below(draw, room) for draw, room in zip(draws, rooms.T, strict=False))
    mirrored = draws[2] >> np.uint64(63) == 1 if mirror else np.zeros(len(indices), dtype=bool)
    return Crops(tops, lefts, mirrored)


def random_areas(
    sizes: Int64[ndarray, "batch 2"],
    indices: Int64[ndarray, " batch"],
    repeats: Int64[ndarray, " batch"],
    *,
    least: float,
    seed: int,
    epoch: int,
    mirror: bool,
) -> tuple[Crops, Int64[ndarray, "batch 2"]]:
    """A crop of random area and aspect ratio for each image, like torchvision's RandomResizedCrop.

    The area is a share of the image between `least` and 1, the aspect ratio between 3:4 and 4:3; sides are limited to
    those of the image.
    """
    state = _states(indices, repeats, seed=seed, epoch=epoch)
    share, slope = (_fraction(_mixed(state + np.uint64(number))) for number in (4, 5))
    areas = sizes.prod(axis=1) * (least + (1 - least) * share)
    ratios = np.exp((2 * slope - 1) * np.log(4 / 3))  # width / height
    sides = np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], axis=1).round().astype(np.int64)
    sides = sides.clip(1, sizes)
    return random_crops(sizes - sides, indices, repeats, seed=seed, epoch=epoch, mirror=mirror), sides


def centre_crops(rooms: Int64[ndarray, "batch 2"]) -> Crops:
    """The centre crop of each image, not mirrored."""
    tops, lefts = (rooms // 2).T
    return Crops(tops, lefts, np.zeros(len(rooms), dtype=bool))


def crop_stack(
    stack: UInt8[ndarray, "images channels height width"],
    indices: Int64[ndarray, " batch"],
    crops: Crops,
    crop: tuple[int, int],
    padding: int = 0,
) -> UInt8[Tensor, "batch channels cropped_height cropped_width"]:
    """Crop images of the same size: a few calls for the whole batch."""
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
    images: Sequence[UInt8[ndarray, "channels _height _width"]], crops: Crops, crop: tuple[int, int], padding: int = 0
) -> UInt8[Tensor, "batch channels cropped_height cropped_width"]:
    """Crop images of different sizes, one by one."""
    height, width = crop
    batch = torch.empty(len(images), images[0].shape[0], height, width, dtype=torch.uint8)
    rows = batch.numpy()
    for row, image, top, left in zip(rows, images, crops.tops.tolist(), crops.lefts.tolist(), strict=True):
        whole = _padded(image, padding) if padding else image
        row[...] = whole[:, top : top + height, left : left + width]
    _mirror(batch, crops)
    return batch


def crop_and_scale(
    images: Sequence[UInt8[ndarray, "channels _height _width"]],
    crops: Crops,
    sides: Int64[ndarray, "batch 2"],
    size: tuple[int, int],
) -> UInt8[Tensor, "batch channels height width"]:
    """Crop images to different sizes and scale them to one size."""
    rows = []
    for image, top, left, (height, width) in zip(images, crops.tops, crops.lefts, sides, strict=True):
        crop = torch.from_numpy(np.ascontiguousarray(image[:, top : top + height, left : left + width]))
        rows.append(interpolate(crop[None], size, mode="bilinear", antialias=True))
    batch = torch.cat(rows)
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
    """Pad images by replicating their border, which works for dark ink on white and the reverse."""
    height, width = images.shape[-2:]
    wide = np.empty((*images.shape[:-2], height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    rows = slice(padding, padding + height)
    wide[..., rows, padding : padding + width] = images
    wide[..., rows, :padding] = images[..., :1]
    wide[..., rows, padding + width :] = images[..., -1:]
    wide[..., :padding, :] = wide[..., padding : padding + 1, :]
    wide[..., padding + height :, :] = wide[..., padding + height - 1 : padding + height, :]
    return wide


class Transform:
    """A custom transform of Pillow images or tensors, with a validated result.

    Its input is an image whose shorter side is already scaled: a Pillow image, or a tensor (channels, height, width) in
    uint8 if it does not accept Pillow images. It returns one of these, or a tensor of floats in 0..1. The network
    normalises by mean and standard deviation.

    Attributes:
        parameter: the name of the argument, for errors.
        name: the name of the function.
    """

    def __init__(self, parameter: str, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise UserError(f"{parameter} must be a function of an image, got a {type(function).__name__}.")
        self.parameter, self.function = parameter, function
        self.name = str(getattr(function, "__qualname__", type(function).__qualname__))
        self._takes_tensors: bool | None = None  # found out with the first image

    def __call__(self, image: Image.Image) -> Shaped[Tensor, "channels height width"]:
        """Apply it to an image; the result is in 0..255."""
        found = self._of(image)
        if isinstance(found, Image.Image):
            found = _tensor(found)
        channels = len(image.getbands())
        if not isinstance(found, Tensor) or found.ndim != 3 or len(found) != channels:
            what = f"a tensor of {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise UserError(
                f"{self.parameter} must give a Pillow image or a tensor of ({channels}, height, width), got {what}."
            )
        if found.dtype == torch.uint8:
            return found
        if not found.is_floating_point() or not bool(((found > -0.01) & (found < 1.01)).all()):
            raise UserError(
                f"{self.parameter} gives {found.dtype} from {found.min().item():.4g} to {found.max().item():.4g}: give"
                " uint8, or floats in 0..1. Leave out a Normalize: the network normalises by mean and std itself."
            )
        return found.float() * 255

    def _of(self, image: Image.Image) -> Any:
        if not self._takes_tensors:
            try:
                found = self.function(image)
            except (TypeError, AttributeError) as error:
                if self._takes_tensors is False:
                    raise self._failed(image, error) from error
                self._takes_tensors = True
            else:
                self._takes_tensors = False
                return found
        try:
            return self.function(_tensor(image))
        except (TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise self._failed(image, error) from error

    def _failed(self, image: Image.Image, error: Exception) -> UserError:
        return UserError(f"{self.parameter} fails on an image of {image.width} x {image.height} pixels: {error}")


def transform_each(
    transform: Transform,
    images: Sequence[UInt8[ndarray, "channels _height _width"]],
    indices: Int64[ndarray, " batch"],
    repeats: Int64[ndarray, " batch"],
    *,
    seed: int,
    epoch: int,
) -> Shaped[Tensor, "batch channels height width"]:
    """Apply a transform to each image, with its own random state, and stack the results."""
    rows = []
    for image, state in zip(images, _states(indices, repeats, seed=seed, epoch=epoch).tolist(), strict=True):
        with _seeded(state):
            rows.append(transform(Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))))
    if len({row.shape for row in rows}) > 1:
        sizes = " and ".join(sorted({f"{row.shape[1]} x {row.shape[2]}" for row in rows})[:2])
        raise UserError(f"{transform.parameter} gives images of {sizes} pixels: all of a batch must have one size.")
    return torch.stack(rows)


@contextmanager
def _seeded(state: int) -> Iterator[None]:
    """Seed torch, NumPy and Python, and restore their random state afterwards."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(state)
    np.random.seed(state % 2**32)
    random.seed(state)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _tensor(image: Image.Image) -> UInt8[Tensor, "channels height width"]:
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _states(indices: ndarray, repeats: ndarray, *, seed: int, epoch: int) -> ndarray:
    """64 random bits for each image."""
    state = np.full(len(indices), seed % 2**64, dtype=np.uint64)
    for value in (np.uint64(epoch), indices.astype(np.uint64), repeats.astype(np.uint64)):
        state = _mixed(state) ^ value
    return state


def _mixed(state: ndarray) -> ndarray:
    """SplitMix64 (Steele, Lea, Flood 2014): each input bit moves half of the output bits."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: ndarray = state ^ (state >> np.uint64(31))
    return mixed


def _fraction(draws: ndarray) -> ndarray:
    """Numbers in 0..1 from 64 random bits."""
    return np.asarray((draws >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _below(draws: ndarray, room: Int64[ndarray, " batch"]) -> Int64[ndarray, " batch"]:
    """Whole numbers 0..room from 64 random bits: the upper 32 as a fraction of room + 1."""
    below: ndarray = (draws >> np.uint64(32)) * (room.astype(np.uint64) + np.uint64(1)) >> np.uint64(32)
    return below.astype(np.int64)
