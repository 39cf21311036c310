"""Index folders and tables of images: new and changed images are embedded, missing ones are removed."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from os import fspath
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray
from PIL import Image

from tammes.data.folder import images_below
from tammes.data.images import ROOM, check_shape, open_image, small
from tammes.data.parallel import in_order
from tammes.data.table import Box, cropped, is_table, name_in, table_lines
from tammes.errors import UserError
from tammes.gallery.filters import Value
from tammes.gallery.items import THUMBNAIL, Row, content_of, item_id
from tammes.gallery.store import Store
from tammes.io.files import opened
from tammes.io.limits import IMAGE
from tammes.io.machine import kept_memory
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import ImageFeatures

_BATCH = 256  # at most so many images are stored together
_SECONDS = 5.0  # about the time between two writes; a large network on a CPU takes seconds for one image


@dataclass(frozen=True)
class Source:
    """An image to index.

    Attributes:
        path: its key in the gallery: the path of the file, with the box of a crop.
        label: its class, or empty.
        fields: the other columns of its table.
    """

    path: str
    file: Path
    label: str = ""
    box: Box | None = None
    fields: Mapping[str, Value] = field(default_factory=dict)

    def read(self) -> Image.Image:
        """The image, or its crop."""
        return cropped(open_image(self.file), self.box, self.path, self.file)

    def state(self) -> str:
        """A fingerprint of the file's size and time and of its columns; empty for a missing file."""
        try:
            status = self.file.stat()
        except OSError:
            return ""
        columns = json.dumps(sorted(self.fields.items())).encode() if self.fields else b""
        mark = f"-{blake2b(columns, digest_size=8).hexdigest()}" if columns else ""
        return f"{status.st_size}-{status.st_mtime_ns}{mark}"


@dataclass(frozen=True)
class Difference:
    """The difference between a gallery and the folders.

    Attributes:
        fresh: new or changed images; they are embedded if their content differs.
        gone: paths in the gallery that no longer exist in the folders.
        same: the number of unchanged images.
        emptied: folders that have no images left but have some in the gallery.
    """

    fresh: list[Source]
    gone: list[str]
    same: int
    emptied: list[Path]


@dataclass
class Indexed:
    """The progress so far.

    Attributes:
        added: new images; `changed`: changed ones.
        touched: rewritten files with the same content, or another class: nothing to embed.
        relabelled: those of them with another class.
        broken: unreadable images with reasons.
    """

    total: int = 0
    same: int = 0
    added: int = 0
    changed: int = 0
    touched: int = 0
    relabelled: int = 0
    removed: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.added + self.changed + self.touched + len(self.broken)


def difference(
    known: Mapping[str, str],
    places: Sequence[Path],
    *,
    roots: Sequence[str] = (),
    labelled: bool = True,
    verify: bool = False,
) -> Difference:
    """The work that brings a gallery up to date with folders and tables. Other images are not changed.

    Args:
        known: the fingerprint of each path in the gallery.
        places: folders and tables; images that a table no longer lists stay.
        roots: the folders that were indexed before; see `label_of`.
        labelled: whether folder names, or the labels of a table, are classes.
        verify: read every file, as one may have been replaced by another of the same size and time.

    Raises:
        UserError: a folder does not exist, for example because a disk is not mounted.
    """
    given = [whole_path(place) for place in places]
    folders = [place for place in given if not is_table(place)]
    files = list(dict.fromkeys(file for root in folders for file in images_below(root)))
    there = {fspath(file) for file in files}
    as_labels = _outermost_first(folders, roots) if labelled else []
    sources = {fspath(file): Source(fspath(file), file, label_of(file, as_labels)) for file in files}
    for place in given:
        if is_table(place):
            sources |= {each.path: each for each in _of_table(place, labelled)}
    fresh = [
        each
        for each in sources.values()
        if verify
        or (mark := known.get(each.path)) is None
        or (each.state(), each.label) != (mark.split(":")[0], _label(mark))
    ]
    gone = [path for path in known if path not in there and any(Path(path).is_relative_to(root) for root in folders)]
    gone = [path for path in gone if path not in sources]
    emptied = [
        root
        for root in folders
        if any(Path(path).is_relative_to(root) for path in gone)
        and not any(file.is_relative_to(root) for file in files)
    ]
    return Difference(fresh, gone, len(sources) - len(fresh), emptied)


def share(what: Difference, rank: int, number: int) -> Difference:
    """The share of one of several processes.

    An image is always in the same share, as other processes may have stored some already.
    """
    if number == 1:
        return what
    fresh = [each for each in what.fresh if int(item_id(each.path), 16) % number == rank]
    return replace(what, fresh=fresh, gone=what.gone if rank == 0 else [], same=what.same if rank == 0 else 0)


def _of_table(file: Path, labelled: bool) -> list[Source]:
    lines = table_lines(file, labelled=False)
    files = [line.file.resolve() for line in lines]
    return [
        Source(name_in(line.box, fspath(place)), place, line.label if labelled else "", line.box, line.fields)
        for line, place in zip(lines, files, strict=True)
    ]


def whole_path(folder: Path) -> Path:
    """The absolute, normalised path of an image, its key."""
    return folder.resolve()


def label_of(file: Path, folders: Sequence[Path]) -> str:
    """The class of an image: the first folder on its path below a root; "" without one.

    The first root that contains the image is used. The outermost roots must come first: adding photos/cats to a gallery
    of photos/ must not remove the class of cats.

    >>> photos = Path("/photos")
    >>> label_of(photos / "cats" / "young" / "1.jpg", [photos]), label_of(photos / "1.jpg", [photos])
    ('cats', '')
    """
    for folder in folders:
        if file.is_relative_to(folder):
            parts = file.relative_to(folder).parts
            return parts[0] if len(parts) > 1 else ""
    return ""


def _outermost_first(folders: Sequence[Path], roots: Sequence[str]) -> list[Path]:
    return sorted({*folders, *map(Path, roots)}, key=lambda folder: (len(folder.parts), folder))


def sources_of(files: Sequence[Path], roots: Sequence[str], labels: Sequence[str] | None) -> list[Source]:
    """Single files with these classes, or by default those of the folders that were indexed before; each once."""
    names = [label_of(file, _outermost_first([], roots)) for file in files] if labels is None else labels
    every = (Source(fspath(file), file, label) for file, label in zip(files, names, strict=True))
    return list({each.path: each for each in every}.values())


def index(
    store: Store,
    embedder: Embedder,
    what: Difference,
    *,
    threads: int = 2,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Indexed]:
    """Embed and store new and changed images in batches of some seconds, then remove missing ones.

    Yields after each batch is stored, so that a killed program loses at most one batch; run again, it continues. Two
    programs at once do the same work twice, with the same result.

    Args:
        what: the result of `difference`.
        threads: threads that read and scale images while the network runs.
        stop: called after each batch; if True, missing images are removed the next time.
    """
    known = store.fingerprints()
    so_far = Indexed(total=len(what.fresh), same=what.same)
    features = ImageFeatures(embedder)
    with kept_memory(), closing(_read_ahead(what.fresh, embedder, known, threads)) as reading:
        for batch in _batches(reading, embedder.at_once):
            _store(store, features, batch, known, so_far)
            yield so_far
            if stop():
                return
    if what.gone:
        store.delete(what.gone)
        so_far.removed = len(what.gone)
    yield so_far


def vectors_of(
    embedder: Embedder,
    files: Sequence[Path],
    *,
    threads: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Path], Float32[ndarray, "images dim"], list[str]]:
    """Embed images without storing them: the readable ones, their vectors, and the reasons for the others."""
    read, vectors, broken, done, features = [], [], [], 0, ImageFeatures(embedder)
    sources = [Source(fspath(file), file) for file in files]
    with kept_memory(), closing(_read_ahead(sources, embedder, {}, threads)) as reading:
        for batch in _batches(reading, embedder.at_once):
            good = [each for each in batch if each.pixels is not None]
            read += [each.source.file for each in good]
            vectors += _vectors(features, good)
            broken += [str(each.broken) for each in batch if each.broken is not None]
            done += len(batch)
            if on_progress is not None:
                on_progress(done, len(files))
    return read, np.stack(vectors) if vectors else np.zeros((0, 1), np.float32), broken


@dataclass(frozen=True)
class _Image:
    """An image that was looked at: its pixels are None if the gallery has them already, or if it cannot be read."""

    source: Source
    fingerprint: str
    pixels: UInt8[ndarray, "channels height width"] | None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""
    key: bytes = b""  # of the cache of features
    broken: str | None = None
    seen: bool = True  # whether its content could be read at all, if not understood


def _read_ahead(
    sources: Sequence[Source], embedder: Embedder, known: Mapping[str, str], threads: int
) -> Generator[_Image, None, None]:
    """Read images ahead in threads, in order and with bounded memory."""
    return in_order(
        lambda index: _read(sources[index], embedder, known), len(sources), threads, 2 * embedder.at_once + threads
    )


def _batches(images: Iterator[_Image], at_once: int) -> Iterator[list[_Image]]:
    """Batches of whole passes through the network that take about `_SECONDS`, by the time of the batch before."""
    images_per_pass = min(at_once, _BATCH)
    passes, started = 1, perf_counter()
    while batch := list(islice(images, passes * images_per_pass)):
        yield batch
        seconds = max(perf_counter() - started, 1e-6) / len(batch) * images_per_pass
        passes, started = max(1, min(_BATCH // images_per_pass, int(_SECONDS / seconds))), perf_counter()


def _read(source: Source, embedder: Embedder, known: Mapping[str, str]) -> _Image:
    file = source.file
    try:
        before = source.state()
        with opened(file, IMAGE) as opened_file:
            content = opened_file.read()
    except UserError as error:
        return _Image(source, "", None, broken=f"cannot read {file}: {error}", seen=False)
    except OSError as error:
        return _Image(source, "", None, broken=f"cannot read {file}: {error.strerror}.", seen=False)
    fingerprint = f"{before}:{blake2b(content, digest_size=16).hexdigest()}:{source.label}"
    if content_of(known.get(source.path, "")) == content_of(fingerprint):
        return _Image(source, fingerprint, None)
    try:
        with ROOM.for_image(BytesIO(content)):
            image = open_image(BytesIO(content), name=fspath(file))
            image = cropped(image, source.box, source.path, file)
            check_shape(image)
            pixels, key = embedder.prepared_with_key(image)
            return _Image(source, fingerprint, pixels, *image.size, small(image, THUMBNAIL), key)
    except (OSError, UserError) as error:
        said = str(error)
        return _Image(source, "", None, broken=said if fspath(file) in said else f"cannot use {file}: {said}")


def _store(
    store: Store, features: ImageFeatures, batch: Sequence[_Image], known: Mapping[str, str], so_far: Indexed
) -> None:
    """Embed and store a batch, then update the counts."""
    fresh = [each for each in batch if each.pixels is not None]
    touched = {each.source.path: each for each in batch if each.pixels is None and each.broken is None}
    rows = [
        Row(
            path=each.source.path,
            vector=vector,
            label=each.source.label,
            width=each.width,
            height=each.height,
            fingerprint=each.fingerprint,
            thumbnail=each.thumbnail,
            fields=each.source.fields,
        )
        for each, vector in zip(fresh, _vectors(features, fresh), strict=True)
    ]
    for row in store.get(list(touched)) if touched else []:
        now = touched[row.path]
        rows.append(replace(row, label=now.source.label, fingerprint=now.fingerprint, fields=now.source.fields))
    if rows:
        store.upsert(rows)
    new = sum(each.source.path not in known for each in fresh)
    so_far.added += new
    so_far.changed += len(fresh) - new
    so_far.touched += len(touched)
    so_far.relabelled += sum(_label(known[path]) != each.source.label for path, each in touched.items())
    broken = [each for each in batch if each.broken is not None]
    stale = [each.source.path for each in broken if each.seen and each.source.path in known]
    if stale:
        store.delete(stale)  # the gallery has it with a content that is gone
    so_far.broken += [str(each.broken) for each in broken]


@torch.inference_mode()
def _vectors(features: ImageFeatures, images: Sequence[_Image]) -> list[ndarray]:
    """The unit vectors of images that could be read."""
    if not images:
        return []
    found = features([each.pixels for each in images if each.pixels is not None], [each.key for each in images])
    return list(features.embedder.embedding(found).float().cpu().numpy())


def _label(fingerprint: str) -> str:
    """The class that it was stored with."""
    parts = fingerprint.split(":", 2)
    return parts[2] if len(parts) == 3 else ""
