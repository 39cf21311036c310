"""A gallery on a Qdrant server or cluster, for those who outgrow one machine.

    name                  an alias for the collection that is in use
    name--…               a collection: a point an image; what made it stands in its metadata (Qdrant 1.16 or newer)

A rebuild fills another collection; moving the alias puts it in the place of the old one.
"""

import json
import re
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.filters import NUMBERS, OF_EVERY_ITEM, TEXTS, Filter, In, Order, translated
from tammes.gallery.items import About, Row, as_it_was, how_to_remake, item_id, no_gallery, storable
from tammes.gallery.store import Columns, Store
from tammes.io.environment import qdrant_api_key

_BETWEEN = "--"
_ROOT, _THRESHOLD = "tammes-root-", "tammes-threshold"  # keys of a collection's metadata
_STAMP = "%Y%m%dT%H%M%SZ"
_BUILDING = 168  # times as long a rebuild that was not finished may still be under way: an hour makes a week
_TOGETHER = 256  # points in one request
_PAGE = 4096  # points of one answer where only a few words of each are read
_TIMEOUT = 60  # seconds

T = TypeVar("T")


def open_store(uri: str, create: About | None) -> "QdrantGallery":
    """The gallery that is there, or a new one."""
    location, name = _location_and_name(uri)
    client = _client(location)
    current = _do(uri, lambda: _current(client, name))
    if current is None:
        if _do(uri, lambda: client.collection_exists(name)):
            raise UserError(f"{uri} is not a gallery: Qdrant has a collection of that name. Choose another name.")
        if create is None:
            raise no_gallery(uri)
        new = rebuild(uri, create)
        if _do(uri, lambda: _current(client, name)) is None:
            new.swap()
        return open_store(uri, None)
    said = _do(uri, lambda: _metadata(client, current))
    if "about" not in said:
        raise UserError(f"{uri} is not a gallery: Qdrant has a collection of that name. Choose another name.")
    return QdrantGallery(uri, client, name, current, _about(uri, said))


def rebuild(uri: str, about: About) -> "QdrantGallery":
    """An empty collection beside the one that is in use."""
    location, name = _location_and_name(uri)
    client, models = _client(location), _models()
    collection = f"{name}{_BETWEEN}{datetime.now(UTC).strftime(_STAMP)}-{token_hex(4)}"
    vectors = models.VectorParams(size=about.dim, distance=models.Distance.EUCLID, on_disk=True)
    metadata = {"tammes": json.dumps({"about": about.to_json(), "since": ""})}
    _do(uri, lambda: client.create_collection(collection, vectors_config=vectors, metadata=metadata))
    if location != ":memory:":  # which has no indices
        kind = models.PayloadSchemaType.KEYWORD
        _do(uri, lambda: client.create_payload_index(collection, "label", kind, wait=True))
    return QdrantGallery(uri, client, name, collection, about)


class QdrantGallery(Store):
    """A gallery in Qdrant; see `Store` for what its methods promise.

    A write returns when the server has it in its log and shows it to readers; some hundred rows go in one request, and
    each is whole or not there. Qdrant builds its index by itself, from its own limits on; `exact_up_to` is its affair.
    What others write while all rows are read may be among them or not.
    """

    def __init__(self, uri: str, client: Any, name: str, collection: str, about: About) -> None:
        super().__init__(uri, about)
        self._client, self._name, self._collection = client, name, collection

    def write(self, rows: Sequence[Row]) -> None:
        points = [
            _models().PointStruct(
                id=_id(row.path),
                vector=row.vector.tolist(),
                payload={
                    "path": row.path,
                    "label": row.label,
                    "width": row.width,
                    "height": row.height,
                    "fingerprint": row.fingerprint,
                    "thumbnail": b64encode(row.thumbnail).decode(),
                    "fields": {_key(name): value for name, value in row.fields.items()},
                },
            )
            for row in rows
        ]
        for part in _some(points):
            self._do(self._client.upsert, self._collection, part)

    def remove(self, paths: Sequence[str]) -> None:
        for part in _some([_id(path) for path in paths]):
            self._do(self._client.delete, self._collection, part)

    def scan(self, columns: Sequence[str], where: Filter | None = None, batch: int = _PAGE) -> Iterator[Columns]:
        """In the order of the ids, a page after the other."""
        only, place = None if where is None else _filter(where), None
        read = partial(
            self._client.scroll,
            self._collection,
            scroll_filter=only,
            limit=min(batch, _PAGE),
            with_payload=[name for name in columns if name != "vector"],
            with_vectors="vector" in columns,
        )
        while True:
            points, place = self._do(partial(read, offset=place))
            if points:
                yield self._columns(points, columns)
            if place is None:
                return

    def nearest(
        self, query: Float32[ndarray, " dim"], number: int, where: Filter | None, *, exact: bool
    ) -> tuple[Columns, float]:
        local = _location_and_name(self.uri)[0] == ":memory:"  # which is always exact, and warns of options
        points = self._do(
            lambda: self._client.query_points(
                self._collection,
                query=query.tolist(),
                limit=number,
                query_filter=None if where is None else _filter(where),
                search_params=None if local else _models().SearchParams(exact=exact),
                with_payload=["path", "label"],
                with_vectors=True,
            )
        ).points
        reach = max((float(point.score) for point in points), default=0.0)
        return self._columns(points, ("path", "label", "vector")), reach

    def count(self) -> int:
        return int(self._do(lambda: self._client.count(self._collection, exact=True)).count)

    def describe(self, *, roots: Sequence[str] = (), threshold: str | None = None) -> None:
        # Each root and the threshold have a key of their own: the server merges keys, so that none is lost.
        said = {_key_of(root): storable(root) for root in roots} | (
            {} if threshold is None else {_THRESHOLD: threshold}
        )
        self._do(lambda: self._client.update_collection(self._collection, metadata=said))
        self._about = _about(self.uri, self._do(lambda: _metadata(self._client, self._collection)))

    def indexed(self) -> bool:
        return bool(self._do(lambda: self._client.get_collection(self._collection)).indexed_vectors_count)

    def tidy(self, exact_up_to: int, rest: timedelta) -> tuple[str, ...]:  # noqa: ARG002
        """Remove what is left of rebuilds: the rest the server does by itself."""
        return self._remove_what_is_left(rest)

    def version(self) -> str:
        """Qdrant counts no versions: besides the number of rows, every half minute makes another."""
        return f"{self._collection} {super().version()}"

    def replaced(self) -> bool:
        return bool(self._do(lambda: _current(self._client, self._name)) != self._collection)

    def swap(self) -> None:
        """Let this gallery take its place; see `Store`."""
        models = _models()
        self._write_metadata(datetime.now(UTC).isoformat())
        there = models.CreateAlias(collection_name=self._collection, alias_name=self._name)
        changes: list[Any] = [models.CreateAliasOperation(create_alias=there)]
        if self._do(lambda: _current(self._client, self._name)) is not None:
            old = models.DeleteAlias(alias_name=self._name)
            changes.insert(0, models.DeleteAliasOperation(delete_alias=old))
        self._do(lambda: self._client.update_collection_aliases(changes))  # all at once

    def _write_metadata(self, since: str) -> None:
        said = {"tammes": json.dumps({"about": self._about.to_json(), "since": since})}
        self._do(lambda: self._client.update_collection(self._collection, metadata=said))

    def _columns(self, points: Sequence[Any], columns: Sequence[str]) -> Columns:
        found: dict[str, Any] = {
            name: [point.payload.get(name) for point in points] for name in columns if name != "vector"
        }
        if "vector" in columns:
            found["vector"] = np.array([point.vector for point in points], np.float32).reshape(-1, self._about.dim)
        if "thumbnail" in columns:
            found["thumbnail"] = [b64decode(each) for each in found["thumbnail"]]
        if "fields" in columns:  # galleries of older versions have none
            found["fields"] = [{_name(key): value for key, value in (each or {}).items()} for each in found["fields"]]
        return found

    def _remove_what_is_left(self, rest: timedelta) -> tuple[str, ...]:
        """Collections of this gallery that the alias does not point to, after a while."""
        before = datetime.now(UTC) - rest
        current = self._do(lambda: _current(self._client, self._name))
        since = "" if current is None else self._do(lambda: _metadata(self._client, current))["since"]
        if not since or datetime.fromisoformat(since) > before:
            return ()  # who has opened the old one may still use it
        removed = []
        for each in self._do(self._client.get_collections).collections:
            name, _, stamp = each.name.rpartition(_BETWEEN)
            if name != self._name or each.name in (current, self._collection):
                continue
            begun = _begun(stamp)
            unfinished = (
                begun is not None and not self._do(lambda name=each.name: _metadata(self._client, name))["since"]
            )
            # One that is being filled has not taken its place yet, however long that takes.
            if begun is not None and begun < before - (_BUILDING * rest if unfinished else timedelta()):
                self._do(self._client.delete_collection, each.name)
                removed.append(each.name)
        return tuple(removed)

    def _do(self, action: Callable[..., T], *arguments: Any) -> T:
        try:
            return _do(self.uri, action, *arguments)
        except UserError:
            if not _do(self.uri, lambda: self._client.collection_exists(self._collection)):
                raise UserError(f"the gallery {self.uri} was rebuilt since it was opened. Open it again.") from None
            raise


def _begun(stamp: str) -> datetime | None:
    """When a collection was begun, by its name; None for one that is somebody else's."""
    try:
        return datetime.strptime(stamp.partition("-")[0], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


def _do(uri: str, action: Callable[..., T], *arguments: Any) -> T:
    """Do it, and tell the user what Qdrant has to say."""
    exceptions = _qdrant().http.exceptions
    try:
        return action(*arguments)
    except exceptions.ResponseHandlingException as error:
        raise UserError(f"no Qdrant answers at {uri}: {error}. Is the server running, and the port its own?") from None
    except (exceptions.ApiException, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot use the gallery {uri}: {error}. {how_to_remake(uri)}") from None


def _location_and_name(uri: str) -> tuple[str, str]:
    """The address of Qdrant, or :memory:, and the name of the gallery."""
    scheme, _, rest = uri.partition("://")
    location, _, name = rest.rpartition("/")
    if not location or not name or _BETWEEN in name or not _is_server(location):
        raise UserError(
            f"{uri} cannot be a gallery: write qdrant://host:port/name, or qdrant+https://…, the name without slashes"
            f" or {_BETWEEN!r}."
        )
    if location == ":memory:":
        return location, name
    return f"{'https' if scheme == 'qdrant+https' else 'http'}://{location}", name


def _is_server(location: str) -> bool:
    """Whether it can be a host, with or without a port; a key or a password does not belong there."""
    try:
        found = urlsplit(f"http://{location}")
        return location == ":memory:" or (
            found.netloc == location and found.hostname is not None and found.port != 0 and "@" not in location
        )
    except ValueError:  # a port that is not a number, or too large
        return False


def _qdrant() -> Any:
    try:
        return import_module("qdrant_client")
    except ModuleNotFoundError:
        raise UserError("a gallery in Qdrant needs its client: pip install 'tammes[qdrant]'") from None


def _models() -> Any:
    return _qdrant().models


@cache
def _client(location: str) -> Any:
    """One for each server: what is in memory is found again by the same name."""
    if location == ":memory:":
        return _qdrant().QdrantClient(":memory:")
    address, key = urlsplit(location), qdrant_api_key()
    if key and address.scheme == "http" and address.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise UserError(
            f"QDRANT_API_KEY is set, and {address.netloc} would get it unencrypted. Write qdrant+https://…, or unset"
            " it if the server needs none."
        )
    with warnings.catch_warnings():  # to this machine a key may go unencrypted
        warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
        port = 443 if address.scheme == "https" else 6333  # where the address has none
        return _qdrant().QdrantClient(url=location, port=port, api_key=key, timeout=_TIMEOUT, check_compatibility=False)


def _current(client: Any, name: str) -> str | None:
    """The collection that the alias of a gallery points to."""
    aliases = client.get_aliases().aliases
    return next((str(each.collection_name) for each in aliases if each.alias_name == name), None)


def _metadata(client: Any, collection: str) -> dict[str, str]:
    """What stands in a collection's metadata; nothing if it is not ours."""
    metadata = client.get_collection(collection).config.metadata or {}
    said = json.loads(metadata.get("tammes", "{}"))
    later = {name: value for name, value in metadata.items() if name == _THRESHOLD or name.startswith(_ROOT)}
    return {str(name): str(value) for name, value in {**said, **later}.items()}


def _about(uri: str, said: Mapping[str, str]) -> About:
    """What was said when the gallery was made, with what `describe` added."""
    added = sorted(as_it_was(value, uri) for name, value in said.items() if name.startswith(_ROOT))
    made = About.from_json(said["about"], uri)
    return About.from_json(made.changed(added, said.get(_THRESHOLD)).to_json(), uri)  # held against its shape again


def _key_of(root: str) -> str:
    return f"{_ROOT}{sha256(root.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _id(path: str) -> int:
    """The id of an item, as a number."""
    return int(item_id(as_it_was(path, "")), 16)


def _key(name: str) -> str:
    """The name of a column as a key that needs no quotes in a path of keys."""
    return name if re.fullmatch("[A-Za-z0-9_]+", name) else f"-{name.encode().hex()}"


def _name(key: str) -> str:
    return bytes.fromhex(key[1:]).decode() if key.startswith("-") else key


def _filter(where: Filter) -> Any:
    """The tree as Qdrant has it: values are values there, not parts of a text."""
    models = _models()

    def leaf(part: In | Order) -> Any:
        key = part.name if part.name in OF_EVERY_ITEM else f"fields.{_key(part.name)}"
        names = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
        if isinstance(part, Order):
            order = models.FieldCondition(key=key, range=models.Range(**{names[part.sign]: part.value}))
            return models.Filter(must=[order]) if part.name not in TEXTS else nothing
        texts = [each for each in part.values if isinstance(each, str)]
        numbers = [each for each in part.values if not isinstance(each, str)]
        if part.name == "path":
            return models.Filter(must=[models.HasIdCondition(has_id=[_id(path) for path in texts])])
        conditions = [models.FieldCondition(key=key, range=models.Range(gte=each, lte=each)) for each in numbers]
        if texts and part.name not in NUMBERS:
            conditions.append(models.FieldCondition(key=key, match=models.MatchAny(any=texts)))
        return models.Filter(should=conditions) if conditions else nothing

    nothing = models.Filter(must=[models.HasIdCondition(has_id=[])])
    return translated(
        where,
        leaf,
        every=lambda parts: models.Filter(must=list(parts)),
        some=lambda parts: models.Filter(should=list(parts)),
        inverse=lambda part: models.Filter(must_not=[part]),
    )


def _some(items: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _TOGETHER):
        yield list(items[start : start + _TOGETHER])
