"""How long a training to the paper's letter may take, said before any long work, and what is cheaper."""

from dataclasses import replace
from time import perf_counter

import torch

from tammes.cli.networks import make_embedder
from tammes.cli.options import recipe, without_gpu
from tammes.cli.train import Train
from tammes.io.console import duration, say, working
from tammes.io.machine import multiplies_bfloat16
from tammes.training import distributed

FEW = 8  # images on which a step is timed


def say_expected(config: Train, images: int) -> None:
    """The time that preset paper takes with every layer trained; nothing for other trainings, which are short.

    Args:
        images: training images.
    """
    if config.preset != "paper" or config.train != "all":
        return
    epochs = recipe(config)["epochs"]
    with working("timing a step"):
        seconds = seconds_per_image(config) * images * epochs / distributed.number()
    cheaper = [] if config.weights == "none" else ["--train top (the upper layers only)"]
    cheaper += ["--epochs 5 --halve-every 1"] if epochs > 5 else []
    faster = not without_gpu(config.device) or multiplies_bfloat16()
    cheaper += ["--precision bf16"] if faster and config.precision == "no" else []
    instead = f" Cheaper: {' or '.join(cheaper)}." if cheaper else ""
    say(f"preset paper: {epochs} epochs of {images} images, about {duration(seconds)} on this machine.{instead}")


def seconds_per_image(config: Train) -> float:
    """Of a training step of the network on images of noise: neither data nor weights are needed."""
    device = "cpu" if without_gpu(config.device) else torch.accelerator.current_accelerator()
    embedder = make_embedder(replace(config, weights="none"), 2).to(device)
    images = torch.randint(256, (FEW, len(embedder.mode), embedder.size, embedder.size), dtype=torch.uint8).to(device)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(str(config.precision))
    times = []
    for _ in range(2):
        started = perf_counter()
        with torch.autocast(embedder.mean.device.type, dtype=half, enabled=half is not None):
            value = embedder.outputs(embedder.features(images)).float().square().mean()
        value.backward()
        value.item()  # a GPU has done it then
        times.append(perf_counter() - started)
    return min(times) / FEW
