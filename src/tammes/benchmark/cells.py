"""The cells of a benchmark: one training each, with a run folder, an atomic result file, and a lock.

Everything is in the folder, so that any number of processes can share the work, and one that is killed leaves nothing
behind but a run to resume: the system frees its locks.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NotRequired

from pydantic import FiniteFloat, PositiveInt
from typing_extensions import TypedDict

from tammes.benchmark.plan import Method, Plan, describe_options, slug
from tammes.errors import UserError
from tammes.io.files import check_no_links, lock, open_inside, write_atomically
from tammes.io.schema import read_json
from tammes.training.run_schema import BesideRecall, Line, Measures

SCHEMA = 2  # of a cell's file; 1 had no epochs and no number of images
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


class Failed(TypedDict):
    """The result of a cell that ended with an error."""

    error: str


class Recall(BesideRecall):
    """The metrics of a table."""

    recall_at_1: float


class Options(TypedDict):
    """The options of a run that a table shows."""

    preset: str
    backbone: str
    pool: str | None
    weights: str | None
    train: str | None
    views: int | None
    dim: int | None
    epochs: PositiveInt
    batch_size: int | None
    mirror: bool | None
    shift: int | None
    init: str | None


class Machine(TypedDict, total=False):
    """The machine of a cell."""

    processor: str | None
    threads: int | None
    torch: str | None


class Distances(TypedDict):
    """Between centroids."""

    min: FiniteFloat
    max: FiniteFloat
    mean: FiniteFloat
    std: FiniteFloat


class NumberOfImages(TypedDict):
    """That a cell was trained and tested on."""

    train: int
    test: int


class Tabled(TypedDict):
    """The result of a cell of the table."""

    schema: NotRequired[int]
    images: NotRequired[NumberOfImages]
    epochs: NotRequired[list[Line]]
    layers: dict[str, Recall]
    untrained: Measures
    best: NotRequired[Measures | None]
    chosen: dict[str, Any]
    training_seconds: FiniteFloat
    seconds: FiniteFloat
    config: Options
    command: NotRequired[str]
    distances: NotRequired[Distances | None]
    machine: NotRequired[Machine]


class Tried(TypedDict):
    """The result of a cell of the search."""

    recall_at_1: FiniteFloat
    seconds: FiniteFloat


@dataclass(frozen=True)
class Cell:
    """One training: of a method with a seed, for the table; or with a quarter of the classes held out, for the search.

    Attributes:
        seed: for the search that of the search.
        quarter: the held-out quarter of the training classes; None for the table, which uses all training classes.
        changes: the options that the search tries.
    """

    out: Path
    preset: str
    method: Method
    seed: int
    quarter: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        if self.quarter is None:
            return f"{self.method.name}, preset {self.preset}, seed {self.seed}"
        changes = describe_options(self.changes)
        return f"{self.method.name}, preset {self.preset}, search: {changes}, quarter {self.quarter}"

    @property
    def folder(self) -> Path:
        """Its run folder."""
        place = self.out / self.preset / self.method.slug
        if self.quarter is None:
            return place / f"seed-{self.seed}"
        tried = slug(" ".join(f"{name} {value}" for name, value in self.changes.items()))
        return place / "search" / tried / f"quarter-{self.quarter}"

    @property
    def file(self) -> Path:
        """Its result."""
        return self.folder.parent / f"{self.folder.name}.json"

    @property
    def state(self) -> str:
        """waiting, running (here or in another process), done, or failed."""
        result = self.result()
        if result is not None:
            return FAILED if "error" in result else DONE
        return RUNNING if self._is_claimed() else WAITING

    def result(self, layers: Sequence[str] = ()) -> dict[str, Any] | None:
        """The result, or the error; None if there is neither yet.

        Args:
            layers: that it must have been measured in, where it is of the table.
        """
        shape = Failed | (Tabled if self.quarter is None else Tried)
        advice = f"Remove it to train it again: {self.name}."
        found: dict[str, Any] | None = read_json(self.file, shape, advice)
        if found is None:
            return None
        if found.get("schema", SCHEMA) > SCHEMA:
            raise UserError(
                f"{self.file}: schema {found['schema']} is of a newer version of tammes; {SCHEMA} is known."
            )
        if self.quarter is None and "error" not in found:
            missing = next((layer for layer in layers or ("",) if layer not in found["layers"]), None)
            if missing or not found["layers"]:
                raise UserError(f"{self.file}: layers has no {missing or 'layer'}. {advice}")
        return found

    def write(self, result: dict[str, Any]) -> None:
        """Write the result atomically."""
        write_atomically(self.file, json.dumps(result, indent=1, default=str).encode() + b"\n")

    def forget(self) -> None:
        """Remove the result, so that the cell is waiting again."""
        self.file.unlink(missing_ok=True)

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Try to lock the cell until the end of the block. Yields whether that succeeded."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with open_inside(self._lock) as file:
            yield lock(file) is not False

    @property
    def _lock(self) -> Path:
        return self.folder.parent / f".{self.folder.name}.lock"

    def _is_claimed(self) -> bool:
        try:
            with open_inside(self._lock, create=False) as file:
                return lock(file) is False
        except FileNotFoundError:
            return False


def table_cells(plan: Plan, out: Path) -> list[Cell]:
    """Seed after seed, so that the table fills evenly."""
    return [
        Cell(out, preset, method, seed)
        for preset, seed, method in product(plan.presets, plan.seeds, plan.methods)
        if seed in method.seeds
    ]


def begin(plan: Plan, out: Path) -> None:
    """Record in the folder what its results depend on; methods and seeds may be added later, but not changed."""
    if out.exists() and not (out / "plan.json").exists() and any(each.name != ".lock" for each in out.iterdir()):
        raise UserError(f"{out} exists and is not the folder of a benchmark. Choose another `out`.")
    out.mkdir(parents=True, exist_ok=True)
    check_no_links(out)  # cells train below it
    with open_inside(out / ".lock") as opened:
        lock(opened, wait=True)
        file, asked = out / "plan.json", _remembered(plan)
        advice = f"Put back the one that was there, or choose another `out` than {out}."
        before = read_json(file, dict[str, Any], advice) or {}
        for name, value in asked.items():
            if name in before and before[name] != value:
                raise UserError(
                    f"{out} was started with {name} = {json.dumps(before[name])}, and {plan.file} now says"
                    f" {json.dumps(value)}: the results cannot go into one table. Put it back, or choose"
                    " another `out`."
                )
        write_atomically(file, json.dumps(before | asked, indent=1).encode() + b"\n")


def _remembered(plan: Plan) -> dict[str, Any]:
    """Everything that a result depends on, by name, as JSON."""
    found: dict[str, Any] = {"data": plan.data, "layers": list(plan.layers), "train": plan.train}
    if plan.search is not None:
        # What is new in this list is left out where it is as it always was: older folders do not have it.
        found["search"] = {name: value for name, value in asdict(plan.search).items() if value or name == "seed"}
    else:
        found["search"] = None
    if plan.rates_from is not None:
        found["rates_from"] = plan.rates_from.file.stem
    for method in plan.methods:
        own = {"options": method.options, "search": method.search}
        found[f"method {method.name!r}"] = own | ({"rates": method.rates} if method.rates else {})
    return dict(json.loads(json.dumps(found)))
