"""`tammes evaluate`: how well a model, or any vectors, find images of the same class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tammes.cli.console import optional, results_table
from tammes.errors import UserError, check_seed, check_whole
from tammes.io.console import print_json
from tammes.io.files import is_vector_file


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained model on classes that it has not seen, or measure vectors.

    For example:
        tammes evaluate runs/glyphs-discriminative-simplex-0
        tammes evaluate runs/photos other-photos/ --json
        tammes evaluate runs/vectors other.npz
        tammes evaluate vectors.npz
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|VECTORS")]
    """A run folder, or a .npz or .parquet file with `vectors` and `labels`, and if need be `query`, `gallery` (masks)
    and `sequence` (a query does not find items of its own)."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """Images, or vectors for a run of vectors, to measure on, all of their classes; by default the test classes of the
    run's own data."""
    embedding: Annotated[Literal["penultimate", "last"] | None, optional("{penultimate,last}")] = None
    """Which layer images are compared by, if not the one that the run chose."""
    clustering: bool = True
    """Cluster the embeddings for NMI and AMI, which takes the longest."""
    seeds: tuple[int, ...] = (0,)
    """Of K-means; NMI and AMI are means over these, with their standard deviation."""
    restarts: int = 3
    """Of K-means for each seed; the clustering with the least inertia counts."""
    skip_bad: bool = False
    """Leave out images that cannot be read, and say how many."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    json: bool = False
    """Print one JSON object instead of a table."""


def evaluate(config: Evaluate) -> None:
    """Embed, search, measure, show."""
    check_whole("`restarts`", config.restarts)
    check_whole("the number of `seeds`", len(config.seeds))
    for seed in config.seeds:
        check_seed("each of `seeds`", seed)
    how = {name: getattr(config, name) for name in ("clustering", "seeds", "restarts")}
    rows = _of_vectors(config, how) if is_vector_file(config.model) else _of_run(config, how)
    if config.json:
        print_json(rows)
        return
    one = next(iter(rows.values()))
    rows = {name.replace("untrained", "pretrained"): row for name, row in rows.items()}
    results_table(rows, f"{one['classes']} classes, {one['queries']} queries, per cent")
    if alone := one["single_image_classes"]:
        print(f"{alone} classes have one image only, which nothing can match: they count as misses.")
    if one["tie_rate"]:
        print(f"{100 * one['tie_rate']:.2f} % of the queries have ties that matter; they count as their expectation.")


def _of_vectors(config: Evaluate, how: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from tammes.run import evaluate_vectors

    for name in ("data", "embedding", "skip_bad"):
        if getattr(config, name):
            raise UserError(f"`{name}` is for a run, and {config.model.name} holds vectors: leave it out.")
    return evaluate_vectors(config.model, **how)


def _of_run(config: Evaluate, how: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if config.data is not None and not is_vector_file(config.data):
        from tammes.data import check_place

        check_place(config.data)
    from tammes.run import evaluate_run
    from tammes.training.run_folder import open_run

    how |= {"embedding": config.embedding, "skip_bad": config.skip_bad, "on": config.device}
    return evaluate_run(open_run(config.model), config.data, **how)
