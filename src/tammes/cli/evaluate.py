"""`tammes evaluate`: how well a model, or any vectors, find images of the same class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tammes.cli.console import optional, results_table
from tammes.cli.options import Device, InPrecision, Json, Pooling, Size, SkipBad, Weights, WeightsForm, network_options
from tammes.errors import UserError, check_seed, check_whole
from tammes.io.console import print_json
from tammes.io.files import is_vector_file


@dataclass(frozen=True)
class Evaluate:
    """Measure a model on classes that it has not seen, or measure vectors.

    A pretrained network is measured on the test classes of a published data set, or on all classes of a folder. With
    --whiten, only the classes of a folder that were not used for the whitening are measured.

    For example:
        tammes evaluate resnet50 photos/
        tammes evaluate googlenet CUB_200_2011 --weights FILE --whiten
        tammes evaluate runs/glyphs-discriminative-simplex-0
        tammes evaluate runs/photos other-photos/ --json
        tammes evaluate hf://owner/name photos/
        tammes evaluate runs/vectors other.npz
        tammes evaluate vectors.npz
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL|VECTORS")]
    """A run folder, a model on the hub (hf://owner/name, or its folder), a pretrained network (`tammes models` lists
    them), or a .npz or .parquet file with `vectors` and `labels`, optionally also `query` and `gallery` (masks) and
    `sequence` (a query does not find items of its own sequence)."""
    data: Annotated[str | None, tyro.conf.Positional, optional("DATA")] = None
    """Images to measure on, or vectors for a run of vectors; all of their classes are measured. (default: the test
    classes of the run's own data)"""
    weights: Weights = None
    weights_form: WeightsForm = None
    size: Size = None
    pool: Pooling = None
    whiten: bool = False
    """Of a pretrained network: also measure its features whitened, in closed form, down to 256 dimensions: within the
    training classes; and by PCA of the measured images, without their labels."""
    precision: InPrecision = None
    embedding: Annotated[Literal["penultimate", "last"] | None, optional("{penultimate,last}")] = None
    """The layer that images are compared by, if not the one that the run uses."""
    clustering: bool = True
    """Skip the clustering, which takes the longest: no NMI and AMI."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of K-means; NMI and AMI are means over them, with their standard deviation."""
    restarts: int = 3
    """Restarts of K-means for each seed; the clustering with the lowest inertia counts."""
    skip_bad: SkipBad = False
    device: Device = "auto"
    json: Json = False


def evaluate(config: Evaluate) -> None:
    """Embed, search, measure, show."""
    check_whole("`restarts`", config.restarts)
    check_whole("the number of `seeds`", len(config.seeds))
    for seed in config.seeds:
        check_seed("each of `seeds`", seed)
    how = {name: getattr(config, name) for name in ("clustering", "seeds", "restarts")}
    rows = _of_vectors(config, how) if is_vector_file(config.model) else _of_model(config, how)
    if config.json:
        print_json(rows)
        return
    one = next(iter(rows.values()))
    words = {"pca_whitened": "whitened by PCA"} | (_titles(config) if "untrained" in rows else {})
    rows = {words.get(name, name): row for name, row in rows.items()}
    results_table(rows, f"{one['classes']} classes, {one['queries']} queries, per cent")
    if alone := one["single_image_classes"]:
        print(f"{alone} classes have one image only, which nothing can match: they count as misses.")
    if one["tie_rate"]:
        print(f"{100 * one['tie_rate']:.2f} % of the queries have ties that matter; they count as their expectation.")


def _titles(config: Evaluate) -> dict[str, str]:
    """What the rows of a run are called: its model may be the pretrained embedding, its first weights random."""
    from tammes.training.run_folder import RunFolder
    from tammes.training.verdict import before_title, kept_title

    run = RunFolder(Path(config.model))
    results = None if config.embedding else run.read("results")
    kept = "trained" if results is None else kept_title(results)
    return {"untrained": before_title(run.read("config")), "trained": kept}


def _of_vectors(config: Evaluate, how: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from tammes.report.evaluation import evaluate_vectors

    for name in ("data", "weights", "weights_form", "size", "pool", "whiten", "precision", "embedding", "skip_bad"):
        if getattr(config, name):
            raise UserError(f"`{name}` is for images, and {Path(config.model).name} holds vectors: leave it out.")
    return evaluate_vectors(Path(config.model), **how)


def _of_model(config: Evaluate, how: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if config.data is not None and not is_vector_file(config.data):
        from tammes.data import check_place

        check_place(config.data)
    from tammes.models.embedder import is_of_hub
    from tammes.models.pretrained import check_trained, names_network
    from tammes.report.evaluation import evaluate_pretrained, evaluate_run
    from tammes.training.run_folder import open_run

    network = network_options(config)
    how |= {"skip_bad": config.skip_bad, "on": config.device, "precision": config.precision or "no"}
    named = names_network(config.model)
    if not named:
        check_trained(config.model, network | {"whiten": config.whiten or None})
    if named or is_of_hub(config.model):
        if config.data is None or is_vector_file(config.data):
            what = "as a pretrained network it has none" if named else "it comes with none"
            typed = f"tammes evaluate {config.model} photos/"
            raise UserError(f"which images? {config.model} is not a run; {what}. For example: {typed}")
        if config.embedding is not None:
            raise UserError(f"`embedding` is for a run, and {config.model} is none: leave it out.")
        return evaluate_pretrained(config.model, config.data, network, whiten=config.whiten, **how)
    return evaluate_run(open_run(Path(config.model)), config.data, embedding=config.embedding, **how)
