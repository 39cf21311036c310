"""The tables of a gallery in LanceDB: which there are, which one is in use, and that they are on the disk.

    about.lance/          one row: what made the gallery, and which table holds its items
    items-….lance/        a row an image

A rebuild fills another table of items; replacing the one row of `about` puts it in the place of the old one.
"""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any

from tammes.errors import UserError
from tammes.gallery.items import About, how_to_remake
from tammes.io.files import check_no_links, errors_name, fsync

ABOUT, ITEMS, ENDING = "about", "items-", ".lance"
STAMP = "%Y%m%dT%H%M%SZ"
ATTEMPTS = 12
_ITEMS_NAME = re.compile(r"items-[\w-]+")
_PANICS = ("RustPanic", "PanicException")
_NOT_ALLOWED = ("no space left", "permission denied", "read-only file system")


def _lancedb() -> Any:
    try:
        return import_module("lancedb")
    except ModuleNotFoundError:
        raise UserError("a gallery in a folder needs LanceDB: pip install 'tammes[gallery]'") from None


def connect(uri: str) -> Any:
    """The database; a folder is made if it is not there. Each read looks whether there is a newer version.

    Raises:
        UserError: it cannot be opened, or there are links in it: LanceDB writes and removes files through them.
    """
    try:
        if "://" not in uri:
            check_no_links(Path(uri))
        return _lancedb().connect(uri, read_consistency_interval=timedelta(0))
    except UserError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"cannot open a gallery at {uri}: {_message(error)}") from None


def table_names(uri: str) -> list[str]:
    """The names of the tables that are there; an error if it cannot be a gallery. A folder is left as it is."""
    if "://" in uri:
        database = connect(uri)
        try:
            return list(database.list_tables().tables)
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"cannot read {uri}: {_message(error)}") from None
    folder = Path(uri)
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise UserError(f"{uri} is a file. A gallery is a folder: choose another name.")
    names = sorted(entry.name for entry in folder.iterdir())
    ours = [name.removesuffix(ENDING) for name in names if name.endswith(ENDING)]
    if f"{ABOUT}{ENDING}" not in names:
        others = [name for name in names if not (name.startswith(ITEMS) and name.endswith(ENDING))]
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UserError(
                f"{uri} is not a gallery: it holds {shown}. Choose another folder; a new gallery needs an empty one."
            )
    return ours


def is_gallery(uri: str) -> bool:
    """Whether a gallery is there, whole or damaged; one that was begun and never whole is none."""
    if ABOUT not in table_names(uri):
        return False
    try:
        connect(uri).open_table(ABOUT)
    except BaseException as error:
        if not of_lance(error):
            raise
        return not isinstance(error, ValueError) or "not found" not in str(error)
    return True


def create_gallery(uri: str, about: About) -> None:
    """An empty gallery; if another program makes one at the same time, one of the two."""
    database = connect(uri)
    name = new_items(uri, database, about.dim)
    try:
        _create_table(uri, database, ABOUT, about_row(name, about, datetime.now(UTC).isoformat()))
    except UserError:
        if not is_gallery(uri):
            raise
        database.drop_table(name)  # another was faster
        return
    if "://" not in uri:
        synchronise(Path(uri) / f"{ABOUT}{ENDING}", set())


def new_items(uri: str, database: Any, dim: int) -> str:
    name = f"{ITEMS}{datetime.now(UTC).strftime(STAMP)}-{token_hex(4)}"
    _create_table(uri, database, name, schema=schema_of(dim))
    if "://" not in uri:
        synchronise(Path(uri) / f"{name}{ENDING}", set())
    return name


def _create_table(uri: str, database: Any, name: str, data: Any = None, schema: Any = None) -> None:
    try:
        database.create_table(name, data, schema=schema)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"cannot make a gallery at {uri}: {_message(error)}") from None


def schema_of(dim: int) -> Any:
    import pyarrow

    # Two programs that add the same path at once are noticed only if the path is declared a key; without, both add it.
    key = {"lance-schema:unenforced-primary-key": "true"}
    return pyarrow.schema(
        [
            pyarrow.field("path", pyarrow.string(), nullable=False, metadata=key),
            pyarrow.field("vector", pyarrow.list_(pyarrow.float32(), dim), nullable=False),
            pyarrow.field("label", pyarrow.string(), nullable=False),
            pyarrow.field("width", pyarrow.int32(), nullable=False),
            pyarrow.field("height", pyarrow.int32(), nullable=False),
            pyarrow.field("fingerprint", pyarrow.string(), nullable=False),
            pyarrow.field("thumbnail", pyarrow.binary(), nullable=False),
            pyarrow.field("fields", pyarrow.string(), nullable=False),
        ]
    )


def about_row(name: str, about: About, since: str) -> Any:
    """One row: which table is in use, since when, and what made it."""
    import pyarrow

    return pyarrow.table({"name": ["current"], "said": [said_of(name, about, since)]})


def said_of(name: str, about: About, since: str) -> str:
    """What that row says."""
    return json.dumps({"items": name, "since": since, "about": about.to_json()})


def what_is_current(uri: str, database: Any) -> dict[str, str]:
    """What the row of `about` says, in its parts and as the very text (`said`)."""
    for attempt in range(ATTEMPTS):
        try:
            table = database.open_table(ABOUT)
            text = table.search().limit(1).to_arrow().column("said").to_pylist()[0]
            said = json.loads(text)
            current = {"said": text, **{name: str(said[name]) for name in ("items", "since", "about")}}
            # It may be untrusted: a name is that of a table in the folder, and nowhere else.
            if not _ITEMS_NAME.fullmatch(current["items"]) or datetime.fromisoformat(current["since"]).tzinfo is None:
                raise ValueError("what it says of itself makes no sense")
            return current
        except BaseException as error:
            if not (of_lance(error) or isinstance(error, KeyError | IndexError | TypeError)):
                raise
            if attempt == ATTEMPTS - 1 or "not found" not in str(error).lower():
                raise damaged(uri, error) from None
            time.sleep(0.02 * (attempt + 1))  # it may have been begun at this moment
    raise AssertionError("every attempt returns or raises")


def of_lance(error: BaseException) -> bool:
    """Whether LanceDB may have raised it. A file that makes no sense can make its Rust panic, which has no class of
    its own to be caught by."""
    return isinstance(error, RuntimeError | ValueError | OSError) or type(error).__name__ in _PANICS


def damaged(uri: str, error: BaseException) -> UserError:
    if any(word in str(error).lower() for word in _NOT_ALLOWED):
        return UserError(f"cannot write to the gallery {uri}: {_message(error)}.")
    return UserError(
        f"cannot read the gallery {uri}; a file of it may be damaged: {_message(error)}. {how_to_remake(uri)}"
    )


def _message(error: BaseException) -> str:
    """What went wrong, without the places in LanceDB's own source."""
    return re.split(r", /\w+/", str(error))[0].strip().rstrip(".")


def synchronise(table: Path, done: set[str]) -> None:
    """Make sure that the files of a table, and their names, are on the disk.

    Files are written once, so each is looked after once. All but the hint which version is the newest: LanceDB looks
    for itself where that is wrong.
    """
    if os.name != "posix":
        return
    for folder, _, files in os.walk(table):
        new = [file for file in (f"{folder}/{name}" for name in files) if file not in done]
        for file in new:
            _fsync(file)
        if new:
            _fsync(folder)
        if folder not in done:
            _fsync(str(Path(folder).parent))
        done.update(new, [folder])
    _fsync(str(table.absolute().parents[1]))  # the name of the gallery itself


def _fsync(path: str) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # removed by another who puts the gallery in order
    try:
        with errors_name(Path(path)):
            fsync(opened)
    finally:
        os.close(opened)
