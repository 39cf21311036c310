"""Distributed training: rank and number of processes, and communication between them.

A launcher (torchrun, accelerate launch) starts the same command several times; nothing is started here. In a single
process, all functions return at once. Functions that communicate must be called by all processes in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tammes.errors import UserError
from tammes.io.console import be_silent
from tammes.io.environment import first_host, launched
from tammes.training.heartbeat import heartbeats

if TYPE_CHECKING:
    import torch
    from torch import nn

Result = TypeVar("Result")

# The first process evaluates and writes while the others wait. A process that dies is noticed by its connection.
_PATIENCE = timedelta(hours=24)


@dataclass
class _Here:
    """This process; `group` is for communication besides the gradients."""

    rank: int = 0
    local_rank: int = 0
    number: int = 1
    group: Any = None


_here = _Here()


def rank() -> int:
    """The rank of this process, from 0."""
    return _here.rank


def number() -> int:
    """The number of processes."""
    return _here.number


def is_first() -> bool:
    """Whether this is the first process, which writes files and prints."""
    return _here.rank == 0


@contextmanager
def joined() -> Iterator[None]:
    """Connect this process to the others of the same launch, if there are several."""
    found = launched()
    if found.number == 1 or _here.number > 1:
        yield
        return
    import torch
    import torch.distributed as dist

    try:
        dist.init_process_group(None if torch.accelerator.is_available() else "gloo")
        _here.group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"process {found.rank} of {found.number} could not connect to the others: {_briefly(error)}. Each of them"
            " must reach the launcher's --master-addr and --master-port. Without a launcher, unset RANK and WORLD_SIZE."
        ) from None
    alive = None
    try:
        _here.rank, _here.local_rank, _here.number = found
        be_silent(found.rank > 0)
        alive = heartbeats(first_host(), found.rank, found.number, from_first)
        if alive is not None:
            alive.start()
        yield
        dist.barrier(_here.group)  # the first process may still be writing, and hosts the connections
    except RuntimeError as error:
        if not _of_another(error):
            raise
        raise UserError(
            f"process {found.rank} of {found.number} has lost its connection to the others: one of them has ended,"
            " and its error is elsewhere in this output. Once that is fixed, start the same launcher again: with"
            f" `tammes train --resume RUN` to resume a training, otherwise with the same command. ({_briefly(error)})"
        ) from None
    except UserError as error:
        raise error if found.rank == 0 else UserError(f"process {found.rank} of {found.number}: {error}") from None
    finally:
        if alive is not None:
            alive.stop()
        _here.__init__()  # type: ignore[misc]
        be_silent(False)
        if dist.is_initialized():
            dist.destroy_process_group()


def _briefly(error: Exception) -> str:
    return str(error).splitlines()[0].split(". ")[0]


def _of_another(error: RuntimeError) -> bool:
    """Whether the error is a broken connection to another process."""
    import torch.distributed as dist

    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "connection"))


def agreed(work: Callable[[], Result]) -> Result:
    """Call `work` in each process and return its result. If one fails, all end, and the first prints the error."""
    if _here.number == 1:
        return work()
    import torch.distributed as dist

    found, said = None, ""
    try:
        found = work()
    except UserError as error:
        said = str(error)
    failed = _reduced([_here.rank if said else _here.number], dist.ReduceOp.MIN)[0]
    if failed == _here.number:
        return found  # type: ignore[return-value]
    raise same_everywhere(_told(said, failed))


def same_everywhere(said: str) -> BaseException:
    """The exception to raise for an error that all processes have: the first prints it, the others exit silently."""
    return UserError(said) if _here.rank == 0 else SystemExit(2)


def one_a_host_first(work: Callable[[], Result]) -> Result:
    """Call `work` in one process of each host first, so that the others find its results in the cache."""
    leads = _here.local_rank == 0
    found = agreed(lambda: work() if leads else None)
    return agreed(lambda: found if leads else work())  # type: ignore[return-value]


def summed(numbers: Sequence[int]) -> list[int]:
    """The sums of numbers over all processes."""
    if _here.number == 1:
        return list(numbers)
    import torch.distributed as dist

    return _reduced(numbers, dist.ReduceOp.SUM)


def summed_floats(numbers: Sequence[float]) -> list[float]:
    """The sums of numbers over all processes, added up in the same order in each of them."""
    if _here.number == 1:
        return list(numbers)
    import torch

    found: list[float] = _reduced_tensor(torch.tensor(numbers, dtype=torch.float64)).tolist()
    return found


def in_any(*flags: bool) -> list[bool]:
    """Which of the flags are true in at least one process."""
    return [value > 0 for value in summed([int(flag) for flag in flags])]


def gathered(rows: "torch.Tensor", labels: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """The rows of all processes in the order of their ranks, with gradients, and their labels.

    Every process then computes the same loss of the whole batch. DistributedDataParallel averages gradients over the
    processes. That is right for parameters of the loss, whose full gradient each process has. For the network each
    process has only the gradient of its own rows, which is therefore multiplied by the number of processes.
    """
    if _here.number == 1:
        return rows, labels
    import torch
    import torch.distributed as dist

    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    sizes = summed([len(labels) * (each == _here.rank) for each in range(_here.number)])

    def of_all(own: torch.Tensor) -> list[torch.Tensor]:
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    parts = of_all(rows)
    fixed = rows.detach()
    parts[_here.rank] = fixed + _here.number * (rows - fixed)  # the same value
    return torch.cat(parts), torch.cat(of_all(labels))


def by_place(rows: "Sequence[torch.Tensor]", places: "Sequence[torch.Tensor]", total: int) -> "torch.Tensor":
    """Gather the rows of all processes, each at its position; on the CPU, without a gradient."""
    import torch
    import torch.distributed as dist

    if _here.number == 1:
        return torch.cat(list(rows))
    own = torch.cat([each.detach().cpu().float() for each in rows]) if rows else torch.empty(0, 0)
    at = torch.cat([each.cpu() for each in places]) if places else torch.empty(0, dtype=torch.int64)
    width = _reduced([own.shape[1]], dist.ReduceOp.MAX)[0]
    out = torch.empty(total, width)
    for source, size in enumerate(summed([len(at) * (each == _here.rank) for each in range(_here.number)])):
        if size:
            part = own.contiguous() if source == _here.rank else torch.empty(size, width)
            where = at if source == _here.rank else torch.empty(size, dtype=torch.int64)
            dist.broadcast(part, source, group=_here.group)
            dist.broadcast(where, source, group=_here.group)
            out[where] = part
    return out


def from_first(text: str) -> str:
    """Broadcast a text of the first process."""
    return text if _here.number == 1 else _told(text, 0)


def from_each(text: str) -> list[str]:
    """Gather a text from each process, in the order of their ranks."""
    return [text] if _here.number == 1 else [_told(text, source) for source in range(_here.number)]


def take_over(tensors: "Sequence[torch.Tensor]") -> None:
    """Broadcast the first process's values of these tensors."""
    import torch.distributed as dist

    for tensor in tensors if _here.number > 1 else ():
        held = tensor.detach().cpu().contiguous()
        dist.broadcast(held, 0, group=_here.group)
        tensor.detach().copy_(held)


def take_over_statistics(network: "nn.Module") -> None:
    """Broadcast the first process's running statistics of batch normalisation."""
    from torch.nn.modules.batchnorm import _NormBase

    normalised = [module for module in network.modules() if isinstance(module, _NormBase)]
    take_over([buffer for module in normalised for buffer in module.buffers()])


def _told(text: str, source: int) -> str:
    """Broadcast a text of one process."""
    import torch
    import torch.distributed as dist

    said = text.encode()
    size = torch.tensor(len(said))
    dist.broadcast(size, source, group=_here.group)
    letters = torch.zeros(int(size), dtype=torch.uint8)
    if _here.rank == source:
        letters = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    dist.broadcast(letters, source, group=_here.group)
    return bytes(letters.tolist()).decode()


def _reduced(numbers: Sequence[int], how: Any) -> list[int]:
    import torch

    found: list[int] = _reduced_tensor(torch.tensor(numbers, dtype=torch.int64), how).tolist()
    return found


def _reduced_tensor(values: "torch.Tensor", how: Any = None) -> "torch.Tensor":
    import torch.distributed as dist

    dist.all_reduce(values, dist.ReduceOp.SUM if how is None else how, group=_here.group)
    return values
