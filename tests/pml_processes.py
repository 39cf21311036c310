"""What two processes do with our loss in pytorch-metric-learning's wrapper; light to import, as each of them must."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tammes.errors import UserError
from tammes.losses.to_pml import DiscriminativeLoss

CORNERS = nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))


def a_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def eight() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 6


def in_two_processes(folder: Path) -> None:
    """Writes the gradient of half a batch each, and what is said of efficient=True."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    inputs, labels = (each[rank::2] for each in eight())
    network = DistributedDataParallel(a_network())
    DistributedLossWrapper(DiscriminativeLoss(CORNERS))(network(inputs), labels).backward()
    if rank == 0:
        torch.save([parameter.grad for parameter in network.parameters()], folder / "gradient.pt")
    try:
        DistributedLossWrapper(DiscriminativeLoss(CORNERS), efficient=True)(network(inputs), labels)
    except UserError as error:
        (folder / f"refused {rank}.txt").write_text(str(error))
    dist.barrier()
    dist.destroy_process_group()
