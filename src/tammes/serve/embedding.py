"""Pixels become vectors: images that wait while the network works go through it together."""

from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from tammes.models.embedder import Embedder
from tammes.serve.errors import RequestError

_TOGETHER = 16


class EmbeddingWorker:
    """A thread that has the network to itself. To be closed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._waiting: SimpleQueue[tuple[ndarray, Future[ndarray]] | None] = SimpleQueue()
        self._closed = False
        self._lock = Lock()  # nothing is put after the end
        self._thread = Thread(target=self._work, name="embedding", daemon=True)
        self._thread.start()

    def vector(self, pixels: UInt8[ndarray, "channels height width"]) -> "Future[Float32[ndarray, ' dim']]":
        """The unit vector of an image, when its turn has come."""
        result: Future[ndarray] = Future()
        with self._lock:
            if self._closed:
                raise RequestError(
                    503, "the server is stopping or its gallery was rebuilt. Try again in a moment.", retry_after=1
                )
            self._waiting.put((pixels, result))
        return result

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        going_on = True
        while going_on:
            batch, going_on = self._next()
            if not batch:
                continue
            try:
                pixels = torch.from_numpy(np.stack([each for each, _ in batch]))
                with torch.inference_mode():
                    vectors = self._embedder(pixels.to(self._embedder.mean.device)).float().cpu().numpy()
                if not np.isfinite(vectors).all():
                    raise ValueError("the network gave a vector that is not finite")
            except Exception as error:  # those who wait for this batch are told, and the thread continues
                for _, result in batch:
                    result.set_exception(error)
                continue
            for (_, result), vector in zip(batch, vectors, strict=True):
                result.set_result(vector)

    def _next(self) -> tuple[list[tuple[ndarray, "Future[ndarray]"]], bool]:
        """What waits now, at least one; and whether there is more to come."""
        batch = []
        given = self._waiting.get()
        while given is not None:
            if given[1].set_running_or_notify_cancel():  # a client that has gone needs no vector
                batch.append(given)
            if len(batch) == _TOGETHER:
                return batch, True
            try:
                given = self._waiting.get_nowait()
            except Empty:
                return batch, True
        return batch, False
