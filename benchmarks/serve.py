"""How many requests a second does `tammes serve` answer, how soon, and does its memory stay what it is?

    python -m benchmarks.serve GALLERY [--seconds 30] [--minutes 20] [--images FOLDER] [--json]

A server of the gallery is started on a free port, without a limit on the rate, and stopped by SIGTERM at the end. The
client is a process of its own: so many connections, each of which asks again as soon as it has its answer. What client
and server take of the processors for a request stands in every row, so that one sees which of the two is measured.
Beside searches by upload stands the embedding alone: the same images through `Embedder.encode`, in a process of its
own, before there is a server. Then follow minutes of mixed load, in which the memory of the server and of the processes
that decode for it is looked at: what they have filled themselves, without their libraries' files.

What is measured is written as it is, and a run that was interrupted resumes with the rows that are missing; the mixed
load starts over, as its server is gone.
"""

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from time import perf_counter, process_time
from typing import Annotated, Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import tyro

from tammes.errors import UserError

# The client imports this module too: torch and what needs it are imported where they are used.
from tammes.io.console import print_json, progress
from tammes.io.files import write_atomically

HEALTH, BY_ID, OF_CLASS, UPLOAD = "health", "search by id", "search by id, one class", "search by upload"
FIRST, AGAIN, PAGE = "thumbnail, first time", "thumbnail, again", "page of an item"
THUMBNAIL = "thumbnail"
# In this order: a page reads the thumbnails that it shows. Each with its route in the server's own figures.
ROUTES = {
    HEALTH: "/api/health",
    BY_ID: "/api/items/{item}/neighbours",
    OF_CLASS: "/api/items/{item}/neighbours",
    UPLOAD: "/api/search",
    FIRST: "/api/items/{item}/thumbnail",
    AGAIN: "/api/items/{item}/thumbnail",
    PAGE: "/item/{item}",
}
MIXED = {BY_ID: 0.8, THUMBNAIL: 0.075, PAGE: 0.075, UPLOAD: 0.05}
MIXED_CONNECTIONS = 4
STEPS = ("decode", "embed", "search")
TOGETHER = 16
IMAGES = 64
FEW = 100  # thumbnails that are asked for again and again
LISTED = 100  # pages of 500 items whose ids are drawn from
TIMEOUT = 60.0  # seconds of a request; the server gives up before
VERSIONS = ("tammes", "torch", "fastapi", "starlette", "uvicorn", "lancedb", "numpy", "pillow")


@dataclass(frozen=True)
class Options:
    """Measure a server of a gallery."""

    gallery: Annotated[str, tyro.conf.Positional]
    """The gallery."""
    connections: tuple[int, ...] = (1, 4, 16)
    """How many at the same time; each is measured."""
    seconds: float = 30.0
    """Of each row; a tenth of it goes before, to warm up."""
    minutes: float = 20.0
    """Of mixed load; 0: none."""
    every: float = 5.0
    """Seconds between two looks at the memory."""
    images: Path | None = None
    """Images to search with, if those of the gallery are not there any more."""
    seed: int = 0
    """Of what is drawn: images, ids, kinds of requests."""
    again: bool = False
    """Measure everything again, also what is in the results."""
    json: bool = False
    """Print the results as one JSON object."""
    out: Path = Path("benchmarks/results/serve.json")
    """Where the figures go."""

    def __post_init__(self) -> None:
        if not self.connections or min(self.connections) < 1:
            raise UserError("--connections must be whole numbers from 1 on, such as 1 4 16.")
        if self.seconds <= 0 or self.every <= 0 or self.minutes < 0:
            raise UserError("--seconds and --every must be above 0, --minutes 0 (no mixed load) or more.")


# ---- the client, in a process of its own


@dataclass(frozen=True)
class Answers:
    """What a client has seen.

    Attributes:
        seconds: of each request that was granted, by its kind.
        errors: the others, by kind and reason.
        wall, processor: seconds of the whole, and of the client's processor.
    """

    seconds: dict[str, list[float]]
    errors: Counter[str]
    wall: float
    processor: float


class Client:
    """So many connections, each of which asks as soon as it has its answer."""

    def __init__(self, address: str, requests: dict[str, list[bytes]]) -> None:
        parts = urlsplit(address)
        self._host, self._port, self._requests = parts.hostname, parts.port, requests

    def ask(self, kinds: dict[str, float], connections: int, seconds: float, seed: str) -> Answers:
        """Requests drawn at random for so many seconds.

        Args:
            kinds: how often each is asked for, beside the others.
        """
        drawn = random.Random(seed)
        names, weights = list(kinds), list(kinds.values())

        def endless() -> Iterator[tuple[str, bytes]]:
            while True:
                kind = drawn.choices(names, weights)[0]
                yield kind, drawn.choice(self._requests[kind])

        return asyncio.run(self._asked(endless(), connections, seconds))

    def ask_once(self, kind: str, part: int, parts: int, connections: int, seconds: float) -> Answers:
        """Each of a part of the requests once, for so many seconds at most."""
        some = self._requests[kind][part::parts]
        return asyncio.run(self._asked(iter([(kind, each) for each in some]), connections, seconds))

    async def _asked(self, requests: Iterator[tuple[str, bytes]], connections: int, seconds: float) -> Answers:
        began, used = perf_counter(), process_time()
        answers = Answers({}, Counter(), 0.0, 0.0)
        until = began + seconds
        await asyncio.gather(*(self._connection(requests, until, answers) for _ in range(connections)))
        return Answers(answers.seconds, answers.errors, perf_counter() - began, process_time() - used)

    async def _connection(self, requests: Iterator[tuple[str, bytes]], until: float, answers: Answers) -> None:
        writer: asyncio.StreamWriter | None = None
        while perf_counter() < until and (drawn := next(requests, None)) is not None:
            kind, request = drawn
            began = perf_counter()
            try:
                async with asyncio.timeout(TIMEOUT):
                    if writer is None:
                        reader, writer = await asyncio.open_connection(self._host, self._port)
                    status, lasts = await _answered(reader, writer, request)
            except (OSError, EOFError, ValueError) as error:  # a time-out is an OSError
                answers.errors[f"{kind}: {type(error).__name__}"] += 1
                if writer is not None:
                    writer.close()
                    writer = None
                await asyncio.sleep(0.05)
                continue
            if status == 200:
                answers.seconds.setdefault(kind, []).append(perf_counter() - began)
            else:
                answers.errors[f"{kind}: status {status}"] += 1
            if not lasts:
                writer.close()
                writer = None
        if writer is not None:
            writer.close()


async def _answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bool]:
    """Ask, and read the answer to its end: its status, and whether the connection lasts."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    said = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(said))  # an answer without its length is an error
    return int(head.split(b" ", 2)[1]), b"\r\nconnection: close" not in head


def get_request(path: str, host: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def upload_request(content: bytes, host: str) -> bytes:
    """A search by a picture's file, as a form sends it."""
    mark = b"a-mark-that-is-in-no-picture-8c1f5b"
    part = b'Content-Disposition: form-data; name="image"; filename="image"\r\nContent-Type: image/jpeg\r\n\r\n'
    body = b"--" + mark + b"\r\n" + part + content + b"\r\n--" + mark + b"--\r\n"
    head = f"POST /api/search?k=8 HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: multipart/form-data; boundary=" + mark + b"\r\n\r\n" + body


_client: Client  # of this process, where it is one of a pool


def _become_client(address: str, requests: dict[str, list[bytes]]) -> None:
    global _client
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    _client = Client(address, requests)


def _ask(*given: Any) -> Answers:
    return _client.ask(*given)


def _ask_once(*given: Any) -> Answers:
    return _client.ask_once(*given)


# ---- the server


class Server:
    """A `tammes serve` that runs."""

    def __init__(self, process: int, address: str, seconds: float) -> None:
        self.process, self.address, self.start_seconds = process, address, seconds

    def get(self, path: str) -> bytes:
        with urlopen(self.address + path, timeout=TIMEOUT) as answer:
            return bytes(answer.read())

    def figures(self) -> dict[str, float]:
        """What it tells Prometheus."""
        lines = self.get("/metrics").decode().splitlines()
        said = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in said}


@contextmanager
def serving(gallery: str) -> Iterator[Server]:
    """A server on a free port of this machine; it must end well."""
    command = [sys.executable, "-m", "tammes", "serve", gallery, "--port", "0", "--rate", "0", "--json"]
    began = perf_counter()
    with (
        TemporaryFile("w+") as said,  # not a pipe, which would be full one day
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then stops the server
        ) as process,
    ):
        assert process.stdout is not None
        gone = False
        try:
            line = process.stdout.readline()
            if line:
                yield Server(process.pid, json.loads(line)["address"], perf_counter() - began)
            gone = not line
        except OSError:
            gone = process.poll() is not None
            if not gone:
                raise
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        said.seek(0)
        if process.returncode != 0 or gone:
            raise UserError(f"the server ended with {process.returncode}: {said.read().strip()}")


def family(process: int) -> list[int]:
    """A process, and those that it has started."""
    found = [process]
    for each in found:  # it grows as it goes
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in _read(file).split()]
    return found


def own_mb(process: int) -> float:
    """The memory that a process has filled itself, without its libraries' files: how much of those counts as its own
    depends on what other programs run, and they do not grow. 0 if it has ended."""
    lines = [line.split() for line in _read(Path(f"/proc/{process}/smaps_rollup")).splitlines()]
    return sum(int(line[1]) for line in lines if line[0] == "Pss_Anon:") / 1024


def processor_seconds(process: int) -> float:
    """What a process and those that it has started have used of the processors, also those that have ended."""
    ticks = 0
    for number, each in enumerate(family(process)):
        fields = _read(Path(f"/proc/{each}/stat")).rpartition(") ")[2].split()
        ticks += sum(map(int, fields[11:13] if number else fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


# ---- what is asked for


def drawn_images(gallery: str, folder: Path | None, seed: int) -> list[Path]:
    """Images of the gallery, or of a folder."""
    from tammes.data.folder import images_below
    from tammes.gallery import open_gallery

    known = (
        images_below(folder) if folder is not None else [Path(each) for each in open_gallery(gallery).fingerprints()]
    )
    mixed = sorted(known)
    random.Random(seed).shuffle(mixed)
    found = list(islice((file for file in mixed if file.is_file()), IMAGES))
    if not found:
        raise UserError(
            f"no images to search with: {folder or 'the files of ' + gallery} has none. Say --images FOLDER"
        )
    return found


def requests_of(server: Server, images: Sequence[Path], seed: int) -> dict[str, list[bytes]]:
    """What each kind of request may ask for."""
    host, drawn = urlsplit(server.address).netloc, random.Random(seed)
    total = json.loads(server.get("/api/items?limit=1"))["total"]
    starts = list(range(0, total, 500))
    if len(starts) > LISTED:
        starts = drawn.sample(starts, LISTED)
    items = [
        each for start in starts for each in json.loads(server.get(f"/api/items?limit=500&offset={start}"))["items"]
    ]
    drawn.shuffle(items)

    def paths(path: Callable[[dict[str, Any]], str]) -> list[bytes]:
        return [get_request(path(each), host) for each in items]

    thumbnails = paths(lambda item: item["thumbnail"])
    return {
        HEALTH: [get_request("/api/health", host)],
        BY_ID: paths(lambda item: f"/api/items/{item['id']}/neighbours?k=8"),
        OF_CLASS: paths(lambda item: f"/api/items/{item['id']}/neighbours?k=8&label={quote(item['label'], safe='')}"),
        UPLOAD: [upload_request(file.read_bytes(), host) for file in images],
        FIRST: thumbnails,
        AGAIN: thumbnails[:FEW],
        THUMBNAIL: thumbnails,
        PAGE: paths(lambda item: f"/item/{item['id']}"),
    }


# ---- what is measured


def alone(gallery: str, files: Sequence[Path]) -> dict[str, Any]:
    """Milliseconds of an image without a server, one at a time and several together: medians."""
    import numpy as np
    import torch

    from benchmarks.timing import machine
    from tammes.gallery.gallery import Gallery

    embedder = Gallery(gallery).embedder
    found: dict[str, Any] = {"machine": machine(), "backbone": embedder.config.backbone}

    def decode(group: Sequence[Path]) -> Any:
        return np.stack([embedder.prepared(file) for file in group])

    def embed(pixels: Any) -> Any:
        with torch.inference_mode():
            return embedder(torch.from_numpy(pixels).to(embedder.mean.device)).float().cpu()

    for name, number in (("one", 1), ("together", TOGETHER)):
        groups = [files[start : start + number] for start in range(0, len(files), number)]
        embedder.encode(groups[0], batch_size=number)  # to warm up
        times: dict[str, list[float]] = {"decode": [], "embed": [], "encode": []}
        for group in groups:
            pixels = decode(group)
            steps = {
                "decode": partial(decode, group),
                "embed": partial(embed, pixels),
                "encode": partial(embedder.encode, group, batch_size=number),
            }
            for step, action in steps.items():
                began = perf_counter()
                action()
                times[step].append(1e3 * (perf_counter() - began) / len(group))
        found[name] = {f"{step}_ms": median(each) for step, each in times.items()}
    return found


def figures(answers: Answers) -> dict[str, Any]:
    """A row of all that a client has seen."""
    seconds = [each for kind in answers.seconds.values() for each in kind]
    return {
        "requests": len(seconds),
        "seconds": answers.wall,
        "per_second": len(seconds) / answers.wall,
        **_quantiles(seconds),
        "errors": dict(answers.errors),
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"p50_ms": None, "p99_ms": None, "max_ms": None}
    ordered = sorted(seconds)
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]  # 99 of 100 took no longer
    return {"p50_ms": 1e3 * median(ordered), "p99_ms": 1e3 * p99, "max_ms": 1e3 * ordered[-1]}


def measured_row(
    what: str, number: int, options: Options, server: Server, pool: Pool, tick: Callable[[float], None]
) -> dict[str, Any]:
    """One kind of request, by so many connections."""
    connections = options.connections[number]

    def asked(seconds: float, seed: str) -> Answers:
        if what == FIRST:
            given = (FIRST, number, len(options.connections), connections, seconds)
            return _waited(pool.apply_async(_ask_once, given), tick)
        return _waited(pool.apply_async(_ask, ({what: 1.0}, connections, seconds, seed)), tick)

    if what != FIRST:  # which would not be the first after it
        asked(options.seconds / 10, f"{options.seed} before")
    before, used = server.figures(), processor_seconds(server.process)
    answers = asked(options.seconds, f"{options.seed} {connections}")
    used, after = processor_seconds(server.process) - used, server.figures()
    row = {"what": what, "connections": connections, **figures(answers)}
    asked_in_all = max(1, row["requests"] + answers.errors.total())
    row |= {"client_cpu_ms": 1e3 * answers.processor / asked_in_all, "server_cpu_ms": 1e3 * used / asked_in_all}
    return row | {"server": within(ROUTES[what], before, after)}


def within(route: str, before: dict[str, float], after: dict[str, float]) -> dict[str, float | None]:
    """What the server itself has measured of a route: requests, their mean in milliseconds, and that of each step."""

    def mean(name: str, labels: str = "") -> tuple[int, float | None]:
        count, total = (
            after.get(f"{name}_{what}{labels}", 0.0) - before.get(f"{name}_{what}{labels}", 0.0)
            for what in ("count", "sum")
        )
        return int(count), 1e3 * total / count if count else None

    requests, whole = mean("tammes_request_seconds", f'{{route="{route}"}}')
    return {"requests": requests, "request_ms": whole} | {
        f"{step}_ms": mean(f"tammes_{step}_seconds")[1] for step in STEPS
    }


def of_uploads(stored: dict[str, Any]) -> dict[str, Any]:
    """Searches by upload beside the embedding alone, and what their time goes to."""
    rows = [row for row in stored["rows"] if row["what"] == UPLOAD and row["requests"]]
    one, together = (stored["alone"][name]["encode_ms"] for name in ("one", "together"))
    return {
        "rows": [
            {
                "connections": row["connections"],
                "to_alone": row["p50_ms"] / one if row["connections"] == 1 else None,
                # As many images as the network takes together, where several wait.
                "of_alone_per_second": row["per_second"] * together / 1e3,
                "shares": {step: row["server"][f"{step}_ms"] / row["server"]["request_ms"] for step in STEPS},
            }
            for row in rows
        ]
    }


def mixed_load(
    options: Options, server: Server, pool: Pool, tick: Callable[[float], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Minutes of all kinds of requests, and the memory as they pass; what there is so far is kept after each look."""
    whole = 60 * options.minutes
    seconds: dict[str, list[float]] = {}
    errors: Counter[str] = Counter()
    samples: list[dict[str, float]] = []
    began = perf_counter()
    while (passed := perf_counter() - began) < whole:
        given = (MIXED, MIXED_CONNECTIONS, min(options.every, whole - passed), f"{options.seed} {len(samples)}")
        asking = pool.apply_async(_ask, given)
        asking.wait(given[2] / 2)  # look while the server works
        own, *others = family(server.process)
        at = perf_counter() - began
        server_mb, decoders_mb = own_mb(own), sum(map(own_mb, others))
        if not server_mb:
            raise ConnectionError("the server has ended")
        answers: Answers = _waited(asking, tick, given[2] / 2)
        for kind, each in answers.seconds.items():
            seconds.setdefault(kind, []).extend(each)
        errors += answers.errors
        requests = sum(map(len, seconds.values()))
        samples.append(
            {
                "seconds": round(at, 2), "server_mb": round(server_mb, 2), "decoders_mb": round(decoders_mb, 2),
                "requests": requests, "errors": errors.total(),
            }
        )  # fmt: skip
        passed = perf_counter() - began
        found: dict[str, Any] = {"minutes": passed / 60, "complete": passed >= whole, "connections": MIXED_CONNECTIONS}
        found |= {"requests": requests, "per_second": requests / passed, "errors": dict(errors)}
        found |= {"kinds": {kind: {"requests": len(each), **_quantiles(each)} for kind, each in seconds.items()}}
        found |= {"memory": memory(samples), "samples": samples}
        keep(found)
    return found


def memory(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The memory at minute 1 and at the end, and by how many MB an hour it grows in the second half."""
    first = min(samples, key=lambda sample: abs(sample["seconds"] - 60))
    later = [sample for sample in samples if sample["seconds"] >= samples[-1]["seconds"] / 2]
    times = [sample["seconds"] / 3600 for sample in later]
    of_server = [sample["server_mb"] for sample in later]
    of_all = [sample["server_mb"] + sample["decoders_mb"] for sample in later]
    return {
        "first": {name: first[name] for name in ("seconds", "server_mb", "decoders_mb")},
        "end": {name: samples[-1][name] for name in ("seconds", "server_mb", "decoders_mb")},
        "peak_mb": max(sample["server_mb"] + sample["decoders_mb"] for sample in samples),
        "mb_per_hour": slope(times, of_all),
        "server_mb_per_hour": slope(times, of_server),
    }


def slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Of the line by least squares; None of a single point."""
    middle = sum(times) / len(times)
    spread = sum((time - middle) ** 2 for time in times)
    return sum((time - middle) * value for time, value in zip(times, values, strict=True)) / spread if spread else None


def _waited(result: Any, tick: Callable[[float], None], since: float = 0.0) -> Answers:
    """The result, with the seconds that pass told to the bar."""
    tick(since)
    began = perf_counter()
    while not result.ready():
        result.wait(0.5)
        tick(perf_counter() - began)
        began = perf_counter()
    answers: Answers = result.get()
    return answers


def begun(options: Options) -> dict[str, Any]:
    """The results so far, where they are of this gallery, this code and these options; else those of nothing yet."""
    from benchmarks.timing import machine
    from tammes.gallery import open_gallery

    store = open_gallery(options.gallery)
    of = {
        "gallery": Path(options.gallery.rstrip("/")).name, "model": store.about.model, "items": store.count(),
        "classes": len(store.labels()), "dim": store.about.dim, "connections": list(options.connections),
        "seconds": options.seconds, "minutes": options.minutes, "every": options.every, "seed": options.seed,
        "images": None if options.images is None else options.images.name, "commit": machine()["commit"],
    }  # fmt: skip
    if options.again or not options.out.exists():
        return {"of": of, "rows": []}
    stored: dict[str, Any] = json.loads(options.out.read_text())
    if stored["of"] != of:
        others = [name for name, value in of.items() if stored["of"].get(name) != value]
        raise UserError(
            f"{options.out} has results of another measurement (other: {', '.join(others)}). --again measures again;"
            " --out FILE writes elsewhere."
        )
    return stored


def main(options: Options) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        raise UserError("the memory of processes is read from /proc, which is not here: measure on Linux.")
    stored = begun(options)
    done = {(row["what"], row["connections"]) for row in stored["rows"]}
    wanted = [(what, number) for what in ROUTES for number in range(len(options.connections))]
    missing = [(what, number) for what, number in wanted if (what, options.connections[number]) not in done]
    load = options.minutes > 0 and not stored.get("load", {}).get("complete")
    if missing or load:
        _measure(options, stored, missing, load)
    if options.json:
        print_json(stored)
    else:
        from benchmarks.page import served

        print("\n".join(served(stored)))


def _measure(options: Options, stored: dict[str, Any], missing: list[tuple[str, int]], load: bool) -> None:
    def keep(**more: Any) -> None:
        stored.update(more)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, json.dumps(stored, indent=1).encode() + b"\n")

    spawn = multiprocessing.get_context("spawn")
    images = drawn_images(options.gallery, options.images, options.seed)
    if "alone" not in stored:
        busy = os.getloadavg()[0]
        with spawn.Pool(1) as pool:
            found = pool.apply(alone, (options.gallery, images))
        found |= {"images": len(images), "mean_kb": sum(file.stat().st_size for file in images) / len(images) / 1e3}
        machine = found.pop("machine") | {"cores": os.cpu_count(), "load_before": busy}
        keep(machine=machine, versions={name: version(name) for name in VERSIONS}, alone=found)
    with serving(options.gallery) as server:
        keep(start_seconds=server.start_seconds)
        requests = requests_of(server, images, options.seed)
        with (
            spawn.Pool(1, _become_client, (server.address, requests)) as pool,
            progress("asking") as bar,
        ):
            total = sum(options.seconds * (1.0 if what == FIRST else 1.1) for what, _ in missing)
            total += 60 * options.minutes if load else 0
            passed = 0.0

            def tick(seconds: float) -> None:
                nonlocal passed
                passed += seconds
                bar(int(passed), int(total))

            for what, number in missing:
                row = measured_row(what, number, options, server, pool, tick)
                keep(rows=[*stored["rows"], row])
            keep(uploads=of_uploads(stored))
            if load:
                mixed_load(options, server, pool, tick, lambda found: keep(load=found))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what stops the server
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        raise SystemExit(str(error)) from None
