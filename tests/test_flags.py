"""The library names the parameters of Python; the command line says the flags that are typed."""

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tammes
from tammes.cli import COMMANDS, declared, main
from tammes.cli.flags import with_flags
from tammes.cli.train import TrainVectors
from tammes.errors import UserError
from tammes.io.console import say
from tammes.serve.server import check_address, listen

SRC = Path(tammes.__file__).parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use `batch_size=16`.", "use --batch-size 16."),
        ("`val_classes` must be below 1", "--val-classes must be below 1"),
        ("add `skip_bad=True`, or `mirror=False`", "add --skip-bad, or --no-mirror"),
        ("`class_layer=False` and `class_layer`", "--no-class-layer and --class-layer"),
        ("`init='pca'`, `out='my runs/a'`", "--init pca, --out 'my runs/a'"),
        ("`curve=[1, 5]` and `loss_options={'margin': 0.2}`", "--curve 1 5 and --loss-options margin=0.2"),
        ("`weights=FILE`, `data`", "--weights FILE, DATA"),
        ("`loss` and `hidden`", "--loss and --hidden"),  # the latter is of vectors
        # What is not marked, or no option, stays: words, paths, commands, other names.
        ("the loss of train data: out, seed=0, weights", "the loss of train data: out, seed=0, weights"),
        ("runs/lr=0.1/config.json: loss=2", "runs/lr=0.1/config.json: loss=2"),
        ("`tammes train DATA --lr 1` or `recall_at_1`", "`tammes train DATA --lr 1` or `recall_at_1`"),
    ],
)
def test_marked_parameters_become_flags(text: str, expected: str) -> None:
    assert with_flags(text, declared(["train"])) == expected


def test_a_condition_can_be_typed_as_it_is_shown() -> None:
    """Words in single quotes are in double ones, unless a shell would look into those."""
    search = declared(["search"])
    assert with_flags("`where=\"colour = 'red'\"`", search) == "--where \"colour = 'red'\""
    assert shlex.split(with_flags("`where=\"colour = '$red'\"`", search)) == ["--where", "colour = '$red'"]


def test_only_options_of_the_command_become_flags() -> None:
    assert with_flags("`epochs=3` or `jobs=2`", declared(["benchmark"])) == "`epochs=3` or --jobs 2"
    assert with_flags("`epochs=3`", declared(["nothing"])) == "`epochs=3`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_can_be_named(name: str) -> None:
    for option in declared([name]):
        assert with_flags(f"`{option.name}`", declared([name])) == option.flag
    assert (name == "train") == any(option in declared([name]) for option in declared_of_vectors())


def declared_of_vectors() -> list[Any]:
    from tammes.cli.arguments import options_of

    return [option for option in options_of(TrainVectors) if option.name == "hidden"]


def training(**options: Any) -> Callable[[], object]:
    return lambda: tammes.train("glyphs", **options)


# What is refused: the call, the words of the command, what Python says of it, what the command line says.
REFUSED: list[tuple[Callable[[], object], str, str, str]] = [
    (training(batch_size=0), "train --batch-size 0", "`batch_size` must be at least 1, got 0", "--batch-size must be"),
    (training(momentum=2.0), "train --momentum 2", "`momentum` must be below 1, got 2.0", "--momentum must be below 1"),
    (training(seed=-1), "train --seed -1", "`seed` must be a whole number", "--seed must be a whole number"),
    (
        training(cut="x", train="all"),
        "train --cut x --train all",
        "`cut` is.*`train='top'`",
        "--cut is.*--train top",
    ),
    (
        training(keep_init=True),
        "train --keep-init",
        "`keep_init` freezes.*`init='pca'`",
        "--keep-init freezes.*--init pca",
    ),
    (
        training(centroid_dim=8, class_layer=False),
        "train --centroid-dim 8 --no-class-layer",
        "`centroid_dim` is.*`class_layer=False`",
        "--centroid-dim is.*--no-class-layer",
    ),
    (
        training(loss="softmax", log_bound=True),
        "train --loss softmax --log-bound",
        "`log_bound` is for.*softmax",
        "--log-bound is for.*softmax",
    ),
    (
        training(optimizer="adam", momentum=0.5),
        "train --optimizer adam --momentum 0.5",
        "`momentum` is for `optimizer='sgd'`",
        "--momentum is for --optimizer sgd",
    ),
    (training(compatible=1.0), "train --compatible 1", "`continue_from=RUN`", "--continue-from RUN"),
    (training(miner_options={"a": 1}), "train --miner-options a=1", "`miner='pml:NAME'`", "--miner pml:NAME"),
    (lambda: check_address("0.0.0.0", None), "serve . --host 0.0.0.0", "`host='0.0.0.0'`", "--host 0.0.0.0 lets"),
    (lambda: listen("127.0.0.1", -1), "serve . --port -1", "`port` must be 0 to 65535, got -1", "--port must be 0"),
]


@pytest.mark.parametrize(("call", "line", "python", "flags"), REFUSED, ids=[line for _, line, _, _ in REFUSED])
def test_an_error_speaks_to_who_made_it(
    call: Callable[[], object], line: str, python: str, flags: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=python) as error:
        call()
    assert "--" not in str(error.value)
    with pytest.raises(SystemExit) as left:
        main(line.split())
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert re.search(flags, said), said
    assert "`" not in said


def test_notes_are_worded_only_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses", "npair"])
    say("a larger `fmr` may help")
    assert capsys.readouterr().err == "a larger `fmr` may help\n"


def texts(file: Path) -> list[tuple[int, str]]:
    """Every text in a file but its docstrings, as it is put together, {} for what is put in."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    left_out = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return found


COMMAND = re.compile(
    r"tammes [a-z]+.*?(`|$)|pip install .*|\{\} --skip-bad$|the launcher's --.* and --[a-z-]+", re.DOTALL
)
WORDS = re.compile(r" ?--[\w{}-]+( \{\})?")  # of a command that is put together


def speaks_of_flags(text: str) -> bool:
    """Whether a text names a flag but in a command to type."""
    return WORDS.fullmatch(text) is None and re.search(r"(?<![\w-])--[a-z{]", COMMAND.sub("", text)) is not None


def test_the_library_speaks_of_no_flags() -> None:
    assert speaks_of_flags("lower --val-classes")
    assert speaks_of_flags("see `tammes train --help`, or add --keep-init")
    assert not speaks_of_flags("resume it: tammes train --resume {}")
    files = [file for file in sorted(SRC.rglob("*.py")) if "cli" not in file.relative_to(SRC).parts]
    named = [f"{file}:{line}: {text}" for file in files for line, text in texts(file) if speaks_of_flags(text)]
    assert named == []
