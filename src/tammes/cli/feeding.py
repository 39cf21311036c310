"""What a training sees: its images, which of them train, and what is kept of them, batch by batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.cli.expected import say_expected
from tammes.cli.networks import make_embedder
from tammes.cli.options import loss_options, method_of, number_or_file, recipe
from tammes.cli.train import Train
from tammes.data import Dataset, of_classes, open_dataset
from tammes.data.batches import Batches, batches
from tammes.data.image_cache import Decoded, check_there, decode
from tammes.data.splits import Split, relabel, split
from tammes.errors import UserError
from tammes.io.cache import in_words
from tammes.io.console import CONTINUE, KEPT, duration, progress, say
from tammes.io.machine import images_at_once
from tammes.losses.mining import random_triplets
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import Activations, Frozen, activation_batches, activations
from tammes.training.distributed import number, rank
from tammes.training.run_folder import Run, open_finished
from tammes.training.verdict import FEWEST_TRAINING, SHARE

VIEWS = {"top": 4, "head": 0}  # of each image whose activations are kept, where it is not said


@dataclass(frozen=True)
class Kept:
    """Activations that stand for the images where a part of the network is frozen.

    Attributes:
        views: those of the training images (and validation images), to train on.
        centres: those of centre crops, to evaluate: of the training and validation images, and of the test images.
    """

    frozen: Frozen
    views: Activations
    centres: tuple[Activations, ...]


@dataclass(frozen=True)
class Places:
    """Which class has which centroid: those that train, and those that an earlier run was trained on.

    Attributes:
        number: of all centroids, the free ones too.
        of: class names -> numbers below it.
        old: names of the classes that an earlier run was trained on.
    """

    number: int
    of: dict[str, int]
    old: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """The images of a job: decoded, and which of them train, validate and test."""

    dataset: Dataset
    images: Decoded
    split: Split
    labels: np.ndarray  # of the training images: which centroid, or output, is that of their class
    class_names: tuple[str, ...]  # of the training classes
    size: int  # height and width of what the network sees
    kept: Kept | None = None  # what stands for the images where a part of the network is frozen
    places: Places | None = None  # which class has which centroid, where some are free or a run's classes were fewer

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_places(self) -> int:
        """Classes that there is room for: those that train, and those that may come."""
        return self.num_classes if self.places is None else self.places.number

    def class_sizes(self) -> dict[str, int]:
        """How many images each class has, those that cannot be read included."""
        counts = np.bincount(self.dataset.labels, minlength=self.dataset.num_classes).tolist()
        return dict(zip(self.dataset.class_names, counts, strict=True))

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes by their use."""
        parts = {"train": self.split.train, "val": self.split.val, "test": self.split.test}
        return {
            use: [] if chosen is None else [self.dataset.class_names[n] for n in np.unique(self.dataset.labels[chosen])]
            for use, chosen in parts.items()
        }


def load_data(
    config: Train, classes: dict[str, Any] | None = None, ready: Callable[[Data], None] | None = None
) -> Data:
    """The images of a job, decoded and split.

    Args:
        classes: those that a run was started with, as its folder has them. Others are ignored, with a note; an error if
            one is missing or has another use now.
        ready: called before the first image is decoded, with the data as it is listed; what it refuses is refused then.
    """
    dataset = open_dataset(config.data)
    wanted = started_with(config, dataset.class_names, classes)
    if len(wanted) < dataset.num_classes:
        dataset = of_classes(dataset, set(wanted))
    parts = _split(config, dataset, classes)
    check_there(dataset, skip_bad=config.skip_bad)
    for remark in dataset.remarks:
        say(f"note: {remark}")
    if classes is None:
        say_expected(config, len(parts.train))
    shape = make_embedder(replace(config, weights="none"), 2)  # only to ask what images it wants
    listed = _used(config, dataset, _not_decoded(dataset, shape), parts, shape.size, classes)
    if ready is not None:
        ready(listed)
    images = decoded_for(shape, dataset, skip_bad=config.skip_bad)
    if not len(images.bad):
        return replace(listed, images=images)
    say(f"{len(images.bad)} images cannot be read and are left out: {images.reasons[0]} …")
    return _used(config, dataset, images, parts, shape.size, classes)


def _not_decoded(dataset: Dataset, shape: Embedder) -> Decoded:
    """What stands for the images before they are decoded: none is known to be bad, and all are large enough."""
    sides, nothing = np.full(len(dataset), shape.shorter_side or shape.size), np.empty(0, dtype=np.int64)
    return Decoded(Path(), np.empty(0, dtype=np.uint8), sides, sides, len(shape.mode), nothing, (), "")


def _used(
    config: Train, dataset: Dataset, images: Decoded, parts: Split, size: int, classes: dict[str, Any] | None
) -> Data:
    """Which images train, validate and test, less those that cannot be read, and what is wrong with that."""
    parts = replace(
        parts,
        train=images.without_bad(parts.train),
        val=None if parts.val is None else images.without_bad(parts.val),
        test=images.without_bad(parts.test),
    )
    for use, chosen in (("test", parts.test), ("validation", parts.val)):
        if chosen is not None and len(chosen) and np.bincount(dataset.labels[chosen]).max() < 2:
            raise UserError(f"every {use} class has one image only, so none could be found. Choose other classes.")
    labels, numbers = relabel(dataset.labels, parts.train)
    if len(images.bad) and len(numbers) < 2:
        raise UserError(
            f"{len(numbers)} training classes are left without the images that cannot be read; at least 2 must train."
            f" `tammes doctor {config.data}` lists them."
        )
    names = tuple(dataset.class_names[number] for number in numbers)
    data = Data(dataset, images, parts, labels, names, size, places=_places(config, names, classes))
    if classes is not None:
        _check_uses(config, data, classes)
    if data.places is None:
        return data
    _check_old(config, data)
    return replace(data, labels=np.array([data.places.of[name] for name in names], dtype=np.int64)[labels])


def _split(config: Train, dataset: Dataset, classes: dict[str, Any] | None) -> Split:
    """Which images train, validate and test; where it is not said, enough training classes hold out some of them.

    Not by the paper's letter, and not where an earlier run's classes, which may not validate, train on.

    Args:
        classes: those that a run was started with, which may have held out none.
    """
    asked, test_classes = number_or_file(config.val_classes), number_or_file(config.test_classes)
    if isinstance(asked, Path):
        raise UserError(f"--val-classes must be a fraction or a number of classes, got {config.val_classes!r}.")
    found = split(dataset, test_classes=test_classes, val_classes=asked or None, seed=config.seed)
    by_default = asked is None and found.val is None and config.preset != "paper" and config.continue_from is None
    if not by_default or len(found.train_classes) < FEWEST_TRAINING or (classes is not None and not classes["val"]):
        return found
    held_out = split(dataset, test_classes=test_classes, val_classes=SHARE, seed=config.seed)
    assert held_out.val is not None
    can_be_found = np.bincount(dataset.labels[held_out.val]).max() > 1
    return held_out if can_be_found else found


def started_with(config: Train, names: tuple[str, ...], classes: dict[str, Any] | None) -> list[str]:
    """Those of the classes that a run was started with, all where there is none; a note says which were added."""
    if classes is None:
        return list(names)
    uses = (classes.get(use, ()) for use in ("train", "val", "test", "unused"))
    known = dict.fromkeys(name for of_use in uses for name in of_use)
    there = set(names)
    gone, added = [name for name in known if name not in there], [name for name in names if name not in known]
    if gone:
        raise UserError(
            f"these classes of the run are no longer in {config.data}: {some(gone)}. Put them back, or train again."
        )
    if added:
        were = (
            "class was added since training and is" if len(added) == 1 else "classes were added since training and are"
        )
        say(f"note: {len(added):,} {were} ignored: {some(added)}")
    return [name for name in names if name in known]


def _check_uses(config: Train, data: Data, classes: dict[str, Any]) -> None:
    """Refuse to take for a test what a run was trained on."""
    now, words = data.classes(), {"train": "trained", "val": "validated", "test": "tested"}
    for use, word in words.items():
        moved = sorted((set(classes[use]) ^ set(now[use])) - set(classes.get("unused", ())))
        if moved:
            other = "no longer does" if moved[0] in classes[use] else "did not then"
            raise UserError(
                f"the classes in {config.data} are no longer used as when the run was started: of those that {word},"
                f" {moved[0]!r} {other}. Put back the images or the list of classes as they were, or train again."
            )


def changed_images(run: Run, data: Data) -> str | None:
    """In which classes the images are not those that a run was started with; None if all are."""
    before = run.read("images")
    if before is None or before["digest"] == data.images.digest:
        return None
    sizes, now = before.get("classes"), data.class_sizes()
    differ = [name for name in now if sizes is not None and sizes.get(name) != now[name]]
    if sizes is None or not differ:
        return "some have changed" if sizes is None else "as many as then, but some have changed"
    return some([f"{name!r} has {now[name]}, and had {sizes.get(name, 0)} then" for name in differ])


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _places(config: Train, names: tuple[str, ...], classes: dict[str, Any] | None) -> Places | None:
    """Which centroid each class has: as a run says, or now; None where the classes have them in turn, and all."""
    if classes is not None:
        said = classes.get("places")
        return None if said is None else Places(said["number"], said["of"], tuple(said["old"]))
    if config.continue_from is None:
        free = config.reserve_classes or 0
        return Places(len(names) + free, {name: place for place, name in enumerate(names)}) if free else None
    before = open_finished(config.continue_from).read("classes", needs=("train",))
    old = _places(config, (), before) or Places(len(before["train"]), {n: p for p, n in enumerate(before["train"])})
    new = [name for name in names if name not in old.of]
    free = old.number - len(old.of)
    if len(new) > free:
        raise UserError(
            f"{config.data} has {len(new)} classes that {config.continue_from} has not, and that run has"
            f" {free} free centroids. Train anew with room for more: --reserve-classes {len(new)}."
        )
    taken = set(old.of.values())
    free_places = (place for place in range(old.number) if place not in taken)
    return Places(old.number, old.of | dict(zip(new, free_places, strict=False)), tuple(old.of))


def _check_old(config: Train, data: Data) -> None:
    """Refuse to test on what an earlier run was trained on."""
    assert data.places is not None
    known, uses = set(data.places.old), data.classes()
    for use, flag in (("test", "--test-classes"), ("val", "--val-classes")):
        wrong = [name for name in uses[use] if name in known]
        if wrong:
            raise UserError(
                f"{config.continue_from} was trained on the class {wrong[0]!r}, so it cannot be one to measure on."
                f" Name others by {flag}{' FILE' if use == 'test' else ' 0'}."
            )


def decoded_for(embedder: Embedder, dataset: Dataset, *, skip_bad: bool) -> Decoded:
    """The images of a data set as a network wants them."""
    with progress("decoding images", KEPT) as on_progress:
        return decode(
            dataset,
            mode=embedder.mode,
            shorter_side=embedder.shorter_side,
            on_progress=on_progress,
            skip_bad=skip_bad,
        )


def views_of(config: Train) -> int:
    """Of how many crops of an image activations are kept; 0: of the one in the centre."""
    return VIEWS[str(config.train)] if config.views is None else config.views


def keep(config: Train, data: Data, frozen: Frozen | None) -> Kept | None:
    """The activations of what does not train, from the cache or computed now; None where the whole backbone trains."""
    if frozen is None:
        return None
    options, embedder = recipe(config), frozen.embedder
    learning = data.split.train if data.split.val is None else np.union1d(data.split.train, data.split.val)
    views = views_of(config)

    def kept(what: str, indices: np.ndarray, views: int) -> Activations:
        def plan(num_bytes: int, seconds: float) -> None:
            how = f"{views} views of each" if views else "centre crops"
            say(
                f"{config.train}: computing the activations of {len(indices)} {what} images, {how}, once:"
                f" {in_words(num_bytes)} in the cache, about {duration(seconds)}"
            )

        computing = f"computing the activations of the {what} images"
        with progress(computing, "Those computed are kept in the cache. " + CONTINUE) as on_progress:
            was_training = embedder.training
            embedder.eval()  # normalisation below the cut stays as it is
            found = activations(
                frozen, data.images, indices, crop=data.size, views=views, mirror=options["mirror"],
                padding=options["shift"], device=embedder.mean.device, on_plan=plan, on_progress=on_progress,
            )  # fmt: skip
            embedder.train(was_training)
            return found

    to_train = kept("training", learning, views)
    centres = []
    if config.log_bound or views == 0 or method_of(config).sees != "batches":
        centres.append(to_train if views == 0 else kept("training", learning, 0))
    elif data.split.val is not None:
        centres.append(kept("validation", data.split.val, 0))
    if len(data.split.test):
        centres.append(kept("test", data.split.test, 0))
    return Kept(frozen, to_train, tuple(centres))


def training_batches(
    config: Train, data: Data, epoch: int, rank: int = 0, world_size: int = 1, loss: nn.Module | None = None
) -> Batches:
    """One epoch of the training images, or of what is kept of them.

    Args:
        loss: for one that mines, the batches that it has chosen; without it, or before it has, triplets at random.
    """
    options = recipe(config)
    chosen: dict[str, Any] = {
        "batch_size": options["batch_size"],
        "train": True,
        "sampler": config.sampler or "shuffled",
        "images_per_class": config.images_per_class or 1,
        "seed": config.seed,
        "epoch": epoch,
        "rank": rank,
        "world_size": world_size,
    }
    if method_of(config).mines:
        mined: Tensor | None = getattr(loss, "order", None)
        if mined is None:
            labels, generator = torch.from_numpy(data.labels), torch.Generator().manual_seed(config.seed)
            triplets = random_triplets(labels, generator=generator)
            mined = triplets[: max(1, round(len(triplets) * loss_options(config).get("share", 1.0)))].flatten()
            assert len(mined), "a loss that mines is refused where no class has two images"
        chosen["order"] = mined.cpu().numpy()
    if data.kept is not None:
        return activation_batches(data.kept.views, data.split.train, data.labels, **chosen)
    if options["shift"] > data.size:
        raise UserError(
            f"--shift {options['shift']} is more than the {data.size} pixels that the network sees of an image. Use"
            f" {data.size} or fewer."
        )
    chosen |= {"crop": data.size, "mirror": options["mirror"], "padding": options["shift"]}
    return batches(data.images, data.split.train, data.labels, **chosen)


def centre_batches(data: Data, indices: np.ndarray, device: torch.device) -> Batches:
    """The centre crops of images, or what is kept of them, with their places; as many at once as the device does best.

    Of several processes each has some of the batches.
    """
    places, of_all = np.arange(len(indices)), dict[str, Any](rank=rank(), world_size=number())
    if data.kept is None:
        size = images_at_once(data.images.channels * data.size**2, device)
        return batches(data.images, indices, places, batch_size=size, crop=data.size, train=False, **of_all)
    stored = next(each for each in data.kept.centres if np.isin(indices, each.indices).all())
    size = images_at_once(prod(stored.values.shape[2:]), device)
    return activation_batches(stored, indices, places, batch_size=size, train=False, **of_all)
