"""A gallery in a store of your own, here a dictionary in memory.

It prints:

    2 items near the first, of 5 that are red and below 20
    the nearest: 0.jpg

The class is all that is needed; what comes after `register` shows it.
"""

import numpy as np

from tammes.gallery import About, Row, Store, register
from tammes.gallery.filters import fits, parsed
from tammes.gallery.items import no_gallery
from tammes.gallery.store import COLUMNS

CURRENT: dict[str, "MemoryStore"] = {}


class MemoryStore(Store):
    def __init__(self, uri, about):
        super().__init__(uri, about)
        self.rows_by_path, self.writes = {}, 0

    def write(self, rows):
        self.rows_by_path = self.rows_by_path | {row.path: row for row in rows}  # readers keep what they have
        self.writes += 1

    def remove(self, paths):
        self.rows_by_path = {path: row for path, row in self.rows_by_path.items() if path not in set(paths)}
        self.writes += 1

    def scan(self, columns, where=None, batch=4096):
        rows = [row for row in self.rows_by_path.values() if where is None or fits(where, values_of(row))]
        for start in range(0, len(rows), batch):
            yield {name: [getattr(row, name) for row in rows[start : start + batch]] for name in columns}

    def nearest(self, query, number, where, *, exact):  # noqa: ARG002 - it has no index
        found = next(self.scan(COLUMNS, where, batch=1 << 60), {name: [] for name in COLUMNS})
        distances = np.linalg.norm(np.reshape(found["vector"], (-1, len(query))) - query, axis=1)
        order = np.argsort(distances)[:number]
        return {name: [found[name][place] for place in order] for name in COLUMNS}, distances[order].max(initial=0)

    def count(self):
        return len(self.rows_by_path)

    def describe(self, *, roots=(), threshold=None):
        self._about = self._about.changed(roots, threshold)

    def version(self):
        return str(self.writes)

    def swap(self):
        CURRENT[self.uri] = self

    def replaced(self):
        return CURRENT.get(self.uri) is not self


def values_of(row):
    return {name: getattr(row, name) for name in ("path", "label", "width", "height")} | dict(row.fields)


def open_store(uri, create):
    if uri not in CURRENT and create is None:
        raise no_gallery(uri)
    return CURRENT.setdefault(uri, MemoryStore(uri, create)) if create is not None else CURRENT[uri]


register("memory", open_store, MemoryStore)

if __name__ == "__main__":
    from tammes.gallery import open_gallery

    store = open_gallery("memory://shop", create=About("any", "", 2, (), "", kind="vectors"))
    angles = np.linspace(0, 3, 12)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    fields = [{"colour": "red" if n % 2 == 0 else "blue", "price": float(2 * n)} for n in range(12)]
    store.upsert([Row(f"{n}.jpg", vectors[n], "", 0, 0, "", b"", fields[n]) for n in range(12)])
    cheap = parsed("colour = 'red' and price < 20")
    (hits,) = store.search(vectors[:1], 2, where=cheap)
    matching = store.search(vectors[:1], 12, where=cheap)[0]
    print(f"{len(hits)} items near the first, of {len(matching)} that are red and below 20")
    print(f"the nearest: {hits[0].path}")
