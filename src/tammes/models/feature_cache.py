"""The feature cache: activations of the frozen part of a network, computed once per image, for training and galleries.

`--train head` freezes the whole backbone, `--train top` the layers below a cut; a network that only embeds is frozen
completely. The activations of the centre crop or of random crops of each image are stored in a memory-mapped file per
network, by the digest of the image, so that other splits, and the same image in another folder, use them again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy import ndarray
from torch import Tensor, nn

from tammes.data.batches import Batches, batches
from tammes.data.image_cache import DIGEST, Decoded
from tammes.data.samplers import Sampling, Turn, turns
from tammes.errors import UserError
from tammes.io.cache import check_room, writing
from tammes.io.environment import cache_folder
from tammes.io.files import folder_inside, fsync, lock, open_inside
from tammes.io.machine import images_at_once
from tammes.models.backbones.cuts import cut
from tammes.models.backbones.depths import Depths
from tammes.models.embedder import Embedder

_VERSION = 2
_HEADER = 256  # bytes of the first line of a file
_WHAT = "the activations"


class Frozen:
    """An Embedder with a frozen part: `below` computes activations, `above` computes features from them.

    Args:
        embedder: the Embedder; `requires_grad` of its frozen weights is set to False.
        at: the lowest trainable module; None freezes the whole backbone.
        marks: False leaves `requires_grad` unchanged, if nothing is trained.
    """

    def __init__(self, embedder: Embedder, at: str | None, *, marks: bool = True) -> None:
        self.embedder, self.at = embedder, at
        if marks:
            embedder.backbone.requires_grad_(False)
        self._below: Callable[[Tensor], Tensor] = embedder.of_depths
        self._above: Callable[[Tensor], Tensor] = nn.Identity()
        if at is not None:
            below, above = cut(embedder.backbone, at)
            if marks:
                above.requires_grad_(True)
            depths = embedder.of_depths
            self._below, self._above = depths.from_cut(at) if isinstance(depths, Depths) else (below, above)

    def below(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch ..."]:
        """The activations of images at the cut."""
        return self.embedder.in_precision(self._below, self.embedder.normalised(images))

    def above(self, activations: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """The features of the backbone, from activations at the cut."""
        features: Tensor = self._above(activations.float())
        return features

    def digest(self) -> str:
        """A SHA-256 of the frozen weights."""
        found = sha256()
        frozen = cut(self.embedder.backbone, self.at)[0] if self.at is not None else self.embedder.backbone
        for name, tensor in sorted(frozen.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


@dataclass(frozen=True)
class Activations:
    """The cached activations of each view of each image.

    Attributes:
        values: all cached activations of this network, memory-mapped: feature maps in half precision, channels last;
            feature vectors in full precision.
        rows: the row in `values` of each view of each image.
        indices: the images, as indices of the data set, in increasing order.
    """

    file: Path
    values: Shaped[ndarray, "kept ..."]
    rows: Int64[ndarray, "views images"]
    indices: Int64[ndarray, " images"]

    @property
    def views(self) -> int:
        return len(self.rows)

    def inputs(
        self, indices: Int64[ndarray, " batch"], views: Int64[ndarray, " batch"] | None = None
    ) -> Float[Tensor, "batch ..."]:
        """The activations of these images in the given views; by default the first."""
        places = np.searchsorted(self.indices, indices)
        taken = torch.from_numpy(self.values[self.rows[0 if views is None else views, places]])
        return taken.permute(0, 3, 1, 2) if taken.ndim == 4 else taken


class Kept:
    """An append-only file of arrays by key.

    A header line describes the rows; each row is a key followed by the array. An incomplete last row is ignored.
    """

    def __init__(self, file: Path) -> None:
        self.file, self._number = file, 0
        self._row: Any = None
        self.places: dict[bytes, int] = {}
        self.values: ndarray = np.empty((0,), np.float32)
        self._read()

    def _read(self) -> None:
        try:
            with self.file.open("rb") as source:
                said = json.loads(source.read(_HEADER))
            self._row = _row(tuple(said["shape"]), said["dtype"])
            number = (self.file.stat().st_size - _HEADER) // self._row.itemsize
        except (OSError, ValueError, KeyError, TypeError):  # no file, or an incomplete header
            return
        if number > self._number:
            found = np.memmap(self.file, self._row, "r", offset=_HEADER, shape=(number,))
            self.values = np.asarray(found["value"])
            new = found["key"][self._number :].tolist()
            self.places |= {key: place for place, key in enumerate(new, start=self._number)}
            self._number = number

    @contextmanager
    def alone(self, *, wait: bool = True) -> Iterator[IO[bytes] | None]:
        """Lock the file for writing and yield it, with the rows of other processes read; None if it is locked.

        Args:
            wait: wait for another process instead.
        """
        folder_inside(self.file.parent)
        with open_inside(self.file) as sink:
            if lock(sink, wait=wait) is False:
                yield None
                return
            self._read()
            yield sink

    def add(self, sink: IO[bytes], keys: Sequence[bytes], values: Shaped[ndarray, "some ..."]) -> None:
        """Append rows; `values` has them after the next `alone` or `close`."""
        if self._row is None:
            self._row = _row(values.shape[1:], values.dtype.str)
            sink.truncate(0)
            said = {"shape": values.shape[1:], "dtype": values.dtype.str}
            sink.write(json.dumps(said).encode().ljust(_HEADER))
        size = sink.seek(0, os.SEEK_END)
        sink.truncate(size - (size - _HEADER) % self._row.itemsize)
        written = np.empty(len(keys), self._row)
        written["key"], written["value"] = np.array(keys, f"V{DIGEST}"), values
        sink.write(written.tobytes())
        sink.flush()

    def close(self, sink: IO[bytes]) -> None:
        """Flush added rows to disk and update `values`."""
        fsync(sink.fileno())
        self._read()


def _row(shape: tuple[int, ...], dtype: str) -> Any:
    return np.dtype([("key", f"V{DIGEST}"), ("value", dtype, shape)])


def kept_by(frozen: Frozen, *, crop: int, cache: Path | None = None) -> Kept:
    """The cache file of a frozen part; its name depends on everything that affects activations except the image."""
    given = frozen.embedder.config
    depends_on: list[Any] = [_VERSION, frozen.digest(), frozen.at, crop, given.backbone, given.form]
    depends_on += [given.size, given.shorter_side, given.mean, given.std]  # set for custom backbones
    if frozen.at is None:  # neither has weights, and both are above any cut
        depends_on += [given.pool, given.depths]
    if frozen.embedder.precision != "no":
        depends_on.append(frozen.embedder.precision)
    key = sha256(json.dumps(depends_on).encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", given.backbone)
    return Kept((cache or cache_folder()) / "activations" / f"{name}-{frozen.at or 'features'}-{crop}-{key}.rows")


def keys_of(
    images: Decoded, indices: Int64[ndarray, " images"], *, views: int = 0, mirror: bool = True, padding: int = 0
) -> list[list[bytes]]:
    """The cache keys of the activations of each view of each image: everything they depend on except the network.

    For the centre crop that is the image; for a random crop also the index of the image in the data set.
    """
    centres = [images.digests[index] for index in indices.tolist()]
    if not views:
        return [centres]

    def key(digest: bytes, *crop: Any) -> bytes:
        return blake2b(digest + json.dumps(crop).encode(), digest_size=DIGEST).digest()

    return [
        [key(digest, index, view, mirror, padding) for digest, index in zip(centres, indices.tolist(), strict=True)]
        for view in range(views)
    ]


def num_missing(kept: Kept, keys: list[list[bytes]]) -> int:
    """How many activations are not cached yet."""
    return sum(key not in kept.places for view in keys for key in view)


@torch.inference_mode()
def activations(
    frozen: Frozen,
    images: Decoded,
    indices: Int64[ndarray, " images"],
    *,
    crop: int,
    views: int = 0,
    mirror: bool = True,
    padding: int = 0,
    batch_size: int | None = None,
    device: torch.device | None = None,
    cache: Path | None = None,
    together: bool = False,
    on_plan: Callable[[int, float], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Activations:
    """Activations of images: from the cache, or computed and cached. Partial results of an interruption are used.

    Args:
        indices: the images, in increasing order.
        crop: height and width of the network's input.
        views: random crops of each image (mirrored at random if `mirror`); 0 for the centre crop.
        padding: pixels by which the border is replicated before a random crop.
        batch_size: images at a time; None for the best number for the device.
        together: True if other processes compute other images at the same time; otherwise they wait for the lock.
        on_plan: called after the first batch with the bytes and seconds that the missing activations will take.
        on_progress: called with (images done, images in all), of those that are not cached yet.
    """
    kept = kept_by(frozen, crop=crop, cache=cache)
    keys = keys_of(images, indices, views=views, mirror=mirror, padding=padding)
    where = device or torch.device("cpu")
    batch_size = batch_size or images_at_once(images.channels * crop**2, where)

    def missing(view: int) -> Iterator[tuple[list[bytes], Tensor]]:
        places = np.array([place for place, key in enumerate(keys[view]) if key not in kept.places], dtype=np.int64)
        if not len(places):
            return
        # The crops of a view depend only on its number, so that runs with other seeds use the same.
        given = batches(
            images, indices[places], places, batch_size=batch_size, crop=crop, train=views > 0, sampler="ordered",
            mirror=mirror, padding=padding if views else 0, seed=0, epoch=view,
        )  # fmt: skip
        for batch, own, _ in given:
            yield [keys[view][place] for place in own.tolist()], batch

    with writing(kept.file.parent, _WHAT):
        if num_missing(kept, keys):
            folder_inside(kept.file.parent)
            with nullcontext() if together else kept.alone() as held:
                total, done, started = num_missing(kept, keys), 0, perf_counter()
                for own, batch in (each for view in range(len(keys)) for each in missing(view)):
                    values = frozen_values(frozen, batch.to(where))
                    if not done:
                        num_bytes = total * (values[0].nbytes + DIGEST)
                        check_room(kept.file.parent, num_bytes, _WHAT)
                        if on_plan is not None:
                            on_plan(num_bytes, (perf_counter() - started) / len(own) * total)
                    with kept.alone() if held is None else nullcontext(held) as sink:
                        assert sink is not None
                        kept.add(sink, own, values)
                    done += len(own)
                    if on_progress is not None:
                        on_progress(done, total)
                with kept.alone() if held is None else nullcontext(held) as sink:
                    assert sink is not None
                    kept.close(sink)
    rows = np.array([[kept.places[key] for key in view] for view in keys], dtype=np.int64)
    return Activations(kept.file, kept.values, rows.reshape(len(keys), -1), indices)


def frozen_values(
    frozen: Frozen, images: Shaped[Tensor, "batch channels height width"]
) -> Shaped[ndarray, "batch ..."]:
    """The activations of images in the form in which they are cached."""
    given = frozen.below(images)
    if given.ndim == 2:
        return given.float().cpu().numpy()
    given = given.half()
    if not given.isfinite().all():
        raise UserError(
            "activations at this cut are too large for half precision. Use `train='all'`, or another `cut`."
        )
    return (given.permute(0, 2, 3, 1) if given.ndim == 4 else given).cpu().contiguous().numpy()


class ImageFeatures:
    """The features of single images in evaluation mode: from the cache, or computed and cached.

    If the cache is not writable, or locked by another process, they are computed without caching.
    """

    def __init__(self, embedder: Embedder, *, cache: Path | None = None) -> None:
        self.embedder, self._frozen = embedder, Frozen(embedder, None, marks=False)
        self._kept = kept_by(self._frozen, crop=embedder.size, cache=cache) if embedder.eval_transform is None else None

    @torch.inference_mode()
    def __call__(
        self, images: Sequence[Shaped[ndarray, "channels height width"]], keys: Sequence[bytes]
    ) -> Float[Tensor, "images features"]:
        """The features of preprocessed images, on the network's device.

        Args:
            keys: the `image_digest` of each scaled image, before its centre crop.
        """
        kept, device = self._kept, self.embedder.mean.device
        known = {} if kept is None else kept.places
        new = [place for place, key in enumerate(keys) if key not in known]
        rows: list[Any] = [None] * len(keys)
        for place in set(range(len(keys))) - set(new):
            assert kept is not None
            rows[place] = kept.values[known[keys[place]]]
        for start in range(0, len(new), self.embedder.at_once):
            some = new[start : start + self.embedder.at_once]
            batch = torch.from_numpy(np.stack([images[place] for place in some])).to(device)
            values = frozen_values(self._frozen, batch)
            for place, value in zip(some, values, strict=True):
                rows[place] = value
        if kept is not None and new:
            with suppress(OSError, UserError), kept.alone(wait=False) as sink:
                if sink is not None:
                    kept.add(sink, [keys[place] for place in new], np.stack([rows[place] for place in new]))
                    kept.close(sink)
        return torch.from_numpy(np.stack(rows)).to(device)


def activation_batches(
    stored: Activations,
    indices: Int64[ndarray, " chosen"],
    labels: Int64[ndarray, " chosen"],
    **sampling: Unpack[Sampling],
) -> Batches:
    """One epoch of batches of activations, like `data.batches` for images.

    Each image cycles through its views, one per epoch, from a view that depends on the seed.
    """
    seed, epoch = sampling.get("seed", 0), sampling.get("epoch", 0)
    first = np.random.default_rng([seed, 1]).integers(stored.views, size=len(indices))

    def inputs(turn: Turn) -> Float[Tensor, "batch ..."]:
        views = (first[turn.positions] + epoch + turn.repeats) % stored.views
        return stored.inputs(indices[turn.positions], views)

    return Batches(turns(labels, **sampling), indices, labels, inputs, ahead=stored.values.ndim > 2)
