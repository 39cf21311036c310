"""Measured epoch times against the paper's complexity, for the page of a benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from markupsafe import Markup
from pydantic import FiniteFloat
from typing_extensions import TypedDict

from tammes.benchmark.columns import Column, Shown, describe_machine
from tammes.report.charts import Line, line_chart
from tammes.report.page import rendered

OURS = "Discriminative"  # drawn first


class Grown(TypedDict):
    """How the seconds of an epoch grow with a number."""

    at: FiniteFloat
    sizes: list[FiniteFloat]
    seconds: list[FiniteFloat]
    exponent: FiniteFloat | None


class Counted(TypedDict):
    """A method, the paper's count, and what was measured."""

    method: str
    paper: str | None
    expected_n: FiniteFloat | list[FiniteFloat]
    expected_c: FiniteFloat | list[FiniteFloat]
    over_n: Grown | None
    over_c: Grown | None
    note: NotRequired[str | None]


class Together(TypedDict):
    exponent_n: FiniteFloat
    exponent_c: FiniteFloat


class Complexity(TypedDict):
    """What `python -m benchmarks.complexity` writes, as far as it is shown."""

    rows: list[Counted]
    grid: NotRequired[Together | None]
    machine: dict[str, Any]
    dim: int
    batch: int


def complexity_part(stored: Mapping[str, Any]) -> Markup:
    """Charts and a table.

    Args:
        stored: of the shape of `Complexity`.
    """
    rows: list[Mapping[str, Any]] = stored["rows"]
    charts = []
    for letter, what, other in (("n", "images N", "classes C"), ("c", "classes C", "images N")):
        of = f"over_{letter}"
        measured = [row for row in rows if row[of]]
        # In the order of the file but ours first: the first colours are told apart best.
        measured.sort(key=lambda row: not row["method"].startswith(OURS))
        charts.append(
            line_chart(
                [Line(row["method"], row[of]["sizes"], row[of]["seconds"]) for row in measured],
                title=f"Seconds of an epoch over the number of {what}",
                x_title=f"{what}, logarithmic",
                y_title="seconds, logarithmic",
                log_x=True,
                log_y=True,
                caption=f"Each line has a number of {other} of its own, as in the table: slopes compare, not heights.",
            )
        )
    grid = stored.get("grid")
    return rendered(
        "benchmark.html",
        part="complexity",
        columns=[
            Column("method", [Shown(row["method"]) for row in rows], "name"),
            Column("the paper's count", [Shown(row["paper"] or "") for row in rows]),
            Column("N, measured", [_exponent(row["over_n"], "C") for row in rows], "number"),
            Column("N, formula", [_expected(row["expected_n"]) for row in rows], "number"),
            Column("C, measured", [_exponent(row["over_c"], "N") for row in rows], "number"),
            Column("C, formula", [_expected(row["expected_c"]) for row in rows], "number"),
            Column("remark", [Shown(row.get("note") or "") for row in rows], "words"),
        ],
        charts=charts,
        together=f"N^{grid['exponent_n']:.2f} C^{grid['exponent_c']:.2f}" if grid else "",
        machine=describe_machine(stored["machine"]),
        dim=stored["dim"],
        batch=stored["batch"],
    )


def _exponent(found: Mapping[str, Any] | None, other: str) -> Shown:
    if found is None or found["exponent"] is None:
        return Shown("not measured")
    return Shown(f"{found['exponent']:.2f} at {other} = {found['at']:,}", found["exponent"])


def _expected(value: int | float | Sequence[int | float]) -> Shown:
    if isinstance(value, Sequence):
        return Shown(" to ".join(f"{each:g}" for each in value), float(value[-1]))
    return Shown(f"{value:g}", float(value))
