"""How long does a gallery take to fill, to index and to search, and what does the index miss?

    python -m benchmarks.gallery [--sizes 10000 100000 1000000] [--stores lance postgres] [--out FILE]

    python -m benchmarks.gallery --sizes 1000000 --kept FOLDER --steps fill       # the galleries stay in the folder;
    python -m benchmarks.gallery --sizes 1000000 --kept FOLDER --steps search     # to time the searches apart

In a folder (LanceDB) and in PostgreSQL, for which a server is started: its disk is that of the server's data, and the
peak of memory is that of this program alone.

Unit vectors about the directions of 10,000 clusters, drawn in blocks, without pictures; a hundredth of the rows has one
label. Each size and store has a process and a temporary folder of its own; what is in the results already is not
measured again unless asked, so an interrupted run continues where it stopped. Searches are for ten neighbours of one
query at a time, which is not in the gallery, as `Store.search` answers them. Beside them stands NumPy's exact pass, in
the same process and from memory: one product of all vectors with the query, and the ten largest. Recall is that of the
index against the store's exact search, whose own recall of NumPy's ten is there too.
"""

import json
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
import tyro
from numpy import ndarray
from rich.console import Console
from rich.table import Table

from benchmarks.postgres_server import server
from benchmarks.timing import machine
from tammes.gallery import About, Hit, Row, open_gallery
from tammes.gallery.ranking import recall_at_10
from tammes.gallery.store import REST
from tammes.io.files import write_atomically

BLOCK = 10_000
CLUSTERS, LABELS = 10_000, 100
SPREAD = 0.7  # of a cluster, beside the distance of its centre from the origin
K = 10


@dataclass(frozen=True)
class Options:
    """Fill, index and search galleries of several sizes."""

    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """How many vectors, one gallery each."""
    stores: tuple[Literal["lance", "postgres"], ...] = ("lance", "postgres")
    """Where the galleries are."""
    dim: int = 256
    together: int = 1000
    """Rows of one `upsert`."""
    queries: int = 200
    again: bool = False
    """Measure again what is in the results."""
    folder: Path | None = None
    """Where the temporary gallery goes; without it, where the system keeps such things."""
    kept: Path | None = None
    """A folder that the galleries stay in, to be searched later."""
    steps: tuple[Literal["fill", "search"], ...] = ("fill", "search")
    """What is measured; one of them alone needs `--kept`."""
    out: Path = Path("benchmarks/results/gallery.json")
    """Where the figures go; those of other sizes that are there stay."""

    def __post_init__(self) -> None:
        if len(self.steps) == 1 and self.kept is None:
            raise SystemExit("--steps needs --kept FOLDER: the gallery of one step is that of the other.")


class Drawn:
    """Vectors about centres; any block of them can be drawn again."""

    def __init__(self, dim: int) -> None:
        self.centres = _unit(np.random.default_rng(0).standard_normal((CLUSTERS, dim), dtype=np.float32))

    def block(self, number: int, rows: int = BLOCK) -> tuple[ndarray, ndarray]:
        """Its vectors, and the cluster of each."""
        random = np.random.default_rng((1, number))
        clusters = random.integers(CLUSTERS, size=rows)
        apart = random.standard_normal((rows, self.centres.shape[1]), dtype=np.float32)
        apart *= np.float32(SPREAD / np.sqrt(self.centres.shape[1]))
        return _unit(self.centres[clusters] + apart), clusters


def _unit(vectors: ndarray) -> ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@contextmanager
def place(kind: str, folder: Path | None, *, kept: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Where a gallery of this kind may be, and the folder that its data is in: a temporary one, or one that is kept."""
    if kind == "postgres":
        with server(kept) as running:
            yield running.address(), running.folder
    else:
        with TemporaryDirectory(dir=folder) if kept is None else nullcontext(str(kept)) as own:
            Path(own).mkdir(parents=True, exist_ok=True)
            yield f"{own}/gallery", Path(own)


def measured(size: int, kind: str, options: Options) -> dict[str, Any]:
    """The figures of one size in one store."""
    drawn = Drawn(options.dim)
    kept = None if options.kept is None else options.kept / f"{kind}-{size}"
    with place(kind, options.folder, kept=kept) as (uri, folder):
        about = About(model="drawn", run="", dim=options.dim, roots=(), created="", kind="vectors")
        store: Any = open_gallery(uri, create=about)
        figures: dict[str, Any] = {"size": size, "store": kind, "dim": options.dim}
        if "fill" in options.steps:
            figures |= _filled(store, drawn, size, options) | {"machine": machine()}
        if "search" in options.steps:
            if store.count() != size:
                raise SystemExit(f"{uri} has {store.count():,} vectors, not {size:,}: --steps fill makes it first.")
            files = [file for file in folder.rglob("*") if file.is_file()]
            figures["disk_mb"] = sum(file.stat().st_size for file in files) / 1e6
            figures |= _all_searched(store, drawn, size, options.queries) | {"searched_on": machine()}
    return figures


def _filled(store: Any, drawn: Drawn, size: int, options: Options) -> dict[str, Any]:
    """How long it takes to add the vectors, to merge what that has left and to build the index."""
    before = _peak_mb()
    times = fill(store, drawn, size, options.together)
    tenth = max(1, len(times) // 10)
    return {
        "rows_of_an_upsert": options.together,
        "lance_threads": os.environ.get("LANCE_CPU_THREADS", "all"),
        "held_before_mb": before,
        "add_seconds": sum(times),
        "rows_per_second": size / sum(times),
        "first_upserts_ms": 1e3 * median(times[:tenth]),
        "last_upserts_ms": 1e3 * median(times[-tenth:]),
        "merge_seconds": _seconds(lambda: store.optimise(exact_up_to=size)),
        "index_seconds": _seconds(lambda: store.tidy(0, REST)),  # without measuring its recall
        "fill_peak_rss_mb": _peak_mb(),
    }


def _all_searched(store: Any, drawn: Drawn, size: int, number: int) -> dict[str, Any]:
    """How long searches take, and what they miss, beside NumPy."""
    figures: dict[str, Any] = {}
    queries = drawn.block(-1 % 2**32, number)[0]
    for words, label in (("", None), ("_of_a_label", "label 7")):
        exact, figures[f"exact{words}"] = _searched(store, queries, label, exact=True)
        found, figures[f"approximate{words}"] = _searched(store, queries, label, exact=False)
        figures[f"recall_at_10{words}"] = recall_at_10(found, exact)
        if label is None:
            of_all = exact
    figures["peak_rss_mb"] = _peak_mb()
    ten, figures["numpy_ms"] = _numpy(drawn, size, queries)  # after the peak: it holds all vectors
    numbers = [{int(Path(hit.path).stem) for hit in hits} for hits in of_all]
    figures["exact_recall_of_numpy"] = float(np.mean([len(a & b) / K for a, b in zip(ten, numbers, strict=True)]))
    figures["exact_to_numpy"] = figures["exact"]["median_ms"] / figures["numpy_ms"]
    return figures


def fill(store: Any, drawn: Drawn, size: int, together: int) -> list[float]:
    """Seconds of each upsert."""
    times = []
    for start in range(0, size, BLOCK):
        vectors, clusters = drawn.block(start // BLOCK, min(BLOCK, size - start))
        rows = [
            Row(
                f"/photos/{cluster}/{start + n}.jpg", vector, f"label {cluster % LABELS}", 640, 480, f"{start + n}", b""
            )
            for n, (vector, cluster) in enumerate(zip(vectors, clusters.tolist(), strict=True))
        ]
        for first in range(0, len(rows), together):
            times.append(_seconds(lambda some=rows[first : first + together]: store.upsert(some)))  # type: ignore[misc]
    return times


def _searched(
    store: Any, queries: ndarray, label: str | None, *, exact: bool
) -> tuple[list[list[Hit]], dict[str, float]]:
    """What is found, and how long a query takes; the first are to warm up."""
    found: list[list[Hit]] = []
    for query in queries[:3]:
        store.search(query[None], K, label=label, exact=exact)
    times = [
        _seconds(lambda query=query: found.extend(store.search(query[None], K, label=label, exact=exact)))  # type: ignore[misc]
        for query in queries
    ]
    return found, {"median_ms": 1e3 * median(times), "p99_ms": 1e3 * float(np.quantile(times, 0.99))}


def _numpy(drawn: Drawn, size: int, queries: ndarray) -> tuple[list[set[int]], float]:
    """The numbers of the ten nearest to each query, and the milliseconds of one."""
    vectors = np.empty((size, queries.shape[1]), dtype=np.float32)
    for start in range(0, size, BLOCK):
        part = vectors[start : start + BLOCK]
        part[:] = drawn.block(start // BLOCK, len(part))[0]
    found: list[set[int]] = []
    times = [
        _seconds(lambda query=query: found.append(set(np.argpartition(-(vectors @ query), K)[:K].tolist())))  # type: ignore[misc]
        for query in queries
    ]
    return found, 1e3 * median(times)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _seconds(action: Callable[[], object]) -> float:
    started = perf_counter()
    action()
    return perf_counter() - started


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="gallery, ten neighbours of one query (ms, median and 99 %)")
    heads = (
        "rows/s added",
        "index s",
        "exact",
        "to NumPy",
        "index",
        "recall",
        "exact, label",
        "index, label",
        "recall",
    )
    for head in ("size", "store", *heads, "disk MB", "peak MB"):
        table.add_column(head, justify="right")
    for row in rows:
        times = {
            name: f"{row[name]['median_ms']:.1f} {row[name]['p99_ms']:.0f}"
            for name in ("exact", "approximate", "exact_of_a_label", "approximate_of_a_label")
        }
        table.add_row(
            f"{row['size']:,}", row.get("store", "lance"),
            f"{row['rows_per_second']:,.0f}", f"{row['index_seconds']:.1f}",
            times["exact"], f"{row['exact_to_numpy']:.1f} x", times["approximate"], f"{row['recall_at_10']:.4f}",
            times["exact_of_a_label"], times["approximate_of_a_label"], f"{row['recall_at_10_of_a_label']:.4f}",
            f"{row['disk_mb']:,.0f}", f"{row['peak_rss_mb']:,.0f}",
        )  # fmt: skip
    Console(width=150).print(table)


def _alone(size: int, kind: str, options: Options, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    return measured(size, kind, options)


def main(options: Options) -> None:
    stored = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    for size, kind in product(options.sizes, options.stores):
        before = [row for row in stored["rows"] if (row["size"], row.get("store", "lance")) == (size, kind)]
        if before and not options.again and len(options.steps) > 1:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # the peak of memory is that of one size
            row = pool.apply(_alone, (size, kind, options, torch.get_num_threads()))
        # A step alone leaves what the other has measured.
        row = (before[0] if before and len(options.steps) == 1 else {}) | row
        others = [row for row in stored["rows"] if row not in before]
        stored["rows"] = sorted([*others, row], key=lambda row: (int(row["size"]), row.get("store", "lance")))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, json.dumps(stored, indent=1).encode() + b"\n")
    show([row for row in stored["rows"] if "exact" in row])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
