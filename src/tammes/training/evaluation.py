"""Evaluate a network on the images of a training, in one process or several."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tammes.data import Dataset, Vectors
from tammes.errors import UserError
from tammes.io.console import working
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder
from tammes.models.feature_cache import Frozen
from tammes.training.data import Data, centre_batches
from tammes.training.distributed import by_place, is_first
from tammes.training.embedding import vectors
from tammes.training.objectives import Objective
from tammes.training.run_folder import RunFolder
from tammes.training.verdict import Candidates, by_class

RESTARTS = 3  # restarts of K-means for NMI and AMI


def evaluate_images(
    embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False, quick: bool = False
) -> dict[str, Any]:
    """The metrics of images. With several processes, each embeds some of them, and the first evaluates."""
    found = embedded(embedder, data, indices, backbone_only=backbone_only)
    if not is_first():
        return {}
    return measure(found, data.dataset, indices, quick=quick)


def validate(run: RunFolder, data: Data, candidates: Candidates | None, name: str, embedder: Embedder) -> float:
    """R@1 on the validation classes; the network is saved in the run folder if it is the best candidate.

    With several processes, each embeds some of the images, and the first decides.

    Args:
        candidates: the earlier candidates; None to evaluate only.
    """
    assert data.split.val is not None
    found = embedded(embedder, data, data.split.val)
    if not is_first():
        return 0.0
    how = protocol(data.dataset, data.split.val, clustering=False)
    masks = {each: how[each] for each in ("query", "gallery", "sequence") if each in how}
    queries, right = by_class(found, data.dataset.labels[data.split.val], **masks)
    if candidates is not None:
        if candidates.add(name, queries, right):
            embedder.save(run.folder)
        run.write("candidates", asdict(candidates))  # last: it names what was saved
    return sum(right) / sum(queries)


def embedded(embedder: Embedder, data: Data, indices: np.ndarray, *, backbone_only: bool = False) -> np.ndarray:
    """Unit vectors of centre crops, from cached activations if a part of the network is frozen."""
    features: Callable[[Tensor], Tensor] = embedder.features
    if data.kept is not None:
        frozen, at = data.kept.frozen, data.kept.frozen.at
        features = (frozen if frozen.embedder is embedder else Frozen(embedder, at)).above
        if at is None and not embedder.config.depths:  # cached activations may be of several depths
            features = lambda stored: frozen.embedder.of_backbone(stored.float())  # noqa: E731
    found = vectors(
        embedder,
        features,
        centre_batches(data, indices, embedder.mean.device),
        len(indices),
        backbone_only=backbone_only,
    )
    if not np.isfinite(found).all():
        raise UserError("the embeddings are not finite: the learning rate was too high. Try a tenth.")
    return found


def measure(found: np.ndarray, dataset: Dataset, indices: np.ndarray, *, quick: bool = False) -> dict[str, Any]:
    """All metrics; with `quick`, without clustering and intervals."""
    # One seed with a few restarts, as K-means takes the longest. `tammes evaluate` has options for more.
    options: dict[str, Any] = {"seeds": (0,), "restarts": RESTARTS, "bootstrap": 0 if quick else 1000}
    options |= protocol(dataset, indices, clustering=not quick)
    return evaluate(found, dataset.labels[indices], **options)


def protocol(data: Dataset | Vectors, indices: np.ndarray, *, clustering: bool) -> dict[str, Any]:
    """Options of `evaluate` for these items: queries, gallery, sequences, ranks and clustering."""
    masks = {name: getattr(data, name) for name in ("query", "gallery", "sequence")}
    found = {name: mask[indices] for name, mask in masks.items() if mask is not None}
    if "query" in found and "gallery" in found and not (found["query"] | found["gallery"]).all():
        # The masks are for the data's own test images; with other --test-classes, each image is query and gallery.
        del found["query"], found["gallery"]
    gallery = len(indices) - 1 if "gallery" not in found else int(found["gallery"].sum())
    ks = tuple(k for k in (1, 2, 4, 8) if k <= gallery) or (1,)
    return found | {"ks": ks, "clustering": clustering and len(np.unique(data.labels[indices])) > 1}


def all_loss_inputs(data: Data, objective: Objective) -> tuple[Tensor, Tensor]:
    """The inputs of the loss for all training images, and their labels."""
    with working("embedding all training images"):
        outputs = loss_inputs(data, objective, data.split.train)
        return outputs, torch.from_numpy(data.labels).to(outputs.device)


@torch.no_grad()
def loss_inputs(data: Data, objective: Objective, indices: np.ndarray) -> Tensor:
    """The inputs of the loss for images: outputs of their centre crops, in evaluation mode."""
    device = objective.embedder.mean.device
    objective.eval()
    rows, at = [], []
    for inputs, places, _ in centre_batches(data, indices, device):
        rows.append(objective.embedder.outputs(objective.features(inputs.to(device))))
        at.append(places)
    return by_place(rows, at, len(indices)).to(device)
