"""The items of a gallery as plain data, and their validation."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from math import isfinite
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from typing_extensions import TypedDict

from tammes.errors import UserError, shown
from tammes.gallery.filters import OF_EVERY_ITEM, Value
from tammes.io.schema import checked, parsed
from tammes.models.origin import Network, Precision
from tammes.search.validation import checked_vectors

Kind = Literal["run", "pretrained", "module", "vectors"]

FORMAT = 1  # of what is stored
THUMBNAIL = 160  # the longer side of a thumbnail, in pixels
ITEM_ID = "^[0-9a-f]{16}$"  # what `item_id` returns, as a regular expression

_LARGEST = 1e15  # the stores square in float32
_ESCAPE = "\ue000"  # a character for private use; should it be in a name, it is escaped as well
_SHOWN = 5  # missing paths that are named
_LONGEST_NAME = 200  # characters of a column's name


@dataclass(frozen=True)
class Row:
    """An image of a gallery.

    Attributes:
        path: the key; no other row has it. Clients of a server know the row by its `id` instead.
        label: its class, empty where it has none.
        width, height: of the image, in pixels.
        fingerprint: what changes when the file does.
        thumbnail: the image in small, as a WebP file; empty where it was not asked for.
        fields: further columns by their names, each a text or a number: what filters ask for.
    """

    path: str
    vector: Float32[ndarray, " dim"]
    label: str
    width: int
    height: int
    fingerprint: str
    thumbnail: bytes
    fields: Mapping[str, Value] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return item_id(self.path)


@dataclass(frozen=True)
class Hit:
    """A row that was found; the distance is Euclidean."""

    path: str
    label: str
    distance: float

    @property
    def id(self) -> str:
        return item_id(self.path)


@dataclass(frozen=True)
class About:
    """The metadata of a gallery.

    Attributes:
        model: a digest of the model; vectors of another model cannot be compared.
        run: the folder of the model's run; empty if there is none.
        roots: the folders that were indexed.
        created: the time of creation, in ISO format.
        threshold: the result of `gallery.threshold`, as JSON; empty without one.
        kind: the kind of model: a run, a pretrained network, a custom module, or unknown for a gallery of vectors.
            Galleries of older versions are of runs.
        network: the pretrained network, or the custom module.
        precision: the precision of its backbone, for images and queries; float32 in galleries of older versions.
    """

    model: str
    run: str
    dim: int
    roots: tuple[str, ...]
    created: str
    format: int = FORMAT
    threshold: str = ""
    kind: Kind = "run"
    network: Network | None = None
    precision: Precision = "no"

    def changed(self, roots: Sequence[str], threshold: str | None) -> "About":
        """With more roots, but for those inside a root that is known, and another threshold; see `Store.describe`."""
        known = list(self.roots)
        for root in roots:
            if not any(PurePath(root).is_relative_to(each) for each in known):
                known.append(root)
        return replace(self, roots=tuple(known), threshold=self.threshold if threshold is None else threshold)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> "About":
        """What `to_json` wrote, or an error if another version of Tammes wrote it; it may be untrusted."""
        what, advice = f"what the gallery {where} says of its model", how_to_remake(where)
        said = parsed(text, _Version, what, advice)
        if said["format"] != FORMAT:
            raise UserError(
                f"the gallery {where} is of format {said['format']!r}, and this version reads {FORMAT}. Use the version"
                f" of tammes that made it, or rebuild it: tammes index MODEL FOLDER --gallery {where} --rebuild"
            )
        checked(said, cls, what, advice)
        network = said.get("network")
        if network is not None:
            network = Network(**checked(network, Network, what, advice))
        # Not as pydantic would build it: the name of a folder need not be Unicode.
        found = cls(**said | {"roots": tuple(said["roots"]), "network": network})
        places = [*found.roots, *([found.run] if found.kind == "run" or found.run else [])]
        places += [network.weights] if network is not None and network.weights else []
        if not all(map(_may_be_a_path, places)):
            raise UserError(f"{what}: it names a file that cannot exist. {advice}")
        if network is None and found.kind in ("pretrained", "module"):
            raise UserError(f"{what}: network is missing. {advice}")
        return found


class _Version(TypedDict):
    format: Any


@dataclass(frozen=True)
class OptimiseResult:
    """The result of `Store.optimise`.

    Attributes:
        rows: the number of rows.
        indexed: whether searches use an approximate index.
        recall: recall at 10 of the index, on random rows.
        removed: the removed remains of earlier rebuilds.
    """

    rows: int
    indexed: bool
    recall: float | None
    removed: tuple[str, ...]


def item_id(path: str) -> str:
    """The id of the item at a path, which names it in searches, in the JSON API and in the pages of a server.

    It is a hash of the path, so it stays the same when the gallery is rebuilt and does not reveal the path.

    >>> item_id("/photos/cats/1.jpg")
    '9df559bc55b80447'
    """
    return blake2b(path.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _may_be_a_path(text: str) -> bool:
    """Whether it can be the name of a file or folder at all, there or not."""
    try:
        return bool(text) and "\0" not in text and bool(os.fsencode(text))
    except UnicodeEncodeError:  # half a character that stands for no byte
        return False


def no_gallery(where: str) -> UserError:
    return UserError(f"there is no gallery {where}. Make it: tammes index MODEL FOLDER --gallery {where}")


def how_to_remake(where: str) -> str:
    return f"Rebuild it: tammes index MODEL FOLDER --gallery {where} --rebuild"


def missing_paths(where: str, missing: Sequence[str]) -> UserError:
    named = ", ".join(map(repr, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
    return UserError(f"the gallery {where} has no {named} ({len(missing)} of the paths asked for).")


def check_keys(paths: Collection[str], rows: int, where: str) -> None:
    """Raise UserError if several rows have the same path.

    Args:
        paths: the distinct paths of all rows.
    """
    if len(paths) < rows:
        raise UserError(
            f"the gallery {where} holds {rows:,} images with {len(paths):,} paths: each must have its own."
            f" {how_to_remake(where)}"
        )


def storable(text: str) -> str:
    r"""The text without what a store cannot hold: halves of characters, which stand for bytes of a file's name that
    are not valid unicode, and zero bytes. `as_it_was` undoes it.

    >>> ascii(storable("caf\udce9")), ascii(storable("café"))
    ("'caf\\ue000dce9'", "'caf\\xe9'")
    """
    if text.isascii() and "\0" not in text:
        return text
    return re.sub(f"[\0\ud800-\udfff{_ESCAPE}]", lambda found: f"{_ESCAPE}{ord(found[0]):04x}", text)


def as_it_was(stored: str, where: str) -> str:
    r"""The text that `storable` was given.

    Args:
        where: the gallery that it is stored in.

    Raises:
        UserError: `storable` has not written this: what it was would not be found again by its name.

    >>> ascii(as_it_was(storable("caf\udce9"), "gallery"))
    "'caf\\udce9'"
    """
    if _ESCAPE not in stored:
        return stored
    text = re.sub(f"{_ESCAPE}([0-9a-f]{{4}})", lambda found: chr(int(found[1], 16)), stored)
    if storable(text) != stored:
        raise UserError(f"the gallery {where} holds a name that is not valid: {shown(stored)}. {how_to_remake(where)}")
    return text


def content_of(fingerprint: str) -> str | None:
    """The part of a fingerprint that depends on the content; None if it has none."""
    return fingerprint.split(":")[1] if ":" in fingerprint else None


def check_rows(rows: Sequence[Row], dim: int) -> Float32[ndarray, "rows dim"]:
    """The vectors of rows after validation. Raises UserError."""
    twice = {row.path for row in rows}
    if len(twice) < len(rows):
        seen: set[str] = set()
        again = next(row.path for row in rows if row.path in seen or seen.add(row.path))  # type: ignore[func-returns-value]
        raise UserError(f"{again!r} is among the rows more than once: a path is the key of one row.")
    for row in rows:
        if row.vector.shape != (dim,):
            raise UserError(f"the gallery holds vectors of {dim} numbers; that of {row.path!r} has {row.vector.size}.")
        _check_fields(row)
    vectors = np.stack([row.vector for row in rows]).astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(vectors) < _LARGEST).all(axis=1)
    if not fine.all():
        wrong = rows[int(np.argmin(fine))].path
        raise UserError(f"vectors must be finite numbers below {_LARGEST:g}: that of {wrong!r} is not.")
    return vectors


def _check_fields(row: Row) -> None:
    for name, value in row.fields.items():
        if not name or len(name) > _LONGEST_NAME or name in OF_EVERY_ITEM:
            raise UserError(
                f"{row.path!r} has a column {shown(name)}: a name has 1 to {_LONGEST_NAME} characters and is none of"
                f" {', '.join(OF_EVERY_ITEM)}."
            )
        if not isinstance(value, str) and (isinstance(value, bool) or not isfinite(value)):
            raise UserError(f"the column {name!r} of {row.path!r} must be a text or a finite number, got {value!r}.")


def check_stored(vectors: Float32[ndarray, "rows dim"], where: str) -> Float32[ndarray, "rows dim"]:
    """Validate vectors that a store returns, which may be untrusted or damaged."""
    if vectors.size and not max(-vectors.min(), vectors.max()) < _LARGEST:  # nor is NaN
        raise UserError(
            f"the gallery {where} holds vectors that are not finite numbers below {_LARGEST:g}. {how_to_remake(where)}"
        )
    return vectors


def check_queries(
    vectors: ndarray, dim: int, k: int, leave_out: Sequence[str | None] | None
) -> Float32[ndarray, "queries dim"]:
    """Validate query vectors."""
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}.")
    if leave_out is not None and len(leave_out) != len(vectors):
        raise UserError(f"leave_out must have a path or None for each of {len(vectors)} queries, got {len(leave_out)}.")
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(f"the gallery holds vectors of {dim} numbers; the queries have shape {vectors.shape}.")
    if not len(vectors):
        return np.zeros((0, dim), dtype=np.float32)
    checked = checked_vectors(vectors, "queries").astype(np.float32, copy=False)
    if np.abs(checked).max() >= _LARGEST:
        raise UserError(f"queries must be numbers below {_LARGEST:g}.")
    return checked
