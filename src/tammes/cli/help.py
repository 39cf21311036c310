"""The help pages: an overview of all commands, and a page for each."""

import inspect
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from tammes.cli.arguments import Option, options_of, usage_of
from tammes.io.environment import colours

_WIDEST = 100
_EXAMPLES = "For example:"

# The overview, in this order.
GROUPS = {
    "Train and measure": ("train", "evaluate", "calibrate", "report", "runs"),
    "Search": ("index", "search", "label", "duplicates", "serve"),
    "Use elsewhere": ("embed", "export"),
    "Data": ("data", "doctor"),
    "More": ("models", "losses", "centroids", "benchmark", "cache", "completion"),
}
# The most important options of commands with many; `--help-all` shows all.
COMMON = {
    "train": (
        *("data", "out", "backbone", "weights", "train", "epochs", "batch_size", "lr", "test_classes"),
        *("val_classes", "loss", "preset", "resume", "seed"),
    )
}


def overview(commands: Mapping[str, tuple[type, Callable[[Any], None]]]) -> str:
    """The output of `tammes --help`."""
    width, heading, name_of = _width(), _painter("1;36"), _painter("36")
    lines = ["usage: tammes COMMAND [options]"]
    lines += ["Deep metric learning in linear time: from a folder of images to an embedding that finds them.", ""]
    for group, names in GROUPS.items():
        lines.append(heading(f"{group}:"))
        for name in names:
            summary = _first_line(commands[name][0], width - 16)
            lines.append(f"  {name_of(f'{name:<12}')}  {summary}")
    lines.append(heading("With every command:"))
    for flag, text in (
        ("-h, --help", "the options of COMMAND, with examples; --help-all shows all of them"),
        ("-q, --quiet", "print only results and errors"),
        ("--json", "print results as one JSON object (where COMMAND has results)"),
        ("--debug", "print where in the program an error comes from"),
    ):
        lines.append(f"  {name_of(f'{flag:<12}')}  {text}")
    lines += ["tammes --version prints the version. NO_COLOR=1 turns colours off."]
    lines += ["Start here: tammes index resnet50 photos/ --gallery gallery    (search at once, without training)"]
    return "\n".join(lines)


def page(name: str, command: type, *, everything: bool) -> str:
    """The output of `tammes COMMAND --help`, or `--help-all`."""
    options = options_of(command)
    by_name = {option.name: option for option in options}
    common = [by_name[each] for each in COMMON.get(name, by_name) if each in by_name]
    common = list(options) if everything else common
    width, heading = _width(), _painter("1;36")
    about, examples = about_and_examples(command)
    lines = [f"usage: {usage_of(name, options)}", ""]
    for paragraph in about:
        lines += [*wrap(paragraph, width, break_on_hyphens=False), ""]
    for title, shown in (
        ("Arguments", [option for option in common if option.positional]),
        ("Options", [option for option in common if not option.positional]),
    ):
        if shown:
            lines += [heading(f"{title}:"), *_rows(shown, width), ""]
    if examples:
        lines += [heading("Examples:"), *(f"  {line}" for line in examples), ""]
    if len(common) < len(options):
        lines += ["--help-all shows all options."]
    return "\n".join(lines).rstrip()


def about_and_examples(command: type) -> tuple[list[str], list[str]]:
    """The paragraphs of a command's docstring, and the lines that it shows as examples."""
    about, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_EXAMPLES)
    paragraphs = [" ".join(each.split()) for each in about.split("\n\n") if each.strip()]
    return paragraphs, [line.strip() for line in examples.splitlines() if line.strip()]


def _rows(options: Sequence[Option], width: int) -> Iterator[str]:
    """Options in two columns."""
    name_of = _painter("36")
    column = min(26, max(len(_left(option)) for option in options)) + 4
    for option in options:
        left, lines = _left(option), wrap(_right(option), width - column, break_on_hyphens=False)
        room = column - 2 - len(left)
        yield f"  {name_of(left)}" + (" " * room + lines.pop(0) if room >= 2 else "")
        yield from (" " * column + line for line in lines)


def _left(option: Option) -> str:
    return option.flag if option.positional else option.typed


def _right(option: Option) -> str:
    default = option.default
    if option.required and not option.positional:
        return f"{option.text} (required)"
    if default in (None, "", ()) or isinstance(default, bool):
        return option.text
    return f"{option.text} (default: {default})"


def _first_line(command: type, width: int) -> str:
    """The first line of a docstring without its stop; one that is too long ends at a comma."""
    line = (command.__doc__ or "").strip().splitlines()[0].removesuffix(".")
    while len(line) > width:
        cut = max((line.rfind(mark) for mark in (", ", "; ", ": ")), default=-1)
        line = line[:cut] if cut > 0 else line[: width - 2] + " …"
    return line


def _width() -> int:
    return max(40, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def _painter(code: str) -> Callable[[str], str]:
    """Colours a word where a person may be watching."""
    painted = sys.stdout.isatty() and colours()
    return lambda word: f"\033[{code}m{word}\033[0m" if painted else word
