"""Search with an exported model and nothing but NumPy and onnxruntime: no PyTorch, no Tammes.

    tammes export runs/photos --with-preprocessing --out photos.onnx
    python examples/search_onnx.py photos.onnx pictures.npz

`pictures.npz` holds pictures as arrays (height, width, channels) of bytes, of any sizes, under names of yours. For each
it prints the nearest other one and how far away that is, as in

    heron-1    heron-2    0.412
"""

import sys

import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as pictures:
    names = sorted(pictures)
    vectors = np.concatenate([model.run(None, {"picture": pictures[name]})[0] for name in names])

alike = vectors @ vectors.T  # of unit vectors: the larger, the nearer
np.fill_diagonal(alike, -np.inf)
for name, row in zip(names, alike, strict=True):
    nearest = int(row.argmax())
    print(f"{name:<10} {names[nearest]:<10} {np.sqrt(max(0.0, 2 - 2 * row[nearest])):.3f}")
