"""`tammes benchmark`: a table of training runs, as a file describes it; fair, and resumed where it stopped."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional
from tammes.errors import UserError
from tammes.io.console import CONTINUE, print_json, say

if TYPE_CHECKING:
    from tammes.benchmark.cells import Cell
    from tammes.benchmark.plan import Plan


@dataclass(frozen=True)
class Benchmark:
    """Train and measure every method of a plan with every seed, and print one table.

    What has a result is not run again: the same command continues where it was stopped. It may be started
    several times at once: the processes share the work.

    For example:

    tammes benchmark benchmarks/plans/glyphs-centroids.toml

    tammes benchmark benchmarks/plans/cub-centroids-head.toml --data datasets/ --dry-run

    tammes benchmark plan.toml --only one-hot "seed 0" --jobs 2

    tammes benchmark plan.toml --retry-failed --out runs/plan
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.toml")]
    """The plan: data, presets, methods, seeds, and what is searched for. docs/benchmark.md explains it."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Where runs, results.json and table.md go; by default runs/ and the name of the plan."""
    data: Annotated[Path | None, optional("FOLDER")] = None
    """The folder that holds the data set which the plan names, or, of CUB-200-2011 and CARS196, that of the data set
    itself; by default what the environment variable TAMMES_DATA says, or the current folder."""
    weights: Annotated[str | None, optional("imagenet|none|FILE")] = None
    """What the backbone starts from, instead of what the plan says."""
    only: Annotated[tuple[str, ...], optional("TEXT TEXT …")] = ()
    """Run only cells whose name, such as `one-hot centroids, preset default, seed 0`, contains one of these."""
    jobs: int = 1
    """Processes to work with."""
    threads: Annotated[int | None, optional("INT")] = None
    """CPU threads of each process; by default all that there are, shared between the processes."""
    dry_run: bool = False
    """Show what would run and how long it may take, and run nothing."""
    retry_failed: bool = False
    """Run cells again that failed."""
    json: bool = False
    """Print the results as one JSON object."""


def benchmark(config: Benchmark) -> None:
    """Plan, run what has no result, show."""
    for flag, value in (("--jobs", config.jobs), ("--threads", config.threads)):
        if value is not None and value < 1:
            raise UserError(f"{flag} must be at least 1, got {value}.")
    from tammes.benchmark.cells import FAILED, begin
    from tammes.benchmark.plan import read_plan
    from tammes.benchmark.results import find_data, write_results
    from tammes.benchmark.runner import all_cells, check_chosen, check_options, work
    from tammes.benchmark.watch import Watch

    plan = read_plan(config.file)
    if config.weights is not None:
        plan = replace(plan, train=plan.train | {"weights": config.weights})
    data, out = find_data(plan, config.data), config.out or Path("runs") / config.file.stem
    cells = all_cells(plan, out, config.only)
    if not cells:
        names = ", ".join(method.name for method in plan.methods)
        raise UserError(f"--only {' '.join(config.only)} is in the name of no cell. The methods: {names}.")
    check_options(plan, cells, data)
    if config.dry_run:
        _show_plan(config, plan, cells, data)
        return
    check_chosen(plan, cells)
    begin(plan, out)
    if config.retry_failed:
        for cell in cells:
            if cell.state == FAILED:
                cell.forget()
    _use_threads(config)
    others = [_start(config, out, number) for number in range(1, config.jobs)]
    try:
        with Watch(plan, cells, config.jobs) as watch:

            def on_change(cells: "list[Cell]") -> None:
                if watch.look(cells):
                    write_results(plan, out)  # so that what is there can be looked at, and stored, while the others run

            work(plan, lambda: all_cells(plan, out, config.only), data, on_change)
        for number, other in enumerate(others, start=1):
            if other.wait() not in (0, 1):  # 1: a cell failed, which is in its result
                say(f"note: process {number} broke off, and the others did its work: {out / f'process-{number}.log'}")
    except (KeyboardInterrupt, SystemExit):
        say(f"Stopped; nothing is lost. {CONTINUE} What is done: {out}")
        raise SystemExit(130) from None
    finally:
        for other in others:
            other.terminate()
            other.wait()
    written = write_results(plan, out)
    if config.json:
        print_json(written)
    else:
        _print_tables(plan, out)
    if any(cell.state == FAILED for cell in all_cells(plan, out, config.only)):
        say(f"Some cells failed: {out}/…/seed-N.json says how. `--retry-failed` runs them again.")
        raise SystemExit(1)


def _use_threads(config: Benchmark) -> None:
    import torch

    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.jobs))


def _start(config: Benchmark, out: Path, number: int) -> "subprocess.Popen[bytes]":
    """Another process that works on the same benchmark."""
    import torch

    from tammes.io.files import open_inside

    words = ["benchmark", str(config.file), "--out", str(out), "--threads", str(torch.get_num_threads())]
    for flag, value in (("--data", config.data), ("--weights", config.weights)):
        words += [] if value is None else [flag, str(value)]
    words += ["--only", *config.only] if config.only else []
    with open_inside(out / f"process-{number}.log", empty=True) as log:
        return subprocess.Popen(
            [sys.executable, "-c", "from tammes.cli import main; main()", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _show_plan(config: Benchmark, plan: "Plan", cells: "list[Cell]", data: str) -> None:
    """What would run, and how long it may take."""
    from tammes.benchmark.cells import DONE
    from tammes.benchmark.runner import runnable, seconds_left, timed
    from tammes.io.console import duration

    waiting = runnable(cells)
    states = {cell.name: cell.state for cell in cells}
    _use_threads(config)
    once, seconds, how = 0.0, 0.0, "nothing to run"
    if waiting and any(cell.state == DONE for cell in cells):
        seconds, how = seconds_left(cells) or 0.0, "by the cells that are done"
    elif waiting:
        of_a_cell, once = timed(plan, waiting[0], data)
        seconds = seconds_left(cells, of_a_cell) or 0.0
        how = "by a few steps of the first cell and an evaluation of random vectors"
    seconds = once + seconds / config.jobs
    if config.json:
        print_json({"cells": states, "to_run": len(waiting), "seconds": seconds, "estimated": how})
        return
    for name, state in states.items():
        print(f"{state:<14} {name}")
    if not waiting:
        print("Nothing is left to run.")
        return
    at_once = f" by {config.jobs} processes" if config.jobs > 1 else ""
    print(f"{len(waiting)} of {len(cells)} cells would run{at_once}, about {duration(seconds)}: {how}.")
    if once:
        print(f"{duration(once)} of it to compute, once, what the frozen part of the network gives.")


def _print_tables(plan: "Plan", out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from tammes.benchmark.results import tables_of
    from tammes.benchmark.tables import columns

    tables, said = tables_of(plan, out)
    for preset, rows in tables.items():
        shown = columns(rows)
        drawn = Table(title=f"{plan.title}, preset {preset}")
        for title in shown:
            drawn.add_column(title, justify="left" if title in ("method", "remark") else "right")
        for cells in zip(*shown.values(), strict=True):
            drawn.add_row(*cells)
        Console(width=60 + 16 * len(shown)).print(drawn)
    for text in said:
        print(text)
    print(f"results: {out / 'results.json'}    page: {out / 'table.md'}")
