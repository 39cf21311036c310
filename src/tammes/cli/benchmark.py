"""`tammes benchmark`: a table of training runs, as a file describes it; fair, and resumed where it stopped."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tammes.cli.console import optional, print_table
from tammes.cli.options import Json
from tammes.errors import check_whole
from tammes.io.console import CONTINUE, print_json, say

if TYPE_CHECKING:
    from tammes.benchmark.plan import Plan


@dataclass(frozen=True)
class Benchmark:
    """Train and measure every method of a plan with every seed, and print one table.

    Cells that have a result are not run again: the same command continues where it was stopped. It may be started
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
    """Where runs, results.json and table.md go. (default: a folder below runs/ with the name of the plan)"""
    data: Annotated[Path | None, optional("FOLDER")] = None
    """The folder with the data set that the plan names; for CUB-200-2011 and CARS196 also the data set itself.
    (default: the environment variable TAMMES_DATA, or the current folder)"""
    weights: Annotated[str | None, optional("imagenet|none|FILE")] = None
    """Initial weights of the backbone, instead of the plan's."""
    only: Annotated[tuple[str, ...], optional("TEXT TEXT …")] = ()
    """Run only cells whose name, such as `one-hot centroids, preset default, seed 0`, contains one of these."""
    jobs: int = 1
    """Number of processes."""
    threads: Annotated[int | None, optional("INT")] = None
    """CPU threads of each process. (default: all, divided among the processes)"""
    dry_run: bool = False
    """Print what would run and how long it may take; run nothing."""
    retry_failed: bool = False
    """Run failed cells again."""
    json: Json = False


def benchmark(config: Benchmark) -> None:
    """Plan, run what has no result, show."""
    check_whole("`jobs`", config.jobs)
    if config.threads is not None:
        check_whole("`threads`", config.threads)
    import torch

    from tammes.benchmark.job import estimate, open_job, run_job

    job = open_job(config.file, config.out, data=config.data, weights=config.weights, only=config.only)
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.jobs))
    if config.dry_run:
        _show_plan(config, estimate(job, config.jobs))
        return
    try:
        written = run_job(job, _words(config, job.out), jobs=config.jobs, retry_failed=config.retry_failed)
    except (KeyboardInterrupt, SystemExit):
        say(f"Stopped; nothing is lost. {CONTINUE} What is done: {job.out}")
        raise SystemExit(130) from None
    print_json(written) if config.json else _print_tables(job.plan, job.out)
    if job.failed:
        say(f"Some cells failed: {job.out}/…/seed-N.json says how. `--retry-failed` runs them again.")
        raise SystemExit(1)


def _words(config: Benchmark, out: Path) -> list[str]:
    """What another process is started with that works on the same benchmark."""
    words = ["benchmark", str(config.file), "--out", str(out)]
    for flag, value in (("--data", config.data), ("--weights", config.weights)):
        words += [] if value is None else [flag, str(value)]
    return [*words, "--only", *config.only] if config.only else words


def _show_plan(config: Benchmark, found: dict[str, Any]) -> None:
    """What would run, and how long it may take."""
    from tammes.io.console import duration

    once = found.pop("once")
    if config.json:
        print_json(found)
        return
    for name, state in found["cells"].items():
        print(f"{state:<14} {name}")
    if not found["to_run"]:
        print("Nothing is left to run.")
        return
    at_once = f" by {config.jobs} processes" if config.jobs > 1 else ""
    how = f"about {duration(found['seconds'])}: {found['estimated']}"
    print(f"{found['to_run']} of {len(found['cells'])} cells would run{at_once}, {how}.")
    if once:
        print(f"{duration(once)} of it to compute, once, what the frozen part of the network gives.")


def _print_tables(plan: "Plan", out: Path) -> None:
    from tammes.benchmark.results import tables_of
    from tammes.benchmark.tables import columns

    tables, said = tables_of(plan, out)
    for preset, rows in tables.items():
        shown, title = columns(rows), f"{plan.title}, preset {preset}"
        cells = zip(*shown.values(), strict=True)
        print_table(title, list(shown), cells, texts=("method", "remark"), width=60 + 16 * len(shown))
    for text in said:
        print(text)
    print(f"results: {out / 'results.json'}    page: {out / 'table.md'}")
