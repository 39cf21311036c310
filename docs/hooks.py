"""What the site is made of beside its pages: equations as MathML, and the commands from their declarations."""

import re
from typing import Any

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
    """Every command with every option, as it declares them."""
    from tammes.cli import COMMANDS
    from tammes.cli.arguments import options_of
    from tammes.cli.help import about_and_examples

    parts = []
    for name, (kind, _) in COMMANDS.items():
        about, examples = about_and_examples(kind)
        parts += [f"## tammes {name}\n", "\n\n".join(about) + "\n"]
        if examples:
            parts += ["```sh", *examples, "```\n"]
        parts += ["| option | default | |", "|---|---|---|", *map(row, options_of(kind)), ""]
    return "\n".join(parts)


def row(option: Any) -> str:
    """How an option is typed, its default, what it says."""
    written = option.flag if option.positional else option.typed
    default = "needed" if option.required and not option.positional else str(option.default or "")
    cells = (f"`{written.replace(' | ', ' or ')}`", default, option.text)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
