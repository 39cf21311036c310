"""The model that images are indexed with, optionally with whitened features."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tammes.errors import UserError
from tammes.gallery.indexing import difference
from tammes.gallery.model import Model, model_of, with_its_whitening
from tammes.gallery.update import existing
from tammes.io.machine import device
from tammes.models.origin import Precision
from tammes.models.pretrained import check_trained, names_network, whitened


def model_for(
    given: str,
    uri: str,
    places: Sequence[Path],
    *,
    whiten: bool = False,
    labelled: bool = True,
    rebuild: bool = False,
    precision: Precision | None = None,
    on: Literal["auto", "cpu"] = "auto",
    **how: Any,
) -> Model:
    """The model for indexing, with the gallery's whitening, or with a new one on these images.

    Args:
        places: the folders and tables of the images.
        whiten: compute a whitening, for a new or rebuilt gallery.
        labelled: whether the names of sub-folders are classes, for a within-class whitening.
        precision: None for that of the gallery, or float32 for a new one.
        how: options of a pretrained network, as in `model_of`.
    """
    if whiten and not names_network(given):
        check_trained(given, {"whiten": True})
    before = None if rebuild else existing(uri)
    network = None if before is None else before.about.network
    if whiten and before is not None and (network is None or not network.whitening):
        raise UserError(f"{uri} was made without whitening: leave out `whiten`, or make it again with `rebuild=True`.")
    model = model_of(given, precision=precision or ("no" if before is None else before.about.precision), **how)
    if before is not None:
        return with_its_whitening(model, before.about)
    if not whiten:
        return model
    sources = difference({}, places, labelled=labelled).fresh
    images = [each.file if each.box is None else each.read for each in sources]
    return model_of(whitened(model.build().to(device(on)), images, [each.label for each in sources]))
