"""How fast is a step of the loss? Forward and backward, beside the peers, in one run.

    python -m benchmarks.loss_speed [--rounds 30] [--json FILE]

One thread, batch 128, 256 dimensions, medians; every time is also given as a ratio to a linear layer with
cross-entropy in the same run, and the memory is the most that the tensors of one step held at once. Peers are those of
pytorch-metric-learning: `pip install tammes[pml]`.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.timing import Step, machine, medians, peak_memory, save
from tammes import DiscriminativeLoss, HardDiscriminativeLoss

BASELINE = "linear + cross-entropy"
TARGETS = {"discriminative": 0.75, "linear + discriminative, one-hot": 1.1}  # of the baseline, from 1,000 classes on


@dataclass(frozen=True)
class Options:
    """Time a step of each loss."""

    rounds: int = 30
    """Steps of each loss that are timed."""
    classes: tuple[int, ...] = (100, 1000, 11318)
    """Numbers of classes; 11,318 is that of Stanford Online Products."""
    batch: int = 128
    dim: int = 256
    json: Path | None = None
    """Write the figures here too."""


def steps(num_classes: int, batch: int, dim: int) -> dict[str, Step]:
    """One step of each loss on the same embeddings: forward, backward, gradients set to none before."""
    from pytorch_metric_learning import losses, miners

    torch.manual_seed(0)
    embeddings = torch.randn(batch, dim, requires_grad=True)
    labels = torch.randint(num_classes, (batch,))
    centroids = normalize(torch.randn(num_classes, dim))
    pairs = torch.arange(batch) // 4 % num_classes  # pair losses need positives: 4 images of each class

    def step(*modules: nn.Module, labels: Tensor = labels, mine: nn.Module | None = None) -> Step:
        *body, loss = modules
        parameters = [embeddings, *(p for module in modules for p in module.parameters())]

        def run() -> None:
            for parameter in parameters:
                parameter.grad = None
            out = embeddings
            for layer in body:
                out = layer(out)
            value = loss(out, labels) if mine is None else loss(out, labels, mine(out, labels))
            value.backward()

        return run

    return {
        BASELINE: step(nn.Linear(dim, num_classes), nn.CrossEntropyLoss()),
        "discriminative": step(DiscriminativeLoss(centroids)),
        "linear + discriminative, one-hot": step(nn.Linear(dim, num_classes), DiscriminativeLoss(num_classes)),
        "hard discriminative": step(HardDiscriminativeLoss(centroids)),
        "PML ProxyNCALoss": step(losses.ProxyNCALoss(num_classes, dim)),
        "PML NormalizedSoftmaxLoss": step(losses.NormalizedSoftmaxLoss(num_classes, dim)),
        "PML ProxyAnchorLoss": step(losses.ProxyAnchorLoss(num_classes, dim)),
        "PML TripletMarginLoss, semi-hard": step(
            losses.TripletMarginLoss(), labels=pairs, mine=miners.TripletMarginMiner(type_of_triplets="semihard")
        ),
        "PML MultiSimilarityLoss": step(losses.MultiSimilarityLoss(), labels=pairs),
    }


def main(options: Options) -> None:
    torch.set_num_threads(1)
    console, results = Console(), []
    for num_classes in options.classes:
        candidates = steps(num_classes, options.batch, options.dim)
        seconds = medians(candidates, options.rounds)
        memory = {name: peak_memory(step) for name, step in candidates.items()}
        table = Table(title=f"{num_classes:,} classes, batch {options.batch}, {options.dim} dimensions")
        for column in ("loss", "ms a step", "ratio", "target", "MB at the peak"):
            table.add_column(column, justify="left" if column == "loss" else "right")
        for name, each in seconds.items():
            ratio = each / seconds[BASELINE]
            target = TARGETS.get(name) if num_classes >= 1000 else None
            table.add_row(
                name,
                f"{1000 * each:.3f}",
                f"{ratio:.2f}",
                "" if target is None else f"<= {target}",
                f"{memory[name] / 1e6:.2f}",
            )
            results.append({
                "classes": num_classes, "loss": name, "ms": 1000 * each, "ratio": ratio,
                "target": target, "peak_mb": memory[name] / 1e6,
            })  # fmt: skip
        console.print(table)
    save({"machine": machine(), "batch": options.batch, "dim": options.dim, "rounds": options.rounds,
          "rows": results}, options.json)  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
