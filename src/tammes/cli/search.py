"""`tammes search`: the nearest items of a gallery to an image, a vector or one of its items."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional, print_table
from tammes.cli.options import Device, Json, MadeBy
from tammes.errors import UserError, check_whole, unknown_name
from tammes.io.console import print_json, printable
from tammes.io.files import is_vector_file
from tammes.io.outputs import place_for

if TYPE_CHECKING:
    from PIL import Image

    from tammes.gallery.classification import SearchResult
    from tammes.gallery.gallery import Gallery


@dataclass(frozen=True)
class Search:
    """Find the nearest items of a gallery to an image, a vector, or one of the items.

    For example:
        tammes search gallery photo.jpg
        tammes search gallery a.jpg b.jpg -k 20 --label cats --sheet found.png
        tammes search gallery queries.npz
        tammes search gallery photo.jpg --where "colour = 'red' and price < 20"
        tammes search gallery --item photos/cats/1.jpg
        cat photo.jpg | tammes search gallery - --json
    """

    gallery: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY")]
    """The gallery that `tammes index` made."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE… | VECTORS")] = ()
    """Images to search with; - reads one from standard input. Or a .npy, .npz or .parquet file of vectors."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 8
    """Number of neighbours."""
    vector: Annotated[Path | None, optional("FILE")] = None
    """Search with the vectors of this file: the same as giving it instead of images."""
    item: Annotated[str | None, optional("KEY")] = None
    """Search with an item of the gallery, named by the path of its image or by its key: more like this one."""
    label: Annotated[str | None, optional("CLASS")] = None
    """Search only images of this class."""
    where: Annotated[str | None, optional("CONDITION")] = None
    """Search only items whose columns match, such as "colour = 'red' and price < 20". Columns come from an indexed
    table; every item has path, label, width and height. Texts are in single quotes; =, !=, <, <=, >, >=, in, and, or,
    not and brackets are allowed."""
    box: Annotated[str | None, optional("X,Y,WIDTH,HEIGHT")] = None
    """Search with this part of the image, in pixels from its upper left corner."""
    exact: bool = False
    """Compare with every image, even if there is an approximate index."""
    sheet: Annotated[Path | None, optional("FILE.png")] = None
    """Also write the queries and what was found as one image."""
    overwrite: bool = False
    """Replace that image if it exists."""
    model: MadeBy = None
    device: Device = "auto"
    json: Json = False


def search(config: Search) -> None:
    """Embed, look up, show."""
    check_whole("-k", config.k)
    file = _file_of_vectors(config)
    from tammes.gallery.filters import parsed
    from tammes.gallery.queries import check_files, query_box, query_images, query_vectors

    where = None if config.where is None else parsed(config.where)
    box = None if config.box is None else query_box(config.box)
    if box is not None and (file is not None or config.item is not None):
        raise UserError("--box is a part of an image: leave it out, or search with images.")
    check_files([*config.images, *([] if config.vector is None else [str(config.vector)])])
    sheet = None
    if config.sheet is not None:
        sheet = place_for("sheet", config.sheet, name="found.png", suffixes=(".png",), overwrite=config.overwrite)
    from tammes.gallery.gallery import Gallery

    gallery = Gallery(config.gallery, config.model, device=config.device, create=False)
    if config.label is not None and config.label not in (labels := gallery.store.labels()):
        raise unknown_name("class", config.label, labels)
    k = min(config.k, max(1, len(gallery)))
    images: list[Path | Image.Image] = []
    if config.item is not None:
        names = [_key(gallery, config.item)]
        found = [gallery.search(item=names[0], k=k, label=config.label, where=config.where, exact=config.exact)]
    else:
        if file is None:
            names, images = list(config.images), query_images(config.images, box)
            vectors = gallery.embedder.encode(images)
        else:
            vectors, names = query_vectors(file, gallery.store.about.dim)
        found = gallery.neighbours(vectors, k, label=config.label, where=where, exact=config.exact)
    if sheet is not None:
        _draw(sheet, gallery, images, found)
    if config.json:
        queries = [{"query": name} | result.record() for name, result in zip(names, found, strict=True)]
        print_json({"gallery": config.gallery, "queries": queries})
    else:
        _show(gallery, names, found)


def _file_of_vectors(config: Search) -> Path | None:
    """The file of vectors to search with, if that is what was asked for; what does not go together is refused."""
    files = [Path(each) for each in config.images if is_vector_file(each)]
    given = [
        *([f"{'images' if len(config.images) > 1 else 'an image'}"] if len(config.images) > len(files) else []),
        *map(str, files),
        *([] if config.vector is None else ["--vector"]),
        *([] if config.item is None else ["--item"]),
    ]
    if not given:
        raise UserError(f"which image? For example: tammes search {config.gallery} photo.jpg")
    if len(given) > 1:
        raise UserError(f"search with one of {' and '.join(given)}: leave out the other.")
    found = config.vector or next(iter(files), None)
    if config.sheet is not None and (found is not None or config.item is not None):
        raise UserError("--sheet shows the query images: leave it out, or search with images.")
    return found


def _key(gallery: "Gallery", item: str) -> str:
    """The key of an item: as it is typed, or for an image the path from the root."""
    known = gallery.store.fingerprints()
    return next((key for key in (item, str(Path(item).resolve())) if key in known), item)


def _show(gallery: "Gallery", names: list[str], found: "list[SearchResult]") -> None:
    for name, result in zip(names, found, strict=True):
        if not result.hits:
            print(f"{printable(name)}: no item of the gallery fits.")
            continue
        judged = () if result.threshold is None else (f"within\nthreshold {result.threshold:.4f}",)
        texts = (*judged, "class", "key" if gallery.model.kind == "vectors" else "image")
        rows = []
        for hit in result.hits:
            within = [] if result.threshold is None else ["yes" if result.within(hit) else "no"]
            rows.append([f"{hit.distance:.4f}", *within, hit.label, hit.path])
        print_table(name, ("distance", *texts), rows, texts=texts, width=None if sys.stdout.isatty() else 200)
    if any(result.hits for result in found):
        print(gallery.threshold_note())


def _draw(file: Path, gallery: "Gallery", images: "list[Path | Image.Image]", found: "list[SearchResult]") -> None:
    from tammes.gallery.queries import reduced
    from tammes.report.contact_sheet import contact_sheet

    paths = sorted({hit.path for result in found for hit in result.hits})
    thumbnails = {row.path: row.thumbnail for row in gallery.store.get(paths)}
    rows = [
        [(thumbnails[hit.path], f"{hit.distance:.3f} {hit.label}", result.within(hit)) for hit in result.hits]
        for result in found
    ]
    contact_sheet(file, [reduced(image) for image in images], rows)
