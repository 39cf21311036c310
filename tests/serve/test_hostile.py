"""Uploads that mean harm get a clear answer, in time and in little memory, and the server goes on."""

import asyncio
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image, ImageCms
from starlette import formparsers
from starlette.requests import Request as HttpRequest

from tammes.data import images as pictures_module
from tammes.data.images import Mode, centre, in_mode, open_image, small
from tammes.errors import UserError
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.serve import decoder, decoding
from tammes.serve.decoding import Decoded, DecoderPool, Preprocessing
from tammes.serve.errors import CODES, RequestError
from tammes.serve.limits import Limits
from tammes.serve.uploads import read_upload
from tests.serve import hostile
from tests.serve.conftest import Server, eventually
from tests.serve.hostile import CLOSED, GOOD, Picture, Request

SECONDS = 600  # for any answer
MEMORY = 1.5e9
CLIENTS = 4
TRIES = 10  # of a request that is told that the server is busy


@dataclass
class Answer:
    """What came back; status 0: nothing."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    seconds: float = 0.0


def ask(address: str, request: Request) -> Answer:
    """Send it byte for byte, as long as the server does not answer, and read what it says."""
    where = urlsplit(address)
    began = time.perf_counter()
    with socket.create_connection((where.hostname, where.port), timeout=SECONDS) as connection:
        with suppress(ConnectionError):  # the server has closed its end: what it said before can still be read
            send(connection, request)
        response = http.client.HTTPResponse(connection, method="POST")
        try:
            response.begin()
            content = response.read()
        except (http.client.HTTPException, ConnectionError):
            return Answer(CLOSED, seconds=time.perf_counter() - began)
        finally:
            response.close()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, content, time.perf_counter() - began)


def send(connection: socket.socket, request: Request) -> None:
    for piece in chain([request.head], request.body):
        left = memoryview(piece)
        while left:
            answered, ready, _ = select.select([connection], [connection], [], SECONDS)
            if answered and connection.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 100":  # go on, it says
                while connection.recv(1) != b"\n" or connection.recv(2) != b"\r\n":
                    pass
            elif answered or not ready:
                return
            else:
                left = left[connection.send(left[:65536]) :]
    if request.half:
        connection.shutdown(socket.SHUT_WR)


class Watch:
    """The memory of a process and all that it has started, looked at every 50 ms: `peak` in bytes."""

    def __init__(self, process: int) -> None:
        self._process, self._stop = process, Event()
        self.peak = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        thread = Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.peak = max(self.peak, sum(map(memory_of, family(self._process))))


def family(process: int) -> list[int]:
    found = [process]
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += family(int(child))
    return found


def memory_of(process: int) -> int:
    """Its own pages, and its share of those that it has together with others."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class Attack:
    """Cases against a server, and what is wrong with its answers."""

    def __init__(self, server: Server, pictures: Sequence[Picture], seed: int) -> None:
        self._server, self._pictures, self._seed = server, pictures, seed
        self.answers: Counter[tuple[str, int]] = Counter()
        self.busy = 0
        self.slowest = (0.0, "")
        self.wrong: list[str] = []

    def __call__(self, case: tuple[hostile.Kind, int]) -> None:
        kind, number = case
        request = hostile.made(kind, number, self._seed, self._pictures)
        called = f"{kind.__name__} {number} ({request.what})"
        for _ in range(TRIES):
            answer = ask(self._server.address, request)
            if answer.status != 503:
                break
            self.busy += 1
            self.wrong += [f"{called}: {why}" for why in self._not_right(answer, request)]
            time.sleep(int(answer.headers.get("retry-after", "1")))
            request = hostile.made(kind, number, self._seed, self._pictures)
        self.answers[kind.__name__, answer.status] += 1
        self.slowest = max(self.slowest, (answer.seconds, called))
        if answer.status not in request.statuses:
            self.wrong.append(f"{called}: {answer.status} {answer.content[:300]!r}, not {request.statuses}")
        elif answer.status != CLOSED:
            self.wrong += [f"{called}: {why}" for why in self._not_right(answer, request)]

    def _not_right(self, answer: Answer, request: Request) -> list[str]:
        if answer.status == GOOD:
            return self._not_found(json.loads(answer.content), request)
        if answer.status == 303:
            name = answer.headers["location"].removeprefix("/picture/").partition("?")[0]
            found = self._server.get(f"/api/pictures/{name}/neighbours")
            shown = self._server.get(f"/api/pictures/{name}/thumbnail").content
            unsafe = [] if shown[:4] == b"RIFF" and len(shown) < 200_000 else [f"a thumbnail of {len(shown)} bytes"]
            return self._not_found(found.json(), request) + unsafe
        if answer.headers.get("content-type", "").startswith("text/html"):
            text = answer.content.decode()
            return [] if "<h1" in text and "<script>alert" not in text else [f"the page {text!r}"]
        if answer.status == 400 and answer.content == b"Invalid HTTP request received.":
            return []  # what is not HTTP is answered below the application
        said = json.loads(answer.content)
        message = said.get("message", "")
        right = (
            set(said) == {"error", "message"}
            and said["error"] == CODES[answer.status]
            and 10 < len(message) < 600
            and not any(secret in message for secret in ("0x", "Traceback", "site-packages", "<_io", "PIL."))
            and (answer.status != 503 or "retry-after" in answer.headers)
        )
        return [] if right else [f"{answer.status} {said}"]

    def _not_found(self, said: dict[str, Any], request: Request) -> list[str]:
        names = [item["name"] for item in said["found"]]
        if not names or said["query"]["kind"] != "picture":
            return [f"the answer {said}"]
        return [f"the nearest is {names[0]}"] if request.right not in (None, names[0]) else []


@pytest.fixture(scope="module")
def pictures(photos: Path) -> list[Picture]:
    """Of the gallery."""
    files = [file for name in ("plain", "class 0", "class 1", "class 2") for file in sorted((photos / name).iterdir())]
    return [Picture(f"{file.parent.name}/{file.name}", Image.open(file).copy()) for file in files]


def attack(server: Server, pictures: list[Picture], number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """So many cases, four at a time; then all must be as before."""
    run, watch = Attack(server, pictures, seed=0), Watch(server.process.pid)
    cases = hostile.cases(number)
    assert len(cases) == number
    assert {kind for kind, _ in cases} == {*hostile.KINDS, *hostile.RARE}
    began = time.perf_counter()
    with watch(), ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(run, cases))
    seconds = time.perf_counter() - began
    table = {
        kind.__name__: {s: n for (k, s), n in sorted(run.answers.items()) if k == kind.__name__} for kind, _ in cases
    }
    with capsys.disabled():
        print(f"\n{number} uploads in {seconds:.0f} s, {run.busy} times busy, at most {watch.peak / 1e6:.0f} MB")
        statuses = dict(sorted(Counter(status for _, status in run.answers.elements()).items()))
        print(f"{statuses}; slowest: {run.slowest[1]}, {run.slowest[0]:.1f} s")
        print("\n".join(f"  {name}: {counts}" for name, counts in table.items()))
    assert not run.wrong, "\n".join(run.wrong)
    assert watch.peak < MEMORY
    for good in pictures[::5]:
        found = server.post("/api/search", content=hostile.stored(good.image, "PNG")).json()["found"]
        assert found[0]["name"] == good.name
        assert found[0]["distance"] < 1e-3


def test_hostile_uploads(server: Server, pictures: list[Picture], capsys: pytest.CaptureFixture[str]) -> None:
    attack(server, pictures, 110, capsys)


@pytest.mark.slow
def test_two_thousand_hostile_uploads(
    gallery: Path, pictures: list[Picture], start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with start(str(gallery), "--rate", "0") as server:
        attack(server, pictures, 2000, capsys)


# The processes that decode.

GREY = Preprocessing("L", 28, 28)
PATIENT = Limits(decode_seconds=SECONDS, uploads_at_once=1)  # a process takes a while to start
SMALL = replace(PATIENT, decode_bytes=60_000_000)


@pytest.fixture
def decoders() -> Iterator[DecoderPool]:
    with closing(DecoderPool(PATIENT)) as found:
        yield found


def noise(width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8))


@pytest.fixture
def started() -> Callable[[], set[int]]:
    """The processes that this one has started since the test began, and that have not ended."""

    def children() -> set[int]:
        found = set[int]()
        for task in Path(f"/proc/{os.getpid()}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread of another test that ends just now
                found |= {int(child) for child in (task / "children").read_text().split()}
        return found

    before = children()
    return lambda: children() - before


Started = Callable[[], set[int]]


def still_works(decoders: DecoderPool) -> None:
    found = decoders.decode(hostile.stored(noise(), "PNG"), GREY)
    assert (found.width, found.height) == (40, 30)
    assert_array_equal(found.pixels, centre(noise(), "L", shorter_side=28, size=28))


def refusal(decoders: DecoderPool, content: bytes, view: Preprocessing = GREY) -> tuple[int, str]:
    with pytest.raises(RequestError) as refused:
        decoders.decode(content, view)
    return refused.value.status_code, refused.value.detail


def held_up(decoders: DecoderPool, started: Started) -> bytes:
    """A picture that takes for ever, as the one process that decodes it is halted."""
    still_works(decoders)
    (child,) = started()
    os.kill(child, signal.SIGSTOP)
    return hostile.stored(noise(), "PNG")


def instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of one's own be the decoder."""
    command = [sys.executable, "-c", f"import sys, os, signal, time\nsys.stdin.buffer.readline()\n{script}"]
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real(command, **options))


@pytest.mark.parametrize(
    "script",
    [
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "sys.exit(1)",
        "print('not JSON', flush=True); time.sleep(60)",
        "print('[' * 9000, flush=True); time.sleep(60)",
        "print('[1, 2]' + '\\n' + 'x' * 784, flush=True); time.sleep(60)",
        "print('x' * 50_000, flush=True); time.sleep(60)",
        "print('{\"thumbnail\": -1}' + '\\n' + 'x' * 784, flush=True); time.sleep(60)",
        "print('{\"thumbnail\": 1000000000000}' + '\\n' + 'x' * 784, flush=True); print('x' * 3_000_000, flush=True)",
        'print(\'{"thumbnail": 3, "width": "wide", "height": 1}\' + \'\\n\' + \'x\' * 787, flush=True); time.sleep(60)',
        "print('{\"thumbnail\": 3, \"width\": 1, \"height\": 1}' + '\\n' + 'x' * 500, flush=True)",
    ],
    ids=["crash", "end", "text", "brackets", "list", "a long line", "negative", "endless", "words", "too little"],
)
def test_a_decoder_that_dies_or_lies_is_ended_and_replaced(
    script: str, started: Started, decoders: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        instead(patch, script)
        assert refusal(decoders, b"x") == (422, "cannot read the image: it is broken.")
    assert not started()
    if script.startswith("os.kill"):  # once is enough: it takes a second
        still_works(decoders)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_decoder_that_others_kill_twice_does_not_make_the_picture_broken(
    number: str, decoders: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        instead(patch, f"os.kill(os.getpid(), signal.{number})")
        status, said = refusal(decoders, hostile.stored(noise(), "PNG"))
    assert (status, "again" in said) == (503, True)
    still_works(decoders)


def test_a_decoder_that_was_killed_between_two_pictures_is_replaced(started: Started, decoders: DecoderPool) -> None:
    still_works(decoders)
    (child,) = started()
    os.kill(child, signal.SIGKILL)
    while Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    still_works(decoders)


def test_a_picture_that_takes_too_long_is_ended_by_the_clock(started: Started) -> None:
    with closing(DecoderPool(PATIENT)) as decoders:
        picture = held_up(decoders, started)
        decoders._all[0]._limits = Limits(decode_seconds=0.5)
        said = refusal(decoders, picture)
        assert said == (422, "cannot read the image: decoding it takes longer than 0.5 seconds.")
        assert not started()


def test_a_picture_that_takes_too_much_memory_is_refused_and_the_process_goes_on(started: Started) -> None:
    with closing(DecoderPool(SMALL)) as decoders:
        still_works(decoders)
        before = started()
        for content in (hostile.png(4000, 4000, zlib.compress(bytes(4000 * 4001 * 3), 1), colour=2),) * 2:
            assert refusal(decoders, content) == (
                422,
                "cannot read the image: it takes too much memory to open. Make it smaller.",
            )
        still_works(decoders)
        assert started() == before
        assert len(before) == 1


def test_closing_ends_every_process_and_what_is_under_way(started: Started) -> None:
    decoders = DecoderPool(replace(PATIENT, uploads_at_once=2))
    with ThreadPoolExecutor(1) as other:
        picture = held_up(decoders, started)
        slow = other.submit(refusal, decoders, picture)
        assert eventually(lambda: len(decoders._free) == 1)
        still_works(decoders)
        assert len(started()) == 2
        decoders.close()
        assert slow.result() == (503, "the server is stopping.")
    assert not started()
    assert refusal(decoders, b"x") == (503, "the server is stopping.")
    assert not started()


def test_a_process_is_renewed_after_many_pictures(
    started: Started, decoders: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_RENEWED_AFTER", 3)
    seen = []
    for _ in range(6):
        still_works(decoders)
        (process,) = started()
        seen.append(process)
    assert [seen.index(each) for each in seen] == [0, 0, 0, 3, 3, 3]


def test_what_is_no_picture_says_so(decoders: DecoderPool) -> None:
    status, message = refusal(decoders, b"<html>")
    assert (status, message.startswith("cannot read the image: it is not an image")) == (415, True)
    assert refusal(decoders, b"") == (415, "cannot read the image: the file is empty.")
    wide = hostile.stored(Image.new("L", (510, 10)), "PNG")
    assert refusal(decoders, wide) == (422, "it is 51 times as long as wide.")
    bomb = hostile.png(60_000, 60_000, b"")
    assert refusal(decoders, bomb) == (
        422,
        f"cannot read the image: it has more than {Limits().upload_pixels:,} pixels. Make it smaller.",
    )
    status, message = refusal(decoders, hostile.stored(noise(), "PNG")[:500])
    assert (status, message.startswith("cannot read the image: ")) == (422, True)


def test_postscript_never_reaches_a_program(
    decoders: DecoderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    assert refusal(decoders, eps)[0] == 415
    assert not ran.exists()
    with suppress(OSError):
        Image.open(BytesIO(eps)).load()
    assert ran.exists()  # what would have happened


def test_files_where_the_server_was_started_are_not_imported(
    decoders: DecoderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    still_works(decoders)


def test_a_decoder_writes_no_file_and_leaves_no_core() -> None:
    script = (
        "import resource; from tammes.serve import decoder; decoder._limit(10**8)\n"
        "print([resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)])\n"
        "try:\n bytes(2 * 10**8)\nexcept MemoryError:\n print('no more')\n"
        "import sys; print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[(0, 0), (0, 0)]", "no more", "False"]


def test_a_kind_that_this_pillow_does_not_read_is_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    monkeypatch.delitem(Image.OPEN, "AVIF")
    with pytest.raises(UserError, match="it is not an image of a known kind"):
        decoder.decoded(hostile.stored(noise(), "AVIF"), "L", 28, 28)


def test_what_a_library_did_not_expect_is_refused_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("deep inside")

    Image.init()  # or what it adds would go when the test does
    asked = json.dumps({"bytes": 1, "mode": "L", "shorter_side": 28, "size": 28}).encode() + b"\nx"
    monkeypatch.setattr(decoder, "decoded", broken)
    monkeypatch.setattr(decoder, "_limit", lambda _: None)
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(asked * 2)))
    with warnings.catch_warnings():
        decoder.main(0, 1000)
    line = {"error": "cannot read the image: it is broken.", "thumbnail": 0}
    assert [json.loads(said) for said in capfdbinary.readouterr().out.splitlines()] == [line, line]


# The same pixels as everywhere else.


@pytest.fixture(scope="module")
def embedders() -> dict[str, Embedder]:
    """One that sees grey, and one that sees colours."""
    grey, colour = (Embedder(EmbedderConfig("conv4", dim=4)) for _ in range(2))
    colour.mode, colour.shorter_side, colour.size = "RGB", 72, 64
    return {"L": grey, "RGB": colour}


@pytest.fixture(scope="module")
def shared_decoders() -> Iterator[DecoderPool]:
    with closing(DecoderPool(PATIENT)) as found:
        yield found


def same_pixels(decoders: DecoderPool, embedder: Embedder, content: bytes, file: Path) -> Decoded:
    file.write_bytes(content)
    found = decoders.decode(content, Preprocessing(embedder.mode, embedder.shorter_side, embedder.size))
    expected = embedder.prepared(file)
    assert_array_equal(found.pixels, expected)
    assert found.pixels.dtype == expected.dtype
    assert Image.open(BytesIO(found.thumbnail)).format == "WEBP"
    return found


TRANSPARENT: dict[str, Callable[[], bytes]] = {
    "half-transparent": lambda: hostile.stored(Image.merge("LA", (noise(), noise().rotate(180))), "PNG"),
    "half-transparent colour": lambda: hostile.stored(Image.merge("RGBA", (noise(),) * 4), "PNG"),
    "one transparent grey": lambda: hostile.stored(noise(), "PNG", transparency=9),
    "black and white": lambda: hostile.stored(noise().convert("1"), "PNG"),
    "larger than a band": lambda: hostile.stored(Image.merge("LA", (noise(1500, 1400),) * 2), "PNG", compress_level=0),
}


@pytest.mark.parametrize("seen", ["L", "RGB"])
@pytest.mark.parametrize("mode", [*hostile.variants(noise()), *TRANSPARENT])
def test_an_upload_has_the_pixels_that_the_embedder_prepares(
    mode: str, seen: str, embedders: dict[str, Embedder], shared_decoders: DecoderPool, tmp_path: Path
) -> None:
    content = {**hostile.variants(noise()), **TRANSPARENT}[mode]()
    same_pixels(shared_decoders, embedders[seen], content, tmp_path / "picture")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_upload_is_upright(
    orientation: int, kind: str, embedders: dict[str, Embedder], shared_decoders: DecoderPool, tmp_path: Path
) -> None:
    content = hostile.turned(noise(), orientation, kind)
    found = same_pixels(shared_decoders, embedders["L"], content, tmp_path / "picture")
    assert (found.width, found.height) == (40, 30)
    if kind != "JPEG":
        assert_array_equal(found.pixels, embedders["L"].prepared(noise()))


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("kind", [*hostile.variants(noise()), *TRANSPARENT])
def test_a_picture_brought_to_a_mode_in_bands_is_the_same(
    kind: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_image(BytesIO({**hostile.variants(noise()), **TRANSPARENT}[kind]()))
    monkeypatch.setattr(pictures_module, "_BAND", 10**9)
    whole = in_mode(opened, mode)
    for rows in (0.5, 1, 7, 29):  # of a band, 30 in all
        monkeypatch.setattr(pictures_module, "_BAND", int(rows * opened.width))
        found = in_mode(opened, mode)
        assert found.mode == whole.mode == mode
        assert_array_equal(np.asarray(found), np.asarray(whole))
        if opened.height > 30:
            break


def test_a_small_picture_keeps_a_small_profile_of_its_colours_and_no_other() -> None:
    def profile(image: Image.Image, content: bytes) -> object:
        image.info["icc_profile"] = content
        return Image.open(BytesIO(small(image, 20))).info.get("icc_profile")

    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert len(srgb) < 4096
    assert profile(noise().convert("RGB"), srgb) == srgb
    assert profile(noise().convert("RGB"), srgb + bytes(4096)) is None
    assert profile(noise().convert("CMYK"), srgb) is None


# The body of a request.


def uploaded(kind: str, body: bytes, piece: int = 60_000) -> bytes:
    """What `read_upload` makes of it, which arrives in pieces."""
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)] or [b""]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())] if kind else []}
    return asyncio.run(read_upload(HttpRequest(scope, receive)))


FORM = hostile.FORM.decode().partition(": ")[2]


def test_a_file_in_a_form_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_disk(_: object) -> None:
        raise AssertionError("it was written to disk")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", to_disk)
    content = np.random.default_rng(0).bytes(3_000_000)
    assert uploaded(FORM, hostile.part(hostile.IMAGE, content) + hostile.END) == content
    assert uploaded("image/png", content) == uploaded("", content) == content


FORM_IS = "the form cannot be read: "
HOW = "Send the file as the body, or as the field 'image' of a form: curl -F image=@photo.jpg"


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        ("text/html", b"x", 415, f"the body has the content type 'text/html', which is not an image. {HOW}"),
        ("x" * 500, b"x", 415, f"the body has the content type {'x' * 100!r}, which is not an image. {HOW}"),
        ("multipart/form-data", b"x", 400, f"{FORM_IS}its boundary is missing or not allowed. {HOW}"),
        ('multipart/form-data; boundary="a\\"b"', b"x", 400, f"{FORM_IS}its boundary is missing or not allowed. {HOW}"),
        (FORM, hostile.END, 400, f"the form has no file 'image'. {HOW}"),
        (FORM, hostile.part(b"a; name=image", b"text") + hostile.END, 400, f"the form has no file 'image'. {HOW}"),
        (FORM, hostile.part(b"a; name=a", b"x" * 5000), 400, f"{FORM_IS}Part exceeded maximum size of 4KB. {HOW}"),
        (
            FORM,
            hostile.part(hostile.IMAGE, b"x") * 5,
            400,
            f"{FORM_IS}Too many files. Maximum number of files is 4. {HOW}",
        ),
        (FORM, b"rubbish", 400, f"{FORM_IS}Invalid multipart data. {HOW}"),
    ],
)
def test_a_body_without_a_picture_is_refused(kind: str, body: bytes, status: int, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        uploaded(kind, body)
    assert (refused.value.status_code, refused.value.detail) == (status, message)


@pytest.mark.parametrize("said", ["charset=punycode", "charset*=utf-8''punycode", "charset=idna", "charset=rubbish"])
def test_the_character_set_of_a_form_is_not_used(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of punycode takes a minute to decode, in which no one else is answered."""
    used = set()

    def decode(content: bytes, codec: str) -> str:
        used.add(codec)
        return bytes(content).decode("latin-1")

    monkeypatch.setattr(formparsers, "_user_safe_decode", decode)
    body = hostile.part(b"form-data; name=a", b"b") + hostile.part(hostile.IMAGE, b"content") + hostile.END
    assert uploaded(f"{FORM}; {said}", body) == b"content"
    assert used == {"utf-8"}
