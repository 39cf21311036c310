"""`tammes report`: one HTML file about a run, several runs, or a benchmark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tammes.cli.console import default, optional, said
from tammes.cli.outputs import place_for
from tammes.errors import UserError, check_seed
from tammes.io.console import print_json, working
from tammes.io.files import is_vector_file


@dataclass(frozen=True)
class Report:
    """Write one HTML file that shows a run, compares runs, or shows a benchmark: it opens from disk, without network.

    Of a run: results with intervals, curves, centroids, what it finds and what it mixes up with pictures, each class, a
    map of the embeddings, distances and thresholds. Several runs: side by side, each with a link to its own report.

    For example:

    tammes report runs/glyphs-discriminative-place-0

    tammes report runs/photos --map pca --out photos.html

    tammes report runs/one runs/other --out both.html

    tammes report runs/cub-methods --complexity benchmarks/results/complexity.json
    """

    what: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN… | BENCHMARK")]
    """Run folders, or the folder of a benchmark."""
    out: Annotated[Path | None, optional("FILE")] = None
    """Where it goes; by default report.html in the folder, and of several runs in the current one."""
    overwrite: bool = False
    """Replace that file if it exists; the report in the folder of what it is about is replaced anyway."""
    map: Literal["tsne", "pca", "none"] = default("tsne")
    """How the map of a run's embeddings is made: t-SNE takes half a minute for 6,000 images, pca none."""
    fmr: float = 1e-3
    """The false match rate whose threshold is drawn, for a run that `tammes calibrate` has not calibrated."""
    complexity: Annotated[Path | None, optional("FILE")] = None
    """What `python -m benchmarks.complexity` has measured, to stand on the page of a benchmark."""
    skip_bad: bool = False
    """Leave out images that cannot be read."""
    device: Literal["auto", "cpu"] = default("auto")
    """auto takes a GPU if there is one."""
    seed: int = default(0)
    """Of what is drawn at random: queries, and the items of a map of very many."""
    json: bool = False
    """Print where it is and how large, as one JSON object."""


def report(config: Report) -> None:
    """Look, write, say where it is."""
    if not config.what:
        raise UserError("which run? For example: tammes report runs/photos. `tammes runs` lists those that there are.")
    from tammes.training.run_folder import open_finished

    benchmarks = [folder for folder in config.what if _is_benchmark(folder)]
    if benchmarks and len(config.what) > 1:
        raise UserError(f"{benchmarks[0]} is a benchmark, which has a report of its own: give it alone.")
    if config.complexity is not None and not benchmarks:
        raise UserError("--complexity is for the report of a benchmark.")
    check_seed("--seed", config.seed)
    for option in ("map", "fmr", "skip_bad", "device", "seed"):
        if benchmarks and said(config, option):
            flag = "--" + option.replace("_", "-")
            raise UserError(f"{flag} is for the report of a run, and {benchmarks[0]} is a benchmark: leave it out.")
    place = None
    if config.out is not None or (len(config.what) > 1 and not benchmarks):
        wanted = config.out or Path("report.html")
        place = place_for("--out", wanted, name="report.html", suffixes=(".html", ".htm"), overwrite=config.overwrite)
    if benchmarks:
        out = config.out or benchmarks[0] / "report.html"
        content = _of_benchmark(config, benchmarks[0], out)
    elif len(config.what) == 1:
        run = open_finished(config.what[0])
        out = config.out or run.folder / "report.html"
        content = _of_run(config, run)
    else:
        out = config.out or Path("report.html")
        content = _of_runs(config, out)
    written = _write(place or out, content)
    if config.json:
        print_json({"report": str(out), "bytes": written})
    else:
        print(f"report: {out} ({written / 1e6:.1f} MB)")


def _is_benchmark(folder: Path) -> bool:
    return (folder / "plan.json").exists()


def _write(out: Path, content: str) -> int:
    """The page as a file; how many bytes it has."""
    from tammes.io.files import write_atomically

    page = content.encode(errors="backslashreplace")  # a file's name may be no unicode
    write_atomically(out, page)
    return len(page)


def _of_run(config: Report, run: Any) -> str:
    from tammes.report import look, run_page
    from tammes.run import items_of

    _check_run(config, run)
    if run.read("results", needs=("trained",))["trained"] is None:
        return run_page(run, None)
    items = items_of(run, skip_bad=config.skip_bad, on=config.device)
    with working("looking at what it finds"):
        looked = look(items, way=None if config.map == "none" else config.map, seed=config.seed)
    with working("writing"):
        return run_page(run, looked, fmr=config.fmr)


def _check_run(config: Report, run: Any) -> None:
    """Refuse what the page cannot do without before anything is computed."""
    from tammes.data import check_place
    from tammes.metrics.verification import checked_fmr
    from tammes.report.run import OPTIONS

    checked_fmr(config.fmr)
    data = run.read("config", needs=OPTIONS).get("data", "")
    if run.read("results", needs=("trained",))["trained"] is None:
        return
    if not is_vector_file(data):
        check_place(data)
    elif config.skip_bad:
        raise UserError(f"--skip-bad is for images, and {run.folder} was trained on vectors: leave it out.")


def _of_runs(config: Report, out: Path) -> str:
    from tammes.report import compare_page
    from tammes.training.run_folder import open_finished

    runs = [open_finished(folder) for folder in config.what]
    twice = {run.folder.resolve() for run in runs}
    if len(twice) < len(runs):
        raise UserError("a run is given twice: name each once.")
    for run in runs:
        _check_run(config, run)
    for run in runs:
        _write(run.folder / "report.html", _of_run(config, run))
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
        raise UserError(f"{folder} has no results yet. Its `tammes benchmark` command goes on with it.")
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
