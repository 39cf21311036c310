"""benchmarks/training_time.py and time_to.py: what they print is what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import time_to, training_time
from benchmarks.page import time_to as time_to_section
from benchmarks.page import training_time as training_time_section
from benchmarks.training_time import Options, measured
from tammes.errors import UserError
from tammes.losses import METHODS

pytestmark = pytest.mark.slow  # of scripts in benchmarks/, not of the package


def test_every_loss_is_timed_and_ours_is_one() -> None:
    rows = measured(Options(images=96, classes=6, batch_size=24, dim=8, rounds=1))
    assert [row["loss"] for row in rows] == list(METHODS)
    for row in rows:
        assert row["seconds"] == pytest.approx(row["mining_seconds"] + row["batches_seconds"])
        assert (row["mining_seconds"] > 0) == (METHODS[row["loss"]].sees == "all images each epoch")
    assert rows[0]["ratio"] == 1


def test_some_losses_only_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "time.json"
    training_time.main(Options(images=48, classes=6, batch_size=24, dim=8, rounds=1, only=("lifted",), json=file))
    stored = json.loads(file.read_text())
    assert [row["loss"] for row in stored["rows"]] == ["discriminative", "lifted"]
    assert "lifted" in capsys.readouterr().out
    section = "\n".join(training_time_section(stored))
    assert "an epoch of 48 images of 6 classes" in section
    assert f"| `lifted` | 0 | {1000 * stored['rows'][1]['batches_seconds']:.0f} |" in section


def run(folder: Path, seconds: list[float], recalls: list[float | None]) -> None:
    """As much of a finished run as its curve needs."""
    folder.mkdir(parents=True)
    for name in ("config", "environment", "results"):
        (folder / f"{name}.json").write_text("{}")
    lines = [
        {"epoch": number, "seconds": took, **({} if recall is None else {"val_recall_at_1": recall})}
        for number, (took, recall) in enumerate(zip(seconds, recalls, strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    root = tmp_path / "runs" / "letters"
    for name in ("semi-hard-triplets", "quick-one", "slow-one"):
        (root / "default" / name).mkdir(parents=True)
    run(root / "default" / "semi-hard-triplets" / "seed-0", [10, 10, 10], [0.2, 0.5, 0.4])
    run(root / "default" / "semi-hard-triplets" / "seed-1", [20, 20, 20], [0.4, 0.7, 0.6])
    run(root / "default" / "quick-one" / "seed-0", [1, 2, 3], [0.3, 0.6, 0.8])
    run(root / "default" / "slow-one" / "seed-0", [1, 1, 1], [0.1, 0.2, 0.3])
    cells = [
        {"preset": "default", "method": name} for name in ("semi-hard triplets", "quick one", "slow one", "not run")
    ]
    (root / "results.json").write_text(json.dumps({"cells": cells}))
    return root


def test_seconds_until_a_method_is_as_good(benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "time_to.json"
    file.write_text(json.dumps({"other": {"goal": 0.1, "of": "x", "rows": []}}))
    time_to.main(time_to.Options(benchmark, json=file))
    stored: dict[str, Any] = json.loads(file.read_text())
    assert list(stored) == ["other", "letters"]
    found = stored["letters"]
    assert found["goal"] == pytest.approx(0.6), "the best mean over seeds of any epoch"
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["semi-hard triplets"]["seconds"] == 30
    assert rows["semi-hard triplets"]["seeds"] == 2
    assert (rows["quick one"]["seconds"], rows["quick one"]["epochs"]) == (3, 2)
    assert (rows["slow one"]["seconds"], rows["slow one"]["best"], rows["slow one"]["in_all"]) == (None, 0.3, 3)
    assert "not run" not in rows
    assert "never" in capsys.readouterr().out
    section = "\n".join(time_to_section({"letters": found}))
    assert "letters: seconds of training until R@1 is 60.00 on validation classes" in section
    assert "| slow one | never |  | 30.00 | 3 | 1 |" in section


def test_a_goal_that_nobody_has(benchmark: Path) -> None:
    with pytest.raises(
        UserError, match="^--goal 'proxies' has no finished run here. Methods: semi-hard triplets, quick"
    ):
        time_to.reached(time_to.Options(benchmark, goal="proxies"))


def test_epochs_that_were_not_looked_at(benchmark: Path) -> None:
    run(benchmark / "default" / "quick-one" / "seed-1", [1], [None])
    with pytest.raises(UserError, match=r"R@1 was not measured after each epoch. Put val-classes into \[train\]"):
        time_to.reached(time_to.Options(benchmark))
