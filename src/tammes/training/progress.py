"""A bar for a training."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tammes.io.console import say, watched
from tammes.training.distributed import number

if TYPE_CHECKING:
    import torch
    from torch import nn

Item = TypeVar("Item")


class TrainingBar:
    """The bar of a training: epoch, images per second, loss, its distance to the known minimum, time left."""

    def __init__(self, epochs: int, images: int, least: float | None, objective: "nn.Module", log: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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

    def _see(self, _module: "nn.Module", _given: Any, parts: dict[str, "torch.Tensor"]) -> None:
        self._loss = parts["loss"].detach()

    def watch(self, batches: Iterable[Item], epoch: int) -> Iterator[Item]:
        """The same batches, counted; of several processes, each has about as much of a batch."""
        self._bar.update(self._task, epoch=epoch, completed=(epoch - 1) * self.images)
        for batch in batches:
            yield batch
            if not self._bar.disable:
                self._advance(len(batch[1]) * number())  # type: ignore[index]

    def _advance(self, images: int) -> None:
        speed = self._bar.tasks[0].speed
        loss = "" if self._loss is None else f"loss {float(self._loss):.4f}"
        if self._loss is not None and self.least is not None:
            loss += f", {float(self._loss) - self.least:.4f} above"
        self._bar.update(self._task, advance=images, loss=loss, speed="" if speed is None else f"{speed:.0f} images/s")

    def epoch_ended(self, line: dict[str, Any]) -> None:
        """A line that stays."""
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
        self._bar.stop()  # a line that stays goes above the bar
        say(text, self.log)
        self._bar.start()
