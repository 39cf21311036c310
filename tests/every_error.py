"""Does some test cause every error that a user can cause? `pytest --every-error`, as in `make test`, asks at its end.

Seen are errors that are made in the test processes themselves. Of one that is caused in another process, the words must
stand in a test; one that has too few of its own is named in ELSEWHERE, with its test.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import ERRORS, SRC, in_words

ELSEWHERE = {"process {rank} of {number}: {error}": "test_what_another_than_the_first_finds_wrong_has_its_number"}
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
        while frame.f_back is not None and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
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
    words, seen = words_of_tests(), _SEEN | _OF_WORKERS
    untouched = [
        f"{file}:{line}: {text}"
        for file, line, text in sites()
        if (file, line) not in seen and not stands_in(text, words) and not _is_elsewhere(text, words)
    ]
    if untouched:
        session.config.get_terminal_writer().line(
            "\n".join(["", "No test causes these errors; pin their text in tests/test_errors.py:", *untouched])
        )
        if not own_skips(session):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    _OF_WORKERS.update((file, line) for file, line in getattr(node, "workeroutput", {}).get("errors", ()))


def own_skips(session: pytest.Session) -> bool:
    """Whether a test of ours was left out, as whoever may not mount a disk does: an error may be caused there."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    places = [Path(session.config.rootpath, str(each.longrepr[0])) for each in reporter.stats.get("skipped", ())]
    return any(place.is_relative_to(Path(__file__).parent) for place in places)


def words_of_tests() -> str:
    """All tests, texts over several lines put together and what escapes characters left out."""
    tests = "".join(file.read_text() for file in Path(__file__).parent.rglob("*.py"))
    return re.sub(r'"\s*\n\s*[rf]{0,2}"', "", tests).replace("\\", "")


def stands_in(text: str, words: str) -> bool:
    """Whether the beginnings of all that a text says between what is put into it do, four words or more in all."""
    parts = [re.sub(r"^\W+|\W+$", "", part).split()[:4] for part in re.split(r"\{[^}]*\}", text)]
    parts = [part for part in parts if len(part) > 1]
    return sum(map(len, parts)) > 3 and all(" ".join(part) in words for part in parts)


def _is_elsewhere(text: str, words: str) -> bool:
    return text in ELSEWHERE and f"def {ELSEWHERE[text]}(" in words


def sites() -> list[tuple[str, int, str]]:
    """Every place in the code that makes an error with words of its own: file, line, text."""
    found = []
    for file in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                found.append((str(file), node.lineno, in_words(node.args[0])))
    return found
