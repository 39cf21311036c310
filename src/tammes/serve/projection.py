"""The map of a gallery: a place for each item, at once by its two main directions, then by t-SNE when that is done.

t-SNE runs in a process of its own, one core, after everything else: searches do not wait for it. What it found is kept
in the cache folder for the next start.
"""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tammes.io.files import folder_inside, write_atomically
from tammes.report.projection import Way, flat, shown_items
from tammes.serve.rows import MAPPED, Catalogue


@dataclass(frozen=True)
class Map:
    """Where each item stands.

    Attributes:
        way: how it was found.
        numbers: the items, by their place in the catalogue.
        places: within 0..1.
    """

    way: Way
    catalogue: Catalogue
    numbers: Int64[ndarray, " items"]
    places: Float64[ndarray, "items 2"]


class Cartographer:
    """Makes the map of the newest catalogue that it was shown."""

    def __init__(self) -> None:
        self._map: Map | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def working(self) -> bool:
        """Whether a better map is on its way."""
        return self._task is not None and not self._task.done()

    async def map(self, catalogue: Catalogue) -> Map:
        """The best map there is by now; asks for a better one."""
        async with self._one_at_a_time:
            if self._map is None or self._map.catalogue is not catalogue:
                await self.close()
                numbers, vectors = _shown(catalogue)
                kept = await asyncio.to_thread(_kept, vectors)
                if kept is not None:
                    self._map = Map("tsne", catalogue, numbers, kept)
                else:
                    places = await asyncio.to_thread(_by_pca, vectors)
                    self._map = Map("pca", catalogue, numbers, places)
                    if len(numbers) > 10:
                        self._task = asyncio.create_task(self._improve(catalogue, numbers, vectors))
            return self._map

    async def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # a map that could not be made is no reason to fail
                await task

    async def _improve(self, catalogue: Catalogue, numbers: ndarray, vectors: Float32[ndarray, "items dim"]) -> None:
        content = BytesIO()
        np.save(content, vectors)
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tammes.serve.projection"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        # In a thread, which sees to its end also when nobody waits for it any more; of its own, as it takes minutes.
        with ThreadPoolExecutor(1) as waiting:
            loop = asyncio.get_running_loop()
            found, _ = await loop.run_in_executor(waiting, process.communicate, content.getvalue())
        if process.returncode != 0:
            return
        places = np.load(BytesIO(found), allow_pickle=False)
        _keep(vectors, places)
        if self._map is not None and self._map.catalogue is catalogue:
            self._map = Map("tsne", catalogue, numbers, places)


def main() -> None:
    """From vectors on standard input to places on standard output."""
    from threadpoolctl import threadpool_limits

    if hasattr(os, "nice"):
        os.nice(19)
    vectors = np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    content = BytesIO()  # NumPy asks a file for its position, which a pipe has not
    with threadpool_limits(1):
        np.save(content, flat(vectors, "tsne"))
    try:
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the server has stopped meanwhile; what is left is not written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(catalogue: Catalogue) -> tuple[ndarray, ndarray]:
    chosen = shown_items(catalogue.drawn, MAPPED)
    return catalogue.drawn[chosen], catalogue.drawn_vectors[chosen]


def _by_pca(vectors: ndarray) -> ndarray:
    return flat(vectors, "pca") if len(vectors) else np.zeros((0, 2))


def _file(vectors: ndarray) -> Path:
    digest = blake2b(vectors.tobytes(), digest_size=16).hexdigest()
    return cache_folder() / "maps" / f"{digest}.npy"


def _kept(vectors: ndarray) -> ndarray | None:
    try:
        places = np.load(_file(vectors), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return places if places.shape == (len(vectors), 2) and np.isfinite(places).all() else None


def _keep(vectors: ndarray, places: ndarray) -> None:
    content = BytesIO()
    np.save(content, places)
    try:
        folder_inside(_file(vectors).parent)
        write_atomically(_file(vectors), content.getvalue())
    except (OSError, UserError):  # a cache that cannot be written costs the next start a minute
        return


if __name__ == "__main__":
    main()
