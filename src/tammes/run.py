"""Runs: made, resumed, evaluated, and the items that they are looked at with, for images and vectors alike."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from tammes.data import check_place, open_dataset
from tammes.data.image_cache import Decoded
from tammes.data.vectors import Vectors
from tammes.data.vectors import vectors as read_vectors
from tammes.errors import UserError
from tammes.io.console import KEPT, progress, say, working
from tammes.io.files import is_vector_file
from tammes.io.machine import device, images_at_once
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder, Embedding, load
from tammes.models.feature_cache import Frozen, activation_batches, activations, file_of
from tammes.report import draw_retrievals
from tammes.training import distributed
from tammes.training.build import pretrained_embedder
from tammes.training.config import TrainConfig, load_config, resolve
from tammes.training.data import Data, changed_images, load_data
from tammes.training.embedding import Items, decode_for, embed, vectors
from tammes.training.evaluation import protocol
from tammes.training.run_folder import RunFolder, check_new, open_run
from tammes.training.train import OnEpoch, Trained, resume_images, train_images
from tammes.vectors import MetricLearner
from tammes.vectors.config import load_vector_config
from tammes.vectors.statistics import Rows
from tammes.vectors.train import (
    TrainedVectors,
    learned,
    load_vectors,
    other_vectors,
    raw,
    resume_vectors,
    train_vectors,
)

Part = Literal["test", "val"]


def train_run(
    data: str,
    given: dict[str, Any],
    *,
    out: Path | None = None,
    overwrite: bool = False,
    on_epoch: OnEpoch | None = None,
) -> Trained | TrainedVectors:
    """Train on images or vectors, in all processes that a launcher has started together; all of it in a run folder.

    Args:
        data: a folder, a CSV, glyphs, or a file of vectors.
        given: the options, of `TrainOptions` or for vectors of `VectorOptions`.
    """
    with distributed.joined():
        distributed.agreed(lambda: _check_places(data, given, out, overwrite=overwrite))
        if is_vector_file(data):
            _check_alone(data)
            return train_vectors(data, given, out=out, overwrite=overwrite, on_epoch=on_epoch)  # type: ignore[arg-type]
        config = distributed.agreed(lambda: resolve(data, given, out))  # type: ignore[arg-type]
        return _with_picture(train_images(config, overwrite=overwrite, on_epoch=on_epoch))


def resume_run(folder: Path, *, on_epoch: OnEpoch | None = None) -> Trained | TrainedVectors:
    """Resume a run that was stopped, with its own options."""
    with distributed.joined():
        data = distributed.agreed(lambda: open_run(folder).read("config").get("data", ""))
        if is_vector_file(data):
            _check_alone(data)
            return resume_vectors(folder, on_epoch=on_epoch)
        return _with_picture(resume_images(folder, on_epoch=on_epoch))


def _with_picture(trained: Trained) -> Trained:
    """The same, with a picture of some queries and what they find."""
    data = trained.data
    if trained.vectors is not None and distributed.is_first():
        test = data.split.test
        file = trained.run.folder / "neighbours.png"
        draw_retrievals(file, data.images, test, trained.vectors, data.dataset.labels[test])
    return trained


def _check_places(data: str, given: dict[str, Any], out: Path | None, *, overwrite: bool) -> None:
    """Refuse data that is not there, a run that is, and to replace what the new run starts from."""
    if not is_vector_file(data):
        check_place(data)
    for name in ("init_from", "continue_from", "weights"):
        source = given.get(name)
        if out is not None and source is not None and Path(source).exists():
            flag = "--" + name.replace("_", "-")
            if Path(source).resolve() == out.resolve():
                raise UserError(f"{flag} and --out are the same folder. Choose another --out.")
            if Path(source).resolve().is_relative_to(out.resolve()):
                raise UserError(f"{flag} {source} lies in --out {out}. Choose another --out.")
    if out is not None and distributed.is_first():
        check_new(out, overwrite=overwrite)


def _check_alone(data: str) -> None:
    if distributed.number() > 1:
        raise UserError(f"vectors are learned from in one process: start it with `tammes train {data}` alone.")


@dataclass(frozen=True)
class ItemsOf:
    """What of a run, or of other data, is embedded: the numbers of its images, and how they are measured."""

    dataset: Any
    images: Decoded
    chosen: ndarray


def trained_on_vectors(run: RunFolder) -> bool:
    return is_vector_file(run.read("config").get("data", ""))


def evaluate_run(
    run: RunFolder,
    data: str | None = None,
    *,
    embedding: Embedding | None = None,
    clustering: bool = True,
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """How well a run does on its test classes, or on other data, before training and after it.

    Args:
        embedding: the layer that vectors are taken from, if not the one that the run chose.
        options: of `tammes.metrics.evaluate`.
    """
    if data is None and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes. Give it others: tammes evaluate {run.folder} DATA")
    if trained_on_vectors(run):
        if embedding is not None or skip_bad:
            flag = "--embedding" if embedding is not None else "--skip-bad"
            raise UserError(f"{flag} is for images, and {run.folder} was trained on vectors: leave it out.")
        return _evaluate_vectors(run, data, clustering=clustering, **options)
    if data is not None and is_vector_file(data):
        raise UserError(
            f"{run.folder} was trained on images, and {data} holds vectors. Measure these as they are: tammes evaluate"
            f" {data}"
        )
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    check_place(data or config.data)
    # Both before an image is read: a file of weights may be gone.
    networks = {"untrained": pretrained_embedder(config), "trained": load(run.folder, embedding=embedding)}
    of = _items_of(run, config, networks["trained"], data, "test")
    if data is not None:
        say_known(of.dataset.class_names, run.read("classes", needs=("train",))["train"])
    rows = {}
    for name, network in networks.items():
        with progress(f"embedding, {name}", KEPT) as on_progress:
            found = embed(
                network.to(device(on)), of.images, of.chosen, backbone_only=name == "untrained", on_progress=on_progress
            )
        with working(f"measuring, {name}", KEPT):
            how = protocol(of.dataset, of.chosen, clustering=clustering)
            rows[name] = evaluate(found, of.dataset.labels[of.chosen], **how, **options)
    return rows


def evaluate_vectors(file: Path, *, clustering: bool = True, **options: Any) -> dict[str, dict[str, Any]]:
    """How well the vectors of a file find vectors of their class, as they are."""
    found = read_vectors(file)
    with working("measuring"):
        how = protocol(found, np.arange(len(found.labels)), clustering=clustering)
        return {"vectors": evaluate(found.vectors, found.labels, **how, **options)}


def _evaluate_vectors(
    run: RunFolder, data: str | None, *, clustering: bool, **options: Any
) -> dict[str, dict[str, Any]]:
    learner = MetricLearner.load(run.folder)
    found, chosen = _vectors_of(run, learner, data)
    if data is not None:
        say_known(tuple(map(str, np.unique(found.labels).tolist())), run.read("classes", needs=("train",))["train"])
    given, how = Rows(found.vectors, chosen), protocol(found, chosen, clustering=clustering)
    rows = {}
    for name in ("untrained", "trained"):
        with working(f"measuring, {name}"):
            made = raw(given, run.folder) if name == "untrained" else learned(learner, given, run.folder)
            rows[name] = evaluate(made, found.labels[chosen], **how, **options)
    return rows


def items_of(
    run: RunFolder,
    data: str | None = None,
    *,
    part: Part = "test",
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
) -> Items:
    """The test or validation items of a finished run's own data, or all of other data, embedded by its model.

    Args:
        data: other images, or vectors for a run of vectors; `part` then means nothing.
        skip_bad: leave out images that cannot be read.
        on: auto takes a GPU if there is one.
    """
    if trained_on_vectors(run):
        return _vector_items(run, data, part)
    if data is not None and is_vector_file(data):
        raise UserError(f"{run.folder} was trained on images, and {data} holds vectors. Give it images.")
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    check_place(data or config.data)
    embedder = load(run.folder).to(device(on))
    of = _items_of(run, config, embedder, data, part)
    kept = None if data is not None else _from_kept(config, embedder, of)
    return Items(
        vectors=_embedded(embedder, of) if kept is None else kept,
        labels=of.dataset.labels[of.chosen],
        class_names=of.dataset.class_names,
        numbers=of.chosen,
        names=tuple(of.dataset.keys[number] for number in of.chosen.tolist()),
        images=of.images,
        masks=_masks(of.dataset, of.chosen),
        what=_describe(of.dataset.name, "images", None if data is not None else part),
    )


def own_data(run: RunFolder, config: TrainConfig, embedder: Embedder) -> Data:
    """The images of a run, in the classes that it was started with; a note says what has changed in them."""
    data = load_data(config, embedder, run.read("classes"))
    differs = changed_images(run, data)
    if differs is not None:
        say(f"note: the images in {config.data} are not those of training ({differs}); they are used as they are now.")
    return data


def say_known(names: tuple[str, ...], trained_on: list[str]) -> None:
    """Classes that trained are easier than others; who measures on them should know."""
    known = set(names) & set(trained_on)
    if known:
        say(
            f"note: {len(known)} of the {len(names)} classes have the names of classes that the model was trained on"
            f" ({min(known)!r} for one); they are measured with the others."
        )


def _items_of(run: RunFolder, config: TrainConfig, embedder: Embedder, data: str | None, part: Part) -> ItemsOf:
    """The test or validation images of a run, or all of other data."""
    if data is None:
        own = own_data(run, config, embedder)
        chosen = own.split.test if part == "test" else own.split.val
        assert chosen is not None, "whoever asks for validation classes has seen that there are some"
        return ItemsOf(own.dataset, own.images, chosen)
    dataset = open_dataset(data)
    images = decode_for(embedder, dataset, skip_bad=config.skip_bad)
    return ItemsOf(dataset, images, images.without_bad(np.arange(len(dataset))))


def _from_kept(config: TrainConfig, embedder: Embedder, of: ItemsOf) -> ndarray | None:
    """Vectors from the kept activations, if there are any, as at the end of training; the same figures, much sooner."""
    if config.train == "all":
        return None
    frozen = Frozen(embedder, config.cut if config.train == "top" else None)
    size, images, chosen = embedder.size, of.images, of.chosen
    if not file_of(frozen, images, chosen, crop=size, views=0).exists():
        return None
    kept = activations(frozen, images, chosen, crop=size, views=0, device=embedder.mean.device)
    number = images_at_once(int(np.prod(kept.values.shape[2:])), embedder.mean.device)
    inputs = activation_batches(kept, chosen, np.arange(len(chosen)), batch_size=number, train=False)
    with progress("embedding", KEPT) as on_progress:
        return vectors(embedder, frozen.above, inputs, len(chosen), on_progress=on_progress)


def _embedded(embedder: Embedder, of: ItemsOf) -> ndarray:
    with progress("embedding", KEPT) as on_progress:
        return embed(embedder, of.images, of.chosen, on_progress=on_progress)


def _vectors_of(run: RunFolder, learner: MetricLearner, data: str | None) -> tuple[Vectors, ndarray]:
    """The test vectors of a run, or all of other data."""
    if data is not None:
        found = other_vectors(learner, run, data)
        return found, np.arange(len(found))
    config = load_vector_config(run)
    own = load_vectors(config.data, config.test_classes, config.seed, run.read("classes"))
    return own.vectors, own.split.test


def _vector_items(run: RunFolder, data: str | None, part: Part) -> Items:
    assert data is not None or part == "test", "validation vectors train in the end"
    learner = MetricLearner.load(run.folder)
    found, chosen = _vectors_of(run, learner, data)
    names, codes = np.unique(found.labels[chosen], return_inverse=True)
    name = Path(data or run.read("config", needs=("data",))["data"]).name
    return Items(
        vectors=learned(learner, Rows(found.vectors, chosen), run.folder),
        labels=codes.reshape(-1).astype(np.int64),
        class_names=tuple(str(each) for each in names.tolist()),
        numbers=chosen,
        names=tuple(f"vector {n}" if found.paths is None else str(found.paths[n]) for n in chosen.tolist()),
        images=None,
        masks=_masks(found, chosen),
        what=_describe(name, "vectors", None if data is not None else part),
    )


def _masks(data: Any, chosen: ndarray) -> dict[str, ndarray]:
    found = protocol(data, chosen, clustering=False)
    return {name: found[name] for name in ("query", "gallery", "sequence") if name in found}


def _describe(name: str, kind: str, part: Part | None) -> str:
    use = {"test": "test classes", "val": "validation classes", None: "all classes"}[part]
    return f"{kind} of the {use} of {name}" if part is not None else f"{kind} of {use} of {name}"
