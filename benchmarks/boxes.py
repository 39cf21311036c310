"""What boxes are for: R@1 on scenes in which the image that counts is one of several, with its box and without.

    python -m benchmarks.boxes [--classes 40] [--model RUN]

A scene is a canvas with a character of the embedded set and three others of it around, each at a place of its own; the
table says where the first is. Both galleries are made of the same scenes by the same network, one from a table with
boxes. Without a run the network is a small one as it is initialised: the difference is that of the boxes.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image

from tammes.data.glyphs import glyphs
from tammes.gallery.gallery import Gallery
from tammes.models.embedder import Embedder, EmbedderConfig, load


@dataclass(frozen=True)
class Options:
    """Compare scenes with and without boxes."""

    classes: int = 40
    """How many of the characters."""
    model: str | None = None
    """A run that was trained on characters; None: a network as it is initialised."""


def main(options: Options) -> dict[str, float]:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("conv4", 64)) if options.model is None else load(options.model)
    found = {}
    with TemporaryDirectory() as folder:
        for name, table in scenes(Path(folder), options.classes).items():
            gallery = Gallery(f"{folder}/{name}", embedder)
            gallery.add(table)
            found[name] = recall_at_1(gallery)
            print(f"R@1 of {len(gallery)} scenes, {name}: {100 * found[name]:.1f} %")
    return found


def recall_at_1(gallery: Gallery) -> float:
    rows = [row for some in gallery.store.rows(4096) for row in some]
    own = [row.path for row in rows]
    hits = gallery.store.search(np.stack([row.vector for row in rows]), 1, exact=True, leave_out=own)
    return float(np.mean([each[0].label == row.label for each, row in zip(hits, rows, strict=True)]))


def scenes(folder: Path, classes: int) -> dict[str, Path]:
    """Scenes as images, and a table of them with boxes and one without."""
    data, rng = glyphs(), np.random.default_rng(0)
    chosen = np.flatnonzero(data.labels < classes)
    lines: list[list[Any]] = []
    for number in chosen.tolist():
        images = [data.read(each).convert("L") for each in (number, *rng.choice(chosen, 3))]
        side = max(max(image.size) for image in images)
        scene = Image.new("L", (2 * side, 2 * side), images[0].getpixel((0, 0)))
        corners = [(x, y) for x in (0, side) for y in (0, side)]
        places = [corners[place] for place in rng.permutation(4)]
        for image, place in zip(images, places, strict=True):
            scene.paste(image, place)
        scene.save(folder / f"{number}.png")
        lines.append([f"{number}.png", data.class_names[data.labels[number]], *places[0], *images[0].size])
    tables = {"with boxes": folder / "boxes.csv", "without boxes": folder / "whole.csv"}
    for table, width in zip(tables.values(), (6, 2), strict=True):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows(
                line[:width] for line in [["path", "label", "x", "y", "width", "height"], *lines]
            )
    return tables


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
