"""Networks without training as embedders: images are compared by the features of the backbone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tammes.errors import UserError
from tammes.io.hub import ADDRESS
from tammes.models.backbones import UnknownBackboneError
from tammes.models.backbones.module import name_of, of_module
from tammes.models.backbones.resnet import Form
from tammes.models.embedder import Embedder, EmbedderConfig, load
from tammes.models.origin import Network, file_digest
from tammes.models.pooling import Pool


def pretrained(
    name: str | nn.Module,
    *,
    weights: str | Path = "imagenet",
    pool: Pool = "published",
    form: Form | None = None,
    size: int | None = None,
    **images: Any,
) -> Embedder:
    """A network without training, ready to use: images are compared by its features.

    Args:
        name: googlenet, vgg16, resnet50, …, any name of torchvision or timm, hf-hub:owner/name, open_clip:MODEL/TAG, or
            a module with its weights.
        weights: imagenet for those that it was published with (downloaded), or a file of weights.
        pool: how the last map becomes a vector.
        form: of resnet50, 101 and 152, where the file of weights does not say it: torchvision or keras.
        size: height and width of the images that it sees; None: as published.
        images: `mean` and `std` of a module, as `train` takes them.
    """
    if isinstance(name, nn.Module):
        made = of_module(name, pool=pool, size=size, **images)
        return Embedder(EmbedderConfig(name_of(name), pool=pool), backbone=made).closed_form()
    if images:
        raise UserError(f"{next(iter(images))} is for a module; {name} says it itself: leave it out.")
    found = Embedder(EmbedderConfig(name, pool=pool, form=form, size=size), weights=weights).closed_form()
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
    form, size = network.form, network.size or None
    return pretrained(network.name, weights=weights, pool=network.pool, form=form, size=size)  # type: ignore[arg-type]


def load_model(model: str | Path, **how: Any) -> Embedder:
    """The embedder of a run folder, of a model on the hub (`hf://owner/name`), or a pretrained network by its name.

    Args:
        how: `weights`, `pool`, `form`, `size` of a pretrained network; None: as if not given.

    Raises:
        UserError: there is no such run and no such network, or what was given is for another kind of model.
    """
    if names_network(model):
        try:
            return pretrained(str(model), **{name: value for name, value in how.items() if value is not None})
        except UnknownBackboneError as error:
            raise UserError(f"no run {model}, and {error}") from None
    check_trained(model, how)
    return load(model)


def check_trained(model: str | Path, how: Mapping[str, Any]) -> None:
    """Refuse for a trained model what only a pretrained network can be told."""
    given = next((name for name, value in how.items() if value is not None), None)
    if given is not None:
        what = "weights_form" if given == "form" else given
        raise UserError(f"`{what}` is for a pretrained network, and {model} is a trained model: leave it out.")


def names_network(model: str | Path) -> bool:
    """Whether a word means a pretrained network, and not a folder or a model on the hub."""
    if str(model).startswith(ADDRESS) or Path(model).exists():
        return False
    if len(Path(model).parts) > 1 and ":" not in str(model):
        raise UserError(f"no such run: {model}. `tammes runs` lists runs, `tammes models` pretrained networks.")
    return True
