"""Where the weights of an Embedder come from, so that it can be built again. Imports no torch."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tammes.errors import UserError
from tammes.io.files import opened

Precision = Literal["no", "bf16"]  # of a network that nothing trains: float32, or bfloat16

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Network:
    """A network without training, and all that is needed to build it again.

    Attributes:
        name: of the backbone; of a module that only its own program has, the name of its class.
        weights: "imagenet", or a file of weights from the root; empty for a module.
        sha256: of that file; empty for "imagenet".
        size: height and width of the images that it sees.
        pool: how its last map becomes a vector.
        form: which form of the network, of those that have several.
        whitening: the layer on top of it, weights and bias, as `models.whitening` writes it; empty without one.
        whitened_within: the names of the classes that it was found within, as JSON; empty if it was found without.
    """

    name: str
    weights: str = ""
    sha256: str = ""
    size: int = 0
    pool: str = "published"
    form: str | None = None
    whitening: str = ""
    whitened_within: str = ""

    def classes(self) -> list[str]:
        """The names of the classes whose labels decided its vectors."""
        try:
            found = json.loads(self.whitened_within or "[]")
        except ValueError:  # a gallery may be untrusted
            return []
        return [str(each) for each in found] if isinstance(found, list) else []


def file_digest(file: Path) -> str:
    """The SHA-256 of a file."""
    found = sha256()
    try:
        with opened(file) as source:
            while block := source.read(_BLOCK):
                found.update(block)
    except UserError as error:
        raise UserError(f"cannot read {file}: {error}") from None
    except FileNotFoundError:
        raise UserError(f"no such file: {file}.") from None
    return found.hexdigest()
