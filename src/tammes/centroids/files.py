"""Save centroids to a file, and plot the histogram of their distances."""

from io import BytesIO
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from tammes.centroids.quality import Quality
from tammes.geometry import blocks_of_pairs
from tammes.io.files import write_atomically


def save_centroids(path: Path, points: Float[Tensor, "classes dim"]) -> None:
    """Write the centroids as one array (.npy), or under the name `centroids` (.safetensors)."""
    if path.suffix == ".npy":
        import numpy as np

        content = BytesIO()
        np.save(content, points.numpy())
        write_atomically(path, content.getvalue())
    else:
        from safetensors.torch import save

        write_atomically(path, save({"centroids": points.contiguous()}))


def plot_distances(path: Path, points: Float[Tensor, "classes dim"], found: Quality, title: str) -> None:
    """Plot the histogram of the pairwise distances, with the smallest one and its upper bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    low, high = min(found.min, found.upper_bound), max(found.max, found.upper_bound)
    margin = max(0.02, 0.05 * (high - low))
    low, high, bins = low - margin, high + margin, 100
    counts = sum((torch.histc(block.double(), bins, low, high) for block in blocks_of_pairs(points)), torch.zeros(bins))
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    edges = torch.linspace(low, high, bins + 1)
    axes.stairs((100 * counts / counts.sum()).numpy(), edges.numpy(), fill=True, color="tab:blue", alpha=0.8)
    axes.axvline(found.min, color="tab:orange", label=f"smallest distance {found.min:.4f}")
    axes.axvline(found.upper_bound, color="black", linestyle="--", label=f"upper bound on it {found.upper_bound:.4f}")
    axes.set(title=title, xlabel="distance between two centroids", ylabel="pairs [%]", xlim=(low, high))
    axes.legend()
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120)
    pyplot.close(figure)
    write_atomically(path, content.getvalue())
