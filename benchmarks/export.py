"""Images per second of a trained model in each form that `tammes export` writes, beside PyTorch; what 8 bits cost.

    python -m benchmarks.export RUN [--threads 1] [--json benchmarks/results/export.json]

Each form is made once by the command, which compares its vectors with PyTorch's and measures R@1 of 8 bits on the test
classes; which operators are in 8 bits is chosen on training images. Then all forms take turns on the same batch, and
the median counts. Then `make results` shows them in docs/performance.md.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from benchmarks.timing import machine, medians, save
from tammes.export import Runner, of_torch
from tammes.export.formats import of_onnx, of_program, of_safetensors
from tammes.models.embedder import Embedder, load

PYTORCH = "PyTorch"
# What the table calls a form, how it is asked for, the ending of its file.
FORMS = (
    ("ONNX, onnxruntime", ("--format", "onnx"), ".onnx"),
    ("ONNX in 8 bits, onnxruntime", ("--format", "onnx", "--int8"), ".onnx"),
    ("torch.export", ("--format", "torch-export"), ".pt2"),
    ("safetensors, PyTorch", ("--format", "safetensors"), ".safetensors"),
)


@dataclass(frozen=True)
class Options:
    """Time the forms of a trained model."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder, with test classes."""
    threads: int = 1
    batch: int = 16
    rounds: int = 20
    json: Path = Path("benchmarks/results/export.json")
    """Where the figures go."""


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    embedder = load(options.run)
    shape = (options.batch, len(embedder.mode), embedder.size, embedder.size)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with TemporaryDirectory() as folder:
        records: dict[str, dict[str, Any]] = {PYTORCH: {}}
        runners = {PYTORCH: of_torch(embedder)}
        for number, (name, words, ending) in enumerate(FORMS):
            file = Path(folder) / f"{number}{ending}"
            records[name] = exported(options.run, words, file)
            runners[name] = _runner(file, embedder, options.threads)
    seconds = medians({name: partial(runs, images) for name, runs in runners.items()}, options.rounds)
    rows = [_row(name, records[name], options.batch / seconds[name]) for name in runners]
    of = {"backbone": embedder.config.backbone, "size": embedder.size, "batch": options.batch}
    for row in rows:
        print(f"{row['form']:<28} {row['images_per_second']:8.1f} images/s")
    save({"of": of, "rows": rows, "machine": machine()}, options.json)


def exported(run: Path, words: tuple[str, ...], file: Path) -> dict[str, Any]:
    """What `tammes export` says of the file that it has written."""
    command = [sys.executable, "-m", "tammes", "export", str(run), *words, "--out", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _runner(file: Path, embedder: Embedder, threads: int) -> Runner:
    content = file.read_bytes()
    if file.suffix == ".onnx":
        return of_onnx(content, threads=threads)
    return of_program(content) if file.suffix == ".pt2" else of_safetensors(content, embedder)


def _row(name: str, record: dict[str, Any], speed: float) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key in ("bytes", "max_difference", "int8")}
    return {"form": name, "images_per_second": speed, **kept}


if __name__ == "__main__":
    main(tyro.cli(Options))
