"""Centroids from binary codes: closed form, for very many classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tammes.centroids.fields import LARGEST_DEGREE, cyclotomic_coset, powers, product
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError

Bits = NDArray[np.uint8]


def codes(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Codewords of a binary code of length n and distance d as signs over sqrt n: cosines are at most 1 - 2 d/n.

    The code is the extended BCH code with the largest d/n that has enough words, shortened or punctured if dim is not a
    power of 2: 4 million points in dim 128 have cosines up to 0.25. Of a code that contains the complement of every
    word only half is used if that suffices, so that no two points are opposite.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if num_classes > 1 << dim:
        raise UserError(
            f"codes in dim {dim} have at most {1 << dim} words, got {num_classes} classes."
            f" Raise dim to {(num_classes - 1).bit_length()} or more, or use centroids.place."
        )
    code = best_code(num_classes, dim)
    points = torch.zeros(num_classes, dim, dtype=dtype)
    points[0, : code.length] = 1 / sqrt(code.length)
    done = 1
    for word in _rows(code):  # every word doubles the points
        if done >= num_classes:
            break
        signs = torch.from_numpy(1.0 - 2.0 * word).to(dtype)  # (length,)
        more = min(done, num_classes - done)
        torch.mul(points[:more, : code.length], signs, out=points[done : done + more, : code.length])
        done += more
    return points


@dataclass(frozen=True)
class Code:
    """A linear code: the extended BCH code of length 2^degree without its last `shortened` + `punctured` positions."""

    degree: int
    designed: int  # zeros are the powers 1 … designed - 1 of the primitive element
    words: int  # log2 of the number of words used
    shortened: int
    punctured: int
    distance: int  # minimum Hamming distance

    @property
    def length(self) -> int:
        return (1 << self.degree) - self.shortened - self.punctured

    @property
    def cosine(self) -> float:
        """The largest cosine between two words as signs."""
        return 1 - 2 * self.distance / self.length


@lru_cache(maxsize=64)
def best_code(num_classes: int, dim: int) -> Code:
    """The code with the smallest maximum cosine among those with num_classes words and a length up to dim."""
    return min(_candidates((num_classes - 1).bit_length(), dim), key=lambda code: (code.cosine, -code.length))


def _candidates(words: int, dim: int) -> Iterator[Code]:
    """For each BCH code, the best d/n: shorten while there are words to spare, then puncture down to dim."""
    for degree in range(1, LARGEST_DEGREE + 1):
        size = 1 << degree
        if size >= 4 * dim:
            break
        for designed, dimension in _bch_codes(degree):
            shortened = min(dimension - words, size - 1)
            punctured = max(0, size - shortened - dim)
            distance = designed + 1 - punctured
            if shortened >= 0 and distance > 0:
                yield Code(degree, designed, words, shortened, punctured, distance)


@lru_cache
def _bch_codes(degree: int) -> tuple[tuple[int, int], ...]:
    """Designed distance and dimension of the narrow-sense BCH codes of length 2^m - 1, largest dimension first.

    Zeros a^1 … a^(δ-1) give distance δ; extended by a parity bit, δ + 1, since δ is odd (Bose and Ray-Chaudhuri, 1960).
    """
    order = (1 << degree) - 1
    found: list[tuple[int, int]] = []
    zeros: frozenset[int] = frozenset()
    exponent = 1
    while len(zeros) < order and exponent <= order:
        found.append((exponent, order - len(zeros)))
        zeros |= cyclotomic_coset(degree, exponent)
        while exponent in zeros:
            exponent += 1
    return tuple(found)


def _rows(code: Code) -> Iterator[Bits]:
    """Generators of the code, one at a time.

    These are the multiples x^i g(x) of the generator polynomial, i < words: their top positions are zero, which is the
    shortening, and the word of ones, which needs the top position, is a sum of them only if all are used.
    """
    polynomial = _generator_polynomial(code.degree, code.designed)
    order = (1 << code.degree) - 1
    for shift in range(code.words):
        word = np.zeros(order, dtype=np.uint8)
        word[shift : shift + len(polynomial)] = polynomial
        extended = np.concatenate([[word.sum() % 2], word]).astype(np.uint8)  # the parity bit first, never cut off
        yield extended[: code.length]


@lru_cache
def _generator_polynomial(degree: int, designed: int) -> Bits:
    """Coefficients of the product of (x - a^e) over all zeros, lowest first; they are 0 or 1."""
    exponents: frozenset[int] = frozenset()
    for exponent in range(1, designed):
        exponents |= cyclotomic_coset(degree, exponent)
    polynomial = np.array([1], dtype=np.int64)
    for exponent in sorted(exponents):
        root = powers(degree)[exponent]
        shifted = np.concatenate([[0], polynomial])
        polynomial = shifted ^ np.append(product(degree, polynomial, np.array(root)), 0)
    return polynomial.astype(np.uint8)
