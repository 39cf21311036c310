"""`tammes centroids`: place class centroids, measure, draw and save them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional, print_table
from tammes.cli.options import Json
from tammes.errors import UserError, check_seed
from tammes.io.console import print_json, working
from tammes.io.outputs import place_for

if TYPE_CHECKING:
    from tammes.centroids.quality import Quality

_MOST_MEASURED = 100_000  # classes; the time grows with the square, and this takes a minute
_MEASURES = {
    "min": "smallest distance",
    "max": "largest distance",
    "mean": "mean distance",
    "std": "standard deviation",
    "upper_bound": "upper bound on the smallest",
    "ratio": "smallest / upper bound",
}


@dataclass(frozen=True)
class Centroids:
    """Place class centroids: unit vectors as far apart as possible, with their distances.

    For example:
        tammes centroids 100 64
        tammes centroids 98 128 --kind kmeans --samples 15000 --seed 3
        tammes centroids 11318 512 --out centroids.safetensors --plot distances.png
    """

    num_classes: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="NUM_CLASSES")]
    """How many classes."""
    dim: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="DIM")]
    """Dimension of an embedding."""
    kind: str = "place"
    """place (the best for these sizes), one-hot, kmeans, random, simplex, orthogonal-simplices, kerdock, codes, shells,
    layers or solve."""
    seed: int = 0
    """Random seed; the same seed gives the same centroids."""
    spread: Annotated[float | None, optional("FLOAT")] = None
    """solve only: 0 (the largest minimum distance, the default) to 0.6 (nearly equal distances)."""
    samples: Annotated[int | None, optional("INT")] = None
    """kmeans only: how many points are clustered (default: 10000)."""
    out: Annotated[Path | None, optional("FILE")] = None
    """Save the centroids: .npy or .safetensors."""
    plot: Annotated[Path | None, optional("FILE")] = None
    """Save a histogram of the distances: .png."""
    overwrite: bool = False
    """Replace existing files."""
    json: Json = False


def centroids(config: Centroids) -> None:
    """Place, measure, save, print."""
    out, plot = _check_options(config)
    from tammes.centroids import make_centroids, quality
    from tammes.centroids.files import plot_distances, save_centroids

    given = {"spread": config.spread, "samples": config.samples}
    options = {name: value for name, value in given.items() if value is not None}
    start = perf_counter()
    with working(f"placing {config.num_classes} centroids"):
        placed = make_centroids(config.kind, config.num_classes, config.dim, seed=config.seed, **options)
    seconds = perf_counter() - start
    found = None
    if 2 <= config.num_classes <= _MOST_MEASURED:
        with working("measuring the distances of all pairs"):
            found = quality(placed.centroids)
    if out is not None:
        save_centroids(out, placed.centroids)
    if plot is not None and found is not None:
        title = f"{config.num_classes} centroids in {config.dim} dimensions ({placed.kind})"
        plot_distances(plot, placed.centroids, found, title)
    _show(config, placed.kind, found, seconds)


def _check_options(config: Centroids) -> tuple[Path | None, Path | None]:
    """Refuse at once what would fail, or be ignored, after the work; the files to write."""
    check_seed("`seed`", config.seed, bits=63)
    for name, value, kind in (("spread", config.spread, "solve"), ("samples", config.samples, "kmeans")):
        if value is not None and config.kind != kind:
            raise UserError(f"`{name}` applies to `kind={kind!r}` only, not to {config.kind}.")
    if config.plot is not None and not 2 <= config.num_classes <= _MOST_MEASURED:
        raise UserError(f"`plot` draws 2 to {_MOST_MEASURED} classes, got {config.num_classes}.")

    def place(option: str, name: str, *suffixes: str) -> Path | None:
        given, overwrite = getattr(config, option), config.overwrite
        return given and place_for(option, given, name=name, suffixes=suffixes, overwrite=overwrite)

    return place("out", "centroids.npy", ".npy", ".safetensors"), place("plot", "centroids.png", ".png")


def _show(config: Centroids, kind: str, found: "Quality | None", seconds: float) -> None:
    """Print the result as a table, or as one JSON object."""
    measured: dict[str, float | None] = dict.fromkeys(_MEASURES) if found is None else asdict(found)
    if config.json:
        record = {"num_classes": config.num_classes, "dim": config.dim, "kind": kind, "seed": config.seed}
        print_json(record | measured | {"seconds": round(seconds, 3)})
        return
    rows = {_MEASURES[name]: "not measured" if value is None else f"{value:.6f}" for name, value in measured.items()}
    title, columns = f"{config.num_classes} centroids in {config.dim} dimensions", ("kind", kind)
    print_table(title, columns, (rows | {"seconds": f"{seconds:.2f}"}).items(), texts=columns, width=80)
    if config.num_classes > _MOST_MEASURED:
        print(f"The distances of all pairs are measured up to {_MOST_MEASURED} classes.")
    for path in (config.out, config.plot):
        if path is not None:
            print(f"written: {path}")
