"""The axes of a chart, linear or logarithmic: tick positions, and numbers as text."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from tammes.report.labels import LINE_HEIGHT, pixels
from tammes.report.svg import Number, Place, join, stroke, text

_LARGEST = 1e100  # farther from 0, or nearer to it on a logarithmic axis, the ends of an axis may not be numbers
_TIMES = "\N{MULTIPLICATION SIGN}"


def figure(value: Number) -> str:
    """A number for people, to about three figures: 1,024, 52.89, 0.0154, 2.50×10⁻⁷.

    >>> figure(52.886), figure(1024), figure(0.01546), figure(-3e9)
    ('52.89', '1,024', '0.0155', '−3.00×10⁹')
    """
    size = abs(value)
    if not math.isfinite(value):
        return "-"
    if size and not 1e-3 <= size < 1e7:
        power = math.floor(math.log10(size))
        return _sign(f"{value / 10.0**power:.2f}{_TIMES}10{_raised(power)}")
    if float(value).is_integer() and (isinstance(value, int) or size >= 1000):
        return _sign(f"{value:,.0f}")
    return _sign(
        f"{value:,.0f}"
        if size >= 1000
        else f"{value:.1f}"
        if size >= 100
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3g}"
    )


def alike(values: Sequence[float | None]) -> list[str]:
    """Numbers of one column with the same number of decimals; "no result" for None."""
    sizes = [abs(value) for value in values if value]
    if not sizes or not 1e-3 <= min(sizes) <= max(sizes) < 1e7:
        return ["no result" if value is None else figure(value) for value in values]
    largest, least = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
    digits = max(0, min(2, 3 - largest), min(4, 1 - least))
    return ["no result" if value is None else _sign(f"{value:,.{digits}f}") for value in values]


def _sign(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def is_number(value: Number | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) <= _LARGEST


def is_drawable(value: Number | None, log: bool) -> bool:
    return value is not None and is_number(value) and (not log or value >= 1 / _LARGEST)


@dataclass(frozen=True)
class Axis:
    """From values to pixels, and the ticks with their labels."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: list[float]
    labels: list[str]

    def at(self, value: float) -> float:
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def has_zero(self) -> bool:
        return not self.log and self.low <= 0 <= self.high


def axis(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    horizontal: bool = False,
    tight: bool = False,
    zero: bool = False,
) -> Axis:
    """The axis with the most ticks whose labels do not overlap.

    Args:
        tight: end at the last value, not at the next tick.
        zero: begin at 0 if that less than doubles the range.
    """
    low, high = min(values), max(values)
    if log:
        low, high = (low / 1.5, high * 1.5) if high <= low * 1.0001 else (low, high)
        margin = 1.0 if tight else (high / low) ** 0.05
        low, high = low / margin, high * margin
        candidates: Iterable[list[float]] = _log_ticks(low, high)
    else:
        if zero and 0 < low < high and 2 * low < high:
            low = 0.0
        if high - low <= 1e-9 * max(abs(low), abs(high)) or high - low < 1e-280:
            middle, half = (low + high) / 2, max(0.1 * abs(high), 1e-280) if high else 1.0
            low, high = middle - half, middle + half
        whole = tight and all(float(value).is_integer() for value in values)
        most = max(1, int(abs(end - start) / 45))
        candidates = (_linear_ticks(low, high, count, whole) for count in range(most, 0, -1))
    for ticks in candidates:
        if tight or log:
            ticks = [tick for tick in ticks if low * (1 - 1e-12 * (low > 0)) <= tick <= high]
        first, last = (low, high) if tight or log or len(ticks) < 2 else (ticks[0], ticks[-1])
        axis = Axis(first, last, start, end, log, ticks, _labels(ticks, log))
        if len(ticks) > 1 and _have_room(axis, horizontal):
            return axis
    return Axis(low, high, start, end, log, [low, high], [figure(low), figure(high)])


def _linear_ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about `count` of them, from below `low` to above `high`."""
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
    if whole:
        step = max(step, 1.0)
    return [number * step for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Candidate ticks, the densest first: equal steps within a decade, 1-2-5, 1-3, decades, every n-th decade."""
    if high < 5 * low:
        yield from (_linear_ticks(low, high, count) for count in (5, 4, 3, 2))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if high < 1000 * low:
        for digits in ((1, 2, 5), (1, 3)):
            yield [digit * 10.0**power for power in powers for digit in digits]
    for every in (1, 2, 3, 5, 10, 20, 50, 100, 200):
        yield [10.0**power for power in powers if power % every == 0]


def _labels(ticks: Sequence[float], log: bool) -> list[str]:
    sizes = [abs(tick) for tick in ticks if tick]
    if not sizes:
        return [figure(tick) for tick in ticks]
    step = min((after - before for before, after in pairwise(ticks)), default=sizes[0])
    even = not log or max(ticks) < 5 * min(ticks)  # in a part of a decade the steps of both are
    if min(sizes) >= 1e-3 and max(sizes) < 1e7:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return [_sign(f"{tick:,.{digits}f}") if even else f"{tick:,.10g}" for tick in ticks]
    powers = [math.floor(math.log10(abs(tick)) + 1e-9) if tick else 0 for tick in ticks]
    # In even steps all have the power of the largest, in others each its own.
    if even:
        powers = [max(power for power, tick in zip(powers, ticks, strict=True) if tick)] * len(ticks)
    digits = min(9, max(0, powers[0] - math.floor(math.log10(step) + 1e-9))) if even else 0
    return [_scientific(tick, power, digits) for tick, power in zip(ticks, powers, strict=True)]


def _scientific(value: float, power: int, digits: int) -> str:
    if not value:
        return "0"
    factor = _sign(f"{value / 10.0**power:.{digits}f}")
    if not power:
        return factor
    ten = f"10{_raised(power)}"
    return ten if factor == "1" else f"{factor}{_TIMES}{ten}"


def _have_room(axis: Axis, horizontal: bool) -> bool:
    """Whether the labels of neighbouring ticks do not overlap."""
    for one, other in pairwise(zip(axis.ticks, axis.labels, strict=True)):
        needed = (pixels(one[1]) + pixels(other[1])) / 2 + 10 if horizontal else LINE_HEIGHT * 1.5
        if abs(axis.at(other[0]) - axis.at(one[0])) < needed:
            return False
    return True


def rules(vertical: Axis, left: float, right: float) -> Markup:
    """Lines from side to side at the ticks, and their labels."""
    parts = []
    for tick, label in zip(vertical.ticks, vertical.labels, strict=True):
        y = vertical.at(tick)
        parts += [stroke("rule", [(left, y), (right, y)]), text(left - 8, y + 4.5, label, "muted", anchor="end")]
    return join(parts)


def bottom_axis(axis: Axis, left: float, right: float, y: float, place: Place, title: str) -> Markup:
    parts = [stroke("axis", [(left, y), (right, y)])]
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        x, half = axis.at(tick), pixels(label) / 2
        parts.append(stroke("axis", [(x, y), (x, y + 4)]))
        parts.append(text(min(max(x, half), place.width - half), y + 18, label, "muted", anchor="middle"))
    if title:
        half = pixels(title) / 2
        middle = max(half, min((left + right) / 2, place.width - half))
        parts.append(text(middle, y + 37, title, "muted", anchor="middle"))
    return join(parts)
