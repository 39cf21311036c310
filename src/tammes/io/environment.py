"""The environment variables, read only here: folders (cache, configuration, data), colours, which process this is."""

import os
from pathlib import Path
from typing import NamedTuple

from tammes.errors import UserError


def cache_folder() -> Path:
    """Where decoded images and drawn data sets are kept: TAMMES_CACHE, or `tammes` in the user's cache folder."""
    given = os.environ.get("TAMMES_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tammes"


def config_folder() -> Path:
    """Where the user's own settings are: TAMMES_CONFIG, or `tammes` in the user's configuration folder."""
    given = os.environ.get("TAMMES_CONFIG")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tammes"


def data_folder() -> Path | None:
    """Where the user keeps data sets, if the environment variable TAMMES_DATA says so."""
    given = os.environ.get("TAMMES_DATA")
    return Path(given) if given else None


def qdrant_api_key() -> str | None:
    """The key of a Qdrant server, if the environment variable QDRANT_API_KEY has one."""
    return os.environ.get("QDRANT_API_KEY") or None


def raised_limit(variable: str) -> float | None:
    """What a variable sets a limit to, if it is set; see `io/limits.py`."""
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


def first_host() -> str:
    """Where a launcher says that the first process is."""
    return os.environ.get("MASTER_ADDR") or "localhost"


def started_by_launcher() -> bool:
    """Whether torchrun or the like started this process, alone or with others."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
