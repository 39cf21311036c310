"""How does an epoch grow with the images N and the classes C? The paper's table of complexity (table 1), measured.

    python -m benchmarks.complexity [--limit 10] [--only trip grid] [--again] [--json FILE]

Seconds of the loss's part of an epoch: forward and backward by given unit embeddings and by what the loss itself
learns, no network; one thread, medians. The exponent is the slope of log(time) over log(size), over N at a fixed C and
over C at a fixed N, fitted on the upper half of the sizes (on the lower half where the cost falls with C). The naive
methods visit what they are named after: every pair or every triplet of the whole set, in blocks, without algebra that
would spare them; the distance of a pair is computed once and not again for each of its triplets, which helps them only.
Sizes whose epoch takes longer than the limit are left out, and said. The grid fits time = a N^p C^q of the
discriminative loss over N and C together. Rows that are in the file already, made with the same options on the same
machine, are not measured again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import tyro
from jaxtyping import Float, Integer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.scaling import exponent
from benchmarks.timing import Step, machine, medians
from tammes import DiscriminativeLoss, HardDiscriminativeLoss
from tammes.benchmark.published import published_table
from tammes.errors import UserError
from tammes.geometry import distances
from tammes.io.files import write_atomically
from tammes.losses import LOSSES, SmartMiningLoss, SoftmaxLoss

AxisName = Literal["over_n", "over_c"]
SAMPLE = 256  # classes that the sampled loss draws
SIDE = 512  # rows and columns of a block of pairs
BLOCK = 1 << 20  # triplets in one block: 4 MB
PER_CLASS = 4  # images of each class in a batch of a loss that needs several
GRID = ((1024, 2048, 4096), (4096, 8192, 16384))  # N and C; below, the overhead of a batch shows


@dataclass(frozen=True)
class Options:
    """Measure how an epoch of each method grows."""

    limit: float = 10.0
    """Seconds that an epoch may take: larger sizes are left out. The grid is measured whole."""
    rounds: int = 6
    """Epochs of each size that are timed."""
    dim: int = 128
    batch: int = 128
    only: tuple[str, ...] = ()
    """Methods whose names contain one of these, in whatever case; `grid` is the fit over N and C together."""
    again: bool = False
    """Measure what is in the file already, too."""
    json: Path = Path("benchmarks/results/complexity.json")
    """Where the figures are written, after each row."""


@dataclass(frozen=True)
class Axis:
    """The sizes of one axis, smallest first, and the size of the other one meanwhile.

    `expected` is the exponent of the formula, or the two between which it moves from one term to the other.
    """

    sizes: tuple[int, ...]
    at: int
    expected: float | tuple[float, float]

    @property
    def steepest(self) -> float:
        return max(self.expected) if isinstance(self.expected, tuple) else self.expected


@dataclass(frozen=True)
class Method:
    """A row: `epoch(images, classes, options)` makes a function that runs one epoch, or says why there is none."""

    name: str
    epoch: Callable[[int, int, Options], Step] | str
    over_n: Axis
    over_c: Axis
    note: str = ""


# ---- the data, and epochs in batches


def points(count: int, dim: int) -> Float[Tensor, "count dim"]:
    return F.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(count)))


def in_batches(
    value: Callable[[Tensor, Tensor], Tensor], labels: Integer[Tensor, " images"], options: Options, *learnt: Tensor
) -> Step:
    """An epoch: the value of each batch and its gradient, by the batch and by what the loss learns."""
    whole = points(len(labels), options.dim)
    # Each batch is a leaf of its own: the gradient of a slice would have the size of the whole set.
    batches = [(part.clone().requires_grad_(), own) for part, own in _batches(whole, labels, options.batch)]

    def run() -> None:
        for embeddings, own in batches:
            for tensor in (embeddings, *learnt):
                tensor.grad = None
            value(embeddings, own).backward()

    return run


def _batches(whole: Tensor, labels: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(whole.split(batch), labels.split(batch), strict=True)


def cyclic(images: int, classes: int) -> Integer[Tensor, " images"]:
    """Classes of equal size; a batch of B images holds B/C of each."""
    return torch.arange(images) % classes


def softmax(images: int, classes: int, options: Options) -> Step:
    layer, loss = nn.Linear(options.dim, classes), SoftmaxLoss(classes)
    return in_batches(lambda x, y: loss(layer(x), y), cyclic(images, classes), options, *layer.parameters())


def discriminative(images: int, classes: int, options: Options, sample: int | None = None) -> Step:
    loss = DiscriminativeLoss(points(classes, options.dim), sample_classes=sample)
    return in_batches(loss, cyclic(images, classes), options)


def hard_discriminative(images: int, classes: int, options: Options) -> Step:
    return in_batches(HardDiscriminativeLoss(points(classes, options.dim)), cyclic(images, classes), options)


# ---- the naive methods


def all_pairs(
    embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], margin: float = 1.0, side: int = SIDE
) -> tuple[float, Float[Tensor, "images dim"]]:
    """The contrastive loss summed over all unordered pairs, and its gradient: d²/2, or max(0, margin - d)²/2."""
    parts = [part.detach().requires_grad_() for part in embeddings.split(side)]
    owns, total = labels.split(side), 0.0
    for row, (first, own) in enumerate(zip(parts, owns, strict=True)):
        for column in range(row, len(parts)):
            apart = distances(first, parts[column])  # (side, side)
            each = torch.where(own[:, None] == owns[column], apart, (margin - apart).relu()).square() / 2
            value = (each.triu(diagonal=1) if column == row else each).sum()
            value.backward()
            total += value.item()
    return total, torch.cat([part.grad for part in parts if part.grad is not None])


def all_triplets(
    embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], block: int = BLOCK
) -> tuple[float, Float[Tensor, "images dim"]]:
    """L_t, equations 1 and 2, and its gradient: |x_i - x_j| - |x_i - x_k| for each triplet by itself.

    `tammes.bound.triplet_loss` gives the same in O(N²) by counting in how many triplets a pair stands.
    """
    order = labels.argsort(stable=True)  # class by class: members and others are slices
    whole = embeddings.detach()[order].requires_grad_()
    apart = distances(whole, whole)  # (images, images): time runs out long before the memory does
    known, gradient, total = apart.detach(), torch.zeros_like(apart), 0.0
    end = 0
    for size in labels.unique(return_counts=True)[1].tolist():
        start, end = end, end + size
        for rows in torch.arange(start, end).split(max(1, block // (size * len(labels)))):
            slope, length = gradient[rows[0] : rows[-1] + 1], known[rows[0] : rows[-1] + 1]  # (rows, images)
            positive = torch.arange(start, end) != rows[:, None]  # (rows, size): all but the anchor itself
            near = length[:, start:end][positive].view(len(rows), size - 1).requires_grad_()
            far = torch.cat([length[:, :start], length[:, end:]], dim=1).requires_grad_()  # (rows, images - size)
            value = (near[:, :, None] - far[:, None, :]).sum()  # over (rows, size - 1, images - size)
            to_near, to_far = torch.autograd.grad(value, (near, far))
            slope[:, start:end].masked_scatter_(positive, to_near)
            slope[:, :start], slope[:, end:] = to_far.tensor_split((start,), dim=1)
            total += value.item()
    apart.backward(gradient)
    assert whole.grad is not None
    return total, torch.empty_like(whole).index_copy_(0, order, whole.grad)


def semi_hard(
    embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], margin: float = 0.2
) -> Float[Tensor, ""]:
    """The triplet loss of FaceNet, squared distances, as a mean over the ordered positive pairs of a batch.

    The negative is the closest one that is farther from the anchor than the positive, or the farthest if none is; each
    pair looks for it among the whole batch.
    """
    squared = distances(embeddings, embeddings).square()  # (batch, batch)
    same = labels[:, None] == labels
    anchor, positive = (same & ~torch.eye(len(labels), dtype=torch.bool)).nonzero(as_tuple=True)  # (pairs,)
    with torch.no_grad():
        to_all, negative = squared[anchor], ~same[anchor]  # (pairs, batch)
        farther = negative & (to_all > squared[anchor, positive, None])
        closest = to_all.where(farther, float("inf")).min(dim=1)
        farthest = to_all.where(negative, -1.0).argmax(dim=1)
        chosen = torch.where(closest.values.isinf(), farthest, closest.indices)  # (pairs,)
    return (squared[anchor, positive] - squared[anchor, chosen] + margin).relu().mean()


def class_means(
    embeddings: Float[Tensor, "images dim"], labels: Integer[Tensor, " images"], classes: int
) -> Float[Tensor, "classes dim"]:
    sums = embeddings.new_zeros(classes, embeddings.shape[1]).index_add_(0, labels, embeddings)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def nearest_mean(
    embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"], means: Float[Tensor, "classes dim"]
) -> Float[Tensor, ""]:
    """Cross-entropy over the negative squared distances to the class means, as a mean over the batch."""
    return F.cross_entropy(-distances(embeddings, means).square(), labels)


def pair_naive(images: int, classes: int, options: Options) -> Step:
    return partial(all_pairs, points(images, options.dim), cyclic(images, classes))


def triplet_naive(images: int, classes: int, options: Options) -> Step:
    return partial(all_triplets, points(images, options.dim), cyclic(images, classes))


def triplet_hard(images: int, classes: int, options: Options) -> Step:
    return in_batches(semi_hard, cyclic(images, classes), options)


def smart_mining(images: int, classes: int, options: Options) -> Step:
    """An epoch of mined triplets: the look at all images, then the batches that it has chosen."""
    loss, labels, whole = SmartMiningLoss(), cyclic(images, classes), points(images, options.dim)
    size = options.batch // 3 * 3

    def run() -> None:
        loss.look(whole, labels, generator=torch.Generator().manual_seed(0))
        assert loss.order is not None
        for rows in loss.order.split(size):
            loss(whole[rows].requires_grad_(), labels[rows]).backward()

    return run


def centroids(images: int, classes: int, options: Options) -> Step:
    labels, whole = cyclic(images, classes), points(images, options.dim)
    means = class_means(whole, labels, classes)

    def value(embeddings: Tensor, own: Tensor) -> Tensor:
        means.copy_(class_means(whole, labels, classes))
        return nearest_mean(embeddings, own, means)

    return in_batches(value, labels, options)


# ---- methods whose loss may not be there yet


def of_a_loss(*names: str) -> Callable[[int, int, Options], Step] | str:
    """The epoch of the first of these that is in `LOSSES`, made from what its arguments are named after."""
    name = next((name for name in names if name in LOSSES), None)
    if name is None:
        return f"not there yet: tammes.losses has none of {', '.join(names)}"
    kind, known = LOSSES[name], ("num_classes", "dim", "centroids")
    wanted = signature(kind).parameters.values()
    needed = [
        each.name for each in wanted if each.default is Parameter.empty and each.kind is not Parameter.VAR_KEYWORD
    ]
    if unknown := [each for each in needed if each not in known]:
        return f"tammes.losses has {name}, but what {', '.join(unknown)} should be is not known here"

    def epoch(images: int, classes: int, options: Options) -> Step:
        given = {"num_classes": classes, "dim": options.dim, "centroids": points(classes, options.dim)}
        loss = kind(**{each: given[each] for each in needed})
        labels = torch.arange(images) // PER_CLASS % classes
        return in_batches(loss, labels, options, *loss.parameters())

    return epoch


def methods() -> list[Method]:
    """The paper's rows in its order, then ours."""
    images, classes = (1024, 2048, 4096, 8192, 16384, 32768), (256, 512, 1024, 2048, 4096, 8192, 16384)
    linear = (Axis(images, 1024, 1), Axis(classes, 1024, 1))
    return [
        Method("Softmax", softmax, *linear, "the linear layer and its gradient are part of it"),
        Method(
            "Pair-naive", pair_naive, Axis((512, 1024, 2048, 4096, 8192), 64, 2), Axis((16, 64, 256, 1024), 4096, 0)
        ),
        Method(
            "Trip.-naive",
            triplet_naive,
            Axis((256, 384, 512, 768, 1024, 1536, 2048, 3072), 8, 3),
            Axis((8, 12, 16, 24, 32), 2048, -1),
            "the distances of all pairs, which do not become fewer with more classes, are part of it",
        ),
        Method(
            "Trip.-hard",
            triplet_hard,
            Axis(images[:-1], 16, 1),
            Axis((2, 4, 8, 16, 32), 2048, -1),
            "with M = N/B batches the paper's count is N B²/C: a batch holds B/C images of each class",
        ),
        Method(
            "Trip.-smart",
            smart_mining,
            Axis((1024, 2048, 4096, 8192, 16384, 32768), 64, 2),
            Axis((64, 128, 256, 512), 2048, 0),
            "the search over the whole set before the epoch, and a triplet for each image",
        ),
        Method(
            "Trip.-cluster",
            of_a_loss("clustering"),
            Axis((128, 256, 512, 1024), 16, 1),
            Axis((4, 8, 16, 32), 128, 3),
            f"Y, the clusters, are the classes of a batch, {PER_CLASS} images of each or more",
        ),
        Method(
            "Trip.-proxy",
            of_a_loss("proxy-nca"),
            Axis(images, 1024, 1),
            Axis(classes, 1024, 2),
            "P, the proxies, are one a class",
        ),
        Method(
            "Centroids",
            centroids,
            Axis((4096, 8192, 16384, 32768, 65536, 131072), 64, 2),
            Axis((64, 256, 1024, 4096, 16384), 4096, (0, 1)),
            "the mean of each class over the whole set before each batch, of given embeddings: no network runs again",
        ),
        Method("Discriminative", discriminative, *linear),
        Method(
            f"Discriminative, {SAMPLE} classes sampled",
            partial(discriminative, sample=SAMPLE),
            Axis(images, 4096, 1),
            Axis((1024, 2048, 4096, 8192, 16384), 4096, 0),
            "ours, not in the paper: O(N)",
        ),
        Method("Hard-discriminative", hard_discriminative, *linear, "ours, not in the paper: O(NC)"),
    ]


# ---- measuring


def measure(method: Method, name: AxisName, options: Options) -> dict[str, Any]:
    """Seconds of an epoch at each size of an axis that the limit allows, and their exponent."""
    assert not isinstance(method.epoch, str)
    axis: Axis = getattr(method, name)
    steps: dict[int, Step] = {}
    size, seconds = 0, 0.0
    for larger in sorted(axis.sizes, reverse=axis.steepest < 0):  # the cheapest first
        if size and seconds * (larger / size) ** axis.steepest > options.limit:
            break
        size = larger
        step = method.epoch(*((size, axis.at) if name == "over_n" else (axis.at, size)), options)
        started = perf_counter()
        step()
        seconds = perf_counter() - started
        if seconds > options.limit:
            break
        steps[size] = step
    times = medians({str(size): step for size, step in steps.items()}, options.rounds, in_a_row=3)
    sizes = sorted(steps)
    return {
        "at": axis.at,
        "sizes": sizes,
        "seconds": [times[str(size)] for size in sizes],
        # In the order of the cost: its upper half, which must have two, is where an epoch takes longest.
        "exponent": exponent(list(steps), list(times.values())) if len(steps) > 2 else None,
        "left_out": sorted(set(axis.sizes) - set(sizes)),
    }


def joint_exponents(images: list[int], classes: list[int], seconds: list[list[float]]) -> tuple[float, float, float]:
    """p, q and the largest residual, in log(time), of log(time) = a + p log N + q log C by least squares."""
    factors = np.array([[1, log(n), log(c)] for n in images for c in classes])
    times = np.log(np.array(seconds).ravel())
    fitted = np.linalg.lstsq(factors, times, rcond=None)[0]
    return float(fitted[1]), float(fitted[2]), float(np.abs(factors @ fitted - times).max())


def measure_grid(options: Options) -> dict[str, Any]:
    """The discriminative loss over N and C together."""
    images, classes = map(list, GRID)
    steps = {f"{n} {c}": discriminative(n, c, options) for n in images for c in classes}
    times = medians(steps, options.rounds, in_a_row=3)
    seconds = [[times[f"{n} {c}"] for c in classes] for n in images]
    over_n, over_c, residual = joint_exponents(images, classes, seconds)
    return {
        "n": images, "c": classes, "seconds": seconds,
        "exponent_n": over_n, "exponent_c": over_c, "largest_residual": residual,
    }  # fmt: skip


# ---- the file and the tables


def header(options: Options) -> dict[str, Any]:
    return {"dim": options.dim, "batch": options.batch, "rounds": options.rounds, "limit": options.limit}


def stored(options: Options) -> dict[str, Any]:
    """What the file has already and was made with these options on this machine."""
    if not options.json.exists():
        return {}
    content: dict[str, Any] = json.loads(options.json.read_text())
    here, ours = machine(), header(options)
    same = {name: content.get(name) for name in ours} == ours
    same &= all(content["machine"].get(name) == here[name] for name in ("processor", "threads", "torch", "python"))
    if not same and options.only:
        raise UserError(
            f"{options.json} holds rows of other options or of another machine, and --only would lose them."
            " Leave out --only, or write to another file with --json."
        )
    return content if same else {}


def is_of(row: dict[str, Any], method: Method) -> bool:
    """Whether a stored row has the sizes that the method has now."""
    if row["over_n"] is None or row["over_c"] is None:
        return False  # its loss may have come since
    return all(
        sorted(found["sizes"] + found["left_out"]) == list(axis.sizes) and found["at"] == axis.at
        for found, axis in ((row["over_n"], method.over_n), (row["over_c"], method.over_c))
    )


def make_row(method: Method, options: Options) -> dict[str, Any]:
    paper = published_table("complexity").rows.get(method.name, {}).get("complexity")
    row: dict[str, Any] = {"method": method.name, "paper": paper}
    row |= {"expected_n": method.over_n.expected, "expected_c": method.over_c.expected}
    if isinstance(method.epoch, str):
        return row | {"over_n": None, "over_c": None, "note": method.epoch}
    over_n, over_c = measure(method, "over_n", options), measure(method, "over_c", options)
    notes = [method.note] if method.note else []
    for letter, found in (("N", over_n), ("C", over_c)):
        if found["left_out"]:
            sizes = ", ".join(f"{size:,}" for size in found["left_out"])
            notes.append(f"{letter} = {sizes} left out: over {options.limit:g} s an epoch, measured or foreseen")
        if found["exponent"] is None:
            notes.append(f"too few sizes for an exponent in {letter}")
    return row | {"over_n": over_n, "over_c": over_c, "note": "; ".join(notes)}


def show(console: Console, content: dict[str, Any]) -> None:
    table = Table(title="Growth of an epoch: exponents of N and C, of the formula and measured")
    for column in ("method", "paper", "N", "measured", "C", "measured"):
        table.add_column(column, justify="left" if column in ("method", "paper") else "right")
    for row in content["rows"]:
        cells = []
        for letter in "nc":
            expected, found = row[f"expected_{letter}"], row[f"over_{letter}"]
            cells.append(f"{expected:g}" if isinstance(expected, int | float) else " to ".join(map(str, expected)))
            cells.append("-" if found is None or found["exponent"] is None else f"{found['exponent']:.2f}")
        table.add_row(row["method"], row["paper"] or "-", *cells)
    console.print(table)
    for row in content["rows"]:
        console.print(row["method"] + (f": {row['note']}" if row["note"] else ""), style="bold", highlight=False)
        for letter, other in (("N", "C"), ("C", "N")):
            if found := row[f"over_{letter.lower()}"]:
                pairs = zip(found["sizes"], found["seconds"], strict=True)
                times = "  ".join(f"{size:,}: {_short(seconds)}" for size, seconds in pairs)
                console.print(f"  over {letter}, {other} = {found['at']:,}   {times}", highlight=False)
    if grid := content.get("grid"):
        console.print(
            f"Discriminative, N {_range(grid['n'])} and C {_range(grid['c'])} together: time grows with"
            f" N^{grid['exponent_n']:.2f} C^{grid['exponent_c']:.2f}, off by {grid['largest_residual']:.1%} at most",
            highlight=False,
        )


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _range(sizes: list[int]) -> str:
    return f"{sizes[0]:,}-{sizes[-1]:,}"


def main(options: Options) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = stored(options)
    kept = {row["method"]: row for row in before.get("rows", [])}
    content: dict[str, Any] = {"machine": machine(), **header(options), "rows": [], "grid": before.get("grid")}
    order = methods()

    def wanted(name: str) -> bool:
        return not options.only or any(each.lower() in name.lower() for each in options.only)

    def write() -> None:
        content["machine"] = machine()  # the memory at the peak has grown
        content["rows"] = [kept[method.name] for method in order if method.name in kept]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.json, (json.dumps(content, indent=1) + "\n").encode())

    for method in order:
        known = method.name in kept and is_of(kept[method.name], method)
        if wanted(method.name) and (options.again or not known):
            kept[method.name] = make_row(method, options)
            write()
    sizes = content["grid"] and (tuple(content["grid"]["n"]), tuple(content["grid"]["c"]))
    if wanted("grid") and (options.again or sizes != GRID):
        content["grid"] = measure_grid(options)
    write()
    show(Console(), content)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
