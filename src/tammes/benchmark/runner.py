"""Run the cells of a benchmark: each is an ordinary training, evaluated in every layer, or timed."""

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

from tammes.benchmark.cells import DONE, FAILED, RUNNING, SCHEMA, WAITING, Cell, table_cells
from tammes.benchmark.choose import chosen, combinations, quarter_of, trials
from tammes.benchmark.plan import Plan
from tammes.benchmark.tables import MEASURES, centroid_distances, compares_centroids
from tammes.errors import UserError
from tammes.io.console import duration, say
from tammes.io.machine import device, environment
from tammes.models.embedder import load
from tammes.models.feature_cache import Frozen, kept_by, keys_of, num_missing
from tammes.training.build import build_backbone, build_embedder, build_loss, cut_of, freeze
from tammes.training.config import TrainConfig, load_config, resolve
from tammes.training.data import Data, keep_activations, load_data, training_batches
from tammes.training.evaluation import evaluate_images, measure
from tammes.training.objectives import Objective
from tammes.training.options import TrainOptions
from tammes.training.run_folder import LAST, RunFolder, is_run
from tammes.training.train import OnEpoch, resume_images, train_images
from tammes.training.verdict import EPOCH, REFIT, is_epoch, not_judged

POLL = 1.0  # seconds between checks of other processes
TIMED = 15  # images with which a step is timed; a multiple of 3, for losses of triplets
# What of a run's options a table says of itself.
SHOWN = (
    *("preset", "backbone", "pool", "weights", "train", "cut", "views", "dim", "epochs", "batch_size"),
    *("mirror", "shift", "init", "keep_init", "refit"),
)


def all_cells(plan: Plan, out: Path, only: Sequence[str] = ()) -> list[Cell]:
    """The cells to run, in order: searches, then the table; only cells whose names contain one of `only`."""
    table = [cell for cell in table_cells(plan, out) if not only or any(text in cell.name for text in only)]
    methods = dict.fromkeys((cell.preset, cell.method.name) for cell in table)
    by_name = {method.name: method for method in plan.methods}
    return [cell for preset, name in methods for cell in trials(plan, out, preset, by_name[name])] + table


def check_options(plan: Plan, cells: Sequence[Cell], data: str) -> None:
    """Validate the options of all cells before the first runs."""
    for cell in cells:
        try:
            with _silenced():
                config_of(plan, cell, data, cell.changes)
        except UserError as error:
            raise UserError(f"{plan.file}: method {cell.method.name!r}: {error}") from None


def check_chosen(plan: Plan, cells: Sequence[Cell]) -> None:
    """Raise UserError if the search of another plan, whose choices are needed, is not finished."""
    other = plan.rates_from
    for cell in cells:
        if other is not None and chosen(plan, cell.out, cell.preset, cell.method) is None:
            folder = cell.out.parent / other.file.stem
            raise UserError(
                f"{plan.file} takes the rates over that {other.file.stem} chooses, and {folder} has none for"
                f" {cell.method.name!r} yet. Run first: tammes benchmark {other.file} --out {folder}"
            )


def work(plan: Plan, find: Callable[[], list[Cell]], data: str, on_change: Callable[[list[Cell]], None]) -> None:
    """Run all cells without a result that no other process is running; then wait for those of others.

    Args:
        find: returns all current cells, as a search may widen.
        on_change: called with them after each cell, and while waiting.
    """
    while True:
        cells = find()
        left = [cell for cell in cells if cell.state in (WAITING, RUNNING)]
        if not left:
            return
        if not any(_take(plan, cell, data) for cell in left):
            sleep(POLL)
        on_change(find())


def _take(plan: Plan, cell: Cell, data: str) -> bool:
    """Run a cell if it is ready and not locked by another process."""
    if cell.quarter is None and any(
        trial.state not in (DONE, FAILED) for trial in trials(plan, cell.out, cell.preset, cell.method)
    ):
        return False
    with cell.claimed() as ours:
        if not ours or cell.result() is not None:
            return False
        result = _attempted(plan, cell, data)
        cell.write(result)
        if cell.quarter is not None and "error" not in result:
            shutil.rmtree(cell.folder)  # a search leaves figures, not networks
        return True


def _attempted(plan: Plan, cell: Cell, data: str) -> dict[str, Any]:
    """The result of a cell, or its error; other cells continue."""
    started, tell = perf_counter(), _telling(cell, sys.stderr)
    try:
        with _silenced():
            found = (_measured if cell.quarter is None else _tried)(plan, cell, data, tell)
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    made_with = environment()
    machine = {name: made_with[name] for name in ("processor", "cores", "system")}
    versions = {name: made_with["versions"][name] for name in ("tammes", "torch")}
    return found | {
        # A cell that was resumed trained for longer than this process has seen.
        "seconds": round(max(perf_counter() - started, found["training_seconds"]), 2),
        "schema": SCHEMA,
        "commit": found.get("commit") or made_with["commit"],
        "machine": machine | versions | {"threads": torch.get_num_threads()},
    }


def _measured(plan: Plan, cell: Cell, data: str, tell: OnEpoch) -> dict[str, Any]:
    """Train for the table, and evaluate every layer on the test classes."""
    best = chosen(plan, cell.out, cell.preset, cell.method)
    assert best is not None, "a cell is run when its search is done"
    _train(config_of(plan, cell, data, best), tell, pretrained=_pretrained(plan, cell))
    run = RunFolder(cell.folder)
    if run.read("results", needs=("trained",))["trained"] is None:
        raise UserError("there are no test classes to measure on: change test-classes in [train].")
    results = run.read("results", needs=("untrained", "seconds", "command", "train_images", "test_images"))
    last = results.get("last") or results["trained"]  # as the tables of papers: the last epoch
    first, *others = cell.method.layers
    layers = {first: last} | {layer: _in_layer(run, layer) for layer in others}
    epochs = run.epochs()
    epochs[-1] |= {"test_recall_at_1": last["recall_at_1"]}
    found = {
        "images": {"train": results["train_images"], "test": results["test_images"]},
        "epochs": epochs,
        "commit": (run.read("environment") or {}).get("commit"),  # that it was begun with
        "layers": {layer: _small(measures) for layer, measures in layers.items()},
        "untrained": _small(results["untrained"]),
        "chosen": best,
        "training_seconds": round(results["seconds"], 2),
        "command": results["command"],
        "config": _shown(run.read("config")),
    }
    if compares_centroids(plan):
        found["distances"] = centroid_distances(run)
    verdict = results.get("verdict") or not_judged("")
    if verdict["judged"]:
        epoch = int(verdict["kept"].removeprefix(EPOCH).removesuffix(REFIT)) if is_epoch(verdict["kept"]) else 0
        found["best"] = {"epoch": epoch, **_small(results["trained"])}
    return found


def _shown(config: dict[str, Any]) -> dict[str, Any]:
    """The options shown in a table; a file of weights by its name."""
    return {name: config[name] for name in SHOWN} | {"weights": Path(config["weights"]).name}


def _tried(plan: Plan, cell: Cell, data: str, tell: OnEpoch) -> dict[str, Any]:
    """Train for the search and evaluate on the held-out quarter."""
    assert cell.quarter is not None
    config = replace(config_of(plan, cell, data, cell.changes), val_classes="0", curve=(), log_bound=False)
    _train(config, tell, quarter=cell.quarter)
    lines = RunFolder(cell.folder).epochs()
    return {
        "changes": cell.changes,
        "quarter": cell.quarter,
        "recall_at_1": lines[-1]["val_recall_at_1"],  # of the last epoch, as in the table
        "training_seconds": round(sum(line["seconds"] for line in lines), 2),
    }


def _pretrained(plan: Plan, cell: Cell) -> dict[str, Any] | None:
    """What a cell that is done has measured of the same pretrained backbone: half of an evaluation is spared.

    Network, weights and classes are the same for all methods of a preset; without weights, and with classes held out by
    the seed, also the seed must be.
    """
    alike = [each for each in table_cells(plan, cell.out) if each.preset == cell.preset and each.state == DONE]
    for each in alike:
        made = RunFolder(each.folder).read("config") or {}
        shared = made.get("weights") not in (None, "none") and made.get("test_classes") is None
        if each.seed == cell.seed or shared:
            found: dict[str, Any] | None = RunFolder(each.folder).read("untrained")
            if found is not None:
                return found
    return None


def _train(
    config: TrainConfig, tell: OnEpoch, *, quarter: int | None = None, pretrained: dict[str, Any] | None = None
) -> None:
    """Train into a run folder, from where it stopped if it did."""

    def select(data: Data) -> Data:
        return data if quarter is None else held_out_quarter(data, quarter)

    state = RunFolder(config.out).state if is_run(config.out) else None
    if state == "finished":
        return
    if state == "interrupted":
        resume_images(config.out, select=select, pretrained=pretrained, on_epoch=tell)
        return
    if config.out.exists():  # killed before its first checkpoint: nothing is lost
        shutil.rmtree(config.out)
    train_images(config, select=select, pretrained=pretrained, on_epoch=tell)


def config_of(plan: Plan, cell: Cell, data: str, changes: dict[str, Any]) -> TrainConfig:
    """The configuration of a cell; the learning rate of the backbone goes with that of the new layers."""
    # Nothing is held out of what trains for a table unless the plan says so.
    given: dict[str, Any] = {"val_classes": "0"} | plan.options(cell.method)
    given |= {"preset": cell.preset, "seed": cell.seed}
    if cell.quarter is not None and plan.search is not None:
        given |= plan.search.train
    if "lr" in changes:
        usual = resolve(data, given, cell.folder)  # type: ignore[arg-type]
        if usual.train != "head":  # where there is none
            changes = changes | {"backbone_lr": changes["lr"] * usual.backbone_lr / usual.lr}
    own = tuple(f"{name}={value}" for name, value in changes.items() if name not in TrainOptions.__annotations__)
    given |= {name: value for name, value in changes.items() if name in TrainOptions.__annotations__}
    if own:
        given["loss_options"] = (*given.get("loss_options", ()), *own)
    return resolve(data, given, cell.folder)  # type: ignore[arg-type]


def held_out_quarter(data: Data, quarter: int) -> Data:
    """The training images only, a quarter of their classes held out to validate; no test images."""
    held_out = quarter_of(data.split.train_classes, quarter)
    labels, nothing = data.dataset.labels, np.empty(0, dtype=np.int64)
    train, val = (data.split.train[np.isin(labels[data.split.train], held_out, invert=out)] for out in (True, False))
    parts = replace(
        data.split, train=train, val=val, test=nothing, val_classes=held_out, test_classes=nothing,
        train_classes=np.setdiff1d(data.split.train_classes, held_out),
    )  # fmt: skip
    return data.with_split(parts)


def _in_layer(run: RunFolder, layer: str) -> dict[str, Any]:
    """A trained network measured in another layer than its own, from cached activations if there are any."""
    config = load_config(run)
    embedder = load(run.folder / LAST, embedding=layer).to(device(config.device))  # type: ignore[arg-type]
    data = load_data(config, embedder, run.read("classes"))
    data = replace(data, kept=keep_activations(config, data, freeze(config, embedder)))
    return evaluate_images(embedder, data, data.split.test)


def _small(measures: dict[str, Any]) -> dict[str, float]:
    return {name: measures[name] for name in MEASURES if measures.get(name) is not None}


def timed(plan: Plan, cell: Cell, data: str) -> tuple[float, float]:
    """Seconds that a cell of the table may take, and seconds that all together need once, for activations to be kept.

    A few steps on a part of a batch, scaled, and an evaluation of random vectors; nothing is kept of them.
    """
    first = next(iter(combinations(plan, cell.out, cell.preset, cell.method)), {})
    with _silenced():
        config = config_of(plan, cell, data, first)
        made = build_backbone(config)
        images = load_data(config, made)
    embedder = build_embedder(config, made, images.num_classes).to(device(config.device))
    loss = build_loss(config, images, embedder).to(embedder.mean.device)
    given, labels, _ = next(iter(training_batches(config, images, 1)))
    inputs, labels = given[:TIMED].to(embedder.mean.device), labels[:TIMED].to(embedder.mean.device)
    frozen, once = None, 0.0
    if config.train != "all":
        frozen = Frozen(embedder.eval(), cut_of(config, embedder))
        with torch.no_grad():
            each = _seconds(lambda: frozen.below(inputs)) / len(labels)
            inputs = frozen.below(inputs)
        how: dict[str, Any] = {"mirror": config.mirror, "padding": config.shift}
        parts, kept = images.split, kept_by(frozen, crop=images.size)
        learning = parts.train if parts.val is None else np.union1d(parts.train, parts.val)
        for indices, number in ((learning, config.views or 0), (parts.test, 0)):
            once += each * num_missing(kept, keys_of(images.images, indices, views=number, **how))
    objective = Objective(embedder, loss, features=None if frozen is None else frozen.above)
    step = _seconds(lambda: objective(inputs, labels)["loss"].backward())
    training = step / len(labels) * training_batches(config, images, 1).num_images * config.epochs
    return training + (1 + len(plan.layers)) * _to_measure(images, config.dim), once


def _to_measure(images: Data, dim: int) -> float:
    """Seconds of one evaluation on the test classes, embedding aside."""
    test = images.split.test
    if len(test) == 0:
        return 0.0
    vectors = np.random.default_rng(0).normal(size=(len(test), dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    started = perf_counter()
    measure(vectors, images.dataset, test)
    return perf_counter() - started


def _seconds(step: Callable[[], object]) -> float:
    """The better of two: the first may have to fetch memory."""
    times = []
    for _ in range(2):
        started = perf_counter()
        step()
        times.append(perf_counter() - started)
    return min(times)


def seconds_left(cells: Sequence[Cell], of_a_cell: float | None = None) -> float | None:
    """How long the cells that wait would take one after another, by those that are done; None if nothing is known.

    Args:
        of_a_cell: what a cell of the table takes, where none is done; a trial trains on three quarters of its images.
    """
    known: dict[tuple[str, bool], list[float]] = {}
    for cell in cells:
        if cell.state == DONE:
            seconds = float((cell.result() or {})["seconds"])
            for name in (cell.method.name, ""):
                known.setdefault((name, cell.quarter is None), []).append(seconds)
    total = 0.0
    for cell in cells:
        if cell.state not in (WAITING, RUNNING):
            continue
        of_table = cell.quarter is None
        share = 1.0 if of_table else 0.75
        like = known.get((cell.method.name, of_table)) or known.get(("", of_table))
        if like:
            total += sum(like) / len(like)
        elif others := known.get(("", not of_table)):
            total += sum(others) / len(others) * (4 / 3 if of_table else 0.75)
        elif of_a_cell is not None:
            total += share * of_a_cell
        else:
            return None
    return total


def runnable(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that have no result."""
    return [cell for cell in cells if cell.state not in (DONE, FAILED)]


def _telling(cell: Cell, stderr: Any) -> OnEpoch:
    """A line for each epoch where no table is drawn: in a log file a cell may take hours."""

    def tell(_run: RunFolder, line: dict[str, Any]) -> None:
        if not stderr.isatty():
            with redirect_stderr(stderr):
                say(f"{cell.name}: epoch {line['epoch']}, loss {line['loss']:.4f}, {duration(line['seconds'])}")

    return tell


@contextmanager
def _silenced() -> Iterator[None]:
    """Without what a training says: it is in its log, and a table is being drawn."""
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield
