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

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError, check_distance
from tammes.io.console import print_json, printable, progress, say, working

if TYPE_CHECKING:
    from tammes.gallery.classification import Classification
    from tammes.gallery.threshold import Threshold


@dataclass(frozen=True)
class Label:
    """Propose a class for each image of a folder: that of its neighbours in a gallery.

    The list has the best guess for every image, the distance to the nearest image of the gallery, the probability that
    the guess is right, and whether the image is accepted as one of a known class. New classes need no training: put
    images of them into the gallery, and they are proposed. The gallery itself says what is near enough, by what its
    images find with and without their own class.

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
    unknown_rate: Annotated[float | None, optional("SHARE")] = None
    """The share of images of unknown classes that may be given a class; by default what `tammes calibrate` has set for
    the gallery: as many as there are images of known classes that are called unknown."""
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
    if config.unknown_rate is not None and not 0 < config.unknown_rate < 1:
        raise UserError(f"--unknown-rate must lie between 0 and 1, got {config.unknown_rate}.")
    if config.threshold is not None:
        check_distance("--threshold", config.threshold)
    if config.threshold is not None and config.unknown_rate is not None:
        raise UserError("--unknown-rate finds the threshold that --threshold gives: leave one out.")
    out = None
    if config.out is not None:
        out = place_for("--out", config.out, name="labels.csv", suffixes=(".csv",), overwrite=config.overwrite)
    from tammes.data.folder import check_folder, images_below

    check_folder(config.folder)
    from tammes.gallery.classification import classify
    from tammes.gallery.gallery import Gallery
    from tammes.gallery.indexing import vectors_of, whole_path
    from tammes.gallery.threshold import Threshold, calibrated
    from tammes.io.files import write_atomically

    opened = Gallery(config.gallery, config.model, config.device)
    files = images_below(whole_path(config.folder))
    if not files:
        raise UserError(f"no images in {config.folder}.")
    if config.threshold is not None:
        threshold = Threshold(config.threshold)
    else:
        with working("calibrating on the gallery"):
            kept = opened.threshold if config.unknown_rate is None else None
            if kept is None or kept.accepted is None:  # that of a run: says why the gallery cannot be calibrated on
                kept = calibrated(opened.store, opened.trained_on, unknown_rate=config.unknown_rate)
            threshold = kept
    with progress("embedding") as on_progress:
        paths, vectors, broken = vectors_of(opened.embedder, files, threads=cpu_count() or 1, on_progress=on_progress)
    if not paths:
        raise UserError(f"none of the {len(files)} images in {config.folder} can be read: {broken[0]}")
    with progress("searching") as on_progress:
        proposals = classify(
            opened.store,
            vectors,
            threshold,
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
                "threshold": asdict(threshold),
                "images": [{"file": str(path)} | asdict(each) for path, each in zip(paths, proposals, strict=True)],
                "broken": broken,
            }
        )
        return
    if out is None:
        sys.stdout.write(_table(paths, proposals).decode(errors="surrogateescape"))
    else:
        write_atomically(out, _table(paths, proposals))
        print(f"{len(paths)} images in {config.out}")
    _say(proposals, threshold)


def _table(paths: list[Path], proposals: "list[Classification]") -> bytes:
    """The proposals as CSV."""
    content = StringIO()
    writer = csv.writer(content)
    writer.writerow(["file", "best_guess", "distance", "probability", "accepted"])
    for path, each in zip(paths, proposals, strict=True):
        distance = "" if each.distance is None else f"{each.distance:.4f}"
        probability = "" if each.probability is None else f"{each.probability:.3f}"
        writer.writerow([str(path), each.best_guess, distance, probability, "yes" if each.accepted else "no"])
    # Bytes of a file's name that are no characters go out as they are; other halves of characters stand for no byte.
    text = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], content.getvalue())
    return text.encode(errors="surrogateescape")


def _say(proposals: "list[Classification]", threshold: "Threshold") -> None:
    """What the threshold means, for who reads the list."""
    unknown = sum(not each.accepted for each in proposals)
    say(f"{unknown} of {len(proposals)} images are unknown: not accepted as one of a class of the gallery.")
    if threshold.in_words():
        say(f"{threshold.in_words()} --unknown-rate moves this.")
        seen = "" if threshold.unseen else ", which the model was trained on or which are few: new photos may differ"
        say(f"Measured on {threshold.items:,} images of {threshold.classes} classes of the gallery{seen}.")
    if threshold.asked is not None and threshold.accepted is not None and threshold.accepted > threshold.asked:
        say(
            f"No threshold keeps to --unknown-rate {threshold.asked:g}: more images than that are the same to the model"
            " as one of another class. `tammes duplicates` lists them."
        )
