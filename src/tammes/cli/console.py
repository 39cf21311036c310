"""Output helpers of the commands: metavars of options, tables, percentages."""

from collections.abc import Iterable, Sequence
from typing import Any

import tyro

from tammes.errors import UserError
from tammes.io.console import printable


def optional(metavar: str) -> Any:
    """The help of an option without a default: its metavar, without None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def check_words(given: Sequence[str]) -> None:
    """Raise UserError for an empty argument, for example from an unset variable: as a path it is the current folder."""
    for before, word in zip(["", *given], given, strict=False):
        if not word and before != "--label":  # images without a class are found by it
            where = f" after {before}" if before else ""
            raise UserError(
                f"there is an empty argument{where}: perhaps a shell variable is not set. For the current folder type ."
            )


def print_table(
    title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Sequence[str] = ("",), width: int | None
) -> None:
    """Print a table; names in it may be untrusted.

    Args:
        names: names of the columns.
        texts: the columns that are text rather than numbers.
        width: the width; None for that of the terminal.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(printable(title)))
    for name in names:
        table.add_column(name, justify="left" if name in texts else "right", no_wrap=name not in texts)
    for row in rows:
        table.add_row(*("\n".join(escape(printable(line)) for line in cell.split("\n")) for cell in row))
    Console(width=width).print(table)


def results_table(rows: dict[str, dict[str, Any]], title: str) -> None:
    """Print metrics side by side, in per cent, with 95 % intervals."""
    from tammes.metrics import TITLES

    shown = [name for name in TITLES if any(row.get(name) is not None for row in rows.values())]
    cells = [
        [label, *(percent(row.get(name), (row.get("intervals") or {}).get(name)) for name in shown)]
        for label, row in rows.items()
    ]
    print_table(title, ["", *(TITLES[name] for name in shown)], cells, width=16 * len(shown) + 40)
    if "recall_at_1" in shown:
        print("R@1: how often the nearest neighbour has the right class. In brackets: 95 % intervals.")


def percent(
    value: float | None, interval: Sequence[float] | None = None, form: str = ".2f", of_interval: str = ".1f"
) -> str:
    """A share in per cent with its interval."""
    cell = "-" if value is None else f"{100 * value:{form}}"
    ends = "" if interval is None else f"\n[{100 * interval[0]:{of_interval}}, {100 * interval[1]:{of_interval}}]"
    return cell + ends
