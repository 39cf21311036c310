"""Addresses with a password, which is removed as soon as an address is given and kept in this process only.

Only the address without the password is printed, logged or stored. `with_password` restores it to connect.
"""

import re

_HIDDEN = "***"
_OF_USER = re.compile(
    r"^((?:--[\w-]+=)?[a-z][a-z+]*://[^:/@?]*):.*@"
)  # to the last @: a password may have some that are not escaped
_OF_OPTIONS = re.compile(r"([?&]password=)[^&]*")
_whole: dict[str, str] = {}


def without_password(address: str) -> str:
    """The address with its password masked.

    >>> without_password("postgresql://me:secret@host/photos")
    'postgresql://me:***@host/photos'
    """
    if "://" not in address:
        return address
    shown = _OF_OPTIONS.sub(rf"\g<1>{_HIDDEN}", _OF_USER.sub(rf"\g<1>:{_HIDDEN}@", address))
    if shown != address:
        place = (
            address.startswith("--") and address.index("=") + 1
        )  # a word of a command line: --gallery=postgresql://…
        _whole[shown[place:]] = address[place:]
    return shown


def with_password(address: str) -> str:
    """The original address of one that `without_password` returned."""
    return _whole.get(address, address)
