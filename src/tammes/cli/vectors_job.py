"""What `tammes train` does with vectors: split by class, learn, evaluate, report; all of it in a run folder."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from tammes.centroids import CENTROIDS
from tammes.cli.checks import check
from tammes.cli.feeding import started_with
from tammes.cli.job import resumed_run, stop_on_signal, to_resume
from tammes.cli.measuring import RESTARTS, protocol
from tammes.cli.options import loss_options, number_or_file
from tammes.cli.saved import command, saved_options
from tammes.cli.telling import write_and_show
from tammes.cli.train import Train, of_vectors
from tammes.data import Dataset, Vectors
from tammes.data.splits import Split, split
from tammes.data.vectors import vectors
from tammes.errors import UserError, check_seed, unknown_name
from tammes.geometry import normalise
from tammes.io.console import if_stopped, progress, say, working
from tammes.io.machine import environment
from tammes.losses import OF_CLASS_LAYER, WITH_CENTROIDS
from tammes.metrics import evaluate
from tammes.training.checkpoints import save_checkpoint
from tammes.training.objectives import METHODS
from tammes.training.run_folder import Run, check_new, create, held
from tammes.vectors import MetricLearner
from tammes.vectors.network import MOST_DIMENSIONS
from tammes.vectors.statistics import Rows, blocks
from tammes.vectors.training import Passed, epochs, number_of_epochs
from tammes.vectors.validation import FEWEST_HELD_OUT, held_out

MOST_IN_MEMORY = 1 << 28  # bytes of vectors to be evaluated: more are in a file while they are needed
# The options that mean something for vectors, and those of them that ridge has no use for.
FOR_VECTORS = {
    *("data", "out", "loss", "loss_options", "centroids", "push", "weighting", "temperature", "dim", "hidden"),
    *("method",),
    *("class_layer", "centroid_dim", "epochs", "batch_size", "rate", "weight_decay", "test_classes", "val_classes"),
    *("seed", "resume", "overwrite", "json"),
}
NOT_FOR_RIDGE = (
    *(
        "loss",
        "loss_options",
        "push",
        "weighting",
        "temperature",
        "hidden",
        "class_layer",
        "centroid_dim",
        "epochs",
        "batch_size",
    ),
    *("rate", "weight_decay"),
)


@dataclass(frozen=True)
class VectorData:
    """The vectors of a job, left in their file, and which of them train and test."""

    vectors: Vectors
    codes: ndarray  # the class of each vector, 0, 1, … in the order of the labels
    class_names: tuple[str, ...]
    split: Split

    @property
    def columns(self) -> int:
        return int(self.vectors.vectors.shape[1])

    def rows(self, chosen: ndarray) -> Rows:
        """Some of the vectors, without a copy."""
        return Rows(self.vectors.vectors, chosen)

    def classes(self) -> dict[str, list[str]]:
        """The names of the classes by their use; those that stop training early are some that train."""
        train, test = (
            [self.class_names[n] for n in part] for part in (self.split.train_classes, self.split.test_classes)
        )
        return {"train": train, "val": [], "test": test}


def run_vectors_job(given: Train) -> None:
    """Train from the start or from where a run stopped; evaluate; show."""
    with ExitStack() as until_done:
        _run_job(given, until_done)


def _run_job(given: Train, until_done: ExitStack) -> None:
    if given.resume is None:
        _check_vectors(given)
    check(given)
    resumed = resumed_run(given, until_done)
    config = given if resumed is None else replace(saved_options(resumed), json=given.json)
    data = load_vectors(config, None if resumed is None else resumed.read("classes"))
    if resumed is None:
        config = _resolved(config, data)
        check_new(Path(str(config.out)), overwrite=config.overwrite)
    learner = make_learner(config, data)
    interrupted = resumed if resumed is not None and resumed.state == "interrupted" else None
    chosen, started = data.split.train, perf_counter()
    with stop_on_signal() as stop:
        watch = _Watch(stop)
        training = epochs(learner, data.rows(chosen), data.vectors.labels[chosen], stop=watch.step, resumed=interrupted)
        with working("solving" if config.method == "ridge" else "initialising"):
            begun = next(training, None)  # whatever the options get wrong is said before there is a folder
        seconds = perf_counter() - started
        run = resumed or _new_run(config, data, until_done)
        until_done.enter_context(if_stopped(then=to_resume(run)))
        _say_plan(run, config, data, learner)
        untrained = run.read("untrained")
        if untrained is None and len(data.split.test):
            with working("evaluating the vectors as they are"):
                untrained = measured(raw(data.rows(data.split.test), run.folder), data, data.split.test)
            run.write("untrained", untrained)
        if begun is not None and not _train(config, run, data, learner, begun, training, watch):
            say(f"Stopped; all is saved. {to_resume(run)}", run.folder / "log.txt")
            raise SystemExit(130)
    learner.save(run.folder)
    _report(config, run, data, learner, untrained, seconds if begun is None else _seconds(run))


def load_vectors(config: Train, classes: dict[str, list[str]] | None = None) -> VectorData:
    """The vectors of a job, split by class.

    Args:
        classes: those that a run was started with. Others are ignored, with a note; an error if one is missing.
    """
    found = vectors(Path(config.data))
    names, codes = np.unique(found.labels, return_inverse=True)
    codes, class_names = codes.reshape(-1).astype(np.int64), tuple(str(name) for name in names.tolist())
    wanted = set(started_with(config, class_names, classes))
    chosen = [number for number, name in enumerate(class_names) if name in wanted]
    rows = np.flatnonzero(np.isin(codes, chosen))
    kept, class_names = np.searchsorted(chosen, codes[rows]), tuple(class_names[number] for number in chosen)
    # As a data set without images: splits ask for classes only.
    described = Dataset(Path(config.data).name, (), kept, class_names, _no_picture, "")
    parts = split(described, test_classes=number_or_file(config.test_classes), seed=config.seed)
    codes = np.full(len(codes), -1)  # of a class that is ignored
    codes[rows] = kept
    data = VectorData(found, codes, class_names, replace(parts, train=rows[parts.train], test=rows[parts.test]))
    test = data.split.test
    if len(test) and np.bincount(codes[test]).max() < 2:
        raise UserError("every test class has one vector only, so none could be found. Choose other classes.")
    if classes is not None and {use: classes[use] for use in ("train", "val", "test")} != data.classes():
        raise UserError(
            f"the classes in {config.data} are no longer used as when the run was started, so what it was trained on"
            " could be taken for a test. Put them back, or train again."
        )
    return data


def make_learner(config: Train, data: VectorData) -> MetricLearner:
    """The estimator with the options that were given, and its own defaults for the others."""
    given = {
        **{name: getattr(config, name) for name in ("loss", "centroids", "centroid_dim", "class_layer")},
        "dim": None if config.dim == _usual_dim(config, data) else config.dim,
        **{name: getattr(config, name) for name in ("method", "epochs", "batch_size", "weight_decay")},
        "hidden": config.hidden or None,
        "learning_rate": config.rate,
        "validation_classes": _held_out_share(config, data),
        "loss_options": loss_options(config) or None,
    }
    return MetricLearner(
        random_state=config.seed, **{name: value for name, value in given.items() if value is not None}
    )


def other_vectors(learner: MetricLearner, run: Run, file: str) -> Vectors:
    """The vectors of another file, for a learner of these many columns."""
    if not of_vectors(file):
        raise UserError(f"{run.folder} was trained on vectors: give it a .npz or .parquet file of them, not {file}.")
    found = vectors(Path(file))
    if found.vectors.shape[1] != learner.n_features_in_:
        raise UserError(
            f"{file} has vectors of {found.vectors.shape[1]} numbers, and {run.folder} was trained on"
            f" {learner.n_features_in_}. Give it vectors of the same model."
        )
    return found


def raw(given: ndarray | Rows, folder: Path) -> ndarray:
    """Vectors as they are, but of unit length: compared by their cosine."""

    def found() -> Iterator[tuple[slice, ndarray]]:
        for part in blocks(len(given), given.shape[1]):
            yield part, normalise(torch.from_numpy(given[part].astype(np.float64))).numpy()

    return _gathered(found(), (len(given), given.shape[1]), output_dtype(given), folder)


def learned(learner: MetricLearner, given: ndarray | Rows, folder: Path) -> ndarray:
    """What a learner makes of vectors."""
    shape = (len(given), learner.network_.dim)
    return _gathered(learner._embedded_blocks(given), shape, output_dtype(given), folder)


def output_dtype(given: ndarray | Rows) -> Any:
    """The precision of what comes out, as `MetricLearner.transform` has it."""
    return np.float64 if given.dtype == np.float64 else np.float32


def measured(found: ndarray, data: VectorData, chosen: ndarray) -> dict[str, Any]:
    """All metrics, as for images."""
    options = protocol(data.vectors, chosen, clustering=True)
    return evaluate(found, data.codes[chosen], seeds=(0,), restarts=RESTARTS, bootstrap=1000, **options)


def _gathered(found: Iterable[tuple[slice, ndarray]], shape: tuple[int, int], dtype: Any, folder: Path) -> ndarray:
    """Blocks put together, in memory or, where they are many, in a file of that folder that nobody else sees."""
    if shape[0] * shape[1] * np.dtype(dtype).itemsize <= MOST_IN_MEMORY:
        out: ndarray = np.empty(shape, dtype)
    else:
        with TemporaryFile(dir=folder) as file:  # mapped, it stays until the array goes
            out = np.memmap(file, dtype, "w+", 0, shape)
    for part, block in found:
        out[part] = block
    return out


def _check_vectors(config: Train) -> None:
    """Refuse what means nothing for vectors, and what cannot work, before anything is made."""
    name, known = Path(config.data).name, {field.name: field.default for field in fields(Train)}
    for option, default in known.items():
        if option not in FOR_VECTORS and getattr(config, option) != default:
            raise UserError(f"{_flag(option)} is for images, and {name} holds vectors: leave it out.")
    if config.method == "ridge":
        for option in NOT_FOR_RIDGE:
            if getattr(config, option) != known[option]:
                flag = "--no-class-layer" if option == "class_layer" else _flag(option)
                raise UserError(f"{flag} is for --method gradient: ridge is solved in closed form.")
    if (config.loss in METHODS or config.loss.startswith("pml:")) and config.loss not in OF_CLASS_LAYER:
        raise UserError(f"--loss {config.loss} is for images. For vectors there are {', '.join(OF_CLASS_LAYER)}.")
    if config.loss not in OF_CLASS_LAYER:
        raise unknown_name("loss", config.loss, OF_CLASS_LAYER)
    loss_options(config)
    if config.centroids is not None and config.centroids not in CENTROIDS:
        raise unknown_name("kind of centroids", config.centroids, CENTROIDS)
    if config.loss == "softmax" and (config.centroid_dim is not None or not config.class_layer):
        wrong = "--no-class-layer" if not config.class_layer else "--centroid-dim"
        raise UserError(f"--loss softmax needs a class layer with one output per class. Drop {wrong}.")
    if any(width < 1 for width in config.hidden):
        raise UserError(f"--hidden must be widths of at least 1, got {' '.join(map(str, config.hidden))}.")
    if config.rate is not None and not config.rate > 0:
        raise UserError(f"--rate must be above 0, got {config.rate}.")
    check_seed("--seed", config.seed)


def _held_out_share(config: Train, data: VectorData) -> float | None:
    """`--val-classes` as the learner takes it, refused where it could not be followed; None: it is not given."""
    asked, classes = number_or_file(config.val_classes), len(data.split.train_classes)
    if asked is None:
        return None
    if isinstance(asked, Path):
        raise UserError(f"--val-classes must be a fraction or a number of classes, got {config.val_classes!r}.")
    if not 0 <= asked < (1 if isinstance(asked, float) else classes):
        raise UserError(f"--val-classes must be below 1, or a number below the {classes} that train, got {asked}.")
    share = float(asked if isinstance(asked, float) else asked / classes)
    number = round(share * classes)
    if asked and number < FEWEST_HELD_OUT:
        raise UserError(
            f"--val-classes {asked} would hold out {number} classes. Ask for {FEWEST_HELD_OUT} or more, or 0."
        )
    if asked and not len(held_out(data.codes[data.split.train], share, np.random.default_rng(0))):
        raise UserError(
            f"--val-classes {asked} of {classes} training classes cannot be held out: there must be at least"
            f" {4 * FEWEST_HELD_OUT}, of which that many have two vectors and at least two others train. Leave it out."
        )
    return share


def _resolved(config: Train, data: VectorData) -> Train:
    """The options with everything filled in."""
    defaults = MetricLearner().get_params()
    config = replace(config, method=config.method or "gradient")
    if config.loss in WITH_CENTROIDS:
        config = replace(config, centroids=config.centroids or defaults["centroids"])
    config = replace(config, dim=config.dim or _usual_dim(config, data))
    if config.method == "ridge":
        kind = f"ridge-{config.centroids}"
    else:
        config = replace(
            config,
            batch_size=config.batch_size or defaults["batch_size"],
            rate=defaults["learning_rate"] if config.rate is None else config.rate,
            weight_decay=defaults["weight_decay"] if config.weight_decay is None else config.weight_decay,
        )
        config = replace(config, epochs=number_of_epochs(make_learner(config, data), len(data.split.train)))
        kind = config.loss if config.centroids is None else f"{config.loss}-{config.centroids}"
    out = config.out or Path("runs") / f"{Path(config.data).stem}-{kind}-{config.seed}"
    # A run is gone on with from anywhere, so it remembers where its data is from the root.
    return replace(config, data=str(Path(config.data).absolute()), out=out)


def _usual_dim(config: Train, data: VectorData) -> int:
    """The dimension that a learner takes by itself, with which it may also keep the vectors as they are."""
    ridge = config.method == "ridge"
    return min(MOST_DIMENSIONS, max(1, len(data.split.train_classes) - 1) if ridge else max(2, data.columns))


def _new_run(config: Train, data: VectorData, until_done: ExitStack) -> Run:
    run = create(Path(str(config.out)), overwrite=config.overwrite)
    until_done.enter_context(held(run.folder))
    run.write("config", asdict(config))
    run.write("classes", data.classes())
    run.write("environment", environment())  # last: with it, it is a run that can go on
    return run


class _Watch:
    """Counts the steps of an epoch for a bar, and passes on that somebody asks to stop."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.stop, self.steps = stop, 0
        self.on_step: Callable[[int], None] = lambda _: None

    def step(self) -> bool:
        self.steps += 1
        self.on_step(self.steps)
        return self.stop()


def _train(
    config: Train,
    run: Run,
    data: VectorData,
    learner: MetricLearner,
    begun: Passed,
    training: Iterator[Passed],
    watch: _Watch,
) -> bool:
    """Epoch after epoch, each logged and saved. False if it was stopped before the end."""
    run.forget_after(begun.number)
    least: dict[bool, float] = {}  # of the loss, without and with the classes that were held out
    log = run.folder / "log.txt"
    if begun.number == 0 and begun.recall is not None:
        say(f"start      validation R@1 {100 * begun.recall:.2f}", log)
    with progress("epoch", lines=False) as on_progress:
        watch.steps, total = begun.position.step, ceil(len(data.split.train) / int(config.batch_size or 1))
        watch.on_step = lambda steps: on_progress(steps, total)
        for epoch in training:
            if not epoch.complete:
                save_checkpoint(run, epoch.weights, epoch.optimizer, epoch.position)
                return False
            assert epoch.loss is not None
            if epoch.again not in least:
                least[epoch.again] = float(learner._loss.minimum)
            line: dict[str, Any] = {
                "epoch": epoch.number,
                "loss": epoch.loss,
                "above_minimum": epoch.loss - least[epoch.again],
                "rate": epoch.rate,
                "seconds": epoch.seconds,
                "images_per_second": epoch.vectors / max(epoch.seconds, 1e-9),
            }
            line |= {"on_all_classes": True} if epoch.again else {}
            line |= {} if epoch.recall is None else {"val_recall_at_1": epoch.recall}
            run.log(line)
            # Last: an epoch is done when its record is.
            save_checkpoint(run, epoch.weights, epoch.optimizer, epoch.position)
            say(_in_words(line), log)
            watch.steps = 0
    return True


def _in_words(line: dict[str, Any]) -> str:
    text = (
        f"epoch {line['epoch']:>3}  loss {line['loss']:.4f} ({line['above_minimum']:.4f} above its minimum)"
        f"  {line['images_per_second']:.0f} vectors/s"
    )
    if "on_all_classes" in line:
        text += "  again, on all training classes"
    return text + (f"  validation R@1 {100 * line['val_recall_at_1']:.2f}" if "val_recall_at_1" in line else "")


def _say_plan(run: Run, config: Train, data: VectorData, learner: MetricLearner) -> None:
    """What will be done, and on what, before it starts."""
    parts, classes, held = data.split, data.classes(), len(learner.held_out_classes_)
    weights = sum(parameter.numel() for parameter in learner.network_.parameters())
    layers = " -> ".join(map(str, (data.columns, *config.hidden, config.dim)))
    centroids = f"{config.centroids} centroids"
    lines = [
        f"data      {Path(config.data).name}: {len(parts.train)} training vectors of {len(classes['train'])} classes,",
        f"          {len(parts.test)} test vectors of {len(classes['test'])} other classes",
    ]
    if config.method == "ridge":
        lines += [f"map       {layers}, {weights:,} weights", f"method    ridge, {centroids}"]
    else:
        layer = learner.network_.class_layer
        above = "no class layer" if layer is None else f"class layer {layer.out_features}"
        lines += [
            f"network   {layers}, {above}, {weights:,} weights",
            f"loss      {config.loss}" + (f", {centroids}" if config.loss in WITH_CENTROIDS else ""),
            f"epochs    {'up to ' if held else ''}{config.epochs} of {len(parts.train)} vectors",
        ]
    choice = "the regularisation" if config.method == "ridge" else "the epoch"
    held_out = f"{held} of the training classes, to choose {choice} and to judge whether training helps"
    lines += [f"held out  {held_out if held else 'no classes: whether training helps is not judged'}"]
    for line in [*lines, f"run       {run.folder}"]:
        say(line, run.folder / "log.txt")


def _report(
    config: Train, run: Run, data: VectorData, learner: MetricLearner, untrained: dict[str, Any] | None, seconds: float
) -> None:
    """Evaluate on the test classes, if there are any; write and show the results."""
    test, classes = data.split.test, data.classes()
    results: dict[str, Any] = {
        "data": Path(config.data).name,
        "untrained": untrained,
        "trained": None,
        "verdict": learner.verdict_,
        "command": command(config),
        "train_classes": len(classes["train"]),
        "train_images": len(data.split.train),
        "held_out_classes": [str(name) for name in learner.held_out_classes_.tolist()],
        "seconds": seconds,
    }
    results |= {"regularisation": learner.regularisation_} if config.method == "ridge" else {"epoch": learner.n_iter_}
    if len(test):
        results |= {"test_classes": len(classes["test"]), "test_images": len(test)}
        with working("evaluating on the test classes"):
            results["trained"] = measured(learned(learner, data.rows(test), run.folder), data, test)
    write_and_show(config, run, results)


def _seconds(run: Run) -> float:
    return float(sum(line.get("seconds", 0.0) for line in run.epochs()))


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _no_picture(_number: int) -> Any:
    raise AssertionError("vectors have no pictures")
