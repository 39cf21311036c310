"""Several processes embed together: to the file of one, also where some of it was computed already."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tammes.cli import main
from tammes.io.machine import device
from tammes.models.embedder import Embedder, EmbedderConfig
from tests.several_processes import exit_code
from tests.test_distributed import ended, start

pytestmark = pytest.mark.xdist_group("processes")

SMALL = ("--batch-size", "5")  # ten batches of the 48 images, the last of 3


def by_several(commands: dict[str, list[str]], caches: dict[str, str], out: Path) -> None:
    """Run commands, and count the images that the network of this process sees in each."""
    from tammes.models import feature_cache

    whole = feature_cache.frozen_values
    for name, words in commands.items():
        seen: list[int] = []

        def counted(frozen: Any, pictures: Any, seen: list[int] = seen) -> Any:
            seen.append(len(pictures))
            return whole(frozen, pictures)

        os.environ["TAMMES_CACHE"] = caches[name]
        with patch.object(feature_cache, "frozen_values", counted):
            code = exit_code(*words)
        (out / f"{name} {os.environ['RANK']}.json").write_text(json.dumps([code, sum(seen)]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    Embedder(EmbedderConfig("conv4", 8)).eval().save(folder)
    return folder


def test_two_processes_write_the_file_of_one(
    model: Path, waves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [str(model), str(waves), *SMALL, "--out"]
    alone = tmp_path / "alone.npz"
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "alone"))
    main(["embed", *begun, str(alone)])
    monkeypatch.setenv("TAMMES_CACHE", str(tmp_path / "some"))
    some = tmp_path / "some images"
    some.mkdir()
    for number in range(3):  # whole batches of them: 15 images
        for file in sorted((waves / f"class {number}").iterdir())[: 6 if number < 2 else 3]:
            (some / f"{number} {file.name}").write_bytes(file.read_bytes())
    main(["embed", str(model), str(some), *SMALL, "--out", str(tmp_path / "some.npz")])
    commands = {
        "together": ["embed", *begun, str(tmp_path / "together.npz")],
        "again": ["embed", *begun, str(tmp_path / "together.npz")],
        "resumed": ["embed", *begun, str(tmp_path / "resumed.npz"), "--json"],
        "few": ["embed", str(model), str(some), "--out", str(tmp_path / "few.npz"), "--batch-size", "40", "--verify"],
        "nowhere": ["embed", str(model), str(tmp_path / "nowhere"), "--out", str(tmp_path / "none.npz")],
    }
    caches = {name: str(tmp_path / ("some" if name == "resumed" else "new")) for name in commands}
    assert ended(start(2, tmp_path, by_several, commands, caches, tmp_path), tmp_path) == [0, 0]
    ends = {name: [json.loads((tmp_path / f"{name} {rank}.json").read_text()) for rank in (0, 1)] for name in commands}
    assert ends["together"] == [[0, 25], [0, 23]]  # each has half of the batches
    assert ends["again"] == ends["nowhere"] == [[2, 0], [2, 0]]
    assert [code for code, _ in ends["resumed"]] == [0, 0]
    assert sum(seen for _, seen in ends["resumed"]) == 48 - 15
    assert ends["few"] == [[0, 0], [0, 0]]
    first, other = ((tmp_path / f"said {rank}").read_text() for rank in (0, 1))
    assert "48 vectors of 8 dimensions" in first
    assert "exists" in first
    assert all(line.startswith("---") for line in other.splitlines()), other
    expected = np.load(alone)
    for name in ("together", "resumed"):
        found = np.load(tmp_path / f"{name}.npz")
        assert found.files == expected.files
        for column in expected.files:
            np.testing.assert_array_equal(found[column], expected[column])
    assert len(np.load(tmp_path / "few.npz")["vectors"]) == 15


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert device() == torch.device("cuda", 1)
    assert device("cpu") == torch.device("cpu")
