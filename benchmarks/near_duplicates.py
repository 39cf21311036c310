"""How well copies of photos are told from other photos by the perceptual hash: precision and recall, edit by edit.

    TAMMES_DATA=DATASETS python -m benchmarks.near_duplicates [--photos 1500]

Photos of CUB-200-2011, drawn at random, are edited in known ways. Recall is the share of the copies that are found to
be like their originals. Precision is the share of true pairs among all that are found, where every photo and its copy
are compared with all others; a found pair of two different photos counts as wrong, though CUB has some true copies.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import tyro
from numpy import ndarray
from PIL import Image, ImageEnhance, ImageOps

from benchmarks.timing import machine
from tammes.data import open_dataset
from tammes.data.images import in_mode, open_small, small
from tammes.data.perceptual_hash import ALIKE, alike_pairs, hashes
from tammes.errors import UserError
from tammes.gallery.items import THUMBNAIL
from tammes.io.environment import data_folder
from tammes.io.files import write_atomically


def _cropped(share: float, left: float = 0.5, top: float = 0.5) -> Callable[[Image.Image], Image.Image]:
    def crop(image: Image.Image) -> Image.Image:
        width, height = round(share * image.width), round(share * image.height)
        x, y = round(left * (image.width - width)), round(top * (image.height - height))
        return image.crop((x, y, x + width, y + height))

    return crop


def _saved(image: Image.Image) -> Image.Image:
    content = BytesIO()
    image.save(content, "JPEG", quality=50)
    return Image.open(content)


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half size": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
    "mirrored": ImageOps.mirror,
    "cropped to 90 %, centre": _cropped(0.9),
    "cropped to 95 %, a corner": _cropped(0.95, 0, 1),
    "cropped to 92 %, off centre": _cropped(0.92, 0.3, 0.8),
    "JPEG quality 50": _saved,
    "30 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "30 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "half size, mirrored": lambda image: ImageOps.mirror(image).resize((image.width // 2, image.height // 2)),
    "cropped to 75 %, centre": _cropped(0.75),
}


@dataclass(frozen=True)
class Options:
    """Measure how well copies are found."""

    photos: int = 1500
    """Photos, drawn at random."""
    seed: int = 0
    """Of the draw."""
    out: Path = Path("benchmarks/results/near_duplicates.json")


def main(options: Options) -> None:
    root = data_folder()
    if root is None:
        raise UserError("where are the data sets? Set TAMMES_DATA to a folder with CUB_200_2011.")
    dataset = open_dataset(str(root / "CUB_200_2011"))
    chosen = np.random.default_rng(options.seed).permutation(len(dataset))[: options.photos].tolist()
    names, photos = list(EDITS), []
    copies: dict[str, list[ndarray]] = {name: [] for name in EDITS}
    for number in chosen:
        image = in_mode(dataset.read(number), "RGB")
        photos.append(_hashes(image))
        for name in names:
            copies[name].append(_hashes(EDITS[name](image)))
    originals, count = np.stack(photos), len(photos)
    rows = []
    for name in names:
        pairs = set(alike_pairs(np.concatenate([originals, np.stack(copies[name])])))
        right = sum((number, count + number) in pairs for number in range(count))
        rows.append({"edit": name, "recall": right / count, "precision": right / max(1, len(pairs)),
                     "wrong": len(pairs) - right, "compared": count * (2 * count - 1)})  # fmt: skip
        print(f"{name:28} recall {rows[-1]['recall']:.4f}  precision {rows[-1]['precision']:.4f}  {rows[-1]['wrong']}")
    others = sorted(pair for pair in set(alike_pairs(originals)))
    alike = [(dataset.keys[chosen[one]], dataset.keys[chosen[other]]) for one, other in others]
    found = {"machine": machine(), "photos": count, "alike": ALIKE, "rows": rows, "photos_alike": alike}
    write_atomically(options.out, json.dumps(found, indent=1).encode() + b"\n")


def _hashes(image: Image.Image) -> ndarray:
    """By the thumbnail, as `tammes duplicates` has it."""
    shown = open_small(small(image, THUMBNAIL), THUMBNAIL)
    assert shown is not None
    return hashes(shown)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
