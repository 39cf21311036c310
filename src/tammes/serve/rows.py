"""Every item of a gallery in memory: who it is, its class, and, of a gallery that is not too large, its vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from tammes.data.folder import natural
from tammes.gallery import Hit, Store
from tammes.gallery.ranking import Block, Found, ranked
from tammes.gallery.store import EXACT_UP_TO

_BATCH = 8192  # rows that are read at a time
MAPPED = 12_000  # items of the map: t-SNE of more takes minutes; of a large gallery only their vectors are kept


@dataclass(frozen=True)
class Item:
    """An item as clients know it: by its id, never by where its file is.

    Attributes:
        name: its path below the folder that was indexed.
        label: its class, empty where it has none.
        mark: changes when its picture does.
    """

    id: str
    name: str
    label: str
    width: int
    height: int
    mark: str


class Catalogue:
    """The items of a gallery as they were at one moment, in the order of their paths."""

    def __init__(self, store: Store, *, exact_up_to: int = EXACT_UP_TO) -> None:
        self.version = store.version()
        count = store.count()
        self._keep_all = count <= exact_up_to
        drawn = np.ones(count, dtype=bool) if self._keep_all else _drawn(count)
        paths: list[str] = []
        labels: list[str] = []
        sizes: list[tuple[int, int]] = []
        marks: list[str] = []
        kept: list[int] = []
        vectors: list[ndarray] = []
        for rows in store.rows(_BATCH):
            for row in rows:
                number = len(paths)
                if number >= len(drawn) or drawn[number]:  # more than were counted: somebody writes
                    kept.append(number)
                    # A vector is a part of its batch: a copy lets go of the rest.
                    vectors.append(row.vector if self._keep_all else row.vector.copy())
                paths.append(row.path)
                labels.append(row.label)
                sizes.append((row.width, row.height))
                marks.append(blake2b(row.fingerprint.encode(errors="surrogatepass"), digest_size=6).hexdigest())
        order = sorted(range(len(paths)), key=paths.__getitem__)  # equally near items come in this order
        self.paths = [paths[number] for number in order]
        self._sizes, self._marks = [sizes[number] for number in order], [marks[number] for number in order]
        self.dim = store.about.dim
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        whole = np.stack(vectors) if vectors else np.zeros((0, self.dim), dtype=np.float32)
        by_place = np.argsort(place[kept])
        self.drawn: Int64[ndarray, " drawn"] = place[kept][by_place]
        self.drawn_vectors: Float32[ndarray, "drawn dim"] = np.ascontiguousarray(whole[by_place])
        self._squares = np.square(self.drawn_vectors).sum(axis=1)  # (drawn,)

        self._labels = [labels[number] for number in order]
        self.class_names = sorted(set(self._labels), key=natural)
        self._shown_names = _unlike_each_other([shown(name) for name in self.class_names])
        self.real_label = dict(zip(self._shown_names, self.class_names, strict=True))
        """The class as the store knows it, by its name as it is shown."""
        self._code = {name: number for number, name in enumerate(self.class_names)}
        self.codes: Int64[ndarray, " items"] = np.array([self._code[name] for name in self._labels], dtype=np.int64)
        grouped = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self._code)))
        self._members = np.split(grouped, ends[:-1]) if self._code else []
        self._roots = sorted((PurePath(root) for root in store.about.roots), key=lambda root: -len(root.parts))
        self.ids = [blake2b(path.encode(errors="surrogatepass"), digest_size=8).hexdigest() for path in self.paths]
        self._numbers = {each: number for number, each in enumerate(self.ids)}
        self._in_order: dict[str | None, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def complete(self) -> bool:
        """Whether every vector is in memory, and searches need not ask the store."""
        return len(self.drawn) == len(self.paths)

    @property
    def classes(self) -> dict[str, int]:
        """How many items each class has, by its name as it is shown."""
        return {name: len(numbers) for name, numbers in zip(self._shown_names, self._members, strict=True)}

    @property
    def num_classes(self) -> int:
        """How many there are; to have none is not one."""
        return len(self.class_names) - ("" in self.real_label)

    def number(self, item: str) -> int | None:
        """Where the item of that id stands."""
        return self._numbers.get(item)

    def number_of_path(self, path: str) -> int | None:
        return self.number(blake2b(path.encode(errors="surrogatepass"), digest_size=8).hexdigest())

    def item(self, number: int) -> Item:
        width, height = self._sizes[number]
        label = self._shown_names[self.codes[number]]
        return Item(self.ids[number], self._name(number), label, width, height, self._marks[number])

    def members(self, label: str | None) -> Sequence[int]:
        """The items of a class, or all, in the natural order of their names; of many it takes a while."""
        if label not in self._in_order:
            self._in_order[label] = self._in_natural_order(label)
        return self._in_order[label]

    def some_of(self, label: str, number: int) -> list[int]:
        """So many items of a class, from all over it; at once."""
        found = self._members[self._code[self.real_label[label]]]
        number = min(number, len(found))
        return [int(found[(2 * turn + 1) * len(found) // (2 * number)]) for turn in range(number)]

    def mark(self, number: int) -> str:
        """What changes when the picture of an item does."""
        return self._marks[number]

    def holds_the_same_as(self, other: "Catalogue") -> bool:
        """Whether nothing has changed but the version."""
        return (
            self.paths == other.paths
            and self._marks == other._marks
            and self._labels == other._labels
            and np.array_equal(self.drawn, other.drawn)
            and np.array_equal(self.drawn_vectors, other.drawn_vectors)
        )

    def _in_natural_order(self, label: str | None) -> Sequence[int]:
        if label is None:
            return [number for name in self._shown_names for number in self.members(name)]
        found = self._members[self._code[self.real_label[label]]].tolist()
        return sorted(found, key=lambda number: natural(self.paths[number]))

    def nearest(
        self, vector: Float32[ndarray, " dim"], k: int, *, label: str | None = None, leave_out: str | None = None
    ) -> list[Hit]:
        """As `Store.search` for one query, without the store; for a catalogue that is complete.

        Args:
            label: the name of a class as the store knows it.
        """
        members = None if label is None else self._members[self._code[label]]
        vectors = self.drawn_vectors if members is None else self.drawn_vectors[members]
        squares = self._squares if members is None else self._squares[members]
        if not len(vectors):
            return []
        own = float(vector @ vector)
        squared = squares - 2 * (vectors @ vector) + own  # (rows,)
        # What products in float32 can be wrong by; `ranked` compares the candidates exactly.
        error = (self.dim + 16) * 2.0**-22 * (own + float(squares.max()))

        def fetch(number: int) -> Found:
            if number < len(squared):
                places = np.argpartition(squared, number - 1)[:number]
                # The store has returned what it thinks nearest: nothing else is nearer than this.
                reach = float(np.sqrt(max(0.0, float(squared[places].max()) - error)))
            else:
                places, reach = np.arange(len(squared)), np.inf
            rows = places if members is None else members[places]
            block = Block([self.paths[row] for row in rows], [self._labels[row] for row in rows], vectors[places])
            return Found(block, reach)

        return ranked(vector, fetch, k, leave_out, complete=True)

    def _name(self, number: int) -> str:
        path = PurePath(self.paths[number])
        root = next((root for root in self._roots if path.is_relative_to(root)), None)
        if root is None:
            return shown(path.name)
        below = path.relative_to(root)
        return shown((below if len(self._roots) == 1 else PurePath(root.name) / below).as_posix())


def shown(text: str) -> str:
    """The text as a page or a JSON answer can hold it: bytes of a file's name that are no characters are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _unlike_each_other(names: list[str]) -> list[str]:
    """The names; of some that are the same once they are escaped, all but the first with a number."""
    result: dict[str, None] = {}
    for name in names:
        said, again = name, 1
        while said in result or (again > 1 and said in names):
            again += 1
            said = f"{name} ({again})"
        result[said] = None
    return list(result)


def _drawn(count: int) -> ndarray:
    result = np.zeros(count, dtype=bool)
    result[np.random.default_rng(0).permutation(count)[:MAPPED]] = True
    return result
