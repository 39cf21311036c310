"""UserError and checks that raise it. A message says what is wrong, what is right, and what to type."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Integral
from typing import Any


class UserError(ValueError):
    """An error that the caller can fix. The command line prints its message without a traceback."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name: the closest known name, then all of them."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {what} {got!r}.{hint} Known: {', '.join(names)}.")


def shown(value: Any) -> str:
    """The repr of any value, on one line and cut to 80 characters."""
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"


def check_whole(what: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Raise UserError unless the value is a whole number within its range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{what} must be a whole number, got {shown(value)}.")
    if int(value) < least:
        raise UserError(f"{what} must be at least {least}, got {shown(value)}.")
    if most is not None and int(value) > most:
        raise UserError(f"{what} must be at most {most}, got {shown(value)}.")


def check_distance(what: str, value: float) -> None:
    """Raise UserError unless the value is finite and not negative."""
    if not 0 <= value < inf:
        raise UserError(f"{what} must be a finite number, 0 or more, got {shown(value)}.")


def check_positive(what: str, value: float, *, or_zero: bool = False) -> None:
    """Raise UserError unless the value is finite and above 0; `or_zero` also allows 0."""
    if not 0 <= value < inf or (value == 0 and not or_zero):
        raise UserError(f"{what} must be {'at least' if or_zero else 'above'} 0 and finite, got {shown(value)}.")


def check_seed(what: str, value: Any, bits: int = 32) -> None:
    """Raise UserError unless the value is a seed of this many bits; scikit-learn takes 32."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**bits:
        raise UserError(f"{what} must be a whole number from 0 to {2**bits - 1}, got {shown(value)}.")


def out_of_memory(error: BaseException) -> bool:
    """Whether the error is an out-of-memory error of Python, NumPy, a GPU, or torch on the CPU."""
    # The last one comes from oneDNN, which computes convolutions on the CPU.
    words = ("allocate memory", "out of memory", "std::bad_alloc", "could not create a primitive")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
