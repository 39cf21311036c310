"""Load the weights of a network: from a file, or those trained on ImageNet."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tammes.models.backbones.caffemodel import read_caffemodel
from tammes.models.backbones.googlenet import GoogLeNet, from_caffe
from tammes.models.backbones.on_machine import SUFFIXES, advice_without_network
from tammes.models.backbones.resnet import FORMS, Form, from_keras
from tammes.models.backbones.vgg16 import VGG16, from_torchvision

GOOGLENET_URL = "http://dl.caffe.berkeleyvision.org/bvlc_googlenet.caffemodel"
_GOOGLENET_FILES = ("googlenet.safetensors", "bvlc_googlenet.caffemodel")
GOOGLENET_CHECKSUM = "sha1:405fc5acd08a3bb12de8ee5e23a96bec22f08204"

# Names of tensors that are ignored in files: classifiers and auxiliary classifiers.
_CLASSIFIER = re.compile(r"(fc|classifier|heads?|aux1|aux2|AuxLogits|loss\d+)[./]")
_EMBEDDER = ("backbone.", "penultimate.", "class_layer.")


def form_of(backbone: str, weights: str | Path, form: Form | None = None) -> Form | None:
    """The form of a network: as given, or from the metadata of its safetensors file (`form: keras`).

    None for a network that has only one form.

    Raises:
        UserError: the form is unknown, or was given for a network that has only one.
    """
    if form is not None and form not in get_args(Form):
        raise UserError(f"unknown form {form!r} of weights. Known: {', '.join(get_args(Form))}.")
    if backbone not in FORMS:
        if form is not None:
            raise UserError(f"`weights_form` is for {', '.join(FORMS)}, not for {backbone}: leave it out.")
        return None
    if str(weights) == "imagenet" and form == "keras":
        raise UserError("`weights='imagenet'` are torchvision's: leave out `weights_form='keras'`, or use a file.")
    if form is None and str(weights) not in ("imagenet", "none"):
        form = _said_form(Path(weights))
        if form is None:
            raise UserError(
                f"the form of {backbone} in {weights} is unknown, and the wrong form gives wrong features: add"
                " `weights_form='torchvision'`, or `weights_form='keras'` for the original form (stride in the first"
                " 1 x 1 convolution of a stage; BGR)."
            )
    return form or "torchvision"


def _said_form(file: Path) -> Form | None:
    """The form in the metadata of a safetensors file; None if there is none."""
    if file.suffix.lower() != ".safetensors" or not file.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            said = (opened.metadata() or {}).get("form")
    except (SafetensorError, OSError):  # reported when its tensors are read
        return None
    return next((form for form in get_args(Form) if form == said), None)


def load_weights(network: nn.Module, file: Path, form: Form | None = None) -> None:
    """Load the weights of a file into a network; if they do not fit, the network is unchanged.

    The file is .safetensors, .pt or .pth (no code in it is executed), or for googlenet .caffemodel. Tensor names are
    the network's own, an Embedder's, torchvision's for vgg16, or Caffe's for googlenet. A classifier is ignored.

    Args:
        form: the form of the network, if it has several.

    Raises:
        UserError: the file does not exist, is damaged, or is of another network or form.
    """
    said = _said_form(file)
    if None not in (form, said) and form != said:
        raise UserError(f"the weights in {file} have the form {said}, not {form}: leave out `weights_form`.")
    tensors = _tensors(file)
    put_weights(network, from_keras(tensors) if form == "keras" else tensors, str(file))


def put_weights(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load tensors into a network; `source` names them in errors."""
    given, own = _under_our_names(network, tensors), network.state_dict()
    # Older files lack num_batches_tracked, which only matters if momentum is None.
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in own and not _CLASSIFIER.match(name)]
    misshapen = [
        f"{name} {_by(given[name])} instead of {_by(own[name])}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    wrong = [
        f"{len(names)} {what}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not of this network", unexpected), ("of another shape", misshapen))
        if names
    ]
    if wrong:
        raise UserError(
            f"the weights of {source} do not fit the network {type(network).__name__}. Tensors {'; '.join(wrong)}."
            " Use the file of this network, or the `backbone` of this file."
        )
    network.load_state_dict(own | {name: tensor for name, tensor in given.items() if name in own})


def googlenet_file_name(cache: Path) -> Path | None:
    """The file of GoogLeNet's ImageNet weights in the cache folder, if it exists."""
    files = [cache / "weights" / name for name in _GOOGLENET_FILES]
    return next((file for file in files if file.exists()), None)


def googlenet_file() -> Path:
    """The file of GoogLeNet's ImageNet weights in the cache folder, downloaded if necessary."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from tammes.io.downloads import fetch

    if here := googlenet_file_name(cache_folder()):
        return here
    caffe = cache_folder() / "weights" / _GOOGLENET_FILES[1]
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        # On stderr, and only on a terminal, so that stdout stays machine-readable.
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("downloading GoogLeNet's weights", total=None)
            return fetch(
                GOOGLENET_URL,
                caffe,
                checksum=GOOGLENET_CHECKSUM,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except UserError as error:
        raise UserError(
            f"no weights for googlenet: {error} Or use a file: `weights=FILE`.{advice_without_network('googlenet')}"
        ) from error


@contextmanager
def without_logs() -> Iterator[None]:
    """Silence the logs of other libraries, whose failures are reported by our own errors."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def downloading(name: str, url: str, place: Path | None = None) -> Iterator[None]:
    """Turn the errors of another library's download of weights into a UserError.

    Args:
        place: where that library looks for the file before downloading it.
    """
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with without_logs():
            yield
    except (OSError, RuntimeError, HfHubHTTPError) as error:  # RuntimeError: torch.hub, of a wrong checksum
        reason = str(getattr(error, "reason", error)).strip().partition("\n")[0].rstrip(".")  # of a URLError
        put = f" and put it at {place}, or give it as" if place else " and give it as"
        raise UserError(
            f"no weights for {name}: {reason}. Get {url} by other means{put}"
            f" `weights=FILE`; `weights='none'` starts from random ones.{advice_without_network(name)}"
        ) from error


def hub_file(url: str) -> Path:
    """The file in torch's cache for this URL."""
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]


def _tensors(file: Path) -> dict[str, Tensor]:
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"unknown weights {str(file)!r}: `weights` is imagenet, none, or a file whose name ends in"
            f" {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}."
        )
    if not file.is_file():
        raise UserError(f"no weights file {file}. `weights` is imagenet, none, or a file.")
    if file.suffix.lower() == ".caffemodel":
        return read_caffemodel(file)
    try:
        content = _safetensors(file) if file.suffix.lower() == ".safetensors" else _torch_file(file)
    except Exception as error:  # a corrupt file may raise any error
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise UserError(f"cannot read the weights in {file}: {reason}.") from error
    for key in ("state_dict", "model"):  # keys in the checkpoints of training programs
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"cannot read the weights in {file}: it is not a dictionary of tensors.")
    return dict(content)


def _safetensors(file: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(file)


def _torch_file(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def _under_our_names(network: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if all(name.startswith(_EMBEDDER) for name in tensors):
        return {name.removeprefix("backbone."): each for name, each in tensors.items() if name.startswith("backbone.")}
    if isinstance(network, GoogLeNet):
        return from_caffe(tensors)
    if isinstance(network, VGG16):
        return from_torchvision(tensors)
    return dict(tensors)


def _by(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
