"""Centroids from shells of lattices: very many classes in a moderate number of dimensions."""

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, sqrt

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tammes.centroids.fields import powers
from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ENOUGH = 1e15  # counts are exact in float64 up to here, and capped above


def shells(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Lattice points at distance sqrt N from the origin: smallest distance sqrt(M/N), with M the lattice's norm.

    The lattices are the integer vectors; those with an even sum; those that are words of an extended Hamming code
    modulo 2 (Construction A); and those that are words of a code of distance 8 with a sum divisible by 4
    (Construction B). They include D_n, E8 and the Barnes-Wall lattice (Conway and Sloane, 1988). The lattice and shell
    with the largest M/N are used.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if not 2 <= dim <= 64:
        raise UserError(f"shells are for dim 2 to 64, got {dim}. Use centroids.place.")
    shell = best_shell(num_classes, dim)
    if shell is None:
        raise UserError(
            f"shells in dim {dim} have too few points for {num_classes} classes. Raise dim or use centroids.place."
        )
    vectors = _vectors(shell, num_classes, dim)  # (classes, dim)
    return torch.from_numpy(vectors / sqrt(shell.norm)).to(dtype)


@dataclass(frozen=True)
class Shell:
    """The vectors of one squared norm in one lattice."""

    least: int  # M: the smallest squared norm of the lattice, hence the smallest squared distance
    norm: int  # N: the squared norm on this shell

    @property
    def cosine(self) -> float:
        """The largest cosine between two of its vectors."""
        return 1 - self.least / (2 * self.norm)


@lru_cache(maxsize=64)
def best_shell(num_classes: int, dim: int) -> Shell | None:
    """The best shell with at least num_classes vectors, among squared norms up to 128; None if there is none."""
    found: list[Shell] = []
    for least in (1, 2, 4, 8):
        if least == 8 and not 8 <= dim <= 16:  # needs words of weight 8; beyond 16 the table grows eightfold
            continue
        for limit in (8, 16, 32, 64, 128):
            counts = _counts(least, dim, limit)[0][1:, 0]  # (limit,): vectors of each squared length from 1
            enough = (counts >= num_classes).nonzero()[0]
            if len(enough):
                found.append(Shell(least, int(enough[0]) + 1))
                break
    return min(found, key=lambda shell: shell.cosine, default=None)


def _checks(least: int, dim: int) -> Ints:
    """For each coordinate, the check bits that an odd entry flips; in the lattice, all checks are zero."""
    if least == 1:
        return np.zeros(dim, dtype=np.int64)
    if least == 2:
        return np.ones(dim, dtype=np.int64)
    degree = max(1, (dim - 1).bit_length())
    place = np.concatenate([[0], powers(degree)])[:dim]  # distinct elements of the field: 0, 1, a, a², …
    if least == 4:  # extended Hamming: parity and the place
        return 1 + 2 * place
    # The dual of the first-order Reed-Muller code, which is of distance 8 up to length 16: products of up to 2 bits.
    bits = place[:, None] >> np.arange(4) & 1  # (dim, 4)
    rows = [np.ones(dim, dtype=np.int64), *bits.T, *(bits[:, i] & bits[:, j] for i in range(4) for j in range(i))]
    return sum((row << index for index, row in enumerate(rows)), np.zeros(dim, dtype=np.int64))


def _moves(least: int, dim: int) -> Ints:
    """The next state for each coordinate, entry modulo 4, and state: (dim, 4, states).

    A state is the checks so far; in Construction B also half the sum modulo 2, which the entries modulo 4 determine.
    """
    checks = _checks(least, dim)
    states = np.arange(1 << int(checks.max()).bit_length())
    moves = np.stack([states ^ (entry % 2 * checks[:, None]) for entry in range(4)], axis=1)  # (dim, 4, states)
    if least < 8:
        return moves
    # Bit 0 of the state is the parity of the sum: adding an odd entry to an odd sum carries into the new top bit.
    carry = np.array([[0, 0, 1, 1], [0, 1, 1, 0]])[states & 1].T  # (4, states)
    size = len(states)
    return np.concatenate([moves + size * carry, moves + size * (1 - carry)], axis=2)


@lru_cache(maxsize=16)
def _counts(least: int, dim: int, limit: int) -> list[Floats]:
    """The number of ways in which coordinates j, j+1, … complete a lattice vector, by remaining norm and state."""
    moves = _moves(least, dim)
    counts = [np.zeros((limit + 1, moves.shape[2]))]
    counts[0][0, 0] = 1
    for coordinate in reversed(range(dim)):
        after = counts[0]
        now = np.zeros_like(after)
        for entry in range(-isqrt(limit), isqrt(limit) + 1):
            now[entry**2 :] += after[: limit + 1 - entry**2, moves[coordinate, entry % 4]]
        counts.insert(0, np.minimum(now, _ENOUGH))
    return counts


def _vectors(shell: Shell, count: int, dim: int) -> Ints:
    """`count` vectors of the shell, evenly spread over their lexicographic order."""
    counts = _counts(shell.least, dim, shell.norm)
    moves = _moves(shell.least, dim)
    rank = np.floor(np.arange(count) * (counts[0][shell.norm, 0] / count))  # (count,)
    left = np.full(count, shell.norm)
    state = np.zeros(count, dtype=np.int64)
    vectors = np.zeros((count, dim), dtype=np.int64)
    for coordinate in range(dim):
        chosen = np.zeros(count, dtype=bool)
        for entry in range(-isqrt(shell.norm), isqrt(shell.norm) + 1):
            then = moves[coordinate, entry % 4, state]
            fits = ~chosen & (left >= entry**2)
            ways = np.where(fits, counts[coordinate + 1][np.maximum(left - entry**2, 0), then], 0)
            take = fits & (rank < ways)
            rank = np.where(fits & ~take, rank - ways, rank)
            vectors[take, coordinate] = entry
            left = np.where(take, left - entry**2, left)
            state = np.where(take, then, state)
            chosen |= take
    return vectors
