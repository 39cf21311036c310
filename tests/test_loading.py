"""The cache of decoded images, and the batches made of it."""

import errno
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from inspect import getsource
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray
from numpy.testing import assert_array_equal
from PIL import Image

import tammes.data.image_cache
from tammes.cli import main
from tammes.data.batches import Batches, batches
from tammes.data.dataset import Dataset
from tammes.data.folder import folder
from tammes.data.image_cache import Decoded, decode, image_digest
from tammes.data.images import scaled
from tammes.errors import UserError
from tammes.io.cache import cached, clear
from tests.conftest import HANGS


def picture(index: int, ragged: bool) -> Image.Image:
    height, width = (20 + index % 3, 24 + index % 5) if ragged else (12, 12)
    return Image.fromarray(np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pictures(count: int, *, ragged: bool = False, broken: tuple[int, ...] = (), name: str = "noise") -> Dataset:
    def read(index: int) -> Image.Image:
        if index in broken:
            raise UserError(f"cannot read {index}.png: the file is empty.")
        return picture(index, ragged)

    return Dataset(
        name=name,
        keys=tuple(f"{index}.png" for index in range(count)),
        labels=np.arange(count) % 3,
        class_names=("a", "b", "c"),
        read=read,
        fingerprint=f"{name} {count} {ragged} {broken}",
    )


def in_memory(sizes: list[tuple[int, int]], channels: int = 1) -> Decoded:
    """Decoded images without a file: all pixels of image i are i, modulo 256."""
    heights, widths = np.array(sizes).T
    pixels = np.concatenate([np.full(h * w * channels, index % 256, np.uint8) for index, (h, w) in enumerate(sizes)])
    return Decoded(Path("none"), pixels, heights, widths, channels, np.empty(0, dtype=np.int64), (), "", ())


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refusal:
        call()
    return str(refusal.value)


# The cache


def test_images_come_out_as_pillow_resizes_them(tmp_path: Path) -> None:
    decoded = decode(pictures(9, ragged=True), mode="RGB", shorter_side=16, cache=tmp_path)
    for index in range(9):
        stored = picture(index, ragged=True)
        width, height = round(stored.width * 16 / stored.height), 16
        expected = np.asarray(stored.resize((width, height), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
        assert_array_equal(decoded[index], expected)
    assert decoded.stack is None


def test_an_image_alone_is_scaled_as_one_of_a_data_set(tmp_path: Path) -> None:
    decoded = decode(pictures(9, ragged=True), mode="RGB", shorter_side=16, cache=tmp_path)
    for index in range(9):
        alone = scaled(picture(index, ragged=True), "RGB", shorter_side=16)
        assert image_digest(alone) == decoded.digests[index], "index and train share the features of a photo by this"


def test_one_size_makes_one_stack(tmp_path: Path) -> None:
    decoded = decode(pictures(9, ragged=True), mode="L", size=8, cache=tmp_path)
    assert decoded.stack is not None
    assert decoded.stack.shape == (9, 1, 8, 8)
    expected = np.asarray(picture(4, ragged=True).convert("L").resize((8, 8), Image.Resampling.LANCZOS))
    assert_array_equal(decoded.stack[4, 0], expected)
    assert_array_equal(decoded[4], decoded.stack[4])


def test_as_stored_and_another_shape(tmp_path: Path) -> None:
    assert_array_equal(
        decode(pictures(3), mode="RGB", cache=tmp_path)[2].transpose(1, 2, 0), np.asarray(picture(2, False))
    )
    assert decode(pictures(3), mode="RGB", size=(5, 9), cache=tmp_path)[2].shape == (3, 5, 9)
    assert len(cached(tmp_path)) == 2


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_makes_the_same_file(threads: int, tmp_path: Path) -> None:
    one = decode(pictures(50, ragged=True), mode="RGB", shorter_side=9, cache=tmp_path / "1", threads=1)
    other = decode(pictures(50, ragged=True), mode="RGB", shorter_side=9, cache=tmp_path / "2", threads=threads)
    assert one.file.read_bytes() == other.file.read_bytes()


def test_the_second_time_nothing_is_decoded(tmp_path: Path) -> None:
    first = decode(pictures(9), mode="L", size=8, cache=tmp_path)
    progress: list[tuple[int, int]] = []
    unreadable = pictures(9, broken=tuple(range(9)))
    same = Dataset(**{**unreadable.__dict__, "fingerprint": pictures(9).fingerprint})
    again = decode(same, mode="L", size=8, cache=tmp_path, on_progress=lambda *now: progress.append(now))
    assert_array_equal(again.pixels, first.pixels)
    assert progress == []


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    decode(pictures(20), mode="L", size=4, cache=tmp_path, on_progress=lambda *now: progress.append(now))
    assert progress == [(done, 20) for done in range(1, 21)]


def test_mode_size_and_fingerprint_have_their_own_files(tmp_path: Path) -> None:
    for count, mode, size in ((4, "L", 8), (4, "RGB", 8), (4, "L", 9), (5, "L", 8)):
        decode(pictures(count), mode=mode, size=size, cache=tmp_path)  # type: ignore[arg-type]
    decode(pictures(4), mode="L", shorter_side=8, cache=tmp_path)
    assert len(cached(tmp_path)) == 5


def test_the_cache_folder_of_the_program_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path))
    file = decode(pictures(3), mode="L", size=4).file
    assert file.parent == tmp_path / "images"
    assert [entry.file for entry in cached()] == [file]
    assert clear() > 0
    assert cached() == []


@pytest.mark.parametrize("damage", ["cut", "no header", "another version", "flipped tail", "empty", "longer"])
def test_a_damaged_file_is_built_again(damage: str, tmp_path: Path) -> None:
    first = decode(pictures(9), mode="L", size=8, cache=tmp_path)
    whole = first.file.read_bytes()
    flipped = bytearray(whole)
    flipped[-30] ^= 1
    newer = bytearray(whole)
    newer[8] += 1
    content = {"cut": whole[:-5], "no header": bytes(64) + whole[64:], "empty": b"", "longer": whole + b"\0"}
    content |= {"flipped tail": bytes(flipped), "another version": bytes(newer)}
    first.file.unlink()
    first.file.write_bytes(content[damage])
    again = decode(pictures(9), mode="L", size=8, cache=tmp_path)
    assert again.file.read_bytes() == whole
    assert [file.name for file in (tmp_path / "images").iterdir()] == [first.file.name]


def build(arguments: tuple[Path, int]) -> bytes:
    folder, _ = arguments
    slow = pictures(40)

    def read(index: int) -> Image.Image:
        time.sleep(0.002)
        return picture(index, False)

    decoded = decode(Dataset(**{**slow.__dict__, "read": read}), mode="RGB", size=8, cache=folder, threads=2)
    return decoded.pixels.tobytes()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_build_one_cache(tmp_path: Path) -> None:
    with get_context("fork").Pool(2) as pool:
        first, second = pool.map(build, [(tmp_path, 0), (tmp_path, 1)], chunksize=1)
    assert first == second
    assert len(list((tmp_path / "images").iterdir())) == 1


def test_the_loser_uses_what_the_winner_made(tmp_path: Path) -> None:
    won: list[Decoded] = []

    def another_finishes_first(done: int, total: int) -> None:
        if done == total and not won:
            won.append(decode(pictures(9), mode="L", size=8, cache=tmp_path))

    lost = decode(pictures(9), mode="L", size=8, cache=tmp_path, on_progress=another_finishes_first)
    assert lost.file.stat().st_ino == won[0].file.stat().st_ino
    assert len(list((tmp_path / "images").iterdir())) == 1


def stopped_at(number: int, dataset: Dataset, error: type[BaseException], cache: Path, **form: Any) -> Path:
    """Decode until so many images are done; the file that is left."""

    def stop(done: int, _: int) -> None:
        if done == number:
            raise error

    with pytest.raises(error):
        decode(dataset, mode="L", cache=cache, on_progress=stop, skip_bad=True, **form)
    left = list((cache / "images").iterdir())
    assert len(left) == (error is KeyboardInterrupt)
    return left[0] if left else cache


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    stopped_at(5, pictures(90), ZeroDivisionError, tmp_path, size=8)


@pytest.mark.parametrize("form", [{"size": 8}, {"shorter_side": 8}], ids=["one size", "many sizes"])
@pytest.mark.parametrize("moments", [(1,), (5, 40), (90,)])
def test_a_build_that_ctrl_c_stops_is_continued(moments: tuple[int, ...], form: dict[str, Any], tmp_path: Path) -> None:
    dataset = pictures(90, ragged=True, broken=(2, 50))
    whole = decode(dataset, mode="L", cache=tmp_path / "whole", skip_bad=True, **form)
    for moment in moments:
        stopped_at(moment, dataset, KeyboardInterrupt, tmp_path, **form)
    seen: list[int] = []
    decoded = decode(
        dataset, mode="L", cache=tmp_path, skip_bad=True, on_progress=lambda done, _: seen.append(done), **form
    )
    assert seen == list(range(moments[-1] + 1, 91))
    assert decoded.file.read_bytes() == whole.file.read_bytes()
    assert [file.name for file in (tmp_path / "images").iterdir()] == [whole.file.name]


def test_what_was_begun_and_damaged_is_not_continued(tmp_path: Path) -> None:
    file = stopped_at(5, pictures(9), KeyboardInterrupt, tmp_path, size=8)
    content = bytearray(file.read_bytes())
    content[100] ^= 1  # a pixel
    file.write_bytes(content)
    whole = decode(pictures(9), mode="L", size=8, cache=tmp_path / "whole")
    assert decode(pictures(9), mode="L", size=8, cache=tmp_path).digest == whole.digest


def test_images_whose_files_are_missing_are_refused_before_one_is_decoded(tmp_path: Path) -> None:
    def read(_: int) -> Image.Image:
        pytest.fail("it was decoded")

    dataset = replace(pictures(90), missing=tuple(range(30, 60)), read=read)
    lines = refused(lambda: decode(dataset, mode="L", size=8, cache=tmp_path)).split("\n")
    assert lines[0] == "30 of 90 images are missing:"
    assert lines[1:3] == ["  30.png", "  31.png"]
    assert "`skip_bad=True`" in lines[-1]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_no_room_is_said_before_the_first_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 5000))
    assert refused(lambda: decode(pictures(100), mode="RGB", size=8, cache=tmp_path)) == (
        f"no room for the decoded images in {tmp_path / 'images'}: about 19.2 kB needed, 5 kB available. "
        "Free some, or set TAMMES_CACHE to a folder on a larger disk."
    )
    assert "about 43.2 kB needed" in refused(lambda: decode(pictures(100), mode="RGB", cache=tmp_path))
    assert list((tmp_path / "images").iterdir()) == []


def test_a_disk_that_fills_up_underway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 2 * 10**6))
    assert refused(lambda: decode(pictures(9), mode="L", size=8, cache=tmp_path)) == (
        f"no room for the decoded images in {tmp_path / 'images'}: more needed, 2 MB available. "
        "Free some, or set TAMMES_CACHE to a folder on a larger disk."
    )
    assert list((tmp_path / "images").iterdir()) == []


def test_a_cache_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "images"
    assert refused(lambda: decode(pictures(9), mode="L", size=8, cache=tmp_path / "file")) == (
        f"cannot write the decoded images to {folder}: Not a directory."
        " Set TAMMES_CACHE to a folder that can be written."
    )


def test_broken_images_are_named_together(tmp_path: Path) -> None:
    assert refused(lambda: decode(pictures(9, broken=(2, 5)), mode="L", size=8, cache=tmp_path)) == (
        "2 of 9 images cannot be used:\n"
        "  cannot read 2.png: the file is empty.\n"
        "  cannot read 5.png: the file is empty.\n"
        "Repair or remove them, or leave them out with `skip_bad=True`."
    )


def test_of_many_broken_images_ten_are_named(tmp_path: Path) -> None:
    lines = refused(lambda: decode(pictures(90, broken=tuple(range(30))), mode="L", size=8, cache=tmp_path)).split("\n")
    assert lines[0] == "30 of 90 images cannot be used:"
    assert lines[10:12] == ["  cannot read 9.png: the file is empty.", "  and 20 more."]
    assert len(lines) == 13


@pytest.mark.parametrize("form", [{"size": 8}, {"shorter_side": 8}], ids=["one size", "many sizes"])
def test_skip_bad_leaves_them_out_and_says_which(form: dict[str, Any], tmp_path: Path) -> None:
    broken = pictures(9, ragged=True, broken=(2, 5))
    decoded = decode(broken, mode="L", cache=tmp_path, skip_bad=True, **form)
    assert decoded.bad.tolist() == [2, 5]
    assert decoded.reasons[0] == "cannot read 2.png: the file is empty."
    assert decoded.without_bad(np.arange(9)).tolist() == [0, 1, 3, 4, 6, 7, 8]
    whole = decode(pictures(9, ragged=True), mode="L", cache=tmp_path, **form)
    for index in decoded.without_bad(np.arange(9)).tolist():
        assert_array_equal(decoded[index], whole[index])
    with pytest.raises(ValueError, match="indices hold images that could not be read: see Decoded.without_bad"):
        batches(decoded, np.arange(9), broken.labels, batch_size=2, train=True, crop=8)


def test_when_every_image_is_broken_nothing_can_be_skipped(tmp_path: Path) -> None:
    text = refused(lambda: decode(pictures(2, broken=(0, 1)), mode="L", size=8, cache=tmp_path, skip_bad=True))
    assert text.startswith("2 of 2 images cannot be used:\n")
    assert text.endswith("\nNone is left.")


def test_an_image_that_can_be_read_again_is(tmp_path: Path) -> None:
    decode(pictures(9, broken=(2,)), mode="L", size=8, cache=tmp_path, skip_bad=True)
    repaired = Dataset(**{**pictures(9).__dict__, "fingerprint": pictures(9, broken=(2,)).fingerprint})
    decoded = decode(repaired, mode="L", size=8, cache=tmp_path)
    assert len(decoded.bad) == 0
    assert decoded[2].any()


def test_a_picture_too_long_when_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However little room there is: nobody needs a larger disk for what cannot be used.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 10**6))
    line = Dataset(**{**pictures(2).__dict__, "read": lambda _: Image.new("L", (100_000, 1)), "fingerprint": "line"})
    text = refused(lambda: decode(line, mode="L", shorter_side=256, cache=tmp_path))
    assert "cannot use 0.png: scaled, it would have 25600000 x 256 pixels." in text


def test_a_picture_of_unknown_range_is_named(tmp_path: Path) -> None:
    odd = Dataset(**{**pictures(2).__dict__, "read": lambda _: Image.new("F", (2, 2), 7.5), "fingerprint": "odd"})
    assert "  cannot read 1.png: floating-point pixels outside 0..1: their range is not known. Save it" in refused(
        lambda: decode(odd, mode="L", size=2, cache=tmp_path)
    )


def test_a_mistake_in_the_program_is_not_taken_for_a_broken_image(tmp_path: Path) -> None:
    def read(_: int) -> Image.Image:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        decode(Dataset(**{**pictures(2).__dict__, "read": read}), mode="L", size=2, cache=tmp_path)


def test_cached_and_clear(tmp_path: Path) -> None:
    for name in ("birds/ünd more", "cars"):
        decode(pictures(9, name=name), mode="L", size=8, cache=tmp_path)
    birds, cars = cached(tmp_path)
    assert birds.name.startswith("birds-nd-more-")
    assert cars.num_bytes == cars.file.stat().st_size
    assert abs(cars.date.timestamp() - time.time()) < 3600
    text = refused(lambda: clear(["car"], cache=tmp_path))
    assert text.startswith("unknown cache entry 'car'.")
    assert text.endswith(f"Known: {birds.name}, {cars.name}.")
    assert clear([cars.name], cache=tmp_path) == cars.num_bytes
    assert [entry.name for entry in cached(tmp_path)] == [birds.name]
    fresh, stale = tmp_path / "images" / "x-1.partial", tmp_path / "activations" / "x-2.partial"
    stale.parent.mkdir()
    for file in (fresh, stale):
        file.write_bytes(b"123")
    os.utime(stale, (0, 0))
    assert clear(cache=tmp_path) == birds.num_bytes + 3
    assert list((tmp_path / "images").iterdir()) == [fresh]
    assert cached(tmp_path / "nowhere") == []


# Batches


def drawn(one_epoch: Batches) -> list[tuple[list[int], list[int]]]:
    """The labels and images of each batch."""
    return [(labels.tolist(), indices.tolist()) for _, labels, indices in one_epoch]


def indices_of(one_epoch: Batches) -> list[int]:
    return [index for _, indices in drawn(one_epoch) for index in indices]


def some_labels(counts: list[int]) -> ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


def epoch_of(labels: ndarray, **options: Any) -> Batches:
    """An epoch over images of 2 x 2 that are numbered from 100."""
    decoded = in_memory([(2, 2)] * (100 + len(labels)))
    settings: dict[str, Any] = {"batch_size": 4, "train": True, **options}
    return batches(decoded, np.arange(100, 100 + len(labels)), labels, **settings)


def test_a_batch_holds_the_images_labels_and_numbers_that_belong_together() -> None:
    labels = some_labels([5, 6, 7])
    for images, own_labels, indices in epoch_of(labels):
        assert images.dtype == torch.uint8
        assert images.shape == (len(indices), 1, 2, 2)
        assert images[:, 0, 0, 0].tolist() == [index % 256 for index in indices.tolist()]
        assert own_labels.tolist() == labels[indices.numpy() - 100].tolist()


@pytest.mark.parametrize("ragged", [False, True], ids=["one size", "many sizes"])
def test_crops_do_not_depend_on_batch_size_order_or_processes(ragged: bool, tmp_path: Path) -> None:
    decoded = decode(pictures(30, ragged=ragged), mode="RGB", cache=tmp_path)
    labels = np.arange(30) % 3

    def crops(**options: Any) -> dict[int, bytes]:
        settings: dict[str, Any] = {"batch_size": 7, "train": True, "crop": (10, 9), "padding": 1, "seed": 5, **options}
        found: dict[int, bytes] = {}
        for images, _, indices in batches(decoded, np.arange(30), labels, **settings):
            found |= {index: image.numpy().tobytes() for index, image in zip(indices.tolist(), images, strict=True)}
        return found

    first = crops()
    assert crops() == first
    assert crops(batch_size=30) == first
    assert crops(sampler="pk", batch_size=8) == first
    assert crops(rank=0, world_size=2) | crops(rank=1, world_size=2) == first
    assert len(set(first.values()) & set(crops(epoch=1).values())) < 5
    assert len(set(first.values()) & set(crops(seed=6).values())) < 5


def test_evaluation_takes_the_centre_of_each_image_in_order(tmp_path: Path) -> None:
    decoded = decode(pictures(10, ragged=True), mode="RGB", cache=tmp_path)
    chosen = np.array([7, 3, 9, 1, 0])
    one_epoch = batches(decoded, chosen, chosen, batch_size=2, crop=16, train=False, seed=3, epoch=4)
    assert [indices for _, indices in drawn(one_epoch)] == [[7, 3], [9, 1], [0]]
    whole = torch.cat([images for images, _, _ in one_epoch])
    for index, crop in zip(chosen.tolist(), whole, strict=True):
        _, height, width = decoded[index].shape
        top, left = (height - 16) // 2, (width - 16) // 2
        assert_array_equal(crop.numpy(), decoded[index][:, top : top + 16, left : left + 16])


def test_an_epoch_can_be_walked_again_and_knows_its_length() -> None:
    one_epoch = epoch_of(some_labels([5, 6, 7]))
    assert (len(one_epoch), one_epoch.num_images) == (5, 18)
    assert drawn(one_epoch) == drawn(one_epoch)
    assert len(drawn(one_epoch)) == 5


@pytest.mark.parametrize("sampler", ["shuffled", "balanced", "pk"])
def test_the_order_follows_from_seed_and_epoch(sampler: str) -> None:
    labels = some_labels([9, 8, 7])
    first = drawn(epoch_of(labels, sampler=sampler, seed=1, epoch=2))
    assert drawn(epoch_of(labels, sampler=sampler, seed=1, epoch=2)) == first
    assert drawn(epoch_of(labels, sampler=sampler, seed=1, epoch=3)) != first
    assert drawn(epoch_of(labels, sampler=sampler, seed=2, epoch=2)) != first


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    batch_size=st.integers(2, 9),
    world_size=st.integers(1, 4),
)
def test_shuffled_shows_each_image_once(counts: list[int], batch_size: int, world_size: int) -> None:
    labels = some_labels(counts)
    shares = [epoch_of(labels, batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sorted(index for share in shares for index in indices_of(share)) == list(range(100, 100 + len(labels)))
    together = [[each for _, own in at_once for each in own] for at_once in zip(*map(drawn, shares), strict=True)]
    assert together == [indices for _, indices in drawn(epoch_of(labels, batch_size=batch_size))]
    for at_once in zip(*map(drawn, shares), strict=True):
        sizes = [len(own) for _, own in at_once]
        assert max(sizes) - min(sizes) <= 1


def test_processes_evaluate_whole_batches_each_image_once() -> None:
    labels = some_labels([5, 6])
    shares = [drawn(epoch_of(labels, train=False, rank=rank, world_size=4)) for rank in range(4)]
    assert [[indices for _, indices in share] for share in shares] == [
        [[100, 101, 102, 103]],
        [[104, 105, 106, 107]],
        [[108, 109, 110]],
        [],
    ]


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), world_size=st.integers(1, 3))
def test_balanced_shows_every_class_as_often_as_the_largest(counts: list[int], world_size: int) -> None:
    labels = some_labels(counts)
    shares = [
        epoch_of(labels, batch_size=4, sampler="balanced", rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    seen = Counter(index for share in shares for index in indices_of(share))
    by_class = Counter(int(labels[index - 100]) for index in seen.elements())
    assert set(by_class.values()) == {max(counts)}
    assert len(seen) == len(labels)
    for label, count in enumerate(counts):
        times = {seen[100 + int(position)] for position in np.flatnonzero(labels == label)}
        assert times <= {max(counts) // count, -(-max(counts) // count)}


def test_balanced_crops_a_repeated_image_differently(tmp_path: Path) -> None:
    decoded = decode(pictures(9), mode="RGB", cache=tmp_path)
    labels = np.array([0] + [1] * 8)
    crops = []
    for images, _, indices in batches(
        decoded, np.arange(9), labels, batch_size=4, crop=6, train=True, sampler="balanced"
    ):
        crops += [image.numpy().tobytes() for image, index in zip(images, indices.tolist(), strict=True) if index == 0]
    assert len(crops) == 8
    assert len(set(crops)) >= 7


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    per_class=st.integers(1, 5),
    per_batch=st.integers(1, 5),
    world_size=st.integers(1, 3),
    epoch=st.integers(0, 5),
)
def test_pk_shows_each_image_once_in_even_batches_of_different_classes(
    counts: list[int], per_class: int, per_batch: int, world_size: int, epoch: int
) -> None:
    labels = some_labels(counts)
    num_groups = [-(-count // per_class) for count in counts]
    num_batches = -(-sum(num_groups) // per_batch)
    options = {"sampler": "pk", "batch_size": per_class * per_batch, "images_per_class": per_class, "epoch": epoch}
    shares = [drawn(epoch_of(labels, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]
    every = [
        ([label for own, _ in parts for label in own], [index for _, own in parts for index in own])
        for parts in zip(*shares, strict=True)
    ]
    assert len(every) == num_batches
    assert sorted(index for _, indices in every for index in indices) == list(range(100, 100 + len(labels)))
    assert all(1 <= len(indices) <= per_class * per_batch for _, indices in every)
    for label in range(len(counts)):
        most = max(own.count(label) for own, _ in every)
        assert most <= per_class * -(-num_groups[label] // num_batches)


def test_pk_mixes_the_classes_differently_in_each_batch() -> None:
    labels = np.repeat(np.arange(40), 8)
    together = Counter(
        tuple(sorted(set(own))) for own, _ in drawn(epoch_of(labels, sampler="pk", batch_size=20, images_per_class=4))
    )
    assert together.most_common(1)[0][1] == 1


def test_a_last_smaller_batch_is_kept_or_dropped() -> None:
    labels = some_labels([6, 5])
    assert [len(indices) for _, indices in drawn(epoch_of(labels))] == [4, 4, 3]
    assert [len(indices) for _, indices in drawn(epoch_of(labels, drop_last=True))] == [4, 4]
    two = [drawn(epoch_of(labels, drop_last=True, rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(indices) for _, indices in share] for share in two] == [[2, 2], [2, 2]]


def test_what_cannot_be_batched_says_so() -> None:
    labels = some_labels([3])
    assert refused(lambda: epoch_of(labels, drop_last=True)) == (
        "3 images do not fill one batch of 4. Lower `batch_size`."
    )
    assert refused(lambda: epoch_of(labels, sampler="pk", batch_size=10)) == (
        "a batch of 10 cannot hold classes of 4 images each. Use `batch_size=8`."
    )
    assert refused(lambda: epoch_of(labels, batch_size=0)) == "`batch_size=0` is not a number of images from 1 up."
    assert refused(lambda: epoch_of(np.empty(0, dtype=np.int64))) == "no images to make batches of."
    assert refused(lambda: epoch_of(labels, crop=3)) == (
        "a crop of 3 x 3 does not fit into the smallest images of 2 x 2. "
        "Scale the images up, or choose a network with a smaller input."
    )
    assert refused(lambda: epoch_of(labels, crop=(5, 4), padding=1)) == (
        "a crop of 5 x 4 does not fit into the smallest images, padded by 1, of 4 x 4. "
        "Scale the images up, or choose a network with a smaller input."
    )
    ragged = in_memory([(2, 2), (2, 3)])
    assert refused(lambda: batches(ragged, np.arange(2), np.arange(2), batch_size=2, train=True)) == (
        "the images differ in size, so a batch of them needs a crop of one size."
    )
    with pytest.raises(ValueError, match="rank 2 of 2 processes"):
        epoch_of(labels, rank=2, world_size=2)
    with pytest.raises(ValueError, match="drop_last means nothing with the sampler 'pk'"):
        epoch_of(labels, sampler="pk", drop_last=True)


def digest_of_an_epoch(root: Path, cache: Path) -> str:
    images = folder(root)
    decoded = decode(images, mode="RGB", cache=cache)
    seen = sha256()
    for sampler in ("shuffled", "balanced", "pk"):
        options: dict[str, Any] = {"batch_size": 8, "crop": 9, "sampler": sampler, "seed": 11, "epoch": 7}
        for batch in batches(decoded, np.arange(len(images)), images.labels, train=True, **options):
            seen.update(b"".join(part.numpy().tobytes() for part in batch))
    return seen.hexdigest()


def test_a_fresh_process_makes_the_same_epoch(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    """What resuming relies on."""
    for index in range(40):
        file = tmp_path / "root" / f"class {index % 3}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(index, ragged=True).save(file)
    imports = (
        "import sys\nfrom hashlib import sha256\nfrom pathlib import Path\nfrom typing import Any\n"
        "import numpy as np\nfrom tammes.data.folder import folder\n"
        "from tammes.data.batches import batches\nfrom tammes.data.image_cache import decode\n"
    )
    call = "print(digest_of_an_epoch(Path(sys.argv[1]), Path(sys.argv[2])))"
    code = f"{imports}{getsource(digest_of_an_epoch)}{call}"
    fresh = printed_by(code, str(tmp_path / "root"), str(tmp_path / "its cache"))
    assert fresh.strip() == digest_of_an_epoch(tmp_path / "root", tmp_path / "our cache")


def batch_threads() -> int:
    return sum(thread.name == "tammes-ahead" for thread in threading.enumerate())


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = batch_threads()
    yield
    assert batch_threads() == before


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_epoch_left_early_leaves_no_thread(taken: int) -> None:
    walk, before = iter(epoch_of(some_labels([50, 50]))), batch_threads()
    for _ in range(taken):
        next(walk)
    assert batch_threads() == before + (taken > 0)
    assert isinstance(walk, type(_ for _ in ()))
    walk.close()


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_walk_that_is_forgotten_leaves_no_thread() -> None:
    for _ in epoch_of(some_labels([50, 50])):
        break


def fail_at_the_third_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, original = [0], Batches._made

    def failing(self: Batches, turn: Any) -> Any:
        made[0] += 1
        if made[0] >= 3:  # each that follows too: one that was made ahead may be wanted by nobody
            raise RuntimeError("the disk is gone")
        return original(self, turn)

    monkeypatch.setattr(Batches, "_made", failing)


@pytest.mark.usefixtures("no_thread_is_left")
def test_an_error_in_the_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    one_epoch = epoch_of(some_labels([9, 9]))
    fail_at_the_third_batch(monkeypatch)
    walk = iter(one_epoch)
    assert len([next(walk), next(walk)]) == 2
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(walk)


@pytest.mark.usefixtures("no_thread_is_left")
def test_an_error_in_the_thread_ends_the_command(
    waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing waits for a batch that never comes."""
    ends: list[SystemExit | None] = []
    words = ["train", str(waves), "--out", str(tmp_path / "run"), "--epochs", "3", "--batch-size", "8"]

    def command() -> None:
        try:
            main([*words, "--backbone", "conv4", "--dim", "8"])
            ends.append(None)
        except SystemExit as stopped:
            ends.append(stopped)

    fail_at_the_third_batch(monkeypatch)
    monkeypatch.setattr("tammes.training.train.stop_on_signal", lambda: nullcontext(lambda: False))
    waiting = threading.Thread(target=command, daemon=True)  # one that waits for ever does not keep the tests waiting
    waiting.start()
    waiting.join(HANGS)
    assert not waiting.is_alive()
    (stopped,) = ends
    assert stopped is not None
    assert stopped.code == 3
    said = capsys.readouterr().err
    assert "tammes: this is a bug in tammes (RuntimeError: the disk is gone). Please report it" in said


def test_batches_do_not_share_memory() -> None:
    one_epoch = epoch_of(some_labels([8, 8]))
    kept = [images for images, _, _ in one_epoch]
    assert len({images.data_ptr() for images in kept}) == len(kept)


def test_a_file_of_the_cache_removed_while_in_use_still_serves(tmp_path: Path) -> None:
    decoded = decode(pictures(9), mode="L", size=8, cache=tmp_path)
    before = decoded.pixels.sum()
    clear(cache=tmp_path)
    assert decoded.pixels.sum() == before


def test_the_format_of_the_file_fits_its_header() -> None:
    header = tammes.data.image_cache._HEADER.size
    assert header <= tammes.data.image_cache._PIXELS_START
