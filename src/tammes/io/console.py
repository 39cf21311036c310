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
_wording: list[Callable[[str], str]] = [str]  # translates parameters to flags, if set by the command line
_silent = [False]  # True in all processes but the first


def be_quiet(quiet: bool) -> None:
    """Turn messages other than results and errors on or off."""
    _quiet[0] = quiet


def reword(wording: Callable[[str], str]) -> None:
    """Set the translation of messages: the command line replaces parameters by flags."""
    _wording[0] = wording


def worded(text: str) -> str:
    """A message with the current translation."""
    return _wording[0](text)


def be_silent(silent: bool) -> None:
    """Turn all messages and logs off, in all processes but the first."""
    _silent[0] = silent


def watched() -> bool:
    """Whether to show progress bars: stderr is a terminal, and this is the first process."""
    return not _silent[0] and sys.stderr.isatty() and not _quiet[0]


@contextmanager
def if_stopped(*, doing: str | None = None, then: str | None = None) -> Iterator[None]:
    """On Ctrl-C within the block, report what was running and how to continue; the innermost block counts."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for name, text in (("doing", doing), ("then", then)):
            if text is not None:
                vars(stop).setdefault(name, text)
        raise


def interruption(then: str) -> KeyboardInterrupt:
    """The KeyboardInterrupt for work that was stopped cleanly, with how to continue."""
    stop = KeyboardInterrupt()
    vars(stop)["then"] = then
    return stop


def stopped(stop: KeyboardInterrupt) -> str:
    """The message for work that Ctrl-C ended."""
    doing, then = (vars(stop).get(name) for name in ("doing", "then"))
    return f"Stopped{f' while {doing}' if doing else ''}. {then or 'Run the same command again to start over.'}"


@contextmanager
def working(what: str, then: str | None = None) -> Iterator[None]:
    """Print when long work begins and how long it took, with a spinner on a terminal.

    Args:
        what: a description, such as "decoding images".
        then: the message after Ctrl-C: what is kept, and how to continue.
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
    """A progress bar on a terminal, updated with (done, total); otherwise a line at the beginning and at the end.

    Nothing is printed if there is no work to do.

    Args:
        what, then: see `working`.
        lines: False leaves out the lines.
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
    """Print a line to stderr and append it to the log file; stdout is for results.

    Names in it may be untrusted, so control characters are escaped.

    Args:
        quiet: write to the log file only.
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
    """Print a line from a signal handler, where another line may be half written."""
    if not _silent[0] and not _quiet[0]:
        with suppress(OSError):
            os.write(2, f"\n{text}\n".encode())


def printable(text: str) -> str:
    """A name that is safe for a terminal: control characters are escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_json(content: Any) -> None:
    try:
        print(json.dumps(content, default=str, allow_nan=False))
    except ValueError:  # JSON has no word for what is not finite
        print(json.dumps(json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)))


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"{whole} second{'s' if whole > 1 else ''}"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
