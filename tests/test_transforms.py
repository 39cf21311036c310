"""Resizing, cropping and mirroring, against slow doubles that handle one image and one pixel at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray
from numpy.testing import assert_array_equal
from PIL import Image
from torch.nn.functional import interpolate

from tammes.data.images import resized, resized_size
from tammes.data.transforms import (
    Crops,
    centre_crops,
    crop_and_scale,
    crop_each,
    crop_stack,
    random_areas,
    random_crops,
)


def noise(*shape: int) -> ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def crop_oracle(image: ndarray, crops: Crops, number: int, crop: tuple[int, int], padding: int) -> ndarray:
    """One image, pixel by pixel: outside it, the nearest pixel of its border."""
    top, left, mirrored = crops.tops[number], crops.lefts[number], crops.mirrored[number]
    channels, height, width = image.shape
    out = np.empty((channels, *crop), dtype=np.uint8)
    for y in range(crop[0]):
        for x in range(crop[1]):
            row = min(max(top + y - padding, 0), height - 1)
            column = min(max(left + x - padding, 0), width - 1)
            out[:, y, crop[1] - 1 - x if mirrored else x] = image[:, row, column]
    return out


def crops_of(rooms: list[tuple[int, int]], **options: int) -> Crops:
    count = len(rooms)
    settings = {"seed": 0, "epoch": 0, "mirror": True, **options}
    return random_crops(np.array(rooms), np.arange(count), np.zeros(count, dtype=np.int64), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("crop", [(5, 4), (7, 8)], ids=["smaller", "the whole height and width"])
def test_crops_are_those_of_the_pixel_by_pixel_double(crop: tuple[int, int], padding: int) -> None:
    stack = noise(6, 3, 7, 8)
    indices = np.array([4, 1, 1, 0, 5])
    room = (7 + 2 * padding - crop[0], 8 + 2 * padding - crop[1])
    crops = crops_of([room] * 5)
    expected = [crop_oracle(stack[index], crops, number, crop, padding) for number, index in enumerate(indices)]
    assert_array_equal(crop_stack(stack, indices, crops, crop, padding).numpy(), expected)
    assert_array_equal(crop_each([stack[index] for index in indices], crops, crop, padding).numpy(), expected)


def test_images_of_different_sizes_and_large_enough_to_be_mirrored_one_by_one() -> None:
    images = [noise(3, 90, 100), noise(3, 120, 88), noise(3, 88, 91)]
    crop = (80, 85)
    crops = crops_of([(image.shape[1] - 80, image.shape[2] - 85) for image in images], seed=2)
    assert 0 < crops.mirrored.sum() < 3
    expected = [crop_oracle(image, crops, number, crop, 0) for number, image in enumerate(images)]
    assert_array_equal(crop_each(images, crops, crop).numpy(), expected)


def test_a_crop_is_a_copy() -> None:
    stack = noise(2, 1, 4, 4)
    before = stack.copy()
    crop_stack(stack, np.array([0, 1]), centre_crops(np.zeros((2, 2), dtype=np.int64)), (4, 4)).zero_()
    assert_array_equal(stack, before)


def test_the_centre() -> None:
    crops = centre_crops(np.array([[0, 0], [4, 2], [5, 3]]))
    assert (crops.tops.tolist(), crops.lefts.tolist()) == ([0, 2, 2], [0, 1, 1])
    assert not crops.mirrored.any()


@given(
    st.integers(0, 2**63), st.integers(0, 10_000), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1)
)
def test_random_crops_fit(seed: int, epoch: int, rooms: list[tuple[int, int]]) -> None:
    crops = crops_of(rooms, seed=seed, epoch=epoch)
    assert all(0 <= top <= room[0] for top, room in zip(crops.tops.tolist(), rooms, strict=True))
    assert all(0 <= left <= room[1] for left, room in zip(crops.lefts.tolist(), rooms, strict=True))


def test_random_crops_are_even_and_independent() -> None:
    crops = crops_of([(4, 4)] * 100_000)
    seen = np.bincount((crops.tops * 5 + crops.lefts) * 2 + crops.mirrored, minlength=50)  # (50,)
    expected = 100_000 / 50
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert chi_square < 95  # 49 degrees of freedom: exceeded once in ten thousand


def test_a_place_depends_on_seed_epoch_image_and_repeat_and_on_nothing_else() -> None:
    rooms, indices = np.full((50, 2), 1000), np.arange(50)
    zeros = np.zeros(50, dtype=np.int64)

    def lefts(chosen: ndarray, repeats: ndarray, seed: int = 0, epoch: int = 0) -> list[int]:
        crops = random_crops(rooms[: len(chosen)], chosen, repeats, seed=seed, epoch=epoch, mirror=True)
        found: list[int] = crops.lefts.tolist()
        return found

    first = lefts(indices, zeros)
    assert lefts(indices[::-1].copy(), zeros)[::-1] == first
    assert lefts(indices[7:9], zeros[:2]) == first[7:9]
    others = [lefts(indices, zeros, seed=1), lefts(indices, zeros, epoch=1), lefts(indices, zeros + 1), first]
    assert (
        max(sum(a == b for a, b in zip(one, two, strict=True)) for one in others for two in others if one is not two)
        < 5
    )


def test_without_mirror_nothing_is_mirrored() -> None:
    assert not crops_of([(1, 1)] * 100, mirror=False).mirrored.any()
    assert crops_of([(1, 1)] * 100).mirrored.any()


@pytest.mark.parametrize(
    ("old", "shorter_side", "new"),
    [
        ((300, 600), 256, (256, 512)),
        ((600, 300), 256, (512, 256)),
        ((10, 10), 256, (256, 256)),
        ((333, 500), 256, (256, 384)),
    ],
)
def test_the_shorter_side(old: tuple[int, int], shorter_side: int, new: tuple[int, int]) -> None:
    assert resized_size(old, shorter_side=shorter_side) == new
    assert resized(Image.new("L", old), shorter_side=shorter_side).size == new


def test_an_exact_size_and_none() -> None:
    assert resized(Image.new("L", (9, 7)), size=(28, 30)).size == (30, 28)
    image = Image.new("L", (9, 7))
    assert resized(image) is image
    assert resized(image, size=(7, 9)) is image
    with pytest.raises(ValueError, match="give shorter_side or size, not both"):
        resized(image, size=(7, 9), shorter_side=3)


def test_a_smaller_image_is_averaged_not_sampled() -> None:
    stripes = Image.fromarray(
        np.tile(np.array([0, 255], dtype=np.uint8), (64, 32))
    )  # (64, 64): every other column white
    middle = np.asarray(resized(stripes, size=(8, 8)))[2:-2, 2:-2]
    assert abs(int(middle.min()) - 128) < 8
    assert abs(int(middle.max()) - 128) < 8


def areas_of(sizes: list[tuple[int, int]], least: float, seed: int = 0, epoch: int = 0) -> tuple[Crops, ndarray]:
    count = len(sizes)
    drawn = {"least": least, "seed": seed, "epoch": epoch, "mirror": True}
    return random_areas(np.array(sizes), np.arange(count), np.zeros(count, dtype=np.int64), **drawn)  # type: ignore[arg-type]


@given(
    st.integers(0, 2**63),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1),
    st.floats(0.01, 1),
)
def test_crops_of_random_area_fit(seed: int, epoch: int, sizes: list[tuple[int, int]], least: float) -> None:
    crops, sides = areas_of(sizes, least, seed, epoch)
    assert (sides >= 1).all()
    assert ((crops.tops >= 0) & (crops.tops + sides[:, 0] <= np.array(sizes)[:, 0])).all()
    assert ((crops.lefts >= 0) & (crops.lefts + sides[:, 1] <= np.array(sizes)[:, 1])).all()


def test_areas_are_spread_evenly_above_the_smallest_and_shapes_around_the_square() -> None:
    _, sides = areas_of([(1000, 1000)] * 4000, 0.2)
    whole = (sides < 1000).all(axis=1)  # the others were shortened to the side of the image
    shares, ratios = sides.prod(axis=1)[whole] / 1e6, sides[whole, 1] / sides[whole, 0]
    assert shares.min() > 0.199
    assert abs(np.quantile(shares[shares < 0.7], 0.5) - 0.45) < 0.02  # below 0.75 no side is shortened
    assert 0.749 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < 1.335
    assert abs(np.median(np.log(ratios))) < 0.02


def test_crops_of_random_area_differ_by_epoch_and_are_the_same_again() -> None:
    sizes = [(200, 256)] * 20
    (first, sides), (again, same), (_, other) = areas_of(sizes, 0.3), areas_of(sizes, 0.3), areas_of(sizes, 0.3, 0, 1)
    assert_array_equal(sides, same)
    assert_array_equal(first.tops, again.tops)
    assert (sides != other).any()


def test_scaled_crops_are_those_cut_out_and_scaled_one_by_one() -> None:
    images = [noise(3, 60, 80), noise(3, 50, 41)]
    crops, sides = areas_of([(60, 80), (50, 41)], 0.3, seed=1)
    found = crop_and_scale(images, crops, sides, (32, 40))
    for number, image in enumerate(images):
        top, left = crops.tops[number], crops.lefts[number]
        cut = torch.from_numpy(image[:, top : top + sides[number, 0], left : left + sides[number, 1]].copy())
        expected = interpolate(cut[None].float(), (32, 40), mode="bilinear", antialias=True)[0]
        expected = expected.flip(2) if crops.mirrored[number] else expected
        assert (found[number].float() - expected).abs().max() <= 1  # of 255: rounding
