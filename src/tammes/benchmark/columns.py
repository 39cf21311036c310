"""The columns of the tables on a benchmark's page."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """A table cell: text, the number to sort by, the paper's number, and whether it is marked."""

    text: str = ""
    sort: float | None = None
    paper: str = ""
    mark: str = ""


class Column(NamedTuple):
    """A column of a table; its kind is name, number, words or nothing."""

    title: str
    cells: list[Shown]
    kind: str = ""


def describe_machine(of: Mapping[str, Any]) -> str:
    threads = of.get("threads")
    parts = [
        str(of.get("processor") or "a processor that is not known"),
        "" if threads is None else f"{threads} thread{'s' * (threads != 1)}",
        f"torch {of['torch']}" if of.get("torch") else "",
    ]
    return ", ".join(part for part in parts if part)
