"""Errors of the library in the words of the command line: its parameters as the flags that are typed.

The library marks a parameter by backticks, alone or with a value: `batch_size`, `lr=0.1`, `mirror=False`. Nothing else
is touched: words, paths and commands to type stay as they are.
"""

import ast
import re
import shlex
from collections.abc import Iterable

from tammes.cli.arguments import Option

_MARKED = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")


def with_flags(text: str, options: Iterable[Option]) -> str:
    """The text with `name` and `name=value` of these options as one would type them; other names stay marked."""
    known = {option.name.strip("_"): option for option in options}

    def flag(found: re.Match[str]) -> str:
        option, value = known.get(found[1]), found[2]
        return found[0] if option is None else _typed(option, value)

    return _MARKED.sub(flag, text)


def _typed(option: Option, value: str | None) -> str:
    if value is None:
        return option.flag
    if option.positional:
        return _as_words(value)
    if option.kind is bool and value in ("True", "False"):
        name = option.flag.removeprefix("--").removeprefix("no-")
        return f"--{name}" if value == "True" else f"--no-{name}"
    return f"{option.flag} {_as_words(value)}"


def _as_words(value: str) -> str:
    """A value of Python as the words of a shell; what only stands for one, such as FILE, as it is."""
    try:
        given = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    if isinstance(given, dict):
        given = [f"{name}={each}" for name, each in given.items()]
    return " ".join(map(_quoted, given)) if isinstance(given, list | tuple) else _quoted(given)


def _quoted(value: object) -> str:
    """As one word of a shell; a text with single quotes, such as a condition, in double ones."""
    text = str(value)
    return f'"{text}"' if "'" in text and not set(text) & set('"\\$`!') else shlex.quote(text)
