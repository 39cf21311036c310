"""A gallery in a folder or in object storage: LanceDB, inside this process.

    about.lance/          one row: what made the gallery, and which table holds its items
    items-….lance/        a row an image

A rebuild fills another table of items; replacing the one row of `about` puts it in the place of the old one.
"""

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.ranking import Block, Found, nearest, ranked, recall_at_10
from tammes.gallery.store import (
    EXACT_UP_TO,
    REST,
    About,
    Hit,
    Order,
    Row,
    as_it_was,
    check_queries,
    check_rows,
    how_to_remake,
    missing_paths,
    no_gallery,
    storable,
)

_ABOUT, _ITEMS, _ENDING = "about", "items-", ".lance"
_ITEMS_NAME = re.compile(r"items-[\w-]+")
_INDEX_NAME = re.compile(r"vector-\d{1,18}")
_STAMP = "%Y%m%dT%H%M%SZ"
_TOGETHER = 500  # paths in one condition
_BLOCK = 1 << 16  # rows of one block in a pass over all
_PASS_FROM = 16  # queries from which on one pass over all rows is faster than a search for each
_PROBES, _PROBES_OF_A_CLASS, _REFINE = 50, 400, 4  # parts of the index looked at; candidates compared exactly, times k
_GROWN = 4  # an index of a gallery that has grown so many times is trained anew
_FEW = 16  # files or versions that are not worth a merge
_MANY = 256  # writes after which they are merged without being asked: each file makes the next write slower
_OLD = timedelta(milliseconds=1)  # of versions that are removed; LanceDB warns of 0
_MOST_DIM = 1 << 20  # numbers of a vector; Arrow has no more than 2^31
_QUERIES = 200  # drawn to measure the recall of the index
_ATTEMPTS = 12
_TRY_AGAIN = ("conflict", "retry", "not found", "concurrent", "contention")  # others wrote or tidied up meanwhile
_PANICS = ("RustPanic", "PanicException")
_NOT_ALLOWED = ("no space left", "permission denied", "read-only file system")

T = TypeVar("T")


def open_folder(uri: str, create: About | None) -> "LanceGallery":
    """The gallery that is there, or a new one."""
    if not _is_gallery(uri):
        if create is None:
            raise no_gallery(uri)
        _create(uri, create)
    return _opened(uri)


def rebuild(uri: str, about: About) -> "LanceGallery":
    """An empty table of items beside the one that is in use."""
    _tables(uri)
    database = _connect(uri)
    return LanceGallery(uri, database, _new_items(uri, database, about.dim), about)


class LanceGallery:
    """A gallery in LanceDB; see `Store` for what its methods promise.

    In a folder, what `upsert` and `delete` did is on the disk when they return: every file they wrote and its name
    are synchronised (LanceDB itself leaves that to the system). A killed program leaves whole rows only. A power cut
    in the midst of a write can leave its version without its files; the gallery then says that it is damaged and is
    made anew from its images. In object storage a write is as safe as that storage makes an object which it has
    confirmed.
    """

    def __init__(self, uri: str, database: Any, name: str, about: About) -> None:
        self.uri, self._database, self._name, self._about = uri, database, name, about
        self._items = self._do(database.open_table, name)
        self._folder = None if "://" in uri else Path(uri)
        self._synchronised: set[str] = set()
        self._writes = 0

    @property
    def about(self) -> About:
        return self._about

    def check_columns(self) -> None:
        """Refuse a table that is none of ours: other columns, or vectors of another length than is said of them."""
        found = {field.name: (field.type, field.nullable) for field in self._do(lambda: self._items.schema)}
        if not 0 < self._about.dim < _MOST_DIM or found != {
            field.name: (field.type, field.nullable) for field in _schema(self._about.dim)
        }:
            raise UserError(
                f"the gallery {self.uri} does not hold what it says: paths, labels and vectors of {self._about.dim}"
                f" numbers. {how_to_remake(self.uri)}"
            )

    def upsert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        import pyarrow

        vectors = check_rows(rows, self._about.dim)
        data = pyarrow.table(
            {
                "path": [storable(row.path) for row in rows],
                "vector": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), self._about.dim),
                "label": [storable(row.label) for row in rows],
                "width": [row.width for row in rows],
                "height": [row.height for row in rows],
                "fingerprint": [storable(row.fingerprint) for row in rows],
                "thumbnail": [row.thumbnail for row in rows],
            },
            schema=_schema(self._about.dim),
        )
        self._do(_merge, self._items, "path", data)
        self._writes += 1
        if self._writes % _MANY == 0:
            self._merge_files()
        self._synchronise()

    def delete(self, paths: Sequence[str]) -> None:
        for condition in _among(paths):
            self._do(self._items.delete, condition)
        self._synchronise()

    def search(
        self,
        vectors: Float32[ndarray, "queries dim"],
        k: int,
        *,
        label: str | None = None,
        exact: bool = False,
        leave_out: Sequence[str | None] | None = None,
    ) -> list[list[Hit]]:
        queries = check_queries(vectors, self._about.dim, k, leave_out)
        complete = exact or not self._do(self._items.list_indices)
        if complete and len(queries) >= _PASS_FROM:
            return self._do(lambda: nearest(queries, self._blocks(label), k, leave_out))
        return [
            ranked(query, self._fetch(query, label, complete), k, own, complete=complete)
            for query, own in zip(queries, leave_out or [None] * len(queries), strict=True)
        ]

    def get(self, paths: Sequence[str]) -> list[Row]:
        found: dict[str, Row] = {}
        for condition in _among(paths):
            table = self._do(self._items.search().where(condition).to_arrow)
            found |= {row.path: row for row in self._rows(table)}
        missing = [path for path in paths if path not in found]
        if missing:
            raise missing_paths(self.uri, missing)
        return [found[path] for path in paths]

    def count(self) -> int:
        return int(self._do(self._items.count_rows))

    def fingerprints(self) -> dict[str, str]:
        table = self._do(lambda: self._items.search().select(["path", "fingerprint"]).to_arrow())
        return dict(zip(_texts(table, "path"), _texts(table, "fingerprint"), strict=True))

    def rows(self, batch: int, *, thumbnails: bool = False) -> Iterator[list[Row]]:
        columns = [name for name in _schema(self._about.dim).names if thumbnails or name != "thumbnail"]
        batches = iter(self._do(lambda: self._items.search().select(columns).to_batches(batch_size=batch)))
        while True:
            try:
                some = next(batches, None)
            except BaseException as error:
                if not _of_lance(error):
                    raise
                if "not found" in str(error).lower() and not self._gone():
                    raise UserError(
                        f"the gallery {self.uri} was put in order by another program while all of it was read. Do it"
                        f" again. If that does not help, a file of it is gone. {how_to_remake(self.uri)}"
                    ) from None
                raise self._wrong(error) from None
            if some is None:
                return
            if len(some):
                yield self._rows(some)

    def labels(self) -> dict[str, int]:
        table = self._do(lambda: self._items.search().select(["label"]).to_arrow())
        return {as_it_was(each["values"]): each["counts"] for each in table.column("label").value_counts().to_pylist()}

    def describe(self, about: About) -> None:
        if about.dim != self._about.dim:
            raise UserError(f"the gallery holds vectors of {self._about.dim} numbers, not of {about.dim}.")
        self._about = about
        if not self.replaced():
            self._point_here(_current(self.uri, self._database)["since"])

    def optimise(self, *, exact_up_to: int = EXACT_UP_TO, rest: timedelta = REST) -> Order:
        removed = self._remove_what_is_left(rest)
        self._merge_files()
        rows = self.count()
        indexed = self._index(rows, exact_up_to)
        self._synchronise()
        return Order(rows, indexed, self._recall(rows) if indexed else None, removed)

    def version(self) -> str:
        return f"{self._name} {self._do(lambda: self._items.version)}"

    def replaced(self) -> bool:
        return bool(_current(self.uri, self._database)["items"] != self._name)

    def swap(self) -> None:
        """Let this gallery take its place; see `Rebuild`."""
        self._synchronise()
        self._point_here(datetime.now(UTC).isoformat())

    def _point_here(self, since: str) -> None:
        """Write the one row of `about`: readers see the old one or this."""
        row = _about_row(self._name, self._about, since)
        if _is_gallery(self.uri) and not self._has_damaged_about():
            table = self._do(self._database.open_table, _ABOUT)
            self._do(_merge, table, "name", row)
        else:
            self._do(partial(self._database.drop_table, _ABOUT, ignore_missing=True))
            self._do(self._database.create_table, _ABOUT, row)
        if self._folder is not None:
            _synchronise(self._folder / f"{_ABOUT}{_ENDING}", set())

    def _has_damaged_about(self) -> bool:
        try:
            _current(self.uri, self._database)
        except UserError:
            return True
        return False

    def _fetch(self, query: Float32[ndarray, " dim"], label: str | None, complete: bool) -> Callable[[int], Found]:
        def fetch(number: int) -> Found:
            asked = self._items.search(query, vector_column_name="vector").distance_type("l2").limit(number)
            asked = asked.select(["path", "label", "vector", "_distance"])
            if label is not None:
                asked = asked.where(_is_label(label))
            if complete:
                asked = asked.bypass_vector_index()
            else:
                asked = asked.nprobes(_PROBES if label is None else _PROBES_OF_A_CLASS).refine_factor(_REFINE)
            found = self._do(asked.to_arrow)
            squared = found.column("_distance").to_numpy()
            return Found(self._block(found), float(np.sqrt(squared.max(initial=0), dtype=np.float64)))

        return fetch

    def _blocks(self, label: str | None = None) -> Iterator[Block]:
        """All rows, or those of a class; an error of LanceDB is not caught."""
        asked = self._items.search().select(["path", "label", "vector"])
        if label is not None:
            asked = asked.where(_is_label(label))
        for batch in asked.to_batches(batch_size=_BLOCK):
            yield self._block(batch)

    def _block(self, table: Any) -> Block:
        return Block(_texts(table, "path"), _texts(table, "label"), self._vectors(table))

    def _vectors(self, table: Any) -> Float32[ndarray, "rows dim"]:
        vectors = _vectors(table, self._about.dim)
        if not np.isfinite(vectors).all():  # nothing of ours writes such: a stranger's, or damaged
            raise UserError(
                f"the gallery {self.uri} holds vectors that are not finite numbers. {how_to_remake(self.uri)}"
            )
        return vectors

    def _rows(self, table: Any) -> list[Row]:
        sizes = (table.column(name).to_pylist() for name in ("width", "height"))
        asked = "thumbnail" in table.schema.names
        thumbnails = table.column("thumbnail").to_pylist() if asked else [b""] * len(table)
        paths, labels, fingerprints = (_texts(table, name) for name in ("path", "label", "fingerprint"))
        every = zip(paths, self._vectors(table), labels, *sizes, fingerprints, thumbnails, strict=True)
        return [Row(*each) for each in every]

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

    def _index(self, rows: int, exact_up_to: int) -> bool:
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
            return True
        if any(self._do(self._items.index_stats, name).num_unindexed_rows for name in names):
            self._do(lambda: self._items.optimize(cleanup_older_than=timedelta(days=7)))  # takes in rows that are new
        return bool(names)

    def _recall(self, rows: int) -> float:
        drawn = np.random.default_rng(0).choice(rows, min(rows, _QUERIES), replace=False)
        table = self._do(lambda: self._items.take_offsets(sorted(drawn.tolist())).select(["path", "vector"]).to_arrow())
        vectors, paths = _vectors(table, self._about.dim), _texts(table, "path")
        answers = [self.search(vectors, 10, exact=exact, leave_out=paths) for exact in (False, True)]
        return recall_at_10(*answers)

    def _remove_what_is_left(self, rest: timedelta) -> tuple[str, ...]:
        """Tables of items that nothing points to and nobody has written to for a while."""
        if not _is_gallery(self.uri):
            return ()  # this one has not taken its place yet
        current = _current(self.uri, self._database)
        before = datetime.now(UTC) - rest
        if datetime.fromisoformat(current["since"]) > before:
            return ()  # who has opened the old one may still use it
        removed = []
        for name in _tables(self.uri):
            if name.startswith(_ITEMS) and name not in (current["items"], self._name) and self._written(name) < before:
                self._do(self._database.drop_table, name)
                removed.append(name)
        return tuple(removed)

    def _written(self, name: str) -> datetime:
        """When a table was last written to; one that was never whole says by its name when it was begun."""
        try:
            newest: datetime = self._database.open_table(name).list_versions()[-1]["timestamp"]
            return newest.astimezone(UTC)
        except (RuntimeError, ValueError, OSError, IndexError):
            stamp = name.removeprefix(_ITEMS).partition("-")[0]
            with suppress(ValueError):
                return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
            return datetime.now(UTC)  # it is none of ours, and stays

    def _synchronise(self) -> None:
        if self._folder is not None:
            _synchronise(self._folder / f"{self._name}{_ENDING}", self._synchronised)

    def _do(self, action: Callable[..., T], *arguments: Any) -> T:
        """Do it, again where another was faster, and tell the user what LanceDB has to say."""
        for attempt in range(_ATTEMPTS):
            try:
                return action(*arguments)
            except BaseException as error:
                if isinstance(error, UserError) or not _of_lance(error):
                    raise
                again = any(word in str(error).lower() for word in _TRY_AGAIN)
                if not again or attempt == _ATTEMPTS - 1 or self._gone():
                    raise self._wrong(error) from None
            time.sleep(random.uniform(0.005, 0.02) * 1.5**attempt)
        raise AssertionError("every attempt returns or raises")

    def _wrong(self, error: BaseException) -> UserError:
        if self._gone():
            return UserError(f"the gallery {self.uri} was made anew since it was opened. Open it again.")
        return _damaged(self.uri, error)

    def _gone(self) -> bool:
        try:
            return self._name not in _tables(self.uri)
        except UserError:
            return False


def _lancedb() -> Any:
    try:
        return import_module("lancedb")
    except ModuleNotFoundError:
        raise UserError("a gallery in a folder needs LanceDB: pip install 'tammes[gallery]'") from None


def _connect(uri: str) -> Any:
    """The database; a folder is made if it is not there. Each read looks whether there is a newer version."""
    try:
        return _lancedb().connect(uri, read_consistency_interval=timedelta(0))
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"cannot open a gallery at {uri}: {_said(error)}") from None


def _tables(uri: str) -> list[str]:
    """The names of the tables that are there; an error if it is no place for a gallery. A folder is left as it is."""
    if "://" in uri:
        database = _connect(uri)
        try:
            return list(database.list_tables().tables)
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"cannot read {uri}: {_said(error)}") from None
    folder = Path(uri)
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise UserError(f"{uri} is a file. A gallery is a folder: choose another name.")
    names = sorted(entry.name for entry in folder.iterdir())
    ours = [name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)]
    if f"{_ABOUT}{_ENDING}" not in names:
        others = [name for name in names if not (name.startswith(_ITEMS) and name.endswith(_ENDING))]
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UserError(f"{uri} is no gallery: it holds {shown}. Choose an empty folder or a new one.")
    return ours


def _is_gallery(uri: str) -> bool:
    """Whether a gallery is there, whole or damaged; one that was begun and never whole is none."""
    if _ABOUT not in _tables(uri):
        return False
    try:
        _connect(uri).open_table(_ABOUT)
    except BaseException as error:
        if not _of_lance(error):
            raise
        return not isinstance(error, ValueError) or "not found" not in str(error)
    return True


def _opened(uri: str) -> LanceGallery:
    database = _connect(uri)
    current = _current(uri, database)
    gallery = LanceGallery(uri, database, current["items"], About.from_json(current["about"], uri))
    gallery.check_columns()
    return gallery


def _create(uri: str, about: About) -> None:
    """An empty gallery; if another program makes one at the same time, one of the two."""
    database = _connect(uri)
    name = _new_items(uri, database, about.dim)
    try:
        _create_table(uri, database, _ABOUT, _about_row(name, about, datetime.now(UTC).isoformat()))
    except UserError:
        if not _is_gallery(uri):
            raise
        database.drop_table(name)  # another was faster
        return
    if "://" not in uri:
        _synchronise(Path(uri) / f"{_ABOUT}{_ENDING}", set())


def _new_items(uri: str, database: Any, dim: int) -> str:
    name = f"{_ITEMS}{datetime.now(UTC).strftime(_STAMP)}-{token_hex(4)}"
    _create_table(uri, database, name, schema=_schema(dim))
    if "://" not in uri:
        _synchronise(Path(uri) / f"{name}{_ENDING}", set())
    return name


def _create_table(uri: str, database: Any, name: str, data: Any = None, schema: Any = None) -> None:
    try:
        database.create_table(name, data, schema=schema)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"cannot make a gallery at {uri}: {_said(error)}") from None


def _schema(dim: int) -> Any:
    import pyarrow

    # Two programs that add the same path at once are noticed only if the path is declared a key; without, both add it.
    key = {"lance-schema:unenforced-primary-key": "true"}
    return pyarrow.schema(
        [
            pyarrow.field("path", pyarrow.string(), nullable=False, metadata=key),
            pyarrow.field("vector", pyarrow.list_(pyarrow.float32(), dim), nullable=False),
            pyarrow.field("label", pyarrow.string(), nullable=False),
            pyarrow.field("width", pyarrow.int32(), nullable=False),
            pyarrow.field("height", pyarrow.int32(), nullable=False),
            pyarrow.field("fingerprint", pyarrow.string(), nullable=False),
            pyarrow.field("thumbnail", pyarrow.binary(), nullable=False),
        ]
    )


def _about_row(name: str, about: About, since: str) -> Any:
    """One row: which table is in use, since when, and what made it."""
    import pyarrow

    said = json.dumps({"items": name, "since": since, "about": about.to_json()})
    return pyarrow.table({"name": ["current"], "said": [said]})


def _current(uri: str, database: Any) -> dict[str, str]:
    """What the row of `about` says."""
    for attempt in range(_ATTEMPTS):
        try:
            table = database.open_table(_ABOUT)
            said = json.loads(table.search().limit(1).to_arrow().column("said").to_pylist()[0])
            current = {name: str(said[name]) for name in ("items", "since", "about")}
            # It may be a stranger's: a name is that of a table in the folder, and nowhere else.
            if not _ITEMS_NAME.fullmatch(current["items"]) or datetime.fromisoformat(current["since"]).tzinfo is None:
                raise ValueError("what it says of itself makes no sense")
            return current
        except BaseException as error:
            if not (_of_lance(error) or isinstance(error, KeyError | IndexError | TypeError)):
                raise
            if attempt == _ATTEMPTS - 1 or "not found" not in str(error).lower():
                raise _damaged(uri, error) from None
            time.sleep(0.02 * (attempt + 1))  # it may have been begun at this moment
    raise AssertionError("every attempt returns or raises")


def _merge(table: Any, key: str, data: Any) -> None:
    table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(data)


def _vectors(table: Any, dim: int) -> Float32[ndarray, "rows dim"]:
    column = table.column("vector")
    chunks = getattr(column, "chunks", [column])  # of a table; a batch has one
    parts = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim) for chunk in chunks]
    return np.concatenate(parts) if parts else np.zeros((0, dim), dtype=np.float32)


def _texts(table: Any, name: str) -> list[str]:
    return [as_it_was(text) for text in table.column(name).to_pylist()]


def _is_label(label: str) -> str:
    return f"label = {_quoted(label)}"


def _among(paths: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(paths), _TOGETHER):
        yield f"path IN ({', '.join(map(_quoted, paths[start : start + _TOGETHER]))})"


def _quoted(text: str) -> str:
    """A text in SQL, where only the quote itself needs care."""
    return "'" + storable(text).replace("'", "''") + "'"


def _of_lance(error: BaseException) -> bool:
    """Whether LanceDB may have raised it. A file that makes no sense can make its Rust panic, which has no class of
    its own to be caught by."""
    return isinstance(error, RuntimeError | ValueError | OSError) or type(error).__name__ in _PANICS


def _damaged(uri: str, error: BaseException) -> UserError:
    if any(word in str(error).lower() for word in _NOT_ALLOWED):
        return UserError(f"cannot write to the gallery {uri}: {_said(error)}.")
    return UserError(
        f"cannot read the gallery {uri}; a file of it may be damaged: {_said(error)}. {how_to_remake(uri)}"
    )


def _said(error: BaseException) -> str:
    """What went wrong, without the places in LanceDB's own source."""
    return re.split(r", /\w+/", str(error))[0].strip().rstrip(".")


def _synchronise(table: Path, done: set[str]) -> None:
    """Make sure that the files of a table, and their names, are on the disk.

    Files are written once, so each is looked after once. All but the hint which version is the newest: LanceDB looks
    for itself where that is wrong.
    """
    if os.name != "posix":
        return
    for folder, _, files in os.walk(table):
        new = [file for file in (f"{folder}/{name}" for name in files) if file not in done]
        for file in new:
            _fsync(file)
        if new:
            _fsync(folder)
        if folder not in done:
            _fsync(str(Path(folder).parent))
        done.update(new, [folder])
    _fsync(str(table.absolute().parents[1]))  # the name of the gallery itself


def _fsync(path: str) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # removed by another who puts the gallery in order
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
