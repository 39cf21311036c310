"""`tammes report`: one HTML file about a run, several runs, a benchmark, a gallery, or vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Json
from tammes.errors import UserError
from tammes.io.console import print_json
from tammes.io.files import is_vector_file


@dataclass(frozen=True)
class Report:
    """Write one HTML page about runs, a benchmark, a gallery or a file of vectors.

    The page opens from disk and needs no network. For a run it shows results with intervals, curves, centroids, what
    the model finds and confuses (with images), each class, a map of the embeddings, distances and thresholds. Several
    runs are shown side by side, each with a link to its own report. For labelled vectors, in a .npz or .parquet file or
    in a gallery, it shows how well they find each other, what they confuse, each class, and their map.

    For example:
        tammes report runs/glyphs-discriminative-place-0
        tammes report runs/photos --map pca --out photos.html
        tammes report runs/one runs/other --out both.html
        tammes report runs/cub-methods --complexity benchmarks/results/complexity.json
        tammes report vectors.npz
        tammes report gallery
    """

    what: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN… | BENCHMARK | GALLERY | VECTORS")
    ]
    """Run folders; or the folder of a benchmark, a gallery, or a .npz or .parquet file of vectors with labels."""
    out: Annotated[Path | None, optional("FILE")] = None
    """The page to write. (default: report.html in the folder of a run or benchmark; in the current folder for several
    runs; beside a gallery or a file of vectors, with its name)"""
    overwrite: bool = False
    """Replace --out if it exists; the report inside a run or benchmark folder is always replaced."""
    map: Annotated[Literal["tsne", "pca", "none"] | None, optional("{tsne,pca,none}")] = None
    """How the map of the embeddings is computed: tsne (the default; half a minute for 6,000 images), pca (at once), or
    none."""
    fmr: Annotated[float | None, optional("FLOAT")] = None
    """The false match rate whose threshold is drawn, for a run that is not calibrated. (default: 0.001)"""
    complexity: Annotated[Path | None, optional("FILE")] = None
    """The output of `python -m benchmarks.complexity`, for the page of a benchmark."""
    skip_bad: bool = False
    """Leave out images that cannot be read."""
    device: Annotated[Literal["auto", "cpu"] | None, optional("{auto,cpu}")] = None
    """auto (the default) uses a GPU if there is one."""
    seed: Annotated[int | None, optional("INT")] = None
    """Random seed of the queries that are shown, and of the items of a very large map. (default: 0)"""
    json: Json = False


def report(config: Report) -> None:
    """Write the page, print where it is."""
    if not config.what:
        raise UserError("which run? For example: tammes report runs/photos. `tammes runs` lists them.")
    options = {name: getattr(config, name) for name in ("map", "fmr", "skip_bad", "device", "seed")}
    options = {name: value for name, value in options.items() if value not in (None, False)}
    folders = [Path(each) for each in config.what]
    benchmark = next((folder for folder in folders if (folder / "plan.json").exists()), None)
    if benchmark is None and config.complexity is not None:
        raise UserError("`complexity` is for the report of a benchmark.")
    from tammes.gallery import is_gallery

    vectors = next((each for each in config.what if is_vector_file(each) or is_gallery(each)), None)
    if vectors is not None:
        kind = "a file of vectors" if is_vector_file(vectors) else "a gallery"
        _check_alone(config, vectors, kind, [name for name in ("skip_bad", "device") if name in options])
        from tammes.report.vectors import report_vectors

        file = report_vectors(vectors, config.out, overwrite=config.overwrite, **options)
    elif benchmark is None:
        from tammes.report.runs import report_runs

        file = report_runs(folders, config.out, overwrite=config.overwrite, **options)
    else:
        _check_alone(config, str(benchmark), "a benchmark", list(options))
        from tammes.benchmark.page import report_benchmark

        file = report_benchmark(benchmark, config.out, complexity=config.complexity, overwrite=config.overwrite)
    written = file.stat().st_size
    if config.json:
        print_json({"report": str(file), "bytes": written})
    else:
        print(f"report: {file} ({written / 1e6:.1f} MB)")


def _check_alone(config: Report, what: str, kind: str, not_for_it: list[str]) -> None:
    if len(config.what) > 1:
        raise UserError(f"{what} is {kind}, which has a report of its own: give it alone.")
    for name in not_for_it:
        raise UserError(f"`{name}` is for the report of a run, and {what} is {kind}: leave it out.")
