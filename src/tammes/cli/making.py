"""What a training is made of: from the options to images, network, loss and optimizer."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.activations import Activations, Frozen, activation_batches, activations
from tammes.backbones import backbone
from tammes.cache import in_words
from tammes.centroids import CENTROIDS
from tammes.cli.console import progress, say, working
from tammes.cli.train import Train
from tammes.datasets import Dataset, Vectors, is_omniglot, open_dataset
from tammes.embedder import Embedder, EmbedderConfig, load
from tammes.embeddings import vectors
from tammes.errors import UserError, out_of_memory, unknown_name
from tammes.loading import Batches, Decoded, batches, decode
from tammes.losses import WITH_CENTROIDS, DiscriminativeLoss, Method, find_miner
from tammes.metrics import evaluate
from tammes.mining import random_triplets
from tammes.objectives import METHODS, Base, ClassLayer, Objective, find_method
from tammes.presets import recipe_of
from tammes.processes import is_first, number, rank
from tammes.runs import open_finished
from tammes.runtime import images_at_once
from tammes.splits import Split, relabel, split
from tammes.training import parameter_groups

MOST_OUTPUTS = 4096  # classes up to which the class layer has one output each
BEYOND = 512  # its outputs for more classes
RESTARTS = 3  # of K-means, for NMI and AMI
MOST_TO_START = 8192  # images whose features decide the principal directions
DIM = 256  # of an embedding of images, where it is not said: the paper's
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

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes by their use."""
        parts = {"train": self.split.train, "val": self.split.val, "test": self.split.test}
        return {
            use: [] if chosen is None else [self.dataset.class_names[n] for n in np.unique(self.dataset.labels[chosen])]
            for use, chosen in parts.items()
        }


def resolved(config: Train) -> Train:
    """The options with everything filled in that is not left to the data."""
    characters = config.data == "glyphs" or is_omniglot(Path(config.data))
    config = replace(config, backbone=config.backbone or ("conv4" if characters else "resnet18"))
    weights = config.weights or ("none" if config.backbone == "conv4" else "imagenet")
    if weights not in ("imagenet", "none"):
        weights = str(Path(weights).absolute())
    without_gpu = config.device == "cpu" or not torch.accelerator.is_available()
    config = replace(config, train=config.train or ("top" if without_gpu and weights != "none" else "all"))
    # A run is gone on with from anywhere, so it remembers where its data is from the root.
    data = config.data if config.data == "glyphs" else str(Path(config.data).absolute())
    method = method_of(config)
    if method.bases:
        config = replace(config, base=base_of(config))
    kind = "-".join(each for each in (config.loss, config.base) if each is not None)
    kind = kind if not has_centroids(config) else f"{kind}-{recipe(config)['centroids']}"
    kind = kind.replace(":", "-")  # not every file system has it
    if config.sampler is None and not method.mines:
        config = replace(config, sampler="shuffled" if method.images_per_class == 1 else "pk")
    if config.sampler == "pk":
        config = replace(config, images_per_class=config.images_per_class or max(2, method.images_per_class))
    out = config.out or Path("runs") / f"{Path(config.data).name}-{kind}-{config.seed}"
    options = recipe(config)
    if method.mines and options["batch_size"] > 3 and options["batch_size"] % 3:
        options["batch_size"] -= options["batch_size"] % 3  # the record of the run says what a batch holds
        say(f"note: --loss {config.loss} takes whole triplets: batches of {options['batch_size']} images.")
    return replace(config, data=data, weights=weights, out=out, dim=_dim(config), **options)


def method_of(config: Train) -> Method:
    """The loss that was asked for, and what it needs."""
    return find_method(config.loss, config.miner, config.base)


def base_of(config: Train) -> str | None:
    """What it is built on; None if it is a loss itself."""
    return config.base or next(iter(method_of(config).bases), None)


def has_centroids(config: Train) -> bool:
    """Whether distances to centroids are a part of what is trained by."""
    return config.loss in WITH_CENTROIDS or base_of(config) == "discriminative"


def _dim(config: Train) -> int:
    return config.dim or method_of(config).dim or DIM


def load_data(config: Train, classes: dict[str, Any] | None = None) -> Data:
    """The images of a job, decoded and split.

    Args:
        classes: those that a run was started with, as its folder has them; an error if the data has others now.
    """
    dataset = open_dataset(config.data)
    held_out = number_or_file(config.val_classes)
    if isinstance(held_out, Path):
        raise UserError(f"--val-classes must be a fraction or a number of classes, got {config.val_classes!r}.")
    test_classes = number_or_file(config.test_classes)
    parts = split(dataset, test_classes=test_classes, val_classes=held_out or None, seed=config.seed)
    for remark in dataset.remarks:
        say(f"note: {remark}")
    shape = make_embedder(replace(config, weights="none"), 2)  # only to ask what images it wants
    images = decoded_for(shape, dataset, skip_bad=config.skip_bad)
    if len(images.bad):
        say(f"{len(images.bad)} images cannot be read and are left out: {images.reasons[0]} …")
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
    names = tuple(dataset.class_names[number] for number in numbers)
    data = Data(dataset, images, parts, labels, names, shape.size, places=_places(config, names, classes))
    if classes is not None and {use: classes[use] for use in ("train", "val", "test")} != data.classes():
        raise UserError(
            f"the classes in {config.data} are no longer those that the run was started with, so what it was trained on"
            " could be taken for a test. Put them back, or train anew."
        )
    if data.places is None:
        return data
    _check_old(config, data)
    return replace(data, labels=np.array([data.places.of[name] for name in names], dtype=np.int64)[labels])


def _places(config: Train, names: tuple[str, ...], classes: dict[str, Any] | None) -> Places | None:
    """Which centroid each class has: as a run says, or now; None where the classes have them in turn, and all."""
    if classes is not None:
        said = classes.get("places")
        return None if said is None else Places(said["number"], said["of"], tuple(said["old"]))
    if config.continue_from is None:
        free = config.reserve_classes or 0
        return Places(len(names) + free, {name: place for place, name in enumerate(names)}) if free else None
    before = open_finished(config.continue_from).read("classes")
    old = _places(config, (), before) or Places(len(before["train"]), {n: p for p, n in enumerate(before["train"])})
    new = [name for name in names if name not in old.of]
    free_places = sorted(set(range(old.number)) - set(old.of.values()))
    if len(new) > len(free_places):
        raise UserError(
            f"{config.data} has {len(new)} classes that {config.continue_from} has not, and that run has"
            f" {len(free_places)} free centroids. Train anew with room for more: --reserve-classes {len(new)}."
        )
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
    with progress("decoding images") as on_progress:
        return decode(
            dataset,
            mode=embedder.mode,
            shorter_side=embedder.shorter_side,
            on_progress=on_progress,
            skip_bad=skip_bad,
        )


def keep(config: Train, data: Data, embedder: Embedder) -> Kept | None:
    """The activations of what does not train, from the cache or computed now; None where everything trains."""
    if config.train == "all":
        return None
    options = recipe(config)
    frozen = Frozen(embedder, config.cut if config.train == "top" else None)
    learning = data.split.train if data.split.val is None else np.union1d(data.split.train, data.split.val)
    views = VIEWS[str(config.train)] if config.views is None else config.views

    def kept(what: str, indices: np.ndarray, views: int) -> Activations:
        def plan(num_bytes: int, seconds: float) -> None:
            how = f"{views} views of each" if views else "centre crops"
            say(
                f"{config.train}: computing the activations of {len(indices)} {what} images, {how}, once:"
                f" {in_words(num_bytes)} in the cache, about {duration(seconds)}"
            )

        with progress(f"activations of the {what} images") as on_progress:
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
    if data.split.val is not None or config.log_bound or views == 0 or method_of(config).sees != "batches":
        centres.append(to_train if views == 0 else kept("training", learning, 0))
    if len(data.split.test):
        centres.append(kept("test", data.split.test, 0))
    return Kept(frozen, to_train, tuple(centres))


@torch.inference_mode()
def start_layers(config: Train, data: Data, objective: Objective) -> None:
    """What the new layers begin as, where they do not begin at random."""
    start = recipe(config)["start"]
    if start == "random":
        return
    rows, of, seen, device = [], [], 0, objective.embedder.mean.device
    objective.eval()
    with working("finding the principal directions of the features"):
        for inputs, labels, _ in training_batches(config, data, 0):
            rows.append(objective.features(inputs.to(device)))
            of.append(labels)
            seen += len(labels)
            if seen >= MOST_TO_START:
                break
        objective.embedder.start_from(torch.cat(rows), torch.cat(of) if start == "whiten" else None)
    objective.train()


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
            mined = random_triplets(labels, generator=generator).flatten()
            if not len(mined):
                raise UserError("there is no triplet: training needs at least 2 classes, and one of them 2 images.")
        chosen["order"] = mined.cpu().numpy()
    if data.kept is not None:
        return activation_batches(data.kept.views, data.split.train, data.labels, **chosen)
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


def make_embedder(config: Train, num_classes: int) -> Embedder:
    """The network before training: the same weights for the same seed."""
    method = method_of(config)
    heads = method.head_sizes(_dim(config))
    shape = EmbedderConfig(
        str(config.backbone),
        _dim(config),
        class_outputs(config, num_classes) if config.class_layer and method.on == "class layer" else None,
        config.embedding,
        recipe(config)["pool"],
        heads,
        () if method.weigh is None else method.weigh(heads),
        _depths(config) if method.depths else (),
    )
    torch.manual_seed(config.seed)
    try:
        return Embedder(shape, weights=config.weights or "none")
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            "out of memory: the network itself does not fit, whatever the size of a batch. Try a smaller --backbone,"
            " --dim or --centroid-dim."
        ) from error


def class_outputs(config: Train, num_classes: int) -> int:
    """How many outputs a class layer has."""
    one_each = num_classes <= MOST_OUTPUTS or not has_centroids(config) or recipe(config)["centroids"] == "one-hot"
    return config.centroid_dim or (num_classes if one_each else BEYOND)


def _depths(config: Train) -> tuple[str, ...]:
    """The parts of the backbone that features are taken from what enters them."""
    found = backbone(str(config.backbone)).depths
    if not found:
        raise UserError(
            f"--loss {config.loss} takes features from several depths, and {config.backbone} cannot be cut at two"
            " places far apart. Use another backbone: googlenet, resnet18, …"
        )
    return found


def untrained_embedder(config: Train) -> Embedder:
    """The network of a run as it was before training; of its backbone only, the new layers being random."""
    embedder = make_embedder(config, 2).eval()
    source = config.init_from or config.continue_from
    if source is not None:
        embedder.load_state_dict(matching(load(source), embedder))
    return embedder


def matching(source: Embedder, target: Embedder) -> dict[str, Tensor]:
    """The weights of another run's network; its class layer stays behind if the classes are others."""
    theirs, ours = source.state_dict(), target.state_dict()
    for name in ("backbone", "dim", "pool"):
        one, other = (getattr(embedder.config, name) for embedder in (source, target))
        if one != other:
            raise UserError(f"--init-from has {name} {one}, this run {other}. Say --{name} {one}.")
    if (source.config.heads, source.config.depths) != (target.config.heads, target.config.depths):
        raise UserError("--init-from has another number of heads: it must be a run of the same --loss.")
    same = {name: tensor for name, tensor in theirs.items() if name in ours and tensor.shape == ours[name].shape}
    return ours | same


def make_loss(config: Train, data: Data, embedder: Embedder) -> nn.Module:
    """The loss that was asked for, made of what it takes; options of another loss are refused, not ignored."""
    method, options = method_of(config), loss_options(config)
    classes, dim = data.num_places, embedder.config.class_dim or embedder.config.dim
    given: dict[Any, Any] = {"num_classes": classes, "dim": dim, "base": _base(config, classes)}
    given |= {"heads": embedder.config.heads, "features": embedder.new_layers()[0].in_features}
    if method.on == "class layer" and "num_classes" in method.takes and dim != classes:
        wrong = "--no-class-layer" if embedder.config.class_dim is None else "--centroid-dim"
        raise UserError(f"--loss {config.loss} needs one output per class: {classes}, not {dim}. Drop {wrong}.")
    if "centroids" in method.takes:
        given["centroids"] = _centroids(recipe(config)["centroids"], classes, dim, config.seed)
    if "class_sizes" in method.options:
        sizes = np.bincount(data.labels, minlength=classes)
        if config.sampler == "balanced":
            sizes = np.full_like(sizes, sizes.max())  # as large as the largest is what training sees
        options["class_sizes"] = np.maximum(sizes, 1).tolist()  # free centroids count as one image
    torch.manual_seed(config.seed)  # what it learns itself begins the same for the same seed
    loss = method.make(given, options)
    if config.miner is not None:
        miner = find_miner(config.miner)
        loss.miner = miner.make({}, miner.parse(config.miner_options))
    _check_batches(config, data, loss)
    if config.proxy_rate is not None and not list(loss.parameters()):
        raise UserError(f"--proxy-rate is for what a loss learns itself, and {config.loss} learns nothing: drop it.")
    return loss


def _check_batches(config: Train, data: Data, loss: nn.Module) -> None:
    """Refuse batches in which the loss would find nothing to compare, and be 0 without a word."""
    method = method_of(config)
    fewest = getattr(loss, "fewest_per_class", 2 if method.mines or method.images_per_class > 1 else 1)
    if fewest == 1:
        return
    largest = int(np.bincount(data.labels).max())
    if largest < fewest:
        raise UserError(
            f"--loss {config.loss} with these options compares {fewest} images of a class, and no training class has"
            f" more than {largest}. Add images, or choose a loss that takes any batch: tammes losses."
        )
    if config.sampler != "pk":
        return
    each, size = config.images_per_class or 1, recipe(config)["batch_size"]
    if each < fewest:
        raise UserError(
            f"--loss {config.loss} with these options needs {fewest} images or more of each class in a batch,"
            f" not {each}. Use --images-per-class {fewest}."
        )
    if size < 2 * each:
        raise UserError(
            f"a batch of {size} holds one class of {each} images only, and --loss {config.loss} compares classes."
            f" Use --batch-size {2 * each} or more."
        )


def loss_options(config: Train) -> dict[str, Any]:
    """The options of the loss, by whichever flag they were given."""
    method = method_of(config)
    found = method.parse(config.loss_options)
    weighting = None if config.weighting == "none" else config.weighting
    for option, value in (("push", config.push), ("weighting", weighting), ("temperature", config.temperature)):
        if value is None:
            continue
        if option not in method.options:
            known = [name for name, each in METHODS.items() if option in each.options]
            raise UserError(f"--{option} is for --loss {' or '.join(known)}, not for {config.loss}.")
        if option in found:
            raise UserError(f"{option} is given twice: by --{option} and by --loss-options.")
        found[option] = value
    return found


def _base(config: Train, classes: int) -> Base | None:
    """What a method is built on, where it is more than a loss: how that is made for an embedding of some length."""
    name = base_of(config)
    if name is None:
        return None

    def discriminative(dim: int) -> nn.Module:
        outputs = class_outputs(config, classes) if config.class_layer else dim
        loss = DiscriminativeLoss(_centroids(recipe(config)["centroids"], classes, outputs, config.seed))
        return ClassLayer(dim, loss) if config.class_layer else loss

    other = METHODS.get(name)
    if name == "discriminative":
        return Base(name, discriminative)
    return Base(name, None if other is None else lambda _: other.make({}, {}))


def _centroids(kind: str, classes: int, dim: int, seed: int) -> Tensor | int:
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    if kind == "one-hot" and dim == classes:
        return classes  # takes no matrix product
    try:
        return CENTROIDS[kind](classes, dim, generator=torch.Generator().manual_seed(seed))
    except UserError as error:
        raise UserError(f"--centroids {kind} with --centroid-dim {dim}: {error}") from None


def at_once(config: Train, objective: Objective) -> int | None:
    """Images that go through the network together in training; None: a whole batch.

    Pieces come to the same as the whole where every image is looked at on its own, by the network and by the loss.
    """
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in objective.modules())
    if normalised or config.train != "all" or not method_of(config).each_on_its_own:
        return None
    return objective.embedder.at_once


def make_optimizer(config: Train, objective: Objective) -> torch.optim.Optimizer:
    options = recipe(config)
    objective.embedder.penultimate.requires_grad_(not options["keep_start"])
    method = method_of(config)
    multiple = method.proxy_rate if _suited(config, options["optimizer"]) else 1.0
    groups = parameter_groups(
        [*objective.embedder.new_layers(), *(each for each in objective.modules() if isinstance(each, ClassLayer))],
        objective,
        rate=options["rate"],
        backbone_rate=options["backbone_rate"],
        weight_decay=options["weight_decay"],
        proxies=objective.loss,
        proxy_rate=options["rate"] * multiple if config.proxy_rate is None else config.proxy_rate,
        proxy_decay=options["weight_decay"] if method.proxy_decay else 0.0,
    )
    # Fused: one pass over the memory instead of a dozen, on a CPU too.
    if options["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=options["rate"], momentum=options["momentum"], fused=True)
    return torch.optim.AdamW(groups, lr=options["rate"], fused=True)


def _suited(config: Train, optimizer: str) -> bool:
    """Whether the rates that suit a loss are taken: not to the paper's letter, and not with Adam, whose steps do not
    depend on the size of a gradient."""
    return config.preset == "default" and optimizer == "sgd"


def recipe(config: Train) -> dict[str, Any]:
    """The preset's options, with those that were given in their place."""
    method = method_of(config)
    found = recipe_of(config.preset, str(config.backbone), config.train)
    if _suited(config, config.optimizer or found.optimizer):
        found = replace(found, rate=found.rate * method.rate, backbone_rate=found.backbone_rate * method.rate)
    if config.train == "head" and method.on != "class layer":
        # Nothing else would be left to train; and a layer that trains does not begin whitened: docs/log.md.
        found = replace(found, keep_start=False, start="pca" if found.start == "whiten" else found.start)
    preset = asdict(found)
    return {name: value if getattr(config, name) is None else getattr(config, name) for name, value in preset.items()}


def evaluated(
    embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False, quick: bool = False
) -> dict[str, Any]:
    """The metrics of images; of several processes each embeds some of them, and the first measures."""
    found = embedded(embedder, data, indices, backbone_only=backbone_only)
    if not is_first():
        return {}
    return measured(found, data.dataset, indices, quick=quick)


def embedded(embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False) -> np.ndarray:
    """Unit vectors of centre crops; from what is kept of them where a part of the network is frozen."""
    features: Callable[[Tensor], Tensor] = embedder.features
    if data.kept is not None:
        own = data.kept.frozen.embedder is embedder
        features = (data.kept.frozen if own else Frozen(embedder, data.kept.frozen.at)).above
    found = vectors(
        embedder,
        features,
        centre_batches(data, indices, embedder.mean.device),
        len(indices),
        backbone_only=backbone_only,
    )
    if not np.isfinite(found).all():
        raise UserError("the network gives numbers that are not finite: its learning rate was too high. Try a tenth.")
    return found


def measured(found: np.ndarray, dataset: Dataset, indices: np.ndarray, *, quick: bool = False) -> dict[str, Any]:
    """All metrics, or only the recalls if it must be quick."""
    # One seed with a few restarts: K-means is what takes the longest. `tammes evaluate` does more where it is asked to.
    options: dict[str, Any] = {"seeds": (0,), "restarts": RESTARTS, "bootstrap": 0 if quick else 1000}
    options |= protocol(dataset, indices, clustering=not quick)
    return evaluate(found, dataset.labels[indices], **options)


def protocol(data: Dataset | Vectors, indices: np.ndarray, *, clustering: bool) -> dict[str, Any]:
    """How these items are measured: who is a query, who is found, at which ranks, and whether they are clustered."""
    masks = {name: getattr(data, name) for name in ("query", "gallery", "sequence")}
    found = {name: mask[indices] for name, mask in masks.items() if mask is not None}
    if "query" in found and "gallery" in found and not (found["query"] | found["gallery"]).all():
        # They speak of the data's own test images; of others, chosen by --test-classes, each is both.
        del found["query"], found["gallery"]
    gallery = len(indices) - 1 if "gallery" not in found else int(found["gallery"].sum())
    ks = tuple(k for k in (1, 2, 4, 8) if k <= gallery) or (1,)
    return found | {"ks": ks, "clustering": clustering and len(np.unique(data.labels[indices])) > 1}


def duration(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def number_or_file(given: str | None) -> float | int | Path | None:
    """A fraction, a number of classes, or a file that lists them."""
    if given is None:
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return Path(given)
