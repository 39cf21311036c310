"""The items that a finished run is looked at with: images or vectors, embedded, with all that is known of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from tammes.cli.feeding import Data, changed_images, decoded_for, load_data
from tammes.cli.measuring import protocol
from tammes.cli.saved import saved_options
from tammes.cli.train import Train, of_vectors
from tammes.cli.vectors_job import learned, load_vectors, other_vectors
from tammes.data import check_place, open_dataset
from tammes.data.image_cache import Decoded
from tammes.errors import UserError
from tammes.io.console import KEPT, progress, say
from tammes.io.machine import device, images_at_once
from tammes.models.embedder import Embedder, load
from tammes.models.feature_cache import Frozen, activation_batches, activations, file_of
from tammes.training.embedding import Items, embed, vectors
from tammes.training.run_folder import Run
from tammes.vectors import MetricLearner
from tammes.vectors.statistics import Rows

Part = Literal["test", "val"]


def items_of(
    run: Run,
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
    if of_vectors(run.read("config").get("data", "")):
        return _of_vectors(run, data, part)
    if data is not None and of_vectors(data):
        raise UserError(f"{run.folder} was trained on images, and {data} holds vectors. Give it images.")
    options = saved_options(run)
    options = replace(options, skip_bad=options.skip_bad or skip_bad)
    check_place(data or options.data)
    embedder = load(run.folder).to(device(on))
    if data is None:
        own = own_data(run, options)
        chosen = own.split.test if part == "test" else own.split.val
        assert chosen is not None, "whoever asks for validation classes has seen that there are some"
        dataset, images = own.dataset, own.images
        found = _own(options, embedder, images, chosen)
    else:
        dataset = open_dataset(data)
        images = decoded_for(embedder, dataset, skip_bad=options.skip_bad)
        chosen = images.without_bad(np.arange(len(dataset)))
        found = _embedded(embedder, images, chosen)
    return Items(
        vectors=found,
        labels=dataset.labels[chosen],
        class_names=dataset.class_names,
        numbers=chosen,
        names=tuple(dataset.keys[number] for number in chosen.tolist()),
        images=images,
        masks=_masks(dataset, chosen),
        what=_in_words(dataset.name, "images", None if data is not None else part),
    )


def own_data(run: Run, options: Train) -> Data:
    """The images of a run, in the classes that it was started with; a note says what has changed in them."""
    data = load_data(options, run.read("classes"))
    differs = changed_images(run, data)
    if differs is not None:
        say(f"note: the images in {options.data} are not those of training ({differs}); they are used as they are now.")
    return data


def say_known(names: tuple[str, ...], trained_on: list[str]) -> None:
    """Classes that trained are easier than others; who measures on them should know."""
    known = set(names) & set(trained_on)
    if known:
        say(
            f"note: {len(known)} of the {len(names)} classes have the names of classes that the model was trained on"
            f" ({min(known)!r} for one); they are measured with the others."
        )


def _own(options: Train, embedder: Embedder, images: Decoded, chosen: ndarray) -> ndarray:
    """From the kept activations where there are any, as at the end of training; the same figures, and much sooner."""
    if options.train in ("top", "head"):
        frozen = Frozen(embedder, options.cut if options.train == "top" else None)
        size = embedder.size
        if file_of(frozen, images, chosen, crop=size, views=0).exists():
            kept = activations(frozen, images, chosen, crop=size, views=0, device=embedder.mean.device)
            number = images_at_once(int(np.prod(kept.values.shape[2:])), embedder.mean.device)
            nothing = np.zeros(len(chosen), dtype=np.int64)
            inputs = activation_batches(kept, chosen, nothing, batch_size=number, train=False)
            with progress("embedding", KEPT) as on_progress:
                return vectors(embedder, frozen.above, inputs, len(chosen), on_progress=on_progress)
    return _embedded(embedder, images, chosen)


def _embedded(embedder: Embedder, images: Decoded, chosen: ndarray) -> ndarray:
    with progress("embedding", KEPT) as on_progress:
        return embed(embedder, images, chosen, on_progress=on_progress)


def _of_vectors(run: Run, data: str | None, part: Part) -> Items:
    learner = MetricLearner.load(run.folder)
    if data is None:
        own = load_vectors(saved_options(run), run.read("classes"))
        assert part == "test", "validation vectors train in the end"
        found, chosen = own.vectors, own.split.test
        name = Path(run.read("config", needs=("data",))["data"]).name
    else:
        found = other_vectors(learner, run, data)
        chosen, name = np.arange(len(found)), Path(data).name
    names, codes = np.unique(found.labels[chosen], return_inverse=True)
    return Items(
        vectors=learned(learner, Rows(found.vectors, chosen), run.folder),
        labels=codes.reshape(-1).astype(np.int64),
        class_names=tuple(str(each) for each in names.tolist()),
        numbers=chosen,
        names=tuple(f"vector {n}" if found.paths is None else str(found.paths[n]) for n in chosen.tolist()),
        images=None,
        masks=_masks(found, chosen),
        what=_in_words(name, "vectors", None if data is not None else part),
    )


def _masks(data: Any, chosen: ndarray) -> dict[str, ndarray]:
    found = protocol(data, chosen, clustering=False)
    return {name: found[name] for name in ("query", "gallery", "sequence") if name in found}


def _in_words(name: str, kind: str, part: Part | None) -> str:
    use = {"test": "test classes", "val": "validation classes", None: "all classes"}[part]
    return f"{kind} of the {use} of {name}" if part is not None else f"{kind} of {use} of {name}"
