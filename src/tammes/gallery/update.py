"""Create a gallery of folders of images, bring it up to date with them, or rebuild it by another model."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from tammes.data.folder import images_below
from tammes.errors import UserError
from tammes.gallery import OptimiseResult, Store, indexing, open_gallery, rebuild
from tammes.gallery.gallery import model_digest, trained_on
from tammes.gallery.indexing import Indexed, whole_path
from tammes.gallery.store import About
from tammes.gallery.threshold import recalibrate
from tammes.gallery.trust import trust
from tammes.io.console import CONTINUE, progress, working
from tammes.io.machine import device
from tammes.models.embedder import Embedder, load
from tammes.training.run_folder import open_finished

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
        run: the folder of the run whose model embeds.
        rebuild: make the gallery again from these folders alone, by this model.
        labelled: whether the names of sub-folders are classes.
        empty_folders: whether images may go because a folder has none left, or because a rebuild leaves it out.
        trust_roots: whether files may be served also of the folders that the gallery names already.
    """

    uri: str
    run: Path
    folders: tuple[Path, ...]
    rebuild: bool = False
    labelled: bool = True
    empty_folders: bool = False
    trust_roots: bool = False


def update(
    what: Update,
    *,
    on: Literal["auto", "cpu"] = "auto",
    stopping: Stopping = lambda: nullcontext(lambda: False),
) -> Updated:
    """Embed what is new or changed, take out what is gone, and calibrate the threshold.

    Args:
        stopping: a context in which images are embedded; asks after each batch whether to stop.

    Raises:
        UserError: the folders and the gallery do not fit together.
        StoppedError: it was stopped.
    """
    run = open_finished(what.run)
    _check_images(what)
    digest = model_digest(run)
    before = _existing(what.uri)
    if before is not None:
        _check_left_out(what, before) if what.rebuild else _check_model(what, before, digest)
    embedder = load(run.folder).to(device(on))
    dim = embedder.config.class_dim if embedder.config.embedding == "last" else embedder.config.dim
    about = About(
        model=digest,
        run=str(run.folder.absolute()),
        dim=int(dim or embedder.config.dim),
        roots=tuple(str(whole_path(folder)) for folder in what.folders),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    beside = rebuild(what.uri, about) if what.rebuild else None
    store = beside or open_gallery(what.uri, create=about)
    _check_model(what, store, digest)
    done, seconds = _embed(what, store, embedder, before if before is not None and what.rebuild else store, stopping)
    if beside is not None:
        beside.swap()
    elif store.replaced():
        raise UserError(
            f"{what.uri} was rebuilt by another program meanwhile, and does not have these images. The same command"
            " adds them."
        )
    with working("putting the gallery in order"):
        optimised = store.optimise()
    with working("calibrating the threshold"):
        recalibrate(store, trained_on(run))
    return Updated(store.count(), done, seconds, optimised)


def _check_model(what: Update, store: Store, digest: str) -> None:
    """Refuse to add vectors of one model to those of another."""
    if store.about.model != digest:
        raise UserError(
            f"{what.uri} was made by another model, that of {store.about.run}: its vectors cannot be compared"
            f" with those of {what.run}. Make it again with `rebuild=True`, or choose another `gallery`."
        )


def _check_images(what: Update) -> None:
    """Refuse folders that would make a gallery without images."""
    if "://" in what.uri or Path(what.uri).exists():
        return  # what is wrong with a folder is said before a gallery is changed
    if not any([images_below(whole_path(folder)) for folder in what.folders]):  # noqa: C419 - look at all of them
        raise UserError(f"no images in {', '.join(map(str, what.folders))}.")


def _existing(uri: str) -> Store | None:
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


def _embed(what: Update, store: Store, embedder: Embedder, before: Store, stopping: Stopping) -> tuple[Indexed, float]:
    """Bring the rows up to date, and the seconds it took.

    Args:
        before: the gallery as it was, which tells a folder that was emptied; the store itself but for a rebuild.
    """
    folders, labelled = what.folders, what.labelled

    def differs(from_store: Store) -> indexing.Difference:
        return indexing.difference(from_store.fingerprints(), folders, roots=store.about.roots, labelled=labelled)

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
    trust(what.uri, [*roots, *(store.about.roots if what.trust_roots else ())], only=what.rebuild)
    started, done = perf_counter(), Indexed(total=len(difference.fresh), same=difference.same)
    with stopping() as stop, progress("embedding") as on_progress:
        for done in indexing.index(
            store, embedder, folders, difference, labelled=labelled, threads=cpu_count() or 1, stop=stop
        ):
            on_progress(done.done, done.total)
        stopped = stop()
    if stopped and (done.done < done.total or done.removed < len(difference.gone)):
        if before is not store:
            raise StoppedError("the gallery is as it was. Run the same command again to start the rebuild over.")
        raise StoppedError(f"{done.done} of {done.total} images are done and safe. {CONTINUE}")
    return done, perf_counter() - started
