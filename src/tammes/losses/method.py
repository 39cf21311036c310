"""Method: what a loss needs from training besides its equation, declared in the file of each loss."""

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
    """A loss, and what it needs beyond a batch.

    A loss that sees all training images has `look(embeddings, labels, *, generator)`: they come as the network gives
    them in evaluation mode, in the order of the training set. One that mines has `order` after it: the positions of the
    images that the epoch's batches are made of, in turn, whole triplets together.

    Attributes:
        loss: its class. What it is made of comes first, its options are keywords.
        title: its name in a sentence.
        summary: what it does, in one line.
        equation: in plain text, one or a few lines.
        cost: of a step, in B images of a batch, C classes, dimension D, and what else the text names.
        reference: who published it, and where.
        takes: what the loss is made of, in order.
        on: what it is computed on: the class layer's outputs (one for each class, where the centroids are); the
            embedding itself, in which case there is no class layer; or the backbone's features, with the embedder at
            hand, for what is more than a loss (`tammes.training.objectives`).
        bases: for what is more than a loss, the losses that it can be built on, its own first, each with what it then
            declares otherwise.
        dim: the usual length of the embedding, where it has one of its own.
        shares: of the embedding's length that go to each of its heads; one head where there are none.
        weigh: head sizes -> how much each head counts in the embedding.
        depths: whether each head has features of its own, from another depth of the backbone.
        images_per_class: of each class that is in a batch; 1 where any batch will do.
        sees: what it sees beside its batches: all training images once before the first epoch, or before each.
        each_on_its_own: whether it is a mean over images whatever else is in the batch, so that it may be computed in
            pieces.
        initial_norm: the norm that embeddings are initialised to, for a loss that does not normalise them: what it is
            worth, and how fast it learns, would otherwise depend on the norm of the backbone's features. The steps of
            the embedding layer are scaled with it (`tammes.training.build`), so that its rate suits any backbone.
        trains_embedding: whether a part of it trains the embedding layer alone, which must then not stay as it began.
        lr: the learning rate that suits it with sgd, as a multiple of that of the discriminative loss, whatever the
            preset; found on validation classes, to a power of ten, but for losses with an initial norm, whose rates
            are only known to train (docs/log.md).
        proxy_lr: that of what the loss learns itself (proxies, class weights), as a multiple of the new layers'.
        proxy_decay: whether what it learns itself has weight decay.
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
    each_on_its_own: bool = False
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
        """The options that a person may set, with their defaults; the others follow from the data."""
        kinds = get_type_hints(self.loss.__init__)
        return {name: each.default for name, each in self.options.items() if _describe_kind(kinds[name]) != _NOT_TYPED}

    @property
    def mines(self) -> bool:
        """Whether it chooses the images of its batches itself."""
        return hasattr(self.loss, "order")

    @property
    def source(self) -> str:
        """The reference in a word or two: the first author and the year."""
        found = re.match(r"([^,(]+?)(, [^(]+)? \((\d{4})\)", self.reference)
        if found is None or self.reference.startswith(("ours", "the ")):
            return re.split("[,;]", self.reference)[0]
        return f"{found[1]}{' et al.' if found[2] else ''} {found[3]}"

    @property
    def batch(self) -> str:
        """What a batch must be, in words."""
        if self.mines:
            return "triplets that it mines"
        return "any" if self.images_per_class == 1 else f"{self.images_per_class} images of each class"

    def parse(self, given: Sequence[str]) -> dict[str, Any]:
        """Options as they are typed, NAME=VALUE each, as what they are."""
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
        """The same on another loss than its own."""
        if base is None:
            return self if not self.bases else replace(self, **next(iter(self.bases.values())))
        if not self.bases:
            raise UserError(
                f"`base` is for what is built on another loss, and {self.title} is a loss itself: drop `base`."
            )
        if base not in self.bases:
            raise unknown_name(f"base of {self.title}", base, self.bases)
        return replace(self, **self.bases[base])

    def head_sizes(self, dim: int) -> tuple[int, ...]:
        """The lengths of the heads that make an embedding of this length; none where it is one."""
        if not self.shares:
            return ()
        total = sum(self.shares)
        ends = [round(dim * sum(self.shares[: number + 1]) / total) for number in range(len(self.shares))]
        sizes = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
        if min(sizes) < 1:
            raise UserError(f"{self.title} has {len(self.shares)} heads: `dim` must be at least {total}, got {dim}.")
        return sizes

    def make(self, given: Mapping[Takes, Any], options: Mapping[str, Any]) -> nn.Module:
        """The loss, of what it takes and with these options."""
        return self.loss(*(given[name] for name in self.takes), **options)


def _typed(text: str, kind: Any) -> Any:
    """The value that a text stands for, as the first of the kinds that it can be; ValueError if it is none."""
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
