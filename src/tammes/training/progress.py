"""Progress of a training: estimated time, plan, progress bar, a line per epoch, TensorBoard."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from tammes.bound import certificate
from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.io.console import duration, say, watched, working
from tammes.io.machine import multiplies_bfloat16
from tammes.models.embedder import Embedder
from tammes.training import distributed
from tammes.training.build import leaving_no_trace
from tammes.training.config import TrainConfig
from tammes.training.data import Data, training_batches
from tammes.training.evaluation import loss_inputs
from tammes.training.loop import Epoch
from tammes.training.objectives import Objective
from tammes.training.run_folder import RunFolder

Item = TypeVar("Item")
WATCHED = 512  # training images on which the bound is logged
FEW = 15  # images with which a step is timed; a multiple of 3, for losses of triplets


def say_expected(config: TrainConfig, embedder: Embedder, images: int) -> None:
    """Print the expected time of preset paper with every layer trained; other trainings are short.

    Args:
        images: number of training images.
    """
    if config.preset != "paper" or config.train != "all":
        return
    with working("timing a step"):
        seconds = _seconds_per_image(config, embedder) * images * config.epochs / distributed.number()
    cheaper = [] if config.weights == "none" else ["`train='top'` (the upper layers only)"]
    cheaper += ["`epochs=5` with `halve_every=1`"] if config.epochs > 5 else []
    faster = config.on_gpu or multiplies_bfloat16()
    cheaper += ["`precision='bf16'`"] if faster and config.precision == "no" else []
    instead = f" Cheaper: {' or '.join(cheaper)}." if cheaper else ""
    say(f"preset paper: {config.epochs} epochs of {images} images, about {duration(seconds)} on this machine.{instead}")


def _seconds_per_image(config: TrainConfig, embedder: Embedder) -> float:
    """Seconds per image of a training step, measured on random images."""
    size, device = (FEW, len(embedder.mode), embedder.size, embedder.size), embedder.mean.device
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    times = []
    with leaving_no_trace(embedder):
        images = torch.randint(256, size, dtype=torch.uint8).to(device)
        for _ in range(2):
            started = perf_counter()
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                value = embedder.outputs(embedder.features(images)).float().square().mean()
            value.backward()
            value.item()  # waits for the GPU
            times.append(perf_counter() - started)
    embedder.zero_grad()
    return min(times) / FEW


def _epochs(config: TrainConfig) -> str:
    return "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"


def say_plan(
    run: RunFolder, config: TrainConfig, data: Data, embedder: Embedder, device: torch.device, seconds: float
) -> None:
    """Print the plan of the training before it starts: data, network, loss and expected time."""
    parts, shape = data.split, embedder.config
    held_out = "no classes, so it is not measured whether training helps"
    if parts.val is not None:
        held = len(data.classes()["val"])
        held_out = (
            f"{held} other classes ({len(parts.val)} images), to choose the epoch and measure whether training helps"
        )
    weights = sum(parameter.numel() for parameter in embedder.parameters())
    classes = f"{data.num_classes} classes"
    if data.slots is not None:
        new = f" ({len(set(data.class_names) - set(data.slots.old))} new)" if data.slots.old else ""
        classes += f"{new}, centroids for {data.slots.number - len(data.slots.of)} more"
    pool = "" if shape.pool == "published" else f" with {shape.pool} pooling"
    where = f"{device}, {distributed.number()} processes" if distributed.number() > 1 else str(device)
    where += {"bf16": ", bfloat16", "fp16": ", float16"}.get(config.precision, "")
    layer = "no class layer" if shape.class_dim is None else f"class layer {shape.class_dim}"
    tested = f"{len(parts.test)} test images of {len(data.classes()['test'])} other classes"
    tested = tested if len(parts.test) else "no test images"
    began = config.weights if config.objects.module is None else "its own"
    lines = [
        f"data      {data.dataset.name}: {len(parts.train)} training images of {classes},",
        f"          {tested}",
        f"held out  {held_out}",
        f"network   {shape.backbone}{pool}, embedding {shape.dim}, {layer}, {weights:,} weights, from {began}",
        f"trained   {_trained(config, embedder)}",
        f"loss      {_describe_loss(config)}, preset {config.preset}",
        f"device    {where}; {_epochs(config)}, about {duration(seconds)}; {weights / 3.8e4:.0f} MB of disk",
        f"run       {run.folder}",
    ]
    for line in lines:
        say(line, run.folder / "log.txt")


def estimate(config: TrainConfig, data: Data, objective: Objective) -> float:
    """The expected seconds of the training, from two steps on a part of a batch."""
    inputs, labels, _ = next(iter(training_batches(config, data, 1)))
    device = objective.embedder.mean.device
    inputs, labels = inputs[:FEW].to(device), labels[:FEW].to(device)
    times = []
    with leaving_no_trace(objective):
        for _ in range(2):
            started = perf_counter()
            torch.stack(list(objective(inputs, labels).values())).sum().backward()
            times.append(perf_counter() - started)
    objective.zero_grad()
    images = training_batches(config, data, 1).num_images * config.epochs
    return float(min(times) / len(labels) * images / distributed.number())


def _trained(config: TrainConfig, embedder: Embedder) -> str:
    """A description of the trainable layers."""
    trained = sum(parameter.numel() for parameter in embedder.parameters() if parameter.requires_grad)
    kept = " except the embedding layer" if config.keep_init else ""
    if config.train == "all":
        return f"all layers{kept} ({trained:,} weights)"
    if config.train == "top":
        part = f"the layers from {config.cut} up"
    elif config.keep_init:
        part = "only the class layer; the embedding layer is frozen, so embeddings do not change"
    else:
        part = "the embedding layer" + ("" if embedder.class_layer is None else " and the class layer")
    crops = f"{config.views} crops of each image" if config.views else "centre crops"
    weights = f"{part}{kept if config.train == 'top' else ''} ({trained:,} weights)"
    return f"{config.train}: {weights}, on cached activations of {crops}; `train='all'` trains all layers"


def _describe_loss(config: TrainConfig) -> str:
    named = config.loss if config.base is None else f"{config.loss} on {config.base}"
    return f"{named}, {config.centroids} centroids" if config.has_centroids else named


def training_bar(
    config: TrainConfig, run: RunFolder, data: Data, least: float | None, objective: nn.Module
) -> "TrainingBar":
    images = training_batches(config, data, 1).num_images
    return TrainingBar(config.epochs, images, least, objective, run.folder / "log.txt")


def epoch_line(
    config: TrainConfig, data: Data, objective: Objective, epoch: Epoch, least: float | None
) -> dict[str, Any]:
    """The log of an epoch, as written to metrics.jsonl."""
    line: dict[str, Any] = {
        "epoch": epoch.number,
        **epoch.losses,
        **({} if least is None else {"above_minimum": epoch.losses["loss"] - least}),
        **getattr(objective.loss, "noted", {}),
        "lr": epoch.rates[0],
        "seconds": epoch.seconds,
        "images_per_second": epoch.images / max(epoch.seconds, 1e-9),
    }
    if config.log_bound:
        line["bound"] = _watched_bound(config, data, objective)
    return line


def _watched_bound(config: TrainConfig, data: Data, objective: Objective) -> dict[str, Any]:
    """The paper's bound and its certificate on a fixed sample of the training images."""
    sample = np.random.default_rng(config.seed).permutation(len(data.split.train))[:WATCHED]
    outputs = normalise(loss_inputs(data, objective, data.split.train[sample])).cpu()
    centroids = objective.loss.centroids
    points = centroids.cpu() if isinstance(centroids, Tensor) else torch.eye(data.num_slots)
    return asdict(certificate(outputs, torch.from_numpy(data.labels[sample]), points))


class TrainingBar:
    """The progress bar: epoch, images per second, loss, its distance to the known minimum, remaining time."""

    def __init__(self, epochs: int, images: int, least: float | None, objective: nn.Module, log: Path) -> None:
        self.epochs, self.images, self.least, self.log = epochs, images, least, log
        self._loss: torch.Tensor | None = None
        objective.register_forward_hook(self._see)
        columns = (
            TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not watched(), transient=True)
        self._task = self._bar.add_task("", total=epochs * images, epoch=1, speed="", loss="")

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _see(self, _module: nn.Module, _given: Any, parts: dict[str, Tensor]) -> None:
        self._loss = parts["loss"].detach()

    def watch(self, batches: Iterable[Item], epoch: int) -> Iterator[Item]:
        """Yield the batches and advance the bar by their images over all processes."""
        self._bar.update(self._task, epoch=epoch, completed=(epoch - 1) * self.images)
        for batch in batches:
            yield batch
            if not self._bar.disable:
                self._advance(len(batch[1]) * distributed.number())  # type: ignore[index]

    def _advance(self, images: int) -> None:
        speed = self._bar.tasks[0].speed
        loss = "" if self._loss is None else f"loss {float(self._loss):.4f}"
        if self._loss is not None and self.least is not None:
            loss += f", {float(self._loss) - self.least:.4f} above"
        self._bar.update(self._task, advance=images, loss=loss, speed="" if speed is None else f"{speed:.0f} images/s")

    def epoch_ended(self, line: dict[str, Any]) -> None:
        """Print a permanent line for a finished epoch."""
        text = f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}"
        if "above_minimum" in line:
            text += f" ({line['above_minimum']:.4f} above its minimum)"
        text += f"  {line['images_per_second']:.0f} images/s"
        if "val_recall_at_1" in line:
            text += f"  validation R@1 {100 * line['val_recall_at_1']:.2f}"
        if "bound" in line:
            bound = line["bound"]
            gap, allowed = (bound[name] / max(1, bound["triplets"]) for name in ("gap", "lemma"))
            text += f"  gap to the triplet loss {gap:.4f} (Lemma {allowed:.4f})"
        self._bar.stop()  # the line is printed above the bar
        say(text, self.log)
        self._bar.start()


def to_tensorboard(run: RunFolder, line: dict[str, Any]) -> None:
    with summary_writer()(run.folder / "tensorboard") as writer:
        for name, value in {**line, **line.get("bound", {})}.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, line["epoch"])


def summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("`tensorboard` needs the package tensorboard: pip install 'tammes[track]'.") from None
    return SummaryWriter
