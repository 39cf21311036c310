"""`tammes cache`: how much disk space the cache takes, and how to free it."""

from dataclasses import dataclass
from typing import Annotated

from tammes.cli.console import optional
from tammes.cli.options import Json
from tammes.errors import UserError
from tammes.io.console import print_json


@dataclass(frozen=True)
class Cache:
    """Show or clear the cache of decoded images and network activations.

    Whatever is removed is computed again when it is needed.

    For example:
        tammes cache
        tammes cache --clear
        tammes cache --remove photos-1f0c6c0a6a3b2d11
    """

    clear: bool = False
    """Remove everything."""
    remove: Annotated[str | None, optional("NAME")] = None
    """Remove one entry."""
    json: Json = False


def cache(config: Cache) -> None:
    """Show or clear."""
    from tammes.io.cache import cached, clear, format_bytes
    from tammes.io.environment import cache_folder

    if config.clear and config.remove is not None:
        raise UserError("`clear` removes everything, and `remove` one entry: give one of the two.")
    if config.clear or config.remove is not None:
        freed = clear(None if config.clear else [str(config.remove)])
        print_json({"freed_bytes": freed}) if config.json else print(f"{format_bytes(freed)} freed")
        return
    entries = cached()
    total = sum(entry.num_bytes for entry in entries)
    if config.json:
        listed = [
            {"kind": each.kind, "name": each.name, "bytes": each.num_bytes, "date": each.date.isoformat()}
            for each in entries
        ]
        print_json({"folder": str(cache_folder()), "entries": listed, "bytes": total})
        return
    for entry in entries:
        print(f"{format_bytes(entry.num_bytes):>10}  {entry.date:%Y-%m-%d %H:%M}  {entry.kind:<11}  {entry.name}")
    print(f"{format_bytes(total):>10}  in {cache_folder()}")
