"""How many images a second does `tammes index` embed, beside the bare network, and does its memory grow with them?

    python -m benchmarks.index $TAMMES_DATA/CUB_200_2011 --model googlenet --weights FILE [--images 600 6000]
                               [--processes 1 2]

Each number of images is indexed by the command itself in a process of its own, with an empty cache, into a new gallery
in a temporary folder; by several processes through torchrun, which share the threads. Before and after it the network
alone is measured, in as many processes with as many threads each, all at once: a batch of pixels in memory again and
again. `network_per_second` is that of a plain loop, `kept_per_second` that of one which keeps its memory, as `index`
does. The speed of `index` is the one that it prints, from the first image to the last that is stored; start-up and the
calibration at the end are not in it. Memory is the peak of the largest process, libraries included. Without --weights
the network has random ones, which take as long.

On a busy machine seconds say little: `cpu_ratio` and `kept_cpu_ratio` are the same ratios in seconds of the processors,
of the images by which each number of them exceeds the one before, so that start-up is not in it. Measure them with
--threads 1: threads that wait for each other spend processor time.

Of several processes the gallery is compared with that of one: paths, classes, thumbnails, and how far numbers of a
vector are apart (another number of threads adds up in another order).
"""

import csv
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from safetensors.torch import save_file

from benchmarks.timing import machine
from tammes.data.folder import images_below
from tammes.gallery import open_gallery
from tammes.io.files import write_atomically
from tammes.io.machine import kept_memory
from tammes.models.pretrained import load_model


@dataclass(frozen=True)
class Options:
    """Index growing numbers of images beside the bare network."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A folder of images."""
    model: str = "resnet18"
    weights: Path | None = None
    images: tuple[int, ...] = (600, 6000)
    """How many, one gallery each; drawn at random, the same each time. Below 256 memory is not yet full."""
    seconds: float = 10.0
    """Of the bare network in each of its two forms, before and after each."""
    threads: int = torch.get_num_threads()
    """Of all processes together."""
    processes: tuple[int, ...] = (1,)
    """How many index together; each number of them is measured."""
    out: Path = Path("benchmarks/results/index.json")


def bare(model: str, weights: str, seconds: float, threads: int) -> dict[str, float]:
    """Images a second of the network alone, with memory kept from batch to batch and without; a second of the
    processors likewise."""
    torch.set_num_threads(threads)
    embedder = load_model(model, weights=weights)
    batch = torch.randint(256, (embedder.at_once, len(embedder.mode), embedder.size, embedder.size), dtype=torch.uint8)
    found: dict[str, float] = {}
    for name, memory in (("network", nullcontext), ("kept", kept_memory)):
        with memory(), torch.inference_mode():
            embedder(batch)
            done, began, used = 0, perf_counter(), process_time()
            while (passed := perf_counter() - began) < seconds:
                embedder(batch)
                done += len(batch)
        found |= {f"{name}_per_second": done / passed, f"{name}_per_cpu_second": done / (process_time() - used)}
    return found


def indexed(files: list[Path], options: Options, weights: str, processes: int, folder: Path) -> dict[str, Any]:
    """What the command says of itself, and the peak of its memory in MB."""
    with (folder / "images.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([("path", "label"), *((each, each.parent.name) for each in files)])
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(started if processes > 1 else []), "-m", "tammes", "index", options.model]
    command += [str(folder / "images.csv"), "--weights", weights, "--gallery", str(folder / "gallery")]
    command += ["--device", "cpu", "--json"]
    threads = max(1, options.threads // processes)
    environment = os.environ | {"TAMMES_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(threads)}
    environment |= {"TAMMES_CONFIG": str(folder / "config")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    figures: dict[str, Any] = json.loads(said)
    return figures | {"peak_mb": used.ru_maxrss / 1024, "cpu_seconds": used.ru_utime + used.ru_stime}


def compared(gallery: str, other: str) -> dict[str, Any]:
    """Whether two galleries have the same items, and how far numbers of their vectors are apart at most."""
    one, two = ({row.path: row for part in open_gallery(each).rows(1000, thumbnails=True) for row in part}
                for each in (gallery, other))  # fmt: skip
    same = one.keys() == two.keys() and all(
        (row.label, row.thumbnail, row.fingerprint) == (two[path].label, two[path].thumbnail, two[path].fingerprint)
        for path, row in one.items()
    )
    apart = (
        max((float(np.abs(row.vector - two[path].vector).max()) for path, row in one.items()), default=0)
        if same
        else nan
    )
    return {"same_items": same, "vectors_apart": apart}


def main(options: Options) -> None:
    every, spawn = np.array(sorted(images_below(options.folder))), multiprocessing.get_context("spawn")
    stored: list[dict[str, Any]] = []
    growth: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as temporary:
        weights = str(options.weights or Path(temporary) / "random.safetensors")
        if options.weights is None:
            from torchvision.models import get_model

            save_file(get_model(options.model).state_dict(), weights)
        for processes in options.processes:
            with spawn.Pool(processes) as pool:

                def alone(pool: Any = pool, processes: int = processes) -> dict[str, float]:
                    given = (options.model, weights, options.seconds, max(1, options.threads // processes))
                    parts = pool.starmap(bare, [given] * processes, chunksize=1)
                    joined: dict[str, Callable[[list[float]], float]] = {"second": sum, "cpu_second": mean}
                    return {
                        name: joined[name.partition("_per_")[2]]([part[name] for part in parts]) for name in parts[0]
                    }

                rows: list[dict[str, Any]] = []
                speeds = [alone()]
                for number in options.images:
                    chosen = np.random.default_rng(0).permutation(len(every))[:number]
                    folder = Path(temporary) / f"{processes}-{number}"
                    folder.mkdir()
                    found = indexed(sorted(every[chosen]), options, weights, processes, folder)
                    speeds.append(alone())
                    rows.append(_row(found, processes, speeds[-2:], rows[-1] if rows else None))
                    alike = Path(temporary) / f"{options.processes[0]}-{number}"
                    if alike != folder:
                        rows[-1] |= compared(str(alike / "gallery"), str(folder / "gallery"))
                    print(_said(rows[-1]), flush=True)
            names = {"added": "images", "images_per_second": "speed", "peak_mb": "memory"}
            growth[str(processes)] = {said: rows[-1][name] / rows[0][name] for name, said in names.items()}
            print(", ".join(f"{said} x {value:.2f}" for said, value in growth[str(processes)].items()))
            stored += rows
    of = {"data": options.folder.name, "model": options.model, "threads": options.threads}
    of |= {"weights": options.weights and options.weights.name}
    figures = {"of": of, "machine": machine(), "rows": stored, "growth": growth}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(figures, indent=1).encode() + b"\n")


def _row(
    found: dict[str, Any], processes: int, speeds: list[dict[str, float]], before: dict[str, Any] | None
) -> dict[str, Any]:
    """The figures of one number of images."""
    names = ("added", "seconds", "images_per_second", "peak_mb", "cpu_seconds")
    row = {"processes": processes} | {name: found[name] for name in names}
    row |= {name: mean(each[name] for each in speeds) for name in speeds[0]}
    for ratio, network in (("ratio", "network"), ("kept_ratio", "kept")):
        row[ratio] = row["images_per_second"] / row[f"{network}_per_second"]
    if before is not None:
        more, cpu = (row[name] - before[name] for name in ("added", "cpu_seconds"))
        row |= {"cpu_ratio": more / cpu / row["network_per_cpu_second"], "cpu_ms": 1000 * cpu / more}
        row["kept_cpu_ratio"] = more / cpu / row["kept_per_cpu_second"]
    return row


def _said(row: dict[str, Any]) -> str:
    said = (
        f"processes: {row['processes']}; {row['added']:,} images: {row['images_per_second']:.1f} a second,"
        f" {row['ratio']:.2f} of the network alone ({row['network_per_second']:.1f}), {row['kept_ratio']:.2f} of one"
        f" that keeps its memory ({row['kept_per_second']:.1f}), by processor time {row.get('cpu_ratio', nan):.2f} and"
        f" {row.get('kept_cpu_ratio', nan):.2f}; {row['peak_mb']:.0f} MB"
    )
    if "same_items" in row:
        said += f"; same items: {row['same_items']}, vectors apart {row['vectors_apart']:.1e}"
    return said


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
