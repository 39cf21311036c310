"""Method: a loss with its description and its requirements on training, declared in the file of each loss."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from math import isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

from tammes.errors import UserError, unknown_name

_NOT_TYPED = "left out: it follows from the data"
Takes = Literal["centroids", "num_classes", "dim", "base", "features", "heads"]
Sees = Literal["batches", "all images once", "all images each epoch"]


@dataclass(frozen=True)
class Method:
    """A loss with its description and its requirements on training.

    A loss that sees all training images has a method `look(embeddings, labels, *, generator)`. The embeddings are
    computed in evaluation mode, in the order of the training set. A loss that mines then has an attribute `order`: the
    positions of the images in the epoch's batches, whole triplets together.

    Attributes:
        loss: its class. Its constructor takes what `takes` lists, then options by keyword.
        title: its name as used in text.
        summary: what it does, in one line.
        equation: in plain text, one or a few lines.
        cost: of one step, for B images in a batch, C classes, dimension D, and other symbols that the text defines.
        reference: authors, year, title and venue.
        takes: the positional arguments of the constructor, in order.
        on: its input: the outputs of the class layer (one per class, where the centroids are); the embedding, without a
            class layer; or the backbone's features together with the embedder, for objectives that are more than a
            loss (`tammes.training.objectives`).
        bases: for an objective, the losses that it can be built on, its default first, each with the fields that it
            changes.
        dim: its default length of the embedding, if it has one.
        shares: the relative sizes of its heads; empty for a single head.
        weigh: head sizes -> the weight of each head in the embedding.
        depths: whether each head has its own features, from another depth of the backbone.
        images_per_class: how many images of a class a batch holds; 1 if any batch will do.
        sees: whether it also sees all training images, once before the first epoch or before each.
        per_image_loss: whether it is a mean over images, independent of the rest of the batch, so that it can be
            computed in parts.
        initial_norm: the norm of the embeddings at initialisation, for a loss that does not normalise them; its value
            and its speed of learning would otherwise depend on the norm of the backbone's features. The learning rate
            of the embedding layer is scaled with it (`tammes.training.build`).
        trains_embedding: whether a part of it trains the embedding layer alone, which must then not be frozen.
        lr: its learning rate with sgd, as a multiple of that of the discriminative loss, for any preset; tuned on
            validation classes to a power of ten, except for losses with an initial norm, whose rates are only known to
            train (docs/log.md).
        proxy_lr: the learning rate of its own parameters (proxies, class weights), as a multiple of the new layers'.
        proxy_decay: whether its own parameters have weight decay.
    """

    loss: type[nn.Module]
    title: str
    summary: str
    equation: str
    cost: str
    reference: str
    takes: tuple[Takes, ...] = ()
    on: Literal["class layer", "embedding", "features"] = "embedding"
    bases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dim: int | None = None
    shares: tuple[int, ...] = ()
    weigh: Callable[[tuple[int, ...]], tuple[float, ...]] | None = None
    depths: bool = False
    images_per_class: int = 1
    sees: Sees = "batches"
    per_image_loss: bool = False
    initial_norm: float | None = None
    trains_embedding: bool = False
    lr: float = 1.0
    proxy_lr: float = 1.0
    proxy_decay: bool = False

    @property
    def options(self) -> Mapping[str, Parameter]:
        """Its options by name, with their types and defaults."""
        found = signature(self.loss).parameters.values()
        return MappingProxyType({each.name: each for each in found if each.kind is Parameter.KEYWORD_ONLY})

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options that users can set, with their defaults; the others follow from the data."""
        kinds = get_type_hints(self.loss.__init__)
        return {name: each.default for name, each in self.options.items() if _describe_kind(kinds[name]) != _NOT_TYPED}

    @property
    def mines(self) -> bool:
        """Whether it chooses the images of its batches."""
        return hasattr(self.loss, "order")

    @property
    def source(self) -> str:
        """A short reference: the first author and the year."""
        found = re.match(r"([^,(]+?)(, [^(]+)? \((\d{4})\)", self.reference)
        if found is None or self.reference.startswith(("ours", "the ")):
            return re.split("[,;]", self.reference)[0]
        return f"{found[1]}{' et al.' if found[2] else ''} {found[3]}"

    @property
    def batch(self) -> str:
        """A description of the batches that it needs."""
        if self.mines:
            return "triplets that it mines"
        return "any" if self.images_per_class == 1 else f"{self.images_per_class} images of each class"

    def parse(self, given: Sequence[str]) -> dict[str, Any]:
        """Options given as NAME=VALUE, converted to their types."""
        kinds, found = get_type_hints(self.loss.__init__), dict[str, Any]()
        for text in given:
            name, equals, value = text.partition("=")
            name = name.strip().replace("-", "_")
            if not equals:
                raise UserError(f"an option of a loss is NAME=VALUE, such as margin=0.2, got {text!r}.")
            if name not in self.options:
                known = ", ".join(self.defaults) or "none"
                raise UserError(f"{name!r} is not an option of {self.title}. Its options: {known}.")
            if name in found:
                raise UserError(f"the option {name} is given twice.")
            try:
                found[name] = _typed(value.strip(), kinds[name])
            except ValueError:
                raise UserError(
                    f"{name} of {self.title} must be {_describe_kind(kinds[name])}, got {value!r}."
                ) from None
        return found

    def built_on(self, base: str | None) -> "Method":
        """The same objective built on another base loss."""
        if base is None:
            return self if not self.bases else replace(self, **next(iter(self.bases.values())))
        if not self.bases:
            raise UserError(
                f"`base` is for objectives that are built on another loss, and {self.title} is a loss: drop `base`."
            )
        if base not in self.bases:
            raise unknown_name(f"base of {self.title}", base, self.bases)
        return replace(self, **self.bases[base])

    def head_sizes(self, dim: int) -> tuple[int, ...]:
        """The sizes of the heads of an embedding of this length; empty for a single head."""
        if not self.shares:
            return ()
        total = sum(self.shares)
        ends = [round(dim * sum(self.shares[: number + 1]) / total) for number in range(len(self.shares))]
        sizes = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
        if min(sizes) < 1:
            raise UserError(f"{self.title} has {len(self.shares)} heads: `dim` must be at least {total}, got {dim}.")
        return sizes

    def make(self, given: Mapping[Takes, Any], options: Mapping[str, Any]) -> nn.Module:
        """Build the loss from its arguments and options."""
        return self.loss(*(given[name] for name in self.takes), **options)


def _typed(text: str, kind: Any) -> Any:
    """The value of a text as this type; ValueError if it is not one."""
    if get_origin(kind) in (Union, UnionType):
        if text.lower() == "none" and NoneType in get_args(kind):
            return None
        return _typed(text, next(each for each in get_args(kind) if each is not NoneType))
    if get_origin(kind) is Literal and text in get_args(kind):
        return text
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in (int, float) and isfinite(float(text)):
        return kind(text)
    raise ValueError


def _describe_kind(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return next(_describe_kind(each) for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return " or ".join(str(each) for each in get_args(kind))
    words = {int: "a whole number", float: "a finite number", bool: "True or False"}
    return words.get(kind, _NOT_TYPED)
