"""What the site is made of beside its pages: equations as MathML."""

import re
from typing import Any

BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$`])\$([^$\n]+)\$")
WITH_EQUATIONS = ("equations.md", "losses.md")  # elsewhere a dollar is a dollar


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
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
