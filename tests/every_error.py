"""Does some test cause every error that a user can cause? `pytest --every-error`, as in `make test`, asks at its end.

Seen are errors that are made in the test processes themselves. One that is caused in another process only is named in
ELSEWHERE, with a test in which its words stand. One that is caused only by tests that not every machine can run is
named in SKIPPABLE, and excused where such a test was skipped; no other is.
"""

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import ERRORS, SRC, in_words

TESTS = Path(__file__).parent
# Tests, and the errors that they cause in another process, as docs/errors.md has them.
_ELSEWHERE = {
    "test_errors_for_input_of_the_wrong_shape_or_type": (
        "reduction must be 'sum' or 'mean', got {reduction}.",
        "centroids must be floating point of shape (classes, dim), or a number of classes for one-hot"
        " ones; got {dtype} of shape {shape}.",
        "embeddings must be floating point, got {dtype}.",
        "labels must be integers, got {dtype}. Use labels.long().",
        "one label for each embedding: {number of embeddings} embeddings, labels of shape {shape}.",
        "ranked must have shape (queries, depth) and labels (queries,), got {shape} and {shape}.",
    ),
    "test_wrong_kinds_of_values": (
        "generator must be such as torch.Generator().manual_seed(0), got {generator}.",
        "{what} must be a whole number, got {value}.",
        "centroids must be a tensor of shape (classes, dim), or a whole number of classes for one-hot"
        " ones; got {centroids}.",
        "{name} must be a tensor, got {name}: torch.as_tensor({name}) makes one.",
        "{what} must be a list of whole numbers, such as {what}=[1, 2], got {given}.",
        "{what} must be a tensor that holds all of its numbers, got {kind}.",
        "{what} must be a tensor of numbers that NumPy knows, got {dtype}. Use {what}.dequantize(), or {what}.float().",
        "{what} must be a table or a list of one kind: its rows are not of one length.",
        "groups must be whole numbers, the same for tied items, got {dtype}.",
        "relevant must be {queries} whole numbers, how many items of its class each query could find; got {dtype} of"
        " shape {shape}.",
    ),
    "test_a_folder_that_is_no_more": ("the folder that this was started in is no more. Go to another one: cd FOLDER",),
    "test_what_all_find_wrong_is_said_once": (
        "vectors are learned from in one process: start it with `tammes train {data}` alone.",
    ),
    "test_a_model_goes_to_the_hub_and_comes_back": (
        "no model {name} on the hub, or it is private: log in with `hf auth login`.",
    ),
    "test_a_model_that_cannot_be_fetched_says_why": (
        "cannot reach the hub for {name}, and it is not in the cache. Try again when it can be.",
        "cannot fetch {name} from the hub: {why}",
    ),
    "test_a_push_that_fails_says_why_and_to_log_in_only_where_that_helps": (
        "cannot push to {name}: the hub says {status}, {error}",
        "cannot push to {name}: the hub cannot be reached ({error}).",
        "cannot push to {name}: the hub says {status}, you may not write there. Log in with `hf auth login`.",
    ),
    "test_what_another_than_the_first_finds_wrong_has_its_number": (
        "process {rank} of {number} has lost the others: one of them has ended, and its own last words"
        " are elsewhere in this output. Once that is put right, go on from the last checkpoint: start"
        " the same launcher with `train --resume RUN`. ({error})",
        "process {rank} of {number}: {error}",
    ),
}
ELSEWHERE = {text: test for test, texts in _ELSEWHERE.items() for text in texts}
# The same, and the tests that alone cause it; they need more than `make test` can install, such as the rights of root.
SKIPPABLE: dict[str, tuple[str, ...]] = {
    "cannot write to {folder}: {strerror}.": ("test_folders_that_cannot_be_written_are_named",),
}
_SEEN: set[tuple[str, int]] = set()
_OF_WORKERS: set[tuple[str, int]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-error", action="store_true", help="fail if no test causes one of the errors of tammes")


@pytest.hookimpl(trylast=True)  # the check of shapes is set up before anything of tammes is imported
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--every-error"):
        _watch()


def _watch() -> None:
    """Note where in the code each error is made."""
    from tammes.errors import UserError

    def made(self: UserError, *words: object) -> None:
        ValueError.__init__(self, *words)
        frame = sys._getframe(1)
        while frame.f_back is not None and Path(frame.f_code.co_filename).parent == TESTS:
            frame = frame.f_back
        _SEEN.add((frame.f_code.co_filename, frame.f_lineno))

    UserError.__init__ = made  # type: ignore[method-assign, assignment]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.getoption("--every-error"):
        return
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["errors"] = sorted(_SEEN)
        return
    untouched = not_caused(sites(), _SEEN | _OF_WORKERS, literals_of_tests(), skipped(session))
    if untouched:
        session.config.get_terminal_writer().line(
            "\n".join(["", "No test causes these errors; pin their text in tests/test_errors.py:", *untouched])
        )
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    _OF_WORKERS.update((file, line) for file, line in getattr(node, "workeroutput", {}).get("errors", ()))


def skipped(session: pytest.Session) -> set[str]:
    """The names of the tests that were left out, as whoever may not mount a disk does."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    return {name_of(each.nodeid) for each in reporter.stats.get("skipped", ())}


def name_of(nodeid: str) -> str:
    """The function of a test, without its file, its parameters, and the group that pytest-xdist notes behind it."""
    return re.split(r"[\[@]", nodeid.rpartition(".py::")[2])[0]


def not_caused(
    found: Iterable[tuple[str, int, str]],
    seen: set[tuple[str, int]],
    literals: Mapping[str, list[str]],
    left_out: set[str],
) -> list[str]:
    """The errors that no test causes, of those that were found in the code.

    Args:
        seen: where errors were made, file and line.
        literals: the texts in each test, by its name.
        left_out: names of tests that were skipped.
    """
    return [
        f"{file}:{line}: {text}"
        for file, line, text in found
        if (file, line) not in seen
        and not (text in ELSEWHERE and stands_in(text, literals.get(ELSEWHERE[text], [])))
        and not left_out.intersection(SKIPPABLE.get(text, ()))
    ]


def literals_of_tests() -> dict[str, list[str]]:
    """The texts in each test, by its name: what escapes characters is left out."""
    modules = [ast.parse(file.read_text()) for file in TESTS.rglob("test_*.py")]
    return {
        node.name: literals(node, module)
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def literals(test: ast.FunctionDef, module: ast.Module) -> list[str]:
    """The texts in a test and in what it names of its module's tables; neither its comments nor its docstring."""
    body = [*test.decorator_list, *test.body[ast.get_docstring(test) is not None :]]
    nodes = [node for part in body for node in ast.walk(part)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    for table in module.body:
        if isinstance(table, ast.Assign) and any(isinstance(to, ast.Name) and to.id in names for to in table.targets):
            nodes += ast.walk(table.value)
    texts = [in_words(node) for node in nodes if isinstance(node, ast.JoinedStr)]
    texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text.replace("\\", "") for text in texts]


def stands_in(text: str, literals: Iterable[str]) -> bool:
    """Whether one of the texts of a test has the beginning of all that an error says between what is put into it."""
    parts = [re.sub(r"^\W+|\W+$", "", part).split()[:4] for part in re.split(r"\{[^}]*\}", text)]
    # One word alone says little, and tests need not have it, unless there is no more.
    words = [" ".join(part) for part in parts if len(part) > 1] or [part[0] for part in parts if part]
    return bool(words) and any(all(part in literal for part in words) for literal in literals)


def sites() -> list[tuple[str, int, str]]:
    """Every place in the code that makes an error with words of its own: file, line, text."""
    found = []
    for file in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                found.append((str(file), node.lineno, in_words(node.args[0])))
    return found
