"""The environment variables, read only here: folders (cache, configuration, data), colours, which process this is."""

import os
from pathlib import Path
from typing import NamedTuple

from tammes.errors import UserError


def cache_folder() -> Path:
    """The cache folder: TAMMES_CACHE, or `tammes` in the user's cache folder."""
    given = os.environ.get("TAMMES_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tammes"


def config_folder() -> Path:
    """The configuration folder: TAMMES_CONFIG, or `tammes` in the user's configuration folder."""
    given = os.environ.get("TAMMES_CONFIG")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tammes"


def data_folder() -> Path | None:
    """The folder of the user's data sets: TAMMES_DATA, if set."""
    given = os.environ.get("TAMMES_DATA")
    return Path(given) if given else None


def qdrant_api_key() -> str | None:
    """The key of a Qdrant server: QDRANT_API_KEY, if set."""
    return os.environ.get("QDRANT_API_KEY") or None


def raised_limit(variable: str) -> float | None:
    """The value of a variable that raises a limit, if set; see `io/limits.py`."""
    given = os.environ.get(variable)
    if not given:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise UserError(f"{variable} must be a number above 0, got {given!r}.")
    return number


def colours() -> bool:
    """Whether to use colours: not if NO_COLOR is set (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def bare_environment() -> dict[str, str]:
    """The minimal environment of a child process, without secrets; one thread."""
    needed = ("PATH", "PYTHONPATH", "SYSTEMROOT", "TEMP", "TMPDIR", "LD_LIBRARY_PATH")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {name: os.environ[name] for name in needed if name in os.environ} | one_thread


class Launched(NamedTuple):
    """Rank, local rank and number of the processes of a distributed launch."""

    rank: int
    local_rank: int
    number: int


def launched() -> Launched:
    """Rank and number of processes as set by a launcher (torchrun, accelerate launch); a single one without."""
    given = (os.environ.get("RANK"), os.environ.get("LOCAL_RANK"), os.environ.get("WORLD_SIZE"))
    rank, local_rank, number = (int(each) if each else None for each in given)
    if rank is None or number is None:
        return Launched(0, 0, 1)
    return Launched(rank, rank if local_rank is None else local_rank, number)


def first_host() -> str:
    """The host of the first process, as set by a launcher."""
    return os.environ.get("MASTER_ADDR") or "localhost"


def started_by_launcher() -> bool:
    """Whether a launcher such as torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
