"""`tammes report`: one HTML file about a run, several runs, or a benchmark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.errors import UserError
from tammes.io.console import print_json


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
    options = {name: getattr(config, name) for name in ("map", "fmr", "skip_bad", "device", "seed")}
    options = {name: value for name, value in options.items() if value not in (None, False)}
    benchmark = next((folder for folder in config.what if (folder / "plan.json").exists()), None)
    if benchmark is None:
        if config.complexity is not None:
            raise UserError("`complexity` is for the report of a benchmark.")
        from tammes.run import report_runs

        file = report_runs(config.what, config.out, overwrite=config.overwrite, **options)
    else:
        if len(config.what) > 1:
            raise UserError(f"{benchmark} is a benchmark, which has a report of its own: give it alone.")
        for name in options:
            raise UserError(f"`{name}` is for the report of a run, and {benchmark} is a benchmark: leave it out.")
        from tammes.benchmark.page import report_benchmark

        file = report_benchmark(benchmark, config.out, complexity=config.complexity, overwrite=config.overwrite)
    written = file.stat().st_size
    if config.json:
        print_json({"report": str(file), "bytes": written})
    else:
        print(f"report: {file} ({written / 1e6:.1f} MB)")
