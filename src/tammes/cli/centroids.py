"""`tammes centroids`: make class centroids, measure them, draw them, save them."""

from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError, check_seed, unknown_name
from tammes.io.console import print_json, working
from tammes.io.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

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
    """Make class centroids: unit vectors as far apart as possible, and say how far that is.

    For example:

    tammes centroids 100 64

    tammes centroids 98 128 --kind kmeans --samples 15000 --seed 3

    tammes centroids 11318 512 --out centroids.safetensors --plot distances.png
    """

    num_classes: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="NUM_CLASSES")]
    """How many classes."""
    dim: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="DIM")]
    """Length of an embedding."""
    kind: str = "place"
    """How: place (the best for these sizes), one-hot, kmeans, random, simplex, orthogonal-simplices, kerdock, codes,
    shells, layers or solve."""
    seed: int = 0
    """Of the random generator; the same seed gives the same centroids."""
    spread: Annotated[float | None, optional("FLOAT")] = None
    """Only with solve: 0 (largest smallest distance, the default) to 0.6 (nearly equal distances)."""
    samples: Annotated[int | None, optional("INT")] = None
    """Only with kmeans: how many points are clustered (default 10000)."""
    out: Annotated[Path | None, optional("FILE")] = None
    """Save the centroids here: .npy or .safetensors."""
    plot: Annotated[Path | None, optional("FILE")] = None
    """Draw the histogram of the distances here: .png."""
    overwrite: bool = False
    """Replace files that exist."""
    json: bool = False
    """Print one JSON object instead of a table."""


def centroids(config: Centroids) -> None:
    """Make, measure, save and show."""
    out, plot = _check_options(config)
    from tammes.centroids import quality

    start = perf_counter()
    with working(f"placing {config.num_classes} centroids"):
        points, kind = _make(config)
    seconds = perf_counter() - start
    found = None
    if 2 <= config.num_classes <= _MOST_MEASURED:
        with working("measuring the distances of all pairs"):
            found = quality(points)
    if out is not None:
        _save(out, points)
    if plot is not None and found is not None:
        _plot(plot, points, found, f"{config.num_classes} centroids in {config.dim} dimensions ({kind})")
    _show(config, kind, found, seconds)


def _make(config: Centroids) -> tuple["Tensor", str]:
    """The centroids, and the name of the generator that made them."""
    import torch

    from tammes.centroids import CENTROIDS, placed

    if config.kind not in CENTROIDS:
        raise unknown_name("kind of centroids", config.kind, CENTROIDS)
    check_seed("--seed", config.seed, bits=63)
    generator = torch.Generator().manual_seed(config.seed)
    if config.kind == "place":
        placement = placed(config.num_classes, config.dim, generator=generator)
        return placement.centroids, placement.kind
    given = {"spread": config.spread, "samples": config.samples}
    options = {name: value for name, value in given.items() if value is not None}
    return CENTROIDS[config.kind](config.num_classes, config.dim, generator=generator, **options), config.kind


def _check_options(config: Centroids) -> tuple[Path | None, Path | None]:
    """Refuse at once what would only fail, or be ignored, after the work is done; where the points and the plot go."""
    for name, value, kind in (("spread", config.spread, "solve"), ("samples", config.samples, "kmeans")):
        if value is not None and config.kind != kind:
            raise UserError(f"--{name} applies to --kind {kind} only, not to {config.kind}.")
    out, plot = config.out, config.plot
    if out is not None:
        suffixes = (".npy", ".safetensors")
        out = place_for("--out", out, name="centroids.npy", suffixes=suffixes, overwrite=config.overwrite)
    if plot is not None:
        plot = place_for("--plot", plot, name="centroids.png", suffixes=(".png",), overwrite=config.overwrite)
    if config.plot is not None and not 2 <= config.num_classes <= _MOST_MEASURED:
        raise UserError(f"--plot draws 2 to {_MOST_MEASURED} classes, got {config.num_classes}.")
    return out, plot


def _save(path: Path, points: "Tensor") -> None:
    """Write the centroids as one array (.npy), or under the name `centroids` (.safetensors)."""
    if path.suffix == ".npy":
        import numpy as np

        content = BytesIO()
        np.save(content, points.numpy())
        write_atomically(path, content.getvalue())
    else:
        from safetensors.torch import save

        write_atomically(path, save({"centroids": points.contiguous()}))


def _plot(path: Path, points: "Tensor", found: "Quality", title: str) -> None:
    """Draw how many pairs lie at each distance, and the bound on the smallest."""
    import matplotlib

    matplotlib.use("Agg")
    import torch
    from matplotlib import pyplot

    from tammes.geometry import blocks_of_pairs

    low, high = min(found.min, found.upper_bound), max(found.max, found.upper_bound)
    margin = max(0.02, 0.05 * (high - low))
    low, high, bins = low - margin, high + margin, 100
    counts = sum((torch.histc(block.double(), bins, low, high) for block in blocks_of_pairs(points)), torch.zeros(bins))
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    edges = torch.linspace(low, high, bins + 1)
    axes.stairs((100 * counts / counts.sum()).numpy(), edges.numpy(), fill=True, color="tab:blue", alpha=0.8)
    axes.axvline(found.min, color="tab:orange", label=f"smallest distance {found.min:.4f}")
    axes.axvline(found.upper_bound, color="black", linestyle="--", label=f"upper bound on it {found.upper_bound:.4f}")
    axes.set(title=title, xlabel="distance between two centroids", ylabel="pairs [%]", xlim=(low, high))
    axes.legend()
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120)
    pyplot.close(figure)
    write_atomically(path, content.getvalue())


def _show(config: Centroids, kind: str, found: "Quality | None", seconds: float) -> None:
    """Print the result as a table, or as one JSON object."""
    measured: dict[str, float | None] = dict.fromkeys(_MEASURES) if found is None else asdict(found)
    if config.json:
        record = {"num_classes": config.num_classes, "dim": config.dim, "kind": kind, "seed": config.seed}
        print_json(record | measured | {"seconds": round(seconds, 3)})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", show_header=False, title=f"{config.num_classes} centroids in {config.dim} dimensions")
    table.add_row("kind", kind)
    for name, value in measured.items():
        table.add_row(_MEASURES[name], "not measured" if value is None else f"{value:.6f}")
    table.add_row("seconds", f"{seconds:.2f}")
    Console().print(table)
    if config.num_classes > _MOST_MEASURED:
        print(f"The distances of all pairs are measured up to {_MOST_MEASURED} classes.")
    for path in (config.out, config.plot):
        if path is not None:
            print(f"written: {path}")
