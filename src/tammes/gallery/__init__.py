"""Galleries: images that can be searched, in a vector store. A gallery is named by where it is.

gallery/, s3://bucket/gallery        LanceDB, in a folder or in object storage; no server
postgresql://host/database/name      PostgreSQL with pgvector
qdrant://host:port/name              a Qdrant server or cluster; qdrant+https://… over TLS
qdrant://:memory:/name               Qdrant inside this process, gone with it: for tests
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tammes.errors import UserError
from tammes.gallery.items import About, Hit, OptimiseResult, Row
from tammes.gallery.store import Store
from tammes.io.addresses import without_password
from tammes.training.run_folder import is_run

__all__ = ["About", "Hit", "OptimiseResult", "Row", "Store", "is_gallery", "open_gallery", "rebuild", "register"]

_OBJECT_STORES = ("s3", "gs", "az")
_MODULES = {
    **dict.fromkeys(("", *_OBJECT_STORES), "lance"),
    **dict.fromkeys(("postgresql", "postgres"), "postgres"),
    **dict.fromkeys(("qdrant", "qdrant+https"), "qdrant"),
}


class _Kind(NamedTuple):
    open: Callable[[str, About | None], Store]
    rebuild: Callable[[str, About], Store]


_REGISTERED: dict[str, _Kind] = {}


def register(
    scheme: str, open_store: Callable[[str, About | None], Store], rebuild_store: Callable[[str, About], Store]
) -> None:
    """Make a store of your own known: galleries at scheme://… are then opened by it.

    Args:
        open_store: the gallery at an address; where there is none, an empty one of which this is said, or, for None,
            `items.no_gallery`.
        rebuild_store: an empty gallery beside the one at an address, which takes its place by `swap`.
    """
    _REGISTERED[scheme] = _Kind(open_store, rebuild_store)


def open_gallery(uri: str, *, create: About | None = None) -> Store:
    """The gallery that is there.

    Args:
        create: make an empty one if there is none, of which this is said.

    Raises:
        UserError: there is none; or there is something else, which is left alone.
    """
    return _kind(uri).open(without_password(uri), create)


def rebuild(uri: str, about: About) -> Store:
    """An empty gallery to fill, which then takes the place of the one that is there by `swap`.

    Should the program end before, the old one is as it was, and what was begun is removed by a later `optimise`.
    """
    return _kind(uri).rebuild(without_password(uri), about)


def is_gallery(place: str) -> bool:
    """Whether a gallery may be there: an address, or a folder that has one; a run is none."""
    return "://" in place or ((Path(place) / "about.lance").exists() and not is_run(Path(place)))


def _kind(uri: str) -> _Kind:
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme in _REGISTERED:
        return _REGISTERED[scheme]
    if scheme not in _MODULES:
        objects = ", ".join(f"{name}://…" for name in _OBJECT_STORES)
        raise UserError(
            f"{without_password(uri)} cannot be a gallery. Give a folder, {objects}, postgresql://host/database/name or"
            " qdrant://host:port/name."
        )
    module = import_module(f"tammes.gallery.{_MODULES[scheme]}")
    return _Kind(module.open_store, module.rebuild)
