"""Python objects that a training was given."""

from dataclasses import dataclass

from torch import nn

from tammes.data import Dataset
from tammes.data.transforms import Transform


@dataclass(frozen=True)
class Objects:
    """What no file can hold: a run that was given some needs them again, to resume, evaluate or report.

    Attributes:
        dataset: the images, where they were not named by a path.
        module: the network, where it was not named.
        transform: what takes the place of random crops and mirrors.
        eval_transform: what takes the place of the centre crop.
    """

    dataset: Dataset | None = None
    module: nn.Module | None = None
    transform: Transform | None = None
    eval_transform: Transform | None = None


NONE = Objects()
