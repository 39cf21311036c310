"""The discriminative loss as a pytorch-metric-learning loss, for its trainers, reducers, miners and wrappers."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tammes.errors import UserError
from tammes.geometry import check_range, checked_batch
from tammes.losses import discriminative
from tammes.losses.discriminative import Weighting

try:
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.reducers import MeanReducer, MultipleReducers
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_weights
except ImportError:
    raise UserError(
        "tammes.losses.to_pml needs the package pytorch-metric-learning: pip install 'tammes[pml]'."
    ) from None


class DiscriminativeLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """`tammes.DiscriminativeLoss` with the interface of pytorch-metric-learning 2.

    `loss(embeddings, labels)` has the value and the gradient of ours. It is a mean over independent images, so

    - a miner is not needed. If one is used, each image is weighted by how often it was mined, as in the library's own
      classification losses;
    - a reducer other than the mean gets one loss per image, which needs memory for all distances to the centroids,
      (batch, classes);
    - `ref_emb` is refused: distances are to the centroids, never to other embeddings;
    - several processes need no `DistributedLossWrapper`: with DistributedDataParallel alone the gradient is that of one
      process with all images, if the batches have equal size. Inside the wrapper (not with efficient=True, which passes
      `ref_emb`) the gradient is the same at a higher cost, and the wrapper fails if batch sizes differ.

    Args:
        centroids: one unit point per class, or a number of classes for one-hot centroids.
        class_sizes: training images per class, for `weighting`.
        weighting: for classes of different size.
        push: the weight of the repelling term, in [0, 1).
        chunk_classes: how many classes to compute at a time.
        sample_classes: repel from this many random classes instead of all; only with the mean and without a miner.
        options: those of BaseMetricLossFunction: reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
            With collect_stats=True, `own_distance` is the mean distance of the last batch to the own centroids.

    >>> loss = DiscriminativeLoss(2)
    >>> round(loss(torch.tensor([[1.0, 0.2], [0.4, 0.9]]), torch.tensor([0, 0])).item(), 6)
    0.362924
    """

    own_distance: float

    def __init__(
        self,
        centroids: Float[Tensor, "classes dim"] | int,
        *,
        class_sizes: Integer[Tensor, " classes"] | Sequence[int] | None = None,
        weighting: Weighting = "none",
        push: float = 1 / 3,
        chunk_classes: int | None = None,
        sample_classes: int | None = None,
        **options: Any,
    ) -> None:
        if options.get("distance") is not None:
            raise UserError("the bound holds for the Euclidean distance of unit vectors only: leave out distance.")
        super().__init__(**options)
        self.ours = discriminative.DiscriminativeLoss(
            centroids,
            class_sizes=class_sizes,
            weighting=weighting,
            push=push,
            chunk_classes=chunk_classes,
            sample_classes=sample_classes,
        )
        self.num_classes, self.dim, self.push = self.ours.num_classes, self.ours.dim, self.ours.push
        self.add_to_recordable_attributes(list_of_names=["num_classes", "dim", "push"], is_stat=False)
        self.add_to_recordable_attributes(name="own_distance", is_stat=True)

    def compute_loss(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"] | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Float[Tensor, "others dim"],
        ref_labels: Integer[Tensor, " others"] | None,
    ) -> dict[str, dict[str, Any]]:
        """The loss before it is reduced, as the library wants it."""
        if labels is None:
            raise UserError("the discriminative loss needs labels.")
        if ref_emb is not embeddings or ref_labels is not labels:
            raise UserError(
                "the discriminative loss measures distances to its centroids, not to other embeddings: leave out"
                " ref_emb (and efficient=True of DistributedLossWrapper)."
            )
        embeddings, labels = checked_batch(embeddings, labels, self.dim)
        check_range(labels, self.num_classes)
        if self.collect_stats:
            with torch.no_grad():
                self.own_distance = -self.get_logits(embeddings).gather(1, labels[:, None]).mean().item()
        if indices_tuple is None and self._is_mean():
            mean = self.ours(embeddings, labels)
            return {"loss": {"losses": mean, "indices": None, "reduction_type": "already_reduced"}}
        if self.ours.sample_classes is not None:
            raise UserError("sample_classes is for the mean over a batch: leave out the reducer and the miner.")
        losses = self.ours.per_image(embeddings, labels)  # (batch,)
        losses = losses * convert_to_weights(indices_tuple, labels, dtype=losses.dtype)
        indices = torch.arange(len(losses), device=losses.device)
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": "element"}}

    def get_logits(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Negative distances to the centroids: the largest belongs to the class of the nearest centroid."""
        return self.ours.get_logits(embeddings)

    def _is_mean(self) -> bool:
        reducer = self.reducer.reducers["loss"] if isinstance(self.reducer, MultipleReducers) else self.reducer
        return type(reducer) is MeanReducer
