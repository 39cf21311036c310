"""The map of a gallery: two coordinates for each item, by PCA at once, then by t-SNE when that is done.

t-SNE runs in a separate process on one core at the lowest priority, so that searches do not wait. Its result is cached.
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
from jaxtyping import Float32, Float64
from numpy import ndarray

from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tammes.io.files import folder_inside, write_atomically
from tammes.report.projection import Way, flat, shown_items
from tammes.serve.rows import MAPPED, Rows


@dataclass(frozen=True)
class Projection:
    """Two coordinates for each item.

    Attributes:
        way: how they were computed.
        rows: the gallery as it was.
        ids: the items.
        points: their coordinates, within 0..1.
    """

    way: Way
    rows: Rows
    ids: list[str]
    points: Float64[ndarray, "items 2"]


class Projector:
    """Computes the projection of the newest rows it was given."""

    def __init__(self) -> None:
        self._projection: Projection | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def working(self) -> bool:
        """Whether a better projection is being computed."""
        return self._task is not None and not self._task.done()

    async def project(self, rows: Rows) -> Projection:
        """The best projection there is by now; starts to compute a better one."""
        async with self._one_at_a_time:
            if self._projection is None or self._projection.rows is not rows:
                await self.close()
                ids, vectors = rows.sample()
                chosen = shown_items(np.arange(len(ids)), MAPPED)
                ids, vectors = [ids[number] for number in chosen.tolist()], vectors[chosen]
                kept = await asyncio.to_thread(_read_cache, vectors)
                if kept is not None:
                    self._projection = Projection("tsne", rows, ids, kept)
                else:
                    points = await asyncio.to_thread(flat, vectors, "pca") if ids else np.zeros((0, 2))
                    self._projection = Projection("pca", rows, ids, points)
                    if len(ids) > 10:
                        self._task = asyncio.create_task(self._improve(rows, ids, vectors))
            return self._projection

    async def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # the server does without a map that failed
                await task

    async def _improve(self, rows: Rows, ids: list[str], vectors: Float32[ndarray, "items dim"]) -> None:
        content = BytesIO()
        np.save(content, vectors)
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tammes.serve.projection"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        # A thread sees to the end of the process also when nobody waits any more; its own, as it takes minutes.
        with ThreadPoolExecutor(1) as waiting:
            loop = asyncio.get_running_loop()
            found, _ = await loop.run_in_executor(waiting, process.communicate, content.getvalue())
        if process.returncode != 0:
            return
        points = np.load(BytesIO(found), allow_pickle=False)
        _write_cache(vectors, points)
        if self._projection is not None and self._projection.rows is rows:
            self._projection = Projection("tsne", rows, ids, points)


def main() -> None:
    """From vectors on standard input to points on standard output."""
    from threadpoolctl import threadpool_limits

    if hasattr(os, "nice"):
        os.nice(19)
    vectors = np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    content = BytesIO()  # NumPy asks for the position in a file, which a pipe does not have
    with threadpool_limits(1):
        np.save(content, flat(vectors, "tsne"))
    try:
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the server has stopped: Python must not write the rest at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _file(vectors: ndarray) -> Path:
    digest = blake2b(vectors.tobytes(), digest_size=16).hexdigest()
    return cache_folder() / "maps" / f"{digest}.npy"


def _read_cache(vectors: ndarray) -> ndarray | None:
    try:
        points = np.load(_file(vectors), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return points if points.shape == (len(vectors), 2) and np.isfinite(points).all() else None


def _write_cache(vectors: ndarray, points: ndarray) -> None:
    content = BytesIO()
    np.save(content, points)
    with suppress(OSError, UserError):  # without a cache the next start computes it again
        folder_inside(_file(vectors).parent)
        write_atomically(_file(vectors), content.getvalue())


if __name__ == "__main__":
    main()
