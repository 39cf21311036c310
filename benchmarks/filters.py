"""What it does to R@1 that photographs are scaled by PyTorch for training and by Pillow for searches.

    python -m benchmarks.filters datasets/CUB_200_2011 --weights googlenet.safetensors [--json FILE]

GoogLeNet's features of the test birds, each scaled to a shorter side of 240 by both; then R@1 with either for all, and
with pictures scaled by Pillow searched among those scaled by PyTorch. The figures:
docs/decisions/0014-scaling-by-pytorch.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from numpy import ndarray
from rich.progress import track

from benchmarks.timing import save
from tammes.data import open_dataset
from tammes.data.image_cache import scaled
from tammes.data.images import centre, in_mode, resized_size
from tammes.data.splits import split
from tammes.geometry import normalise
from tammes.metrics import evaluate
from tammes.search.neighbours import search
from tammes.training.build import build_backbone, build_embedder
from tammes.training.config import resolve


@dataclass(frozen=True)
class Options:
    """Compare the two filters."""

    folder: Annotated[Path, tyro.conf.Positional]
    weights: str = "imagenet"
    side: int = 240
    """Shorter side to scale to; another than the pictures have."""
    batch: int = 32
    threads: int = 1
    json: Path | None = None


@torch.inference_mode()
def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    dataset = open_dataset(str(options.folder))
    config = resolve(str(options.folder), {"backbone": "googlenet", "weights": options.weights, "device": "cpu"})
    embedder = build_embedder(config, build_backbone(config), 2).eval()
    test = split(dataset).test
    vectors: dict[str, list[torch.Tensor]] = {"PyTorch": [], "Pillow": []}
    differ, values = 0, 0
    for begin in track(range(0, len(test), options.batch), "embedding"):
        both: dict[str, list[ndarray]] = {name: [] for name in vectors}
        for index in test[begin : begin + options.batch]:
            picture = in_mode(dataset.read(int(index)), embedder.mode)
            width, height = resized_size(picture.size, shorter_side=options.side)
            assert (width, height) != picture.size, "nothing to scale: choose another --side"
            both["PyTorch"].append(_middle(scaled(picture, width, height), embedder.size))
            both["Pillow"].append(centre(picture, embedder.mode, shorter_side=options.side, size=embedder.size))
        for name, pictures in both.items():
            found = embedder.of_backbone(embedder.features(torch.from_numpy(np.stack(pictures))))
            vectors[name].append(normalise(found))
        differ += int((np.stack(both["PyTorch"]) != np.stack(both["Pillow"])).sum())
        values += np.stack(both["Pillow"]).size
    labels = dataset.labels[test]
    ours, pillows = (torch.cat(each) for each in vectors.values())
    nearest = {
        "PyTorch": _nearest(ours, ours),
        "Pillow": _nearest(pillows, pillows),
        "Pillow among PyTorch": _nearest(pillows, ours),
    }
    result = {
        "images": len(test),
        "differing values": differ / values,
        "distance of the two vectors, mean": float((ours - pillows).norm(dim=1).mean()),
        **{f"R@1, {name}": float((labels[found] == labels).mean()) for name, found in nearest.items()},
        "interval, PyTorch": evaluate(ours, labels, clustering=False)["intervals"]["recall_at_1"],
        "same nearest image": float((nearest["PyTorch"] == nearest["Pillow"]).mean()),
    }
    for name, value in result.items():
        print(f"{name:<36} {value}")
    save(result, options.json)


def _middle(pixels: ndarray, size: int) -> ndarray:
    top, left = (pixels.shape[1] - size) // 2, (pixels.shape[2] - size) // 2
    return pixels[:, top : top + size, left : left + size]


def _nearest(queries: torch.Tensor, gallery: torch.Tensor) -> ndarray:
    """The nearest of the others; an image is not its own neighbour."""
    return search(queries, gallery, 1, itself=np.arange(len(queries))).ids[:, 0]


if __name__ == "__main__":
    main(tyro.cli(Options))
