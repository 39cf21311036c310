"""`tammes label`: a class for each image of a folder, from its neighbours in a gallery."""

import csv
import re
import sys
from dataclasses import asdict, dataclass
from io import StringIO
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import optional, print_json, printable, progress, say, working
from tammes.cli.outputs import place_for
from tammes.errors import UserError, check_distance

if TYPE_CHECKING:
    from tammes.gallery.proposals import Proposal, Threshold


@dataclass(frozen=True)
class Label:
    """Propose a class for each image of a folder: that of its neighbours in a gallery, or `unknown`.

    New classes need no training: put images of them into the gallery, and they are proposed. An image whose nearest
    neighbour is too far away is of no class of the gallery; how far that is, the gallery itself tells, by what its
    images find when their own class is left out.

    For example:

    tammes label gallery new-photos/

    tammes label gallery new-photos/ --unknown-rate 0.01 --out labels.csv
    """

    gallery: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY")]
    """The gallery that `tammes index` made, of images in one sub-folder per class."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Images without a class."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 8
    """Neighbours that vote."""
    unknown_rate: float = 0.05
    """The share of images of unknown classes that may be given a class by mistake."""
    threshold: Annotated[float | None, optional("DISTANCE")] = None
    """Take images whose nearest neighbour is farther than this for unknown, instead of asking the gallery."""
    out: Annotated[Path | None, optional("FILE.csv")] = None
    """Write the proposals there instead of printing them."""
    overwrite: bool = False
    """Replace that file if it exists."""
    model: Annotated[Path | None, optional("RUN")] = None
    """Where the run that made the gallery is now, if it was moved."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print one JSON object instead of CSV."""


def label(config: Label) -> None:
    """Embed, ask the neighbours, show."""
    if config.k < 1:
        raise UserError(f"-k must be at least 1, got {config.k}.")
    if not 0 < config.unknown_rate < 1:
        raise UserError(f"--unknown-rate must lie between 0 and 1, got {config.unknown_rate}.")
    if config.threshold is not None:
        check_distance("--threshold", config.threshold)
    if config.threshold is not None and config.unknown_rate != Label.unknown_rate:
        raise UserError("--unknown-rate finds the threshold that --threshold gives: leave one out.")
    out = None
    if config.out is not None:
        out = place_for("--out", config.out, name="labels.csv", suffixes=(".csv",), overwrite=config.overwrite)
    from tammes.datasets.folder import check_folder, images_below

    check_folder(config.folder)
    from tammes.gallery.indexing import vectors_of, whole_path
    from tammes.gallery.opened import Opened
    from tammes.gallery.proposals import UNKNOWN, propose, threshold_for
    from tammes.runtime import write_atomically

    opened = Opened(config.gallery, config.model, config.device)
    if UNKNOWN in opened.store.labels():
        raise UserError(
            f"{config.gallery} has a class called {UNKNOWN!r}, as images of no class of the gallery are called. Rename"
            " its folder, and `tammes index` again."
        )
    files = images_below(whole_path(config.folder))
    if not files:
        raise UserError(f"no images in {config.folder}.")
    found_on: Threshold | None = None
    if config.threshold is None:
        with working("asking the gallery how far unknown images are"):
            found_on = threshold_for(opened.store, config.unknown_rate, opened.trained_on)
        distance = found_on.distance
    else:
        distance = config.threshold
    with progress("embedding") as on_progress:
        paths, vectors, broken = vectors_of(opened.embedder, files, threads=cpu_count() or 1, on_progress=on_progress)
    if not paths:
        raise UserError(f"none of the {len(files)} images in {config.folder} can be read: {broken[0]}")
    with progress("searching") as on_progress:
        proposals = propose(
            opened.store,
            vectors,
            distance,
            k=config.k,
            leave_out=[str(path) for path in paths],
            on_progress=on_progress,
        )
    for reason in broken:
        say(f"note: {printable(reason)}")
    if config.json:
        if out is not None:
            write_atomically(out, _table(paths, proposals))
        print_json(
            {
                "threshold": distance,
                "found_on": None if found_on is None else asdict(found_on),
                "images": [{"path": str(path)} | asdict(each) for path, each in zip(paths, proposals, strict=True)],
                "broken": broken,
            }
        )
        return
    if out is None:
        sys.stdout.write(_table(paths, proposals).decode(errors="surrogateescape"))
    else:
        write_atomically(out, _table(paths, proposals))
        print(f"{len(paths)} images in {config.out}")
    _say(proposals, distance, found_on, config.unknown_rate)


def _table(paths: list[Path], proposals: "list[Proposal]") -> bytes:
    """The proposals as CSV."""
    content = StringIO()
    writer = csv.writer(content)
    writer.writerow(["path", "label", "confidence", "distance", "nearest", "runner_up"])
    for path, each in zip(paths, proposals, strict=True):
        distance = "" if each.distance is None else f"{each.distance:.6f}"
        writer.writerow([str(path), each.label, f"{each.confidence:.4f}", distance, each.nearest, each.runner_up])
    # Bytes of a file's name that are no characters go out as they are; other halves of characters stand for no byte.
    text = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], content.getvalue())
    return text.encode(errors="surrogateescape")


def _say(proposals: "list[Proposal]", distance: float, found_on: "Threshold | None", asked: float) -> None:
    """What the threshold means, for who reads the list."""
    from tammes.gallery.proposals import UNKNOWN

    unknown = sum(each.label == UNKNOWN for each in proposals)
    say(f"{unknown} of {len(proposals)} images are unknown: farther than {distance:.4f} from all with a class.")
    if found_on is not None:
        which = "none of which trained" if found_on.unseen else "some of which trained, and lie better than others"
        say(
            f"By {found_on.items} images of {found_on.classes} classes of the gallery, {which}:"
            f" {100 * found_on.rate:.3g} % of the images of unknown classes are no farther, and"
            f" {100 * found_on.rejected:.1f} % of those of known classes have none of their own class so near."
        )
        if found_on.rate > asked:
            say(
                f"No distance keeps to --unknown-rate {asked:g}: more images than that are the same to the model as one"
                " of another class. `tammes duplicates` lists them."
            )
