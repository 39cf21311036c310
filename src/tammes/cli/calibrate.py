"""`tammes calibrate`: how near two embeddings must be to be taken for the same class."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import check_for_images, optional
from tammes.errors import UserError
from tammes.io.console import print_json, say, working

if TYPE_CHECKING:
    from tammes.report.calibration import RunCalibration


@dataclass(frozen=True)
class Calibrate:
    """Find how near two images must be to be of the same class, and how often that is wrong.

    Of a gallery: the distance beyond which an image is of no class in the gallery, measured on its own images and kept
    in it, where `search`, `label` and `serve` find it. `tammes index` does that itself, so it is only needed for
    another --unknown-rate. Of a run, for pairs of images without a gallery: measured on classes that did not train,
    and kept in the run folder as calibration.json.

    For example:

    tammes calibrate gallery --unknown-rate 0.05

    tammes calibrate runs/photos

    tammes calibrate runs/photos other-photos/ --fmr 1e-4 --json
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY|RUN")]
    """A gallery that `tammes index` made, or a run folder."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """Of a run: other images to measure on (vectors for a run of vectors), all of their classes."""
    unknown_rate: Annotated[float | None, optional("SHARE")] = None
    """Of a gallery: the share of images of unknown classes that may be given a class; by default both errors are
    equally frequent."""
    fmr: Annotated[float | None, optional("SHARE")] = None
    """Of a run: the false match rate, the share of pairs of different classes that may be taken for the same; by
    default both errors are equally frequent."""
    on: Annotated[Literal["validation", "test"] | None, optional("{validation,test}")] = None
    """Which classes of the run's own data. By default the validation classes if there are any, and then the test
    classes check the threshold; otherwise the test classes."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and say how many."""
    device: Literal["auto", "cpu"] = "auto"
    """auto uses a GPU if there is one."""
    json: bool = False
    """Print one JSON object instead of a table."""


def calibrate(config: Calibrate) -> None:
    """Calibrate a gallery or a run."""
    from tammes.training.run_folder import is_run

    if "://" in config.run or (not is_run(Path(config.run)) and (Path(config.run) / "about.lance").exists()):
        _of_gallery(config)
    else:
        _of_run(config)


def _of_gallery(config: Calibrate) -> None:
    from tammes.gallery import open_gallery
    from tammes.gallery.gallery import trained_on
    from tammes.gallery.threshold import calibrated
    from tammes.training.run_folder import is_run, open_run

    for flag, given in (
        ("DATA", config.data is not None),
        ("--fmr", config.fmr is not None),
        ("--on", config.on is not None),
        ("--skip-bad", config.skip_bad),
    ):
        if given:
            raise UserError(f"{flag} is for a run, and {config.run} is a gallery: leave it out.")
    store = open_gallery(config.run)
    made_by = Path(store.about.run)
    trained = trained_on(open_run(made_by)) if is_run(made_by) else []
    with working("calibrating on the gallery"):
        found = calibrated(store, trained, unknown_rate=config.unknown_rate)
    store.describe(threshold=found.to_json())
    if config.json:
        print_json(asdict(found))
        return
    print(f"{found.describe()} --unknown-rate moves this.")
    print(f"Measured on {found.items:,} images of {found.classes} classes of {config.run}, and kept in it.")


def _of_run(config: Calibrate) -> None:
    from tammes.data import check_data
    from tammes.metrics.verification import checked_fmr
    from tammes.training.run_folder import open_finished

    check_data(config.data)
    if config.unknown_rate is not None:
        raise UserError(
            f"--unknown-rate is for a gallery, and {config.run} is not one. Leave it out, or make one: tammes index"
        )
    if config.fmr is not None:
        checked_fmr(config.fmr)
    if config.data is not None and config.on is not None:
        raise UserError("--on chooses among the run's own classes, and DATA is measured whole: give one of the two.")
    run = open_finished(Path(config.run))
    kind = check_for_images(run, skip_bad=config.skip_bad)
    from tammes.report.calibration import FEW, calibrate_items, classes_to_measure
    from tammes.run import items_of, say_known

    part = None if config.data is not None else classes_to_measure(run, config.on)
    items = items_of(run, config.data, part=part or "test", skip_bad=config.skip_bad, on=config.device)
    classes = run.read("classes", needs=("train", "test"))
    say_known(tuple(items.class_names[label] for label in sorted(set(items.labels.tolist()))), classes["train"])
    checks = part == "val" and bool(classes["test"])
    check = items_of(run, skip_bad=config.skip_bad, on=config.device) if checks else None
    made = calibrate_items(items, fmr=config.fmr, trained_on=classes["train"], check=check)
    if part == "test":
        say("note: the test classes chose this threshold, so they are no longer an independent test of it.")
    if (run.folder / "calibration.json").exists():
        say(f"note: an older calibration of {run.folder} is replaced.")
    run.write("calibration", made.to_json())
    if config.json:
        print_json(made.to_json())
    else:
        _show(made, kind)
    if made.found.false_matches < FEW:
        say(
            f"warning: only {made.found.false_matches} false matches stand behind this threshold, too few to trust it."
            " Ask for a larger --fmr, or measure on more classes."
        )


def _show(made: "RunCalibration", kind: str) -> None:
    """A small table, and a sentence that explains it."""
    from rich.console import Console
    from rich.table import Table

    from tammes.report.calibration import describe_errors

    found, check = made.found, made.check
    table = Table(title=f"{made.measured_on}: {found.items:,} {kind}, {found.classes:,} classes")
    columns = ("threshold", "false match rate, %", "same class found, %", "pairs of\ndifferent classes", "of the same")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in (("calibrated", found), ("check on the\ntest classes", check)):
        if row is not None:
            table.add_row(
                label,
                f"{row.threshold:.4f}{_interval(row.threshold_interval, '.4f')}",
                f"{100 * row.false_match_rate:.3g}{_interval(row.false_match_interval, '.3g', 100)}",
                f"{100 * row.true_match_rate:.2f}{_interval(row.true_match_interval, '.1f', 100)}",
                f"{row.other_pairs:,}",
                f"{row.same_pairs:,}",
            )
    Console(width=120).print(table)
    print(
        f"Two {kind} whose embeddings are no farther apart than {found.threshold:.4f} are taken for the same class."
        f" {describe_errors(found)} Change it with --fmr."
    )
    if check is not None:
        print(f"On the test classes, which did not choose it: {describe_errors(check)}")


def _interval(ends: tuple[float, float] | None, form: str, times: int = 1) -> str:
    return "" if ends is None else f"\n[{times * ends[0]:{form}}, {times * ends[1]:{form}}]"
