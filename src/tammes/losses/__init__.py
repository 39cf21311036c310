"""The losses, one file each: (embeddings (batch, dim), labels (batch,)) -> scalar, the mean over the batch."""

from torch import nn

from tammes.losses.discriminative import DiscriminativeLoss
from tammes.losses.hard_discriminative import HardDiscriminativeLoss
from tammes.losses.softmax import SoftmaxLoss

# Those that measure distances to fixed centroids take them first.
WITH_CENTROIDS: dict[str, type[nn.Module]] = {
    "discriminative": DiscriminativeLoss,
    "hard-discriminative": HardDiscriminativeLoss,
}
LOSSES: dict[str, type[nn.Module]] = {**WITH_CENTROIDS, "softmax": SoftmaxLoss}
# Those that are a mean over images whatever else is in the batch: it may be computed in pieces.
EACH_ON_ITS_OWN = frozenset({"discriminative", "hard-discriminative", "softmax"})

__all__ = ["EACH_ON_ITS_OWN", "LOSSES", "WITH_CENTROIDS", "DiscriminativeLoss", "HardDiscriminativeLoss", "SoftmaxLoss"]
