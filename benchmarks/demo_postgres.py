"""A gallery in PostgreSQL from nothing: start a server, index the embedded characters, search and filter, end with R@1.

    python -m benchmarks.demo_postgres [--classes 60]

The characters are written as images with a table beside them, whose columns are script, font and drawing (each was
drawn several times). Their vectors are those of a small network as it is initialised: what is shown is the store, which
must find what NumPy finds.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import tyro

from benchmarks.postgres_server import server
from tammes.data.glyphs import glyphs
from tammes.gallery.gallery import Gallery
from tammes.models.embedder import Embedder, EmbedderConfig


@dataclass(frozen=True)
class Options:
    """Index the embedded characters into PostgreSQL."""

    classes: int = 60
    """How many of the characters."""


def main(options: Options) -> None:
    torch.manual_seed(0)
    embedder = Embedder(EmbedderConfig("conv4", 64))
    with TemporaryDirectory() as folder, server() as running:
        table = written(Path(folder), options.classes)
        uri = running.address("characters")
        print(f"A PostgreSQL server of its own was started; it is gone when this ends. The gallery: {uri}\n")
        gallery = Gallery(uri, embedder)
        done = gallery.add(table)
        print(
            f"{done['added']:,} images of {options.classes} characters added, {done['images_per_second']:.0f} images/s"
        )
        print("(by an untrained network: this shows the store, not how well a trained one finds)\n")
        rows = [row for some in gallery.store.rows(4096) for row in some]
        query = min(rows, key=lambda row: int(Path(row.path).stem))
        where = f"script = '{query.fields['script']}' and drawing >= 2"
        print(f"Nearest to {Path(query.path).name}, {query.label}, where {where}:")
        print(f"{'distance':>8}  {'drawing':>7}  label")
        for hit in gallery.search(item=query.path, k=5, where=where):
            drawing = gallery.store.get([hit.path])[0].fields["drawing"]
            print(f"{hit.distance:>8.4f}  {drawing:>7.0f}  {hit.label}")
        vectors, labels = np.stack([row.vector for row in rows]), np.array([row.label for row in rows])
        found = gallery.store.search(vectors, 1, leave_out=[row.path for row in rows])
        in_postgres = np.mean([hits[0].label == label for hits, label in zip(found, labels, strict=True)])
        in_numpy = np.mean(labels[np.argmax(vectors @ vectors.T - 2 * np.eye(len(rows)), axis=1)] == labels)
        print(
            f"\nR@1 of {len(rows):,} images: {100 * in_postgres:.1f} % by PostgreSQL, {100 * in_numpy:.1f} % by NumPy"
        )
        print("With a server of yours: tammes index resnet50 photos/ --gallery postgresql://user@host/database/photos")


def written(folder: Path, classes: int) -> Path:
    """The characters as images, and a table of them."""
    data, table = glyphs(), folder / "characters.csv"
    drawn: dict[int, int] = {}
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", "script", "font", "drawing"])
        for number, (key, label) in enumerate(zip(data.keys, data.labels.tolist(), strict=True)):
            if label >= classes:
                continue
            drawn[label] = drawn.get(label, 0) + 1
            data.read(number).save(folder / f"{number}.png")
            script = data.class_names[label].split()[2]  # after the code and the character, its name in Unicode
            lines.writerow([f"{number}.png", data.class_names[label], script, key.split("/")[1], drawn[label]])
    return table


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
