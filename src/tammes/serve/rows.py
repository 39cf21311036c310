"""The items of a gallery in memory: ids, names and classes, and the vectors of a small gallery.

The store is asked only for thumbnails, and in a gallery of more than 100,000 items (`EXACT_UP_TO`) for searches and
vectors.
"""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from tammes.data.folder import natural
from tammes.gallery import Hit, Store
from tammes.gallery.items import item_id
from tammes.gallery.ranking import Block, Candidates, ranked
from tammes.gallery.store import EXACT_UP_TO
from tammes.serve.errors import RequestError
from tammes.serve.models import Item

_BATCH = 8192  # rows that are read at a time
MAPPED = 12_000  # items of the map: t-SNE of more takes minutes; of a large gallery only their vectors are kept


class _Row(NamedTuple):
    path: str
    label: str
    width: int
    height: int
    mark: str


class Rows:
    """The items of a gallery as they were at one moment, in the order of their paths.

    Outside of this class an item is known by its id (`item_id`) alone; numbers are places in the lists in here.
    """

    def __init__(self, store: Store, *, exact_up_to: int = EXACT_UP_TO) -> None:
        self.version, self.dim = store.version(), store.about.dim
        count = store.count()
        sample = None if count <= exact_up_to else set(np.random.default_rng(0).permutation(count)[:MAPPED].tolist())
        read: list[tuple[_Row, ndarray | None]] = []
        for batch in store.rows(_BATCH):
            for row in batch:
                mark = blake2b(row.fingerprint.encode(errors="surrogatepass"), digest_size=6).hexdigest()
                # A vector is a view of its batch: a copy lets go of the rest.
                vector = row.vector if sample is None else row.vector.copy() if len(read) in sample else None
                read.append((_Row(row.path, row.label, row.width, row.height, mark), vector))
        read.sort(key=lambda each: each[0].path)  # equally near items come in this order
        self._rows = [row for row, _ in read]
        self._sampled = [number for number, (_, vector) in enumerate(read) if vector is not None]
        vectors = [vector for _, vector in read if vector is not None]
        self._vectors: Float32[ndarray, "sampled dim"] = (
            np.stack(vectors) if vectors else np.zeros((0, self.dim), dtype=np.float32)
        )
        self._squares = np.square(self._vectors).sum(axis=1)  # (sampled,)
        self.ids = [item_id(row.path) for row in self._rows]
        self._numbers = {item: number for number, item in enumerate(self.ids)}
        self._roots = sorted((PurePath(root) for root in store.about.roots), key=lambda root: -len(root.parts))

        self._of_vectors = store.about.kind == "vectors"

        members: dict[str, list[int]] = defaultdict(list)
        for number, kept in enumerate(self._rows):
            members[kept.label].append(number)
        labels = sorted(members, key=natural)
        self._members: dict[str, Int64[ndarray, " members"]] = {label: np.array(members[label]) for label in labels}
        self._real_label = dict(zip(_distinct([escaped(label) for label in labels]), labels, strict=True))
        self._shown_label = {label: name for name, label in self._real_label.items()}
        self._codes = {label: code for code, label in enumerate(labels)}
        self._in_order: dict[str | None, Sequence[str]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, item: str) -> bool:
        return item in self._numbers

    @property
    def complete(self) -> bool:
        """Whether every vector is in memory, and searches need not ask the store."""
        return len(self._sampled) == len(self.ids)

    @property
    def classes(self) -> dict[str, int]:
        """How many items each class has, by its name as it is shown."""
        return {name: len(self._members[label]) for name, label in self._real_label.items()}

    @property
    def num_classes(self) -> int:
        """How many classes there are; items without one are not a class."""
        return len(self._real_label) - ("" in self._real_label)

    def real_label(self, name: str) -> str:
        """The label in the store of a class, by its name as it is shown; an error if there is no such class."""
        if name not in self._real_label:
            raise RequestError(404, "the gallery has no class of that name. GET /api/classes lists the classes.")
        return self._real_label[name]

    def class_size(self, name: str) -> int:
        return len(self._members[self.real_label(name)])

    def item(self, item: str) -> Item:
        """The item of an id; an error if there is none, as of all methods that take one."""
        row = self._row(item)
        return Item(
            id=item,
            name=self._name(row),
            label=self._shown_label[row.label],
            width=row.width,
            height=row.height,
            thumbnail=f"/api/items/{item}/thumbnail?v={row.mark}",
        )

    def path(self, item: str) -> str:
        """The key of an item in the store."""
        return self._row(item).path

    def mark(self, item: str) -> str:
        """A string that changes with the image of an item."""
        return self._row(item).mark

    def code(self, item: str) -> int:
        """The class of an item, as its place in `classes`."""
        return self._codes[self._row(item).label]

    def vector(self, item: str) -> Float32[ndarray, " dim"]:
        """The vector of an item, if all are in memory."""
        self._row(item)
        return np.asarray(self._vectors[self._numbers[item]])

    def members(self, label: str | None) -> Sequence[str]:
        """The items of a class, or all, in the natural order of their paths; of many it takes a while."""
        if label not in self._in_order:
            if label is None:
                self._in_order[None] = [item for name in self._real_label for item in self.members(name)]
            else:
                numbers = sorted(
                    self._members[self.real_label(label)].tolist(), key=lambda each: natural(self._rows[each].path)
                )
                self._in_order[label] = [self.ids[number] for number in numbers]
        return self._in_order[label]

    def some_of(self, label: str, count: int) -> list[str]:
        """A few items from all over a class, at once."""
        found = self._members[self.real_label(label)]
        count = min(count, len(found))
        return [self.ids[found[(2 * turn + 1) * len(found) // (2 * count)]] for turn in range(count)]

    def sample(self) -> tuple[list[str], Float32[ndarray, "sampled dim"]]:
        """The items whose vectors are in memory, in the order of their paths: all, or some drawn at random."""
        return [self.ids[number] for number in self._sampled], self._vectors

    def same_as(self, other: "Rows") -> bool:
        """Whether nothing has changed but the version."""
        same = self._rows == other._rows and self._sampled == other._sampled
        return same and np.array_equal(self._vectors, other._vectors)

    def search(
        self, vector: Float32[ndarray, " dim"], k: int, *, label: str | None = None, leave_out: str | None = None
    ) -> list[Hit]:
        """As `Store.search` for one query, without the store; if all vectors are in memory.

        Args:
            label: a class as the store names it.
        """
        members = None if label is None else self._members.get(label, np.zeros(0, dtype=np.int64))
        vectors = self._vectors if members is None else self._vectors[members]
        squares = self._squares if members is None else self._squares[members]
        if not len(vectors):
            return []
        own = float(vector @ vector)
        squared = squares - 2 * (vectors @ vector) + own  # (rows,)
        # The largest error of products in float32; `ranked` compares the candidates exactly.
        error = (self.dim + 16) * 2.0**-22 * (own + float(squares.max()))

        def fetch(number: int) -> Candidates:
            if number < len(squared):
                places = np.argpartition(squared, number - 1)[:number]
                reach = float(np.sqrt(max(0.0, float(squared[places].max()) - error)))
            else:
                places, reach = np.arange(len(squared)), np.inf
            rows = [self._rows[number] for number in (places if members is None else members[places])]
            return Candidates(Block([row.path for row in rows], [row.label for row in rows], vectors[places]), reach)

        return ranked(vector, fetch, k, leave_out, complete=True)

    def _row(self, item: str) -> _Row:
        if item not in self._numbers:
            raise RequestError(404, f"the gallery has no item {item!r}.")
        return self._rows[self._numbers[item]]

    def _name(self, row: _Row) -> str:
        path = PurePath(row.path)
        root = next((root for root in self._roots if path.is_relative_to(root)), None)
        if root is None:  # the key of a vector is whatever its owner calls it; where a file is stays here
            return escaped(row.path if self._of_vectors and not path.is_absolute() else path.name)
        below = path.relative_to(root)
        return escaped((below if len(self._roots) == 1 else PurePath(root.name) / below).as_posix())


def escaped(text: str) -> str:
    """The text as a page or a JSON answer can hold it: bytes of a file's name that are not characters are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _distinct(names: list[str]) -> list[str]:
    """The names; of several that are the same once escaped, all but the first get a number."""
    result: dict[str, None] = {}
    for name in names:
        distinct, again = name, 1
        while distinct in result or (again > 1 and distinct in names):
            again += 1
            distinct = f"{name} ({again})"
        result[distinct] = None
    return list(result)
