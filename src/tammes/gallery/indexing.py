"""From folders of images to a gallery: what is new or changed is embedded, what is gone is taken out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from os import fspath
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from tammes.data.folder import images_below
from tammes.data.images import ROOM, check_shape, open_picture, small
from tammes.errors import UserError
from tammes.gallery.items import THUMBNAIL, Row, content_of
from tammes.gallery.store import Store
from tammes.io.files import opened
from tammes.io.limits import IMAGE
from tammes.models.embedder import Embedder

_BATCH = 256  # images that are stored together, and lost together if the program is killed


@dataclass(frozen=True)
class Difference:
    """What a gallery and the folders do not have in common.

    Attributes:
        fresh: files that the gallery does not have, or has otherwise; they are embedded if their content differs.
        gone: paths that the gallery has and the folders have no more.
        same: how many need nothing.
        emptied: folders of which the gallery has images and that have none any more.
    """

    fresh: list[Path]
    gone: list[str]
    same: int
    emptied: list[Path]


@dataclass
class Indexed:
    """What was done so far.

    Attributes:
        added: images that the gallery did not have; `changed`: those that it had otherwise.
        touched: files that were written again with the same content, or have another class: nothing to embed.
        relabelled: those of them that have another class.
        broken: what cannot be read, and why.
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
    folders: Sequence[Path],
    *,
    roots: Sequence[str] = (),
    labelled: bool = True,
    verify: bool = False,
) -> Difference:
    """What has to be done for a gallery to hold what is in the folders. Other folders' images are left alone.

    Args:
        known: the fingerprint of each path in the gallery.
        roots: the folders that the gallery was filled from before: see `label_of`.
        labelled: whether the folders' names are classes.
        verify: read every file: one may have been replaced by another of the same size and time.

    Raises:
        UserError: a folder is not there: a disk that is not mounted is no reason to forget its images.
    """
    given = [whole_path(folder) for folder in folders]
    files = list(dict.fromkeys(file for root in given for file in images_below(root)))
    there = {fspath(file) for file in files}
    as_labels = _outermost_first(given, roots) if labelled else []
    fresh = [
        file
        for file in files
        if verify
        or (mark := known.get(fspath(file))) is None
        or (_state(file), label_of(file, as_labels)) != (mark.split(":")[0], _label(mark))
    ]
    gone = [path for path in known if path not in there and any(Path(path).is_relative_to(root) for root in given)]
    emptied = [
        root
        for root in given
        if any(Path(path).is_relative_to(root) for path in gone)
        and not any(file.is_relative_to(root) for file in files)
    ]
    return Difference(fresh, gone, len(files) - len(fresh), emptied)


def whole_path(folder: Path) -> Path:
    """From the root and without `..`: the path of an image is its key, the same from wherever it is seen."""
    return folder.resolve()


def label_of(file: Path, folders: Sequence[Path]) -> str:
    """The class of an image: the first folder on the way to it; empty for one that lies in no folder of its own.

    The way begins at the first of the folders that has the image. The outermost of all that a gallery was filled from
    must come first: who adds photos/cats to a gallery of photos/ does not mean that cats have no class.

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


def index(
    store: Store,
    embedder: Embedder,
    folders: Sequence[Path],
    what: Difference,
    *,
    labelled: bool = True,
    labels: Mapping[str, str] | None = None,
    threads: int = 2,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Indexed]:
    """Embed and store what is new or changed, some hundred images at a time, then take out what is gone.

    Each yield comes after a batch is safe in the store, so that a program that is killed loses no more than the next
    one; run again, it continues. Two at once do the same work twice and leave the same gallery.

    Args:
        what: from `difference`.
        labelled: whether the folders' names are classes.
        labels: the class of each path instead, where the caller says it.
        threads: that read and shrink images while the network works.
        stop: asked after each batch; what is gone is then left for the next time.
    """
    known = store.fingerprints()
    so_far = Indexed(total=len(what.fresh), same=what.same)
    given = [whole_path(folder) for folder in folders]
    roots = _outermost_first(given, store.about.roots) if labelled else []

    def label(file: Path) -> str:
        return label_of(file, roots) if labels is None else labels[fspath(file)]

    with ThreadPoolExecutor(threads) as pool:
        reading = _ahead(pool, what.fresh, lambda file: _read(file, embedder, known), 2 * embedder.at_once + threads)
        while batch := list(islice(reading, _BATCH)):
            _store(store, embedder, batch, label, known, so_far)
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
    """The vectors of images that stay outside the gallery: which could be read, their vectors, and why others not."""
    read, vectors, broken, done = [], [], [], 0
    with ThreadPoolExecutor(threads) as pool:
        reading = _ahead(pool, files, lambda file: _read(file, embedder, {}), 2 * embedder.at_once + threads)
        while batch := list(islice(reading, _BATCH)):
            good = [each for each in batch if each.pixels is not None]
            read += [each.file for each in good]
            vectors += _vectors(embedder, good)
            broken += [str(each.broken) for each in batch if each.broken is not None]
            done += len(batch)
            if on_progress is not None:
                on_progress(done, len(files))
    return read, np.stack(vectors) if vectors else np.zeros((0, 1), np.float32), broken


@dataclass(frozen=True)
class _Image:
    """A file that was looked at: its pixels are None if the gallery has them already, or if it cannot be read."""

    file: Path
    fingerprint: str
    pixels: UInt8[ndarray, "channels height width"] | None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""
    broken: str | None = None
    seen: bool = True  # whether its content could be read at all, if not understood


def _read(file: Path, embedder: Embedder, known: Mapping[str, str]) -> _Image:
    try:
        before = _state(file)
        with opened(file, IMAGE) as source:
            content = source.read()
    except UserError as error:
        return _Image(file, "", None, broken=f"cannot read {file}: {error}", seen=False)
    except OSError as error:
        return _Image(file, "", None, broken=f"cannot read {file}: {error.strerror}.", seen=False)
    fingerprint = f"{before}:{blake2b(content, digest_size=16).hexdigest()}"
    if content_of(known.get(fspath(file), "")) == content_of(fingerprint):
        return _Image(file, fingerprint, None)
    try:
        with ROOM.for_picture(BytesIO(content)):
            image = open_picture(BytesIO(content), name=fspath(file))
            check_shape(image)
            return _Image(file, fingerprint, embedder.prepared(image), *image.size, small(image, THUMBNAIL))
    except (OSError, UserError) as error:
        said = str(error)
        return _Image(file, "", None, broken=said if fspath(file) in said else f"cannot use {file}: {said}")


def _store(
    store: Store,
    embedder: Embedder,
    batch: Sequence[_Image],
    label: Callable[[Path], str],
    known: Mapping[str, str],
    so_far: Indexed,
) -> None:
    """Embed and write a batch; the counts are set when it is safe."""
    fresh = [each for each in batch if each.pixels is not None]
    touched = [each for each in batch if each.pixels is None and each.broken is None]
    rows = [
        Row(
            path=fspath(each.file),
            vector=vector,
            label=label(each.file),
            width=each.width,
            height=each.height,
            fingerprint=f"{each.fingerprint}:{label(each.file)}",
            thumbnail=each.thumbnail,
        )
        for each, vector in zip(fresh, _vectors(embedder, fresh), strict=True)
    ]
    if touched:
        by_path = {fspath(each.file): each for each in touched}
        rows += [
            replace(
                row,
                label=(name := label(by_path[row.path].file)),
                fingerprint=f"{by_path[row.path].fingerprint}:{name}",
            )
            for row in store.get(list(by_path))
        ]
    if rows:
        store.upsert(rows)
    new = sum(fspath(each.file) not in known for each in fresh)
    so_far.added += new
    so_far.changed += len(fresh) - new
    so_far.touched += len(touched)
    so_far.relabelled += sum(_label(known[fspath(each.file)]) != label(each.file) for each in touched)
    broken = [each for each in batch if each.broken is not None]
    stale = [fspath(each.file) for each in broken if each.seen and fspath(each.file) in known]
    if stale:
        store.delete(stale)  # the gallery has it with a content that is gone
    so_far.broken += [str(each.broken) for each in broken]


@torch.inference_mode()
def _vectors(embedder: Embedder, images: Sequence[_Image]) -> list[ndarray]:
    found: list[ndarray] = []
    for start in range(0, len(images), embedder.at_once):
        pixels = np.stack([each.pixels for each in images[start : start + embedder.at_once] if each.pixels is not None])
        found += list(embedder(torch.from_numpy(pixels).to(embedder.mean.device)).float().cpu().numpy())
    return found


def _ahead(
    pool: ThreadPoolExecutor, files: Iterable[Path], read: Callable[[Path], _Image], most: int
) -> Iterator[_Image]:
    """What is read of the files, in their order, never more than so many in memory."""
    waiting, rest = [], iter(files)
    for file in islice(rest, most):
        waiting.append(pool.submit(read, file))
    while waiting:
        found = waiting.pop(0).result()
        for file in islice(rest, 1):
            waiting.append(pool.submit(read, file))
        yield found


def _state(file: Path) -> str:
    """What changes when a file is written; empty for one that is not there any more."""
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}"


def _label(fingerprint: str) -> str:
    """The class that it was stored with."""
    parts = fingerprint.split(":", 2)
    return parts[2] if len(parts) == 3 else ""
