"""Where the program runs: cache folder, device, seeds, files that are whole, and a record of the machine."""

import glob
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import current_thread, main_thread
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tammes.errors import UserError

if TYPE_CHECKING:
    import torch

PARTIAL = ".partial"  # the suffix of a file that is not whole yet

_RECORDED = (
    "tammes",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "matplotlib",
)


def cache_folder() -> Path:
    """Where decoded images and drawn data sets are kept: TAMMES_CACHE, or `tammes` in the user's cache folder."""
    given = os.environ.get("TAMMES_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tammes"


def data_folder() -> Path | None:
    """Where the user keeps data sets, if the environment variable TAMMES_DATA says so."""
    given = os.environ.get("TAMMES_DATA")
    return Path(given) if given else None


def colours() -> bool:
    """Whether a terminal may be written to in colours: not where the variable NO_COLOR is set (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def bare_environment() -> dict[str, str]:
    """What a process of ours needs of the environment to start, and nothing that was not meant for it; one thread."""
    needed = ("PATH", "PYTHONPATH", "SYSTEMROOT", "TEMP", "TMPDIR", "LD_LIBRARY_PATH")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {name: os.environ[name] for name in needed if name in os.environ} | one_thread


class Launched(NamedTuple):
    """Which of the processes that were started together this one is, on its host too, and how many there are."""

    rank: int
    local_rank: int
    number: int


def launched() -> Launched:
    """What a launcher (torchrun, accelerate launch) says of this process; without one it is the only one."""
    given = (os.environ.get("RANK"), os.environ.get("LOCAL_RANK"), os.environ.get("WORLD_SIZE"))
    rank, local_rank, number = (int(each) if each else None for each in given)
    if rank is None or number is None:
        return Launched(0, 0, 1)
    return Launched(rank, rank if local_rank is None else local_rank, number)


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file such that it is there whole or not at all, and still there after a power cut."""
    with written_whole(file) as sink:
        sink.write(content)


@contextmanager
def written_whole(file: Path) -> Iterator[IO[bytes]]:
    """The same for what is written a part at a time: it takes its name at the end, unless there was an error.

    What processes that were killed left of the same file is removed.
    """
    remove_partial(file.parent, f".{glob.escape(file.name)}.*")
    # Outermost, as what could not be written is tried again when the file is closed, which is an error of its own.
    with errors_name(file), new_partial(file.parent, f".{file.name}.") as temporary:
        try:
            yield temporary
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(file)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    synchronise(file.parent)


@contextmanager
def errors_name(file: Path) -> Iterator[None]:
    """Have errors in here say which file they are about: the system does not where a disk was full for it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(file)
        raise


def opened(file: Path) -> BufferedReader:
    """The file, to read from.

    Raises:
        UserError: it is a pipe, which might be waited for for ever, a device or the like.
        OSError: it cannot be opened.
    """
    kind = file.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise UserError(f"it is not a file, but {_kind_of(kind)}.")
    return file.open("rb")


def open_inside(file: Path, *, create: bool = True, empty: bool = False) -> IO[bytes]:
    """Open a file to lock it or to add to it, in a folder that may be untrusted: never one that is elsewhere.

    Every file that is written in place is opened here; all others are by `written_whole`, which replaces a link.

    Args:
        create: make it if it is not there.
        empty: drop what is in it.

    Raises:
        UserError: it is a link, another name of a file (a hard link), a pipe, a device or a folder.
        OSError: it cannot be opened.
    """
    with suppress(FileNotFoundError):
        _check_inside(file, file.lstat())  # a device may act when it is opened
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # not every system has each
        flags |= getattr(os, name, 0)
    opened = os.fdopen(os.open(file, flags, 0o666), "a+b")
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
    raise UserError(f"{file} is {what}, so it is not written to: what is outside its folder stays as it is. Remove it.")


def _kind_of(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or the like"


def folder_inside(folder: Path) -> Path:
    """Make a folder in one that may be untrusted, unless it is there.

    Raises:
        UserError: it is a link.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, so nothing is written there. Remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_no_links(folder: Path) -> None:
    """Refuse a folder that a library will write to, if anything below it is a link, a pipe or a device."""
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
    """A new file that is not whole yet. It is locked while it is open, so that nobody takes it for one left behind."""
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
    """Remove the files of a folder that are not whole and will never be: the process that wrote them has ended."""
    for file in folder.glob(f"{names}{PARTIAL}"):
        # What cannot be removed only takes room; of a link nothing is known.
        with suppress(OSError, UserError), open_inside(file, create=False) as opened:
            if lock(opened):
                file.unlink(missing_ok=True)


def lock(file: IO[Any], *, wait: bool = False) -> bool:
    """Lock a file for as long as it is open, where the system knows how to; False if another process has it."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def synchronise(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk, where the system knows how to."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def device(choice: str = "auto") -> "torch.device":
    """The device to compute on: `cpu`, or with `auto` a GPU if there is one."""
    import torch

    if choice == "auto" and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        return found
    return torch.device("cpu")


def processor_flags() -> set[str]:
    """What the processor can do, by the names that Linux has for it; nothing is known on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return set(next(line for line in lines if line.lower().startswith(("flags", "features"))).split())
    except (OSError, StopIteration):
        return set()


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16; others emulate them, slower than float32."""
    return not processor_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def images_at_once(numbers: int, device: "torch.device") -> int:
    """How many images of so many numbers each to send through a network together, where that is free to choose.

    A GPU likes many. A CPU is up to twice as fast with few, whose activations stay in its cache and in memory that
    need not be fetched anew from the system for every layer.
    """
    most = 1 << 21 if device.type == "cpu" else 1 << 25  # numbers
    return max(1, min(1024, most // max(1, numbers)))


def memory() -> int:
    """Bytes that this machine has; where it does not say, more than any has: torch fails in many ways beyond that."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 47


def environment() -> dict[str, Any]:
    """Versions, machine and commit: what a result was made with."""
    versions = {}
    for name in _RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": platform.python_version(),
        "versions": versions,
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "command": sys.argv,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str | None:
    """The commit of the code if it runs from a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def kill_as_interrupt() -> Iterator[None]:
    """Have a polite kill (SIGTERM) raise KeyboardInterrupt, as Ctrl-C does.

    Not where whoever calls us has arranged something else, nor in a thread, which is not told of signals. And not in
    one of several processes that train together: it may wait for the others in a place where Python hears of nothing.
    """
    together = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if together or current_thread() is not main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    here = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == here:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)  # a process that was forked from this one ends as it would without us
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
