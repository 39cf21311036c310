"""A gallery on a Qdrant server or cluster, for those who outgrow one machine.

    name                  an alias for the collection that is in use
    name--…               a collection: a point an image; what made it stands in its metadata (Qdrant 1.16 or newer)

A rebuild fills another collection; moving the alias puts it in the place of the old one.
"""

import json
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID, uuid5

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from tammes.errors import UserError
from tammes.gallery.ranking import Block, Candidates, ranked, recall_at_10
from tammes.gallery.store import (
    EXACT_UP_TO,
    REST,
    About,
    Hit,
    OptimiseResult,
    Row,
    as_it_was,
    check_keys,
    check_queries,
    check_rows,
    check_stored,
    how_to_remake,
    missing_paths,
    no_gallery,
    storable,
)

_PATHS = UUID("6f0c2f5e-6d0b-4c9e-9d5e-3a8c1f7b2e64")  # a point is named after its path; this keeps the names ours
_BETWEEN = "--"
_ROOT, _THRESHOLD = "tammes-root-", "tammes-threshold"  # keys of a collection's metadata
_STAMP = "%Y%m%dT%H%M%SZ"
_BUILDING = 168  # times as long a rebuild that was not finished may still be under way: an hour makes a week
_TOGETHER = 256  # points in one request
_PAGE = 4096  # points of one answer where only a few words of each are read
_QUERIES = 200  # drawn to measure the recall of the index
_TIMEOUT = 60  # seconds

T = TypeVar("T")


def open_collection(uri: str, create: About | None) -> "QdrantGallery":
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
        return open_collection(uri, None)
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


class QdrantGallery:
    """A gallery in Qdrant; see `Store` for what its methods promise.

    A write returns when the server has it in its log and shows it to readers; some hundred rows go in one request, and
    each is whole or not there. Qdrant builds its index by itself, from its own limits on; `exact_up_to` is its affair.
    """

    def __init__(self, uri: str, client: Any, name: str, collection: str, about: About) -> None:
        self.uri, self._client, self._name, self._collection, self._about = uri, client, name, collection, about

    @property
    def about(self) -> About:
        return self._about

    def upsert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        vectors = check_rows(rows, self._about.dim)
        points = [
            _models().PointStruct(
                id=_id(row.path),
                vector=vector.tolist(),
                payload={
                    "path": storable(row.path),
                    "label": storable(row.label),
                    "width": row.width,
                    "height": row.height,
                    "fingerprint": storable(row.fingerprint),
                    "thumbnail": b64encode(row.thumbnail).decode(),
                },
            )
            for row, vector in zip(rows, vectors, strict=True)
        ]
        for part in _some(points):
            self._do(self._client.upsert, self._collection, part)

    def delete(self, paths: Sequence[str]) -> None:
        for part in _some([_id(path) for path in paths]):
            self._do(self._client.delete, self._collection, part)

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
        complete = exact or not self._indexed()
        return [
            ranked(query, self._fetch(query, label, complete), k, own, complete=complete)
            for query, own in zip(queries, leave_out or [None] * len(queries), strict=True)
        ]

    def get(self, paths: Sequence[str]) -> list[Row]:
        found: dict[str, Row] = {}
        for part in _some([_id(path) for path in paths]):
            whole = partial(self._client.retrieve, with_payload=True, with_vectors=True)
            points = self._do(whole, self._collection, part)
            found |= {row.path: row for row in self._rows(points)}
        missing = [path for path in paths if path not in found]
        if missing:
            raise missing_paths(self.uri, missing)
        return [found[path] for path in paths]

    def count(self) -> int:
        return int(self._do(lambda: self._client.count(self._collection, exact=True)).count)

    def fingerprints(self) -> dict[str, str]:
        pages = self._pages(_PAGE, ["path", "fingerprint"])
        every = [point.payload for page in pages for point in page]
        found = {self._text(each, "path"): self._text(each, "fingerprint") for each in every}
        check_keys(found, len(every), self.uri)
        return found

    def rows(self, batch: int, *, thumbnails: bool = False) -> Iterator[list[Row]]:
        """All rows, some at a time; what others write meanwhile may be among them or not."""
        wanted = ["path", "label", "width", "height", "fingerprint", *(["thumbnail"] if thumbnails else [])]
        for page in self._pages(batch, wanted, vectors=True):
            yield self._rows(page)

    def labels(self) -> dict[str, int]:
        pages = self._pages(_PAGE, ["label"])
        return dict(Counter(self._text(point.payload, "label") for page in pages for point in page))

    def describe(self, *, roots: Sequence[str] = (), threshold: str | None = None) -> None:
        # Each root and the threshold have a key of their own: the server merges keys, so that none is lost.
        said = {_key_of(root): storable(root) for root in roots} | (
            {} if threshold is None else {_THRESHOLD: threshold}
        )
        self._do(lambda: self._client.update_collection(self._collection, metadata=said))
        self._about = _about(self.uri, self._do(lambda: _metadata(self._client, self._collection)))

    def optimise(self, *, exact_up_to: int = EXACT_UP_TO, rest: timedelta = REST) -> OptimiseResult:  # noqa: ARG002
        """Remove what is left of rebuilds and measure the index: the rest the server does by itself."""
        removed, rows = self._remove_what_is_left(rest), self.count()
        indexed = self._indexed()
        return OptimiseResult(rows, indexed, self._recall() if indexed and rows > 1 else None, removed)

    def version(self) -> str:
        """Qdrant counts no versions: besides the number of rows, every half minute makes another."""
        return f"{self._collection} {self.count()} {int(time.time()) // 30}"

    def replaced(self) -> bool:
        return bool(self._do(lambda: _current(self._client, self._name)) != self._collection)

    def swap(self) -> None:
        """Let this gallery take its place; see `Rebuild`."""
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

    def _fetch(self, query: Float32[ndarray, " dim"], label: str | None, complete: bool) -> Callable[[int], Candidates]:
        models = _models()
        only = None
        if label is not None:
            match = models.MatchValue(value=storable(label))
            only = models.Filter(must=[models.FieldCondition(key="label", match=match)])
        local = _location_and_name(self.uri)[0] == ":memory:"  # which is always exact, and warns of options
        options = None if local else models.SearchParams(exact=complete)

        def fetch(number: int) -> Candidates:
            points = self._do(
                lambda: self._client.query_points(
                    self._collection,
                    query=query.tolist(),
                    limit=number,
                    query_filter=only,
                    search_params=options,
                    with_payload=["path", "label"],
                    with_vectors=True,
                )
            ).points
            block = Block(
                [self._text(point.payload, "path") for point in points],
                [self._text(point.payload, "label") for point in points],
                self._vectors(points),
            )
            return Candidates(block, max((float(point.score) for point in points), default=0.0))

        return fetch

    def _rows(self, points: Sequence[Any]) -> list[Row]:
        return [
            Row(
                path=self._text(point.payload, "path"),
                vector=vector,
                label=self._text(point.payload, "label"),
                width=int(point.payload["width"]),
                height=int(point.payload["height"]),
                fingerprint=self._text(point.payload, "fingerprint"),
                thumbnail=b64decode(point.payload.get("thumbnail", "")),
            )
            for point, vector in zip(points, self._vectors(points), strict=True)
        ]

    def _text(self, payload: Mapping[str, Any], name: str) -> str:
        return as_it_was(payload[name], self.uri)

    def _vectors(self, points: Sequence[Any]) -> Float32[ndarray, "points dim"]:
        vectors = np.array([point.vector for point in points], dtype=np.float32)
        return check_stored(vectors.reshape(len(points), self._about.dim), self.uri)

    def _pages(self, size: int, words: Sequence[str], *, vectors: bool = False) -> Iterator[list[Any]]:
        """All points, some at a time, in the order of their ids."""
        place = None
        while True:
            page = partial(self._client.scroll, self._collection, limit=size, with_payload=list(words))
            points, place = self._do(partial(page, offset=place, with_vectors=vectors))
            if points:
                yield points
            if place is None:
                return

    def _indexed(self) -> bool:
        return bool(self._do(lambda: self._client.get_collection(self._collection)).indexed_vectors_count)

    def _recall(self) -> float:
        models = _models()
        points = self._do(
            lambda: self._client.query_points(
                self._collection,
                query=models.SampleQuery(sample=models.Sample.RANDOM),
                limit=_QUERIES,
                with_payload=["path"],
                with_vectors=True,
            )
        ).points
        vectors, paths = self._vectors(points), [self._text(point.payload, "path") for point in points]
        answers = [self.search(vectors, 10, exact=exact, leave_out=paths) for exact in (False, True)]
        return recall_at_10(*answers)

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
    """Where Qdrant is, and the name of the gallery."""
    location, _, name = uri.removeprefix("qdrant://").rpartition("/")
    if not location or not name or _BETWEEN in name or not _is_server(location):
        raise UserError(
            f"{uri} cannot be a gallery: write qdrant://host:port/name, the name without slashes or {_BETWEEN!r}."
        )
    return location, name


def _is_server(location: str) -> bool:
    """Whether it can be a host, with or without a port."""
    try:
        found = urlsplit(f"http://{location}")
        return location == ":memory:" or (found.netloc == location and found.hostname is not None and found.port != 0)
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
    return _qdrant().QdrantClient(url=f"http://{location}", timeout=_TIMEOUT, check_compatibility=False)


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


def _id(path: str) -> str:
    return str(uuid5(_PATHS, storable(path)))


def _some(items: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), _TOGETHER):
        yield list(items[start : start + _TOGETHER])
