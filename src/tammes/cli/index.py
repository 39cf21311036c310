"""`tammes index`: make folders of images searchable."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.errors import UserError
from tammes.io.console import CONTINUE, if_stopped, print_json, printable, progress, say, working

if TYPE_CHECKING:
    from tammes.gallery.indexing import Indexed
    from tammes.gallery.store import OptimiseResult, Store
    from tammes.models.embedder import Embedder
    from tammes.training.run_folder import Run

SHOWN = 10  # broken images that are named


@dataclass(frozen=True)
class Index:
    """Embed the images of folders by a trained model, and keep them where `tammes search` finds them.

    Run again, it embeds only what is new or changed and takes out what is gone. It may be stopped at any moment, and
    run twice at once. The first folder on the way to an image is its class; the way begins at the outermost folder that
    the gallery was made of.

    For example:

    tammes index runs/photos photos/ --gallery gallery

    tammes index runs/photos photos/ more/ --gallery s3://bucket/gallery

    tammes index runs/better photos/ --gallery gallery --rebuild
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run of images."""
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER…")]
    """Folders of images, sub-folders included."""
    gallery: Annotated[str, tyro.conf.arg(metavar="FOLDER|s3://…|qdrant://host:port/name")]
    """Where the gallery is, or will be."""
    rebuild: bool = False
    """Make the gallery anew, by another model or from scratch, of these folders: beside the old one, which answers
    until the new one is whole and takes its place."""
    labels: bool = True
    """Take the names of the sub-folders for classes."""
    empty_folders: bool = False
    """Take a folder that has no image left, or that a rebuild leaves out, for what is meant, and its images out of the
    gallery."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print what was done as one JSON object."""


def index(config: Index) -> None:
    """Compare, embed, store, show."""
    kept = "The gallery is as it was." if config.rebuild else "What the gallery holds is safe."
    with if_stopped(then=f"{kept} {CONTINUE}"):
        _index(config)


def _index(config: Index) -> None:
    if not config.folders:
        raise UserError(f"which images? For example: tammes index {config.run} photos/ --gallery {config.gallery}")
    from datetime import UTC, datetime

    from tammes.data.folder import check_folder

    for folder in config.folders:
        check_folder(folder)
    from tammes.gallery import open_gallery, rebuild
    from tammes.gallery.gallery import model_digest
    from tammes.gallery.indexing import whole_path
    from tammes.gallery.store import About
    from tammes.io.machine import device
    from tammes.models.embedder import load
    from tammes.training.run_folder import open_finished

    run = open_finished(config.run)
    _check_folders(config)
    digest = model_digest(run)
    before = _existing(config)
    if before is not None:
        _check_left_out(config, before) if config.rebuild else _check_model(config, before, digest)
    embedder = load(run.folder).to(device(config.device))
    dim = embedder.config.class_dim if embedder.config.embedding == "last" else embedder.config.dim
    about = About(
        model=digest,
        run=str(run.folder.absolute()),
        dim=int(dim or embedder.config.dim),
        roots=tuple(str(whole_path(folder)) for folder in config.folders),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    beside = rebuild(config.gallery, about) if config.rebuild else None
    store = beside or open_gallery(config.gallery, create=about)
    _check_model(config, store, digest)
    done, seconds = _update(config, store, embedder, before if before is not None and config.rebuild else store)
    if beside is not None:
        beside.swap()
    elif store.replaced():
        raise UserError(
            f"{config.gallery} was made anew by another program meanwhile, and does not have these images. The same"
            " command adds them."
        )
    known = store.about.roots
    added = (root for root in about.roots if not any(Path(root).is_relative_to(each) for each in known))
    store.describe(replace(store.about, roots=(*known, *added)))
    with working("putting the gallery in order"):
        order = store.optimise()
    with working("calibrating the threshold"):
        _calibrate(store, run)
    _show(config, store, done, seconds, order)


def _check_model(config: Index, store: "Store", digest: str) -> None:
    """Refuse to add vectors of one model to those of another."""
    if store.about.model != digest:
        raise UserError(
            f"{config.gallery} was made by another model, that of {store.about.run}: its vectors cannot be compared"
            f" with those of {config.run}. Make it again with --rebuild, or choose another --gallery."
        )


def _calibrate(store: "Store", run: "Run") -> None:
    """Have the gallery hold the threshold of the images that it has now, at the rate that was asked for before."""
    from tammes.gallery.gallery import trained_on
    from tammes.gallery.threshold import calibrated, stored_threshold

    before, trained = stored_threshold(store), trained_on(run)
    try:
        found = calibrated(store, trained, unknown_rate=None if before is None else before.asked).to_json()
    except UserError:  # too few classes
        found = ""
    if found != store.about.threshold:
        store.describe(replace(store.about, threshold=found))


def _check_folders(config: Index) -> None:
    """Refuse what would leave a gallery without an image behind."""
    from tammes.data.folder import images_below
    from tammes.gallery.indexing import whole_path

    if "://" in config.gallery or Path(config.gallery).exists():
        return  # what is wrong with a folder is said before a gallery is changed
    if not any([images_below(whole_path(folder)) for folder in config.folders]):  # noqa: C419 - look at all of them
        raise UserError(f"no images in {', '.join(map(str, config.folders))}.")


def _existing(config: Index) -> "Store | None":
    """The gallery, if there is one that can be read; what else is wrong is said when it is to be made."""
    from tammes.gallery import open_gallery

    try:
        return open_gallery(config.gallery)
    except UserError:
        return None


def _check_left_out(config: Index, before: "Store") -> None:
    """Refuse a rebuild that would take images out that may not be meant."""
    from tammes.gallery.indexing import whole_path

    folders = [whole_path(folder) for folder in config.folders]
    left = [root for root in before.about.roots if not any(Path(root).is_relative_to(folder) for folder in folders)]
    if left and not config.empty_folders:
        raise UserError(
            f"{config.gallery} also has the images of {', '.join(left)}, which a rebuild would take out. Name"
            f" {'them' if len(left) > 1 else 'it'} too, or add --empty-folders if that is meant."
        )


def _update(config: Index, store: "Store", embedder: "Embedder", before: "Store") -> tuple["Indexed", float]:
    """Bring the store up to date.

    Args:
        before: the gallery as it was, which tells a folder that was emptied; the store itself but for a rebuild.
    """
    from os import cpu_count
    from time import perf_counter

    from tammes.gallery.indexing import Indexed, difference, index
    from tammes.training.train import stop_on_signal

    with working("looking for what has changed"):
        roots = store.about.roots
        what = difference(before.fingerprints(), config.folders, roots=roots, labelled=config.labels)
    if what.emptied and not config.empty_folders:
        raise UserError(
            f"no image is left in {', '.join(map(str, what.emptied))}, of which the gallery has some: is a disk not"
            " mounted? If they are meant to go, add --empty-folders."
        )
    if before is not store:
        what = difference(store.fingerprints(), config.folders, roots=roots, labelled=config.labels)
    started, done = perf_counter(), Indexed(total=len(what.fresh), same=what.same)
    with stop_on_signal() as stop, progress("embedding") as on_progress:
        for done in index(
            store, embedder, config.folders, what, labelled=config.labels, threads=cpu_count() or 1, stop=stop
        ):
            on_progress(done.done, done.total)
        stopped = stop()
    if stopped and (done.done < done.total or done.removed < len(what.gone)):
        if before is not store:
            say("Stopped; the gallery is as it was. Run the same command again to start the rebuild over.")
        else:
            say(f"Stopped; {done.done} of {done.total} images are done and safe. {CONTINUE}")
        raise SystemExit(130)
    return done, perf_counter() - started


def _show(config: Index, store: "Store", done: "Indexed", seconds: float, order: "OptimiseResult") -> None:
    embedded = done.added + done.changed
    record = {
        "gallery": config.gallery,
        "images": store.count(),
        "added": done.added,
        "changed": done.changed,
        "same": done.same + done.touched - done.relabelled,
        "relabelled": done.relabelled,
        "removed": done.removed,
        "broken": done.broken,
        "seconds": seconds,
        "images_per_second": embedded / seconds if embedded else None,
        "index": order.indexed,
        "recall_of_index": order.recall,
    }
    if config.json:
        print_json(record)
        return
    relabelled = f" {done.relabelled:,} of another class now," if done.relabelled else ""
    speed = f", {embedded / seconds:.0f} images/s" if embedded else ""
    print(
        f"{config.gallery}: {record['images']:,} images; {done.added:,} added, {done.changed:,} changed,"
        f" {record['same']:,} as they were,{relabelled} {done.removed:,} removed{speed}"
    )
    if order.indexed:
        print(f"searched by an approximate index; its recall at 10 against exact search is {order.recall:.3f}")
    if done.broken:
        print(f"{len(done.broken)} images cannot be read and are not in it:")
        for reason in done.broken[:SHOWN]:
            print(f"  {printable(reason)}")
        if len(done.broken) > SHOWN:
            print("  … --json lists them all")
