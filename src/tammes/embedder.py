"""The Embedder: image -> unit vector. What is trained, evaluated, shipped and searched with."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from PIL import Image
from torch import Tensor, nn

from tammes.backbones import backbone
from tammes.errors import UserError
from tammes.geometry import normalise

Embedding = Literal["penultimate", "last"]


@dataclass(frozen=True)
class EmbedderConfig:
    """Everything that is needed to build an Embedder again; its weights come from a file.

    Attributes:
        backbone: the name of the network.
        dim: length of the penultimate layer: the paper has 256.
        class_dim: outputs of the class layer on top of it, None without one.
        embedding: which of the two layers an image's vector is taken from.
    """

    backbone: str
    dim: int = 256
    class_dim: int | None = None
    embedding: Embedding = "penultimate"

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise UserError(f"--dim must be at least 1, got {self.dim}.")
        if self.embedding == "last" and self.class_dim is None:
            raise UserError("--embedding last needs the class layer. Use --embedding penultimate, or leave it in.")


class Embedder(nn.Module):
    """Backbone -> fully connected layer of `dim` -> unit vector; with a class layer in between for the loss.

    The paper's two layers: the penultimate one is what images are compared by, the class layer on top of it, one output
    per class, is where the centroids are. Images are uint8 or float in 0..255, (batch, channels, height, width).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: EmbedderConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        made = backbone(config.backbone, pretrained=pretrained)
        self.config = config
        self.mode, self.size, self.shorter_side = made.mode, made.size, made.shorter_side
        self.backbone = made.network
        self.penultimate = nn.Linear(made.features, config.dim)
        self.class_layer = None if config.class_dim is None else nn.Linear(config.dim, config.class_dim)
        for layer in self.new_layers():
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.register_buffer("mean", torch.tensor(made.mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(made.std).view(-1, 1, 1) * 255, persistent=False)

    def new_layers(self) -> list[nn.Linear]:
        """The layers on top of the backbone, which the paper trains ten times as fast."""
        return [self.penultimate] if self.class_layer is None else [self.penultimate, self.class_layer]

    def features(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """What the backbone gives."""
        features: Tensor = self.backbone((images.to(self.mean.dtype) - self.mean) / self.std)
        return features

    def for_loss(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch outputs"]:
        """The outputs that the loss compares with the centroids: of the class layer, or without it the penultimate."""
        outputs: Tensor = self.penultimate(self.features(images))
        return outputs if self.class_layer is None else self.class_layer(outputs)

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        """Unit vectors: what images are compared by."""
        if self.config.embedding == "last":
            return normalise(self.for_loss(images))
        return normalise(self.penultimate(self.features(images)))

    def encode(
        self,
        images: str | Path | Image.Image | Iterable[str | Path | Image.Image],
        *,
        batch_size: int = 64,
        show_progress: bool = False,
    ) -> Float32[np.ndarray, "images dim"]:
        """Unit vectors of images: a file, a folder of files, a Pillow image, or any number of these.

        A folder is read file by file in the order of their names, sub-folders included. Images are scaled to the
        shorter side that the network was trained with and cropped in the centre.
        """
        from tammes.embeddings import encode  # it stands after this module on the line; only this door looks ahead

        return encode(self, images, batch_size=batch_size, show_progress=show_progress)

    def save(self, folder: Path) -> None:
        """Write embedder.safetensors and embedder.json, each whole or not at all."""
        from safetensors.torch import save

        from tammes.runtime import write_atomically

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(folder / "embedder.safetensors", save(tensors))
        write_atomically(folder / "embedder.json", json.dumps(asdict(self.config), indent=1).encode() + b"\n")


def load(folder: str | Path, *, embedding: Embedding | None = None) -> Embedder:
    """The Embedder of a run folder, ready to use: in evaluation mode, on the CPU.

    Args:
        embedding: take the vectors from this layer instead of the one that the run chose.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / "embedder.json").exists():
        raise UserError(
            f"no trained model in {folder}: embedder.json is missing. Train one: tammes train DATA --out {folder}"
        )
    given = json.loads((folder / "embedder.json").read_text())
    if embedding is not None:
        given["embedding"] = embedding
    embedder = Embedder(EmbedderConfig(**given))
    embedder.load_state_dict(load_file(folder / "embedder.safetensors"))
    return embedder.eval()
