"""The served gallery: searches, thumbnails and files by item id, kept up to date."""

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Literal

import numpy as np
import torch
from cachetools import LRUCache
from jaxtyping import Float32, UInt8
from numpy import ndarray
from typing_extensions import Unpack

from tammes.data.images import open_small
from tammes.errors import UserError
from tammes.gallery import Hit, open_gallery
from tammes.gallery.gallery import Gallery, SearchOptions
from tammes.gallery.items import THUMBNAIL
from tammes.gallery.trust import trusted_roots
from tammes.serve.decoding import Preprocessing
from tammes.serve.errors import RequestError
from tammes.serve.rows import Rows, escaped

_THUMBNAILS = 64_000_000  # bytes of thumbnails that are kept in memory
_THUMBNAIL_BYTES = 1_000_000  # of one
_FAR_AWAY, _AFTER_FAILURE = 30.0, 20.0  # seconds between two looks
_AHEAD = 64  # thumbnails that are read from the store together
# The kinds of file that browsers show, by their first bytes.
_KINDS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


class ServedGallery(Gallery):
    """A gallery with its items in memory.

    `rows` is replaced when the gallery changes: read the attribute once for consistent answers.
    """

    def __init__(self, uri: str, model: str | Path | None = None, on: Literal["auto", "cpu"] = "auto") -> None:
        super().__init__(uri, model, device=on, create=False)
        view = self.embedder if self.takes_images else None
        self.preprocessing = None if view is None else Preprocessing(view.mode, view.shorter_side, view.size)
        self.rows = Rows(self.store)
        self._thumbnails: LRUCache[tuple[str, str], bytes] = LRUCache(_THUMBNAILS, len)
        self._lock = Lock()  # of the thumbnails

    def embed(self, pixels: UInt8[ndarray, "channels height width"]) -> Float32[ndarray, " dim"]:
        """The unit vector of an image. One at a time, as at most `uploads_at_once` wait, too few for a batch."""
        with torch.inference_mode():
            images = torch.from_numpy(pixels[None]).to(self.embedder.mean.device)
            vector = np.asarray(self.embedder(images)[0].float().cpu().numpy())
        if not np.isfinite(vector).all():
            raise ValueError("the network gave a vector that is not finite")
        return vector

    @property
    def takes_images(self) -> bool:
        """Whether it can be searched by images: otherwise by its items and by vectors alone."""
        return self.model.embeds

    def why_no_images(self) -> str:
        """The error for a search by image in a gallery without a model for images."""
        made = "of vectors of a model unknown here" if self.model.kind == "vectors" else "by a module that is not here"
        return f"this gallery was made {made}: search by one of its items, or by a vector."

    @property
    def items_word(self) -> str:
        """The word for its items."""
        return "vectors" if self.model.kind == "vectors" else "images"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        return escaped(Path(self.uri.rstrip("/")).name or self.uri)

    def nearest(
        self, vectors: Float32[ndarray, "queries dim"], k: int, **how: Unpack[SearchOptions]
    ) -> list[list[Hit]]:
        """Search in memory if all vectors are there; otherwise, and with a filter, in the store."""
        rows, label = self.rows, how.get("label")
        if not rows.complete or how.get("where") is not None:
            return self.store.search(vectors, k, **how)
        without = how.get("leave_out") or [None] * len(vectors)
        pairs = zip(vectors, without, strict=True)
        return [rows.search(vector, k, label=label, leave_out=path) for vector, path in pairs]

    def vector(self, item: str) -> Float32[ndarray, " dim"]:
        rows = self.rows
        return rows.vector(item) if rows.complete else self.store.get([rows.path(item)])[0].vector

    def thumbnail(self, item: str) -> bytes:
        """The thumbnail of an item, as a WebP file."""
        kept = self.load_thumbnails([item]).get(item)
        if not kept:
            raise RequestError(404, "this item has no thumbnail.")
        return kept

    def load_thumbnails(self, items: Sequence[str]) -> dict[str, bytes]:
        """The thumbnails of some items; missing ones are read together, as one read of the store costs like many."""
        rows = self.rows
        keys = {rows.path(item): (item, rows.mark(item)) for item in items[:_AHEAD] if item in rows}
        with self._lock:
            kept = {path: self._thumbnails[key] for path, key in keys.items() if key in self._thumbnails}
        missing = [path for path in keys if path not in kept]
        try:
            found = self.store.get(missing) if missing else []
        except UserError:  # one of them is gone since: a browser asks for the others one by one
            found = []
        # An untrusted gallery may hold anything, and a browser would decode it: only real thumbnails are sent.
        new = {row.path: row.thumbnail if _is_thumbnail(row.thumbnail) else b"" for row in found}
        with self._lock:
            self._thumbnails.update({keys[path]: content for path, content in new.items()})
        return {keys[path][0]: content for path, content in {**kept, **new}.items()}

    def untrusted_roots(self) -> list[str]:
        """Folders named by the gallery that were not indexed on this machine; their files are not served."""
        return [root for root in self.store.about.roots if not trusted_roots(self.uri, [root])]

    def file(self, item: str) -> tuple[Path, str]:
        """The file of an item and its media type; an error unless it is an image in a trusted folder."""
        gone = RequestError(404, "the file of this item no longer exists; its thumbnail is still there.")
        try:
            file = Path(self.rows.path(item)).resolve(strict=True)
            roots = trusted_roots(self.uri, self.store.about.roots)
            if not file.is_file():
                raise gone
            # A link may lead anywhere: what counts is where it ends.
            if not any(file.is_relative_to(root) for root in roots):
                raise RequestError(403, "the file of this item lies outside the folders that were indexed here.")
            with file.open("rb") as content:
                kind = _kind(content.read(32))
        except (OSError, RuntimeError, ValueError):  # the latter two: a circle of links, a text that is not a path
            raise gone from None
        if kind is None:
            raise RequestError(415, "the file of this item is of a kind that browsers do not show; its thumbnail is.")
        return file, kind


class GalleryWatcher:
    """Reloads a gallery when it has changed.

    Attributes:
        pause: seconds until the next check; at most a twentieth of the time is spent on reloading.
    """

    def __init__(self, uri: str, model: str | Path | None, on: Literal["auto", "cpu"]) -> None:
        self._uri, self._model, self._on = uri, model, on
        self.current = ServedGallery(uri, model, on)
        self.pause = 0.0

    def refresh(self) -> bool:
        """Reload the gallery if it has changed. Returns whether it was."""
        began = monotonic()
        try:
            changed = self._look()
        except Exception as error:
            # Also what a damaged file of a model makes others raise. The old gallery stays.
            why = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(f"tammes: cannot read the changed gallery: {why}", file=sys.stderr, flush=True)
            self.pause = max(self.pause, _AFTER_FAILURE)
            return False
        # A look that finds nothing is cheap, but not where each costs a request to another machine.
        self.pause = 20 * (monotonic() - began) if changed else _FAR_AWAY if "://" in self._uri else 0.0
        return changed

    def _look(self) -> bool:
        old, there = self.current, open_gallery(self._uri)
        old.forget_threshold()  # it may have been calibrated since
        if there.about.model != old.store.about.model:
            self.current = ServedGallery(self._uri, self._model, self._on)
            return True
        if there.version() == old.rows.version and there.about == old.store.about:
            return False
        new = Rows(there)
        if there.about == old.store.about and new.same_as(old.rows):
            old.rows.version = new.version  # the map, and whatever else was made of these rows, stays
            return False
        old.store, old.rows = there, new
        return True


def unit_vector(values: Sequence[float], dim: int) -> Float32[ndarray, " dim"]:
    """A client's numbers as a query vector. Raises RequestError."""
    given = np.asarray(values, dtype=np.float64)
    if given.shape != (dim,):
        raise RequestError(422, f"vector: the gallery holds vectors of {dim} numbers, got {given.size}.")
    largest = float(np.abs(given).max())
    if not np.isfinite(largest) or largest == 0:
        raise RequestError(422, "vector: the numbers must be finite and not all 0.")
    given = given / largest  # its square does not overflow
    return np.asarray(given / np.linalg.norm(given), dtype=np.float32)


def _is_thumbnail(content: bytes) -> bool:
    return len(content) <= _THUMBNAIL_BYTES and open_small(content, THUMBNAIL) is not None


def _kind(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for start, kind in _KINDS if head.startswith(start)), None)
