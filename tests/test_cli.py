"""What all commands share: completion, quiet, colours; every command and option is documented."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tammes.cli import COMMANDS, QUIET, main, without_flag
from tammes.io.console import print_json, progress, say, working
from tammes.io.environment import colours


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", shell])
    script = capsys.readouterr().out
    for word in (*COMMANDS, "with-preprocessing"):
        assert word in script, word


def test_bash_takes_the_script_and_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    (tmp_path / "tammes").write_text(capsys.readouterr().out)
    ask = f"source {tmp_path / 'tammes'}; complete -p tammes"
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("complete ")


def test_quiet_leaves_out_all_but_results_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses", "npair", "-q"])
    log = tmp_path / "log.txt"
    say("to a person", log)
    with working("on it"), progress("on it") as on_progress:
        on_progress(1, 2)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("npair")
    assert log.read_text() == "to a person\n"
    with pytest.raises(SystemExit):
        main(["--quiet", "losses", "nothing"])
    assert capsys.readouterr().err.startswith("tammes: unknown loss 'nothing'.")
    main(["losses", "npair"])
    say("again")
    assert capsys.readouterr().err == "again\n"


@pytest.mark.parametrize("flag", ["-q", "--quiet", "--debug"])
def test_a_flag_is_not_taken_from_where_a_value_should_be(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["train", "glyphs", "--out", flag, "--epochs", "1"])
    assert "Missing value for argument '--out'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["losses", "--", flag])
    assert f"unknown loss '{flag}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "kept", "found"),
    [
        (["-q", "losses"], ["losses"], True),
        (["losses", "--json", "-q"], ["losses", "--json"], True),
        (["train", "a", "--out", "b", "-q", "--seed", "1"], ["train", "a", "--out", "b", "--seed", "1"], True),
        (["train", "a", "--val_classes", "-q"], ["train", "a", "--val_classes", "-q"], False),
        (["train", "a", "--mirror", "-q"], ["train", "a", "--mirror", "-q"], False),
        (["-q", "losses", "--", "-q"], ["losses", "--", "-q"], True),
        (["nothing", "-q"], ["nothing"], True),
    ],
)
def test_where_a_flag_of_every_command_may_stand(given: list[str], kept: list[str], found: bool) -> None:
    assert without_flag(given, QUIET) == (kept, found)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_respected(no_color: str) -> None:
    """In a terminal: the help, and an error."""
    seen = {}
    for command in (["--help"], ["nothing"]):
        parent, child = pty.openpty()
        own = os.environ | {"NO_COLOR": no_color, "TERM": "xterm-256color"}
        with subprocess.Popen(
            [sys.executable, "-m", "tammes", *command], stdout=child, stderr=child, env=own
        ) as process:
            os.close(child)
            content = b""
            while True:
                try:
                    part = os.read(parent, 1 << 16)
                except OSError:  # how the end of a terminal looks
                    break
                if not part:
                    break
                content += part
            process.wait(timeout=60)
        os.close(parent)
        seen[tuple(command)] = any(f"\033[{code}".encode() in content for code in ("1;3", "3", "9"))
    assert seen == {("--help",): no_color == "", ("nothing",): no_color == ""}


def test_colours_follow_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, _ = COMMANDS[name]
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert (kind.__doc__ or "").splitlines()[0][:40] in shown.replace("\n", " ")
    source = Path(sys.modules[kind.__module__].__file__ or "").read_text()
    for field in fields(kind):
        after = source.partition(f"\n    {field.name}: ")[2].split("\n    ", 2)
        assert '"""' in source.partition(f"\n    {field.name}: ")[2][:600], f"{name}: {field.name} ({after[:1]})"


def test_what_is_not_finite_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"speed": float("inf"), "rates": [float("nan"), 0.5], "file": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"speed": None, "rates": [None, 0.5], "file": "a"}


def test_a_run_that_is_removed_is_said_in_json(waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", str(waves), "--out", str(run), "--backbone", "conv4", "--dim", "8", "--epochs", "1"])
    capsys.readouterr()
    main(["runs", "--remove", str(run), "--json"])
    assert json.loads(capsys.readouterr().out) == {"removed": str(run), "left": []}
    assert not run.exists()
