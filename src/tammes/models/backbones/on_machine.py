"""Advice for machines without a network connection: the weights that are on this machine."""

from pathlib import Path

import torch

from tammes.io.environment import cache_folder

SUFFIXES = (".safetensors", ".pt", ".pth", ".caffemodel")
_SHOWN = 5


def advice_without_network(name: str) -> str:
    """A sentence that names the weights on this machine, those of this network first, and how to use them.

    Looks into the caches of tammes, torch and Hugging Face, the current folder and its subfolder `weights`.
    """
    names, files = _cached_names(), _files()
    own = next((file for file in files if _plain(name) in file.name.lower()), None)
    if own is not None:
        return f" This file may have its weights: `weights={str(own)!r}`."
    if names:
        return f" Networks whose weights are on this machine: {_listed(names)}. Name one of them instead."
    if files:
        listed = _listed([str(file) for file in files])
        return f" Files of weights on this machine: {listed}. Use one with its network: `weights=FILE`."
    looked = ", ".join(str(folder) for folder in _folders())
    return f" There are no weights on this machine, in {looked} or the cache of Hugging Face."


def _plain(name: str) -> str:
    """The plain name of a network, without library, owner and tag, as in the names of weight files."""
    return name.rpartition(":")[2].rpartition("/")[2].partition(".")[0].lower()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _folders() -> list[Path]:
    here = Path.cwd()
    return [cache_folder() / "weights", Path(torch.hub.get_dir()) / "checkpoints", here, here / "weights"]


def _files() -> list[Path]:
    """Files of weights that were not downloaded by a library."""
    here = [file for folder in (_folders()[0], *_folders()[2:]) if folder.is_dir() for file in sorted(folder.iterdir())]
    return [file for file in here if file.suffix.lower() in SUFFIXES and file.is_file()]


def _cached_names() -> list[str]:
    """The networks whose published weights are in the cache of torch or Hugging Face."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from torchvision import models

    checkpoints = _folders()[1]
    there = {file.name for file in checkpoints.iterdir()} if checkpoints.is_dir() else set()
    of_torch = [
        name
        for name in (models.list_models(module=models) if there else ())
        if models.get_model_weights(name).DEFAULT.url.rpartition("/")[2] in there
    ]
    of_timm = [
        f"timm:{folder.name.removeprefix('models--timm--')}"
        for folder in sorted(Path(HF_HUB_CACHE).glob("models--timm--*"))
        if any(folder.glob("snapshots/*/*.safetensors")) or any(folder.glob("snapshots/*/*.bin"))
    ]
    return of_torch + of_timm
