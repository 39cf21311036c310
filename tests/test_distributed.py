"""Several processes train together: to the weights of one, by every method; one writes; all stop, fail and go on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tammes import UserError
from tammes.cli import main
from tammes.losses import METHODS
from tammes.training import distributed
from tammes.training.objectives import MORE_THAN_LOSSES
from tests.conftest import HANGS
from tests.several_processes import (
    ALIKE,
    BORROWED,
    DRAWING,
    both,
    exit_code,
    forks,
    one_fails,
    one_hangs,
    one_is_killed,
    process,
    stopped_after,
    trained,
    without_batch_norm,
)

pytestmark = pytest.mark.xdist_group("processes")

SMALL = ("--backbone", "conv4", "--dim", "16", "--shift", "2", "--lr", "0.005", "--backbone-lr", "0.005")
# 18 training images: of the last batch, one image, the second process has nothing.
WHOLE = ("--epochs", "4", "--batch-size", "17", "--val-classes", "1", *SMALL)


def a_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(number: int, folder: Path, work: Any, *given: Any) -> list[Any]:
    """Processes as a launcher starts them; forks of one that has imported what they need."""
    context, port = forks(), a_free_port()
    found = [
        context.Process(target=process, args=(rank, number, port, folder / f"said {rank}", work, *given), daemon=True)
        for rank in range(number)
    ]
    for each in found:
        each.start()
    return found


def ended(started: list[Any], folder: Path, seconds: float = HANGS) -> list[int]:
    """How processes ended; all that they said if one does not."""
    until = time.monotonic() + seconds
    for each in started:
        each.join(max(0.1, until - time.monotonic()))
    codes = [each.exitcode for each in started]
    if None in codes:
        for each in started:
            each.kill()
        pytest.fail("".join((folder / f"said {rank}").read_text() for rank in range(len(started))))
    return codes


@pytest.fixture(scope="module")
def two(waves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have done, started once for all tests, and beside it what one does."""
    folder = tmp_path_factory.mktemp("two")
    with without_batch_norm():
        main(["train", str(waves), "--out", str(folder / "alone"), *WHOLE])
        with stopped_after(7, here=True):
            assert exit_code("train", str(waves), "--out", str(folder / "interrupted"), *WHOLE) == 130
        smart = (
            "--loss",
            "triplet-smart",
            "--epochs",
            "2",
            "--batch-size",
            "15",
            *SMALL[:-3],
            "0.001",
            "--backbone-lr",
            "0.001",
        )
        main(["train", str(waves), "--out", str(folder / "smart alone"), *smart])
    commands = {
        "train": ("train", str(waves), "--out", str(folder / "together"), *WHOLE),
        "again": ("train", str(waves), "--out", str(folder / "together"), *WHOLE),
        "smart": ("train", str(waves), "--out", str(folder / "smart"), *smart),
        "broken": ("train", str(waves), "--out", str(folder / "broken"), *WHOLE, "--lr", "1e30"),
        "no data": ("train", str(folder / "nowhere")),
        "vectors": ("train", str(folder / "vectors.npz")),
    }
    to_stop = ("train", str(waves), "--out", str(folder / "stopped"), *WHOLE)
    started = start(2, folder, both, folder, commands, to_stop, folder / "interrupted")
    assert ended(started, folder) == [0, 0], (folder / "said 0").read_text() + (folder / "said 1").read_text()
    return folder


def codes(two: Path, name: str) -> list[int]:
    return [literal_eval((two / f"codes {rank}").read_text())[name] for rank in range(2)]


def said(two: Path, rank: int, name: str) -> str:
    """What a process said of a command."""
    parts = (two / f"said {rank}").read_text().split("--- ")[1:]
    names = list(literal_eval((two / f"codes {rank}").read_text()))
    return str(dict(zip(names, parts, strict=True))[name]).partition("\n")[2]


def close(one: Path, other: Path) -> None:
    first, second = (load_file(folder / "embedder.safetensors") for folder in (one, other))
    # Adam divides by the size of a gradient: of a tiny one the last digits are a good part of a step (0.005).
    torch.testing.assert_close(first, second, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", [*ALIKE, *BORROWED])
def test_two_processes_come_to_the_weights_of_one(two: Path, name: str) -> None:
    with without_batch_norm():
        alone = trained(name)
    first, second = (load_file(two / f"{name} {rank}") for rank in range(2))
    assert all(torch.equal(first[each], second[each]) for each in first)
    torch.testing.assert_close(first, dict(alone), atol=1e-5, rtol=1e-4)
    assert first["moved"] > 1e-4


@pytest.mark.parametrize("name", DRAWING)
def test_processes_that_draw_each_for_themselves_keep_the_same_weights(two: Path, name: str) -> None:
    first, second = (load_file(two / f"{name} {rank}") for rank in range(2))
    assert all(torch.equal(first[each], second[each]) for each in first)


def test_every_method_is_trained_by_two_processes() -> None:
    assert {*ALIKE, *DRAWING, "triplet-smart"} == {*METHODS, *MORE_THAN_LOSSES}


def test_a_run_of_two_processes_has_the_weights_of_one(two: Path) -> None:
    assert codes(two, "train") == [0, 0]
    close(two / "together", two / "alone")
    lines = [
        [json.loads(line) for line in (two / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("together", "alone")
    ]
    assert [line["loss"] for line in lines[0]] == pytest.approx([line["loss"] for line in lines[1]], abs=1e-5)


def test_evaluation_in_two_processes_is_that_of_one_to_the_last_digit(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((two / "together" / "results.json").read_text())
    assert results["untrained"] == json.loads((two / "alone" / "results.json").read_text())["untrained"]
    with without_batch_norm():
        main(["evaluate", str(two / "together"), "--json"])
    again = json.loads(capsys.readouterr().out)["trained"]
    assert {name: again[name] for name in results["trained"]} == results["trained"]


def test_a_method_that_mines_over_all_images_has_the_same_triplets(two: Path) -> None:
    assert codes(two, "smart") == [0, 0]
    close(two / "smart", two / "smart alone")


def test_only_the_first_process_writes_and_speaks(two: Path) -> None:
    assert "epoch   4" in said(two, 0, "train")
    assert said(two, 1, "train") == ""
    assert len((two / "together" / "metrics.jsonl").read_text().splitlines()) == 4
    assert "2 processes" in (two / "together" / "log.txt").read_text()


def test_what_only_the_first_finds_wrong_ends_all_and_is_said_once(two: Path) -> None:
    assert codes(two, "again") == [2, 2]
    assert said(two, 0, "again").startswith(f"tammes: {two / 'together'} is already a run.")
    assert said(two, 1, "again") == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "the loss is not a finite number at epoch 1"),
        ("no data", "no such folder"),
        ("vectors", "training on vectors takes one process"),
    ],
)
def test_what_all_find_wrong_is_said_once(two: Path, name: str, text: str) -> None:
    assert codes(two, name) == [2, 2]
    assert text in said(two, 0, name)
    assert "tammes: " not in said(two, 1, name)


def test_what_another_than_the_first_finds_wrong_has_its_number(tmp_path: Path) -> None:
    assert ended(start(2, tmp_path, one_fails), tmp_path) == [0, 0]
    assert (tmp_path / "said 1").read_text().splitlines()[-1] == "process 1 of 2: no room here."
    assert "process 0 of 2 has lost its connection to the others" in (tmp_path / "said 0").read_text()


def test_a_process_that_hangs_is_named_and_waited_for(tmp_path: Path) -> None:
    started, log = start(2, tmp_path, one_hangs), tmp_path / "said 0"
    state = Path(f"/proc/{started[1].pid}/stat")
    assert comes_true(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
    named = comes_true(lambda: "no sign of process 1 of 2" in log.read_text())
    os.kill(started[1].pid, signal.SIGCONT)
    assert ended(started, tmp_path) == [0, 0]
    assert named, log.read_text()


def comes_true(what: Callable[[], bool], seconds: float = HANGS) -> bool:
    until = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def test_all_stop_when_one_is_asked_and_one_process_goes_on(two: Path) -> None:
    assert codes(two, "stopped") == [130, 130]
    assert (two / "stopped" / "checkpoint.safetensors").exists()
    with without_batch_norm():
        main(["train", "--resume", str(two / "stopped")])
    close(two / "stopped", two / "alone")


def test_two_processes_go_on_with_a_run_of_one(two: Path) -> None:
    assert codes(two, "resumed") == [0, 0]
    close(two / "interrupted", two / "alone")


def test_a_killed_process_ends_the_others_with_what_to_do_and_the_run_goes_on(waves: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("--epochs", "9", "--batch-size", "8", "--test-classes", "0", *SMALL)
    words = ("train", str(waves), "--out", str(run), *options)
    started = start(2, tmp_path, one_is_killed, 10, *words)  # in the second epoch
    assert ended(started, tmp_path) == [2, -signal.SIGKILL]
    text = (tmp_path / "said 0").read_text()
    assert "tammes: process 0 of 2 has lost its connection to the others" in text
    assert "train --resume" in text
    with stopped_after(1, here=True):
        assert exit_code("train", "--resume", str(run)) == 130


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_launchers_start_the_same_command(launcher: str, waves: Path, tmp_path: Path) -> None:
    """As docs/scale.md has it; without a GPU accelerate's --multi_gpu starts processes of the CPU all the same."""
    own = {"torchrun": ("--nproc-per-node", "2"), "accelerate": ("launch", "--multi_gpu", "--num_processes", "2")}
    port = {"torchrun": "--master-port", "accelerate": "--main_process_port"}[launcher]
    script = Path(sys.executable).with_name(launcher)
    launch = (str(script), *own[launcher], port, str(a_free_port()), "-m", "tammes")
    options = ("--epochs", "2", "--batch-size", "8", "--test-classes", "1", *SMALL)
    done = subprocess.run(
        [*launch, "train", str(waves), "--out", str(tmp_path / "run"), *options],
        capture_output=True, text=True, check=False, timeout=HANGS, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cpu:0, 2 processes" in done.stderr
    assert done.stderr.count("epoch   2") == 1
    assert (tmp_path / "run" / "embedder.safetensors").exists()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_batch_norm_over_all_processes_is_for_gpus(waves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", str(waves), "--sync-batch-norm") == 2
    assert "tammes: --sync-batch-norm is for several GPUs: leave it out." in capsys.readouterr().err


def test_who_cannot_meet_the_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    text = "^process 1 of 2 could not connect to the others: .*unset RANK and WORLD_SIZE.$"
    with pytest.raises(UserError, match=text), distributed.joined():
        pass


def test_alone_there_is_nobody_to_ask() -> None:
    assert (distributed.rank(), distributed.number(), distributed.is_first()) == (0, 1, True)
    assert distributed.summed([1, 2]) == [1, 2]
    assert distributed.in_any(True, False) == [True, False]
    with distributed.joined():
        assert distributed.agreed(lambda: 3) == 3


def ip(*arguments: str) -> str:
    """Ask the system for something about its network."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, 10.201.7.1 and 10.201.7.2, as good as two hosts."""
    if shutil.which("ip") is None:
        pytest.skip("no `ip` to make network namespaces with: apt-get install iproute2")
    names = (f"tammes-{os.getpid()}-a", f"tammes-{os.getpid()}-b")
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.201.7.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def sent(host: str) -> int:
    """Bytes that a host has sent to the other."""
    return int(json.loads(ip("-n", host, "-json", "-statistics", "link", "show", "cable"))[0]["stats64"]["tx"]["bytes"])


@pytest.mark.slow
def test_two_hosts_train_together_and_one_killed_ends_the_other_and_the_run_goes_on(
    waves: Path, tmp_path: Path, hosts: tuple[str, str]
) -> None:
    run = tmp_path / "run"
    options = ("--epochs", "2000", "--batch-size", "8", "--test-classes", "0", *SMALL)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    started = []
    for number, host in enumerate(hosts):
        launcher = ("torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number))
        where = ("--master-addr", "10.201.7.1", "--master-port", "29511", "-m", "tammes")
        words = ["ip", "netns", "exec", host, sys.executable, "-m", *launcher, *where]
        with (tmp_path / f"said {number}").open("wb") as said:
            started.append(
                subprocess.Popen(
                    [*words, "train", str(waves), "--out", str(run), *options], stderr=said, env=environment
                )
            )

    def epochs() -> int:
        return len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0

    try:
        until = time.monotonic() + HANGS
        while epochs() < 2 and time.monotonic() < until and all(each.poll() is None for each in started):
            time.sleep(0.05)
        first, before = epochs(), sent(hosts[0])
        while epochs() < first + 20 and time.monotonic() < until:
            time.sleep(0.01)
        steps, num_bytes = 6 * (epochs() - first), sent(hosts[0]) - before
        print(f"{num_bytes / steps:.0f} bytes a step")
        assert num_bytes / steps == pytest.approx(4 * 113_112, rel=0.05)  # once each weight's gradient, and little else
        worker = int(Path(f"/proc/{started[1].pid}/task/{started[1].pid}/children").read_text().split()[0])
        os.kill(worker, signal.SIGKILL)
        assert [each.wait(HANGS) for each in started] == [1, 1]
    finally:
        for each in started:
            each.kill()
    assert "tammes: process 0 of 2 has lost its connection to the others" in (tmp_path / "said 0").read_text()
    with stopped_after(1, here=True):
        assert exit_code("train", "--resume", str(run)) == 130
