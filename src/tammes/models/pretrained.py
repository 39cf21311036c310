"""Networks without training as embedders: images are compared by the features of the backbone."""

from pathlib import Path
from typing import Any

from torch import nn

from tammes.errors import UserError
from tammes.models.backbones.module import name_of, of_module
from tammes.models.backbones.resnet import Form
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.models.origin import Network, file_digest
from tammes.models.pooling import Pool


def pretrained(
    name: str | nn.Module,
    *,
    weights: str | Path = "imagenet",
    pool: Pool = "published",
    form: Form | None = None,
    **images: Any,
) -> Embedder:
    """A network without training, ready to use: images are compared by its features.

    Args:
        name: googlenet, vgg16, resnet50, …, any name of torchvision or timm, or a module with its weights.
        weights: imagenet (downloaded), or a file of weights.
        pool: how the last map becomes a vector.
        form: of resnet50, 101 and 152, where the file of weights does not say it: torchvision or keras.
        images: `size`, `mean` and `std` of a module, as `train` takes them.
    """
    if isinstance(name, nn.Module):
        made = of_module(name, pool=pool, **images)
        return Embedder(EmbedderConfig(name_of(name), pool=pool), backbone=made).closed_form()
    if images:
        raise UserError(f"{next(iter(images))} is for a module; {name} says it itself: leave it out.")
    found = Embedder(EmbedderConfig(name, pool=pool, form=form), weights=weights).closed_form()
    of_file = str(weights) not in ("imagenet", "none")
    found.origin = Network(
        name=name,
        weights=str(Path(weights).absolute()) if of_file else str(weights),
        sha256=file_digest(Path(weights)) if of_file else "",
        size=found.size,
        pool=pool,
        form=found.config.form,
    )
    return found


def rebuilt(network: Network, file: Path) -> Embedder:
    """The embedder that a record describes.

    Args:
        file: where its weights are now; of "imagenet" it means nothing.

    Raises:
        UserError: the file of weights is not there, or is another.
    """
    published = network.weights == "imagenet"
    if not published and file_digest(file) != network.sha256:
        raise UserError(f"{file} is not the file of weights that was used: its SHA-256 is another.")
    weights = network.weights if published else file
    return pretrained(network.name, weights=weights, pool=network.pool, form=network.form)  # type: ignore[arg-type]
