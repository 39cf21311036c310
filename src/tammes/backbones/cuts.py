"""Cutting a network in two: what is below stays as it is and need run only once an image, what is above is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

from jaxtyping import Float
from torch import Tensor, fx, nn

from tammes.errors import UserError

SHARE_ABOVE = 0.25  # of the computation, at most: what the place that is used if none is named leaves to be trained
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.MultiheadAttention)


def cut(network: nn.Module, at: str) -> tuple[nn.Module, nn.Module]:
    """The network as (below, above): above(below(images)) is network(images), and above begins with the part `at`.

    Both have the very parameters, buffers and parts of the network, under the same names. Each has its own
    `train()` and `eval()`: batch normalisation below the cut stays as it is if `below` is in evaluation mode.

    Args:
        at: the name of a part as `named_modules()` has it: "layer4", "features.24".

    Raises:
        UserError: no such part, or more than one tensor goes past that place, or …; it says where to cut instead.
    """
    if at not in dict(network.named_modules()) or not at:
        near = get_close_matches(at, [name for name, _ in network.named_modules()], n=1)
        raise _refused(network, f"has no part {at!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
    try:
        return _halves(network, *_parted(network, _traced(network, at.rpartition(".")[0]), at))
    except _CannotCutError as error:
        raise _refused(network, f"cannot be cut at {at!r}: {error}") from error


def cut_points(network: nn.Module) -> tuple[str, ...]:
    """Where a network can be cut, lowest first: its parts, and the parts of those that are mere sequences of parts.

    Left out: what has no weights or only those of a normalisation, and places with nothing below them.
    """
    return tuple(_points(network, ""))


def shares_above(
    network: nn.Module, images: Float[Tensor, "batch channels height width"], points: tuple[str, ...]
) -> tuple[Float[Tensor, "batch ..."], dict[str, float]]:
    """What the network gives, and how much of the computation that takes lies above each of these cut points."""
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
    """The lowest cut point above which lies at most a quarter of the computation; the highest, if more lies above all.

    That is the last stage of a residual network, the last three layers of twelve of a transformer.
    """
    return next((name for name, share in above.items() if share <= SHARE_ABOVE), next(reversed(above), None))


class _CannotCutError(Exception):
    """Why a network cannot be cut at some place."""


class _Called(nn.Module):
    """The network called with images alone, so that whatever else it could be given is left at its default."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Any) -> Any:
        return self.network(images)


class _Tracer(fx.Tracer):
    """Looks only into the parts that contain the place of the cut: the others need not be traceable."""

    def __init__(self, entered: set[str]) -> None:
        super().__init__()
        self.entered = entered

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:  # noqa: ARG002
        return name not in self.entered


def _multiplications(module: nn.Module, output: Any) -> int:
    """By the weights of a convolution or linear layer; attention's, without those of tokens by one another."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    if isinstance(module, nn.MultiheadAttention):
        return 4 * int(module.embed_dim) * first.numel()
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.numel() * (first.numel() // len(weight))


def _traced(network: nn.Module, parent: str) -> fx.Graph:
    """What the network computes, in terms of the parts of `parent` and of everything beside it."""
    names = ["network"]
    for part in parent.split(".") if parent else ():
        names.append(f"{names[-1]}.{part}")
    called = _Called(network)
    graphs = []
    for training in (True, False):
        with _mode([called.get_submodule(name) for name in names], training):
            try:
                graphs.append(_Tracer(set(names)).trace(called))
            except Exception as error:  # whatever the network's own code raises when it is given no real images
                reason = str(error).partition("\n")[0]
                raise _CannotCutError(f"its computation cannot be traced ({reason}).") from error
    if str(graphs[0]) != str(graphs[1]):  # such as functional.dropout: the graph would stay in one mode for ever
        raise _CannotCutError("what it computes outside its parts depends on whether it is in training.")
    for node in graphs[0].nodes:
        if node.op in ("call_module", "get_attr"):
            if not node.target.startswith("network."):
                raise _CannotCutError("it makes a constant tensor outside its parts.")
            node.target = node.target.removeprefix("network.")
    return graphs[0]


@contextmanager
def _mode(modules: list[nn.Module], training: bool) -> Iterator[None]:
    """These modules, and not their parts, in training or not."""
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = training
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.training = was


def _parted(network: nn.Module, graph: fx.Graph, at: str) -> tuple[list[fx.Node], fx.Node, list[fx.Node]]:
    """What is computed before the part `at`, the one value of that which is used later, and what is computed then."""
    nodes = list(graph.nodes)
    calls = [index for index, node in enumerate(nodes) if node.op == "call_module" and node.target == at]
    if len(calls) != 1:
        raise _CannotCutError(f"it is called {len(calls)} times, where once is needed.")
    before, after = nodes[: calls[0]], nodes[calls[0] :]
    values = {node for node in before if node.op != "get_attr"}
    entering = {used for node in after for used in node.all_input_nodes if used in values}
    if len(entering) != 1:
        raise _CannotCutError(f"{len(entering)} tensors go past that place, where one is needed.")
    # A part on both sides would have one mode for two halves; weights on both would be frozen and trained.
    if _parts(network, _needed(before)) & _parts(network, _needed(after)):
        raise _CannotCutError("parts or weights are used both before it and after it.")
    return before, entering.pop(), after


def _needed(nodes: list[fx.Node]) -> list[fx.Node]:
    """These, and the weights that they use themselves: the graph has each of those where it was first seen."""
    weights = [used for node in nodes for used in node.all_input_nodes if used.op == "get_attr"]
    return [*dict.fromkeys(weights), *(node for node in nodes if node.op != "get_attr")]


def _parts(network: nn.Module, nodes: list[fx.Node]) -> set[int]:
    """The parts that are called here and all weights, by identity."""
    found: set[int] = set()
    for node in nodes:
        if node.op == "call_module":
            part = network.get_submodule(str(node.target))
            found |= {id(part), *map(id, part.parameters())}
        elif node.op == "get_attr":  # a buffer may be on both sides, such as the positions of a transformer
            parent, _, name = str(node.target).rpartition(".")
            found |= {
                id(each) for each in [getattr(network.get_submodule(parent), name)] if isinstance(each, nn.Parameter)
            }
    return found


def _halves(
    network: nn.Module, before: list[fx.Node], entering: fx.Node, after: list[fx.Node]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    below, above = fx.Graph(), fx.Graph()
    lower: dict[fx.Node, fx.Node] = {}
    for node in _needed(before):
        lower[node] = below.node_copy(node, lambda used: lower[used])
    below.output(lower[entering])
    upper = {entering: above.placeholder("activations")}
    for node in _needed(after):
        upper[node] = above.node_copy(node, lambda used: upper[used])
    return fx.GraphModule(network, below, "Below"), fx.GraphModule(network, above, "Above")


def _points(network: nn.Module, parent: str) -> Iterator[str]:
    try:
        graph = _traced(network, parent)
    except _CannotCutError:
        return
    for node in graph.nodes:
        name = str(node.target)
        if node.op != "call_module" or _owner(network, name) != parent:
            continue
        part = network.get_submodule(name)
        if not any(weight.ndim > 1 for weight in part.parameters()):
            continue
        with suppress(_CannotCutError):
            if _parted(network, graph, name)[1].op != "placeholder":
                yield name
        if _has_stages(part, network):
            same = f"{name}.{next(iter(part.named_children()))[0]}" if isinstance(part, nn.Sequential) else None
            yield from (point for point in _points(network, name) if point != same)


def _owner(network: nn.Module, name: str) -> str:
    """The part whose code calls this one: the nearest around it that is not a mere list."""
    parent = name.rpartition(".")[0]
    while parent and isinstance(network.get_submodule(parent), nn.ModuleList):
        parent = parent.rpartition(".")[0]
    return parent


def _has_stages(part: nn.Module, network: nn.Module) -> bool:
    """Whether to look for places inside: a sequence, or what holds one with most of the network's weights."""
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
