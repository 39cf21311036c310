"""What `tammes train` does, step by step: data, network, loss, epochs, evaluation; all of it in a run folder."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from tammes.bound import certificate
from tammes.centroids import CENTROIDS
from tammes.cli.console import TrainingBar, print_json, progress, results_table, say, working
from tammes.cli.train import Train
from tammes.datasets import Dataset, is_omniglot, open_dataset
from tammes.embedder import Embedder, EmbedderConfig, load
from tammes.embeddings import embed
from tammes.errors import UserError, unknown_name
from tammes.geometry import normalise
from tammes.loading import Batches, Decoded, batches, decode
from tammes.losses import LOSSES
from tammes.metrics import evaluate
from tammes.objectives import Objective
from tammes.presets import PRESETS
from tammes.report import draw_retrievals
from tammes.runs import Run, create, load_checkpoint, open_run, save_checkpoint
from tammes.runtime import environment
from tammes.splits import Split, relabel, split
from tammes.training import Epoch, Position, cosine, fit, halved_every, parameter_groups

MOST_OUTPUTS = 4096  # classes up to which the class layer has one output each
BEYOND = 512  # its outputs for more classes
RESTARTS = 3  # of K-means, for NMI and AMI
WATCHED = 512  # training images on which the bound is watched


@dataclass(frozen=True)
class Data:
    """The images of a job: decoded, and which of them train, validate and test."""

    dataset: Dataset
    images: Decoded
    split: Split
    labels: np.ndarray  # of the training images, 0..classes-1
    class_names: tuple[str, ...]  # of these labels
    size: int  # height and width of what the network sees

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes by their use."""
        parts = {"train": self.split.train, "val": self.split.val, "test": self.split.test}
        return {
            use: [] if chosen is None else [self.dataset.class_names[n] for n in np.unique(self.dataset.labels[chosen])]
            for use, chosen in parts.items()
        }


def run_job(given: Train) -> None:
    """Train from the start or from where a run stopped; evaluate; show."""
    _check(given)
    resumed = None if given.resume is None else open_run(given.resume)
    if resumed is not None and resumed.state == "finished":
        raise UserError(
            f"{resumed.folder} has finished: nothing is left to do. See it: tammes evaluate {resumed.folder}"
        )
    config = _resolved(given) if resumed is None else replace(saved_options(resumed), json=given.json)
    data = load_data(config, None if resumed is None else resumed.read("classes"))
    embedder = make_embedder(config, data.num_classes)
    objective = Objective(embedder, make_loss(config, data, embedder))
    if config.init_from is not None:  # before the new folder is made, in case it takes the other's place
        embedder.load_state_dict(_matching(load(config.init_from), embedder))
    run = resumed or _new_run(config, data)
    AcceleratorState._reset_state()  # it outlives a run; the next one in the same process may want another precision
    accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision=config.precision)
    prepared, optimizer = accelerator.prepare(objective, make_optimizer(config, objective))
    _say_plan(run, config, data, embedder, accelerator.device, _estimate(config, data, objective))
    untrained = run.read("untrained")
    if untrained is None and len(data.split.test):
        with working("evaluating the untrained backbone"):
            untrained = evaluated(embedder, data, data.split.test, backbone_only=True)
        run.write("untrained", untrained)
    start = load_checkpoint(run, objective, optimizer) if run.state == "interrupted" else Position()
    run.forget_after(start.epoch - 1)
    if not _train(config, run, data, objective, prepared, optimizer, accelerator, start):
        say(f"Stopped; all is saved. Go on with: tammes train --resume {run.folder}", run.folder / "log.txt")
        raise SystemExit(130)
    embedder.save(run.folder)
    _report(config, run, data, embedder, untrained)


def _report(config: Train, run: Run, data: Data, embedder: Embedder, untrained: dict[str, Any] | None) -> None:
    """Evaluate on the test classes, if there are any; write, draw and show the results."""
    test, labels = data.split.test, data.dataset.labels[data.split.test]
    results: dict[str, Any] = {
        "data": data.dataset.name,
        "untrained": None,
        "trained": None,
        "command": _command(config),
    }
    if len(test):
        with working("evaluating on classes never seen"):
            vectors = embed(embedder, data.images, test)
            results |= _results(run, data, vectors) | {"untrained": untrained}
        draw_retrievals(run.folder / "neighbours.png", data.images, test, vectors, labels)
    run.write("results", results)
    if config.json:
        print_json(results)
    elif len(test) == 0:
        print(f"Trained on all classes, so there are none to test on. Run folder: {run.folder}")
    else:
        rows = {"untrained": results["untrained"], "trained": results["trained"]}
        if "best_on_validation" in results:
            rows[f"epoch {results['best_on_validation']['epoch']}, best on validation"] = results["best_on_validation"]
        results_table(rows, f"{data.dataset.name}: {results['test_classes']} classes never seen, per cent")
        print(f"run folder: {run.folder}    picture: {run.folder / 'neighbours.png'}")


def _check(config: Train) -> None:
    """Refuse what cannot work before anything is made."""
    if config.resume is not None:
        known = {field.name: field.default for field in fields(Train)}
        changed = [
            name for name, value in known.items() if name not in ("resume", "json") and getattr(config, name) != value
        ]
        if changed:
            flag = "DATA" if changed[0] == "data" else "--" + changed[0].replace("_", "-")
            raise UserError(f"--resume goes on with the run's own options: leave out {flag}.")
    for name in ("epochs", "batch_size", "halve_every", "accumulate", "centroid_dim"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    for name in ("rate", "backbone_rate", "momentum", "weight_decay", "shift", "seed"):
        value = getattr(config, name)
        if value is not None and not value >= 0:
            raise UserError(f"--{name.replace('_', '-')} must not be negative, got {value}.")
    if config.centroid_dim is not None and not config.class_layer:
        raise UserError("--centroid-dim is the size of the class layer, which --no-class-layer leaves out.")
    if config.init_from is not None and config.init_from == config.out:
        raise UserError("--init-from and --out are the same folder. Choose another --out.")
    if config.tensorboard:
        _summary_writer()


def _train(
    config: Train,
    run: Run,
    data: Data,
    objective: Objective,
    prepared: nn.Module,
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    start: Position,
) -> bool:
    """Epoch after epoch, each logged and saved. False if it was stopped before the end."""
    options = recipe(config)
    schedule = halved_every(options["halve_every"]) if options["schedule"] == "halve" else cosine(options["epochs"])
    least = float(objective.loss.minimum)  # type: ignore[arg-type]
    best = max((line.get("val_recall_at_1", 0.0) for line in run.epochs()), default=0.0)
    processes = accelerator.process_index, accelerator.num_processes
    with _stop_on_signal() as stop, _bar(run, data, options["epochs"], least, prepared) as bar:
        for epoch in fit(
            prepared,
            lambda number: bar.watch(training_batches(config, data, number, *processes), number),
            optimizer,
            epochs=options["epochs"],
            schedule=schedule,
            seed=config.seed,
            start=start,
            accelerator=accelerator,
            accumulate=config.accumulate,
            stop=stop,
        ):
            if not epoch.complete:
                save_checkpoint(run, objective, optimizer, epoch.position)
                return False
            line = _line(config, data, objective, epoch, least)
            if line.get("val_recall_at_1", 0.0) > best:
                best = line["val_recall_at_1"]
                (run.folder / "best").mkdir(exist_ok=True)
                objective.embedder.save(run.folder / "best")
            run.log(line)
            save_checkpoint(run, objective, optimizer, epoch.position)  # last: an epoch is done when its record is
            bar.epoch_ended(line)
            if config.tensorboard:
                _to_tensorboard(run, line)
    return True


def _line(config: Train, data: Data, objective: Objective, epoch: Epoch, least: float) -> dict[str, Any]:
    """What is written about an epoch."""
    line: dict[str, Any] = {
        "epoch": epoch.number,
        **epoch.losses,
        "above_minimum": epoch.losses["loss"] - least,
        "rate": epoch.rates[0],
        "seconds": epoch.seconds,
        "images_per_second": epoch.images / max(epoch.seconds, 1e-9),
    }
    if data.split.val is not None:
        line["val_recall_at_1"] = evaluated(objective.embedder, data, data.split.val, quick=True)["recall_at_1"]
    if config.log_bound:
        line["bound"] = _watched_bound(config, data, objective)
    return line


@torch.no_grad()
def _watched_bound(config: Train, data: Data, objective: Objective) -> dict[str, Any]:
    """The paper's quantities on a fixed sample of the training images, so that the bound can be seen to tighten."""
    sample = np.random.default_rng(config.seed).permutation(len(data.split.train))[:WATCHED]
    objective.eval()
    outputs = []
    chosen, labels = data.split.train[sample], data.labels[sample]
    for images, _, _ in batches(data.images, chosen, labels, batch_size=256, crop=objective.embedder.size, train=False):
        outputs.append(normalise(objective.embedder.for_loss(images.to(objective.embedder.mean.device))).cpu())
    centroids = objective.loss.centroids
    points = centroids.cpu() if isinstance(centroids, Tensor) else torch.eye(data.num_classes)
    return asdict(certificate(torch.cat(outputs), torch.from_numpy(labels), points))


def evaluated(
    embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False, quick: bool = False
) -> dict[str, Any]:
    vectors = embed(embedder, data.images, indices, backbone_only=backbone_only)
    return measured(vectors, data.dataset.labels[indices], quick=quick)


def measured(vectors: np.ndarray, labels: np.ndarray, *, quick: bool = False) -> dict[str, Any]:
    """All metrics, or only the recalls if it must be quick; recall at 8 needs more than 8 images."""
    ks = tuple(k for k in (1, 2, 4, 8) if k < len(labels))
    clustering = not quick and len(np.unique(labels)) > 1
    # One seed with a few restarts: K-means is what takes the longest. `tammes evaluate` does more where it is asked to.
    return evaluate(
        vectors, labels, ks=ks, clustering=clustering, seeds=(0,), restarts=RESTARTS, bootstrap=0 if quick else 1000
    )


def _results(run: Run, data: Data, vectors: np.ndarray) -> dict[str, Any]:
    labels = data.dataset.labels[data.split.test]
    results = {
        "test_classes": len(np.unique(labels)),
        "test_images": len(labels),
        "train_classes": data.num_classes,
        "train_images": len(data.split.train),
        "trained": measured(vectors, labels),
        "seconds": sum(line["seconds"] for line in run.epochs()),
    }
    if (run.folder / "best").exists():
        chosen = max(run.epochs(), key=lambda line: line.get("val_recall_at_1", 0.0))
        best = evaluated(load(run.folder / "best"), data, data.split.test)
        results["best_on_validation"] = {"epoch": chosen["epoch"], **best}
    return results


def load_data(config: Train, classes: dict[str, list[str]] | None = None) -> Data:
    """The images of a job, decoded and split.

    Args:
        classes: those that a run was started with; an error if the data has others now.
    """
    dataset = open_dataset(config.data)
    held_out = _number(config.val_classes)
    if isinstance(held_out, Path):
        raise UserError(f"--val-classes must be a fraction or a number of classes, got {config.val_classes!r}.")
    test_classes = _number(config.test_classes)
    parts = split(dataset, test_classes=test_classes, val_classes=held_out or None, seed=config.seed)
    shape = make_embedder(replace(config, pretrained=False), 2)  # only to ask what images it wants
    with progress("decoding images") as on_progress:
        images = decode(
            dataset, mode=shape.mode, shorter_side=shape.shorter_side, on_progress=on_progress, skip_bad=config.skip_bad
        )
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
    data = Data(dataset, images, parts, labels, tuple(dataset.class_names[number] for number in numbers), shape.size)
    if classes is not None and classes != data.classes():
        raise UserError(
            f"the classes in {config.data} are no longer those that the run was started with, so what it was trained on"
            " could be taken for a test. Put them back, or train anew."
        )
    return data


def training_batches(config: Train, data: Data, epoch: int, rank: int = 0, world_size: int = 1) -> Batches:
    """One epoch of the training images."""
    options = recipe(config)
    return batches(
        data.images,
        data.split.train,
        data.labels,
        batch_size=options["batch_size"],
        crop=data.size,
        train=True,
        sampler=config.sampler,
        mirror=options["mirror"],
        padding=options["shift"],
        seed=config.seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
    )


def make_loss(config: Train, data: Data, embedder: Embedder) -> nn.Module:
    """The loss that was asked for, with its centroids; options of another loss are refused, not ignored."""
    if config.loss not in LOSSES:
        raise unknown_name("loss", config.loss, LOSSES)
    kind = recipe(config)["centroids"]
    if kind not in CENTROIDS:
        raise unknown_name("kind of centroids", kind, CENTROIDS)
    classes, dim = data.num_classes, embedder.config.class_dim or embedder.config.dim
    generator = torch.Generator().manual_seed(config.seed)
    if kind == "one-hot" and dim == classes:
        points: Tensor | int = classes  # takes no matrix product
    else:
        points = CENTROIDS[kind](classes, dim, generator=generator)
    sizes = np.bincount(data.labels, minlength=classes).tolist()
    options: dict[str, Any] = {"push": config.push}
    if config.loss == "discriminative":
        options |= {"class_sizes": sizes, "weighting": config.weighting}
    elif config.weighting != "none":
        raise UserError(f"--weighting is for --loss discriminative, not for {config.loss}.")
    if config.loss == "hard-discriminative":
        options |= {"temperature": config.temperature}
    elif config.temperature != Train.temperature:
        raise UserError(f"--temperature is for --loss hard-discriminative, not for {config.loss}.")
    return LOSSES[config.loss](points, **options)


def make_embedder(config: Train, num_classes: int) -> Embedder:
    """The network before training: the same weights for the same seed."""
    one_each = num_classes <= MOST_OUTPUTS or recipe(config)["centroids"] == "one-hot"
    outputs = config.centroid_dim or (num_classes if one_each else BEYOND)
    shape = EmbedderConfig(str(config.backbone), config.dim, outputs if config.class_layer else None, config.embedding)
    torch.manual_seed(config.seed)
    return Embedder(shape, pretrained=config.pretrained)


def untrained_embedder(config: Train) -> Embedder:
    """The network of a run as it was before training; of its backbone only, the new layers being random."""
    return make_embedder(config, 2).eval()


def make_optimizer(config: Train, objective: Objective) -> torch.optim.Optimizer:
    options = recipe(config)
    groups = parameter_groups(
        objective.embedder.new_layers(),
        objective,
        rate=options["rate"],
        backbone_rate=options["backbone_rate"],
        weight_decay=options["weight_decay"],
    )
    if options["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=options["rate"], momentum=options["momentum"])
    return torch.optim.AdamW(groups, lr=options["rate"])


def recipe(config: Train) -> dict[str, Any]:
    """The preset's options, with those that were given in their place."""
    preset = asdict(PRESETS[config.preset])
    return {name: value if getattr(config, name) is None else getattr(config, name) for name, value in preset.items()}


def _resolved(config: Train) -> Train:
    """The options with everything filled in that is not left to the data."""
    backbone = config.backbone or ("conv4" if config.data == "glyphs" or is_omniglot(Path(config.data)) else "resnet18")
    stem = f"{Path(config.data).name}-{config.loss}-{recipe(config)['centroids']}-{config.seed}"
    out = config.out or Path("runs") / stem
    return replace(config, backbone=backbone, out=out, **recipe(config))


def _new_run(config: Train, data: Data) -> Run:
    run = create(Path(str(config.out)), overwrite=config.overwrite)
    run.write("config", asdict(config))
    run.write("environment", environment())
    run.write("classes", data.classes())
    return run


def saved_options(run: Run) -> Train:
    """The options that a run was started with."""
    given = run.read("config")
    known = {field.name for field in fields(Train)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UserError(f"{run.folder} was made by another version: its option {unknown[0]!r} is not known here.")
    given["out"] = run.folder
    given["init_from"] = None if given["init_from"] is None else Path(given["init_from"])
    return Train(**given)


def _matching(source: Embedder, target: Embedder) -> dict[str, Tensor]:
    """The weights of another run's network; its class layer stays behind if the classes are others."""
    theirs, ours = source.state_dict(), target.state_dict()
    if source.config.backbone != target.config.backbone or source.config.dim != target.config.dim:
        raise UserError(
            f"--init-from has backbone {source.config.backbone} and dim {source.config.dim}, this run"
            f" {target.config.backbone} and {target.config.dim}. They must be the same."
        )
    same = {name: tensor for name, tensor in theirs.items() if name in ours and tensor.shape == ours[name].shape}
    return ours | same


def _estimate(config: Train, data: Data, objective: Objective) -> float:
    """Seconds that training may take: a few steps of a copy on 16 images, scaled."""
    copy, number = deepcopy(objective), min(16, len(data.split.train))
    size = objective.embedder.size
    device = objective.embedder.mean.device
    images = torch.zeros(number, data.images.channels, size, size, dtype=torch.uint8, device=device)
    labels = torch.zeros(number, dtype=torch.long, device=device)
    times = []
    random = torch.get_rng_state()
    for _ in range(2):
        started = perf_counter()
        copy(images, labels)["loss"].backward()
        times.append(perf_counter() - started)
    torch.set_rng_state(random)
    return float(min(times) / number * len(data.split.train) * recipe(config)["epochs"])


def _say_plan(run: Run, config: Train, data: Data, embedder: Embedder, device: torch.device, seconds: float) -> None:
    """What will be done, on what, and how long it may take, before it starts."""
    parts, options, shape = data.split, recipe(config), embedder.config
    held_out = "" if parts.val is None else f", {len(parts.val)} validation images"
    weights = sum(parameter.numel() for parameter in embedder.parameters())
    layer = "no class layer" if shape.class_dim is None else f"class layer {shape.class_dim}"
    lines = [
        f"data      {data.dataset.name}: {len(parts.train)} training images of {data.num_classes} classes{held_out},",
        f"          {len(parts.test)} test images of {len(data.classes()['test'])} other classes",
        f"network   {shape.backbone}, embedding {shape.dim}, {layer}, {weights:,} weights",
        f"loss      {config.loss}, {options['centroids']} centroids, preset {config.preset}",
        f"device    {device}; {options['epochs']} epochs, about {_duration(seconds)}; {weights / 8e4:.0f} MB of disk",
        f"run       {run.folder}",
    ]
    for line in lines:
        say(line, run.folder / "log.txt")


def _bar(run: Run, data: Data, epochs: int, least: float, objective: nn.Module) -> TrainingBar:
    return TrainingBar(epochs, len(data.split.train), least, objective, run.folder / "log.txt")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _number(given: str | None) -> float | int | Path | None:
    """A fraction, a number of classes, or a file that lists them."""
    if given is None:
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return Path(given)


def _command(config: Train) -> str:
    """The command that repeats this run."""
    words = ["tammes train", config.data]
    for field in fields(Train):
        value = getattr(config, field.name)
        if field.name in ("data", "resume", "json", "overwrite") or value == field.default or value is None:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool) and field.name not in ("mirror",):
            words.append(flag if value else f"--no-{field.name.replace('_', '-')}")
        else:
            words.append(f"{flag} {value}")
    return " ".join(words)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'tammes[track]'.") from None
    return SummaryWriter


def _to_tensorboard(run: Run, line: dict[str, Any]) -> None:
    with _summary_writer()(run.folder / "tensorboard") as writer:
        for name, value in {**line, **line.get("bound", {})}.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, line["epoch"])


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill end training after the step under way; a second one ends it at once."""
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
