"""Losses and miners of pytorch-metric-learning, by their names there: pml:ProxyAnchorLoss, pml:MultiSimilarityMiner.

Each is wrapped as a Method, built from the signatures of its constructors. The wrapper prevents known failures in
training: embeddings are passed in float32 and outside autocast, so that proxies are never cast in place; a batch
without pairs gives a differentiable zero; a loss that is not finite raises an error with its likely cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, isclass, signature
from types import ModuleType
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import UserError, unknown_name
from tammes.geometry import check_range, checked_batch, normalise
from tammes.losses.method import Method, Takes

PREFIX = "pml:"
PAGE = "https://kevinmusgrave.github.io/pytorch-metric-learning"
Kind = Literal["loss", "miner"]

_A_PART = "it is a base class of other {kind}"
_AROUND = "it wraps a loss that is built in Python"
REFUSED = {
    "BaseMetricLossFunction": _A_PART.format(kind="losses"),
    "GenericPairLoss": _A_PART.format(kind="losses"),
    "BaseLossWrapper": _A_PART.format(kind="losses"),
    "EmbeddingRegularizerMixin": _A_PART.format(kind="losses"),
    "WeightRegularizerMixin": _A_PART.format(kind="losses"),
    "CrossBatchMemory": f"{_AROUND}, and the position in its memory is not in its state, so a run could not resume",
    "MultipleLosses": _AROUND,
    "SelfSupervisedLoss": f"{_AROUND}, and compares two views of each image",
    "VICRegLoss": "it compares two views of each image, and takes no labels",
    "ManifoldLoss": "it takes no labels",
    "InstanceLoss": "it uses the class label as the position of an image in the batch, which is correct only if every"
    " image is a class of its own",
    "SmoothAPLoss": "it assumes as many images per class as there are classes in the batch",
    "DynamicSoftMarginLoss": "it keeps the graph of a batch for the next one, so that the second training step fails,"
    " and its histogram is not in its state",
    "HistogramLoss": "it fails if two images of a batch have the same embedding. Use `loss='histogram'`",
    "BaseMiner": _A_PART.format(kind="miners"),
    "EmbeddingsAlreadyPackagedAsTriplets": "a batch here is not a list of triplets",
}
_TAKES_NO_MINER = {"P2SGradLoss", "PNPLoss", "RankedListLoss"}
# Losses whose logits are multiplied by the norm of the embedding; for all others embeddings are normalised.
_OF_ANY_LENGTH = {"LargeMarginSoftmaxLoss", "SphereFaceLoss"}
# Arguments that follow from the data.
_FILLED: dict[str, Takes] = {"num_classes": "num_classes", "embedding_size": "dim", "descriptors_dim": "dim"}
# Integer options; any other number may have decimals, even if its default has none.
_WHOLE = {"num_bins", "n_bins", "centers_per_class", "sub_centers", "pos_per_bin", "neg_per_bin", "triplets_per_anchor"}
_WHOLE_MARGIN = {"LargeMarginSoftmaxLoss", "SphereFaceLoss"}
_STRATEGIES = ("hard", "semihard", "easy", "all")
_CHOICES = {
    "type_of_triplets": ("all", "hard", "semihard", "easy"),
    "variant": ("Ds", "Dq", "Iu", "Ib", "O"),
    "pos_strategy": _STRATEGIES,
    "neg_strategy": _STRATEGIES,
}
_SET_BY_ITSELF = {"BatchHardMiner": ("pos_strategy", "neg_strategy")}
PER_CLASS = 4  # images of a class in a batch, for losses that compare images
# The rates of our own triplet losses; not tuned on validation classes for each loss, as ours are. `lr` multiplies them.
LR, PROXY_LR = 0.01, 10.0


def method_of(name: str, miner: str | None = None) -> Method:
    """A loss of pytorch-metric-learning as a Method.

    Args:
        name: the name of the loss, with or without `pml:`.
        miner: the miner that it is used with, if any: batches then hold several images of a class.
    """
    method = _method("loss", name.removeprefix(PREFIX))
    if miner is None:
        return method
    _method("miner", checked_miner(miner))
    if method.loss.__name__ in _TAKES_NO_MINER:
        raise UserError(f"`loss={name!r}` looks at the whole batch and takes no miner: drop `miner`.")
    return replace(method, images_per_class=PER_CLASS)


def miner_of(name: str) -> Method:
    """A miner of pytorch-metric-learning as a Method."""
    return _method("miner", checked_miner(name))


def checked_miner(name: str) -> str:
    """The name of a miner without its prefix, or an error."""
    if not name.startswith(PREFIX):
        raise UserError(f"`miner` is one of pytorch-metric-learning, such as pml:MultiSimilarityMiner, got {name!r}.")
    return name.removeprefix(PREFIX)


def names(kind: Kind) -> list[str]:
    """The names of the usable losses or miners, with the prefix."""
    module = _library("losses" if kind == "loss" else "miners")
    return [PREFIX + name for name, each in vars(module).items() if isclass(each) and name not in REFUSED]


class LossOfPML(nn.Module):
    """A loss of pytorch-metric-learning, wrapped; its trainable parameters are parameters of this module."""

    def __init__(self, loss: nn.Module, num_classes: int | None) -> None:
        super().__init__()
        self.loss, self.num_classes = loss, num_classes
        self.miner: nn.Module | None = None

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        if self.num_classes is not None:
            check_range(labels, self.num_classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            given = embeddings.float()
            if type(self).__name__ not in _OF_ANY_LENGTH:
                given = normalise(given)
            mined = None if self.miner is None else self.miner(given.detach(), labels)
            # Adding zero times all embeddings exposes a NaN that a reducer drops, and always gives a gradient.
            value: Tensor = self.loss(given, labels, mined).reshape(()) + 0 * given.sum()
        if value.isfinite() or not given.isfinite().all() or not all(p.isfinite().all() for p in self.parameters()):
            return value
        if len(labels.unique()) == len(labels):  # no positive pairs: a mean over nothing
            return 0 * given.sum()
        raise UserError(
            f"{PREFIX}{type(self).__name__} is {value.item()} although all embeddings are finite. The likely cause is"
            " that two of them coincide, which this loss cannot handle: choose another loss."
        )


class MinerOfPML(nn.Module):
    """A miner of pytorch-metric-learning, wrapped."""

    def __init__(self, miner: nn.Module, _: int | None) -> None:
        super().__init__()
        self.miner = miner

    def forward(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> tuple[Integer[Tensor, " _"], ...]:
        """The positions of anchors, positives and negatives, or of two kinds of pairs."""
        found: tuple[Tensor, ...] = self.miner(embeddings, labels)
        return found


@dataclass(frozen=True)
class _Method(Method):
    """A Method whose options are known only from the constructor's signature."""

    def parse(self, given: Sequence[str]) -> dict[str, Any]:
        typed = []
        for text in given:
            name, equals, value = text.partition("=")
            name = name.strip().replace("-", "_")
            if equals and name in _FILLED:
                raise UserError(f"{name} of {self.title} follows from the data: leave it out.")
            if equals and name not in self.options:
                raise _unknown_option(self, name)
            if not equals or value.strip() != str(self.options[name].default):
                typed.append(text)
        return super().parse(typed)


def _unknown_option(method: Method, name: str) -> UserError:
    if method.options:
        return unknown_name(f"option of {method.title}", name, method.options)
    return UserError(f"{method.title} has no options that can be typed, got {name!r}.")


@cache
def _method(kind: Kind, name: str) -> _Method:
    module = _library("losses" if kind == "loss" else "miners")
    found = getattr(module, name, None)
    if isclass(found) and name in REFUSED:
        raise UserError(f"{PREFIX}{name} cannot be used for training: {REFUSED[name]}.")
    if PREFIX + name not in names(kind):
        other: Kind = "miner" if kind == "loss" else "loss"
        if PREFIX + name in names(other):
            raise UserError(f"{PREFIX}{name} is a {other}, not a {kind}: use `{other}='{PREFIX}{name}'`.")
        raise unknown_name(kind, PREFIX + name, names(kind))
    found = getattr(module, name)
    parameters = _parameters(found)
    takes = tuple(_FILLED[each] for each in parameters if each in _FILLED)
    of_classes = any(parameters[each].default is Parameter.empty for each in parameters if each in _FILLED)
    must = [each for each, parameter in _options(found).items() if parameter.default is Parameter.empty]
    version = _library("").__version__
    return _Method(
        loss=_as_ours(found, LossOfPML if kind == "loss" else MinerOfPML),
        title=name,
        summary=f"as pytorch-metric-learning {version} has it, with its own distance{' and reducer' * (kind == 'loss')}"
        + (f"; {' and '.join(must)} must be given" if must else ""),
        equation=f"see {PAGE}/{'losses' if kind == 'loss' else 'miners'}",
        cost="B C D" if of_classes else "B² D or more",
        reference=f"pytorch-metric-learning {version}, whose page names the paper",
        takes=takes,
        images_per_class=1 if of_classes else PER_CLASS,
        lr=LR,
        proxy_lr=PROXY_LR,
    )


def _library(part: str) -> ModuleType:
    try:
        library = import_module("pytorch_metric_learning")
        if library.__version__.split(".")[0] != "2":
            raise UserError(
                f"pytorch-metric-learning {library.__version__} is not known here: pip install 'tammes[pml]'."
            )
        return import_module(f"pytorch_metric_learning.{part}") if part else library
    except ImportError:
        raise UserError(f"{PREFIX}… needs the package pytorch-metric-learning: pip install 'tammes[pml]'.") from None


def _parameters(found: type) -> dict[str, Parameter]:
    """The parameters of its constructor and its base classes, without distances, reducers and regularizers."""
    bases = (_library("losses").BaseMetricLossFunction, _library("miners").BaseMiner)
    parameters: dict[str, Parameter] = {}
    for each in found.__mro__:
        if not issubclass(each, bases) or each in bases or each.__name__ == "GenericPairLoss":
            continue
        own = list(signature(each.__init__).parameters.values())[1:] if "__init__" in vars(each) else []  # type: ignore[misc]
        named = {one.name: one for one in own if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
        parameters = named | parameters  # the subclass takes precedence
    return {name: parameters[name] for name in parameters if name not in _SET_BY_ITSELF.get(found.__name__, ())}


def _options(found: type) -> dict[str, Parameter]:
    """The parameters that can be set from text, with their types."""
    typed = {name: each.replace(annotation=_type(found, each)) for name, each in _parameters(found).items()}
    return {name: each for name, each in typed.items() if each.annotation is not None}


def _type(found: type, parameter: Parameter) -> Any:
    """The type of a parameter; None if it cannot be set from text."""
    name, default = parameter.name, parameter.default
    if name in _FILLED:
        return None
    if name in _WHOLE or (name == "margin" and found.__name__ in _WHOLE_MARGIN):
        return int
    if name in _CHOICES:
        return Literal[_CHOICES[name]]
    if isinstance(default, bool):
        return bool
    # RankedListLoss has numbers without a default, and `alpha`, whose default depends on another option.
    return float if isinstance(default, int | float) or default is Parameter.empty or name == "alpha" else None


def _as_ours(found: type, base: type[LossOfPML] | type[MinerOfPML]) -> type[nn.Module]:
    """A class with the signature of our losses: arguments that follow from the data, then options by keyword."""
    filled = [name for name in _parameters(found) if name in _FILLED]
    options = _options(found)

    def __init__(self: Any, *given: Any, **chosen: Any) -> None:  # noqa: N807
        follows = dict(zip(filled, given, strict=True))
        base.__init__(self, _made(found, options, follows | chosen), follows.get("num_classes"))

    __init__.__annotations__ = {name: each.annotation for name, each in options.items()}
    shown = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in filled] + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None if each.default is Parameter.empty else each.default)
        for name, each in options.items()
    ]
    made: type[nn.Module] = type(found.__name__, (base,), {"__init__": __init__, "__signature__": Signature(shown)})
    return made


def _made(found: type, options: Mapping[str, Parameter], given: Mapping[str, Any]) -> nn.Module:
    name, kind = PREFIX + found.__name__, "miner" if found.__name__.endswith("Miner") else "loss"
    missing = [each for each, option in options.items() if option.default is Parameter.empty and each not in given]
    if missing:
        wanted = dict.fromkeys(missing, "VALUE")
        raise UserError(f"{name} has no default for {' and '.join(missing)}: add `{kind}_options={wanted}`")
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # of the library's own use of NumPy
            made: nn.Module = found(**given)
    except (AssertionError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{name} does not take these options: {str(error).strip() or 'it does not say why'}.") from None
    return made
