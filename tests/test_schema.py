"""JSON against a declared shape: what fits stays as it is, and what does not is said with its place."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import FiniteFloat, PositiveInt
from typing_extensions import TypedDict

from tammes.errors import UserError
from tammes.io.schema import built, parsed


class Shape(TypedDict, total=False):
    name: str
    number: int
    size: PositiveInt
    finite: FiniteFloat
    any: float | None
    pair: tuple[float, float]
    names: list[str]
    either: float | list[float]
    inside: dict[str, "Inside"]


class Inside(TypedDict):
    needed: bool


@dataclass(frozen=True)
class Made:
    size: float
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size is below 0")


@pytest.mark.parametrize(
    "content",
    [
        '{"newer": {"than": "this"}}',
        '{"number": 18446744073709551615, "finite": 1, "any": NaN, "pair": [1, 2.5], "either": [1]}',
        '{"name": "\\ud800", "names": ["\\udcff"]}',  # what a file may be called
    ],
)
def test_what_fits_stays_as_it_is(content: str) -> None:
    assert repr(parsed(content, Shape, "FILE", "Do.")) == repr(json.loads(content))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", ": it must be an object, got []"),
        ('{"name": 3}', ": name must be a text, got 3"),
        ('{"number": "3"}', ": number must be a whole number, got '3'"),
        ('{"number": true}', ": number must be a whole number, got True"),
        ('{"number": 1.5}', ": number must be a whole number, got 1.5"),
        ('{"number": 184467440737095516150}', " holds a number of more than 20 digits"),
        ('{"size": 0}', ": size must be greater than 0, got 0"),
        ('{"finite": Infinity}', ": finite must be a finite number, got inf"),
        ('{"any": "x"}', ": any must be a number, got 'x'"),
        ('{"pair": [1]}', ": pair.1 is missing"),
        ('{"names": ["a", null]}', ": names[1] must be a text, got None"),
        ('{"either": "x"}', ": either must be a number, got 'x'"),
        ('{"inside": {"a": {}}}', ": inside.a.needed is missing"),
        ('{"inside": {"a": {"needed": 1}}}', ": inside.a.needed must be true or false, got 1"),
        ('{"inside"', " is not a complete JSON file"),
        ("[" * 100_000, " is not a complete JSON file"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(content: str, problem: str) -> None:
    with pytest.raises(UserError) as refusal:
        parsed(content, Shape, "FILE", "Do.")
    assert str(refusal.value) == f"FILE{problem}. Do."


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"size": 1, "colour": "red"}, "colour is not known to this version of tammes"),
        ({}, "size is missing"),
        ({"size": float("nan")}, "every number in it must be finite"),
        ({"size": -1.0}, "size is below 0"),
        (None, "it must be an object, got None"),
    ],
)
def test_a_dataclass_is_made_of_what_it_declares_only(value: Any, problem: str) -> None:
    assert built({"size": 1, "sizes": [1, 2]}, Made, "FILE", "Do.") == Made(1.0, (1, 2))
    with pytest.raises(UserError) as refusal:
        built(value, Made, "FILE", "Do.")
    assert str(refusal.value) == f"FILE: {problem}. Do."


@dataclass(frozen=True)
class Named:
    path: Path
    names: tuple[str, ...]
    of: dict[str, str]


def test_names_of_files_that_are_not_unicode_stay_as_they_are() -> None:
    odd = b"photos\xff".decode(errors="surrogateescape")
    value = {"path": odd, "names": [odd, "plain"], "of": {odd: odd}}
    assert built(value, Named, "file", "") == Named(Path(odd), (odd, "plain"), {odd: odd})
