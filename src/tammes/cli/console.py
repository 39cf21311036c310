"""What the commands share: how options without a value are shown, and how work in progress is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tyro


def optional(metavar: str) -> Any:
    """How help shows an option that is absent by default: its kind of value, and no word about None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something takes long, if a person may be watching."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
