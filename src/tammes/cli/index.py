"""`tammes index`: make folders of images searchable."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.errors import UserError
from tammes.io.console import CONTINUE, if_stopped, print_json, printable, say

if TYPE_CHECKING:
    from tammes.gallery.update import Updated

SHOWN = 10  # broken images that are named


@dataclass(frozen=True)
class Index:
    """Embed the images of folders by a trained model, and keep them where `tammes search` finds them.

    Run again, it embeds only what is new or changed and takes out what is gone. It may be stopped at any moment, and
    run twice at once. The class of an image is the first folder on its path below the outermost folder that was
    indexed.

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
    """Make the gallery again from these folders, by another model or from scratch. The old one answers until the new
    one is complete and takes its place."""
    labels: bool = True
    """Take the names of the sub-folders for classes."""
    empty_folders: bool = False
    """Take images out of the gallery also where a folder has none left, or a rebuild leaves it out."""
    trust_roots: bool = False
    """Let `tammes serve` hand out the files also of folders that the gallery names already and that you have not
    indexed into it on this machine."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print what was done as one JSON object."""


def index(config: Index) -> None:
    """Compare, embed, store, show."""
    if not config.folders:
        raise UserError(f"which images? For example: tammes index {config.run} photos/ --gallery {config.gallery}")
    from tammes.data.folder import check_folder

    for folder in config.folders:
        check_folder(folder)
    from tammes.gallery.update import StoppedError, Update, update
    from tammes.training.train import stop_on_signal

    what = Update(
        config.gallery,
        config.run,
        config.folders,
        config.rebuild,
        config.labels,
        config.empty_folders,
        config.trust_roots,
    )
    kept = "The gallery is as it was." if config.rebuild else "What the gallery holds is safe."
    try:
        with if_stopped(then=f"{kept} {CONTINUE}"):
            updated = update(what, on=config.device, stopping=stop_on_signal)
    except StoppedError as stopped:
        say(f"Stopped; {stopped}")
        raise SystemExit(130) from None
    if config.json:
        print_json({"gallery": config.gallery, **updated.record()})
    else:
        _show(config.gallery, updated)


def _show(gallery: str, updated: "Updated") -> None:
    done, record = updated.done, updated.record()
    relabelled = f" {done.relabelled:,} of another class now," if done.relabelled else ""
    speed = f", {record['images_per_second']:.0f} images/s" if record["images_per_second"] else ""
    print(
        f"{gallery}: {updated.images:,} images; {done.added:,} added, {done.changed:,} changed,"
        f" {record['same']:,} unchanged,{relabelled} {done.removed:,} removed{speed}"
    )
    if updated.optimised.indexed:
        print(
            f"searched by an approximate index; its recall at 10 against exact search is {updated.optimised.recall:.3f}"
        )
    if done.broken:
        print(f"{len(done.broken)} images cannot be read and are not in it:")
        for reason in done.broken[:SHOWN]:
            print(f"  {printable(reason)}")
        if len(done.broken) > SHOWN:
            print("  … --json lists them all")
