"""Limits of file sizes and unpacked sizes, checked before memory is allocated; environment variables raise them.

A file may be sparse or unpack to a thousand times its size, and a model may name a network of billions of weights. The
error names the variable that raises the limit.
"""

from typing import NamedTuple

from tammes.errors import UserError
from tammes.io.environment import raised_limit

_MB = 1_000_000
_TIMES = 20  # what was written as data unpacks to less than so many times its file


class Limit(NamedTuple):
    """Attributes:
    variable: the environment variable that raises it.
    default: the limit in units.
    unit: the name of the unit.
    per: bytes, or weights, per unit.
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
    """Raise UserError above a limit.

    Args:
        number: bytes, or weights.
        what: the file or network, for the error.
    """
    units = number / limit.per
    most = raised_limit(limit.variable) or limit.default
    if units > most:
        raise UserError(
            f"{what} has {units:,.0f} {limit.unit}, and more than {most:,.0f} are not read, as it may not be what it"
            f" seems. If it is meant: {limit.variable}={int(units) + 1} tammes …"
        )


def check_unpacked(num_bytes: float, file_bytes: int, what: str) -> None:
    """Raise UserError if a file unpacks to too much; the limit grows with the file."""
    if num_bytes > _TIMES * file_bytes:
        check_limit(UNPACKED, num_bytes, f"{what}, unpacked,")
