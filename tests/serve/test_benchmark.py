"""benchmarks/serve.py: a server is measured as it is, and what was measured is not measured again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import serve
from benchmarks.page import served
from benchmarks.serve import (
    FIRST,
    HEALTH,
    MIXED,
    ROUTES,
    UPLOAD,
    Client,
    Options,
    drawn_images,
    family,
    figures,
    get_request,
    memory,
    own_mb,
    processor_seconds,
    slope,
    upload_request,
    within,
)
from tammes.errors import UserError

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package

SLOW = 0.03  # seconds that /slow takes


class Counting(ThreadingHTTPServer):
    """Answers as its paths say, and counts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.lock = Lock()
        self.paths: list[str] = []
        self.under_way = self.most_under_way = self.connections = 0


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one write
    server: Counting

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.paths.append(self.path)
            self.server.under_way += 1
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        sleep(SLOW if self.path == "/slow" else 0)
        with self.server.lock:
            self.server.under_way -= 1
        if self.path == "/gone":
            self.close_connection = True
            return
        self.send_response(503 if self.path == "/busy" else 200)
        if self.path == "/last":
            self.send_header("Connection", "close")
        if self.path != "/endless":
            self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def counting() -> Iterator[Counting]:
    with Counting() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client(server: Counting, **paths: str) -> Client:
    host = f"127.0.0.1:{server.server_address[1]}"
    return Client(f"http://{host}", {kind: [get_request(path, host)] for kind, path in paths.items()})


def test_so_many_connections_each_of_which_waits_for_its_answer(counting: Counting) -> None:
    answers = client(counting, slow="/slow").ask({"slow": 1.0}, 3, 0.4, "0")
    assert counting.most_under_way == counting.connections == 3
    assert len(answers.seconds["slow"]) == len(counting.paths)
    assert min(answers.seconds["slow"]) >= SLOW
    assert answers.wall >= 0.4
    assert 0 < answers.processor < answers.wall
    row = figures(answers)
    assert row["requests"] == len(counting.paths)
    assert row["per_second"] == pytest.approx(len(counting.paths) / answers.wall)
    assert row["per_second"] <= 3 / SLOW
    assert row["errors"] == {}
    seconds = np.array(answers.seconds["slow"])
    assert row["p50_ms"] == pytest.approx(1e3 * np.median(seconds))
    assert row["p99_ms"] == pytest.approx(1e3 * np.quantile(seconds, 0.99, method="inverted_cdf"))
    assert row["max_ms"] == 1e3 * seconds.max()


@pytest.mark.parametrize(
    ("path", "error"),
    [("/busy", "status 503"), ("/gone", "IncompleteReadError"), ("/endless", "ValueError")],
)
def test_what_is_not_answered_well_is_an_error_and_has_no_time(counting: Counting, path: str, error: str) -> None:
    answers = client(counting, good="/", bad=path).ask({"good": 0.5, "bad": 0.5}, 2, 0.3, "0")
    assert answers.errors == {f"bad: {error}": counting.paths.count(path)}
    assert len(answers.seconds["good"]) == counting.paths.count("/")
    assert "bad" not in answers.seconds
    assert answers.errors.total() > 1  # it has gone on after the first


def test_a_server_that_is_not_there_is_an_error_and_no_loop_without_rest() -> None:
    answers = Client("http://127.0.0.1:1", {"any": [get_request("/", "here")]}).ask({"any": 1.0}, 1, 0.3, "0")
    assert list(answers.errors) == ["any: ConnectionRefusedError"]
    assert 1 <= answers.errors.total() <= 7
    assert figures(answers)["p50_ms"] is None


def test_a_connection_that_the_server_ends_is_no_error(counting: Counting) -> None:
    answers = client(counting, last="/last").ask({"last": 1.0}, 1, 0.2, "0")
    assert answers.errors == {}
    assert counting.connections == len(counting.paths) == len(answers.seconds["last"]) > 1


def test_kinds_are_asked_for_as_often_as_they_weigh_and_alike_with_the_same_seed(counting: Counting) -> None:
    asking = client(counting, often="/often", seldom="/seldom")
    asking.ask({"often": 0.9, "seldom": 0.1}, 1, 0.5, "0")
    first, counting.paths = counting.paths, []
    assert 0.02 < first.count("/seldom") / len(first) < 0.25
    asking.ask({"often": 0.9, "seldom": 0.1}, 1, 0.3, "0")
    both = min(len(first), len(counting.paths))
    assert first[:both] == counting.paths[:both]


def test_requests_that_are_made_once_are_made_once(counting: Counting) -> None:
    host = f"127.0.0.1:{counting.server_address[1]}"
    asking = Client(f"http://{host}", {"each": [get_request(f"/{number}", host) for number in range(10)]})
    answers = [asking.ask_once("each", part, 3, 2, 120.0) for part in range(3)]
    assert sorted(counting.paths) == [f"/{number}" for number in range(10)]
    assert [len(each.seconds["each"]) for each in answers] == [4, 3, 3]


def test_memory_and_processor_are_those_of_a_process_and_its_children() -> None:
    # The child holds 60 MB, and another that has ended has worked.
    child = "import sys; held = bytearray(b'x') * 60_000_000; print('here', flush=True); sys.stdin.read()"
    works = "from time import process_time\nwhile process_time() < 0.5: pass"
    parent = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[2]]);"
        " subprocess.run([sys.executable, '-c', sys.argv[1]])"
    )
    command = [sys.executable, "-c", parent, child, works]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        own, *others = family(process.pid)
        assert own == process.pid
        assert len(others) == 1
        assert own_mb(others[0]) > 57
        assert 0 < own_mb(own) < 50
        assert processor_seconds(process.pid) > 0.45
        process.communicate()
    assert family(process.pid) == [process.pid]
    assert own_mb(process.pid) == 0


def test_slope_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    times, values = np.sort(rng.uniform(0, 3, 20)), rng.normal(size=20)
    assert slope(times.tolist(), values.tolist()) == pytest.approx(np.polyfit(times, values, 1)[0])
    assert slope([1.0], [2.0]) is None


def test_memory_grows_by_what_it_grows_in_the_second_half() -> None:
    # 200 MB an hour in the first half, then 12 of the server and 6 of its decoders.
    samples = [
        {
            "seconds": float(at),
            "server_mb": 500 + min(at, 300) / 18 + 12 * max(0, at - 300) / 3600,
            "decoders_mb": 100 + 6 * max(0, at - 300) / 3600,
        }
        for at in range(2, 602, 5)
    ]
    found = memory(samples)
    assert found["server_mb_per_hour"] == pytest.approx(12)
    assert found["mb_per_hour"] == pytest.approx(18)
    assert found["first"]["seconds"] == 62
    assert found["first"]["server_mb"] == pytest.approx(500 + 62 / 18)
    assert found["end"] == samples[-1]
    assert found["peak_mb"] == samples[-1]["server_mb"] + samples[-1]["decoders_mb"]
    assert memory(samples[:1])["mb_per_hour"] is None


def test_what_the_server_says_of_itself_is_what_came_in_between() -> None:
    route = 'tammes_request_seconds_{}{{route="/api/search"}}'
    before = {route.format("count"): 2.0, route.format("sum"): 10.0, "tammes_decode_seconds_sum": 1.0}
    after = {route.format("count"): 6.0, route.format("sum"): 11.0, "tammes_decode_seconds_sum": 1.2}
    after |= {"tammes_decode_seconds_count": 4.0}
    assert within("/api/search", before, after) == {
        "requests": 4, "request_ms": 250.0, "decode_ms": pytest.approx(50.0), "embed_ms": None, "search_ms": None,
    }  # fmt: skip


def test_images_are_those_of_the_gallery_or_of_a_folder(gallery: Path, photos: Path, tmp_path: Path) -> None:
    found = drawn_images(str(gallery), None, 0)
    assert len(set(found)) == len(found) == 64
    assert all(file.is_relative_to(photos) and file.is_file() for file in found)
    assert found == drawn_images(str(gallery), None, 0) != drawn_images(str(gallery), None, 1)
    Image.new("L", (9, 9)).save(tmp_path / "one.png")
    assert drawn_images(str(gallery), tmp_path, 0) == [tmp_path / "one.png"]
    (tmp_path / "one.png").unlink()
    said = f"no images to search with: {tmp_path} has none. Say --images FOLDER"
    with pytest.raises(UserError) as error:
        drawn_images(str(gallery), tmp_path, 0)
    assert str(error.value) == said


def test_what_there_is_of_the_load_is_kept_as_it_goes(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_client", client(counting, **dict.fromkeys(MIXED, "/")), raising=False)
    options = Options("gallery", minutes=1.0, every=0.1)
    here, kept, ticks = serve.Server(os.getpid(), "", 0.0), list[dict[str, Any]](), list[float]()

    def keep(found: dict[str, Any]) -> None:
        kept.append(json.loads(json.dumps(found)))
        if len(kept) == 3:
            raise KeyboardInterrupt

    with ThreadPool(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            serve.mixed_load(options, here, pool, ticks.append, keep)
        assert [len(each["samples"]) for each in kept] == [1, 2, 3]
        assert not any(each["complete"] for each in kept)
        assert kept[-1]["samples"][:2] == kept[1]["samples"]
        assert kept[-1]["requests"] == len(counting.paths)
        assert counting.most_under_way <= 4
        assert kept[-1]["samples"][-1]["server_mb"] > 20
        assert sum(ticks) > 0
        ended = subprocess.Popen(["true"])
        ended.wait()
        with pytest.raises(ConnectionError, match="the server has ended"):
            serve.mixed_load(options, serve.Server(ended.pid, "", 0.0), pool, ticks.append, keep)


def test_options_that_measure_nothing_are_errors() -> None:
    with pytest.raises(UserError) as error:
        Options("gallery", connections=(4, 0))
    assert str(error.value) == "--connections must be whole numbers from 1 on, such as 1 4 16."
    with pytest.raises(UserError) as error:
        Options("gallery", seconds=0.0)
    assert str(error.value) == "--seconds and --every must be above 0, --minutes 0 (no mixed load) or more."


def test_an_upload_is_a_form_that_the_server_reads(server: Any, photos: Path) -> None:
    file = next(photos.rglob("*.png"))
    host = server.address.removeprefix("http://")
    answers = Client(server.address, {"up": [upload_request(file.read_bytes(), host)]}).ask({"up": 1.0}, 1, 0.2, "0")
    assert answers.errors == {}
    assert answers.seconds["up"]


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(UserError) as error, serve.serving("--nonsense"):
        pass
    assert str(error.value).startswith("the server ended with 2: ")
    assert "--nonsense" in str(error.value)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of Python and so of the server: a program that says an address, and what it was given."""
    program, told = tmp_path / "program", tmp_path / "told"
    program.write_text(
        f"#!/bin/sh\necho \"$@\" >> '{told}'\ntrap 'echo stopped >> {told}; exit 0' TERM\n"
        'echo broken >&2\necho \'{"address": "http://127.0.0.1:1"}\'\nwhile :; do sleep 0.02; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return told


def test_a_server_is_stopped_by_sigterm_whatever_happens(stand_in: Path) -> None:
    with serve.serving("a gallery") as server:
        assert server.address == "http://127.0.0.1:1"
    with pytest.raises(ConnectionRefusedError), serve.serving("a gallery"):
        raise ConnectionRefusedError
    given = "-m tammes serve a gallery --port 0 --rate 0 --json"
    assert stand_in.read_text().splitlines() == 2 * [given, "stopped"]


@pytest.mark.usefixtures("stand_in")
def test_a_server_that_ends_too_soon_says_why() -> None:
    with pytest.raises(UserError) as error, serve.serving("a gallery") as server:  # noqa: PT012
        os.kill(server.process, signal.SIGKILL)
        while own_mb(server.process):
            sleep(0.01)
        raise ConnectionRefusedError
    assert str(error.value) == "the server ended with -9: broken"


@pytest.mark.slow
def test_a_small_gallery_is_measured_and_what_is_missing_is_measured_later(
    gallery: Path, server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "serve.json"
    options = Options(str(gallery), connections=(1, 2), seconds=0.5, minutes=0.05, every=0.75, json=True, out=out)
    serve.main(options)
    stored = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == stored
    assert stored["of"]["items"] == 80
    assert stored["of"]["classes"] == 10
    assert stored["versions"]["uvicorn"]
    assert stored["machine"]["torch"]

    assert [(row["what"], row["connections"]) for row in stored["rows"]] == [(w, c) for w in ROUTES for c in (1, 2)]
    for row in stored["rows"]:
        assert row["errors"] == {}, row
        assert row["requests"] == row["server"]["requests"] > 0, row  # the server has counted as many
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        assert row["server"]["request_ms"] < row["max_ms"]
        assert (row["server"]["embed_ms"] is not None) == (row["what"] == UPLOAD)
    assert all(row["requests"] <= 40 for row in stored["rows"] if row["what"] == FIRST)  # each of half the items once
    for name in ("one", "together"):
        assert stored["alone"][name]["embed_ms"] > 0
        assert stored["alone"][name]["decode_ms"] > 0
    one, two = stored["uploads"]["rows"]
    by_upload = next(row for row in stored["rows"] if row["what"] == UPLOAD)
    assert one["to_alone"] == pytest.approx(by_upload["p50_ms"] / stored["alone"]["one"]["encode_ms"])
    assert two["to_alone"] is None
    assert 0 < sum(one["shares"].values()) < 1

    load = stored["load"]
    assert load["complete"]
    assert load["minutes"] >= 0.05
    assert load["errors"] == {}
    assert set(load["kinds"]) <= set(MIXED)
    assert sum(kind["requests"] for kind in load["kinds"].values()) == load["requests"]
    assert load["samples"][-1]["requests"] == load["requests"]
    assert len(load["samples"]) >= 3
    assert all(sample["server_mb"] > 50 for sample in load["samples"])
    assert load["samples"][-1]["decoders_mb"] > 1
    assert load["memory"]["mb_per_hour"] is not None

    # Nothing is missing: no server is started.
    with monkeypatch.context() as patch:
        patch.delattr(serve, "serving")
        serve.main(Options(**{**vars(options), "json": False}))
        assert capsys.readouterr().out == "\n".join(served(stored)) + "\n"
        with pytest.raises(UserError) as error:
            serve.main(Options(**{**vars(options), "seconds": 0.6}))
        assert str(error.value) == (
            f"{out} has results of another measurement (other: seconds). --again measures again; --out FILE writes"
            " elsewhere."
        )

        again = serve.begun(Options(**{**vars(options), "again": True, "images": Path("far/photos")}))
        assert again == {"of": stored["of"] | {"images": "photos"}, "rows": []}

    # A row and a part of the load are missing: they are measured, the others stay.
    cut = {**stored, "rows": stored["rows"][1:], "load": {**load, "complete": False, "minutes": 99.0}}
    out.write_text(json.dumps(cut))
    running = serve.Server(server.process.pid, server.address, 0.0)
    monkeypatch.setattr(serve, "serving", lambda _: nullcontext(running))
    serve.main(options)
    later = json.loads(out.read_text())
    assert later["rows"][:-1] == stored["rows"][1:]
    assert (later["rows"][-1]["what"], later["rows"][-1]["connections"]) == (HEALTH, 1)
    assert later["load"]["complete"]
    assert later["load"]["minutes"] < 99
    assert later["alone"] == stored["alone"]
