"""`tammes evaluate`: how well a model, or any vectors, find images of the same class."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tammes.cli.console import optional, print_json, progress, results_table, working
from tammes.errors import UserError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained model on classes that it has not seen, or measure vectors.

    For example:

    tammes evaluate runs/glyphs-discriminative-simplex-0

    tammes evaluate runs/photos other-photos/ --json

    tammes evaluate vectors.npz
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|VECTORS.npz")]
    """A run folder, or a .npz file with arrays `vectors` and `labels`, and if need be `query`, `gallery` (masks) and
    `sequence` (a query does not find items of its own)."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """Images to measure on, all of their classes; by default the test classes of the run's own data."""
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
    json: bool = False
    """Print one JSON object instead of a table."""


def evaluate(config: Evaluate) -> None:
    """Embed, search, measure, show."""
    if config.restarts < 1 or not config.seeds:
        raise UserError("--restarts must be at least 1, and --seeds one number or more.")
    rows = _of_vectors(config) if config.model.suffix == ".npz" else _of_run(config)
    if config.json:
        print_json(rows)
        return
    one = next(iter(rows.values()))
    results_table(rows, f"{one['classes']} classes, {one['queries']} queries, per cent")
    if one["single_image_classes"]:
        print(
            f"{one['single_image_classes']} classes have one image only, which nothing can match: they count as misses."
        )
    if one["tie_rate"]:
        print(f"{100 * one['tie_rate']:.2f} % of the queries have ties that matter; they count as their expectation.")


def _of_vectors(config: Evaluate) -> dict[str, dict[str, Any]]:
    import numpy as np

    from tammes.metrics import evaluate as measured

    if config.data is not None or config.embedding is not None:
        raise UserError("vectors are measured as they are: give no DATA and no --embedding with a .npz file.")
    if not config.model.exists():
        raise UserError(f"no such file: {config.model}. Expected a .npz file with arrays `vectors` and `labels`.")
    try:
        loaded = np.load(config.model, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {config.model}: {error} Expected a .npz file.") from None
    with loaded as arrays:
        missing = [name for name in ("vectors", "labels") if name not in arrays]
        if missing:
            raise UserError(f"{config.model} has no array `{missing[0]}`; it has {', '.join(arrays) or 'none'}.")
        with working("measuring"):
            options = _options(config, arrays["labels"])
            options |= {name: arrays[name] for name in ("query", "gallery", "sequence") if name in arrays}
            return {"vectors": measured(arrays["vectors"], arrays["labels"], **options)}


def _of_run(config: Evaluate) -> dict[str, dict[str, Any]]:
    from dataclasses import replace

    import numpy as np

    from tammes.cli.job import saved_options
    from tammes.cli.making import decoded_for, load_data, untrained_embedder
    from tammes.datasets import open_dataset
    from tammes.embedder import load
    from tammes.embeddings import embed
    from tammes.metrics import evaluate as measured
    from tammes.runs import open_run

    run = open_run(config.model)
    embedder = load(run.folder, embedding=config.embedding)
    options = saved_options(run)
    options = replace(options, skip_bad=options.skip_bad or config.skip_bad)
    if config.data is None:
        data = load_data(options, run.read("classes"))
        if len(data.split.test) == 0:
            raise UserError(
                f"{run.folder} was trained on all classes. Give it others: tammes evaluate {run.folder} DATA"
            )
        images, chosen, labels = data.images, data.split.test, data.dataset.labels[data.split.test]
    else:
        dataset = open_dataset(config.data)
        images = decoded_for(embedder, dataset, skip_bad=config.skip_bad)
        chosen = images.without_bad(np.arange(len(dataset)))
        labels = dataset.labels[chosen]
    rows = {}
    for name, network, backbone_only in (
        ("untrained", untrained_embedder(options), True),
        ("trained", embedder, False),
    ):
        with progress(f"embedding, {name}") as on_progress:
            vectors = embed(network, images, chosen, backbone_only=backbone_only, on_progress=on_progress)
        with working("measuring"):
            rows[name] = measured(vectors, labels, **_options(config, labels))
    return rows


def _options(config: Evaluate, labels: "np.ndarray") -> dict[str, Any]:
    """Recall at 8 needs more than 8 images, and clusters more than one class."""
    import numpy as np

    ks = tuple(k for k in (1, 2, 4, 8) if k < len(labels)) or (1,)
    clustering = config.clustering and len(np.unique(labels)) > 1
    return {"ks": ks, "clustering": clustering, "seeds": config.seeds, "restarts": config.restarts}
