"""How long does an evaluation take, and how much memory? By default at the size of Stanford Online Products' test set.

    python -m benchmarks.evaluation [--items 60502] [--dim 512] [--threads 1] [--clustering] [--json FILE]

The memory is the peak of the process beyond what it held with torch, NumPy and the vectors in memory. For scale, the
time of the bare matrix product of all vectors with all vectors is measured on a part of it.
"""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from benchmarks.timing import machine, save
from tammes.metrics import evaluate


@dataclass(frozen=True)
class Options:
    """Time `evaluate` on drawn embeddings."""

    items: int = 60_502
    dim: int = 512
    classes: int = 11_316
    noise: float = 2.0
    """Spread of a class beside the distance between classes; 2 gives a recall at 1 of 0.95."""
    threads: int = 1
    clustering: bool = False
    """Also K-means, for one seed and one restart: hours at the default size."""
    json: Path | None = None
    """Write the figures here too."""


def drawn(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors about the directions of their classes, and their labels."""
    random = np.random.default_rng(0)
    labels = np.sort(random.permutation(np.arange(options.items) % options.classes))
    centres = random.standard_normal((options.classes, options.dim), dtype=np.float32)
    vectors = random.standard_normal((options.items, options.dim), dtype=np.float32)
    vectors *= options.noise
    for start in range(0, options.items, 4096):
        vectors[start : start + 4096] += centres[labels[start : start + 4096]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, labels


def held_mb() -> float:
    """What the process holds now; its peak so far would count what drawing the vectors took."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def product_seconds(vectors: np.ndarray, rows: int = 256) -> float:
    """Processor seconds of the product of all vectors with all, from that of a few with all."""
    everyone = torch.from_numpy(vectors)
    some = everyone[:rows].clone()
    room = torch.empty(rows, len(everyone))
    times = []
    for _ in range(7):
        started = time.process_time()
        torch.mm(some, everyone.T, out=room)
        times.append(time.process_time() - started)
    return float(np.median(times)) * len(vectors) / len(some)


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    vectors, labels = drawn(options)
    before = held_mb()
    started, started_cpu = time.perf_counter(), time.process_time()
    found = evaluate(vectors, labels, clustering=options.clustering, seeds=(0,), restarts=1)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    memory = peak_mb() - before
    product = product_seconds(vectors)
    print(f"{options.items:,} x {options.dim}, {options.classes:,} classes, {options.threads} threads")
    print(f"evaluate {seconds:.1f} s, {memory:.0f} MB beyond the vectors")
    print(f"processor time {cpu_seconds:.1f} s, of the bare product {product:.1f} s")
    print(f"recall at 1 {found['recall_at_1']:.4f}, MAP@R {found['mean_average_precision_at_r']:.4f}")
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds, "product_cpu_seconds": product}
    sizes = {"items": options.items, "dim": options.dim, "classes": options.classes, "threads": options.threads}
    save({"machine": machine(), **sizes, **times, "peak_mb": memory, "metrics": found}, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
