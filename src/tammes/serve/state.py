"""The shared state of the request handlers: gallery, decoders, uploads and reports."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from time import monotonic
from weakref import WeakValueDictionary

import numpy as np
from cachetools import LRUCache
from jaxtyping import Float32
from numpy import ndarray
from starlette.requests import Request

from tammes.errors import UserError
from tammes.gallery.classification import Classification
from tammes.gallery.filters import ColumnError, parsed
from tammes.serve.decoding import DecoderPool
from tammes.serve.errors import TOO_MANY_UPLOADS, RequestError
from tammes.serve.gallery import GalleryWatcher, ServedGallery
from tammes.serve.limits import Limits
from tammes.serve.models import Neighbour
from tammes.serve.projection import Projector
from tammes.serve.reports import Report, reports_in
from tammes.serve.telemetry import Telemetry
from tammes.serve.uploads import read_upload

_UPLOAD_BYTES = 64_000_000  # of uploaded images that are kept in memory
_THREADS = 32  # that wait for the store and the disk
_LOOK_EVERY = 2.0  # seconds, for changes of the gallery
_REPORTS_LAST = 5.0  # seconds, until the folder is looked at again


@dataclass(frozen=True)
class Upload:
    """An uploaded query image, kept in memory for a while, never on disk.

    Attributes:
        id: unguessable; needed to see the image.
        thumbnail: as a WebP file.
    """

    id: str
    vector: Float32[ndarray, " dim"]
    model: str
    width: int
    height: int
    thumbnail: bytes


@dataclass(frozen=True)
class Search:
    """The parameters of a search: number of items, class (by its displayed name), and filter."""

    k: int
    label: str | None = None
    where: str | None = None
    exact: bool = False


@dataclass(frozen=True)
class Answer:
    """The neighbours of an image, and its classification (None if the gallery has no threshold)."""

    neighbours: list[Neighbour]
    classification: Classification | None


class ServerState:
    """The shared state. Must be started and closed in the same event loop."""

    def __init__(
        self,
        gallery: GalleryWatcher | None,
        folders: Sequence[Path] = (),
        limits: Limits | None = None,
        *,
        token: str | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.token = token
        self.telemetry = Telemetry()
        self.projector = Projector()
        self._watcher = gallery
        self._folders = tuple(folders)
        self._decoders = DecoderPool(self.limits) if gallery is not None else None
        least = _UPLOAD_BYTES // self.limits.remembered  # that one counts for, so that no more of them are kept
        self._uploads: LRUCache[str, Upload] = LRUCache(
            _UPLOAD_BYTES, lambda upload: max(least, len(upload.thumbnail) + upload.vector.nbytes)
        )
        self._slots = UploadSlots(self.limits)
        # Threads of their own: a slow decoding keeps no other request waiting; and the network and searches in memory,
        # which use every core, run one after the other.
        self._decoding = ThreadPoolExecutor(self.limits.uploads_at_once, "decoding")
        self._embedding = ThreadPoolExecutor(1, "embedding")
        self._searching = ThreadPoolExecutor(1, "searching")
        self._reports: dict[str, Report] = {}
        self._reports_at = float("-inf")
        self._watching: asyncio.Task[None] | None = None
        self.failed: Exception | None = None  # why it did not start

    async def start(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "answering"))
        if self._watcher is not None:
            self.telemetry.items.set(len(self.gallery))
            self._watching = asyncio.create_task(self._watch(self._watcher))

    async def close(self) -> None:
        """After the last request was answered."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.projector.close()
        if self._watcher is not None and self._decoders is not None:
            await asyncio.to_thread(self._decoders.close)
        for threads in (self._decoding, self._embedding, self._searching):
            threads.shutdown(wait=False)

    @property
    def has_gallery(self) -> bool:
        return self._watcher is not None

    @property
    def has_reports(self) -> bool:
        return bool(self._folders)

    @property
    def gallery(self) -> ServedGallery:
        """The current gallery. Read it once per request, as it may be replaced at any time."""
        if self._watcher is None:
            raise RequestError(404, "no gallery is served here, only reports: tammes serve GALLERY serves one.")
        return self._watcher.current

    async def reports(self) -> dict[str, Report]:
        if monotonic() - self._reports_at > _REPORTS_LAST:
            with suppress(OSError):  # a run was removed at this moment: the next look finds what is left
                self._reports = await asyncio.to_thread(reports_in, self._folders)
            self._reports_at = monotonic()
        return self._reports

    def upload(self, name: str, gallery: ServedGallery) -> Upload:
        """An earlier upload."""
        kept = self._uploads.get(name)
        if kept is None or kept.model != gallery.store.about.model:
            raise RequestError(404, "this image is no longer in memory. Search with it again.")
        return kept

    async def receive_upload(self, request: Request, gallery: ServedGallery) -> Upload:
        """Decode and embed the image in a request when a slot is free, and keep it for a while."""
        assert self._decoders is not None
        if gallery.preprocessing is None:
            raise RequestError(422, gallery.why_no_images())
        loop = asyncio.get_running_loop()
        async with self._slots.slot(request.client.host if request.client else ""):
            content = await read_upload(request)
            if not content:
                raise RequestError(400, "the body is empty: send the image file.")
            self.telemetry.upload_bytes.inc(len(content))
            with self.telemetry.decode_seconds.time():
                decode = partial(self._decoders.decode, content, gallery.preprocessing)
                decoded = await loop.run_in_executor(self._decoding, decode)
            with self.telemetry.embed_seconds.time():
                vector = await loop.run_in_executor(self._embedding, gallery.embed, decoded.pixels)
        model = gallery.store.about.model
        upload = Upload(token_urlsafe(12), vector, model, decoded.width, decoded.height, decoded.thumbnail)
        self._uploads[upload.id] = upload
        return upload

    async def search(
        self, gallery: ServedGallery, vector: Float32[ndarray, " dim"], asked: Search, *, leave_out: str | None = None
    ) -> Answer:
        """The nearest items to a vector, among those that were loaded.

        Args:
            gallery: the gallery whose model made the vector.
            leave_out: the id of the query item, which is not found.
        """
        rows = gallery.rows
        try:
            where = None if asked.where is None else parsed(asked.where)
        except UserError as error:
            raise RequestError(400, str(error)) from None
        search = partial(
            gallery.neighbours,
            np.asarray(vector, dtype=np.float32)[None],
            asked.k,
            label=None if asked.label is None else rows.real_label(asked.label),
            leave_out=[None if leave_out is None else rows.path(leave_out)],
            exact=asked.exact,
            where=where,
        )
        with self.telemetry.search_seconds.time():
            threads = self._searching if rows.complete and where is None else None
            try:
                (result,) = await asyncio.get_running_loop().run_in_executor(threads, search)
            except ColumnError as error:
                raise RequestError(400, str(error)) from None
        found = [
            Neighbour(**dict(rows.item(hit.id)), distance=hit.distance, within_threshold=result.within(hit))
            for hit in result.hits
            if hit.id in rows
        ]
        return Answer(found, result.classification)

    async def _watch(self, watcher: GalleryWatcher) -> None:
        while True:
            await asyncio.sleep(max(_LOOK_EVERY, watcher.pause))
            if await asyncio.to_thread(watcher.refresh):
                self.telemetry.renewed.inc()
                self.telemetry.items.set(len(self.gallery))


class UploadSlots:
    """Slots for concurrent uploads; a single client never gets all of them."""

    def __init__(self, limits: Limits) -> None:
        self._seconds = limits.wait_seconds
        self._free = asyncio.Semaphore(limits.uploads_at_once)
        self._of_one = max(1, limits.uploads_at_once - 1)
        self._clients: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        own = self._clients.setdefault(client, asyncio.Semaphore(self._of_one))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._seconds):
                    await held.enter_async_context(own)
                    await held.enter_async_context(self._free)
            except TimeoutError:
                raise RequestError(503, TOO_MANY_UPLOADS, retry_after=1) from None
            yield
