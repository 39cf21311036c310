"""Files of tensors (safetensors) that hold their own checksum: a damaged file is noticed."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tammes.errors import UserError
from tammes.io.files import opened, written_whole

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_HEADER = 100_000_000  # bytes: what safetensors allows
_BLOCK = 1 << 20
# The checksum is of the file with zeros in its own place.
_BLANK = "0" * 64


class DamagedError(UserError):
    """A file is not as it was written: cut short, or some of its bytes are others."""


def write_tensors(file: Path, tensors: "Mapping[str, Tensor]", said: Mapping[str, str] | None = None) -> None:
    """Write tensors, and what is said of them, with a checksum; whole or not at all."""
    from safetensors.torch import save

    content = save(dict(tensors), metadata={**(said or {}), "sha256": _BLANK})
    begin = content.index(_entry(_BLANK)) + len(b'"sha256":"')
    view = memoryview(content)
    with written_whole(file) as sink:
        sink.write(view[:begin])
        sink.write(sha256(content).hexdigest().encode())
        sink.write(view[begin + len(_BLANK) :])


def read_tensors(file: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors of a file, and what is said of them, after a look at the checksum.

    Raises:
        DamagedError: it is not as it was written. A file of before there were checksums is judged by its length only.
    """
    from safetensors import SafetensorError, safe_open

    said = check_tensors(file)
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, said  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"{file} is damaged: {str(error).rstrip('.')}.") from None


def check_tensors(file: Path) -> dict[str, str]:
    """What is said of the tensors of a file that is as it was written; no more than a block of it is in memory."""
    said, _ = _header(file)
    return said


def shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a file, as its first bytes say; nothing of that size is made."""
    _, entries = _header(file, whole=False)
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}


def _header(file: Path, *, whole: bool = True) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """What is said of the tensors, and of each tensor; of the whole file if its checksum is to be compared."""
    try:
        size = file.stat().st_size
        with opened(file) as source:
            beginning = source.read(8)
            length = int.from_bytes(beginning, "little")
            if len(beginning) < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise DamagedError(f"{file} is damaged: it is cut short, or no file of tensors.")
            header = source.read(length)
            said, entries = _parsed(file, header)
            if whole and "sha256" in said:
                found = sha256(beginning + header.replace(_entry(said["sha256"]), _entry(_BLANK), 1))
                while block := source.read(_BLOCK):
                    found.update(block)
                if found.hexdigest() != said["sha256"]:
                    raise DamagedError(f"{file} is damaged: its checksum is not that of its content.")
    except DamagedError:
        raise
    except UserError as error:
        raise UserError(f"cannot read {file}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}.") from None
    return {name: text for name, text in said.items() if name != "sha256"}, entries


def _parsed(file: Path, header: bytes) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    wrong = DamagedError(f"{file} is damaged: its header cannot be read.")
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):
        raise wrong from None
    said = found.pop("__metadata__", {}) if isinstance(found, dict) else None
    # Files without a checksum are older: they say nothing, or the state of a training.
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise wrong
    if "sha256" not in said and not set(said) <= {"state", "format"}:
        raise wrong
    if not all(isinstance(entry, dict) and _is_shape(entry.get("shape")) for entry in found.values()):
        raise wrong
    return said, found


def _is_shape(given: object) -> bool:
    return isinstance(given, list) and all(type(number) is int and number >= 0 for number in given)


def _entry(seal: str) -> bytes:
    return f'"sha256":"{seal}"'.encode()
