"""Queries to a gallery: images, or vectors in a file."""

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Shaped
from numpy import ndarray
from PIL import Image

from tammes.data.images import in_mode, open_image
from tammes.data.table import Box, cropped, name_in
from tammes.data.vectors import vectors
from tammes.errors import UserError, shown
from tammes.io.limits import IMAGE, check_limit


def check_files(names: Sequence[str]) -> None:
    """Raise UserError for unreadable queries before a network is loaded; - is standard input."""
    if names.count("-") > 1:
        raise UserError("standard input holds one image: give - once.")
    for name in names:
        if name != "-" and not Path(name).exists():
            raise UserError(f"no such file: {name}.")
        if name != "-" and Path(name).is_dir():
            raise UserError(f"{name} is a folder: give images. `tammes label` takes a folder.")


def check_image_files(files: Sequence[Path]) -> Sequence[Path]:
    """The files. Raises UserError for the first that is missing or a folder."""
    for file in files:
        if not file.exists():
            raise UserError(f"no such file: {file}.")
        if file.is_dir():
            raise UserError(f"{file} is a folder, where an image file is needed.")
    return files


def query_images(names: Sequence[str], box: Box | None = None) -> list[Path | Image.Image]:
    """Functions that read these images; - is the image on standard input, which is read at once.

    Args:
        box: a crop of each image.
    """
    found: list[Path | Image.Image] = [
        open_image(_standard_input(), name="standard input") if name == "-" else Path(name) for name in names
    ]
    if box is None:
        return found
    opened = [open_image(each) if isinstance(each, Path) else each for each in found]
    return [cropped(image, box, name_in(box, name), name) for image, name in zip(opened, names, strict=True)]


def query_box(text: str) -> Box:
    """Parse a box given as x,y,width,height."""
    try:
        x, y, width, height = (round(float(each)) for each in text.split(","))
        if x < 0 or y < 0 or width < 1 or height < 1:
            raise ValueError
    except (ValueError, OverflowError):
        raise UserError(
            f"`box` must be x,y,width,height in pixels from the upper left corner, got {shown(text)}. For example:"
            " `box='10,20,100,80'`"
        ) from None
    return x, y, x + width, y + height


def _standard_input() -> BytesIO:
    content = BytesIO()
    while block := sys.stdin.buffer.read(1 << 20):
        content.write(block)
        check_limit(IMAGE, content.tell(), "standard input")
    content.seek(0)
    return content


def reduced(image: Path | Image.Image, side: int = 512) -> Image.Image:
    """A query image reduced for display, in RGB."""
    found = in_mode(open_image(image) if isinstance(image, Path) else image, "RGB").copy()
    found.thumbnail((side, side))
    return found


def query_vectors(file: Path, dim: int) -> tuple[Float32[ndarray, "queries dim"], list[str]]:
    """The normalised vectors of a .npy, .npz or .parquet file, with their names."""
    found = vectors(file, labelled=False)
    if found.vectors.shape[1] != dim:
        raise UserError(
            f"{file} has vectors of {found.vectors.shape[1]} numbers, and the gallery holds vectors of {dim}."
        )
    names = [f"{file}, {number}" for number in range(len(found))] if found.paths is None else found.keys()
    return unit_rows(found.vectors, names), names


def unit_rows(given: Shaped[ndarray, "rows dim"], names: Sequence[str] | None = None) -> Float32[ndarray, "rows dim"]:
    """Normalise vectors.

    Args:
        names: the names of the vectors, for errors.

    Raises:
        UserError: one is zero or not finite.
    """
    exact = np.asarray(given, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(exact).max(axis=1, keepdims=True, initial=0.0)
    fine = np.isfinite(largest[:, 0]) & (largest[:, 0] > 0)
    if not fine.all():
        wrong = int(np.argmin(fine))
        name = f"vector {wrong}" if names is None else f"the vector of {names[wrong]!r}"
        raise UserError(f"{name} is zero or not finite: it has no direction to compare.")
    exact = exact / largest  # its square does not overflow
    return np.asarray(exact / np.linalg.norm(exact, axis=1, keepdims=True), dtype=np.float32)
