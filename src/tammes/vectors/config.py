"""The configuration of a training on vectors."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tammes.centroids import CENTROIDS
from tammes.errors import UserError, check_seed, unknown_name
from tammes.losses import METHODS, OF_CLASS_LAYER, WITH_CENTROIDS
from tammes.training.config import check_values, command_of, merge_loss_options, read_config
from tammes.training.options import VectorMethod, VectorOptions, Weighting
from tammes.training.run_folder import RunFolder


@dataclass(frozen=True)
class VectorConfig:
    """Every option of a training on vectors with its value; None if the method does not use it."""

    data: str
    out: Path
    method: VectorMethod
    loss: str
    loss_options: tuple[str, ...]
    centroids: str | None
    push: float | None
    weighting: Weighting
    temperature: float | None
    dim: int
    hidden: tuple[int, ...]
    class_layer: bool
    centroid_dim: int | None
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float | None
    test_classes: str | None
    val_classes: str | None
    seed: int

    def command(self) -> str:
        """The command that repeats this run."""
        ridge = ONLY_GRADIENT if self.method == "ridge" else ()
        saved = {name: value for name, value in vars(self).items() if value is not None and name not in ridge}
        if self.class_layer:
            saved.pop("class_layer", None)
        return command_of(saved.pop("data"), saved)


ONLY_GRADIENT = (
    *("loss", "loss_options", "push", "weighting", "temperature", "hidden", "class_layer", "centroid_dim"),
    *("epochs", "batch_size", "lr", "weight_decay"),
)
USUAL: dict[str, Any] = {
    "method": "gradient",
    "loss": "discriminative",
    "loss_options": (),
    "weighting": "none",
    "hidden": (),
    "class_layer": True,
    "seed": 0,
}


def load_vector_config(run: RunFolder) -> VectorConfig:
    """The configuration of a run of vectors."""
    found: VectorConfig = read_config(run, VectorConfig)
    return found


def check_options(given: VectorOptions) -> None:
    """Raise UserError for invalid options, before anything is read or created."""
    unknown = sorted(set(given) - {field.name for field in fields(VectorConfig)})
    if unknown:
        raise UserError(f"`{unknown[0]}` is for images, and this is a file of vectors: leave it out.")
    check_values(given, ("epochs", "batch_size", "centroid_dim", "dim"), ("weight_decay",))
    if given.get("method") == "ridge":
        for option in ONLY_GRADIENT:
            if option in given:
                name = f"class_layer={given['class_layer']}" if option == "class_layer" else option
                raise UserError(f"`{name}` is for `method='gradient'`: ridge is solved in closed form.")
    loss = given.get("loss", "discriminative")
    if (loss in METHODS or loss in ("hdc", "bier", "daml", "dvml") or loss.startswith("pml:")) and (
        loss not in OF_CLASS_LAYER
    ):
        raise UserError(f"`loss={loss!r}` is for images. For vectors there are {', '.join(OF_CLASS_LAYER)}.")
    if loss not in OF_CLASS_LAYER:
        raise unknown_name("loss", loss, OF_CLASS_LAYER)
    options_of_loss(loss, given)
    centroids = given.get("centroids")
    if centroids is not None and centroids not in CENTROIDS:
        raise unknown_name("kind of centroids", centroids, CENTROIDS)
    if centroids is not None and loss not in WITH_CENTROIDS:
        raise UserError(f"`centroids` is for `loss` {' or '.join(WITH_CENTROIDS)}, not for {loss}.")
    layer = given.get("class_layer", True)
    if loss == "softmax" and ("centroid_dim" in given or not layer):
        wrong = "`class_layer=False`" if not layer else "`centroid_dim`"
        raise UserError(f"`loss='softmax'` needs a class layer with one output per class. Drop {wrong}.")
    if "centroid_dim" in given and not layer:
        raise UserError("`centroid_dim` is the size of the class layer, which `class_layer=False` leaves out.")
    if any(width < 1 for width in given.get("hidden", ())):
        raise UserError(f"`hidden` must be widths of at least 1, got {' '.join(map(str, given['hidden']))}.")
    if not given.get("lr", 1) > 0:
        raise UserError(f"`lr` must be above 0, got {given['lr']}.")
    check_seed("`seed`", given.get("seed", 0))


def options_of_loss(loss: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the loss, from `loss_options` and from options of their own."""
    return merge_loss_options(loss, METHODS[loss], given, {name: METHODS[name] for name in OF_CLASS_LAYER})
