"""Several processes index together: the gallery of one, also where some of it was there already."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tammes.gallery import open_gallery
from tests.test_distributed import ended, start

pytest.importorskip("lancedb", reason="LanceDB is not installed")
pytestmark = pytest.mark.xdist_group("processes")


def indexed(uri: str, photos: Path) -> dict[str, Any]:
    """Index a folder by a network that is the same in every process."""
    from tammes.gallery.model import model_of
    from tammes.gallery.update import Update, update
    from tammes.models.embedder import Embedder, EmbedderConfig

    torch.manual_seed(0)
    model = model_of(Embedder(EmbedderConfig("conv4", 8)).eval())
    return update(Update(uri, model, (photos,)), on="cpu").record()


def by_several(uri: str, photos: Path, out: Path) -> None:
    from tammes.training import distributed

    with distributed.joined():
        for time in (1, 2):
            done = indexed(uri, photos)
            (out / f"{distributed.rank()} {time}.json").write_text(json.dumps(done))


def test_two_processes_make_the_gallery_of_one(waves: Path, tmp_path: Path) -> None:
    alone, together = str(tmp_path / "alone"), str(tmp_path / "together")
    done = indexed(alone, waves)
    kept = open_gallery(alone)
    rows = {row.path: row for part in kept.rows(100, thumbnails=True) for row in part}
    assert done["added"] == len(rows) == 48
    before = open_gallery(together, create=kept.about)  # as one has left it that was killed
    before.upsert(list(rows.values())[:11])
    assert ended(start(2, tmp_path, by_several, together, waves, tmp_path), tmp_path) == [0, 0]
    first, again = (json.loads((tmp_path / f"0 {time}.json").read_text()) for time in (1, 2))
    assert (first["images"], first["added"], first["same"], first["broken"]) == (48, 37, 11, [])
    assert (again["images"], again["added"], again["same"]) == (48, 0, 48)
    other = json.loads((tmp_path / "1 1.json").read_text())
    assert (other["added"], other["same"]) == (37, 11)
    found = {row.path: row for part in open_gallery(together).rows(100, thumbnails=True) for row in part}
    assert set(found) == set(rows)
    for path, row in rows.items():
        np.testing.assert_allclose(found[path].vector, row.vector, atol=1e-6)
        assert (found[path].label, found[path].fingerprint, found[path].thumbnail) == (
            row.label, row.fingerprint, row.thumbnail,
        )  # fmt: skip
    assert open_gallery(together).about.threshold
    assert json.loads(open_gallery(together).about.threshold).keys() == json.loads(kept.about.threshold).keys()
