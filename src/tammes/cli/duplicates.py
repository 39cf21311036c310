"""`tammes duplicates`: groups of nearly identical images in a gallery."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from tammes.cli.options import Json
from tammes.errors import check_distance
from tammes.io.console import print_json, printable, progress


@dataclass(frozen=True)
class Duplicates:
    """List groups of images that are the same or nearly so.

    Each image of a group is near another by its embedding, or has nearly the same pixels: scaled, mirrored, lightly
    cropped, brighter or darker, saved again. Every image is compared with every other by its embedding, and with its
    nearest ones by a perceptual hash.

    For example:
        tammes duplicates gallery
        tammes duplicates gallery --threshold 0.05 --json
    """

    gallery: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY")]
    """The gallery that `tammes index` made."""
    threshold: float = 0.1
    """The largest distance between the embeddings of two duplicates; images with nearly the same pixels are listed at
    any distance."""
    json: Json = False


def duplicates(config: Duplicates) -> None:
    """Search for every image, join those that are near, show."""
    check_distance("`threshold`", config.threshold)
    from tammes.gallery import open_gallery
    from tammes.gallery.duplicates import duplicates as groups_of

    store = open_gallery(config.gallery)
    with progress("searching") as on_progress:
        groups = groups_of(store, config.threshold, on_progress=on_progress)
    if config.json:
        print_json({"threshold": config.threshold, "groups": [asdict(group) for group in groups]})
        return
    for group in groups:
        how = "the same file" if group.identical else f"up to {group.farthest:.4f} apart"
        print(f"{len(group.paths)} images, {how}:")
        for path in group.paths:
            print(f"  {printable(path)}")
    images = sum(len(group.paths) for group in groups)
    print(
        f"{len(groups)} groups with {images} of {store.count():,} images, no farther apart than {config.threshold:g} or"
        " of nearly the same pixels"
    )
