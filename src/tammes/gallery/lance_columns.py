"""Further columns of an item in LanceDB: one text that its SQL can look into, so that no column is added later.

A text `red` under `colour` and a number 12.5 under `price` are kept as

    |colour:tred|price:n12.5|

where | and : stand for two control characters, escaped where they are in a name or a value.
"""

import re
from collections.abc import Mapping

from tammes.errors import UserError
from tammes.gallery.filters import OF_EVERY_ITEM, TEXTS, In, Order, Value
from tammes.gallery.items import how_to_remake

_BETWEEN, _AFTER_NAME, _ESCAPE = "\x1f", "\x1e", "\x1d"
_SPECIAL = re.compile(f"[{_BETWEEN}{_AFTER_NAME}{_ESCAPE}]")


def facts(fields: Mapping[str, Value]) -> str:
    """All fields as one text."""
    return "".join(_fact(name, value)[:-1] for name, value in fields.items()) + (_BETWEEN if fields else "")


def fields_of(text: str, where: str) -> dict[str, Value]:
    """What `facts` was given.

    Args:
        where: the gallery that it is stored in.
    """
    found: dict[str, Value] = {}
    for fact in text.split(_BETWEEN)[1:-1]:
        name, _, value = fact.partition(_AFTER_NAME)
        try:
            found[_plain(name)] = _plain(value[1:]) if value[0] == "t" else float(value[1:])
        except (ValueError, IndexError):
            raise UserError(f"the gallery {where} holds columns that are not valid. {how_to_remake(where)}") from None
    return found


def in_lance(leaf: In | Order) -> str:
    """A condition in LanceDB's SQL, true or false and never NULL; values are quoted, as it knows no parameters."""
    name, own = leaf.name, leaf.name in OF_EVERY_ITEM
    number = f"TRY_CAST({name if own else _cut_out(name)} AS DOUBLE)"
    if isinstance(leaf, Order):
        return "false" if name in TEXTS else f"coalesce({number} {leaf.sign} {float(leaf.value)!r}, false)"
    texts = [each for each in leaf.values if isinstance(each, str)]
    numbers = [repr(float(each)) for each in leaf.values if not isinstance(each, str)]
    parts = []
    if texts and name in TEXTS:
        parts.append(f"{name} IN ({', '.join(map(quoted, texts))})")
    elif not own:
        parts += [f"contains(fields, {quoted(_fact(name, each))})" for each in texts]
    if numbers and name not in TEXTS:
        parts.append(f"coalesce({number} IN ({', '.join(numbers)}), false)")
    return f"({' OR '.join(parts or ['false'])})"


def quoted(text: str) -> str:
    """A text in SQL, where only the quote itself needs care."""
    return "'" + text.replace("'", "''") + "'"


def _cut_out(name: str) -> str:
    """The digits of the number under a name, or an empty text."""
    before = quoted(f"{_BETWEEN}{_escaped(name)}{_AFTER_NAME}n")
    return f"split_part(split_part(fields, {before}, 2), {quoted(_BETWEEN)}, 1)"


def _fact(name: str, value: Value) -> str:
    kept = f"t{_escaped(value)}" if isinstance(value, str) else f"n{float(value)!r}"
    return f"{_BETWEEN}{_escaped(name)}{_AFTER_NAME}{kept}{_BETWEEN}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"{_ESCAPE}{ord(found[0]):x}", text)


def _plain(text: str) -> str:
    return re.sub(f"{_ESCAPE}(1[def])", lambda found: chr(int(found[1], 16)), text)
