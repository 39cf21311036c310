"""Processes of tests: how they are started, and what those do that train together."""

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import as_on_every_machine

CLASSES, DIM = 4, 4
# Methods that draw something at random in a step draw it again in each process.
ALIKE = (
    *("discriminative", "hard-discriminative", "softmax", "normface", "arcface", "proxy-nca", "proxy-anchor"),
    *("contrastive", "triplet", "triplet-semihard", "lifted", "npair", "angular", "multi-similarity", "histogram"),
    *("triplet-naive", "triplet-global", "clustering", "center", "deepncm", "prototypical", "bier", "hdc"),
)
DRAWING = ("daml", "dvml")
BORROWED = ("pml:ProxyAnchorLoss", "pml:ContrastiveLoss", "pml:TripletMarginLoss with pml:TripletMarginMiner")
# Where the usual rate would move little in so few steps.
RATES = {"lifted": 0.01, "npair": 1.0, "center": 0.01, "deepncm": 1.0, "prototypical": 1.0, "bier": 0.003}


def forks() -> ForkServerContext:
    """Where processes are forks of one that has imported what they need, which takes longer than their work.

    Tests that use it are in one group, `processes`, so that there is one such process. LanceDB, whose threads do not
    survive a fork, is not imported yet.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tammes.cli", "tammes.run", "tammes.report.run", "timm", "tests.conftest", __name__]
    )
    return context


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def process(rank: int, number: int, port: int, said: Path, work: Callable[..., None], *given: Any) -> None:
    """Be one of several processes as a launcher starts them; what is said goes to a file."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}
    os.environ["OMP_NUM_THREADS"] = "1"
    with said.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch.set_num_threads(1)
    try:
        as_on_every_machine(pytest.MonkeyPatch())
        work(*given)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        raise


def exit_code(*arguments: str) -> int:
    """Run a command; how it ended."""
    from tammes.cli import main

    print(f"--- {' '.join(arguments)}", flush=True)
    try:
        main(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@contextmanager
def without_batch_norm() -> Iterator[None]:
    """Networks made in here have none, and of images a few are evaluated at a time."""
    with (
        patch.object(nn, "BatchNorm2d", lambda _: nn.Identity()),
        patch("tammes.training.data.images_at_once", lambda *_: 5),
    ):
        yield


@contextmanager
def stopped_after(steps: int, *, here: bool) -> Iterator[None]:
    """Commands in here are asked to stop after so many steps; here, or in another process."""
    steps_taken = count(1)

    @contextmanager
    def asked() -> Iterator[Callable[[], bool]]:
        yield lambda: next(steps_taken) == steps and here

    with patch("tammes.training.train.stop_on_signal", asked):
        yield


def trained(name: str) -> Mapping[str, Tensor]:
    """The weights, and what the loss remembers, after a few steps of a method; the last batch of an epoch is small."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    from tammes.losses import METHODS
    from tammes.models.embedder import Embedder, EmbedderConfig
    from tammes.training import distributed
    from tammes.training.loop import Batch, cosine, fit
    from tammes.training.objectives import Base, Objective, find_method

    loss, _, miner = name.partition(" with ")
    method = find_method(loss, miner or None)
    torch.manual_seed(0)
    heads = method.head_sizes(16)
    weights = () if method.weigh is None else method.weigh(heads)
    dim = 16 if method.on == "features" else DIM
    depths = ("blocks.2", "blocks.3") if method.depths else ()
    embedder = Embedder(EmbedderConfig("conv4", dim, heads=heads, head_weights=weights, depths=depths))
    base = next(iter(method.bases), "")
    other = METHODS.get(base)
    given: dict[Any, Any] = {"centroids": CLASSES, "num_classes": CLASSES, "dim": dim, "heads": heads, "features": 64}
    objective = Objective(
        embedder,
        method.make(given | {"base": Base(base, None if other is None else lambda _: other.make({}, {}))}, {}),
        on_features=method.on == "features",
        gathers=not method.per_image_loss,
    )
    labels = torch.cat([torch.arange(CLASSES).repeat_interleave(4), torch.tensor([0, 0, 1, 1, 2, 2])])
    if method.per_image_loss:
        labels = labels[:17]  # of the last batch the second process has nothing
    images = torch.randint(256, (len(labels), 1, 28, 28), generator=seeded(0))
    rank, number = distributed.rank(), distributed.number()

    def batches(_epoch: int) -> Iterator[Batch]:
        for part in torch.arange(len(labels)).split(16):
            own = part.tensor_split(number)[rank]
            yield images[own], labels[own], own

    handlers = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    optimizer = torch.optim.SGD(objective.parameters(), lr=RATES.get(name, 0.01 * max(0.1, method.lr)), momentum=0.9)
    epochs = 4 if method.per_image_loss else 2  # a hinge makes more of a last digit with every step
    layer = embedder.new_layers()[0]
    begun = layer.weight.detach().clone()
    with warnings.catch_warnings(action="ignore"):
        prepared, optimizer = accelerator.prepare(objective, optimizer)
    for epoch in fit(prepared, batches, optimizer, epochs=epochs, schedule=cosine(epochs), accelerator=accelerator):
        assert epoch.images == len(labels)
        losses = {f"mean {part}": torch.tensor(value) for part, value in epoch.losses.items()}
    losses["moved"] = (layer.weight.detach() - begun).abs().max()
    return {each: value.detach().clone() for each, value in objective.state_dict().items()} | losses


def of_methods(folder: Path) -> None:
    """What each method comes to in two processes, and what gathers rows from a process that has none."""
    from safetensors.torch import save_file

    from tammes.training import distributed

    with distributed.joined(), without_batch_norm():
        for name in (*ALIKE, *BORROWED, *DRAWING):
            found = trained(name)
            save_file(
                {each: value.contiguous() for each, value in found.items()}, folder / f"{name} {distributed.rank()}"
            )
        rows = torch.arange(6.0).view(3, 2)[: 3 * distributed.is_first()].requires_grad_()
        whole, labels = distributed.gathered(rows, torch.arange(3)[: len(rows)])
        assert whole.tolist() == torch.arange(6.0).view(3, 2).tolist()
        assert labels.tolist() == [0, 1, 2]
        whole.sum().backward()
        assert rows.grad is not None
        assert (rows.grad == 2).all()


def of_commands(
    folder: Path, commands: Mapping[str, tuple[str, ...]], to_stop: tuple[str, ...], interrupted: Path
) -> None:
    """Commands in two processes, one after the other, and the code that each ends with."""
    from tammes.training import distributed

    rank = os.environ["RANK"]
    codes = {}

    def ended(*arguments: str) -> int:
        # Each command meets at a place of its own: the other process may not have left the last one yet.
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        return exit_code(*arguments)

    with without_batch_norm():
        for name, arguments in commands.items():
            codes[name] = ended(*arguments)
        with stopped_after(7, here=rank == "1"):  # asked in one of them, both stop
            codes["stopped"] = ended(*to_stop)
        codes["resumed"] = ended("train", "--resume", str(interrupted))
    assert distributed.number() == 1
    (folder / f"codes {rank}").write_text(repr(codes))


def commands_resumed(folder: Path, commands: Mapping[str, tuple[tuple[str, ...], bool]], steps: int) -> None:
    """Each command to its end, and stopped after so many steps and resumed; with batch normalisation or without."""
    from tammes.training import distributed

    with distributed.joined():
        for name, (words, batch_norm) in commands.items():
            with nullcontext() if batch_norm else without_batch_norm():
                whole, part = (str(folder / name / out) for out in ("whole", "part"))
                assert exit_code(*words, "--out", whole) == 0
                with stopped_after(steps, here=distributed.rank() == 1):
                    assert exit_code(*words, "--out", part) == 130
                assert exit_code("train", "--resume", part) == 0


def both(folder: Path, *given: Any) -> None:
    of_methods(folder)
    of_commands(folder, *given)


def one_fails() -> None:
    """The second has something to say that the first knows nothing of."""
    from tammes import UserError
    from tammes.training import distributed

    try:
        with distributed.joined():
            distributed.agreed(lambda: None)  # by then they have met
            if distributed.rank() == 1:
                raise UserError("no room here.")
            distributed.agreed(lambda: None)
    except UserError as error:
        print(error, flush=True)


def one_hangs() -> None:
    """The second stops, as by Ctrl-Z, when both have met; the first waits for it at the end."""
    from tammes.training import distributed, heartbeat

    with patch.object(heartbeat, "_EVERY", 0.05), distributed.joined(), patch.object(heartbeat, "_SILENT", 0.5):
        distributed.agreed(lambda: None)
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        distributed.agreed(lambda: None)


def one_is_killed(step: int, *arguments: str) -> None:
    """A command, in which the second process is killed as it begins this step."""
    from tammes.training import distributed, loop

    usual, steps = loop._set_rates, count(1)

    def rates(*given: Any) -> None:
        if next(steps) == step and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        usual(*given)

    with patch.object(loop, "_set_rates", rates):
        raise SystemExit(exit_code(*arguments))
