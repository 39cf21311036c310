"""Training without a GPU: what the frozen part of a network gives is computed once and kept; the rest is trained on it.

`--train head` freezes the whole backbone, `--train top` what lies below a cut. The activations of one or more augmented
views of each image are kept in half precision in a memory-mapped file, which every later run of any loss uses again.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from math import prod
from pathlib import Path
from time import perf_counter
from typing import IO, Unpack

import numpy as np
import torch
from jaxtyping import Float, Float16, Int64, Shaped
from numpy import ndarray
from torch import Tensor, nn

from tammes.data.batches import Batches, batches
from tammes.data.image_cache import Decoded
from tammes.data.samplers import Sampling, Turn, turns
from tammes.errors import UserError
from tammes.io.cache import check_room, writing
from tammes.io.environment import cache_folder
from tammes.io.files import PARTIAL, folder_inside, fsync, lock, new_partial, open_inside
from tammes.io.machine import images_at_once
from tammes.models.backbones.cuts import cut
from tammes.models.backbones.depths import Depths
from tammes.models.embedder import Embedder

_VERSION = 1
_WHAT = "the activations"


class Frozen:
    """An Embedder of which a part is frozen: `below` gives activations, `above` turns them into features.

    Args:
        embedder: its frozen weights are marked as such, and so are left out by the optimizer.
        at: the module that the part to be trained begins with; None freezes the whole backbone.
    """

    def __init__(self, embedder: Embedder, at: str | None) -> None:
        self.embedder, self.at = embedder, at
        embedder.backbone.requires_grad_(False)
        self._below: Callable[[Tensor], Tensor] = embedder.of_depths
        self._above: Callable[[Tensor], Tensor] = nn.Identity()
        if at is not None:
            below, above = cut(embedder.backbone, at)
            above.requires_grad_(True)
            depths = embedder.of_depths
            self._below, self._above = depths.from_cut(at) if isinstance(depths, Depths) else (below, above)

    def below(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch ..."]:
        """The activations of images at the cut."""
        activations: Tensor = self._below(self.embedder.scaled(images))
        return activations

    def above(self, activations: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """The features of the backbone, from activations at the cut."""
        features: Tensor = self._above(activations.float())
        return features

    def digest(self) -> str:
        """A text that changes with the frozen weights."""
        found = sha256()
        frozen = cut(self.embedder.backbone, self.at)[0] if self.at is not None else self.embedder.backbone
        for name, tensor in sorted(frozen.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


@dataclass(frozen=True)
class Activations:
    """What the frozen part gives for each view of each image.

    Attributes:
        values: half precision, memory-mapped; maps have their channels last, as the convolutions above want them.
        indices: which images, as numbers in the data set, in increasing order.
    """

    file: Path
    values: Float16[ndarray, "views images ..."]
    indices: Int64[ndarray, " images"]

    @property
    def views(self) -> int:
        return len(self.values)

    def inputs(
        self, indices: Int64[ndarray, " batch"], views: Int64[ndarray, " batch"]
    ) -> Float16[Tensor, "batch ..."]:
        """The activations of these images, each in its view."""
        rows = np.searchsorted(self.indices, indices)
        taken = torch.from_numpy(self.values[views, rows])
        return taken.permute(0, 3, 1, 2) if taken.ndim == 4 else taken


def file_of(
    frozen: Frozen,
    images: Decoded,
    indices: Int64[ndarray, " images"],
    *,
    crop: int,
    views: int,
    mirror: bool = True,
    padding: int = 0,
    cache: Path | None = None,
) -> Path:
    """Where the activations are kept: named after all that they depend on, and nothing else."""
    depends_on = [_VERSION, images.digest, sha256(np.ascontiguousarray(indices).tobytes()).hexdigest()]
    depends_on += [frozen.digest(), frozen.at, crop, views, *((mirror, padding) if views else ())]
    pool = frozen.embedder.config.pool
    if frozen.at is None and pool != "published":  # it has no weights, and lies above every cut
        depends_on.append(f"pool {pool}")
    if frozen.embedder.config.form == "keras":  # the same weights give others than in the other form
        depends_on.append("form keras")
    if frozen.embedder.config.size is not None:  # a module of the caller's own: the weights do not say what it is
        given = frozen.embedder.config
        depends_on.append([given.backbone, given.size, given.shorter_side, given.mean, given.std])
    if frozen.at is None and frozen.embedder.config.depths:
        depends_on.append(f"depths {' '.join(frozen.embedder.config.depths)}")
    key = sha256(dumps(depends_on).encode()).hexdigest()[:16]
    stem = f"{images.file.stem.rpartition('-')[0]}-{frozen.at or 'features'}-{views or 'centre'}-{key}"
    return (cache or cache_folder()) / "activations" / f"{stem}.npy"


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
    device: torch.device | None = None,
    cache: Path | None = None,
    on_plan: Callable[[int, float], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Activations:
    """Activations of images, from the cache or, the first time, into it. What an interruption left is gone on with.

    Args:
        indices: which images, in increasing order.
        crop: height and width of what the network sees.
        views: random crops (mirrored at random if `mirror`) of each image; 0 for the one in the centre.
        padding: pixels by which an image's border is repeated outwards before a random crop.
        on_plan: told how many bytes the file takes and how many seconds it may take to make, before it is made.
        on_progress: called with (images done, images in all).
    """
    file = file_of(frozen, images, indices, crop=crop, views=views, mirror=mirror, padding=padding, cache=cache)
    if file.exists():
        return Activations(file, np.load(file, mmap_mode="r"), indices)
    where = device or torch.device("cpu")
    batch_size = images_at_once(images.channels * crop**2, where)

    def of(view: int, chosen: Int64[ndarray, " some"]) -> Batches:
        nothing = np.zeros(len(chosen), dtype=np.int64)
        # A view's crops follow from its number alone: runs with other seeds find the same file.
        return batches(
            images, chosen, nothing, batch_size=batch_size, crop=crop, train=views > 0, sampler="ordered",
            mirror=mirror, padding=padding if views else 0, seed=0, epoch=view,
        )  # fmt: skip

    def computed(pictures: Tensor) -> Float16[ndarray, "batch ..."]:
        given = frozen.below(pictures.to(where)).half().cpu()
        if not given.isfinite().all():
            raise UserError(
                "activations at this cut are too large for half precision. Use `train='all'`, or another `cut`."
            )
        return (given.permute(0, 2, 3, 1) if given.ndim == 4 else given).contiguous().numpy()

    probe = next(iter(of(0, indices[:batch_size])))[0]
    started = perf_counter()
    shape = computed(probe).shape[1:]
    rows = max(1, views) * len(indices)
    num_bytes = rows * prod(shape) * 2
    partial = file.with_suffix(PARTIAL)
    with writing(file.parent, _WHAT):
        folder_inside(file.parent)
        with _alone(partial) as sink:
            if not file.exists():
                done = _done(sink, (max(1, views), len(indices), *shape))
                check_room(file.parent, num_bytes - done * prod(shape) * 2, _WHAT)
                if on_plan is not None:
                    on_plan(num_bytes, (perf_counter() - started) / len(probe) * (rows - done))
                for view in range(done // len(indices), max(1, views)):
                    for pictures, _, _ in of(view, indices[max(0, done - view * len(indices)) :]):
                        sink.write(computed(pictures).tobytes())
                        done += len(pictures)
                        if on_progress is not None:
                            on_progress(done, rows)
                sink.flush()
                fsync(sink.fileno())
                Path(sink.name).replace(file)
            else:
                Path(sink.name).unlink(missing_ok=True)
    return Activations(file, np.load(file, mmap_mode="r"), indices)


@contextmanager
def _alone(partial: Path) -> Iterator[IO[bytes]]:
    """The file to write to: that of a process that was stopped, or is making the same and is waited for.

    Where there are no locks it is one of one's own, so that two processes at once do not write into one another's.
    """
    with open_inside(partial) as sink:
        if lock(sink, wait=True) is not None:
            yield sink
            return
    partial.unlink(missing_ok=True)
    with new_partial(partial.parent, f"{partial.stem}-") as sink:
        try:
            yield sink
        finally:
            Path(sink.name).unlink(missing_ok=True)


def _done(sink: IO[bytes], shape: tuple[int, ...]) -> int:
    """Rows that the file has already, cut back to whole ones; an empty file gets its header."""
    header = _header(shape)
    size = sink.seek(0, os.SEEK_END)
    sink.seek(0)
    if sink.read(len(header)) != header:
        sink.truncate(0)
        sink.write(header)
        return 0
    row = prod(shape[2:]) * 2
    rows = (size - len(header)) // row
    sink.truncate(len(header) + rows * row)
    sink.seek(0, os.SEEK_END)
    return rows


def _header(shape: tuple[int, ...]) -> bytes:
    from io import BytesIO

    written = BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f2", "fortran_order": False, "shape": shape})
    return written.getvalue()


def activation_batches(
    stored: Activations,
    indices: Int64[ndarray, " chosen"],
    labels: Int64[ndarray, " chosen"],
    **sampling: Unpack[Sampling],
) -> Batches:
    """One epoch of batches of activations, as `data.batches` has them of images.

    Each image goes through its views in turn, an epoch each, from one that the seed decides.
    """
    seed, epoch = sampling.get("seed", 0), sampling.get("epoch", 0)
    first = np.random.default_rng([seed, 1]).integers(stored.views, size=len(indices))

    def inputs(turn: Turn) -> Float16[Tensor, "batch ..."]:
        views = (first[turn.positions] + epoch + turn.repeats) % stored.views
        return stored.inputs(indices[turn.positions], views)

    return Batches(turns(labels, **sampling), indices, labels, inputs, ahead=stored.values.ndim > 3)
