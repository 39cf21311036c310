"""`tammes label`: a class for each image of a folder, from its neighbours in a gallery."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Device, Json, MadeBy
from tammes.errors import UserError, check_distance, check_whole
from tammes.io.console import print_json, printable, say
from tammes.io.outputs import place_for

if TYPE_CHECKING:
    from tammes.gallery.classification import Classification
    from tammes.gallery.threshold import Threshold


@dataclass(frozen=True)
class Label:
    """Propose a class for each image of a folder: that of its neighbours in a gallery.

    The list has, for each image, the best guess, the distance to the nearest image of the gallery, the probability that
    the guess is right, and whether the image is accepted as one of a known class. New classes need no training: add
    images of them to the gallery. What is near enough is calibrated on the gallery's own images, searched for with and
    without their own class.

    For example:
        tammes label gallery new-photos/
        tammes label gallery new-photos/ --unknown-rate 0.01 --out labels.csv
    """

    gallery: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY")]
    """The gallery that `tammes index` made, of images in one sub-folder per class."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Images without a class."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 8
    """Number of neighbours that vote."""
    unknown_rate: Annotated[float | None, optional("SHARE")] = None
    """The share of images of unknown classes that may be given a class. (default: what `tammes calibrate` has set for
    the gallery, by default as many as images of known classes that are called unknown)"""
    threshold: Annotated[float | None, optional("DISTANCE")] = None
    """Call images unknown whose nearest neighbour is farther than this, instead of using the gallery's threshold."""
    out: Annotated[Path | None, optional("FILE.csv")] = None
    """Write the list there instead of printing it."""
    overwrite: bool = False
    """Replace that file if it exists."""
    model: MadeBy = None
    device: Device = "auto"
    json: Json = False


def label(config: Label) -> None:
    """Embed, ask the neighbours, show."""
    check_whole("-k", config.k)
    if config.unknown_rate is not None and not 0 < config.unknown_rate < 1:
        raise UserError(f"--unknown-rate must lie between 0 and 1, got {config.unknown_rate}.")
    if config.threshold is not None:
        check_distance("--threshold", config.threshold)
    if config.threshold is not None and config.unknown_rate is not None:
        raise UserError("--unknown-rate finds the threshold that --threshold gives: leave one out.")
    out = None
    if config.out is not None:
        out = place_for("out", config.out, name="labels.csv", suffixes=(".csv",), overwrite=config.overwrite)
    from tammes.data.folder import check_folder

    check_folder(config.folder)
    from tammes.gallery.classification import to_csv
    from tammes.gallery.gallery import Gallery
    from tammes.gallery.threshold import Threshold
    from tammes.io.files import write_atomically

    given = None if config.threshold is None else Threshold(config.threshold)
    found = Gallery(config.gallery, config.model, device=config.device, create=False).classify_folder(
        config.folder, given, k=config.k, unknown_rate=config.unknown_rate
    )
    for reason in found.broken:
        say(f"note: {printable(reason)}")
    table = to_csv(found.files, found.classifications)
    if out is not None:
        write_atomically(out, table)
    if config.json:
        every = zip(found.files, found.classifications, strict=True)
        images = [{"file": str(file)} | asdict(each) for file, each in every]
        print_json({"threshold": asdict(found.threshold), "images": images, "broken": found.broken})
        return
    if out is None:
        sys.stdout.write(table.decode(errors="surrogateescape"))
    else:
        print(f"{len(found.files)} images in {config.out}")
    _say(found.classifications, found.threshold)


def _say(found: "list[Classification]", threshold: "Threshold") -> None:
    """What the threshold means, for who reads the list."""
    unknown = sum(not each.accepted for each in found)
    say(f"{unknown} of {len(found)} images are unknown: not accepted as any class of the gallery.")
    if threshold.describe():
        say(f"{threshold.describe()} --unknown-rate moves this.")
        seen = "" if threshold.unseen else ", which the model was trained on or which are few: new photos may differ"
        say(f"Measured on {threshold.items:,} images of {threshold.classes} classes of the gallery{seen}.")
    if threshold.asked is not None and threshold.accepted is not None and threshold.accepted > threshold.asked:
        say(
            f"No threshold keeps to --unknown-rate {threshold.asked:g}: the model does not distinguish more images than"
            " that from one of another class. `tammes duplicates` lists them."
        )
