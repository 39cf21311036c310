"""What `tammes train` does, step by step: make, train, evaluate, report; all of it in a run folder."""

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn

from tammes import processes
from tammes.activations import Frozen
from tammes.benchmark.plan import fitting
from tammes.bound import certificate
from tammes.cli.console import TrainingBar, duration, print_json, results_table, say, working
from tammes.cli.feeding import VIEWS, Data, centre_batches, keep, load_data, training_batches
from tammes.cli.making import at_once, make_loss, make_optimizer, start_layers
from tammes.cli.measuring import embedded, evaluated, measured
from tammes.cli.networks import make_embedder, matching
from tammes.cli.options import has_centroids, method_of, recipe, resolved
from tammes.cli.train import Train
from tammes.embedder import Embedder, load
from tammes.errors import UserError, out_of_memory
from tammes.geometry import normalise
from tammes.losses import WITH_CENTROIDS, find_miner
from tammes.objectives import Hold, Objective
from tammes.report import draw_retrievals
from tammes.runs import (
    Run,
    create,
    held,
    load_checkpoint,
    load_frozen,
    mend_checkpoint,
    open_finished,
    open_run,
    save_checkpoint,
    save_frozen,
)
from tammes.runtime import environment
from tammes.training import Epoch, Position, cosine, fit, halved_every

WATCHED = 512  # training images on which the bound is watched
FEW = 15  # images on which a step is timed; whole triplets, for losses that want them


def run_job(
    given: Train,
    data_of: Callable[[Train, dict[str, list[str]] | None], Data] = load_data,
    untrained: dict[str, Any] | None = None,
) -> None:
    """Train from the start or from where a run stopped; evaluate; show.

    Args:
        data_of: the images for the options, and for the classes that a run was started with, as `load_data` has it.
        untrained: how well the backbone does before training, where another run has measured it; None: measured here.
    """
    try:
        with ExitStack() as until_done:
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
    data_of: Callable[[Train, dict[str, list[str]] | None], Data],
    untrained: dict[str, Any] | None,
    until_done: ExitStack,
) -> None:
    config, resumed = processes.agreed(lambda: _configured(given, until_done))
    data = processes.one_a_host_first(lambda: data_of(config, None if resumed is None else resumed.read("classes")))
    processes.agreed(lambda: _check_images(config, data, resumed))
    accelerator = _accelerator(config)
    begins = resumed is None or resumed.state == "started"
    # What the first process of a host downloads and keeps the others find.
    config, data, objective = processes.one_a_host_first(
        lambda: _made(config, data, resumed, accelerator, begins=begins)
    )
    embedder = objective.embedder
    run = processes.agreed(lambda: resumed or _new_run(config, data, embedder, until_done))
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # how accelerate calls torch
        prepared, optimizer = accelerator.prepare(objective, make_optimizer(config, objective))
    _say_plan(run, config, data, embedder, accelerator.device, _estimate(config, data, objective))
    untrained = run.read("untrained") or untrained
    if processes.in_any(processes.is_first() and untrained is None)[0] and len(data.split.test):
        with working("evaluating the untrained backbone"):
            untrained = evaluated(embedder, data, data.split.test, backbone_only=True)
    if untrained is not None:
        run.write("untrained", untrained)
    start = Position()
    if not begins:
        assert resumed is not None
        start, scaler = load_checkpoint(resumed, objective, optimizer)
        if accelerator.scaler is not None and scaler is not None:
            accelerator.scaler.load_state_dict(scaler)
    run.forget_after(start.epoch - 1)
    if not _train(config, run, data, objective, prepared, optimizer, accelerator, start):
        say(f"Stopped; all is saved. Go on with: tammes train --resume {run.folder}", run.folder / "log.txt")
        raise SystemExit(130)
    if processes.is_first():
        embedder.save(run.folder)
    _report(config, run, data, embedder, untrained)


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
    _check_start(config)
    if config.sync_batch_norm and (config.device == "cpu" or not torch.accelerator.is_available()):
        raise UserError("--sync-batch-norm is for several GPUs: leave it out.")
    return config, resumed


def _accelerator(config: Train) -> Accelerator:
    """The device, and what wraps the network where there are several processes."""
    AcceleratorState._reset_state()  # it outlives a run; the next one in the same process may want another precision
    # Buffers are not sent at each step: statistics are taken over before they are needed, centroids never change.
    # A stranger's loss may leave some of its weights out of a step.
    options = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
    options["find_unused_parameters"] = config.loss.startswith("pml:")
    without_gpu = config.device == "cpu" or not torch.accelerator.is_available()
    return Accelerator(
        cpu=without_gpu and (config.device == "cpu" or processes.number() > 1),
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
    if resumed is not None:
        load_frozen(resumed, embedder)
    if source is not None and begins:
        # Before the new folder is made, in case it takes the other's place.
        embedder.load_state_dict(matching(load(source), embedder))
    loss = make_loss(config, data, embedder)
    training_batches(config, data, 1)  # what is wrong with them is said before anything is computed or replaced
    data = replace(data, kept=keep(config, data, embedder))
    above = None if data.kept is None else data.kept.frozen.above
    method = method_of(config)
    objective = Objective(
        embedder,
        loss,
        features=above,
        sees=method.sees,
        on_features=method.on == "features",
        gathers=not method.each_on_its_own,
        hold=None if config.compatible is None else _hold(config, data, accelerator.device),
    )
    if source is None and begins:
        start_layers(config, data, objective)
    return config, data, objective


def _hold(config: Train, data: Data, device: torch.device) -> Hold:
    """What keeps the embeddings of old classes where the run had them that this one goes on from."""
    assert config.continue_from is not None
    assert config.compatible is not None
    assert data.places is not None
    before = load(config.continue_from).to(device)
    features = before.features if data.kept is None else Frozen(before, data.kept.frozen.at).above
    old = torch.zeros(data.num_places, dtype=torch.bool)
    old[[data.places.of[name] for name in data.places.old]] = True
    return Hold(lambda inputs: before.embedding(features(inputs)), old, config.compatible)


def resumed_run(given: Train, until_done: ExitStack) -> Run | None:
    """The run to go on with, if one was named: ours alone until we are done, and its checkpoint sound."""
    if given.resume is None:
        return None
    resumed = open_run(given.resume)
    if processes.is_first():
        until_done.enter_context(held(resumed.folder))
    if resumed.state == "finished":
        raise UserError(
            f"{resumed.folder} has finished: nothing is left to do. See it: tammes evaluate {resumed.folder}"
        )
    mended = mend_checkpoint(resumed) if processes.is_first() and resumed.state == "interrupted" else None
    if mended is not None:
        say(f"note: {mended}", resumed.folder / "log.txt")
    return resumed


def _check_images(config: Train, data: Data, resumed: Run | None) -> None:
    """Refuse to go on with other images than a run was started with."""
    before = None if resumed is None else resumed.read("images")
    if before is not None and before["digest"] != data.images.digest:
        raise UserError(
            f"the images in {config.data} are no longer those that the run was started with. Put them back, or train"
            " anew with --overwrite."
        )


def _report(config: Train, run: Run, data: Data, embedder: Embedder, untrained: dict[str, Any] | None) -> None:
    """Evaluate on the test classes, if there are any; write, draw and show the results."""
    test, labels = data.split.test, data.dataset.labels[data.split.test]
    results: dict[str, Any] = {
        "data": data.dataset.name,
        "untrained": None,
        "trained": None,
        "command": command(config),
    }
    if len(test):
        with working("evaluating on classes never seen"):
            vectors = embedded(embedder, data, test)
            results |= _results(run, data, vectors, embedder) | {"untrained": untrained}
        if not processes.is_first():
            return
        draw_retrievals(run.folder / "neighbours.png", data.images, test, vectors, labels)
    if processes.is_first():
        write_and_show(config, run, results)


def write_and_show(config: Train, run: Run, results: dict[str, Any]) -> None:
    """The results into the run folder, and in front of who waits for them."""
    run.write("results", results)
    if config.json:
        print_json(results)
    elif results["trained"] is None:
        print(f"Trained on all classes, so there are none to test on. Run folder: {run.folder}")
    else:
        rows = {"untrained": results["untrained"], "trained": results["trained"]}
        if "best_on_validation" in results:
            rows[f"epoch {results['best_on_validation']['epoch']}, best on validation"] = results["best_on_validation"]
        results_table(rows, f"{results['data']}: {results['test_classes']} classes never seen, per cent")
        picture = run.folder / "neighbours.png"
        print(f"run folder: {run.folder}" + (f"    picture: {picture}" if picture.exists() else ""))


def check(config: Train) -> None:
    """Refuse what cannot work before anything is made."""
    if config.resume is not None:
        known = {field.name: field.default for field in fields(Train)}
        changed = [
            name for name, value in known.items() if name not in ("resume", "json") and getattr(config, name) != value
        ]
        if changed:
            flag = "DATA" if changed[0] == "data" else "--" + changed[0].replace("_", "-")
            raise UserError(f"--resume goes on with the run's own options: leave out {flag}.")
    for name in ("epochs", "batch_size", "halve_every", "accumulate", "centroid_dim", "dim", "images_per_class"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    for name in ("rate", "backbone_rate", "proxy_rate", "momentum", "weight_decay", "shift", "seed", "views"):
        value = getattr(config, name)
        if value is not None and not isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} must be a finite number, got {value}.")
        if value is not None and not value >= 0:
            raise UserError(f"--{name.replace('_', '-')} must not be negative, got {value}.")
    if config.seed >= 2**64:
        raise UserError(f"--seed must be below 2^64, got {config.seed}.")
    if config.momentum is not None and config.momentum >= 1:
        raise UserError(f"--momentum must be below 1, got {config.momentum}: steps would grow without end.")
    _check_new_classes(config)
    if config.start is not None and config.init_from is not None:
        raise UserError("--init-from says what the layers begin as: leave out --start.")
    if config.centroid_dim is not None and not config.class_layer:
        raise UserError("--centroid-dim is the size of the class layer, which --no-class-layer leaves out.")
    if config.init_from is not None and config.init_from == config.out:
        raise UserError("--init-from and --out are the same folder. Choose another --out.")
    if config.cut is not None and config.train != "top":
        raise UserError("--cut says where the trained part begins: it is for --train top.")
    if config.views is not None and config.train not in ("top", "head"):
        raise UserError("--views says of how many crops activations are kept: it is for --train top or head.")
    _check_loss(config)
    if config.log_bound and config.loss not in WITH_CENTROIDS:
        raise UserError(f"--log-bound is for a loss with centroids, not for {config.loss}.")
    if config.tensorboard:
        _summary_writer()


def _check_new_classes(config: Train) -> None:
    """Refuse what cannot go together where classes are to come, or have come."""
    if config.reserve_classes is not None:
        if config.reserve_classes < 0:
            raise UserError(f"--reserve-classes must not be negative, got {config.reserve_classes}.")
        if config.continue_from is None and config.loss not in WITH_CENTROIDS:
            raise UserError(
                f"--reserve-classes keeps centroids free, and --loss {config.loss} has none: leave it out, or use"
                f" --loss {' or '.join(WITH_CENTROIDS)}."
            )
        if config.weighting != "none":
            raise UserError("--weighting weighs classes by their images, and reserved ones have none: leave one out.")
    if config.compatible is not None:
        if config.continue_from is None:
            raise UserError("--compatible holds what another run has learned: name it by --continue-from RUN.")
        if not config.compatible > 0:
            raise UserError(f"--compatible is a weight above 0, got {config.compatible}.")
    if config.continue_from is None:
        return
    for name in ("init_from", "start"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"--continue-from says what the network begins as: leave out {flag}.")
    if config.out is None:
        raise UserError("--continue-from makes a new run: say where by --out.")
    if config.out == config.continue_from:
        raise UserError("--continue-from and --out are the same folder. Choose another --out.")


def _check_loss(config: Train) -> None:
    """Refuse what means nothing for the loss that was asked for."""
    method = method_of(config)
    method.parse(config.loss_options)
    if config.miner is not None:
        find_miner(config.miner).parse(config.miner_options)
    elif config.miner_options:
        raise UserError("--miner-options are those of a miner: add --miner pml:NAME, or drop them.")
    if config.centroids is not None and not has_centroids(config):
        other = " with this base: add --base discriminative" if method.bases else ""
        raise UserError(f"--centroids is for --loss {' or '.join(WITH_CENTROIDS)}, not for {config.loss}{other}.")
    if method.on == "features" and config.embedding == "last":
        raise UserError(f"--loss {config.loss} does not compare images by a class layer: drop --embedding last.")
    if method.on == "embedding" or (method.on == "features" and not has_centroids(config)):
        for flag, said in (
            ("--centroid-dim", config.centroid_dim is not None),
            ("--embedding last", config.embedding == "last"),
            ("--no-class-layer", not config.class_layer),
        ):
            if said:
                raise UserError(
                    f"--loss {config.loss} is computed on the {method.on}, without a class layer: drop {flag}."
                )
    for flag, given in (("--sampler", config.sampler), ("--images-per-class", config.images_per_class)):
        if method.mines and given is not None:
            raise UserError(f"--loss {config.loss} mines its batches itself: drop {flag}.")
    if config.images_per_class is not None and (config.sampler or "pk") != "pk":
        raise UserError("--images-per-class is for --sampler pk.")
    if config.images_per_class is not None and config.sampler is None and method.images_per_class == 1:
        raise UserError(f"--images-per-class is for --sampler pk, and --loss {config.loss} takes any batch: add it.")


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
    least: float | None = getattr(objective.loss, "minimum", None)
    best = max((line.get("val_recall_at_1", 0.0) for line in run.epochs()), default=0.0)

    def save(position: Position) -> None:
        save_checkpoint(run, objective, optimizer, position, _scaler(accelerator))

    with stop_on_signal() as stop, _bar(config, run, data, least, prepared) as bar:
        for epoch in fit(
            prepared,
            lambda epoch: bar.watch(
                training_batches(config, data, epoch, processes.rank(), processes.number(), objective.loss), epoch
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
            everything=lambda: _everything(data, objective),
        ):
            if not epoch.complete:
                save(epoch.position)
                return False
            processes.take_over_statistics(objective)
            line = _line(config, data, objective, epoch, least)
            if processes.is_first() and line.get("val_recall_at_1", 0.0) > best:
                best = line["val_recall_at_1"]
                (run.folder / "best").mkdir(exist_ok=True)
                objective.embedder.save(run.folder / "best")
            run.log(line)
            # Last: an epoch is done when its record is.
            save(epoch.position)
            bar.epoch_ended(line)
            if config.tensorboard and processes.is_first():
                _to_tensorboard(run, line)
    return True


def _scaler(accelerator: Accelerator) -> dict[str, Any] | None:
    """The state of what scales the loss of half precision."""
    return None if accelerator.scaler is None else dict(accelerator.scaler.state_dict())


def _line(config: Train, data: Data, objective: Objective, epoch: Epoch, least: float | None) -> dict[str, Any]:
    """What is written about an epoch."""
    line: dict[str, Any] = {
        "epoch": epoch.number,
        **epoch.losses,
        **({} if least is None else {"above_minimum": epoch.losses["loss"] - least}),
        **getattr(objective.loss, "noted", {}),
        "rate": epoch.rates[0],
        "seconds": epoch.seconds,
        "images_per_second": epoch.images / max(epoch.seconds, 1e-9),
    }
    if data.split.val is not None:
        found = evaluated(objective.embedder, data, data.split.val, quick=True)
        line["val_recall_at_1"] = found.get("recall_at_1", 0.0)
    if config.log_bound:
        line["bound"] = _watched_bound(config, data, objective)
    return line


def _watched_bound(config: Train, data: Data, objective: Objective) -> dict[str, Any]:
    """The paper's quantities on a fixed sample of the training images, so that the bound can be seen to tighten."""
    sample = np.random.default_rng(config.seed).permutation(len(data.split.train))[:WATCHED]
    outputs = normalise(_outputs(data, objective, data.split.train[sample])).cpu()
    centroids = objective.loss.centroids
    points = centroids.cpu() if isinstance(centroids, Tensor) else torch.eye(data.num_places)
    return asdict(certificate(outputs, torch.from_numpy(data.labels[sample]), points))


def _everything(data: Data, objective: Objective) -> tuple[Tensor, Tensor]:
    """What the loss is given of all training images, and their labels."""
    with working("looking at all training images"):
        outputs = _outputs(data, objective, data.split.train)
        return outputs, torch.from_numpy(data.labels).to(outputs.device)


@torch.no_grad()
def _outputs(data: Data, objective: Objective, indices: np.ndarray) -> Tensor:
    """What the loss is given of images: of their centre crops, in evaluation mode."""
    device = objective.embedder.mean.device
    objective.eval()
    rows, at = [], []
    for inputs, places, _ in centre_batches(data, indices, device):
        rows.append(objective.embedder.outputs(objective.features(inputs.to(device))))
        at.append(places)
    return processes.by_place(rows, at, len(indices)).to(device)


def _results(run: Run, data: Data, vectors: np.ndarray, embedder: Embedder) -> dict[str, Any]:
    labels = data.dataset.labels[data.split.test]
    results = {
        "test_classes": len(np.unique(labels)),
        "test_images": len(labels),
        "train_classes": data.num_classes,
        "train_images": len(data.split.train),
        "trained": measured(vectors, data.dataset, data.split.test) if processes.is_first() else None,
        "seconds": sum(line["seconds"] for line in run.epochs()),
    }
    if processes.in_any(processes.is_first() and (run.folder / "best").exists())[0]:
        best = load(run.folder / "best") if processes.is_first() else Embedder(embedder.config).eval()
        processes.take_over(list(best.state_dict().values()))
        found = evaluated(best.to(embedder.mean.device), data, data.split.test)
        chosen = max(run.epochs(), key=lambda line: line.get("val_recall_at_1", 0.0), default={"epoch": 0})
        results["best_on_validation"] = {"epoch": chosen["epoch"], **found}
    return results


def _cut(config: Train, embedder: Embedder) -> str | None:
    if config.train != "top":
        return None
    if config.cut is None and embedder.config.depths:
        return embedder.config.depths[0]  # features are taken from there up
    if config.cut is None and embedder.default_cut is None:
        raise UserError(f"{config.backbone} has no usual place to cut: name a module of it with --cut, or --train all.")
    return config.cut or embedder.default_cut


def _new_run(config: Train, data: Data, embedder: Embedder, until_done: ExitStack) -> Run:
    run = create(Path(str(config.out)), overwrite=config.overwrite)
    if processes.is_first():
        until_done.enter_context(held(run.folder))
    run.write("images", {"digest": data.images.digest})
    run.write("config", asdict(config))
    run.write("environment", environment())
    run.write("classes", data.classes() | ({} if data.places is None else {"places": asdict(data.places)}))
    if data.kept is not None:
        save_frozen(run, embedder)
    return run


def saved_options(run: Run) -> Train:
    """The options that a run was started with."""
    given = run.read("config")
    if not isinstance(given, dict):
        raise UserError(f"{run.folder}/config.json does not hold the options of a run.")
    known = {field.name for field in fields(Train)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UserError(f"{run.folder} was made by another version: its option {unknown[0]!r} is not known here.")
    for name, kind in get_type_hints(Train).items():
        if name in given:
            try:
                given[name] = _option(given[name], kind)
            except (TypeError, OverflowError):
                raise UserError(f"{run.folder}/config.json: {name} cannot be {given[name]!r}.") from None
    given["out"] = run.folder
    for name in ("hidden", "loss_options", "miner_options"):
        given[name] = tuple(given.get(name, ()))
    # What there was before these could be chosen: a preset may choose otherwise by now.
    options: dict[str, Any] = {"pool": "published", "keep_start": False} | given
    return Train(**options)


# What a run that is gone on from has decided for good, and what is said anew for each run.
KEPT = (
    *("backbone", "dim", "pool", "embedding", "class_layer", "centroid_dim", "loss", "base", "centroids", "seed"),
    "reserve_classes",
)
ANEW = ("out", "resume", "json", "overwrite", "init_from", "continue_from", "compatible", "start", "device")


def continued(given: Train, folder: Path) -> Train:
    """The options of a finished run, with those that were given in their place where they may be."""
    saved = saved_options(open_finished(folder))
    if saved.loss not in WITH_CENTROIDS:
        raise UserError(
            f"{folder} was trained with --loss {saved.loss}, which has no centroids to keep. Use --init-from {folder}."
        )
    found = {}
    for field in fields(Train):
        name, own = field.name, getattr(given, field.name)
        said = own != field.default
        if name in KEPT and said and own != getattr(saved, name):
            flag, had = "--" + name.replace("_", "-"), getattr(saved, name)
            raise UserError(
                f"--continue-from keeps the network and the centroids of {folder}, which has {flag} {had}:"
                f" leave out {flag}."
            )
        if name not in ANEW and not said:
            found[name] = getattr(saved, name)
    config = replace(given, **found)
    _check_new_classes(config)
    return config


def _option(value: Any, kind: Any) -> Any:
    """A value from a file, which may be a stranger's, as the kind that an option has; TypeError if it is not of it."""
    kinds = get_args(kind)
    if value is None and type(None) in kinds:
        return None
    found = fitting(value, str if Path in kinds else kind)
    if isinstance(found, str) and not isinstance(value, str):  # a number stands for a text in plans only
        raise TypeError
    return Path(found) if Path in kinds else found


def _estimate(config: Train, data: Data, objective: Objective) -> float:
    """Seconds that training may take: a few steps on a part of a batch, which leave no trace, scaled."""
    inputs, labels, _ = next(iter(training_batches(config, data, 1)))
    device = objective.embedder.mean.device
    inputs, labels = inputs[:FEW].to(device), labels[:FEW].to(device)
    random = torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in objective.named_buffers()}
    times = []
    for _ in range(2):
        started = perf_counter()
        torch.stack(list(objective(inputs, labels).values())).sum().backward()
        times.append(perf_counter() - started)
    objective.zero_grad()
    for name, tensor in objective.named_buffers():
        tensor.copy_(before[name])
    torch.set_rng_state(random)
    images = training_batches(config, data, 1).num_images * recipe(config)["epochs"]
    return float(min(times) / len(labels) * images / processes.number())


def _say_plan(run: Run, config: Train, data: Data, embedder: Embedder, device: torch.device, seconds: float) -> None:
    """What will be done, on what, and how long it may take, before it starts."""
    parts, options, shape = data.split, recipe(config), embedder.config
    held_out = "" if parts.val is None else f", {len(parts.val)} validation images"
    weights = sum(parameter.numel() for parameter in embedder.parameters())
    classes = f"{data.num_classes} classes"
    if data.places is not None:
        new = f" ({len(set(data.class_names) - set(data.places.old))} new)" if data.places.old else ""
        classes += f"{new}, room for {data.places.number - len(data.places.of)} more"
    pool = "" if shape.pool == "published" else f" with {shape.pool} pooling"
    where = f"{device}, {processes.number()} processes" if processes.number() > 1 else str(device)
    layer = "no class layer" if shape.class_dim is None else f"class layer {shape.class_dim}"
    lines = [
        f"data      {data.dataset.name}: {len(parts.train)} training images of {classes}{held_out},",
        f"          {len(parts.test)} test images of {len(data.classes()['test'])} other classes",
        f"network   {shape.backbone}{pool}, embedding {shape.dim}, {layer}, {weights:,} weights, from {config.weights}",
        f"trained   {_trained(config, embedder)}",
        f"loss      {_loss_in_words(config)}, preset {config.preset}",
        f"device    {where}; {options['epochs']} epochs, about {duration(seconds)}; {weights / 4.5e4:.0f} MB of disk",
        f"run       {run.folder}",
    ]
    for line in lines:
        say(line, run.folder / "log.txt")


def _trained(config: Train, embedder: Embedder) -> str:
    """What of the network trains, and why."""
    trained = sum(parameter.numel() for parameter in embedder.parameters() if parameter.requires_grad)
    kept = " but the penultimate layer" if config.keep_start else ""
    if config.train == "all":
        return f"all of it{kept} ({trained:,} weights)"
    part = f"the part from {config.cut} up" if config.train == "top" else "the new layers"
    views = VIEWS[str(config.train)] if config.views is None else config.views
    crops = f"{views} views of each image" if views else "centre crops"
    weights = f"{part}{kept} ({trained:,} weights)"
    return f"{config.train}: {weights}, on kept activations of {crops}; --train all trains everything"


def _loss_in_words(config: Train) -> str:
    named = config.loss if config.base is None else f"{config.loss} on {config.base}"
    return f"{named}, {recipe(config)['centroids']} centroids" if has_centroids(config) else named


def _bar(config: Train, run: Run, data: Data, least: float | None, objective: nn.Module) -> TrainingBar:
    images = training_batches(config, data, 1).num_images
    return TrainingBar(recipe(config)["epochs"], images, least, objective, run.folder / "log.txt")


def _check_start(config: Train) -> None:
    """Refuse to keep what is not worth keeping, or so much that nothing trains."""
    if not config.keep_start:
        return
    if config.start == "random" and config.init_from is None and config.continue_from is None:
        raise UserError("--keep-start True keeps what --start finds: give --start pca or --start whiten.")
    if config.train == "head" and not config.class_layer:
        raise UserError("--keep-start True, --train head and --no-class-layer leave nothing to train: leave one out.")
    if config.train == "head" and method_of(config).on != "class layer":
        raise UserError(
            f"--keep-start True and --train head leave no layer to train: --loss {config.loss} is computed on the"
            " embedding, without a class layer. Leave one out."
        )


def command(config: Train) -> str:
    """The command that repeats this run."""
    words = ["tammes train", config.data]
    for field in fields(Train):
        value = getattr(config, field.name)
        if field.name in ("data", "resume", "json", "overwrite") or value == field.default or value is None:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool) and field.name not in ("mirror", "keep_start"):
            words.append(flag if value else f"--no-{field.name.replace('_', '-')}")
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
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
def stop_on_signal() -> Iterator[Callable[[], bool]]:
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
