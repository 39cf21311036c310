"""Translate parameters in messages of the library to flags of the command line.

The library marks a parameter by backticks, alone or with a value: `batch_size`, `lr=0.1`, `mirror=False`. Other text,
including paths and commands, is not changed.
"""

import ast
import re
import shlex
from collections.abc import Iterable

from tammes.cli.arguments import Option

_MARKED = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")


def with_flags(text: str, options: Iterable[Option]) -> str:
    """The text with `name` and `name=value` of these options as flags; other names are unchanged."""
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
    """A Python value as words of a shell; placeholders such as FILE are unchanged."""
    try:
        given = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    if isinstance(given, dict):
        given = [f"{name}={each}" for name, each in given.items()]
    return " ".join(map(_quoted, given)) if isinstance(given, list | tuple) else _quoted(given)


def _quoted(value: object) -> str:
    """A text quoted for a shell; in double quotes if it has single quotes, as filters do."""
    text = str(value)
    return f'"{text}"' if "'" in text and not set(text) & set('"\\$`!') else shlex.quote(text)
