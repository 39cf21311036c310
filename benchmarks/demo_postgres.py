"""A gallery in PostgreSQL from nothing: start a server, index the embedded characters, search and filter, end with R@1.

    python -m benchmarks.demo_postgres [--classes 60]

The characters are written as images with a table beside them, whose columns are script, font and drawing. Their vectors
are those of a small network as it is initialised: what is shown is the store.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
        gallery = Gallery(running.address("characters"), embedder)
        print(f"a gallery at {gallery.uri}")
        done = gallery.add(table)
        print(f"{done['added']} images added, {done['images_per_second']:.0f} images/s")
        first = next(iter(gallery.store.fingerprints()))
        script = str(gallery.store.get([first])[0].fields["script"])
        where = f"script = '{script}' and drawing >= 2"
        print(f"the nearest to {Path(first).name} where {where}:")
        print(gallery.search(item=first, k=5, where=where))
        rows = [row for some in gallery.store.rows(4096) for row in some]
        found = gallery.store.search(
            torch.tensor([row.vector.tolist() for row in rows]).numpy(), 1, leave_out=[row.path for row in rows]
        )
        right = sum(hits[0].label == row.label for hits, row in zip(found, rows, strict=True))
        print(f"R@1 of {len(rows)} images in PostgreSQL, exact: {100 * right / len(rows):.1f} %")


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
