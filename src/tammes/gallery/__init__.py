"""Galleries: searchable images or vectors in a vector store. A gallery is named by its address:

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
    """Register a custom store for galleries at scheme://….

    Args:
        open_store: opens the gallery at an address; if there is none, creates an empty one with the given `About`, or
            raises `items.no_gallery` for None.
        rebuild_store: creates an empty gallery that replaces the one at an address by `swap`.
    """
    _REGISTERED[scheme] = _Kind(open_store, rebuild_store)


def open_gallery(uri: str, *, create: About | None = None) -> Store:
    """Open the gallery at an address.

    Args:
        create: the `About` of an empty gallery to create if there is none.

    Raises:
        UserError: there is no gallery, or something else.
    """
    return _kind(uri).open(without_password(uri), create)


def rebuild(uri: str, about: About) -> Store:
    """An empty gallery that replaces the existing one by `swap` once it is filled.

    If the program ends before, the old gallery is unchanged, and a later `optimise` removes the incomplete one.
    """
    return _kind(uri).rebuild(without_password(uri), about)


def is_gallery(place: str) -> bool:
    """Whether this may be a gallery: an address, or the folder of one; a run is not."""
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
