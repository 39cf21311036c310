"""What the site is made of beside its pages: equations as MathML, and the commands from their dataclasses."""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args, get_type_hints

BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$`])\$([^$\n]+)\$")
PLACE = "<!-- commands -->"
WITH_EQUATIONS = ("equations.md", "losses.md")  # elsewhere a dollar is a dollar


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    if PLACE in markdown:
        markdown = markdown.replace(PLACE, commands())
    markdown = markdown.replace(" ± ", "\u00a0±\u00a0")  # a figure and its interval stay on one line
    return with_equations(markdown) if page.file.src_uri in WITH_EQUATIONS else markdown


def with_equations(text: str) -> str:
    """TeX between dollars as MathML, which browsers render without a script."""
    from latex2mathml.converter import convert

    def block(found: re.Match[str]) -> str:
        return "\n" + convert(" ".join(found[1].split()), display="block") + "\n"

    def inline(found: re.Match[str]) -> str:  # at the beginning of a line Markdown takes <math> for a block
        return f"<span>{convert(found[1])}</span>"

    return INLINE.sub(inline, BLOCK.sub(block, text))


def commands() -> str:
    """Every command with every option, as its dataclass has them."""
    from tammes.cli import COMMANDS

    parts = []
    for name, (kind, _) in COMMANDS.items():
        about, _, examples = dedent("    " + (kind.__doc__ or "")).partition("For example:")
        parts += [f"## tammes {name}\n", inspect.cleandoc(about) + "\n"]
        if examples.strip():
            lines = [line.strip() for line in examples.strip().splitlines() if line.strip()]
            parts += ["```sh", *lines, "```\n"]
        parts += ["| option | default | |", "|---|---|---|", *options(kind), ""]
    return "\n".join(parts)


def options(kind: type) -> list[str]:
    """A row for each field: how it is typed, its default, what it says."""
    said, hints, rows = explained(kind), get_type_hints(kind, include_extras=True), []
    for field in fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        positional = any("Positional" in str(mark) for mark in marks)
        shown = next((str(mark.metavar) for mark in marks if getattr(mark, "metavar", None)), field.name.upper())
        choices = [each for each in get_args(hints[field.name]) if isinstance(each, str)]
        written = shown if positional else f"--{field.name.replace('_', '-')}"
        if choices and not positional:
            written += f" {{{', '.join(choices)}}}"
        default = "" if field.default in (MISSING, None) else str(field.default)
        if field.default is MISSING and not positional:
            default = "needed"
        text = " ".join(said[field.name].split()).replace("|", "\\|")
        rows.append(f"| `{written.replace(' | ', ' or ')}` | {default} | {text} |")
    return rows


def explained(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass."""
    source = Path(inspect.getsourcefile(kind) or "").read_text()
    found = re.findall(
        r'^    (\w+): [^\n]*(?:\n(?!    """)[^\n]*)*?\n    """(.*?)"""', source, flags=re.DOTALL | re.MULTILINE
    )
    return dict(found)
