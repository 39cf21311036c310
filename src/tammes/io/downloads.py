"""Downloads that can be resumed, checksums and archives. A file that exists is complete."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from http.client import HTTPException, HTTPResponse
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile, is_zipfile

from tammes import __version__
from tammes.errors import UserError
from tammes.io.cache import format_bytes
from tammes.io.files import fsync, lock, open_inside, write_atomically

ATTEMPTS = 5  # failed connections in a row before giving up
PAUSE = 1.0  # seconds before the second attempt, doubled before each further one
TIMEOUT = 30.0  # seconds without a byte
_DEEPEST = 100  # folders in one another, in an archive
_CHUNK = 1 << 18
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that another attempt may not get
_CHECKSUMS = ("md5", "sha1", "sha256")

Progress = Callable[[int, int | None], None]


def fetch(url: str, file: Path, *, checksum: str | None, on_progress: Progress | None = None) -> Path:
    """Download a file, unless it exists.

    Data is written to `NAME.partial`. An interrupted download, also of an earlier call, is resumed if the server
    confirms that the file has not changed, and restarted otherwise. If several processes need the same file, one
    downloads it and the others wait.

    Args:
        file: the target; its folder is created.
        checksum: "md5:…", "sha1:…" or "sha256:…" of the file; an existing file with another one is replaced. None to
            skip the check.
        on_progress: called with (bytes so far, bytes in all or None).

    Raises:
        UserError: no network, an invalid URL, a full disk, a folder that is not writable, a wrong checksum.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"cannot download {url}: an address begins with http:// or https://.")
    if checksum is not None:
        _kind(checksum)  # before gigabytes are fetched for nothing
    partial = file.with_name(f"{file.name}.partial")
    try:
        if _is_there(file, checksum):
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file):
            if _is_there(file, checksum):  # another process was faster
                return file
            _download(url, file, partial, on_progress)
            got = None if checksum is None else checksum_of(partial, checksum)
            if got is not None and checksum is not None and got != checksum.lower():
                _forget(partial)
                raise UserError(
                    f"what {url} has is not what was expected: its checksum is {got}, not {checksum.lower()}. "
                    f"It was removed. Try again, or put the right file at {file} by hand."
                )
            partial.replace(file)
            _forget(partial)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(file.parent, None) from error
        raise UserError(f"cannot write {file}: {error.strerror or error}. Choose another folder.") from error
    return file


def checksum_of(file: Path, like: str) -> str:
    """The checksum of a file, with the algorithm of another checksum."""
    kind = _kind(like)
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def unpack(archive: Path, folder: Path, *, on_progress: Progress | None = None) -> None:
    """Unpack a tar or zip file into a folder, where files appear only after everything has been unpacked.

    A list of the files is stored for `is_unpacked`. Existing files are replaced.
        UserError: the archive is incomplete, has a password, or would write outside the folder; the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = folder / f".{archive.name}.unpacking"
        shutil.rmtree(staging, ignore_errors=True)  # of one that was interrupted
        staging.mkdir()
        try:
            unzip = _unzip if is_zipfile(archive) else _untar
            sizes = unzip(archive, staging, on_progress or (lambda *_: None))
            _move(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        note = {"files": sizes}
        write_atomically(_list_of(archive.name, folder), json.dumps(note).encode())
    except (BadZipFile, BadGzipFile, LZMAError, tarfile.TarError, zlib.error, EOFError) as error:
        why = str(error).partition("\n")[0].rstrip(":")
        raise UserError(
            f"cannot unpack {archive}: it is not a complete archive ({why}). Remove it and get it again."
        ) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(folder, None) from error
        raise UserError(f"cannot unpack {archive} into {folder}: {error.strerror or error}.") from error


def is_unpacked(name: str, folder: Path) -> bool:
    """Whether all files that `unpack` extracted from the archive still exist with their sizes."""
    try:
        sizes = json.loads(_list_of(name, folder).read_bytes())["files"]
        return all((folder / file).stat().st_size == size for file, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _list_of(name: str, folder: Path) -> Path:
    return folder / f".{name}.unpacked"


def _untar(archive: Path, staging: Path, on_progress: Progress) -> dict[str, int]:
    sizes = {}
    total = archive.stat().st_size
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as source:
        for member in source:
            plain = member.isreg() or member.isdir()
            if not _is_wanted(archive, member.name, plain):
                continue
            source.extract(member, staging, filter="data")
            if member.isreg():
                sizes[PurePosixPath(member.name).as_posix()] = member.size
            on_progress(raw.tell(), total)
    return sizes


def _unzip(archive: Path, staging: Path, on_progress: Progress) -> dict[str, int]:
    sizes, done = {}, 0
    with ZipFile(archive) as source:
        members = source.infolist()
        total = sum(member.compress_size for member in members)
        needed = sum(member.file_size for member in members)
        if shutil.disk_usage(staging).free < needed:
            raise _no_room(staging.parent, needed)
        for member in members:
            plain = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            if not _is_wanted(archive, member.filename, plain):
                continue
            if member.flag_bits & 1:
                raise UserError(
                    f"{archive} has a password. Unpack it by hand into {staging.parent}, then type the command again."
                )
            try:
                source.extract(member, staging)
            except NotImplementedError as error:  # as Deflate64, which Windows writes from 2 GB on
                raise UserError(
                    f"{archive} cannot be unpacked here: {error}. Unpack it by hand into {staging.parent}, then type"
                    " the command again."
                ) from None
            if not member.is_dir():
                sizes[PurePosixPath(member.filename).as_posix()] = member.file_size
            done += member.compress_size
            on_progress(done, total)
    return sizes


def _is_wanted(archive: Path, name: str, plain: bool) -> bool:
    """Whether to unpack an entry. Raises UserError for an archive that would write outside the folder."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or parts[0][1:2] == ":":
        raise UserError(f"{archive} would write outside the folder: {name!r}. It was not unpacked.")
    if len(parts) > _DEEPEST:
        raise UserError(f"{archive} holds {len(parts)} folders in one another. It was not unpacked.")
    if not plain:
        raise UserError(f"{archive} holds something else than files and folders: {name!r}. It was not unpacked.")
    return parts[0] != "__MACOSX"


def _move(source: Path, target: Path) -> None:
    """Move the content of a folder into another, merging existing sub-folders."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _move(entry, place)
        else:
            entry.replace(place)


def _kind(checksum: str) -> str:
    kind = checksum.partition(":")[0].lower()
    if kind not in _CHECKSUMS:
        known = ", ".join(f"{each}:…" for each in _CHECKSUMS)
        raise UserError(f"unknown kind of checksum: {checksum!r}. Known: {known}.")
    return kind


class _BrokenError(Exception):
    """A failed connection; `final` if another attempt is useless."""

    def __init__(self, what: str, *, final: bool = False) -> None:
        super().__init__(what)
        self.final = final


def _is_there(file: Path, checksum: str | None) -> bool:
    return file.is_file() and (checksum is None or checksum_of(file, checksum) == checksum.lower())


def _download(url: str, file: Path, partial: Path, on_progress: Progress | None) -> None:
    """Complete the partial file with as many connections as necessary."""
    most = first = _size(partial)
    failures = 0
    while True:
        try:
            return _receive(url, partial, on_progress)
        except _BrokenError as broken:
            if _size(partial) > most:
                most, failures = _size(partial), 0
            failures += 1
            # Without a network from the start, waiting for one is of no use; later, it may come back.
            unreachable = most == first and isinstance(broken.__cause__, ConnectionRefusedError | socket.gaierror)
            if broken.final or unreachable or failures == ATTEMPTS:
                kept = " What has arrived is kept: the same command resumes." if _size(partial) else ""
                raise UserError(
                    f"cannot download {url}: {broken}.{kept} Try again, or put the file at {file} by hand."
                ) from broken
            time.sleep(PAUSE * 2 ** (failures - 1))


def _receive(url: str, partial: Path, on_progress: Progress | None) -> None:
    """One connection: the rest of the partial file, or all of it if the server cannot resume."""
    start, validator = _to_go_on_from(url, partial)
    headers = {"User-Agent": f"tammes/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    try:
        answer = _opened(Request(url, headers=headers))
    except HTTPError as error:
        with error:
            if error.code == 416 and start:
                if error.headers.get("Content-Range", "").strip() == f"bytes */{start}":
                    return  # it was whole; only its name was not yet its own
                _forget(partial)
                raise _BrokenError("the file has changed and is now shorter") from error
            raise _BrokenError(
                f"the server says {error.code} {error.reason}", final=error.code not in _PASSING
            ) from error
    with answer:
        if answer.status == 206 and start:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
            if span is None or int(span[1]) != start or _validator(answer) not in ("", validator):
                _forget(partial)
                raise _BrokenError("the server sent another part of the file than was asked for")
            total = None if span[2] == "*" else int(span[2])
        elif answer.status == 200:
            if "text/html" in answer.headers.get("Content-Type", ""):
                raise _BrokenError("it is a web page, not the file", final=True)
            start = 0
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            open_inside(partial, empty=True).close()  # before the note about what it is a part of
            note = {"url": url, "validator": _validator(answer)}
            write_atomically(_note(partial), json.dumps(note).encode())
        else:
            raise _BrokenError(f"the server says {answer.status} {answer.reason}", final=True)
        if total is not None and shutil.disk_usage(partial.parent).free < total - start:
            raise _no_room(partial.parent, total - start)
        done = start
        with open_inside(partial) as sink:
            for block in _blocks(answer):
                sink.write(block)
                done += len(block)
                if on_progress is not None:
                    on_progress(done, total)
            sink.flush()
            fsync(sink.fileno())
        if total is not None and done != total:
            raise _BrokenError(f"the connection broke off after {done:,} of {total:,} bytes")


def _opened(request: Request) -> HTTPResponse:
    """The answer to a request; failures other than HTTPError become _BrokenError."""
    try:
        answer = urlopen(request, timeout=TIMEOUT)
    except HTTPError:
        raise
    except URLError as error:
        cause = error.reason if isinstance(error.reason, Exception) else error
        raise _BrokenError(_why(cause), final=isinstance(cause, ssl.SSLCertVerificationError)) from cause
    except OSError as error:
        raise _BrokenError(_why(error)) from error
    except HTTPException as error:
        raise _BrokenError(_why(error), final=True) from error
    assert isinstance(answer, HTTPResponse), "only http and https addresses get here"
    return answer


def _blocks(answer: HTTPResponse) -> Iterator[bytes]:
    try:
        while block := answer.read(_CHUNK):
            yield block
    except (OSError, HTTPException) as error:
        raise _BrokenError(f"the connection broke off ({_why(error)})") from error


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} seconds"
    if isinstance(error, socket.gaierror):
        return f"its server is not known here; is there a network? ({error.strerror})"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.rstrip(".")


def _to_go_on_from(url: str, partial: Path) -> tuple[int, str]:
    """The size of the partial file, and the server's validator of that version."""
    try:
        note = json.loads(_note(partial).read_bytes())
        known, validator = note["url"] == url, str(note["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""
    return (_size(partial), validator) if known and validator else (0, "")


def _validator(answer: HTTPResponse) -> str:
    """A strong ETag or the modification time; weak ETags must not be used to combine parts."""
    tag = answer.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")


def _note(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _size(partial: Path) -> int:
    return partial.stat().st_size if partial.exists() else 0


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _note(partial).unlink(missing_ok=True)


def _no_room(folder: Path, needed: int | None) -> UserError:
    free = format_bytes(shutil.disk_usage(folder).free)
    wanted = "more is" if needed is None else f"{format_bytes(needed)} are"
    return UserError(f"no room in {folder}: {wanted} needed, {free} available. Free some, or choose another folder.")


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Lock, so that one process downloads at a time."""
    place = file.with_name(f".{file.name}.lock")
    while sys.platform != "win32":
        with open_inside(place) as held:
            lock(held, wait=True)
            if not _is_still(held.fileno(), place):
                continue  # the one before removed it
            try:
                yield
            finally:
                place.unlink(missing_ok=True)
            return
    yield


def _is_still(opened: int, file: Path) -> bool:
    """Whether the path still refers to the file that was opened."""
    try:
        return os.path.samestat(os.fstat(opened), file.stat())  # one look: between two it could be removed
    except FileNotFoundError:
        return False
