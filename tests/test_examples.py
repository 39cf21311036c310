"""The examples run, and print what they say they print."""

import json
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import HANGS
from tests.test_architecture import ROOT

EXAMPLES = ROOT / "examples"
FIGURE = re.compile(r"\d+\.\d")
NEEDS = {"lightning_module": "lightning", "hf_trainer": "transformers"}


@pytest.mark.parametrize("name", ["plain_loop", "lightning_module", "hf_trainer", "fixed_classifier", "custom_store"])
def test_an_example_prints_what_it_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # as Python does with a program's folder: digits.py is there
    if name in NEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries
        example = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = [line.strip() for line in example["__doc__"].splitlines() if line.startswith("    ")]
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(said) == len(printed) == 2
    for expected, line in zip(said, printed, strict=True):
        assert FIGURE.sub("#", expected).split() == FIGURE.sub("#", line).split()
        about, found = ([float(each) for each in FIGURE.findall(text)] for text in (expected, line))
        assert found == pytest.approx(about, abs=2.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs", "kept"),
    [
        ("track_mlflow", "mlflow", "mlruns/0/*/metrics/test_recall_at_1"),
        ("track_wandb", "wandb", "wandb/offline-run-*/*.wandb"),
    ],
)
def test_a_training_is_followed_by_a_tracker(name: str, needs: str, kept: str, tmp_path: Path) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [["epoch", "1", "loss"], ["epoch", "2", "loss"]]
    assert [file.stat().st_size > 0 for file in tmp_path.glob(kept)] == [True]


def test_the_plain_loop_is_short() -> None:
    assert len((EXAMPLES / "plain_loop.py").read_text().splitlines()) < 40


@pytest.mark.slow
def test_the_exported_model_is_searched_with_nothing_but_numpy(tmp_path: Path) -> None:
    from tammes.export.formats import onnx_file
    from tammes.models.embedder import Embedder, EmbedderConfig

    (tmp_path / "model.onnx").write_bytes(onnx_file(Embedder(EmbedderConfig("conv4", 16)), with_preprocessing=True))
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((40, 50, 1), (33, 71, 1)))
    np.savez(tmp_path / "pictures.npz", a=one, b=other, c=one)
    command = [
        sys.executable,
        str(EXAMPLES / "search_onnx.py"),
        str(tmp_path / "model.onnx"),
        str(tmp_path / "pictures.npz"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines if line[0] != "b"] == [["a", "c"], ["c", "a"]]
    assert float(lines[0][2]) < 1e-3
    assert not re.search(
        r"^(import|from) (torch|tammes)", (EXAMPLES / "search_onnx.py").read_text(), flags=re.MULTILINE
    )


def test_every_example_is_known_here() -> None:
    tested = "\n".join(
        (ROOT / "tests" / name).read_text() for name in ("test_examples.py", "test_pml.py", "test_learner.py")
    )
    for file in EXAMPLES.glob("*.py"):
        assert file.stem in tested, f"no test runs {file.name}"


@pytest.mark.slow
def test_a_server_without_pytorch_finds_what_the_embedder_finds(tmp_path: Path) -> None:
    """The steps of examples/onnx_server/Dockerfile in a bare virtual environment."""
    from tammes.data.glyphs import glyphs
    from tammes.export.formats import onnx_file
    from tammes.models.embedder import Embedder, EmbedderConfig

    data = glyphs()
    images = [data.read(number) for number in range(0, 60, 3)]
    embedder = Embedder(EmbedderConfig("conv4", 16)).eval()
    for name in ("server.py", "requirements.txt"):
        shutil.copy(EXAMPLES / "onnx_server" / name, tmp_path)
    (tmp_path / "model.onnx").write_bytes(onnx_file(embedder, with_preprocessing=True))
    paths = np.array([f"{number}.png" for number in range(len(images))])
    np.savez(tmp_path / "gallery.npz", vectors=embedder.encode(images), labels=paths, paths=paths)
    images[7].save(tmp_path / "query.png")

    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", tmp_path / "requirements.txt"], check=True)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "uvicorn", "server:app", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        address = f"http://127.0.0.1:{port}"
        while True:
            assert server.poll() is None, server.stderr and server.stderr.read().decode()
            try:
                with urllib.request.urlopen(f"{address}/health") as answer:
                    assert json.load(answer) == {"images": len(images)}
                break
            except urllib.error.URLError:
                time.sleep(0.2)  # it starts
        query = (tmp_path / "query.png").read_bytes()
        with urllib.request.urlopen(f"{address}/search?k=3", data=query) as answer:
            found = json.load(answer)["found"]
        assert [len(found), found[0]["path"]] == [3, "7.png"]
        assert found[0]["distance"] == pytest.approx(0, abs=1e-2)
        for path, body, status in (
            ("search", b"GIF89a", 415),
            ("search?k=none", query, 422),
            ("search?k=0", query, 422),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{address}/{path}", data=body)
            assert refused.value.code == status
            refused.value.close()
    finally:
        server.terminate()
        server.communicate()
