"""Whether two runs came to the same."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def same_end(run: Path, whole: Path) -> bool:
    """Whether both ended with the very same weights, to the last bit."""
    return not differing(*(folder / "last" / "embedder.safetensors" for folder in (run, whole)))


def differing(one: Path, other: Path) -> list[str]:
    """The names of the tensors that two files do not both have with the very same bits."""
    ours, theirs = load_file(one), load_file(other)

    def same(name: str) -> bool:
        found = [each[name] for each in (ours, theirs) if name in each]
        if len(found) < 2 or found[0].shape != found[1].shape or found[0].dtype != found[1].dtype:
            return False
        first, second = (each.contiguous().view(-1).view(torch.uint8) for each in found)
        return torch.equal(first, second)

    return [name for name in sorted(ours.keys() | theirs.keys()) if not same(name)]
