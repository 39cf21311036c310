"""Commands typed in this process: how they end, what they print, and small images to type them on."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main

Captured = pytest.CaptureFixture[str]


def ended(capsys: Captured, *words: str) -> tuple[int, str]:
    """The exit code of a command, and what it says on stderr."""
    capsys.readouterr()
    code = 0
    try:
        main(words)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return code, said


def refused(capsys: Captured, *words: str) -> str:
    """What a command says on stderr that refuses what was typed."""
    code, said = ended(capsys, *words)
    assert code == 2, said
    return said


def printed(capsys: Captured, *words: str) -> str:
    """What a command prints."""
    capsys.readouterr()
    main(words)
    return capsys.readouterr().out


def answer(capsys: Captured, *words: str) -> Any:
    """The JSON that a command prints."""
    return json.loads(printed(capsys, *words, "--json"))


def small_set(root: Path, names: list[str] | list[bytes], images: int = 2) -> Path:
    """A folder of classes with these names, each of a few images of noise."""
    rng = np.random.default_rng(0)
    for name in names:
        place = os.path.join(os.fsencode(root), os.fsencode(name))  # noqa: PTH118 - a Path has no bytes
        os.makedirs(place)  # noqa: PTH103
        for number in range(images):
            Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(f"{os.fsdecode(place)}/{number}.png")
    return root


def striped_set(root: Path, classes: int, images: int, size: int = 28) -> Path:
    """A folder of classes of images: stripes of a class's own angle and width, in noise."""
    rng = np.random.default_rng(0)
    for number in range(classes):
        (root / f"class {number:0{len(str(classes - 1))}}").mkdir(parents=True)
        for image in range(images):
            file = root / f"class {number:0{len(str(classes - 1))}}" / f"{image}.png"
            stripes(number, rng, size).save(file)
    return root


def stripes(number: int, rng: np.random.Generator, size: int = 32) -> Image.Image:
    """An image of a class: stripes of its own angle and width, in noise."""
    y, x = np.mgrid[:size, :size]
    along = x * np.cos(number * 0.4) + y * np.sin(number * 0.4)
    wave = np.sin(along * (0.4 + 0.1 * number) + rng.uniform(0, 6))
    return Image.fromarray((128 + 80 * wave + rng.normal(0, 25, (size, size))).clip(0, 255).astype(np.uint8))
