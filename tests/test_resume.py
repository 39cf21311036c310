"""A run that was stopped and resumed has the weights of one that was not, bit for bit, whatever of it trains."""

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import combinations, product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tammes import UserError
from tammes.cli import main
from tammes.io.environment import cache_folder
from tammes.models.backbones import backbone
from tammes.training.checkpoints import load_checkpoint, load_weights, save_checkpoint, save_frozen
from tammes.training.loop import Position
from tammes.training.run_folder import RunFolder
from tests.compared import differing
from tests.configs import config_of
from tests.conftest import HANGS, STEP, signal_at
from tests.several_processes import commands_resumed, exit_code, stopped_after, without_batch_norm
from tests.test_distributed import ended, start

pytestmark = pytest.mark.xdist_group("processes")

Stopped = Callable[[list[str], Path, int], None]
PARTS = ("all", "top", "head")
# Small networks for photos, with batch normalisation and without: of them and of a file of weights the defaults are
# those of a pretrained network.
PHOTO_BACKBONES = ("timm:test_resnet", "timm:test_convnext")
SMALL = ("--dim", "8", "--batch-size", "8")  # of 48 training images: six steps an epoch
STEPS = 8  # after which a run is stopped: in the middle of its second epoch


class Case(NamedTuple):
    """What a run is asked for."""

    train: str
    init: str
    keep_init: bool
    batch_norm: bool
    precision: str

    def __str__(self) -> str:
        kept = "kept" if self.keep_init else "trained"
        norm = "batch norm" if self.batch_norm else "no batch norm"
        return f"{self.train}, {self.init} {kept}, {norm}, {self.precision}"

    def flags(self) -> tuple[str, ...]:
        words = ("--train", self.train, "--init", self.init, "--keep-init" if self.keep_init else "--no-keep-init")
        return (
            *words,
            "--precision",
            self.precision,
            "--backbone",
            "conv4",
            "--test-classes",
            "0",
            "--epochs",
            "2",
            *SMALL,
        )


def is_valid(case: Case) -> bool:
    """Whether the command takes it."""
    given: dict[str, Any] = {name: value for name, value in case._asdict().items() if name != "batch_norm"}
    try:
        config_of(backbone="conv4", **given)
    except UserError:
        return False
    return True


CASES = [
    case
    for each in product(PARTS, ("random", "pca", "whiten"), (False, True), (True, False), ("no", "bf16"))
    if is_valid(case := Case(*each))
]
# Of each pair of choices one case at least is in every run of the tests; the rest is `slow`.
USUAL = [
    Case("all", "pca", False, True, "no"),
    Case("all", "whiten", True, False, "bf16"),
    Case("all", "random", False, True, "bf16"),
    Case("top", "whiten", True, True, "no"),
    Case("top", "pca", True, False, "no"),
    Case("top", "random", False, True, "bf16"),
    Case("head", "pca", True, True, "bf16"),
    Case("head", "whiten", False, False, "no"),
    Case("head", "random", False, False, "no"),
]
IN_TWO = [case for case in USUAL if case[:3] in {("all", "pca", False), ("top", "whiten", True), ("head", "pca", True)}]


def pairs(cases: list[Case]) -> set[Any]:
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


def pretrained(name: str, folder: Path) -> Path:
    """A file of weights that stands for a pretrained network's; statistics of normalisation are not a new one's."""
    torch.manual_seed(1)
    network = backbone(name).network
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    file = folder / f"{name.replace(':', ' ')} {len(network.state_dict())}.safetensors"
    save_file({each: tensor.contiguous() for each, tensor in network.state_dict().items()}, file)
    return file


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str | bool, Path]:
    """Files of weights: by the name of a backbone for photos, or of conv4 with batch normalisation or without."""
    folder = tmp_path_factory.mktemp("weights")
    with without_batch_norm():
        plain = pretrained("conv4", folder)
    return {False: plain, True: pretrained("conv4", folder)} | {
        name: pretrained(name, folder) for name in PHOTO_BACKBONES
    }


def same_run(run: Path, whole: Path) -> None:
    """The networks are the same, and so is all that the last checkpoint holds: optimizer, loss, random numbers."""
    for name in ("embedder", "checkpoint"):
        assert differing(run / f"{name}.safetensors", whole / f"{name}.safetensors") == []


def test_the_command_refuses_to_keep_what_is_random_and_nothing_else() -> None:
    every = product(PARTS, ("random", "pca", "whiten"), (False, True))
    assert {case[:3] for case in CASES} == {each for each in every if each[1:] != ("random", True)}
    assert set(USUAL) <= set(CASES)
    assert pairs(USUAL) == pairs(CASES)


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if each in USUAL else pytest.mark.slow, id=str(each)) for each in CASES]
)
def test_every_combination_resumes_to_the_same_weights(
    case: Case, waves: Path, weights: Mapping[str | bool, Path], tmp_path: Path, stopped_and_resumed: Stopped
) -> None:
    words = ["train", str(waves), "--weights", str(weights[case.batch_norm]), *case.flags()]
    with nullcontext() if case.batch_norm else without_batch_norm():
        assert exit_code(*words, "--out", str(tmp_path / "whole")) == 0
        stopped_and_resumed(words, tmp_path / "part", STEPS)
    same_run(tmp_path / "part", tmp_path / "whole")


@pytest.mark.parametrize(
    "cases", [pytest.param(IN_TWO, id="some"), pytest.param(CASES, id="all", marks=pytest.mark.slow)]
)
def test_every_combination_resumes_to_the_same_weights_in_two_processes(
    cases: list[Case], waves: Path, weights: Mapping[str | bool, Path], tmp_path: Path
) -> None:
    """One after the other in the same two processes."""
    given = {
        str(case): (("train", str(waves), "--weights", str(weights[case.batch_norm]), *case.flags()), case.batch_norm)
        for case in cases
    }
    started = start(2, tmp_path, commands_resumed, tmp_path, given, STEPS)
    assert ended(started, tmp_path) == [0, 0], (tmp_path / "said 0").read_text()
    for name in given:
        same_run(tmp_path / name / "part", tmp_path / name / "whole")


@pytest.fixture(scope="module")
def defaults(
    waves: Path, weights: Mapping[str | bool, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[list[str], Path]]:
    """By what trains and the backbone: the command that says nothing else, and the run of it that nobody stopped."""
    made: dict[tuple[str, str], tuple[list[str], Path]] = {}
    folder = tmp_path_factory.mktemp("defaults")

    def run(train: str, name: str) -> tuple[list[str], Path]:
        if (train, name) not in made:
            words = [
                "train",
                str(waves),
                "--backbone",
                name,
                "--weights",
                str(weights[name]),
                *SMALL,
                "--size",
                "64",
                "--epochs",
                "2",
                "--train",
                train,
            ]
            out = folder / f"{train} {len(made)}"
            main([*words, "--out", str(out)])
            made[train, name] = words, out
        return made[train, name]

    return run


@pytest.mark.parametrize("name", PHOTO_BACKBONES)
@pytest.mark.parametrize("train", PARTS)
def test_the_defaults_of_a_pretrained_network_resume_to_the_same_weights(
    train: str,
    name: str,
    defaults: Callable[[str, str], tuple[list[str], Path]],
    tmp_path: Path,
    stopped_and_resumed: Stopped,
) -> None:
    words, whole = defaults(train, name)
    config = json.loads((whole / "config.json").read_text())
    kept = {"all": ("ridge", True), "top": ("whiten", True), "head": ("whiten", False)}[train]
    assert (config["train"], config["init"], config["keep_init"]) == (train, *kept)
    kept_activations = set(cache_folder().glob("activations/*"))
    stopped_and_resumed(words, tmp_path / "part", 2)
    same_run(tmp_path / "part", whole)
    assert set(cache_folder().glob("activations/*")) == kept_activations  # and none are computed again
    ours, theirs = (json.loads((run / "results.json").read_text()) for run in (tmp_path / "part", whole))
    assert (ours["trained"], ours["untrained"]) == (theirs["trained"], theirs["untrained"])


@pytest.mark.parametrize("train", PARTS)
def test_what_is_frozen_is_what_no_checkpoint_holds(
    train: str, defaults: Callable[[str, str], tuple[list[str], Path]]
) -> None:
    run = defaults(train, PHOTO_BACKBONES[0])[1]
    network = {f"embedder.{name}" for name in load_file(run / "embedder.safetensors")}
    saved = {name.removeprefix("model/") for name in load_file(run / "checkpoint.safetensors") if "model/" in name}
    frozen = set(load_file(run / "frozen.safetensors")) if (run / "frozen.safetensors").exists() else set()
    assert frozen.isdisjoint(saved)
    assert frozen | saved >= network
    assert ("embedder.penultimate.weight" in frozen) == (train != "head")
    parts = backbone(PHOTO_BACKBONES[0]).network.named_modules()
    norms = {f"embedder.backbone.{place}" for place, part in parts if isinstance(part, nn.BatchNorm2d)}
    assert norms
    assert norms <= {name.rpartition(".")[0] for name in frozen}
    kept = {*norms, "embedder.penultimate"}
    assert (kept == {name.rpartition(".")[0] for name in frozen}) == (train == "all")


@pytest.mark.parametrize("train", ["top", "head"])
def test_what_can_be_made_again_or_is_gone_is_not_missed(
    train: str, defaults: Callable[[str, str], tuple[list[str], Path]], tmp_path: Path
) -> None:
    """Activations, which were removed, are those of before; and so is the first measurement of the network."""
    words, whole = defaults(train, PHOTO_BACKBONES[0])
    with stopped_after(2, here=True):
        assert exit_code(*words, "--out", str(tmp_path / "part")) == 130
    shutil.rmtree(cache_folder() / "activations")
    (tmp_path / "part" / "untrained.json").unlink()
    main(["train", "--resume", str(tmp_path / "part")])
    same_run(tmp_path / "part", whole)
    ours, theirs = (json.loads((run / "results.json").read_text()) for run in (tmp_path / "part", whole))
    assert ours["untrained"] == theirs["untrained"]


def test_what_is_kept_is_that_of_the_run_that_was_not_stopped(
    defaults: Callable[[str, str], tuple[list[str], Path]], tmp_path: Path, stopped_and_resumed: Stopped
) -> None:
    words = [*defaults("head", PHOTO_BACKBONES[0])[0], "--val-classes", "2"]
    main([*words, "--out", str(tmp_path / "whole")])
    stopped_and_resumed(words, tmp_path / "part", 4)
    same_run(tmp_path / "part", tmp_path / "whole")
    for name in ("embedder.safetensors", "last/embedder.safetensors"):
        assert differing(*(tmp_path / run / name for run in ("part", "whole"))) == []


def test_a_run_without_a_checkpoint_begins_again_and_saves_again_what_is_frozen(
    defaults: Callable[[str, str], tuple[list[str], Path]], tmp_path: Path
) -> None:
    """What is frozen was computed, on what may have been another machine: it belongs to the checkpoints that follow."""
    words, whole = defaults("top", PHOTO_BACKBONES[0])
    out = tmp_path / "part"
    with stopped_after(2, here=True):
        assert exit_code(*words, "--out", str(out)) == 130
    (out / "checkpoint.safetensors").unlink()
    tensors = load_file(out / "frozen.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, out / "frozen.safetensors")
    with stopped_after(2, here=True):
        assert exit_code("train", "--resume", str(out)) == 130
    main(["train", "--resume", str(out)])
    same_run(out, whole)


def test_a_run_is_resumed_from_any_folder(
    defaults: Callable[[str, str], tuple[list[str], Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was given by a relative path is found."""
    words, source = defaults("head", PHOTO_BACKBONES[0])
    monkeypatch.chdir(source.parent)
    out, given = tmp_path / "part", [*words, "--init-from", source.name]
    main([*given, "--out", str(tmp_path / "whole")])
    with stopped_after(2, here=True):
        assert exit_code(*given, "--out", str(out)) == 130
    (out / "checkpoint.safetensors").unlink()  # so that it begins again, from that run
    monkeypatch.chdir(tmp_path)
    main(["train", "--resume", "part"])
    same_run(out, tmp_path / "whole")


def test_frozen_weights_that_are_missing_are_not_made_up(
    defaults: Callable[[str, str], tuple[list[str], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = defaults("head", PHOTO_BACKBONES[0])
    with stopped_after(2, here=True):
        assert exit_code(*words, "--out", str(tmp_path / "part")) == 130
    (tmp_path / "part" / "frozen.safetensors").unlink()
    assert exit_code("train", "--resume", str(tmp_path / "part")) == 2
    assert "frozen.safetensors, with the frozen weights, is missing" in capsys.readouterr().err


def test_a_weight_of_the_loss_that_does_not_train_is_kept_too(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        network = nn.ModuleDict({"embedder": nn.Linear(2, 2), "loss": nn.Linear(2, 2).requires_grad_(False)})
        return network, torch.optim.SGD(network["embedder"].parameters(), lr=0.1)

    (first, optimizer), (other, its_own) = made(0), made(1)
    save_frozen(RunFolder(tmp_path), first)
    save_checkpoint(RunFolder(tmp_path), first, optimizer, Position())
    load_weights(RunFolder(tmp_path), other)
    load_checkpoint(RunFolder(tmp_path), other, its_own)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in first.state_dict().items())


SIGNALS = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
USUAL_SIGNALS = {("all", signal.SIGINT), *((part, signal.SIGKILL) for part in PARTS)}


@pytest.mark.parametrize(
    ("train", "number"),
    [
        # For training the first and the last are the same, and the default path is stopped above without a process.
        pytest.param(*each, id=f"{each[0]}, {each[1].name}", marks=() if each in USUAL_SIGNALS else pytest.mark.slow)
        for each in product(PARTS, SIGNALS)
    ],
)
def test_a_process_that_gets_a_signal_is_resumed_to_the_same_weights(
    train: str,
    number: signal.Signals,
    defaults: Callable[[str, str], tuple[list[str], Path]],
    started: Callable[..., BaseProcess],
    tmp_path: Path,
) -> None:
    """The defaults of a pretrained network, in a process of its own, which gets it in the middle of an epoch."""
    words, whole = defaults(train, PHOTO_BACKBONES[0])
    out, said = tmp_path / "part", tmp_path / "said"
    process = started([*words, "--out", str(out)], said, partial(signal_at, STEP, 5, number))
    process.join(HANGS)
    assert process.exitcode == (-number if number == signal.SIGKILL else 130), said.read_text()
    main(["train", "--resume", str(out)])
    same_run(out, whole)
