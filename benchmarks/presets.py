"""Which options train best? Each variation of one base, on validation classes only, never on test classes.

    python -m benchmarks.presets --omniglot FOLDER [--epochs 4]

Every cell is one run: 20 % of the training classes are held out, and R@1 is measured on them after the last epoch.
Cells that are in the results file already are not run again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import tyro

from benchmarks.cells import trained
from benchmarks.timing import machine
from tammes.training.build import build_backbone
from tammes.training.config import resolve
from tammes.training.data import load_data
from tammes.training.evaluation import evaluate_images
from tammes.training.options import TrainOptions

VARIATIONS: dict[str, TrainOptions] = {
    "base": {},
    "rate 3e-3": {"lr": 3e-3, "backbone_lr": 3e-3},
    "rate 3e-4": {"lr": 3e-4, "backbone_lr": 3e-4},
    "sgd 0.1, cosine": {"optimizer": "sgd", "lr": 0.1, "backbone_lr": 0.1},
    "sgd 0.1 / 0.01, the paper's": {"optimizer": "sgd", "lr": 0.1, "backbone_lr": 0.01, "schedule": "halve"},
    "one-hot": {"centroids": "one-hot"},
    "kmeans": {"centroids": "kmeans"},
    "no class layer, placed": {"class_layer": False, "centroids": "place"},
    "hard, temperature 0.1": {"loss": "hard-discriminative"},
    "hard, temperature 0.3": {"loss": "hard-discriminative", "temperature": 0.3},
    "batch 32": {"batch_size": 32},
    "batch 128": {"batch_size": 128},
    "no shift": {"shift": 0},
    "shift 3": {"shift": 3},
    "dim 64": {"dim": 64},
}


@dataclass(frozen=True)
class Options:
    """Try variations of the base: the default preset with batches of 64."""

    omniglot: Path | None = None
    """Folder with Omniglot; without it only glyphs are tried."""
    epochs: int = 4
    seeds: tuple[int, ...] = (0,)
    out: Path = Path("benchmarks/results/presets.json")


def main(options: Options) -> None:
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    done = {(row["data"], row["variation"], row["seed"], row["epochs"]) for row in rows}
    for data_name in ["glyphs", *([] if options.omniglot is None else [str(options.omniglot)])]:
        for seed in options.seeds:
            base: TrainOptions = {
                "epochs": options.epochs,
                "val_classes": "0.2",
                "backbone": "conv4",
                "batch_size": 64,
                "seed": seed,
            }
            config = resolve(data_name, base)
            data = load_data(config, build_backbone(config))
            for name, changes in VARIATIONS.items():
                shown = Path(data_name).name
                if (shown, name, seed, options.epochs) in done:
                    continue
                torch.manual_seed(seed)
                started = perf_counter()
                embedder, _ = trained(resolve(data_name, {**base, **changes}), data)
                assert data.split.val is not None
                recall = evaluate_images(embedder, data, data.split.val, quick=True)["recall_at_1"]
                rows.append({"data": shown, "variation": name, "seed": seed, "epochs": options.epochs,
                             "val_recall_at_1": recall, "seconds": perf_counter() - started})  # fmt: skip
                print(
                    f"{shown:<10} {name:<30} seed {seed}  {100 * recall:.2f}  {rows[-1]['seconds']:.0f} s", flush=True
                )
                options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
