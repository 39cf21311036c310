"""The items of a run, or of other data, embedded by its model, for reports and calibration."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from tammes.data import Dataset, check_place, open_dataset
from tammes.data.image_cache import Decoded
from tammes.data.vectors import Vectors
from tammes.errors import UserError
from tammes.io.console import KEPT, progress, say
from tammes.io.files import is_vector_file
from tammes.io.machine import device, images_at_once
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import Frozen, activation_batches, activations, kept_by, keys_of, num_missing
from tammes.training.build import load_embedder
from tammes.training.config import TrainConfig, load_config
from tammes.training.data import Data, changed_images, load_data
from tammes.training.embedding import Items, decode_for, embed, vectors
from tammes.training.evaluation import protocol
from tammes.training.run_folder import RunFolder
from tammes.vectors import MetricLearner
from tammes.vectors.config import load_vector_config
from tammes.vectors.statistics import Rows
from tammes.vectors.train import learned, load_vectors, other_vectors

Part = Literal["test", "val"]


@dataclass(frozen=True)
class ItemsOf:
    """What of a run, or of other data, is embedded: the numbers of its images, and how they are measured."""

    dataset: Any
    images: Decoded
    chosen: ndarray


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
        data: other images, or vectors for a run of vectors; `part` is then ignored.
        skip_bad: leave out unreadable images.
        on: "auto" uses a GPU if there is one.
    """
    if run.of_vectors:
        return _vector_items(run, data, part)
    if data is not None and is_vector_file(data):
        raise UserError(f"{run.folder} was trained on images, and {data} holds vectors. Give it images.")
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    check_there(data, config)
    embedder = load_embedder(run.folder, run.objects).to(device(on))
    of = chosen_of(run, config, embedder, data, part)
    kept = None if data is not None else from_kept(config, embedder, of)
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
    """The images of a run in its original classes, with a note about changes."""
    data = load_data(config, embedder, run.read("classes"))
    differs = changed_images(run, data)
    if differs is not None:
        say(f"note: the images in {config.data} are not those of training ({differs}); they are used as they are now.")
    return data


def say_known(names: tuple[str, ...], trained_on: list[str]) -> None:
    """Print a note if training classes are among the classes, as they are easier than others."""
    known = set(names) & set(trained_on)
    if known:
        say(
            f"note: {len(known)} of the {len(names)} classes have the names of classes that the model was trained on"
            f" ({min(known)!r} for one); they are measured with the others."
        )


def check_there(data: str | Dataset | None, config: TrainConfig) -> None:
    """Raise UserError for missing images, before a network is built."""
    if isinstance(data, str):
        check_place(data)
    elif data is None and config.objects.dataset is None:
        check_place(config.data)


def check_for_images(run: RunFolder, **given: Any) -> None:
    """Raise UserError for options that are for images only."""
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None and run.of_vectors:
        raise UserError(f"`{wrong}` is for images, and {run.folder} was trained on vectors: leave it out.")


def chosen_of(
    run: RunFolder, config: TrainConfig, embedder: Embedder, data: str | Dataset | None, part: Part
) -> ItemsOf:
    """The test or validation images of a run, or all of other data."""
    if data is None:
        own = own_data(run, config, embedder)
        chosen = own.split.test if part == "test" else own.split.val
        assert chosen is not None, "whoever asks for validation classes has seen that there are some"
        return ItemsOf(own.dataset, own.images, chosen)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    images = decode_for(embedder, dataset, skip_bad=config.skip_bad)
    return ItemsOf(dataset, images, images.without_bad(np.arange(len(dataset))))


def from_kept(config: TrainConfig, embedder: Embedder, of: ItemsOf) -> ndarray | None:
    """Vectors from the cached activations of a training at a cut, if they are complete; faster than from images."""
    if config.train != "top":
        return None
    frozen = Frozen(embedder, config.cut)
    size, images, chosen = embedder.size, of.images, of.chosen
    if num_missing(kept_by(frozen, crop=size), keys_of(images, chosen)):
        return None
    kept = activations(frozen, images, chosen, crop=size, device=embedder.mean.device)
    number = images_at_once(int(np.prod(kept.values.shape[1:])), embedder.mean.device)
    inputs = activation_batches(kept, chosen, np.arange(len(chosen)), batch_size=number, train=False)
    with progress("embedding", KEPT) as on_progress:
        return vectors(embedder, frozen.above, inputs, len(chosen), on_progress=on_progress)


def _embedded(embedder: Embedder, of: ItemsOf) -> ndarray:
    with progress("embedding", KEPT) as on_progress:
        return embed(embedder, of.images, of.chosen, on_progress=on_progress)


def vectors_of(run: RunFolder, learner: MetricLearner, data: str | None) -> tuple[Vectors, ndarray]:
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
    found, chosen = vectors_of(run, learner, data)
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
