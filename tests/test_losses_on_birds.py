"""Every loss with its own defaults on real features: none diverges, none forgets what the backbone knew."""

import json
import os
from pathlib import Path

import pytest

from tammes.cli import main
from tammes.training.objectives import METHODS


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "base"), [(name, base) for name, method in METHODS.items() for base in (method.bases or [None])]
)
def test_defaults_neither_diverge_nor_forget(
    name: str, base: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(os.environ.get("TAMMES_DATA", ""))
    file = place.parent / "weights" / "googlenet-bvlc-imagenet.fp16.safetensors"
    if "TAMMES_DATA" not in os.environ or not file.is_file() or not (place / "CUB_200_2011").is_dir():
        pytest.skip("needs the environment variable TAMMES_DATA: a folder that holds CUB_200_2011/, beside weights/")
    command = [
        "train",
        str(place / "CUB_200_2011"),
        "--backbone",
        "googlenet",
        "--weights",
        str(file),
        "--device",
        "cpu",
    ]
    built = [] if base is None else ["--base", base]
    main(
        [*command, *built, "--train", "head", "--epochs", "3", "--loss", name, "--out", str(tmp_path / "run"), "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert found["trained"]["recall_at_1"] > found["untrained"]["recall_at_1"] - 0.03
