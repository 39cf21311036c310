"""Pixels become vectors, in a thread that has the network to itself."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from tammes.models.embedder import Embedder
from tammes.serve.errors import RequestError


class EmbeddingWorker:
    """Embeds one image after the other: no more than `uploads_at_once` wait, too few for a batch. To be closed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._thread = ThreadPoolExecutor(1, "embedding")

    def vector(self, pixels: UInt8[ndarray, "channels height width"]) -> "Future[Float32[ndarray, ' dim']]":
        """The unit vector of an image, when its turn has come."""
        try:
            return self._thread.submit(self._embed, pixels)
        except RuntimeError:  # it is closed
            message = "the server is stopping or its gallery was rebuilt. Try again in a moment."
            raise RequestError(503, message, retry_after=1) from None

    def close(self) -> None:
        """Finish what waits, and end."""
        self._thread.shutdown()

    def _embed(self, pixels: ndarray) -> ndarray:
        with torch.inference_mode():
            images = torch.from_numpy(pixels[None]).to(self._embedder.mean.device)
            vector = np.asarray(self._embedder(images)[0].float().cpu().numpy())
        if not np.isfinite(vector).all():
            raise ValueError("the network gave a vector that is not finite")
        return vector
