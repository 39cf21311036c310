"""Pretrained networks as embedders, without training: images are compared by the backbone's features."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from tammes.data.folder import flat
from tammes.errors import UserError
from tammes.io.console import progress
from tammes.io.hub import ADDRESS
from tammes.models.backbones import UnknownBackboneError
from tammes.models.backbones.module import name_of, of_module
from tammes.models.backbones.resnet import Form
from tammes.models.embedder import DIM, Embedder, EmbedderConfig, checked_precision, load
from tammes.models.feature_cache import ImageFeatures
from tammes.models.origin import Network, Precision, file_digest
from tammes.models.pooling import Pool
from tammes.models.whitening import whitening_from_text, whitening_to_text

MOST_WHITENED = 8192  # images used for a whitening


def pretrained(
    name: str | nn.Module,
    *,
    weights: str | Path = "imagenet",
    pool: Pool = "published",
    form: Form | None = None,
    size: int | None = None,
    precision: Precision = "no",
    whiten: str | Path | None = None,
    **images: Any,
) -> Embedder:
    """A pretrained network as an Embedder: images are compared by its features.

    Args:
        name: googlenet, vgg16, resnet50, …, any name of torchvision or timm, hf-hub:owner/name, open_clip:MODEL/TAG, or
            a module with its weights.
        weights: "imagenet" for the published weights (downloaded), or a file of weights.
        pool: how the last feature map is pooled.
        form: "torchvision" or "keras", for resnet50, 101 and 152 if the file of weights does not name it.
        size: height and width of its input; None as published.
        precision: "bf16" runs it in bfloat16: faster on a GPU, or on a processor with bfloat16 instructions. The
            features stay float32 and differ a little.
        whiten: a folder of images to whiten the features with, in closed form, down to 256 dimensions: within classes
            if there are sub-folders, otherwise PCA whitening.
        images: `mean` and `std` of a module, as in `train`.
    """
    if isinstance(name, nn.Module):
        made = of_module(name, pool=pool, size=size, **images)
        own = Embedder(EmbedderConfig(name_of(name), pool=pool), backbone=made).closed_form()
        own.precision = checked_precision(precision)
        return own if whiten is None else whitened(own, *_of_folder(Path(whiten)))
    if images:
        raise UserError(f"{next(iter(images))} is for a module; {name} has its own: leave it out.")
    found = Embedder(EmbedderConfig(name, pool=pool, form=form, size=size), weights=weights).closed_form()
    found.precision = checked_precision(precision)
    of_file = str(weights) not in ("imagenet", "none")
    found.origin = Network(
        name=name,
        weights=str(Path(weights).absolute()) if of_file else str(weights),
        sha256=file_digest(Path(weights)) if of_file else "",
        size=found.size,
        pool=pool,
        form=found.config.form,
    )
    return found if whiten is None else whitened(found, *_of_folder(Path(whiten)))


def whitened(embedder: Embedder, images: Sequence[Path | Callable[[], Image.Image]], labels: Sequence[str]) -> Embedder:
    """A pretrained network with a whitening of its features on these images; the origin records it.

    Args:
        images: files, or functions that read an image.
        labels: the class of each image; "" for none. With fewer than two classes, PCA whitening is used; otherwise
            images without a class are left out.

    Raises:
        UserError: fewer than two images can be read.
    """
    features, rows, codes = ImageFeatures(embedder), [], []
    numbers = {name: number for number, name in enumerate(sorted(set(labels)))}
    few = len(set(labels) - {""}) < 2
    chosen = [each for each in zip(images, labels, strict=True) if few or each[1]]
    chosen = chosen[:: max(1, -(-len(chosen) // MOST_WHITENED))]
    with progress("whitening") as on_progress:
        for start in range(0, len(chosen), embedder.at_once):
            read = []
            for image, label in chosen[start : start + embedder.at_once]:
                with suppress(UserError, OSError):  # unreadable images are reported when they are indexed
                    read.append(embedder.prepared_with_key(image if isinstance(image, Path) else image()))
                    codes.append(numbers[label])
            if read:
                rows.append(features([pixels for pixels, _ in read], [key for _, key in read]))
            on_progress(min(start + embedder.at_once, len(chosen)), len(chosen))
    if len(codes) < 2:
        raise UserError(f"`whiten` needs at least two readable images, and there are {len(codes)}.")
    seen = set(codes)
    labelled = not few and len(seen) > 1
    found = embedder.closed_form(torch.cat(rows), torch.tensor(codes) if labelled else None, dim=DIM)
    (top,) = found.new_layers()
    layer = torch.cat([top.weight, top.bias[:, None]], dim=1)
    text = whitening_to_text((layer / layer.abs().max()).detach().cpu().numpy())  # the scale is arbitrary
    within = json.dumps([name for name, number in numbers.items() if number in seen]) if labelled else ""
    return with_whitening(embedder, text, within)


def with_whitening(embedder: Embedder, text: str, within: str = "") -> Embedder:
    """A pretrained network with a stored whitening, as recorded in `Network`.

    Raises:
        UserError: the whitening does not fit this network.
    """
    layer = whitening_from_text(text, embedder.new_layers()[0].in_features + 1)
    if layer is None:
        raise UserError(f"the whitening does not fit {embedder.config.backbone}: it is damaged. Compute it again.")
    found = embedder.with_layer(torch.from_numpy(layer[:, :-1].copy()), torch.from_numpy(layer[:, -1].copy()))
    if isinstance(embedder.origin, Network):
        found.origin = replace(embedder.origin, whitening=text, whitened_within=within)
    return found


def _of_folder(folder: Path) -> tuple[tuple[Path, ...], list[str]]:
    """The images of a folder, and the class of each."""
    found = flat(folder)
    assert found.files is not None
    names = ["" if name == "." else name for name in found.class_names]
    return found.files, [names[label] for label in found.labels.tolist()]


def rebuilt(network: Network, file: Path, precision: Precision = "no") -> Embedder:
    """The Embedder of a `Network` record.

    Args:
        file: the current path of its file of weights; not used for "imagenet".

    Raises:
        UserError: the file of weights is missing, or has another checksum.
    """
    published = network.weights == "imagenet"
    if not published and file_digest(file) != network.sha256:
        raise UserError(f"{file} is not the file of weights that was used: its SHA-256 differs.")
    weights = network.weights if published else file
    how: Any = {"pool": network.pool, "form": network.form, "size": network.size or None, "precision": precision}
    found = pretrained(network.name, weights=weights, **how)
    return with_whitening(found, network.whitening, network.whitened_within) if network.whitening else found


def load_model(model: str | Path, *, precision: Precision = "no", **how: Any) -> Embedder:
    """The Embedder of a run folder, of a model on the hub (`hf://owner/name`), or of a pretrained network.

    Args:
        how: `weights`, `pool`, `form`, `size` of a pretrained network; None means not given.

    Raises:
        UserError: there is no such run or network, or an option is for another kind of model.
    """
    if names_network(model):
        try:
            given = {name: value for name, value in how.items() if value is not None}
            return pretrained(str(model), precision=precision, **given)
        except UnknownBackboneError as error:
            raise UserError(f"no run {model}, and {error}") from None
    check_trained(model, how)
    return load(model, precision=precision)


def check_trained(model: str | Path, how: Mapping[str, Any]) -> None:
    """Raise UserError if a trained model is given options of a pretrained network."""
    given = next((name for name, value in how.items() if value is not None), None)
    if given is not None:
        what = "weights_form" if given == "form" else given
        raise UserError(f"`{what}` is for a pretrained network, and {model} is a trained model: leave it out.")


def names_network(model: str | Path) -> bool:
    """Whether this is the name of a pretrained network, not a folder or a model on the hub."""
    if str(model).startswith(ADDRESS) or Path(model).exists():
        return False
    if len(Path(model).parts) > 1 and ":" not in str(model):
        raise UserError(f"no such run: {model}. `tammes runs` lists runs, `tammes models` pretrained networks.")
    return True
