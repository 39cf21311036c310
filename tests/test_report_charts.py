"""Charts are read back as XML: where marks are follows from the ticks that are drawn, and words do not overlap."""
# ruff: noqa: RUF001 - figures are drawn with the true signs of minus and times

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from PIL import ImageFont

from tammes.report.axes import alike, axis, figure
from tammes.report.charts import Bar, Line, Point, bar_chart, histogram, line_chart, scatter
from tammes.report.labels import Label, apart, in_rows, pixels

SIZES = ("wide", "narrow")
NASTY = '<script>alert(1)</script> & "quotes" \'n so'
Box = tuple[float, float, float, float]


@cache
def font() -> ImageFont.FreeTypeFont:
    """The widest of the usual system fonts, at the size of the charts."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 13)


def parsed(markup: Markup) -> Element:
    return ElementTree.fromstring(str(markup))


def svg(markup: Markup, size: str = "wide") -> Element:
    found = parsed(markup).find(f".//div[@data-size='{size}']/svg")
    assert found is not None
    return found


def of_class(drawn: Element, kind: str, tag: str = "*") -> list[Element]:
    return [each for each in drawn.iter() if kind in each.get("class", "").split() and tag in ("*", each.tag)]


def words(element: Element) -> str:
    """What is to be read in an element: without what is only seen when one points at it."""
    spans = [each.text or "" for each in element.iter("tspan")]
    if spans:
        return " ".join(spans)
    return "".join([element.text or "", *(each.tail or "" for each in element)])


def title_of(element: Element) -> str:
    return element.findtext("title") or ""


def corners(path: Element) -> list[tuple[float, float]]:
    found = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
    return [(float(x), float(y)) for x, y in found]


def number(text: str) -> float:
    """Back from a tick's label."""
    plain = text.replace("−", "-").replace(",", "")
    if "10" in plain and re.search("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]", plain):
        factor, _, power = plain.rpartition("10")
        raised = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
        return float(factor.rstrip("×") or 1) * 10.0 ** int(raised)
    return float(plain)


def straight(pairs: Sequence[tuple[float, float]], log: bool) -> Callable[[float], float]:
    """The map from values to pixels that two of the ticks define, the others being on it too."""

    def coordinate(value: float) -> float:
        return math.log10(value) if log else value

    (first, start), (last, end) = pairs[0], pairs[-1]
    slope = (end - start) / (coordinate(last) - coordinate(first))
    for value, pixel in pairs:
        assert start + slope * (coordinate(value) - coordinate(first)) == pytest.approx(pixel, abs=0.15)
    return lambda value: start + slope * (coordinate(value) - coordinate(first))


def across(drawn: Element, log: bool = False) -> Callable[[float], float]:
    """From x values to pixels, by the ticks at the bottom."""
    ticks = [corners(path) for path in of_class(drawn, "axis", "path")]
    places = [of[0][0] for of in ticks if of[0][0] == of[1][0]]
    bottom = max(of[0][1] for of in ticks)
    labels = [
        words(text) for text in drawn.iter("text") if float(text.get("y", 0)) == pytest.approx(bottom + 18, abs=0.2)
    ]
    assert len(labels) == len(places) >= 2
    return straight([(number(label), place) for label, place in zip(labels, places, strict=True)], log)


def upwards(drawn: Element, log: bool = False) -> Callable[[float], float]:
    """From y values to pixels, by the lines from side to side and their labels."""
    places = [corners(path)[0][1] for path in of_class(drawn, "rule", "path")]
    labels = [words(text) for text in of_class(drawn, "muted", "text") if text.get("text-anchor") == "end"]
    assert len(labels) == len(places) >= 2
    return straight([(number(label), place) for label, place in zip(labels, places, strict=True)], log)


def are_at(found: Sequence[tuple[float, float]], wanted: Sequence[tuple[float, float]]) -> bool:
    """Whether points are where they should be, to a third of a pixel: coordinates are written with one decimal."""
    return len(found) == len(wanted) and bool(np.allclose(found, wanted, rtol=0, atol=0.3))


def boxes(drawn: Element) -> list[tuple[str, Box]]:
    """The room of each line of text, as the font draws it."""
    found = []
    for text in drawn.iter("text"):
        for line in list(text.iter("tspan")) or [text]:
            said = line.text or "" if line is not text else words(text)
            width, x, y = font().getlength(said), float(line.get("x", 0)), float(line.get("y", 0))
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")] * width
            found.append((said, (left, y - 10, left + width, y + 2)))
    return found


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def assert_readable(markup: Markup) -> None:
    """In both drawings no two texts overlap, and none is cut off."""
    for size in SIZES:
        drawn = svg(markup, size)
        _, _, width, height = map(float, drawn.get("viewBox", "").split())
        for (said, one), (other_said, other) in combinations(boxes(drawn), 2):
            assert not overlap(one, other), (size, said, other_said)
        for said, (left, top, right, bottom) in boxes(drawn):
            assert left >= -0.5, (size, said)
            assert right <= width + 0.5, (size, said)
            assert top >= -0.5, (size, said)
            assert bottom <= height + 0.5, (size, said)


# ---- lines

EPOCHS = [1, 2, 3, 4, 5]


def lines(*series: Sequence[float | None], **options: object) -> Markup:
    given = [Line(f"line {number}", list(range(1, len(of) + 1)), of) for number, of in enumerate(series)]
    return line_chart(given, title="a title", x_title="epoch", y_title="loss", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("log", [False, True])
def test_points_of_a_line_are_where_the_ticks_say(size: str, log: bool) -> None:
    x, y = [1.0, 10.0, 20.0, 300.0], [0.5, 70.0, 3.0, 12.0]
    made = line_chart([Line("one", x, y)], title="t", x_title="x", y_title="y", log_x=log, log_y=log)
    drawn = svg(made, size)
    right, down = across(drawn, log), upwards(drawn, log)
    (path,) = of_class(drawn, "line")
    assert are_at(corners(path), [(right(a), down(b)) for a, b in zip(x, y, strict=True)])
    dots = [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in of_class(drawn, "dot")]
    assert dots == corners(path)
    assert title_of(of_class(drawn, "dot")[1]) == "one: x 10.00, y 70.00"
    assert_readable(made)


def test_gaps_are_not_bridged_and_a_point_alone_is_a_dot() -> None:
    drawn = svg(lines([1, 2, None, 4, float("nan"), 5, 6, float("inf"), 7]))
    assert [len(corners(path)) for path in of_class(drawn, "line")] == [2, 2]
    assert len(of_class(drawn, "dot", "circle")) == 6


def test_one_point_alone_is_drawn() -> None:
    made = lines([3.5])
    assert len(of_class(svg(made), "dot")) == 1
    assert of_class(svg(made), "line") == []
    assert_readable(made)


def test_many_points_are_a_line_without_dots() -> None:
    values = [math.sin(number / 9) for number in range(200)]
    drawn = svg(lines(values))
    (path,) = of_class(drawn, "line")
    assert len(corners(path)) == 200
    assert of_class(drawn, "dot") == []


def test_levels_are_dashed_lines_with_a_name() -> None:
    made = lines([1, 2, 3], levels={"known minimum": 0.25, "not known": float("nan")})
    for size in SIZES:
        drawn = svg(made, size)
        (level,) = of_class(drawn, "level")
        assert [y for _, y in corners(level)] == [pytest.approx(upwards(drawn)(0.25), abs=0.2)] * 2
        assert title_of(level) == "known minimum: 0.25"
    assert "known minimum" in [words(text) for text in svg(made).iter("text")]
    narrow = parsed(made).find(".//div[@data-size='narrow']/ul")
    assert narrow is not None
    assert ["".join(item.itertext()) for item in narrow] == ["line 0", "known minimum"]


def test_one_line_needs_no_legend() -> None:
    assert parsed(lines([1, 2, 3])).find(".//ul") is None


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    made = lines(*([1, 2, 3 + number / 1000] for number in range(11)))
    assert_readable(made)
    assert [f"line {number}" for number in reversed(range(11))] == [
        words(text) for text in of_class(svg(made), "name", "text")
    ]


def test_more_lines_than_there_is_room_for_have_a_legend() -> None:
    made = lines(*([1, 2, number] for number in range(40)))
    for size in SIZES:
        legend = parsed(made).find(f".//div[@data-size='{size}']/ul")
        assert legend is not None
        assert len(legend) == 40
    assert_readable(made)


def test_colours_come_again_dashed() -> None:
    drawn = svg(lines(*([1, number] for number in range(10))))
    assert [path.get("class") for path in of_class(drawn, "line")] == [
        *(f"line s{number}" for number in range(8)),
        "line s0 again",
        "line s1 again",
    ]


def test_what_a_logarithmic_axis_cannot_show_is_counted() -> None:
    made = line_chart(
        [Line("a", [1, 2, 0, 4], [1, -2, 3, None]), Line("b", [1, 2], [0.0, 5])],
        title="t", x_title="x", y_title="y", log_x=True, log_y=True, levels={"low": -1}, caption="Said before.",
    )  # fmt: skip
    assert parsed(made).findtext("figcaption") == (
        "Said before. 4 values are left out: not above 0, where the axis is logarithmic."
    )
    assert len(of_class(svg(made), "dot")) == 2
    one = line_chart([Line("a", [1, 2], [1, 0])], title="t", x_title="x", y_title="y", log_y=True)
    assert parsed(one).findtext("figcaption") == "1 value is left out: not above 0, where the axis is logarithmic."


def test_epochs_have_whole_ticks() -> None:
    drawn = svg(lines([10, 20, 30]))
    assert {"1", "2", "3"} <= {words(text) for text in drawn.iter("text")}
    assert "1.5" not in {words(text) for text in drawn.iter("text")}


def test_as_many_x_as_y() -> None:
    with pytest.raises(ValueError, match="zip"):
        line_chart([Line("a", [1, 2], [1])], title="t", x_title="x", y_title="y")


# ---- distributions


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [True, False])
def test_steps_are_as_high_as_what_is_in_them(size: str, share: bool) -> None:
    counts, edges = {"near": [1, 4, 5, 0], "far": [0, 30, 50, 20]}, [0.0, 0.5, 1.0, 1.5, 2.0]
    drawn = svg(histogram(counts, edges, title="t", x_title="distance", share=share), size)
    right, down = across(drawn), upwards(drawn)
    areas = of_class(drawn, "area")
    assert len(areas) == 2
    for area, (name, of) in zip(areas, counts.items(), strict=True):
        heights = [100 * count / sum(of) for count in of] if share else of
        wanted = [(edges[0], 0.0)]
        for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
            wanted += [(low, height), (high, height)]
        wanted.append((edges[-1], 0.0))
        assert are_at(corners(area), [(right(x), down(y)) for x, y in wanted])
        assert title_of(area) == f"{name}: {sum(of)} in all"


def test_named_places_have_their_names_where_no_line_crosses_them() -> None:
    marks = {
        "a threshold": 0.41,
        "the mean of them all": 0.44,
        "bound": -0.9,
        "at the very end": 1.0,
        "no": float("nan"),
    }
    made = histogram({"a": [1, 2, 3, 2]}, [-1, -0.5, 0, 0.5, 1], title="t", x_title="cosine", marks=marks)
    assert_readable(made)
    for size in SIZES:
        drawn = svg(made, size)
        names = [words(text) for text in of_class(drawn, "strong")]
        assert sorted(names) == sorted(name for name in marks if name != "no")
        for level in of_class(drawn, "level"):
            (x, top), (_, bottom) = corners(level)
            name = title_of(level).partition(":")[0]
            assert x == pytest.approx(across(drawn)(marks[name]), abs=0.3)
            for said, (left, upper, right, lower) in boxes(drawn):
                if said in marks and said != name:
                    assert not (left < x < right and top < lower and upper < bottom), (size, said, name)


def test_counts_must_be_one_fewer_than_edges() -> None:
    with pytest.raises(ValueError, match="'a' has 2 counts between 2 edges; there must be one edge more."):
        histogram({"a": [1, 2]}, [0, 1], title="t", x_title="x")


# ---- values with intervals

BARS = [
    Bar("one-hot", 52.9, 52.6, 53.2, 51.4),
    Bar("K-means", 50.6, 50.4, 50.8),
    Bar("not run", None, reference=49.0),
    Bar("one seed", 51.0),
    Bar("lost", float("nan"), 1.0, 2.0),
]


@pytest.mark.parametrize("size", SIZES)
def test_dots_whiskers_and_diamonds_are_where_the_ticks_say(size: str) -> None:
    made = bar_chart(BARS, title="R@1", unit="%", caption="said")
    drawn = svg(made, size)
    right = across(drawn)
    dots = [float(dot.get("cx", 0)) for dot in of_class(drawn, "point", "circle")]
    assert dots == [pytest.approx(right(value), abs=0.2) for value in (52.9, 50.6, 51.0)]
    whiskers = [corners(path) for path in of_class(drawn, "whisker") if title_of(path)]
    ends = [(right(low), right(high)) for low, high in ((52.6, 53.2), (50.4, 50.8))]
    assert are_at([(a[0], b[0]) for a, b in whiskers], ends)
    diamonds = [corners(path) for path in of_class(drawn, "hollow")]
    assert [sum(x for x, _ in of) / 4 for of in diamonds] == [
        pytest.approx(right(value), abs=0.2) for value in (51.4, 49.0)
    ]
    texts = [words(text) for text in drawn.iter("text")]
    assert {bar.name for bar in BARS} <= set(texts)
    assert texts.count("no result") == 2
    assert {"52.90", "50.60", "51.00"} <= set(texts)
    assert title_of(of_class(drawn, "point", "circle")[0]) == "one-hot: 52.90 (52.60 to 53.20)"
    assert title_of(of_class(drawn, "hollow")[0]) == "one-hot, the paper: 51.40"
    assert_readable(made)


def test_an_axis_without_0_says_where_it_begins_and_one_with_it_has_stems() -> None:
    cut = svg(bar_chart(BARS, title="R@1", unit="%"))
    assert of_class(cut, "stem") == []
    assert "%, the axis begins at 49.0" in [words(text) for text in cut.iter("text")]
    whole = svg(bar_chart([Bar("a", 1.2), Bar("b", 0.4), Bar("c", -0.5)], title="t", unit="seconds"))
    right = across(whole)
    stems = [corners(path) for path in of_class(whole, "stem")]
    assert [a[0] for a, _ in stems] == [pytest.approx(right(0), abs=0.2)] * 3
    assert [b[0] for _, b in stems] == [pytest.approx(right(value), abs=0.2) for value in (1.2, 0.4, -0.5)]
    assert "seconds" in [words(text) for text in whole.iter("text")]


def test_the_legend_of_bars_says_what_there_is() -> None:
    def legend(*bars: Bar) -> list[str]:
        made = bar_chart(bars, title="t", reference_name="theirs", interval_name="fastest and slowest")
        found = parsed(made).find(".//ul")
        return [] if found is None else ["".join(item.itertext()) for item in found]

    assert legend(Bar("a", 1)) == []
    assert legend(Bar("a", 1, 0, 2)) == ["fastest and slowest"]
    assert legend(Bar("a", 1, 0, 2, 3)) == ["here", "fastest and slowest", "theirs"]


def test_long_names_are_wrapped_or_end_in_an_ellipsis_and_are_whole_when_pointed_at() -> None:
    long = "a name that goes on and on " * 9 + "x" * 80
    made = bar_chart([Bar(long, 1.0), Bar("b", 2.0)], title="t")
    assert_readable(made)
    for size in SIZES:
        (label,) = [text for text in of_class(svg(made, size), "name", "text") if title_of(text).startswith("a name")]
        assert title_of(label) == long
        assert words(label).endswith("…")
        assert len(list(label.iter("tspan"))) == 3


# ---- points


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("log", [False, True])
def test_points_and_their_whiskers_are_where_the_ticks_say(size: str, log: bool) -> None:
    points = [Point("a", 0.2, 51.0, 50.5, 51.5, "here"), Point("b", 50, 45.0, group="the paper"), Point("c", 3, 48.0)]
    made = scatter(points, title="t", x_title="minutes", y_title="R@1", log_x=log)
    drawn = svg(made, size)
    right, down = across(drawn, log), upwards(drawn)
    shapes = of_class(drawn, "point")
    assert [shape.tag for shape in shapes] == ["circle", "path", "path"]
    where = [(float(shapes[0].get("cx", 0)), float(shapes[0].get("cy", 0)))]
    where += [tuple(np.mean([min(of), max(of)]) for of in zip(*corners(shape), strict=True)) for shape in shapes[1:]]
    assert are_at(where, [(right(point.x), down(point.y)) for point in points])
    (whisker,) = of_class(drawn, "whisker")
    assert [y for _, y in corners(whisker)] == [pytest.approx(down(50.5), abs=0.2), pytest.approx(down(51.5), abs=0.2)]
    assert title_of(shapes[0]) == "a: minutes 0.2, R@1 51.00 (50.50 to 51.50)"
    legend = parsed(made).find(f".//div[@data-size='{size}']/ul")
    assert legend is not None
    assert ["".join(item.itertext()) for item in legend] == ["here", "the paper", "95 % interval"]
    assert_readable(made)


def cloud(seed: int, number: int) -> list[Point]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=number).tolist(), rng.normal(size=number).tolist()
    return [
        Point(f"method {n} of many", math.exp(a), 50 + b, 49.8 + b, 50.2 + b)
        for n, (a, b) in enumerate(zip(x, y, strict=True))
    ]


@pytest.mark.parametrize(("seed", "number"), [(0, 3), (1, 8), (2, 14), (3, 25), (4, 40)])
def test_labels_of_points_cover_neither_each_other_nor_a_point(seed: int, number: int) -> None:
    made = scatter(cloud(seed, number), title="t", x_title="minutes", y_title="R@1", log_x=True)
    assert_readable(made)
    for size in SIZES:
        drawn = svg(made, size)
        dots = [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in of_class(drawn, "point")]
        names = {title_of(text) for text in of_class(drawn, "name", "text")}
        for x, y in dots:
            for said, box in boxes(drawn):
                if said in names:
                    assert not overlap(box, (x - 3, y - 3, x + 3, y + 3)), (size, said)


@pytest.mark.parametrize("size", SIZES)
def test_every_point_has_its_name_or_a_number_that_a_list_explains(size: str) -> None:
    crowd = [Point(f"one of the crowd, number {n}", 1 + n / 1000, 50 + n / 100) for n in range(9)]
    made = scatter([*crowd, Point("far away", 90, 40)], title="t", x_title="x", y_title="y")
    labels = [title_of(text) for text in of_class(svg(made, size), "name", "text")]
    listed = parsed(made).find(f".//div[@data-size='{size}']/ol")
    assert listed is not None
    assert [item.text for item in listed] == [point.name for point in crowd]
    assert sorted(each for label in labels for each in label.split(", ")) == [
        *(str(n) for n in range(1, 10)),
        "far away",
    ]


def test_points_that_cannot_be_shown_are_counted() -> None:
    points = [
        Point("a", 1, 2),
        Point("b", -1, 2),
        Point("c", 0, 2),
        Point("d", float("nan"), 2),
        Point("e", 1, float("inf")),
    ]
    made = scatter(points, title="t", x_title="x", y_title="y", log_x=True)
    assert parsed(made).findtext("figcaption") == (
        "2 values are left out: not above 0, where the axis is logarithmic. 2 without a value are left out."
    )
    assert len(of_class(svg(made), "point")) == 1


# ---- all charts

EMPTY = {
    "no lines": lines(),
    "a line of gaps": lines([None, float("nan")]),
    "no counts": histogram({}, [], title="a title", x_title="x"),
    "counts of nothing": histogram({"a": [0, 0]}, [0, 1, 2], title="a title", x_title="x"),
    "no bars": bar_chart([], title="a title"),
    "bars without values": bar_chart([Bar("a", None)], title="a title"),
    "no points": scatter([], title="a title", x_title="x", y_title="y"),
}


@pytest.mark.parametrize("made", EMPTY.values(), ids=EMPTY.keys())
def test_nothing_to_show_is_said(made: Markup) -> None:
    drawn = parsed(made)
    assert drawn.find(".//svg") is None
    assert [each.text for each in drawn.iter("p")] == ["a title", "nothing to show"]


def nasty() -> dict[str, Markup]:
    said: dict[str, Any] = {"title": NASTY, "caption": NASTY}
    axes: dict[str, Any] = {"x_title": NASTY, "y_title": NASTY}
    return {
        "line": line_chart([Line(NASTY, [1, 2], [1, 2]), Line("b", [1], [1])], levels={NASTY: 1.5}, **said, **axes),
        "histogram": histogram({NASTY: [1, 2], "b": [2, 1]}, [0, 1, 2], x_title=NASTY, marks={NASTY: 1}, **said),
        "bar": bar_chart([Bar(NASTY, 1, 0, 2, 3)], unit=NASTY, reference_name=NASTY, interval_name=NASTY, **said),
        "scatter": scatter([Point(NASTY, 1, 2, 1, 3, NASTY), Point(NASTY, 2, 2, group="b")], **said, **axes),
    }


@pytest.mark.parametrize("kind", ["line", "histogram", "bar", "scatter"])
def test_whatever_a_name_holds_is_only_text(kind: str) -> None:
    made = nasty()[kind]
    drawn = parsed(made)
    assert "<script" not in made
    assert drawn.find(".//script") is None
    assert drawn.findtext("p") == NASTY
    assert drawn.findtext("figcaption") == NASTY
    assert {each.get("aria-label") for each in drawn.iter("svg") if each.get("role") == "img"} == {NASTY}
    assert any(NASTY in title for title in (each.text or "" for each in drawn.iter("title")))


def test_each_chart_is_drawn_for_both_sizes_and_asks_for_nothing_from_outside() -> None:
    for made in [lines([1, 2]), *nasty().values()]:
        drawn = parsed(made)
        assert drawn.tag == "figure"
        assert [each.get("data-size") for each in drawn.iter("div")] == list(SIZES)
        assert [each.get("viewBox", "").split()[2] for each in drawn.iter("svg") if each.get("class") == "chart"] == [
            "720",
            "360",
        ]
        assert not {"style", "fill", "stroke", "href", "onclick", "id"} & {
            name for each in drawn.iter() for name in each.attrib
        }


def test_every_mark_says_what_it_is_when_pointed_at() -> None:
    drawn = parsed(nasty()["scatter"]), parsed(nasty()["bar"]), parsed(nasty()["line"]), parsed(nasty()["histogram"])
    for chart in (each for one in drawn for each in one.iter("svg") if each.get("class") == "chart"):
        for kind in ("point", "hollow", "dot", "line", "area", "level"):
            assert all(title_of(mark) for mark in of_class(chart, kind))


def test_every_class_that_is_drawn_is_in_the_style() -> None:
    style = (Path(__file__).parents[1] / "src" / "tammes" / "report" / "charts.css").read_text()
    used = {
        kind
        for made in [lines(*([1, number] for number in range(9))), *nasty().values(), *EMPTY.values()]
        for each in parsed(made).iter()
        for kind in each.get("class", "").split()
    }
    without = {kind for kind in used if not re.search(rf"\.{kind}\b", style)}
    assert without == {"value"}  # words in the colour of all text


VALUES = st.lists(st.floats(min_value=-1e100, max_value=1e100), min_size=1, max_size=6)


@given(VALUES, st.booleans(), st.booleans())
def test_an_axis_holds_all_values_between_round_labels_that_differ(
    values: list[float], tight: bool, flat: bool
) -> None:
    made = axis(values, 40.0, 600.0, horizontal=flat, tight=tight)
    assert all(39.99 <= made.at(value) <= 600.01 for value in values)
    assert len(made.ticks) >= 2
    assert len(set(made.labels)) == len(made.labels)
    places = [made.at(tick) for tick in made.ticks]
    assert all(39.9 <= place <= 600.1 for place in places)
    if len(made.ticks) > 2:
        steps = [b - a for a, b in pairwise(places)]
        assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@given(st.lists(st.floats(min_value=1e-100, max_value=1e100), min_size=1, max_size=6), st.booleans())
def test_a_logarithmic_axis_holds_all_values(values: list[float], tight: bool) -> None:
    made = axis(values, 40.0, 600.0, log=True, horizontal=True, tight=tight)
    assert all(39.9 <= made.at(value) <= 600.1 for value in values)
    assert len(made.ticks) >= 2
    assert len(set(made.labels)) == len(made.labels)
    gaps = zip(pairwise(made.ticks), pairwise(made.labels), strict=True)
    for (low, high), (one, other) in gaps:
        needed = (font().getlength(one) + font().getlength(other)) / 2
        assert len(made.ticks) == 2 or made.at(high) - made.at(low) >= needed


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ([0, 10], False, ["0", "2", "4", "6", "8", "10"]),
        ([41.7, 51.9], False, ["40", "42", "44", "46", "48", "50", "52"]),
        ([-0.3, 0.3], False, ["−0.3", "−0.2", "−0.1", "0.0", "0.1", "0.2", "0.3"]),
        ([5, 5], False, ["4.4", "4.6", "4.8", "5.0", "5.2", "5.4", "5.6"]),
        ([0, 0], False, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        ([0, 25_000], False, ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]),
        ([0, 3e9], False, ["0", "10⁹", "2×10⁹", "3×10⁹"]),
        ([0, 4e-7], False, ["0", "10⁻⁷", "2×10⁻⁷", "3×10⁻⁷", "4×10⁻⁷"]),
        ([0.1, 100], True, ["0.1", "1", "10", "100"]),
        ([1, 20], True, ["1", "2", "5", "10", "20"]),
        ([0.15, 0.22], True, ["0.16", "0.18", "0.20", "0.22"]),
        ([1e-9, 1e9], True, ["10⁻⁹", "10⁻⁶", "10⁻³", "1", "10³", "10⁶", "10⁹"]),
    ],
)  # fmt: skip
def test_ticks_are_round(values: list[float], log: bool, labels: list[str]) -> None:
    made = axis([float(value) for value in values], 0.0, 340.0, log=log, horizontal=True)
    assert made.labels == labels


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (1024, "1,024"), (52.886, "52.89"), (123.44, "123.4"), (54321.6, "54,322"),
     (0.01546, "0.0155"), (-2.5, "−2.50"), (3e-9, "3.00×10⁻⁹"), (float("nan"), "-")],
)  # fmt: skip
def test_numbers_read_as_a_person_writes_them(value: float, text: str) -> None:
    assert figure(value) == text


def test_numbers_of_a_column_have_as_many_decimals() -> None:
    assert alike([1.2, 0.4, None]) == ["1.20", "0.40", "no result"]
    assert alike([1200.4, 3.0]) == ["1,200.4", "3.0"]
    assert alike([1200.4, 3000.0]) == ["1,200", "3,000"]
    assert alike([1.5, 0.0154]) == ["1.500", "0.015"]
    assert alike([None, 1e9]) == ["no result", "1.00×10⁹"]


@pytest.mark.parametrize(
    "text",
    ["one-hot centroids, penultimate layer", "WWW %mm@ MAP@R", "0.1 ± 2,345.6 × 10", "ÄÖß éèç", "K-means (rate 0.001)"],
)
def test_text_is_not_wider_than_is_reckoned_with(text: str) -> None:
    real = font().getlength(text)
    assert real <= pixels(text) <= 1.25 * real


def test_a_label_is_broken_into_lines_of_like_length() -> None:
    label = Label.of("one two three four five six", 150)
    assert " ".join(label.lines) == label.words
    assert max(map(pixels, label.lines)) - min(map(pixels, label.lines)) < 40
    assert Label.of("", 100).lines == [""]


def test_labels_move_apart_as_little_as_they_must() -> None:
    assert apart([10.0, 50.0, 90.0], [16.0] * 3, 0.0, 100.0) == [10.0, 50.0, 90.0]
    assert apart([50.0, 50.0, 50.0], [10.0] * 3, 0.0, 100.0) == [40.0, 50.0, 60.0]
    assert apart([1.0, 99.0], [10.0, 10.0], 0.0, 100.0) == [5.0, 95.0]


def test_rows_of_names_are_as_few_as_they_can_be() -> None:
    assert {row for row, _ in in_rows({"a": 10.0, "b": 100.0, "c": 300.0}, 0, 400).values()} == {0}
    assert {row for row, _ in in_rows({"a long name": 10.0, "b": 12.0}, 0, 400).values()} == {0, 1}
