"""`tammes search`: the nearest images of a gallery to an image."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError
from tammes.io.console import print_json, printable

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from tammes.gallery.gallery import Opened
    from tammes.gallery.store import Hit


@dataclass(frozen=True)
class Search:
    """Find the images of a gallery that are nearest to an image.

    For example:

    tammes search gallery photo.jpg

    tammes search gallery a.jpg b.jpg -k 20 --label cats --sheet found.png

    cat photo.jpg | tammes search gallery - --json
    """

    gallery: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY")]
    """The gallery that `tammes index` made."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE…")] = ()
    """Images to search with; - reads one from standard input."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 8
    """Neighbours to show."""
    vector: Annotated[Path | None, optional("FILE.npy")] = None
    """Search with vectors instead of images."""
    label: Annotated[str | None, optional("CLASS")] = None
    """Among images of this class only."""
    exact: bool = False
    """Compare with every image, also where there is an approximate index."""
    sheet: Annotated[Path | None, optional("FILE.png")] = None
    """Also draw the queries and what was found."""
    overwrite: bool = False
    """Replace that file if it exists."""
    model: Annotated[Path | None, optional("RUN")] = None
    """Where the run that made the gallery is now, if it was moved."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print one JSON object."""


def search(config: Search) -> None:
    """Embed, look up, show."""
    if config.k < 1:
        raise UserError(f"-k must be at least 1, got {config.k}.")
    if not config.images and config.vector is None:
        raise UserError(f"which image? For example: tammes search {config.gallery} photo.jpg")
    if config.images.count("-") > 1:
        raise UserError("standard input holds one image: give - once.")
    if config.vector is not None and config.images:
        raise UserError("--vector searches with vectors: leave out the images.")
    _check_files(config)
    if config.sheet is not None and config.vector is not None:
        raise UserError("--sheet shows the queries, and vectors have no pictures: leave one out.")
    sheet = None
    if config.sheet is not None:
        sheet = place_for("--sheet", config.sheet, name="found.png", suffixes=(".png",), overwrite=config.overwrite)
    from tammes.gallery.gallery import Opened

    opened = Opened(config.gallery, config.model, config.device)
    if config.label is not None and config.label not in opened.store.labels():
        from tammes.errors import unknown_name

        raise unknown_name("class", config.label, opened.store.labels())
    names, pictures, vectors = _queries(config, opened)
    k = min(config.k, max(1, opened.store.count()))
    found = opened.store.search(vectors, k, label=config.label, exact=config.exact)
    limits = [None] * len(names) if opened.threshold is None else opened.limits(vectors).tolist()
    if sheet is not None:
        _draw(sheet, opened, pictures, limits, found)
    if config.json:
        print_json(
            {
                "gallery": config.gallery,
                "queries": [
                    {
                        "query": name,
                        "threshold": limit,
                        "found": [asdict(hit) | {"within_threshold": _within(hit, limit)} for hit in hits],
                    }
                    for name, limit, hits in zip(names, limits, found, strict=True)
                ],
            }
        )
        return
    _show(opened, names, limits, found)


def _check_files(config: Search) -> None:
    """Refuse what cannot be read before the gallery is opened and a network is loaded."""
    given = [name for name in config.images if name != "-"] + ([] if config.vector is None else [str(config.vector)])
    for name in given:
        if not Path(name).exists():
            raise UserError(f"no such file: {name}.")
        if Path(name).is_dir():
            raise UserError(f"{name} is a folder: give images. `tammes label` takes a folder.")


def _queries(config: Search, opened: "Opened") -> "tuple[list[str], list[Image.Image], np.ndarray]":
    from io import BytesIO

    from PIL import Image

    from tammes.cli.gallery import vectors_in
    from tammes.data.images import in_mode, open_picture

    if config.vector is not None:
        vectors = vectors_in(config.vector, opened.store.about.dim)
        return [f"{config.vector}, {number}" for number in range(len(vectors))], [], vectors
    given: list[Path | Image.Image] = []
    small: list[Image.Image] = []
    for name in config.images:
        picture: Path | Image.Image = Path(name)
        if name == "-":
            picture = open_picture(BytesIO(sys.stdin.buffer.read()), name="standard input")
        given.append(picture)  # a file is read when its turn comes
        if config.sheet is not None:
            shown = in_mode(open_picture(picture) if isinstance(picture, Path) else picture, "RGB").copy()
            shown.thumbnail((512, 512))
            small.append(shown)
    return list(config.images), small, opened.embedder.encode(given)


def _within(hit: "Hit", limit: float | None) -> bool | None:
    return None if limit is None else hit.distance <= limit


def _show(opened: "Opened", names: list[str], limits: list[float | None], found: "list[list[Hit]]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    for name, limit, hits in zip(names, limits, found, strict=True):
        table = Table(title=escape(printable(name)))
        judged = () if limit is None else (f"within\nthreshold {limit:.4f}",)
        for title in ("distance", *judged, "class", "image"):
            table.add_column(title, justify="right" if title == "distance" else "left", no_wrap=title == "distance")
        for hit in hits:
            within = [] if limit is None else ["yes" if _within(hit, limit) else "no"]
            table.add_row(f"{hit.distance:.4f}", *within, escape(printable(hit.label)), escape(printable(hit.path)))
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    if opened.threshold is None:
        run = printable(quote(str(opened.run.folder)))  # the gallery says which, and it may be untrusted
        print(f"For a threshold, which tells known classes from unknown: tammes calibrate {run}")
    elif opened.threshold.in_words():
        print(
            "An image is of a known class if its nearest neighbour is within the threshold."
            f" {opened.threshold.in_words()} `tammes calibrate {opened.uri} --unknown-rate …` moves this."
        )


def _draw(
    file: Path, opened: "Opened", pictures: "list[Image.Image]", limits: list[float | None], found: "list[list[Hit]]"
) -> None:
    from tammes.report.contact_sheet import contact_sheet

    thumbnails = {
        row.path: row.thumbnail for row in opened.store.get(sorted({hit.path for hits in found for hit in hits}))
    }
    rows = [
        [(thumbnails[hit.path], f"{hit.distance:.3f} {hit.label}", _within(hit, limit)) for hit in hits]
        for limit, hits in zip(limits, found, strict=True)
    ]
    contact_sheet(file, pictures, rows)
