"""Backbones, the networks from images to features: ours, and any of torchvision, timm or open_clip."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from tammes.errors import UserError, check_whole, unknown_name
from tammes.io.limits import WEIGHTS, check_limit
from tammes.models.backbones import googlenet, resnet, vgg16
from tammes.models.backbones.base import Backbone, measured
from tammes.models.backbones.conv4 import Conv4
from tammes.models.backbones.module import OWN
from tammes.models.backbones.on_machine import advice_without_network
from tammes.models.backbones.resnet import Form
from tammes.models.backbones.weights import (
    downloading,
    form_of,
    googlenet_file,
    hub_file,
    load_weights,
    put_weights,
    without_logs,
)
from tammes.models.pooling import Pool, exchange_pool

_LIBRARIES = ("timm", "torchvision", "hf-hub", "open_clip")
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN, _CAFFE_STD = (123 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3  # 0 to 255, minus the mean
_MOST_PIXELS = 1024  # files are untrusted, and memory grows with the square
_CLASSIFIER = 1 << 24  # weights of torchvision's classifiers, which are built and dropped
_KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)


class UnknownBackboneError(UserError):
    """There is no network with that name."""


def backbone(
    name: str,
    *,
    weights: str | Path = "none",
    pool: Pool = "published",
    form: Form | None = None,
    size: int | None = None,
) -> Backbone:
    """A network by its name: ours, torchvision's or timm's, in this order (`torchvision:NAME`, `timm:NAME` to choose).

    `hf-hub:owner/name` is a timm network on the Hugging Face hub, `open_clip:MODEL` or `open_clip:MODEL/TAG` the image
    tower of an open_clip model.

    Args:
        weights: "imagenet" for the published weights, whatever they were trained on; "none" for random weights; or a
            file that `weights.load_weights` reads.
        pool: how its last feature map is pooled.
        form: the form of resnet50, 101 or 152: torchvision's, or the original one, which Keras has. By default that of
            the file of weights, or torchvision's.
        size: height and width of its input; None as published.
    """
    if name.startswith(OWN):
        raise UserError(
            f"the network {name.removeprefix(OWN)} was passed as a Python module, which is not stored in a file. Open"
            " the run in Python with the module: tammes.load_run(folder, backbone=module)"
        )
    library, _, plain = name.rpartition(":")
    if library not in ("", *_LIBRARIES):
        raise UserError(f"unknown library {library!r} in backbone {name!r}. Known: {', '.join(_LIBRARIES)}.")
    imagenet = str(weights) == "imagenet"
    form = form_of(name, weights, form)
    if form is not None:
        made = _resnet(plain, imagenet=imagenet, form=form)
    elif not library and plain in OURS:
        made = OURS[plain](imagenet=imagenet)
    elif library == "open_clip":
        check_weights(name)
        made = _of_open_clip(plain, published=imagenet)
    elif library == "hf-hub":
        if plain.count("/") != 1:
            raise UserError(f"{name} is not a network on the hub: hf-hub:owner/name.")
        check_weights(name)
        made = _of_timm(name, imagenet=imagenet)
    elif library != "timm" and plain in torchvision_names():
        check_weights(name)
        made = _of_torchvision(plain, imagenet=imagenet)
    elif library != "torchvision" and _is_of_timm(plain):
        check_weights(name)
        made = _of_timm(plain, imagenet=imagenet)
    else:
        raise _unknown(name, plain)
    if str(weights) not in ("imagenet", "none"):
        load_weights(made.network, Path(weights), form)
    exchange_pool(made.network, pool, channels=len(made.mode), size=made.size)
    return made if size in (None, made.size) else _at_size(made, name, size)


@torch.no_grad()
def _at_size(made: Backbone, name: str, size: int) -> Backbone:
    """The network for another input size; the position embeddings of a transformer are interpolated."""
    check_whole("`size`", size, 1, _MOST_PIXELS)
    network, was_training = made.network, made.network.training
    try:
        if hasattr(network, "set_input_size"):  # transformers of timm
            cast(Any, network).set_input_size(img_size=(size, size))
        found = network.eval()(torch.zeros(1, len(made.mode), size, size))
    except (AssertionError, RuntimeError, ValueError) as error:  # networks raise different errors
        raise UserError(
            f"{name} does not accept images of {size} x {size} pixels: {str(error).partition(chr(10))[0].rstrip('.')}."
            f" Its published size is {made.size}: leave out `size`, or use a multiple of its patch size."
        ) from error
    finally:
        network.train(was_training)
    assert found.shape == (1, made.features)
    return replace(made, size=size, shorter_side=round(size * made.shorter_side / made.size), resized=True)


def check_weights(name: str, given: int | None = None) -> None:
    """Raise UserError for a network with too many weights, before memory is allocated.

    Args:
        given: the number of weights in a file; None to allow as many as `io.limits`.
    """
    number = _num_weights(name)
    if given is not None and number > given + _CLASSIFIER:
        raise UserError(f"the network {name} has {number:,} weights, and {given:,} numbers are given for it.")
    check_limit(WEIGHTS, number, f"the network {name}")


@cache
def _num_weights(name: str) -> int:
    """The number of weights of a library's network with its classifier; 0 for ours, which are small."""
    library, _, plain = name.rpartition(":")
    if library not in ("", *_LIBRARIES) or (not library and plain in OURS):
        return 0
    if library != "timm" and plain in torchvision_names():
        from torchvision.models import get_model_weights

        return int(get_model_weights(plain).DEFAULT.meta["num_params"])
    if library == "torchvision" or (library in ("", "timm") and not _is_of_timm(plain)):
        return 0  # an unknown name; reported when it is built
    with torch.device("meta"):  # shapes without numbers
        if library == "open_clip":
            network = _open_clip_tower(_model_and_tag(plain)[0], None)
        else:
            network = _timm_network(name if library == "hf-hub" else plain)
        return sum(weight.numel() for weight in network.parameters())


def _conv4(*, imagenet: bool) -> Backbone:
    if imagenet:
        raise UserError("conv4 has no ImageNet weights: it is trained from scratch. Use `weights='none'`.")
    cuts = ("blocks.1", "blocks.2", "blocks.3")
    return Backbone(Conv4(), 64, "L", 28, 28, (0.5,), (0.5,), cuts, "blocks.2", ("blocks.2", "blocks.3"))


def _googlenet(*, imagenet: bool) -> Backbone:
    network = googlenet.GoogLeNet()
    if imagenet:
        load_weights(network, googlenet_file())
    cuts, highest = googlenet.CUTS, googlenet.DEFAULT_CUT
    return Backbone(
        network, googlenet.FEATURES, "RGB", 224, 256, _CAFFE_MEAN, _CAFFE_STD, cuts, highest, googlenet.DEPTHS
    )


def _vgg16(*, imagenet: bool) -> Backbone:
    network = vgg16.VGG16()
    if imagenet:
        _put_torchvisions(network, "vgg16")
    cuts, highest = vgg16.CUTS, vgg16.DEFAULT_CUT
    return Backbone(
        network, vgg16.FEATURES, "RGB", 224, 256, _IMAGENET_MEAN, _IMAGENET_STD, cuts, highest, vgg16.DEPTHS
    )


def _resnet(name: str, *, imagenet: bool, form: Form | None = None) -> Backbone:
    kind = resnet.KINDS[name]
    network = resnet.ResNet(kind, form or "torchvision")
    if imagenet:
        _put_torchvisions(network, name)
    mean, std = (_KERAS_MEAN, _CAFFE_STD) if form == "keras" else (_IMAGENET_MEAN, _IMAGENET_STD)
    return Backbone(
        network, network.features, "RGB", 224, 256, mean, std, kind.cuts, kind.default_cut, kind.taken_from, form
    )


def _put_torchvisions(network: nn.Module, name: str) -> None:
    """Load torchvision's ImageNet weights into one of our networks."""
    from torchvision.models import get_model_weights

    chosen = get_model_weights(name).DEFAULT
    with downloading(name, chosen.url, hub_file(chosen.url)):
        tensors = chosen.get_state_dict(check_hash=True)
    put_weights(network, tensors, chosen.url)


OURS: dict[str, Callable[..., Backbone]] = {
    "conv4": _conv4,
    "googlenet": _googlenet,
    "vgg16": _vgg16,
    **{name: partial(_resnet, name) for name in resnet.KINDS},
}


def _torchvision_network(name: str) -> Any:
    """With random weights."""
    from torchvision.models import get_model

    # These two warn about their slow initialisation; torch's default, as in the other networks, is as good.
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return get_model(name, weights=None, **options)


def _timm_network(name: str) -> Any:
    """With random weights, without a classifier."""
    from timm import create_model

    with _on_the_hub(name):
        try:
            return create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as error:  # an unknown tag
            raise UserError(f"timm cannot make {name}: {error}") from error


@contextmanager
def _on_the_hub(name: str) -> Iterator[None]:
    """Turn timm's errors when it reads a network's config from the hub into a UserError."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        with without_logs():
            yield
    except (OSError, HfHubHTTPError, HFValidationError, KeyError) as error:
        if not name.startswith("hf-hub:"):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UserError(
            f"cannot load {name} from the hub: {reason}. It must be a timm network, hf-hub:owner/name. With a file of"
            f" its weights, use `timm:NAME` and `weights=FILE`.{advice_without_network(name)}"
        ) from error


def _of_torchvision(name: str, *, imagenet: bool) -> Backbone:
    from torchvision.models import get_model, get_model_weights

    if imagenet:
        chosen = get_model_weights(name).DEFAULT
        with downloading(name, chosen.url, hub_file(chosen.url)):
            network = get_model(name, weights=chosen)
    else:
        network = _torchvision_network(name)
    if hasattr(network, "aux_logits"):  # GoogLeNet and Inception: auxiliary classifiers for ImageNet
        network.aux_logits, network.aux1, network.aux2, network.AuxLogits = False, None, None, None
    last = [place for place, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not last:
        raise UserError(
            f"torchvision's {name} does not end in a linear layer, so its features are unknown. Try timm:{name}."
        )
    parent, _, child = last[-1].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    size = 299 if name == "inception_v3" else 224
    return measured(network, size, round(size * 256 / 224), _IMAGENET_MEAN, _IMAGENET_STD)


def _of_timm(name: str, *, imagenet: bool) -> Backbone:
    from timm import create_model, get_pretrained_cfg
    from timm.data.config import resolve_model_data_config

    if imagenet and name.startswith("hf-hub:"):
        with _on_the_hub(name):
            network = create_model(name, pretrained=True, num_classes=0)
    elif imagenet:
        found = get_pretrained_cfg(name)
        if found is None or not found.has_weights:
            raise UserError(f"timm has no ImageNet weights for {name}. Use `weights='none'`, or a file of them.")
        url = f"https://huggingface.co/{found.hf_hub_id}" if found.hf_hub_id else str(found.url)
        with downloading(name, url):
            network = create_model(name, pretrained=True, num_classes=0)
    else:
        network = _timm_network(name)
    wants = resolve_model_data_config(network)
    size = wants["input_size"][-1]
    mean, std = tuple(map(float, wants["mean"])), tuple(map(float, wants["std"]))
    return measured(network, size, round(size / wants["crop_pct"]), mean, std)


def _model_and_tag(name: str) -> tuple[str, str | None]:
    """Split `ViT-B-32/laion2b_s34b_b79k` into model and weights."""
    model, _, tag = name.partition("/")
    return model, tag or None


def _open_clip_tower(model: str, tag: str | None) -> Any:
    """The image tower of an open_clip model; with random weights without a tag."""
    try:
        import open_clip
    except ImportError:
        raise UserError(f"open_clip:{model} needs the package open_clip: pip install 'tammes[clip]'") from None
    if model not in (models := open_clip.list_models()):
        near = get_close_matches(model, models, n=3, cutoff=0)
        raise UserError(
            f"unknown open_clip model {model!r}. The nearest are {', '.join(near)}; in Python"
            " open_clip.list_models() lists all."
        )
    if tag is not None and tag not in (known := open_clip.list_pretrained_tags_by_model(model)):
        raise unknown_name(f"weights of open_clip:{model}", tag, known)
    with without_logs():
        return open_clip.create_model(model, pretrained=tag, device=torch.get_default_device()).visual


def _of_open_clip(name: str, *, published: bool) -> Backbone:
    model, tag = _model_and_tag(name)
    if published:
        from open_clip import get_pretrained_cfg, list_pretrained_tags_by_model

        tags = list_pretrained_tags_by_model(model)
        if tag is None and len(tags) != 1:
            raise UserError(
                f"open_clip:{model} has several sets of weights. Name one, such as open_clip:{model}/{tags[0]}:"
                f" {', '.join(tags)}."
            )
        tag = tag or tags[0]
        with downloading(f"open_clip:{name}", f"https://huggingface.co/{get_pretrained_cfg(model, tag)['hf_hub']}"):
            tower = _open_clip_tower(model, tag)
    else:
        tower = _open_clip_tower(model, None)
    size = tower.image_size if isinstance(tower.image_size, int) else tower.image_size[0]
    return measured(tower, size, size, tuple(tower.image_mean), tuple(tower.image_std))


def _is_of_timm(name: str) -> bool:
    from timm import is_model

    return bool(is_model(name))


def torchvision_names() -> list[str]:
    """The names of torchvision's image classifiers."""
    from torchvision import models

    return list(models.list_models(module=models))


def timm_names() -> list[str]:
    """The names of timm's pretrained networks with the tags of their weights."""
    from timm import list_models

    return list(list_models(pretrained=True))


def _unknown(name: str, plain: str) -> UnknownBackboneError:
    from timm import list_models as timm_models

    near = get_close_matches(plain, {*OURS, *torchvision_names(), *timm_models()}, n=3)
    hint = f" Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""
    ours = ", ".join(OURS)
    return UnknownBackboneError(
        f"unknown backbone {name!r}.{hint} Known: {ours}, every name of torchvision and timm, hf-hub:owner/name and"
        " open_clip:MODEL. `tammes models WORD` lists those with WORD in their name."
    )
