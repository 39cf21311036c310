"""Galleries: images that can be searched, in a vector store. A gallery is named by where it is.

gallery/, s3://bucket/gallery        LanceDB, in a folder or in object storage; no server
qdrant://host:port/name              a Qdrant server or cluster
qdrant://:memory:/name               Qdrant inside this process, gone with it: for tests
"""

from pathlib import Path

from tammes.errors import UserError
from tammes.gallery.store import About, Hit, OptimiseResult, Rebuild, Row, Store
from tammes.training.run_folder import is_run

__all__ = ["About", "Hit", "OptimiseResult", "Rebuild", "Row", "Store", "is_gallery", "open_gallery", "rebuild"]

_OBJECT_STORES = ("s3", "gs", "az")


def open_gallery(uri: str, *, create: About | None = None) -> Store:
    """The gallery that is there.

    Args:
        create: make an empty one if there is none, of which this is said.

    Raises:
        UserError: there is none; or there is something else, which is left alone.
    """
    if _is_qdrant(uri):
        from tammes.gallery import qdrant

        return qdrant.open_collection(uri, create)
    from tammes.gallery import lance

    return lance.open_folder(uri, create)


def rebuild(uri: str, about: About) -> Rebuild:
    """An empty gallery to fill, which then takes the place of the one that is there by `swap`.

    Should the program end before, the old one is as it was, and what was begun is removed by a later `optimise`.
    """
    if _is_qdrant(uri):
        from tammes.gallery import qdrant

        return qdrant.rebuild(uri, about)
    from tammes.gallery import lance

    return lance.rebuild(uri, about)


def is_gallery(place: str) -> bool:
    """Whether a gallery may be there: an address, or a folder that has one; a run is none."""
    return "://" in place or ((Path(place) / "about.lance").exists() and not is_run(Path(place)))


def _is_qdrant(uri: str) -> bool:
    scheme, found, _ = uri.partition("://")
    if found and scheme not in ("qdrant", *_OBJECT_STORES):
        raise UserError(
            f"{uri} cannot be a gallery. Give a folder, {', '.join(f'{name}://…' for name in _OBJECT_STORES)}"
            " or qdrant://host:port/name."
        )
    return scheme == "qdrant" and bool(found)
