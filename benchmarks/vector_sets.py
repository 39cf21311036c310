"""Sets of vectors with their classes, for what learns from vectors."""

from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from tammes.data import Dataset, omniglot, open_dataset
from tammes.training.build import build_backbone, build_embedder, freeze
from tammes.training.config import resolve
from tammes.training.data import keep_activations, load_data
from tammes.training.options import TrainOptions

Set = tuple[ndarray, ndarray, ndarray, ndarray]  # vectors and labels to learn from, and those of other classes


def cub(folder: Path, weights: str) -> Set:
    """GoogLeNet's features (pool5, 1,024 numbers) of CUB-200-2011; computed once, then from the cache."""
    options: TrainOptions = {
        "backbone": "googlenet",
        "weights": weights,
        "device": "cpu",
        "train": "head",
        "pool": "published",
        "val_classes": "0",
    }
    config = resolve(str(folder), options)
    backbone = build_backbone(config)
    data, embedder = load_data(config, backbone), build_embedder(config, backbone, 2)
    kept = keep_activations(config, data, freeze(config, embedder))
    assert kept is not None, "head keeps features"
    labels, (train, test) = data.dataset.labels, kept.centres
    vectors = [part.inputs(part.indices).numpy() for part in (train, test)]
    return _of(vectors[0], labels[train.indices], vectors[1], labels[test.indices])


def omniglot_pixels(folder: Path) -> Set:
    """28 x 28 pixels of each drawing; the small background sets train, the evaluation set tests."""
    return _pixels(omniglot(folder))


def glyph_pixels() -> Set:
    """28 x 28 pixels of the embedded data set."""
    return _pixels(open_dataset("glyphs"))


def digits() -> Set:
    """scikit-learn's 8 x 8 digits: 0 to 4 train, 5 to 9 test."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return parted(pixels, labels, labels < 5)


def noisy_digits() -> Set:
    """The same with 64 columns of noise behind the 64 pixels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    noise = np.random.default_rng(0).normal(scale=8, size=pixels.shape)
    return parted(np.hstack([pixels, noise]), labels, labels < 5)


def made_up(count: int, classes: int, columns: int, test_classes: int = 500) -> Set:
    """Classes that differ in a quarter of the directions, in vectors that vary most in the others."""
    random = np.random.default_rng(0)
    labels = np.concatenate([np.arange(count) % classes, np.repeat(np.arange(classes, classes + test_classes), 20)])
    kept = columns // 4
    centres = random.normal(size=(classes + test_classes, kept)).astype(np.float32)
    turn = np.linalg.qr(random.normal(size=(columns, columns)))[0].astype(np.float32)
    spread = np.where(np.arange(columns) < kept, 0.8, 2.0).astype(np.float32)
    found = random.standard_normal((len(labels), columns), dtype=np.float32)
    for begin in range(0, len(labels), 1 << 16):
        part = slice(begin, begin + (1 << 16))
        found[part] *= spread
        found[part, :kept] += centres[labels[part]]
        found[part] = found[part] @ turn
    return parted(found, labels, labels < classes)


def parted(found: ndarray, labels: ndarray, train: ndarray) -> Set:
    """Those that train and the others, at unit scale."""
    # NCA and LMNN work only near unit scale; one factor for all columns changes nothing for the others.
    found /= found[: 1 << 16][train[: 1 << 16]].std()
    # A slice where the rows lie together: a mask would copy a million of them.
    if np.all(train[: train.sum()]):
        return found[: train.sum()], labels[: train.sum()], found[train.sum() :], labels[train.sum() :]
    return found[train], labels[train], found[~train], labels[~train]


def _of(train: ndarray, labels: ndarray, test: ndarray, test_labels: ndarray) -> Set:
    together = np.concatenate([train, test]).astype(np.float32)
    return parted(together, np.concatenate([labels, test_labels]), np.arange(len(together)) < len(train))


def _pixels(drawings: Dataset) -> Set:
    size = (28, 28)
    pixels = [
        np.asarray(drawings.read(n).convert("L").resize(size, Image.Resampling.BOX)) for n in range(len(drawings))
    ]
    ink = 255 - np.stack(pixels).reshape(len(pixels), -1).astype(np.float32)
    return parted(ink, drawings.labels, drawings.labels < (drawings.train_classes or 0))
