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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from tammes.errors import UserError, unknown_name
from tammes.processes import is_first
from tammes.records import Positive, Real, checked, parsed, read_json
from tammes.runtime import lock, remove_partial, synchronise, write_atomically
from tammes.tensors import DamagedError, check_tensors, read_tensors, shapes, write_tensors

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
ANEW = "The run cannot go on: train anew, with --overwrite."


class Config(TypedDict, total=False):
    """What commands ask the options of a run for without making options of them again, which checks them all."""

    data: str
    preset: str
    loss: str
    centroids: str | None
    method: str | None
    backbone: str | None
    weights: str | None
    train: str | None
    cut: str | None
    hidden: list[int] | None
    dim: int | None
    epochs: int | None
    batch_size: int | None
    seed: int


class BesideRecall(TypedDict, total=False):
    """What `tammes.metrics.evaluate` found, as far as it is shown, beside R@1."""

    recall_at_2: Real | None
    recall_at_4: Real | None
    recall_at_8: Real | None
    r_precision: Real | None
    mean_average_precision_at_r: Real | None
    NMI: Real | None
    intervals: dict[str, tuple[Real, Real]] | None
    queries: int
    classes: int
    single_image_classes: int


class Measures(BesideRecall, total=False):
    """The same with R@1, where it was measured."""

    recall_at_1: Real | None


class BestMeasures(Measures):
    """Those of the best epoch on the validation classes."""

    epoch: int


class Results(TypedDict, total=False):
    """The evaluation; without test classes there is less of it."""

    data: str
    command: str
    trained: Measures | None
    untrained: Measures | None
    best_on_validation: BestMeasures | None
    seconds: float | None
    train_images: int
    train_classes: int
    test_images: int
    test_classes: int


class Places(TypedDict):
    """Which centroid each class has, where these are more than the classes."""

    number: Positive
    of: dict[str, int]
    old: list[str]


class Classes(TypedDict):
    """The names of the classes, by what they are there for."""

    train: list[str]
    val: list[str]
    test: list[str]
    places: NotRequired[Places]


class Bound(TypedDict):
    """The paper's quantities, as far as they are drawn."""

    discriminative_loss: Real
    triplet_loss: Real
    gap: Real
    certificate: Real
    lemma: Real
    epsilon: Real
    triplets: int


class Line(TypedDict):
    """A line of metrics.jsonl."""

    epoch: int
    loss: NotRequired[Real]
    above_minimum: NotRequired[Real]
    rate: NotRequired[Real]
    seconds: NotRequired[float]
    images_per_second: NotRequired[Real]
    val_recall_at_1: NotRequired[Real]
    bound: NotRequired[Bound]


class Threshold(TypedDict):
    """What `tammes calibrate` found, as far as others use it."""

    threshold: float
    threshold_interval: NotRequired[tuple[float, float] | None]
    fmr: float


class Environment(TypedDict, total=False):
    """What a run was made with, as far as it is shown."""

    versions: dict[str, str]
    processor: str
    cores: int | None
    commit: str | None


class Network(TypedDict):
    """What a report says of the network; who loads it knows better."""

    backbone: str
    dim: Positive
    class_dim: NotRequired[Positive | None]
    pool: NotRequired[str]


class Images(TypedDict):
    """The images that a run was started with."""

    digest: str


_SHAPES: dict[str, Any] = {
    "config": Config,
    "results": Results,
    "classes": Classes,
    "calibration": Threshold,
    "environment": Environment,
    "embedder": Network,
    "untrained": Measures,
    "images": Images,
}


class State(TypedDict):
    """What a checkpoint says beside its tensors.

    Attributes:
        without: numbers of the weights of which the optimizer keeps nothing; older checkpoints do not say.
    """

    position: dict[str, Any]
    groups: list[dict[str, Any]]
    scalars: dict[str, Any]
    scaler: NotRequired[dict[str, float] | None]
    without: NotRequired[list[int]]


@dataclass(frozen=True)
class Run:
    """A run folder that exists."""

    folder: Path

    def write(self, name: str, content: Any) -> None:
        """A JSON file, whole or not at all."""
        if is_first():
            write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1, default=str).encode() + b"\n")

    def read(self, name: str, needs: Sequence[str] = ()) -> Any:
        """What was written under that name, or None; it may be a stranger's, so its shape is checked.

        Args:
            needs: what must be in it; then it must be there.
        """
        file = self.folder / f"{name}.json"
        found = read_json(file, _SHAPES[name], self._advice(name))
        missing = next((each for each in needs if each not in (found or {})), None)
        if missing is not None:
            what = f"{file} is missing" if found is None else f"{file}: {missing} is missing"
            raise UserError(f"{what}. {self._advice(name)}")
        if name == "classes" and found is not None and "places" in found:
            self._check_places(found["train"], found["places"], file)
        return found

    def _advice(self, name: str) -> str:
        """What to do about a file that is not as it was written."""
        if name == "calibration":
            return f"Make it anew: tammes calibrate {self.folder}"
        if name == "results" and self.checkpoint.exists():
            return f"Have it made anew: remove it, then tammes train --resume {self.folder}"
        if name == "metrics":
            return "Remove it: nothing is lost but the curves."
        return (
            f"Put back the file that training wrote, or train anew: tammes train DATA --out {self.folder} --overwrite"
        )

    def _check_places(self, train: list[str], places: Places, file: Path) -> None:
        """Each class that trains or has trained has a centroid, and no other class has the same."""
        taken = list(places["of"].values())
        lost = [name for name in [*train, *places["old"]] if name not in places["of"]]
        if lost or len(set(taken)) < len(taken) or any(not 0 <= place < places["number"] for place in taken):
            what = f"places.of has no number for {lost[0]!r}" if lost else "places.of has numbers that cannot be"
            raise UserError(f"{file}: {what}. {self._advice('classes')}")

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        if not is_first():
            return
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one that a crash cut short is left out."""
        file, advice = self.folder / "metrics.jsonl", self._advice("metrics")
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except UnicodeDecodeError:
            raise UserError(f"{file} is not text. {advice}") from None
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            lines.append(checked(found, Line, f"{file}, line {number}", advice))
        return lines

    def forget_after(self, epoch: int) -> None:
        """Drop the lines of epochs after this one, which will be trained again."""
        if not is_first():
            return
        kept = [json.dumps(line) + "\n" for line in self.epochs() if line["epoch"] <= epoch]
        write_atomically(self.folder / "metrics.jsonl", "".join(kept).encode())

    @property
    def checkpoint(self) -> Path:
        """What to go on from."""
        return self.folder / _NEWEST

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
    if None in (config, classes, shape) or config.get("loss") not in WITH_CENTROIDS:
        return None
    kind = run.read("config", needs=("centroids", "seed"))["centroids"]
    if kind not in CENTROIDS:
        raise UserError(f"{run.folder / 'config.json'}: {unknown_name('kind of centroids', str(kind), CENTROIDS)}")
    generator = torch.Generator().manual_seed(config["seed"])
    dim = shape.get("class_dim") or shape["dim"]
    places = classes.get("places", {"number": len(classes["train"])})
    found = CENTROIDS[kind](places["number"], dim, generator=generator)
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
            raise UserError(f"{error} {ANEW}") from None
        own = network.state_dict()
        _check_alike({name: own[name] for name in tensors if name in own}, tensors, str(file))
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
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    said = {
        "position": asdict(position),
        "groups": state["param_groups"],
        "scalars": scalars,
        "scaler": scaler,
        "without": [number for number in numbers if number not in state["state"]],
    }
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
    if not previous.exists():
        raise UserError(f"{what} There is no earlier one. {ANEW}")
    try:
        check_tensors(previous)
    except DamagedError as error:
        raise UserError(f"{what} {error} {ANEW}".lstrip()) from None
    previous.replace(newest)
    if not what:  # a process was stopped between the two names
        return None
    return f"{what} The checkpoint before it is sound: training goes on from there."


def load_checkpoint(
    run: Run, objective: nn.Module, optimizer: Optimizer, kind: type[Any] | None = None
) -> tuple[Any, dict[str, Any] | None]:
    """Put weights, optimizer and random state back as they were; the position to go on from, and the scaler's state.

    It may be a stranger's: nothing is put back before all of it is known to fit.

    Args:
        kind: what the position is made with, a dataclass; None: that of a training on images.
    """
    from tammes.training import Position

    if not any((run.folder / name).exists() for name in (_NEWEST, _PREVIOUS)):
        raise UserError(f"{run.folder} has no checkpoint to go on from: it was stopped before its first epoch ended.")
    mend_checkpoint(run)
    file = run.checkpoint
    tensors, metadata = read_tensors(file)
    said: State = parsed(metadata.get("state", ""), State, f"the state in {file}", ANEW)
    position = checked(said["position"], kind or Position, f"the position in {file}", ANEW)
    negative = [name for name, value in position.items() if type(value) in (int, float) and value < (name == "epoch")]
    if negative:
        name = negative[0]
        raise UserError(f"the position in {file}: {name} cannot be {position[name]}. {ANEW}")
    frozen, own = _frozen(objective), objective.state_dict()
    weights = _under("model/", tensors)
    _check_alike({name: tensor for name, tensor in own.items() if name not in frozen}, weights, str(file))
    _check_frozen(run, frozen)
    check_random(tensors.get("random"), file)
    state = _optimizer_state(optimizer, said, _under("optimizer/", tensors), file)
    objective.load_state_dict(weights | {name: own[name] for name in own if name in frozen})
    optimizer.load_state_dict(state)
    _lay_out_alike(optimizer)
    torch.set_rng_state(tensors["random"])
    return (kind or Position)(**position), said.get("scaler")


def check_random(state: Tensor | None, file: Path) -> None:
    """Refuse what is no state of torch's generator on the CPU."""
    try:
        torch.Generator().set_state(torch.empty(0) if state is None else state)
    except (RuntimeError, TypeError):
        raise UserError(f"{file} holds no state of what is random. {ANEW}") from None


def _check_alike(own: Mapping[str, Tensor], given: Mapping[str, Tensor], file: str) -> None:
    """Refuse weights of other names, shapes or types than a network's own."""
    for name in sorted(own.keys() ^ given.keys()):
        what = f"has no {name!r}, which the network has" if name in own else f"has {name!r}, which the network has not"
        raise UserError(f"{file} {what}. {ANEW}")
    for name, tensor in given.items():
        found, right = (f"{tuple(each.shape)} of {each.dtype}" for each in (tensor, own[name]))
        if found != right:
            raise UserError(f"{file}: {name!r} is {found}, and the network's is {right}. {ANEW}")


def _check_frozen(run: Run, frozen: set[str]) -> None:
    """What does not train and is in no checkpoint must have come from elsewhere."""
    file = run.folder / "frozen.safetensors"
    if file.exists():
        there = shapes(file)
        names = {name.removeprefix("embedder.") for name in frozen if name.startswith("embedder.")}
        for name in sorted(names - there.keys()):
            raise UserError(f"{file} has no {name!r}, which does not train. {ANEW}")


# What an optimizer keeps of each weight: in the shape of the weight, but for the number of steps.
_KEPT = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "SGD": {"momentum_buffer"},
}


def _optimizer_state(optimizer: Optimizer, said: State, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Any]:
    """What an optimizer goes on from. A fused one goes by addresses: it would write past what is too short."""
    own = optimizer.state_dict()["param_groups"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **said["scalars"]}.items():
        number, _, key = name.partition("/")
        place = int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else -1
        if not 0 <= place < len(parameters):
            raise UserError(f"{file}: the optimizer has no weight {number!r}. {ANEW}")
        entries.setdefault(place, {})[key] = value
    kept = _KEPT.get(type(getattr(optimizer, "optimizer", optimizer)).__name__)
    for place, found in entries.items():
        names = set(found) if kept is None else kept
        for name in sorted(names | set(found)):
            if name not in names or not _fits(name, found.get(name), parameters[place]):
                raise UserError(f"{file}: {name!r} of weight {place} does not fit the optimizer. {ANEW}")
    without = said.get("without")
    lost = set() if without is None else set(range(len(parameters))) - entries.keys() - set(without)
    if lost:
        raise UserError(f"{file}: what the optimizer keeps of weight {min(lost)} is missing. {ANEW}")
    return {"state": entries, "param_groups": _groups(own, said["groups"], file)}


def _fits(name: str, value: Any, parameter: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return value is None and name == "momentum_buffer"
    if name == "step":
        return value.shape == () and value.dtype == torch.float32
    return value.shape == parameter.shape and value.dtype == parameter.dtype


def _groups(own: list[dict[str, Any]], given: list[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
    """The groups of weights with the numbers of the file, such as learning rates; how to compute is ours to say."""
    if [group.get("params") for group in given] != [group["params"] for group in own]:
        raise UserError(f"{file}: its groups of weights are not those of the optimizer. {ANEW}")
    found = []
    for ours, group in zip(own, given, strict=True):
        # The first is what schedules start from.
        numbers = ["initial_lr", *(name for name, value in ours.items() if type(value) in (int, float))]
        pairs = [name for name, value in ours.items() if isinstance(value, tuple)]
        known = {name: group[name] for name in numbers if name in group}
        checked(known, dict[str, float], f"the groups in {file}", ANEW)
        two = {name: group[name] for name in pairs if name in group}
        checked(two, dict[str, tuple[float, float]], f"the groups in {file}", ANEW)
        found.append(ours | known | {name: tuple(value) for name, value in two.items()})
    return found


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
