"""Which folders the files of a gallery may be served from: what the user has said on this machine.

A gallery names its folders itself, and may come from somebody else: one that names `/` would have any image of this
machine served. So a folder counts only if the user has indexed it into this gallery here, or has said `--trust-roots`.
That is remembered in the user's own configuration, by where the gallery is, and never in the gallery.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tammes.data.table import is_table
from tammes.errors import UserError
from tammes.io.console import say
from tammes.io.environment import config_folder
from tammes.io.files import lock, open_inside, write_atomically
from tammes.io.schema import read_json

_SAID_HERE: dict[str, list[str]] = {}  # in this process: the configuration may be read-only


def trust(uri: str, roots: Sequence[str], *, only: bool = False) -> None:
    """Remember that the files below these folders may be served by the gallery.

    Args:
        only: forget what was trusted before.
    """
    key, roots = _key(uri), [str(Path(root).resolve()) for root in roots]
    _SAID_HERE[key] = list(dict.fromkeys([*([] if only else _SAID_HERE.get(key, [])), *roots]))
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_inside(file.with_suffix(".lock")) as held:
            lock(held, wait=True)
            known = _read()
            trusted = list(dict.fromkeys([*([] if only else known.get(key, [])), *roots]))
            if trusted != known.get(key):
                write_atomically(file, json.dumps({**known, key: trusted}, indent=1).encode())
    except OSError as error:
        say(f"note: cannot remember that {uri} may serve these folders, only for now: {error.strerror}: {file}")


def trusted_roots(uri: str, roots: Sequence[str]) -> list[Path]:
    """Those of a gallery's folders whose files may be served, all links followed."""
    trusted = [Path(each) for each in (*_read().get(_key(uri), []), *_SAID_HERE.get(_key(uri), []))]
    if "://" not in uri:
        trusted.append(Path(uri).resolve())  # what lies in the gallery itself came with it
    resolved = [Path(root).resolve() for root in roots]
    found = [root for root in resolved if any(root.is_relative_to(each) for each in trusted)]
    return [root.parent if is_table(root) else root for root in found]  # beside a table are its images


def _key(uri: str) -> str:
    return uri if "://" in uri else str(Path(uri).resolve())


def _file() -> Path:
    return config_folder() / "trusted_roots.json"


def _read() -> dict[str, list[str]]:
    file = _file()
    try:
        return read_json(file, dict[str, list[str]], "Remove it; `trust_roots=True` writes it again.") or {}
    except UserError as error:
        raise UserError(f"which folders may be served is not known: {error}") from None
