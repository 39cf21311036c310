"""The store protocol: the operations of a gallery, and the six methods that a store must implement.

A store keeps rows (`items.Row`) by their path, the identity of an item; a database that needs a number uses that of
`item_id`. To write another store, inherit from `Store` and implement

    write(rows)          add rows, or put them in the place of those with the same path
    remove(paths)        take rows out
    scan(columns, …)     read some columns of all rows, or of those that fit a filter
    nearest(query, …)    the rows that are nearest to a vector
    count()              how many rows
    describe(…)          add to what is said of the gallery

`Store` makes everything else of them: exact ranking in float64, search for many at once, filters by class, checks of
what is stored and what comes back, and names that no database can hold. A store that can be rebuilt beside the old one
has `swap` and `replaced`, one with an index `indexed` and `tidy` too. `register` makes it known by its scheme;
`examples/custom_store.py` is one, and tests/test_gallery_stores.py asks all stores the same.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import time
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.filters import Filter, In, both, mapped
from tammes.gallery.items import (
    About,
    Hit,
    OptimiseResult,
    Row,
    as_it_was,
    check_keys,
    check_queries,
    check_rows,
    check_stored,
    missing_paths,
    storable,
)
from tammes.gallery.ranking import Block, Candidates, nearest, ranked, recall_at_10

EXACT_UP_TO = 100_000  # rows; a search that compares with each of so many takes about a tenth of a second
REST = timedelta(hours=1)  # what was replaced, or was never finished, stays so long for those who still use it
COLUMNS = ("path", "vector", "label", "width", "height", "fingerprint", "thumbnail", "fields")  # of a row

_FOUND = ("path", "label", "vector")  # what a search reads
_BLOCK = 1 << 16  # rows of one block in a pass over all
_FIRST = 1000  # rows that are read at a time where the first are likely to do
_TOGETHER = 500  # paths in one question
_PASS_FROM = 16  # queries from which on one pass over all rows is faster than a search for each
_QUERIES = 200  # drawn to measure the recall of an index

Columns = Mapping[str, Any]
"""Some rows by column: a list, and of `vector` an array of (rows, dim)."""
T = TypeVar("T")


class Store(ABC):
    """An open gallery. Several processes may read and write at the same time.

    Writes of other processes are visible from the next call on. If another gallery takes its place (`swap`), an open
    gallery keeps using the old one, for at least an hour; see `replaced`.
    """

    def __init__(self, uri: str, about: About) -> None:
        self.uri, self._about = uri, about

    @property
    def about(self) -> About:
        return self._about

    # What a store does itself. Texts are `storable` when they come here.

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Add rows, or put them in the place of those with the same path; no path is twice among them.

        Readers see a row as it was or as it is, never without. When this returns, the rows outlast a crash.
        """

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Take rows out; paths that are not there are no error."""

    @abstractmethod
    def scan(self, columns: Sequence[str], where: Filter | None = None, batch: int = _BLOCK) -> Iterator[Columns]:
        """These columns of all rows, as they are when the first is taken, no more than `batch` at a time.

        Args:
            columns: some of `COLUMNS`.
            where: only of rows that fit; see `filters.fits`.
        """

    @abstractmethod
    def nearest(
        self, query: Float32[ndarray, " dim"], number: int, where: Filter | None, *, exact: bool
    ) -> tuple[Columns, float]:
        """Path, label and vector of the rows that the store finds nearest, and how far it computes the last of them.

        Args:
            where: only among rows that fit.
            exact: compare with every row, also where there is an index. Distances may be rounded.
        """

    @abstractmethod
    def count(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def describe(self, *, roots: Sequence[str] = (), threshold: str | None = None) -> None:
        """Add roots to what is said of the gallery, and replace the threshold where one is given (`About.changed`).

        Of several programs that do so at once none undoes what another has written: it is one step of the store. A
        gallery that was replaced, or has not taken its place yet, changes in memory only.
        """

    # What not every store has.

    def swap(self) -> None:
        """Let a gallery that was built beside another take its place, in one step: who opens the gallery before finds
        the old one, after it the new one."""
        raise UserError(f"the gallery {self.uri} cannot be rebuilt beside the old one: choose another `gallery`.")

    def replaced(self) -> bool:
        """Whether another gallery has replaced this one since it was opened."""
        return False

    def indexed(self) -> bool:
        """Whether searches use an approximate index."""
        return False

    def tidy(self, exact_up_to: int, rest: timedelta) -> tuple[str, ...]:  # noqa: ARG002
        """Put in order what many writes have left; what was removed. See `optimise`."""
        return ()

    def version(self) -> str:
        """A text that changes when rows change; it may also change otherwise."""
        return f"{self.count()} {int(time()) // 30}"

    def whole(self, read: Callable[[], T]) -> T:
        """Read everything, restarting if other processes have moved files meanwhile."""
        return read()

    # What follows.

    def upsert(self, rows: Sequence[Row]) -> None:
        """Add rows, or put them in the place of those with the same path; they are checked first."""
        if rows:
            vectors = check_rows(rows, self._about.dim)
            self.write([_storable(row, vector) for row, vector in zip(rows, vectors, strict=True)])

    def delete(self, paths: Sequence[str]) -> None:
        """Take rows out; paths that are not there are no error."""
        for start in range(0, len(paths), _TOGETHER):
            self.remove([storable(path) for path in paths[start : start + _TOGETHER]])

    def search(
        self,
        vectors: Float32[ndarray, "queries dim"],
        k: int,
        *,
        label: str | None = None,
        where: Filter | None = None,
        exact: bool = False,
        leave_out: Sequence[str | None] | None = None,
    ) -> list[list[Hit]]:
        """The k nearest rows of each query, nearest first, equally near ones by path; all rows where there are fewer.

        Distances are those of the stored vectors, in float64. Without an index every search is exact, and ranks as
        `tammes.search.neighbours.search` does.

        Args:
            label: look only at rows of this class.
            where: look only at rows that fit.
            exact: compare with every row, also where there is an index.
            leave_out: for each query a path that it does not find, such as its own, or None.
        """
        queries = check_queries(vectors, self._about.dim, k, leave_out)
        asked = both(None if label is None else In("label", (label,)), where)
        only = None if asked is None else mapped(asked, storable)
        complete = exact or not self.indexed()
        if complete and len(queries) >= _PASS_FROM:
            return self.whole(lambda: nearest(queries, map(self._block, self.scan(_FOUND, only)), k, leave_out))

        def fetch(query: Float32[ndarray, " dim"], number: int) -> Candidates:
            found, reach = self.nearest(query, number, only, exact=complete)
            return Candidates(self._block(found), reach)

        return [
            ranked(query, partial(fetch, query), k, own, complete=complete)
            for query, own in zip(queries, leave_out or [None] * len(queries), strict=True)
        ]

    def get(self, paths: Sequence[str]) -> list[Row]:
        """These rows whole, in this order; an error names those that are not there."""
        found = {row.path: row for row in self._among(paths, COLUMNS)}
        missing = [path for path in paths if path not in found]
        if missing:
            raise missing_paths(self.uri, missing)
        return [found[path] for path in paths]

    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of every path; nothing else is read."""
        parts = self._all(("path", "fingerprint"))
        pairs = [pair for part in parts for pair in zip(part["path"], part["fingerprint"], strict=True)]
        found = {self._text(path): self._text(fingerprint) for path, fingerprint in pairs}
        check_keys(found, len(pairs), self.uri)
        return found

    def rows(self, batch: int, *, thumbnails: bool = False) -> Iterator[list[Row]]:
        """All rows, as they are when the first is taken, some at a time."""
        wanted = tuple(name for name in COLUMNS if thumbnails or name != "thumbnail")
        for part in self.scan(wanted, batch=batch):
            yield self._rows(part)

    def labels(self) -> dict[str, int]:
        """How many rows each class has; those without one are under the empty text."""
        parts = self._all(("label",))
        return {self._text(name): n for name, n in Counter(name for part in parts for name in part["label"]).items()}

    def field_kinds(self, asked: Set[tuple[str, type]]) -> dict[str, set[type]]:
        """Of the further columns that rows have, whether texts (str) or numbers (float) stand in them, or both.

        Args:
            asked: no more is read where these were seen, which most often is at once.
        """

        def read() -> dict[str, set[type]]:
            found = defaultdict[str, set[type]](set)
            for part in self.scan(("fields",), batch=_FIRST):
                for fields in part["fields"]:
                    for name, value in fields.items():
                        found[self._text(name)].add(str if isinstance(value, str) else float)
                if all(kind in found.get(name, ()) for name, kind in asked):
                    break
            return dict(found)

        return self.whole(read)

    def optimise(self, *, exact_up_to: int = EXACT_UP_TO, rest: timedelta = REST) -> OptimiseResult:
        """Put in order what many writes have left, and measure the index.

        Small files are merged, old versions and what is left of rebuilds removed, and an approximate index is built,
        or extended, if there are more than `exact_up_to` rows. It may run while others read and write.

        Args:
            rest: how long replaced and abandoned rebuilds are kept.
        """
        removed = self.tidy(exact_up_to, rest)
        rows, indexed = self.count(), self.indexed()
        return OptimiseResult(rows, indexed, self._recall() if indexed and rows > 1 else None, removed)

    def _recall(self) -> float:
        paths = list(self.fingerprints())
        drawn = np.random.default_rng(0).choice(len(paths), min(len(paths), _QUERIES), replace=False)
        rows = list(self._among([paths[number] for number in drawn], ("path", "vector")))
        vectors, own = np.stack([row.vector for row in rows]), [row.path for row in rows]
        answers = [self.search(vectors, 10, exact=exact, leave_out=own) for exact in (False, True)]
        return recall_at_10(*answers)

    def _among(self, paths: Sequence[str], columns: Sequence[str]) -> Iterator[Row]:
        for start in range(0, len(paths), _TOGETHER):
            only = In("path", tuple(map(storable, paths[start : start + _TOGETHER])))
            for part in self._all(columns, only):
                yield from self._rows(part)

    def _all(self, columns: Sequence[str], where: Filter | None = None) -> list[Columns]:
        return self.whole(lambda: list(self.scan(columns, where)))

    def _rows(self, part: Columns) -> list[Row]:
        """Rows with these columns; what was not asked for is empty."""
        empty = {"label": "", "width": 0, "height": 0, "fingerprint": "", "thumbnail": b"", "fields": {}}
        columns = [part.get(name, [empty.get(name)] * len(part["path"])) for name in COLUMNS if name != "vector"]
        vectors = self._vectors(part)
        return [
            Row(
                self._text(path), vector, self._text(label), int(width), int(height), self._text(fingerprint),
                bytes(thumbnail), {self._text(name): self._text(value) for name, value in fields.items()},
            )
            for vector, path, label, width, height, fingerprint, thumbnail, fields in zip(
                vectors, *columns, strict=True
            )
        ]  # fmt: skip

    def _block(self, part: Columns) -> Block:
        return Block(list(map(self._text, part["path"])), list(map(self._text, part["label"])), self._vectors(part))

    def _vectors(self, part: Columns) -> Float32[ndarray, "rows dim"]:
        vectors = np.asarray(part["vector"], dtype=np.float32).reshape(len(part["path"]), self._about.dim)
        return check_stored(vectors, self.uri)

    def _text(self, stored: T) -> T:
        return as_it_was(stored, self.uri) if isinstance(stored, str) else stored  # type: ignore[return-value]


def _storable(row: Row, vector: Float32[ndarray, " dim"]) -> Row:
    fields = {
        storable(name): storable(value) if isinstance(value, str) else value for name, value in row.fields.items()
    }
    return replace(
        row,
        path=storable(row.path),
        vector=vector,
        label=storable(row.label),
        fingerprint=storable(row.fingerprint),
        fields=fields,
    )
