"""Export a trained model: ONNX, torch.export, safetensors, or a folder for the hub.

Every export is compared with PyTorch on real images before it is written.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray
from torch import nn

from tammes import __version__
from tammes.errors import UserError
from tammes.models.embedder import Embedder

LARGEST = 1e-4  # difference of a number of a unit vector that still is rounding

Runner = Callable[[UInt8[ndarray, "images channels height width"]], Float32[ndarray, "images dim"]]


def for_export(embedder: Embedder) -> Embedder:
    """An equivalent copy on the CPU, in evaluation mode, with contiguous weights."""
    copied = deepcopy(embedder).cpu().eval()
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.contiguous()
    return copied


def described(embedder: Embedder) -> dict[str, Any]:
    """The description of preprocessing and vectors, for the JSON file of an export."""
    return {
        "made_by": f"tammes {__version__}",
        "embedder": asdict(embedder.config),
        "preprocessing": {
            "mode": embedder.mode,
            "upright": "turned as its EXIF orientation says",
            "transparent": "becomes white",
            "resize": {"shorter_side": embedder.shorter_side, "filter": "Lanczos, as Pillow has it, to 8 bits"},
            "crop": {"size": embedder.size, "where": "centre"},
            "layout": "channels, height, width",
            "range": [0, 255],
            "mean_and_spread": "taken out inside the model",
            "mean": embedder.mean.flatten().tolist(),
            "std": embedder.std.flatten().tolist(),
        },
        "vectors": {"dim": vector_size(embedder), "length": 1, "compare_by": "Euclidean distance, or the dot product"},
    }


def vector_size(embedder: Embedder) -> int:
    """The dimension of the vectors."""
    config = embedder.config
    return config.class_dim if config.embedding == "last" and config.class_dim is not None else config.dim


def of_torch(network: nn.Module) -> Runner:
    """A network as a runner."""

    def run(images: ndarray) -> ndarray:
        with torch.inference_mode():
            vectors: ndarray = network(torch.from_numpy(images).float()).numpy()
        return vectors

    return run


def check_difference(
    vectors: Float32[ndarray, "images dim"], expected: Float32[ndarray, "images dim"], *, largest: float = LARGEST
) -> float:
    """The largest difference between two sets of vectors.

    Raises:
        UserError: it is more than rounding.
    """
    difference = float(np.abs(vectors - expected).max())
    if not difference <= largest:  # so that NaN is refused too
        raise UserError(
            f"the exported model differs from PyTorch by {difference:.2g} on {len(vectors)} images, more than"
            f" {largest:g}: nothing was written."
        )
    return difference


def images_per_second(
    run: Runner, images: UInt8[ndarray, "images channels height width"], *, seconds: float = 1.0
) -> float:
    """Images per second: the best batch within this time, after a warm-up."""
    run(images)
    best, started = float("inf"), perf_counter()
    while True:
        before = perf_counter()
        run(images)
        best = min(best, perf_counter() - before)
        if perf_counter() - started > seconds:
            return len(images) / best
