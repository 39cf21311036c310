"""From images to vectors, by a trained network or by its backbone alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from tammes.data.batches import Batch, batches
from tammes.data.image_cache import Decoded
from tammes.geometry import normalise
from tammes.models.embedder import Embedder
from tammes.training.distributed import by_place

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Items:
    """Embedded items.

    Attributes:
        vectors: what a model makes of them.
        labels: the class of each, a number of `class_names`.
        numbers: of each in its data set, as `images` has them.
        names: what each is called: the path of an image, the number of a vector.
        images: the pictures; None for vectors.
        masks: those of query, gallery and sequence that the data has.
        what: whose they are, in words.
    """

    vectors: Float[np.ndarray, "items dim"]
    labels: Int64[np.ndarray, " items"]
    class_names: tuple[str, ...]
    numbers: Int64[np.ndarray, " items"]
    names: tuple[str, ...]
    images: Decoded | None
    masks: dict[str, np.ndarray]
    what: str


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
    batch_size = embedder.in_a_batch(batch_size)
    places = np.arange(len(indices))
    pictures = batches(images, indices, places, batch_size=batch_size, crop=embedder.size, train=False)
    return vectors(
        embedder, embedder.features, pictures, len(indices), backbone_only=backbone_only, on_progress=on_progress
    )


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
