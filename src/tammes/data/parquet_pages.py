"""The memory that the pages of a .parquet file take once decoded, read from the headers of the pages.

pyarrow trusts the number of values in the header of a page, and a few bytes can stand for two billion values in one
row. The sizes in the footer may disagree, and pyarrow crashes if they are damaged. So both are checked here first, with
a minimal reader of Thrift's compact protocol (https://parquet.apache.org/docs/file-format/metadata).
"""

from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from tammes.errors import UserError

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_HEADERS = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # the field of a page's header that holds the one of its kind


class Unpacked(NamedTuple):
    """Attributes:
    values: bytes of all values, those of a text without its characters.
    largest_page: bytes of it; no text is longer.
    """

    values: int
    largest_page: int


def unpacked_sizes(file: Path, columns: Mapping[int, int]) -> dict[int, Unpacked]:
    """The memory that some columns of a file will take, by column index.

    Args:
        columns: bytes per value, by column index.

    Raises:
        UserError: the file is damaged.
    """
    sizes = dict.fromkeys(columns, Unpacked(0, 0))
    try:
        with file.open("rb") as source, mmap(source.fileno(), 0, access=ACCESS_READ) as content:
            footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            for group in _Thrift(content, footer).struct().get(4, ()):
                for column, size in columns.items():
                    number, page = _of_column(content, group[1][column][3])
                    values, largest = sizes[column]
                    sizes[column] = Unpacked(values + number * size, max(largest, page))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {file}: it is damaged. Expected a complete .parquet file.") from error
    return sizes


def _of_column(content: mmap, chunk: dict[int, Any]) -> tuple[int, int]:
    """The number of values in the pages of a column chunk, and the size of the largest page."""
    first, dictionary = chunk[9], chunk.get(11, 0)
    reader = _Thrift(content, dictionary if 0 < dictionary < first else first)
    values = largest = 0
    while values < chunk[5]:
        header = reader.struct()
        kind, unpacked, packed = header[1], header[2], header[3]
        number = header[_HEADERS[kind]][1] if kind in _HEADERS else 0
        if min(unpacked, packed, number) < 0:
            raise ValueError("a size below 0")
        values, largest = values + (number if kind != _DICTIONARY else 0), max(largest, unpacked)
        reader.at += packed
    return values, largest


class _Thrift:
    """A reader of structs of the compact protocol: values by field number, without texts."""

    def __init__(self, content: mmap, at: int) -> None:
        if at < 0:
            raise ValueError("a place before the file")
        self._content, self.at = content, at

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._number()
            if number in fields:
                raise ValueError("a field twice")
            kind = head & 15
            fields[number] = (
                kind == 1 if kind in (1, 2) else self._value(kind)
            )  # the kind of a truth value is its value
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._number()
            case 7 | 13:  # a floating-point number, an identifier
                self.at += 8 if kind == 7 else 16
            case 8:
                length = self._varint()  # which moves on too
                self.at += length
            case 9 | 10:
                head = self._byte()
                number = head >> 4 if head >> 4 != 15 else self._varint()
                return [self._value(head & 15) for _ in range(number)]
            case 11:
                number = self._varint()
                kinds = self._byte() if number else 0
                for _ in range(number):
                    self._value(kinds >> 4)
                    self._value(kinds & 15)
            case 12:
                return self.struct()
            case _:
                raise ValueError("a kind that there is not")
        return None

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number that does not end")

    def _byte(self) -> int:
        byte = self._content[self.at]
        self.at += 1
        return byte
