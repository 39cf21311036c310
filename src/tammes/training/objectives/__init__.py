"""Objectives: modules (images, labels) -> {name: scalar}; and methods that are more than a loss, one file each.

Such a method is a module (features (batch, features), labels, embedder) -> {"loss": scalar, …}: it uses the features of
the backbone and the layers of the embedder on top of it.
"""

from tammes.losses import METHODS as OF_LOSSES
from tammes.losses import Method, find_miner
from tammes.losses import find_method as find_loss
from tammes.training.objectives import bier, daml, dvml, hdc
from tammes.training.objectives.base import Base, ClassLayer
from tammes.training.objectives.bier import BIER
from tammes.training.objectives.daml import DAML
from tammes.training.objectives.distillation import Hold
from tammes.training.objectives.dvml import DVML
from tammes.training.objectives.hdc import HDC
from tammes.training.objectives.objective import Objective

MORE_THAN_LOSSES: dict[str, Method] = {"hdc": hdc.METHOD, "bier": bier.METHOD, "daml": daml.METHOD, "dvml": dvml.METHOD}
METHODS: dict[str, Method] = {**OF_LOSSES, **MORE_THAN_LOSSES}


def find_method(name: str, miner: str | None = None, base: str | None = None) -> Method:
    """A method by its name: one of METHODS, or pml:NAME for a loss of pytorch-metric-learning.

    Args:
        base: the loss that hdc, bier, daml or dvml is built on; None for that of its own paper.
    """
    method = METHODS[name] if name in MORE_THAN_LOSSES and miner is None else find_loss(name, miner, METHODS)
    return method.built_on(base)


__all__ = [
    "BIER",
    "DAML",
    "DVML",
    "HDC",
    "METHODS",
    "MORE_THAN_LOSSES",
    "Base",
    "ClassLayer",
    "Hold",
    "Objective",
    "find_method",
    "find_miner",
]
