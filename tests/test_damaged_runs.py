"""Files of a run, a benchmark or a checkpoint that are damaged or untrusted are refused by their name."""

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tammes import UserError
from tammes.cli import main
from tammes.gallery.gallery import Gallery
from tammes.io.tensor_files import read_tensors, write_tensors
from tammes.models.embedder import load
from tammes.report import compare_page, look, run_page
from tammes.report.items import items_of
from tammes.report.run import Looked
from tammes.training.checkpoints import load_weights, save_checkpoint, save_frozen
from tammes.training.config import load_config
from tammes.training.loop import Position
from tammes.training.run_folder import RunFolder
from tests.commands import ended, small_set
from tests.configs import data_of
from tests.test_errors import SMALL
from tests.test_untrusted import plain_values, refusal

FEW = settings(max_examples=6)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run twice, a gallery, and a benchmark."""
    root = tmp_path_factory.mktemp("damaged")
    photos = small_set(root / "photos", ["a", "b", "c", "d"], 4)
    main(["train", str(photos), "--out", str(root / "runs" / "x"), *SMALL])
    main(["calibrate", str(root / "runs" / "x"), "--fmr", "0.2"])
    main(["index", str(root / "runs" / "x"), str(photos), "--gallery", str(root / "g")])
    shutil.copytree(root / "runs" / "x", root / "runs" / "sound")
    (root / "p.toml").write_text(
        f'data = "{photos}"\nseeds = [0]\n[train]\nbackbone = "conv4"\ndim = 8\nepochs = 1\n[[method]]\nname = "one"\n'
    )
    main(["benchmark", str(root / "p.toml"), "--out", str(root / "bm")])
    return root


@pytest.fixture(scope="module")
def looked(made: Path) -> Looked:
    """What the network finds, which is the same whatever the other files say."""
    return look(items_of(RunFolder(made / "runs" / "sound")), way=None)


@pytest.fixture
def whole(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, put back afterwards."""
    monkeypatch.chdir(made)
    kept = {file: file.read_bytes() for file in made.rglob("*.json*") if file.is_file()}
    yield made
    for file, content in kept.items():
        file.write_bytes(content)


OF_A_RUN = [
    ("results.json", "[1]", "it must be an object, got [1]"),
    ("results.json", "null", "it must be an object, got None"),
    ("results.json", '{"trained":{"recall_at_1":"x"}}', "trained.recall_at_1 must be a number, got 'x'"),
    ("results.json", '{"trained":[1]}', "trained must be an object, got [1]"),
    ("classes.json", "[]", "it must be an object, got []"),
    ("classes.json", '{"train":[]}', "val is missing"),
    ("classes.json", '{"train":5,"val":[],"test":[]}', "train must be a list, got 5"),
    (
        "classes.json",
        '{"train":["a"],"val":[],"test":[],"places":{"number":2,"of":{},"old":[]}}',
        "places.of has no nu",
    ),
    (
        "classes.json",
        '{"train":["a"],"val":[],"test":[],"places":{"number":2,"of":{"a":2},"old":[]}}',
        "places.of has invalid numbers",
    ),
    ("calibration.json", "[]", "it must be an object, got []"),
    ("calibration.json", '{"threshold":1}', "fmr is missing"),
    ("calibration.json", '{"threshold":"x","fmr":0.1}', "threshold must be a number, got 'x'"),
    ("calibration.json", '{"threshold":NaN,"fmr":0.1}', "threshold must be a finite number, got nan"),
    ("metrics.jsonl", "1", "line 1: it must be an object, got 1"),
    ("metrics.jsonl", b"\xff\xfe", "metrics.jsonl is not text"),
    ("metrics.jsonl", '{"loss":1}', "line 1: epoch is missing"),
    ("metrics.jsonl", '{"epoch":1,"loss":"x"}', "line 1: loss must be a number, got 'x'"),
    ("environment.json", '{"versions":3}', "versions must be an object, got 3"),
    ("config.json", "{", "config.json is not a complete JSON file"),
    ("config.json", "{}", "data is missing"),
]
COMMANDS = {
    "results.json": ["runs runs", "report runs/x", "report runs/x runs/sound"],
    "classes.json": ["report runs/x", "evaluate runs/x", "calibrate runs/x", "index runs/x photos --gallery g"],
    "calibration.json": ["report runs/x"],
    "metrics.jsonl": ["report runs/x", "runs runs"],
    "environment.json": ["report runs/x"],
    "config.json": ["report runs/x"],
}


@pytest.mark.parametrize(
    ("name", "content", "text"), OF_A_RUN, ids=[f"{name} {content!s}" for name, content, _ in OF_A_RUN]
)
def test_a_file_of_a_run_is_refused_by_its_name(
    whole: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, text: str
) -> None:
    (whole / "runs" / "x" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for line in COMMANDS[name]:
        code, said = ended(capsys, *line.split())
        last = said.splitlines()[-1]
        assert code == (1 if line == "runs runs" else 2), said
        assert f"runs/x/{name}" in last, said
        assert text in last
        advice = {"calibration.json": "tammes calibrate runs/x", "metrics.jsonl": "Remove it: only the"}
        assert advice.get(name, "tammes train ") in last


def test_a_config_brings_no_python_objects(whole: Path) -> None:
    file = whole / "runs" / "x" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"objects": {"module": "x"}}))
    with pytest.raises(UserError, match="config.json: objects is not known"):
        load_config(RunFolder(file.parent))


def test_a_run_that_cannot_be_read_does_not_hide_the_others(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole / "runs" / "x" / "config.json").write_text("[]")
    with pytest.raises(SystemExit) as left:
        main(["runs", "runs"])
    said = capsys.readouterr()
    assert left.value.code == 1
    assert "sound" in said.out
    assert said.err.startswith(
        "left out: runs/x/config.json: it must be an object, got []. Restore the file from a copy"
    )
    with pytest.raises(SystemExit) as left:
        main(["runs", "runs", "--json"])
    records = {record["run"]: record for record in json.loads(capsys.readouterr().out)}
    assert left.value.code == 1
    assert records["runs/x"]["error"].startswith("runs/x/config.json: it must be an object")
    assert records["runs/sound"]["trained"]["recall_at_1"] >= 0


def test_what_a_newer_version_has_added_is_no_fault(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("results", "classes", "calibration", "environment"):
        file = whole / "runs" / "x" / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"new": 1}))
    assert ended(capsys, "report", "runs/x", "--map", "none")[0] == 0


def test_a_calibration_that_cannot_be_read_is_computed_again(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = whole / "runs" / "x" / "calibration.json"
    file.write_text("[]")
    assert ended(capsys, "calibrate", "runs/x", "--fmr", "0.2")[0] == 0
    assert json.loads(file.read_text())["threshold"] > 0


def test_what_a_run_cannot_do_without(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole / "runs" / "x" / "classes.json").unlink()
    code, said = ended(capsys, "calibrate", "runs/x")
    assert code == 2
    assert said.startswith("tammes: runs/x/classes.json is missing. Restore the file from a copy, or train")
    file = whole / "runs" / "sound" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"centroids": "x"}))
    code, said = ended(capsys, "report", "runs/sound", "--map", "none")
    assert code == 2
    assert "runs/sound/config.json: unknown kind of centroids 'x'." in said


@pytest.mark.parametrize("content", ["[]", "{", "3", '{"trained":3}', '{"error":3}'])
def test_a_result_of_a_cell_is_refused_by_its_name(
    whole: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (whole / "bm" / "default" / "one" / "seed-0.json").write_text(content)
    code, said = ended(capsys, "benchmark", "p.toml", "--out", "bm")
    assert code == 2, said
    assert "tammes: bm/default/one/seed-0.json" in said
    assert said.endswith(". Remove it to train it again: one, preset default, seed 0.\n")


@pytest.mark.parametrize(
    ("layers", "text"), [({}, "layers has no layer"), ({"last": {"recall_at_1": 1}}, "penultimate")]
)
def test_a_cell_must_be_measured_in_every_layer(
    whole: Path, capsys: pytest.CaptureFixture[str], layers: dict[str, Any], text: str
) -> None:
    file = whole / "bm" / "default" / "one" / "seed-0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers": layers}))
    code, said = ended(capsys, "benchmark", "p.toml", "--out", "bm")
    assert code == 2, said
    assert f"seed-0.json: layers has no {text.removeprefix('layers has no ')}. Remove it" in said


@pytest.mark.parametrize("content", ["[]", "{", "3"])
def test_other_files_of_a_benchmark_are_refused_by_their_names(
    whole: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (whole / "bm" / "results.json").write_text(content)
    code, said = ended(capsys, "report", "bm")
    assert code == 2, said
    assert said.startswith("tammes: bm/results.json")
    assert said.endswith(". The same `tammes benchmark` command writes it again.\n")
    (whole / "bm" / "plan.json").write_text(content)
    code, said = ended(capsys, "benchmark", "p.toml", "--out", "bm")
    assert code == 2, said
    assert said.startswith("tammes: bm/plan.json")
    assert said.endswith(". Put back the one that was there, or choose another --out than bm.\n")


def with_state(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any], dict[str, str]], None]:
    """A checkpoint that says something else of its tensors."""

    def changed(_: dict[str, Any], said: dict[str, str]) -> None:
        state = json.loads(said["state"])
        change(state)
        said["state"] = json.dumps(state)

    return changed


def a_weight(tensors: dict[str, Any]) -> str:
    return next(name for name in tensors if name.startswith("model/"))


def short(tensors: dict[str, Any], _: object) -> None:
    for name in tensors:
        if name.startswith("optimizer/0/exp_avg"):
            tensors[name] = torch.zeros(1)


def lost(tensors: dict[str, Any], _: object) -> None:
    for name in [name for name in tensors if name.startswith("optimizer/0/")]:
        del tensors[name]


CHECKPOINTS: dict[str, tuple[Callable[[dict[str, Any], dict[str, str]], object], str]] = {
    "no state": (lambda _, said: said.clear(), "the state in FILE is not a complete JSON file."),
    "no JSON": (lambda _, said: said.update(state="{"), "the state in FILE is not a complete JSON file."),
    "a list": (lambda _, said: said.update(state="[]"), "the state in FILE: it must be an object, got []."),
    "no random": (lambda tensors, _: tensors.pop("random"), "FILE has no valid random number state."),
    "short random": (
        lambda tensors, _: tensors.update(random=torch.zeros(3, dtype=torch.uint8)),
        "FILE has no valid random number state.",
    ),
    "another shape": (lambda tensors, _: tensors.update({a_weight(tensors): torch.zeros(2, 2)}), "is (2, 2) of torch."),
    "another type": (
        lambda tensors, _: tensors.update({a_weight(tensors): tensors[a_weight(tensors)].double()}),
        " of torch.float64, and the network's is ",
    ),
    "a weight less": (lambda tensors, _: tensors.pop(a_weight(tensors)), ", which the network has."),
    "a weight more": (lambda tensors, _: tensors.update({"model/x": torch.zeros(1)}), "FILE has 'x', which the"),
    "position": (with_state(lambda state: state.update(position={"q": 1})), "the position in FILE: q is not known"),
    "epoch": (with_state(lambda state: state["position"].update(epoch=-5)), "position in FILE: epoch cannot be -5."),
    "step": (with_state(lambda state: state["position"].update(step="x")), "step must be a whole number, got 'x'."),
    "groups": (with_state(lambda state: state.update(groups=[])), "FILE: its parameter groups are not those of the"),
    "rate": (with_state(lambda state: state["groups"][0].update(lr="x")), "the groups in FILE: lr must be a number"),
    "betas": (with_state(lambda state: state["groups"][0].update(betas=3)), "betas must be a list, got 3."),
    "optimizer": (lost, "FILE: the optimizer state of weight 0 is missing."),
    "too short": (short, "FILE: 'exp_avg' of weight 0 does not fit the optimizer."),
    "unknown": (lambda tensors, _: tensors.update({"optimizer/0/x": torch.zeros(1)}), "'x' of weight 0 does not fit"),
    "no weight": (lambda tensors, _: tensors.update({"optimizer/999/x": torch.zeros(1)}), "optimizer has no weight"),
}  # fmt: skip


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("case", CHECKPOINTS)
def test_an_untrusted_checkpoint_is_refused_by_its_name(capsys: pytest.CaptureFixture[str], case: str) -> None:
    change, text = CHECKPOINTS[case]
    shutil.rmtree("runs/y", ignore_errors=True)
    shutil.copytree("runs/sound", "runs/y")
    file = Path("runs/y/checkpoint.safetensors")
    Path("runs/y/results.json").unlink()
    tensors, said = read_tensors(file)
    change(tensors, said)
    write_tensors(file, tensors, said)
    code, told = ended(capsys, "train", "--resume", "runs/y")
    shutil.rmtree("runs/y")
    assert code == 2, told
    last = told.splitlines()[-1]
    assert text.replace("FILE", str(file)) in last
    assert last.startswith("tammes: ")
    assert str(file) in last
    assert last.endswith(". The run cannot be resumed: start over with --overwrite.")


@pytest.mark.usefixtures("whole")
def test_a_checkpoint_of_before_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("runs/sound", "runs/z")
    file = Path("runs/z/checkpoint.safetensors")
    Path("runs/z/results.json").unlink()
    tensors, said = read_tensors(file)
    with_state(lambda state: state.pop("without"))(tensors, said)
    write_tensors(file, tensors, said)
    assert ended(capsys, "train", "--resume", "runs/z")[0] == 0
    shutil.rmtree("runs/z")


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ({"labels": "x"}, "the position in FILE: labels must be a whole number, got 'x'."),
        ({"history": []}, "the history in FILE does not begin with the initialisation."),
        (
            {"history": [{"loss": "x", "recall_at_1": None}]},
            "the history in FILE: it[0].loss must be a ",
        ),
    ],
)
def test_an_untrusted_checkpoint_of_vectors_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], position: dict[str, Any], text: str
) -> None:
    run, vectors = tmp_path / "run", np.random.default_rng(0).normal(size=(48, 8))
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=np.arange(48) % 6)
    assert ended(capsys, "train", str(tmp_path / "v.npz"), "--out", str(run), "--epochs", "1")[0] == 0
    (run / "results.json").unlink()
    file = run / "checkpoint.safetensors"
    tensors, said = read_tensors(file)
    with_state(lambda state: state["position"].update(position))(tensors, said)
    write_tensors(file, tensors, said)
    code, told = ended(capsys, "train", "--resume", str(run))
    assert code == 2, told
    assert text.replace("FILE", str(file)) in told


def test_weights_that_do_not_train_must_all_be_there(tmp_path: Path) -> None:
    network = nn.ModuleDict({"embedder": nn.Linear(2, 2).requires_grad_(False), "head": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(network["head"].parameters(), lr=0.1)
    save_checkpoint(RunFolder(tmp_path), network, optimizer, Position())
    weight, bias = torch.zeros(2, 2), torch.zeros(2)
    for tensors, text in (
        (None, "frozen.safetensors, with the frozen weights, is missing"),
        ({"weight": weight}, "frozen.safetensors has no 'embedder.bias'"),
        ({"weight": weight, "bias": bias, "more": torch.zeros(3)}, "frozen.safetensors has 'embedder.more'"),
        ({"weight": torch.zeros(3, 2), "bias": bias}, r"'embedder.weight' is \(3, 2\) of torch.float32"),
    ):
        if tensors is not None:
            given = {f"embedder.{name}": tensor for name, tensor in tensors.items()}
            write_tensors(tmp_path / "frozen.safetensors", given)
        with pytest.raises(UserError, match=text):
            load_weights(RunFolder(tmp_path), network)
    save_frozen(RunFolder(tmp_path), network)
    load_weights(RunFolder(tmp_path), network)


def mutated(value: Any, draw: Callable[[Any], Any]) -> Any:
    """The same with one value of it, at any depth, another or gone."""
    value = deepcopy(value)
    at: Any = None
    key: Any = None
    inside = value
    while isinstance(inside, dict | list) and inside and (at is None or draw(st.booleans()) or draw(st.booleans())):
        at, key = inside, draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        inside = at[key]
    if at is None:
        return draw(plain_values)
    if draw(st.integers(0, 3)):
        at[key] = draw(plain_values | st.sampled_from([-1, 0, 10**400, float("nan"), float("inf"), "", "\ud800"]))
    else:
        del at[key]
    return value


def ends_well(*words: str) -> None:
    """It is done, finds problems, or says what is wrong: no fault of ours."""
    code: object = 0
    try:
        main([*words, "-q"])
    except SystemExit as left:
        code = left.code
    assert code in (0, 1, 2), words


@pytest.mark.parametrize(
    "name", ["results", "classes", "calibration", "environment", "embedder", "config", "untrained"]
)
@FEW
@given(st.data())
def test_runs_of_any_content(made: Path, looked: Looked, name: str, data: st.DataObject) -> None:
    run = RunFolder(made / "runs" / "x")
    file = run.folder / f"{name}.json"
    before = file.read_text()
    try:
        value = mutated(json.loads(before), data.draw) if data.draw(st.integers(0, 4)) else data.draw(plain_values)
        file.write_text(json.dumps(value))
        ends_well("runs", str(made / "runs"))
        refusal(lambda: run_page(run, looked))
        readers: dict[str, Callable[[], object]] = {
            "results": lambda: compare_page([run, RunFolder(made / "runs" / "sound")], made / "report.html"),
            "embedder": lambda: load(run.folder),
            "config": lambda: data_of(load_config(run), run.read("classes")),
            "classes": lambda: data_of(load_config(run), run.read("classes")),
            "calibration": lambda: Gallery(str(made / "g"), run.folder).threshold,
        }
        refusal(readers.get(name, lambda: run.read(name)))
    finally:
        file.write_text(before)


@FEW
@given(st.data())
def test_curves_of_any_content(made: Path, looked: Looked, data: st.DataObject) -> None:
    file = made / "runs" / "x" / "metrics.jsonl"
    before = file.read_text()
    try:
        lines = [mutated(json.loads(line), data.draw) for line in before.splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, data.draw(plain_values)]))
        ends_well("runs", str(made / "runs"))
        refusal(lambda: run_page(RunFolder(file.parent), looked))
    finally:
        file.write_text(before)


@pytest.mark.parametrize("name", ["results.json", "plan.json", "default/one/seed-0.json"])
@FEW
@given(st.data())
def test_benchmarks_of_any_content(made: Path, name: str, data: st.DataObject) -> None:
    kept = {file: file.read_text() for file in (made / "bm" / each for each in ("results.json", "plan.json", name))}
    file = made / "bm" / name
    try:
        value = mutated(json.loads(kept[file]), data.draw) if data.draw(st.integers(0, 4)) else data.draw(plain_values)
        file.write_text(json.dumps(value))
        if name != "results.json":
            ends_well("benchmark", str(made / "p.toml"), "--out", str(made / "bm"))
        ends_well("report", str(made / "bm"), "--out", str(made / "report.html"))
    finally:
        for each, content in kept.items():
            each.write_text(content)
