"""A gallery in PostgreSQL with pgvector.

    tammes_galleries      a row a gallery or rebuild: its name, its table, since when it is in use, what made it
    tammes_items_…        a row an image

In use is the table that took its place last. A rebuild fills another; it takes its place in one transaction.
The address is that of the server and the database, as libpq has it, with the name of the gallery after the database:
postgresql://user@host:port/database/name. Without a name it is called gallery.
"""

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from secrets import token_hex
from struct import pack
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.filters import NUMBERS, OF_EVERY_ITEM, TEXTS, Filter, In, Order, sql
from tammes.gallery.items import About, Row, as_it_was, how_to_remake, item_id, no_gallery
from tammes.gallery.store import COLUMNS, Columns, Store
from tammes.io.addresses import with_password

_LOCK = 0x7A33E5  # of those who make galleries in a database
_INDEXED_DIM = 2000  # numbers of a vector up to which pgvector has an index
_CANDIDATES = 200  # of a search in the index, at least; pgvector allows 1000
_PAGE = 4096  # rows of one answer
_BUILDING = 168  # times as long a rebuild that was not finished may still be under way: an hour makes a week
_MEMORY_MB = 2048  # to build an index in, at most
_FEW = 50_000  # rows that fit a filter: these are all compared
_TIMEOUT = 30  # seconds to connect

T = TypeVar("T")


def open_store(uri: str, create: About | None) -> "PostgresGallery":
    """The gallery that is there, or a new one."""
    database, name = _Database(uri), _name(uri)
    current = database.do(partial(_current, name=name))
    if current is None:
        if create is None:
            raise no_gallery(uri)
        database.do(partial(_create, name=name, about=create, at_once=True))
        current = database.do(partial(_current, name=name))
        assert current is not None
    items, about = current
    return PostgresGallery(uri, database, items, About.from_json(about, uri))


def rebuild(uri: str, about: About) -> "PostgresGallery":
    """An empty table of items beside the one that is in use."""
    database = _Database(uri)
    items = database.do(partial(_create, name=_name(uri), about=about, at_once=False))
    return PostgresGallery(uri, database, items, about)


class PostgresGallery(Store):
    """A gallery in PostgreSQL; see `Store` for what its methods promise.

    A write is one transaction: its rows outlast a crash of the server once it returns, as far as the server's
    `synchronous_commit` promises. Who connects again after the server was restarted notices nothing.
    """

    def __init__(self, uri: str, database: "_Database", items: str, about: About) -> None:
        super().__init__(uri, about)
        self._database, self._items, self._name = database, items, _name(uri)

    def write(self, rows: Sequence[Row]) -> None:
        json = import_module("psycopg.types.json").Jsonb
        names = ", ".join(COLUMNS)
        changed = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
        values = [
            # In one order everywhere: two that write the same rows wait for each other, and not both.
            (_id(row.path), *(getattr(row, name) for name in COLUMNS[:-1]), json(dict(row.fields)))
            for row in sorted(rows, key=lambda row: _id(row.path))
        ]

        def insert(connection: Any) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {self._items} (id, {names}) VALUES (%s{', %s' * len(COLUMNS)})"
                    f" ON CONFLICT (id) DO UPDATE SET {changed}",
                    values,
                )

        self._change(insert)

    def remove(self, paths: Sequence[str]) -> None:
        ids = sorted(map(_id, paths))
        # Locked in the order of the ids first: see `write`.
        chosen = f"SELECT id FROM {self._items} WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
        self._change(lambda connection: connection.execute(f"DELETE FROM {self._items} WHERE id IN ({chosen})", [ids]))

    def scan(self, columns: Sequence[str], where: Filter | None = None, batch: int = _PAGE) -> Iterator[Columns]:
        read = ", ".join("vector_send(vector)" if name == "vector" else name for name in columns)
        condition, values = _condition(where)
        with (
            _errors(self.uri),
            self._database.connected() as connection,
            connection.transaction(),
            connection.cursor(name="scan") as cursor,  # on the server: all rows as they are now
        ):
            cursor.execute(f"SELECT {read} FROM {self._items} WHERE {condition}", values)
            while rows := cursor.fetchmany(min(batch, _PAGE)):
                yield _columns(columns, rows)

    def nearest(
        self, query: Float32[ndarray, " dim"], number: int, where: Filter | None, *, exact: bool
    ) -> tuple[Columns, float]:
        condition, values = _condition(where)
        if not exact and where is not None:  # of one row in a hundred the index finds half of the nearest
            fitting = f"SELECT count(*) FROM (SELECT FROM {self._items} WHERE {condition} LIMIT %s) AS fitting"
            counted = self._do(lambda connection: connection.execute(fitting, [*values, _FEW + 1]).fetchone())
            exact = int(counted[0]) <= _FEW
        settings = (
            {"enable_indexscan": "off"}
            if exact
            else {
                "enable_seqscan": "off",
                "hnsw.ef_search": str(min(1000, max(_CANDIDATES, 2 * number))),
                "hnsw.iterative_scan": "relaxed_order",  # goes on until a filter has let enough through
            }
        )

        def ask(connection: Any) -> Any:
            for name, value in settings.items():
                connection.execute("SELECT set_config(%s, %s, true)", [name, value])
            return connection.execute(
                f"SELECT path, label, vector_send(vector), vector <-> %s AS distance FROM {self._items}"
                f" WHERE {condition} ORDER BY distance LIMIT %s",
                [query, *values, number],
            ).fetchall()

        found = self._do(ask)
        if not exact and where is not None and len(found) < number:  # the index has given up before it found enough
            return self.nearest(query, number, where, exact=True)
        return _columns(("path", "label", "vector"), found), max((row[3] for row in found), default=0.0)

    def count(self) -> int:
        counted = self._do(lambda connection: connection.execute(f"SELECT count(*) FROM {self._items}").fetchone())
        return int(counted[0])

    def describe(self, *, roots: Sequence[str] = (), threshold: str | None = None) -> None:
        def change(connection: Any) -> About:
            found = _current(connection, self._name, lock=True)
            if found is None or found[0] != self._items:
                return self._about.changed(roots, threshold)
            about = About.from_json(found[1], self.uri).changed(roots, threshold)
            said = [about.to_json(), self._items]
            connection.execute("UPDATE tammes_galleries SET about = %s WHERE items = %s", said)
            return about

        self._about = self._do(change)

    def swap(self) -> None:
        """Let this gallery take its place; see `Store`."""
        said = [self._about.to_json(), self._items]
        self._do(
            lambda connection: connection.execute(
                "UPDATE tammes_galleries SET since = clock_timestamp(), about = %s WHERE items = %s", said
            )
        )

    def replaced(self) -> bool:
        found = self._do(partial(_current, name=self._name))
        return bool(found is None or found[0] != self._items)

    def version(self) -> str:
        said = self._do(
            lambda connection: connection.execute(f"SELECT last_value FROM {self._items}_writes").fetchone()
        )
        return f"{self._items} {said[0]}"

    def indexed(self) -> bool:
        return bool(self._do(partial(_valid_index, items=self._items)))

    def tidy(self, exact_up_to: int, rest: timedelta) -> tuple[str, ...]:
        removed = self._remove_what_is_left(rest)
        if self.count() > exact_up_to and self._about.dim <= _INDEXED_DIM and not self.indexed():
            self._index()
        return removed

    def _index(self) -> None:
        """Build the index while others read and write; if another program does so at this moment, leave it to it."""
        index = f"{self._items}_vector"
        # With the links of each item the graph takes some 800 bytes an item beside the vector; one that does not fit
        # is written out, and each further item takes many times as long.
        memory = min(_MEMORY_MB, 64 + self.count() * (4 * self._about.dim + 1024) // 2**20)

        def build(connection: Any, workers: str | None = None) -> None:
            if not connection.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [index]).fetchone()[0]:
                return
            try:
                connection.execute("SELECT set_config('maintenance_work_mem', %s, false)", [f"{memory}MB"])
                if workers is not None:
                    connection.execute("SELECT set_config('max_parallel_maintenance_workers', %s, false)", [workers])
                connection.execute(f"DROP INDEX IF EXISTS {index}")  # what a build that was killed has left
                connection.execute(
                    f"CREATE INDEX CONCURRENTLY {index} ON {self._items} USING hnsw (vector vector_l2_ops)"
                )
            finally:
                with suppress(_psycopg().Error):
                    connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [index])
                    connection.execute("RESET maintenance_work_mem")
                    connection.execute("RESET max_parallel_maintenance_workers")

        try:
            self._database.do(build, transaction=False)
        except UserError as error:
            if "shared memory" not in str(error):
                raise
            self._database.do(partial(build, workers="0"), transaction=False)  # a container may have little of it

    def _remove_what_is_left(self, rest: timedelta) -> tuple[str, ...]:
        """Tables of this gallery that are not in use, after a while."""

        def remove(connection: Any) -> tuple[str, ...]:
            connection.execute("SET LOCAL lock_timeout = '2s'")  # who still reads from one keeps it for the next time
            current = _current(connection, self._name, lock=True)
            if current is None:
                return ()  # this one has not taken its place yet
            rows = connection.execute(
                # One that is being filled has not taken its place yet, however long that takes.
                "SELECT items FROM tammes_galleries WHERE name = %(name)s AND items NOT IN (%(current)s, %(own)s)"
                " AND begun < clock_timestamp() - %(rest)s * CASE WHEN since IS NULL THEN %(building)s ELSE 1 END"
                " AND (SELECT since FROM tammes_galleries WHERE items = %(current)s) <= clock_timestamp() - %(rest)s",
                {"name": self._name, "current": current[0], "own": self._items, "rest": rest, "building": _BUILDING},
            ).fetchall()
            for (items,) in rows:
                connection.execute("DELETE FROM tammes_galleries WHERE items = %s", [items])
                _drop(connection, items)
            return tuple(items for (items,) in rows)

        try:
            return self._do(remove)
        except UserError as error:
            if "lock timeout" not in str(error):
                raise
            return ()

    def _change(self, action: Callable[[Any], Any]) -> None:
        """Change rows, and count that they were: within the transaction, and after it, when others can see them."""

        def counted(connection: Any) -> None:
            action(connection)
            connection.execute(count)

        count = f"SELECT nextval('{self._items}_writes')"
        self._do(counted)
        self._do(lambda connection: connection.execute(count))

    def _do(self, action: Callable[[Any], T]) -> T:
        return self._database.do(action)


class _Database:
    """Connections to one database: as many as are needed at once, used again."""

    def __init__(self, uri: str) -> None:
        self._uri, self._free, self._lock = uri, list[Any](), Lock()
        weakref.finalize(self, _close, self._free)

    def do(self, action: Callable[[Any], T], *, transaction: bool = True) -> T:
        """Do it in a transaction; once more where the connection was lost, as all that is done may be done twice."""
        psycopg, lost = _psycopg(), False
        with _errors(self._uri):
            while True:
                try:
                    with self.connected() as connection, connection.transaction() if transaction else nullcontext():
                        return action(connection)
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    both_wait = isinstance(error, psycopg.errors.DeadlockDetected)
                    if lost or not (connection.closed or both_wait):
                        raise
                    lost = connection.closed
                    self.forget()

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with self._lock:
            connection = self._free.pop() if self._free else None
        connection = connection or self._connect()
        try:
            yield connection
        except BaseException:
            if connection.info.transaction_status != 0:  # in the middle of something
                connection.close()
            raise
        finally:
            if not connection.closed:
                with self._lock:
                    self._free.append(connection)

    def forget(self) -> None:
        """Close what is free: if one is lost, all may be."""
        with self._lock:
            _close(self._free)

    def _connect(self) -> Any:
        psycopg = _psycopg()
        try:
            address = _conninfo(self._uri)
            # A prepared statement would keep the plan of an exact search for an approximate one.
            connection = psycopg.connect(**address, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise _wrong(self._uri, error) from None
        _register_vectors(connection)
        return connection


def _close(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    """Tell the user what PostgreSQL has to say."""
    psycopg = _psycopg()
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise UserError(f"the gallery {uri} was rebuilt since it was opened. Open it again.") from None
    except psycopg.Error as error:
        raise _wrong(uri, error) from None


def _register_vectors(connection: Any) -> None:
    """Let arrays be sent as pgvector has them; without the extension yet there is nothing to send."""
    found = connection.execute("SELECT oid FROM pg_type WHERE typname = 'vector'").fetchone()
    if found is None:
        return
    how = {"format": _psycopg().pq.Format.BINARY, "oid": found[0], "dump": _as_pgvector}
    dumper = type("VectorDumper", (import_module("psycopg.adapt").Dumper,), how)
    connection.adapters.register_dumper(ndarray, dumper)


def _as_pgvector(_: object, vector: ndarray) -> bytes:
    return pack(">HH", len(vector), 0) + vector.astype(">f4").tobytes()


def _current(connection: Any, name: str, *, lock: bool = False) -> tuple[str, str] | None:
    """The table of the gallery that is in use, and what is said of it."""
    if connection.execute("SELECT to_regclass('tammes_galleries')").fetchone()[0] is None:
        return None
    if lock:
        connection.execute("SELECT FROM tammes_galleries WHERE name = %s ORDER BY items FOR UPDATE", [name])
    found = connection.execute(
        "SELECT items, about FROM tammes_galleries WHERE name = %s AND since IS NOT NULL ORDER BY since DESC LIMIT 1",
        [name],
    ).fetchone()
    return None if found is None else (found[0], found[1])


def _create(connection: Any, name: str, about: About, *, at_once: bool) -> str:
    """A new table of items; one in use already is taken instead where it is wanted `at_once`."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    _register_vectors(connection)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS tammes_galleries (items text PRIMARY KEY, name text NOT NULL,"
        " begun timestamptz NOT NULL DEFAULT clock_timestamp(), since timestamptz, about text NOT NULL)"
    )
    if at_once and (found := _current(connection, name)) is not None:
        return found[0]
    items = f"tammes_items_{token_hex(6)}"
    connection.execute(
        f"CREATE TABLE {items} (id bigint PRIMARY KEY, path text NOT NULL, vector vector({int(about.dim)}) NOT NULL,"
        " label text NOT NULL, width integer NOT NULL, height integer NOT NULL, fingerprint text NOT NULL,"
        " thumbnail bytea NOT NULL, fields jsonb NOT NULL)"
    )
    connection.execute(f"CREATE INDEX ON {items} (label)")
    connection.execute(f"CREATE INDEX ON {items} USING gin (fields jsonb_path_ops)")
    connection.execute(f"CREATE SEQUENCE {items}_writes")
    connection.execute(
        "INSERT INTO tammes_galleries (items, name, since, about) VALUES"
        f" (%s, %s, {'clock_timestamp()' if at_once else 'NULL'}, %s)",
        [items, name, about.to_json()],
    )
    return items


def _drop(connection: Any, items: str) -> None:
    if re.fullmatch("tammes_items_[0-9a-f]+", items):  # it stands in a statement
        connection.execute(f"DROP TABLE IF EXISTS {items}")
        connection.execute(f"DROP SEQUENCE IF EXISTS {items}_writes")


def _valid_index(connection: Any, items: str) -> bool:
    found = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [f"{items}_vector"]
    ).fetchone()
    return bool(found and found[0])


def _columns(names: Sequence[str], rows: Sequence[Any]) -> Columns:
    found: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    if "vector" in found:  # as pgvector sends it: two short numbers, then those of the vector
        found["vector"] = np.array([np.frombuffer(each, ">f4", offset=4) for each in found["vector"]], np.float32)
    return found


def _condition(where: Filter | None) -> tuple[str, list[Any]]:
    """A filter in SQL, and its values."""
    values: list[Any] = []
    json = import_module("psycopg.types.json").Jsonb

    def leaf(part: In | Order) -> str:
        name = part.name
        if isinstance(part, Order):
            if name in TEXTS:
                return "false"
            if name in NUMBERS:
                values.append(float(part.value))
                return f"({name} {part.sign} %s)"
            values.extend([name, name, float(part.value)])
            number = f"(fields ->> %s)::float8 {part.sign} %s"
            return f"(CASE WHEN jsonb_typeof(fields -> %s) = 'number' THEN {number} ELSE false END)"
        if name in OF_EVERY_ITEM:
            kept = [each for each in part.values if isinstance(each, str) == (name in TEXTS)]
            values.append([_id(str(each)) for each in kept] if name == "path" else kept)
            kind = {"path": "bigint", "label": "text"}.get(name, "float8")
            return f"({'id' if name == 'path' else name} = ANY(%s::{kind}[]))"
        values.extend(json({name: each}) for each in part.values)
        return f"({' OR '.join(['fields @> %s'] * len(part.values))})"

    return ("true" if where is None else sql(where, leaf)), values


def _id(path: str) -> int:
    """The id of an item as the number, with a sign, that PostgreSQL can hold."""
    return int.from_bytes(bytes.fromhex(item_id(as_it_was(path, ""))), signed=True)


def _name(uri: str) -> str:
    with _address_of(uri):
        return unquote(urlsplit(uri).path.strip("/").partition("/")[2]) or "gallery"


def _conninfo(uri: str) -> dict[str, Any]:
    """What libpq needs: the address without the name of the gallery."""
    with _address_of(uri):
        parts = urlsplit(with_password(uri))
        if parts.netloc.count("@") > 1 or "@" in parts.path:  # else a part of a password would be taken for a host
            raise ValueError
        address = urlunsplit(parts._replace(path="/" + parts.path.strip("/").partition("/")[0], fragment=""))
        # urlunsplit writes no // before an empty host, which is that of a socket.
        address = address if "://" in address else address.replace(":", "://", 1)
        return {"connect_timeout": _TIMEOUT, **import_module("psycopg.conninfo").conninfo_to_dict(address)}


@contextmanager
def _address_of(uri: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, _psycopg().Error):  # what it says may have a part of the password in it
        raise UserError(
            f"{uri} cannot be a gallery: write postgresql://user@host:port/database/name. In a password write @ as %40"
            " and / as %2F; or leave it out and set PGPASSWORD."
        ) from None


def _wrong(uri: str, error: Exception) -> UserError:
    errors, text = _psycopg().errors, " ".join(str(error).split()).rstrip(".")
    if isinstance(error, errors.FeatureNotSupported | errors.UndefinedFile) and "vector" in text:
        return UserError(f"the server of {uri} has no pgvector: {text}. See https://github.com/pgvector/pgvector")
    if isinstance(error, errors.InsufficientPrivilege) and "extension" in text:
        return UserError(f"who may has to run CREATE EXTENSION vector in the database of {uri} once: {text}.")
    if isinstance(error, _psycopg().OperationalError):
        return UserError(f"no PostgreSQL answers at {uri}: {text}.")
    return UserError(f"cannot use the gallery {uri}: {text}. {how_to_remake(uri)}")


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ModuleNotFoundError:
        raise UserError("a gallery in PostgreSQL needs its client: pip install 'tammes[postgres]'") from None
