"""What a gallery says of images of classes that it does not have: are they unknown as often as was asked for?

    python -m benchmarks.open_set GALLERY

GALLERY was made by `tammes index` from images in one sub-folder per class. Of the classes that its model was not
trained on, half stay in the gallery and half are held out, as if nobody had ever seen them. `tammes.gallery.threshold`
is calibrated on the gallery alone; then images of held-out classes should be given a class at the asked rate, and
images of the others their own. Also: R@1 of the gallery's own search beside that of `tammes.evaluate` on the same
vectors.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.timing import machine
from tammes import evaluate
from tammes.gallery import Row, open_gallery
from tammes.gallery.classification import classify
from tammes.gallery.gallery import Gallery
from tammes.gallery.threshold import calibrated
from tammes.io.files import write_atomically


@dataclass(frozen=True)
class Options:
    """Measure how well unknown classes are told."""

    gallery: Annotated[str, tyro.conf.Positional]
    """The gallery."""
    rates: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    """Shares of images of unknown classes that may be given a class, beside the balanced threshold."""
    seed: int = 0
    """Of which classes are held out, and which images ask."""
    out: Path = Path("benchmarks/results/open_set.json")


def main(options: Options) -> None:
    opened = Gallery(options.gallery)
    rows = [row for batch in opened.store.rows(1000) for row in batch]
    trained_on = set(opened.trained_on)
    found: dict[str, Any] = {
        "machine": machine(),
        "images": len(rows),
        "recall": recall(options.gallery, rows),
        "rows": told(rows, trained_on, opened, options),
    }
    write_atomically(options.out, json.dumps(found, indent=1).encode() + b"\n")
    print(f"R@1 of the gallery's search {found['recall'][0]:.6f}, of evaluate {found['recall'][1]:.6f}")
    table = Table("asked for", "held-out classes given a class", "known classes rejected", "of which was said", "right")
    for row in found["rows"]:
        numbers = (row["accepted"], row["rejected"], row["threshold"]["rejected"], row["right"])
        asked = "balanced" if row["asked"] is None else f"{100 * row['asked']:g} %"
        table.add_row(asked, *(f"{100 * number:.1f} %" for number in numbers))
    Console().print(table)


def recall(gallery: str, rows: list[Row]) -> tuple[float, float]:
    """R@1 among all images, by the gallery and by `evaluate`."""
    store = open_gallery(gallery)
    vectors, labels = np.stack([row.vector for row in rows]), np.array([row.label for row in rows])
    hits = store.search(vectors, 1, leave_out=[row.path for row in rows], exact=True)
    by_gallery = np.mean([hit[0].label == label for hit, label in zip(hits, labels, strict=True)])
    return float(by_gallery), float(evaluate(vectors, labels, clustering=False, bootstrap=0)["recall_at_1"])


def told(rows: list[Row], trained_on: set[str], opened: Gallery, options: Options) -> list[dict[str, Any]]:
    """For each rate: how often images of held-out classes, and of the others, are taken for unknown."""
    unseen = sorted({row.label for row in rows} - trained_on)
    order = np.random.default_rng(options.seed).permutation(len(unseen))
    held_out = {unseen[number] for number in order[: len(unseen) // 2]}
    kept = [row for row in rows if row.label not in held_out]
    unknown = [row for row in rows if row.label in held_out]
    known = [row for row in kept if row.label not in trained_on]
    found = []
    with TemporaryDirectory() as folder:
        store = open_gallery(f"{folder}/gallery", create=opened.store.about)
        for start in range(0, len(kept), 1000):
            store.upsert(kept[start : start + 1000])
        for rate in (None, *options.rates):
            threshold = calibrated(store, trained_on, unknown_rate=rate, seed=options.seed)
            of_unknown = classify(store, np.stack([row.vector for row in unknown]), threshold)
            of_known = classify(
                store,
                np.stack([row.vector for row in known]),
                threshold,
                leave_out=[row.path for row in known],
            )
            found.append(
                {
                    "asked": rate,
                    "accepted": float(np.mean([each.accepted for each in of_unknown])),
                    "rejected": float(np.mean([not each.accepted for each in of_known])),
                    "right": float(
                        np.mean(
                            [
                                each.accepted and each.best_guess == row.label
                                for each, row in zip(of_known, known, strict=True)
                            ]
                        )
                    ),
                    "held_out_classes": len(held_out),
                    "unknown": len(unknown),
                    "known": len(known),
                    "threshold": asdict(threshold),
                }
            )
    return found


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
