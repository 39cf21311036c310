"""JSON that may be damaged or a stranger's: read whole, and held against a shape before anything in it is used.

A shape is a type: a TypedDict (names that it does not have are allowed, a newer version may have written them), a
dataclass (they are not), dict[str, …], list[…], tuple[…, …], Literal, str, int, float, bool, None, Any, or a union.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints, is_typeddict

from tammes.errors import UserError
from tammes.io.files import opened
from tammes.io.limits import TEXT

Real = NewType("Real", float)  # a number that may be infinite or none, as Python writes them; float is finite
Positive = NewType("Positive", int)  # 1 or more

_MOST = 2**64  # what a whole number must be below, as all are that we write
_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    Positive: "a whole number above 0",
    float: "a finite number",
    Real: "a number",
    bool: "true or false",
    NoneType: "null",
    dict: "an object",
    Mapping: "an object",
    list: "a list",
}


def read_json(file: Path, shape: Any, advice: str) -> Any:
    """What a JSON file holds, which has the shape; None if there is no such file.

    Args:
        advice: what to do about a file that has another.
    """
    try:
        with opened(file, TEXT) as source:
            content = source.read()
    except FileNotFoundError:
        return None
    except UserError as error:
        raise UserError(f"cannot read {file}: {error} {advice}") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}.") from None
    return parsed(content, shape, str(file), advice)


def parsed(content: bytes | str, shape: Any, what: str, advice: str) -> Any:
    """The value of a JSON text, which has the shape.

    Args:
        what: holds the text, in words.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{what} is not a whole JSON file. {advice}") from None
    return checked(value, shape, what, advice)


def checked(value: Any, shape: Any, what: str, advice: str) -> Any:
    """The value, which has the shape."""
    problem = _problem(value, shape, "it")
    if problem:
        raise UserError(f"{what}: {problem}. {advice}")
    return value


def _problem(value: Any, shape: Any, name: str) -> str:
    """What is wrong with a value, empty if nothing is."""
    if shape is Any:
        return ""
    origin, parts = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        problems = [_problem(value, part, name) for part in parts]
        # What is wrong inside says more than that the other kinds do not fit either.
        inside = [problem for problem in problems if not problem.startswith(f"{name} must be ")]
        return "" if "" in problems else inside[-1] if inside else _other(value, shape, name)
    if is_typeddict(shape) or is_dataclass(shape):
        return _problem_of_object(value, shape, name)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return _first(_problem(each, parts[1], _below(name, key)) for key, each in value.items())
    if origin is list and isinstance(value, list):
        return _first(_problem(each, parts[0], f"{name}[{place}]") for place, each in enumerate(value))
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return _first(_problem(each, part, f"{name}[{n}]") for n, (each, part) in enumerate(zip(value, parts)))  # noqa: B905
    return "" if _is(value, shape) else _other(value, shape, name)


def _problem_of_object(value: Any, shape: Any, name: str) -> str:
    if not isinstance(value, dict):
        return _other(value, dict, name)
    kinds, needed = _names(shape)
    missing = next((key for key in kinds if key in needed and key not in value), None)
    if missing is not None:
        return f"{_below(name, missing)} is missing"
    unknown = next((key for key in value if key not in kinds), None) if is_dataclass(shape) else None
    if unknown is not None:
        return f"{_below(name, unknown)} is not known to this version"
    return _first(_problem(value[key], kind, _below(name, key)) for key, kind in kinds.items() if key in value)


@cache
def _names(shape: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The names of an object with their shapes, and those that must be there."""
    if is_typeddict(shape):
        return get_type_hints(shape), shape.__required_keys__
    needed = [each.name for each in fields(shape) if each.default is MISSING and each.default_factory is MISSING]
    return get_type_hints(shape), frozenset(needed)


def _is(value: Any, shape: Any) -> bool:
    if get_origin(shape) is Literal:
        return value in get_args(shape) and not isinstance(value, bool)
    if shape in (float, Real):
        number = isinstance(value, float) or (type(value) is int and abs(value) < _MOST)
        return number and (shape is Real or isfinite(value))
    if shape in (int, Positive):
        return type(value) is int and abs(value) < _MOST and (shape is int or value > 0)
    return shape in (str, bool, NoneType) and type(value) is shape


def _other(value: Any, shape: Any, name: str) -> str:
    return f"{name} must be {_describe_shape(shape)}, got {shortened(value)}"


def _describe_shape(shape: Any) -> str:
    origin, parts = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        return " or ".join(map(_describe_shape, parts))
    if origin is tuple:
        return f"a list of {len(parts)}"
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    return _WORDS.get(origin or shape, "an object")


def _below(name: str, key: str) -> str:
    return key if name == "it" else f"{name}.{key}"


def _first(problems: Any) -> str:
    return next((problem for problem in problems if problem), "")
