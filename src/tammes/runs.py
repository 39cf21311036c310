"""The run folder: what training leaves, and all that everything after it reads. Of several processes the first writes.

config.json        every option, with its value          environment.json   versions, machine, commit
classes.json       class names of the training labels    metrics.jsonl      one line an epoch
embedder.safetensors, embedder.json                      the trained network; of vectors learner.safetensors, .json
best/              the same from the best epoch on the validation classes, if there are any
checkpoint.safetensors                                   to go on from; previous.safetensors is the one before it
frozen.safetensors                                       the weights that do not train, if there are any
results.json       the evaluation                        log.txt            what was printed
calibration.json   the threshold of `tammes calibrate`   report.html        the page of `tammes report`
images.json        a checksum of the decoded images      .lock              locked by the process that trains
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from tammes.errors import UserError
from tammes.processes import is_first
from tammes.runtime import lock, remove_partial, synchronise, write_atomically
from tammes.tensors import DamagedError, check_tensors, read_tensors, write_tensors

_LOCK = ".lock"
_NEWEST, _PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
_FRESH = f".{_NEWEST}.new"
# What training and the commands that are about a run write into its folder. Nothing else in there is ours to remove.
_OWN = frozenset(
    f"{name}.json"
    for name in ("config", "environment", "classes", "images", "untrained", "results", "calibration", "embedder")
) | {
    *("embedder.safetensors", "learner.json", "learner.safetensors", "best", "metrics.jsonl", "log.txt", "tensorboard"),
    *(_NEWEST, _PREVIOUS, _FRESH, "frozen.safetensors", "neighbours.png", "report.html", "hub"),
    *(
        name + end
        for name in ("model.onnx", "model-int8.onnx", "picture.onnx", "model.pt2", "model.safetensors")
        for end in ("", ".json")
    ),
}


@dataclass(frozen=True)
class Run:
    """A run folder that exists."""

    folder: Path

    def write(self, name: str, content: Any) -> None:
        """A JSON file, whole or not at all."""
        if is_first():
            write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1, default=str).encode() + b"\n")

    def read(self, name: str) -> Any:
        """What was written under that name, or None."""
        file = self.folder / f"{name}.json"
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {file}: {error.strerror}.") from None
        except (ValueError, RecursionError):
            raise UserError(f"{file} is not a whole JSON file.") from None
        if name == "config":  # which may be a stranger's, and which every command asks what it is about
            if not isinstance(found, dict):
                raise UserError(f"{file} does not hold the options of a run.")
            if not isinstance(found.get("data", ""), str):
                raise UserError(f"{file}: data cannot be {found['data']!r}.")
        return found

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        if not is_first():
            return
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one that a crash cut short is left out."""
        file = self.folder / "metrics.jsonl"
        lines = []
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return lines

    def forget_after(self, epoch: int) -> None:
        """Drop the lines of epochs after this one, which will be trained again."""
        if not is_first():
            return
        kept = [json.dumps(line) + "\n" for line in self.epochs() if line["epoch"] <= epoch]
        write_atomically(self.folder / "metrics.jsonl", "".join(kept).encode())

    @property
    def state(self) -> str:
        """finished, interrupted (there is something to go on from), or started."""
        if (self.folder / "results.json").exists():
            return "finished"
        return "interrupted" if any((self.folder / name).exists() for name in (_NEWEST, _PREVIOUS)) else "started"


def create(folder: Path, *, overwrite: bool = False) -> Run:
    """A new run folder. One that exists is not touched unless `overwrite`, and then only if it is a run.

    Of that only what a run writes is removed: somebody may keep images in there.
    """
    if not is_first():
        return Run(folder)
    if folder.exists() and any(each.name != _LOCK for each in (folder.iterdir() if folder.is_dir() else [folder])):
        ours = is_run(folder)
        if not overwrite or not ours:
            what = "is a run already" if ours else "exists and is not a run"
            hint = f"Go on with --resume {folder}, replace it with --overwrite, or" if ours else "Please"
            raise UserError(f"{folder} {what}. {hint} choose another --out.")
        with held(folder):
            _remove_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return Run(folder)


def remove(folder: Path) -> list[str]:
    """Remove a run; returns what stays in its folder, as it is not the run's."""
    with held(folder):
        _remove_own(folder)
        (folder / _LOCK).unlink(missing_ok=True)
    left = sorted(each.name for each in folder.iterdir())
    if not left:
        folder.rmdir()
    return left


def _remove_own(folder: Path) -> None:
    for each in folder.iterdir():
        if each.name in _OWN:
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Have a run folder to oneself until the end of the block, or of the process, however it ends.

    What a process that was killed left half written is removed first.

    Raises:
        UserError: another process has it.
    """
    try:
        opened = (folder / _LOCK).open("a+")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}.") from None
    with opened as file:
        if not lock(file):
            file.seek(0)
            who = file.read(20).strip()
            raise UserError(
                f"{folder} is being trained by another process{f', {who}' if who.isdecimal() else ''}. Wait until it"
                " has ended, or stop it; a new run needs another --out."
            )
        with suppress(OSError):  # the disk may be full: the lock counts, not what is written in it
            file.truncate(0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        _remove_what_is_left(folder)
        yield


def _remove_what_is_left(folder: Path) -> None:
    """Remove what a process that was killed left half written; only who holds the folder writes a checkpoint."""
    for place in (folder, folder / "best"):
        remove_partial(place)
    with suppress(OSError):
        (folder / _FRESH).unlink(missing_ok=True)


def open_run(folder: Path) -> Run:
    """A run folder that is there."""
    if not is_run(folder):
        raise UserError(
            f"no run in {folder}: config.json or environment.json is missing. `tammes runs` lists those that there are."
        )
    return Run(folder)


def open_finished(folder: Path) -> Run:
    """A run folder that is there and whose training has ended."""
    run = open_run(folder)
    if run.state != "finished":
        raise UserError(f"{folder} has not finished. Go on with it: tammes train --resume {folder}")
    return run


def listed(root: Path) -> list[Run]:
    """All runs below a folder, oldest first."""
    found = [Run(file.parent) for file in root.glob("**/config.json") if is_run(file.parent)]
    return sorted(found, key=lambda run: (run.folder / "config.json").stat().st_mtime)


def centroids_of(run: Run) -> Float[Tensor, "classes dim"] | None:
    """The centroids that a run of images was trained with, made again from its record; None if it has none."""
    # Not before they are needed: whoever searches a gallery with a run need not wait for what trains one.
    from tammes.centroids import CENTROIDS
    from tammes.losses import WITH_CENTROIDS

    config, classes, shape = (run.read(name) for name in ("config", "classes", "embedder"))
    if None in (config, classes, shape) or config["loss"] not in WITH_CENTROIDS:
        return None
    generator = torch.Generator().manual_seed(config["seed"])
    dim = shape["class_dim"] or shape["dim"]
    places = classes.get("places", {"number": len(classes["train"])})
    found = CENTROIDS[config["centroids"]](places["number"], dim, generator=generator)
    return found if "of" not in places else found[[places["of"][name] for name in classes["train"]]]


def save_frozen(run: Run, network: nn.Module) -> None:
    """The weights that do not train, once: with them, checkpoints need not hold them."""
    if not is_first():
        return
    frozen = _frozen(network)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items() if name in frozen}
    write_tensors(run.folder / "frozen.safetensors", tensors)


def load_frozen(run: Run, network: nn.Module) -> None:
    """Put the weights that do not train back, if the run has any."""
    file = run.folder / "frozen.safetensors"
    if file.exists():
        try:
            tensors, _ = read_tensors(file)
        except DamagedError as error:
            raise UserError(f"{error} The run cannot go on: train anew, with --overwrite.") from None
        network.load_state_dict(tensors, strict=False)


def save_checkpoint(
    run: Run, objective: nn.Module, optimizer: Optimizer, position: Any, scaler: dict[str, Any] | None = None
) -> None:
    """Everything to go on from, in one file: weights, optimizer, random state, position; frozen weights are elsewhere.

    Args:
        position: where training is, a dataclass that JSON can hold.
        scaler: the state of what scales the loss of half precision.
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
    said = {"position": asdict(position), "groups": state["param_groups"], "scalars": scalars, "scaler": scaler}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    newest, fresh = run.folder / _NEWEST, run.folder / _FRESH
    # At every moment there is a whole one under one of the two names.
    write_tensors(fresh, tensors, {"state": json.dumps(said)})
    with suppress(FileNotFoundError):
        newest.replace(run.folder / _PREVIOUS)
    fresh.replace(newest)
    synchronise(run.folder)


def mend_checkpoint(run: Run) -> str | None:
    """Put the previous checkpoint in the place of one that is damaged; returns what was done, None if nothing was.

    Raises:
        UserError: there is no other, or that one is damaged too.
    """
    newest, previous = run.folder / _NEWEST, run.folder / _PREVIOUS
    try:
        if newest.exists():
            check_tensors(newest)
            return None
        what = ""
    except DamagedError as error:
        what = str(error)
    anew = "The run cannot go on: train anew, with --overwrite."
    if not previous.exists():
        raise UserError(f"{what} There is no earlier one. {anew}")
    try:
        check_tensors(previous)
    except DamagedError as error:
        raise UserError(f"{what} {error} {anew}".lstrip()) from None
    previous.replace(newest)
    if not what:  # a process was stopped between the two names
        return None
    return f"{what} The checkpoint before it is sound: training goes on from there."


def load_checkpoint(
    run: Run, objective: nn.Module, optimizer: Optimizer, kind: Callable[..., Any] | None = None
) -> tuple[Any, dict[str, Any] | None]:
    """Put weights, optimizer and random state back as they were; the position to go on from, and the scaler's state.

    Args:
        kind: what the position is made with; None: that of a training on images.
    """
    from tammes.training import Position

    if not any((run.folder / name).exists() for name in (_NEWEST, _PREVIOUS)):
        raise UserError(f"{run.folder} has no checkpoint to go on from: it was stopped before its first epoch ended.")
    mend_checkpoint(run)
    tensors, metadata = read_tensors(run.folder / _NEWEST)
    said = json.loads(metadata["state"])
    frozen, own = _frozen(objective), objective.state_dict()
    objective.load_state_dict(_under("model/", tensors) | {name: own[name] for name in own if name in frozen})
    entries: dict[int, dict[str, Any]] = {}
    for name, value in {**_under("optimizer/", tensors), **said["scalars"]}.items():
        number, _, key = name.partition("/")
        entries.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": entries, "param_groups": said["groups"]})
    _lay_out_alike(optimizer)
    torch.set_rng_state(tensors["random"])
    return (kind or Position)(**said["position"]), said.get("scaler")


def _lay_out_alike(optimizer: Optimizer) -> None:
    """Put what an optimizer keeps of a weight into the order in memory that the weight has.

    A file has one order, weights of convolutions another (channels last), and a fused optimizer goes through both by
    their addresses: it would mix up their elements without a word.
    """
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _frozen(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if not parameter.requires_grad}


def is_run(folder: Path) -> bool:
    """Other programs have a config.json too; what is removed must be ours."""
    return (folder / "config.json").exists() and (folder / "environment.json").exists()


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
