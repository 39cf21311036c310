"""The losses, one file each: (embeddings (batch, dim), labels (batch,)) -> scalar, the mean over the batch."""

from torch import nn

from tammes.losses.discriminative import DiscriminativeLoss
from tammes.losses.hard_discriminative import HardDiscriminativeLoss

LOSSES: dict[str, type[nn.Module]] = {
    "discriminative": DiscriminativeLoss,
    "hard-discriminative": HardDiscriminativeLoss,
}

__all__ = ["LOSSES", "DiscriminativeLoss", "HardDiscriminativeLoss"]
