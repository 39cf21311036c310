"""How soon does `tammes serve` answer many clients at once, over each store?

    python -m benchmarks.serve_stores [--rows 200000] [--stores lance postgres] [--clients 50] [--seconds 30]

Galleries of the same drawn vectors as in `benchmarks.gallery` (clustered, not white noise), one per store, each served
on a free port without a limit on the rate. As many connections ask, each again as soon as it has its answer, for the
eight neighbours of an item. Up to 100,000 items the server answers from memory, whatever the store; above, and wherever
there is a filter, it asks the store: `filtered` has a filter that every item fits. Qdrant in the process of its client
cannot be served, as the server is another process.
"""

import json
import multiprocessing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from benchmarks.gallery import Drawn, fill, place
from benchmarks.serve import BY_ID, ROUTES, Options, _become_client, get_request, measured_row, serving
from benchmarks.timing import machine
from tammes.gallery import About, open_gallery
from tammes.io.files import write_atomically

FILTERED = "search by id, filtered"


@dataclass(frozen=True)
class StoreOptions:
    """Serve galleries of drawn vectors from several stores to many clients."""

    rows: int = 200_000
    """Vectors in each gallery."""
    dim: int = 256
    stores: tuple[Literal["lance", "postgres"], ...] = ("lance", "postgres")
    clients: int = 50
    seconds: float = 30.0
    """Of each measurement; a tenth of it goes before, to warm up."""
    folder: Path | None = None
    """Where the temporary gallery goes; without it, where the system keeps such things."""
    out: Path = Path("benchmarks/results/serve_stores.json")


def measured(kind: Literal["lance", "postgres"], options: StoreOptions) -> list[dict[str, Any]]:
    """Latencies of one store."""
    about = About(model="drawn", run="", dim=options.dim, roots=(), created="", kind="vectors")
    spawn = multiprocessing.get_context("spawn")
    with place(kind, options.folder) as (uri, _):
        store: Any = open_gallery(uri, create=about)
        fill(store, Drawn(options.dim), options.rows, 1000)
        store.optimise()
        indexed = store.indexed()
        with serving(uri) as server:
            host = server.address.partition("://")[2]
            total = json.loads(server.get("/api/items?limit=1"))["total"]
            starts = np.random.default_rng(0).integers(0, max(1, total - 500), size=4).tolist()
            items = [
                each["id"]
                for start in starts
                for each in json.loads(server.get(f"/api/items?limit=500&offset={start}"))["items"]
            ]
            paths = [f"/api/items/{item}/neighbours?k=8" for item in items]
            requests = {
                BY_ID: [get_request(path, host) for path in paths],
                FILTERED: [get_request(f"{path}&where=width+%3E%3D+0", host) for path in paths],
            }
            how = Options(uri, connections=(options.clients,), seconds=options.seconds)
            with spawn.Pool(1, _become_client, (server.address, requests)) as pool:
                found = [measured_row(what, 0, how, server, pool, lambda _: None) for what in requests]
    return [{"store": kind, "rows": options.rows, "dim": options.dim, "index": indexed, **row} for row in found]


def main(options: StoreOptions) -> None:
    ROUTES[FILTERED] = ROUTES[BY_ID]
    given = {name: str(value) for name, value in asdict(replace(options, folder=None)).items()}
    stored: dict[str, Any] = {"of": given, "machine": machine(), "rows": []}
    for kind in options.stores:
        stored["rows"] += measured(kind, options)
        write_atomically(options.out, json.dumps(stored, indent=1).encode() + b"\n")
        for row in stored["rows"][-2:]:
            print(
                f"{row['store']:<10} {row['what']:<24} {row['connections']} clients: {row['per_second']:.0f} a second,"
                f" p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms, errors {sum(row['errors'].values())}"
            )


if __name__ == "__main__":
    main(tyro.cli(StoreOptions, description=__doc__))
