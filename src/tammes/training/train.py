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
    """A training that has ended.

    Attributes:
        vectors: of the test images, by the network that was kept; None where no classes are tested on.
        results: as results.json has them; of several processes only the first has all.
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
    """Train on images and evaluate on classes not seen; all of it in a run folder.

    Args:
        overwrite: replace the run folder if it is a run.
        select: which of the images train, validate and test, where the configuration does not say it.
        pretrained: how well the network does before training, where another run has measured it.
        on_epoch: called with the run and what is logged of each epoch; True stops the training after it.

    Raises:
        KeyboardInterrupt: it was stopped; it says what to type to resume.
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
    """Resume a training that was stopped, with its own options, to the very weights of one that was not stopped."""
    run = open_run(folder, objects)
    return _in_memory(load_config(run), run, False, select, pretrained, on_epoch)


def _in_memory(config: TrainConfig, resumed: RunFolder | None, *given: Any) -> Trained:
    """The training, with advice where it does not fit into memory."""
    try:
        with kept_memory(), if_stopped(then=f"What is in the cache is kept. {CONTINUE}"), ExitStack() as until_done:
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
    begins = resumed is None or resumed.state == "started"  # no checkpoint yet, from which all weights come
    accelerator = _accelerator(config)
    # What the first process of a host downloads, decodes and keeps the others find.
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
    """Find the new layers again from the trained features, and measure that on the validation classes; its name."""
    init_layers(config, data, objective, after=config.epochs)
    if data.split.val is not None:
        recall = validate(run, data, candidates, name, objective.embedder)
        if distributed.is_first():
            say(f"found again  validation R@1 {100 * recall:.2f}", run.folder / "log.txt")
    return name


def to_resume(run: RunFolder) -> str:
    """What to type where a run was stopped."""
    return f"Resume it: tammes train --resume {run.folder}"


def take_over(run: RunFolder, until_done: ExitStack) -> None:
    """Have a run to ourselves until we are done, its checkpoint sound."""
    if distributed.is_first():
        until_done.enter_context(held(run.folder))
    if run.state == "finished":
        raise UserError(f"{run.folder} has finished: nothing is left to do. See it: tammes evaluate {run.folder}")
    mended = mend_checkpoint(run) if distributed.is_first() and run.state == "interrupted" else None
    if mended is not None:
        say(f"note: {mended}", run.folder / "log.txt")


def _accelerator(config: TrainConfig) -> Accelerator:
    """The device, and what wraps the network where there are several processes."""
    AcceleratorState._reset_state()  # it outlives a run; the next one in the same process may want another precision
    # Buffers are not sent at each step: statistics are taken over before they are needed, centroids never change.
    # A loss of another library may leave some of its weights out of a step.
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
    """Images, network and loss as training begins, or resumes.

    What is wrong with network, weights, loss or batches is refused before an image is decoded.
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
    if data.labels.shape != listed.labels.shape:  # images that cannot be read are left out, perhaps whole classes
        embedder = build_embedder(config, made, data.num_slots).to(device)
        loss = build_loss(config, data, embedder)
    differs = None if resumed is None else changed_images(resumed, data)
    if differs is not None:
        raise UserError(
            f"the images in {config.data} are no longer those that the run was started with: {differs}. Put them back,"
            " or train again with `overwrite=True`."
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
    """What keeps the embeddings of old classes where the run had them that this one continues."""
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
    run.write("environment", environment())  # last: with it, it is a run that can be resumed
    return run


def _evaluate_pretrained(
    config: TrainConfig, run: RunFolder, data: Data, embedder: Embedder, known: dict[str, Any] | None, *, begins: bool
) -> dict[str, Any] | None:
    """How well the backbone does on the test classes before training; measured once a run."""
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
    """What has been judged so far, at first what needs no training; None where no classes are held out to judge by."""
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
    """Epoch after epoch, each judged, logged and saved; the number of the last."""
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
            # Last: an epoch is done when its record is.
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
    """Measure an epoch on the validation classes, and log it."""
    distributed.take_over_statistics(objective)
    line = epoch_line(config, data, objective, epoch, least)
    if data.split.val is not None:
        name = f"{EPOCH}{epoch.number}"
        line["val_recall_at_1"] = validate(run, data, candidates, name, objective.embedder)
    run.log(line)
    return line


def _add_to_curve(config: TrainConfig, run: RunFolder, data: Data, objective: Objective) -> None:
    """R@1 on the test classes after the last epoch that is done, if it is asked for and was not measured yet.

    All is saved by then: where it is stopped, it is measured when the run resumes.
    """
    done = run.epochs()[-1:]
    # After the last of all epochs the test classes are measured in any case.
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
        embedder: the last epoch's.
        last: its name.
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
    """The network that is kept, in all processes: the one that was trained, or what the first has saved before."""
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
    """What to raise where a run was stopped and saved."""
    then = f"All is saved. {to_resume(run)}"
    say(f"Stopped. {then}", run.folder / "log.txt", quiet=True)
    return interruption(then)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill end training after the step under way; a second one ends it at once.

    In a thread, which is not told of signals, nothing changes.
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
    """Ctrl-C and a polite kill raise KeyboardInterrupt, where nothing is to be saved; not of several processes."""
    if distributed.number() > 1:
        yield
        return
    with _handling(signal.default_int_handler):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a function handle Ctrl-C and a polite kill."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
