"""Which files a gallery may have served: those of folders that the user has indexed here, or has said to trust."""

import json
import shutil
from errno import EROFS
from pathlib import Path
from unittest.mock import Mock

import pytest

from tammes.errors import UserError
from tammes.gallery import About, Row, open_gallery
from tammes.gallery.model import model_digest, model_of
from tammes.gallery.trust import _SAID_HERE, trust, trusted_roots
from tammes.gallery.update import Update, update
from tammes.io.environment import config_folder
from tammes.serve.errors import RequestError
from tammes.serve.gallery import ServedGallery
from tammes.serve.server import open_sources
from tammes.training.run_folder import RunFolder

from .test_api import png, small, unit


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMMES_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("tammes.gallery.trust._SAID_HERE", {})


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """An image of this machine that nobody has indexed."""
    file = tmp_path / "private" / "1.png"
    file.parent.mkdir()
    file.write_bytes(png())
    return file


@pytest.fixture
def theirs(run: Path, secret: Path, tmp_path: Path) -> str:
    """A gallery of somebody else, which names all of this machine as its folder."""
    uri = str(tmp_path / "theirs")
    about = About(model_digest(RunFolder(run)), str(run), 16, ("/",), "2026-01-02T03:04:05")
    open_gallery(uri, create=about).upsert([Row(str(secret), unit(1)[0], "", 8, 8, "f", small())])
    return uri


def asked(gallery: ServedGallery) -> bytes:
    return gallery.file(gallery.rows.ids[0])[0].read_bytes()


def test_a_gallery_of_somebody_else_hands_out_no_file_until_the_user_says_so(
    theirs: str, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watcher, _ = open_sources([theirs], None, "cpu")
    assert watcher is not None
    said = capsys.readouterr().err
    assert "were not indexed into it here: /." in said
    assert "--trust-roots" in said
    with pytest.raises(RequestError, match="indexed here"):
        asked(watcher.current)
    assert watcher.current.thumbnail(watcher.current.rows.ids[0]) == small()

    watcher, _ = open_sources([theirs], None, "cpu", trust_roots=True)
    assert watcher is not None
    assert asked(watcher.current) == secret.read_bytes()
    assert json.loads((config_folder() / "trusted_roots.json").read_text()) == {theirs: ["/"]}

    _SAID_HERE.clear()  # as another process
    watcher, _ = open_sources([theirs], None, "cpu")
    assert watcher is not None
    assert asked(watcher.current) == secret.read_bytes()
    assert "note" not in capsys.readouterr().err


def test_what_one_indexes_is_trusted_and_a_copy_of_it_elsewhere_is_not(run: Path, secret: Path, tmp_path: Path) -> None:
    mine, roots = str(tmp_path / "mine"), [str(secret.parent)]
    update(Update(mine, model_of(run), (secret.parent,)), on="cpu")
    assert trusted_roots(mine, roots) == [secret.parent]
    assert trusted_roots(mine, ["/"]) == []
    shutil.copytree(mine, tmp_path / "copy")
    assert trusted_roots(str(tmp_path / "copy"), roots) == []


def test_a_table_that_was_indexed_is_trusted_with_the_images_beside_it(
    run: Path, secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, mine = secret.with_name("images.csv"), str(tmp_path / "mine")
    table.write_text(f"path\n{secret.name}\n")
    update(Update(mine, model_of(run), (table,)), on="cpu")
    watcher, _ = open_sources([mine], None, "cpu")
    assert watcher is not None
    assert "indexed into it here" not in capsys.readouterr().err
    assert asked(watcher.current) == secret.read_bytes()


def test_adding_to_a_gallery_of_somebody_else_trusts_only_what_is_added(
    run: Path, theirs: str, tmp_path: Path, photos: Path
) -> None:
    added = tmp_path / "added"
    shutil.copytree(photos, added)
    update(Update(theirs, model_of(run), (added,), labelled=False), on="cpu")
    assert trusted_roots(theirs, ["/", str(added)]) == [added]
    update(Update(theirs, model_of(run), (added,), labelled=False, trust_roots=True), on="cpu")
    assert trusted_roots(theirs, ["/", str(added)]) == [Path("/"), added]
    update(Update(theirs, model_of(run), (added,), rebuild=True, empty_folders=True), on="cpu")
    assert trusted_roots(theirs, ["/", str(added)]) == [added]


def test_a_folder_inside_the_gallery_is_trusted_and_a_link_there_is_not(tmp_path: Path, secret: Path) -> None:
    inside = tmp_path / "theirs" / "images"
    inside.mkdir(parents=True)
    (tmp_path / "theirs" / "link").symlink_to(secret.parent)
    assert trusted_roots(str(tmp_path / "theirs"), [str(inside), str(tmp_path / "theirs" / "link")]) == [inside]


def test_where_the_configuration_cannot_be_written_trust_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tammes.gallery.trust.write_atomically", Mock(side_effect=OSError(EROFS, "Read-only")))
    trust("gallery", ["/photos"])
    assert "cannot remember" in capsys.readouterr().err
    assert trusted_roots("gallery", ["/photos"]) == [Path("/photos")]
    assert not (tmp_path / "config" / "trusted_roots.json").exists()


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "trusted_roots.json").write_text('{"gallery": "/"}')
    with pytest.raises(UserError, match=r"trusted_roots\.json.*Remove it"):
        trusted_roots("gallery", ["/"])
