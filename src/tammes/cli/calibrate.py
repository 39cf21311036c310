"""`tammes calibrate`: how near two embeddings must be to be taken for the same class."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import optional, percent, print_table
from tammes.cli.options import Device, Json, SkipBad
from tammes.errors import UserError
from tammes.io.console import print_json, say, working

if TYPE_CHECKING:
    from tammes.report.calibration import RunCalibration


@dataclass(frozen=True)
class Calibrate:
    """Find how near two images must be to be of the same class, and how often that is wrong.

    For a gallery: the distance beyond which an image is of none of its classes, measured on its own images and stored
    in it, where `search`, `label` and `serve` find it. `tammes index` already does this; repeat it for another
    --unknown-rate. For a run, to compare pairs of images without a gallery: measured on classes that were not trained
    on, and stored in the run folder as calibration.json.

    For example:
        tammes calibrate gallery --unknown-rate 0.05
        tammes calibrate runs/photos
        tammes calibrate runs/photos other-photos/ --fmr 1e-4 --json
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY|RUN")]
    """A gallery that `tammes index` made, or a run folder."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """For a run: other images to measure on (vectors for a run of vectors); all of their classes are measured."""
    unknown_rate: Annotated[float | None, optional("SHARE")] = None
    """For a gallery: the share of images of unknown classes that may be given a class. (default: both errors equally
    frequent)"""
    fmr: Annotated[float | None, optional("SHARE")] = None
    """For a run: the false match rate, the share of pairs of different classes that may be taken for the same class.
    (default: both errors equally frequent)"""
    on: Annotated[Literal["validation", "test"] | None, optional("{validation,test}")] = None
    """For a run: which of its classes to measure. (default: the validation classes if there are any, then checked on
    the test classes; otherwise the test classes)"""
    skip_bad: SkipBad = False
    device: Device = "auto"
    json: Json = False


def calibrate(config: Calibrate) -> None:
    """Calibrate a gallery or a run."""
    from tammes.gallery import is_gallery
    from tammes.training.run_folder import open_run

    if is_gallery(config.run):
        _of_gallery(config)
        return
    if config.unknown_rate is not None:
        no_gallery = f"and {config.run} is not one. Leave it out, or make one: tammes index"
        raise UserError(f"`unknown_rate` is for a gallery, {no_gallery}")
    from tammes.report.calibration import FEW, calibrate_run

    options = {name: getattr(config, name) for name in ("fmr", "on", "skip_bad", "device")}
    made = calibrate_run(open_run(Path(config.run)), config.data, **options)
    print_json(made.to_json()) if config.json else _show(made)
    if made.found.false_matches < FEW:
        say(
            f"warning: only {made.found.false_matches} false matches stand behind this threshold, too few to trust it."
            " Ask for a larger --fmr, or measure on more classes."
        )


def _of_gallery(config: Calibrate) -> None:
    from tammes.gallery import open_gallery
    from tammes.gallery.model import recorded_classes
    from tammes.gallery.threshold import calibrated

    for name in ("data", "fmr", "on", "skip_bad"):
        if getattr(config, name) not in (None, False):
            raise UserError(f"`{name}` is for a run, and {config.run} is a gallery: leave it out.")
    store = open_gallery(config.run)
    with working("calibrating on the gallery"):
        found = calibrated(store, recorded_classes(store.about), unknown_rate=config.unknown_rate)
    store.describe(threshold=found.to_json())
    if config.json:
        print_json(asdict(found))
        return
    print(f"{found.describe()} --unknown-rate moves this.")
    print(f"Measured on {found.items:,} images of {found.classes} classes of {config.run}, and kept in it.")


def _show(made: "RunCalibration") -> None:
    """A small table, and a sentence that explains it."""
    from tammes.report.calibration import describe_errors

    found, check, kind = made.found, made.check, made.kind
    columns = ("threshold", "false match rate, %", "same class found, %", "pairs of\ndifferent classes", "of the same")
    rows = []
    for label, row in (("calibrated", found), ("check on the\ntest classes", check)):
        if row is not None:
            low, high = row.threshold_interval or (0.0, 0.0)
            interval = "" if row.threshold_interval is None else f"\n[{low:.4f}, {high:.4f}]"
            false = percent(row.false_match_rate, row.false_match_interval, ".3g", ".3g")
            true = percent(row.true_match_rate, row.true_match_interval)
            pairs = (f"{row.other_pairs:,}", f"{row.same_pairs:,}")
            rows.append((label, f"{row.threshold:.4f}{interval}", false, true, *pairs))
    title = f"{made.measured_on}: {found.items:,} {kind}, {found.classes:,} classes"
    print_table(title, ("", *columns), rows, width=120)
    print(
        f"Two {kind} whose embeddings are no farther apart than {found.threshold:.4f} are taken for the same class."
        f" {describe_errors(found)} Change it with --fmr."
    )
    if check is not None:
        print(f"On the test classes, which did not choose it: {describe_errors(check)}")
