"""Groups of images that are nearly the same, by their embeddings or by their pixels."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from tammes.data.images import open_small
from tammes.data.perceptual_hash import ALIKE, CROPS, SMALLEST, hashes, likeness
from tammes.gallery.items import THUMBNAIL, Row, content_of
from tammes.gallery.store import Store

_BATCH = 4096  # queries of one pass over the gallery
_NEIGHBOURS = 16  # looked at first; more where all of them are near, but not more than ...
_MOST = 256  # ... so many: what is as near beyond them is joined through these


@dataclass(frozen=True)
class Group:
    """Images that are near another of the group, or look the same.

    Attributes:
        paths: the sorted paths.
        farthest: the largest distance between two that were joined.
        identical: whether all files have the same content.
    """

    paths: tuple[str, ...]
    farthest: float
    identical: bool


def _hashes(row: Row, crops: int = len(CROPS)) -> Float32[ndarray, "crops hash"]:
    """The perceptual hashes of an image's thumbnail; zeros without a usable one."""
    shown = open_small(row.thumbnail, THUMBNAIL) if min(row.width, row.height) >= SMALLEST else None
    try:
        return hashes(Image.new("L", (1, 1)) if shown is None else shown, crops)
    except (OSError, SyntaxError, ValueError):  # an untrusted thumbnail may end early
        return hashes(Image.new("L", (1, 1)), crops)


def duplicates(store: Store, threshold: float, *, on_progress: Callable[[int, int], None] | None = None) -> list[Group]:
    """All groups of images within the threshold, or of nearly the same pixels, the largest first.

    The pixels of each image, also mirrored and lightly cropped, are compared with those of its nearest neighbours.
    """
    # A fingerprint without a digest of the content, as an untrusted gallery may have, is like no other.
    contents = {path: content_of(fingerprint) or path for path, fingerprint in store.fingerprints().items()}
    total, done = store.count(), 0
    joined: dict[str, str] = {}
    near: dict[str, float] = defaultdict(float)

    def head(path: str) -> str:
        while joined.setdefault(path, path) != path:
            joined[path] = joined[joined[path]]
            path = joined[path]
        return path

    whole = {row.path: _hashes(row, 1)[0] for rows in store.rows(_BATCH, thumbnails=True) for row in rows}
    for rows in store.rows(_BATCH, thumbnails=True):
        waiting, k = list(rows), _NEIGHBOURS
        while waiting:
            vectors, own = np.stack([row.vector for row in waiting]), [row.path for row in waiting]
            found = store.search(vectors, k, leave_out=own, exact=True)
            again = []
            for row, hits in zip(waiting, found, strict=True):
                close = [hit for hit in hits if hit.distance <= threshold]
                others = [hit for hit in hits[:_NEIGHBOURS] if hit.distance > threshold and hit.path in whole]
                if others and k == _NEIGHBOURS:
                    alike = likeness(_hashes(row), np.stack([whole[hit.path] for hit in others])) >= ALIKE
                    others = [hit for hit, same in zip(others, alike, strict=True) if same]
                for hit in close + others:
                    one, other = sorted((head(row.path), head(hit.path)))
                    joined[other] = one
                    near[row.path] = max(near[row.path], hit.distance)
                if len(close) == k and k < min(total - 1, _MOST):
                    again.append(row)
            waiting, k = again, 4 * k
        done += len(rows)
        if on_progress is not None:
            on_progress(done, total)
    groups: dict[str, list[str]] = defaultdict(list)
    for path in joined:
        groups[head(path)].append(path)
    found_groups = [
        Group(
            paths=tuple(sorted(paths)),
            farthest=max(near[path] for path in paths),
            identical=len({contents.get(path, path) for path in paths}) == 1,
        )
        for paths in groups.values()
        if len(paths) > 1
    ]
    return sorted(found_groups, key=lambda group: (-len(group.paths), group.paths))
