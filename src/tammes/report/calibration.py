"""The same-class threshold of a run, and its error rates."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tammes.data import check_data
from tammes.errors import UserError
from tammes.io.console import progress, say
from tammes.metrics.verification import Calibration, PairCounts, checked_fmr, count_pairs
from tammes.report.items import check_for_images, items_of, say_known
from tammes.training.embedding import Items
from tammes.training.run_folder import RunFolder, open_finished

FEW = 10  # false matches below which a threshold is unreliable


@dataclass(frozen=True)
class RunCalibration:
    """A threshold with its error rates, and its error rates on other classes.

    Attributes:
        measured_on: a description of the items.
        trained_classes: how many of their classes were training classes.
        check: the threshold's error rates on the test classes, which did not choose it; None if not measurable.
    """

    found: Calibration
    measured_on: str
    trained_classes: int
    check: Calibration | None = None
    checked_on: str | None = None

    @property
    def kind(self) -> str:
        """What was measured: images or vectors."""
        return self.measured_on.split()[0]

    def to_json(self) -> dict[str, Any]:
        """The content of calibration.json."""
        check = None if self.check is None else {**asdict(self.check), "measured_on": self.checked_on}
        own = {"measured_on": self.measured_on, "classes_that_trained": self.trained_classes, "check": check}
        return asdict(self.found) | own


def classes_to_measure(run: RunFolder, on: Literal["validation", "test"] | None = None) -> Literal["val", "test"]:
    """The classes of a run that choose the threshold; never training classes.

    Args:
        on: None for the validation classes if they form pairs, otherwise the test classes.
    """
    classes = run.read("classes", needs=("val", "test"))
    val, test = len(classes["val"]), len(classes["test"])
    if on == "validation" and not val:
        why = (
            "those that training holds out train in the end"
            if run.of_vectors
            else "it was trained without `val_classes`"
        )
        raise UserError(
            f"{run.folder} has no validation classes: {why}. Use `on='test'`, or give it other data: tammes calibrate"
            f" {run.folder} DATA"
        )
    if on == "validation" or (on is None and val > 1):
        return "val"
    if not test:
        raise UserError(
            f"{run.folder} has no test classes. Classes that trained are easier than others, so a threshold measured on"
            f" them would promise too much. Give it data of other classes: tammes calibrate {run.folder} DATA"
        )
    if on is None and val == 1:
        say("note: one validation class makes no pairs of different classes, so the test classes are used.")
    return "test"


def calibrate_items(
    items: Items, *, fmr: float | None = None, trained_on: Collection[str] = (), check: Items | None = None
) -> RunCalibration:
    """Calibrate the threshold on items.

    Args:
        fmr: the allowed false match rate; None to balance both errors.
        trained_on: names of the training classes.
        check: items to check the threshold on.
    """
    pairs = _count(items)
    found = pairs.balanced() if fmr is None else pairs.threshold_at(fmr)
    names = {items.class_names[label] for label in np.unique(items.labels).tolist()}
    known = len(names & set(trained_on))
    if check is not None:
        try:
            return RunCalibration(found, items.what, known, _count(check).at(found.threshold), check.what)
        except UserError as error:
            say(f"note: no check on the test classes: {error}")
    return RunCalibration(found, items.what, known)


def describe_errors(found: Calibration) -> str:
    """A sentence about both error rates of a threshold."""
    return (
        f"Of pairs of the same class about {_percent(1 - found.true_match_rate)} will be missed; of pairs of different"
        f" classes about {_percent(found.false_match_rate)} will be taken for the same."
    )


def _count(items: Items) -> PairCounts:
    masks: dict[str, Any] = items.masks
    with progress("counting pairs") as on_progress:
        return count_pairs(items.vectors, items.labels, **masks, on_progress=on_progress)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def calibrate_run(
    run: RunFolder,
    data: str | None = None,
    *,
    fmr: float | None = None,
    on: Literal["validation", "test"] | None = None,
    skip_bad: bool = False,
    device: Literal["auto", "cpu"] = "auto",
) -> RunCalibration:
    """Calibrate the same-class threshold on classes that were not trained on, and store it in the run.

    Args:
        data: other images, or vectors, to measure on, with all of their classes.
        fmr: the allowed false match rate; None to balance both errors.
        on: the classes of the run's own data. None for the validation classes if there are any (the test classes then
            check the threshold), otherwise the test classes.
    """
    check_data(data)
    if fmr is not None:
        checked_fmr(fmr)
    if data is not None and on is not None:
        raise UserError("`on` chooses among the run's own classes, and `data` is measured whole: give one of the two.")
    run = open_finished(run.folder, run.objects)
    check_for_images(run, skip_bad=skip_bad)
    part = None if data is not None else classes_to_measure(run, on)
    items = items_of(run, data, part=part or "test", skip_bad=skip_bad, on=device)
    classes = run.read("classes", needs=("train", "test"))
    say_known(tuple(items.class_names[label] for label in sorted(set(items.labels.tolist()))), classes["train"])
    checks = part == "val" and bool(classes["test"])
    check = items_of(run, skip_bad=skip_bad, on=device) if checks else None
    made = calibrate_items(items, fmr=fmr, trained_on=classes["train"], check=check)
    if part == "test":
        say("note: the test classes chose this threshold, so they are no longer an independent test of it.")
    if (run.folder / "calibration.json").exists():
        say(f"note: an older calibration of {run.folder} is replaced.")
    run.write("calibration", made.to_json())
    return made
