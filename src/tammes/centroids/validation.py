"""Validation of the sizes that every generator takes."""

import torch

from tammes.errors import UserError, check_whole, shown
from tammes.io.machine import memory


def checked_sizes(
    num_classes: int, dim: int, dtype: torch.dtype = torch.float64, generator: torch.Generator | None = None
) -> None:
    """Raise UserError for sizes without distinct unit points, and for dtypes other than float32 and float64."""
    check_whole("num_classes", num_classes)
    check_whole("dim", dim)
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"dtype must be torch.float32 or torch.float64, got {dtype}. Convert the result instead.")
    # Checked first: a system that overcommits memory would kill the process later.
    if num_classes * dim * dtype.itemsize > memory():
        raise UserError(
            f"{num_classes} centroids of {dim} numbers are more than this machine has memory for. Lower dim, or the"
            " number of classes."
        )
    if dim == 1 and num_classes > 2:
        raise UserError(
            f"in dim 1 only 2 distinct unit points exist, but there are {num_classes} classes. Raise dim to 2 or more."
        )
    if not isinstance(generator, torch.Generator | None):
        raise UserError(f"generator must be such as torch.Generator().manual_seed(0), got {shown(generator)}.")
