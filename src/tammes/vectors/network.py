"""The network of a learner: a linear map, or one with hidden layers."""

from itertools import pairwise
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.io.machine import memory
from tammes.vectors.ridge import Ridge

_COPIES = 4  # numbers per weight in training: weight, gradient and two of the optimizer

MOST_DIMENSIONS = 256  # largest default dimension of an embedding, as in the paper


def check_fits(*sizes: int) -> None:
    """Raise UserError if the layers do not fit into memory.

    Checked first: a system that overcommits memory would kill the process later.
    """
    if 4 * _COPIES * sum((before + 1) * after for before, after in pairwise(sizes)) > memory():
        raise UserError(
            f"a network of {' -> '.join(map(str, sizes))} numbers is more than this machine has memory for. Lower dim,"
            " hidden or centroid_dim."
        )


class Network(nn.Module):
    """Standardised vectors -> hidden layers -> embedding, and in training -> class layer."""

    def __init__(
        self, columns: int, hidden: tuple[int, ...], dim: int, outputs: int | None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_fits(columns, *hidden, dim, *(() if outputs is None else (outputs,)))
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        layers: list[nn.Module] = []
        for before, after in zip((columns, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else columns, dim))
        self.class_layer = None if outputs is None else nn.Linear(dim, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @property
    def first(self) -> nn.Linear:
        """The first linear layer."""
        return cast(nn.Linear, self.body[0])

    def forward(self, inputs: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch outputs"]:
        """The input of the loss."""
        embedding: Tensor = self.body(self.dropout(inputs))
        return embedding if self.class_layer is None else self.class_layer(embedding)

    @torch.no_grad()
    def init_from(
        self, directions: Float64[ndarray, "columns directions"], origin: Float64[ndarray, " columns"] | None = None
    ) -> None:
        """Initialise the first layer with these directions; further outputs are zero.

        Args:
            origin: the point that is mapped to zero; None for zero itself, the mean of the vectors.
        """
        weight = self.first.weight
        number = min(len(weight), directions.shape[1])
        if len(self.body) == 1:
            weight.zero_()
        weight[:number] = torch.from_numpy(directions[:, :number].T.copy()).to(weight)
        self.first.bias.zero_()
        if origin is not None:
            self.first.bias[:number] = torch.from_numpy(-origin @ directions[:, :number]).to(weight)

    @torch.no_grad()
    def init_from_ridge(self, regression: Ridge, regularisation: float, goal: Float[Tensor, "classes outputs"]) -> None:
        """Initialise the embedding with the regression, and the class layer with the map of its centroids to `goal`."""
        found = regression.map(regularisation)  # (columns, dim)
        length = np.sqrt(max(np.sum((regression.gram @ found) * found) / regression.count, 1e-30))
        weight = self.first.weight
        weight.copy_(torch.from_numpy((found / length).T))  # of length 1 on average, as what the rate is made for
        self.first.bias.zero_()
        if self.class_layer is not None:
            self.class_layer.weight.copy_((torch.from_numpy(np.linalg.pinv(regression.targets)).to(goal) @ goal).T)
