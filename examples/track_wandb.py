"""Follow a training in Weights & Biases, offline: `python examples/track_wandb.py [FOLDER]`, then `wandb sync`.

It prints about

    epoch 1  loss 0.4
    epoch 2  loss -0.1
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from sklearn.datasets import load_digits

import tammes

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/wandb").absolute()
folder.mkdir(parents=True, exist_ok=True)
digits = load_digits()
images = np.clip(digits.images * 16, 0, 255).astype(np.uint8)
data = [(image, str(digit)) for image, digit in zip(images[:600], digits.target[:600], strict=True)]


def log(_run: tammes.Run, epoch: dict[str, Any]) -> None:
    wandb.log(epoch, step=epoch["epoch"])
    print(f"epoch {epoch['epoch']}  loss {epoch['loss']:.1f}")


settings = wandb.Settings(silent=True, console="off")
with wandb.init(project="digits", mode="offline", dir=folder, settings=settings) as tracked:
    run = tammes.train(data, backbone="conv4", epochs=2, out=folder / "run", overwrite=True, on_epoch=log)
    tracked.summary["test_recall_at_1"] = run.metrics["recall_at_1"]
