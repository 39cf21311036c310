"""Messages during work: lines, progress bars, interruptions. Results are printed by the commands."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from tammes.io.files import errors_name, open_inside

CONTINUE = "Run the same command again to continue."


KEPT = f"Decoded images are kept in the cache. {CONTINUE}"


_quiet = [False]
_wording: list[Callable[[str], str]] = [str]  # how the command line says what the library says
_silent = [False]  # this is not the first of several processes


def be_quiet(quiet: bool) -> None:
    """Whether what is said beside results and errors is left out."""
    _quiet[0] = quiet


def reword(wording: Callable[[str], str]) -> None:
    """Have lines worded by this: the command line has flags where the library has parameters."""
    _wording[0] = wording


def worded(text: str) -> str:
    """A text of the library as lines are worded now."""
    return _wording[0](text)


def be_silent(silent: bool) -> None:
    """Whether nothing is said and logged at all: of several processes only the first speaks."""
    _silent[0] = silent


def watched() -> bool:
    """Whether a person may be watching who wants to see what goes on; of several processes the first speaks."""
    return not _silent[0] and sys.stderr.isatty() and not _quiet[0]


@contextmanager
def if_stopped(*, doing: str | None = None, then: str | None = None) -> Iterator[None]:
    """Have Ctrl-C in here say what was under way and what to type next; of several around each other the innermost."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for name, text in (("doing", doing), ("then", then)):
            if text is not None:
                vars(stop).setdefault(name, text)
        raise


def interruption(then: str) -> KeyboardInterrupt:
    """What to raise where work was stopped in good order, and what to type next."""
    stop = KeyboardInterrupt()
    vars(stop)["then"] = then
    return stop


def stopped(stop: KeyboardInterrupt) -> str:
    """What to say of work that Ctrl-C ended."""
    doing, then = (vars(stop).get(name) for name in ("doing", "then"))
    return f"Stopped{f' while {doing}' if doing else ''}. {then or 'Run the same command again to start over.'}"


@contextmanager
def working(what: str, then: str | None = None) -> Iterator[None]:
    """Say when something that takes long begins and how long it took; a spinner on stderr if a person may be watching.

    Args:
        what: "decoding images".
        then: what to say where Ctrl-C ends it: what is kept, and what to type next.
    """
    started = perf_counter()
    with ExitStack() as shown, if_stopped(doing=what, then=then):
        if watched():
            from rich.console import Console

            shown.enter_context(Console(stderr=True).status(what))
        else:
            say(f"{what} …")
        yield
    say(f"{what}: {duration(perf_counter() - started)}")


@contextmanager
def progress(what: str, then: str | None = None, *, lines: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, fed with (done, total), if a person may be watching; otherwise a line at its begin and its end.

    Nothing is said of work that turns out to be done already.

    Args:
        what, then: see `working`.
        lines: False leaves out the lines, where others say how it goes.
    """
    if not watched():
        started, said = perf_counter(), False

        def begin(_done: int, total: int) -> None:
            nonlocal said
            if lines and not said:
                said = True
                say(f"{what}: {total:,} …")

        with if_stopped(doing=what, then=then):
            yield begin
        if said:
            say(f"{what}: {duration(perf_counter() - started)}")
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar, if_stopped(doing=what, then=then):
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str, log: Path | None = None, *, quiet: bool = False) -> None:
    """A line for the person who watches, and for the log file; stdout is for results.

    Names in it may be untrusted: it stays one line, and a terminal shows it as it is.

    Args:
        quiet: for the log file only.
    """
    if _silent[0]:
        return
    text = printable(_wording[0](text))
    if not (_quiet[0] or quiet):
        print(text, file=sys.stderr, flush=True)
    if log is not None:
        with errors_name(log), open_inside(log) as file:
            file.write(text.encode() + b"\n")


def say_at_once(text: str) -> None:
    """A line for the person who watches, from where a signal is handled: another line may be half written."""
    if not _silent[0] and not _quiet[0]:
        with suppress(OSError):
            os.write(2, f"\n{text}\n".encode())


def printable(text: str) -> str:
    """A name as a terminal may show it: what would move the cursor, end the line or is no character is escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_json(content: Any) -> None:
    try:
        print(json.dumps(content, default=str, allow_nan=False))
    except ValueError:  # JSON has no word for what is not finite
        print(json.dumps(json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)))


def duration(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"{whole} second{'s' if whole > 1 else ''}"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
