"""Cut a network in two: the lower part is frozen and runs once per image, the upper part is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from tammes.errors import UserError

SHARE_ABOVE = 0.25  # the largest share of the computation above the default cut
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.MultiheadAttention)


def cut(network: nn.Module, at: str) -> tuple[nn.Module, nn.Module]:
    """The network as (below, above): above(below(images)) is network(images), and above begins with the module `at`.

    Both share the parameters, buffers and modules of the network, under the same names. Each has its own `train()` and
    `eval()`: batch normalisation below the cut does not change while `below` is in evaluation mode.

    Args:
        at: the name of a module as in `named_modules()`: "layer4", "features.24".

    Raises:
        UserError: no such module, or more than one tensor crosses the cut, or …; the message lists possible cuts.
    """
    names = [name for name, _ in network.named_modules() if name]
    if at not in names:
        near = get_close_matches(at, names, n=1)
        raise _refused(network, f"has no part {at!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
    try:
        computation = _traced(network, at.rpartition(".")[0])
        halves = _halves(computation, *_parted(computation, at))
    except _CannotCutError as error:
        raise _refused(network, f"cannot be cut at {at!r}: {error}") from error
    for half in halves:
        half.training = network.training  # and not half.train(), which would reach into the parts
    return halves


def cut_points(network: nn.Module) -> tuple[str, ...]:
    """The modules at which a network can be cut, lowest first, including the children of sequences.

    Without modules that have no weights or only those of a normalisation, and without those at the very beginning.
    """
    return tuple(_points(network, ""))


def shares_above(
    network: nn.Module, images: Float[Tensor, "batch channels height width"], points: tuple[str, ...]
) -> tuple[Float[Tensor, "batch ..."], dict[str, float]]:
    """The output of the network, and the share of its computation above each cut point."""
    done, before = 0, dict.fromkeys(points, 0)

    def count(module: nn.Module, _: object, output: Any) -> None:
        nonlocal done
        done += _multiplications(module, output)

    def noting(name: str) -> Callable[..., None]:
        def note(*_: object) -> None:
            before[name] = done

        return note

    hooks = [network.get_submodule(name).register_forward_pre_hook(noting(name)) for name in points]
    hooks += [part.register_forward_hook(count) for part in network.modules() if isinstance(part, _COUNTED)]
    try:
        output: Tensor = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return output, {name: 1 - before[name] / max(1, done) for name in points}


def default_cut(above: dict[str, float]) -> str | None:
    """The lowest cut point with at most a quarter of the computation above it; otherwise the highest.

    For a residual network that is the last stage, for a transformer the last three of twelve layers.
    """
    return next((name for name, share in above.items() if share <= SHARE_ABOVE), next(reversed(above), None))


def default_depths(above: dict[str, float]) -> tuple[str, ...]:
    """The lowest cut points with at most two thirds and one third of the computation above; () if they coincide."""
    found = [next((name for name, share in above.items() if share <= most), None) for most in (2 / 3, 1 / 3)]
    return tuple(name for name in found if name is not None) if len(set(found)) == 2 and None not in found else ()


class _CannotCutError(Exception):
    """The reason why a network cannot be cut at a module."""


class _Called(nn.Module):
    """Calls the network with images only, so that other arguments keep their defaults."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Any) -> Any:
        return self.network(images)


class _Tracer(fx.Tracer):
    """Traces only into the modules that contain the cut; the others need not be traceable."""

    def __init__(self, entered: set[str], whole: tuple[Callable[..., Any], ...]) -> None:
        super().__init__(autowrap_functions=whole)
        self.entered = entered

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:  # noqa: ARG002
        return name not in self.entered


@dataclass(frozen=True)
class _Computation:
    """The traced steps of a network, and its modules and tensors by the names used in the steps."""

    steps: list[fx.Node]
    parts: dict[str, Any]

    def constants(self) -> set[fx.Node]:
        """The steps that do not depend on the images: tensors, and computations from tensors only."""
        found: set[fx.Node] = set()
        for node in self.steps:
            inputs = node.all_input_nodes
            computed = node.op in ("call_function", "call_method") and inputs and found.issuperset(inputs)
            if node.op == "get_attr" or computed:
                found.add(node)
        return found

    def with_constants(self, steps: list[fx.Node]) -> list[fx.Node]:
        """These steps, and the constants that they use."""
        constants = self.constants()
        needed = {node for node in steps if node not in constants}
        for node in reversed(self.steps):
            if node in needed:
                needed |= constants.intersection(node.all_input_nodes)
        return [node for node in self.steps if node in needed]


def _multiplications(module: nn.Module, output: Any) -> int:
    """Multiplications of a convolution, linear or attention layer (without the products of tokens)."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    if isinstance(module, nn.MultiheadAttention):
        return 4 * int(module.embed_dim) * first.numel()
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.numel() * (first.numel() // len(weight))


def _traced(network: nn.Module, parent: str) -> _Computation:
    """Trace the network down to the children of `parent`."""
    entered = ["network"]
    for name in parent.split(".") if parent else ():
        entered.append(f"{entered[-1]}.{name}")
    found = []
    for training in (True, False):
        called = _Called(network)
        with _mode([called.get_submodule(name) for name in entered], training):
            try:
                graph = _Tracer(set(entered), _to_leave_whole(network)).trace(called)
            except Exception as error:  # the network's own code may raise anything during tracing
                reason = str(error).partition("\n")[0]
                raise _CannotCutError(f"its computation cannot be traced ({reason}).") from error
        text, parts = str(graph), {}
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                part = attrgetter(node.target)(called)
                node.target = node.target.removeprefix("network.")
                parts[node.target] = part
        found.append((text, _Computation(list(graph.nodes), parts)))
    (one, learning), (other, computation) = found
    # For example functional.dropout or noise, which tracing would freeze.
    if one != other or not all(_is_same(part, learning.parts[name]) for name, part in computation.parts.items()):
        raise _CannotCutError("its computation outside of its modules depends on the training mode, or is random.")
    return computation


def _to_leave_whole(network: nn.Module) -> tuple[Callable[..., Any], ...]:
    """Functions that cannot be traced, as listed by timm."""
    if not type(network).__module__.startswith("timm."):
        return ()
    from timm.models import get_notrace_functions

    return tuple(get_notrace_functions())


def _is_same(one: nn.Module | Tensor, other: nn.Module | Tensor) -> bool:
    """Whether they are the same object, or tensors with the same values."""
    return one is other or (isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other))


@contextmanager
def _mode(modules: list[nn.Module], training: bool) -> Iterator[None]:
    """Set the mode of these modules, but not of their children."""
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = training
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.training = was


def _parted(computation: _Computation, at: str) -> tuple[list[fx.Node], fx.Node, list[fx.Node]]:
    """The steps before the module `at`, the one of them whose value crosses the cut, and the steps from `at` on.

    Constants, such as weights and position embeddings, are on the side that uses them.
    """
    steps = computation.steps
    calls = [index for index, node in enumerate(steps) if node.op == "call_module" and node.target == at]
    if len(calls) != 1:
        raise _CannotCutError(f"it is called {len(calls)} times instead of once.")
    before, after = steps[: calls[0]], steps[calls[0] :]
    values = set(before) - computation.constants()
    entering = {used for node in after for used in node.all_input_nodes if used in values}
    if len(entering) != 1:
        raise _CannotCutError(f"{len(entering)} tensors cross the cut instead of one.")
    # A module on both sides would have one mode for two halves; weights on both sides would be frozen and trained.
    before, after = computation.with_constants(before), computation.with_constants(after)
    if _what_trains(computation, before) & _what_trains(computation, after):
        raise _CannotCutError("modules or weights are used both before and after it.")
    return before, entering.pop(), after


def _what_trains(computation: _Computation, steps: list[fx.Node]) -> set[int]:
    """The ids of the modules and parameters that these steps use; buffers may be on both sides."""
    used = [computation.parts[str(node.target)] for node in steps if node.op in ("call_module", "get_attr")]
    weights = [weight for part in used if isinstance(part, nn.Module) for weight in part.parameters()]
    return {id(each) for each in (*used, *weights) if isinstance(each, nn.Module | nn.Parameter)}


def _halves(
    computation: _Computation, before: list[fx.Node], entering: fx.Node, after: list[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    below, above = fx.Graph(), fx.Graph()
    lower: dict[fx.Node, fx.Node] = {}
    for node in before:
        lower[node] = below.node_copy(node, lambda used: lower[used])
    below.output(lower[entering])
    upper = {entering: above.placeholder("activations")}
    for node in after:
        upper[node] = above.node_copy(node, lambda used: upper[used])
    return fx.GraphModule(computation.parts, below, "Below"), fx.GraphModule(computation.parts, above, "Above")


def _points(network: nn.Module, parent: str) -> Iterator[str]:
    try:
        computation = _traced(network, parent)
    except _CannotCutError:
        return
    for node in computation.steps:
        name = str(node.target)
        if node.op != "call_module" or not name.startswith(f"{parent}." if parent else ""):
            continue
        part = network.get_submodule(name)
        if not any(weight.ndim > 1 for weight in part.parameters()):
            continue
        with suppress(_CannotCutError):
            if _parted(computation, name)[1].op != "placeholder":
                yield name
        if _has_stages(part, network):
            same = f"{name}.{next(iter(part.named_children()))[0]}" if isinstance(part, nn.Sequential) else None
            yield from (point for point in _points(network, name) if point != same)


def _has_stages(part: nn.Module, network: nn.Module) -> bool:
    """Whether to look for cuts inside: a sequence, or a module whose child sequence has most of the weights."""
    if type(part) is nn.Sequential:
        return True
    sequences = [inside for inside in part.children() if type(inside) in (nn.Sequential, nn.ModuleList)]
    return any(2 * _weights(inside) > _weights(network) for inside in sequences)


def _weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _refused(network: nn.Module, what: str) -> UserError:
    points = cut_points(network)
    where = f"It can be cut at: {', '.join(points)}." if points else "It cannot be cut anywhere: train all of it."
    return UserError(f"the network {type(network).__name__} {what} {where}")
