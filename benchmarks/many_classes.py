"""What do very many classes cost? Memory and time of a step, beside a softmax, and a million classes end to end.

    python -m benchmarks.many_classes [--classes 1000 100000] [--json FILE]

A step: a linear layer of 128 x 128, the loss, backward, SGD with momentum; batch 128, one thread. The softmax has a
weight vector for each class, with its gradient and its momentum; ours has a fixed centroid, placed by binary codes,
with all classes in blocks (`chunk_classes`) or a sample of them (`sample_classes`). Each row is measured in a process
of its own: the memory is its peak (VmHWM) beyond what it had after a few steps with 512 classes, time is the median of
the steps, at least 5. Rows that are in the file already are not measured again.

End to end: `tammes train` on a file of made-up vectors of so many classes, two of each, evaluated on other classes.

Targets: softmax takes at least 3 times the memory at 100,000 classes; a sampled step takes as long for any number.
"""

import json
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from benchmarks.timing import machine, save
from benchmarks.vector_sets import made_up
from tammes import DiscriminativeLoss
from tammes.centroids import codes

SOFTMAX, CHUNKED, SAMPLED = "linear + cross-entropy", "discriminative, in blocks", "discriminative, sampled"
COLUMNS = 128  # of the vectors that are trained on end to end


@dataclass(frozen=True)
class Options:
    """Measure steps over numbers of classes, and a training end to end."""

    classes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    chunk: int = 4096
    """Classes in a block."""
    sample: int = 256
    """Classes that the sampled loss draws."""
    batch: int = 128
    dim: int = 128
    seconds: float = 20.0
    """For the steps of a row."""
    end_to_end: int = 1_000_000
    """Classes to train on end to end; 0 leaves it out."""
    json: Path = Path("benchmarks/results/many_classes.json")
    """Where the rows are kept."""


def loss_of(method: str, classes: int, options: Options) -> nn.Module:
    if method == SOFTMAX:
        return _Softmax(options.dim, classes)
    kind = {"chunk_classes": options.chunk} if method == CHUNKED else {"sample_classes": options.sample}
    return DiscriminativeLoss(codes(classes, options.dim), **kind)  # type: ignore[arg-type]


class _Softmax(nn.Module):
    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layer(embeddings), labels)


def measure(pipe: Connection, method: str, classes: int, options: Options) -> None:
    """Steps of a method, in a process of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps(method, 512, options, 0)  # what is loaded at the first step is not the classes'
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _status("VmRSS")
    placing, times = steps(method, classes, options, options.seconds)
    memory = (_status("VmHWM") - before) / 1024
    pipe.send({"placing_seconds": placing, "ms": 1000 * median(times[1:]), "memory_mb": memory})


def steps(method: str, classes: int, options: Options, seconds: float) -> tuple[float, list[float]]:
    """How long it takes to make the loss, and each of some steps."""
    started = perf_counter()
    loss = loss_of(method, classes, options)
    placing = perf_counter() - started
    network = nn.Linear(options.dim, options.dim)
    optimizer = torch.optim.SGD([*network.parameters(), *loss.parameters()], lr=0.01, momentum=0.9)
    vectors, labels = torch.randn(options.batch, options.dim), torch.randint(classes, (options.batch,))
    times: list[float] = []
    while len(times) < 6 or (sum(times) < seconds and len(times) < 300):
        started = perf_counter()
        optimizer.zero_grad()
        loss(network(vectors), labels).backward()
        optimizer.step()
        times.append(perf_counter() - started)
    return placing, times


def train_end_to_end(pipe: Connection, classes: int, folder: Path) -> None:
    """`tammes train` on vectors of so many classes, in a process of its own."""
    from tammes.cli import main

    torch.set_num_threads(1)
    file = folder / "vectors.npz"
    train, labels, test, test_labels = made_up(2 * classes, classes, COLUMNS)
    np.savez(file, vectors=np.concatenate([train, test]), labels=np.concatenate([labels, test_labels]))
    others = folder / "test.txt"
    others.write_text("\n".join(map(str, np.unique(test_labels).tolist())))
    del train, labels, test, test_labels
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    words = ["train", str(file), "--out", str(folder / "run"), "--test-classes", str(others), "--json"]
    words += ["--centroids", "codes", "--centroid-dim", "128", "--epochs", "1", "--batch-size", "1024"]
    before, started, said = _status("VmRSS"), perf_counter(), StringIO()
    with redirect_stdout(said):
        main(words)
    seconds, results = perf_counter() - started, json.loads(said.getvalue())
    pipe.send(
        {
            "train_vectors": results["train_images"],
            "train_classes": results["train_classes"],
            "test_classes": results["test_classes"],
            "test_vectors": results["test_images"],
            "columns": COLUMNS,
            "seconds": seconds,
            "training_seconds": results["seconds"],
            "memory_mb": (_status("VmHWM") - before) / 1024,
            "file_mb": file.stat().st_size / 1e6,
            "epoch": results["epoch"],
            "untrained": results["untrained"]["recall_at_1"],
            "trained": results["trained"]["recall_at_1"],
        }
    )


def _status(name: str) -> float:
    """Kilobytes of this process by a name of Linux's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def in_a_process(work: Any, *given: Any) -> dict[str, Any]:
    context = get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(send, *given))
    process.start()
    send.close()
    try:
        found: dict[str, Any] = receive.recv()
    except EOFError:
        found = {"outcome": "ended without a word, most likely for want of memory"}
    process.join()
    return found


def main(options: Options) -> None:
    stored: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
    stored |= {name: getattr(options, name) for name in ("batch", "dim", "chunk", "sample")}
    for classes in options.classes:
        for method in (SOFTMAX, CHUNKED, SAMPLED):
            if any((row["classes"], row["method"]) == (classes, method) for row in stored["rows"]):
                continue
            row = {"classes": classes, "method": method, **in_a_process(measure, method, classes, options)}
            print(row, flush=True)
            stored["rows"] = sorted([*stored["rows"], row], key=lambda each: int(each["classes"]))
            save(stored | {"machine": machine() | {"threads": 1}}, options.json)
    if options.end_to_end and "end_to_end" not in stored:
        with tempfile.TemporaryDirectory() as folder:
            stored["end_to_end"] = in_a_process(train_end_to_end, options.end_to_end, Path(folder))
        print(stored["end_to_end"], flush=True)
        save(stored | {"machine": machine() | {"threads": 1}}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
