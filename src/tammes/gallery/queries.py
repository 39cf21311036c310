"""What a gallery is searched with: images, or vectors in a file."""

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from tammes.data.images import in_mode, open_picture
from tammes.errors import UserError
from tammes.io.limits import IMAGE, check_limit


def check_files(names: Sequence[str]) -> None:
    """Refuse what cannot be read, before a network is loaded; - is standard input."""
    if names.count("-") > 1:
        raise UserError("standard input holds one image: give - once.")
    for name in names:
        if name != "-" and not Path(name).exists():
            raise UserError(f"no such file: {name}.")
        if name != "-" and Path(name).is_dir():
            raise UserError(f"{name} is a folder: give images. `tammes label` takes a folder.")


def query_images(names: Sequence[str]) -> list[Path | Image.Image]:
    """The files of these names, to be read when they are needed; - is the image on standard input, read at once."""
    return [open_picture(_standard_input(), name="standard input") if name == "-" else Path(name) for name in names]


def _standard_input() -> BytesIO:
    content = BytesIO()
    while block := sys.stdin.buffer.read(1 << 20):
        content.write(block)
        check_limit(IMAGE, content.tell(), "standard input")
    content.seek(0)
    return content


def reduced(image: Path | Image.Image, side: int = 512) -> Image.Image:
    """A query as it is shown: no side longer than this, in RGB."""
    found = in_mode(open_picture(image) if isinstance(image, Path) else image, "RGB").copy()
    found.thumbnail((side, side))
    return found


def query_vectors(file: Path, dim: int) -> Float32[ndarray, "queries dim"]:
    """The vectors of a .npy file, one or many, normalised."""
    try:
        with file.open("rb") as source:
            found = np.load(source, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"no such file: {file}.") from None
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, BadZipFile) as error:
        raise UserError(f"{file} is not a .npy file of numbers: {error}") from None
    found = found[None] if isinstance(found, ndarray) and found.ndim == 1 else found
    if not isinstance(found, ndarray) or found.ndim != 2 or found.shape[1] != dim or found.dtype.kind != "f":
        shape = getattr(found, "shape", None)
        raise UserError(f"{file} must hold vectors of {dim} floating-point numbers, as the gallery has; got {shape}.")
    norms = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not (norms > 0).all():
        raise UserError(f"{file} has a vector that is zero or not finite.")
    return np.asarray(found / norms, dtype=np.float32)
