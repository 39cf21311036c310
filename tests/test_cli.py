"""What all commands share: completion, quiet, colours; every command and option is documented."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro
from typing_extensions import TypedDict

from tammes.cli import COMMANDS, QUIET, arguments, main, parsed, without_flag
from tammes.cli import help as help_pages
from tammes.cli.arguments import options_of, parse
from tammes.cli.help import COMMON
from tammes.errors import UserError
from tammes.io.console import print_json, progress, say, working
from tammes.io.environment import colours
from tests.conftest import HANGS


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
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=HANGS)
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
    assert "--out needs a value" in capsys.readouterr().err
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
        (["train", "a", "--loss", "-q"], ["train", "a", "--loss", "-q"], False),
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
            process.wait(timeout=HANGS)
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
    main([name, "--help-all"])
    shown = capsys.readouterr().out
    assert (kind.__doc__ or "").splitlines()[0][:40] in shown.replace("\n", " ")
    for option in options_of(kind):
        assert option.text, option.flag
        assert f"\n  {option.flag}" in shown
    assert "--help-all" not in shown


@pytest.mark.parametrize("given", [[], ["-h"], ["--help"], ["--help-all"]])
def test_the_first_page_is_one_screen(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(given)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 100
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert sorted(listed) == sorted(COMMANDS)


def test_help_shows_what_most_people_use_and_help_all_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--help"])
    common = capsys.readouterr().out
    main(["train", "photos", "--help-all", "--help"])
    everything = capsys.readouterr().out
    assert common.splitlines()[-1] == "--help-all shows all options."
    for page, hidden in ((common, True), (everything, False)):
        assert "--epochs INT" in page
        assert ("--sync-batch-norm" not in page) == hidden


@pytest.mark.parametrize("name", sorted(COMMON))
def test_common_options_exist(name: str) -> None:
    assert set(COMMON[name]) <= {option.name for option in options_of(COMMANDS[name][0])}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train x --epochs three", "--epochs needs a whole number, got 'three'."),
        ("train x --epochs=three", "--epochs needs a whole number, got 'three'."),
        ("train x --dim 1.5", "--dim needs a whole number, got '1.5'."),
        ("train x --weight-decay much", "--weight-decay needs a number, got 'much'."),
        ("train v.npz --hidden 8 wide", "--hidden needs a whole number, got 'wide'."),
        ("train x --optimizer adm", "--optimizer must be sgd or adam, got 'adm'. Did you mean 'adam'?"),
        ("train x --epochs", "--epochs needs a value"),
        ("train x --epochs --seed 1", "--epochs needs a value"),
        ("train x --epoch 3", "unknown option --epoch. Did you mean --epochs?"),
        ("train x -e 3", "unknown option -e."),
        ("train x --rate 3", "unknown option --rate. `tammes train --help-all` lists all."),
        ("train x y", "one word too many: 'y'."),
        ("train x epochs", "one word too many: 'epochs'. Did you mean --epochs?"),
        ("losses --json=yes", "--json takes no value, got 'yes'."),
        ("centroids 3", "DIM is missing: tammes centroids NUM_CLASSES DIM"),
        ("centroids three 4", "NUM_CLASSES needs a whole number, got 'three'."),
        ("centroids 3 -4 5", "one word too many: '5'."),
        ("data cub", "--to FOLDER is missing: tammes data NAME --to FOLDER"),
        ("search gallery photo.jpg -k many", "-k needs a whole number, got 'many'."),
        ("search gallery photo.jpg --k many", "-k needs a whole number, got 'many'."),
        ("completion tcsh", "SHELL must be bash, zsh or fish, got 'tcsh'."),
        ("--json losses", "--json"),
    ],
)
def test_wrong_words_are_explained_in_a_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^2$"):
        main(words.split())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"tammes: {said}")
    assert len(printed.err.splitlines()) == 1


def test_what_we_cannot_explain_is_said_as_tyro_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "mistakes", lambda *_: iter(()))
    with pytest.raises(UserError, match="--dim") as error:
        parsed(["train", "--dim", "x"])
    assert str(error.value).isascii()


class Typed(TypedDict, total=False):
    """Do something."""

    data: Annotated[str, tyro.conf.Positional]
    """What to do it with."""
    epochs: int
    """How often."""
    init: Literal["random", "pca"]
    """What it begins as."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Where."""
    hidden: tuple[int, ...]
    """Widths."""
    json: bool
    """Print one JSON object."""
    class_layer: Annotated[bool, tyro.conf.FlagCreatePairsOff]
    """Leave out the class layer."""


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("", {}),
        ("photos --epochs 3", {"data": "photos", "epochs": 3}),
        ("--json --no-class-layer", {"json": True, "class_layer": False}),
        ("--hidden 3 4 --out a --init pca", {"hidden": (3, 4), "out": Path("a"), "init": "pca"}),
    ],
)
def test_a_typed_dict_holds_what_was_typed(words: str, value: dict[str, Any]) -> None:
    assert parse("typed", Typed, words.split()) == value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--epochs x", "--epochs needs a whole number, got 'x'."),
        ("--init pcb", "--init must be random or pca, got 'pcb'. Did you mean 'pca'?"),
        ("--no-json --epoc 1", "unknown option --epoc. Did you mean --epochs?"),
        ("a b", "one word too many: 'b'."),
    ],
)
def test_wrong_words_for_a_typed_dict_are_explained(words: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse("typed", Typed, words.split())
    assert str(error.value).startswith(said)


def test_the_help_of_a_typed_dict() -> None:
    page = help_pages.page("typed", Typed, everything=True)
    assert page.startswith("usage: tammes typed [DATA] [options]\n\nDo something.\n")
    for line in (
        "DATA  What to do it with.",
        "--init {random,pca}  What it",
        "--out FOLDER",
        "--json  ",
        "--no-class-layer",
    ):
        assert line in page, page


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
