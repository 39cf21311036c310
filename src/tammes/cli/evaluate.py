"""`tammes evaluate`: how well a model, or any vectors, find images of the same class."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tammes.cli.console import optional, results_table
from tammes.cli.train import check_data, of_vectors
from tammes.errors import UserError, check_seed
from tammes.io.console import KEPT, print_json, progress, working

if TYPE_CHECKING:
    from tammes.training.run_folder import Run


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
    if config.restarts < 1 or not config.seeds:
        raise UserError("--restarts must be at least 1, and --seeds one number or more.")
    for seed in config.seeds:
        check_seed("each of --seeds", seed)
    check_data(config.data)
    rows = _of_vectors(config) if of_vectors(config.model) else _of_run(config)
    if config.json:
        print_json(rows)
        return
    one = next(iter(rows.values()))
    results_table(
        {name.replace("untrained", "pretrained"): row for name, row in rows.items()},
        f"{one['classes']} classes, {one['queries']} queries, per cent",
    )
    if one["single_image_classes"]:
        print(
            f"{one['single_image_classes']} classes have one image only, which nothing can match: they count as misses."
        )
    if one["tie_rate"]:
        print(f"{100 * one['tie_rate']:.2f} % of the queries have ties that matter; they count as their expectation.")


def _of_vectors(config: Evaluate) -> dict[str, dict[str, Any]]:
    import numpy as np

    from tammes.cli.measuring import protocol
    from tammes.data.vectors import vectors
    from tammes.metrics import evaluate as measured

    if config.data is not None or config.embedding is not None:
        raise UserError(f"vectors are measured as they are: give no DATA and no --embedding with {config.model.name}.")
    if config.skip_bad:
        raise UserError(f"--skip-bad is for images, and {config.model.name} holds vectors: leave it out.")
    found = vectors(config.model)
    with working("measuring"):
        options = protocol(found, np.arange(len(found.labels)), clustering=config.clustering)
        return {"vectors": measured(found.vectors, found.labels, **options, **_options(config))}


def _of_run(config: Evaluate) -> dict[str, dict[str, Any]]:
    from dataclasses import replace

    import numpy as np

    from tammes.cli.feeding import decoded_for
    from tammes.cli.items import own_data, say_known
    from tammes.cli.measuring import protocol
    from tammes.cli.networks import untrained_embedder
    from tammes.cli.saved import saved_options
    from tammes.data import open_dataset
    from tammes.io.machine import device
    from tammes.metrics import evaluate as measured
    from tammes.models.embedder import load
    from tammes.training.embedding import embed
    from tammes.training.run_folder import open_run

    run = open_run(config.model)
    if of_vectors(run.read("config").get("data", "")):
        return _of_vectors_run(config, run)
    if config.data is not None and of_vectors(config.data):
        raise UserError(
            f"{run.folder} was trained on images, and {config.data} holds vectors. Measure these as they are: tammes"
            f" evaluate {config.data}"
        )
    options = saved_options(run)
    options = replace(options, skip_bad=options.skip_bad or config.skip_bad)
    if config.data is None:
        _check_tested(run)
    check_data(options.data if config.data is None else None)
    # Both before an image is read: a file of weights may be gone.
    embedder, untrained = load(run.folder, embedding=config.embedding), untrained_embedder(options)
    if config.data is None:
        data = own_data(run, options)
        dataset, images, chosen = data.dataset, data.images, data.split.test
    else:
        dataset = open_dataset(config.data)
        say_known(dataset.class_names, run.read("classes", needs=("train",))["train"])
        images = decoded_for(embedder, dataset, skip_bad=config.skip_bad)
        chosen = images.without_bad(np.arange(len(dataset)))
    rows = {}
    for name, network, backbone_only in (
        ("untrained", untrained, True),
        ("trained", embedder, False),
    ):
        with progress(f"embedding, {name}", KEPT) as on_progress:
            network = network.to(device(config.device))
            vectors = embed(network, images, chosen, backbone_only=backbone_only, on_progress=on_progress)
        with working(f"measuring, {name}", KEPT):
            how = protocol(dataset, chosen, clustering=config.clustering)
            rows[name] = measured(vectors, dataset.labels[chosen], **how, **_options(config))
    return rows


def _of_vectors_run(config: Evaluate, run: "Run") -> dict[str, dict[str, Any]]:
    import numpy as np

    from tammes.cli.items import say_known
    from tammes.cli.measuring import protocol
    from tammes.cli.saved import saved_options
    from tammes.cli.vectors_job import learned, load_vectors, other_vectors, raw
    from tammes.metrics import evaluate as measured
    from tammes.vectors import MetricLearner
    from tammes.vectors.statistics import Rows

    for flag, asked in (("--embedding", config.embedding), ("--skip-bad", config.skip_bad)):
        if asked:
            raise UserError(f"{flag} is for images, and {run.folder} was trained on vectors: leave it out.")
    if config.data is None:
        _check_tested(run)
    learner = MetricLearner.load(run.folder)
    if config.data is None:
        data = load_vectors(saved_options(run), run.read("classes"))
        found, chosen = data.vectors, data.split.test
    else:
        found = other_vectors(learner, run, config.data)
        chosen = np.arange(len(found))
        say_known(tuple(map(str, np.unique(found.labels).tolist())), run.read("classes", needs=("train",))["train"])
    given, how = Rows(found.vectors, chosen), protocol(found, chosen, clustering=config.clustering)
    rows = {}
    for name in ("untrained", "trained"):
        with working(f"measuring, {name}"):
            vectors = raw(given, run.folder) if name == "untrained" else learned(learner, given, run.folder)
            rows[name] = measured(vectors, found.labels[chosen], **how, **_options(config))
    return rows


def _check_tested(run: "Run") -> None:
    """Refuse to measure a run on its own test classes if it has none."""
    if not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes. Give it others: tammes evaluate {run.folder} DATA")


def _options(config: Evaluate) -> dict[str, Any]:
    return {"seeds": config.seeds, "restarts": config.restarts}
