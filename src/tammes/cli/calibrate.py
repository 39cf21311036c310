"""`tammes calibrate`: how near two embeddings must be to be taken for the same class."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.train import check_data, of_vectors
from tammes.errors import UserError
from tammes.io.console import print_json, progress, say, working

if TYPE_CHECKING:
    from tammes.metrics.verification import Calibration, PairCounts
    from tammes.training.embedding import Items
    from tammes.training.run_folder import Run

FEW = 10  # false matches: a threshold that rests on fewer is a matter of luck


@dataclass(frozen=True)
class Calibrate:
    """Find the threshold up to which images are taken for the same class, and how often that is wrong.

    Of a gallery: the distance from which on an image is of no class of it, by its own images; kept in the gallery,
    where `search`, `label` and `serve` find it. `tammes index` does that by itself, so it is needed for another
    --unknown-rate only. Of a run, for pairs of images without a gallery: measured on classes that did not train, and
    kept in the run folder as calibration.json.

    For example:

    tammes calibrate gallery --unknown-rate 0.05

    tammes calibrate runs/photos

    tammes calibrate runs/photos other-photos/ --fmr 1e-4 --json
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY|RUN")]
    """A gallery that `tammes index` made, or a run folder."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """Of a run: images, or vectors for a run of vectors, to measure on, all of their classes; by default classes of the
    run's own data."""
    unknown_rate: Annotated[float | None, optional("SHARE")] = None
    """Of a gallery: the share of images of unknown classes that may be given a class; by default as many as there are
    images of known classes that are called unknown."""
    fmr: Annotated[float | None, optional("SHARE")] = None
    """Of a run: the false match rate, the share of the pairs of different classes that may be taken for the same; by
    default as many as there are pairs of the same class that are missed."""
    on: Annotated[Literal["validation", "test"] | None, optional("{validation,test}")] = None
    """Which classes of the run's own data. By default the validation classes if there are any (--val-classes of
    training), and then the test classes check the threshold; otherwise the test classes."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and say how many."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print one JSON object instead of a table."""


def calibrate(config: Calibrate) -> None:
    """Embed, count pairs, choose, check, keep, show."""
    from tammes.training.run_folder import is_run

    if "://" in config.run or (not is_run(Path(config.run)) and (Path(config.run) / "about.lance").exists()):
        _of_gallery(config)
    else:
        _of_run(config)


def _of_gallery(config: Calibrate) -> None:
    from dataclasses import replace

    from tammes.gallery import open_gallery
    from tammes.gallery.gallery import trained_on
    from tammes.gallery.threshold import calibrated
    from tammes.training.run_folder import is_run, open_run

    for option in ("data", "fmr", "on", "skip_bad"):
        if getattr(config, option) not in (None, False):
            name = "DATA" if option == "data" else "--" + option.replace("_", "-")
            raise UserError(f"{name} is for a run, and {config.run} is a gallery: leave it out.")
    store = open_gallery(config.run)
    made_by = Path(store.about.run)
    trained = trained_on(open_run(made_by)) if is_run(made_by) else []
    with working("calibrating on the gallery"):
        found = calibrated(store, trained, unknown_rate=config.unknown_rate)
    store.describe(replace(store.about, threshold=found.to_json()))
    if config.json:
        print_json(asdict(found))
        return
    print(f"{found.in_words()} --unknown-rate moves this.")
    print(f"Measured on {found.items:,} images of {found.classes} classes of {config.run}, and kept in it.")


def _of_run(config: Calibrate) -> None:
    check_data(config.data)
    from tammes.metrics.verification import checked_fmr
    from tammes.training.run_folder import open_finished

    if config.unknown_rate is not None:
        raise UserError(
            f"--unknown-rate is for a gallery, and {config.run} is none: leave it out, or make one with tammes index."
        )
    if config.fmr is not None:
        checked_fmr(config.fmr)
    run = open_finished(Path(config.run))
    vectors = of_vectors(run.read("config").get("data", ""))
    if vectors and config.skip_bad:
        raise UserError(f"--skip-bad is for images, and {run.folder} was trained on vectors: leave it out.")
    part = _part(config, run)
    from tammes.cli.items import say_known

    items = _items(config, run, part)
    names, trained_on = _class_names(items), run.read("classes", needs=("train",))["train"]
    say_known(names, trained_on)
    pairs = _counted(items)
    found = pairs.balanced() if config.fmr is None else pairs.threshold_at(config.fmr)
    check, checked_on = _check(config, run, found) if part == "val" else (None, None)
    if part == "test":
        say("note: the test classes chose this threshold, so they are no longer an independent test of it.")
    known = len(set(names) & set(trained_on))  # 0 but for other data
    kept = {**asdict(found), "measured_on": items.what, "classes_that_trained": known, "check": None}
    if check is not None:
        kept["check"] = {**asdict(check), "measured_on": checked_on}
    if (run.folder / "calibration.json").exists():
        say(f"note: an older calibration of {run.folder} is replaced.")
    run.write("calibration", kept)
    if config.json:
        print_json(kept)
    else:
        _show(found, items.what, check, "vectors" if vectors else "images")
    if found.false_matches < FEW:
        say(
            f"warning: only {found.false_matches} false matches stand behind this threshold, too few to trust it."
            " Ask for a larger --fmr, or measure on more classes."
        )


def _part(config: Calibrate, run: "Run") -> Literal["val", "test"] | None:
    """Which of the run's own classes, or None for other data; never those that trained."""
    if config.data is not None:
        if config.on is not None:
            raise UserError(
                "--on chooses among the run's own classes, and DATA is measured whole: give one of the two."
            )
        return None
    classes = run.read("classes", needs=("val", "test"))
    val, test = len(classes["val"]), len(classes["test"])
    if config.on == "validation":
        if not val:
            why = (
                "those that training holds out train in the end"
                if of_vectors(run.read("config").get("data", ""))
                else "it was trained without --val-classes"
            )
            raise UserError(
                f"{run.folder} has no validation classes: {why}. Say --on test, or give it other data: tammes calibrate"
                f" {run.folder} DATA"
            )
        return "val"
    if config.on is None and val > 1:
        return "val"
    if not test:
        raise UserError(
            f"{run.folder} has no test classes, and classes that trained lie better than any others do: a threshold"
            f" measured on them would promise too much. Give it data of other classes: tammes calibrate {run.folder}"
            " DATA"
        )
    if config.on is None and val == 1:
        say("note: with one validation class there is no pair of different classes: the test classes are measured.")
    return "test"


def _items(config: Calibrate, run: "Run", part: Literal["val", "test"] | None) -> "Items":
    from tammes.cli.items import items_of

    return items_of(run, config.data, part=part or "test", skip_bad=config.skip_bad, on=config.device)


def _class_names(items: "Items") -> tuple[str, ...]:
    import numpy as np

    return tuple(items.class_names[label] for label in np.unique(items.labels).tolist())


def _counted(items: "Items") -> "PairCounts":
    from tammes.metrics.verification import count_pairs

    masks = items.masks
    with progress("counting pairs") as on_progress:
        return count_pairs(
            items.vectors,
            items.labels,
            query=masks.get("query"),
            gallery=masks.get("gallery"),
            sequence=masks.get("sequence"),
            on_progress=on_progress,
        )


def _check(config: Calibrate, run: "Run", found: "Calibration") -> tuple["Calibration | None", str | None]:
    """The same threshold on the test classes, and whose they are; None where that cannot be measured."""
    if not run.read("classes", needs=("test",))["test"]:
        return None, None
    items = _items(config, run, "test")
    try:
        return _counted(items).at(found.threshold), items.what
    except UserError as error:
        say(f"note: no check on the test classes: {error}")
        return None, None


def _show(found: "Calibration", what: str, check: "Calibration | None", kind: str) -> None:
    """A small table, and what it means in words."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{what}: {found.items:,} {kind}, {found.classes:,} classes")
    table.add_column("")
    for name in (
        "threshold",
        "false match rate, %",
        "same class found, %",
        "pairs of\ndifferent classes",
        "of the same",
    ):
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
        f" {_in_words(found)} --fmr moves this."
    )
    if check is not None:
        print(f"On the test classes, which had no say in it: {_in_words(check)}")


def _interval(ends: tuple[float, float] | None, form: str, times: int = 1) -> str:
    return "" if ends is None else f"\n[{times * ends[0]:{form}}, {times * ends[1]:{form}}]"


def _in_words(found: "Calibration") -> str:
    return (
        f"Of pairs of the same class about {_percent(1 - found.true_match_rate)} will be missed; of pairs of different"
        f" classes about {_percent(found.false_match_rate)} will be taken for the same."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
