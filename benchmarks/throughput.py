"""How fast does every layer train on this machine, and how far is that from its limit?

    python -m benchmarks.throughput [--networks googlenet resnet50 vgg16] [--folder FOLDER] [--json FILE]

Of each network, in turns, all on the same cores with the same batch: a plain PyTorch loop (float32, channels first, the
batch in one go, tensors in memory, torch's own modules); what each change does alone; and `fit` as `tammes train` calls
it, on decoded images, with crops and all. The limit is the network's convolutions and products at the processor's peak
in bfloat16, the fastest product that is found here. Targets on a processor with bfloat16 instructions: at least 2.5
times the plain loop, and half of the limit.

On a busy machine --busy counts the processor's seconds, on one thread. About 10 minutes on two cores.

The pipeline reads the images of a folder (one sub-folder per class; without one, photographs-to-be of noise in JPEG),
scales the shorter side to 256, crops 224 at random, mirrors half and makes batches of 32. Ours decodes into its cache
in the first epoch and crops from there in the later ones; theirs decodes in every epoch, in two processes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Literal

import numpy as np
import torch
import tyro
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.timing import machine, save
from tammes import DiscriminativeLoss
from tammes.data import Dataset, open_dataset
from tammes.data.batches import batches
from tammes.data.image_cache import Decoded, decode
from tammes.io.machine import kept_memory
from tammes.models.backbones.response_norm import ALPHA, BETA, SIZE, ResponseNorm
from tammes.models.embedder import Embedder, EmbedderConfig
from tammes.training.build import at_once
from tammes.training.config import resolve
from tammes.training.loop import fit, halved_every
from tammes.training.objectives import Objective

CLASSES = 100
FORMS = ("plain", "channels last", "pieces", "bf16", "kept memory", "compiled", "tammes", "two processes")
KEEP = ("kept memory", "compiled", "tammes")  # forms that keep the memory of a step for the next


@dataclass(frozen=True)
class Options:
    """Time training in several forms, in turns."""

    turns: int = 3
    """Of each form that are timed, after one to warm up."""
    batch_size: int = 32
    threads: int = os.cpu_count() or 1
    """Of torch."""
    busy: bool = False
    """Count the processor's seconds, on one thread."""
    folder: Path | None = None
    """Images for the pipeline, one sub-folder per class."""
    images: int = 1200
    """How many of them."""
    only: Literal["networks", "pipeline"] | None = None
    """Time one half only."""
    networks: tuple[str, ...] = ("googlenet", "resnet50", "vgg16")
    """Which of our networks."""
    forms: tuple[str, ...] = FORMS
    """Which forms of each."""
    compiled: tuple[str, ...] = ()
    """Networks that are compiled too, which takes minutes each."""
    json: Path | None = None
    """Write the figures here too; those of other networks that are there stay."""


def noise(side: int, channels: int, images: int) -> Dataset:
    rng = np.random.default_rng(0)
    shape = (side, side) if channels == 1 else (side, side, 3)
    pictures = rng.integers(0, 256, (images, *shape), dtype=np.uint8)
    return Dataset(
        "noise",
        tuple(map(str, range(images))),
        np.arange(images, dtype=np.int64) % 10,
        tuple("abcdefghij"),
        lambda number: Image.fromarray(pictures[number]),
        f"noise-{side}-{channels}-{images}",
    )


class Plain(nn.Module):
    """What a plain loop trains: the same layers and loss, with torch's own response normalisation, channels first."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.embedder, self.loss = objective.embedder, objective.loss
        self.embedder.backbone.to(memory_format=torch.contiguous_format)
        for parent in list(self.modules()):
            for name, part in list(parent.named_children()):
                if isinstance(part, ResponseNorm):
                    setattr(parent, name, nn.LocalResponseNorm(SIZE, ALPHA, BETA, 1.0))

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scaled = (images.float() - self.embedder.mean) / self.embedder.std
        return {"loss": self.loss(self.embedder.outputs(self.embedder.backbone(scaled)), labels)}


def new_objective(name: str) -> Objective:
    torch.manual_seed(0)
    return Objective(Embedder(EmbedderConfig(name, 256, CLASSES)), DiscriminativeLoss(CLASSES)).train()


def loop(objective: nn.Module, images: Tensor, labels: Tensor, *, piece: int, half: bool) -> Callable[[], object]:
    """A step of a loop over tensors that are in memory."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        for some, theirs in zip(images.split(piece), labels.split(piece), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = objective(some, theirs)["loss"]
            (loss * (len(theirs) / len(labels))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def fitted(name: str, batch_size: int, epochs: int) -> Iterator[Callable[[], object]]:
    """An epoch of one batch of `fit`, as `tammes train` calls it."""
    config = resolve("noise", {"backbone": name, "weights": "none", "train": "all", "device": "cpu"})
    objective = new_objective(name)
    embedder = objective.embedder
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3, momentum=0.9, fused=True)
    dataset = noise(embedder.shorter_side, 1 if embedder.mode == "L" else 3, batch_size)
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=config.precision)
    pieces = at_once(config, objective)
    prepared = accelerator.prepare(objective)
    with TemporaryDirectory() as folder:
        decoded = decode(dataset, mode=embedder.mode, shorter_side=embedder.shorter_side, cache=Path(folder))
        everything = partial(
            batches, decoded, np.arange(batch_size), dataset.labels, batch_size=batch_size, crop=embedder.size
        )
        trained = fit(
            prepared, lambda epoch: everything(train=True, epoch=epoch), optimizer, epochs=epochs,
            schedule=halved_every(5), accelerator=accelerator, at_once=pieces,
        )  # fmt: skip
        yield lambda: next(trained)


def peak(clock: Callable[[], float]) -> float:
    """Floating-point operations a second of the fastest product in bfloat16: of matrices, or a convolution."""
    left, right = (torch.randn(384 * torch.get_num_threads(), 384).bfloat16() for _ in range(2))
    maps = torch.randn(8, 512, 28, 28).bfloat16().contiguous(memory_format=torch.channels_last)
    kernels = torch.randn(512, 512, 3, 3).bfloat16().contiguous(memory_format=torch.channels_last)
    products: list[Callable[[], Tensor]] = [lambda: left @ right.T, lambda: torch.conv2d(maps, kernels, padding=1)]
    found = 0.0
    with torch.no_grad():
        for product in products:
            with FlopCounterMode(display=False) as counted:
                product()
            for _ in range(5):
                started = clock()
                product()
                found = max(found, counted.get_total_flops() / (clock() - started))
    return found


def network(name: str, options: Options) -> dict[str, Any]:
    """Images per second of a network in each form, beside the limit."""
    size = options.batch_size
    embedder = new_objective(name).embedder
    images = torch.randint(256, (size, len(embedder.mode), embedder.size, embedder.size), dtype=torch.uint8)
    labels = torch.arange(size) % CLASSES
    given = partial(loop, images=images, labels=labels)
    with FlopCounterMode(display=False) as counted:
        given(new_objective(name), piece=size, half=False)()
    clock = process_time if options.busy else perf_counter
    steps: dict[str, Callable[[], object]] = {}
    with fitted(name, size, 2 * options.turns + 1) as epoch:
        made: dict[str, Callable[[], Callable[[], object]]] = {
            "plain": lambda: given(Plain(new_objective(name)), piece=size, half=False),
            "channels last": lambda: given(new_objective(name), piece=size, half=False),
            "pieces": lambda: given(new_objective(name), piece=embedder.at_once, half=False),
            "bf16": lambda: given(new_objective(name), piece=size, half=True),
            "kept memory": lambda: given(new_objective(name), piece=size, half=True),
            "compiled": lambda: given(_compiled(new_objective(name)), piece=size, half=True),
            "tammes": lambda: epoch,
        }
        normalised = any(isinstance(part, nn.BatchNorm2d) for part in embedder.modules())
        left_out = {"pieces"} if normalised else set()  # batch normalisation sees whole batches
        left_out |= set() if name in options.compiled else {"compiled"}
        times: dict[str, list[float]] = {}
        peaks, first = [], {}
        for form in made:
            if form in options.forms and form not in left_out:
                steps[form], times[form] = made[form](), []
                started = clock()
                steps[form]()
                first[form] = clock() - started
        for _ in range(options.turns):
            peaks.append(peak(clock))
            for form, step in steps.items():
                with kept_memory() if form in KEEP else nullcontext():
                    if form in KEEP:
                        step()  # takes the memory that the step before it would have kept
                    started = clock()
                    step()
                    times[form].append(clock() - started)
    speeds = {form: size / median(each) for form, each in times.items()}
    row: dict[str, Any] = {"backbone": name, "batch_size": size, "threads": options.threads, "busy": options.busy}
    row |= {"gflop": counted.get_total_flops() / size / 1e9, "peak_gflops": max(peaks) / 1e9, "forms": speeds}
    row["spread"] = {form: [size / max(each), size / min(each)] for form, each in times.items()}
    row["limit"] = row["peak_gflops"] / row["gflop"]
    if "compiled" in first:
        row["compiling_seconds"] = first["compiled"]
    if "two processes" in options.forms and options.threads > 1 and not options.busy:
        speeds["two processes"] = _two_processes(name, options)
    if "tammes" in speeds:
        row |= {"images_per_second": speeds["tammes"], "share_of_limit": speeds["tammes"] / row["limit"]}
        if "plain" in speeds:
            row["ratio"] = speeds["tammes"] / speeds["plain"]
    return row


def _compiled(objective: Objective) -> Objective:
    objective.embedder.backbone.compile()
    return objective


def _two_processes(name: str, options: Options) -> float:
    """Images per second of two processes of one thread each, on half a batch; what they would exchange is not in it."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(2)]
        words = [sys.executable, "-m", "benchmarks.throughput", "--only", "networks", "--networks", name, "--forms"]
        words += [
            "tammes",
            "--threads",
            "1",
            "--turns",
            str(options.turns),
            "--batch-size",
            str(options.batch_size // 2),
        ]
        started = [
            subprocess.Popen([*words, "--json", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for file in files
        ]
        ended = [each.wait() for each in started]
        if any(ended):
            raise SystemExit(f"one of two processes failed: {' '.join(words)}")
        return float(sum(json.loads(file.read_text())["rows"][0]["images_per_second"] for file in files))


def photographs(root: Path, images: int) -> Path:
    """A folder of JPEG files as cameras make them: 500 x 375, smooth with some detail."""
    rng = np.random.default_rng(0)
    for number in range(images):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375))
        detail = rng.normal(0, 12, (375, 500, 1))
        (root / f"{number % 10}").mkdir(exist_ok=True)
        pixels = (np.asarray(coarse) + detail).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{number % 10}" / f"{number}.jpg", quality=90)
    return root


def pipelines(root: Path, images: int) -> dict[str, float]:
    """Images per second of our first epoch, of our later ones, and of torchvision's."""
    dataset = open_dataset(str(root))
    chosen = np.linspace(0, len(dataset) - 1, min(images, len(dataset))).astype(np.int64)
    keys = [dataset.keys[index] for index in chosen]
    some = replace(
        dataset, keys=tuple(keys), labels=dataset.labels[chosen], read=lambda index: dataset.read(int(chosen[index])),
        fingerprint=dataset.fingerprint + str(images), files=None,
    )  # fmt: skip
    everything, found = np.arange(len(some)), {}

    def epoch(decoded: Decoded, number: int) -> None:
        for _ in batches(decoded, everything, some.labels, batch_size=32, crop=224, train=True, epoch=number):
            pass

    with TemporaryDirectory() as folder:
        started = perf_counter()
        decoded = decode(some, mode="RGB", shorter_side=256, cache=Path(folder))
        epoch(decoded, 0)
        found["ours, first epoch"] = len(some) / (perf_counter() - started)
        started = perf_counter()
        for number in (1, 2, 3):
            epoch(decoded, number)
        found["ours, later epochs"] = 3 * len(some) / (perf_counter() - started)
    files = [str(file) for file in np.array(dataset.files)[chosen]] if dataset.files is not None else []
    wanted = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    theirs = ImageFolder(str(Path(files[0]).parents[1]), transform=wanted, is_valid_file=set(files).__contains__)
    assert len(theirs) == len(some), "the same images"
    started = perf_counter()
    for _ in DataLoader(theirs, batch_size=32, shuffle=True, num_workers=2):
        pass
    found["ImageFolder and DataLoader, two workers"] = len(some) / (perf_counter() - started)
    return found


def main(options: Options) -> None:
    if options.busy:
        options = replace(options, threads=1)
    torch.set_num_threads(options.threads)
    stored = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else {}
    stored["machine"] = machine()
    if options.only != "pipeline":
        stored["rows"] = [row for row in stored.get("rows", []) if "forms" in row]
        for name in options.networks:
            row = network(name, options) | {"commit": stored["machine"]["commit"]}
            for form, speed in row["forms"].items():
                print(f"{name:<10} {form:<14} {speed:8.1f} images/s, {speed / row['limit']:.2f} of the limit")
            if "ratio" in row:
                print(f"{name:<10} {row['ratio']:.2f} times the plain loop, {row['share_of_limit']:.2f} of the limit")
            stored["rows"] = [other for other in stored["rows"] if other["backbone"] != name] + [row]
            save(stored, options.json)
    if options.only != "networks":
        with TemporaryDirectory() as folder:
            stored["pipeline"] = pipelines(options.folder or photographs(Path(folder), options.images), options.images)
        for name, speed in stored["pipeline"].items():
            print(f"{name:<40} {speed:.0f} images/s")
    save(stored, options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
