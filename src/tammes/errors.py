"""UserError, and the few ways we word one: what was wrong, what is right, what to type."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Integral
from typing import Any


class UserError(ValueError):
    """Something that the caller can fix; its message is all they need to see."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> UserError:
    """Say what was not recognised, the nearest thing that is, and everything that is."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {what} {got!r}.{hint} Known: {', '.join(names)}.")


def shown(value: Any) -> str:
    """A value that may be anything, in a few words on one line."""
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python writes no whole number of more than a few thousand digits
        return "a number of thousands of digits"


def check_whole(what: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Refuse what is not a whole number, or outside its range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{what} must be a whole number, got {shown(value)}.")
    if int(value) < least:
        raise UserError(f"{what} must be at least {least}, got {shown(value)}.")
    if most is not None and int(value) > most:
        raise UserError(f"{what} must be at most {most}, got {shown(value)}.")


def check_distance(what: str, value: float) -> None:
    """Refuse what cannot be a distance."""
    if not 0 <= value < inf:
        raise UserError(f"{what} must be a finite number, 0 or more, got {shown(value)}.")


def check_positive(what: str, value: float, *, or_zero: bool = False) -> None:
    """Refuse what is not above 0 and finite; with `or_zero` 0 is fine."""
    if not 0 <= value < inf or (value == 0 and not or_zero):
        raise UserError(f"{what} must be {'at least' if or_zero else 'above'} 0 and finite, got {shown(value)}.")


def check_seed(what: str, value: Any, bits: int = 32) -> None:
    """Refuse what is not a seed of a generator that takes so many bits; scikit-learn's take 32."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**bits:
        raise UserError(f"{what} must be a whole number from 0 to {2**bits - 1}, got {shown(value)}.")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory: Python's and NumPy's, a GPU's, or torch's on a CPU."""
    # The last is what oneDNN, which computes convolutions, says of a layer that it has no room for.
    words = ("allocate memory", "out of memory", "std::bad_alloc", "could not create a primitive")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
