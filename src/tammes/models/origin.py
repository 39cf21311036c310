"""Network: the record of a pretrained network, from which its Embedder can be rebuilt. Imports no torch."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tammes.errors import UserError
from tammes.io.files import opened

Precision = Literal["no", "bf16"]  # of a network that is not trained: float32 or bfloat16

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Network:
    """A pretrained network, with everything needed to rebuild it.

    Attributes:
        name: the name of the backbone; for a custom module, the name of its class.
        weights: "imagenet", or the absolute path of a file of weights; empty for a module.
        sha256: checksum of that file; empty for "imagenet".
        size: height and width of its input.
        pool: how its last feature map is pooled.
        form: the form of the network, if it has several.
        whitening: the whitening layer, as written by `models.whitening`; empty without one.
        whitened_within: the names of the classes used for the whitening, as JSON; empty for PCA whitening.
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
        """The names of the classes that were used for the whitening."""
        try:
            found = json.loads(self.whitened_within or "[]")
        except ValueError:  # galleries are untrusted
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
