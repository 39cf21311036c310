"""The catalogue of pretrained networks: input size, dimension, and whether their weights are on this machine."""

from dataclasses import dataclass

import torch

from tammes.errors import UserError
from tammes.io.environment import cache_folder
from tammes.models.backbones import OURS, backbone, timm_names, torchvision_names
from tammes.models.backbones.weights import googlenet_file_name, hub_file

# The timm networks to try first; see docs/guides/choose-a-backbone.md.
SUGGESTED = (
    "timm:vit_small_patch14_dinov2.lvd142m",
    "timm:vit_base_patch16_clip_224.openai",
    "timm:convnext_tiny.in12k_ft_in1k",
    "timm:mobilenetv4_conv_small.e2400_r224_in1k",
)
MOST = 60  # default limit of networks that are built (without memory for weights) to list them


@dataclass(frozen=True)
class Entry:
    """A pretrained network.

    Attributes:
        dim: number of features.
        size: height and width of its input.
        parameters: number of weights without the classifier.
        here: whether its weights are on this machine.
    """

    name: str
    dim: int
    size: int
    parameters: int
    here: bool


def names_with(word: str = "") -> list[str]:
    """The networks with this word in their names; without a word, those to try first."""
    if not word:
        return [name for name in OURS if name != "conv4"] + list(SUGGESTED)
    ours = [name for name in OURS if name != "conv4"]
    known = [
        *ours,
        *(f"torchvision:{name}" for name in torchvision_names()),
        *(f"timm:{name}" for name in timm_names()),
    ]
    found = [name for name in known if word.lower() in name.lower()]
    if not found:
        raise UserError(
            f"no network has {word!r} in its name. `tammes models` lists those to try first; hf-hub:owner/name and"
            " open_clip:MODEL/TAG can also be used."
        )
    return found


def entry(name: str) -> Entry | None:
    """The entry of a network, without memory for its weights; None if it gives no vector per image."""
    try:
        with torch.device("meta"):
            made = backbone(name)
    except (UserError, RuntimeError, NotImplementedError):
        return None
    parameters = sum(weight.numel() for weight in made.network.parameters())
    return Entry(name, made.features, made.size, parameters, weights_here(name))


def weights_here(name: str) -> bool:
    """Whether the published weights of a network are on this machine."""
    library, _, plain = name.rpartition(":")
    if name == "googlenet":
        return googlenet_file_name(cache_folder()) is not None
    if library != "timm":
        from torchvision.models import get_model_weights

        return hub_file(get_model_weights(plain).DEFAULT.url).exists()
    from huggingface_hub import try_to_load_from_cache
    from timm import get_pretrained_cfg

    found = get_pretrained_cfg(plain)
    if found is None or not found.has_weights:
        return False
    if found.hf_hub_id is None:
        return hub_file(str(found.url)).exists()
    return any(
        isinstance(try_to_load_from_cache(found.hf_hub_id, file), str)
        for file in (
            "model.safetensors",
            "pytorch_model.bin",
            "open_clip_model.safetensors",
            "open_clip_pytorch_model.bin",
        )
    )
