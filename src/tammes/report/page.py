"""The frame of a report: a self-contained HTML file that needs no network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tammes.io.files import write_atomically

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A section of a page, listed in its table of contents.

    Attributes:
        anchor: the id of its heading.
    """

    anchor: str
    title: str
    body: Markup


def page(
    title: str, subtitle: str, sections: Sequence[Section], *, heading: Markup | None = None, made_by: str = ""
) -> str:
    """The HTML file.

    Args:
        heading: the content between title and sections, such as headline figures.
        made_by: the program and its version, for the footer.
    """
    return rendered(
        "page.html",
        title=title,
        subtitle=subtitle,
        sections=sections,
        heading=heading,
        made_by=made_by,
        style=Markup((_HERE / "style.css").read_text() + (_HERE / "charts.css").read_text()),
        script=Markup(script()),
        # The one script that may run: whatever a file name or a class might smuggle in may not.
        script_digest=script_digest(),
    )


@cache
def script_digest() -> str:
    """The hash of the script for a Content-Security-Policy."""
    return b64encode(sha256(script().encode()).digest()).decode()


@cache
def script() -> str:
    """The script of every report."""
    return '"use strict";\n\n' + "\n".join((_HERE / name).read_text() for name in ("theme.js", "map.js", "report.js"))


def rendered(template: str, **values: Any) -> Markup:
    """A rendered template of this package, with values escaped."""
    return Markup(_environment().get_template(template).render(values))


def data_block(name: str, content: Mapping[str, Any]) -> Markup:
    """Data for the page's script as JSON, escaped so that it cannot break out of its element."""
    from jinja2.utils import htmlsafe_json_dumps

    return Markup('<script type="application/json" id="{}">{}</script>').format(name, htmlsafe_json_dumps(content))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(file: Path, content: str) -> int:
    """Write a page atomically. Returns its number of bytes."""
    encoded = content.encode(errors="backslashreplace")  # the name of a file may not be Unicode
    write_atomically(file, encoded)
    return len(encoded)
