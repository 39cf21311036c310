"""The configuration of a training on images. `resolve` merges options, preset and method once into a TrainConfig."""

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, SkipValidation
from torch import nn

from tammes.data import is_omniglot
from tammes.data.objects import OBJECTS
from tammes.errors import UserError, check_seed
from tammes.io.console import say
from tammes.io.machine import has_gpu, multiplies_bfloat16
from tammes.io.schema import built, read_json
from tammes.losses import WITH_CENTROIDS, Method, find_miner
from tammes.models.backbones.module import of_module
from tammes.models.backbones.weights import form_of
from tammes.training.objectives import METHODS, find_method
from tammes.training.objects import NONE, Objects
from tammes.training.options import (
    Device,
    Form,
    Init,
    Layer,
    OptimizerName,
    Part,
    Pool,
    Preset,
    Sampler,
    Schedule,
    TrainOptions,
    Weighting,
)
from tammes.training.presets import Recipe, recipe_of
from tammes.training.run_folder import RunFolder, open_finished

MOST_OUTPUTS = 4096  # up to this many classes, the class layer has one output per class
BEYOND = 512  # outputs of the class layer for more classes
DIM = 256  # default dimension of an image embedding, as in the paper
VIEWS = {"top": 4, "head": 0}  # default number of random crops whose activations are cached
# Options that --continue-from keeps and that cannot be changed, and those that each run sets for itself.
KEPT = (
    *("backbone", "weights_form", "dim", "pool", "embedding", "class_layer", "centroid_dim", "loss", "base"),
    *("centroids", "seed", "reserve_classes"),
)
OF_EACH_RUN = ("data", "out", "init_from", "continue_from", "compatible", "init", "refit", "device")


@dataclass(frozen=True)
class TrainConfig:
    """Every option of a training with its value; `TrainOptions` documents them.

    Attributes:
        data: the absolute path of the data, or "glyphs".
        out: the run folder.
        cut: None for the network's default cut, or no cut.
        views: random crops of each image whose activations are cached; 0 for the centre crop; None if all layers train.
        sampler: None for a loss that mines its own batches.
        size: height and width of the backbone's input; None as published.
        shorter_side: the length to which the shorter side is scaled first; None as published.
        mean: mean of each channel; () as published.
        std: standard deviation of each channel; () as published.
        objects: Python objects that were passed; not part of config.json.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    data: str
    out: Path
    preset: Preset
    loss: str
    base: str | None
    loss_options: tuple[str, ...]
    miner: str | None
    miner_options: tuple[str, ...]
    centroids: str
    push: float | None
    weighting: Weighting
    temperature: float | None
    backbone: str
    weights: str
    weights_form: Form | None
    train: Part
    cut: str | None
    views: int | None
    pool: Pool
    dim: int
    class_layer: bool
    centroid_dim: int | None
    embedding: Layer
    epochs: int
    batch_size: int
    optimizer: OptimizerName
    lr: float
    backbone_lr: float
    proxy_lr: float | None
    momentum: float
    weight_decay: float
    schedule: Schedule
    halve_every: int
    mirror: bool
    shift: int
    init: Init
    keep_init: bool
    sampler: Sampler | None
    images_per_class: int | None
    accumulate: int
    test_classes: str | None
    val_classes: str | None
    seed: int
    device: Device
    precision: Literal["no", "bf16", "fp16"]
    sync_batch_norm: bool
    init_from: Path | None
    reserve_classes: int | None
    continue_from: Path | None
    compatible: float | None
    skip_bad: bool
    log_bound: bool
    curve: tuple[int, ...]
    tensorboard: bool
    size: int | None = None
    shorter_side: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    warmup: float = 0.0
    refit: bool = False
    crop_area: float = 1.0
    grow_from: int | None = None
    train_batch_norm: bool = True
    objects: Annotated[Objects, SkipValidation()] = NONE

    @cached_property
    def method(self) -> Method:
        """The method of the loss."""
        return find_method(self.loss, self.miner, self.base)

    @property
    def has_centroids(self) -> bool:
        """Whether the loss uses class centroids."""
        return self.loss in WITH_CENTROIDS or self.base == "discriminative"

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu" and has_gpu()

    @property
    def source(self) -> Path | None:
        """The run whose weights this one starts from."""
        return self.continue_from or self.init_from

    def class_outputs(self, num_classes: int) -> int:
        """The number of outputs of the class layer."""
        one_each = num_classes <= MOST_OUTPUTS or not self.has_centroids or self.centroids == "one-hot"
        return self.centroid_dim or (num_classes if one_each else BEYOND)

    def options_of_loss(self) -> dict[str, Any]:
        """The options of the loss, from `loss_options` and from options of their own."""
        return merge_loss_options(self.loss, self.method, vars(self), METHODS)

    def saved(self) -> dict[str, Any]:
        """The content of config.json."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "objects"}

    def command(self) -> str:
        """The command, or the call, that repeats this run."""
        saved = {name: value for name, value in self.saved().items() if value not in (None, ())}
        if self.source is not None:
            del saved["init"]
        usual = [name for name, value in _USUAL.items() if isinstance(value, bool | float) and saved[name] == value]
        given = {name: value for name, value in saved.items() if name not in usual}
        return command_of(given.pop("data"), given) if self.objects == NONE else self._call(given)

    def _call(self, given: dict[str, Any]) -> str:
        """The Python call that repeats this run, if it was given Python objects."""
        data = "data" if given.pop("data").startswith(OBJECTS) else repr(self.data)
        words = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        texts = {name: repr(value) for name, value in words.items()}
        texts |= {} if self.objects.module is None else {"backbone": "module"}
        texts |= {name: name for name in ("transform", "eval_transform") if getattr(self.objects, name) is not None}
        texts = {name: text for name, text in texts.items() if (name, text) != ("weights", "'none'")}
        return f"tammes.train({', '.join([data, *(f'{name}={text}' for name, text in texts.items())])})"


def merge_loss_options(
    loss: str, method: Method, given: Mapping[str, Any], known: Mapping[str, Method]
) -> dict[str, Any]:
    """The options of a loss, from `loss_options` and from options of their own (push, weighting, temperature).

    Args:
        known: all losses, for the error message.
    """
    found = method.parse(given.get("loss_options") or ())
    for option in ("push", "weighting", "temperature"):
        value = given.get(option)
        if value is None or (option, value) == ("weighting", "none"):
            continue
        if option not in method.options:
            names = [name for name, each in known.items() if option in each.options]
            raise UserError(f"`{option}` is for `loss` {' or '.join(names)}, not for {loss}.")
        if option in found:
            raise UserError(f"{option} is given twice: by `{option}` and by `loss_options`.")
        found[option] = value
    return found


def command_of(data: str, options: Mapping[str, Any]) -> str:
    """The command that trains with these options."""
    words = ["tammes", "train", data]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value != ():
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


def resolve(data: str, given: TrainOptions, out: Path | None = None, objects: Objects = NONE) -> TrainConfig:
    """The complete configuration: given options first, then the run that it continues, the preset and the method.

    Args:
        objects: the Python objects that were passed; their names are in `data` and `given`.

    Raises:
        UserError: an option is invalid, conflicts with another, or would have no effect.
    """
    given = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    typed = given
    _check_values(given)
    _check_new_classes(given, out)
    if "continue_from" in given:
        given = _continued(given)
        _check_new_classes(given, out)
    options: dict[str, Any] = dict(given)
    characters = data == "glyphs" or is_omniglot(Path(data))
    preset, paper = given.get("preset", "default"), given.get("preset") == "paper"
    backbone = given.get("backbone") or ("conv4" if characters else "googlenet" if paper else "resnet50")
    own = objects.module is not None
    weights = given.get("weights") or ("none" if backbone == "conv4" or own else "imagenet")
    if weights not in ("imagenet", "none"):
        weights = str(Path(weights).absolute())  # a run is resumed from any folder
    device = given.get("device", "auto")
    on_gpu = device != "cpu" and has_gpu()
    transformed = objects.transform is not None or objects.eval_transform is not None
    fast = on_gpu or multiplies_bfloat16()  # docs/decisions/0025-class-layer-in-closed-form.md
    part: Part = given.get("train") or ("all" if fast or weights == "none" or paper or transformed else "top")
    _check_objects(given, objects, part)
    base = given.get("base")
    method = find_method(given.get("loss", "discriminative"), given.get("miner"), base)
    base = base or next(iter(method.bases), None)
    method = method.built_on(base) if method.bases else method
    _check_loss(given, method, base)
    found = recipe_of(preset, backbone, None if weights == "none" and part == "all" else part)
    recipe = _recipe(given, found, recipe_of(preset, backbone, None), method, part)
    if method.mines and recipe.batch_size > 3 and recipe.batch_size % 3:
        recipe = replace(recipe, batch_size=recipe.batch_size - recipe.batch_size % 3)
        say(f"note: {given.get('loss')} needs whole triplets: batches of {recipe.batch_size} images.")
    sampler = given.get("sampler") or (None if method.mines else "shuffled" if method.images_per_class == 1 else "pk")
    per_class = given.get("images_per_class")
    options |= asdict(recipe) | {
        "preset": preset,
        "loss": given.get("loss", "discriminative"),
        "base": base,
        "backbone": backbone,
        "weights": weights,
        "weights_form": form_of(backbone, weights, given.get("weights_form")),
        "train": part,
        "views": given.get("views", VIEWS.get(part)),
        "dim": given.get("dim") or method.dim or DIM,
        "device": device,
        "precision": _precision(given.get("precision", "auto"), part, on_gpu=on_gpu),
        "sampler": sampler,
        "images_per_class": per_class or max(2, method.images_per_class) if sampler == "pk" else per_class,
        "train_batch_norm": given.get("train_batch_norm", weights == "none" or bool(given.get("sync_batch_norm"))),
    }
    if objects.transform is not None or part != "all":
        options |= {name: given.get(name, usual) for name, usual in (("crop_area", 1.0), ("grow_from", None))}
    if objects.transform is not None:
        options |= {"mirror": False, "shift": 0}
    if objects.module is not None:
        options |= _images_of(objects.module, given, recipe.pool)
    options |= {name: Path(options[name]).absolute() for name in ("init_from", "continue_from") if options.get(name)}
    usual: dict[str, Any] = {field.name: None for field in fields(TrainConfig)} | _USUAL
    config = TrainConfig(**usual | options | {"data": data, "out": out or Path(), "objects": objects})
    if out is None:
        config = replace(config, out=Path("runs") / _name(config))
    named = data == "glyphs" or objects.dataset is not None
    config = replace(config, data=data if named else str(Path(data).absolute()))
    _check_complete(typed, config)
    return config


# Options that do not depend on preset, method or machine.
_USUAL: dict[str, Any] = {
    "loss_options": (),
    "miner_options": (),
    "weighting": "none",
    "class_layer": True,
    "embedding": "penultimate",
    "accumulate": 1,
    "seed": 0,
    "sync_batch_norm": False,
    "skip_bad": False,
    "log_bound": False,
    "curve": (),
    "tensorboard": False,
    "mean": (),
    "std": (),
    "warmup": 0.0,
}


def _recipe(given: TrainOptions, found: Recipe, usual: Recipe, method: Method, part: Part) -> Recipe:
    """The preset's recipe, adapted to the method, with the given options."""
    if found.init == "ridge" and not _has_class_layer(method, given.get("class_layer", True)):
        found = usual
    found_at_pca = method.trains_embedding or method.on != "class layer" or method.lr != 1
    if part == "head" and found.init == "whiten" and found_at_pca:
        # The learning rates of the losses were tuned with init pca; some diverge from a whitened layer.
        found = replace(found, init=usual.init, lr=usual.lr)
    # Not with Adam, whose steps do not depend on the size of the gradient. The factor of the paper's loss is 1.
    if given.get("optimizer", found.optimizer) == "sgd":
        found = replace(found, lr=found.lr * method.lr, backbone_lr=found.backbone_lr * method.lr)
    if method.trains_embedding:
        # An embedding layer that trains is not initialised by whitening: docs/log.md.
        found = replace(found, keep_init=False, refit=False, init="pca" if found.init == "whiten" else found.init)
    own = {field.name for field in fields(Recipe)}
    found = replace(found, **{name: value for name, value in given.items() if name in own})  # type: ignore[arg-type]
    # No refit for a run that starts from another one, or whose embedding layer trains.
    refit = found.refit and found.keep_init and not {"init_from", "continue_from"} & given.keys()
    return replace(found, refit=given.get("refit", refit))


def _has_class_layer(method: Method, class_layer: bool) -> bool:
    """Whether the network has a class layer."""
    return class_layer and method.on == "class layer" and bool(method.takes)


def _precision(asked: str, part: Part, *, on_gpu: bool) -> str:
    """bfloat16 where it is twice as fast: convolutions on some CPUs (docs/decisions/0019-bfloat16-by-default.md)."""
    if asked != "auto":
        if asked == "fp16" and not on_gpu:
            raise UserError("`precision='fp16'` is for a GPU, and has no effect on a CPU: use bf16, or leave it out.")
        return asked
    return "bf16" if part != "head" and not on_gpu and multiplies_bfloat16() else "no"


def _name(config: TrainConfig) -> str:
    """The default name of the run folder."""
    words = [config.loss, *([] if config.base is None else [config.base])]
    words += [config.centroids] if config.has_centroids else []
    kind = "-".join(words).replace(":", "-")  # some file systems do not allow colons
    return f"{Path(config.data).name.removeprefix(OBJECTS)}-{kind}-{config.seed}"


def _continued(given: TrainOptions) -> TrainOptions:
    """The options of the finished run that a new run continues, overridden by the given ones."""
    folder = given["continue_from"]
    saved = load_config(open_finished(folder))
    if not isinstance(saved, TrainConfig) or saved.loss not in WITH_CENTROIDS:
        raise UserError(
            f"{folder} was trained with `loss={saved.loss!r}`, which has no centroids to keep. Use"
            f" `init_from={str(folder)!r}`."
        )
    for name in KEPT:
        if name in given and given[name] != getattr(saved, name):  # type: ignore[literal-required]
            raise UserError(
                f"`continue_from` keeps the network and the centroids of {folder}, which has"
                f" `{name}={getattr(saved, name)!r}`: leave out `{name}`."
            )
    before = {name: value for name, value in vars(saved).items() if name in _NAMES - set(OF_EACH_RUN)}
    return {name: value for name, value in before.items() if value is not None} | given  # type: ignore[return-value]


_NAMES = {field.name for field in fields(TrainConfig)} - {"objects"}


def load_config(run: RunFolder) -> TrainConfig:
    """The configuration of a run of images."""
    found: TrainConfig = read_config(run, TrainConfig)
    return replace(found, objects=run.objects or NONE)


def read_config(run: RunFolder, kind: type) -> Any:
    """Read and validate config.json, which may be untrusted."""
    file, advice = run.folder / "config.json", run.advice("config")
    found = built(read_json(file, dict[str, Any], advice), kind, str(file), advice)
    if getattr(found, "objects", NONE) != NONE:  # a file cannot contain Python objects
        raise UserError(f"{file}: objects is not known to this version of tammes. {advice}")
    return replace(found, out=run.folder)


def number_or_file(given: str | None) -> float | int | Path | None:
    """A fraction, a number of classes, or the path of a file that lists classes."""
    if given is None:
        return None
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return Path(given)


def check_values(given: Mapping[str, Any], at_least_1: tuple[str, ...], not_negative: tuple[str, ...]) -> None:
    """Raise UserError for numbers out of range."""
    for name in at_least_1:
        if given.get(name) is not None and given[name] < 1:
            raise UserError(f"`{name}` must be at least 1, got {given[name]}.")
    for name in not_negative:
        value = given.get(name)
        if value is not None and not isfinite(value):
            raise UserError(f"`{name}` must be a finite number, got {value}.")
        if value is not None and not value >= 0:
            raise UserError(f"`{name}` must not be negative, got {value}.")


def _check_values(given: TrainOptions) -> None:
    """Raise UserError for values that are invalid regardless of other options."""
    unknown = sorted(set(given) - _NAMES)
    if unknown:
        raise TypeError(f"train() got an unexpected keyword argument {unknown[0]!r}")
    check_values(
        given,
        ("epochs", "batch_size", "halve_every", "accumulate", "centroid_dim", "dim", "images_per_class"),
        ("lr", "backbone_lr", "proxy_lr", "momentum", "weight_decay", "shift", "views", "reserve_classes", "warmup"),
    )
    if not 0 < given.get("crop_area", 1.0) <= 1:
        raise UserError(f"`crop_area` is a share of an image, above 0 and up to 1, got {given['crop_area']}.")
    if given.get("grow_from", 32) < 32:
        raise UserError(f"`grow_from` must be at least 32, got {given['grow_from']}.")
    for epoch in given.get("curve", ()):
        if epoch < 1:
            raise UserError(f"`curve` names epochs, from 1, got {epoch}.")
    check_seed("`seed`", given.get("seed", 0), bits=64)
    if given.get("momentum", 0) >= 1:
        raise UserError(f"`momentum` must be below 1, got {given['momentum']}: steps would grow without bound.")
    if "init" in given and "init_from" in given:
        raise UserError("`init_from` already initialises the layers: leave out `init`.")
    if "centroid_dim" in given and not given.get("class_layer", True):
        raise UserError("`centroid_dim` is the size of the class layer, which `class_layer=False` removes.")


def _check_objects(given: TrainOptions, objects: Objects, part: Part) -> None:
    """Raise UserError for options that conflict with Python objects."""
    for name in ("transform", "eval_transform"):
        if getattr(objects, name) is not None and part != "all":
            raise UserError(
                f"{name} needs train='all': train={part!r} caches the activations of crops, not of transformed images."
            )
    if objects.transform is not None:
        for name in ("mirror", "shift", "crop_area", "grow_from"):
            if given.get(name):
                raise UserError(f"transform replaces random crops and mirroring: leave out {name}.")
    if objects.module is not None:
        for name in ("weights", "weights_form"):
            if given.get(name) not in (None, "none"):
                raise UserError(f"backbone is a module, which brings its weights: leave out {name}.")
    else:
        for name in ("shorter_side", "mean", "std"):
            if given.get(name) not in (None, ()):
                raise UserError(f"{name} is for a backbone that is a module: leave it out.")


def _images_of(module: nn.Module, given: Mapping[str, Any], pool: Pool) -> dict[str, Any]:
    """The input of a module: as given, or as timm declares it."""
    wants = {name: given.get(name) for name in ("size", "shorter_side", "mean", "std")}
    found = of_module(module, **wants, pool=pool)
    return {"size": found.size, "shorter_side": found.shorter_side, "mean": found.mean, "std": found.std}


def _check_new_classes(given: TrainOptions, out: Path | None) -> None:
    """Raise UserError for conflicting options of `reserve_classes`, `continue_from` and `compatible`."""
    loss = given.get("loss", "discriminative")
    if "reserve_classes" in given:
        if "continue_from" not in given and loss not in WITH_CENTROIDS:
            raise UserError(
                f"`reserve_classes` reserves centroids, and `loss={loss!r}` has none: leave it out, or use"
                f" `loss` {' or '.join(WITH_CENTROIDS)}."
            )
        if given.get("weighting", "none") != "none":
            raise UserError("`weighting` weights classes by their images, and reserved ones have none: leave one out.")
    if "compatible" in given:
        if "continue_from" not in given:
            raise UserError("`compatible` keeps the embeddings of another run: name it with `continue_from=RUN`.")
        if not given["compatible"] > 0:
            raise UserError(f"`compatible` is a weight above 0, got {given['compatible']}.")
    if "continue_from" not in given:
        return
    for name in ("init_from", "init"):
        if name in given:
            raise UserError(f"`continue_from` already initialises the network: leave out `{name}`.")
    if out is None:
        raise UserError("`continue_from` creates a new run: give its folder with `out`.")


def _check_loss(given: TrainOptions, method: Method, base: str | None) -> None:
    """Raise UserError for options that the loss does not use."""
    loss = given.get("loss", "discriminative")
    method.parse(given.get("loss_options", ()))
    if "miner" in given:
        find_miner(given["miner"]).parse(given.get("miner_options", ()))
    elif given.get("miner_options"):
        raise UserError("`miner_options` are those of a miner: add `miner='pml:NAME'`, or drop them.")
    has_centroids = loss in WITH_CENTROIDS or base == "discriminative"
    if "centroids" in given and not has_centroids:
        other = " with this base: add `base='discriminative'`" if method.bases else ""
        raise UserError(f"`centroids` is for `loss` {' or '.join(WITH_CENTROIDS)}, not for {loss}{other}.")
    last = given.get("embedding") == "last"
    if method.on == "features" and last:
        raise UserError(f"`loss={loss!r}` does not compare images by a class layer: drop `embedding='last'`.")
    if method.on == "embedding" or (method.on == "features" and not has_centroids):
        for flag, asked in (
            ("`centroid_dim`", "centroid_dim" in given),
            ("`embedding='last'`", last),
            ("`class_layer=False`", not given.get("class_layer", True)),
        ):
            if asked:
                raise UserError(f"`loss={loss!r}` is computed on the {method.on}, without a class layer: drop {flag}.")
    for name in ("sampler", "images_per_class"):
        if method.mines and given.get(name) is not None:
            raise UserError(f"`loss={loss!r}` mines its own batches: drop `{name}`.")
    if given.get("images_per_class") is not None:
        if given.get("sampler", "pk") != "pk":
            raise UserError("`images_per_class` is for `sampler='pk'`.")
        if "sampler" not in given and method.images_per_class == 1:
            raise UserError(f"`images_per_class` is for `sampler='pk'`: add it (`loss={loss!r}` accepts any batch).")
    if given.get("log_bound") and loss not in WITH_CENTROIDS:
        raise UserError(f"`log_bound` is for a loss with centroids, not for {loss}.")


def _check_complete(given: TrainOptions, config: TrainConfig) -> None:
    """Raise UserError if an option has no effect, or nothing would train, given the complete configuration."""
    config.options_of_loss()
    if "cut" in given and config.train != "top":
        raise UserError("`cut` is the lowest trainable module: it is for `train='top'`.")
    if "views" in given and config.train == "all" and config.views is not None:
        raise UserError(
            "`views` is the number of crops whose activations are cached: it is for `train='top'` or `train='head'`."
        )
    for name in ("crop_area", "grow_from"):
        if given.get(name, 1.0) != 1.0 and config.train != "all":
            raise UserError(
                f"`{name}` changes the input of the first layers, and `train={config.train!r}` caches their"
                " activations: leave it out, or train all layers."
            )
    if "grow_from" in given and config.epochs == 1:
        raise UserError("`grow_from` lets images grow from epoch to epoch, and this run has one epoch: leave it out.")
    if config.crop_area < 1 and config.shift:
        raise UserError("`crop_area` scales crops of the image, and `shift` pads it: leave one out.")
    if config.sync_batch_norm and not config.on_gpu:
        raise UserError("`sync_batch_norm` is for several GPUs: leave it out.")
    if config.sync_batch_norm and not config.train_batch_norm:
        raise UserError("`sync_batch_norm` is for batch normalisation that trains: leave one of the two out.")
    if config.init == "ridge" and config.source is None and not _has_class_layer(config.method, config.class_layer):
        raise UserError(
            f"`init='ridge'` initialises the class layer, and there is none with `loss={config.loss!r}`"
            f"{'' if config.class_layer else ' and `class_layer=False`'}: use `init='whiten'`."
        )
    if config.keep_init:
        if config.init == "random" and config.source is None:
            raise UserError("`keep_init` freezes the result of `init`: give `init='pca'` or `init='whiten'`.")
        if config.train == "head" and not config.class_layer:
            raise UserError(
                "`keep_init`, `train='head'` and `class_layer=False` leave nothing to train: leave one out."
            )
        if config.train == "head" and config.method.on != "class layer":
            raise UserError(
                f"`keep_init` and `train='head'` leave no layer to train: `loss={config.loss!r}` is computed on the"
                " embedding, without a class layer. Leave one out."
            )
    if config.refit and not config.keep_init:
        raise UserError("`refit` computes the embedding layer again, which must not train: add `keep_init=True`.")
    if config.refit and config.source is not None:
        raise UserError("`refit` repeats `init`, and this run starts from the layers of another: leave it out.")
    if given.get("refit") and config.train == "head":
        raise UserError("`refit` needs features that training changes, and `train='head'` changes none: leave it out.")
    if all(field.name in given for field in fields(Recipe) if field.default is MISSING):
        return  # the whole recipe was given, as in the command that a run records, including options without effect
    for name, of, right in (("momentum", "optimizer", "sgd"), ("halve_every", "schedule", "halve")):
        if name in given and getattr(config, of) != right:
            raise UserError(
                f"`{name}` is for `{of}={right!r}`, and this run has {getattr(config, of)}: leave it out, or add"
                f" `{of}={right!r}`."
            )
    if given.get("train_batch_norm") and config.train == "head":
        raise UserError("`train_batch_norm` is for trainable layers of the backbone; `train='head'` has none.")
    if "backbone_lr" in given and config.train == "head":
        raise UserError("`backbone_lr` is for trainable layers of the backbone; `train='head'` has none.")
    if config.train != "all" and config.views == 0:
        for name in ("shift", "mirror"):
            if given.get(name):
                raise UserError(
                    f"`{name}` is for random crops, and `train={config.train!r}` caches only the centre crop of"
                    " each image: leave it out, or cache several, such as `views=4`."
                )
