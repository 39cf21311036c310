"""How many images a second does `tammes index` embed, beside the bare network, and does its memory grow with them?

    python -m benchmarks.index $TAMMES_DATA/CUB_200_2011 --model googlenet --weights FILE [--images 600 6000]

Each number of images is indexed by the command itself in a process of its own, with an empty cache, into a new gallery
in a temporary folder. Before and after it the network alone is measured, in a process of its own with as many threads:
one batch of pixels in memory again and again. The speed of `index` is the one that it prints, from the first image to
the last that is stored; start-up and the calibration at the end are not in it. Memory is the peak of the process,
libraries included. Without --weights the network has random ones, which take as long.

On a busy machine seconds say little: `cpu_ratio` is the same ratio in seconds of the processors, of the images by which
each number of them exceeds the one before, so that start-up is not in it.
"""

import csv
import json
import multiprocessing
import os
import subprocess
import sys
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
from tammes.io.files import write_atomically
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
    """Of the bare network, before and after each."""
    threads: int = torch.get_num_threads()
    out: Path = Path("benchmarks/results/index.json")


def bare(model: str, weights: str, seconds: float, threads: int) -> tuple[float, float]:
    """Images a second of the network alone, and a second of the processors."""
    torch.set_num_threads(threads)
    embedder = load_model(model, weights=weights)
    batch = torch.randint(256, (embedder.at_once, len(embedder.mode), embedder.size, embedder.size), dtype=torch.uint8)
    with torch.inference_mode():
        embedder(batch)
        done, began, used = 0, perf_counter(), process_time()
        while (passed := perf_counter() - began) < seconds:
            embedder(batch)
            done += len(batch)
    return done / passed, done / (process_time() - used)


def indexed(files: list[Path], model: str, weights: str, threads: int, folder: Path) -> dict[str, Any]:
    """What the command says of itself, and the peak of its memory in MB."""
    with (folder / "images.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([("path", "label"), *((each, each.parent.name) for each in files)])
    command = [sys.executable, "-m", "tammes", "index", model, str(folder / "images.csv"), "--weights", weights]
    command += ["--gallery", str(folder / "gallery"), "--device", "cpu", "--json"]
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


def main(options: Options) -> None:
    every, spawn = np.array(sorted(images_below(options.folder))), multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as temporary:
        weights = str(options.weights or Path(temporary) / "random.safetensors")
        if options.weights is None:
            from torchvision.models import get_model

            save_file(get_model(options.model).state_dict(), weights)
        with spawn.Pool(1, maxtasksperchild=1) as pool:

            def alone() -> tuple[float, float]:
                return pool.apply(bare, (options.model, weights, options.seconds, options.threads))

            speeds = [alone()]
            for number in options.images:
                chosen = np.random.default_rng(0).permutation(len(every))[:number]
                folder = Path(temporary) / f"{number}"
                folder.mkdir()
                found = indexed(sorted(every[chosen]), options.model, weights, options.threads, folder)
                speeds.append(alone())
                network, of_cpu = map(mean, zip(*speeds[-2:], strict=True))
                row = {
                    name: found[name] for name in ("added", "seconds", "images_per_second", "peak_mb", "cpu_seconds")
                }
                row |= {"network_per_second": network, "ratio": found["images_per_second"] / network}
                if rows:
                    more, cpu = (row[name] - rows[-1][name] for name in ("added", "cpu_seconds"))
                    row["cpu_ratio"] = more / cpu / of_cpu
                rows.append(row)
                print(
                    f"{row['added']:>8,} images: {row['images_per_second']:.1f} a second, {row['ratio']:.2f} of the"
                    f" network alone ({network:.1f}), by processor time {row.get('cpu_ratio', nan):.2f};"
                    f" {row['peak_mb']:.0f} MB"
                )
    names = {"added": "images", "images_per_second": "speed", "peak_mb": "memory"}
    growth = {said: rows[-1][name] / rows[0][name] for name, said in names.items()}
    print(", ".join(f"{said} x {value:.2f}" for said, value in growth.items()))
    of = {"data": options.folder.name, "model": options.model, "threads": options.threads}
    of |= {"weights": options.weights and options.weights.name}
    stored = {"of": of, "machine": machine(), "rows": rows, "growth": growth}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(stored, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
