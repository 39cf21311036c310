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


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory: Python's and NumPy's, a GPU's, or torch's on a CPU."""
    # The last is what oneDNN, which computes convolutions, says of a layer that it has no room for.
    words = ("allocate memory", "out of memory", "std::bad_alloc", "could not create a primitive")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
