"""Centroids on circles of latitude: many points in few dimensions."""

from math import pi

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tammes.centroids.validation import checked_sizes
from tammes.errors import UserError

Floats = NDArray[np.float64]


def layers(
    num_classes: int, dim: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "classes dim"]:
    """Points on circles of latitude with equal distances within and between circles: a regular polygon in dim 2.

    A sphere is cut into latitudes at least the wanted angle apart; each is a sphere of one dimension less and is cut in
    turn (El Gamal et al., 1987). The widest angle at which all classes fit is found by bisection. Best for many classes
    in up to about 8 dimensions.
    Deterministic: the generator is not used.
    """
    del generator
    checked_sizes(num_classes, dim, dtype)
    if dim < 2:
        raise UserError(f"layers need dim >= 2, got {dim}. Use centroids.simplex.")
    angle = widest_angle(num_classes, dim)
    _, points = _points(np.array([angle]), dim)
    return torch.from_numpy(points[:num_classes]).to(dtype)


def widest_angle(num_classes: int, dim: int) -> float:
    """The widest angle between neighbours at which at least num_classes points fit."""
    if dim == 2:
        return 2 * pi / num_classes
    low = high = pi
    while _count(np.array([low]), dim) < num_classes:  # from above: a small angle gives very many points
        low, high = low * 0.9, low
    for _ in range(30):
        angle = (low + high) / 2
        low, high = (angle, high) if _count(np.array([angle]), dim) >= num_classes else (low, angle)
    return low


def _latitudes(angles: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """For each sphere cut at its angle: the sphere, the polar angle and the inner angle of each of its latitudes.

    Latitudes are exactly the angle apart and symmetric about the equator, where circles are widest. The inner angle,
    at which the latitude itself is cut, keeps the same chord on its smaller radius; inf where only one point fits.
    """
    counts = (pi / angles).astype(np.int64) + 1
    sphere = np.repeat(np.arange(len(angles)), counts)
    place = np.arange(len(sphere)) - np.repeat(counts.cumsum() - counts, counts)
    polar = pi / 2 + (place - (counts[sphere] - 1) / 2) * angles[sphere]
    with np.errstate(divide="ignore"):
        half_chord = np.sin(angles[sphere] / 2) / np.sin(polar)
    inner = np.where(half_chord <= 1, 2 * np.arcsin(np.minimum(half_chord, 1)), np.inf)
    return sphere, polar, inner


def _circle_counts(angles: Floats) -> NDArray[np.int64]:
    """How many points fit on circles at these angles; the slack allows for the rounding of an exact division."""
    return np.maximum(1, (2 * pi / angles * (1 + 1e-12)).astype(np.int64))


def _count(angles: Floats, dim: int) -> int:
    """The number of points that `_points` returns."""
    single = int(np.isinf(angles).sum())
    angles = angles[np.isfinite(angles)]
    if len(angles) == 0:
        return single
    if dim == 2:
        return single + int(_circle_counts(angles).sum())
    return single + _count(_latitudes(angles)[2], dim - 1)


def _points(angles: Floats, dim: int) -> tuple[NDArray[np.int64], Floats]:
    """Points on every sphere at its angle: the sphere each belongs to, and its coordinates."""
    lone = np.isinf(angles).nonzero()[0]
    cut = np.isfinite(angles).nonzero()[0]
    first = np.zeros((len(lone), dim))
    first[:, 0] = 1
    if len(cut) == 0:
        return lone, first
    if dim == 2:
        counts = _circle_counts(angles[cut])
        owner = np.repeat(np.arange(len(cut)), counts)
        place = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)
        turn = 2 * pi * place / counts[owner]
        points = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    else:
        sphere, polar, inner = _latitudes(angles[cut])
        latitude, smaller = _points(inner, dim - 1)
        polar, owner = polar[latitude, None], sphere[latitude]
        points = np.concatenate([np.cos(polar), np.sin(polar) * smaller], axis=1)
    return np.concatenate([lone, cut[owner]]), np.concatenate([first, points])
