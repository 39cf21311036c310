"""Run a benchmark from its plan to its results, in one process or several."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tammes.benchmark.cells import DONE, FAILED, Cell, begin
from tammes.benchmark.plan import Plan, read_plan
from tammes.benchmark.results import find_data, write_results
from tammes.benchmark.runner import all_cells, check_chosen, check_options, runnable, seconds_left, timed, work
from tammes.benchmark.watch import Watch
from tammes.errors import UserError
from tammes.io.console import say
from tammes.io.files import open_inside


@dataclass(frozen=True)
class Job:
    """A plan with its data, its output folder, and the selected cells."""

    plan: Plan
    data: str
    out: Path
    only: tuple[str, ...] = ()

    def cells(self) -> list[Cell]:
        """All current cells, as a search may widen."""
        return all_cells(self.plan, self.out, self.only)

    @property
    def failed(self) -> bool:
        """Whether a cell has ended with an error."""
        return any(cell.state == FAILED for cell in self.cells())


def open_job(
    file: Path,
    out: Path | None = None,
    *,
    data: Path | None = None,
    weights: str | None = None,
    only: tuple[str, ...] = (),
) -> Job:
    """The job of a plan, validated before a cell runs.

    Args:
        out: the output folder; by default runs/ and the name of the plan.
        data: the folder that contains the data set, or for some the data set itself.
        weights: initial weights of the backbone, instead of the plan's.
        only: run only cells whose name contains one of these.
    """
    plan = read_plan(file)
    if weights is not None:
        plan = replace(plan, train=plan.train | {"weights": weights})
    job = Job(plan, find_data(plan, data), out or Path("runs") / file.stem, only)
    if not job.cells():
        names = ", ".join(method.name for method in plan.methods)
        raise UserError(f"no cell has any of `only={list(only)!r}` in its name. The methods: {names}.")
    check_options(plan, job.cells(), job.data)
    return job


def estimate(job: Job, jobs: int = 1) -> dict[str, Any]:
    """The cells to run, and the expected seconds with this number of processes; `once` of them for frozen layers."""
    cells = job.cells()
    waiting, once, seconds, how = runnable(cells), 0.0, 0.0, "nothing to run"
    if waiting and any(cell.state == DONE for cell in cells):
        seconds, how = seconds_left(cells) or 0.0, "by the cells that are done"
    elif waiting:
        of_a_cell, once = timed(job.plan, waiting[0], job.data)
        seconds = seconds_left(cells, of_a_cell) or 0.0
        how = "by a few steps of the first cell and an evaluation of random vectors"
    states = {cell.name: cell.state for cell in cells}
    seconds = once + seconds / jobs
    return {"cells": states, "to_run": len(waiting), "seconds": seconds, "once": once, "estimated": how}


def run_job(job: Job, words: list[str], *, jobs: int = 1, retry_failed: bool = False) -> dict[str, Any]:
    """Run all cells without a result. Returns the content of results.json.

    Args:
        words: the command line of the other processes.
        jobs: processes that share the work.
        retry_failed: run cells again that failed.
    """
    check_chosen(job.plan, job.cells())
    begin(job.plan, job.out)
    for cell in job.cells() if retry_failed else ():
        if cell.state == FAILED:
            cell.forget()
    others = [_start(job.out, words, number) for number in range(1, jobs)]
    try:
        with Watch(job.plan, job.cells(), jobs) as watch:

            def on_change(cells: list[Cell]) -> None:
                if watch.look(cells):
                    write_results(job.plan, job.out)  # to be looked at, and stored, while the others run

            work(job.plan, job.cells, job.data, on_change)
        for number, other in enumerate(others, start=1):
            if other.wait() not in (0, 1):  # 1: a cell failed, which is in its result
                log = job.out / f"process-{number}.log"
                say(f"note: process {number} stopped, and the others did its work: {log}")
    finally:
        for other in others:
            other.terminate()
            other.wait()
    return write_results(job.plan, job.out)


def _start(out: Path, words: list[str], number: int) -> "subprocess.Popen[bytes]":
    """Another process that works on the same benchmark."""
    with open_inside(out / f"process-{number}.log", empty=True) as log:
        command = [sys.executable, "-m", "tammes", *words, "--threads", str(torch.get_num_threads())]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
