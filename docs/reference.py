"""Write docs/reference: every command and every public name of the package, from what they say of themselves.

python docs/reference.py
"""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

FOLDER = Path(__file__).parent / "reference"
# What a page shows, by its sections: a name of the package, or of a class with those of its methods.
PUBLIC: dict[str, tuple[str, ...]] = {
    "Training and runs": (
        "tammes.train",
        "tammes.load_run",
        "tammes.Run state config metrics verdict history embedder evaluate report export resume",
        "tammes.data.dataset_of",
    ),
    "Models": (
        "tammes.pretrained",
        "tammes.load",
        "tammes.models.embedder.Embedder encode forward prepared save",
        "tammes.push_to_hub",
    ),
    "Galleries": (
        "tammes.Gallery from_vectors add search classify duplicates to_pandas",
        "tammes.gallery.classification.SearchResult",
        "tammes.gallery.classification.Classification",
    ),
    "Vectors": ("tammes.evaluate", "tammes.MetricLearner fit transform score save load"),
    "Losses": ("tammes.DiscriminativeLoss", "tammes.HardDiscriminativeLoss", "tammes.losses.to_pml.DiscriminativeLoss"),
    "Centroids": ("tammes.centroids.place", "tammes.centroids.solve", "tammes.centroids.quality"),
    "The bound": (
        "tammes.bound.certificate",
        "tammes.bound.triplet_loss",
        "tammes.bound.discriminative_loss",
        "tammes.bound.num_triplets",
    ),
    "Export": (
        "tammes.export.formats.onnx_file",
        "tammes.export.formats.in_8_bits",
        "tammes.export.formats.torch_program",
        "tammes.export.formats.safetensors_file",
        "tammes.export.hub_folder.write_hub_folder",
        "tammes.export.hub_folder.Card",
    ),
}
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
ITEM = re.compile(r"^    ([\w*][\w*, ]*): (.*)$")
MADE = "<!-- Written by `make reference` from what the code says of itself. -->\n"
ABOUT_COMMANDS = """\
# Commands

Every command takes `-q` (nothing but results and errors) and `--help`. Most take `--json`: one JSON object on stdout.
Progress and remarks go to stderr. `NO_COLOR` is respected. `tammes --version` says which this is; `tammes completion
bash` prints what a shell needs to complete all this.
"""


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


def pages() -> dict[str, str]:
    """The files of docs/reference with their text."""
    return {"commands.md": f"{MADE}{ABOUT_COMMANDS}\n{commands()}", "python.md": f"{MADE}# Python\n\n{python()}"}


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


def python() -> str:
    """Every public name, by sections."""
    parts = []
    for title, entries in PUBLIC.items():
        parts.append(f"## {title}\n")
        for entry in entries:
            name, *methods = entry.split()
            module, _, last = name.rpartition(".")
            found = getattr(import_module(module), last)
            parts += [f"### {name}\n", described(found, name)]
            if name == "tammes.train":
                parts.append(train_options())
            for method in methods:
                parts += [f"#### {last}.{method}\n", described(inspect.getattr_static(found, method), method)]
    return "\n".join(parts)


def train_options() -> str:
    """The options of a training on images, as Python takes them."""
    from tammes.cli.arguments import options_of
    from tammes.cli.train import Train

    own = ("--help", "--help-all", "--resume", "--out", "--overwrite", "--json", "--quiet", "--backbone")
    options = [each for each in options_of(Train) if not each.positional and each.flag not in own]
    lines = [f"- `{each.flag.removeprefix('--').replace('-', '_')}`: {each.text}" for each in options]
    return "\n".join(["**Options**", "", *lines, ""])


def described(thing: Any, name: str) -> str:
    """The signature of a function or class, and its docstring as Markdown."""
    thing = getattr(thing, "__func__", thing)  # of a class method
    signature = (
        "" if isinstance(thing, property) or hasattr(thing, "attrname") else f"```py\n{call(thing, name)}\n```\n\n"
    )
    return signature + markdown(inspect.getdoc(thing) or "") + "\n"


def call(thing: Any, name: str) -> str:
    """How a function is called, or a class made, as the source has it."""
    tree = ast.parse(dedent(inspect.getsource(thing))).body[0]
    if isinstance(tree, ast.ClassDef):
        made = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if not made:  # a dataclass
            fields = [ast.unparse(each) for each in tree.body if isinstance(each, ast.AnnAssign)]
            return f"{name}({', '.join(fields)})"
        tree = made[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.args.args = [each for each in tree.args.args if each.arg not in ("self", "cls")]
    given = ast.unparse(tree.args)
    back = "" if tree.returns is None or tree.name == "__init__" else f" -> {ast.unparse(tree.returns)}"
    whole = f"{name}({given}){back}"
    if len(whole) <= 100:
        return whole
    names = [ast.unparse(each) for each in _each(tree.args)]
    return "\n".join([f"{name}(", *(f"    {each}," for each in names), f"){back}"])


def _each(given: ast.arguments) -> list[ast.arguments]:
    """The arguments one by one, with their defaults."""
    none = {"posonlyargs": [], "args": [], "kwonlyargs": [], "kw_defaults": [], "defaults": []}
    first = len(given.args) - len(given.defaults)
    found = [
        ast.arguments(
            **none | {"args": [each], "defaults": given.defaults[n - first : n - first + 1] if n >= first else []}
        )
        for n, each in enumerate(given.args)
    ]
    if given.kwonlyargs and given.vararg is None:
        found.append(ast.arguments(**none | {"args": [ast.arg("*")]}))
    if given.vararg is not None:
        found.append(ast.arguments(**none, vararg=given.vararg))
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(ast.arguments(**none | {"args": [each], "defaults": [] if default is None else [default]}))
    return found + ([] if given.kwarg is None else [ast.arguments(**none, kwarg=given.kwarg)])


def markdown(text: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines, inside = [], False
    for line in text.splitlines():
        section, item = SECTION.match(line), ITEM.match(line) if inside else None
        if section is not None:
            inside = True
            lines += [f"**{section[1]}**", ""]
        elif item is not None:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif inside and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and (not line or line.startswith(" "))
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
