"""The Python objects of a training: data set, network and transforms that no file can store."""

from dataclasses import dataclass

from torch import nn

from tammes.data import Dataset
from tammes.data.transforms import Transform


@dataclass(frozen=True)
class Objects:
    """Python objects that were passed to `train`. They must be passed again to resume, evaluate or report the run.

    Attributes:
        dataset: the images, if they were not given by a path.
        module: the network, if it was not given by name.
        transform: replaces random crops and mirroring.
        eval_transform: replaces the centre crop.
    """

    dataset: Dataset | None = None
    module: nn.Module | None = None
    transform: Transform | None = None
    eval_transform: Transform | None = None


NONE = Objects()
