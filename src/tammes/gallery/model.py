"""The model of a gallery: a run, a pretrained network, a custom module, or unknown for a gallery of vectors. It is
given by the caller, or found from the gallery's metadata."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import Any, Protocol, runtime_checkable

import torch

from tammes.errors import UserError, shown
from tammes.gallery.items import About, Kind
from tammes.io.files import opened
from tammes.io.hub import ADDRESS
from tammes.models.backbones.module import OWN
from tammes.models.embedder import Embedder, EmbedderConfig, load, saved_embedder
from tammes.models.origin import Network, Precision
from tammes.models.pretrained import check_trained, load_model, names_network, rebuilt, with_whitening
from tammes.training.run_folder import RunFolder, is_run, open_finished

_OF_RUN = ("embedder.json", "embedder.safetensors")
_OF_HUB = ("config.json", "model.safetensors")


@runtime_checkable
class RunLike(Protocol):
    """A `tammes.Run`."""

    folder: Path

    @property
    def embedder(self) -> Any: ...


@dataclass(frozen=True)
class Model:
    """A model, which is built when it is first needed.

    Attributes:
        digest: a digest of the model.
        run: the folder of its run, if it has one.
        network: the record of a pretrained network or custom module.
        build: builds the Embedder; raises UserError if that is impossible.
        embeds: whether it can be built, so that images can be embedded.
        precision: the precision of its backbone.
    """

    digest: str
    kind: Kind
    run: RunFolder | None
    network: Network | None
    build: Callable[[], Embedder]
    embeds: bool = True
    precision: Precision = "no"

    @property
    def trained_on(self) -> list[str]:
        """The names of the classes used for its training or whitening."""
        if self.run is not None:
            return trained_on(self.run)
        return [] if self.network is None else self.network.classes()

    def describe(self) -> str:
        run = "" if self.run is None else str(self.run.folder)
        return describe_model(self.kind, run, self.network, self.precision)

    def about(self, dim: int, roots: tuple[str, ...] = ()) -> About:
        """The metadata of a new gallery."""
        return About(
            model=self.digest,
            run="" if self.run is None else str(self.run.folder.absolute()),
            dim=dim,
            roots=roots,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            kind=self.kind,
            network=self.network,
            precision=self.precision,
        )


def describe_model(kind: Kind, run: str, network: Network | None, precision: Precision = "no") -> str:
    """A description of the model of a gallery."""
    bfloat16 = ", in bfloat16" if precision == "bf16" else ""
    if kind == "run":
        return f"the model of {run}{bfloat16}"
    if network is None:
        return "vectors of a model that it does not know"
    if kind == "module":
        return f"the module {network.name}{bfloat16}"
    pool = "" if network.pool == "published" else f", {network.pool} pooling"
    whitened = ", whitened," if network.whitening else ""
    return f"{network.name} at {network.size} pixels{pool}{whitened} with the weights {network.weights}{bfloat16}"


def model_of(given: Any, *, precision: Precision = "no", **how: Any) -> Model:
    """The Model of an Embedder, a run or its folder, or the name of a pretrained network.

    Args:
        precision: the precision of a model that is given by name.
        how: options of `tammes.pretrained`; None means not given.

    Raises:
        UserError: it is none of these, or a run that is not finished.
    """
    if isinstance(given, Embedder):
        return _of_embedder(given)
    if isinstance(given, str | Path):
        if str(given).startswith(ADDRESS) or names_network(given):
            return _of_embedder(load_model(given, precision=precision, **how))
        check_trained(given, how)
        return _of_folder(Path(given), precision=precision)
    if isinstance(given, RunLike) and not isinstance(given, torch.nn.Module):
        return _of_folder(given.folder, lambda: given.embedder)
    raise UserError(
        f"embedder cannot be {shown(given)}. Give an Embedder (tammes.load, tammes.pretrained or run.embedder), a run,"
        " its folder, or the name of a pretrained network; for vectors of other models there is Gallery.from_vectors."
    )


def recorded_model(about: About, uri: str, given: str | Path | None = None) -> Model:
    """The model in a gallery's metadata.

    Args:
        given: its current path, if it was moved: a run folder, or a file of weights.

    Raises:
        UserError: it no longer exists, or has changed.
    """
    if given is not None and not (about.kind == "pretrained" and Path(given).is_file()):
        return with_its_whitening(model_of(given, precision=about.precision), about)
    if about.kind == "run":
        made_by = Path(about.run)
        if not made_by.exists():
            raise UserError(
                f"{uri} was made by {made_by}, which no longer exists. Say where the run is:"
                " tammes.Gallery(path, RUN), or `model=RUN`"
            )
        return model_of(made_by, precision=about.precision)
    network = about.network
    if about.kind == "pretrained" and network is not None:
        file = Path(given or network.weights)
        if network.weights != "imagenet" and not file.exists():
            raise UserError(
                f"{uri} was made by {network.name} with the weights {file}, which no longer exist. Say where"
                " they are: tammes.Gallery(path, FILE), or `model=FILE`"
            )
        rebuild = partial(_rebuilt, about, network, uri, file)
        return Model(about.model, about.kind, None, network, rebuild, precision=about.precision)
    build = _no_module if about.kind == "module" else _no_model
    return Model(about.model, about.kind, None, network, build, embeds=False, precision=about.precision)


def with_its_whitening(model: Model, about: About) -> Model:
    """A pretrained network with the whitening of a gallery, if it belongs to this network."""
    kept, own = about.network, model.network
    if kept is None or own is None or not kept.whitening:
        return model
    same = replace(kept, whitening="", whitened_within="", weights=own.weights) == own
    return _of_embedder(with_whitening(model.build(), kept.whitening, kept.whitened_within)) if same else model


def model_of_vectors() -> Model:
    """The Model of a new gallery of vectors, whose model is unknown."""
    return Model(f"vectors-{token_hex(8)}", "vectors", None, None, _no_model, embeds=False)


def check_model(model: Model, about: About, uri: str) -> None:
    """Raise UserError if a gallery was made by another model."""
    if about.kind == "vectors" or model.digest == about.model:
        return
    made_by = describe_model(about.kind, about.run, about.network, about.precision)
    if model.run is None:
        raise UserError(
            f"{uri} was made by another model, {made_by}: its vectors cannot be compared with those of"
            f" {model.describe()}. Choose another gallery, or make it again."
        )
    raise UserError(
        f"{uri} was made by another model than that of {model.run.folder}, {made_by}: vectors of the two cannot be"
        " compared."
        f" Rebuild it: tammes index {quote(str(model.run.folder))} FOLDER --gallery {quote(uri)} --rebuild"
    )


def dim_of(embedder: Embedder) -> int:
    """The dimension of its embeddings."""
    config = embedder.config
    return int((config.class_dim if config.embedding == "last" else None) or config.dim)


def model_digest(run: RunFolder, precision: Precision = "no") -> str:
    """A digest of the model of a run."""
    names = _OF_HUB if _is_of_hub(run.folder) else _OF_RUN
    found = sha256(b"" if precision == "no" else precision.encode())
    for name in names:
        file = run.folder / name
        if not file.exists():
            raise UserError(
                f"{run.folder} has no model of images: {name} is missing. A gallery is made by a run of images."
            )
        try:
            with opened(file) as source:
                while block := source.read(1 << 20):
                    found.update(block)
        except UserError as error:
            raise UserError(f"cannot read {file}: {error}") from None
    return found.hexdigest()[:32]


def trained_on(run: RunFolder) -> list[str]:
    """The names of the training classes of a run."""
    return list((run.read("classes") or {}).get("train", ()))


def recorded_classes(about: About) -> list[str]:
    """The names of the training classes of a gallery's model, if its run still exists."""
    if about.network is not None:
        return about.network.classes()
    return trained_on(RunFolder(Path(about.run))) if about.run and is_run(Path(about.run)) else []


def _is_of_hub(folder: Path) -> bool:
    """Whether a folder is a hub folder, which has a model but is not a run."""
    return not is_run(folder) and not (folder / _OF_RUN[0]).exists() and (folder / _OF_HUB[1]).exists()


def _of_folder(folder: Path, build: Callable[[], Embedder] | None = None, *, precision: Precision = "no") -> Model:
    run = RunFolder(folder) if _is_of_hub(folder) else open_finished(folder)
    embeds = build is not None or not _needs_objects(run)
    build = build or (lambda: load(run.folder, precision=precision))
    return Model(model_digest(run, precision), "run", run, None, build, embeds, precision)


def _needs_objects(run: RunFolder) -> bool:
    """Whether the model of a run needs Python objects (a custom module or transform)."""
    config = run.read("embedder") or {}
    return str(config.get("backbone", "")).startswith(OWN) or config.get("eval_transform") is not None


def _of_embedder(embedder: Embedder) -> Model:
    """The Model of an Embedder: by its origin if it is unchanged, otherwise a custom one."""
    origin = embedder.origin
    if isinstance(origin, Path) and _is_as_saved(embedder, origin):
        return _of_folder(origin, lambda: embedder, precision=embedder.precision)
    digest = _weights_digest(embedder)
    if isinstance(origin, Network) and origin.weights != "none":
        return Model(digest, "pretrained", None, origin, lambda: embedder, precision=embedder.precision)
    own = embedder.config.backbone.removeprefix(OWN)
    network = Network(own, size=embedder.size, pool=embedder.config.pool, form=embedder.config.form)
    return Model(digest, "module", None, network, lambda: embedder, precision=embedder.precision)


def _is_as_saved(embedder: Embedder, folder: Path) -> bool:
    """Whether an Embedder is unchanged since it was loaded."""
    try:
        config, theirs = saved_embedder(folder)
    except UserError:  # its folder is gone
        return False
    own = embedder.state_dict()
    return (
        embedder.config == config
        and own.keys() == theirs.keys()
        and all(torch.equal(tensor.cpu(), theirs[name]) for name, tensor in own.items())
    )


def _weights_digest(embedder: Embedder) -> str:
    """A digest of the config and weights of a model without a folder."""
    usual = EmbedderConfig("")  # what is as usual is left out: later versions may have more of it
    config = {name: value for name, value in asdict(embedder.config).items() if value != getattr(usual, name)}
    said = [config, embedder.size, embedder.shorter_side]
    found = sha256(json.dumps(said if embedder.precision == "no" else [*said, embedder.precision]).encode())
    for name, tensor in sorted(embedder.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def _rebuilt(about: About, network: Network, uri: str, file: Path) -> Embedder:
    embedder = rebuilt(network, file, about.precision)
    if _weights_digest(embedder) != about.model:
        raise UserError(
            f"{uri} was made by {network.name} with other weights than {network.weights} has now, or by another version"
            " of tammes: their vectors cannot be compared. Make the gallery again."
        )
    return embedder


def _no_model() -> Embedder:
    raise UserError(
        "the gallery was made of vectors, and does not know the model that embeds an image. Search by vectors (a .npy,"
        " .npz or .parquet file) or by an item (`item=KEY`); or name the model, if tammes can load it:"
        " tammes.Gallery(path, embedder), or `model=RUN`"
    )


def _no_module() -> Embedder:
    raise UserError(
        "the gallery was made by a module that only its own program has. Open it there: tammes.Gallery(path, embedder)."
        " Searches by vectors and by an item (`item=KEY`) need no module."
    )
