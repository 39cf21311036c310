"""The files of a learner: tensors in learner.safetensors, everything else in learner.json."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, get_args

import numpy as np
import torch
from numpy import ndarray
from pydantic import NonNegativeInt
from torch import Tensor
from typing_extensions import TypedDict

from tammes import __version__
from tammes.errors import UserError
from tammes.io.files import write_atomically
from tammes.io.schema import read_json
from tammes.io.tensor_files import read_tensors, write_tensors
from tammes.training.run_schema import Verdict
from tammes.training.verdict import PRETRAINED
from tammes.vectors.network import Network
from tammes.vectors.options import check_options, widths

if TYPE_CHECKING:
    from tammes.vectors.learner import MetricLearner

FORMAT = 1  # of the two files
_ADVICE = "Put back the file that was written with the weights."
Kind = Literal["text", "object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
               "float32", "float64"]  # fmt: skip


class Classes(TypedDict):
    """The sorted labels of the classes, with their NumPy dtype."""

    kind: Kind
    values: list[bool | int | float | str]


class Said(TypedDict):
    """The content of learner.json without its options, which the learner validates itself."""

    format: Literal[1]
    options: dict[str, Any]
    classes: Classes
    held_out: NotRequired[list[NonNegativeInt]]  # places among the classes
    columns: NotRequired[list[str] | None]
    epochs: int
    history: list[dict[str, Any]]
    verdict: NotRequired[Verdict | None]
    regularisation: float | None


def write_learner(learner: "MetricLearner", folder: Path) -> None:
    """Write both files atomically, the tensors first."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}. Make it first, or save elsewhere.")
    said = {
        "format": FORMAT,
        "version": __version__,
        "options": {name: _plain(name, value) for name, value in learner.get_params(deep=False).items()},
        "classes": _classes_as_json(learner.classes_),
        "held_out": np.flatnonzero(np.isin(learner.classes_, learner.held_out_classes_)).tolist(),
        "columns": list(getattr(learner, "feature_names_in_", ())) or None,
        "epochs": int(learner.n_iter_),
        "history": learner.history_,
        "verdict": getattr(learner, "verdict_", None),
        "regularisation": None if learner.regularisation_ is None else float(learner.regularisation_),
    }
    tensors = {
        f"network.{name}": tensor.detach().contiguous() for name, tensor in learner.network_.state_dict().items()
    }
    tensors |= {name: torch.from_numpy(getattr(learner, f"{name}_").copy()) for name in ("mean", "scale")}
    write_tensors(folder / "learner.safetensors", tensors)
    write_atomically(folder / "learner.json", json.dumps(said, indent=1).encode() + b"\n")


def read_learner(learner: "MetricLearner", folder: Path) -> None:
    """Restore a learner from its files, which are untrusted and validated."""
    said, (tensors, _) = _said(folder), read_tensors(folder / "learner.safetensors")
    try:
        _use_words(learner, said)
        _use_numbers(learner, tensors)
        _check_fit(learner)
    except UserError as error:
        raise UserError(f"cannot load the learner in {folder}: {error}") from None
    learner._loaded = True


def _said(folder: Path) -> Said:
    file = folder / "learner.json"
    if not file.exists():
        raise UserError(
            f"no learner in {folder}: learner.json is missing. Train one: tammes train vectors.npz --out {folder}"
        )
    found: Said = read_json(file, Said, _ADVICE)
    return found


def _use_words(learner: "MetricLearner", said: Said) -> None:
    options, known = said["options"], learner.get_params(deep=False)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UserError(f"it was made by another version: its option {unknown[0]!r} is not known here.")
    learner.set_params(**options)
    check_options(learner)
    learner.classes_ = _classes(said["classes"])
    held = said.get("held_out", [])
    if any(place >= len(learner.classes_) for place in held):
        raise UserError("its held-out classes are none of its classes.")
    learner.held_out_classes_ = learner.classes_[held]
    if (names := said.get("columns")) is not None:
        learner.feature_names_in_ = np.array(names, dtype=object)
    learner.n_iter_, learner.history_, learner.regularisation_ = said["epochs"], said["history"], said["regularisation"]
    if (verdict := said.get("verdict")) is not None:
        learner.verdict_ = dict(verdict)


def _use_numbers(learner: "MetricLearner", tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64) or not tensor.isfinite().all():
            raise UserError(f"{name!r} holds numbers that are not finite, or not float32 or float64.")
    mean, scale = (tensors.pop(name, torch.empty(0)) for name in ("mean", "scale"))
    if mean.ndim != 1 or not len(mean) or mean.shape != scale.shape or not (scale > 0).all():
        raise UserError("mean and scale of the columns are missing or not of one length, or a scale is not above 0.")
    learner.mean_, learner.scale_ = mean.double().numpy(), scale.double().numpy()
    learner.n_features_in_ = len(mean)
    # The shapes that the options and the last layer ask for, before a network of that size is made.
    as_they_are = getattr(learner, "verdict_", {}).get("kept") == PRETRAINED
    hidden = () if as_they_are else widths(learner.hidden)
    last, layer = f"network.body.{2 * len(hidden)}.weight", tensors.get("network.class_layer.weight")
    dim = len(tensors[last]) if last in tensors and tensors[last].ndim else 0
    sizes = [len(mean), *hidden, dim]
    expected: dict[str, tuple[int, ...]] = {}
    for number, (before, after) in enumerate(pairwise(sizes)):
        expected |= {f"network.body.{2 * number}.weight": (after, before), f"network.body.{2 * number}.bias": (after,)}
    if layer is not None and layer.ndim:
        expected |= {"network.class_layer.weight": (len(layer), dim), "network.class_layer.bias": (len(layer),)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    other_dim = learner.dim is not None and int(learner.dim) != dim and not as_they_are
    if found != expected or dim == 0 or other_dim:
        raise UserError(f"its weights are not those that its options ask for: {found} instead of {expected}.")
    network = Network(len(mean), hidden, dim, None if layer is None else len(layer), float(learner.dropout))
    network = network.to(tensors[last].dtype)
    network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in tensors.items()})
    learner.network_ = network.eval()


def _check_fit(learner: "MetricLearner") -> None:
    names = getattr(learner, "feature_names_in_", None)
    if names is not None and len(names) != learner.n_features_in_:
        raise UserError(f"it names {len(names)} columns, and its weights are for {learner.n_features_in_}.")


def _plain(option: str, value: Any) -> Any:
    """An option as JSON has it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(option, each) for name, each in value.items()}
    if isinstance(value, Sequence | ndarray):
        return [_plain(option, each) for each in value]
    raise UserError(f"{option}={value!r} cannot be saved. Give a number or a text first: set_params({option}=…).")


def _classes_as_json(classes: ndarray) -> dict[str, Any]:
    kind = "text" if classes.dtype.kind == "U" else str(classes.dtype)
    values = classes.tolist()
    if kind not in get_args(Kind) or (kind == "object" and not all(isinstance(v, str) for v in values)):
        raise UserError(f"classes of the kind {classes.dtype} cannot be saved: learn from whole numbers or text.")
    return {"kind": kind, "values": values}


def _classes(said: Classes) -> ndarray:
    kind, values = said["kind"], said["values"]
    good = {"text": str, "object": str, "bool": bool, "float32": float, "float64": float}.get(kind, int)
    try:
        if len(values) < 2 or any(type(value) is not good for value in values):
            raise OverflowError
        classes = np.array(values, dtype=str if kind == "text" else kind)
    except OverflowError:
        raise UserError(f"its classes are not two or more of the kind {kind}.") from None
    if not (classes[:-1] < classes[1:]).all():
        raise UserError("its classes are not sorted, or one is there twice.")
    return classes
