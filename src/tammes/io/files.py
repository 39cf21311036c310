"""Atomic writes, file locks, opening without following links, and synchronisation to disk."""

import errno
import glob
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

from tammes.errors import UserError
from tammes.io.limits import TEXT, Limit, check_limit

PARTIAL = ".partial"  # the suffix of an incomplete file

# Shared storage: what it may fail with, and what to do about it. Names that a system does not have are left out.
_AGAIN = "What was reported as saved is safe: run the same command again"
_STORAGE = {
    getattr(errno, name): advice
    for names, advice in (
        ("EIO EREMOTEIO", f"The disk or the network storage failed; the system's log says why (dmesg). {_AGAIN}."),
        ("ESTALE", f"The network storage was lost or remounted. {_AGAIN} when it is back."),
        ("EXDEV", "Its folder is made of several file systems, so no file can be put in place there: choose another."),
        ("ENOLCK EOPNOTSUPP ENOTSUP ENOSYS", "The file system cannot do that: choose a folder on another."),
    )
    for name in names.split()
    if hasattr(errno, name)
}
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_NO_FSYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_LEFT = 24 * 3600  # seconds after which a file that nobody writes to was left behind, where there are no locks
_warned: list[str] = []  # that there are no locks: once a process


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file atomically and durably (it survives a power cut)."""
    with written_whole(file) as sink:
        sink.write(content)


@contextmanager
def written_whole(file: Path) -> Iterator[IO[bytes]]:
    """Write a file in parts, atomically: it gets its name at the end, unless there was an error.

    Partial files of killed processes are removed.
    """
    remove_partial(file.parent, f".{glob.escape(file.name)}.*")
    # Outermost, as what could not be written is tried again when the file is closed, which is an error of its own.
    with errors_name(file), new_partial(file.parent, f".{file.name}.") as temporary:
        try:
            yield temporary
            temporary.flush()
            fsync(temporary.fileno())
            Path(temporary.name).replace(file)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    synchronise(file.parent)


@contextmanager
def errors_name(file: Path) -> Iterator[None]:
    """Add the name of the file to OSErrors in the block, which lack it if the disk is full.

    Raises:
        UserError: the storage failed.
    """
    try:
        yield
    except OSError as error:
        if failed := storage_error(error, file):
            raise failed from error
        if error.errno is not None and error.filename is None:
            error.filename = str(file)
        raise


def storage_error(error: OSError, file: Path | str) -> UserError | None:
    """The UserError for a failed disk or network storage; None for other errors."""
    if error.errno not in _STORAGE:
        return None
    return UserError(f"cannot use {file}: {error.strerror}. {_STORAGE[error.errno]}")


def opened(file: Path, most: Limit | None = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        most: the limit of its size; None for none.

    Raises:
        UserError: it is too large, or a pipe, a device or the like.
        OSError: it cannot be opened.
    """
    status = file.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise UserError(f"it is not a file, but {_kind_of(status.st_mode)}.")
    if most is not None:
        check_limit(most, status.st_size, "it")
    return file.open("rb")


def read_text(file: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        UserError: it is not a file, or too large.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    try:
        with opened(file, TEXT) as source:
            return source.read().decode("utf-8-sig")
    except UserError as error:
        raise UserError(f"cannot read {file}: {error}") from None


def open_inside(file: Path, *, create: bool = True, empty: bool = False) -> IO[bytes]:
    """Open a file to lock it or to append to it, in a folder that may be untrusted, without following links.

    Every file that is written in place is opened here; others are written by `written_whole`, which replaces links.

    Args:
        create: create it if it does not exist.
        empty: truncate it.

    Raises:
        UserError: it is a link, a hard link, a pipe, a device or a folder.
        OSError: it cannot be opened.
    """
    with suppress(FileNotFoundError):
        _check_inside(file, file.lstat())  # a device may act when it is opened
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # not every system has each
        flags |= getattr(os, name, 0)
    opened = open(file, "a+b", opener=lambda path, _: os.open(path, flags, 0o666))  # noqa: SIM115 - an opener
    try:
        _check_inside(file, os.fstat(opened.fileno()))
        if empty:
            opened.truncate(0)
    except BaseException:
        opened.close()
        raise
    return opened


def _check_inside(file: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return
    what = _kind_of(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        what = f"a hard link: one of {status.st_nlink} names of a file"
    raise UserError(f"{file} is {what}, so it is not written to: files outside the folder are left alone. Remove it.")


def _kind_of(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or the like"


def folder_inside(folder: Path) -> Path:
    """Create a sub-folder in a folder that may be untrusted, unless it exists.

    Raises:
        UserError: it is a link.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, so nothing is written there. Remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_no_links(folder: Path) -> None:
    """Raise UserError if anything below a folder is a link, a pipe or a device, before a library writes to it."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                entries = sorted(found, key=lambda each: each.name)
        except (FileNotFoundError, NotADirectoryError):  # what is not there holds no links
            continue
        for each in entries:
            if each.is_dir(follow_symlinks=False):
                pending.append(Path(each.path))
            elif not each.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another process has removed it
                    kind = _kind_of(each.stat(follow_symlinks=False).st_mode)
                    raise UserError(
                        f"{each.path} is {kind}, and {folder} may hold only files and folders: it could lead elsewhere."
                        " Remove it."
                    )


def new_partial(folder: Path, prefix: str) -> IO[bytes]:
    """Create a partial file, locked while it is open, so that it is not removed as abandoned."""
    while True:
        opened = NamedTemporaryFile(dir=folder, prefix=prefix, suffix=PARTIAL, delete=False)  # noqa: SIM115 - the caller closes it
        lock(opened)
        umask = os.umask(0)
        os.umask(umask)
        with suppress(FileNotFoundError):
            Path(opened.name).chmod(0o666 & ~umask)  # as any other new file
            return opened
        opened.close()  # it was removed in the moment before it was locked


def remove_partial(folder: Path, names: str = "*") -> None:
    """Remove abandoned partial files from a folder."""
    for file in folder.glob(f"{names}{PARTIAL}"):
        # What cannot be removed only takes room; of a link nothing is known.
        with suppress(OSError, UserError), open_inside(file, create=False) as opened:
            locked = lock(opened)
            if locked or (locked is None and time.time() - file.stat().st_mtime > _LEFT):
                file.unlink(missing_ok=True)


def lock(file: IO[Any], *, wait: bool = False) -> bool | None:
    """Lock a file for as long as it is open; False if another process holds the lock.

    None without locks, as on some network storage, after warning the user once.
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise storage_error(error, file.name) or error from error
        _warn_no_locks(Path(file.name))
        return None
    return True


def _warn_no_locks(file: Path) -> None:
    from tammes.io.console import say  # which writes its log by this module

    if not _warned:
        _warned.append(str(file))
        say(
            f"warning: {file.parent.absolute()} is on a file system without locks (flock), so nothing keeps two"
            " processes from writing the same there at once. Start one at a time."
        )


def fsync(opened: int) -> None:
    """Flush an open file or folder to disk, if the file system supports it."""
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def synchronise(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system supports it."""
    if os.name == "posix":
        with errors_name(folder):
            opened = os.open(folder, os.O_RDONLY)
            try:
                fsync(opened)
            finally:
                os.close(opened)


def is_vector_file(data: str | Path) -> bool:
    """Whether data is a file of vectors, judged by its name."""
    return Path(data).suffix.lower() in (".npz", ".parquet", ".npy") and not Path(data).is_dir()
