"""Building blocks of SVG charts: elements, marks, legends, and the frame around both versions of a chart.

Colours come from charts.css alone. Pixels count from the upper left.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

Number = int | float

SERIES = 8  # colours that charts.css has; after them they come again, dashed
NOTHING = Markup("")


class Place(NamedTuple):
    """What a chart is drawn for; the height is that of a chart whose rows do not say it."""

    size: str
    width: float
    height: float


class Drawing(NamedTuple):
    """What is in the SVG, its height, and the HTML below it."""

    marks: Markup
    height: float
    below: Markup = NOTHING


WIDE, NARROW = Place("wide", 720.0, 340.0), Place("narrow", 360.0, 270.0)


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element; anything but markup is escaped. `class_` is class, `a_b` is a-b."""
    given = join(
        Markup(' {}="{}"').format(
            name_of.rstrip("_").replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for name_of, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, join(content))


def text(x: Number, y: Number, words: str, kind: str, *, anchor: str = "start", title: str = "") -> Markup:
    tooltip = [tag("title", title)] if title else []
    return tag("text", *tooltip, words, class_=kind, x=x, y=y, text_anchor=anchor)


def join(parts: Iterable[str]) -> Markup:
    return Markup("").join(parts)


def stroke(kind: str, corners: Sequence[tuple[Number, Number]], title: str = "") -> Markup:
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    return tag("path", *([tag("title", title)] if title else []), class_=kind, d=f"M{path}")


def mark(shape: str, x: Number, y: Number, kind: str, title: str = "", radius: Number = 5) -> Markup:
    tooltip = [tag("title", title)] if title else []
    if shape == "circle":
        return tag("circle", *tooltip, class_=kind, cx=x, cy=y, r=radius)
    corners = {
        "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        "triangle": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
    }[shape]
    path = " L".join(f"{x + radius * right:.1f} {y + radius * down:.1f}" for right, down in corners)
    return tag("path", *tooltip, class_=kind, d=f"M{path} Z")


def series(number: int) -> str:
    return f"s{number % SERIES}" + (" again" if number >= SERIES else "")


def legend(keys: Sequence[Markup]) -> Markup:
    return tag("ul", *keys, class_="chart-legend")


def key(shape: str, name: str, number: int = 0) -> Markup:
    """What a mark means."""
    if shape == "line":
        drawn = stroke(f"line {series(number)}", [(1, 6), (21, 6)])
    elif shape == "level":
        drawn = stroke("level", [(1, 6), (21, 6)])
    elif shape == "whisker":
        drawn = stroke("whisker s0", [(2, 6), (20, 6), (20, 2), (20, 10), (20, 6), (2, 6), (2, 2), (2, 10)])
    elif shape == "area":
        drawn = stroke(f"area {series(number)}", [(3, 11), (3, 1), (19, 1), (19, 11), (3, 11)])
    elif shape == "hollow":
        drawn = mark("diamond", 11, 6, f"hollow {series(number)}", radius=4)
    else:
        drawn = mark(shape, 11, 6, f"point {series(number)}", radius=4)
    return tag("li", tag("svg", drawn, class_="chart-key", viewBox="0 0 22 12", aria_hidden="true"), name)


def chart(title: str, draw: Callable[[Place], Drawing], caption: str) -> Markup:
    drawings = []
    for place in (WIDE, NARROW):
        marks, height, below = draw(place)
        svg = tag(
            "svg", marks, class_="chart", viewBox=f"0 0 {place.width:.0f} {height:.0f}", role="img", aria_label=title
        )
        drawings.append(tag("div", svg, below, class_="drawing", data_size=place.size))
    return _framed(title, join(drawings), caption)


def nothing_to_show(title: str, caption: str) -> Markup:
    return _framed(title, tag("p", "nothing to show", class_="nothing"), caption)


def _framed(title: str, content: Markup, caption: str) -> Markup:
    below = tag("figcaption", caption) if caption else NOTHING
    return tag("figure", tag("p", title, class_="chart-title"), content, below, class_="chart-figure")
