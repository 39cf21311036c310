"""`tammes report`: one HTML file about a run, several runs, or a benchmark."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import check_for_images, optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError, check_seed
from tammes.io.console import print_json, working

if TYPE_CHECKING:
    from tammes.training.run_folder import RunFolder

FMR = 1e-3  # the false match rate by default


@dataclass(frozen=True)
class Report:
    """Write one HTML page about a run, several runs or a benchmark.

    The page opens from disk and needs no network. Of a run it shows results with intervals, curves, centroids, what the
    model finds and what it confuses, with images, each class, a map of the embeddings, distances and thresholds.
    Several runs stand side by side, each with a link to its own report.

    For example:

    tammes report runs/glyphs-discriminative-place-0

    tammes report runs/photos --map pca --out photos.html

    tammes report runs/one runs/other --out both.html

    tammes report runs/cub-methods --complexity benchmarks/results/complexity.json
    """

    what: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN… | BENCHMARK")]
    """Run folders, or the folder of a benchmark."""
    out: Annotated[Path | None, optional("FILE")] = None
    """The page to write; by default report.html in the folder, and for several runs in the current folder."""
    overwrite: bool = False
    """Replace --out if it exists; the report inside a run or benchmark folder is always replaced."""
    map: Annotated[Literal["tsne", "pca", "none"] | None, optional("{tsne,pca,none}")] = None
    """How the map of the embeddings is made: tsne (the default) takes half a minute for 6,000 images, pca no time."""
    fmr: Annotated[float | None, optional("FLOAT")] = None
    """The false match rate whose threshold is drawn, for a run without `tammes calibrate` (default: 0.001)."""
    complexity: Annotated[Path | None, optional("FILE")] = None
    """What `python -m benchmarks.complexity` has measured, for the page of a benchmark."""
    skip_bad: bool = False
    """Leave out images that cannot be read."""
    device: Annotated[Literal["auto", "cpu"] | None, optional("{auto,cpu}")] = None
    """auto (the default) uses a GPU if there is one."""
    seed: Annotated[int | None, optional("INT")] = None
    """Random seed of the queries that are shown, and of the items of a very large map (default: 0)."""
    json: bool = False
    """Print where the page is and its size as one JSON object."""


def report(config: Report) -> None:
    """Write the page, print where it is."""
    if not config.what:
        raise UserError("which run? For example: tammes report runs/photos. `tammes runs` lists them.")
    from tammes.report.page import write_page
    from tammes.training.run_folder import open_finished

    benchmark = next((folder for folder in config.what if (folder / "plan.json").exists()), None)
    _check(config, benchmark)
    place, several = None, len(config.what) > 1
    out = config.out or (Path() if several else config.what[0]) / "report.html"
    if config.out is not None or several:
        place = place_for("--out", out, name="report.html", suffixes=(".html", ".htm"), overwrite=config.overwrite)
    if benchmark is not None:
        content = _of_benchmark(config, benchmark, out)
    else:
        runs = [open_finished(folder) for folder in config.what]
        content = _of_runs(config, runs, out) if several else _of_run(config, runs[0])
    written = write_page(place or out, content)
    if config.json:
        print_json({"report": str(out), "bytes": written})
    else:
        print(f"report: {out} ({written / 1e6:.1f} MB)")


def _check(config: Report, benchmark: Path | None) -> None:
    if benchmark is None:
        if config.complexity is not None:
            raise UserError("--complexity is for the report of a benchmark.")
        check_seed("--seed", config.seed or 0)
        return
    if len(config.what) > 1:
        raise UserError(f"{benchmark} is a benchmark, which has a report of its own: give it alone.")
    for option in ("map", "fmr", "skip_bad", "device", "seed"):
        if getattr(config, option) not in (None, False):
            flag = "--" + option.replace("_", "-")
            raise UserError(f"{flag} is for the report of a run, and {benchmark} is a benchmark: leave it out.")


def _of_run(config: Report, run: "RunFolder") -> str:
    from tammes.report import look, run_page
    from tammes.run import items_of

    _check_run(config, run)
    if run.read("results", needs=("trained",))["trained"] is None:
        return run_page(run, None)
    items = items_of(run, skip_bad=config.skip_bad, on=config.device or "auto")
    with working("finding neighbours and confusions"):
        looked = look(items, way=None if config.map == "none" else config.map or "tsne", seed=config.seed or 0)
    with working("writing"):
        return run_page(run, looked, fmr=config.fmr or FMR)


def _check_run(config: Report, run: "RunFolder") -> None:
    """Refuse what the page cannot do without before anything is computed."""
    from tammes.data import check_data
    from tammes.metrics.verification import checked_fmr
    from tammes.report.run import OPTIONS

    checked_fmr(FMR if config.fmr is None else config.fmr)
    data = run.read("config", needs=OPTIONS)["data"]
    if run.read("results", needs=("trained",))["trained"] is not None:
        check_for_images(run, skip_bad=config.skip_bad)
        check_data(data)


def _of_runs(config: Report, runs: list["RunFolder"], out: Path) -> str:
    from tammes.report import compare_page
    from tammes.report.page import write_page

    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice: name each once.")
    for run in runs:
        _check_run(config, run)
    for run in runs:
        write_page(run.folder / "report.html", _of_run(config, run))
    return compare_page(runs, out)


def _of_benchmark(config: Report, folder: Path, out: Path) -> str:
    from tammes import __version__
    from tammes.benchmark.complexity import Complexity
    from tammes.benchmark.page import benchmark_sections
    from tammes.benchmark.tables import read_results
    from tammes.io.schema import read_json
    from tammes.report.page import page

    results = read_results(folder)
    if results is None:
        raise UserError(f"{folder} has no results yet. Its `tammes benchmark` command continues it.")
    complexity = None
    if config.complexity is not None:
        complexity = read_json(config.complexity, Complexity, "`python -m benchmarks.complexity` writes such a file.")
        if complexity is None:
            raise UserError(f"--complexity {config.complexity}: there is no such file.")
    return page(
        results["title"],
        f"Data: {results['data']}. On classes that took no part in training.",
        benchmark_sections(results, folder, out, complexity),
        made_by=f"Made by tammes {__version__} from {folder.name}.",
    )
