"""`tammes models`: the pretrained networks that images can be embedded with."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from tammes.cli.console import optional, print_table
from tammes.cli.options import Json
from tammes.io.console import print_json


@dataclass(frozen=True)
class Models:
    """List pretrained networks with their dimensions, and whether their weights are on this machine.

    Any of them can be MODEL in `tammes index`, `embed` and `evaluate`, and --backbone in `tammes train`; so can
    hf-hub:owner/name, a network of timm on the Hugging Face hub, and open_clip:MODEL/TAG.

    For example:
        tammes models
        tammes models dinov2
        tammes models resnet --json
    """

    word: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORD")] = ""
    """List the networks with this in their name; without it, those to try first."""
    limit: Annotated[int | None, optional("INT")] = None
    """How many to list. (default: 60)"""
    json: Json = False


def models(config: Models) -> None:
    """Find, look at, show."""
    from tammes.errors import check_whole
    from tammes.models.backbones.catalogue import MOST, entry, names_with

    limit = MOST if config.limit is None else config.limit
    check_whole("`limit`", limit)
    names = names_with(config.word)
    found = [each for each in map(entry, names[:limit]) if each is not None]
    if config.json:
        print_json({"models": [asdict(each) for each in found], "not_shown": len(names[limit:])})
        return
    rows = [
        (each.name, f"{each.dim:,}", str(each.size), f"{each.parameters / 1e6:.1f} M", "yes" if each.here else "no")
        for each in found
    ]
    columns = ("name", "dimensions", "image size", "parameters", "weights here")
    width = max((len(each.name) for each in found), default=0) + 58  # a name is to be typed, so all of it is shown
    print_table("pretrained networks", columns, rows, texts=("name", "weights here"), width=width)
    if names[limit:]:
        print(f"{len(names[limit:]):,} more: `tammes models WORD` with a longer word, or --limit {len(names)}.")
    if not config.word:
        print("`tammes models WORD` looks among all of torchvision's and timm's.")
