"""What stands between an untrusted client and the site: names, tokens, limits, headers, and what is never said."""

import asyncio
import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from tammes.errors import UserError
from tammes.gallery import About, Row, open_gallery
from tammes.gallery.model import model_digest
from tammes.gallery.trust import trust
from tammes.serve.connections import Connections
from tammes.serve.errors import CODES, FAULT
from tammes.serve.gallery import GalleryWatcher, ServedGallery
from tammes.serve.limits import Limits
from tammes.serve.middleware import COOKIE, POLICY, cookie_of, same_token
from tammes.serve.rows import Rows
from tammes.serve.server import read_proxies
from tammes.serve.state import ServerState
from tammes.training.run_folder import RunFolder
from tests.serve.conftest import WAIT, Inside, Server, eventually, inside, listening
from tests.serve.test_api import png, refused

TOKEN = "0123456789abcdef+/=~"
FREE = Limits(rate=0.0)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}


@pytest.fixture(scope="module")
def here(gallery: Path, run: Path) -> Iterator[Inside]:
    """The gallery and the report, inside this process."""
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), [run.parent], FREE)) as found:
        yield found


@pytest.fixture(scope="module")
def locked(gallery: Path, run: Path) -> Iterator[Inside]:
    """The same behind a token."""
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), [run.parent], FREE, token=TOKEN)) as found:
        yield found


def addresses(here: Inside) -> list[str]:
    """Every address of the site, with an item that there is."""
    item = here.state.gallery.rows.ids[0]
    api = [
        "/api/gallery", "/api/count", "/api/classes", "/api/items", f"/api/items/{item}", f"/api/items/{item}/image",
        f"/api/items/{item}/thumbnail", f"/api/items/{item}/neighbours", "/api/map", "/metrics", "/openapi.json",
    ]  # fmt: skip
    pages = ["/", f"/item/{item}", "/classes", "/class?name=plain", "/map", "/api", "/runs", "/favicon.ico",
             "/runs/stripes/report.html"]  # fmt: skip
    return [*api, *pages]


# Hosts.


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "localhost@evil.example", "[::1", "0",
     "127.0.0.2", "localhost:80:80@x", "evil.example/localhost", "evil.example#@localhost"],
)  # fmt: skip
def test_a_name_that_is_not_this_server(server: Server, host: str) -> None:
    for path in ("/", "/api/health", "/static/site.css", "/metrics"):
        answer = server.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert answer.json() == {
            "error": "wrong_host",
            "message": "this server is not known by that name. Use the address that it printed.",
        }


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "localhost:8000"])
def test_the_names_of_this_machine(server: Server, host: str) -> None:
    assert server.get("/api/health", headers={"Host": host}).status_code == 200


# Tokens.


def test_nothing_but_a_few_addresses_is_open_without_a_token(locked: Inside) -> None:
    for path in addresses(locked):
        answer = locked.get(path)
        message = refused(answer, 401)
        assert message == "a token is needed: send `Authorization: Bearer TOKEN`, or open /login in a browser."
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/api/search", "/api/search/vector", "/search", "/nothing"):
        refused(locked.post(path, content=png()), 401)
    assert locked.get("/api/health").status_code == 200
    assert locked.get("/static/site.css").status_code == 200
    assert locked.get("/login", headers={"Accept": "text/html"}).status_code == 200


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}",
     f"Bearer {TOKEN.upper()}", f"Bearer {cookie_of(TOKEN)}", "Bearer \xe9\xff", "Bearer " + "x" * 5000],
)  # fmt: skip
def test_a_token_that_is_not_the_right_one(locked: Inside, given: str) -> None:
    refused(locked.get("/api/count", headers={"Authorization": given.encode("latin-1")}), 401)


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", f"BEARER {TOKEN}"])
def test_the_right_token(locked: Inside, given: str) -> None:
    for path in addresses(locked):
        assert locked.get(path, headers={"Authorization": given}).status_code in (200, 307), path


@pytest.mark.parametrize(
    "path",
    ["/static/../metrics", "/login/../metrics", "//metrics", "/static//metrics", "/api/health/../count",
     "/loginx", "/static/%2e%2e/metrics", "/api/healthy", "/static/..%2fmetrics", "/api/health%3f/../count"],
)  # fmt: skip
def test_an_open_address_does_not_lead_to_another(locked: Inside, path: str) -> None:
    answer = locked.get(path)
    assert answer.status_code in (401, 404)
    assert b"tammes_requests" not in answer.content


@pytest.mark.parametrize("host", ["localhost/static/", "localhost/static/?", "x/login#", "localhost/api/health?"])
def test_a_host_that_looks_like_an_open_address(locked: Inside, host: str) -> None:
    refused(locked.get("/api/count", headers={"Host": host}), 401)


def test_a_browser_logs_in_once(locked: Inside) -> None:
    page = {"Accept": "text/html"}
    sent = locked.get("/", headers=page)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login")
    asked = locked.get("/login", headers=page)
    assert 'name="token"' in asked.text
    assert TOKEN not in asked.text
    wrong = locked.post("/login", data={"token": "something else"})
    assert (wrong.status_code, wrong.headers["location"]) == (303, "/login?wrong=true")
    assert "set-cookie" not in wrong.headers
    for nothing in ({}, {"token": ""}):
        assert "set-cookie" not in locked.post("/login", data=nothing).headers
    deep = locked.get("/class?name=a%26b", headers=page).headers["location"]
    assert deep == "/login?to=%2Fclass%3Fname%3Da%2526b"
    assert 'value="/class?name=a%26b"' in locked.get(deep, headers=page).text
    right = locked.post("/login", data={"token": f" {TOKEN}\n"})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    for asked_for, to in (
        ("/class?name=a%26b", "/class?name=a%26b"),
        ("//evil.org", "/"),
        ("/\\evil.org", "/"),
        ("http://e", "/"),
    ):
        assert locked.post("/login", data={"token": TOKEN, "to": asked_for}).headers["location"] == to
    cookie = right.headers["set-cookie"]
    said = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", "max-age=2592000"} <= said
    assert "secure" not in said
    assert TOKEN not in cookie
    value = cookie.split(";")[0]
    assert locked.get("/", headers={**page, "Cookie": value}).status_code == 200
    assert locked.get("/api/count", headers={"Cookie": value}).status_code == 200
    # Cookies of other programs on this machine come along, whatever is in them.
    others = f'a={{"b": [1, "c"]}}; {value}; é=ü; =; ;'.encode()
    assert locked.get("/api/count", headers={"Cookie": others}).status_code == 200
    for forged in (f"{COOKIE}={TOKEN}", f"{COOKIE}=", f"{value}0", f"x{value}", f"{COOKIE}=\xe9"):
        assert locked.get("/api/count", headers={"Cookie": forged.encode("latin-1")}).status_code == 401


def test_the_cookie_goes_over_https_only_where_there_is_https(locked: Inside) -> None:
    answer = locked.post("https://127.0.0.1/login", data={"token": TOKEN})
    assert "secure" in answer.headers["set-cookie"].lower()


def test_there_is_no_login_without_a_token(here: Inside) -> None:
    refused(here.get("/login"), 404)


def test_tokens_are_compared_whatever_is_in_them() -> None:
    assert same_token("ab", "ab")
    assert not same_token("", "ab")
    assert not same_token("\udce9", "ab")
    assert not same_token("é", "ab")


# Headers.


def test_every_answer_has_the_safe_headers(here: Inside) -> None:
    page = {"Accept": "text/html"}
    answers = [here.get(path, headers=page) for path in addresses(here)]
    answers += [here.get(path) for path in ("/nothing", "/api/items/x", "/api/count?label=no", "/static/nothing.js")]
    answers += [here.get("/nothing", headers=page), here.post("/api/health"), here.request("OPTIONS", "/")]
    answers += [here.get("/static/site.js"), here.get("/login")]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, answer.url
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
        if answer.url.path.endswith("/image"):
            assert policy == "default-src 'none'; sandbox"
        elif answer.url.path.endswith("/report.html"):
            assert "sandbox allow-scripts" in policy
            assert "allow-same-origin" not in policy
            assert "script-src 'sha256-" in policy
            assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
        else:
            assert policy == POLICY
            assert "unsafe-inline" not in policy
        if answer.status_code >= 400:
            assert answer.headers["cache-control"] == "no-store"


def test_what_may_be_kept_and_what_not(here: Inside) -> None:
    assert here.get("/api/count").headers["cache-control"] == "no-store"
    assert here.get("/", headers={"Accept": "text/html"}).headers["cache-control"] == "no-store"
    assert here.get("/static/site.css").headers["cache-control"] == "no-cache"


# Errors.


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/static/nothing.css", 404),
        ("POST", "/api/health", 405),
        ("DELETE", "/api/items/0000000000000000", 405),
        ("GET", "/api/search", 405),
        ("PUT", "/", 405),
        ("OPTIONS", "/api/search", 405),
        ("TRACE", "/api/health", 405),
        ("BREW", "/api/health", 405),
        ("GET", "/api/items/0", 422),
        ("GET", "/classes?page=0", 422),
        ("GET", "/classes?page=9", 404),
    ],
)
def test_errors_are_json_for_programs_and_pages_for_people(here: Inside, method: str, path: str, status: int) -> None:
    answer = here.request(method, path)
    message = refused(answer, status)
    assert answer.json()["error"] == CODES[status]
    assert message.endswith(".")
    assert answer.headers["content-type"] == "application/json"
    page = here.request(method, path, headers={"Accept": "text/html"})
    assert page.status_code == status
    if path.startswith(("/api/", "/static/")):
        assert page.json() == answer.json()
    else:
        assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/api/health", {"GET", "HEAD"}), ("GET", "/api/search", {"POST"}), ("OPTIONS", "/api/search", {"POST"})],
)
def test_a_wrong_method_is_told_the_right_ones(here: Inside, method: str, path: str, allowed: set[str]) -> None:
    answer = here.request(method, path)
    assert {each.strip() for each in answer.headers["allow"].split(",")} == allowed


def test_head_is_get_without_its_content(here: Inside, server: Server) -> None:
    for path in ("/", "/api/count", "/static/site.css", "/nothing", addresses(here)[5]):
        head, get = server.client.head(path), server.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        for name in ("content-length", "content-type", "cache-control"):
            assert head.headers[name] == get.headers[name]


def test_a_fault_is_told_to_whoever_runs_the_server_and_not_to_the_client(
    here: Inside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("the secret is 1234, in /home/me")

    monkeypatch.setattr(ServedGallery, "neighbours", broken)
    item = here.state.gallery.rows.ids[0]
    for path in (f"/api/items/{item}/neighbours", f"/item/{item}"):
        for accept in ("application/json", "text/html"):
            answer = here.get(path, headers={"Accept": accept})
            assert answer.status_code == 500
            assert FAULT in answer.text.replace("Something", "something")
            assert not any(word in answer.text for word in ("1234", "Traceback", "ValueError", "/home/me", "pages.py"))
            said = capsys.readouterr().err
            assert "Traceback" in said
            assert "the secret is 1234" in said
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


def test_a_gallery_that_cannot_be_read(
    here: Inside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(*_: Any, **__: Any) -> Any:
        raise UserError("cannot read the gallery /home/me/gallery; a file of it may be damaged: so and so.")

    monkeypatch.setattr(ServedGallery, "neighbours", unreadable)
    answer = here.post("/api/search/vector", json={"vector": [1.0] * 16})
    assert refused(answer, 503) == "the gallery cannot be read at the moment; the server's log says why."
    assert answer.headers["retry-after"] == "5"
    assert "cannot read the gallery /home/me/gallery" in capsys.readouterr().err


def test_a_timeout_inside_a_handler_is_a_fault_of_ours(
    here: Inside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(*_: Any, **__: Any) -> Any:
        raise TimeoutError("a store took too long")

    monkeypatch.setattr(ServedGallery, "neighbours", slow)
    assert refused(here.post("/api/search/vector", json={"vector": [1.0] * 16}), 500) == FAULT
    assert "a store took too long" in capsys.readouterr().err


# Limits.


def test_a_client_may_ask_so_often(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tammes.serve.middleware.monotonic", lambda: now[0])
    with inside(ServerState(None, [run.parent], Limits(rate=2.0, burst=2.0))) as here:
        statuses = [here.get("/metrics").status_code for _ in range(4)]
        assert statuses == [200] * 4
        answer = here.get("/metrics")
        assert refused(answer, 429) == "more than 2 requests a second from one client. Try again in a moment."
        assert answer.headers["retry-after"] == "1"
        assert here.get_from("10.1.2.3", "/metrics").status_code == 200  # another client
        now[0] += 0.7  # more than one request's worth
        assert [here.get("/metrics").status_code for _ in range(3)] == [200, 429, 429]
        # What is cheap counts less; it may be asked for with what is left.
        assert [here.get("/api/health").status_code for _ in range(3)] == [200] * 3


def test_a_rate_below_one_a_second(run: Path) -> None:
    with inside(ServerState(None, [run.parent], Limits(rate=0.0001))) as here:
        assert here.get("/metrics").status_code == 200
        answer = here.get("/metrics")
        assert answer.status_code == 429
        assert 9_000 <= int(answer.headers["retry-after"]) <= 10_000


def test_no_rate_is_no_limit(here: Inside) -> None:
    assert {here.get("/api/count").status_code for _ in range(300)} == {200}


def test_only_so_many_clients_are_remembered(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.serve.middleware._CLIENTS", 3)
    with inside(ServerState(None, [run.parent], Limits(rate=0.001))) as here:
        assert [here.get_from(f"10.0.0.{number}", "/metrics").status_code for number in range(9)] == [200] * 9
        assert len(here.app._clients) == 3
        assert here.get_from("10.0.0.8", "/metrics").status_code == 429


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": -1.0}, "`rate` must be 0 (no limit) or more requests a second, got -1."),
        ({"rate": float("nan")}, "`rate` must be 0 (no limit) or more requests a second, got nan."),
        ({"rate": float("inf")}, "`rate` must be 0 (no limit) or more requests a second, got inf."),
        ({"upload_bytes": 0}, "`max_upload` and `max_pixels` must be numbers above 0: an image has to fit."),
        ({"upload_pixels": 0}, "`max_upload` and `max_pixels` must be numbers above 0: an image has to fit."),
    ],
)
def test_limits_that_are_none(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as told:
        Limits(**wrong)
    assert str(told.value) == message


def test_a_request_that_takes_too_long(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, answered = ServedGallery.neighbours, Event()

    def slow(*given: Any, **options: Any) -> Any:
        assert answered.wait(WAIT)
        return search(*given, **options)

    monkeypatch.setattr(ServedGallery, "neighbours", slow)
    limits = replace(FREE, seconds=0.3)
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=limits)) as here:
        item = here.state.gallery.rows.ids[0]
        requests: list[tuple[str, str, Any]] = [
            ("GET", f"/api/items/{item}/neighbours", None),
            ("POST", "/api/search/vector", {"vector": [1.0] * 16}),
        ]
        for method, path, content in requests:
            answer = here.request(method, path, json=content)
            assert refused(answer, 504) == "this took longer than 0.3 seconds."
            assert answer.json()["error"] == "took_too_long"
            assert answer.headers["retry-after"] == "5"
        answered.set()
        here.app._limits = FREE
        assert here.get("/api/count").status_code == 200


def test_the_time_of_an_upload_is_not_that_of_its_answer(run: Path) -> None:
    async def slowly() -> Any:
        for piece in (b"token=", TOKEN.encode(), b""):
            await asyncio.sleep(1.2)
            yield piece

    limits = replace(FREE, seconds=3, upload_seconds=WAIT)
    with inside(ServerState(None, [run.parent], limits, token=TOKEN)) as here:
        assert here.post("/login", content=slowly()).status_code == 303  # an answer that waits for nothing


# On the wire: servers with limits of their own, in a thread, and clients that misbehave.


@contextmanager
def raw(server: Any) -> Iterator[socket.socket]:
    """A connection to say anything through."""
    with socket.create_connection(server.servers[0].sockets[0].getsockname(), timeout=WAIT) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection, and says nothing before that."""
    try:
        return connection.recv(10) == b""
    except ConnectionResetError:  # something was left unread
        return True


def answer_to(connection: socket.socket) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and JSON of the next answer."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    content = response.read()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, json.loads(content)


ASK = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture(scope="module")
def large(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A gallery with one image, whose file is large."""
    root = tmp_path_factory.mktemp("large")
    with (root / "1.png").open("wb") as file:
        file.write(png())
        file.truncate(80_000_000)
    about = About(model_digest(RunFolder(run)), str(run), 16, (str(root),), "2026-01-02T03:04:05")
    store = open_gallery(str(root / "gallery"), create=about)
    vector = np.eye(16, dtype=np.float32)[0]
    trust(str(root / "gallery"), about.roots)
    store.upsert([Row(str(root / "1.png"), vector, "", 8, 8, "f", b"")])
    return str(root / "gallery")


PATIENT = replace(FREE, upload_bytes=1_000_000, upload_seconds=WAIT, header_seconds=WAIT, seconds=WAIT, connections=16)


@contextmanager
def limited(gallery: str, limits: Limits) -> Iterator[Any]:
    with listening(ServerState(GalleryWatcher(gallery, None, "cpu"), limits=limits)) as server:
        yield server


@pytest.fixture(scope="module")
def strict(large: str) -> Iterator[Any]:
    """A server that has time, but not for everything: 16 connections, 4 of one address, and 1 MB."""
    with limited(large, PATIENT) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(large: str) -> Iterator[Any]:
    """A server that does not wait long for the headers of a request."""
    with limited(large, replace(PATIENT, header_seconds=0.3)) as server:
        yield server


@pytest.fixture(scope="module")
def hurried(large: str) -> Iterator[Any]:
    """A server that does not wait long for the body of a request."""
    with limited(large, replace(PATIENT, upload_seconds=0.7)) as server:
        yield server


def test_a_length_that_is_too_large_is_refused_before_anything_is_sent(strict: Any) -> None:
    with raw(strict) as connection:
        connection.sendall(POST + b"Content-Length: 1000000000\r\n\r\nabc")
        status, headers, said = answer_to(connection)
    assert (status, said["error"]) == (413, "too_large")
    assert said["message"] == "this request may have up to 1 MB. Make the image smaller."
    assert headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/api/search/vector", "/api/health", "/login", "/nothing"])
def test_what_is_no_picture_is_short(path: str, gallery: Path) -> None:
    with inside(ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=FREE)) as here:
        answer = here.post(path, content=b"[" * 2_000_001)
        assert answer.status_code == 413
        assert answer.json()["message"] == "this request may have up to 2 MB."


def test_a_client_that_waits_to_be_asked_for_its_body_is_told_at_once(strict: Any) -> None:
    with raw(strict) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
        assert answer_to(connection)[0] == 413
    with raw(strict) as connection:
        content = json.dumps({"vector": [1.0] * 16}).encode()
        head = POST.replace(b"/search", b"/search/vector").replace(b"image/png", b"application/json")
        connection.sendall(head + f"Expect: 100-continue\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(content)
        assert answer_to(connection)[0] == 200


def test_a_body_in_pieces_may_be_so_large(strict: Any) -> None:
    with raw(strict) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            connection.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        status, _, said = answer_to(connection)
    assert (status, said["error"]) == (413, "too_large")


@pytest.mark.parametrize("path", [b"/api/search", b"/api/search/vector", b"/search"])
def test_a_slow_body(hurried: Any, path: bytes) -> None:
    with raw(hurried) as connection:
        kind = b"application/json" if path.endswith(b"vector") else b"image/png"
        head = POST.replace(b"/api/search", path).replace(b"image/png", kind)
        connection.sendall(head + b"Content-Length: 1000\r\n\r\n")
        connection.sendall(b" ")
        status, _, said = answer_to(connection)
        assert (status, said["error"]) == (408, "too_slow")
        assert said["message"] == "the body of the request took longer than 0.7 seconds to arrive."
        assert is_closed(connection)


def test_a_client_that_is_refused_while_it_sends_is_heard_out_for_a_moment(strict: Any, hurried: Any) -> None:
    """A connection that is closed while something is left unread is reset, and with it goes the answer."""
    with raw(strict) as connection:
        connection.sendall(
            POST.replace(b"/search", b"/search?k=0") + b"Content-Length: 500000\r\n\r\n" + bytes(100_000)
        )
        assert answer_to(connection)[0] == 422
        for _ in range(4):
            connection.sendall(bytes(100_000))
        assert connection.recv(10) == b""
    with raw(hurried) as connection:  # one that does not come to an end is not waited for
        connection.sendall(POST.replace(b"/search", b"/search?k=0") + b"Content-Length: 500000\r\n\r\n")
        assert answer_to(connection)[0] == 422
        assert is_closed(connection)


def test_slow_headers(hasty: Any) -> None:
    for said in (POST[:20], b"", ASK + ASK[:-4]):  # the last: of a second request
        with raw(hasty) as connection:
            connection.sendall(said)
            if said.startswith(ASK):
                assert answer_to(connection)[0] == 200
            assert is_closed(connection)


def test_requests_that_come_one_after_the_other_without_waiting(strict: Any) -> None:
    with raw(strict) as connection:
        connection.sendall(ASK * 3)
        seen = b""
        while seen.count(b'"ok"') < 3:
            seen += connection.recv(10_000)
    assert seen.count(b"HTTP/1.1 200") == 3


def test_what_is_no_http(strict: Any) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n bad\r\n\r\n",
                     POST + b"Content-Length: -5\r\n\r\n", POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
                     POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                     b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000):  # fmt: skip
        with raw(strict) as connection:
            connection.sendall(nonsense)
            if nonsense[0] == 0x16:
                connection.sendall(b"\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    with raw(strict) as connection:
        connection.sendall(
            b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert answer_to(connection)[0] == 200  # as if it had not asked


def settled(server: Any, connections: int) -> bool:
    """Whether the server comes to have so many connections."""
    return eventually(lambda: len(server.server_state.connections) == connections)


def connected(server: Any, host: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection(server.servers[0].sockets[0].getsockname(), WAIT, (host, 0))


def test_a_connection_too_many_is_told_so_where_none_is_idle(strict: Any) -> None:
    assert settled(strict, 0)
    with ExitStack() as held:
        for _ in range(4):
            at_work = held.enter_context(connected(strict))
            at_work.sendall(POST + b"Content-Length: 1000\r\n\r\nabc")
        assert eventually(lambda: [each.idle_since for each in strict.connections._open.values()] == [None] * 4)
        connection = held.enter_context(raw(strict))
        connection.sendall(ASK)
        status, headers, said = answer_to(connection)
        assert (status, said["error"]) == (503, "busy")
        assert said["message"] == "too many connections at once. Try again in a moment."
        assert headers["retry-after"] == "1"
        assert headers["x-content-type-options"] == "nosniff"
        assert connection.recv(10) == b""
    assert settled(strict, 0)
    with raw(strict) as connection:
        connection.sendall(ASK)
        assert answer_to(connection)[0] == 200


@pytest.fixture
def patient(gallery: Path) -> Iterator[Any]:
    """A server to which nobody has connected yet: 16 connections, 4 of one address."""
    with limited(str(gallery), PATIENT) as server:
        yield server


def test_idle_connections_of_one_address_shut_nobody_out(patient: Any, capfd: pytest.CaptureFixture[str]) -> None:
    idle = [connected(patient, "127.0.0.1") for _ in range(40)]
    try:
        for each in idle[20:]:
            with suppress(OSError):  # closed as too many
                each.sendall(ASK)
        assert settled(patient, 4)
        for host in ("127.0.0.2", "127.0.0.1"):
            with connected(patient, host) as other:
                other.sendall(ASK)
                assert answer_to(other)[0] == 200
    finally:
        for each in idle:
            each.close()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "connections of 127.0.0.1 at once" in lines[0]


def test_idle_connections_of_many_addresses_give_way(patient: Any) -> None:
    idle = [connected(patient, f"127.0.1.{number}") for number in range(1, 41)]
    try:
        assert settled(patient, 16)
        with connected(patient, "127.0.0.2") as other:
            other.sendall(ASK)
            assert answer_to(other)[0] == 200
    finally:
        for each in idle:
            each.close()


def test_connections_of_a_proxy_are_those_of_many() -> None:
    limits = replace(FREE, connections=16)
    found = []
    for proxies in ([], read_proxies("127.0.0.0/8, ::1")):
        connections = Connections(limits, proxies)
        for number in range(10):
            new = Mock(address=("127.0.0.1", number), host="127.0.0.1", idle_since=float(number), refused=False)
            assert connections.admit(new)
        found.append(len(connections))
    assert found == [4, 10]


@pytest.mark.parametrize("wrong", ["*", "example.org", "10.0.0.1/8", "127.0.0.1,x"])
def test_a_proxy_is_named_by_its_address(wrong: str) -> None:
    with pytest.raises(UserError, match=f"proxy={re.escape(wrong)}.*127.0.0.1"):
        read_proxies(wrong)


@pytest.mark.parametrize(("proxies", "statuses"), [(None, [200, 429]), ("127.0.0.1", [200, 200])])
def test_who_a_proxy_says_a_client_is_counts_only_of_one_that_was_named(
    proxies: str | None, statuses: list[int], gallery: Path
) -> None:
    state = ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=Limits(rate=0.001))
    with listening(state, read_proxies(proxies)) as server:
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/api/count"
        asked = [httpx.get(address, headers={"X-Forwarded-For": f"10.0.0.{n}"}).status_code for n in (1, 2)]
    assert asked == statuses


def test_what_goes_wrong_outside_of_a_request_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    connections, error = Connections(FREE), OSError(24, "Too many open files")
    loop = Mock(spec=asyncio.AbstractEventLoop)
    for _ in range(1000):
        connections.handle_exception(loop, {"message": "socket.accept() out of system resource", "exception": error})
    (line,) = capsys.readouterr().err.splitlines()
    assert "Too many open files" in line


def test_a_client_that_does_not_take_in_its_answer_is_cut_off(large: str) -> None:
    with (
        limited(large, replace(PATIENT, seconds=1.0, upload_seconds=0.2, header_seconds=1.0)) as server,
        socket.socket() as connection,
    ):
        item = Rows(open_gallery(large)).ids[0]
        connection.settimeout(WAIT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        connection.connect(server.servers[0].sockets[0].getsockname())
        connection.sendall(f"GET /api/items/{item}/image HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(4) == b"HTTP"
        assert settled(server, 0)


def test_a_client_that_goes_away_in_the_middle_leaves_no_trace(strict: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for content in (POST + b"Content-Length: 1000\r\n\r\nabc", POST + b"Content-Length: 0\r\n\r\n", POST):
        with raw(strict) as connection:
            connection.sendall(content)
    assert settled(strict, 0)
    assert capfd.readouterr().err == ""


def test_a_form_that_is_broken_does_not_write_into_the_log(strict: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = b"--x\r\nContent-[Disposition: form-data\r\n\r\n\r\n--x--\r\n"
    with raw(strict) as connection:
        head = POST.replace(b"image/png", b"multipart/form-data; boundary=x")
        connection.sendall(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert answer_to(connection)[0] == 400
    assert caplog.records == []


# Files that are nobody's business.

SECRETS = [
    "/static/../api.py", "/static/../../../../../../../../etc/passwd", "/static/..%2f..%2f..%2fetc%2fpasswd",
    "/static/%2e%2e/%2e%2e/pages.py", "/static/%2e%2e%2fpages.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd",
    "/static/..%5c..%5cpages.py", "/static/site.css%00.png", "/static/..;/pages.py", "/static/.", "/static/",
    "/api/items/..%2f..%2fetc%2fpasswd", "/api/items/%2e%2e/image", "/api/items/%2fetc%2fpasswd/image",
    "/api/items/../../../etc/passwd/image", "/api/pictures/..%2f..%2fetc/thumbnail", "/item/..%2f..%2fetc%2fpasswd",
    "/picture/%2e%2e%2f%2e%2e%2fetc", "/runs/../../etc/passwd/report.html", "/runs/..%2f..%2fetc/report.html",
    "/runs/%2fetc%2fpasswd/report.html", "/runs//etc/report.html", "/runs/./report.html", "/runs/../report.html",
    "/runs/stripes/../stripes/report.html", "/runs/stripes/config.json", "/runs/stripes/embedder.safetensors",
    "/runs/stripes/%2e%2e/report.html", "/runs/report.html", "/runs/stripes%00/report.html",
    "//etc/passwd", "/etc/passwd", "/..", "/%2e%2e/%2e%2e/etc/passwd", "/class?name=../../etc/passwd",
    "/favicon.ico/../../etc/passwd", "/.git/config", "/api/../../etc/passwd", "http://localhost/../etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("target", SECRETS)
def test_no_path_leads_to_a_file_that_is_not_served(server: Server, target: str) -> None:
    url = httpx.URL(server.address)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=WAIT)
    try:
        for method in ("GET", "HEAD"):
            connection.putrequest(method, target, skip_host=True)  # as it stands: nothing is tidied on the way
            connection.putheader("Host", "localhost")
            connection.endheaders()
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status in (400, 404, 422), target
            assert not any(secret in content for secret in (b"root:", b"import ", b"[core]", b'"data"', b"<!doctype"))
    finally:
        connection.close()


def test_a_file_of_another_application_is_not_found_by_its_name(
    here: Inside,
    run: Path,
) -> None:
    for name in ("config.json", "results.json", "embedder.safetensors"):
        refused(here.get(f"/runs/{run.name}/{name}"), 404)
    assert here.get(f"/runs/{run.name}/report.html").status_code == 200


def test_the_document_says_that_a_token_is_sent(locked: Inside, here: Inside) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    document = locked.get("/openapi.json", headers=headers).json()
    assert document["components"]["securitySchemes"]["HTTPBearer"] == {"type": "http", "scheme": "bearer"}
    assert document["paths"]["/api/search"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "securitySchemes" not in here.get("/openapi.json").json()["components"]


def test_wrong_tokens_are_counted_too(gallery: Path) -> None:
    state = ServerState(GalleryWatcher(str(gallery), None, "cpu"), limits=Limits(rate=0.001, burst=3000), token=TOKEN)
    with inside(state) as here:
        tried = [here.get("/api/count", headers={"Authorization": "Bearer guess"}).status_code for _ in range(5)]
    assert tried == [401, 401, 401, 429, 429]


OTHER, OWN = "https://evil.example", "http://127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": OTHER}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"{OWN}:8080"}, 403),
        ({"Origin": OWN}, 200),
        ({}, 200),
    ],
    ids=str,
)
def test_a_page_of_another_site_may_not_send_pictures(here: Inside, headers: dict[str, str], status: int) -> None:
    assert here.post("/api/search", content=png(), headers=headers).status_code == status


def test_a_page_of_another_site_may_lead_here(here: Inside) -> None:
    assert here.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    assert here.get("/api/count", headers={"Origin": OTHER}).status_code == 403


@pytest.mark.parametrize(("token", "status"), [(None, 421), (TOKEN, 200)])
def test_whoever_has_the_token_may_come_by_the_name_of_a_proxy(token: str | None, status: int, run: Path) -> None:
    with listening(ServerState(None, [run.parent], FREE, token=token)) as server:
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/api/health"
        assert httpx.get(address, headers={"Host": "proxy.example"}, timeout=WAIT).status_code == status
