"""Parse the options of a command, declared by a class, and explain mistakes.

The class is a frozen dataclass or a TypedDict with a docstring below each field; shared options are annotated types
with a `Doc` in `cli/options.py`.
"""

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from io import StringIO
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import tyro

from tammes.errors import UserError

_NUMBER = re.compile(r"-(\d|\.\d|inf$|nan$)", flags=re.IGNORECASE)
_NAMES = {int: "INT", float: "FLOAT", Path: "PATH"}  # of kinds of values, where an option says nothing better


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        flag: as shown in help, "--batch-size"; for a positional argument its placeholder, "DATA".
        spellings: all accepted flags; empty for a positional argument.
        kind: bool (takes no value), int, float, Path, str, or object for several types.
        choices: the allowed values; empty for any.
        many: whether it takes any number of values.
        default: its default; None for none.
        metavar: the placeholder of its value.
    """

    name: str
    flag: str
    spellings: tuple[str, ...]
    kind: type
    choices: tuple[str, ...]
    many: bool
    positional: bool
    required: bool
    default: Any
    metavar: str
    text: str

    @property
    def typed(self) -> str:
        """Its form in a usage line."""
        if self.positional:
            return self.flag if self.required else f"[{self.flag}]"
        return self.flag if self.kind is bool else f"{self.flag} {self.metavar}"

    def mistake(self, value: str) -> str | None:
        """An error message for an invalid value; None if it is valid."""
        if self.choices and value not in self.choices:
            near = get_close_matches(value, self.choices, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            return f"{self.flag} must be {one_of(self.choices)}, got {value!r}.{hint}"
        if self.kind in (int, float):
            try:
                self.kind(value)
            except ValueError:
                return f"{self.flag} needs a {'whole ' if self.kind is int else ''}number, got {value!r}."
        return None


def one_of(names: Sequence[str]) -> str:
    """Names joined as "a, b or c".

    >>> one_of(["random", "pca", "whiten"])
    'random, pca or whiten'
    """
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@cache
def options_of(command: type) -> tuple[Option, ...]:
    """The options that a class declares, in order, positional arguments first."""
    texts, hints = _texts_below(command), get_type_hints(command, include_extras=True)
    defaults = {each.name: each.default for each in fields(command)} if is_dataclass(command) else {}
    required = getattr(command, "__required_keys__", {name for name, value in defaults.items() if value is MISSING})
    found = []
    for name, hint in hints.items():
        while get_origin(hint) in (Required, NotRequired):
            (hint,) = get_args(hint)
        marks, kinds = getattr(hint, "__metadata__", ()), _kinds(hint)
        many = any(get_origin(each) is tuple for each in kinds)
        if many:
            kinds = [each for kind in kinds for each in get_args(kind)[:1]]
        choices = tuple(str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind))
        kind = kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else str if choices else object
        if kind is bool and NoneType in get_args(getattr(hint, "__origin__", hint)):  # True and False are then typed
            kind, choices = str, ("True", "False")
        default = defaults.get(name)
        default = None if default is MISSING else default
        positional, flag = tyro.conf.Positional in marks, _last(marks, "name") or name.strip("_").replace("_", "-")
        spellings = (*(_last(marks, "aliases") or ()), f"--{flag}")
        if kind is bool:  # as tyro has it: what is on by default has a flag that turns it off
            off = default is True if is_dataclass(command) else tyro.conf.FlagCreatePairsOff in marks
            both = not off and not is_dataclass(command)
            spellings = (f"--no-{flag}",) if off else (*spellings, f"--no-{flag}") if both else spellings
        metavar = _last(marks, "metavar") or (f"{{{','.join(choices)}}}" if choices else _NAMES.get(kind, "TEXT"))
        found.append(
            Option(
                name=name,
                flag=_last(marks, "metavar") or name.upper() if positional else spellings[0],
                spellings=() if positional else spellings,
                kind=kind,
                choices=choices,
                many=many,
                positional=positional,
                required=name in required,
                default=default,
                metavar=metavar,
                text=" ".join((texts.get(name) or _last(marks, "documentation") or "").split()),
            )
        )
    return tuple(sorted(found, key=lambda option: not option.positional))


def _kinds(hint: Any) -> list[Any]:
    """The types of a value, without None."""
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [part for part in parts if part is not NoneType]


def _last(marks: Sequence[Any], attribute: str) -> Any:
    return next((value for mark in reversed(marks) if (value := getattr(mark, attribute, None)) is not None), None)


def _texts_below(command: type) -> dict[str, str]:
    """The docstring below each field of a class and of its base TypedDicts."""
    tree = ast.parse(dedent(inspect.getsource(command))).body[0]
    assert isinstance(tree, ast.ClassDef)
    bases = [each for each in getattr(command, "__orig_bases__", ()) if isinstance(each, type)]
    return {name: text for base in bases for name, text in _texts_below(base).items()} | {
        field.target.id: str(ast.literal_eval(text.value))
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def for_tyro(command: type) -> Any:
    """The class for tyro: --json without --no-json, except in a TypedDict, which has no defaults."""
    return tyro.conf.FlagCreatePairsOff[command] if is_dataclass(command) else command  # type: ignore[misc,valid-type]


def parse(name: str, command: type, words: Sequence[str]) -> Any:
    """Parse words into an instance of a dataclass, or for a TypedDict a dict of the given options.

    Raises:
        UserError: a mistake, explained in one line.
    """
    flags = {each for option in options_of(command) if option.kind is bool for each in option.spellings}
    for flag, equals, value in (word.partition("=") for word in takewhile(lambda word: word != "--", words)):
        if equals and flag in flags:  # tyro would take the value for a positional
            raise UserError(f"{flag} takes no value, got {value!r}.")
    with redirect_stderr(StringIO()) as printed:
        try:
            return tyro.cli(for_tyro(command), prog=f"tammes {name}", args=list(words), add_help=False)
        except SystemExit:
            pass
    own_words = " ".join(re.sub("[─-╿]", " ", printed.getvalue()).split())  # tyro's, without its box
    raise UserError(next(mistakes(name, options_of(command), words), own_words))


def mistakes(name: str, options: Sequence[Option], words: Sequence[str]) -> Iterator[str]:
    """The mistakes in the words of a command, in order."""
    flags = {spelling: option for option in options for spelling in option.spellings}
    plain: list[str] = []
    given: set[str] = set()
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if word == "--":
            plain += words[place:]
            break
        if not _is_flag(word):
            plain.append(word)
            continue
        typed, equals, value = word.partition("=")
        option = flags.get(typed.replace("_", "-"))
        if option is None:
            near = _nearest(typed, flags)
            hint = f"Did you mean {near}?" if near else f"`tammes {name} --help-all` lists all."
            yield f"unknown option {typed}. {hint}"
            continue
        given.add(option.name)
        if option.kind is bool:
            continue
        values = [value] if equals else []
        while not equals and place < len(words) and not _is_flag(words[place]) and (option.many or not values):
            values.append(words[place])
            place += 1
        if not values and not option.many:
            yield f"{option.flag} needs a value: {option.typed}"
        yield from filter(None, map(option.mistake, values))
    for option in options:
        if option.positional:
            values, plain = (plain, []) if option.many else (plain[:1], plain[1:])
            yield from filter(None, map(option.mistake, values))
            given |= {option.name} if values else set()
    usage = usage_of(name, options)
    if plain:
        near = _nearest(plain[0], flags)
        hint = f"Did you mean {near}?" if near else f"It takes: {usage}"
        yield f"one word too many: {plain[0]!r}. {hint}"
    missing = [option.typed for option in options if option.required and option.name not in given]
    if missing:
        yield f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {usage}"


def usage_of(name: str, options: Sequence[Option]) -> str:
    """The usage line of a command."""
    positional = [option.typed for option in options if option.positional]
    required = [option.typed for option in options if option.required and not option.positional]
    optional = ["[options]"] if any(not option.required and not option.positional for option in options) else []
    return " ".join(["tammes", name, *positional, *required, *optional])


def _nearest(word: str, flags: Collection[str]) -> str | None:
    """The closest flag, ignoring dashes."""
    names = {flag.lstrip("-"): flag for flag in flags}
    near = get_close_matches(word.lstrip("-").replace("_", "-"), names, n=1)
    return names[near[0]] if near else None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and word != "--" and not _NUMBER.match(word)
