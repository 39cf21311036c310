"""The data of a training on images: split, decoding, cached activations and batches."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.data import Dataset, of_classes, open_dataset
from tammes.data.batches import Batches, batches
from tammes.data.image_cache import Decoded, check_there
from tammes.data.samplers import check_sampler
from tammes.data.splits import Split, relabel, split
from tammes.data.transforms import Transform
from tammes.errors import UserError
from tammes.io.cache import format_bytes
from tammes.io.console import CONTINUE, duration, progress, say
from tammes.io.machine import images_at_once
from tammes.losses.mining import random_triplets
from tammes.models.backbones.base import Backbone
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import Activations, Frozen, activation_batches, activations
from tammes.training.config import TrainConfig, number_or_file
from tammes.training.distributed import number, rank
from tammes.training.embedding import decode_for
from tammes.training.run_folder import RunFolder, open_finished
from tammes.training.verdict import held_out

MOST_WORKERS = 8  # data loading processes for a GPU


@dataclass(frozen=True)
class KeptActivations:
    """Cached activations of the frozen part of the network, used in place of the images.

    Attributes:
        views: activations of random crops of the training and validation images, to train on.
        centres: activations of centre crops, to evaluate: of training and validation images, and of test images.
    """

    frozen: Frozen
    views: Activations
    centres: tuple[Activations, ...]


@dataclass(frozen=True)
class CentroidSlots:
    """The assignment of classes to centroids, if there are more centroids than training classes.

    Attributes:
        number: the number of centroids, including free ones.
        of: class name -> number of its centroid.
        old: names of the classes that an earlier run was trained on.
    """

    number: int
    of: dict[str, int]
    old: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """The images of a training and their split.

    Attributes:
        images: None before they are decoded.
        labels: the centroid, or output, of the class of each training image.
        class_names: names of the training classes.
        size: height and width of the network's input, once known.
        kept: cached activations, if a part of the network is frozen.
        slots: the assignment of classes to centroids, if some are free or an earlier run is continued.
        eval_transform: replaces the centre crop.
    """

    dataset: Dataset
    split: Split
    labels: np.ndarray
    class_names: tuple[str, ...]
    size: int = 0
    decoded: Decoded | None = None
    kept: KeptActivations | None = None
    slots: CentroidSlots | None = None
    eval_transform: Transform | None = None

    @property
    def images(self) -> Decoded:
        assert self.decoded is not None, "the images are not decoded yet"
        return self.decoded

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_slots(self) -> int:
        """The number of centroids: training classes and reserved ones."""
        return self.num_classes if self.slots is None else self.slots.number

    def class_sizes(self) -> dict[str, int]:
        """How many images each class has, including unreadable ones."""
        counts = np.bincount(self.dataset.labels, minlength=self.dataset.num_classes).tolist()
        return dict(zip(self.dataset.class_names, counts, strict=True))

    def classes(self) -> dict[str, list[str]]:
        """The class names of each split: train, val, test."""
        uses = {"train": self.split.train, "val": self.split.val, "test": self.split.test}
        return {
            use: [] if chosen is None else [self.dataset.class_names[n] for n in np.unique(self.dataset.labels[chosen])]
            for use, chosen in uses.items()
        }

    def with_split(self, chosen: Split) -> "Data":
        """The same images with another split."""
        for use, part in (("test", chosen.test), ("validation", chosen.val)):
            if part is not None and len(part) and np.bincount(self.dataset.labels[part]).max() < 2:
                raise UserError(f"every {use} class has only one image, so nothing can be found. Choose other classes.")
        labels, numbers = relabel(self.dataset.labels, chosen.train)
        names = tuple(self.dataset.class_names[number] for number in numbers)
        if self.slots is not None:
            labels = np.array([self.slots.of[name] for name in names], dtype=np.int64)[labels]
        return replace(self, split=chosen, labels=labels, class_names=names)


def load_data(config: TrainConfig, wants: Backbone | Embedder, classes: dict[str, Any] | None = None) -> Data:
    """The images of a training, listed, split and decoded; see `list_data`."""
    return decode_data(config, list_data(config, classes), wants)


def list_data(
    config: TrainConfig, classes: dict[str, Any] | None = None, select: Callable[[Data], Data] = lambda data: data
) -> Data:
    """The images of a training and their split, not decoded yet.

    Args:
        classes: the content of classes.json of a run that is resumed or evaluated. New classes are ignored, with a
            note; a class that is missing, or now in another split, is an error.
        select: changes the split, if the configuration does not define it.
    """
    dataset = config.objects.dataset or open_dataset(config.data)
    wanted = started_with(config.data, dataset.class_names, classes)
    if len(wanted) < dataset.num_classes:
        dataset = of_classes(dataset, set(wanted))
    chosen = _split(config, dataset, classes)
    check_there(dataset, skip_bad=config.skip_bad)
    for remark in dataset.remarks:
        say(f"note: {remark}")
    _, numbers = relabel(dataset.labels, chosen.train)
    names = tuple(dataset.class_names[number] for number in numbers)
    empty = np.empty(0, dtype=np.int64)
    data = select(Data(dataset, chosen, empty, names, slots=_slots(config, names, classes)).with_split(chosen))
    if classes is not None:
        _check_uses(config, data, classes)
    if data.slots is not None:
        _check_old(config, data, data.slots)
    return data


def decode_data(config: TrainConfig, data: Data, wants: Backbone | Embedder) -> Data:
    """The same data with its images decoded; with `skip_bad`, unreadable images are left out."""
    images = decode_for(wants, data.dataset, skip_bad=config.skip_bad)
    data = replace(data, decoded=images, size=wants.size, eval_transform=config.objects.eval_transform)
    if not len(images.bad):
        return data
    say(f"{len(images.bad)} images cannot be read and are left out: {images.reasons[0]} …")
    left = data.split
    left = replace(
        left,
        train=images.without_bad(left.train),
        val=None if left.val is None else images.without_bad(left.val),
        test=images.without_bad(left.test),
    )
    classes = len(np.unique(data.dataset.labels[left.train]))
    if classes < 2:
        raise UserError(
            f"{classes} training classes remain without the images that cannot be read; at least 2 are needed."
            f" `tammes doctor {config.data}` lists them."
        )
    return data.with_split(left)


def _split(config: TrainConfig, dataset: Dataset, classes: dict[str, Any] | None) -> Split:
    """The split. By default, some training classes are held out for validation if there are enough.

    Not with preset paper, and not if a run is continued, whose old classes must all train again.

    Args:
        classes: the classes of a run that is resumed, which may have no validation classes.
    """
    asked, test_classes = number_or_file(config.val_classes), number_or_file(config.test_classes)
    if isinstance(asked, Path):
        raise UserError(f"`val_classes` must be a fraction or a number of classes, got {config.val_classes!r}.")
    found = split(dataset, test_classes=test_classes, val_classes=asked or None, seed=config.seed)
    by_default = asked is None and found.val is None and config.preset != "paper" and config.continue_from is None
    share = held_out(len(found.train_classes))
    if not by_default or not share or (classes is not None and not classes["val"]):
        return found
    parted = split(dataset, test_classes=test_classes, val_classes=share, seed=config.seed)
    assert parted.val is not None
    can_be_found = np.bincount(dataset.labels[parted.val]).max() > 1
    return parted if can_be_found else found


def started_with(data: str, names: tuple[str, ...], classes: Mapping[str, Any] | None) -> list[str]:
    """The classes of the run that still exist, with a note on added ones; all classes without a run."""
    if classes is None:
        return list(names)
    uses = (classes.get(use, ()) for use in ("train", "val", "test", "unused"))
    known = dict.fromkeys(name for of_use in uses for name in of_use)
    there = set(names)
    gone, added = [name for name in known if name not in there], [name for name in names if name not in known]
    if gone:
        raise UserError(
            f"these classes of the run are no longer in {data}: {first_names(gone)}. Put them back, or train again."
        )
    if added:
        were = (
            "class was added since training and is" if len(added) == 1 else "classes were added since training and are"
        )
        say(f"note: {len(added):,} {were} ignored: {first_names(added)}")
    return [name for name in names if name in known]


def _check_uses(config: TrainConfig, data: Data, classes: dict[str, Any]) -> None:
    """Raise UserError if a class of the run is now in another split."""
    now, words = data.classes(), {"train": "training", "val": "validation", "test": "test"}
    for use, word in words.items():
        moved = sorted((set(classes[use]) ^ set(now[use])) - set(classes.get("unused", ())))
        if moved:
            other = "no longer is" if moved[0] in classes[use] else "was not"
            raise UserError(
                f"the split of {config.data} has changed since the run was started: of the {word} classes,"
                f" {moved[0]!r} {other} one. Restore the images or the list of classes, or train again."
            )


def changed_images(run: RunFolder, data: Data) -> str | None:
    """A description of the classes whose images have changed since the run was started; None if none have."""
    before = run.read("images")
    if before is None or before["digest"] == data.images.digest:
        return None
    sizes, now = before.get("classes"), data.class_sizes()
    differ = [name for name in now if sizes is not None and sizes.get(name) != now[name]]
    if sizes is None or not differ:
        return "some have changed" if sizes is None else "the same number of images, but some have changed"
    return first_names([f"{name!r} has {now[name]} images, and had {sizes.get(name, 0)}" for name in differ])


def first_names(names: Sequence[str], shown: int = 5) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _slots(config: TrainConfig, names: tuple[str, ...], classes: dict[str, Any] | None) -> CentroidSlots | None:
    """The assignment of classes to centroids; None if class n has centroid n, and none is free."""
    if classes is not None:
        found = classes.get("places")
        return None if found is None else CentroidSlots(found["number"], found["of"], tuple(found["old"]))
    if config.continue_from is None:
        free = config.reserve_classes or 0
        return CentroidSlots(len(names) + free, {name: n for n, name in enumerate(names)}) if free else None
    before = open_finished(config.continue_from).read("classes", needs=("train",))
    old = _slots(config, (), before) or CentroidSlots(
        len(before["train"]), {name: n for n, name in enumerate(before["train"])}
    )
    new = [name for name in names if name not in old.of]
    free = old.number - len(old.of)
    if len(new) > free:
        raise UserError(
            f"{config.data} has {len(new)} classes that {config.continue_from} lacks, and that run has"
            f" {free} free centroids. Train again and reserve more: `reserve_classes={len(new)}`."
        )
    taken = set(old.of.values())
    free_slots = (slot for slot in range(old.number) if slot not in taken)
    return CentroidSlots(old.number, old.of | dict(zip(new, free_slots, strict=False)), tuple(old.of))


def _check_old(config: TrainConfig, data: Data, slots: CentroidSlots) -> None:
    """Raise UserError for validation or test classes on which an earlier run was trained."""
    known, uses = set(slots.old), data.classes()
    for use, flag in (("test", "`test_classes=FILE`"), ("val", "`val_classes=0`")):
        wrong = [name for name in uses[use] if name in known]
        if wrong:
            raise UserError(
                f"{config.continue_from} was trained on the class {wrong[0]!r}, so it cannot be used to evaluate."
                f" Choose others with {flag}."
            )


def keep_activations(config: TrainConfig, data: Data, frozen: Frozen | None) -> KeptActivations | None:
    """The activations of the frozen layers, from the cache or computed now; None if all layers train."""
    if frozen is None:
        return None
    embedder, views = frozen.embedder, config.views or 0
    learning = data.split.train if data.split.val is None else np.union1d(data.split.train, data.split.val)

    def kept(what: str, indices: np.ndarray, views: int) -> Activations:
        def plan(num_bytes: int, seconds: float) -> None:
            how = f"{views} views of each" if views else "centre crops"
            say(
                f"{config.train}: computing the activations of {len(indices)} {what} images, {how}, once:"
                f" {format_bytes(num_bytes)} in the cache, about {duration(seconds)}"
            )

        computing = f"computing the activations of the {what} images"
        with progress(computing, "Those computed are kept in the cache. " + CONTINUE) as on_progress:
            was_training = embedder.training
            embedder.eval()  # batch normalisation below the cut is frozen
            found = activations(
                frozen, data.images, indices, crop=data.size, views=views, mirror=config.mirror,
                padding=config.shift, device=embedder.mean.device, on_plan=plan, on_progress=on_progress,
            )  # fmt: skip
            embedder.train(was_training)
            return found

    to_train = kept("training", learning, views)
    centres = []
    if config.log_bound or views == 0 or config.method.sees != "batches":
        centres.append(to_train if views == 0 else kept("training", learning, 0))
    elif data.split.val is not None:
        centres.append(kept("validation", data.split.val, 0))
    if len(data.split.test):
        centres.append(kept("test", data.split.test, 0))
    return KeptActivations(frozen, to_train, tuple(centres))


def check_batches(config: TrainConfig, size: int) -> None:
    """Raise UserError for options that do not fit the network's input size or the batch size."""
    if config.shift > size:
        raise UserError(f"`shift={config.shift}` exceeds the network's input of {size} pixels. Use {size} or less.")
    if config.grow_from is not None and config.grow_from >= size:
        raise UserError(f"`grow_from={config.grow_from}` must be below the network's input of {size} pixels.")
    if config.method.mines:
        check_sampler(config.batch_size, "triplets")
    else:
        check_sampler(config.batch_size, config.sampler or "shuffled", config.images_per_class or 1)


def training_batches(
    config: TrainConfig, data: Data, epoch: int, rank: int = 0, world_size: int = 1, loss: nn.Module | None = None
) -> Batches:
    """One epoch of the training images, or of their cached activations.

    Args:
        loss: a loss that mines its batches; without it, or before its first mining, triplets are random.
    """
    chosen: dict[str, Any] = {
        "batch_size": config.batch_size,
        "train": True,
        "sampler": config.sampler or "shuffled",
        "images_per_class": config.images_per_class or 1,
        "seed": config.seed,
        "epoch": epoch,
        "rank": rank,
        "world_size": world_size,
    }
    if config.method.mines:
        mined: Tensor | None = getattr(loss, "order", None)
        if mined is None:
            labels, generator = torch.from_numpy(data.labels), torch.Generator().manual_seed(config.seed)
            triplets = random_triplets(labels, generator=generator)
            mined = triplets[: max(1, round(len(triplets) * config.options_of_loss().get("share", 1.0)))].flatten()
            assert len(mined), "a loss that mines is refused where no class has two images"
        chosen["order"] = mined.cpu().numpy()
    if data.kept is not None:
        return activation_batches(data.kept.views, data.split.train, data.labels, **chosen)
    chosen |= {"crop": data.size, "mirror": config.mirror, "padding": config.shift, "area": config.crop_area}
    chosen["scaled_to"] = size_of_epoch(config, data.size, epoch)
    if config.objects.transform is not None:
        workers = min(MOST_WORKERS, (os.cpu_count() or 1) - 1) if config.on_gpu else 0  # a CPU has enough to do
        chosen |= {"transform": config.objects.transform, "workers": workers}
    return batches(data.images, data.split.train, data.labels, **chosen)


def size_of_epoch(config: TrainConfig, size: int, epoch: int) -> int:
    """Height and width of the training images in an epoch: from `grow_from` in the first to `size` in the last.

    In multiples of 32, the total stride of most networks.
    """
    if config.grow_from is None:
        return size
    share = min(1.0, max(0, epoch - 1) / max(1, config.epochs - 1))
    return min(size, 32 * round((config.grow_from + share * (size - config.grow_from)) / 32))


def centre_batches(data: Data, indices: np.ndarray, device: torch.device) -> Batches:
    """Batches of centre crops, or of their cached activations, with their positions.

    With several processes, each gets some of the batches.
    """
    places, of_all = np.arange(len(indices)), dict[str, Any](rank=rank(), world_size=number())
    if data.kept is None:
        size = images_at_once(data.images.channels * data.size**2, device)
        of_all["transform"] = data.eval_transform
        return batches(data.images, indices, places, batch_size=size, crop=data.size, train=False, **of_all)
    stored = next(each for each in data.kept.centres if np.isin(indices, each.indices).all())
    size = images_at_once(prod(stored.values.shape[1:]), device)
    return activation_batches(stored, indices, places, batch_size=size, train=False, **of_all)
