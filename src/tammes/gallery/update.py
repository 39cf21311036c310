"""Create a gallery of folders of images, bring it up to date with them, or rebuild it by another model.

Single images and vectors can be added too.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from hashlib import blake2b
from os import cpu_count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from numpy import ndarray

from tammes.data.folder import images_below
from tammes.data.table import is_table
from tammes.data.vectors import vectors
from tammes.errors import UserError
from tammes.gallery import OptimiseResult, Row, Store, indexing, open_gallery, rebuild
from tammes.gallery.indexing import Indexed, whole_path
from tammes.gallery.model import Model, describe_model, dim_of, model_of_vectors, recorded_model
from tammes.gallery.queries import unit_rows
from tammes.gallery.threshold import recalibrate
from tammes.gallery.trust import trust
from tammes.io.console import CONTINUE, progress, working
from tammes.io.machine import device
from tammes.models.embedder import Embedder
from tammes.training import distributed
from tammes.training.distributed import agreed

_STORED = 4096  # vectors that are stored together

Stopping = Callable[[], AbstractContextManager[Callable[[], bool]]]


class StoppedError(Exception):
    """The update was asked to stop before it was done; the message says what is safe."""


@dataclass(frozen=True)
class Updated:
    """What `update` did; `images`: how many the gallery has now."""

    images: int
    done: Indexed
    seconds: float
    optimised: OptimiseResult

    def record(self) -> dict[str, Any]:
        """The counts, for a program."""
        done, embedded = self.done, self.done.added + self.done.changed
        return {
            "images": self.images,
            "added": done.added,
            "changed": done.changed,
            "same": done.same + done.touched - done.relabelled,
            "relabelled": done.relabelled,
            "removed": done.removed,
            "broken": done.broken,
            "seconds": self.seconds,
            "images_per_second": embedded / self.seconds if embedded else None,
            "index": self.optimised.indexed,
            "recall_of_index": self.optimised.recall,
        }


@dataclass(frozen=True)
class Update:
    """What is to be done.

    Attributes:
        uri: where the gallery is, or will be.
        model: what embeds.
        folders: of images; tables of images too.
        rebuild: make the gallery again from these folders alone, by this model.
        labelled: whether the names of sub-folders are classes.
        empty_folders: whether images may go because a folder has none left, or because a rebuild leaves it out.
        trust_roots: whether files may be served also of the folders that the gallery names already.
        verify: read every file again, whatever its size and time say.
    """

    uri: str
    model: Model
    folders: tuple[Path, ...]
    rebuild: bool = False
    labelled: bool = True
    empty_folders: bool = False
    trust_roots: bool = False
    verify: bool = False


def update(
    what: Update,
    *,
    on: Literal["auto", "cpu"] | None = "auto",
    stopping: Stopping = lambda: nullcontext(lambda: False),
) -> Updated:
    """Embed what is new or changed, take out what is gone, and calibrate the threshold.

    Of several processes (`distributed.joined`) each embeds and stores the images of its own share; the first takes out
    what is gone and puts the gallery in order.

    Args:
        on: where the model embeds; None: where it is.
        stopping: a context in which images are embedded; asks after each batch whether to stop.

    Raises:
        UserError: the folders and the gallery do not fit together.
        StoppedError: it was stopped.
    """
    if what.rebuild and distributed.number() > 1:
        raise distributed.same_everywhere(
            "`rebuild=True` is for one process. Several may fill a new gallery: choose another `gallery`."
        )
    _check_images(what)
    before = existing(what.uri)
    if before is not None:
        _check_left_out(what, before) if what.rebuild else _check_model(what, before)
    embedder = what.model.build() if on is None else what.model.build().to(device(on))
    about = what.model.about(dim_of(embedder), tuple(str(whole_path(folder)) for folder in what.folders))
    beside = rebuild(what.uri, about) if what.rebuild else None
    store = beside or agreed(lambda: open_gallery(what.uri, create=about))
    _check_model(what, store)
    done, seconds = _embed(what, store, embedder, before if before is not None and what.rebuild else store, stopping)
    if beside is not None:
        beside.swap()
    elif store.replaced():
        raise UserError(
            f"{what.uri} was rebuilt by another program meanwhile, and does not have these images. The same command"
            " adds them."
        )
    finished = agreed(lambda: _finished(store, what.model, done, seconds) if distributed.is_first() else None)
    return finished or Updated(store.count(), done, seconds, OptimiseResult(0, False, None, ()))


def add_files(store: Store, model: Model, files: Sequence[Path], labels: Sequence[str] | None) -> Updated:
    """Embed and store single images, with these classes or those of the folders that were indexed before."""
    whole = [file.resolve() for file in files]
    started = perf_counter()
    done = Indexed(total=len(whole))
    difference = indexing.Difference(indexing.sources_of(whole, store.about.roots, labels), [], 0, [])
    with progress("embedding") as on_progress:
        for done in indexing.index(store, model.build(), difference, threads=cpu_count() or 1):
            on_progress(done.done, done.total)
    return _finished(store, model, done, perf_counter() - started)


@dataclass(frozen=True)
class VectorItems:
    """Vectors to store, what each is called and, if they have any, their classes."""

    vectors: ndarray
    keys: Sequence[str]
    labels: Sequence[str] | None = None

    def check(self, dim: int | None = None) -> None:
        """Refuse vectors that cannot be stored, before any of them is.

        Raises:
            UserError: they are not finite numbers, of another dimension, or zero; or a key is there twice, or empty.
        """
        array = self.vectors
        if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
            raise UserError(f"vectors must be numbers, a row each, got {array.dtype} in the shape {array.shape}.")
        if dim is not None and array.shape[1] != dim:
            raise UserError(f"the gallery holds vectors of {dim} numbers, got {array.shape[1]}.")
        for name, given in (("keys", self.keys), ("labels", self.labels)):
            if given is not None and len(given) != len(array):
                raise UserError(f"{name} must have one for each of {len(array)} vectors, got {len(given)}.")
        key, times = Counter(self.keys).most_common(1)[0]
        if times > 1:
            raise UserError(f"the key {key!r} is there {times} times: each vector needs its own.")
        if "" in self.keys:
            raise UserError(f"the key of vector {self.keys.index('')} is empty: name it.")
        for start in range(0, len(array), _STORED):
            unit_rows(array[start : start + _STORED], self.keys[start : start + _STORED])


def add_vectors(store: Store, model: Model, items: VectorItems) -> Updated:
    """Store vectors, normalised, in the place of those with the same keys."""
    items.check(store.about.dim)
    started = perf_counter()
    return _finished(store, model, _stored(store, [items]), perf_counter() - started)


def items_of_file(file: Path, *, labels: bool = True) -> VectorItems:
    """The vectors of a file; without paths they are called after it, so that two files have items of their own.

    Args:
        labels: with their classes, if it has any.
    """
    found = vectors(file, labelled=False)
    names = list(map(str, found.labels.tolist())) if labels and found.labelled else None
    return VectorItems(found.vectors, found.keys(f"{file.name}#"), names)


def index_vectors(
    uri: str, parts: Sequence[VectorItems], *, again: bool = False, empty_folders: bool = False
) -> Updated:
    """Make a gallery of vectors of any model, or add to one.

    Args:
        again: make it again from these vectors alone.
        empty_folders: whether a gallery of images may be replaced by them.

    Raises:
        UserError: the gallery there has vectors of a model that is known, or of another dimension.
    """
    for part in parts:
        part.check(parts[0].vectors.shape[-1])
    before, model = existing(uri), model_of_vectors()
    if before is not None and not again:
        about = before.about
        if about.kind != "vectors":
            raise UserError(
                f"{uri} was made by {describe_model(about.kind, about.run, about.network)}: vectors of another model"
                " cannot be compared with its own. Choose another gallery, or make it again: `rebuild=True`"
            )
        model = recorded_model(about, uri)
    if before is not None and again and before.about.roots and not empty_folders:
        raise UserError(
            f"{uri} has the images of {', '.join(before.about.roots)}, which a rebuild would take out. Choose another"
            " gallery, or add `empty_folders=True` if that is meant."
        )
    about = model.about(parts[0].vectors.shape[1])
    beside = rebuild(uri, about) if again else None
    store = beside or open_gallery(uri, create=about)
    for part in parts:
        part.check(store.about.dim)
    started = perf_counter()
    done = _stored(store, parts)
    if beside is not None:
        beside.swap()
    return _finished(store, model, done, perf_counter() - started)


def _stored(store: Store, parts: Sequence[VectorItems]) -> Indexed:
    """Store what the gallery does not have yet, some thousand vectors at a time."""
    known, total = store.fingerprints(), sum(len(part.keys) for part in parts)
    done = Indexed(total=total)
    with progress("storing") as on_progress:
        for part in parts:
            for start in range(0, len(part.keys), _STORED):
                rows = _rows(part, slice(start, start + _STORED))
                fresh = [row for row in rows if known.get(row.path) != row.fingerprint]
                if fresh:
                    store.upsert(fresh)
                new = sum(row.path not in known for row in fresh)
                done.added += new
                done.changed += len(fresh) - new
                done.same += len(rows) - len(fresh)
                on_progress(done.done + done.same, total)
    return done


def _rows(part: VectorItems, some: slice) -> list[Row]:
    keys = part.keys[some]
    names = [""] * len(keys) if part.labels is None else part.labels[some]
    return [
        # As the fingerprint of an image: what changes with the file, the content, the class.
        Row(key, vector, name, 0, 0, f":{blake2b(vector.tobytes(), digest_size=16).hexdigest()}:{name}", b"")
        for key, vector, name in zip(keys, unit_rows(part.vectors[some], keys), names, strict=True)
    ]


def _finished(store: Store, model: Model, done: Indexed, seconds: float) -> Updated:
    with working("compacting the gallery"):
        optimised = store.optimise()
    with working("calibrating the threshold"):
        recalibrate(store, model.trained_on)
    return Updated(store.count(), done, seconds, optimised)


def _check_model(what: Update, store: Store) -> None:
    """Refuse to add vectors of one model to those of another."""
    about = store.about
    if about.model != what.model.digest:
        made_by = describe_model(about.kind, about.run, about.network, about.precision)
        raise UserError(
            f"{what.uri} was made by another model, {made_by}: its vectors"
            f" cannot be compared with those of {what.model.describe()}. Make it again with"
            " `rebuild=True`, or choose another `gallery`."
        )


def _check_images(what: Update) -> None:
    """Refuse folders that would make a gallery without images."""
    if "://" in what.uri or Path(what.uri).exists():
        return  # what is wrong with a folder is said before a gallery is changed
    tables = [folder for folder in what.folders if is_table(folder)]
    folders = [folder for folder in what.folders if folder not in tables]
    if not any([images_below(whole_path(folder)) for folder in folders]) and not tables:  # noqa: C419 - look at all
        raise UserError(f"no images in {', '.join(map(str, what.folders))}.")


def existing(uri: str) -> Store | None:
    """The gallery, if there is one that can be read; what else is wrong is said when it is made."""
    try:
        return open_gallery(uri)
    except UserError:
        return None


def _check_left_out(what: Update, before: Store) -> None:
    """Refuse a rebuild that takes out images which were perhaps forgotten."""
    folders = [whole_path(folder) for folder in what.folders]
    left = [root for root in before.about.roots if not any(Path(root).is_relative_to(folder) for folder in folders)]
    if left and not what.empty_folders:
        raise UserError(
            f"{what.uri} also has the images of {', '.join(left)}, which a rebuild would take out. Name"
            f" {'them' if len(left) > 1 else 'it'} too, or add `empty_folders=True` if that is meant."
        )
    others = [path for path in before.fingerprints() if not any(Path(path).is_relative_to(each) for each in folders)]
    named = {each.path for each in indexing.difference({}, [each for each in folders if is_table(each)]).fresh}
    others = [path for path in others if path not in named]
    if others and not left and not what.empty_folders:
        raise UserError(
            f"{what.uri} also has {len(others):,} items that are in none of these folders, such as {others[0]!r}: a"
            " rebuild would take them out. Add `empty_folders=True` if that is meant."
        )


def _embed(what: Update, store: Store, embedder: Embedder, before: Store, stopping: Stopping) -> tuple[Indexed, float]:
    """Bring the rows up to date, and the seconds it took.

    Args:
        before: the gallery as it was, which tells a folder that was emptied; the store itself but for a rebuild.
    """
    folders, labelled = what.folders, what.labelled

    def differs(from_store: Store) -> indexing.Difference:
        return indexing.difference(
            from_store.fingerprints(), folders, roots=store.about.roots, labelled=labelled, verify=what.verify
        )

    with working("looking for what has changed"):
        difference = differs(before)
    if difference.emptied and not what.empty_folders:
        raise UserError(
            f"no image is left in {', '.join(map(str, difference.emptied))}, of which the gallery has some: is a disk"
            " not mounted? If they are meant to go, add `empty_folders=True`."
        )
    if before is not store:
        difference = differs(store)
    # Before the first image: whoever is stopped or killed later leaves no images of a folder that nobody knows.
    roots = [str(whole_path(folder)) for folder in folders]
    if not what.rebuild:
        store.describe(roots=roots)
    if distributed.is_first():
        trust(what.uri, [*roots, *(store.about.roots if what.trust_roots else ())], only=what.rebuild)
    difference = indexing.share(difference, distributed.rank(), distributed.number())
    started, done = perf_counter(), Indexed(total=len(difference.fresh), same=difference.same)
    with stopping() as stop, progress("embedding") as on_progress:
        if difference.fresh:
            on_progress(0, done.total)
        for done in indexing.index(store, embedder, difference, threads=cpu_count() or 1, stop=stop):
            if difference.fresh:
                on_progress(done.done, done.total)
        done = _of_all(done)
        (stopped,) = distributed.in_any(stop())
    if stopped and (done.done < done.total or done.removed < sum(distributed.summed([len(difference.gone)]))):
        if before is not store:
            raise StoppedError("the gallery is as it was. Run the same command again to start the rebuild over.")
        raise StoppedError(f"{done.done} of {done.total} images are done and safe. {CONTINUE}")
    return done, perf_counter() - started


def _of_all(done: Indexed) -> Indexed:
    """What all processes have done together."""
    said = [json.loads(each) for each in distributed.from_each(json.dumps(asdict(done)))]
    return Indexed(**{name: sum([each[name] for each in said[1:]], said[0][name]) for name in said[0]})
