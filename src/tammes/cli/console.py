"""What the commands share: how options without a value are shown, and how work in progress and results are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import tyro

from tammes.errors import UserError
from tammes.io.console import printable

if TYPE_CHECKING:
    from tammes.training.run_folder import RunFolder

Item = TypeVar("Item")
Value = TypeVar("Value")


def optional(metavar: str) -> Any:
    """How help shows an option that is absent by default: its kind of value, and no word about None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def check_for_images(run: "RunFolder", *, skip_bad: bool) -> Literal["images", "vectors"]:
    """What a run was trained on; --skip-bad is refused where it means nothing."""
    from tammes.io.files import is_vector_file

    if not is_vector_file(run.read("config").get("data", "")):
        return "images"
    if skip_bad:
        raise UserError(f"--skip-bad is for images, and {run.folder} was trained on vectors: leave it out.")
    return "vectors"


def check_words(given: Sequence[str]) -> None:
    """Refuse an empty word: as a path it would be the current folder, which is not meant by an unset variable."""
    for before, word in zip(["", *given], given, strict=False):
        if not word and before != "--label":  # images without a class are found by it
            where = f" after {before}" if before else ""
            raise UserError(
                f"there is an empty word{where}: a variable of the shell may not be set. For the current folder type ."
            )


def results_table(rows: dict[str, dict[str, Any]], title: str) -> None:
    """Print measured rows side by side, in per cent, with their 95 % intervals below."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tammes.metrics import TITLES

    table = Table(title=escape(printable(title)))
    table.add_column("")
    shown = [name for name in TITLES if any(row.get(name) is not None for row in rows.values())]
    for name in shown:
        table.add_column(TITLES[name], justify="right", no_wrap=True)
    for label, row in rows.items():
        cells = []
        for name in shown:
            value, interval = row.get(name), (row.get("intervals") or {}).get(name)
            cell = "-" if value is None else f"{100 * value:.2f}"
            cells.append(cell if interval is None else f"{cell}\n[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]")
        table.add_row(label, *cells)
    Console(width=16 * len(shown) + 40).print(table)
