"""Whether two runs came to the same."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def same_end(run: Path, whole: Path) -> bool:
    """Whether both ended with the very same weights, to the last bit."""
    ours, theirs = (load_file(folder / "embedder.safetensors") for folder in (run, whole))
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in theirs)
