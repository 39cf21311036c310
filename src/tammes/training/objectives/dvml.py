"""Deep variational metric learning: what varies within a class is modelled, and kept out of the embedding."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, typical_length
from tammes.losses.method import Method
from tammes.models.embedder import Embedder
from tammes.training.objectives.base import Base

# The weights of KL, reconstruction, L(z_I + z_V) and L(z_I) in the two phases.
_FIRST = (1.0, 1.0, 0.1, 1.0)
_SECOND = (0.8, 1.0, 0.2, 0.8)
_LOG_VARIANCE = 10.0  # at most, and at least its negative: beyond it the exponential leaves what float32 can add up


class DVML(nn.Module):
    """Deep variational metric learning (Lin et al., ECCV 2018): the variance within a class has a place of its own.

    The embedding z_I should hold what the images of a class have in common. What they differ in is z_V, drawn from a
    normal distribution whose mean and variance two layers give for each image; a decoder makes the features f again
    from the sum of the two. With L the loss that the method is built on, of embeddings as they are:

        w1 KL + w2 |decoder(z_I + z_V) - f|² + w3 L(z_I + z_V) + w4 L(z_I)

    where KL is the divergence of the distribution from the standard normal one (`kl`), and the second and third terms
    are means over the draws of z_V. Images are compared by z_I alone.

    In the first phase, of the first epochs, the weights are 1, 1, 0.1, 1; the backbone then has no gradient from the
    decoder, nor from mean and variance. In the second they are 0.8, 1, 0.2, 0.8, and it has (these weights are from
    memory of the paper). The last epoch is of the second phase unless `first` is 1; so is the module alone, before it
    is told of an epoch.

    Ours: the features that are reconstructed, and that mean and variance are made of, are divided by their root mean
    squared length in the batch, and z_V is in units of a typical coordinate of z_I, which the decoder sees in these
    units too. So the terms weigh the same against each other whatever the backbone, and the two are of one size. What
    is to be reconstructed is a constant: features that shrink would be easy to reconstruct.

    Args:
        base: what it is built on: npair, triplet-semihard or discriminative.
        features: how many the backbone gives.
        dim: length of the embedding.
        draws: of z_V for each image.
        hidden: units of the decoder's inner layer.
        first: the part of the epochs that is the first phase, in [0, 1].
    """

    def __init__(
        self, base: Base, features: int, dim: int, *, draws: int = 20, hidden: int = 512, first: float = 0.5
    ) -> None:
        super().__init__()
        if base.name not in METHOD.bases:
            raise unknown_name(f"base of {METHOD.title}", base.name, METHOD.bases)
        if base.make is None:
            raise ValueError(f"the base {base.name} cannot be made: it is a Base without make")
        for name, number in (("draws", draws), ("hidden", hidden)):
            if number < 1:
                raise UserError(f"{name} must be at least 1, got {number}.")
        if not 0 <= first <= 1:
            raise UserError(f"first must be in [0, 1], the part of the epochs that is the first phase, got {first}.")
        self.draws, self.first = draws, first
        self.first_phase = False
        self.base = base.make(dim)
        self.mean, self.log_variance = nn.Linear(features, dim), nn.Linear(features, dim)
        inner, outer = nn.Linear(dim, hidden), nn.Linear(hidden, features)
        self.decoder = nn.Sequential(inner, nn.ReLU(), outer)
        for layer in (self.mean, self.log_variance, inner, outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def begin(self, epoch: int, epochs: int) -> None:
        """The first or the second phase, from which epoch it is, from 1, of how many."""
        self.first_phase = epoch / epochs <= self.first  # not first * epochs: 0.29 * 100 is below 29

    def forward(
        self, features: Float[Tensor, "batch features"], labels: Integer[Tensor, " batch"], embedder: Embedder
    ) -> dict[str, Tensor]:
        features, labels = checked_batch(features, labels)
        of_kl, of_reconstruction, of_drawn, of_invariant = _FIRST if self.first_phase else _SECOND
        with torch.autocast(features.device.type, enabled=False):
            invariant: Tensor = embedder.penultimate(features)  # (batch, dim)
            inner, to_decoder = features, invariant
            if self.first_phase:
                inner = features.detach()
                to_decoder = embedder.penultimate(inner)
            scaled = inner / typical_length(features)  # (batch, features)
            unit = typical_length(invariant) / invariant.shape[1] ** 0.5  # a typical coordinate of z_I
            mean = self.mean(scaled)  # (batch, dim)
            log_variance = self.log_variance(scaled).clamp(-_LOG_VARIANCE, _LOG_VARIANCE)  # (batch, dim)
            noise = torch.randn(self.draws, *mean.shape, dtype=mean.dtype, device=mean.device)  # (draws, batch, dim)
            variance = mean + (log_variance / 2).exp() * noise  # (draws, batch, dim)
            # As long as the features are: a first layer on longer vectors would bear small rates only.
            given = (to_decoder / unit + variance) / invariant.shape[1] ** 0.5  # (draws, batch, dim)
            decoded = self.decoder(given.flatten(0, 1)).unflatten(0, noise.shape[:2])
            reconstruction = (decoded - scaled.detach()).square().sum(2).mean()
            drawn = torch.stack([self.base(invariant + unit * each, labels) for each in variance]).mean()
            loss = of_drawn * drawn + of_invariant * self.base(invariant, labels)
            return {
                # Zero times all outputs: a NaN is seen also in an image that the base leaves out.
                "loss": loss + 0 * invariant.sum(),
                "kl": of_kl * kl(mean, log_variance),
                "reconstruction": of_reconstruction * reconstruction,
            }

    def extra_repr(self) -> str:
        return f"draws={self.draws}, first={self.first:.6g}"


def kl(mean: Float[Tensor, "batch dim"], log_variance: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """The divergence of normal distributions, independent in each coordinate, from the standard one; their mean.

        1/2 (sum of  exp(log_variance) + mean² - 1 - log_variance),  never below 0

    >>> round(kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])).item(), 6)
    0.5
    """
    return (log_variance.expm1() + mean.square() - log_variance).sum(1).mean() / 2


METHOD = Method(
    loss=DVML,
    title="DVML",
    summary="what varies within a class modelled as a distribution, in addition to the loss it is built on",
    equation="w1 KL + w2 |decoder(z_I + z_V) - f|² + w3 L(z_I + z_V) + w4 L(z_I),  z_V ~ N(mean(f), variance(f))",
    cost="T B H (D + F), and T + 1 times its base",
    reference="Lin, Duan, Dong, Lu, Zhou (2018): Deep Variational Metric Learning. ECCV",
    takes=("base", "features", "dim"),
    on="features",
    bases={
        # Embeddings that are not of unit length bear small rates only; the decoder need not wait for them.
        "npair": {"images_per_class": 2, "initial_norm": 3.0, "lr": 0.1, "proxy_lr": 0.1},
        "triplet-semihard": {"images_per_class": 4, "lr": 0.01},
        "discriminative": {"images_per_class": 1},
    },
    images_per_class=2,
)
