"""From images to vectors, by a trained network or by its backbone alone."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from tammes.embedder import Embedder
from tammes.geometry import normalise
from tammes.loading import Decoded, batches


@torch.inference_mode()
def embed(
    embedder: Embedder,
    images: Decoded,
    indices: Int64[np.ndarray, " images"],
    *,
    batch_size: int = 256,
    backbone_only: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Float32[np.ndarray, "images dim"]:
    """Unit vectors of the images with these numbers, from their centre crops, in evaluation mode.

    Args:
        backbone_only: the features of the backbone instead: what the network knew before the new layers were trained.
    """
    was_training, device = embedder.training, embedder.mean.device
    embedder.eval()
    network = (lambda pictures: normalise(embedder.features(pictures))) if backbone_only else embedder
    rows, done = [], 0
    nothing = np.zeros(len(indices), dtype=np.int64)
    for pictures, _, _ in batches(images, indices, nothing, batch_size=batch_size, crop=embedder.size, train=False):
        rows.append(network(pictures.to(device)).float().cpu())
        done += len(pictures)
        if on_progress is not None:
            on_progress(done, len(indices))
    embedder.train(was_training)
    return torch.cat(rows).numpy()
