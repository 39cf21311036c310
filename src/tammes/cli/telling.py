"""What `tammes train` tells: its plan before, a line an epoch, its results after."""

from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tammes.bound import certificate
from tammes.cli.console import results_table
from tammes.cli.feeding import VIEWS, Data, training_batches
from tammes.cli.making import without_trace
from tammes.cli.measuring import evaluated, loss_inputs, measured
from tammes.cli.options import has_centroids, recipe
from tammes.cli.train import Train
from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.io.console import duration, print_json, say
from tammes.models.embedder import Embedder
from tammes.training import distributed
from tammes.training.loop import Epoch
from tammes.training.objectives import Objective
from tammes.training.progress import TrainingBar
from tammes.training.run_folder import Run
from tammes.training.verdict import in_words, measured_rows

WATCHED = 512  # training images on which the bound is watched
FEW = 15  # images on which a step is timed; whole triplets, for losses that want them


def say_plan(run: Run, config: Train, data: Data, embedder: Embedder, device: torch.device, seconds: float) -> None:
    """What will be done, on what, and how long it may take, before it starts."""
    parts, options, shape = data.split, recipe(config), embedder.config
    held_out = "no classes: whether training helps is not judged"
    if parts.val is not None:
        held = len(data.classes()["val"])
        held_out = (
            f"{held} other classes ({len(parts.val)} images), to choose the epoch and judge whether training helps"
        )
    weights = sum(parameter.numel() for parameter in embedder.parameters())
    classes = f"{data.num_classes} classes"
    if data.places is not None:
        new = f" ({len(set(data.class_names) - set(data.places.old))} new)" if data.places.old else ""
        classes += f"{new}, room for {data.places.number - len(data.places.of)} more"
    pool = "" if shape.pool == "published" else f" with {shape.pool} pooling"
    where = f"{device}, {distributed.number()} processes" if distributed.number() > 1 else str(device)
    where += {"bf16": ", bfloat16", "fp16": ", float16"}.get(config.precision, "")
    layer = "no class layer" if shape.class_dim is None else f"class layer {shape.class_dim}"
    lines = [
        f"data      {data.dataset.name}: {len(parts.train)} training images of {classes},",
        f"          {len(parts.test)} test images of {len(data.classes()['test'])} other classes",
        f"held out  {held_out}",
        f"network   {shape.backbone}{pool}, embedding {shape.dim}, {layer}, {weights:,} weights, from {config.weights}",
        f"trained   {_trained(config, embedder)}",
        f"loss      {_loss_in_words(config)}, preset {config.preset}",
        f"device    {where}; {options['epochs']} epochs, about {duration(seconds)}; {weights / 3.8e4:.0f} MB of disk",
        f"run       {run.folder}",
    ]
    for line in lines:
        say(line, run.folder / "log.txt")


def estimate(config: Train, data: Data, objective: Objective) -> float:
    """Seconds that training may take: a few steps on a part of a batch, which leave no trace, scaled."""
    inputs, labels, _ = next(iter(training_batches(config, data, 1)))
    device = objective.embedder.mean.device
    inputs, labels = inputs[:FEW].to(device), labels[:FEW].to(device)
    times = []
    with without_trace(objective):
        for _ in range(2):
            started = perf_counter()
            torch.stack(list(objective(inputs, labels).values())).sum().backward()
            times.append(perf_counter() - started)
    objective.zero_grad()
    images = training_batches(config, data, 1).num_images * recipe(config)["epochs"]
    return float(min(times) / len(labels) * images / distributed.number())


def _trained(config: Train, embedder: Embedder) -> str:
    """What of the network trains, and why."""
    trained = sum(parameter.numel() for parameter in embedder.parameters() if parameter.requires_grad)
    kept = " but the embedding layer" if config.keep_start else ""
    if config.train == "all":
        return f"all of it{kept} ({trained:,} weights)"
    if config.train == "top":
        part = f"the part from {config.cut} up"
    elif config.keep_start:
        part = "only the class layer: the embedding does not change, as the embedding layer stays as it began"
    else:
        part = "the embedding layer" + ("" if embedder.class_layer is None else " and the class layer")
    views = VIEWS[str(config.train)] if config.views is None else config.views
    crops = f"{views} views of each image" if views else "centre crops"
    weights = f"{part}{kept if config.train == 'top' else ''} ({trained:,} weights)"
    return f"{config.train}: {weights}, on kept activations of {crops}; --train all trains everything"


def _loss_in_words(config: Train) -> str:
    named = config.loss if config.base is None else f"{config.loss} on {config.base}"
    return f"{named}, {recipe(config)['centroids']} centroids" if has_centroids(config) else named


def training_bar(config: Train, run: Run, data: Data, least: float | None, objective: nn.Module) -> TrainingBar:
    images = training_batches(config, data, 1).num_images
    return TrainingBar(recipe(config)["epochs"], images, least, objective, run.folder / "log.txt")


def epoch_line(config: Train, data: Data, objective: Objective, epoch: Epoch, least: float | None) -> dict[str, Any]:
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
    if config.log_bound:
        line["bound"] = _watched_bound(config, data, objective)
    return line


def add_to_curve(config: Train, run: Run, data: Data, objective: Objective) -> None:
    """R@1 on the test classes after the last epoch that is done, if it is asked for and was not measured yet."""
    done = run.epochs()[-1:]
    # After the last of all epochs the test classes are measured in any case.
    due = bool(done) and done[0]["epoch"] in config.curve and done[0]["epoch"] < recipe(config)["epochs"]
    due = due and "test_recall_at_1" not in done[0] and len(data.split.test) > 0
    if distributed.in_any(distributed.is_first() and due)[0]:
        found = evaluated(objective.embedder, data, data.split.test, quick=True)
        if distributed.is_first():
            run.add(done[0]["epoch"], {"test_recall_at_1": found["recall_at_1"]})


def _watched_bound(config: Train, data: Data, objective: Objective) -> dict[str, Any]:
    """The paper's quantities on a fixed sample of the training images, so that the bound can be seen to tighten."""
    sample = np.random.default_rng(config.seed).permutation(len(data.split.train))[:WATCHED]
    outputs = normalise(loss_inputs(data, objective, data.split.train[sample])).cpu()
    centroids = objective.loss.centroids
    points = centroids.cpu() if isinstance(centroids, Tensor) else torch.eye(data.num_places)
    return asdict(certificate(outputs, torch.from_numpy(data.labels[sample]), points))


def results_of(run: Run, data: Data, vectors: np.ndarray) -> dict[str, Any]:
    """What results.json says of test images with these vectors."""
    labels = data.dataset.labels[data.split.test]
    return {
        "test_classes": len(np.unique(labels)),
        "test_images": len(labels),
        "train_classes": data.num_classes,
        "train_images": len(data.split.train),
        "trained": measured(vectors, data.dataset, data.split.test) if distributed.is_first() else None,
        "seconds": sum(line.get("seconds", 0.0) for line in run.epochs()),
    }


def write_and_show(config: Train, run: Run, results: dict[str, Any]) -> None:
    """The results into the run folder, and in front of who waits for them."""
    run.write("results", results)
    if config.json:
        print_json(results)
    elif results["trained"] is None:
        print(f"Trained on all classes, so there are none to test on. Run folder: {run.folder}")
    else:
        title = f"{results['data']}: {results['test_classes']} classes never seen, per cent"
        results_table(measured_rows(results), title)
    say(in_words(results), run.folder / "log.txt")
    if results["trained"] is not None and not config.json:
        picture = run.folder / "neighbours.png"
        print(f"run folder: {run.folder}" + (f"    picture: {picture}" if picture.exists() else ""))


def to_tensorboard(run: Run, line: dict[str, Any]) -> None:
    with summary_writer()(run.folder / "tensorboard") as writer:
        for name, value in {**line, **line.get("bound", {})}.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, line["epoch"])


def summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'tammes[track]'.") from None
    return SummaryWriter
