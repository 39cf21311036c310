"""Damaged, hostile and odd images in a folder: no crash, no hang, bounded memory; right answers or named errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_architecture import ROOT

MOST_MB = 1000  # beyond what the libraries take


def fuzzed(root: Path, images: int, searches: int, seconds: float) -> dict[str, Any]:
    where = {"TAMMES_CACHE": str(root / "cache"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    for words in (["write", root / "set", images], ["run", root / "set", searches]):
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz_images", *map(str, words)],
            env=os.environ | where,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("images", "searches", "seconds"), [(60, 6, 3600), (10_000, 500, 24 * 3600)])
def test_no_image_brings_a_command_down(tmp_path: Path, images: int, searches: int, seconds: float) -> None:
    found = fuzzed(tmp_path, images, searches, seconds)
    print(json.dumps(found, indent=1))
    assert found["wrong"] == []
    assert found["codes"] == {"doctor": 1, "train": 0, "embed": 0, "index": 0}  # doctor has found problems
    assert found["finite"]
    assert max(found["mb"].values()) < MOST_MB
    assert images / 4 < found["embedded"] < images  # there was something to read, and something to refuse
    assert found["refused"] > searches / 5
    assert found["right"] > searches / 10
