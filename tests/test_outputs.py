"""Where commands write: nothing of the user's is replaced or removed without being asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tammes.cli import main
from tammes.errors import UserError
from tammes.io.outputs import place_for
from tests.commands import ended, small_set
from tests.conftest import HANGS
from tests.test_errors import SMALL


def place(file: Path, overwrite: bool = False) -> Path:
    return place_for("out", file, name="labels.csv", suffixes=(".csv",), overwrite=overwrite)


def refused(file: Path, overwrite: bool = True) -> str:
    with pytest.raises(UserError) as refusal:
        place(file, overwrite)
    return str(refusal.value)


def test_what_is_there_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "l.csv"
    assert place(file) == file.resolve()
    file.touch()
    assert refused(file, overwrite=False) == f"{file} exists. Pass `overwrite=True` to replace it."
    assert place(file, overwrite=True) == file.resolve()


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("target.csv")
    assert place(tmp_path / "link.csv") == (tmp_path / "target.csv").resolve()
    (tmp_path / "target.csv").touch()
    assert refused(tmp_path / "link.csv", overwrite=False).endswith(
        "link.csv exists. Pass `overwrite=True` to replace it."
    )


def test_places_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.csv").mkdir()
    Path("loop.csv").symlink_to("loop.csv")
    os.mkfifo("pipe.csv")
    for name, text in (
        ("folder.csv", "`out='folder.csv'` is a folder. Give it a name: `out='folder.csv/labels.csv'`"),
        (".", "`out='.'` is a folder. Give it a name: `out='labels.csv'`"),
        ("l.txt", "`out` must end in .csv, got 'l.txt'."),
        ("no/l.csv", "`out='no/l.csv'`: there is no folder no."),
        ("loop.csv", "`out='loop.csv'` is a link that leads back to itself."),
        ("pipe.csv", "`out='pipe.csv'` is a device or a pipe."),
    ):
        assert refused(Path(name)).startswith(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, a run of them and a gallery."""
    root = tmp_path_factory.mktemp("made")
    small_set(root / "photos", ["a", "b", "c", "d"])
    main(["train", str(root / "photos"), "--out", str(root / "run"), *SMALL])
    main(["index", str(root / "run"), str(root / "photos"), "--gallery", str(root / "g")])
    return root


def test_every_command_asks_before_it_replaces_a_file(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, photos, gallery, image = (str(made / name) for name in ("run", "photos", "g", "photos/a/0.png"))
    commands = {
        "v.npz": ["embed", run, photos, "--out", "v.npz"],
        "l.csv": ["label", gallery, photos, "--threshold", "9", "--out", "l.csv"],
        "r.html": ["report", run, "--map", "none", "--out", "r.html"],
        "s.png": ["search", gallery, image, "--sheet", "s.png"],
        "c.npy": ["centroids", "4", "3", "--out", "c.npy"],
        "m.safetensors": ["export", run, "--format", "safetensors", "--out", "m.safetensors"],
    }
    for name, command in commands.items():
        Path(name).write_text("mine")
        assert ended(capsys, *command) == (2, f"tammes: {name} exists. Pass --overwrite to replace it.\n")
        assert Path(name).read_text() == "mine"
        assert ended(capsys, *command, "--overwrite")[0] == 0
        assert Path(name).read_bytes() != b"mine"


@pytest.mark.xdist_group("export")  # the exporter takes seconds to import
def test_a_run_that_is_replaced_or_removed_takes_nothing_else_with_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    photos = small_set(run / "photos", ["a", "b", "c", "d"])
    before = sorted(each.read_bytes() for each in photos.glob("*/*"))
    for name in ("config.json", "environment.json", "results.json", "embedder.json", "embedder.safetensors"):
        (run / name).write_bytes((made / "run" / name).read_bytes())
    (run / "test.txt").write_text("c\nd\n")
    command = ["train", str(photos), "--out", str(run), "--test-classes", str(run / "test.txt"), *SMALL]
    assert ended(capsys, *command, "--overwrite")[0] == 0
    assert sorted(each.read_bytes() for each in photos.glob("*/*")) == before
    main(["calibrate", str(run), "--fmr", "0.5"])
    main(["report", str(run), "--map", "none"])
    main(["export", str(run)])
    monkeypatch.chdir(run)
    capsys.readouterr()
    main(["runs", "--remove", "."])
    said = capsys.readouterr()
    assert said.out == "removed .\n"
    assert said.err == "note: . stays, with what is not the run's: photos, test.txt\n"
    assert sorted(each.name for each in run.iterdir()) == ["photos", "test.txt"], "all that a run writes is gone"


def test_a_link_to_a_run_is_not_removed_for_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(made / "run")
    where = (made / "run").resolve()
    assert ended(capsys, "runs", "--remove", "link") == (
        2, f"tammes: link is a link. Remove the run itself: tammes runs --remove {where}\n"
    )  # fmt: skip
    assert (made / "run" / "results.json").exists()


def test_a_part_of_a_gallery_keeps_its_classes(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, photos, gallery = made / "run", small_set(tmp_path / "photos", ["a", "b", "c", "d"]), tmp_path / "g"

    def indexed(*words: str) -> dict[str, int]:
        capsys.readouterr()
        main(["index", str(run), *words, "--gallery", str(gallery), "--json"])
        found: dict[str, int] = json.loads(capsys.readouterr().out)
        return {name: found[name] for name in ("added", "changed", "same", "relabelled", "removed")}

    def label() -> str:
        capsys.readouterr()
        main(["search", str(gallery), str(photos / "a" / "0.png"), "-k", "1", "--json"])
        return str(json.loads(capsys.readouterr().out)["queries"][0]["found"][0]["label"])

    none = {"added": 0, "changed": 0, "same": 0, "relabelled": 0, "removed": 0}
    assert indexed(str(photos / "a"), str(photos)) == none | {"added": 8}
    assert label() == "a"
    assert indexed(str(photos / "a")) == none | {"same": 2}
    assert label() == "a"
    assert indexed(str(photos), "--no-labels") == none | {"relabelled": 8}
    assert label() == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full(tmp_path: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tammes", "--version"], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=HANGS, check=False, cwd=tmp_path, env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tammes: cannot write standard output, or a file: No space left on device. Free some space and run it again;"
        " what was reported as saved is safe.\n"
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("search nowhere - <&-", 2),
        ("losses <&- >&- 2>&-", 0),
        pytest.param("search nowhere x.png 2>&-", 2, marks=pytest.mark.slow),
        pytest.param("centroids 4 3 >&-", 0, marks=pytest.mark.slow),
    ],
)
def test_streams_that_are_closed(tmp_path: Path, words: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m tammes {words}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "fault" not in done.stderr


def test_a_folder_that_is_no_more(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", f"rmdir ../gone && {sys.executable} -m tammes runs"],
        cwd=tmp_path / "gone", capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "tammes: the folder that this was started in no longer exists. Go to another: cd FOLDER\n",
    )
