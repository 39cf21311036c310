"""Read the weights of a Caffe network: a minimal parser of the protocol buffers format."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tammes.errors import UserError

# Field numbers of caffe.proto: the current form of layers and the legacy form.
_LAYERS = {100: {"name": 1, "blobs": 7}, 2: {"name": 4, "blobs": 6}}
_BLOB_LEGACY_SHAPE, _BLOB_DATA, _BLOB_SHAPE, _SHAPE_SIZES = (1, 2, 3, 4), 5, 7, 1
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types


def read_caffemodel(file: Path) -> dict[str, Tensor]:
    """The tensors of a .caffemodel as "LAYER.weight" and "LAYER.bias", in float32.

    Raises:
        UserError: it is not a Caffe model, or incomplete.
    """
    try:
        tensors: dict[str, Tensor] = {}
        for number, value in _fields(memoryview(file.read_bytes())):
            if number in _LAYERS and isinstance(value, memoryview):
                tensors |= _layer(value, **_LAYERS[number])
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file} as a Caffe model: {error}.") from error
    if not tensors:
        raise UserError(f"cannot read {file} as a Caffe model: it has no weights.")
    return tensors


def _layer(data: memoryview, *, name: int, blobs: int) -> dict[str, Tensor]:
    called, found = "", []
    for number, value in _fields(data):
        if isinstance(value, memoryview):
            if number == name:
                called = str(value, "utf-8")
            elif number == blobs:
                found.append(_blob(value))
    kinds = ("weight", "bias", *(f"blob{index}" for index in range(2, len(found))))
    # The legacy form stores a bias as (1, 1, 1, outputs).
    return {
        f"{called}.{kind}": tensor.reshape(-1) if kind == "bias" else tensor
        for kind, tensor in zip(kinds, found, strict=False)
    }


def _blob(data: memoryview) -> Tensor:
    legacy, shape, chunks = [1, 1, 1, 1], None, []
    for number, value in _fields(data):
        if isinstance(value, int):
            if number in _BLOB_LEGACY_SHAPE:
                legacy[number - 1] = value
        elif number == _BLOB_DATA:
            chunks.append(np.frombuffer(value, "<f4"))  # ValueError unless a multiple of four bytes
        elif number == _BLOB_SHAPE:
            shape = list(_sizes(value))
    values = np.concatenate(chunks) if chunks else np.zeros(0, "<f4")
    shape = legacy if shape is None else shape
    if prod(shape) != len(values) or not len(values):
        raise ValueError(f"a tensor of shape {shape} has {len(values)} values")
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def _sizes(data: memoryview) -> Iterator[int]:
    for number, value in _fields(data):
        if number == _SHAPE_SIZES:
            if isinstance(value, int):
                yield value
            else:  # several, packed
                place = 0
                while place < len(value):
                    size, place = _varint(value, place)
                    yield size


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: number, and an integer or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            whole, place = _varint(data, place)
            yield number, whole
            continue
        if kind == _BYTES:
            length, place = _varint(data, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("it has another format")
        if length > len(data) - place:
            raise ValueError("it ends too early")
        yield number, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """A variable-length integer (seven bits per byte, lowest first), and the position after it."""
    value = 0
    for index in range(10):  # 64 bits
        if place + index >= len(data):
            raise ValueError("it ends too early")
        byte = data[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise ValueError("it has another format")
