"""Activations of a frozen part: the same as those of the whole network, kept, found again, resumed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from torch import Tensor

import tammes.models.feature_cache
from tammes.data.batches import batches
from tammes.data.dataset import Dataset
from tammes.data.image_cache import DIGEST, Decoded, decode
from tammes.errors import UserError
from tammes.io.cache import cached
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.models.feature_cache import Activations, Frozen, ImageFeatures, activation_batches, activations

NUMBER = 70  # more than two batches


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.models.feature_cache.images_at_once", lambda *_: 32)


def noise(fingerprint: str = "noise", first: int = 0, width: int = 30) -> Dataset:
    def read(index: int) -> Image.Image:
        seed = first if index == 0 else index
        return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (34, width), dtype=np.uint8))

    keys = tuple(str(number) for number in range(NUMBER))
    return Dataset("noise", keys, np.arange(NUMBER) % 5, tuple("abcde"), read, fingerprint)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    return decode(noise(), mode="L", cache=tmp_path_factory.mktemp("cache"))


def network(seed: int = 0) -> Embedder:
    torch.manual_seed(seed)
    return Embedder(EmbedderConfig("conv4", 8, 5)).eval()


def kept(
    frozen: Frozen, images: Decoded, cache: Path, views: int = 0, indices: np.ndarray | None = None
) -> Activations:
    chosen = np.arange(NUMBER) if indices is None else indices
    return activations(frozen, images, chosen, crop=28, views=views, cache=cache)


def all_of(stored: Activations) -> Tensor:
    """The activations of all images in all views."""
    each = [stored.inputs(stored.indices, np.full(len(stored.indices), view)) for view in range(stored.views)]
    return torch.stack(each)


def counting(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are computed from now on."""
    computed: list[int] = []
    below = frozen.below

    def counted(pictures: Tensor) -> Tensor:
        computed.append(len(pictures))
        return below(pictures)

    monkeypatch.setattr(frozen, "below", counted)
    return computed


def pictures_of(images: Decoded, *, train: bool, epoch: int = 0) -> Tensor:
    nothing = np.zeros(NUMBER, dtype=np.int64)
    given = batches(images, np.arange(NUMBER), nothing, batch_size=NUMBER, crop=28, train=train, sampler="ordered",
                    epoch=epoch)  # fmt: skip
    return next(iter(given))[0]


@pytest.mark.parametrize("at", [None, "blocks.2"])
def test_above_of_below_is_the_backbone(at: str | None, images: Decoded) -> None:
    embedder, pictures = network(), pictures_of(images, train=False)
    frozen = Frozen(embedder, at)
    torch.testing.assert_close(frozen.above(frozen.below(pictures)), embedder.features(pictures))


@pytest.mark.parametrize("at", [None, "blocks.2"])
def test_in_bfloat16_features_are_float32_and_kept_apart(at: str | None, images: Decoded, tmp_path: Path) -> None:
    embedder, pictures = network(), pictures_of(images, train=False)
    frozen = Frozen(embedder, at)
    full = kept(frozen, images, tmp_path)
    embedder.precision = "bf16"
    with torch.autocast("cpu", torch.bfloat16):
        expected = embedder.backbone(embedder.normalised(pictures))
    assert expected.dtype == torch.bfloat16
    found = embedder.features(pictures)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float())
    half = kept(frozen, images, tmp_path)
    assert half.file != full.file
    assert not np.array_equal(all_of(half), all_of(full))
    torch.testing.assert_close(all_of(half), all_of(full), rtol=0.05, atol=0.05)


def test_what_is_below_the_cut_does_not_train() -> None:
    embedder = network()
    Frozen(embedder, "blocks.2")
    trains = {name for name, parameter in embedder.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[2] for name in trains if name.startswith("backbone")} == {"2", "3"}
    assert {"penultimate.weight", "class_layer.weight"} <= trains
    Frozen(embedder, None)
    assert not any(parameter.requires_grad for parameter in embedder.backbone.parameters())


@pytest.mark.parametrize("at", [None, "blocks.2"])
def test_kept_centre_crops_are_those_of_the_network(at: str | None, images: Decoded, tmp_path: Path) -> None:
    embedder = network()
    frozen = Frozen(embedder, at)
    stored = kept(frozen, images, tmp_path)
    assert stored.views == 1
    assert stored.values.dtype == (np.float32 if at is None else np.float16)
    given = activation_batches(stored, np.arange(NUMBER), np.zeros(NUMBER, dtype=np.int64), batch_size=32, train=False)
    found = torch.cat([frozen.above(inputs) for inputs, _, _ in given])
    torch.testing.assert_close(found, embedder.features(pictures_of(images, train=False)), rtol=2e-3, atol=2e-3)


def test_maps_come_with_their_channels_last(images: Decoded, tmp_path: Path) -> None:
    stored = kept(Frozen(network(), "blocks.2"), images, tmp_path)
    inputs = stored.inputs(np.arange(4), np.zeros(4, dtype=np.int64))
    assert inputs.shape == (4, 64, 7, 7)
    assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_views_are_random_crops_that_do_not_depend_on_the_run(images: Decoded, tmp_path: Path) -> None:
    frozen = Frozen(network(), None)
    stored = kept(frozen, images, tmp_path, views=3)
    for view in range(3):
        expected = frozen.below(pictures_of(images, train=True, epoch=view))
        rows = stored.inputs(np.arange(NUMBER), np.full(NUMBER, view))
        torch.testing.assert_close(rows.float(), expected, rtol=2e-3, atol=2e-3)
    assert not np.array_equal(stored.values[stored.rows[0]], stored.values[stored.rows[1]])


def test_every_image_goes_through_its_views_in_turn(tmp_path: Path) -> None:
    values = np.arange(3 * NUMBER, dtype=np.float16).reshape(3, NUMBER, 1)
    stored = Activations(tmp_path, values.reshape(-1, 1), np.arange(3 * NUMBER).reshape(3, NUMBER), np.arange(NUMBER))
    chosen, labels = np.arange(0, NUMBER, 2), np.zeros(NUMBER // 2, dtype=np.int64)

    def views_of(epoch: int, seed: int) -> dict[int, int]:
        found = {}
        for inputs, _, indices in activation_batches(
            stored, chosen, labels, batch_size=8, train=True, seed=seed, epoch=epoch
        ):
            for row, index in zip(inputs.numpy(), indices.tolist(), strict=True):
                found[index], row_of_view = divmod(int(row[0]), NUMBER)
                assert row_of_view == index
        return found

    epochs = [views_of(epoch, seed=0) for epoch in (1, 2, 3, 4)]
    assert all(set(epoch) == set(chosen.tolist()) for epoch in epochs)
    assert all({epoch[index] for epoch in epochs[:3]} == {0, 1, 2} for index in chosen.tolist())
    assert epochs[0] == epochs[3] == views_of(1, seed=0)
    assert views_of(1, seed=1) != epochs[0]


def test_a_file_is_used_again_by_what_is_the_same_and_by_nothing_else(
    images: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(Frozen(network(), None), images, tmp_path)
    changed_above = network()
    torch.nn.init.zeros_(changed_above.new_layers()[0].weight)
    assert kept(Frozen(changed_above, None), images, tmp_path).file == first.file
    others = {
        kept(Frozen(network(1), None), images, tmp_path).file,
        kept(Frozen(network(), "blocks.2"), images, tmp_path).file,
    }
    assert len(others | {first.file}) == 3
    assert {(entry.kind, entry.file) for entry in cached(tmp_path)} == {
        ("activations", f) for f in {first.file, *others}
    }
    monkeypatch.setattr(Frozen, "below", None)  # not computed again
    assert_array_equal(all_of(kept(Frozen(network(), None), images, tmp_path)), all_of(first))


@pytest.mark.parametrize("views", [0, 2])
def test_each_image_is_computed_once_whatever_the_split(
    views: int, images: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(network(), None)
    computed = counting(frozen, monkeypatch)
    some, all_images = np.arange(10, 40), np.arange(NUMBER)
    kept(frozen, images, tmp_path, views, some)
    whole = kept(frozen, images, tmp_path, views, all_images)
    assert sum(computed) == NUMBER * max(1, views)
    kept(frozen, images, tmp_path, views + 1, some)
    assert sum(computed) == NUMBER * max(1, views) + len(some)  # one more view, or the first random one
    fresh = kept(Frozen(network(), None), images, tmp_path / "elsewhere", views, all_images)
    torch.testing.assert_close(all_of(whole), all_of(fresh))


def test_the_same_pictures_elsewhere_have_the_same_activations(
    images: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(network(), None)
    kept(frozen, images, tmp_path)
    computed = counting(frozen, monkeypatch)
    moved = decode(noise("copied to another disk"), mode="L", cache=tmp_path)
    assert moved.file.name != images.file.name
    kept(frozen, moved, tmp_path)
    assert computed == []
    kept(frozen, decode(noise("one picture is another", first=NUMBER), mode="L", cache=tmp_path), tmp_path)
    assert computed == [1]
    kept(frozen, decode(noise("of another size", width=34), mode="L", cache=tmp_path), tmp_path)
    assert sum(computed) == 1 + NUMBER


def test_a_damaged_file_is_made_again(images: Decoded, tmp_path: Path) -> None:
    frozen = Frozen(network(), None)
    whole = all_of(kept(frozen, images, tmp_path)).clone()
    kept(frozen, images, tmp_path).file.write_bytes(b"x" * 1000)
    assert_array_equal(all_of(kept(frozen, images, tmp_path)), whole)


def test_single_images_share_what_is_kept_of_a_data_set(tmp_path: Path) -> None:
    embedder = network()
    pictures = [noise().read(index) for index in range(4)]
    prepared = [embedder.prepared_with_key(picture) for picture in pictures]
    stored = kept(Frozen(embedder, None), decode(noise(), mode="L", shorter_side=28, cache=tmp_path), tmp_path)
    given: Any = [[each[part] for each in prepared] for part in (0, 1)]
    size = stored.file.stat().st_size
    found = ImageFeatures(embedder, cache=tmp_path)(*given)
    torch.testing.assert_close(found, stored.inputs(np.arange(4)))
    assert stored.file.stat().st_size == size
    other = ImageFeatures(embedder, cache=tmp_path / "other")
    torch.testing.assert_close(other(*given), found)
    torch.testing.assert_close(ImageFeatures(embedder, cache=tmp_path / "other")(*given), found)
    (tmp_path / "file").write_text("in the way")
    torch.testing.assert_close(ImageFeatures(embedder, cache=tmp_path / "file")(*given), found)


@pytest.mark.parametrize("cut_off", [0, 1, 1000])
def test_what_an_interruption_left_is_gone_on_with(
    cut_off: int, images: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(network(), None)
    whole = kept(frozen, images, tmp_path / "whole", views=2)
    computed: list[int] = []
    below = frozen.below

    def stopped(pictures: Tensor) -> Tensor:
        if sum(computed) >= 100:  # in the middle of the second view
            raise KeyboardInterrupt
        computed.append(len(pictures))
        return below(pictures)

    monkeypatch.setattr(frozen, "below", stopped)
    with pytest.raises(KeyboardInterrupt):
        kept(frozen, images, tmp_path, views=2)
    (partial,) = (tmp_path / "activations").iterdir()
    row_bytes = 64 * 4 + DIGEST
    with partial.open("r+b") as file:  # a row may have been cut in two
        file.truncate(partial.stat().st_size - cut_off)

    monkeypatch.setattr(frozen, "below", below)
    computed = counting(frozen, monkeypatch)
    again = kept(frozen, images, tmp_path, views=2)
    assert_array_equal(all_of(again), all_of(whole))
    assert sum(computed) == 140 - 102 + (cut_off + row_bytes - 1) // row_bytes
    assert [file.name for file in (tmp_path / "activations").iterdir()] == [again.file.name]


def test_what_it_takes_is_said_before_it_is_made(images: Decoded, tmp_path: Path) -> None:
    said: list[object] = []
    frozen = Frozen(network(), "blocks.2")
    stored = activations(
        frozen, images, np.arange(NUMBER), crop=28, views=2, cache=tmp_path,
        on_plan=lambda num_bytes, seconds: said.append((num_bytes, seconds > 0)),
        on_progress=lambda *now: said.append(now),
    )  # fmt: skip
    num_bytes = stored.values.nbytes + len(stored.values) * DIGEST
    assert said == [(num_bytes, True), (32, 140), (64, 140), (70, 140), (102, 140), (134, 140), (140, 140)]


def test_errors(images: Decoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen(network(), None)
    with pytest.raises(UserError, match=r"has no part 'blocks\.9'"):
        Frozen(network(), "blocks.9")
    monkeypatch.setattr(frozen, "below", lambda pictures: torch.full((len(pictures), 3, 2, 2), 1e6))
    with pytest.raises(UserError, match=r"too large for half precision\. Use `train=\'all\'`, or another `cut`"):
        kept(frozen, images, tmp_path)
    monkeypatch.undo()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write the activations to .*: Not a directory\. Set TAMMES_CACHE"):
        kept(frozen, images, tmp_path / "file")
    monkeypatch.setattr(tammes.models.feature_cache, "check_room", _refuse)
    with pytest.raises(UserError, match="no room"):
        kept(frozen, images, tmp_path)


def _refuse(*_: object) -> Iterator[None]:
    raise UserError("no room")


@pytest.mark.parametrize("backbone", ["googlenet", "vgg16"])
@pytest.mark.parametrize("part", ["top", "head"])
def test_the_papers_networks_train_in_part(backbone: str, part: str) -> None:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig(backbone, 8, 5)).eval()
    frozen = Frozen(embedder, embedder.default_cut if part == "top" else None)
    pictures = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    given = frozen.below(pictures)
    torch.testing.assert_close(frozen.above(given), embedder.features(pictures))
    embedder.outputs(frozen.above(given.half())).sum().backward()
    moved = {name for name, parameter in embedder.named_parameters() if parameter.grad is not None}
    assert moved == {name for name, parameter in embedder.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("backbone") for name in moved) == (part == "top")
