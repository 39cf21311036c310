"""The progress of a running benchmark: a live table on a terminal, otherwise a line per cell and epoch."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tammes.benchmark.cells import DONE, FAILED, RUNNING, Cell
from tammes.benchmark.plan import Method, Plan
from tammes.benchmark.runner import seconds_left
from tammes.io.console import duration, say
from tammes.training.run_folder import RunFolder, is_run

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


class Watch:
    """Looks at the folder only, so it shows what other processes do as well."""

    def __init__(self, plan: Plan, cells: Sequence[Cell], jobs: int) -> None:
        self.plan, self.cells, self.jobs = plan, cells, jobs
        self._told = {cell.folder for cell in cells if cell.state in (DONE, FAILED)}
        self._live: Live | None = None

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # Bound to the stream of now: while a cell trains, what it prints goes nowhere.
            self._live = Live(
                get_renderable=self.table, console=Console(file=sys.stderr), refresh_per_second=1,
                redirect_stdout=False, redirect_stderr=False, transient=True,
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self, cells: Sequence[Cell]) -> bool:
        """Print what has finished since the last call. Returns whether anything has.

        Args:
            cells: all current cells, as a search may have widened.
        """
        self.cells = cells
        new = [cell for cell in cells if cell.folder not in self._told and cell.state in (DONE, FAILED)]
        for cell in new:
            self._told.add(cell.folder)
            if self._live is None:
                say(f"{cell.name}: {_found(cell)}  ({self.left()})")
        return bool(new)

    def left(self) -> str:
        """The remaining work."""
        number = sum(cell.state not in (DONE, FAILED) for cell in self.cells)
        seconds = seconds_left(self.cells)
        time = "" if not seconds else f", about {duration(seconds / self.jobs)}"
        return f"{number} left{time}"

    def table(self) -> "Table":
        """A table of methods by seeds, with R@1 of finished and the epoch of running cells."""
        from rich.table import Table

        drawn = Table(title=f"{self.plan.title}: {self.left()}", caption="R@1 per cent, last epoch")
        drawn.add_column("method")
        if self.plan.search is not None:
            drawn.add_column("search", justify="right")
        for seed in self.plan.seeds:
            drawn.add_column(f"seed {seed}", justify="right")
        for preset in self.plan.presets:
            for method in self.plan.methods:
                drawn.add_row(*self._row(preset, method))
        return drawn

    def _row(self, preset: str, method: Method) -> list[str]:
        name = method.name if len(self.plan.presets) == 1 else f"{method.name}, preset {preset}"
        ours = [cell for cell in self.cells if cell.preset == preset and cell.method.name == method.name]
        row = [name]
        if self.plan.search is not None:
            trials = [cell for cell in ours if cell.quarter is not None]
            row.append(f"{sum(cell.state in (DONE, FAILED) for cell in trials)}/{len(trials)}")
        by_seed = {cell.seed: cell for cell in ours if cell.quarter is None}
        return row + [_found(by_seed[seed], short=True) if seed in by_seed else "" for seed in self.plan.seeds]


def _found(cell: Cell, *, short: bool = False) -> str:
    """A cell in a few words."""
    state, result = cell.state, cell.result() or {}
    if state == FAILED:
        return "failed" if short else f"failed: {result['error']}"
    if state == DONE:
        measures: dict[str, Any] = result if cell.quarter is not None else next(iter(result["layers"].values()))
        recall = f"{100 * measures['recall_at_1']:.2f}"
        return recall if short else f"R@1 {recall}{' on validation classes' if cell.quarter is not None else ''}"
    if state == RUNNING and is_run(cell.folder):
        run = RunFolder(cell.folder)
        return f"epoch {len(run.epochs())}/{(run.read('config') or {}).get('epochs')}"
    return state
