"""Evaluate runs, pretrained networks and vectors: retrieval on unseen classes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy import ndarray

from tammes.data import Dataset, open_dataset
from tammes.data.image_cache import Decoded
from tammes.data.splits import split
from tammes.data.vectors import vectors as read_vectors
from tammes.errors import UserError
from tammes.io.console import KEPT, progress, working
from tammes.io.files import is_vector_file
from tammes.io.machine import device
from tammes.metrics import evaluate
from tammes.models.embedder import DIM, Embedder, Embedding, checked_precision
from tammes.models.origin import Precision
from tammes.models.pretrained import load_model, names_network
from tammes.report.items import check_for_images, check_there, chosen_of, from_kept, say_known, vectors_of
from tammes.training.build import load_embedder, pretrained_embedder
from tammes.training.config import load_config
from tammes.training.embedding import decode_for, embed, features_of
from tammes.training.evaluation import protocol
from tammes.training.run_folder import RunFolder
from tammes.vectors import MetricLearner
from tammes.vectors.statistics import Rows
from tammes.vectors.train import learned, raw

_SAID = {"untrained": "pretrained", "trained": "the model of the run"}


def evaluate_run(
    run: RunFolder,
    data: str | Dataset | None = None,
    *,
    embedding: Embedding | None = None,
    precision: Precision = "no",
    clustering: bool = True,
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Evaluate a run on its test classes, or on other data, before and after training.

    Args:
        embedding: the layer to use as the embedding, if not that of the run.
        precision: "bf16" runs the network in bfloat16.
        options: passed to `tammes.metrics.evaluate`.
    """
    if data is None and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes. Give it others: tammes evaluate {run.folder} DATA")
    if run.of_vectors:
        check_for_images(run, embedding=embedding, precision=precision != "no", skip_bad=skip_bad)
        return _evaluate_vectors(run, _a_file(data), clustering=clustering, **options)
    if isinstance(data, str) and is_vector_file(data):
        raise UserError(
            f"{run.folder} was trained on images, and {data} holds vectors. Measure these as they are: tammes evaluate"
            f" {data}"
        )
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    check_there(data, config)
    # Both before an image is read: a file of weights may be gone.
    networks = {"untrained": pretrained_embedder(config), "trained": load_embedder(run.folder, run.objects, embedding)}
    for network in networks.values():
        network.precision = checked_precision(precision)
    of = chosen_of(run, config, networks["trained"], data, "test")
    if data is not None:
        say_known(of.dataset.class_names, run.read("classes", needs=("train",))["train"])
    rows = {}
    for name, network in networks.items():
        network, first = network.to(device(on)), name == "untrained"
        found = None if first or data is not None or precision != "no" else from_kept(config, network, of)
        if found is None:
            with progress(f"embedding, {_SAID[name]}", KEPT) as on_progress:
                found = embed(network, of.images, of.chosen, backbone_only=first, on_progress=on_progress)
        with working(f"measuring, {_SAID[name]}", KEPT):
            how = protocol(of.dataset, of.chosen, clustering=clustering)
            rows[name] = evaluate(found, of.dataset.labels[of.chosen], **how, **options)
    return rows


def evaluate_pretrained(
    model: str,
    data: str,
    network: Mapping[str, Any],
    *,
    precision: Precision = "no",
    whiten: bool = False,
    clustering: bool = True,
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Evaluate a pretrained network on the test classes of a published data set, or on all classes of other data.

    Args:
        model: its name; or a model on the hub, whose row is then `trained`.
        network: options of `tammes.pretrained`.
        precision: "bf16" runs it in bfloat16; also for a model on the hub.
        whiten: also evaluate its features whitened within the training classes (other data is then split as in
            `train`), and whitened by PCA of the evaluated images, without labels.
        options: passed to `tammes.metrics.evaluate`.
    """
    embedder = load_model(model, precision=precision, **network).to(device(on))
    dataset = open_dataset(data)
    says = dataset.part is not None or dataset.train_classes is not None
    parts = split(dataset) if says or whiten else None
    images = decode_for(embedder, dataset, skip_bad=skip_bad)
    chosen = images.without_bad(np.arange(len(dataset)) if parts is None else parts.test)
    features = _features(embedder, images, chosen)
    networks = {"pretrained" if names_network(model) else "trained": embedder}
    if whiten:
        assert parts is not None
        learn = images.without_bad(parts.train)
        labels = torch.from_numpy(dataset.labels[learn])
        networks["whitened"] = embedder.closed_form(_features(embedder, images, learn), labels, dim=DIM)
        networks["pca_whitened"] = embedder.closed_form(features, dim=DIM)
    how = protocol(dataset, chosen, clustering=clustering)
    rows = {}
    for name, one in networks.items():
        with working(f"measuring, {name}", KEPT), torch.inference_mode():
            found = one.embedding(features.to(one.mean.device)).cpu().numpy()
            rows[name] = evaluate(found, dataset.labels[chosen], **how, **options)
    return rows


def evaluate_vectors(file: Path, *, clustering: bool = True, **options: Any) -> dict[str, dict[str, Any]]:
    """Evaluate the vectors of a file."""
    found = read_vectors(file)
    with working("measuring"):
        how = protocol(found, np.arange(len(found.labels)), clustering=clustering)
        return {"vectors": evaluate(found.vectors, found.labels, **how, **options)}


def _evaluate_vectors(
    run: RunFolder, data: str | None, *, clustering: bool, **options: Any
) -> dict[str, dict[str, Any]]:
    learner = MetricLearner.load(run.folder)
    found, chosen = vectors_of(run, learner, data)
    if data is not None:
        say_known(tuple(map(str, np.unique(found.labels).tolist())), run.read("classes", needs=("train",))["train"])
    given, how = Rows(found.vectors, chosen), protocol(found, chosen, clustering=clustering)
    rows = {}
    for name in ("untrained", "trained"):
        with working(f"measuring, {_SAID[name]}"):
            made = raw(given, run.folder) if name == "untrained" else learned(learner, given, run.folder)
            rows[name] = evaluate(made, found.labels[chosen], **how, **options)
    return rows


def _features(embedder: Embedder, images: Decoded, chosen: ndarray) -> torch.Tensor:
    """The backbone's features of centre crops, from the cache that `train` also uses."""
    with progress("computing features", KEPT) as on_progress:
        return features_of(embedder, images, chosen, on_progress=on_progress).inputs(chosen)


def _a_file(data: str | Dataset | None) -> str | None:
    if isinstance(data, Dataset):
        raise UserError("a run of vectors is evaluated on a file of vectors, not on images.")
    return data
