"""The command line: one file per command, with a class that declares its options and a function that runs it.

Heavy modules are imported by the command that needs them, so that help appears at once.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tammes import __version__
from tammes.cli import help as help_pages
from tammes.cli.arguments import Option, options_of, parse
from tammes.cli.console import check_words
from tammes.cli.flags import with_flags
from tammes.cli.train import TrainVectors, options_for
from tammes.errors import UserError, out_of_memory, unknown_name
from tammes.io.addresses import without_password
from tammes.io.console import be_quiet, printable, reword, say, stopped
from tammes.io.environment import colours
from tammes.io.files import storage_error
from tammes.io.machine import kill_as_interrupt

# A word of the first screen is a file here, which has a class with the options and a function that runs them.
_FILES = {name: import_module(f"tammes.cli.{name}") for group in help_pages.GROUPS.values() for name in group}
COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    name: (getattr(file, name.capitalize()), getattr(file, name)) for name, file in _FILES.items()
}
# Exit codes. 141 is the shell's code for a program that wrote to a closed pipe.
DONE, PROBLEMS_FOUND, WRONG_USE, BUG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 130, 141
# System errors that a user can fix.
_REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG),
    *(errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EBUSY),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Flags of every command, before or after it.
QUIET, DEBUG, HELP, HELP_ALL = ("-q", "--quiet"), ("--debug",), ("-h", "--help"), ("--help-all",)


def parsed(given: Sequence[str]) -> Any:
    """The options of the command that the first word names, from the words after it."""
    name, *words = given
    return parse(name, kind_of(name, words), words)


def kind_of(name: str, words: Sequence[str]) -> type:
    """The class that declares the options of a command; of `train` there are two."""
    return options_for(words) if name == "train" else COMMANDS[name][0]


def declared(given: Sequence[str]) -> list[Option]:
    """The options of the command that is among the words; of `train`, those of images and of vectors."""
    command = next((word for word in given if word in COMMANDS), None)
    kinds = [] if command is None else [COMMANDS[command][0], *([TrainVectors] if command == "train" else [])]
    return [option for kind in reversed(kinds) for option in options_of(kind)]


def without_flag(given: list[str], flag: tuple[str, ...]) -> tuple[list[str], bool]:
    """The words without a flag of every command, and whether it is among them.

    It is not where an option's value should be, which is then missed by its name, nor after `--`.
    """
    if not set(flag) & set(given):
        return given, False
    with_value = {spelling for option in declared(given) if option.kind is not bool for spelling in option.spellings}
    end = given.index("--") if "--" in given else len(given)
    kept = [
        word
        for place, word in enumerate(given)
        if word not in flag or place > end or (place > 0 and given[place - 1].replace("_", "-") in with_value)
    ]
    return kept, len(kept) < len(given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; what the user can fix is one line on stderr and exit code 2."""
    given = [without_password(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    given, debug = without_flag(given, DEBUG)
    given, quiet = without_flag(given, QUIET)
    be_quiet(quiet)

    def worded(text: str) -> str:
        found = with_flags(text, declared(given))
        # What stops a training is also told by commands that look ahead; a plan has names of its own.
        return found if "benchmark" in given else with_flags(found, declared(["train"]))

    reword(worded)
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a file's name may hold what the terminal's encoding does not know
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what it warns of is refused, or harmless
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # likewise
    try:
        with kill_as_interrupt():
            _run(given)
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        say(stopped(stop))
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:  # whoever read the output has seen enough, as `| head` does
        _let_go_of_output()
        raise SystemExit(PIPE_CLOSED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        text, code = _describe(error)
        if isinstance(error, OSError) and error.filename is None:
            _let_go_of_output()
        name = "\033[1;31mtammes:\033[0m" if sys.stderr.isatty() and colours() else "tammes:"
        shown = "\n".join(map(printable, worded(text).splitlines()))  # names in it may be untrusted
        print(f"{name} {shown}", file=sys.stderr)
        raise SystemExit(code) from None
    finally:
        reword(str)


def _open_streams() -> None:
    """What a stream that is closed when we start would have: nothing to read, and nowhere to write.

    Otherwise the next file that is opened would get its number, and what a library writes to standard error.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as we run


def _let_go_of_output() -> None:
    """What is left to flush goes nowhere: standard output cannot take it."""
    if sys.stdout is sys.__stdout__ is not None:  # and not what a program that calls us has put there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


def _run(given: list[str]) -> None:
    if given == ["--version"]:
        print(f"tammes {__version__}")
        return
    given, everything = without_flag(given, HELP_ALL)
    given, explain = without_flag(given, HELP)
    if not given:
        print(help_pages.overview(COMMANDS))
        return
    name = given[0]
    if name.startswith("-"):
        raise UserError(f"{name} stands before the command. First the command, then its options: tammes train --help")
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    command, run = kind_of(name, given), COMMANDS[name][1]
    if explain or everything:
        print(help_pages.page(name, command, everything=everything))
        return
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the folder that this was started in no longer exists. Go to another: cd FOLDER") from None
    check_words(given)
    run(parsed(given))


def _describe(error: Exception) -> tuple[str, int]:
    """The message of an error, and the exit code."""
    if isinstance(error, UserError):
        return str(error), WRONG_USE
    where = getattr(error, "filename", None) or "standard output, or a file"
    if isinstance(error, OSError) and (failed := storage_error(error, where)):
        return str(failed), WRONG_USE
    if isinstance(error, OSError) and error.errno in _REFUSED:
        if error.errno not in _FULL:
            return f"cannot use {where}: {error.strerror}.", WRONG_USE
        advice = "Free some space and run it again; what was reported as saved is safe."
        return f"cannot write {where}: {error.strerror}. {advice}", WRONG_USE
    if out_of_memory(error):
        return "out of memory: this needs more than there is. Give it less at a time.", WRONG_USE
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    advice = "Please report it with what the same command prints with --debug."
    return f"this is a bug in tammes ({what}). {advice}", BUG
