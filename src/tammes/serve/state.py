"""What the handlers of a site share: the gallery, the decoders, the pictures that were searched with, the reports."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from time import monotonic

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from starlette.requests import Request

from tammes.gallery import Hit
from tammes.gallery.classification import Proposal
from tammes.serve.decoding import Decoders
from tammes.serve.errors import RefusedError
from tammes.serve.gallery import Gallery, Watched
from tammes.serve.limits import Limits
from tammes.serve.lru_cache import Memory
from tammes.serve.projection import Cartographer
from tammes.serve.reports import Report, reports_in
from tammes.serve.rows import Catalogue, Item
from tammes.serve.telemetry import Telemetry
from tammes.serve.uploads import picture_in

_REMEMBERED_BYTES = 64_000_000
_THREADS = 32  # that wait for the store and the disk
_LOOKED_EVERY = 2.0  # seconds, for changes of the gallery
_REPORTS_LAST = 5.0  # seconds, until the folder is looked at again


@dataclass(frozen=True)
class Upload:
    """A picture that was searched with; kept in memory for a while, never on disk.

    Attributes:
        id: cannot be guessed: whoever has not been given it does not see the picture.
        shown: a small picture of it, as a WebP file.
    """

    id: str
    vector: Float32[ndarray, " dim"]
    model: str
    width: int
    height: int
    shown: bytes


@dataclass(frozen=True)
class Neighbour:
    """An item that was found; `within`: whether its distance is within the threshold, where there is one."""

    item: Item
    distance: float
    within: bool | None


@dataclass(frozen=True)
class Found:
    """What is near an image, and what the image may be; None where the gallery has no threshold."""

    neighbours: list[Neighbour]
    judged: Proposal | None


class Site:
    """Everything that is served. To be started and closed in the same event loop."""

    def __init__(
        self,
        gallery: Watched | None,
        folders: Sequence[Path] = (),
        limits: Limits | None = None,
        *,
        token: str | None = None,
        decoders: int = 2,
    ) -> None:
        self.limits = limits or Limits()
        self.token = token
        self.telemetry = Telemetry()
        self.cartographer = Cartographer()
        self._watched = gallery
        self._folders = tuple(folders)
        self._decoders = Decoders(self.limits, decoders) if gallery is not None else None
        self._uploads: Memory[str, Upload] = Memory(
            _REMEMBERED_BYTES, lambda upload: len(upload.shown) + upload.vector.nbytes, self.limits.remembered
        )
        self._places = Places(self.limits)
        # Threads of their own: whoever decodes for long keeps nobody else waiting, and searches in memory, which use
        # every core by themselves, come one after the other.
        self._decoding = ThreadPoolExecutor(self.limits.uploads_at_once, "decoding")
        self._searching = ThreadPoolExecutor(1, "searching")
        self._reports: dict[str, Report] = {}
        self._reports_at = float("-inf")
        self._watching: asyncio.Task[None] | None = None
        self.failed: Exception | None = None  # why it did not start

    async def start(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "answering"))
        if self._watched is not None:
            self.telemetry.items.set(len(self.gallery.catalogue))
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """After the last request was answered."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.cartographer.close()
        if self._watched is not None and self._decoders is not None:
            await asyncio.to_thread(self._decoders.close)
            await asyncio.to_thread(self._watched.now.close)
        for threads in (self._decoding, self._searching):
            threads.shutdown(wait=False)

    @property
    def has_gallery(self) -> bool:
        return self._watched is not None

    @property
    def has_reports(self) -> bool:
        return bool(self._folders)

    @property
    def gallery(self) -> Gallery:
        if self._watched is None:
            raise RefusedError(404, "no gallery is served here, only reports: tammes serve GALLERY serves one.")
        return self._watched.now

    async def reports(self) -> dict[str, Report]:
        if monotonic() - self._reports_at > _REPORTS_LAST:
            with suppress(OSError):  # a run was removed at this moment: the next look finds what is left
                self._reports = await asyncio.to_thread(reports_in, self._folders)
            self._reports_at = monotonic()
        return self._reports

    def found(self, item: str, gallery: Gallery | None = None) -> tuple[Catalogue, int]:
        """The catalogue that knows an item, and where it stands in it."""
        catalogue = (self.gallery if gallery is None else gallery).catalogue
        number = catalogue.number(item)
        if number is None:
            raise RefusedError(404, f"the gallery has no item {item!r}.")
        return catalogue, number

    def upload(self, name: str, gallery: Gallery | None = None) -> Upload:
        """A picture that was searched with."""
        gallery = self.gallery if gallery is None else gallery
        kept = self._uploads.get(name)
        if kept is None or kept.model != gallery.opened.store.about.model:
            raise RefusedError(404, "this picture is not kept any more. Search with it again.")
        return kept

    async def uploaded(self, request: Request, gallery: Gallery) -> Upload:
        """The picture in a request, when there is a place for it."""
        async with self._places.place(request.client.host if request.client else ""):
            return await self.embedded(await picture_in(request), gallery)

    async def embedded(self, content: bytes, gallery: Gallery | None = None) -> Upload:
        """A file's content as a picture to search with, which is then kept for a while."""
        assert self._decoders is not None
        gallery = self.gallery if gallery is None else gallery
        if not content:
            raise RefusedError(400, "the body is empty: send the picture's file.")
        self.telemetry.upload_bytes.inc(len(content))
        with self.telemetry.decode_seconds.time():
            decode = partial(self._decoders.decode, content, gallery.view)
            decoded = await asyncio.get_running_loop().run_in_executor(self._decoding, decode)
        with self.telemetry.embed_seconds.time():
            vector = await asyncio.wrap_future(gallery.embedding.vector(decoded.pixels))
        upload = Upload(
            token_urlsafe(12), vector, gallery.opened.store.about.model, decoded.width, decoded.height, decoded.shown
        )
        self._uploads.put(upload.id, upload)
        return upload

    async def neighbours(
        self, vector: Float32[ndarray, " dim"], k: int, label: str | None, *, leave_out: str | None = None,
        exact: bool = False, gallery: Gallery | None = None,
    ) -> Found:  # fmt: skip
        """The nearest items to a vector; those that have come since the catalogue was read are not among them.

        Args:
            gallery: the one whose model made the vector, where another may have taken its place since.
        """
        gallery = self.gallery if gallery is None else gallery
        catalogue = gallery.catalogue
        with self.telemetry.search_seconds.time():
            given = np.asarray(vector, dtype=np.float32)
            search = partial(gallery.search, given, k, label=label, leave_out=leave_out, exact=exact)
            where = self._searching if catalogue.complete else None
            loop = asyncio.get_running_loop()
            hits: list[Hit] = await loop.run_in_executor(where, search)
            judged = await loop.run_in_executor(where, partial(gallery.judged, given, leave_out))
        known = [(hit, catalogue.number_of_path(hit.path)) for hit in hits]
        found = [
            Neighbour(
                catalogue.item(number), hit.distance, None if judged is None else hit.distance <= judged.threshold
            )
            for hit, number in known
            if number is not None
        ]
        return Found(found, judged)

    async def _watch(self) -> None:
        assert self._watched is not None
        while True:
            await asyncio.sleep(_LOOKED_EVERY)
            if await asyncio.to_thread(self._watched.renew):
                self.telemetry.renewed.inc()
                self.telemetry.items.set(len(self.gallery.catalogue))


class Places:
    """Where uploads are read and looked at: so many at once, and of one client never all of them."""

    def __init__(self, limits: Limits) -> None:
        self._seconds = limits.wait_seconds
        self._free = asyncio.Semaphore(limits.uploads_at_once)
        self._of_one = max(1, limits.uploads_at_once - 1)
        self._clients: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        own, number = self._clients.get(client, (asyncio.Semaphore(self._of_one), 0))
        self._clients[client] = own, number + 1
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._seconds):
                        await held.enter_async_context(own)
                        await held.enter_async_context(self._free)
                except TimeoutError:
                    raise RefusedError(503, "too many pictures at once. Try again in a moment.", again_in=1) from None
                yield
        finally:
            _, number = self._clients.pop(client)
            if number > 1:
                self._clients[client] = own, number - 1
