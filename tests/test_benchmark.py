"""A benchmark as a user runs it: every cell once, whatever fails or is killed, by any number of processes."""

import io
import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.numpy import load_file

from tammes.benchmark import runner
from tammes.benchmark.cells import Cell, table_cells
from tammes.benchmark.choose import chosen, trials
from tammes.benchmark.plan import Plan, read_plan
from tammes.benchmark.runner import all_cells, config_of, held_out_quarter, seconds_left
from tammes.benchmark.watch import Watch
from tammes.cli import main
from tammes.errors import UserError
from tammes.models.backbones import backbone
from tammes.training import evaluation, train
from tammes.training.config import load_config, resolve
from tammes.training.data import load_data
from tammes.training.run_folder import RunFolder, open_run
from tammes.training.train import train_images
from tests.commands import printed, refused
from tests.compared import same_end
from tests.conftest import STEP, signal_at, wait_until_stopped

# In one worker, so that the benchmark of `done` is run once.
pytestmark = pytest.mark.xdist_group("processes")

PLAN = """
title = "stripes"
data = "photos"
seeds = [0, 1]
layers = ["penultimate", "last"]
[train]
backbone = "conv4"
dim = 16
batch-size = 8
epochs = 2
val-classes = 2
precision = "no"
[[method]]
name = "one-hot"
centroids = "one-hot"
[[method]]
name = "broken"
centroids = "nowhere"
[[method]]
name = "softmax"
loss = "softmax"
"""
SEARCH = """
data = "photos"
seeds = [5]
[train]
backbone = "conv4"
dim = 16
batch-size = 8
epochs = 1
train = "head"
[search]
lr = [0.001, 0.01]
quarters = [1]
[[method]]
name = "ours"
search = { push = [0.2, 0.3] }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`: sixteen classes of four images, stripes of a class's own angle and width, in noise."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for number in range(16):
        (root / "photos" / f"class {number:02}").mkdir(parents=True)
        for image in range(4):
            along = x * np.cos(number * 0.4) + y * np.sin(number * 0.4)
            wave = np.sin(along * (0.4 + 0.05 * number) + rng.uniform(0, 6))
            pixels = 128 + 80 * wave + rng.normal(0, 25, (28, 28))
            picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            picture.save(root / "photos" / f"class {number:02}" / f"{image}.png")
    return root


def planned(folder: Path, text: str) -> Path:
    file = folder / "plan.toml"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a benchmark that two processes have worked on, with all that can happen to a cell."""
    folder = tmp_path_factory.mktemp("benchmark")
    command = ["benchmark", str(planned(folder, PLAN)), "--data", str(root), "--out", str(folder / "out")]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--jobs", "2", "--threads", "1"])
    assert ended.value.code == 1
    return folder


def results(done: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done / "out" / "results.json").read_text())
    return found


def test_a_cell_that_fails_is_recorded_and_the_others_are_run(done: Path) -> None:
    states = {(cell["method"], cell["seed"]): cell["state"] for cell in results(done)["cells"]}
    assert states == {
        ("one-hot", 0): "done", ("one-hot", 1): "done", ("broken", 0): "failed", ("broken", 1): "failed",
        ("softmax", 0): "done", ("softmax", 1): "done",
    }  # fmt: skip
    broken = next(cell for cell in results(done)["cells"] if cell["method"] == "broken")
    assert broken["error"].startswith("unknown kind of centroids 'nowhere'.")


def test_the_table_holds_all_of_the_protocol(done: Path) -> None:
    rows = {row["name"]: row for row in results(done)["tables"]["default"]}
    assert next(iter(rows)) == "one-hot, penultimate layer"
    assert {"one-hot, last layer", "softmax, penultimate layer, best epoch (optimistic)"} <= set(rows)
    assert rows["one-hot, penultimate layer"]["difference"] is None
    assert rows["softmax, penultimate layer"]["difference"]["seeds"] == 2
    assert rows["softmax, penultimate layer"]["difference"]["half"] is not None
    assert rows["before training"]["seeds"] == 2
    assert rows["broken, last layer"]["remark"].startswith("2 of 2 failed: unknown kind of centroids")
    page = (done / "out" / "table.md").read_text()
    assert "conv4 from none, trained: all, pool published, dim 16" in page
    assert "| before training |" in page


def test_the_results_say_of_which_plan_they_are_and_how_every_cell_is_made(done: Path, root: Path) -> None:
    found = results(done)
    assert (found["plan"], found["title"], found["paper"]) == ("plan", "stripes", None)
    commands = {(cell["method"], cell["seed"]): cell["command"] for cell in found["cells"]}
    assert commands["one-hot", 1].startswith(f"tammes train {root / 'photos'} --out ")
    shared = "--backbone conv4 --dim 16 --epochs 2 --batch-size 8 --val-classes 2"
    assert commands["broken", 0] == f"tammes train photos --centroids nowhere {shared} --precision no"


def test_a_plan_that_compares_centroids_stores_how_far_apart_they_are(done: Path) -> None:
    # One of them is nowhere, but there are two kinds; eight of the sixteen classes train, without two that validate.
    apart = {"min": 2**0.5, "max": 2**0.5, "mean": 2**0.5, "std": 0.0}
    cells = {cell["method"]: cell for cell in results(done)["cells"]}
    assert cells["one-hot"]["distances"] == pytest.approx(apart, abs=1e-6)
    assert cells["softmax"]["distances"] is None
    assert "distances" not in cells["broken"]
    kept = json.loads((done / "out" / "default" / "one-hot" / "seed-0.json").read_text())
    assert kept["distances"] == cells["one-hot"]["distances"]
    rows = {row["name"]: row for row in results(done)["tables"]["default"]}
    assert rows["one-hot, last layer"]["distances"] == pytest.approx(apart, abs=1e-6)
    assert "| min distance |" in (done / "out" / "table.md").read_text()


def test_a_cell_is_what_train_and_evaluate_find(
    done: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = next(cell for cell in results(done)["cells"] if (cell["method"], cell["seed"]) == ("softmax", 1))
    folder = done / "out" / "default" / "softmax" / "seed-1"
    words = ["train", str(root / "photos"), "--backbone", "conv4", "--dim", "16", "--batch-size", "8", "--epochs", "2"]
    words += ["--val-classes", "2", "--loss", "softmax", "--seed", "1", "--out", str(tmp_path / "run")]
    main(words)
    assert same_end(folder, tmp_path / "run")
    shutil.copytree(folder / "last", tmp_path / "run", dirs_exist_ok=True)  # a table has the last epoch, kept or not
    capsys.readouterr()
    last = json.loads(printed(capsys, "evaluate", str(tmp_path / "run"), "--embedding", "last", "--json"))
    for name, value in cell["layers"]["last"].items():
        assert value == pytest.approx(last["trained"][name], abs=1e-9), name
    for name, value in cell["untrained"].items():
        assert value == pytest.approx(last["untrained"][name], abs=1e-9), name
    assert cell["command"].startswith(f"tammes train {root / 'photos'}")
    assert {"processor", "torch", "threads"} <= set(cell["machine"])


def test_each_cell_is_trained_by_one_process_only(done: Path) -> None:
    logs = sorted((done / "out").glob("default/*/seed-*/log.txt"))
    assert len(logs) == 4
    for log in logs:
        assert [len(re.findall(rf"^epoch +{epoch} ", log.read_text(), flags=re.M)) for epoch in (1, 2)] == [1, 1]


def test_what_is_done_is_not_run_again_and_what_failed_only_if_asked(
    done: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def fails(_: Any, cell: Cell, __: str) -> dict[str, Any]:
        ran.append(cell.name)
        return {"error": "again"}

    monkeypatch.setattr(runner, "_attempted", fails)
    words = ["benchmark", str(done / "plan.toml"), "--data", str(root), "--out", str(done / "out")]
    before = {file: file.read_bytes() for file in (done / "out").glob("default/broken/*.json")}
    with pytest.raises(SystemExit):
        main(words)
    assert ran == []
    with pytest.raises(SystemExit):
        main([*words, "--retry-failed", "--only", "broken"])
    assert ran == ["broken, preset default, seed 0", "broken, preset default, seed 1"]
    said = capsys.readouterr()
    assert "broken, preset default, seed 1: failed: again  (0 left)" in said.err
    assert "Some cells failed" in said.err
    for file, content in before.items():
        file.write_bytes(content)


def test_a_dry_run_of_what_is_done_estimates_by_it(
    done: Path, root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["benchmark", str(done / "plan.toml"), "--data", str(root), "--dry-run"]
    said = printed(capsys, *words, "--out", str(done / "out"))
    assert said.endswith("\nNothing is left to run.\n")
    more = planned(tmp_path, PLAN.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    found = json.loads(printed(capsys, "benchmark", str(more), *words[2:], "--out", str(done / "out"), "--json"))
    assert (found["to_run"], found["estimated"]) == (3, "by the cells that are done")
    taken = {(c["method"], c["seed"]): c["seconds"] for c in results(done)["cells"] if c["state"] == "done"}
    of = {name: (taken[name, 0] + taken[name, 1]) / 2 for name in ("one-hot", "softmax")}
    assert found["seconds"] == pytest.approx(of["one-hot"] + of["softmax"] + sum(taken.values()) / 4)
    assert not (done / "out" / "default" / "softmax" / ".seed-2.lock").exists()


def test_a_dry_run_of_what_is_not_begun_times_a_few_steps_and_leaves_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["benchmark", str(planned(tmp_path, SEARCH)), "--data", str(root), "--out", str(tmp_path / "out")]
    said = printed(capsys, *words, "--dry-run")
    assert said.startswith("waiting        ours, preset default, search: lr 0.001, push 0.2, quarter 1\n")
    assert "5 of 5 cells would run" in said
    assert "by a few steps of the first cell and an evaluation of random vectors." in said
    assert "to compute, once, what the frozen part of the network gives" in said
    assert not (tmp_path / "out").exists()


def test_the_search_sees_no_test_class_and_the_table_takes_what_it_chose(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(planned(tmp_path, SEARCH))
    data, out = str(root / "photos"), tmp_path / "out"
    seen: list[tuple[bool, set[int]]] = []
    embedded = evaluation.embedded

    def watched(embedder: Any, given: Any, indices: np.ndarray, **options: Any) -> Any:
        seen.append((in_search, set(given.dataset.labels[indices].tolist())))
        return embedded(embedder, given, indices, **options)

    for module in (evaluation, train):
        monkeypatch.setattr(module, "embedded", watched)
    *tried, cell = all_cells(plan, out)
    in_search = True
    for trial in tried:
        assert not runner._take(plan, cell, data)  # its search is not done
        assert runner._take(plan, trial, data)
        assert trial.state == "done"
        assert not trial.folder.exists()
    # The second quarter of the eight training classes: two closed forms and an epoch of four trials.
    assert seen == [(True, {2, 3})] * 12
    in_search = False
    assert runner._take(plan, cell, data)
    assert set(range(8, 16)) in [classes for searching, classes in seen if not searching]
    found, scores = cell.result(), [trial.result() or {} for trial in tried]
    assert found is not None
    best = max(scores, key=lambda score: score["recall_at_1"])
    assert found["chosen"] == best["changes"]
    config = json.loads((cell.folder / "config.json").read_text())
    assert (config["lr"], config["push"]) == (best["changes"]["lr"], best["changes"]["push"])
    assert config["backbone_lr"] == pytest.approx(config["lr"])  # of conv4 both are the same


def test_the_rate_of_the_backbone_goes_with_that_of_the_new_layers(tmp_path: Path) -> None:
    for part in ("top", "head"):
        text = (
            SEARCH.replace('"conv4"', '"resnet18"').replace('"photos"', f'"{tmp_path}"').replace('"head"', f'"{part}"')
        )
        plan = read_plan(planned(tmp_path, text))
        usual, config = (
            config_of(plan, table_cells(plan, tmp_path)[0], str(tmp_path), changes) for changes in ({}, {"lr": 0.5})
        )
        assert usual.lr < config.lr == 0.5
        times = 0.5 / usual.lr if part == "top" else 1  # with head none of it trains
        assert config.backbone_lr == pytest.approx(times * usual.backbone_lr)


def test_a_quarter_is_held_out_of_the_training_classes(root: Path) -> None:
    config = resolve(str(root / "photos"), {"backbone": "conv4", "val_classes": "0"})
    data = held_out_quarter(load_data(config, backbone("conv4", weights="none")), 3)
    assert data.classes() == {
        "train": [f"class {number:02}" for number in range(6)], "val": ["class 06", "class 07"], "test": [],
    }  # fmt: skip
    assert data.num_classes == 6


def test_a_training_of_the_search_that_was_stopped_is_resumed(root: Path, tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path, SEARCH.replace("epochs = 1", "epochs = 2")))
    trial = all_cells(plan, tmp_path / "out")[0]

    def stops(_: RunFolder, __: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    config = config_of(plan, trial, str(root / "photos"), trial.changes)
    with pytest.raises(KeyboardInterrupt):
        train_images(config, select=lambda data: held_out_quarter(data, 1), on_epoch=stops)
    assert len(RunFolder(trial.folder).epochs()) == 1
    assert runner._take(plan, trial, str(root / "photos"))
    assert trial.state == "done", trial.result()
    assert (trial.result() or {})["quarter"] == 1


@pytest.mark.slow
def test_a_benchmark_that_was_killed_goes_on_to_the_same_weights(
    root: Path, started: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    text = PLAN.replace("epochs = 2", "epochs = 4").replace("val-classes = 2", "curve = [1, 3, 4]")
    text = text[: text.index('[[method]]\nname = "broken"')].replace("seeds = [0, 1]", "seeds = [0]")
    text += "log-bound = true\n"
    file, run = planned(tmp_path, text), tmp_path / "out" / "default" / "one-hot" / "seed-0"
    words = ["benchmark", str(file), "--data", str(root), "--out", str(tmp_path / "out")]
    process = started(words, tmp_path / "said.txt", partial(signal_at, STEP, 10, signal.SIGSTOP))  # in the third epoch
    cell = table_cells(read_plan(file), tmp_path / "out")[0]
    wait_until_stopped(process, tmp_path / "said.txt")
    assert cell.state == "running"
    process.kill()
    process.join()
    assert cell.state == "waiting"
    assert not cell.file.exists()
    main(words)
    assert (cell.result() or {})["config"]["epochs"] == 4
    assert (run / "log.txt").read_text().count("run       ") == 2  # begun twice
    alone = replace(load_config(open_run(run)), out=tmp_path / "alone")
    train_images(alone)
    ours, theirs = (load_file(folder / "embedder.safetensors") for folder in (run, tmp_path / "alone"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    kept, alone_kept = (
        [_timeless(line) for line in each.epochs()] for each in (open_run(run), RunFolder(tmp_path / "alone"))
    )
    assert kept == alone_kept
    assert [_timeless(line) for line in (cell.result() or {})["epochs"][:-1]] == kept[:-1]


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("seconds", "images_per_second")}


WATCHED = """
data = "photos"
seeds = [0, 1]
layers = ["penultimate", "last"]
[train]
backbone = "conv4"
dim = 16
batch-size = 8
epochs = 3
schedule = "halve"
curve = [1, 3]
[[method]]
name = "ours"
log-bound = true
[[method]]
name = "pairs"
loss = "lifted"
seeds = [1]
"""


@pytest.fixture(scope="module")
def watched(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a benchmark that looks at test classes and at the bound while it trains."""
    folder = tmp_path_factory.mktemp("watched")
    main(["benchmark", str(planned(folder, WATCHED)), "--data", str(root), "--out", str(folder / "out")])
    return folder / "out"


def test_a_cell_keeps_its_epochs_and_how_many_images_there_were(watched: Path, tmp_path: Path) -> None:
    cell = json.loads((watched / "default" / "ours" / "seed-0.json").read_text())
    assert (cell["schema"], cell["images"]) == (2, {"train": 32, "test": 32})
    assert [line["epoch"] for line in cell["epochs"] if "test_recall_at_1" in line] == [1, 3]
    assert cell["epochs"][-1]["test_recall_at_1"] == cell["layers"]["penultimate"]["recall_at_1"]
    assert cell["training_seconds"] == pytest.approx(sum(line["seconds"] for line in cell["epochs"]), abs=0.01)
    for line in cell["epochs"]:
        bound = line["bound"]
        assert bound["triplet_loss"] <= bound["discriminative_loss"] + 1e-6
        assert bound["gap"] <= bound["certificate"] + 1e-6
    assert "32 images trained and 32 tested." in (watched / "table.md").read_text()
    # The first epoch by itself is the first point of the curve.
    alone = replace(load_config(open_run(watched / "default" / "ours" / "seed-0")), epochs=1, out=tmp_path / "alone")
    train_images(replace(alone, curve=(), log_bound=False))
    found = json.loads((tmp_path / "alone" / "results.json").read_text())["trained"]["recall_at_1"]
    assert cell["epochs"][0]["test_recall_at_1"] == found


def test_a_method_has_only_its_own_seeds_and_layers(watched: Path) -> None:
    found = json.loads((watched / "results.json").read_text())
    assert [(cell["method"], cell["seed"]) for cell in found["cells"]] == [("ours", 0), ("ours", 1), ("pairs", 1)]
    names = [row["name"] for row in found["tables"]["default"]]
    assert names[:3] == ["ours, penultimate layer", "ours, last layer", "pairs, penultimate layer"]
    assert "pairs, last layer" not in names


def test_the_page_of_a_benchmark_draws_what_was_watched(watched: Path) -> None:
    main(["report", str(watched)])
    page = (watched / "report.html").read_text()
    assert "Accuracy and bound during training" in page
    assert "R@1 over minutes of training" in page
    assert "The bound and the triplet loss" in page


def test_a_cell_of_a_newer_version_is_not_taken_for_one_of_ours(watched: Path, tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path, WATCHED))
    cell = table_cells(plan, tmp_path / "out")[0]
    cell.folder.parent.mkdir(parents=True)
    newer = json.loads((watched / "default" / "ours" / "seed-0.json").read_text()) | {"schema": 3}
    cell.file.write_text(json.dumps(newer))
    with pytest.raises(UserError, match="schema 3"):
        cell.result()


def found_in_search(plan: Plan, out: Path, recalls: dict[float, float]) -> None:
    """What was found for each rate, without any training."""
    for trial in trials(plan, out, "default", plan.methods[0]):
        if trial.changes["lr"] in recalls:
            trial.folder.parent.mkdir(parents=True, exist_ok=True)
            trial.write({"recall_at_1": recalls[trial.changes["lr"]], "seconds": 1.0})


def test_a_search_goes_a_step_further_where_the_best_rate_is_at_the_edge(tmp_path: Path) -> None:
    text = SEARCH.replace("lr = [0.001, 0.01]", "lr = [0.001, 0.01, 0.1]\nwiden = true").replace(
        "search = { push = [0.2, 0.3] }", ""
    )
    plan = read_plan(planned(tmp_path, text))

    def tried(out: Path) -> list[float]:
        return [cell.changes["lr"] for cell in trials(plan, out, "default", plan.methods[0])]

    for name, best, more in (("low", 0.001, [0.0001]), ("middle", 0.01, []), ("high", 0.1, [1.0])):
        out = tmp_path / name
        assert tried(out) == [0.001, 0.01, 0.1]
        found_in_search(plan, out, {0.001: 0.1, 0.01: 0.1, 0.1: 0.1} | {best: 0.5})
        assert tried(out) == [0.001, 0.01, 0.1, *more]
        assert (chosen(plan, out, "default", plan.methods[0]) is None) == bool(more)
        found_in_search(plan, out, {1.0: 0.6, 0.0001: 0.4})
        expected = {"low": 0.001, "middle": 0.01, "high": 1.0}[name]
        assert chosen(plan, out, "default", plan.methods[0]) == {"lr": expected}
        assert len(tried(out)) == 3 + len(more)  # one step, not more


def test_a_method_is_searched_with_rates_of_its_own_and_the_search_with_options_of_its_own(tmp_path: Path) -> None:
    text = SEARCH.replace("push = [0.2, 0.3]", "lr = [0.5, 5.0]").replace(
        "quarters = [1]", 'quarters = [1]\n[search.train]\ntrain = "top"\nepochs = 4'
    )
    plan = read_plan(planned(tmp_path, text.replace('"conv4"', '"resnet18"')))
    *tried, cell = all_cells(plan, tmp_path / "out")
    assert [trial.changes for trial in tried] == [{"lr": 0.5}, {"lr": 5.0}]
    trial, table = (config_of(plan, each, str(tmp_path), {}) for each in (tried[0], cell))
    assert (trial.train, trial.epochs, table.train, table.epochs) == ("top", 4, "head", 1)


def test_rates_are_taken_over_from_the_search_of_another_plan(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searching = read_plan(planned(tmp_path, SEARCH.replace("search = { push = [0.2, 0.3] }", "")))
    file = tmp_path / "more.toml"
    start, end = SEARCH.index("[search]"), SEARCH.index("[[method]]")
    file.write_text(
        'rates_from = "plan"\n' + SEARCH[:start] + SEARCH[end:].replace("search = { push = [0.2, 0.3] }", "")
    )
    words = ["benchmark", str(file), "--data", str(root), "--out", str(tmp_path / "more")]
    assert "rates over that plan chooses" in refused(capsys, *words)
    assert not (tmp_path / "more").exists()
    found_in_search(searching, tmp_path / "plan", {0.001: 0.5, 0.01: 0.4})
    main(words)
    cell = json.loads((tmp_path / "more" / "default" / "ours" / "seed-5.json").read_text())
    assert cell["chosen"] == {"lr": 0.001}
    assert "--lr 0.001" in cell["command"]
    assert "is the one that plan chose" in (tmp_path / "more" / "table.md").read_text()


def test_one_cell_has_one_owner(tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path, PLAN))
    cell, other = table_cells(plan, tmp_path / "out")[:2]
    with cell.claimed() as first, cell.claimed() as second, other.claimed() as third:
        assert (first, second, third) == (True, False, True)
        assert cell.state == "running"
    assert cell.state == "waiting"


def test_a_folder_that_was_left_half_made_is_started_over(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(planned(tmp_path, PLAN))
    cell = table_cells(plan, tmp_path / "out")[0]
    cell.folder.mkdir(parents=True)
    (cell.folder / "config.json").write_text("{}")
    assert runner._take(plan, cell, str(root / "photos"))
    assert cell.state == "done"
    lines = capsys.readouterr().err.splitlines()  # of each epoch, and nothing else of the training
    epochs = RunFolder(cell.folder).epochs()
    assert [line.rpartition(", loss")[0] for line in lines] == [
        f"{cell.name}: epoch {each['epoch']}" for each in epochs
    ]


@pytest.mark.parametrize(("weights", "measured"), [("none", 2), ("file", 1)])
def test_the_untrained_backbone_is_measured_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, measured: int
) -> None:
    """Of random weights once for each seed."""
    if weights == "file":
        torch.save(backbone("conv4", weights="none").network.state_dict(), tmp_path / "weights.pt")
        weights = str(tmp_path / "weights.pt")
    plan = read_plan(
        planned(
            tmp_path, PLAN.replace("dim = 16", f'dim = 16\nweights = "{weights}"').replace("epochs = 2", "epochs = 1")
        )
    )
    cells = [cell for cell in table_cells(plan, tmp_path / "out") if cell.method.name in ("one-hot", "softmax")]
    count, plain = list[int](), evaluation.evaluate_images

    def counted(*given: Any, **options: Any) -> Any:
        count.extend([1] if options.get("backbone_only") else [])
        return plain(*given, **options)

    monkeypatch.setattr(train, "evaluate_images", counted)
    assert all(runner._take(plan, cell, str(root / "photos")) for cell in cells)
    assert len(count) == measured
    found: dict[int, list[Any]] = {cell.seed: [] for cell in cells}
    for cell in cells:
        found[cell.seed].append((cell.result() or {})["untrained"])
    assert all(first == second for first, second in found.values())
    assert (found[0] == found[1]) == (measured == 1)


def test_an_error_that_is_not_the_users_is_recorded_with_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(runner, "train_images", breaks)
    plan = read_plan(planned(tmp_path, PLAN))
    cell = table_cells(plan, tmp_path / "out")[0]
    assert runner._take(plan, cell, "photos")
    found = cell.result() or {}
    assert found["error"] == "ZeroDivisionError: nothing to divide by"
    assert "in breaks" in found["traceback"]


def test_without_test_classes_there_is_nothing_to_compare(root: Path, tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path, PLAN.replace("val-classes = 2", "test-classes = 0")))
    cell = table_cells(plan, tmp_path / "out")[0]
    assert runner._take(plan, cell, str(root / "photos"))
    assert (cell.result() or {})["error"].startswith("there are no test classes to measure on")


def test_what_is_left_is_estimated_by_the_nearest_that_is_known(tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path, SEARCH.replace("seeds = [5]", "seeds = [5, 6]")))
    cells = all_cells(plan, tmp_path / "out")
    assert [cell.quarter for cell in cells] == [1, 1, 1, 1, None, None]
    assert seconds_left(cells) is None
    assert seconds_left(cells, 100.0) == pytest.approx(4 * 75 + 2 * 100)
    for cell in cells[:2]:
        cell.file.parent.mkdir(parents=True, exist_ok=True)
        cell.write({"recall_at_1": 0.5, "seconds": 30.0})
    assert seconds_left(cells) == pytest.approx(2 * 30 + 2 * 40)


def test_a_person_sees_methods_by_seeds(done: Path, tmp_path: Path) -> None:
    plan = read_plan(done / "plan.toml")
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(Watch(plan, all_cells(plan, done / "out"), 1).table())
    lines = {line.split("│")[1].strip(): line for line in drawn.getvalue().splitlines() if line.startswith("│")}
    assert re.search(r"one-hot +│ +\d+\.\d\d │ +\d+\.\d\d │", lines["one-hot"])
    assert lines["broken"].count("failed") == 2
    searched = read_plan(planned(tmp_path, SEARCH))
    cells = trials(searched, tmp_path, "default", searched.methods[0])
    cells[0].file.parent.mkdir(parents=True)
    cells[0].write({"recall_at_1": 0.25, "seconds": 90.0})
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(Watch(searched, all_cells(searched, tmp_path), 1).table())
    assert "4 left, about 6 minutes" in drawn.getvalue()
    assert re.search(r"ours +│ +1/4 │ waiting", drawn.getvalue())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--jobs", "0"), "--jobs must be at least 1, got 0."),
        (("--threads", "0"), "--threads must be at least 1, got 0."),
        (("--only", "two-hot"), "no cell has any of --only two-hot in its name. The methods: one-hot, broken"),
        (("--data", "."), "is about the data 'photos', and there is no photos. Say which folder holds it, with --data"),
    ],
)
def test_what_is_wrong_on_the_command_line(
    words: tuple[str, ...], said: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["benchmark", str(planned(tmp_path, PLAN)), "--data", str(root), "--out", str(tmp_path / "out"), *words]
    assert said in refused(capsys, *given)


def test_the_data_is_found_by_the_environment(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["benchmark", str(planned(tmp_path, PLAN)), "--out", str(tmp_path / "out"), "--dry-run"]
    monkeypatch.setenv("TAMMES_DATA", str(tmp_path))
    assert f"there is no {tmp_path / 'photos'}." in refused(capsys, *words)
    monkeypatch.setenv("TAMMES_DATA", str(root))
    assert "6 of 6 cells would run" in printed(capsys, *words)


def test_results_of_another_plan_do_not_come_into_the_table(
    done: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ["--data", str(root), "--out", str(done / "out")]
    other = planned(tmp_path, PLAN.replace('centroids = "one-hot"', 'centroids = "simplex"'))
    said = refused(capsys, "benchmark", str(other), *rest)
    assert 'with method \'one-hot\' = {"options": {"loss": "discriminative", "centroids": "one-hot"}' in said
    assert "Put it back, or choose another --out." in said
    assert "was started with train = " in refused(
        capsys, "benchmark", str(done / "plan.toml"), *rest, "--weights", "x.pt"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    said = refused(capsys, "benchmark", str(other), "--data", str(root), "--out", str(tmp_path / "mine"))
    assert "exists and is not the folder of a benchmark" in said


def test_a_cell_is_found_by_what_it_is(tmp_path: Path) -> None:
    plan = read_plan(
        planned(tmp_path, PLAN.replace('title = "stripes"', 'presets = ["paper", "default"]')),
    )
    cells = table_cells(plan, tmp_path)
    assert len({cell.folder for cell in cells}) == len(cells) == 12
    assert [cell.name for cell in all_cells(plan, tmp_path, ["softmax, preset paper"])] == [
        "softmax, preset paper, seed 0", "softmax, preset paper, seed 1",
    ]  # fmt: skip
    assert isinstance(cells[0], Cell)
