"""`tammes centroids`, run as a user would."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tammes import __version__
from tammes.centroids import CENTROIDS, kmeans, place, quality, solve
from tammes.cli import main
from tests.commands import printed


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tammes.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed on stderr when the command refuses, which must be all it prints."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    main(["centroids", *arguments, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert isinstance(record, dict)
    return record


def test_help_appears_without_torch() -> None:
    code = (
        "import sys\nfrom tammes.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stopped:\n    assert stopped.code == 0\n"
        "assert not {'torch', 'scipy', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "centroids" in done.stdout


def test_help_of_the_command_shows_examples_and_every_kind() -> None:
    done = run("centroids", "--help")
    assert done.returncode == 0
    assert "tammes centroids 100 64" in done.stdout
    assert [kind for kind in CENTROIDS if kind not in done.stdout] == []


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tammes {__version__}\n")


def test_the_table_names_the_kind_that_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "centroids", "100", "64")
    for each in ("orthogonal-simplices", "1.414214", "2.000000"):
        assert each in said


def test_json_is_the_quality_of_the_library_call(capsys: pytest.CaptureFixture[str]) -> None:
    record = printed_json(capsys, "40", "12", "--kind", "kmeans", "--samples", "500", "--seed", "5")
    expected = quality(kmeans(40, 12, generator=torch.Generator().manual_seed(5), samples=500))
    seconds = record.pop("seconds")
    assert isinstance(seconds, float)
    assert record == {"num_classes": 40, "dim": 12, "kind": "kmeans", "seed": 5} | vars(expected)


def test_spread_reaches_the_solver(capsys: pytest.CaptureFixture[str]) -> None:
    record = printed_json(capsys, "150", "70", "--kind", "solve", "--spread", "0.3")
    expected = quality(solve(150, 70, generator=torch.Generator().manual_seed(0), spread=0.3))
    assert record["max"] == expected.max


def test_one_class_has_no_distances(capsys: pytest.CaptureFixture[str]) -> None:
    record = printed_json(capsys, "1", "4")
    assert (record["kind"], record["min"], record["ratio"]) == ("simplex", None, None)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_what_is_saved_is_what_the_library_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    out = tmp_path / f"points{suffix}"
    main(["centroids", "30", "20", "--out", str(out)])
    saved = torch.from_numpy(np.load(out)) if suffix == ".npy" else load_file(out)["centroids"]
    assert torch.equal(saved, place(30, 20))
    assert [file.name for file in tmp_path.iterdir()] == [out.name]  # no temporary file is left
    assert capsys.readouterr().out.endswith(f"written: {out}\n")


def test_an_existing_file_is_kept_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "points.npy"
    out.write_text("precious")
    message = refused(capsys, "centroids", "30", "20", "--out", str(out))
    assert message == f"tammes: {out} exists. Pass --overwrite to replace it.\n"
    assert out.read_text() == "precious"
    main(["centroids", "30", "20", "--out", str(out), "--overwrite"])
    assert np.load(out).shape == (30, 20)


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    from matplotlib.image import imread

    plot = tmp_path / "distances.png"
    main(["centroids", "60", "20", "--kind", "random", "--plot", str(plot)])
    assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    picture = imread(plot)
    assert picture.shape[:2] == (540, 960)
    assert picture[..., :3].std() > 0.1  # something is drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0", "4"], "num_classes must be at least 1, got 0."),
        (
            ["3", "1"],
            "in dim 1 only 2 distinct unit points exist, but there are 3 classes. Raise dim to 2 or more.",
        ),
        (
            ["3", "4", "--kind", "simplx"],
            "unknown kind of centroids 'simplx'. Did you mean 'simplex'? Known: codes, kerdock, kmeans, layers,"
            " one-hot, orthogonal-simplices, place, random, shells, simplex, solve.",
        ),
        (["3", "4", "--spread", "0.3"], "--spread applies to --kind solve only, not to place."),
        (
            ["3", "4", "--kind", "solve", "--samples", "9"],
            "--samples applies to --kind kmeans only, not to solve.",
        ),
        (["3", "4", "--out", "points.txt"], "--out must end in .npy or .safetensors, got 'points.txt'."),
        (["3", "4", "--plot", "points.pdf"], "--plot must end in .png, got 'points.pdf'."),
        (
            ["3", "4", "--out", "/nowhere/points.npy"],
            "--out /nowhere/points.npy: there is no folder /nowhere. Make it first.",
        ),
        (["3", "4", "--seed", "-1"], f"--seed must be a whole number from 0 to {2**63 - 1}, got -1."),
        (["1", "4", "--plot", "x.png"], "--plot draws 2 to 100000 classes, got 1."),
    ],
)
def test_what_the_user_can_put_right_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert refused(capsys, "centroids", *arguments).splitlines()[-1] == f"tammes: {message}"


def test_an_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "centroid", "3", "4").startswith(
        "tammes: unknown command 'centroid'. Did you mean 'centroids'?"
    )
