"""The training loop: fit() yields one epoch at a time; the caller evaluates, logs, saves or breaks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from math import cos, isfinite, pi
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from tammes.training import distributed

Batch = tuple[Tensor, Tensor, Tensor]  # images, labels, indices
Batches = Callable[[int], Iterable[Batch]]


@dataclass
class Position:
    """The position in the training: with weights and optimizer, all that is needed to resume.

    Attributes:
        epoch: the current epoch, from 1.
        step: finished batches of the epoch.
        images: finished images of the epoch.
        seconds: time spent in the epoch.
        totals: sums of each part of the loss over the images of the epoch.
    """

    epoch: int = 1
    step: int = 0
    images: int = 0
    seconds: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """A finished or interrupted epoch.

    Attributes:
        number: from 1.
        losses: the mean of each part of the loss over the images.
        seconds: the duration.
        images: the number of images.
        rates: the learning rate of each parameter group.
        position: the position to resume from.
        complete: whether all batches were used; False if the epoch was interrupted.
    """

    number: int
    losses: dict[str, float]
    seconds: float
    images: int
    rates: tuple[float, ...]
    position: Position
    complete: bool = True


class OneProcess:
    """The part of accelerate's interface that `fit` needs, for one process on the CPU."""

    device = torch.device("cpu")

    def unwrap_model(self, objective: nn.Module) -> nn.Module:
        return objective

    def no_sync(self, _objective: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()


def fit(
    objective: nn.Module,
    batches: Batches,
    optimizer: Optimizer,
    *,
    epochs: int,
    schedule: Callable[[int, int], float],
    seed: int = 0,
    start: Position | None = None,
    accelerator: "Accelerator | OneProcess | None" = None,
    accumulate: int = 1,
    at_once: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    save: Callable[[Position], None] | None = None,
    save_every: float = 600.0,
    everything: Callable[[], tuple[Tensor, Tensor]] | None = None,
) -> Iterator[Epoch]:
    """Train, and yield each finished epoch; the caller can evaluate and save in between.

    With several processes, each computes its own share of every batch, and all stop and save after the same step. An
    objective with `gathers` computes the loss of the whole batch in each process, any other that of its share.

    Args:
        objective: (images, labels) -> the parts of the loss by name. If it has `begin(epoch, epochs)`, that is called
            at the start of each epoch, and when training resumes within one.
        batches: epoch number -> the batches (images, labels, indices) of that epoch, reproducible; with several
            processes, the share of this one.
        schedule: (epoch number, finished batches) -> factor on the initial learning rates for the next step.
        seed: seeds the randomness inside the network (dropout), together with the epoch number.
        start: the position to resume from; weights and optimizer must belong to it.
        accelerator: the device and the processes; None for the CPU of this process.
        accumulate: batches whose gradients are summed before a step. For a loss that is a mean over images, this equals
            one large batch; for a loss of pairs it does not.
        at_once: images in one forward pass: a larger batch is computed in pieces whose gradients are summed. None for
            whole batches.
        stop: called after each step; True ends training with an incomplete epoch.
        save: called within long epochs with the position, every `save_every` seconds.
        everything: returns the outputs for all training images in evaluation mode, and their labels; needed for an
            objective that sees them before the first epoch, or before each. Called before `batches`.

    Raises:
        UserError: the loss is NaN or infinite.
    """
    accelerator = accelerator or OneProcess()
    at = start or Position()
    look_every = 1 if accelerator.device.type == "cpu" else 20
    own = accelerator.unwrap_model(objective)
    gathers: bool = getattr(own, "gathers", False)
    number_of_processes = distributed.number()
    base_rates = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
    while at.epoch <= epochs:
        started, complete = perf_counter() - at.seconds, True
        if at.step == 0:
            torch.manual_seed(_mixed(seed, at.epoch))
            _look(own, everything, at.epoch, seed)
        if hasattr(own, "begin"):
            own.begin(at.epoch, epochs)  # type: ignore[operator]
        objective.train()  # the caller may have evaluated since the last epoch
        saved = perf_counter()
        totals = {
            name: torch.tensor(value if distributed.is_first() else 0.0, dtype=torch.float64)
            for name, value in at.totals.items()
        }
        for together in _groups(islice(batches(at.epoch), at.step, None), accumulate):
            if number_of_processes > 1:  # a seed for each step and process, so that a resumed run draws the same
                torch.manual_seed(_mixed(_mixed(seed, at.epoch), at.step * number_of_processes + distributed.rank()))
            sizes = distributed.summed([len(labels) for _, labels, _ in together])  # of the batches, not of our shares
            seen = sum(sizes)
            pieces = [
                (*piece, size)
                for (images, labels, _), size in zip(together, sizes, strict=True)
                for piece in _pieces(images, labels, at_once)
            ]
            for number, (images, labels, size) in enumerate(pieces, start=1):
                counted = size / number_of_processes if gathers else len(labels)
                wait = nullcontext() if number == len(pieces) else accelerator.no_sync(objective)
                with wait:
                    parts = objective(images.to(accelerator.device), labels.to(accelerator.device))
                    # Each image has the same weight in the step, also if the last batch is smaller. Gradients are
                    # averaged over the processes.
                    loss = torch.stack(list(parts.values())).sum()
                    accelerator.backward(loss * (counted * number_of_processes / seen))
                for name, part in parts.items():
                    # Stays on its device, as reading it would make a GPU wait.
                    totals[name] = totals.get(name, 0.0) + part.detach().double() * counted
            _set_rates(optimizer, base_rates, schedule(at.epoch, at.step))
            at.step += len(together)
            looks = at.step % look_every < len(together)
            broken = looks and not all(total.isfinite() for total in totals.values())
            asked = [broken, save is not None and perf_counter() - saved >= save_every, stop()]
            if number_of_processes > 1:
                asked = distributed.in_any(*asked) if looks else [False] * 3
            broken, late, stopped = asked
            if broken:
                raise distributed.same_everywhere(_not_finite(at, optimizer, saves=save is not None))
            optimizer.step()
            optimizer.zero_grad()
            at.images += seen
            at.seconds = perf_counter() - started
            if stopped:
                complete = False
                break
            if late and save is not None:
                at.totals = _of_all(totals)
                save(at)
                saved = perf_counter()
        at.totals = _of_all(totals)
        if not all(isfinite(total) for total in at.totals.values()):
            raise distributed.same_everywhere(_not_finite(at, optimizer, saves=save is not None))
        if complete and not all(tensor.isfinite().all() for tensor in own.state_dict().values()):
            # The last step may have broken the weights: no loss was computed after it.
            raise distributed.same_everywhere(_not_finite(at, optimizer, "a weight", saves=save is not None))
        losses = {name: value / max(1, at.images) for name, value in at.totals.items()}
        rates = tuple(group["lr"] for group in optimizer.param_groups)
        done = at
        at = Position(at.epoch + 1) if complete else at
        yield Epoch(done.epoch, losses, done.seconds, done.images, rates, at, complete)
        if not complete:
            return


def _look(objective: nn.Module, everything: Callable[[], tuple[Tensor, Tensor]] | None, epoch: int, seed: int) -> None:
    """Call the objective's `look` with all training images, if it needs them before this epoch."""
    sees = getattr(objective, "sees", "batches")
    if sees == "batches" or (sees == "all images once" and epoch > 1):
        return
    if everything is None:
        raise ValueError(f"the objective sees {sees}: give fit(everything=...)")
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    objective.look(*everything(), generator=generator)  # type: ignore[operator]


def _set_rates(optimizer: Optimizer, base_rates: Sequence[float], factor: float) -> None:
    for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
        group["lr"] = rate * factor


def halved_every(epochs: int) -> Callable[[int, int], float]:
    """The paper's schedule: halve the learning rate after every `epochs` epochs."""
    return lambda epoch, _: 0.5 ** ((epoch - 1) // epochs)


def cosine(epochs: int, batches: int = 1) -> Callable[[int, int], float]:
    """A cosine from 1 to 0, with one step per batch; by default one step per epoch.

    >>> [round(cosine(2)(epoch, done), 3) for epoch in (1, 2) for done in (0, 1)]
    [1.0, 1.0, 0.5, 0.5]
    >>> [round(cosine(2, batches=2)(epoch, done), 3) for epoch in (1, 2) for done in (0, 1)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return lambda epoch, done: (1 + cos(pi * (epoch - 1 + min(done, batches - 1) / batches) / epochs)) / 2


def warm_up(schedule: Callable[[int, int], float], epochs: float, batches: int) -> Callable[[int, int], float]:
    """A schedule with a linear warm-up from 0 over `epochs` epochs of `batches` batches each.

    >>> warm = warm_up(halved_every(1), 0.5, batches=4)
    >>> [warm(1, done) for done in (0, 1, 2, 3)], warm(2, 0)
    ([0.5, 1.0, 1.0, 1.0], 0.5)
    """
    return lambda epoch, done: schedule(epoch, done) * min(1.0, ((epoch - 1) * batches + done + 1) / (epochs * batches))


def _mixed(seed: int, epoch: int) -> int:
    """A seed from two numbers; neighbouring inputs give unrelated seeds."""
    return (seed * 1_000_003 + epoch) * 2_654_435_761 % 2**63


def _of_all(totals: dict[str, Tensor]) -> dict[str, float]:
    """The sums over all processes."""
    return dict(zip(totals, distributed.summed_floats([float(total) for total in totals.values()]), strict=True))


def _groups(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    batches = iter(batches)
    while group := list(islice(batches, size)):
        yield group


def _pieces(images: Tensor, labels: Tensor, size: int | None) -> Iterable[tuple[Tensor, Tensor]]:
    if size is None or len(labels) <= size:
        return [(images, labels)]
    number = -(-len(labels) // size)  # of equal size: a small last piece would take nearly as long as a whole one
    return zip(images.tensor_split(number), labels.tensor_split(number), strict=True)


def _not_finite(at: Position, optimizer: Optimizer, what: str = "the loss", *, saves: bool) -> str:
    lrs = ", ".join(dict.fromkeys(f"{group['lr']:g}" for group in optimizer.param_groups))
    kept = " The checkpoint of the last good epoch is kept." if at.epoch > 1 else " No epoch had ended yet."
    return (
        f"{what} is not a finite number at epoch {at.epoch}, step {at.step}. The likely cause is a learning rate that"
        f" is too high (now {lrs}): try a tenth.{kept if saves else ''}"
    )


def parameter_groups(
    new: Iterable[nn.Module],
    everything: nn.Module,
    *,
    lr: float,
    backbone_lr: float,
    weight_decay: float,
    proxies: nn.Module | None = None,
    proxy_lr: float = 0.0,
    proxy_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Parameter groups: new layers at `lr`, the rest at `backbone_lr`; biases and normalisation without weight decay.

    Args:
        new: the new layers, including layers of the loss that are trained like them.
        proxies: the loss, if it has parameters: its proxies and layers are trained at `proxy_lr`, a scale at `lr`.
    """
    kinds = {id(each): 1 if each.ndim > 1 else 2 for each in ([] if proxies is None else proxies.parameters())}
    layers = [each for each in ([] if proxies is None else proxies.modules()) if isinstance(each, nn.Linear)]
    kinds |= {id(parameter): 1 for layer in layers for parameter in layer.parameters()}
    kinds |= {id(parameter): 2 for module in new for parameter in module.parameters()}
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in everything.parameters():
        if parameter.requires_grad:
            groups.setdefault((kinds.get(id(parameter), 0), parameter.ndim > 1), []).append(parameter)
    lrs, decays = (backbone_lr, proxy_lr, lr), (weight_decay, proxy_decay, weight_decay)
    return [
        {"params": parameters, "lr": lrs[kind], "weight_decay": decays[kind] if is_weight else 0.0}
        for (kind, is_weight), parameters in sorted(groups.items(), key=lambda group: group[0], reverse=True)
    ]
