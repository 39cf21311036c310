"""DeepNCM: a nearest class mean classifier whose means follow the network."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Generator, Tensor

from tammes.errors import UserError, unknown_name
from tammes.geometry import check_range, check_sizes, checked_batch, distances
from tammes.losses.fixed_centroids import FullPrecisionBuffers
from tammes.losses.method import Method

Form = Literal["condensation", "online", "decay"]

_EVERY, _DECAY = 100, 0.9


class DeepNCMLoss(FullPrecisionBuffers):
    """Deep nearest class mean (Guerriero, Caputo and Mensink, 2018), as a mean over the batch.

    For an embedding x of class y, not normalised, and one mean u per class:

        -log softmax(-|x - u|²)_y

    The means are not trained by the optimizer: in training mode, each call updates the means of the classes in the
    batch, after computing the loss with the old ones; in evaluation mode they are fixed. The form of the update:

        online        the mean of all images seen so far, in batches or by `look`
        condensation  the same, but every `every` calls the past is reduced to the weight of one image
        decay         u <- decay u + (1 - decay) (mean of the class in the batch)

    `look` initialises the means from all training images. Without it, a class is initialised at its mean in the first
    batch that has it, before that batch's loss is computed; until then its mean is the origin.

    The authors' code condenses every 100 steps, which is our default. It also clips the gradient, which we do not:
    squared distances of long vectors saturate the softmax.

    Args:
        num_classes: how many there are.
        dim: of an embedding.
        form: how the means are updated.
        every: for condensation: the number of calls.
        decay: for decay: the weight of the old mean, in [0, 1).
    """

    means: Tensor
    counts: Tensor
    calls: Tensor

    minimum = 0.0  # approached, never reached

    def __init__(
        self, num_classes: int, dim: int, *, form: Form = "condensation", every: int = _EVERY, decay: float = _DECAY
    ) -> None:
        super().__init__()
        check_sizes("DeepNCM", num_classes, dim)
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        if every != _EVERY and form != "condensation":
            raise UserError(f"every is for form='condensation'; form={form!r} does not use it.")
        if decay != _DECAY and form != "decay":
            raise UserError(f"decay is for form='decay'; form={form!r} does not use it.")
        if every < 1:
            raise UserError(f"every must be at least 1, got {every}.")
        if not 0 <= decay < 1:
            raise UserError(f"decay must be in [0, 1), got {decay}: with 1 the means would never move.")
        self.num_classes, self.dim, self.form, self.every, self.decay = num_classes, dim, form, every, decay
        self.register_buffer("means", torch.zeros(num_classes, dim))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.long))  # images in a mean; 0: no mean yet
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))  # since `look`, in training mode

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            if not self.training:
                return F.cross_entropy(self.get_logits(embeddings), labels)
            here, images = self._class_means(embeddings.detach(), labels)
            first = (self.counts == 0) & (images > 0)  # (classes,)
            self.means.copy_(torch.where(first[:, None], here, self.means))
            value = F.cross_entropy(self.get_logits(embeddings), labels)
            self._move_means(here, images)
        return value

    def look(
        self,
        embeddings: Float[Tensor, "images dim"],
        labels: Integer[Tensor, " images"],
        *,
        generator: Generator,  # noqa: ARG002 (nothing is random here)
    ) -> None:
        """Initialise the means from all training images."""
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        means, images = self._class_means(embeddings.detach(), labels)
        self.means.copy_(means)
        self.counts.copy_(images)
        self.calls.zero_()

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative squared distances to the means."""
        # A copy: the backward needs the means from before the update.
        return -distances(embeddings, self.means.clone()).square()

    def _class_means(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The class means (classes, dim), zero for a class without images, and the numbers of images (classes,)."""
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, self.means.dtype))
        images = torch.bincount(labels, minlength=self.num_classes)
        total = embeddings.new_zeros(self.num_classes, self.dim).index_add_(0, labels, embeddings)
        return total / images.clamp_min(1)[:, None], images

    def _move_means(self, here: Tensor, images: Tensor) -> None:
        self.counts += images
        self.calls += 1
        if self.form == "decay":
            share = (1 - self.decay) * (images > 0).to(here)  # (classes,)
        else:
            share = images / self.counts.clamp_min(1).to(here)  # (classes,)
        self.means += share[:, None] * (here - self.means)
        if self.form == "condensation":
            ends = self.calls % self.every == 0
            self.counts.copy_(torch.where(ends, self.counts.clamp_max(1), self.counts))

    def extra_repr(self) -> str:
        option = {"condensation": f", every={self.every}", "online": "", "decay": f", decay={self.decay:.6g}"}
        return f"{self.num_classes} classes in {self.dim} dimensions, form={self.form!r}{option[self.form]}"


METHOD = Method(
    loss=DeepNCMLoss,
    title="DeepNCM",
    summary="a nearest class mean classifier whose means follow the network",
    equation="-log softmax(-|x - u|²)_y",
    cost="B C D",
    reference="Guerriero, Caputo, Mensink (2018): DeepNCM: Deep Nearest Class Mean Classifiers. ICLR workshop",
    takes=("num_classes", "dim"),
    sees="all images once",
    initial_norm=3.0,
    lr=0.1,
)
