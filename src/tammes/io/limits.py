"""How large a file may be, or become, before memory is asked for: one limit a kind, raised by a variable of its name.

A file may be sparse, or unpack to a thousand times its size, and a model may name a network of billions of weights.
What is too large for its kind is refused by name; who means it sets the variable that the error names.
"""

from typing import NamedTuple

from tammes.errors import UserError
from tammes.io.environment import raised_limit

_MB = 1_000_000
_TIMES = 20  # what was written as data unpacks to less than so many times its file


class Limit(NamedTuple):
    """Attributes:
    variable: of the environment, which raises it.
    default: in units.
    unit: of the variable.
    per: how many of what is counted make a unit.
    """

    variable: str
    default: int
    unit: str
    per: int


IMAGE = Limit("TAMMES_MAX_IMAGE_MB", 512, "MB", _MB)  # a file of one image; 64 million pixels of 8 bytes
TEXT = Limit("TAMMES_MAX_TEXT_MB", 512, "MB", _MB)  # a JSON or CSV file, which takes some times its size in memory
UNPACKED = Limit("TAMMES_MAX_UNPACKED_MB", 1000, "MB", _MB)  # the arrays of a file
WEIGHTS = Limit("TAMMES_MAX_WEIGHTS_MILLIONS", 1000, "million weights", 1_000_000)  # of a network


def check_limit(limit: Limit, number: float, what: str) -> None:
    """Refuse what is more than its kind may have.

    Args:
        number: bytes, or weights.
        what: the file or network, as the subject of a sentence.
    """
    units = number / limit.per
    most = raised_limit(limit.variable) or limit.default
    if units > most:
        raise UserError(
            f"{what} has {units:,.0f} {limit.unit}, and more than {most:,.0f} are not read, as it may not be what it"
            f" seems. If it is meant: {limit.variable}={int(units) + 1} tammes …"
        )


def check_unpacked(num_bytes: float, file_bytes: int, what: str) -> None:
    """The same for what a file becomes in memory. Large files may become large."""
    if num_bytes > _TIMES * file_bytes:
        check_limit(UNPACKED, num_bytes, f"{what}, unpacked,")
