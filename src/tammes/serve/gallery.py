"""What is served of a gallery: searches, thumbnails and files, of the gallery as it is now."""

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Literal

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.data.images import open_small
from tammes.errors import UserError
from tammes.gallery import Hit, Row, open_gallery
from tammes.gallery.classification import Proposal, proposal
from tammes.gallery.gallery import Opened
from tammes.gallery.store import THUMBNAIL
from tammes.gallery.threshold import neighbourhoods
from tammes.serve.decoding import View
from tammes.serve.embedding import Embedding
from tammes.serve.errors import RefusedError
from tammes.serve.lru_cache import Memory
from tammes.serve.rows import Catalogue, shown

_THUMBNAILS = 64_000_000  # bytes of them that are kept in memory
_FAR_AWAY = 1.5  # seconds; times 20 between two looks
_AHEAD = 64  # of what was found last, read from the store together
# The kinds of file that browsers show, by how they begin.
_KINDS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


class Gallery:
    """A gallery and its model. What a handler reads of it twice may have changed between: take `catalogue` once."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.embedder = opened.embedder
        self.catalogue = Catalogue(opened.store)
        self.embedding = Embedding(self.embedder)  # last: it has a thread
        self._thumbnails: Memory[tuple[str, str], bytes] = Memory(_THUMBNAILS, len)

    @property
    def name(self) -> str:
        return shown(Path(self.opened.uri.rstrip("/")).name or self.opened.uri)

    @property
    def view(self) -> View:
        return View(self.embedder.mode, self.embedder.shorter_side, self.embedder.size)

    def search(
        self,
        vector: Float32[ndarray, " dim"],
        k: int,
        *,
        label: str | None = None,
        leave_out: str | None = None,
        exact: bool = False,
    ) -> list[Hit]:
        """The nearest items, nearest first.

        Args:
            label: a class by its name as it is shown.
            leave_out: the path of an item that is not to be found: the one that is asked with.
        """
        catalogue = self.catalogue
        if label is not None and label not in catalogue.real_label:
            raise RefusedError(404, f"the gallery has no class {label!r}. GET /api/classes lists those that there are.")
        real = None if label is None else catalogue.real_label[label]
        if catalogue.complete:
            return catalogue.nearest(vector, k, label=real, leave_out=leave_out)
        return self.opened.store.search(vector[None], k, label=real, leave_out=[leave_out], exact=exact)[0]

    def judged(self, vector: Float32[ndarray, " dim"], leave_out: str | None = None) -> Proposal | None:
        """What `tammes label` says of an image with this vector; None where there is no threshold."""
        threshold = self.opened.threshold
        if threshold is None:
            return None

        def search(vectors: ndarray, k: int, _: object) -> list[list[Hit]]:
            return [self.search(vectors[0], k, leave_out=leave_out)]

        found = neighbourhoods(search, vector[None], len(self.catalogue), threshold.classes_needed)
        return proposal(found[0], threshold)

    def vector(self, number: int, catalogue: Catalogue | None = None) -> Float32[ndarray, " dim"]:
        """That of an item of a catalogue; the newest unless another is given."""
        catalogue = self.catalogue if catalogue is None else catalogue
        if catalogue.complete:
            return np.asarray(catalogue.drawn_vectors[number])
        return self.opened.store.get([catalogue.paths[number]])[0].vector

    def thumbnail(self, catalogue: Catalogue, number: int) -> bytes:
        """A small picture of an item, as a WebP file."""
        key = catalogue.ids[number], catalogue.mark(number)
        if (kept := self._thumbnails.get(key)) is None:
            self.read_thumbnails(catalogue, [number])
            kept = self._thumbnails.get(key)
        if not kept:
            raise RefusedError(404, "this item has no thumbnail.")
        return kept

    def read_thumbnails(self, catalogue: Catalogue, numbers: Sequence[int]) -> None:
        """Read those that are not in memory, together: the store takes as long for one as for many."""
        missing = {
            catalogue.paths[number]: (catalogue.ids[number], catalogue.mark(number)) for number in numbers[:_AHEAD]
        }
        missing = {path: key for path, key in missing.items() if self._thumbnails.get(key) is None}
        if not missing:
            return
        try:
            rows = self.opened.store.get(list(missing))
        except UserError:  # one of them is gone since: each for itself
            rows = [row for path in missing for row in self._one(path)]
        for row in rows:
            # A stranger's may be anything: what is no small picture would be decoded by whoever looks at the page.
            fine = open_small(row.thumbnail, THUMBNAIL) is not None
            self._thumbnails.put(missing[row.path], row.thumbnail if fine else b"")

    def _one(self, path: str) -> list[Row]:
        try:
            return self.opened.store.get([path])
        except UserError:
            return []

    def file(self, path: str) -> tuple[Path, str]:
        """The file of an item and its kind; a refusal unless it is an image in one of the folders that were indexed."""
        gone = RefusedError(404, "the file of this item is not there any more; its thumbnail is.")
        try:
            file = Path(path).resolve(strict=True)
            roots = [Path(root).resolve() for root in self.opened.store.about.roots]
            if not file.is_file():
                raise gone
            # A link may lead anywhere: what counts is where it ends.
            if not any(file.is_relative_to(root) for root in roots):
                raise RefusedError(403, "the file of this item lies outside the folders that were indexed.")
            with file.open("rb") as content:
                kind = _kind(content.read(32))
        except (OSError, RuntimeError, ValueError):  # a link in a circle raises the second, what is no name the third
            raise gone from None
        if kind is None:
            raise RefusedError(415, "the file of this item is of a kind that browsers do not show; its thumbnail is.")
        return file, kind

    def close(self) -> None:
        self.embedding.close()


class Watched:
    """The gallery at an address, renewed when it has changed; for a server that runs for weeks."""

    def __init__(self, uri: str, model: Path | None, on: Literal["auto", "cpu"]) -> None:
        self._uri, self._model, self._on = uri, model, on
        self.now = Gallery(Opened(uri, model, on))
        self._lock = Lock()
        self._took = 0.0
        self._at = monotonic()

    def renew(self) -> bool:
        """Look whether the gallery has changed, and read it anew if so; whether it was. One at a time.

        Of a gallery that is being written to, the catalogue is read no more than a twentieth of the time.
        """
        if monotonic() - self._at < 20 * self._took or not self._lock.acquire(blocking=False):
            return False
        try:
            began = monotonic()
            changed = self._look()
            self._at = monotonic()
            # A look that finds nothing is cheap, but not where each costs a request to another machine.
            self._took = self._at - began if changed else _FAR_AWAY if "://" in self._uri else 0.0
            return changed
        except Exception as error:  # also what a damaged file of a model makes others raise
            # What is served goes on being served; whoever runs the server is told once in a while.
            said = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(f"tammes: cannot read the gallery anew: {said}", file=sys.stderr, flush=True)
            self._at, self._took = monotonic(), max(self._took, 1.0)
            return False
        finally:
            self._lock.release()

    def _look(self) -> bool:
        old, there = self.now, open_gallery(self._uri)
        old.opened.forget_threshold()  # it may have been calibrated since
        if there.about.model != old.opened.store.about.model:
            self.now = Gallery(Opened(self._uri, self._model, self._on))
            old.close()
            return True
        if there.version() == old.catalogue.version and there.about == old.opened.store.about:
            return False
        new = Catalogue(there)
        if there.about == old.opened.store.about and new.holds_the_same_as(old.catalogue):
            old.catalogue.version = new.version  # the map, and whatever else was made of it, stays
            return False
        old.opened.store, old.catalogue = there, new
        return True


def unit(values: Sequence[float], dim: int) -> Float32[ndarray, " dim"]:
    """Numbers of a client as a vector to search with, or a refusal."""
    given = np.asarray(values, dtype=np.float64)
    if given.shape != (dim,):
        raise RefusedError(422, f"vector: the gallery holds vectors of {dim} numbers, got {given.size}.")
    largest = float(np.abs(given).max())
    if not np.isfinite(largest) or largest == 0:
        raise RefusedError(422, "vector: the numbers must be finite and not all 0.")
    given = given / largest  # its square does not overflow
    return np.asarray(given / np.linalg.norm(given), dtype=np.float32)


def _kind(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for start, kind in _KINDS if head.startswith(start)), None)
