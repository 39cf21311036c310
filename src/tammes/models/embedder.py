"""The Embedder: image -> unit vector. It is what is trained, evaluated, exported and searched with."""

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, get_args

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped
from PIL import Image
from pydantic import PositiveInt
from rich.progress import track
from torch import Tensor, nn
from typing_extensions import TypedDict

from tammes.data.folder import images_below
from tammes.data.image_cache import image_digest
from tammes.data.images import in_mode, middle, open_image, resized, scaled
from tammes.data.transforms import Transform
from tammes.errors import UserError, check_whole, unknown_name
from tammes.geometry import normalise, rms_norm
from tammes.io.console import say
from tammes.io.files import write_atomically
from tammes.io.hub import ADDRESS, fetched
from tammes.io.machine import images_at_once, multiplies_bfloat16
from tammes.io.schema import built, read_json
from tammes.io.tensor_files import read_tensors, shapes, write_tensors
from tammes.models.backbones import backbone as find_backbone
from tammes.models.backbones import check_weights
from tammes.models.backbones.base import Backbone
from tammes.models.backbones.depths import Depths
from tammes.models.backbones.module import OWN, of_module
from tammes.models.backbones.resnet import Form
from tammes.models.heads import Layers, joined
from tammes.models.origin import Network, Precision
from tammes.models.pooling import Pool
from tammes.models.whitening import directions

Embedding = Literal["penultimate", "last"]
DIM = 256  # default dimension of an embedding, as in the paper
RIDGE = 0.3  # ridge of the class layer's regression, as a share of the mean variance of an embedding
_ADVICE = "Restore the file that was written with the weights."


@dataclass(frozen=True)
class EmbedderConfig:
    """Everything that is needed to rebuild an Embedder, except its weights.

    Attributes:
        backbone: the name of the network.
        dim: outputs of the embedding (penultimate) layer.
        class_dim: outputs of the class layer on top of it; None without one.
        embedding: which of the two layers gives the embedding.
        pool: how the backbone's last feature map is pooled.
        heads: sizes of the heads of the embedding layer, which are normalised separately; () for a single head.
        head_weights: the weight of each head in the embedding.
        depths: the modules of the backbone whose pooled inputs are the features of a head each, lowest first; the last
            head uses the backbone's final features. () if all heads do.
        form: the form of the backbone, if it has several; None for that of the weights.
        size: height and width of the backbone's input; None as published.
        shorter_side: for a custom backbone, the length to which the shorter side is scaled first.
        mean: for a custom backbone, the mean of each channel.
        std: for a custom backbone, the standard deviation of each channel.
        eval_transform: the name of a custom evaluation transform; None for the centre crop.
    """

    backbone: str
    dim: int = DIM
    class_dim: PositiveInt | None = None
    embedding: Embedding = "penultimate"
    pool: Pool = "published"
    heads: tuple[PositiveInt, ...] = ()
    head_weights: tuple[float, ...] = ()
    depths: tuple[str, ...] = ()
    form: Form | None = None
    size: PositiveInt | None = None
    shorter_side: PositiveInt | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    eval_transform: str | None = None

    def __post_init__(self) -> None:
        if self.heads and (sum(self.heads) != self.dim or len(self.head_weights) != len(self.heads)):
            raise ValueError(f"heads {self.heads} with weights {self.head_weights} do not fit dim={self.dim}")
        if self.depths and len(self.heads) != len(self.depths) + 1:
            raise ValueError(f"{len(self.depths)} depths need {len(self.depths) + 1} heads, got {len(self.heads)}")
        if self.dim < 1:
            raise UserError(f"`dim` must be at least 1, got {self.dim}.")
        if self.embedding == "last" and self.class_dim is None:
            raise UserError("`embedding='last'` needs the class layer. Use `embedding='penultimate'`, or keep it.")

    def plain(self, dim: int) -> "EmbedderConfig":
        """The same backbone with a single layer on top."""
        one = {"class_dim": None, "embedding": "penultimate", "heads": (), "head_weights": (), "depths": ()}
        return replace(self, dim=dim, **one)  # type: ignore[arg-type]


class Embedder(nn.Module):
    """Backbone -> embedding layer of `dim` outputs -> unit vector, with an optional class layer for the loss.

    The paper's two layers: images are compared by the penultimate one, the embedding layer; the class layer on top,
    with one output per class, is where the centroids are. Images are uint8 or float in 0..255, (batch, channels,
    height, width).
    """

    mean: Tensor
    std: Tensor
    origin: Path | Network | None = None  # the folder from which it was loaded, or the pretrained network
    precision: Precision = "no"  # of the backbone, if nothing is trained; features and layers above are float32

    def __init__(
        self,
        config: EmbedderConfig,
        *,
        weights: str | Path = "none",
        backbone: Backbone | None = None,
        eval_transform: Transform | None = None,
    ) -> None:
        super().__init__()
        made = backbone or find_backbone(
            config.backbone, weights=weights, pool=config.pool, form=config.form, size=config.size
        )
        size = made.size if made.resized else None
        self.config, self.default_cut = replace(config, form=made.form, size=size), made.default_cut
        if config.backbone.startswith(OWN):
            self.config = replace(
                self.config, size=made.size, shorter_side=made.shorter_side, mean=made.mean, std=made.std
            )
        self.eval_transform = eval_transform
        if eval_transform is not None:
            self.config = replace(self.config, eval_transform=eval_transform.name)
        self.mode, self.size, self.shorter_side = made.mode, made.size, made.shorter_side
        # channels_last: on a CPU conv4 trains 1.3 to 1.5 times as fast, ResNet-18 1.1 times.
        self.backbone = made.network.to(memory_format=torch.channels_last)
        self._depths = Depths(self.backbone, config.depths, config.pool) if config.depths else None
        self.penultimate: nn.Linear | Layers = nn.Linear(made.features, config.dim)
        if self._depths is not None:
            self.penultimate = Layers(self._depths.sizes(len(self.mode), self.size), config.heads)
        self.class_layer = None if config.class_dim is None else nn.Linear(config.dim, config.class_dim)
        for layer in self.new_layers():
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.register_buffer("mean", torch.tensor(made.mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(made.std).view(-1, 1, 1) * 255, persistent=False)

    def new_layers(self) -> list[nn.Linear]:
        """The layers on top of the backbone, which the paper trains with ten times the learning rate."""
        first = self.embedding_layers()
        return first if self.class_layer is None else [*first, self.class_layer]

    def embedding_layers(self) -> list[nn.Linear]:
        """The embedding layer, or one layer for each head."""
        return self.penultimate.linear() if isinstance(self.penultimate, Layers) else [self.penultimate]

    @torch.no_grad()
    def init_from(
        self, features: Float[Tensor, "images features"], labels: Int64[Tensor, " images"] | None = None
    ) -> None:
        """Initialise the embedding layer with the principal directions of these features.

        Before training, embeddings then compare nearly like the backbone's features, instead of like a random
        projection of them. With labels, directions with a large within-class variance are scaled down first
        (whitening). If there are fewer directions than `dim` (few images, or few features), the other outputs stay
        random.
        """
        first = self.penultimate
        for layer, own in first.with_features(features) if isinstance(first, Layers) else [(first, features)]:
            found = directions(own.double().cpu().numpy(), None if labels is None else labels.cpu().numpy())
            number = min(*layer.weight.shape, len(features) - 1)
            layer.weight[:number] = torch.from_numpy(found.T[:number].copy()).to(layer.weight)

    @torch.no_grad()
    def init_class_layer(
        self, features: Float[Tensor, "images features"], targets: Float[Tensor, "images outputs"], norm: float = 1.0
    ) -> float:
        """Initialise the class layer by ridge regression of the embeddings onto the centroids of their classes.

        The embedding layer is scaled so that embeddings have about this norm, which does not change how they compare.
        At the norm of the features, the first step of the class layer would undo the initialisation.

        Returns:
            the scaling factor.
        """
        assert isinstance(self.penultimate, nn.Linear)
        assert self.class_layer is not None
        factor = norm / float(rms_norm(self.penultimate(features)))
        self.penultimate.weight *= factor
        vectors, targets = self.penultimate(features).double().cpu(), targets.double().cpu()
        mean, target = vectors.mean(0), targets.mean(0)
        covariance = (vectors - mean).T @ (vectors - mean) / len(vectors)  # (dim, dim)
        covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
        found = torch.linalg.solve(covariance, (vectors - mean).T @ (targets - target) / len(vectors))  # (dim, outputs)
        self.class_layer.weight.copy_(found.T)
        self.class_layer.bias.copy_(target - mean @ found)
        return factor

    @torch.no_grad()
    def scale_outputs(self, factor: Float[Tensor, ""]) -> None:
        """Multiply the class layer's outputs by a factor."""
        assert self.class_layer is not None
        self.class_layer.weight.mul_(factor)
        self.class_layer.bias.mul_(factor)

    @torch.no_grad()
    def closed_form(
        self,
        features: Float[Tensor, "images features"] | None = None,
        labels: Int64[Tensor, " images"] | None = None,
        *,
        dim: int | None = None,
    ) -> "Embedder":
        """The current backbone with a layer in closed form on top.

        Without features, the layer is the identity: images are compared by the backbone's features. With features, it
        is their whitening in at most `dim` directions (by default the outputs of the embedding layer): within classes
        if there are labels, otherwise PCA whitening around the mean.
        """
        layer = self.new_layers()[len(self.config.depths)]  # the one on top of the backbone's final features
        if features is None:
            return self.with_layer(torch.eye(layer.in_features))
        own = self.of_backbone(features).double().cpu().numpy()
        dim = max(1, min(dim or self.config.dim, layer.in_features, len(features) - 1))
        found = directions(own, None if labels is None else labels.cpu().numpy(), whiten=True).T[:dim]
        bias = torch.from_numpy(-found @ own.mean(axis=0)) if labels is None else None
        return self.with_layer(torch.from_numpy(found.copy()), bias)

    @torch.no_grad()
    def with_layer(
        self, weight: Float[Tensor, "dim features"], bias: Float[Tensor, " dim"] | None = None
    ) -> "Embedder":
        """The current backbone with this layer on top."""
        found = deepcopy(self)
        found.origin = None
        found.config, found._depths, found.class_layer = self.config.plain(len(weight)), None, None
        with torch.random.fork_rng(devices=[]):  # does not change the caller's random state
            found.penultimate = nn.Linear(weight.shape[1], len(weight)).to(self.new_layers()[0].weight)
        found.penultimate.weight.copy_(weight)
        found.penultimate.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
        return found.eval()

    def normalised(
        self, images: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Pixels normalised by the mean and standard deviation of each channel."""
        return ((images.to(self.mean.dtype) - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def features(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """The features of the backbone; of several depths, concatenated."""
        return self.in_precision(self.of_depths, self.normalised(images))

    def in_precision(self, part: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Run a part of the backbone in `precision`; the result is in full precision."""
        if self.precision == "no":
            return part(inputs)
        device = self.mean.device.type
        if device == "cpu":
            _say_if_slow()
        with torch.autocast(device, torch.bfloat16):
            return part(inputs).float()

    @property
    def of_depths(self) -> Callable[[Tensor], Tensor]:
        """Normalised images -> features: the backbone, or its `Depths`."""
        return self.backbone if self._depths is None else self._depths

    def of_backbone(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch own"]:
        """The backbone's final features among these features."""
        return features[:, -self.penultimate.features[-1] :] if isinstance(self.penultimate, Layers) else features

    def outputs(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch outputs"]:
        """The input of the loss: the class layer's outputs, or without it those of the embedding layer."""
        outputs: Tensor = self.penultimate(features)
        return outputs if self.class_layer is None else self.class_layer(outputs)

    def embedding(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """The embeddings, unit vectors, from the backbone's features."""
        if self.config.embedding == "last":
            return normalise(self.outputs(features))
        return joined(self.penultimate(features), self.config.heads, self.config.head_weights)

    @property
    def at_once(self) -> int:
        """The best number of images for one forward pass."""
        return images_at_once(len(self.mode) * self.size**2, self.mean.device)

    def in_a_batch(self, batch_size: int | None) -> int:
        """The given batch size, or the best one."""
        if batch_size is not None:
            check_whole("batch_size", batch_size)
        return batch_size or self.at_once

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        """Unit vectors of images."""
        return self.embedding(self.features(images))

    @torch.inference_mode()
    def encode(
        self,
        images: str | Path | Image.Image | Iterable[str | Path | Image.Image],
        *,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> Float32[np.ndarray, "images dim"]:
        """Unit vectors of images: a file, a folder, a Pillow image, or several of these.

        A folder is read with its sub-folders in natural order of names (2 before 10). Images are scaled to the shorter
        side that the network was trained with and cropped in the centre.

        Args:
            batch_size: images at a time; None for the best number for the device.
        """
        batch_size = self.in_a_batch(batch_size)
        given = [images] if isinstance(images, str | Path | Image.Image) else list(images)
        read: list[Path | Image.Image] = []
        for each in given:
            if not isinstance(each, str | Path | Image.Image):
                raise UserError(
                    f"cannot encode a {type(each).__name__}: give files, folders or Pillow images. An array of pixels,"
                    " (height, width, 3) in uint8, becomes one by PIL.Image.fromarray(pixels)."
                )
            read += [each] if isinstance(each, Image.Image) else _files(Path(each))
        if not read:
            raise UserError("no images to encode.")
        was_training = self.training
        self.eval()
        rows, starts = [], range(0, len(read), batch_size)
        try:
            for start in track(starts, "encoding", disable=not show_progress):
                batch = np.stack([self.prepared(image) for image in read[start : start + batch_size]])
                rows.append(self(torch.from_numpy(batch).to(self.mean.device)).float().cpu())
        finally:
            self.train(was_training)
        return torch.cat(rows).numpy()

    def prepared(self, image: Path | Image.Image) -> Shaped[np.ndarray, "channels height width"]:
        """One image preprocessed for the network: converted, scaled and cropped in the centre."""
        return self.prepared_with_key(image)[0]

    def prepared_with_key(self, image: Path | Image.Image) -> tuple[Shaped[np.ndarray, "channels height width"], bytes]:
        """The preprocessed image, and the digest of the scaled image, the key of its features in the cache."""
        opened = _readable(image) if isinstance(image, Image.Image) else open_image(image)
        if self.eval_transform is not None:
            return self.eval_transform(resized(in_mode(opened, self.mode), shorter_side=self.shorter_side)).numpy(), b""
        whole = scaled(opened, self.mode, shorter_side=self.shorter_side)
        return middle(whole, self.size), image_digest(whole)

    def save(self, folder: Path) -> None:
        """Write embedder.safetensors and embedder.json, each atomically."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        said = None if self.config.form is None else {"form": self.config.form}  # read by `weights.load_weights`
        write_tensors(folder / "embedder.safetensors", tensors, said)
        write_atomically(folder / "embedder.json", json.dumps(asdict(self.config), indent=1).encode() + b"\n")


def load(
    folder: str | Path,
    *,
    embedding: Embedding | None = None,
    backbone: nn.Module | None = None,
    eval_transform: Callable[[Any], Any] | None = None,
    precision: Precision = "no",
) -> Embedder:
    """The Embedder of a run folder, in evaluation mode, on the CPU.

    Also loads a model on the Hugging Face hub, `hf://owner/name`, and a folder that `tammes export --format hub` wrote.

    Args:
        embedding: use this layer as the embedding instead of that of the run.
        backbone: for a run with a custom backbone, a module of the same architecture; it is copied.
        eval_transform: for a run with a custom evaluation transform, the same transform.
        precision: "bf16" runs the backbone in bfloat16, as in `tammes.pretrained`.
    """
    found = _loaded(folder, embedding, backbone, eval_transform)
    found.precision = checked_precision(precision)
    return found


def checked_precision(precision: str) -> Precision:
    """A valid precision. Raises UserError."""
    if precision not in get_args(Precision):
        raise unknown_name("precision", str(precision), get_args(Precision))
    return precision  # type: ignore[return-value]


def _loaded(
    folder: str | Path,
    embedding: Embedding | None,
    backbone: nn.Module | None,
    eval_transform: Callable[[Any], Any] | None,
) -> Embedder:
    if embedding is not None and embedding not in get_args(Embedding):
        raise unknown_name("embedding", str(embedding), get_args(Embedding))
    folder = fetched(folder) if isinstance(folder, str) and folder.startswith(ADDRESS) else Path(folder)
    of_hub = _of_hub(folder)
    if of_hub is not None:
        return _loaded_from(folder, _from_hub(folder, of_hub, embedding))
    if (folder / "learner.json").exists():
        raise UserError(f"{folder} was trained on vectors: load it with tammes.MetricLearner.load.")
    if not (folder / "embedder.json").exists():
        raise UserError(
            f"no trained model in {folder}: embedder.json is missing. Train one: tammes train DATA --out {folder}"
        )
    config = _config(_json(folder / "embedder.json"), folder / "embedder.json", embedding)
    file = folder / "embedder.safetensors"
    if not file.exists():
        raise UserError(f"no trained model in {folder}: embedder.safetensors is missing.")
    _check_sizes(config, shapes(file), file)
    made = _given_backbone(config, backbone, folder)
    if config.eval_transform is not None and eval_transform is None:
        raise UserError(
            f"{folder} was trained with the evaluation transform {config.eval_transform}, which cannot be saved in a"
            f" file. Load it in Python with it: tammes.load({str(folder)!r}, eval_transform=transform)"
        )
    transform = None if eval_transform is None else Transform("eval_transform", eval_transform)
    return _loaded_from(folder, _built(config, read_tensors(file)[0], file, made, transform))


def _given_backbone(config: EmbedderConfig, module: nn.Module | None, folder: Path) -> Backbone | None:
    """The Backbone of a custom backbone; None for a network with a name."""
    own = config.backbone.startswith(OWN)
    if own and module is None:
        raise UserError(
            f"{folder} was trained with the module {config.backbone.removeprefix(OWN)}, which cannot be saved in a"
            f" file. Load it in Python with such a module: tammes.load({str(folder)!r}, backbone=module)"
        )
    if module is None:
        return None
    if not own:
        raise UserError(f"{folder} was trained with {config.backbone}, which is built by name: leave out backbone.")
    return of_module(
        module, size=config.size, mean=config.mean, std=config.std, shorter_side=config.shorter_side, pool=config.pool
    )


def _loaded_from(folder: Path, embedder: Embedder) -> Embedder:
    embedder.origin = folder.absolute()
    return embedder


def saved_embedder(folder: Path) -> tuple[EmbedderConfig, dict[str, Tensor]]:
    """The config and the weights of a run's network, even if its custom backbone or transform is not available."""
    file = folder / "embedder.json"
    config = _config(_json(file), file, None) if file.exists() else None
    if config is not None and (config.backbone.startswith(OWN) or config.eval_transform is not None):
        return config, read_tensors(folder / "embedder.safetensors")[0]
    loaded = load(folder)
    return loaded.config, loaded.state_dict()


def is_of_hub(model: str | Path) -> bool:
    """Whether a model is on the hub, or a folder as `tammes export --format hub` writes it."""
    return str(model).startswith(ADDRESS) or _of_hub(Path(model)) is not None


class _OfHub(TypedDict):
    """The entry of a tammes model in the config.json of a hub folder."""

    embedder: dict[str, Any]
    classifier: NotRequired[str | None]


class _HubConfig(TypedDict):
    """The config.json of a hub folder, which other programs also write."""

    tammes: NotRequired[_OfHub | None]


def _of_hub(folder: Path) -> _OfHub | None:
    """The entry of a hub folder; None for any other folder, such as a run, which also has a config.json."""
    file = folder / "config.json"
    if (folder / "embedder.json").exists() or not file.exists() or not (folder / "model.safetensors").exists():
        return None
    found: _OfHub | None = read_json(file, _HubConfig, _ADVICE).get("tammes")
    return found


def _from_hub(folder: Path, said: _OfHub, embedding: Embedding | None) -> Embedder:
    """The Embedder of a hub folder; its weights may be named as in timm, with our layer as the classifier."""
    file = folder / "model.safetensors"
    config = _config(said["embedder"], folder / "config.json", embedding)
    classifier = said.get("classifier")

    def own(name: str) -> str:
        if classifier is None:
            return name
        ours = name.startswith(f"{classifier}.")
        return f"penultimate.{name.removeprefix(f'{classifier}.')}" if ours else f"backbone.{name}"

    _check_sizes(config, {own(name): shape for name, shape in shapes(file).items()}, file)
    return _built(config, {own(name): tensor for name, tensor in read_tensors(file)[0].items()}, file)


def _built(
    config: EmbedderConfig,
    tensors: dict[str, Tensor],
    file: Path,
    backbone: Backbone | None = None,
    transform: Transform | None = None,
) -> Embedder:
    try:
        if backbone is None:
            check_weights(config.backbone, sum(tensor.numel() for tensor in tensors.values()))
    except UserError as error:
        raise UserError(f"{file} does not match its description: {error}") from None
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{file}: {name} has numbers that are not finite: the training diverged. Train it again.")
    embedder = Embedder(config, backbone=backbone, eval_transform=transform)
    try:
        embedder.load_state_dict(tensors)
    except RuntimeError:
        raise UserError(f"the weights of {file} are not those of the network that its description names.") from None
    return embedder.eval()


def _json(file: Path) -> Any:
    return read_json(file, Any, _ADVICE)


def _config(given: Any, file: Path, embedding: Embedding | None) -> EmbedderConfig:
    """Validate the config of a file, which is untrusted."""
    found: EmbedderConfig = built(given, EmbedderConfig, str(file), _ADVICE)
    return found if embedding is None else replace(found, embedding=embedding)


def _check_sizes(config: EmbedderConfig, found: dict[str, tuple[int, ...]], file: Path) -> None:
    """Raise UserError if the config does not match the shapes of the weights, before memory is allocated."""
    for layer, size in (("penultimate.", config.dim), ("class_layer.", config.class_dim or 0)):
        outputs = sum(shape[0] for name, shape in found.items() if name.startswith(layer) and len(shape) == 2)
        if outputs != size:
            what = f"{size} outputs of {layer.rstrip('.')}"
            raise UserError(f"{file} has {outputs}, and embedder.json {what}: they do not belong together.")


@cache
def _say_if_slow() -> None:
    """Print a note once if bfloat16 is emulated."""
    if not multiplies_bfloat16():
        say("note: this processor has no bfloat16 instructions, so `precision='bf16'` is slower than `no`.")


def _readable(image: Image.Image) -> Image.Image:
    """The Pillow image; UserError if its pixels cannot be read."""
    if 0 in image.size:
        raise UserError(f"an image of {image.width} x {image.height} pixels has nothing to encode: leave it out.")
    try:
        image.load()
        image.getpixel((0, 0))  # fails for a closed image
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"a Pillow image cannot be read: {error}. Open it again, and close it after encoding."
        ) from error
    return image


def _files(path: Path) -> list[Path]:
    """The file, or the images in the folder."""
    if not path.exists():
        raise UserError(f"no such file or folder: {path}.")
    if not path.is_dir():
        return [path]
    found = images_below(path)
    if not found:
        raise UserError(f"no images in {path}.")
    return found
