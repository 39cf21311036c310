"""A small gallery and servers of it, made once for all tests of the web in a worker."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import pytest

from tammes.cli import main
from tests.commands import stripes

SMALL = ("--backbone", "conv4", "--dim", "16", "--batch-size", "8", "--shift", "2", "--epochs", "3")
NASTY = ["<b>bold", "\"quoted\" & 'so'", "plain", "<img src=x onerror=alert(1)>", "Grün 鳥", "a?b=c&d#e %2e", "x" * 60]
WAIT = 600.0  # seconds after which a test gives up; nothing takes them that does not hang


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker has them all: the gallery, its server and the browser are made once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("serve"))


def eventually(what: Callable[[], bool], pause: Callable[[], None] = lambda: time.sleep(0.02)) -> bool:
    """Whether it comes to be true."""
    end = time.monotonic() + WAIT
    while not (found := what()) and time.monotonic() < end:
        pause()
    return found


class Server:
    """A `tammes serve` that runs: its address, its process, and a client."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process, self.address = process, address
        self.client = httpx.Client(base_url=address, timeout=WAIT)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.client.post(path, **options)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """A server in a process of its own on a free port; it must end well."""
    command = [sys.executable, "-m", "tammes", "serve", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        server = Server(process, json.loads(line)["address"])
        try:
            yield server
        finally:
            server.client.close()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            said = process.stderr.read()
            process.stdout.close()
            process.stderr.close()
    assert process.returncode == 0, said
    assert "Traceback" not in said, said


class Inside:
    """A `ServerState` without a server: requests are answered in this process."""

    def __init__(self, state: Any, hosts: list[str] | None = None) -> None:
        from tammes.serve.app import application  # not before pytest has set up the check of shapes

        self.state = state
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(state.start())
        self.app: Any = application(state, hosts=hosts)
        inside = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=inside, base_url="http://127.0.0.1")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.request(method, path, **options))

    def get_from(self, client: str, path: str) -> httpx.Response:
        """Asked by another machine."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(client, 4321))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as other:
                return await other.get(path)

        return self._loop.run_until_complete(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def eventually(self, what: Callable[[], bool]) -> bool:
        """Whether it comes to be true, while what goes on in the background goes on."""
        return eventually(what, lambda: self._loop.run_until_complete(asyncio.sleep(0.02)))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self.state.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def inside(state: Any, hosts: list[str] | None = None) -> Iterator[Inside]:
    """`with inside(ServerState(…)) as here: here.get("/api/health")`."""
    here = Inside(state, hosts)
    try:
        yield here
    finally:
        here.close()


@contextmanager
def listening(state: Any, proxies: Any = ()) -> Iterator[Any]:
    """A server in a thread of this process, for limits that the command does not have: its `Server`."""
    from tammes.serve.server import Server as Listening
    from tammes.serve.server import listen

    socket, ready = listen("127.0.0.1", 0), Event()
    server = Listening(state, "127.0.0.1", ready.set, proxies)
    thread = Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        assert ready.wait(WAIT)
        yield server
    finally:
        server.should_exit = True
        thread.join(WAIT)
        socket.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes with names that a page could stumble over, and some plain ones; eight images each."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, name in enumerate([*NASTY, *(f"class {n}" for n in range(3))]):
        (root / name).mkdir()
        for image in range(8):
            stripes(number, rng, 40).save(root / name / f"it's <i>{image}.png")
    return root


@pytest.fixture(scope="session")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, calibrated run with its report."""
    folder = tmp_path_factory.mktemp("runs") / "stripes"
    main(["train", str(photos), "--out", str(folder), *SMALL])
    main(["calibrate", str(folder), "--fmr", "0.05"])
    main(["report", str(folder), "--map", "pca"])
    return folder


@pytest.fixture(scope="session")
def gallery(photos: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of all photos, for tests that only look."""
    where = tmp_path_factory.mktemp("galleries") / "stripes"
    main(["index", str(run), str(photos), "--gallery", str(where)])
    return where


@pytest.fixture(scope="session")
def server(gallery: Path) -> Iterator[Server]:
    """A server of the gallery for tests that only ask; without a limit on how often."""
    with serving(str(gallery), "--rate", "0") as found:
        yield found


@pytest.fixture
def start() -> Callable[..., Any]:
    """To start a server with options of one's own: `with start(gallery, "--token", …) as server:`."""
    return serving
