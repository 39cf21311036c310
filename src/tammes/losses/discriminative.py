"""The discriminative loss: a linear-time upper bound on the triplet loss."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tammes.errors import UserError, check_whole, unknown_name
from tammes.geometry import checked_batch
from tammes.losses.centroid_kernel import centroid_loss
from tammes.losses.fixed_centroids import FixedCentroids
from tammes.losses.method import Method

Weighting = Literal["none", "balanced", "triplet"]


class DiscriminativeLoss(FixedCentroids):
    """Linear-time upper bound on the triplet loss (Do et al., CVPR 2019, equation 8), as a mean over the batch.

    For a normalised embedding x of class y and fixed unit centroids c:

        |x - c_y|  -  push * (mean over m != y of |x - c_m|)

    The paper has push = 1/3. For any push <= 1/3, three times the mean is an upper bound on the mean of the margin-free
    triplet loss over all triplets; for any push < 1, the own centroid is the only minimiser. It needs no mining, no
    margin and no sampler, works with any batch size, and has no parameters to train.

    For classes of different size, `weighting="balanced"` weights each image by N / (C n_y), as if every class had the
    same size; `weighting="triplet"` is the exact sum over all triplets of the training set, in which class a with n_a
    images has

        pull  2 (n_a - 1) (N - n_a) + S - n_a (n_a - 1),   S = sum of n_c (n_c - 1)
        push  (n_a - 1) n_m  for the centroid of class m

    Both need `class_sizes`, the numbers of training images. For equal sizes all three give the same value.

    Not the loss of the same name for instance segmentation (De Brabandere et al., 2017).

    Args:
        centroids: one unit point per class, or a number of classes for one-hot centroids, which need no memory and no
            matrix product. The embeddings then have one coordinate per class.
        class_sizes: training images per class, for `weighting`; 0 for a free centroid, reserved for a later class,
            which only repels (with "triplet" it has no effect).
        push: the weight β of the repelling term, in [0, 1).
        chunk_classes: how many classes to compute at a time, which bounds the memory to (batch, chunk_classes); by
            default as many as fit the processor cache.
        sample_classes: repel from this many random classes instead of all, drawn in each call and shared by the batch:
            an unbiased estimate of the loss and its gradient, at a cost independent of the number of classes.

    >>> loss = DiscriminativeLoss(2)
    >>> round(loss(torch.tensor([[1.0, 0.2], [0.4, 0.9]]), torch.tensor([0, 0])).item(), 6)
    0.362924
    """

    pull_weights: Tensor | None
    push_weights: Tensor | None
    class_weights: Tensor | None

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None = None,
        weighting: Weighting = "none",
        push: float = 1 / 3,
        chunk_classes: int | None = None,
        sample_classes: int | None = None,
    ) -> None:
        super().__init__(centroids, class_sizes=class_sizes, push=push)
        if chunk_classes is not None:
            check_whole("chunk_classes", chunk_classes)
        if self.centroids is None and (chunk_classes is not None or sample_classes is not None):
            raise UserError(
                "one-hot centroids need every coordinate of an embedding for its norm, so chunk_classes and"
                " sample_classes save nothing. Use centroids in fewer dimensions: centroids.place(num_classes, dim)."
            )
        if sample_classes is not None:
            check_whole("sample_classes", sample_classes, 2, self.num_classes)
        self.weighting, self.chunk_classes, self.sample_classes = weighting, chunk_classes, sample_classes
        dtype = torch.float32 if self.centroids is None else self.centroids.dtype
        for name, weights in _weights(weighting, self.num_classes, self.class_sizes).items():
            self.register_buffer(name, None if weights is None else weights.to(dtype), persistent=False)

    def equation(
        self, to_centroid: Float[Tensor, "batch classes"], labels: Integer[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """The loss of each image from its distances to the centroids. `forward` computes the same, faster."""
        own = to_centroid.gather(1, labels[:, None])[:, 0]  # (batch,)
        others = to_centroid.scatter(1, labels[:, None], 0.0)  # (batch, classes)
        if self.class_weights is not None:
            others = others * self.class_weights.to(others)
        pull = 1.0 if self.pull_weights is None else self.pull_weights.to(own)[labels]
        push = 1.0 if self.push_weights is None else self.push_weights.to(own)[labels]
        return pull * own - push * self.push * others.sum(1) / (self.num_classes - 1)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        return centroid_loss(
            *checked_batch(embeddings, labels, self.dim),
            self.centroids,
            push=self.push / (self.num_classes - 1),
            pull_weights=self.pull_weights,
            push_weights=self.push_weights,
            class_weights=self.class_weights,
            sample_classes=self.sample_classes,
            chunk_classes=self.chunk_classes,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, weighting={self.weighting!r}"


def _weights(weighting: Weighting, num_classes: int, sizes: Tensor | None) -> dict[str, Tensor | None]:
    """Weights of the pull and the push by the image's class, and of the other classes in the push; None means all 1."""
    if weighting not in get_args(Weighting):
        raise unknown_name("weighting", weighting, get_args(Weighting))
    if weighting == "none":
        return dict.fromkeys(("pull_weights", "push_weights", "class_weights"))
    if sizes is None:
        raise UserError(f"weighting={weighting!r} needs class_sizes, the training images of each class.")
    n, total = sizes.double(), sizes.double().sum()
    if weighting == "balanced":
        pull = torch.where(n > 0, total / ((n > 0).sum() * n), 0.0)
        return {"pull_weights": pull, "push_weights": pull, "class_weights": None}
    triplets = (n * (n - 1) * (total - n)).sum()
    if triplets == 0:
        raise UserError("weighting='triplet' needs a class with at least 2 images: there is no triplet here.")
    others = (n - 1).clamp_min(0)
    pull = 2 * others * (total - n) + (n * (n - 1)).sum() - n * others
    # L_d / H is three times the mean form, and a batch mean estimates the sum over N images: hence N / (3 H).
    return {
        "pull_weights": pull * total / (3 * triplets),
        "push_weights": (num_classes - 1) * others * total / triplets,
        "class_weights": n,
    }


METHOD = Method(
    loss=DiscriminativeLoss,
    title="discriminative",
    summary="near the fixed centroid of the own class, far from the others: a linear-time bound on the triplet loss",
    equation="|x - c_y| - push (mean over m != y of |x - c_m|)",
    cost="B C D; B C with one-hot centroids",
    reference="Do, Tran, Reid, Kumar, Hoang, Carneiro (2019): A Theoretically Sound Upper Bound on the Triplet Loss for"
    " Improving the Efficiency of Deep Distance Metric Learning. CVPR",
    takes=("centroids",),
    on="class layer",
    per_image_loss=True,
)
