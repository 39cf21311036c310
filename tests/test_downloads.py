"""Downloads against a server on this machine that breaks off, changes its file, or knows nothing of parts."""

import gzip
import hashlib
import io
import json
import multiprocessing
import shutil
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tammes.errors import UserError
from tammes.io import downloads
from tammes.io.downloads import checksum_of, fetch, is_unpacked, unpack

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@dataclass
class Served:
    """A file on the server, and how the server treats it."""

    content: bytes = CONTENT
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True  # False: every answer is the whole file
    heeds_if_range: bool = True
    cut_at: list[int] = field(default_factory=list)  # bytes after which each of the first answers breaks off
    fails: list[int] = field(default_factory=list)  # statuses of the first answers
    length: bool = True  # False: without Content-Length
    kind: str = "application/octet-stream"
    shift: int = 0  # a part begins this much later than was asked for
    requests: list[dict[str, str]] = field(default_factory=list)

    def validator(self) -> str | None:
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(dict(handler.headers.items()))
        if self.fails:
            handler.send_error(self.fails.pop(0))
            return
        asked = handler.headers.get("Range")
        same = not self.heeds_if_range or handler.headers.get("If-Range") == self.validator()
        start = 0
        if asked and self.ranges and same:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + self.shift
            if start >= len(self.content):
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(self.content)}")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        else:
            handler.send_response(200)
        for name, value in (("ETag", self.etag), ("Last-Modified", self.modified), ("Content-Type", self.kind)):
            if value is not None:
                handler.send_header(name, value)
        part = self.content[start:]
        if self.length:
            handler.send_header("Content-Length", str(len(part)))
        handler.end_headers()
        handler.wfile.write(part[: self.cut_at.pop(0)] if self.cut_at else part)


class Server(NamedTuple):
    files: dict[str, Served]
    url: str

    def serve(self, **how: Any) -> tuple[str, Served]:
        self.files["/file.bin"] = Served(**how)
        return f"{self.url}/file.bin", self.files["/file.bin"]


@pytest.fixture
def server() -> Iterator[Server]:
    files: dict[str, Served] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path in files:
                files[self.path].answer(self)
            else:
                self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Server(files, f"http://127.0.0.1:{running.server_address[1]}")
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSE", 0.001)


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_downloaded_into_a_folder_that_is_made(server: Server, tmp_path: Path) -> None:
    url, served = server.serve()
    file = tmp_path / "new" / "deep" / "it.bin"
    said: list[tuple[int, int | None]] = []
    assert fetch(url, file, checksum=sha256(CONTENT), on_progress=lambda *numbers: said.append(numbers)) == file
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["it.bin"]
    assert said[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in said] == sorted({done for done, _ in said})
    assert served.requests[0]["User-Agent"].startswith("tammes/")


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256"])
def test_every_kind_of_checksum_is_checked_and_may_be_in_capitals(server: Server, tmp_path: Path, kind: str) -> None:
    url, _ = server.serve()
    right = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    fetch(url, tmp_path / "a", checksum=right.upper())
    assert checksum_of(tmp_path / "a", right) == right
    with pytest.raises(UserError, match="is not what was expected"):
        fetch(url, tmp_path / "b", checksum=f"{kind}:00")


def test_a_wrong_checksum_says_both_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve()
    wrong = "sha256:" + 64 * "0"
    with pytest.raises(UserError) as refused:
        fetch(url, tmp_path / "it.bin", checksum=wrong)
    text = str(refused.value)
    assert url in text
    assert wrong in text
    assert sha256(CONTENT) in text
    assert f"put the right file at {tmp_path / 'it.bin'} by hand" in text
    assert names(tmp_path) == []


def test_an_unknown_kind_of_checksum_is_refused_before_the_download(server: Server, tmp_path: Path) -> None:
    url, served = server.serve()
    with pytest.raises(UserError, match=r"unknown kind of checksum: 'crc32:00'. Known: md5:…, sha1:…, sha256:…"):
        fetch(url, tmp_path / "it.bin", checksum="crc32:00")
    assert served.requests == []


@pytest.mark.parametrize("checksum", [None, sha256(CONTENT)])
def test_what_is_there_is_not_downloaded_again(server: Server, tmp_path: Path, checksum: str | None) -> None:
    url, served = server.serve()
    (tmp_path / "it.bin").write_bytes(CONTENT)
    fetch(url, tmp_path / "it.bin", checksum=checksum)
    assert served.requests == []


def test_what_is_there_with_another_checksum_is_replaced(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve()
    (tmp_path / "it.bin").write_bytes(b"other")
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("etag", "modified"),
    [('"one"', None), (None, "Wed, 21 Oct 2015 07:28:00 GMT"), ('W/"weak"', "Wed, 21 Oct 2015 07:28:00 GMT")],
)
def test_a_connection_that_breaks_is_gone_on_with(
    server: Server, tmp_path: Path, etag: str | None, modified: str | None
) -> None:
    url, served = server.serve(etag=etag, modified=modified, cut_at=[1000, 5000])
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert (tmp_path / "it.bin").read_bytes() == CONTENT
    asked = [request.get("Range") for request in served.requests]
    assert asked == [None, "bytes=1000-", "bytes=6000-"]
    assert {request.get("If-Range") for request in served.requests[1:]} == {served.validator()}
    assert names(tmp_path) == ["it.bin"]


def test_a_download_of_an_earlier_call_is_gone_on_with(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server.serve(cut_at=[300_000, 0])
    monkeypatch.setattr(downloads, "ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"broke off after 300,000 of 1,048,576 bytes. What has arrived is kept"):
        fetch(url, tmp_path / "it.bin", checksum=None)
    assert names(tmp_path) == ["it.bin.partial", "it.bin.partial.json"]
    said: list[int] = []
    served.cut_at.clear()
    fetch(url, tmp_path / "it.bin", checksum=None, on_progress=lambda done, _: said.append(done))
    assert served.requests[-1]["Range"] == "bytes=300000-"
    assert said[0] > 300_000
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_a_part_of_another_address_is_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    url, served = server.serve()
    (tmp_path / "it.bin.partial").write_bytes(b"x" * 500)
    (tmp_path / "it.bin.partial.json").write_text(json.dumps({"url": "http://other/", "validator": '"one"'}))
    fetch(url, tmp_path / "it.bin", checksum=None)
    assert "Range" not in served.requests[0]
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("note", ["", "[]", "{}", "null"])
def test_a_part_whose_note_is_broken_is_not_gone_on_with(server: Server, tmp_path: Path, note: str) -> None:
    url, served = server.serve()
    (tmp_path / "it.bin.partial").write_bytes(b"x" * 500)
    (tmp_path / "it.bin.partial.json").write_text(note)
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert "Range" not in served.requests[0]


def test_a_server_without_parts_is_asked_for_all_again(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(ranges=False, cut_at=[1000])
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert len(served.requests) == 2
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_a_server_that_names_no_version_is_asked_for_all_again(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(etag=None, cut_at=[1000])
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert ["Range" in request for request in served.requests] == [False, False]


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_parts_of_two_versions_are_never_put_together(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heeds_if_range: bool
) -> None:
    url, served = server.serve(cut_at=[1000], heeds_if_range=heeds_if_range)
    monkeypatch.setattr(downloads, "ATTEMPTS", 1)
    with pytest.raises(UserError):
        fetch(url, tmp_path / "it.bin", checksum=None)
    monkeypatch.setattr(downloads, "ATTEMPTS", 3)
    served.content, served.etag = CONTENT[::-1], '"two"'
    fetch(url, tmp_path / "it.bin", checksum=None)
    assert (tmp_path / "it.bin").read_bytes() == CONTENT[::-1]


def test_another_part_than_was_asked_for_is_not_used(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(cut_at=[1000], shift=7)
    fetch(url, tmp_path / "it.bin", checksum=None)
    assert ["Range" in request for request in served.requests] == [False, True, False]
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_a_whole_part_gets_its_name_without_a_download(server: Server, tmp_path: Path) -> None:
    url, served = server.serve()
    (tmp_path / "it.bin.partial").write_bytes(CONTENT)
    (tmp_path / "it.bin.partial.json").write_text(json.dumps({"url": url, "validator": '"one"'}))
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert [request["Range"] for request in served.requests] == [f"bytes={len(CONTENT)}-"]
    assert names(tmp_path) == ["it.bin"]


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve()
    (tmp_path / "it.bin.partial").write_bytes(CONTENT + b"more")
    (tmp_path / "it.bin.partial.json").write_text(json.dumps({"url": url, "validator": '"one"'}))
    fetch(url, tmp_path / "it.bin", checksum=None)
    assert (tmp_path / "it.bin").read_bytes() == CONTENT


def test_a_file_whose_length_is_not_said_is_downloaded(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve(length=False)
    said: list[tuple[int, int | None]] = []
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT), on_progress=lambda *numbers: said.append(numbers))
    assert said[-1] == (len(CONTENT), None)


def test_an_empty_file_is_a_file(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve(content=b"")
    assert fetch(url, tmp_path / "it.bin", checksum=sha256(b"")).read_bytes() == b""


def test_a_server_that_is_busy_is_asked_again(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(fails=[503, 429])
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert len(served.requests) == 3


def test_a_server_that_stays_busy_is_given_up(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(fails=[503] * 20)
    with pytest.raises(UserError, match=f"cannot download {url}: the server says 503 Service Unavailable. Try again"):
        fetch(url, tmp_path / "it.bin", checksum=None)
    assert len(served.requests) == downloads.ATTEMPTS


def test_as_long_as_bytes_arrive_it_is_not_given_up(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(cut_at=[10_000] * (3 * downloads.ATTEMPTS))
    fetch(url, tmp_path / "it.bin", checksum=sha256(CONTENT))
    assert len(served.requests) == 3 * downloads.ATTEMPTS + 1


def test_without_parts_bytes_that_arrive_again_and_again_are_given_up(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(ranges=False, cut_at=[10_000] * 100)
    with pytest.raises(UserError, match="broke off after 10,000 of 1,048,576 bytes"):
        fetch(url, tmp_path / "it.bin", checksum=None)
    assert len(served.requests) <= downloads.ATTEMPTS + 1


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (403, "403 Forbidden")])
def test_a_refusal_is_final_and_says_what_to_do(server: Server, tmp_path: Path, status: int, words: str) -> None:
    url, served = server.serve(fails=[status])
    with pytest.raises(UserError) as refused:
        fetch(url, tmp_path / "it.bin", checksum=None)
    assert str(refused.value) == (
        f"cannot download {url}: the server says {words}. Try again, or put the file at {tmp_path / 'it.bin'} by hand."
    )
    assert len(served.requests) == 1
    assert names(tmp_path) == []


def test_a_web_page_is_not_taken_for_the_file(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve(content=b"<html>quota exceeded", kind="text/html; charset=utf-8")
    with pytest.raises(UserError, match="it is a web page, not the file"):
        fetch(url, tmp_path / "it.bin", checksum=None)
    assert names(tmp_path) == []


def test_no_server_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSE", float("nan"))  # nobody can wait so long for a second attempt
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        with pytest.raises(
            UserError, match=f"cannot download {url}: Connection refused. Try again, or put the file at"
        ):
            fetch(url, tmp_path / "it.bin", checksum=None)


def test_no_network_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(downloads, "PAUSE", float("nan"))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match=r"its server is not known here; is there a network\? \(Name or service"):
        fetch("http://data.example/file.bin", tmp_path / "it.bin", checksum=None)


def test_a_server_that_says_nothing_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
    monkeypatch.setattr(downloads, "ATTEMPTS", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin"
        with pytest.raises(UserError, match="no answer within"):
            fetch(url, tmp_path / "it.bin", checksum=None)


@pytest.mark.parametrize("url", ["ftp://a/b.zip", "file:///etc/passwd", "b.zip"])
def test_what_is_no_web_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="an address begins with http:// or https://"):
        fetch(url, tmp_path / "it.bin", checksum=None)


def test_an_address_with_a_blank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot download http://127.0.0.1/a b: .*put the file at"):
        fetch("http://127.0.0.1/a b", tmp_path / "it.bin", checksum=None)


def test_no_room_is_said_before_the_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = server.serve()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
    with pytest.raises(UserError, match=r"no room in .*: 1.05 MB are needed, 1 kB available. Free some"):
        fetch(url, tmp_path / "it.bin", checksum=None)


def test_a_folder_that_cannot_be_made_is_said(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*Choose another folder"):
        fetch(url, tmp_path / "file" / "it.bin", checksum=None)


def test_of_several_at_once_one_downloads(server: Server, tmp_path: Path) -> None:
    url, served = server.serve(cut_at=[1000])
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(url, tmp_path / "it.bin", checksum=None).read_bytes()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 6
    assert len(served.requests) == 2
    assert names(tmp_path) == ["it.bin"]


def test_a_process_that_was_killed_leaves_no_lock(server: Server, tmp_path: Path) -> None:
    url, _ = server.serve()
    killed = multiprocessing.get_context("spawn").Process(target=_hold_lock, args=(tmp_path / "it.bin",))
    killed.start()
    killed.join()
    assert names(tmp_path) == [".it.bin.lock"]
    fetch(url, tmp_path / "it.bin", checksum=None)
    assert names(tmp_path) == ["it.bin"]


def _hold_lock(file: Path) -> None:
    import os

    with downloads._alone(file):
        os._exit(1)


# Archives


FILES = {
    "set/images/a.jpg": b"A" * 5000,
    "set/images/b b.jpg": b"B" * 70_000,
    "set/list.txt": b"a\nb\n",
    "top.txt": b"",
}


def tarred(file: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def zipped(file: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file


def contents(folder: Path) -> dict[str, bytes]:
    """Every visible file below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    found = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    return {name: content for name, content in found.items() if not name.startswith(".")}


@pytest.mark.parametrize("kind", ["tgz", "tar", "zip"])
def test_an_archive_is_unpacked_whatever_it_is_called(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "archive"
    if kind == "zip":
        zipped(archive, FILES)
    else:
        tarred(archive, FILES, "w:gz" if kind == "tgz" else "w")
    said: list[tuple[int, int | None]] = []
    assert not is_unpacked("archive", tmp_path / "out")
    unpack(archive, tmp_path / "out", on_progress=lambda *numbers: said.append(numbers))
    assert contents(tmp_path / "out") == FILES
    assert names(tmp_path / "out") == [".archive.unpacked", "set", "top.txt"]
    assert is_unpacked("archive", tmp_path / "out")
    assert len({total for _, total in said}) == 1
    assert [done for done, _ in said] == sorted(done for done, _ in said)


def test_what_is_missing_or_cut_short_is_noticed_and_unpacked_again(tmp_path: Path) -> None:
    archive, out = tarred(tmp_path / "a.tgz", FILES), tmp_path / "out"
    for spoil in (
        lambda: (out / "top.txt").unlink(),
        lambda: (out / "set/images/a.jpg").write_bytes(b"A" * 4999),
        lambda: shutil.rmtree(out / "set"),
        lambda: (out / ".a.tgz.unpacked").write_text("{"),
        lambda: (out / ".a.tgz.unpacked").write_text('{"files": []}'),
    ):
        unpack(archive, out)
        assert is_unpacked("a.tgz", out)
        spoil()
        assert not is_unpacked("a.tgz", out)
    unpack(archive, out)
    assert contents(out) == FILES


def test_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_bytes(b"mine")
    (tmp_path / "set" / "list.txt").write_bytes(b"old")
    unpack(tarred(tmp_path / "a.tgz", FILES), tmp_path)
    assert (tmp_path / "set" / "mine.txt").read_bytes() == b"mine"
    assert (tmp_path / "set" / "list.txt").read_bytes() == FILES["set/list.txt"]


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_unpacking_that_was_interrupted_shows_nothing_and_is_done_again(tmp_path: Path, kind: str) -> None:
    archive = tarred(tmp_path / "a", FILES) if kind == "tgz" else zipped(tmp_path / "a", FILES)
    out = tmp_path / "out"

    def stop(_done: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(archive, out, on_progress=stop)
    assert contents(out) == {}
    assert not is_unpacked("a", out)
    (out / ".a.unpacking").mkdir()  # as a process that was killed leaves it
    (out / ".a.unpacking" / "old").write_text("")
    unpack(archive, out)
    assert contents(out) == FILES


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/out.txt", "..\\out.txt", "C:/out.txt"])
@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_archive_that_reaches_outside_is_refused_as_a_whole(tmp_path: Path, kind: str, name: str) -> None:
    make = tarred if kind == "tgz" else zipped
    archive = make(tmp_path / "a", {"fine.txt": b"fine", name: b"evil"})
    with pytest.raises(UserError, match="would write outside the folder: .*It was not unpacked"):
        unpack(archive, tmp_path / "in" / "out")
    assert contents(tmp_path / "in") == {}
    assert names(tmp_path) == ["a", "in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_file_with_links_or_devices_is_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(UserError, match="holds something else than files and folders: 'link'"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_a_zip_file_with_links_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(UserError, match="holds something else than files and folders: 'link'"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_a_zip_file_with_a_password_says_what_to_do(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "a.zip", {"x": b"x"}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory of the archive
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=f"has a password. Unpack it by hand into {tmp_path / 'out'}"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("kind", ["tgz", "tar", "zip", "page", "empty", "garbled"])
def test_a_broken_archive_is_said_to_be_one(tmp_path: Path, kind: str) -> None:
    big = {"big": bytes(hashlib.shake_256(b"seed").digest(200_000))}
    archive = tmp_path / "a"
    if kind in ("tgz", "tar"):
        tarred(archive, big, "w:gz" if kind == "tgz" else "w")
        archive.write_bytes(archive.read_bytes()[:100_000])
    elif kind == "zip":
        content = bytearray(zipped(archive, big).read_bytes())
        content[1000] ^= 255
        archive.write_bytes(content)
    elif kind == "garbled":
        content = bytearray(gzip.compress(tarred(archive, {"big": b"text " * 50_000}, "w").read_bytes()))
        content[len(content) // 2] ^= 255
        archive.write_bytes(content)
    else:
        archive.write_bytes(b"<html>" if kind == "page" else b"")
    with pytest.raises(UserError, match=f"cannot unpack {archive}: it is not a complete archive .*get it again"):
        unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == {}
    assert not is_unpacked("a", tmp_path / "out")


def test_what_a_mac_adds_is_left_out(tmp_path: Path) -> None:
    unpack(zipped(tmp_path / "a.zip", {"x.jpg": b"x", "__MACOSX/._x.jpg": b"junk"}), tmp_path / "out")
    assert contents(tmp_path / "out") == {"x.jpg": b"x"}
    assert is_unpacked("a.zip", tmp_path / "out")


def test_no_room_to_unpack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(tmp_path / "a.zip", {"x": b"x" * 5000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
    with pytest.raises(UserError, match=f"no room in {tmp_path / 'out'}: 5 kB are needed, 1 kB available"):
        unpack(archive, tmp_path / "out")
