"""The paper's published numbers, table by table: published.toml beside this file."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from tammes.errors import UserError, unknown_name


@dataclass(frozen=True)
class Published:
    """One table of the paper, of one data set.

    Attributes:
        number: the number of the table in the paper.
        what: data, network and what is compared.
        note: how it differs from our table.
        rows: name of the row -> name of the column (`R@1`, `NMI`, …) -> value, per cent where it is a share.
    """

    name: str
    number: int
    what: str
    note: str
    rows: dict[str, dict[str, int | float | str]]


def published() -> dict[str, Published]:
    """Every table, by its name: `published()["cub"].rows["Discriminative"]["R@1"]` is 51.43."""
    given = tomllib.loads(files("tammes.benchmark").joinpath("published.toml").read_text(encoding="utf-8"))
    return {name: Published(name=name, **table) for name, table in given.items()}


def published_table(name: str) -> Published:
    """One table of them."""
    tables = published()
    if name not in tables:
        raise unknown_name("table of the paper", name, tables)
    return tables[name]


def published_row(table: str, row: str) -> dict[str, int | float | str]:
    """A row of a table, or of another one if its name is TABLE/ROW."""
    other, _, name = row.rpartition("/")
    rows = published_table(other or table).rows
    if name not in rows:
        raise UserError(f"paper has no row {name!r}. Its rows: {', '.join(rows)}.")
    return rows[name]
