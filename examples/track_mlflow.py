"""Follow a training in MLflow, in a folder of files: `python examples/track_mlflow.py [FOLDER]`, then `mlflow ui`.

It prints about

    epoch 1  loss 0.4
    epoch 2  loss -0.1
"""

import os
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from sklearn.datasets import load_digits

import tammes

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions prefer a database
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/mlflow").absolute()
mlflow.set_tracking_uri((folder / "mlruns").as_uri())
digits = load_digits()
images = np.clip(digits.images * 16, 0, 255).astype(np.uint8)
data = [(image, str(digit)) for image, digit in zip(images[:600], digits.target[:600], strict=True)]


def log(_run: tammes.Run, epoch: dict[str, Any]) -> None:
    numbers = {name: value for name, value in epoch.items() if isinstance(value, int | float)}
    mlflow.log_metrics(numbers, step=epoch["epoch"])
    print(f"epoch {epoch['epoch']}  loss {epoch['loss']:.1f}")


with mlflow.start_run():
    mlflow.log_params({"backbone": "conv4", "epochs": 2})
    run = tammes.train(data, backbone="conv4", epochs=2, out=folder / "run", overwrite=True, on_epoch=log)
    mlflow.log_metric("test_recall_at_1", run.metrics["recall_at_1"])
