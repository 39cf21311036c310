"""Validation of JSON files, which may be damaged or untrusted, against declared schemas (pydantic).

A schema is a type that pydantic supports, usually a TypedDict; unknown fields are allowed, as a newer version may have
written them. A dataclass allows no unknown fields, and only finite numbers.
"""

import json
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tammes.errors import UserError
from tammes.io.files import opened
from tammes.io.limits import TEXT

_DIGITS = 20  # of a whole number, at the most, as of all that we write
adapter = cache(TypeAdapter)
# File names that are not Unicode have lone surrogates, which JSON must not have: they go as characters of private use.
_AWAY = {code: code + 0x100000 for code in range(0xD800, 0xE000)}
_BACK = {other: code for code, other in _AWAY.items()}
_WORDS = {  # what must stand there, where pydantic speaks of Python
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type", "mapping_type"), "an object"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "too_short": "a list of one value or more",
}


def read_json(file: Path, shape: Any, advice: str) -> Any:
    """Read and validate a JSON file; None if it does not exist.

    Args:
        advice: what to do about an invalid file.
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
    """Parse and validate a JSON text.

    Args:
        what: the source of the text, for errors.
    """
    try:
        value = json.loads(content, parse_int=_whole)
    except OverflowError:
        raise UserError(f"{what} holds a number of more than {_DIGITS} digits. {advice}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{what} is not a complete JSON file. {advice}") from None
    return checked(value, shape, what, advice)


def checked(value: Any, shape: Any, what: str, advice: str) -> Any:
    """Validate a value and return it unchanged."""
    built(value, shape, what, advice)
    return value


def built(value: Any, shape: Any, what: str, advice: str) -> Any:
    """Validate a value and convert it to the schema: an instance of a dataclass, lists as tuples."""
    unknown = set(value) - {each.name for each in fields(shape)} if is_dataclass(shape) and type(value) is dict else ()
    if unknown:
        raise UserError(f"{what}: {min(unknown)} is not known to this version of tammes. {advice}")
    try:  # as JSON, in which a list may be a tuple
        content = json.dumps(value, ensure_ascii=False, allow_nan=not is_dataclass(shape), default=_no_json)
        unicode = content.translate(_AWAY)
        found = adapter(shape).validate_json(unicode, strict=True)
        return found if unicode == content else _with_surrogates(found)
    except ValidationError as error:
        raise UserError(f"{what}: {problem(error, value)}. {advice}".removeprefix(": ").rstrip()) from None
    except ValueError:
        raise UserError(f"{what}: every number in it must be finite. {advice}".removeprefix(": ")) from None


def _with_surrogates(value: Any) -> Any:
    """The value with file names that are not valid Unicode restored."""
    if isinstance(value, str | Path):
        return type(value)(str(value).translate(_BACK))
    if isinstance(value, list | tuple):
        return type(value)(map(_with_surrogates, value))
    if isinstance(value, dict):
        return {_with_surrogates(name): _with_surrogates(each) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _with_surrogates(getattr(value, each.name)) for each in fields(value)})
    return value


def problem(error: ValidationError, value: Any, name: str = "") -> str:
    """A description of the first validation error: where, what is expected, what is there."""
    first, at = error.errors(include_url=False)[0], value
    for part in first["loc"]:  # which also says by which kind of several a value was read
        if isinstance(at, dict) and part in at:
            name, at = f"{name}.{part}".lstrip("."), at[part]
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            name, at = f"{name or 'it'}[{part}]", at[part]
    if first["type"] == "missing":
        return f"{name}.{first['loc'][-1]} is missing".lstrip(".")
    if first["type"] == "value_error":  # of a check of our own
        return f"{name} {first['ctx']['error']}".strip(" .")
    right = _WORDS.get(first["type"], first["msg"].removeprefix("Input should be "))
    return f"{name or 'it'} must be {right}, got {shortened(at)}"


def _no_json(value: Any) -> dict[str, str]:
    """What stands for a value that JSON does not have, such as a date of TOML: nothing that is asked for."""
    return {type(value).__name__: str(value)}


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise OverflowError
    return int(digits)
