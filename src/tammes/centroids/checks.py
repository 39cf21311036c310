"""What every generator asks of its sizes."""

import torch

from tammes.errors import UserError


def checked_sizes(num_classes: int, dim: int, dtype: torch.dtype = torch.float64) -> None:
    """Refuse sizes for which no distinct unit points exist, and types in which they might not stay distinct."""
    if num_classes < 1:
        raise UserError(f"num_classes must be at least 1, got {num_classes}.")
    if dim < 1:
        raise UserError(f"dim must be at least 1, got {dim}.")
    if dim == 1 and num_classes > 2:
        raise UserError(
            f"in dim 1 only 2 distinct unit points exist, but there are {num_classes} classes. Raise dim to 2 or more."
        )
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"dtype must be torch.float32 or torch.float64, got {dtype}. Convert the result instead.")
