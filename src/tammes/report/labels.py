"""Labels in a chart: their size, and positions without overlaps."""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from markupsafe import Markup

from tammes.report.svg import NOTHING, Number, stroke, tag, text

Segment = tuple[tuple[float, float], tuple[float, float]]

SIZE, LINE_HEIGHT = 13, 16  # of all words and figures, as in charts.css
NEAR = 14  # pixels from a point to its label; farther ones have a line between them
_ANGLES = (0, 180, 90, 270, 45, 315, 135, 225, *(angle for angle in range(0, 360, 10) if angle % 90))  # best first


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


class Label(NamedTuple):
    """Lines of text and their size."""

    words: str
    lines: list[str]
    width: float

    @classmethod
    def of(cls, words: str, width: Number) -> "Label":
        """Wrap into at most three balanced lines of this width, with an ellipsis if necessary."""
        lines = _wrapped(words, width)
        if len(lines) > 3:
            lines = [*lines[:2], " ".join(lines[2:])]
        else:
            narrower = (_wrapped(words, share * width) for share in (0.5, 0.6, 0.7, 0.8, 0.9))
            lines = next((each for each in narrower if len(each) == len(lines) and widest(each) <= width), lines)
        lines = [_cut(line, width) for line in lines]
        return cls(words, lines, widest(lines))

    @property
    def height(self) -> float:
        return float(LINE_HEIGHT * len(self.lines))

    def drawn(self, x: Number, middle: Number, anchor: str = "start", kind: str = "name") -> Markup:
        first = middle - self.height / 2 + 12
        if len(self.lines) == 1:
            return text(x, first, self.lines[0], kind, anchor=anchor, title=self.words)
        spans = [tag("tspan", line, x=x, y=first + LINE_HEIGHT * number) for number, line in enumerate(self.lines)]
        return tag("text", tag("title", self.words), *spans, class_=kind, text_anchor=anchor)


def _wrapped(words: str, width: Number) -> list[str]:
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if pixels(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _cut(line: str, width: Number) -> str:
    if pixels(line) <= width:
        return line
    while line and pixels(line + "…") > width:
        line = line[:-1]
    return line.rstrip(" ,") + "…"


def pixels(words: str) -> float:
    """An upper bound of the width of a text: that in DejaVu Sans, which is wider than other system fonts."""
    return SIZE * sum(map(_em, words), start=0.0)


def _em(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.3 if ord(letter) > 0xFFFF else 1.02
    if letter in "mwMW@%—…&+=<>~±\N{MULTIPLICATION SIGN}":
        return 0.98 if letter in "mMW@%—…" else 0.84
    if letter in " .,:;'|!()[]ijlItfr/-":
        return 0.42 if letter in "tfr()[]-" else 0.34
    return 0.72 if letter.isupper() else 0.64


def widest(texts: Sequence[str]) -> float:
    return max(map(pixels, texts), default=0.0)


def apart(wanted: Sequence[float], heights: Sequence[float], top: Number, bottom: Number) -> list[float]:
    """Middles as near as can be to those wanted, which are in order, so that what is that high does not overlap.

    Labels that touch move as one block, to the mean of where they would be.
    """
    before = [sum(heights[:number]) + heights[number] / 2 for number in range(len(heights))]
    blocks: list[list[float]] = []  # the offsets of each block
    for middle, offset in zip(wanted, before, strict=True):
        blocks.append([middle - offset])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    highest, lowest = top, bottom - sum(heights)
    shifts = [min(max(_mean(block), highest), max(highest, lowest)) for block in blocks for _ in block]
    return [shift + offset for shift, offset in zip(shifts, before, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def in_rows(places: Mapping[str, float], left: Number, right: Number) -> dict[str, tuple[int, float]]:
    """For each name its row above the chart, 0 the lowest, and its left end: beside its place, on the right if it can.

    Names do not overlap, and the line up to a name in a higher row goes past those below it, if there is any such way.
    """
    orders = islice(permutations(sorted(places, key=lambda name: -places[name])), 120)
    tried = (_rows_in_order(order, places, (left, right), side) for order in orders for side in (1, -1))
    best: tuple[int, int, dict[str, tuple[int, float]]] | None = None
    for forced, found in tried:
        rows = max((row for row, _ in found.values()), default=0)
        if best is None or (forced, rows) < best[:2]:
            best = forced, rows, found
        if not forced and rows == 0:
            break
    return {} if best is None else best[2]


def _rows_in_order(
    order: Sequence[str], places: Mapping[str, float], within: tuple[Number, Number], side: int
) -> tuple[int, dict[str, tuple[int, float]]]:
    """Each name in the lowest row that is left for it, rather right of its place or left; and how many found none."""
    found: dict[str, tuple[int, float]] = {}
    forced = 0
    for name in order:
        least, most = within[0], max(within[0], within[1] - pixels(name))
        sides = (places[name] + 3, places[name] - 3 - pixels(name))
        starts = [start for start in sides[::side] if least <= start <= most]
        free = [
            (row, start)
            for row in range(len(places))
            for start in starts
            if not any(_is_in_the_way(name, row, start, other, *at, places) for other, at in found.items())
        ]
        forced += not free
        found[name] = free[0] if free else (len(found), float(min(max(least, places[name] + 3), most)))
    return forced, found


def _is_in_the_way(
    name: str, row: int, start: float, other: str, its_row: int, its_start: float, places: Mapping[str, float]
) -> bool:
    """Whether two names overlap, or the line up to the higher one goes through the lower one."""
    if row == its_row:
        return start < its_start + pixels(other) + 6 and its_start < start + pixels(name) + 6
    if row > its_row:
        return its_start - 2 < places[name] < its_start + pixels(other) + 2
    return start - 2 < places[other] < start + pixels(name) + 2


def names_or_numbers(
    names: Sequence[str], where: Sequence[tuple[float, float]], taken: Sequence[Box], room: Box
) -> tuple[list["Label"], list[Box | None], list[str]]:
    """The label of each point, where it goes, and the names of those that got a number instead, 1 the first of them."""
    width = max(110.0, 0.3 * (room.right - room.left))
    crowd = [sum(math.dist(one, other) < 60 for other in where) for one in where]  # itself too
    best: tuple[list[Label], list[Box | None], list[str]] | None = None
    fewest = len(names) + 1
    for most in sorted({max(crowd), 4, 2, 1, 0}, reverse=True):  # who has more neighbours gets a number
        numbered = [point for point, near in enumerate(crowd) if near > most]
        words = _shared(numbered, where) | {point: name for point, name in enumerate(names) if point not in numbered}
        labels = [Label.of(words[point], width) for point in range(len(names))]
        placed = _beside(where, labels, taken, room, all_or_nothing=most > 1)
        without = sum(box is None and bool(label.words) for box, label in zip(placed, labels, strict=True))
        if without < fewest:
            best, fewest = (labels, placed, [names[point] for point in numbered]), without
        if not without:
            break
    assert best is not None
    return best


def _shared(numbered: Sequence[int], where: Sequence[tuple[float, float]]) -> dict[int, str]:
    """The numbers of points, from 1 on; points that lie on one another share a label, that of the first of them."""
    of: dict[int, list[str]] = {}
    for number, point in enumerate(numbered, start=1):
        first = next((other for other in of if math.dist(where[other], where[point]) < 5), point)
        of.setdefault(first, []).append(str(number))
    return {point: ", ".join(of.get(point, [])) for point in numbered}


def _beside(
    where: Sequence[tuple[float, float]],
    labels: Sequence[Label],
    taken: Sequence[Box],
    room: Box,
    *,
    all_or_nothing: bool,
) -> list[Box | None]:
    """Where the label of each point goes: the nearest of many places that is free; None where none is.

    Nor does the line from a point to its label cross another label or another line.

    Args:
        all_or_nothing: give up at the first label that has no room.
    """
    full = np.array(taken)  # (boxes, 4)
    lines: list[Segment] = []
    found: list[Box | None] = [None] * len(labels)
    # Those with the most neighbours first: others have more places to go to.
    crowd = [sum(math.dist(one, other) < 80 for other in where) for one in where]
    named = [number for number, label in enumerate(labels) if label.words]
    for number in sorted(named, key=lambda each: -crowd[each]):
        point = where[number]
        for box in _free(_around(*point, labels[number].width, labels[number].height), full, room):
            line, has_line = _line(point, box), math.dist(point, box.nearest(*point)) >= NEAR
            others = [other for other in found if other is not None]
            if any(_cross(box, other) for other in lines):
                continue
            if has_line and (any(_cross(other, line) for other in others) or any(_meet(line, of) for of in lines)):
                continue
            found[number] = box
            full = np.vstack([full, box])
            lines += [line] if has_line else []
            break
        if found[number] is None and all_or_nothing:
            break
    return found


def _around(x: float, y: float, width: float, height: float) -> Float64[np.ndarray, "places 4"]:
    """Places for a label around a point, the best first: beside it, above, below, then farther and farther away."""
    reach = np.repeat((9, 14, 22, 32, 44, 58, 74, 92, 112, 134, 158), len(_ANGLES))
    angle = np.radians(np.tile(_ANGLES, len(reach) // len(_ANGLES)))
    right, down = np.cos(angle), -np.sin(angle)
    # The farther to the side, the more of the width: a label beside a point does not cover it.
    middle = x + reach * right + width / 2 * np.clip(2 * right, -1, 1)
    centre = y + reach * down + height / 2 * np.clip(2 * down, -1, 1)
    return np.stack([middle - width / 2, centre - height / 2, middle + width / 2, centre + height / 2], axis=1)


def _free(places: Float64[np.ndarray, "places 4"], full: Float64[np.ndarray, "boxes 4"], room: Box) -> Iterator[Box]:
    """Those within the room that overlap with no box."""
    left, top, right, bottom = places.T[:, :, None]  # each (places, 1)
    meets = (left < full[:, 2]) & (full[:, 0] < right) & (top < full[:, 3]) & (full[:, 1] < bottom)  # (places, boxes)
    inside = (left >= room.left) & (top >= room.top) & (right <= room.right) & (bottom <= room.bottom)
    for place in places[inside[:, 0] & ~meets.any(axis=1)].tolist():
        yield Box(*place)


def _meet(one: Segment, other: Segment) -> bool:
    """Whether two line segments intersect."""
    return _sides(one, other) < 0 and _sides(other, one) < 0


def _sides(line: Segment, other: Segment) -> float:
    """Negative if the ends of the other segment are on different sides of a line."""
    (x, y), (end_x, end_y) = line
    first, second = ((end_x - x) * (point[1] - y) - (end_y - y) * (point[0] - x) for point in other)
    return first * second


def _cross(box: Box, line: Segment) -> bool:
    """Whether a line segment crosses a box, that is, one of its diagonals."""
    falling = (box.left, box.top), (box.right, box.bottom)
    rising = (box.left, box.bottom), (box.right, box.top)
    return _meet(falling, line) or _meet(rising, line)


def leader(x: float, y: float, box: Box) -> Markup:
    """From a point to its label, unless that is next to it."""
    near = math.dist((x, y), box.nearest(x, y)) < NEAR
    return NOTHING if near else stroke("leader", _line((x, y), box))


def _line(point: tuple[float, float], box: Box) -> Segment:
    """From beside a point to the nearest of a box."""
    (x, y), near = point, box.nearest(*point)
    share = min(1.0, 7 / max(7.0, math.dist(point, near)))
    return (x + (near[0] - x) * share, y + (near[1] - y) * share), near
