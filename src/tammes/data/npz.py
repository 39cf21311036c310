"""Read a .npz or .npy file whose largest array need not fit into memory."""

import struct
import zlib
from pathlib import Path
from tokenize import TokenError
from zipfile import ZIP_STORED, BadZipFile, ZipExtFile, ZipFile, ZipInfo

import numpy as np
from numpy import ndarray

from tammes.data.vector_names import known_names
from tammes.errors import UserError
from tammes.io.limits import check_unpacked

# There is a version 3, for names of fields that are not Latin: vectors have none.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz_arrays(file: Path, *, labelled: bool = True) -> dict[str, ndarray]:
    """The arrays of a .npz file that `tammes.data.vectors` knows by name, `vectors` mapped if it can be.

    Args:
        labelled: whether there must be labels.

    Raises:
        UserError: the file is not whole, or `vectors` or `labels` is missing.
    """
    found: dict[str, ndarray] = {}
    try:
        with ZipFile(file) as archive:
            stored = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            names = known_names(stored)
            missing = [name for name in ("vectors", *(["labels"] if labelled else [])) if name not in names]
            if missing:
                raise UserError(f"{file} has no array `{missing[0]}`; it has {', '.join(stored) or 'none'}.")
            for name, called in names.items():
                found[name] = _array(file, archive, stored[called], name)
    # RuntimeError: it is encrypted; UnicodeDecodeError: the name of an entry is not what its flags say.
    except (BadZipFile, OSError, EOFError, RuntimeError, UnicodeDecodeError, struct.error, zlib.error) as error:
        raise UserError(f"cannot read {file}: {str(error).rstrip('.')}. Expected a complete .npz file.") from error
    return found


def npy_array(file: Path) -> ndarray:
    """The array of a .npy file, mapped.

    Raises:
        UserError: the file is not a complete array of numbers.
    """
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (ValueError, OSError, EOFError, SyntaxError, TokenError) as error:
        raise UserError(f"{file} is not a complete .npy file of numbers: {str(error).rstrip('.')}.") from error
    return array[None] if array.ndim == 1 and array.dtype.kind == "f" else array  # one vector


def _array(file: Path, archive: ZipFile, entry: ZipInfo, name: str) -> ndarray:
    try:
        mapped = _mapped(file, entry) if name == "vectors" else None
        if mapped is not None:
            return mapped
        check_unpacked(entry.file_size, entry.compress_size, f"`{name}` of {file}")
        with archive.open(entry) as source:
            assert isinstance(source, ZipExtFile)
            _check_length(source, entry)
        with archive.open(entry) as source:
            return np.asarray(np.lib.format.read_array(source, allow_pickle=False))
    except UserError:
        raise
    except (ValueError, SyntaxError, TokenError) as error:
        if "allow_pickle" not in str(error):
            raise UserError(f"`{name}` of {file} is not a complete array. Save it again.") from error
        raise UserError(
            f"`{name}` of {file} holds Python objects, which are not read. "
            f"Save it as numbers or text: np.array({name}, dtype=str)."
        ) from None


def _check_length(source: ZipExtFile, entry: ZipInfo) -> None:
    """Raise ValueError if an array's length differs from its header, before memory is allocated."""
    version = np.lib.format.read_magic(source)
    if version in _HEADERS:
        shape, _, dtype = _HEADERS[version](source)
        if (
            not dtype.hasobject
            and source.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size
        ):
            raise ValueError("another length than the header says")


def _mapped(file: Path, entry: ZipInfo) -> ndarray | None:
    """Memory-map an array that is stored uncompressed in a zip file; None if that is not possible.

    np.load can do so for .npy files only. The array begins after the local header of its entry, whose length may differ
    from that in the central directory, so the local header is read here.
    """
    if entry.compress_type != ZIP_STORED or entry.flag_bits & 1:  # compressed or encrypted
        return None
    with file.open("rb") as source:
        source.seek(entry.header_offset)
        header = source.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise BadZipFile("an entry is not where the list of entries says")
        source.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        begin = source.tell()
        version = np.lib.format.read_magic(source)
        if version not in _HEADERS:
            return None
        shape, fortran_order, dtype = _HEADERS[version](source)
        offset = source.tell()
    count = int(np.prod(shape, dtype=object))
    if dtype.hasobject or not shape or count == 0:
        return None
    if offset - begin + count * dtype.itemsize != entry.file_size:
        raise ValueError("another length than the header says")
    return np.memmap(file, dtype, "r", offset, shape, order="F" if fortran_order else "C")
