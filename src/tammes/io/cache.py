"""The disk cache: decoded images, activations, the glyphs data set, maps of galleries."""

import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tammes.errors import UserError, unknown_name
from tammes.io.environment import cache_folder
from tammes.io.files import PARTIAL

KINDS = ("images", "activations", "glyphs", "maps")  # the folders of the cache
_STALE_SECONDS = 3600  # a partial file that has not grown for an hour is abandoned


class Cached(NamedTuple):
    """One file of the cache."""

    kind: str
    name: str
    file: Path
    num_bytes: int
    date: datetime


def cached(cache: Path | None = None) -> list[Cached]:
    """The files of the cache, by kind and name."""
    entries = []
    for kind, folder in _folders(cache):
        for file in sorted(folder.glob("*")):
            if file.suffix != PARTIAL and not file.name.startswith("."):
                status = file.lstat()
                date = datetime.fromtimestamp(status.st_mtime)
                entries.append(Cached(kind, file.stem, file, status.st_size, date))
    return entries


def clear(names: Sequence[str] | None = None, *, cache: Path | None = None) -> int:
    """Remove all files of the cache, or those with these names. Returns the number of freed bytes.

    Partial files of stopped processes are removed too, unless names are given.
    """
    entries = {entry.name: entry.file for entry in cached(cache)}
    for name in names or ():
        if name not in entries:
            raise unknown_name("cache entry", name, entries)
    files = [entries[name] for name in entries if names is None or name in names]
    if names is None:
        partial = [file for _, folder in _folders(cache) for file in folder.glob(f"*{PARTIAL}")]
        files += [file for file in partial if time.time() - file.lstat().st_mtime > _STALE_SECONDS]
    freed = sum(file.lstat().st_size for file in files)
    for file in files:
        file.unlink(missing_ok=True)
    return freed


def _folders(cache: Path | None) -> list[tuple[str, Path]]:
    """The folders of the cache by kind, without links, whose targets are not ours."""
    folders = [(kind, (cache or cache_folder()) / kind) for kind in KINDS]
    return [(kind, folder) for kind, folder in folders if not folder.is_symlink()]


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise UserError early if the disk has too little space."""
    if shutil.disk_usage(folder).free < needed:
        raise no_room(folder, needed, what)


@contextmanager
def writing(folder: Path, what: str) -> Iterator[None]:
    """Turn a failure to write to the cache into a UserError with advice."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_room(folder, None, what) from error
        raise UserError(
            f"cannot write {what} to {folder}: {error.strerror}. Set TAMMES_CACHE to a folder that can be written."
        ) from error


def no_room(folder: Path, needed: int | None, what: str) -> UserError:
    """The error for a full disk."""
    free = shutil.disk_usage(folder).free
    wanted = "more" if needed is None else f"about {format_bytes(needed)}"
    return UserError(
        f"no room for {what} in {folder}: {wanted} needed, {format_bytes(free)} available. "
        "Free some, or set TAMMES_CACHE to a folder on a larger disk."
    )


def format_bytes(num_bytes: int | float) -> str:
    """A size for people.

    >>> format_bytes(1_930_000_000)
    '1.93 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
