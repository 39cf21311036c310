"""docs/errors.md: every error that a user can cause, by the module that raises it, read from the code itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "tammes"
# What makes an error that a user can put right; `unknown_name` words one from a kind, a name and the known ones.
ERRORS = ("UserError", "DamagedError")
UNKNOWN = "unknown {} '{{got}}'. Did you mean '{{nearest}}'? Known: {{all of them}}."

BEGINNING = """# Errors

Written by `make results` from the code; do not edit. Every error that a user can put right is one line on stderr, after
`tammes: `: what was wrong, what is right, what to type. Words in braces stand for what was given. In Python the same
errors are `tammes.UserError`, a `ValueError`.

With `--debug`, before or after a command, an error is preceded by where in the program it comes from.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | problems were found: `doctor`: training would fail; `benchmark`: cells failed; `runs`: some cannot be read |
| 2 | wrong use: one of the errors below, or options that are not understood |
| 3 | a fault of tammes: please report it with what the same command says with `--debug` |
| 130 | interrupted by Ctrl-C or a polite kill; what was reported as saved is safe |
| 141 | whoever read the output has closed it, as `head` does |

What the system refuses is told in its own words: `cannot write {file}: No space left on device. Free some room and do
it again; what was reported as saved is safe.`
"""


def errors_page(source: Path = SRC) -> str:
    """The page as it should be."""
    lines = [BEGINNING]
    for file in sorted(source.rglob("*.py")):
        texts = sorted(set(_texts(ast.parse(file.read_text()))))
        if texts:
            lines += [f"## {file.relative_to(source).as_posix()}", "", *(f"- {_code(text)}" for text in texts), ""]
    return "\n".join(lines).rstrip() + "\n"


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        if node.func.id in ERRORS:
            text = in_words(node.args[0])
            # An error that only passes on what another said has no words of its own.
            if any(part.isalpha() for part in text.replace("{…}", "").split()):
                yield text
        elif node.func.id == "unknown_name":
            yield UNKNOWN.format(in_words(node.args[0]))


def in_words(node: ast.expr) -> str:
    """A text as it stands in the code, with a word in braces for each thing that is put into it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(in_words(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return in_words(left) + in_words(right)
        case ast.FormattedValue(value=value):
            return f"{{{_name(value)}}}"
        case _:
            return f"{{{_name(node)}}}"


def _name(node: ast.expr) -> str:
    """A word for what is put in: the last name of it."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Subscript(value=value):
            return _name(value)
        case ast.Call(func=ast.Name(id="len"), args=[first, *_]):
            return f"number of {_name(first)}"
        case ast.Call(func=ast.Attribute(attr="join"), args=[first, *_]):
            return _name(first)
        case ast.Call(func=ast.Attribute(value=value, attr="rstrip" | "replace" | "strip" | "removeprefix")):
            return _name(value)
        case ast.Call(args=[*_, last]):
            return _name(last)
        case _:
            return "…"


def _code(text: str) -> str:
    text = text.replace("\n", " ").strip()
    return f"`` {text} ``" if "`" in text else f"`{text}`"
