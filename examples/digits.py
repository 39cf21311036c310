"""What two of the examples share: the digits with as many columns of noise, and the search among those never seen."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import normalize

from tammes import evaluate

pixels, digits = load_digits(return_X_y=True)
noise = np.random.default_rng(0).normal(scale=8, size=pixels.shape)
vectors = torch.from_numpy(np.hstack([pixels, noise]).astype(np.float32) / 16)
seen = digits < 5
train_vectors, train_labels = vectors[seen], torch.from_numpy(digits[seen])


def show(name: str, embedder: torch.nn.Module) -> None:
    """Print R@1 and MAP@R of the digits 5 to 9."""
    found = normalize(embedder(vectors[~seen])).detach().numpy()
    result = evaluate(found, digits[~seen], clustering=False, bootstrap=0)
    recall, precision = result["recall_at_1"], result["mean_average_precision_at_r"]
    print(f"{name:<10} R@1 {100 * recall:5.1f}   MAP@R {100 * precision:5.1f}")
