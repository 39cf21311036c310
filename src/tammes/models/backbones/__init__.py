"""The networks that turn images into features: conv4, googlenet, vgg16, resnets, any name of torchvision or timm."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tammes.errors import UserError
from tammes.io.limits import WEIGHTS, check_limit
from tammes.models.backbones import googlenet, resnet, vgg16
from tammes.models.backbones.base import Backbone, measured
from tammes.models.backbones.conv4 import Conv4
from tammes.models.backbones.module import OWN
from tammes.models.backbones.resnet import Form
from tammes.models.backbones.weights import downloading, form_of, googlenet_file, hub_file, load_weights, put_weights
from tammes.models.pooling import Pool, exchange_pool

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN, _CAFFE_STD = (123 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3  # 0 to 255, only the mean taken off
_CLASSIFIER = 1 << 24  # weights of torchvision's classifiers, which are built and dropped
_KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # likewise


def backbone(
    name: str, *, weights: str | Path = "none", pool: Pool = "published", form: Form | None = None
) -> Backbone:
    """The network of that name: ours, torchvision's, or timm's (`torchvision:NAME` or `timm:NAME` to insist).

    Args:
        weights: "imagenet", "none" for random ones, or a file as `weights.load_weights` takes it.
        pool: how its last map becomes a vector.
        form: of resnet50, 101 and 152: torchvision's, or the original one, which Keras has; None: as the file of
            weights says, or torchvision's without one.
    """
    if name.startswith(OWN):
        raise UserError(
            f"the network {name.removeprefix(OWN)} was given as a module in Python, and no file can make it again. Open"
            " the run there, with the module: tammes.load_run(folder, backbone=module)"
        )
    library, _, plain = name.rpartition(":")
    if library not in ("", "torchvision", "timm"):
        raise UserError(f"unknown library {library!r} in backbone {name!r}. Known: timm, torchvision.")
    imagenet = str(weights) == "imagenet"
    form = form_of(name, weights, form)
    if form is not None:
        made = _resnet(plain, imagenet=imagenet, form=form)
    elif not library and plain in OURS:
        made = OURS[plain](imagenet=imagenet)
    elif library != "timm" and plain in _torchvision_names():
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
    return made


def check_weights(name: str, given: int | None = None) -> None:
    """Refuse a network of too many weights, before memory is asked for them.

    Args:
        given: how many there are for it in a file; None: as many as `io.limits` allows.
    """
    number = _num_weights(name)
    if given is not None and number > given + _CLASSIFIER:
        raise UserError(f"the network {name} has {number:,} weights, and {given:,} numbers are given for it.")
    check_limit(WEIGHTS, number, f"the network {name}")


@cache
def _num_weights(name: str) -> int:
    """How many weights a network of a library has, its classifier included; 0 of ours, none of which is large."""
    library, _, plain = name.rpartition(":")
    if not library and plain in OURS:
        return 0
    if library != "timm" and plain in _torchvision_names():
        from torchvision.models import get_model_weights

        return int(get_model_weights(plain).DEFAULT.meta["num_params"])
    if library == "torchvision" or not _is_of_timm(plain):
        return 0  # whoever builds it says that there is no such network
    with torch.device("meta"):  # shapes without numbers
        return sum(weight.numel() for weight in _timm_network(plain).parameters())


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
    """Its ImageNet weights into a network of ours."""
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

    # These two warn that their slow initialisation will go; torch's own is as good, and the one of the others.
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return get_model(name, weights=None, **options)


def _timm_network(name: str) -> Any:
    """With random weights, without a classifier."""
    from timm import create_model

    try:
        return create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:  # a tag after the name that it does not know
        raise UserError(f"timm cannot make {name}: {error}") from error


def _of_torchvision(name: str, *, imagenet: bool) -> Backbone:
    from torchvision.models import get_model, get_model_weights

    if imagenet:
        chosen = get_model_weights(name).DEFAULT
        with downloading(name, chosen.url, hub_file(chosen.url)):
            network = get_model(name, weights=chosen)
    else:
        network = _torchvision_network(name)
    if hasattr(network, "aux_logits"):  # GoogLeNet and Inception: the side heads see ImageNet's classes only
        network.aux_logits, network.aux1, network.aux2, network.AuxLogits = False, None, None, None
    last = [place for place, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not last:
        raise UserError(
            f"{name} of torchvision ends in no linear layer, so its features are not known. Try timm:{name}."
        )
    parent, _, child = last[-1].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    size = 299 if name == "inception_v3" else 224
    return measured(network, size, round(size * 256 / 224), _IMAGENET_MEAN, _IMAGENET_STD)


def _of_timm(name: str, *, imagenet: bool) -> Backbone:
    from timm import create_model, get_pretrained_cfg
    from timm.data.config import resolve_model_data_config

    if imagenet:
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


def _is_of_timm(name: str) -> bool:
    from timm import is_model

    return bool(is_model(name))


def _torchvision_names() -> list[str]:
    """Its classifiers; detectors and networks for video see other things than one image."""
    from torchvision import models

    return list(models.list_models(module=models))


def _unknown(name: str, plain: str) -> UserError:
    from timm import list_models as timm_models

    near = get_close_matches(plain, [*OURS, *_torchvision_names(), *timm_models()], n=3)
    hint = f" Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""
    ours = ", ".join(OURS)
    return UserError(f"unknown backbone {name!r}.{hint} Known: {ours}, and every name of torchvision and timm.")
