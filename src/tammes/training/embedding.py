"""Embed images: from images to vectors, by a network or by its backbone alone."""

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
from tammes.geometry import normalise
from tammes.io.console import KEPT, progress
from tammes.io.environment import launched
from tammes.models.backbones.base import Backbone
from tammes.models.embedder import DIM, Embedder
from tammes.models.feature_cache import Activations, Frozen, activation_batches, activations
from tammes.training import distributed
from tammes.training.distributed import agreed, by_place, is_first, one_a_host_first, same_everywhere, take_over

Progress = Callable[[int, int], None]


@runtime_checkable
class Images(Protocol):
    """Images by their index: (channels, height, width)."""

    def __getitem__(self, number: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Items:
    """Embedded items.

    Attributes:
        vectors: the embeddings.
        labels: the class of each item, an index of `class_names`.
        numbers: the index of each item in its data set and in `images`.
        names: the path of an image, or the number of a vector.
        images: the images by `numbers`; None for vectors.
        masks: the arrays query, gallery and sequence, if the data has them.
        what: a description, such as "the test classes".
    """

    vectors: Float[np.ndarray, "items dim"]
    labels: Int64[np.ndarray, " items"]
    class_names: tuple[str, ...]
    numbers: Int64[np.ndarray, " items"]
    names: tuple[str, ...]
    images: Images | None
    masks: dict[str, np.ndarray]
    what: str


def decode_for(wants: Backbone | Embedder, dataset: Dataset, *, skip_bad: bool, verify: bool = False) -> Decoded:
    """Decode the images of a data set for a network.

    Args:
        verify: decode again, ignoring the cache.
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
    """Unit vectors of images, from their centre crops, in evaluation mode.

    With several processes, each embeds some batches, and all get all vectors.

    Args:
        batch_size: images at a time; None for the best number for the device.
        backbone_only: return the normalised features of the backbone instead of embeddings.
    """
    batch_size, transform = embedder.in_a_batch(batch_size), embedder.eval_transform
    places, how = own_places(len(indices), batch_size), dict[str, Any](batch_size=batch_size, train=False)
    own = indices[places]
    inputs: Iterable[Batch] = ()  # a process may have nothing to do
    if transform is not None:  # features of a custom transform cannot be cached
        if len(own):
            inputs = batches(images, own, places, crop=embedder.size, transform=transform, **how)
        of = embedder.features
        return vectors(embedder, of, inputs, len(indices), backbone_only=backbone_only, on_progress=on_progress)
    kept = agreed(lambda: features_of(embedder, images, own, batch_size=batch_size, on_progress=on_progress))
    if len(own):
        inputs = activation_batches(kept, own, places, **how)
    return vectors(embedder, lambda features: features, inputs, len(indices), backbone_only=backbone_only)


def own_places(number: int, batch_size: int) -> Int64[np.ndarray, " own"]:
    """The images that this process embeds: whole batches of those that a single process would have."""
    batch = np.arange(number) // batch_size
    return np.flatnonzero(batch % distributed.number() == distributed.rank())


def features_of(
    embedder: Embedder,
    images: Decoded,
    indices: Int64[np.ndarray, " images"],
    *,
    batch_size: int | None = None,
    on_progress: Progress | None = None,
) -> Activations:
    """The backbone's features of centre crops, in evaluation mode; from the cache or computed now."""
    was_training = embedder.training
    embedder.eval()
    found = activations(
        Frozen(embedder, None, marks=False), images, indices, crop=embedder.size, batch_size=batch_size,
        device=embedder.mean.device, together=distributed.number() > 1, on_progress=on_progress,
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
    """Unit vectors of batches of images or activations.

    Args:
        features: maps inputs to the backbone's features.
        inputs: the batches of this process, with positions in place of labels.
        number: the number of items over all processes.
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
    """Write a .npz or .parquet file with the vectors of images, their labels and paths. Returns a summary.

    A .npy file has the vectors alone. With several processes (`distributed.joined`), each embeds a share of the images
    and the first writes.

    Args:
        data: a folder of images, with or without sub-folders, or any other data.
        whiten: whiten the features within classes, or by PCA if there are no classes.
        verify: decode the images again, ignoring the cache.
    """
    path = Path(data)
    # A plain folder needs no sub-folders, as embedding needs no classes.
    plain = path.is_dir() and not any(recognised(path) for recognised, _ in READERS.values())

    def decoded() -> tuple[Dataset, Decoded]:
        dataset = flat(path) if plain else open_dataset(data)
        return dataset, decode_for(embedder, dataset, skip_bad=skip_bad, verify=verify and launched().local_rank == 0)

    dataset, images = one_a_host_first(decoded)
    chosen = images.without_bad(np.arange(len(dataset)))
    with progress("embedding", f"Nothing was written. {KEPT}") as on_progress:
        if whiten:
            places = own_places(len(chosen), embedder.in_a_batch(batch_size))
            own = chosen[places]
            kept = agreed(lambda: features_of(embedder, images, own, batch_size=batch_size, on_progress=on_progress))
            rows = [kept.inputs(own)] if len(own) else []
            features = by_place(rows, [torch.from_numpy(places)], len(chosen))
            classes = torch.from_numpy(dataset.labels[chosen])
            embedder = embedder.closed_form(features, classes if len(classes.unique()) > 1 else None, dim=DIM)
            take_over(list(embedder.state_dict().values()))
        found = embed(embedder, images, chosen, batch_size=batch_size, on_progress=on_progress)
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        first = dataset.keys[chosen[finite.argmin()]]
        raise same_everywhere(f"the vector of {first} is not finite: the model is unusable. Train it again.")
    labels, paths = np.array(dataset.class_names)[dataset.labels[chosen]], np.array(dataset.keys)[chosen]
    columns = {"labels": labels, "paths": paths}
    agreed(lambda: write_vectors(out, [found], found.shape, found.dtype, columns) if is_first() else None)
    return {"images": len(found), "dim": found.shape[1], "skipped": len(images.bad)}
