"""Filters: conditions on the columns of items, parsed into a tree.

    colour = 'red' and price < 20
    not (maker in ('Zeiss', 'Leica') or "list price" >= 1e3)

A name is that of a column, or one that every item has: path, label, width, height. Names that are not words are in
double quotes; quotes inside are doubled. Texts, in single quotes, are compared by =, != and in; numbers also by <, <=,
> and >=. A text never equals a number, and an item without the column matches only != and `not in`.
A store translates the tree (`translated`) to parametrised queries, so that no user text becomes part of a statement.

`fits` is the reference for all translations.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tammes.errors import UserError, shown, unknown_name

Value = str | float
T = TypeVar("T")

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXTS, NUMBERS = ("path", "label"), ("width", "height")  # that every item has
OF_EVERY_ITEM = TEXTS + NUMBERS

_DEEPEST = 50  # brackets in brackets
_LONGEST = 10_000  # characters
_WORDS = ("and", "or", "not", "in")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><=|>=|!=|<>|[=<>(),])
    )""",
    re.VERBOSE,
)


class ColumnError(UserError):
    """A filter names a column that no item has, or compares texts with numbers."""


@dataclass(frozen=True)
class In:
    """The column has one of these values."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Order:
    """The column is a number that compares to a value by one of `OPERATORS`."""

    name: str
    sign: str
    value: float


@dataclass(frozen=True)
class Not:
    part: "Filter"


@dataclass(frozen=True)
class And:
    parts: tuple["Filter", ...]


@dataclass(frozen=True)
class Or:
    parts: tuple["Filter", ...]


Filter = In | Order | Not | And | Or


def parsed(text: str) -> Filter:
    """Parse a condition.

    >>> parsed("colour = 'red' and price < 20")
    And(parts=(In(name='colour', values=('red',)), Order(name='price', sign='<', value=20.0)))

    Raises:
        UserError: a syntax error, with its position.
    """
    if len(text) > _LONGEST:
        raise UserError(f"`where` has {len(text):,} characters; {_LONGEST:,} are allowed.")
    return _Parser(text).whole()


def both(*parts: Filter | None) -> Filter | None:
    """The conjunction of these conditions; None if there are none."""
    given = tuple(part for part in parts if part is not None)
    return And(given) if len(given) > 1 else next(iter(given), None)


def translated(
    condition: Filter,
    leaf: Callable[[In | Order], T],
    *,
    every: Callable[[Sequence[T]], T],
    some: Callable[[Sequence[T]], T],
    inverse: Callable[[T], T],
) -> T:
    """Translate the tree, from its leaves up."""

    def of(part: Filter) -> T:
        match part:
            case And():
                return every([of(each) for each in part.parts])
            case Or():
                return some([of(each) for each in part.parts])
            case Not():
                return inverse(of(part.part))
        return leaf(part)

    return of(condition)


def mapped(condition: Filter, text: Callable[[str], str]) -> Filter:
    """The tree with translated names and texts."""

    def leaf(part: In | Order) -> Filter:
        if isinstance(part, Order):
            return Order(text(part.name), part.sign, part.value)
        return In(text(part.name), tuple(text(each) if isinstance(each, str) else each for each in part.values))

    return translated(
        condition, leaf, every=lambda parts: And(tuple(parts)), some=lambda parts: Or(tuple(parts)), inverse=Not
    )


def kinds_in(condition: Filter) -> set[tuple[str, type]]:
    """The columns of the tree with the types that they are compared with: str, float, or both."""

    def leaf(part: In | Order) -> set[tuple[str, type]]:
        values = part.values if isinstance(part, In) else (part.value,)
        return {(part.name, str if isinstance(value, str) else float) for value in values}

    def joined(parts: Sequence[set[tuple[str, type]]]) -> set[tuple[str, type]]:
        return set[tuple[str, type]]().union(*parts)

    return translated(condition, leaf, every=joined, some=joined, inverse=lambda part: part)


def check_columns(condition: Filter, kinds: Mapping[str, set[type]]) -> None:
    """Raise ColumnError for a missing column, or a comparison with a value of another type.

    Args:
        kinds: the types of each column.
    """
    for name, kind in sorted(kinds_in(condition), key=str):
        if name not in kinds:
            raise ColumnError(str(unknown_name("column", name, kinds)))
        if kind not in kinds[name]:
            shown_name = name if re.fullmatch(r"[^\W\d]\w*", name) else '"' + name.replace('"', '""') + '"'
            has, given = ("numbers", "a text") if kind is str else ("texts", "a number")
            right = "20, without quotes" if kind is str else "'a text', in single quotes"
            raise ColumnError(
                f"`where` compares the column {name!r} with {given}, and it has {has}. Write {shown_name} = {right}."
            )


def fits(condition: Filter, values: Mapping[str, Value]) -> bool:
    """Whether an item with these values matches."""

    def leaf(part: In | Order) -> bool:
        value = values.get(part.name)
        if isinstance(part, In):
            return any(isinstance(value, str) == isinstance(each, str) and value == each for each in part.values)
        return value is not None and not isinstance(value, str) and OPERATORS[part.sign](value, part.value)

    return translated(condition, leaf, every=all, some=any, inverse=operator.not_)


def sql(condition: Filter, leaf: Callable[[In | Order], str]) -> str:
    """The tree in SQL; its leaves are never NULL."""
    return translated(
        condition,
        leaf,
        every=lambda parts: f"({' AND '.join(parts)})",
        some=lambda parts: f"({' OR '.join(parts)})",
        inverse=lambda part: f"(NOT {part})",
    )


class _Parser:
    """A recursive descent parser: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.depth = text, 0, 0
        self.kind, self.token = "", ""
        self.start = 0
        self.advance()

    def whole(self) -> Filter:
        found = self.either()
        if self.kind:
            raise self.wrong("`and`, `or` or the end")
        return found

    def advance(self) -> None:
        rest = self.text[self.place :]
        self.start = self.place + len(rest) - len(rest.lstrip())
        if not rest.strip():
            self.kind = self.token = ""
            return
        found = _TOKEN.match(self.text, self.place)
        if found is None or found.lastgroup is None:
            self.kind = "unknown"
            open_quote = self.text[self.start] in "'\""
            raise self.wrong("a closing quote" if open_quote else "a name, a sign, a number or a text in single quotes")
        self.kind, self.token, self.place = found.lastgroup, found[found.lastgroup], found.end()
        if self.kind == "word" and self.token.lower() in _WORDS:
            self.kind = self.token = self.token.lower()

    def takes(self, token: str) -> bool:
        if self.kind in ("sign", *_WORDS) and self.token == token:
            self.advance()
            return True
        return False

    def either(self) -> Filter:
        parts = [self.every()]
        while self.takes("or"):
            parts.append(self.every())
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def every(self) -> Filter:
        parts = [self.inverse()]
        while self.takes("and"):
            parts.append(self.inverse())
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def inverse(self) -> Filter:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UserError(f"`where` has more than {_DEEPEST} conditions inside each other.")
        if self.takes("not"):
            found: Filter = Not(self.inverse())
        elif self.takes("("):
            found = self.either()
            if not self.takes(")"):
                raise self.wrong("a closing bracket")
        else:
            found = self.comparison()
        self.depth -= 1
        return found

    def comparison(self) -> Filter:
        if self.kind not in ("word", "quoted"):
            raise self.wrong("the name of a column")
        name = self.token if self.kind == "word" else self.token[1:-1].replace('""', '"')
        self.advance()
        negated = self.takes("not")
        if self.takes("in"):
            values = self.values()
            return Not(In(name, values)) if negated else In(name, values)
        sign = self.token if self.kind == "sign" and not negated else ""
        if sign not in ("=", "!=", "<>", *OPERATORS):
            signs = "`in`" if negated else "=, !=, <, <=, >, >= or `in`"
            several = " (a name of several words stands in double quotes)" if self.kind == "word" else ""
            raise self.wrong(signs + several)
        self.advance()
        start, value = self.start, self.value()
        if sign in OPERATORS:
            if isinstance(value, str):
                self.start = start
                raise self.wrong(f"a number after {sign}, as texts are compared by =, != and `in` only")
            return Order(name, sign, value)
        return In(name, (value,)) if sign == "=" else Not(In(name, (value,)))

    def values(self) -> tuple[Value, ...]:
        if not self.takes("("):
            raise self.wrong("an opening bracket")
        found = [self.value()]
        while self.takes(","):
            found.append(self.value())
        if not self.takes(")"):
            raise self.wrong("a comma or a closing bracket")
        return tuple(found)

    def value(self) -> Value:
        if self.kind not in ("number", "text"):
            raise self.wrong("a number, or a text in single quotes")
        value: Value = float(self.token) if self.kind == "number" else self.token[1:-1].replace("''", "'")
        if value in (float("inf"), float("-inf")):
            raise self.wrong("a finite number")
        self.advance()
        return value

    def wrong(self, expected: str) -> UserError:
        rest = self.text[self.start : self.start + 30]
        there = f"{shown(rest)} at character {self.start + 1}" if rest else "its end"
        return UserError(
            f"`where` expects {expected}, got {there}. For example: `where=\"colour = 'red' and price < 20\"`"
        )
