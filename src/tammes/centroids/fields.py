"""Arithmetic in the finite fields of 2^m elements, by tables; an element is an int whose bits are its coordinates."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# One primitive polynomial for each degree: bit i is the coefficient of x^i.
_PRIMITIVE = {
    1: 0b11,
    2: 0b111,
    3: 0b1011,
    4: 0b10011,
    5: 0b100101,
    6: 0b1000011,
    7: 0b10001001,
    8: 0b100011101,
    9: 0b1000010001,
    10: 0b10000001001,
    11: 0b100000000101,
    12: 0b1000001010011,
}
LARGEST_DEGREE = max(_PRIMITIVE)


@lru_cache
def powers(degree: int) -> Ints:
    """The powers a^0, a^1, …, a^(2^m - 2) of a primitive element: every element but zero, once."""
    size = 1 << degree
    result, element = np.empty(size - 1, dtype=np.int64), 1
    for exponent in range(size - 1):
        result[exponent] = element
        element <<= 1
        if element & size:
            element ^= _PRIMITIVE[degree]
    return result


@lru_cache
def _logarithms(degree: int) -> Ints:
    result = np.zeros(1 << degree, dtype=np.int64)
    result[powers(degree)] = np.arange((1 << degree) - 1)
    return result


def product(degree: int, left: Ints, right: Ints) -> Ints:
    """Products of elements, broadcast like numpy's."""
    logarithm = _logarithms(degree)
    result = powers(degree)[(logarithm[left] + logarithm[right]) % ((1 << degree) - 1)]
    return np.where((left == 0) | (right == 0), 0, result)


def trace(degree: int, elements: Ints) -> Ints:
    """x + x² + x⁴ + … (m terms), which is 0 or 1."""
    total, conjugate = np.zeros_like(elements), elements
    for _ in range(degree):
        total, conjugate = total ^ conjugate, product(degree, conjugate, conjugate)
    return total


def cyclotomic_coset(degree: int, exponent: int) -> frozenset[int]:
    """The exponents e, 2e, 4e, … modulo 2^m - 1: the zeros conjugate to a^e."""
    order = (1 << degree) - 1
    return frozenset(exponent * (1 << i) % order for i in range(degree))


def bits(numbers: Ints, width: int) -> NDArray[np.uint8]:
    """The bits of the numbers, lowest first, along a new last axis of length `width`."""
    return (numbers[..., None] >> np.arange(width) & 1).astype(np.uint8)
