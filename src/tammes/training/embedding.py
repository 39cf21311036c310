"""From images to vectors, by a trained network or by its backbone alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from tammes.data import READERS, Dataset, flat, open_dataset
from tammes.data.batches import Batch, batches
from tammes.data.image_cache import Decoded, decode
from tammes.data.vector_files import write_vectors
from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.io.console import KEPT, progress
from tammes.models.backbones.base import Backbone
from tammes.models.embedder import DIM, Embedder
from tammes.models.feature_cache import Activations, Frozen, activation_batches, activations
from tammes.training.distributed import by_place

Progress = Callable[[int, int], None]


@runtime_checkable
class Pictures(Protocol):
    """Images by their numbers: (channels, height, width)."""

    def __getitem__(self, number: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Items:
    """Embedded items.

    Attributes:
        vectors: what a model makes of them.
        labels: the class of each, a number of `class_names`.
        numbers: of each in its data set, as `images` has them.
        names: what each is called: the path of an image, the number of a vector.
        images: the pictures, by these numbers; None for vectors.
        masks: those of query, gallery and sequence that the data has.
        what: whose they are, in words.
    """

    vectors: Float[np.ndarray, "items dim"]
    labels: Int64[np.ndarray, " items"]
    class_names: tuple[str, ...]
    numbers: Int64[np.ndarray, " items"]
    names: tuple[str, ...]
    images: Pictures | None
    masks: dict[str, np.ndarray]
    what: str


def decode_for(wants: Backbone | Embedder, dataset: Dataset, *, skip_bad: bool, verify: bool = False) -> Decoded:
    """The images of a data set as a network wants them.

    Args:
        verify: decode them again, also where the cache has them.
    """
    with progress("decoding images", KEPT) as on_progress:
        return decode(
            dataset,
            mode=wants.mode,
            shorter_side=wants.shorter_side,
            on_progress=on_progress,
            skip_bad=skip_bad,
            again=verify,
        )


def embed(
    embedder: Embedder,
    images: Decoded,
    indices: Int64[np.ndarray, " images"],
    *,
    batch_size: int | None = None,
    backbone_only: bool = False,
    on_progress: Progress | None = None,
) -> Float32[np.ndarray, "images dim"]:
    """Unit vectors of the images with these numbers, from their centre crops, in evaluation mode.

    Args:
        batch_size: images at a time; None: as many as the device does best.
        backbone_only: the features of the backbone instead: what the network knew before the new layers were trained.
    """
    batch_size, places, own = embedder.in_a_batch(batch_size), np.arange(len(indices)), embedder.eval_transform
    how: dict[str, Any] = {"batch_size": batch_size, "train": False}
    if own is not None:  # nobody knows what its images depend on
        pictures = batches(images, indices, places, crop=embedder.size, transform=own, **how)
        of, number = embedder.features, len(indices)
        return vectors(embedder, of, pictures, number, backbone_only=backbone_only, on_progress=on_progress)
    kept = features_of(embedder, images, indices, batch_size=batch_size, on_progress=on_progress)
    stored = activation_batches(kept, indices, places, **how)
    return vectors(embedder, lambda features: features, stored, len(indices), backbone_only=backbone_only)


def features_of(
    embedder: Embedder,
    images: Decoded,
    indices: Int64[np.ndarray, " images"],
    *,
    batch_size: int | None = None,
    on_progress: Progress | None = None,
) -> Activations:
    """What the backbone makes of the centre of images, in evaluation mode; computed once, and kept."""
    was_training = embedder.training
    embedder.eval()
    found = activations(
        Frozen(embedder, None, marks=False), images, indices, crop=embedder.size, batch_size=batch_size,
        device=embedder.mean.device, on_progress=on_progress,
    )  # fmt: skip
    embedder.train(was_training)
    return found


@torch.inference_mode()
def vectors(
    embedder: Embedder,
    features: Callable[[Tensor], Tensor],
    inputs: Iterable[Batch],
    number: int,
    *,
    backbone_only: bool = False,
    on_progress: Progress | None = None,
) -> Float32[np.ndarray, "images dim"]:
    """Unit vectors of batches of whatever `features` turns into the backbone's features: images, or activations.

    Args:
        inputs: with the place of each among all, from 0, for a label; of several processes, what this one has of them.
        number: how many there are in all.
    """
    was_training, device = embedder.training, embedder.mean.device
    embedder.eval()
    rows, at, done = [], [], 0
    for given, places, _ in inputs:
        found = features(given.to(device))
        unit = normalise(embedder.of_backbone(found)) if backbone_only else embedder.embedding(found)
        rows.append(unit.float().cpu())
        at.append(places)
        done += len(given)
        if on_progress is not None:
            on_progress(done, number)
    embedder.train(was_training)
    return by_place(rows, at, number).numpy()


def embed_images(
    embedder: Embedder,
    data: str,
    out: Path,
    *,
    whiten: bool = False,
    batch_size: int | None = None,
    skip_bad: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Write a .npz or .parquet file with the vectors of images, their labels and paths; what was written.

    A .npy file has the vectors alone.

    Args:
        data: any folder of images, with sub-folders or without, or any other data.
        whiten: with their features whitened: within classes, or without classes by PCA.
        verify: decode the images again, also where the cache has them.
    """
    path = Path(data)
    # Any folder will do: what is embedded needs no classes.
    plain = path.is_dir() and not any(recognised(path) for recognised, _ in READERS.values())
    dataset = flat(path) if plain else open_dataset(data)
    images = decode_for(embedder, dataset, skip_bad=skip_bad, verify=verify)
    chosen = images.without_bad(np.arange(len(dataset)))
    with progress("embedding", f"Nothing was written. {KEPT}") as on_progress:
        if whiten:
            features = features_of(embedder, images, chosen, batch_size=batch_size, on_progress=on_progress)
            own = dataset.labels[chosen]
            labels = torch.from_numpy(own) if len(np.unique(own)) > 1 else None
            embedder = embedder.closed_form(features.inputs(chosen), labels, dim=DIM)
        found = embed(embedder, images, chosen, batch_size=batch_size, on_progress=on_progress)
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        first = dataset.keys[chosen[finite.argmin()]]
        raise UserError(f"the vector of {first} is not finite: the model cannot be used. Train it again.")
    labels, paths = np.array(dataset.class_names)[dataset.labels[chosen]], np.array(dataset.keys)[chosen]
    write_vectors(out, [found], found.shape, found.dtype, {"labels": labels, "paths": paths})
    return {"images": len(found), "dim": found.shape[1], "skipped": len(images.bad)}
