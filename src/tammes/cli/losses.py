"""`tammes losses`: every loss, its cost and what it needs."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Json
from tammes.io.console import print_json

if TYPE_CHECKING:
    from tammes.losses import Method


@dataclass(frozen=True)
class Losses:
    """List the losses that `tammes train` knows, or explain one.

    The explanation has the equation, the cost of a step, the options and their defaults.

    For example:
        tammes losses
        tammes losses triplet-semihard
        tammes losses pml:ProxyAnchorLoss
        tammes losses --json
    """

    name: Annotated[str | None, tyro.conf.Positional, optional("NAME")] = None
    """The loss to explain; without it, all are listed. pml: lists the losses and miners of pytorch-metric-learning,
    pml:NAME explains one of them."""
    json: Json = False


def losses(config: Losses) -> None:
    """List or explain."""
    from tammes.losses.from_pml import PREFIX, names
    from tammes.training.objectives import METHODS, find_method, find_miner

    if config.name == PREFIX:
        of_pml = {"losses": names("loss"), "miners": names("miner")}
        print_json(of_pml) if config.json else print("\n".join(f"{kind}: {', '.join(of_pml[kind])}" for kind in of_pml))
        return
    mines = config.name is not None and config.name.startswith(PREFIX) and config.name in names("miner")
    find = find_miner if mines else find_method
    shown = METHODS if config.name is None else {config.name: find(config.name)}
    if config.json:
        print_json({name: as_json(method) for name, method in shown.items()})
    elif config.name is None:
        _print_list(METHODS)
    else:
        print(explained(config.name, shown[config.name], "miner" if mines else "loss"))


def as_json(method: "Method") -> dict[str, Any]:
    """Everything that a method declares."""
    declared = ("title", "summary", "equation", "cost", "batch", "reference", "on", "images_per_class", "sees")
    return {name: getattr(method, name) for name in declared} | {
        "bases": list(method.bases),
        "options": dict(method.defaults),
    }


def explained(name: str, method: "Method", flag: str = "loss") -> str:
    """A method as a page of text."""
    lines = [
        f"{name}: {method.title}",
        f"  {method.summary}",
        "",
        *(f"    {line}" for line in method.equation.strip().splitlines()),
        "",
        f"  cost of a step  {method.cost}",
        f"  batch           {method.batch}",
        f"  computed on     the {method.on}",
    ]
    if method.bases:
        own, *others = method.bases
        lines.append(f"  built on        {own}; --base {' or '.join(others)}")
    if method.sees != "batches":
        lines.append(f"  sees            {method.sees}, beside its batches")
    lines += [f"  reference       {method.reference}", ""]
    options = method.defaults
    lines += [f"  options (--{flag}-options NAME=VALUE …):" if options else "  no options"]
    lines += [f"    {option} = {value:g}" if isinstance(value, float) else f"    {option} = {value}"
              for option, value in options.items()]  # fmt: skip
    lines += ["", f"  tammes train DATA {'' if flag == 'loss' else '--loss pml:NAME '}--{flag} {name}"]
    return "\n".join(lines)


def _print_list(methods: dict[str, "Method"]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("loss", "what it does", "cost of a step", "batch", "reference"):
        table.add_column(column, no_wrap=column in ("loss", "batch", "reference"))
    for name, method in methods.items():
        table.add_row(name, method.summary, method.cost, method.batch, method.source)
    # A person's terminal is as wide as it is; what reads a pipe gets one line each.
    Console(width=None if sys.stdout.isatty() else 260).print(table)
    print("\nB images in a batch, C classes, D dimensions; F features, H hidden units, T draws.")
    print("`tammes losses NAME` shows the equation, the options, and what a method is built on (--base).")
    print("Also all of pytorch-metric-learning, as pml:NAME, with its miners: `tammes losses pml:` lists them.")
