"""What `tammes train` does, step by step: make, train, evaluate, report; all of it in a run folder."""

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from tammes.cli.checks import check, check_start, check_used
from tammes.cli.feeding import Data, changed_images, keep, load_data, training_batches
from tammes.cli.making import at_once, first_features, make_loss, make_optimizer, start_layers
from tammes.cli.measuring import all_loss_inputs, embedded, evaluated, judged
from tammes.cli.networks import freeze, make_embedder, matching, trained_embedder, untrained_embedder
from tammes.cli.options import method_of, recipe, resolved, without_gpu
from tammes.cli.saved import command, continued, saved_options
from tammes.cli.telling import (
    add_to_curve,
    epoch_line,
    estimate,
    results_of,
    say_plan,
    to_tensorboard,
    training_bar,
    write_and_show,
)
from tammes.cli.train import Train
from tammes.errors import UserError, out_of_memory
from tammes.io.console import CONTINUE, if_stopped, say, say_at_once, working
from tammes.io.machine import environment
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.feature_cache import Frozen
from tammes.report import draw_retrievals
from tammes.training import distributed
from tammes.training.checkpoints import load_checkpoint, load_weights, mend_checkpoint, save_checkpoint, save_frozen
from tammes.training.loop import Position, cosine, fit, halved_every
from tammes.training.objectives import Hold, Objective
from tammes.training.run_folder import LAST, Run, check_new, create, held, open_run
from tammes.training.verdict import (
    EPOCH,
    FEWEST_JUDGED,
    PRETRAINED,
    WHITENED,
    Candidates,
    candidates_again,
    is_epoch,
    not_judged,
)

DataOf = Callable[[Train, dict[str, Any] | None, Callable[[Data], None] | None], Data]
QUICK = 1000  # classes up to which a loss, with its centroids, is made in no time


def run_job(
    given: Train,
    data_of: DataOf = load_data,
    untrained: dict[str, Any] | None = None,
) -> None:
    """Train from the start or from where a run stopped; evaluate; show.

    Args:
        data_of: the images for the options, and for the classes that a run was started with, as `load_data` has it;
            given what to call before they are decoded.
        untrained: how well the backbone does before training, where another run has measured it; None: measured here.
    """
    try:
        with if_stopped(then=f"What is in the cache is kept. {CONTINUE}"), ExitStack() as until_done:
            _run_job(given, data_of, untrained, until_done)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(_smaller(given)) from error


def _smaller(given: Train) -> str:
    """What to try where a training did not fit into memory."""
    config = resolved(given) if given.resume is None else saved_options(open_run(given.resume))
    size = int(recipe(config)["batch_size"])
    if size == 1:
        return "out of memory with batches of one image. Try a smaller --backbone or --dim, or --train head."
    anew = "" if given.resume is None else " in a new run"
    half = size // 2
    same = f" --accumulate {2 * config.accumulate} makes of two such batches a step of the same size."
    return f"out of memory with batches of {size} images. Try --batch-size {half}{anew}.{same}"


def _run_job(
    given: Train,
    data_of: DataOf,
    untrained: dict[str, Any] | None,
    until_done: ExitStack,
) -> None:
    config, resumed = distributed.agreed(lambda: _configured(given, until_done))
    if resumed is not None:
        until_done.enter_context(if_stopped(then=to_resume(resumed)))
    classes = None if resumed is None else resumed.read("classes")
    ready = partial(_check_ready, config) if resumed is None else None
    data = distributed.one_a_host_first(lambda: data_of(config, classes, ready))
    distributed.agreed(lambda: _check_images(config, data, resumed))
    accelerator = _accelerator(config)
    begins = resumed is None or resumed.state == "started"
    # What the first process of a host downloads and keeps the others find.
    config, data, objective = distributed.one_a_host_first(
        lambda: _made(config, data, resumed, accelerator, begins=begins)
    )
    embedder = objective.embedder
    run = distributed.agreed(lambda: resumed or _new_run(config, data, until_done))
    until_done.enter_context(if_stopped(then=to_resume(run)))
    if begins:
        distributed.agreed(lambda: save_frozen(run, objective))
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # how accelerate calls torch
        prepared, optimizer = accelerator.prepare(objective, make_optimizer(config, objective))
    say_plan(run, config, data, embedder, accelerator.device, estimate(config, data, objective))
    untrained = run.read("untrained") or untrained
    if distributed.in_any(distributed.is_first() and untrained is None)[0] and len(data.split.test):
        with working("evaluating the network before training"):
            before = embedder if begins else untrained_embedder(config).to(accelerator.device)
            untrained = evaluated(before, data, data.split.test, backbone_only=True)
    if untrained is not None:
        run.write("untrained", untrained)
    start = Position()
    if not begins:
        assert resumed is not None
        start, scaler = load_checkpoint(resumed, objective, optimizer)
        if accelerator.scaler is not None and scaler is not None:
            accelerator.scaler.load_state_dict(scaler)
    run.forget_after(start.epoch - 1)
    candidates = _candidates(config, run, data, objective, begins=begins)
    with if_stopped(doing="training"):
        complete = _train(config, run, data, objective, prepared, optimizer, accelerator, start, candidates)
    if not complete:
        say(f"Stopped; all is saved. {to_resume(run)}", run.folder / "log.txt")
        raise SystemExit(130)
    last = f"{EPOCH}{recipe(config)['epochs']}"
    if distributed.is_first():
        (run.folder / LAST).mkdir(exist_ok=True)
        embedder.save(run.folder / LAST)
        if candidates is None:
            embedder.save(run.folder)
    verdict = not_judged(last)
    if candidates is not None and distributed.is_first():
        verdict = candidates.verdict()
    _report(config, run, data, embedder, untrained, verdict)


def to_resume(run: Run) -> str:
    """What to type where a run was stopped."""
    return f"Resume it: tammes train --resume {run.folder}"


def _configured(given: Train, until_done: ExitStack) -> tuple[Train, Run | None]:
    """All options, and the run to go on with, if one was named."""
    check(given)
    for flag, said in (("--hidden", given.hidden), ("--method", given.method)):
        if said:
            raise UserError(f"{flag} is for vectors, and {given.data} is no .npz or .parquet file: leave it out.")
    resumed = resumed_run(given, until_done)
    if resumed is None:
        config = resolved(given if given.continue_from is None else continued(given, given.continue_from))
    else:
        config = replace(saved_options(resumed), json=given.json)
    check_start(config)
    check_used(given, config)
    if config.sync_batch_norm and without_gpu(config.device):
        raise UserError("--sync-batch-norm is for several GPUs: leave it out.")
    if resumed is None and distributed.is_first():
        check_new(Path(str(config.out)), overwrite=config.overwrite)
    return config, resumed


def _check_ready(config: Train, data: Data) -> None:
    """Refuse what is wrong with network, weights, loss and batches before images are decoded; nothing of it is kept."""
    weights = config.weights if config.continue_from is None else "none"
    embedder = make_embedder(replace(config, weights=weights), data.num_places)
    if config.train == "top":
        Frozen(embedder, _cut(config, embedder))
    source = config.continue_from or config.init_from
    if source is not None:
        matching(load(source), embedder)
    if data.num_places <= QUICK:
        make_loss(config, data, embedder)
    training_batches(config, data, 1)


def _accelerator(config: Train) -> Accelerator:
    """The device, and what wraps the network where there are several processes."""
    AcceleratorState._reset_state()  # it outlives a run; the next one in the same process may want another precision
    # Buffers are not sent at each step: statistics are taken over before they are needed, centroids never change.
    # A stranger's loss may leave some of its weights out of a step.
    options = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
    options["find_unused_parameters"] = config.loss.startswith("pml:")
    return Accelerator(
        cpu=without_gpu(config.device) and (config.device == "cpu" or distributed.number() > 1),
        mixed_precision=config.precision,
        kwargs_handlers=[DistributedDataParallelKwargs(**options)],
    )


def _made(
    config: Train, data: Data, resumed: Run | None, accelerator: Accelerator, *, begins: bool
) -> tuple[Train, Data, Objective]:
    """Network and loss as training begins, or goes on, and what stands for the images where a part is frozen.

    Args:
        begins: whether there is no checkpoint yet, from which all weights come.
    """
    source = config.continue_from or config.init_from
    weights = config.weights if begins and config.continue_from is None else "none"
    embedder = make_embedder(replace(config, weights=weights), data.num_places).to(accelerator.device)
    if config.sync_batch_norm:
        embedder = nn.SyncBatchNorm.convert_sync_batchnorm(embedder)
    config = replace(config, cut=_cut(config, embedder))
    if source is not None and begins:
        # Before the new folder is made, in case it takes the other's place.
        embedder.load_state_dict(matching(trained_embedder(source), embedder))
    loss = make_loss(config, data, embedder)
    training_batches(config, data, 1)  # what is wrong with them is said before anything is computed or replaced
    frozen = freeze(config, embedder)
    method = method_of(config)
    objective = Objective(
        embedder,
        loss,
        features=None if frozen is None else frozen.above,
        sees=method.sees,
        on_features=method.on == "features",
        gathers=not method.each_on_its_own,
        hold=None if config.compatible is None else _hold(config, data, frozen, accelerator.device),
    )
    if not begins:
        assert resumed is not None
        load_weights(resumed, objective)
    data = replace(data, kept=keep(config, data, frozen))
    if source is None and begins:
        start_layers(config, data, objective)
    return config, data, objective


def _hold(config: Train, data: Data, frozen: Frozen | None, device: torch.device) -> Hold:
    """What keeps the embeddings of old classes where the run had them that this one goes on from."""
    assert config.continue_from is not None
    assert config.compatible is not None
    assert data.places is not None
    before = trained_embedder(config.continue_from, only_kept=True).to(device)
    features = before.features if frozen is None else Frozen(before, frozen.at).above
    old = torch.zeros(data.num_places, dtype=torch.bool)
    old[[data.places.of[name] for name in data.places.old]] = True
    return Hold(lambda inputs: before.embedding(features(inputs)), old, config.compatible)


def resumed_run(given: Train, until_done: ExitStack) -> Run | None:
    """The run to go on with, if one was named: ours alone until we are done, and its checkpoint sound."""
    if given.resume is None:
        return None
    resumed = open_run(given.resume)
    if distributed.is_first():
        until_done.enter_context(held(resumed.folder))
    if resumed.state == "finished":
        raise UserError(
            f"{resumed.folder} has finished: nothing is left to do. See it: tammes evaluate {resumed.folder}"
        )
    mended = mend_checkpoint(resumed) if distributed.is_first() and resumed.state == "interrupted" else None
    if mended is not None:
        say(f"note: {mended}", resumed.folder / "log.txt")
    return resumed


def _check_images(config: Train, data: Data, resumed: Run | None) -> None:
    """Refuse to go on with other images than a run was started with."""
    differs = None if resumed is None else changed_images(resumed, data)
    if differs is not None:
        raise UserError(
            f"the images in {config.data} are no longer those that the run was started with: {differs}. Put them back,"
            " or train again with --overwrite."
        )


def _candidates(config: Train, run: Run, data: Data, objective: Objective, *, begins: bool) -> Candidates | None:
    """What has been judged so far, at first what needs no training; None where no classes are held out to judge by."""
    if data.split.val is None or len(np.unique(data.dataset.labels[data.split.val])) < FEWEST_JUDGED:
        return None
    if not begins:
        said = run.read("candidates")
        what = f"{run.folder / 'candidates.json'}"
        return None if said is None else candidates_again(said, what, run.advice("candidates"))
    found, embedder = Candidates(), objective.embedder
    with working("measuring the pretrained network on the validation classes"):
        judged(run, data, found, PRETRAINED, embedder.closed_form())
        judged(run, data, found, WHITENED, embedder.closed_form(*first_features(config, data, objective)))
    return found


def _kept(run: Run, embedder: Embedder, verdict: dict[str, Any], last: str) -> Embedder:
    """The network that is kept, in all processes: the one that was trained, or what the first has saved before."""
    name = distributed.from_first(str(verdict["kept"]))
    if name == last:
        return embedder
    saved = load(run.folder) if distributed.is_first() else None
    dim = int(distributed.from_first("" if saved is None else str(saved.config.dim)))
    if saved is None:
        shape = embedder.config
        saved = Embedder(shape if is_epoch(name) else EmbedderConfig(shape.backbone, dim, pool=shape.pool)).eval()
    distributed.take_over(list(saved.state_dict().values()))
    return saved.to(embedder.mean.device)


def _report(
    config: Train,
    run: Run,
    data: Data,
    embedder: Embedder,
    untrained: dict[str, Any] | None,
    verdict: dict[str, Any],
) -> None:
    """Evaluate on the test classes, if there are any; write, draw and show the results.

    Args:
        embedder: the last epoch's.
    """
    test, labels = data.split.test, data.dataset.labels[data.split.test]
    results: dict[str, Any] = {
        "data": data.dataset.name,
        "untrained": None,
        "trained": None,
        "verdict": verdict,
        "command": command(config),
    }
    if len(test):
        with working("evaluating on the test classes"):
            kept = _kept(run, embedder, verdict, f"{EPOCH}{recipe(config)['epochs']}")
            vectors = embedded(kept, data, test)
            results |= results_of(run, data, vectors) | {"untrained": untrained}
            if kept is not embedder:
                results["last"] = evaluated(embedder, data, test)
        if not distributed.is_first():
            return
        draw_retrievals(run.folder / "neighbours.png", data.images, test, vectors, labels)
    if distributed.is_first():
        write_and_show(config, run, results)


def _train(
    config: Train,
    run: Run,
    data: Data,
    objective: Objective,
    prepared: nn.Module,
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    start: Position,
    candidates: Candidates | None,
) -> bool:
    """Epoch after epoch, each judged, logged and saved. False if it was stopped before the end."""
    options = recipe(config)
    schedule = halved_every(options["halve_every"]) if options["schedule"] == "halve" else cosine(options["epochs"])
    least: float | None = getattr(objective.loss, "minimum", None)

    def save(position: Position) -> None:
        save_checkpoint(run, objective, optimizer, position, _scaler(accelerator))

    def on_curve() -> bool:
        """False if it was stopped meanwhile: all is saved, and it is measured when the run resumes."""
        with at_once_on_signal():
            try:
                add_to_curve(config, run, data, objective)
            except KeyboardInterrupt:
                return False
        return True

    if start.step == 0 and not on_curve():
        return False
    with stop_on_signal() as stop, training_bar(config, run, data, least, prepared) as bar:
        for epoch in fit(
            prepared,
            lambda epoch: bar.watch(
                training_batches(config, data, epoch, distributed.rank(), distributed.number(), objective.loss), epoch
            ),
            optimizer,
            epochs=options["epochs"],
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
                return False
            distributed.take_over_statistics(objective)
            line = epoch_line(config, data, objective, epoch, least)
            if data.split.val is not None:
                name = f"{EPOCH}{epoch.number}"
                line["val_recall_at_1"] = judged(run, data, candidates, name, objective.embedder)
            run.log(line)
            # Last: an epoch is done when its record is.
            save(epoch.position)
            bar.epoch_ended(line)
            if config.tensorboard and distributed.is_first():
                to_tensorboard(run, line)
            if not on_curve():
                return False
    return True


def _scaler(accelerator: Accelerator) -> dict[str, Any] | None:
    """The state of what scales the loss of half precision."""
    return None if accelerator.scaler is None else dict(accelerator.scaler.state_dict())


def _cut(config: Train, embedder: Embedder) -> str | None:
    if config.train != "top":
        return None
    if config.cut is None and embedder.config.depths:
        return embedder.config.depths[0]  # features are taken from there up
    if config.cut is None and embedder.default_cut is None:
        raise UserError(f"{config.backbone} has no usual place to cut: name a module of it with --cut, or --train all.")
    return config.cut or embedder.default_cut


def _new_run(config: Train, data: Data, until_done: ExitStack) -> Run:
    run = create(Path(str(config.out)), overwrite=config.overwrite)
    if distributed.is_first():
        until_done.enter_context(held(run.folder))
    run.write("images", {"digest": data.images.digest, "classes": data.class_sizes()})
    run.write("config", asdict(config))
    classes: dict[str, Any] = dict(data.classes())
    unused = [name for name in data.dataset.class_names if not any(name in names for names in classes.values())]
    classes |= {"unused": unused} if unused else {}
    classes |= {} if data.places is None else {"places": asdict(data.places)}
    run.write("classes", classes)
    run.write("environment", environment())  # last: with it, it is a run that can be resumed
    return run


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill end training after the step under way; a second one ends it at once."""
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say_at_once("Stopping after the step under way; Ctrl-C again stops at once.")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def at_once_on_signal() -> Iterator[None]:
    """Ctrl-C and a polite kill raise KeyboardInterrupt, where nothing is to be saved; not of several processes."""
    if distributed.number() > 1:
        yield
        return
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in stops}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
