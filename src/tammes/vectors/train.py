"""A training on vectors: split by class, learn, evaluate, and write a run folder."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from tammes.data import Dataset, Vectors
from tammes.data.splits import Split, split
from tammes.data.vectors import vectors
from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.io.console import if_stopped, progress, say, working
from tammes.io.files import is_vector_file
from tammes.io.machine import environment
from tammes.losses import WITH_CENTROIDS
from tammes.metrics import evaluate
from tammes.training.config import number_or_file
from tammes.training.data import started_with
from tammes.training.evaluation import RESTARTS, protocol
from tammes.training.options import VectorOptions
from tammes.training.run_folder import RunFolder, check_new, create, held, open_run
from tammes.training.train import OnEpoch, stop_on_signal, stopped_run, take_over, to_resume
from tammes.vectors.config import USUAL, VectorConfig, check_options, load_vector_config, options_of_loss
from tammes.vectors.learner import MetricLearner
from tammes.vectors.network import MOST_DIMENSIONS
from tammes.vectors.statistics import Rows, blocks
from tammes.vectors.training import Passed, epochs, number_of_epochs
from tammes.vectors.validation import FEWEST_HELD_OUT, held_out

MOST_IN_MEMORY = 1 << 28  # bytes of vectors that are evaluated in memory; more are in a temporary file


@dataclass(frozen=True)
class VectorData:
    """The vectors of a training, left in their file, and their split."""

    vectors: Vectors
    codes: ndarray  # the class of each vector, 0, 1, … in the order of the labels
    class_names: tuple[str, ...]
    split: Split

    @property
    def columns(self) -> int:
        return int(self.vectors.vectors.shape[1])

    def rows(self, chosen: ndarray) -> Rows:
        """A view of some vectors."""
        return Rows(self.vectors.vectors, chosen)

    def classes(self) -> dict[str, list[str]]:
        """The class names of each split; validation classes are among the training classes."""
        train, test = (
            [self.class_names[n] for n in part] for part in (self.split.train_classes, self.split.test_classes)
        )
        return {"train": train, "val": [], "test": test}


@dataclass(frozen=True)
class TrainedVectors:
    """A finished training on vectors."""

    run: RunFolder
    results: dict[str, Any]


def train_vectors(
    file: str,
    given: VectorOptions,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    on_epoch: OnEpoch | None = None,
) -> TrainedVectors:
    """Learn from the vectors of a file, evaluate on unseen classes, and write a run folder.

    Raises:
        KeyboardInterrupt: training was stopped; the message says how to resume.
    """
    check_options(given)
    data = load_vectors(file, given.get("test_classes"), given.get("seed", 0))
    config = _resolve(file, given, data, out)
    check_new(config.out, overwrite=overwrite)
    with ExitStack() as until_done:
        return _train(config, data, None, until_done, overwrite, on_epoch)


def resume_vectors(folder: Path, *, on_epoch: OnEpoch | None = None) -> TrainedVectors:
    """Resume a training; the final weights are those of an uninterrupted run."""
    run = open_run(folder)
    config = load_vector_config(run)
    with ExitStack() as until_done:
        take_over(run, until_done)
        data = load_vectors(config.data, config.test_classes, config.seed, run.read("classes"))
        return _train(config, data, run, until_done, False, on_epoch)


def _train(
    config: VectorConfig,
    data: VectorData,
    resumed: RunFolder | None,
    until_done: ExitStack,
    overwrite: bool,
    on_epoch: OnEpoch | None,
) -> TrainedVectors:
    learner = make_learner(config, data)
    interrupted = resumed if resumed is not None and resumed.state == "interrupted" else None
    chosen, started = data.split.train, perf_counter()
    with stop_on_signal() as stop:
        watch = _Watch(stop)
        training = epochs(learner, data.rows(chosen), data.vectors.labels[chosen], stop=watch.step, resumed=interrupted)
        with working("solving" if config.method == "ridge" else "initialising"):
            ready = next(training, None)  # invalid options raise before the folder is created
        seconds = perf_counter() - started
        run = resumed or _new_run(config, data, until_done, overwrite=overwrite)
        until_done.enter_context(if_stopped(then=to_resume(run)))
        _say_plan(run, config, data, learner)
        pretrained = run.read("untrained")
        if pretrained is None and len(data.split.test):
            with working("evaluating the input vectors"):
                pretrained = measure(raw(data.rows(data.split.test), run.folder), data, data.split.test)
            run.write("untrained", pretrained)
        if ready is not None:
            _loop(config, run, data, learner, ready, training, watch, on_epoch)
            seconds = float(sum(line.get("seconds", 0.0) for line in run.epochs()))
    learner.save(run.folder)
    return _evaluate(config, run, data, learner, pretrained, seconds)


def load_vectors(
    file: str, test_classes: str | None, seed: int, classes: dict[str, list[str]] | None = None
) -> VectorData:
    """Load the vectors of a training and split them by class.

    Args:
        classes: the classes of a run that is resumed or evaluated. New ones are ignored with a note; a missing one is
        an
            error.
    """
    found = vectors(Path(file))
    names, codes = np.unique(found.labels, return_inverse=True)
    codes, class_names = codes.reshape(-1).astype(np.int64), tuple(str(name) for name in names.tolist())
    wanted = set(started_with(file, class_names, classes))
    chosen = [number for number, name in enumerate(class_names) if name in wanted]
    rows = np.flatnonzero(np.isin(codes, chosen))
    kept, class_names = np.searchsorted(chosen, codes[rows]), tuple(class_names[number] for number in chosen)
    # As a data set without images: splits ask for classes only.
    described = Dataset(Path(file).name, (), kept, class_names, _no_image, "")
    parts = split(described, test_classes=number_or_file(test_classes), seed=seed)
    codes = np.full(len(codes), -1)  # of a class that is ignored
    codes[rows] = kept
    data = VectorData(found, codes, class_names, replace(parts, train=rows[parts.train], test=rows[parts.test]))
    test = data.split.test
    if len(test) and np.bincount(codes[test]).max() < 2:
        raise UserError("every test class has one vector only, so none could be found. Choose other classes.")
    if classes is not None and {use: classes[use] for use in ("train", "val", "test")} != data.classes():
        raise UserError(
            f"the classes in {file} are no longer used as when the run was started, so what it was trained on could be"
            " taken for a test. Put them back, or train again."
        )
    return data


def make_learner(config: VectorConfig, data: VectorData) -> MetricLearner:
    """The estimator with these options; None means its default."""
    given = {
        **{name: getattr(config, name) for name in ("loss", "centroids", "centroid_dim", "class_layer")},
        "dim": None if config.dim == _usual_dim(config.method, data) else config.dim,
        **{name: getattr(config, name) for name in ("method", "epochs", "batch_size", "weight_decay")},
        "hidden": config.hidden or None,
        "learning_rate": config.lr,
        "validation_classes": _held_out_share(config, data),
        "loss_options": options_of_loss(config.loss, vars(config)) or None,
    }
    return MetricLearner(
        random_state=config.seed, **{name: value for name, value in given.items() if value is not None}
    )


def other_vectors(learner: MetricLearner, run: RunFolder, file: str, *, labelled: bool = True) -> Vectors:
    """The vectors of another file for a run's learner.

    Args:
        labelled: whether labels are needed.
    """
    if not is_vector_file(file):
        raise UserError(f"{run.folder} was trained on vectors: give it a .npz or .parquet file of them, not {file}.")
    found = vectors(Path(file), labelled=labelled)
    if found.vectors.shape[1] != learner.n_features_in_:
        raise UserError(
            f"{file} has vectors of {found.vectors.shape[1]} numbers, and {run.folder} was trained on"
            f" {learner.n_features_in_}. Give it vectors of the same model."
        )
    return found


def raw(given: ndarray | Rows, folder: Path) -> ndarray:
    """The normalised input vectors."""

    def found() -> Iterator[tuple[slice, ndarray]]:
        for part in blocks(len(given), given.shape[1]):
            yield part, normalise(torch.from_numpy(given[part].astype(np.float64))).numpy()

    return _gathered(found(), (len(given), given.shape[1]), output_dtype(given), folder)


def learned(learner: MetricLearner, given: ndarray | Rows, folder: Path) -> ndarray:
    """The embeddings of vectors."""
    shape = (len(given), learner.network_.dim)
    return _gathered(learner._embedded_blocks(given), shape, output_dtype(given), folder)


def output_dtype(given: ndarray | Rows) -> Any:
    """The precision of embeddings, as in `MetricLearner.transform`."""
    return np.float64 if given.dtype == np.float64 else np.float32


def measure(found: ndarray, data: VectorData, chosen: ndarray) -> dict[str, Any]:
    """All metrics, as for images."""
    options = protocol(data.vectors, chosen, clustering=True)
    return evaluate(found, data.codes[chosen], seeds=(0,), restarts=RESTARTS, bootstrap=1000, **options)


def _gathered(found: Iterable[tuple[slice, ndarray]], shape: tuple[int, int], dtype: Any, folder: Path) -> ndarray:
    """Blocks concatenated in memory, or if they are large, in an anonymous file of that folder."""
    if shape[0] * shape[1] * np.dtype(dtype).itemsize <= MOST_IN_MEMORY:
        out: ndarray = np.empty(shape, dtype)
    else:
        with TemporaryFile(dir=folder) as file:  # mapped, it stays until the array goes
            out = np.memmap(file, dtype, "w+", 0, shape)
    for part, block in found:
        out[part] = block
    return out


def _held_out_share(config: VectorConfig, data: VectorData) -> float | None:
    """`val_classes` as a share of classes; None if not given. Raises UserError if it is impossible."""
    asked, classes = number_or_file(config.val_classes), len(data.split.train_classes)
    if asked is None:
        return None
    if isinstance(asked, Path):
        raise UserError(f"`val_classes` must be a fraction or a number of classes, got {config.val_classes!r}.")
    if not 0 <= asked < (1 if isinstance(asked, float) else classes):
        raise UserError(f"`val_classes` must be below 1, or a number below the {classes} that train, got {asked}.")
    share = float(asked if isinstance(asked, float) else asked / classes)
    number = round(share * classes)
    if asked and number < FEWEST_HELD_OUT:
        raise UserError(
            f"`val_classes={asked}` would hold out {number} classes. Ask for {FEWEST_HELD_OUT} or more, or 0."
        )
    if asked and not len(held_out(data.codes[data.split.train], share, np.random.default_rng(0))):
        raise UserError(
            f"`val_classes={asked}` of {classes} training classes cannot be held out: there must be at least"
            f" {4 * FEWEST_HELD_OUT}, of which that many have two vectors and at least two others train. Leave it out."
        )
    return share


def _resolve(file: str, given: VectorOptions, data: VectorData, out: Path | None) -> VectorConfig:
    """The complete configuration: given options and the estimator's defaults."""
    options: dict[str, Any] = dict.fromkeys(VectorConfig.__dataclass_fields__) | USUAL | dict(given)
    usual = MetricLearner().get_params()
    ridge = options["method"] == "ridge"
    if options["loss"] in WITH_CENTROIDS:
        options["centroids"] = options["centroids"] or usual["centroids"]
    options["dim"] = options["dim"] or _usual_dim(options["method"], data)
    words = ["ridge" if ridge else options["loss"], *([options["centroids"]] if options["centroids"] else [])]
    name = "-".join([Path(file).stem, *words, str(options["seed"])])
    # A run is resumed from anywhere, so it remembers where its data is from the root.
    options |= {"data": str(Path(file).absolute()), "out": out or Path("runs") / name}
    if not ridge:
        for option, own in (("batch_size", "batch_size"), ("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            options[option] = usual[own] if options[option] is None else options[option]
    config = VectorConfig(**options)
    if ridge:
        return config
    return replace(config, epochs=number_of_epochs(make_learner(config, data), len(data.split.train)))


def _usual_dim(method: str, data: VectorData) -> int:
    """The learner's default dimension, with which the input vectors may be kept."""
    ridge = method == "ridge"
    return min(MOST_DIMENSIONS, max(1, len(data.split.train_classes) - 1) if ridge else max(2, data.columns))


def _new_run(config: VectorConfig, data: VectorData, until_done: ExitStack, *, overwrite: bool) -> RunFolder:
    run = create(config.out, overwrite=overwrite)
    until_done.enter_context(held(run.folder))
    run.write("config", asdict(config))
    run.write("classes", data.classes())
    run.write("environment", environment())  # last: with it, it is a run that can be resumed
    return run


class _Watch:
    """Counts the steps of an epoch for a progress bar, and passes on stop requests."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.stop, self.steps = stop, 0
        self.on_step: Callable[[int], None] = lambda _: None

    def step(self) -> bool:
        self.steps += 1
        self.on_step(self.steps)
        return self.stop()


def _loop(
    config: VectorConfig,
    run: RunFolder,
    data: VectorData,
    learner: MetricLearner,
    ready: Passed,
    training: Iterator[Passed],
    watch: _Watch,
    on_epoch: OnEpoch | None,
) -> None:
    """Run the epochs; each is logged and saved."""
    run.forget_after(ready.number)
    least: dict[bool, float] = {}  # of the loss, without and with the classes that were held out
    log = run.folder / "log.txt"
    if ready.number == 0 and ready.recall is not None:
        say(f"init       validation R@1 {100 * ready.recall:.2f}", log)
    with progress("epoch", lines=False) as on_progress:
        watch.steps, total = ready.step, ceil(len(data.split.train) / int(config.batch_size or 1))
        watch.on_step = lambda steps: on_progress(steps, total)
        for epoch in training:
            if not epoch.complete:
                epoch.save(run)
                raise stopped_run(run)
            assert epoch.loss is not None
            if epoch.again not in least:
                least[epoch.again] = float(learner._loss.minimum)
            line: dict[str, Any] = {
                "epoch": epoch.number,
                "loss": epoch.loss,
                "above_minimum": epoch.loss - least[epoch.again],
                "lr": epoch.lr,
                "seconds": epoch.seconds,
                "images_per_second": epoch.vectors / max(epoch.seconds, 1e-9),
            }
            line |= {"on_all_classes": True} if epoch.again else {}
            line |= {} if epoch.recall is None else {"val_recall_at_1": epoch.recall}
            run.log(line)
            # Last: an epoch is done when its record is.
            epoch.save(run)
            say(_describe(line), log)
            if on_epoch is not None and on_epoch(run, line):
                raise UserError("on_epoch cannot stop a training on vectors, which chooses its last epoch. Set epochs.")
            watch.steps = 0


def _describe(line: dict[str, Any]) -> str:
    text = (
        f"epoch {line['epoch']:>3}  loss {line['loss']:.4f} ({line['above_minimum']:.4f} above its minimum)"
        f"  {line['images_per_second']:.0f} vectors/s"
    )
    if "on_all_classes" in line:
        text += "  again, on all training classes"
    return text + (f"  validation R@1 {100 * line['val_recall_at_1']:.2f}" if "val_recall_at_1" in line else "")


def _say_plan(run: RunFolder, config: VectorConfig, data: VectorData, learner: MetricLearner) -> None:
    """Print the plan of the training before it starts."""
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


def _evaluate(
    config: VectorConfig,
    run: RunFolder,
    data: VectorData,
    learner: MetricLearner,
    pretrained: dict[str, Any] | None,
    seconds: float,
) -> TrainedVectors:
    """Evaluate on the test classes, if there are any, and write the results."""
    test, classes = data.split.test, data.classes()
    results: dict[str, Any] = {
        "data": Path(config.data).name,
        "untrained": pretrained,
        "trained": None,
        "verdict": learner.verdict_,
        "command": config.command(),
        "train_classes": len(classes["train"]),
        "train_images": len(data.split.train),
        "held_out_classes": [str(name) for name in learner.held_out_classes_.tolist()],
        "seconds": seconds,
    }
    results |= {"regularisation": learner.regularisation_} if config.method == "ridge" else {"epoch": learner.n_iter_}
    if len(test):
        results |= {"test_classes": len(classes["test"]), "test_images": len(test)}
        with working("evaluating on the test classes"):
            results["trained"] = measure(learned(learner, data.rows(test), run.folder), data, test)
    run.write("results", results)
    return TrainedVectors(run, results)


def _no_image(_number: int) -> Any:
    raise AssertionError("vectors have no images")
