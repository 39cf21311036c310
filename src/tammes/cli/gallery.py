"""Vectors to ask a gallery with, from a file."""

from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np
from numpy import ndarray

from tammes.errors import UserError


def vectors_in(file: Path, dim: int) -> ndarray:
    """The vectors of a .npy file, one or many, in unit length."""
    try:
        with file.open("rb") as source:
            found = np.load(source, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"no such file: {file}.") from None
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, BadZipFile) as error:
        raise UserError(f"{file} is no .npy file of numbers: {error}") from None
    found = found[None] if isinstance(found, ndarray) and found.ndim == 1 else found
    if not isinstance(found, ndarray) or found.ndim != 2 or found.shape[1] != dim or found.dtype.kind != "f":
        shape = getattr(found, "shape", None)
        raise UserError(f"{file} must hold vectors of {dim} floating-point numbers, as the gallery has; got {shape}.")
    lengths = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise UserError(f"{file} has a vector that is zero or not finite.")
    return np.asarray(found / lengths, dtype=np.float32)
