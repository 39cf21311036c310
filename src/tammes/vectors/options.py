"""Validation of a learner's options and inputs, done in `fit` as in scikit-learn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from sys import float_info
from types import NoneType
from typing import Any, Literal, get_args
from warnings import catch_warnings, filterwarnings

from numpy import bool_, ndarray, unique
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from tammes.centroids import CENTROIDS
from tammes.errors import UserError, check_seed, out_of_memory, shown, unknown_name
from tammes.losses import OF_CLASS_LAYER
from tammes.search.validation import check_not_masked, dense, label_array
from tammes.vectors.statistics import Scale

Method = Literal["gradient", "ridge"]
Init = Literal["auto", "whiten", "pca", "ridge", "random"]


def check_options(learner: Any) -> None:
    """Raise UserError for options that are unknown, out of range, or conflicting."""
    for option, known in (
        ("loss", OF_CLASS_LAYER),
        ("centroids", CENTROIDS),
        ("method", get_args(Method)),
        ("init", get_args(Init)),
        ("scale", get_args(Scale)),
    ):
        if not isinstance(getattr(learner, option), str) or getattr(learner, option) not in known:
            raise unknown_name(option, str(getattr(learner, option)), known)
    for option in ("dim", "centroid_dim", "epochs", "batch_size", "patience"):
        _check_number(option, getattr(learner, option), optional=option != "batch_size")
    for option, least, below in (("learning_rate", None, None), ("weight_decay", 0.0, None),
                                 ("dropout", 0.0, 1.0), ("validation_classes", 0.0, 1.0)):  # fmt: skip
        _check_share(option, getattr(learner, option), least, below)
    if learner.regularisation is not None:
        _check_share("regularisation", learner.regularisation, None, None)
    if isinstance(learner.random_state, Integral):
        check_seed("random_state", learner.random_state)
    if not isinstance(learner.loss_options, Mapping | NoneType):
        raise UserError(
            f"loss_options must be a dictionary, such as {{'push': 0.2}}, got {shown(learner.loss_options)}."
        )
    if not isinstance(learner.class_layer, bool | bool_):
        raise UserError(f"class_layer must be True or False, got {shown(learner.class_layer)}.")
    if learner.centroid_dim is not None and not learner.class_layer:
        raise UserError("centroid_dim is the size of the class layer, which class_layer=False leaves out.")
    if learner.regularisation is not None and "ridge" not in (learner.method, learner.init):
        raise UserError("regularisation is for method='ridge' or init='ridge': leave it out.")
    if not isinstance(learner.centre, bool | NoneType):
        raise UserError(f"centre must be True, False or None, got {learner.centre!r}.")
    if learner.centre is not None and (learner.method == "ridge" or learner.init in ("ridge", "random")):
        raise UserError("centre is for init pca and whiten: leave it out.")
    hidden = widths(learner.hidden)
    for name, value in (("method", learner.method), ("init", learner.init)):
        if hidden and value == "ridge":
            raise UserError(f"{name}='ridge' is a linear map and has no hidden layers. Leave hidden out.")


def widths(hidden: Any) -> tuple[int, ...]:
    """The widths of the hidden layers as a tuple."""
    given = () if hidden is None else (hidden,) if isinstance(hidden, Integral) else hidden
    if isinstance(given, str) or not isinstance(given, Sequence | ndarray):
        raise UserError(f"hidden must be a width or several, such as 512 or (512, 512), got {hidden!r}.")
    for width in given:
        _check_number("hidden", width)
    return tuple(int(width) for width in given)


@contextmanager
def fitting_in_memory() -> Iterator[None]:
    """Turn out-of-memory errors into a UserError with advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            "out of memory: the network or a batch does not fit. Lower dim, hidden, centroid_dim or batch_size."
        ) from error


def vectors_given(X: Any) -> Any:  # noqa: N803
    """Vectors in a form that scikit-learn accepts: tensors as arrays; UserError for masked arrays."""
    check_not_masked(X, "X")
    return dense(X, "X") if isinstance(X, Tensor) else X


def labels_given(y: Any) -> Any:
    """Labels in a form that scikit-learn accepts; different labels stay different."""
    return label_array(y, "y") if isinstance(y, list | tuple | ndarray | Tensor) else y


def classes_given(classes: Any) -> ndarray:
    """The sorted unique classes."""
    found = label_array(classes, "classes")
    if found.ndim != 1:
        raise UserError(f"classes must be a list, one of each, got shape {found.shape}.")
    check_labels(found, "classes")
    return unique(found)


def check_labels(y: ndarray, what: str = "y") -> None:
    """Raise UserError for labels that are not classes."""
    with catch_warnings():
        # That few vectors of a class look like a regression to it: here two of a class are enough.
        filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)
        try:
            check_classification_targets(y)
        except (TypeError, ValueError) as error:
            raise UserError(f"{what} must be whole numbers or text, a class each. {error}") from None


def check_classes(classes: ndarray) -> None:
    """Raise UserError for a single class."""
    if len(classes) < 2:
        raise UserError(
            f"y holds 1 class, {classes.tolist()[0]!r}. A metric is learned from at least 2: add vectors of others."
        )


def _check_number(option: str, value: Any, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise UserError(f"{option} must be a whole number from 1 up{', or None' * optional}, got {shown(value)}.")


def _check_share(option: str, value: Any, least: float | None, below: float | None) -> None:
    """Raise UserError unless it is a number in [least, below), or above 0 without `least`."""
    good = isinstance(value, Real) and not isinstance(value, bool)
    good = (
        good
        and abs(value) <= float_info.max
        and (value > 0 if least is None else value >= least)
        and (below is None or value < below)
    )
    if not good:
        lower = "above 0" if least is None else f"{least:g} or more"
        upper = "" if below is None else f" and below {below:g}"
        raise UserError(f"{option} must be a number {lower}{upper}, got {shown(value)}.")
