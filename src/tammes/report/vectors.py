"""The report of labelled vectors of a file or a gallery: retrieval, confusions and thresholds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray
from PIL import Image

from tammes import __version__
from tammes.data.images import open_small
from tammes.data.vectors import vectors
from tammes.errors import UserError, check_seed
from tammes.gallery import Row, Store, open_gallery
from tammes.gallery.items import THUMBNAIL
from tammes.gallery.model import describe_model
from tammes.io.console import working
from tammes.io.files import is_vector_file
from tammes.io.outputs import place_for
from tammes.metrics import evaluate
from tammes.metrics.verification import checked_fmr
from tammes.report.page import Section, page, rendered, write_page
from tammes.report.projection import Way
from tammes.report.run import FMR, headline, item_sections, look, metrics_table
from tammes.training.embedding import Items
from tammes.training.evaluation import RESTARTS, protocol
from tammes.vectors.train import raw

_MOST = 20_000  # items of a gallery that are used; a random sample of more


@dataclass(frozen=True)
class Subject:
    """Labelled vectors with facts about them.

    Attributes:
        options: options of their evaluation; see `tammes.training.evaluation.protocol`.
        facts: facts for the report, by name.
    """

    title: str
    items: Items
    options: dict[str, Any]
    facts: dict[str, str]


class Thumbnails:
    """The images of a gallery, as arrays (channels, height, width)."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __getitem__(self, number: int) -> ndarray:
        shown = open_small(self._rows[number].thumbnail, THUMBNAIL) or Image.new("RGB", (1, 1), "white")
        return np.asarray(shown.convert("RGB")).transpose(2, 0, 1)


def of_file(file: Path) -> Subject:
    """The labelled vectors of a file."""
    found = vectors(file)
    chosen = np.arange(len(found))
    names, codes = np.unique(found.labels, return_inverse=True)
    _check(str(file), len(names), len(chosen))
    options = protocol(found, chosen, clustering=True)
    items = Items(
        vectors=raw(found.vectors, file.absolute().parent),
        labels=codes.reshape(-1).astype(np.int64),
        class_names=tuple(map(str, names.tolist())),
        numbers=chosen,
        names=tuple(found.keys("vector ")),
        images=None,
        masks={name: options[name] for name in ("query", "gallery", "sequence") if name in options},
        what=f"vectors of {file.name}",
    )
    return Subject(file.name, items, options, {"items": _counted(items), "file": str(file)})


def of_gallery(store: Store, uri: str, *, seed: int = 0) -> Subject:
    """The items of a gallery that have a class."""
    about, labelled = store.about, sum(number for name, number in store.labels().items() if name)
    kept = np.random.default_rng(seed).permutation(labelled)[:_MOST]
    wanted, rows, place = set(kept.tolist()) if labelled > _MOST else None, [], 0
    for batch in store.rows(4096, thumbnails=about.kind != "vectors"):
        for row in batch:
            if row.label:
                if wanted is None or place in wanted:
                    rows.append(row)
                place += 1
    names, codes = np.unique([row.label for row in rows], return_inverse=True)
    _check(uri, len(names), len(rows))
    items = Items(
        vectors=np.stack([row.vector for row in rows]),
        labels=codes.reshape(-1).astype(np.int64),
        class_names=tuple(map(str, names.tolist())),
        numbers=np.arange(len(rows)),
        names=tuple(row.path for row in rows),
        images=Thumbnails(rows) if any(row.thumbnail for row in rows) else None,
        masks={},
        what=f"items of {uri}",
    )
    without, name = store.count() - labelled, Path(uri.rstrip("/")).name
    facts = {
        "items": _counted(items) + (f", drawn at random from {labelled:,}" if labelled > len(rows) else ""),
        "without a class": f"{without:,}, which are left out" if without else "",
        "made by": describe_model(about.kind, about.run, about.network, about.precision),
        "gallery": uri,
    }
    ks = tuple(k for k in (1, 2, 4, 8) if k < len(rows))
    return Subject(name, items, {"ks": ks, "clustering": True}, {name: text for name, text in facts.items() if text})


def report_vectors(
    what: str,
    out: Path | None = None,
    *,
    map: Literal["tsne", "pca", "none"] = "tsne",
    fmr: float = FMR,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write the report of the vectors of a file or a gallery. Returns its path.

    Args:
        what: a .npz or .parquet file, or a gallery.
        out: by default its name with .html, in the same folder.
        map: how the map of the embeddings is computed, if at all.
        fmr: the false match rate whose threshold is drawn.
        seed: random seed of the sample if there are very many items.
        overwrite: replace `out`.
    """
    file = out or _beside(what)
    place = place_for("out", file, name="report.html", suffixes=(".html", ".htm"), overwrite=overwrite)
    check_seed("`seed`", seed)
    checked_fmr(fmr)
    subject = of_file(Path(what)) if is_vector_file(what) else of_gallery(open_gallery(what), what, seed=seed)
    write_page(place, vectors_page(subject, way=None if map == "none" else map, fmr=fmr, seed=seed))
    return file


def _beside(what: str) -> Path:
    """The default path of the report; the current folder for a gallery that is not in a folder."""
    if "://" in what:
        return Path(f"{what.rstrip('/').rpartition('/')[2]}.html")
    path = Path(what) if Path(what).name else Path(what).resolve()
    return path.with_suffix(".html") if is_vector_file(what) else path.with_name(f"{path.name}.html")


def vectors_page(subject: Subject, *, way: Way | None = "tsne", fmr: float = FMR, seed: int = 0) -> str:
    """The report of vectors as one HTML file.

    Args:
        way: how the map is made; None: without one.
        fmr: where the threshold is drawn.
    """
    items = subject.items
    with working("measuring"):
        measured = evaluate(
            items.vectors, items.labels, seeds=(0,), restarts=RESTARTS, bootstrap=1000, **subject.options
        )
    with working("finding neighbours and confusions"):
        looked = look(items, way=way, seed=seed)
    with working("writing"):
        on = f"{measured['queries']:,} queries of {measured['classes']:,} classes"
        result = Section(
            "result",
            "Result",
            metrics_table({"as they are": measured}, on) + rendered("facts.html", facts=subject.facts),
        )
        return page(
            f"{subject.title}: {_counted(items)}",
            "Each item is searched for among all others; vectors are compared by their cosine.",
            [result, *item_sections(looked, fmr)],
            heading=headline({"trained": measured}),
            made_by=f"Made by tammes {__version__} from {subject.title}. Everything is in this file.",
        )


def _counted(items: Items) -> str:
    number, dim = items.vectors.shape
    return f"{number:,} vectors of {dim:,} dimensions, {len(items.class_names):,} classes"


def _check(what: str, classes: int, number: int) -> None:
    if classes < 2 or classes == number:
        raise UserError(
            f"a report needs labels of two or more classes, one of which has two items: {what} has {number:,} items"
            f" with a label, of {classes:,} {'class' if classes == 1 else 'classes'}."
        )
