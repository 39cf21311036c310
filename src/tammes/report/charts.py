"""Charts as inline SVG: lines, histograms, values with intervals, labelled points.

Each chart is drawn in a wide and in a narrow version, and charts.css shows the one that fits, so that text is readable
on a phone too. No script is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from markupsafe import Markup

from tammes.report.axes import Axis, alike, axis, bottom_axis, figure, is_drawable, is_number, rules
from tammes.report.labels import LINE_HEIGHT, Box, Label, apart, in_rows, leader, names_or_numbers, widest
from tammes.report.svg import (
    NOTHING,
    WIDE,
    Drawing,
    Number,
    Place,
    chart,
    join,
    key,
    legend,
    mark,
    nothing_to_show,
    series,
    stroke,
    tag,
    text,
)

SHAPES = ("circle", "diamond", "square", "triangle")


@dataclass(frozen=True)
class Line:
    """A series; None, NaN and infinity are gaps."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number | None]


@dataclass(frozen=True)
class Bar:
    """A value with its interval and a reference value; None for a missing value."""

    name: str
    value: Number | None
    low: Number | None = None
    high: Number | None = None
    reference: Number | None = None


@dataclass(frozen=True)
class Point:
    """A point with its interval in y; points of one group look alike."""

    name: str
    x: Number
    y: Number
    low: Number | None = None
    high: Number | None = None
    group: str = ""


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_title: str,
    y_title: str,
    levels: Mapping[str, Number] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    caption: str = "",
) -> Markup:
    """Series over x; a point with gaps on both sides is a dot.

    Args:
        levels: named heights, each a dashed line from side to side.
    """
    heights = {name: float(y) for name, y in (levels or {}).items() if is_drawable(y, log_y)}
    runs = [_runs(line, log_x, log_y) for line in lines]
    points = [point for of_line in runs for run in of_line for point in run]
    below_zero = sum(
        is_number(x) and is_number(y) and not (is_drawable(x, log_x) and is_drawable(y, log_y))
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
    ) + sum(is_number(y) and name not in heights for name, y in (levels or {}).items())
    caption = _with_left_out(caption, below_zero)
    if not points:
        return nothing_to_show(title, caption)
    names = [*(line.name for line in lines), *heights]
    ends = [of_line[-1][-1][1] if of_line else None for of_line in runs] + list(heights.values())

    def draw(place: Place) -> Drawing:
        top, bottom = 28.0, place.height - 44.0
        vertical = axis([y for _, y in points] + [*heights.values()], bottom, top, log=log_y)
        named = [Label.of(name, 190) for name, end in zip(names, ends, strict=True) if end is not None]
        direct = place is WIDE and len(names) > 1 and sum(label.height for label in named) <= bottom - top + 20
        left = widest(vertical.labels) + 10
        right = place.width - (max(label.width for label in named) + 30 if direct else 10)
        across = axis([x for x, _ in points], left + 6, right - 6, log=log_x, horizontal=True, tight=True)
        parts = [rules(vertical, left, right), bottom_axis(across, left, right, bottom, place, x_title)]
        parts.append(text(0, 12, y_title, "muted"))
        for name, height in heights.items():
            y = vertical.at(height)
            parts.append(stroke("level", [(left, y), (right, y)], f"{name}: {figure(height)}"))
        for number, (line, of_line) in enumerate(zip(lines, runs, strict=True)):
            parts.append(_line(line.name, of_line, across, vertical, number, x_title, y_title))
        if direct:
            parts.append(_end_labels(lines, runs, heights, across, vertical, right, place))
        keys = [key("line", name, number) for number, name in enumerate(names[: len(lines)])]
        keys += [key("level", name) for name in heights]
        return Drawing(join(parts), place.height, NOTHING if direct or len(names) < 2 else legend(keys))

    return chart(title, draw, caption)


def histogram(
    counts: Mapping[str, Sequence[Number]],
    edges: Sequence[Number],
    *,
    title: str,
    x_title: str,
    marks: Mapping[str, Number] | None = None,
    share: bool = True,
    caption: str = "",
) -> Markup:
    """Distributions over the same edges, as translucent steps.

    Args:
        counts: name -> how many are between each edge and the next.
        marks: named places on the x axis, each a dashed line.
        share: show what share of its own distribution is in a bin, not how many.
    """
    for name, of in counts.items():
        if len(of) != len(edges) - 1:
            raise ValueError(f"{name!r} has {len(of)} counts between {len(edges)} edges; there must be one edge more.")
    known = {name: [float(count) if is_number(count) else 0.0 for count in of] for name, of in counts.items()}
    known = {name: of for name, of in known.items() if sum(of) > 0}
    if not known:
        return nothing_to_show(title, caption)
    heights = {name: [100 * count / sum(of) if share else count for count in of] for name, of in known.items()}
    places = {name: float(at) for name, at in (marks or {}).items() if is_number(at)}

    def draw(place: Place) -> Drawing:
        bottom = place.height - 44.0
        reached = [0.0, *(height for of in heights.values() for height in of)]
        left, right = widest(axis(reached, bottom, 28.0).labels) + 10, place.width - 10.0
        across = axis([*map(float, edges), *places.values()], left, right - 6, horizontal=True, tight=True)
        named = in_rows({name: across.at(at) for name, at in places.items()}, left, place.width)
        top = 28.0 + LINE_HEIGHT * (1 + max((row for row, _ in named.values()), default=-1))
        vertical = axis(reached, bottom, top)
        parts = [rules(vertical, left, right), bottom_axis(across, left, right, bottom, place, x_title)]
        parts.append(text(0, 12, "share, %" if share else "how many", "muted"))
        for number, (name, of) in enumerate(heights.items()):
            corners = [(across.at(float(edges[0])), bottom)]
            for low, high, height in zip(edges[:-1], edges[1:], of, strict=True):
                corners += [(across.at(float(low)), vertical.at(height)), (across.at(float(high)), vertical.at(height))]
            corners.append((across.at(float(edges[-1])), bottom))
            total = fsum(known[name])
            tooltip = f"{name}: {figure(int(total) if total.is_integer() else total)} in all"
            parts.append(stroke(f"area {series(number)}", corners, tooltip))
        for name, (row, start) in named.items():
            x, height = across.at(places[name]), top - LINE_HEIGHT * row
            parts.append(stroke("level", [(x, height - LINE_HEIGHT), (x, bottom)], f"{name}: {figure(places[name])}"))
            parts.append(text(start, height - 4, name, "strong"))
        keys = [key("area", name, number) for number, name in enumerate(heights)]
        return Drawing(join(parts), place.height, legend(keys) if len(keys) > 1 else NOTHING)

    return chart(title, draw, caption)


def bar_chart(
    bars: Sequence[Bar],
    *,
    title: str,
    unit: str = "",
    reference_name: str = "the paper",
    interval_name: str = "95 % interval",
    caption: str = "",
) -> Markup:
    """A row for each value: a dot with its interval as a whisker, and a diamond for what it is compared with.

    A stem reaches from 0 to the dot where the axis has a 0; where it has none, the chart says so.
    """
    bars = [_cleaned(bar) for bar in bars]
    given = [[bar.value, bar.low, bar.high, bar.reference] for bar in bars]
    values = [float(value) for of in given for value in of if value is not None]
    if not values:
        return nothing_to_show(title, caption)

    def draw(place: Place) -> Drawing:
        wide = place is WIDE
        figures = alike([bar.value for bar in bars])
        labels = [Label.of(bar.name, 0.4 * place.width if wide else place.width) for bar in bars]
        left = max(label.width for label in labels) + 18 if wide else 8.0
        right = place.width - widest(figures) - 16
        across = axis(values, left, right, horizontal=True, zero=True)
        parts, top = [], 6.0
        for bar, label, value in zip(bars, labels, figures, strict=True):
            height = max(label.height + 10, 26) if wide else label.height + 22
            y = top + height / 2 if wide else top + label.height + 10
            parts.append(label.drawn(0, y if wide else top + label.height / 2))
            parts.append(text(place.width, y + 4.5, value, "value" if bar.value is not None else "muted", anchor="end"))
            parts.append(_dot_and_whisker(bar, across, y, reference_name))
            top += height
        bottom = top + 4
        grid = [stroke("rule", [(across.at(tick), 4), (across.at(tick), bottom)]) for tick in across.ticks]
        begins = "" if across.has_zero else f"the axis begins at {across.labels[0]}"
        below = bottom_axis(across, left, right, bottom, place, ", ".join(part for part in (unit, begins) if part))
        keys = [key("whisker", interval_name)] if any(bar.low is not None for bar in bars) else []
        if any(bar.reference is not None for bar in bars):
            keys = [key("circle", "here"), *keys, key("hollow", reference_name, 1)]
        return Drawing(join([*grid, below, *parts]), bottom + 42, legend(keys) if keys else NOTHING)

    return chart(title, draw, caption)


def scatter(
    points: Sequence[Point],
    *,
    title: str,
    x_title: str,
    y_title: str,
    log_x: bool = False,
    interval_name: str = "95 % interval",
    caption: str = "",
) -> Markup:
    """Points with their names beside them, and their intervals as whiskers.

    Names do not cover each other or a point. In a crowd that leaves no room for them stand numbers, with a list below.
    """
    below_zero = sum(is_number(each.x) and is_number(each.y) and not is_drawable(each.x, log_x) for each in points)
    shown = [each for each in points if is_drawable(each.x, log_x) and is_number(each.y)]
    caption = _with_left_out(caption, below_zero)
    unknown = len(points) - len(shown) - below_zero
    if unknown:
        caption = f"{caption} {unknown} without a value {'is' if unknown == 1 else 'are'} left out.".strip()
    if not shown:
        return nothing_to_show(title, caption)
    groups = list(dict.fromkeys(each.group for each in shown))

    def draw(place: Place) -> Drawing:
        top, bottom = 28.0, place.height - 44.0
        reached = [float(y) for each in shown for y in (each.y, each.low, each.high) if y is not None and is_number(y)]
        vertical = axis(reached, bottom, top)
        left, right = widest(vertical.labels) + 10, place.width - 8.0
        across = axis([float(each.x) for each in shown], left + 12, right - 12, log=log_x, horizontal=True)
        parts = [rules(vertical, left, right), bottom_axis(across, left, right, bottom, place, x_title)]
        parts.append(text(0, 12, y_title, "muted"))
        where = [(across.at(float(each.x)), vertical.at(float(each.y))) for each in shown]
        taken = []
        for each, (x, y) in zip(shown, where, strict=True):
            number = groups.index(each.group)
            low, high = (
                float(end) if end is not None and is_number(end) else float(each.y) for end in (each.low, each.high)
            )
            tooltip = f"{each.name}: {x_title} {figure(each.x)}, {y_title} {figure(each.y)}" + _interval(low, high)
            if low < high:
                ends = [(x, vertical.at(low)), (x, vertical.at(high))]
                parts.append(stroke(f"whisker {series(number)}", ends, tooltip))
                taken.append(Box(x - 4, ends[1][1] - 1, x + 4, ends[0][1] + 1))
            parts.append(mark(SHAPES[number % len(SHAPES)], x, y, f"point {series(number)}", tooltip, 4))
            taken.append(Box(x - 6, y - 6, x + 6, y + 6))
        room = Box(left, 18, place.width, bottom - 2)
        labels, placed, numbered = names_or_numbers([each.name for each in shown], where, taken, room)
        numbers = tag("ol", *(tag("li", name) for name in numbered), class_="numbers") if numbered else NOTHING
        for (x, y), label, box in zip(where, labels, placed, strict=True):
            if box is not None:
                parts.append(leader(x, y, box))
                # A box is wider than its words may be: they keep to the side where the point is.
                anchor = "start" if box.left > x else "end" if box.right < x else "middle"
                at = {"start": box.left, "end": box.right, "middle": (box.left + box.right) / 2}[anchor]
                parts.append(label.drawn(at, (box.top + box.bottom) / 2, anchor))
        keys = [key(SHAPES[number % len(SHAPES)], group, number) for number, group in enumerate(groups) if group]
        keys = keys if len(keys) > 1 else []
        whiskers = any(each.low is not None and each.high is not None and each.low < each.high for each in shown)
        keys += [key("whisker", interval_name)] if whiskers else []
        return Drawing(join(parts), place.height, join([legend(keys) if keys else NOTHING, numbers]))

    return chart(title, draw, caption)


def _runs(line: Line, log_x: bool, log_y: bool) -> list[list[tuple[float, float]]]:
    """The segments of a line between gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is not None and is_drawable(x, log_x) and is_drawable(y, log_y):
            runs[-1].append((float(x), float(y)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line(
    name: str,
    runs: Sequence[Sequence[tuple[float, float]]],
    across: Axis,
    vertical: Axis,
    number: int,
    x_title: str,
    y_title: str,
) -> Markup:
    parts = []
    every_point = sum(map(len, runs)) <= 40  # more would be a smear
    for run in runs:
        corners = [(across.at(x), vertical.at(y)) for x, y in run]
        if len(run) > 1:
            parts.append(stroke(f"line {series(number)}", corners, name))
        for (x, y), (right, down) in zip(run, corners, strict=True):
            if every_point or len(run) == 1:
                tooltip = f"{name}: {x_title} {figure(x)}, {y_title} {figure(y)}"
                parts.append(mark("circle", right, down, f"dot {series(number)}", tooltip, 2.5))
    return join(parts)


def _end_labels(
    lines: Sequence[Line],
    runs: Sequence[Sequence[Sequence[tuple[float, float]]]],
    heights: Mapping[str, float],
    across: Axis,
    vertical: Axis,
    right: float,
    place: Place,
) -> Markup:
    """The names at the ends of the lines, moved apart."""
    wanted: list[tuple[float, float, str, str]] = []  # where a line ends, its name, its class
    for number, (line, of_line) in enumerate(zip(lines, runs, strict=True)):
        if of_line:
            x, y = of_line[-1][-1]
            wanted.append((vertical.at(y), across.at(x), line.name, series(number)))
    wanted += [(vertical.at(height), right, name, "") for name, height in heights.items()]
    wanted.sort(key=lambda each: each[0])
    labels = [Label.of(name, 190) for _, _, name, _ in wanted]
    centres = apart([y for y, *_ in wanted], [label.height for label in labels], 20, place.height - 34)
    parts = []
    for (y, x, _, colour), label, centre in zip(wanted, labels, centres, strict=True):
        start = (right + 6, y) if not colour else (x + 4, y)
        parts.append(stroke(f"leader {colour}", [start, (right + 10, y), (right + 22, centre)]))
        parts.append(label.drawn(right + 26, centre, "start", f"name {colour}"))
    return join(parts)


def _dot_and_whisker(bar: Bar, across: Axis, y: float, reference_name: str) -> Markup:
    parts = []
    if bar.value is not None:
        x, tooltip = across.at(bar.value), f"{bar.name}: {figure(bar.value)}"
        if across.has_zero:
            parts.append(stroke("stem s0", [(across.at(0.0), y), (x, y)]))
        if bar.low is not None and bar.high is not None:
            ends = across.at(bar.low), across.at(bar.high)
            tooltip += _interval(bar.low, bar.high)
            parts.append(stroke("whisker s0", [(ends[0], y), (ends[1], y)], tooltip))
            parts += [stroke("whisker s0", [(end, y - 4), (end, y + 4)]) for end in ends]
        parts.append(mark("circle", x, y, "point s0", tooltip, 4))
    if bar.reference is not None:
        tooltip = f"{bar.name}, {reference_name}: {figure(bar.reference)}"
        parts.append(mark("diamond", across.at(bar.reference), y, "hollow s1", tooltip))
    return join(parts)


def _cleaned(bar: Bar) -> Bar:
    """The values with None for those that cannot be drawn; an interval has both ends or none."""
    value, low, high, reference = (
        float(each) if each is not None and is_number(each) else None
        for each in (bar.value, bar.low, bar.high, bar.reference)
    )
    if value is None or low is None or high is None:
        low = high = None
    return Bar(bar.name, value, low, high, reference)


def _interval(low: float, high: float) -> str:
    return f" ({figure(low)} to {figure(high)})" if low < high else ""


def _with_left_out(caption: str, number: int) -> str:
    if not number:
        return caption
    what = "1 value is" if number == 1 else f"{number} values are"
    return f"{caption} {what} left out: not above 0, where the axis is logarithmic.".strip()
