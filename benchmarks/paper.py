"""The paper's own experiment, every layer trained: its plans in turn, what of them is done, how long the rest takes.

    python -m benchmarks.paper --data DATASETS --cars CARS196 --weights WEIGHTS     # or: make paper-tables
    python -m benchmarks.paper --status [--json]                                    # or: make paper-status
    python -m benchmarks.paper --take paper-cub RUN                                 # a run of `tammes train` as a cell

It may be stopped at any moment, by Ctrl-C or `kill`, and the same command resumes it. What is found is in
runs/paper/PLAN/results.json; `python -m benchmarks.store runs/paper/PLAN` puts it on the page.
"""

import json
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks.stored import IMAGES, PLANS, RESULTS
from tammes.benchmark.cells import DONE, FAILED, Cell, begin, table_cells
from tammes.benchmark.choose import chosen
from tammes.benchmark.plan import Plan, read_plan
from tammes.benchmark.results import find_data
from tammes.benchmark.runner import all_cells, config_of
from tammes.cli import main as tammes
from tammes.errors import UserError
from tammes.io.console import duration
from tammes.io.environment import data_folder
from tammes.training.build import build_backbone
from tammes.training.config import load_config, resolve
from tammes.training.presets import recipe_of
from tammes.training.run_folder import RunFolder, held, is_run, open_run

ORDER = (
    *("paper-cub", "paper-cars196", "minutes-cub", "minutes-cars196", "methods-cub", "methods-cars196"),
    *("paper-vgg-cub", "paper-vgg-cars196"),
)
FORWARD = 1 / 3  # of the time that training takes on an image, to embed one
TOP = 8.0  # how much faster the top trains than all layers, until it is measured
STOPPED = 130


@dataclass(frozen=True)
class Options:
    """Train what has no result yet; or say what is done."""

    data: Path | None = None
    """The folder that holds CUB_200_2011, and cars196 unless --cars says where that is; by default TAMMES_DATA."""
    cars: Path | None = None
    """The folder of CARS196."""
    weights: str = "imagenet"
    """A folder with files of ImageNet weights, googlenet… and vgg16…; imagenet downloads them."""
    out: Path = Path("runs/paper")
    status: bool = False
    """Say what is done and how long the rest takes; train nothing."""
    json: bool = False
    """The status for a program."""
    take: Annotated[tuple[str, Path] | None, tyro.conf.arg(metavar="PLAN RUN")] = None
    """Move a run that `tammes train` has begun with the same options to where the plan has its cell."""


def main(options: Options) -> int:
    if options.take is not None:
        take(planned(options.take[0], options), options.take[1], options.out)
    elif options.status:
        found = status(options)
        print(json.dumps(found, indent=1)) if options.json else show(found)
    else:
        return run(options)
    return 0


def planned(name: str, options: Options) -> Plan:
    """A plan with the weights that it is run with."""
    plan = read_plan(PLANS / f"{name}.toml")
    return replace(plan, train=plan.train | {"weights": weights_of(plan, options.weights)})


def weights_of(plan: Plan, given: str) -> str:
    """The file of weights of a plan's network; imagenet where none is given."""
    if not Path(given).is_dir():
        return given
    files = sorted(Path(given).glob(f"{plan.train['backbone']}*"))
    if not files:
        raise UserError(f"no file {plan.train['backbone']}* in {given}. Name the folder that has it: WEIGHTS=FOLDER")
    return str(files[0].absolute())


def folder_of(plan: Plan, options: Options) -> Path | None:
    """What to look for the data of a plan in; an error that says what to type if it is not there."""
    folder = options.cars if plan.data == "cars196" and options.cars else options.data
    try:
        find_data(plan, folder)
        return folder
    except UserError:
        name = (
            "CARS=FOLDER, the folder of CARS196" if plan.data == "cars196" else "DATA=FOLDER, which holds " + plan.data
        )
        raise UserError(f"{plan.data} is not in {folder or data_folder() or Path.cwd()}: add {name}") from None


# ---- run


def run(options: Options) -> int:
    """Every plan in turn, niced; one that cannot run does not stop the others."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background ignores it
    missing: dict[str, str] = {}
    for name in ORDER:
        try:
            plan = planned(name, options)
            folder = folder_of(plan, options)
            if not all(cell.state in (DONE, FAILED) for cell in all_cells(plan, options.out / name)):
                build_backbone(
                    resolve(plan.data, {"backbone": plan.train["backbone"], "weights": plan.train["weights"]})
                )
        except UserError as error:
            missing[name] = str(error)
            continue
        print(f"{name}: {plan.title}", flush=True)
        words = ["benchmark", str(plan.file), "--out", str(options.out / name), "--weights", plan.train["weights"]]
        try:
            tammes([*words, *([] if folder is None else ["--data", str(folder)])])
        except SystemExit as ended:
            if ended.code == STOPPED:
                return STOPPED
            if ended.code:
                missing[name] = "not all of it has a result: see above"
    for why in dict.fromkeys(missing.values()):
        print(f"{', '.join(name for name in missing if missing[name] == why)} not done: {why}")
    if missing:
        print("For example: make paper-tables DATA=datasets CARS=datasets/stanford_cars WEIGHTS=weights")
    return 1 if missing else 0


# ---- status


def status(options: Options) -> dict[str, Any]:
    """Of every plan what is done, and the seconds that the rest may take by the images/s that were measured."""
    plans = {name: read_plan(PLANS / f"{name}.toml") for name in ORDER}
    cells = {name: all_cells(plan, options.out / name) for name, plan in plans.items()}
    speeds = _speeds(plans, cells)
    found: dict[str, Any] = {}
    for name, plan in plans.items():
        left = [cell for cell in cells[name] if cell.state not in (DONE, FAILED)]
        kinds = {(_part(plan, cell), plan.train["backbone"]) for cell in left}
        seconds = [_images_left(plan, cell) / _speed(speeds, plan, cell) for cell in left]
        states = [(cell.quarter is None, cell.state) for cell in cells[name]]
        found[name] = {
            "title": plan.title,
            "trainings": sum(table for table, _ in states),
            "done": sum(table and state == DONE for table, state in states),
            "search": sum(not table for table, _ in states),
            "searched": sum(not table and state in (DONE, FAILED) for table, state in states),
            "failed": sum(table and state == FAILED for table, state in states),
            "epoch": next((_epoch(cell) for cell in left if is_run(cell.folder)), None),
            "seconds": sum(seconds),
            "measured": all((kind, "") in speeds for kind in kinds),
        }
    return {"plans": found, "seconds": sum(each["seconds"] for each in found.values())}


def show(found: dict[str, Any]) -> None:
    print(f"{'plan':<18}{'search':>9}{'done':>7}{'failed':>8}  {'under way':<14}{'left':>12}")
    for name, of in found["plans"].items():
        search = f"{of['searched']}/{of['search']}" if of["search"] else ""
        left = ("" if of["measured"] else "~ ") + duration(of["seconds"]) if of["seconds"] else "nothing"
        done = f"{of['done']}/{of['trainings']}"
        print(f"{name:<18}{search:>9}{done:>7}{of['failed'] or '':>8}  {of['epoch'] or '':<14}{left:>12}")
    print(
        f"In all about {duration(found['seconds'])}, one after the other. ~: by images/s of another machine or network."
    )


def _part(plan: Plan, cell: Cell) -> str:
    searched = plan.search.train if plan.search is not None and cell.quarter is not None else {}
    return str((plan.train | searched)["train"])


def _epochs(plan: Plan, cell: Cell) -> int:
    searched = plan.search.train if plan.search is not None and cell.quarter is not None else {}
    usual = recipe_of(cell.preset, plan.train["backbone"], _part(plan, cell)).epochs
    return int((plan.train | searched).get("epochs", usual))


def _epoch(cell: Cell) -> str:
    epochs = (RunFolder(cell.folder).read("config") or {}).get("epochs")
    return f"epoch {len(RunFolder(cell.folder).epochs()) + 1}/{epochs}"


def _images_left(plan: Plan, cell: Cell) -> float:
    """That still train, and those that are embedded to be measured as if they trained for as long."""
    train, test = IMAGES[plan.data]
    epochs = _epochs(plan, cell)
    left = epochs - (len(RunFolder(cell.folder).epochs()) if is_run(cell.folder) else 0)
    if cell.quarter is not None:
        return 0.75 * train * left
    looks = sum(epoch > epochs - left for epoch in plan.train.get("curve", ())) + len(cell.method.layers) - 1
    mining = FORWARD * train * left if cell.method.options["loss"] == "triplet-smart" else 0.0
    return float(train * left + FORWARD * test * looks + mining)


def _speeds(plans: dict[str, Plan], cells: dict[str, list[Cell]]) -> dict[tuple[tuple[str, str], str], float]:
    """Images/s by what trains and the network, of each method and of all together (under no name)."""
    images: dict[tuple[tuple[str, str], str], float] = defaultdict(float)
    seconds: dict[tuple[tuple[str, str], str], float] = defaultdict(float)
    for name, plan in plans.items():
        for cell in cells[name]:
            for number, took in _measured(plan, cell):
                for method in (cell.method.name, ""):
                    key = ((_part(plan, cell), plan.train["backbone"]), method)
                    images[key] += number
                    seconds[key] += took
    return {key: images[key] / seconds[key] for key in images if seconds[key] > 0}


def _measured(plan: Plan, cell: Cell) -> Iterator[tuple[float, float]]:
    """Images and the seconds that they took."""
    result = cell.result() or {}
    if cell.quarter is not None and "training_seconds" in result:
        yield 0.75 * IMAGES[plan.data][0] * _epochs(plan, cell), result["training_seconds"]
    elif cell.quarter is None and is_run(cell.folder):
        for line in RunFolder(cell.folder).epochs():
            yield line["images_per_second"] * line["seconds"], line["seconds"]


def _speed(speeds: dict[tuple[tuple[str, str], str], float], plan: Plan, cell: Cell) -> float:
    kind = (_part(plan, cell), plan.train["backbone"])
    for method in (cell.method.name, ""):
        if (kind, method) in speeds:
            return speeds[kind, method]
    whole = ("all", kind[1])
    rows = json.loads((RESULTS / "throughput.json").read_text())["rows"]
    stored = {row["backbone"]: row["images_per_second"] for row in rows}
    usual = stored.get(kind[1], min(stored.values()))  # of a network that was not measured, the slowest that was
    return float(speeds.get((whole, ""), usual) * (TOP if kind[0] == "top" else 1.0))


# ---- take


def take(plan: Plan, folder: Path, out: Path) -> None:
    """Move a run to where the cell of its seed expects it, if it was started with the same options."""
    run = open_run(folder)
    had, into = load_config(run), out / plan.file.stem
    cell = next((cell for cell in table_cells(plan, into) if cell.seed == had.seed), None)
    if cell is None:
        raise UserError(f"{folder} has seed {had.seed}, and {plan.file} has not.")
    if cell.folder.exists():
        raise UserError(f"{cell.folder} is there already: remove it, or choose another --out.")
    wanted = config_of(plan, cell, had.data, chosen(plan, into, cell.preset, cell.method) or {})
    free = ("out", "data", "weights", "curve", "log_bound", "skip_bad", "tensorboard")
    for name, theirs in wanted.saved().items():
        ours = getattr(had, name)
        if name == "val_classes" and had.preset == "paper":
            ours, theirs = ours or "0", theirs or "0"  # it holds none out
        if name not in free and ours != theirs:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{folder} was started with {flag} {ours}, and {plan.file.name} has {theirs}.")
    if Path(had.weights).name != Path(wanted.weights).name:
        raise UserError(f"{folder} was started with --weights {had.weights}, not {wanted.weights}: add WEIGHTS.")
    begin(plan, into)
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    with held(run.folder):  # nobody trains it now
        moved = RunFolder(Path(shutil.move(run.folder, cell.folder)))
        moved.write("config", replace(had, out=cell.folder, curve=wanted.curve).saved())
    print(f"{folder} is now {cell.folder}")


if __name__ == "__main__":
    try:
        raise SystemExit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        raise SystemExit(f"{error}") from None
