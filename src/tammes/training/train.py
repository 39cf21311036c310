"""A training on images: config -> data -> model -> objective -> loop -> checkpoints -> evaluation -> run."""

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from tammes.errors import UserError, out_of_memory
from tammes.io.console import CONTINUE, if_stopped, interruption, say, say_at_once, working
from tammes.io.machine import environment, kept_memory
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import Frozen
from tammes.training import distributed
from tammes.training.build import (
    at_once,
    build_backbone,
    build_embedder,
    build_loss,
    build_objective,
    build_optimizer,
    check_growth,
    cut_of,
    first_features,
    freeze,
    init_layers,
    load_embedder,
    matching,
    pretrained_embedder,
    trained_embedder,
)
from tammes.training.checkpoints import load_checkpoint, load_weights, mend_checkpoint, save_checkpoint, save_frozen
from tammes.training.config import TrainConfig, load_config
from tammes.training.data import (
    Data,
    changed_images,
    check_batches,
    decode_data,
    keep_activations,
    list_data,
    training_batches,
)
from tammes.training.evaluation import all_loss_inputs, embedded, evaluate_images, measure, validate
from tammes.training.loop import Epoch, Position, cosine, fit, halved_every, warm_up
from tammes.training.objectives import Hold, Objective
from tammes.training.objects import NONE, Objects
from tammes.training.progress import (
    epoch_line,
    estimate,
    say_expected,
    say_plan,
    summary_writer,
    to_tensorboard,
    training_bar,
)
from tammes.training.run_folder import LAST, RunFolder, check_new, create, held, open_run
from tammes.training.verdict import (
    EPOCH,
    FEWEST_JUDGED,
    PRETRAINED,
    REFIT,
    WHITENED,
    Candidates,
    candidates_again,
    is_epoch,
    not_judged,
)

OnEpoch = Callable[[RunFolder, dict[str, Any]], bool | None]


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        vectors: embeddings of the test images by the network that was kept; None without test classes.
        results: the content of results.json; complete only in the first process.
    """

    run: RunFolder
    data: Data
    vectors: np.ndarray | None
    results: dict[str, Any]


def train_images(
    config: TrainConfig,
    *,
    overwrite: bool = False,
    select: Callable[[Data], Data] = lambda data: data,
    pretrained: dict[str, Any] | None = None,
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Train on images, evaluate on unseen classes, and write a run folder.

    Args:
        overwrite: replace the run folder if it is a run.
        select: changes the split, if the configuration does not define it.
        pretrained: the metrics before training, if another run has measured them.
        on_epoch: called after each epoch with the run and the epoch's log; True stops the training.

    Raises:
        KeyboardInterrupt: training was stopped; the message says how to resume.
    """
    if distributed.is_first():
        check_new(config.out, overwrite=overwrite)
    return _in_memory(config, None, overwrite, select, pretrained, on_epoch)


def resume_images(
    folder: Path,
    *,
    objects: Objects = NONE,
    select: Callable[[Data], Data] = lambda data: data,
    pretrained: dict[str, Any] | None = None,
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Resume a training with its own options; the final weights are those of an uninterrupted run."""
    run = open_run(folder, objects)
    return _in_memory(load_config(run), run, False, select, pretrained, on_epoch)


def _in_memory(config: TrainConfig, resumed: RunFolder | None, *given: Any) -> Trained:
    """Run the training, with advice if it runs out of memory."""
    try:
        with kept_memory(), if_stopped(then=f"The cache is kept. {CONTINUE}"), ExitStack() as until_done:
            return _train(config, resumed, until_done, *given)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        size = config.batch_size
        if size == 1:
            text = "out of memory with batches of one image. Try a smaller `backbone` or `dim`, or `train='head'`."
            raise UserError(text) from error
        raise UserError(
            f"out of memory with batches of {size} images. Try `batch_size={size // 2}`"
            f"{'' if resumed is None else ' in a new run'}. `accumulate={2 * config.accumulate}` then combines"
            " two such batches into one step of the same size."
        ) from error


def _train(
    config: TrainConfig,
    resumed: RunFolder | None,
    until_done: ExitStack,
    overwrite: bool,
    select: Callable[[Data], Data],
    pretrained: dict[str, Any] | None,
    on_epoch: OnEpoch | None,
) -> Trained:
    if config.tensorboard:
        summary_writer()
    if resumed is not None:
        distributed.agreed(lambda: take_over(resumed, until_done))
        until_done.enter_context(if_stopped(then=to_resume(resumed)))
    begins = resumed is None or resumed.state == "started"  # there is no checkpoint to load weights from
    accelerator = _accelerator(config)
    # The first process of a host downloads and decodes; the others then find everything in the cache.
    config, data, objective = distributed.one_a_host_first(
        lambda: _build(config, resumed, select, accelerator.device, begins=begins)
    )
    if begins and config.source is None:
        init_layers(config, data, objective)
    run = distributed.agreed(lambda: resumed or _new_run(config, data, until_done, overwrite=overwrite))
    until_done.enter_context(if_stopped(then=to_resume(run)))
    if begins:
        distributed.agreed(lambda: save_frozen(run, objective))
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # how accelerate calls torch
        prepared, optimizer = accelerator.prepare(objective, build_optimizer(config, objective))
    say_plan(run, config, data, objective.embedder, accelerator.device, estimate(config, data, objective))
    pretrained = _evaluate_pretrained(config, run, data, objective.embedder, pretrained, begins=begins)
    start = Position()
    if not begins:
        start, scaler = load_checkpoint(run, objective, optimizer)
        if accelerator.scaler is not None and scaler is not None:
            accelerator.scaler.load_state_dict(scaler)
    run.forget_after(start.epoch - 1)
    candidates = _candidates(config, run, data, objective, begins=begins)
    with if_stopped(doing="training"):
        epoch = _loop(config, run, data, objective, prepared, optimizer, accelerator, start, candidates, on_epoch)
    last = f"{EPOCH}{epoch}"
    if config.refit:
        last = _refit(config, run, data, objective, candidates, f"{last}{REFIT}")
    return _evaluate(config, run, data, objective.embedder, pretrained, candidates, last)


def _refit(
    config: TrainConfig, run: RunFolder, data: Data, objective: Objective, candidates: Candidates | None, name: str
) -> str:
    """Compute the new layers again from the trained features, and validate. Returns the name of this candidate."""
    init_layers(config, data, objective, after=config.epochs)
    if data.split.val is not None:
        recall = validate(run, data, candidates, name, objective.embedder)
        if distributed.is_first():
            say(f"refit      validation R@1 {100 * recall:.2f}", run.folder / "log.txt")
    return name


def to_resume(run: RunFolder) -> str:
    """How to resume a run, for messages."""
    return f"Resume it: tammes train --resume {run.folder}"


def take_over(run: RunFolder, until_done: ExitStack) -> None:
    """Lock a run until training ends, and make sure that its checkpoint is intact."""
    if distributed.is_first():
        until_done.enter_context(held(run.folder))
    if run.state == "finished":
        raise UserError(f"{run.folder} has already finished. To see its results: tammes evaluate {run.folder}")
    mended = mend_checkpoint(run) if distributed.is_first() and run.state == "interrupted" else None
    if mended is not None:
        say(f"note: {mended}", run.folder / "log.txt")


def _accelerator(config: TrainConfig) -> Accelerator:
    """The accelerator: device, precision and distributed training."""
    AcceleratorState._reset_state()  # global state; another run in the same process may use another precision
    # Buffers are not broadcast at each step: statistics are broadcast when needed, centroids never change.
    # A loss of pytorch-metric-learning may leave some of its parameters unused in a step.
    options = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
    options["find_unused_parameters"] = config.loss.startswith("pml:")
    return Accelerator(
        cpu=not config.on_gpu and (config.device == "cpu" or distributed.number() > 1),
        mixed_precision=config.precision,
        kwargs_handlers=[DistributedDataParallelKwargs(**options)],
    )


def _build(
    config: TrainConfig,
    resumed: RunFolder | None,
    select: Callable[[Data], Data],
    device: torch.device,
    *,
    begins: bool,
) -> tuple[TrainConfig, Data, Objective]:
    """Data, network and loss at the start of the training, or when it resumes.

    Errors in network, weights, loss or batches are raised before images are decoded.
    """
    classes = None if resumed is None else resumed.read("classes")
    data = list_data(config, classes, select)
    made = build_backbone(config, pretrained=begins and config.continue_from is None)
    embedder = build_embedder(config, made, data.num_slots)
    config = replace(config, cut=cut_of(config, embedder))
    if config.train == "top":
        Frozen(embedder, config.cut)
        embedder.requires_grad_(True)
    if config.source is not None and begins:
        embedder.load_state_dict(matching(trained_embedder(config.source, config.objects), embedder))
    loss = build_loss(config, data, embedder)
    check_batches(config, made.size)
    check_growth(config, embedder)
    embedder = embedder.to(device)
    if resumed is None:
        say_expected(config, embedder, len(data.split.train))
    listed, data = data, decode_data(config, data, made)
    if data.labels.shape != listed.labels.shape:  # unreadable images were left out, maybe whole classes
        embedder = build_embedder(config, made, data.num_slots).to(device)
        loss = build_loss(config, data, embedder)
    differs = None if resumed is None else changed_images(resumed, data)
    if differs is not None:
        raise UserError(
            f"the images in {config.data} have changed since the run was started: {differs}. Restore them, or train"
            " again with `overwrite=True`."
        )
    if config.sync_batch_norm:
        embedder = nn.SyncBatchNorm.convert_sync_batchnorm(embedder)
    frozen = freeze(config, embedder)
    hold = None if config.compatible is None else _hold(config, data, frozen, device)
    objective = build_objective(config, embedder, loss, frozen, hold)
    if not begins:
        assert resumed is not None
        load_weights(resumed, objective)
    data = replace(data, kept=keep_activations(config, data, frozen))
    return config, data, objective


def _hold(config: TrainConfig, data: Data, frozen: Frozen | None, device: torch.device) -> Hold:
    """The term that keeps the embeddings of old classes where the continued run has them."""
    assert config.continue_from is not None
    assert config.compatible is not None
    assert data.slots is not None
    before = trained_embedder(config.continue_from, config.objects, only_kept=True).to(device)
    features = before.features if frozen is None else Frozen(before, frozen.at).above
    old = torch.zeros(data.num_slots, dtype=torch.bool)
    old[[data.slots.of[name] for name in data.slots.old]] = True
    return Hold(lambda inputs: before.embedding(features(inputs)), old, config.compatible)


def _new_run(config: TrainConfig, data: Data, until_done: ExitStack, *, overwrite: bool) -> RunFolder:
    run = create(config.out, overwrite=overwrite, objects=config.objects)
    if distributed.is_first():
        until_done.enter_context(held(run.folder))
    run.write("images", {"digest": data.images.digest, "classes": data.class_sizes()})
    run.write("config", config.saved())
    classes: dict[str, Any] = dict(data.classes())
    unused = [name for name in data.dataset.class_names if not any(name in names for names in classes.values())]
    classes |= {"unused": unused} if unused else {}
    classes |= {} if data.slots is None else {"places": asdict(data.slots)}
    run.write("classes", classes)
    run.write("environment", environment())  # last: it makes the folder a run that can be resumed
    return run


def _evaluate_pretrained(
    config: TrainConfig, run: RunFolder, data: Data, embedder: Embedder, known: dict[str, Any] | None, *, begins: bool
) -> dict[str, Any] | None:
    """The metrics of the backbone on the test classes before training; measured once per run."""
    found = run.read("untrained") or known
    if distributed.in_any(distributed.is_first() and found is None)[0] and len(data.split.test):
        with working("evaluating the network before training"):
            before = embedder if begins else pretrained_embedder(config).to(embedder.mean.device)
            found = evaluate_images(before, data, data.split.test, backbone_only=True)
    if found is not None:
        run.write("untrained", found)
    return found


def _candidates(
    config: TrainConfig, run: RunFolder, data: Data, objective: Objective, *, begins: bool
) -> Candidates | None:
    """The candidates so far, initially the pretrained and whitened embeddings; None without validation classes."""
    if data.split.val is None or len(np.unique(data.dataset.labels[data.split.val])) < FEWEST_JUDGED:
        return None
    if not begins:
        saved = run.read("candidates")
        what = f"{run.folder / 'candidates.json'}"
        return None if saved is None else candidates_again(saved, what, run.advice("candidates"))
    found, embedder = Candidates(), objective.embedder
    with working("measuring the network before training on the validation classes"):
        validate(run, data, found, PRETRAINED, embedder.closed_form())
        validate(run, data, found, WHITENED, embedder.closed_form(*first_features(config, data, objective)))
    return found


def _loop(
    config: TrainConfig,
    run: RunFolder,
    data: Data,
    objective: Objective,
    prepared: nn.Module,
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    start: Position,
    candidates: Candidates | None,
    on_epoch: OnEpoch | None,
) -> int:
    """Run the epochs; each is validated, logged and saved. Returns the number of the last."""
    number = len(training_batches(config, data, 1, distributed.rank(), distributed.number()))
    schedule = halved_every(config.halve_every) if config.schedule == "halve" else cosine(config.epochs, number)
    if config.warmup:
        schedule = warm_up(schedule, config.warmup, number)
    least: float | None = getattr(objective.loss, "minimum", None)

    def save(position: Position) -> None:
        scaler = None if accelerator.scaler is None else dict(accelerator.scaler.state_dict())
        save_checkpoint(run, objective, optimizer, position, scaler)

    def batches(epoch: int) -> Any:
        rank, number = distributed.rank(), distributed.number()
        return bar.watch(training_batches(config, data, epoch, rank, number, objective.loss), epoch)

    if start.step == 0:
        _add_to_curve(config, run, data, objective)
    with stop_on_signal() as stop, training_bar(config, run, data, least, prepared) as bar:
        for epoch in fit(
            prepared,
            batches,
            optimizer,
            epochs=config.epochs,
            schedule=schedule,
            seed=config.seed,
            start=start,
            accelerator=accelerator,
            accumulate=config.accumulate,
            at_once=at_once(config, objective),
            stop=stop,
            save=save,
            everything=lambda: all_loss_inputs(data, objective),
        ):
            if not epoch.complete:
                save(epoch.position)
                raise stopped_run(run)
            line = _epoch_ended(config, run, data, objective, epoch, candidates, least)
            # After the log: an epoch without its log line is trained again.
            save(epoch.position)
            bar.epoch_ended(line)
            if config.tensorboard and distributed.is_first():
                to_tensorboard(run, line)
            _add_to_curve(config, run, data, objective)
            enough = on_epoch is not None and distributed.is_first() and bool(on_epoch(run, line))
            if distributed.in_any(enough)[0]:
                return epoch.number
    return config.epochs


def _epoch_ended(
    config: TrainConfig,
    run: RunFolder,
    data: Data,
    objective: Objective,
    epoch: Epoch,
    candidates: Candidates | None,
    least: float | None,
) -> dict[str, Any]:
    """Validate an epoch and log it."""
    distributed.take_over_statistics(objective)
    line = epoch_line(config, data, objective, epoch, least)
    if data.split.val is not None:
        name = f"{EPOCH}{epoch.number}"
        line["val_recall_at_1"] = validate(run, data, candidates, name, objective.embedder)
    run.log(line)
    return line


def _add_to_curve(config: TrainConfig, run: RunFolder, data: Data, objective: Objective) -> None:
    """Measure R@1 on the test classes after the last finished epoch, if `curve` asks for it and it is not done yet.

    The epoch is already saved: if this is interrupted, it is repeated when the run resumes.
    """
    done = run.epochs()[-1:]
    # After the final epoch, the test classes are evaluated anyway.
    due = bool(done) and done[0]["epoch"] in config.curve and done[0]["epoch"] < config.epochs
    due = due and "test_recall_at_1" not in done[0] and len(data.split.test) > 0
    if distributed.in_any(distributed.is_first() and due)[0]:
        with at_once_on_signal():
            found = evaluate_images(objective.embedder, data, data.split.test, quick=True)
        if distributed.is_first():
            run.add(done[0]["epoch"], {"test_recall_at_1": found["recall_at_1"]})


def _evaluate(
    config: TrainConfig,
    run: RunFolder,
    data: Data,
    embedder: Embedder,
    pretrained: dict[str, Any] | None,
    candidates: Candidates | None,
    last: str,
) -> Trained:
    """Keep the best network, evaluate it on the test classes, if there are any, and write the results.

    Args:
        embedder: the network of the last epoch.
        last: the name of this candidate.
    """
    verdict = not_judged(last)
    if distributed.is_first():
        (run.folder / LAST).mkdir(exist_ok=True)
        embedder.save(run.folder / LAST)
        if candidates is None:
            embedder.save(run.folder)
        else:
            verdict = candidates.verdict()
    test = data.split.test
    results: dict[str, Any] = {
        "data": data.dataset.name,
        "untrained": None,
        "trained": None,
        "verdict": verdict,
        "command": config.command(),
    }
    vectors = None
    if len(test):
        with working("evaluating on the test classes"):
            kept = _kept(config, run, embedder, verdict, last)
            vectors = embedded(kept, data, test)
            results |= {
                "test_classes": len(np.unique(data.dataset.labels[test])),
                "test_images": len(test),
                "train_classes": data.num_classes,
                "train_images": len(data.split.train),
                "trained": measure(vectors, data.dataset, test) if distributed.is_first() else None,
                "seconds": sum(line.get("seconds", 0.0) for line in run.epochs()),
                "untrained": pretrained,
            }
            if kept is not embedder:
                results["last"] = evaluate_images(embedder, data, test)
    run.write("results", results)
    return Trained(run, data, vectors, results)


def _kept(config: TrainConfig, run: RunFolder, embedder: Embedder, verdict: dict[str, Any], last: str) -> Embedder:
    """The network that is kept, in all processes: that of the last epoch, or an earlier one that was saved."""
    name = distributed.from_first(str(verdict["kept"]))
    if name == last:
        return embedder
    saved = load_embedder(run.folder, config.objects) if distributed.is_first() else None
    dim = int(distributed.from_first("" if saved is None else str(saved.config.dim)))
    if saved is None:
        shape = embedder.config if is_epoch(name) else embedder.config.plain(dim)
        made = build_backbone(config, pretrained=False)
        saved = Embedder(shape, backbone=made, eval_transform=embedder.eval_transform).eval()
    distributed.take_over(list(saved.state_dict().values()))
    return saved.to(embedder.mean.device)


def stopped_run(run: RunFolder) -> KeyboardInterrupt:
    """The exception for a run that was stopped and saved."""
    then = f"Everything is saved. {to_resume(run)}"
    say(f"Stopped. {then}", run.folder / "log.txt", quiet=True)
    return interruption(then)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C and SIGTERM end training after the current step; a second one ends it at once.

    Has no effect outside the main thread, which alone receives signals.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say_at_once("Stopping after this step; Ctrl-C again stops at once.")

    with _handling(ask):
        yield lambda: asked


@contextmanager
def at_once_on_signal() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt at once; not with several processes."""
    if distributed.number() > 1:
        yield
        return
    with _handling(signal.default_int_handler):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Set a handler for SIGINT and SIGTERM."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
