"""A gallery in a folder or in object storage: LanceDB, inside this process."""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.filters import Filter, In, sql
from tammes.gallery.items import About, Row, how_to_remake, no_gallery
from tammes.gallery.lance_columns import facts, fields_of, in_lance, quoted
from tammes.gallery.lance_tables import (
    ABOUT,
    ATTEMPTS,
    ENDING,
    ITEMS,
    STAMP,
    about_row,
    connect,
    create_gallery,
    damaged,
    is_gallery,
    new_items,
    of_lance,
    said_of,
    schema_of,
    synchronise,
    table_names,
    what_is_current,
)
from tammes.gallery.store import COLUMNS, Columns, Store

_INDEX_NAME = re.compile(r"vector-\d{1,18}")
_BLOCK = 1 << 16  # rows of one block in a pass over all
_PROBES, _PROBES_OF_A_CLASS, _REFINE = 50, 400, 4  # parts of the index looked at; candidates compared exactly, times k
_GROWN = 4  # an index of a gallery that has grown so many times is trained again
_FEW = 16  # files or versions that are not worth a merge
_MANY = 256  # writes after which they are merged without being asked: each file makes the next write slower
_OLD = timedelta(milliseconds=1)  # of versions that are removed; LanceDB warns of 0
_MOST_DIM = 1 << 20  # numbers of a vector; Arrow has no more than 2^31
_TRY_AGAIN = ("conflict", "retry", "not found", "concurrent", "contention")  # others wrote or tidied up meanwhile

T = TypeVar("T")


def open_store(uri: str, create: About | None) -> "LanceGallery":
    """The gallery that is there, or a new one."""
    if not is_gallery(uri):
        if create is None:
            raise no_gallery(uri)
        create_gallery(uri, create)
    return _opened(uri)


def rebuild(uri: str, about: About) -> "LanceGallery":
    """An empty table of items beside the one that is in use."""
    table_names(uri)
    database = connect(uri)
    return LanceGallery(uri, database, new_items(uri, database, about.dim), about)


class MovedError(UserError):
    """Others have merged the files that were being read."""


class LanceGallery(Store):
    """A gallery in LanceDB; see `Store` for what its methods promise.

    In a folder, what `upsert` and `delete` did is on the disk when they return: every file they wrote and its name
    are synchronised (LanceDB itself leaves that to the system). A killed program leaves whole rows only. A power cut
    in the midst of a write can leave its version without its files; the gallery then says that it is damaged and is
    rebuilt from its images. In object storage a write is as safe as that storage makes an object which it has
    confirmed.
    """

    def __init__(self, uri: str, database: Any, name: str, about: About) -> None:
        super().__init__(uri, about)
        self._database, self._name = database, name
        self._items = self._do(database.open_table, name)
        self._folder = None if "://" in uri else Path(uri)
        self._synchronised: set[str] = set()
        self._writes = 0

    def check_columns(self) -> None:
        """Refuse a table that is none of ours: other columns, or vectors of another length than is said of them."""
        found = {field.name: (field.type, field.nullable) for field in self._do(lambda: self._items.schema)}
        if 0 < self._about.dim < _MOST_DIM:
            wanted = {field.name: (field.type, field.nullable) for field in schema_of(self._about.dim)}
            found.setdefault("fields", wanted["fields"])  # of an older version
        else:
            wanted = {}
        if found != wanted:
            raise UserError(
                f"the gallery {self.uri} does not hold what it says: paths, labels and vectors of {self._about.dim}"
                f" numbers. {how_to_remake(self.uri)}"
            )

    def write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        vectors = np.stack([row.vector for row in rows])
        columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
        columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), self._about.dim)
        columns["fields"] = [facts(row.fields) for row in rows]
        if not self._has_fields():  # of an older version
            self._do(self._items.add_columns, {"fields": "''"})
        data = pyarrow.table(columns, schema=schema_of(self._about.dim))
        self._do(_merge, self._items, "path", data)
        self._writes += 1
        if self._writes % _MANY == 0:
            self._merge_files()
        self._synchronise()

    def remove(self, paths: Sequence[str]) -> None:
        self._do(self._items.delete, sql(In("path", tuple(paths)), in_lance))
        self._synchronise()

    def scan(self, columns: Sequence[str], where: Filter | None = None, batch: int = _BLOCK) -> Iterator[Columns]:
        def batches() -> Any:
            there = [name for name in columns if name != "fields" or self._has_fields()]
            asked = self._items.search().select(there)
            if where is not None:
                asked = asked.where(sql(where, in_lance))
            return iter(asked.to_batches(batch_size=batch))

        found = self._do(batches)
        while True:
            try:
                some = next(found, None)
            except BaseException as error:
                if not of_lance(error):
                    raise
                if "not found" in str(error).lower() and not self._gone():
                    raise MovedError(
                        f"the gallery {self.uri} was put in order by another program while all of it was read. Do it"
                        f" again. If that does not help, a file of it is gone. {how_to_remake(self.uri)}"
                    ) from None
                raise self._wrong(error) from None
            if some is None:
                return
            if len(some):
                yield self._columns(some)

    def nearest(
        self, query: Float32[ndarray, " dim"], number: int, where: Filter | None, *, exact: bool
    ) -> tuple[Columns, float]:
        def rows() -> Any:
            asked = self._items.search(query, vector_column_name="vector").distance_type("l2").limit(number)
            asked = asked.select(["path", "label", "vector", "_distance"])
            if where is not None:
                asked = asked.where(sql(where, in_lance))
            if exact:
                asked = asked.bypass_vector_index()
            else:
                asked = asked.nprobes(_PROBES if where is None else _PROBES_OF_A_CLASS).refine_factor(_REFINE)
            return asked.to_arrow()

        found = self._do(rows)
        squared = found.column("_distance").to_numpy()
        return self._columns(found), float(np.sqrt(squared.max(initial=0), dtype=np.float64))

    def count(self) -> int:
        return int(self._do(self._items.count_rows))

    def whole(self, read: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return read()
            except MovedError:
                if attempt == ATTEMPTS - 1:
                    raise
            _wait(attempt)
        raise AssertionError("every attempt returns or raises")

    def describe(self, *, roots: Sequence[str] = (), threshold: str | None = None) -> None:
        while True:
            current = what_is_current(self.uri, self._database)
            if current["items"] != self._name:
                self._about = self._about.changed(roots, threshold)
                return
            self._about = About.from_json(current["about"], self.uri).changed(roots, threshold)
            said = said_of(self._name, self._about, current["since"])
            table = self._do(self._database.open_table, ABOUT)
            # Only in the place of what was read: if another program was faster, what it wrote is read first.
            unchanged = f"said = {quoted(current['said'])}"
            if self._do(table.update, unchanged, {"said": said}).rows_updated:
                break
        if self._folder is not None:
            synchronise(self._folder / f"{ABOUT}{ENDING}", set())

    def indexed(self) -> bool:
        return bool(self._do(self._items.list_indices))

    def tidy(self, exact_up_to: int, rest: timedelta) -> tuple[str, ...]:
        removed = self._remove_what_is_left(rest)
        self._merge_files()
        self._index(self.count(), exact_up_to)
        self._synchronise()
        return removed

    def version(self) -> str:
        return f"{self._name} {self._do(lambda: self._items.version)}"

    def replaced(self) -> bool:
        return bool(what_is_current(self.uri, self._database)["items"] != self._name)

    def swap(self) -> None:
        """Let this gallery take its place; see `Store`."""
        self._synchronise()
        self._point_here(datetime.now(UTC).isoformat())

    def _point_here(self, since: str) -> None:
        """Write the one row of `about`: readers see the old one or this."""
        row = about_row(self._name, self._about, since)
        if is_gallery(self.uri) and not self._has_damaged_about():
            table = self._do(self._database.open_table, ABOUT)
            self._do(_merge, table, "name", row)
        else:
            self._do(partial(self._database.drop_table, ABOUT, ignore_missing=True))
            self._do(self._database.create_table, ABOUT, row)
        if self._folder is not None:
            synchronise(self._folder / f"{ABOUT}{ENDING}", set())

    def _has_damaged_about(self) -> bool:
        try:
            what_is_current(self.uri, self._database)
        except UserError:
            return True
        return False

    def _has_fields(self) -> bool:
        return "fields" in self._do(lambda: self._items.schema).names

    def _columns(self, table: Any) -> Columns:
        """A table or a batch of LanceDB's."""
        names = [name for name in table.schema.names if name in COLUMNS]
        found = {name: table.column(name).to_pylist() for name in names if name != "vector"}
        if "vector" in names:
            found["vector"] = _vectors(table, self._about.dim)
        if "fields" in names:
            found["fields"] = [fields_of(text, self.uri) for text in found["fields"]]
        return found

    def _merge_files(self) -> None:
        """Merge small files and remove versions that are no longer the newest, if it is worth it.

        Others who read or write at this moment find that their version is gone, and do it again. Those who go on
        writing the same rows may win each time; then it is left for the next time.
        """
        small = self._do(self._items.stats)["fragment_stats"]["num_small_fragments"]
        if small < _FEW and len(self._do(self._items.list_versions)) < _FEW:
            return
        try:
            self._do(lambda: self._items.optimize(cleanup_older_than=_OLD))
            if len(self._do(self._items.list_versions)) > 1:
                # Merging writes two versions. On a fast disk the first, which has the old files, was not old yet.
                time.sleep(2 * _OLD.total_seconds())
                self._do(lambda: self._items.optimize(cleanup_older_than=_OLD))
        except UserError as error:
            if "conflict" not in str(error):
                raise

    def _index(self, rows: int, exact_up_to: int) -> None:
        """Build the index where it is needed; it is named after how many rows it was trained on."""
        names = [each.name for each in self._do(self._items.list_indices) if _INDEX_NAME.fullmatch(each.name)]
        trained_on = max((int(name.rpartition("-")[2]) for name in names), default=0)
        if rows > max(exact_up_to, _GROWN * trained_on):
            index = import_module("lancedb.index")
            # Of the kinds of index this one alone kept every neighbour, once its candidates were compared exactly.
            config = index.IvfSq(distance_type="l2")
            self._do(lambda: self._items.create_index("vector", config=config, name=f"vector-{rows}", replace=True))
            for name in names:
                if int(name.rpartition("-")[2]) < rows:
                    with suppress(UserError):  # another program may have been faster
                        self._do(self._items.drop_index, name)
        elif any(self._do(self._items.index_stats, name).num_unindexed_rows for name in names):
            self._do(lambda: self._items.optimize(cleanup_older_than=timedelta(days=7)))  # takes in rows that are new

    def _remove_what_is_left(self, rest: timedelta) -> tuple[str, ...]:
        """Tables of items that nothing points to and nobody has written to for a while."""
        if not is_gallery(self.uri):
            return ()  # this one has not taken its place yet
        current = what_is_current(self.uri, self._database)
        before = datetime.now(UTC) - rest
        if datetime.fromisoformat(current["since"]) > before:
            return ()  # who has opened the old one may still use it
        removed = []
        for name in table_names(self.uri):
            if name.startswith(ITEMS) and name not in (current["items"], self._name) and self._written(name) < before:
                self._do(self._database.drop_table, name)
                removed.append(name)
        return tuple(removed)

    def _written(self, name: str) -> datetime:
        """When a table was last written to; one that was never whole says by its name when it was begun."""
        try:
            newest: datetime = self._database.open_table(name).list_versions()[-1]["timestamp"]
            return newest.astimezone(UTC)
        except (RuntimeError, ValueError, OSError, IndexError):
            stamp = name.removeprefix(ITEMS).partition("-")[0]
            with suppress(ValueError):
                return datetime.strptime(stamp, STAMP).replace(tzinfo=UTC)
            return datetime.now(UTC)  # it is none of ours, and stays

    def _synchronise(self) -> None:
        if self._folder is not None:
            synchronise(self._folder / f"{self._name}{ENDING}", self._synchronised)

    def _do(self, action: Callable[..., T], *arguments: Any) -> T:
        """Do it, again where another was faster, and tell the user what LanceDB has to say."""
        for attempt in range(ATTEMPTS):
            try:
                return action(*arguments)
            except BaseException as error:
                if isinstance(error, UserError) or not of_lance(error):
                    raise
                again = any(word in str(error).lower() for word in _TRY_AGAIN)
                if not again or attempt == ATTEMPTS - 1 or self._gone():
                    raise self._wrong(error) from None
            _wait(attempt)
        raise AssertionError("every attempt returns or raises")

    def _wrong(self, error: BaseException) -> UserError:
        if self._gone():
            if ABOUT not in table_names(self.uri):
                return no_gallery(self.uri)
            if not self.replaced():
                return UserError(
                    f"the gallery {self.uri} is not whole: its table {self._name} is not there."
                    f" {how_to_remake(self.uri)}"
                )
            return UserError(f"the gallery {self.uri} was rebuilt since it was opened. Open it again.")
        return damaged(self.uri, error)

    def _gone(self) -> bool:
        try:
            return self._name not in table_names(self.uri)
        except UserError:
            return False


def _opened(uri: str) -> LanceGallery:
    database = connect(uri)
    current = what_is_current(uri, database)
    gallery = LanceGallery(uri, database, current["items"], About.from_json(current["about"], uri))
    gallery.check_columns()
    return gallery


def _merge(table: Any, key: str, data: Any) -> None:
    table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(data)


def _vectors(table: Any, dim: int) -> Float32[ndarray, "rows dim"]:
    column = table.column("vector")
    chunks = getattr(column, "chunks", [column])  # of a table; a batch has one
    parts = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim) for chunk in chunks]
    return np.concatenate(parts) if parts else np.zeros((0, dim), dtype=np.float32)


def _wait(attempt: int) -> None:
    time.sleep(random.uniform(0.005, 0.02) * 1.5**attempt)
