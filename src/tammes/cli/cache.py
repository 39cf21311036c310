"""`tammes cache`: what decoded images take on the disk, and how to get it back."""

from dataclasses import dataclass
from typing import Annotated

from tammes.cli.console import optional, print_json


@dataclass(frozen=True)
class Cache:
    """Show or clear the cache of decoded images, which is made again when it is needed.

    For example:

    tammes cache

    tammes cache --clear

    tammes cache --remove photos-1f0c6c0a6a3b2d11
    """

    clear: bool = False
    """Remove everything."""
    remove: Annotated[str | None, optional("NAME")] = None
    """Remove one entry."""
    json: bool = False
    """Print one JSON object."""


def cache(config: Cache) -> None:
    """Show or clear."""
    from tammes.loading import cached, clear
    from tammes.runtime import cache_folder

    if config.clear or config.remove is not None:
        freed = clear(None if config.clear else [str(config.remove)])
        print_json({"freed_bytes": freed}) if config.json else print(f"{freed / 1e6:.1f} MB freed")
        return
    entries = cached()
    total = sum(entry.num_bytes for entry in entries)
    if config.json:
        said = [{"name": each.name, "bytes": each.num_bytes, "date": each.date.isoformat()} for each in entries]
        print_json({"folder": str(cache_folder()), "entries": said, "bytes": total})
        return
    for entry in entries:
        print(f"{entry.num_bytes / 1e6:>10.1f} MB  {entry.date:%Y-%m-%d %H:%M}  {entry.name}")
    print(f"{total / 1e6:>10.1f} MB  in {cache_folder()}")
