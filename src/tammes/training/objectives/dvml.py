"""Deep variational metric learning: the variance within a class is modelled separately from the embedding."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import checked_batch, rms_norm
from tammes.losses.method import Method
from tammes.models.embedder import Embedder
from tammes.training.objectives.base import Base

# The weights of KL, reconstruction, L(z_I + z_V) and L(z_I) in the two phases.
_FIRST = (1.0, 1.0, 0.1, 1.0)
_SECOND = (0.8, 1.0, 0.2, 0.8)
_LOG_VARIANCE = 10.0  # the log variance is clamped to ±10, so that its exponential can be summed in float32


class DVML(nn.Module):
    """Deep variational metric learning (Lin et al., ECCV 2018): the intra-class variance is modelled separately.

    The embedding z_I should contain what the images of a class have in common. Their differences are in z_V, drawn from
    a normal distribution whose mean and variance two layers predict for each image; a decoder reconstructs the features
    f from the sum of the two. With L the base loss, of embeddings without normalisation:

        w1 KL + w2 |decoder(z_I + z_V) - f|² + w3 L(z_I + z_V) + w4 L(z_I)

    where KL is the divergence of the distribution from the standard normal distribution (`kl`), and the second and
    third terms are means over the draws of z_V. Images are compared by z_I alone.

    In the first phase, during the first epochs, the weights are 1, 1, 0.1, 1, and the backbone gets no gradient from
    decoder, mean and variance. In the second phase they are 0.8, 1, 0.2, 0.8, and it does (weights from memory of the
    paper). The last epoch belongs to the second phase unless `first` is 1; so does the module before `begin` is called.
    Our addition: the features that are reconstructed, and from which mean and variance are predicted, are divided by

    their root mean square norm in the batch, and z_V is in units of the root mean square coordinate of z_I, as is the
    decoder's input. So the relative weight of the terms does not depend on the backbone. The features to reconstruct
    are detached, as they could otherwise shrink to be easy to reconstruct.

    Args:
        base: the base loss: npair, triplet-semihard or discriminative.
        features: number of the backbone's features.
        dim: dimension of the embedding.
        draws: samples of z_V for each image.
        hidden: units of the decoder's inner layer.
        first: the share of the epochs in the first phase, in [0, 1].
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
            raise UserError(f"first must be in [0, 1], the share of the epochs in the first phase, got {first}.")
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
        """Choose the phase for an epoch, from 1."""
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
            scaled = inner / rms_norm(features)  # (batch, features)
            unit = rms_norm(invariant) / invariant.shape[1] ** 0.5  # the root mean square coordinate of z_I
            mean = self.mean(scaled)  # (batch, dim)
            log_variance = self.log_variance(scaled).clamp(-_LOG_VARIANCE, _LOG_VARIANCE)  # (batch, dim)
            noise = torch.randn(self.draws, *mean.shape, dtype=mean.dtype, device=mean.device)  # (draws, batch, dim)
            variance = mean + (log_variance / 2).exp() * noise  # (draws, batch, dim)
            # Scaled to the norm of the features: with a larger norm the first layer would need small learning rates.
            given = (to_decoder / unit + variance) / invariant.shape[1] ** 0.5  # (draws, batch, dim)
            decoded = self.decoder(given.flatten(0, 1)).unflatten(0, noise.shape[:2])
            reconstruction = (decoded - scaled.detach()).square().sum(2).mean()
            drawn = torch.stack([self.base(invariant + unit * each, labels) for each in variance]).mean()
            loss = of_drawn * drawn + of_invariant * self.base(invariant, labels)
            return {
                # Adding zero times all outputs exposes a NaN also in an image that the base loss leaves out.
                "loss": loss + 0 * invariant.sum(),
                "kl": of_kl * kl(mean, log_variance),
                "reconstruction": of_reconstruction * reconstruction,
            }

    def extra_repr(self) -> str:
        return f"draws={self.draws}, first={self.first:.6g}"


def kl(mean: Float[Tensor, "batch dim"], log_variance: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """The mean KL divergence of diagonal normal distributions from the standard normal distribution.

        1/2 (sum of  exp(log_variance) + mean² - 1 - log_variance),  never below 0

    >>> round(kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])).item(), 6)
    0.5
    """
    return (log_variance.expm1() + mean.square() - log_variance).sum(1).mean() / 2


METHOD = Method(
    loss=DVML,
    title="DVML",
    summary="the intra-class variance modelled as a distribution, in addition to the base loss",
    equation="w1 KL + w2 |decoder(z_I + z_V) - f|² + w3 L(z_I + z_V) + w4 L(z_I),  z_V ~ N(mean(f), variance(f))",
    cost="T B H (D + F), and T + 1 times its base",
    reference="Lin, Duan, Dong, Lu, Zhou (2018): Deep Variational Metric Learning. ECCV",
    takes=("base", "features", "dim"),
    on="features",
    bases={
        # Embeddings that are not normalised need small learning rates; the decoder does not.
        "npair": {"images_per_class": 2, "initial_norm": 3.0, "lr": 0.1, "proxy_lr": 0.1},
        "triplet-semihard": {"images_per_class": 4, "lr": 0.01},
        "discriminative": {"images_per_class": 1},
    },
    images_per_class=2,
)
