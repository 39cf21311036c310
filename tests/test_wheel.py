"""What is installed: a wheel that runs outside the repository, and without extras says which one is missing."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import HANGS
from tests.test_architecture import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "clip": ["open_clip"],
    "export": ["onnx", "onnxscript", "onnxruntime"],
    "gallery": ["lancedb"],
    "pml": ["pytorch_metric_learning"],
    "postgres": ["psycopg"],
    "qdrant": ["qdrant_client"],
    "track": ["tensorboard"],
    "vectors": ["pyarrow"],
    "web": ["fastapi", "uvicorn", "multipart", "prometheus_client"],
}

# Runs commands, of which each may fail, where what the extras bring cannot be imported.
WITHOUT_EXTRAS = """
import contextlib, importlib.util, io, json, sys

blocked, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in blocked else find(name, *rest)
sys.meta_path.insert(0, Nothing())
from tammes.cli import main

said = []
for command in commands:
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(command)
        except SystemExit:
            pass
    said.append(error.getvalue())
print(json.dumps(said))
"""


def test_every_extra_is_known_here_and_none_is_in_the_core() -> None:
    assert set(PROJECT["optional-dependencies"]) - {"dev"} == set(EXTRAS)
    core = " ".join(PROJECT["dependencies"])
    assert not [name for names in EXTRAS.values() for name in names if name.replace("_", "-") in core]
    assert "huggingface_hub" in core


def test_what_is_imported_is_declared_and_a_gallery_in_a_folder_needs_no_client_of_a_server() -> None:
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for name, some in extras.items() if name != "dev" for each in some)]
    named = {re.split(r"[\[><=,; ]", each)[0].lower().replace("-", "_") for each in asked}
    called = {"open_clip_torch": "open_clip", "pillow": "PIL", "scikit_learn": "sklearn"}
    known = {called.get(name, name) for name in named} | {"tammes", "pandas"}  # the last is the caller's own
    imported: dict[str, str] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name: file.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module] = file.name
    ours = {name: file for name, file in imported.items() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name: file for name, file in ours.items() if name.partition(".")[0] not in known} == {}
    assert [name for name in ours if name.startswith("uvicorn.protocols") or "._" in name] == []
    assert [each for each in extras["gallery"] + extras["web"] if "qdrant" in each or "grpc" in each] == []


def test_the_versions_of_python_that_are_declared_are_those_that_were_tried() -> None:
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={declared[0]}"
    said = re.search(r"^Python (.*) are declared", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert said is not None
    assert re.findall(r"3\.\d+", said[1]) == declared


@pytest.mark.slow
def test_without_the_extras_a_command_says_what_to_type(tmp_path: Path) -> None:
    from tammes.models.embedder import Embedder, EmbedderConfig

    run = tmp_path / "run"
    run.mkdir()
    Embedder(EmbedderConfig("conv4", 8)).save(run)
    (run / "config.json").write_text(json.dumps({"data": "glyphs"}))
    (run / "environment.json").write_text("{}")
    (tmp_path / "gallery").mkdir()
    (tmp_path / "held" / "about.lance").mkdir(parents=True)
    (tmp_path / "new.jpg").touch()
    (tmp_path / "vectors.parquet").write_bytes(b"PAR1")
    out = str(tmp_path / "out")
    commands = {
        "export": ["export", str(run), "--with-preprocessing"],
        "gallery": ["search", str(tmp_path / "held"), str(tmp_path / "new.jpg")],
        "pml": ["losses", "pml:ProxyAnchorLoss"],
        "postgres": ["search", "postgresql://127.0.0.1:9/some/nothing", str(tmp_path / "new.jpg")],
        "qdrant": ["search", "qdrant://127.0.0.1:9/nothing", str(tmp_path / "new.jpg")],
        "track": ["train", "glyphs", "--tensorboard", "--out", out],
        "vectors": ["train", str(tmp_path / "vectors.parquet"), "--out", out],
        "web": ["serve", str(tmp_path / "gallery")],
    }
    assert commands.keys() == EXTRAS.keys()
    blocked = [name for names in EXTRAS.values() for name in names]
    given = [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(blocked), json.dumps(list(commands.values()))]
    done = subprocess.run(given, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    for extra, text in zip(commands, json.loads(done.stdout), strict=True):
        assert f"pip install 'tammes[{extra}]'" in text, (extra, text)


@pytest.mark.slow
def test_the_wheel_installs_and_runs_outside_the_repository(tmp_path: Path) -> None:
    def call(*command: str) -> str:
        own = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "TAMMES_CACHE": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, env=own)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("tammes-*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        required = [line for line in content.read(about).decode().splitlines() if line.startswith("Requires-Dist")]
    assert {"tammes/py.typed", "tammes/export/apache-2.0.txt"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs", "examples"))]
    assert len([line for line in required if "extra ==" not in line]) == len(PROJECT["dependencies"])
    call("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "installed"), str(wheel))
    assert call("-c", "import tammes; print(tammes.__file__)").startswith(str(tmp_path))
    options = ["--epochs", "1", "--dim", "16", "--out", "run", "--json", "-q"]
    assert json.loads(call("-m", "tammes", "train", "glyphs", *options).splitlines()[-1])
    assert "largest difference to PyTorch" in call("-m", "tammes", "export", "run", "--format", "safetensors")
    assert "recall_at_1" in call("-m", "tammes", "evaluate", "run", "--json", "-q")
    assert (tmp_path / "run" / "model.safetensors").exists()
