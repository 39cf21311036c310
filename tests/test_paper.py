"""The paper's tables, here on stripes in seconds: in turn, resumed, estimated, and with a run begun elsewhere."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import paper
from benchmarks.paper import ORDER, Options, run, status, take
from benchmarks.stored import PLANS
from tammes.benchmark.plan import read_plan
from tammes.cli import main
from tammes.errors import UserError
from tests.test_cli_train import photos  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]  # of scripts in benchmarks/, not of the package

FIRST = """
title = "ours"
data = "photos"
presets = ["paper"]
seeds = [0]
[train]
backbone = "conv4"
train = "all"
dim = 8
epochs = 1
curve = [1, 2]
[[method]]
name = "ours"
"""


@pytest.fixture
def tiny(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:  # noqa: F811
    """Two plans in place of the paper's, the second of data that is not there."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "first.toml").write_text(FIRST)
    (tmp_path / "plans" / "second.toml").write_text(FIRST.replace('"photos"', '"cars196"'))
    monkeypatch.setattr(paper, "PLANS", tmp_path / "plans")
    monkeypatch.setattr(paper, "ORDER", ("first", "second"))
    monkeypatch.setattr(paper, "IMAGES", {"photos": (1000, 1000), "cars196": (3000, 3000)})
    monkeypatch.setattr("os.nice", lambda _: 0)
    (tmp_path / "photos").symlink_to(photos)
    monkeypatch.setenv("TAMMES_DATA", str(tmp_path))
    return Options(weights="none", out=tmp_path / "out")


def test_the_plans_are_here() -> None:
    assert all((PLANS / f"{name}.toml").exists() for name in ORDER)


def test_what_can_run_is_run_and_what_is_missing_is_said(tiny: Options, capsys: pytest.CaptureFixture[str]) -> None:
    before = status(tiny)["plans"]
    assert (before["first"]["done"], before["first"]["trainings"], before["first"]["measured"]) == (0, 1, False)
    assert before["second"]["seconds"] == pytest.approx(3 * before["first"]["seconds"])
    assert run(tiny) == 1
    said = capsys.readouterr().out
    assert "second not done: cars196 is not in" in said
    assert "CARS=FOLDER" in said
    after = status(tiny)["plans"]
    assert (after["first"]["done"], after["first"]["seconds"]) == (1, 0)
    assert after["second"]["measured"]
    assert paper.main(replace(tiny, status=True)) == 0
    assert "nothing" in capsys.readouterr().out
    paper.main(replace(tiny, status=True, json=True))
    assert json.loads(capsys.readouterr().out)["plans"] == after


def test_a_run_of_train_is_taken_over_as_the_cell_of_a_plan(tiny: Options, tmp_path: Path) -> None:
    words = ["train", str(tmp_path / "photos"), "--preset", "paper", "--backbone", "conv4", "--train", "all"]
    words += ["--dim", "8", "--epochs", "1"]
    main([*words, "--out", str(tmp_path / "run")])
    commit = json.loads((tmp_path / "run" / "environment.json").read_text())["commit"]
    main([*words, "--lr", "0.2", "--out", str(tmp_path / "other")])
    plan = paper.planned("first", tiny)
    with pytest.raises(UserError, match=r"--lr 0\.2"):
        take(plan, tmp_path / "other", tiny.out)
    take(plan, tmp_path / "run", tiny.out)
    assert not (tmp_path / "run").exists()
    kept = (tiny.out / "first" / "paper" / "ours" / "seed-0" / "embedder.safetensors").read_bytes()
    run(tiny)
    cell = json.loads((tiny.out / "first" / "paper" / "ours" / "seed-0.json").read_text())
    assert (tiny.out / "first" / "paper" / "ours" / "seed-0" / "embedder.safetensors").read_bytes() == kept
    assert cell["commit"] == commit
    assert json.loads((tiny.out / "first" / "paper" / "ours" / "seed-0" / "config.json").read_text())["curve"] == [1, 2]
    with pytest.raises(UserError, match="is there already"):
        take(plan, tiny.out / "first" / "paper" / "ours" / "seed-0", tiny.out)


def test_weights_are_found_by_the_name_of_the_network(tiny: Options, tmp_path: Path) -> None:
    plan = read_plan(tmp_path / "plans" / "first.toml")
    with pytest.raises(UserError, match=r"conv4\*"):
        paper.weights_of(plan, str(tmp_path))
    (tmp_path / "conv4.safetensors").write_bytes(b"")
    assert paper.weights_of(plan, str(tmp_path)) == str(tmp_path / "conv4.safetensors")
    assert paper.weights_of(plan, tiny.weights) == "none"
