"""The run folder: the files that a training writes and that all other commands read. Only the first process writes.

config.json        every option with its value           environment.json   versions, machine, commit
classes.json       class names of each split             metrics.jsonl      one line per epoch
embedder.safetensors, embedder.json                      the network that is kept; for vectors learner.safetensors,
.json last/              the network of the last epoch         candidates.json    results on the validation classes
checkpoint.safetensors                                   the checkpoint; previous.safetensors is the one before
frozen.safetensors                                       the frozen weights, if there are any
results.json       the evaluation                        log.txt            the printed output
calibration.json   the threshold of `tammes calibrate`   report.html        the page of `tammes report`
images.json        a checksum of the decoded images      .lock              locked by the process that trains
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tammes.errors import UserError, unknown_name
from tammes.io.files import (
    PARTIAL,
    check_no_links,
    errors_name,
    folder_inside,
    is_vector_file,
    lock,
    open_inside,
    opened,
    remove_partial,
    write_atomically,
)
from tammes.io.limits import TEXT
from tammes.io.schema import checked, read_json
from tammes.training.distributed import is_first
from tammes.training.run_schema import SHAPES, CentroidSlots, Line

if TYPE_CHECKING:
    from torch import Tensor

    from tammes.training.objects import Objects

_LOCK = ".lock"
NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
FRESH = f".{NEWEST}.new"
FROZEN = "frozen.safetensors"
LAST = "last"  # the folder with the network of the last epoch
# The first files of a run, before environment.json makes it one. A folder with only these has nothing to lose.
_FIRST = ("images.json", "config.json", "classes.json", FROZEN)
_FOLDERS = (LAST, "tensorboard")  # subfolders that training writes to
# All files that training and other commands write into a run folder. Only these are ever removed.
_OWN = frozenset(
    f"{name}.json"
    for name in (
        "config",
        "environment",
        "classes",
        "images",
        "untrained",
        "candidates",
        "results",
        "calibration",
        "embedder",
    )
) | {
    *("embedder.safetensors", "learner.json", "learner.safetensors", LAST, "metrics.jsonl", "log.txt", "tensorboard"),
    *(NEWEST, PREVIOUS, FRESH, FROZEN, "neighbours.png", "report.html", "hub"),
    *(
        name + end
        for name in ("model.onnx", "model-int8.onnx", "picture.onnx", "model.pt2", "model.safetensors")
        for end in ("", ".json")
    ),
}


@dataclass(frozen=True)
class RunFolder:
    """An existing run folder.

    Attributes:
        objects: the Python objects of its training, if known.
    """

    folder: Path
    objects: "Objects | None" = None

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file atomically."""
        if is_first():
            write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1, default=str).encode() + b"\n")

    def read(self, name: str, needs: Sequence[str] = ()) -> Any:
        """Read a JSON file and validate its schema, as it may be untrusted; None if it does not exist.

        Args:
            needs: required keys; the file must then exist.
        """
        file = self.folder / f"{name}.json"
        found = read_json(file, SHAPES[name], self.advice(name))
        missing = next((each for each in needs if each not in (found or {})), None)
        if missing is not None:
            what = f"{file} is missing" if found is None else f"{file}: {missing} is missing"
            raise UserError(f"{what}. {self.advice(name)}")
        if name == "classes" and found is not None and "places" in found:
            self._check_slots(found["train"], found["places"], file)
        return found

    def advice(self, name: str) -> str:
        """What to do about a damaged file, for the error message."""
        if name == "calibration":
            return f"Calibrate again: tammes calibrate {self.folder}"
        if name == "results" and self.checkpoint.exists():
            return f"To rebuild it, remove it, then: tammes train --resume {self.folder}"
        if name == "metrics":
            return "Remove it: only the curves are lost."
        return f"Restore the file from a copy, or train again: tammes train DATA --out {self.folder} --overwrite"

    def _check_slots(self, train: list[str], places: CentroidSlots, file: Path) -> None:
        """Raise UserError unless each current and earlier training class has a centroid of its own."""
        taken = list(places["of"].values())
        lost = [name for name in [*train, *places["old"]] if name not in places["of"]]
        if lost or len(set(taken)) < len(taken) or any(not 0 <= place < places["number"] for place in taken):
            what = f"places.of has no number for {lost[0]!r}" if lost else "places.of has invalid numbers"
            raise UserError(f"{file}: {what}. {self.advice('classes')}")

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        if not is_first():
            return
        place = self.folder / "metrics.jsonl"
        with errors_name(place), open_inside(place) as file:
            file.write(json.dumps(record).encode() + b"\n")

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without one that a crash cut short."""
        file, advice = self.folder / "metrics.jsonl", self.advice("metrics")
        try:
            with opened(file, TEXT) as source:
                text = source.read().decode()
        except FileNotFoundError:
            return []
        except UnicodeDecodeError:
            raise UserError(f"{file} is not text. {advice}") from None
        except UserError as error:
            raise UserError(f"cannot read {file}: {error} {advice}") from None
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            lines.append(checked(found, Line, f"{file}, line {number}", advice))
        return lines

    def forget_after(self, epoch: int) -> None:
        """Remove the lines of epochs after this one, which will be trained again."""
        if not is_first():
            return
        self._write_epochs([line for line in self.epochs() if line["epoch"] <= epoch])

    def add(self, epoch: int, record: dict[str, Any]) -> None:
        """Add values to the line of an epoch in metrics.jsonl."""
        self._write_epochs([line | record if line["epoch"] == epoch else line for line in self.epochs()])

    def _write_epochs(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.folder / "metrics.jsonl", text.encode())

    @property
    def checkpoint(self) -> Path:
        """The file of the newest checkpoint."""
        return self.folder / NEWEST

    @property
    def of_vectors(self) -> bool:
        """Whether it was trained on vectors."""
        return is_vector_file(self.read("config").get("data", ""))

    @property
    def state(self) -> str:
        """finished, interrupted (there is a checkpoint) or started."""
        if (self.folder / "results.json").exists():
            return "finished"
        return "interrupted" if any((self.folder / name).exists() for name in (NEWEST, PREVIOUS)) else "started"


def create(folder: Path, *, overwrite: bool = False, objects: "Objects | None" = None) -> RunFolder:
    """Create a run folder. An existing folder is only replaced with `overwrite`, and only if it is a run.

    Only files that a run writes are removed. A folder whose process was stopped before it became a run counts as empty.
    """
    if not is_first():
        return RunFolder(folder, objects)
    check_new(folder, overwrite=overwrite)
    if is_run(folder) or (folder / _LOCK).exists():
        with _locked(folder):
            _remove_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return RunFolder(folder, objects)


def check_new(folder: Path, *, overwrite: bool = False) -> None:
    """Raise UserError if `create` would fail, without creating anything, so that it can be checked early."""
    if not folder.exists():
        above = next(each for each in folder.absolute().parents if each.exists())
        if not above.is_dir():
            raise UserError(f"`out={str(folder)!r}`: {above} is a file. Choose another `out`.")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UserError(f"`out={str(folder)!r}`: cannot write to {above}. Choose another `out`.")
        return
    ours = is_run(folder)
    if not (_is_begun(folder) or (ours and overwrite)):
        what = "is already a run" if ours else "exists and is not a run"
        hint = f"Resume it (tammes train --resume {folder}), replace it with `overwrite=True`, or" if ours else "Please"
        raise UserError(f"{folder} {what}. {hint} choose another `out`.")
    if (folder / _LOCK).exists():
        with _locked(folder):  # fails if another process holds it
            pass


def remove(folder: Path) -> list[str]:
    """Remove a run. Returns the names of files that remain because they do not belong to the run."""
    place = open_run(folder).folder.resolve()
    if folder.is_symlink():
        raise UserError(f"{folder} is a link. Remove the run itself: tammes runs --remove {place}")
    folder = place
    with _locked(folder):
        _remove_own(folder)
        (folder / _LOCK).unlink(missing_ok=True)
    left = sorted(each.name for each in folder.iterdir())
    if not left:
        folder.rmdir()
    return left


def _is_begun(folder: Path) -> bool:
    """Whether a folder is empty, or has only files of a process that was stopped before the folder became a run."""
    if not folder.is_dir():
        return False
    names = {each.name for each in folder.iterdir()} - {_LOCK}
    begun = tuple(f".{name}." for name in (*_FIRST, "environment.json"))
    halves = {name for name in names if name.startswith(begun) and name.endswith(PARTIAL)}
    return not names or ((folder / _LOCK).is_file() and names <= {*_FIRST, *halves})


def _remove_own(folder: Path) -> None:
    # The files that make it a run go last: an interrupted removal can be repeated.
    order = ("environment.json", *_FIRST)
    for each in sorted(folder.iterdir(), key=lambda each: order.index(each.name) + 1 if each.name in order else 0):
        if each.name in _OWN:
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a run folder until the end of the block or of the process.

    Partial files of a killed process are removed first.

    Raises:
        UserError: another process holds the lock, or a subfolder is a link to somewhere else.
    """
    with _locked(folder):
        for name in _FOLDERS:
            if (folder / name).is_symlink():
                folder_inside(folder / name)
            check_no_links(folder / name)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a run folder, without checking for links."""
    try:
        held_open = open_inside(folder / _LOCK)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}.") from None
    with held_open as file:
        if lock(file) is False:
            file.seek(0)
            who = file.read(20).strip().decode(errors="replace")
            raise UserError(
                f"{folder} is being trained by another process{f', {who}' if who.isdecimal() else ''}. Wait until it"
                " has ended, or stop it; a new run needs another `out`."
            )
        with suppress(OSError):  # the disk may be full; the content of the lock file is only informative
            file.truncate(0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        _remove_what_is_left(folder)
        yield


def _remove_what_is_left(folder: Path) -> None:
    """Remove partial files of a killed process."""
    remove_partial(folder)
    if not (folder / LAST).is_symlink():
        remove_partial(folder / LAST)
    with suppress(OSError):
        (folder / FRESH).unlink(missing_ok=True)


def open_run(folder: Path, objects: "Objects | None" = None) -> RunFolder:
    """Open an existing run folder."""
    if not is_run(folder):
        if (folder / _LOCK).exists() and _is_begun(folder):
            raise UserError(
                f"{folder} was stopped before its first checkpoint. Start it again: tammes train DATA --out {folder}"
            )
        raise UserError(
            f"no run in {folder}: config.json or environment.json is missing. `tammes runs` lists existing runs."
        )
    return RunFolder(folder, objects)


def open_finished(folder: Path, objects: "Objects | None" = None) -> RunFolder:
    """Open an existing run folder whose training has finished."""
    run = open_run(folder, objects)
    if run.state != "finished":
        raise UserError(f"{folder} has not finished. Resume it: tammes train --resume {folder}")
    return run


def listed(root: Path) -> list[RunFolder]:
    """All runs below a folder, oldest first."""
    found = [RunFolder(file.parent) for file in root.glob("**/config.json") if is_run(file.parent)]
    return sorted(found, key=lambda run: (run.folder / "config.json").stat().st_mtime)


def records(root: Path) -> list[dict[str, Any]]:
    """The rows of `tammes runs`: all runs below a folder, oldest first; for an unreadable one, the error."""
    if not root.is_dir():
        raise UserError(f"no such folder: {root}. Train something first: tammes train")
    return [_record(run) for run in listed(root)]


def _record(run: RunFolder) -> dict[str, Any]:
    try:
        options, results, lines = run.read("config"), run.read("results") or {}, run.epochs()
        # A run of vectors may train again on all classes; these epochs are not counted.
        done, epochs = sum("on_all_classes" not in line for line in lines), options.get("epochs")
        return {
            "run": str(run.folder),
            "state": run.state,
            **{name: options.get(name) for name in ("data", "loss", "centroids", "backbone", "seed")},
            **({"loss": "ridge"} if options.get("method") == "ridge" else {}),
            "epochs": "-" if epochs is None else f"{done}/{epochs}",
            **{name: results.get(name) for name in ("trained", "untrained", "verdict", "command")},
        }
    except UserError as error:
        return {"run": str(run.folder), "error": str(error)}


def centroids_of(run: RunFolder) -> "Tensor | None":
    """The centroids (classes, dim) of a run of images, generated again from its config; None if it has none."""
    # Imported here, as most callers of this module need no torch.
    import torch

    from tammes.centroids import CENTROIDS
    from tammes.losses import WITH_CENTROIDS

    trained = (
        RunFolder(run.folder / LAST) if (run.folder / LAST).exists() else run
    )  # the network that was kept may have no class layer
    config, classes, shape = run.read("config"), run.read("classes"), trained.read("embedder")
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


def is_run(folder: Path) -> bool:
    """Whether a folder is a run; a config.json alone may be another program's."""
    return (folder / "config.json").exists() and (folder / "environment.json").exists()
