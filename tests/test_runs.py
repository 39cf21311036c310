"""The run folder: nothing is lost, nothing is half there."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tammes import UserError
from tammes.io.files import errors_name
from tammes.io.machine import environment
from tammes.training.checkpoints import load_checkpoint, load_weights, save_checkpoint, save_frozen
from tammes.training.loop import Position
from tammes.training.run_folder import RunFolder, create, listed, open_run


def trained(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimizer = (
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        if kind == "sgd"
        else torch.optim.AdamW(network.parameters(), lr=0.1)
    )
    step(network, optimizer)
    return network, optimizer


def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    network(torch.ones(1, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_checkpoint_brings_everything_back(tmp_path: Path, kind: str) -> None:
    network, optimizer = trained(kind)
    position = Position(3, 7, 70, 1.5, {"loss": -2.25})
    torch.manual_seed(5)
    save_checkpoint(RunFolder(tmp_path), network, optimizer, position, {"scale": 65536.0})
    expected = torch.rand(3)
    step(network, optimizer)
    other, its_optimizer = trained(kind)
    for _ in range(3):
        step(other, its_optimizer)
    assert load_checkpoint(RunFolder(tmp_path), other, its_optimizer) == (position, {"scale": 65536.0})
    assert torch.equal(torch.rand(3), expected)
    step(other, its_optimizer)
    assert torch.equal(other.weight, network.weight)  # type: ignore[arg-type]


def test_a_run_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = create(folder)
    run.write("config", {"seed": 0})
    run.write("environment", {})
    with pytest.raises(UserError, match=r"run is already a run. .*--resume .*run.*`overwrite=True`.*`out`"):
        create(folder)
    (folder / "old").touch()
    (folder / "last").mkdir()
    create(folder, overwrite=True)
    assert sorted(each.name for each in folder.iterdir()) == [".lock", "old"], "what is not a run's stays"


def test_a_folder_that_is_not_a_run_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(UserError, match="exists and is not a run. Please choose another `out`.$"):
        create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.doc").exists()


@pytest.mark.parametrize("lock", [False, True])
def test_a_folder_that_only_looks_like_the_beginning_of_a_run_is_not_touched(tmp_path: Path, lock: bool) -> None:
    """Other programs have a config.json too: without our lock, or with anything else, it is theirs."""
    (tmp_path / "config.json").write_text("theirs")
    if lock:
        (tmp_path / ".lock").touch()
        (tmp_path / "thesis.doc").touch()
    with pytest.raises(UserError, match="exists and is not a run. Please choose another `out`.$"):
        create(tmp_path, overwrite=True)
    assert (tmp_path / "config.json").read_text() == "theirs"


def test_an_old_run_that_is_half_removed_can_be_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever replaces a run may be stopped as they remove the old one."""
    run, names, unlink = (
        create(tmp_path / "run"),
        ("images", "config", "classes", "environment", "results"),
        Path.unlink,
    )
    for allowed in range(len(names)):
        for name in names:
            run.write(name, {})
        left = [allowed]

        def stopped(self: Path, missing_ok: bool = False, left: list[int] = left) -> None:
            if self.suffix == ".json":
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
            unlink(self, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", stopped)
            with pytest.raises(KeyboardInterrupt):
                create(run.folder, overwrite=True)
        create(run.folder, overwrite=True)
        assert [each.name for each in run.folder.iterdir()] == [".lock"]


def test_an_error_names_the_file_that_a_disk_was_full_for(tmp_path: Path) -> None:
    """Also where it comes when the file is closed, and is tried again."""
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as full:  # noqa: SIM117 - what is outside counts
        with errors_name(tmp_path / "full"), (tmp_path / "full").open("a") as file:
            file.write("some")
    assert full.value.filename == str(tmp_path / "full")


def test_metrics_survive_a_line_cut_short_and_forget_what_is_trained_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch, "loss": -epoch})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [line["epoch"] for line in run.epochs()] == [1, 2, 3]
    run.forget_after(2)
    assert run.epochs() == [{"epoch": 1, "loss": -1}, {"epoch": 2, "loss": -2}]


def test_runs_are_listed_with_their_state(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run = create(tmp_path / name)
        run.write("config", {"seed": 0})
        run.write("environment", environment())
    assert [run.folder.name for run in listed(tmp_path)] == ["a", "b"]
    run = open_run(tmp_path / "b")
    assert run.state == "started"
    network, optimizer = trained("sgd")
    save_checkpoint(run, network, optimizer, Position())
    assert run.state == "interrupted"
    run.write("results", {})
    assert run.state == "finished"
    assert run.read("calibration") is None


def test_errors_of_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^no run in .*: config.json or environment.json is missing. `tammes runs` lists"
    ):
        open_run(tmp_path)
    network, optimizer = trained("sgd")
    with pytest.raises(UserError, match="has no checkpoint: it was stopped before the end of its first epoch.$"):
        load_checkpoint(RunFolder(tmp_path), network, optimizer)


def test_the_environment_names_versions_and_machine() -> None:
    said = environment()
    assert said["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert said["cores"] >= 1


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_fused_optimizer_goes_on_alike_where_weights_have_their_channels_last(tmp_path: Path, kind: str) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
        if kind == "adam":
            optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, fused=True)
        return network, optimizer

    def steps(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            network(images.contiguous(memory_format=torch.channels_last)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    network, optimizer = made()
    steps(network, optimizer)
    save_checkpoint(RunFolder(tmp_path), network, optimizer, Position())
    steps(network, optimizer)
    other, its_optimizer = made()
    load_checkpoint(RunFolder(tmp_path), other, its_optimizer)
    steps(other, its_optimizer)
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_frozen_weights_are_kept_once_and_not_in_every_checkpoint(tmp_path: Path) -> None:
    def network(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        layers[0].requires_grad_(False)
        return layers

    run, first, other = RunFolder(tmp_path), network(0), network(1)
    optimizer = torch.optim.SGD([each for each in first.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    save_frozen(run, first)
    save_checkpoint(run, first, optimizer, Position())
    assert set(load_file(tmp_path / "frozen.safetensors")) == {"0.weight", "0.bias"}
    assert not any(name.startswith("model/0") for name in load_file(tmp_path / "checkpoint.safetensors"))
    load_weights(run, other)
    load_checkpoint(run, other, torch.optim.SGD(other[1:].parameters(), lr=0.1, momentum=0.9))
    for name, tensor in first.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_a_run_in_which_all_trains_has_no_frozen_weights(tmp_path: Path) -> None:
    save_frozen(RunFolder(tmp_path), nn.Linear(2, 2))
    assert not (tmp_path / "frozen.safetensors").exists()
