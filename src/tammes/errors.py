"""UserError, and the few ways we word one: what was wrong, what is right, what to type."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something that the caller can put right; its message is all they need to see."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> UserError:
    """Say what was not recognised, the nearest thing that is, and everything that is."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {what} {got!r}.{hint} Known: {', '.join(names)}.")
