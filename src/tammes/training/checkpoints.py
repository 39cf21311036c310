"""Checkpoints: trainable weights, optimizer, random state and position in the epoch. The previous one is kept."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import FiniteFloat
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import TypedDict

from tammes.errors import UserError
from tammes.io.files import errors_name, synchronise
from tammes.io.schema import checked, parsed
from tammes.io.tensor_files import DamagedError, check_tensors, read_tensors, write_tensors
from tammes.training.distributed import is_first
from tammes.training.run_folder import FRESH, FROZEN, NEWEST, PREVIOUS, RunFolder

START_OVER = "The run cannot be resumed: start over with `overwrite=True`."


class State(TypedDict):
    """The metadata of a checkpoint, besides its tensors.

    Attributes:
        without: numbers of the weights without optimizer state; missing in older checkpoints.
    """

    position: dict[str, Any]
    groups: list[dict[str, Any]]
    scalars: dict[str, Any]
    scaler: NotRequired[dict[str, FiniteFloat] | None]
    without: NotRequired[list[int]]


def save_frozen(run: RunFolder, objective: nn.Module) -> None:
    """Write the frozen weights, if there are any. Written once; checkpoints contain all other weights."""
    if not is_first():
        return
    frozen, own = _frozen(objective), objective.state_dict()
    if frozen:
        write_tensors(run.folder / FROZEN, {name: own[name].cpu().contiguous() for name in frozen})


def load_weights(run: RunFolder, objective: nn.Module) -> None:
    """Restore all weights of an interrupted run, before anything is computed with the network.

    Frozen weights are in a separate file. The statistics of batch normalisation are in the checkpoint, also those of
    the frozen part, on which its activations depend.
    """
    tensors, _ = read_tensors(run.checkpoint)
    weights, frozen, own = _under("model/", tensors), _frozen(objective), objective.state_dict()
    fixed: dict[str, Tensor] = {}
    if frozen:
        file = run.folder / FROZEN
        if not file.exists():
            raise UserError(f"{file}, with the frozen weights, is missing. {START_OVER}")
        try:
            fixed, _ = read_tensors(file)
        except DamagedError as error:
            raise UserError(f"{error} {START_OVER}") from None
        _check_alike({name: own[name] for name in frozen}, fixed, str(file))
    _check_alike({name: own[name] for name in own if name not in frozen}, weights, str(run.checkpoint))
    objective.load_state_dict(fixed | weights)


def save_checkpoint(
    run: RunFolder, objective: nn.Module, optimizer: Optimizer, position: Any, scaler: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint: weights, optimizer, random state and position. Frozen weights: see `save_frozen`.

    Args:
        position: the position in the training, a dataclass that can be written as JSON.
        scaler: the state of the gradient scaler for half precision.
    """
    if not is_first():
        return
    state, frozen = optimizer.state_dict(), _frozen(objective)
    tensors = {f"model/{name}": tensor for name, tensor in objective.state_dict().items() if name not in frozen}
    scalars: dict[str, Any] = {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{number}/{name}"] = value
            else:
                scalars[f"{number}/{name}"] = value
    tensors["random"] = torch.get_rng_state()
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    said = {
        "position": asdict(position),
        "groups": state["param_groups"],
        "scalars": scalars,
        "scaler": scaler,
        "without": [number for number in numbers if number not in state["state"]],
    }
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    newest, fresh = run.folder / NEWEST, run.folder / FRESH
    # At any time, one of the two names is a complete checkpoint.
    write_tensors(fresh, tensors, {"state": json.dumps(said)})
    with errors_name(newest):
        with suppress(FileNotFoundError):
            newest.replace(run.folder / PREVIOUS)
        fresh.replace(newest)
    synchronise(run.folder)


def mend_checkpoint(run: RunFolder) -> str | None:
    """Replace a damaged checkpoint by the previous one. Returns a message, or None if nothing was damaged.

    Raises:
        UserError: there is no previous checkpoint, or it is damaged too.
    """
    newest, previous = run.folder / NEWEST, run.folder / PREVIOUS
    try:
        if newest.exists():
            check_tensors(newest)
            return None
        what = ""
    except DamagedError as error:
        what = str(error)
    if not previous.exists():
        raise UserError(f"{what} There is no earlier one. {START_OVER}")
    try:
        check_tensors(previous)
    except DamagedError as error:
        raise UserError(f"{what} {error} {START_OVER}".lstrip()) from None
    previous.replace(newest)
    if not what:  # a process was stopped between the two renames
        return None
    return f"{what} The previous checkpoint is intact: training resumes from there."


def load_checkpoint(
    run: RunFolder, objective: nn.Module, optimizer: Optimizer, kind: type[Any] | None = None
) -> tuple[Any, dict[str, Any] | None]:
    """Restore weights, optimizer and random state. Returns the position to resume from, and the scaler's state.

    The file is untrusted: everything is validated before anything is restored. Frozen weights are not touched; see
    `load_weights`.

    Args:
        kind: the dataclass of the position; None for that of a training on images.
    """
    from tammes.training.loop import Position

    if not any((run.folder / name).exists() for name in (NEWEST, PREVIOUS)):
        raise UserError(f"{run.folder} has no checkpoint: it was stopped before the end of its first epoch.")
    mend_checkpoint(run)
    file = run.checkpoint
    tensors, metadata = read_tensors(file)
    said: State = parsed(metadata.get("state", ""), State, f"the state in {file}", START_OVER)
    position = checked(said["position"], kind or Position, f"the position in {file}", START_OVER)
    negative = [name for name, value in position.items() if type(value) in (int, float) and value < (name == "epoch")]
    if negative:
        name = negative[0]
        raise UserError(f"the position in {file}: {name} cannot be {position[name]}. {START_OVER}")
    frozen, own = _frozen(objective), objective.state_dict()
    weights = _under("model/", tensors)
    _check_alike({name: tensor for name, tensor in own.items() if name not in frozen}, weights, str(file))
    check_random(tensors.get("random"), file)
    state = _optimizer_state(optimizer, said, _under("optimizer/", tensors), file)
    objective.load_state_dict(weights | {name: own[name] for name in own if name in frozen})
    optimizer.load_state_dict(state)
    _lay_out_alike(optimizer)
    torch.set_rng_state(tensors["random"])
    return (kind or Position)(**position), said.get("scaler")


def check_random(state: Tensor | None, file: Path) -> None:
    """Raise UserError unless the tensor is a state of torch's CPU generator."""
    try:
        torch.Generator().set_state(torch.empty(0) if state is None else state)
    except (RuntimeError, TypeError):
        raise UserError(f"{file} has no valid random number state. {START_OVER}") from None


def _check_alike(own: Mapping[str, Tensor], given: Mapping[str, Tensor], file: str) -> None:
    """Raise UserError for weights whose names, shapes or types differ from the network's."""
    for name in sorted(own.keys() ^ given.keys()):
        what = f"has no {name!r}, which the network has" if name in own else f"has {name!r}, which the network lacks"
        raise UserError(f"{file} {what}. {START_OVER}")
    for name, tensor in given.items():
        if name.endswith("_extra_state"):
            continue  # its length varies; the module that loads it validates it
        found, right = (f"{tuple(each.shape)} of {each.dtype}" for each in (tensor, own[name]))
        if found != right:
            raise UserError(f"{file}: {name!r} is {found}, and the network's is {right}. {START_OVER}")


# The optimizer state of each weight. All but the number of steps have the shape of the weight.
_KEPT = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "SGD": {"momentum_buffer"},
}


def _optimizer_state(optimizer: Optimizer, said: State, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Any]:
    """The validated state of the optimizer. A fused optimizer would write beyond a tensor that is too short."""
    own = optimizer.state_dict()["param_groups"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **said["scalars"]}.items():
        number, _, key = name.partition("/")
        place = int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else -1
        if not 0 <= place < len(parameters):
            raise UserError(f"{file}: the optimizer has no weight {number!r}. {START_OVER}")
        entries.setdefault(place, {})[key] = value
    kept = _KEPT.get(type(getattr(optimizer, "optimizer", optimizer)).__name__)
    for place, found in entries.items():
        names = set(found) if kept is None else kept
        for name in sorted(names | set(found)):
            if name not in names or not _fits(name, found.get(name), parameters[place]):
                raise UserError(f"{file}: {name!r} of weight {place} does not fit the optimizer. {START_OVER}")
    without = said.get("without")
    lost = set() if without is None else set(range(len(parameters))) - entries.keys() - set(without)
    if lost:
        raise UserError(f"{file}: the optimizer state of weight {min(lost)} is missing. {START_OVER}")
    return {"state": entries, "param_groups": _groups(own, said["groups"], file)}


def _fits(name: str, value: Any, parameter: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return value is None and name == "momentum_buffer"
    if name == "step":
        return value.shape == () and value.dtype == torch.float32
    return value.shape == parameter.shape and value.dtype == parameter.dtype


def _groups(own: list[dict[str, Any]], given: list[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
    """The parameter groups with the numbers of the file, such as learning rates; flags such as `fused` stay ours."""
    if [group.get("params") for group in given] != [group["params"] for group in own]:
        raise UserError(f"{file}: its parameter groups are not those of the optimizer. {START_OVER}")
    found = []
    for ours, group in zip(own, given, strict=True):
        # initial_lr is the base of the learning rate schedule.
        numbers = ["initial_lr", *(name for name, value in ours.items() if type(value) in (int, float))]
        pairs = [name for name, value in ours.items() if isinstance(value, tuple)]
        known = {name: group[name] for name in numbers if name in group}
        checked(known, dict[str, float], f"the groups in {file}", START_OVER)
        two = {name: group[name] for name in pairs if name in group}
        checked(two, dict[str, tuple[float, float]], f"the groups in {file}", START_OVER)
        found.append(ours | known | {name: tuple(value) for name, value in two.items()})
    return found


def _lay_out_alike(optimizer: Optimizer) -> None:
    """Give the optimizer state of each weight the memory layout of the weight.

    Files store tensors contiguously, but weights of convolutions may be channels-last. A fused optimizer iterates over
    the raw memory of both and would silently mix up their elements.
    """
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _frozen(network: nn.Module) -> set[str]:
    """The names of the frozen weights, which checkpoints leave out."""
    return {name for name, parameter in network.named_parameters() if not parameter.requires_grad}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
