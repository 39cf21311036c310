"""The promises of ARCHITECTURE.md that a test can hold."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tammes"

# The line that the data walks: a module imports only what stands before it.
LINE = [
    "errors",
    "io",
    "geometry",
    "centroids",
    "bound",
    "search",
    "metrics",
    "losses",
    "data",
    "models",
    "training",
    "vectors",
    "gallery",
    "report",
    "benchmark",
    "export",
    "run",
    "serve",
    "cli",
    "__main__",
]
# `method` is what it declares of itself; smart mining and the global loss are made of the triplet loss.
A_LOSS_IS_READABLE_FROM = {
    "geometry",
    "errors",
    "losses.fixed_centroids",
    "losses.centroid_kernel",
    "losses.mining",
    "losses.method",
    "losses.triplet",
    "losses.triplet_global",
}
NO_LOSS = {"__init__", "mining", "to_pml"}


def imports_of(file: Path) -> set[str]:
    """The modules of tammes that a file imports, anywhere in it: 'geometry', 'losses.discriminative', …"""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("tammes.") for alias in node.names if alias.name.startswith("tammes.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module == "tammes":
                found |= {alias.name for alias in node.names}
            elif (node.module or "").startswith("tammes."):
                found.add(str(node.module).removeprefix("tammes."))
    return found


def files_of(module: str) -> list[Path]:
    return sorted((SRC / module).rglob("*.py")) or [SRC / f"{module}.py"]


def modules() -> list[str]:
    return sorted({path.stem for path in SRC.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})


def test_every_module_stands_on_the_line() -> None:
    assert set(modules()) - {"__init__"} <= set(LINE)


def test_the_tree_in_the_document_is_that_of_the_package_in_the_same_order() -> None:
    document = (ROOT / "ARCHITECTURE.md").read_text()
    tree = document[document.index("    src/tammes/\n") :].split("\n\n")[0]
    listed = re.findall(r"^      ([a-z]+)(?:/|\.py) ", tree, flags=re.MULTILINE)
    assert listed == [name for name in LINE if not name.startswith("_")]


@pytest.mark.parametrize("name", [name for name in LINE if name in modules()])
def test_a_module_imports_only_what_stands_before_it(name: str) -> None:
    allowed = set(LINE[: LINE.index(name) + 1]) | {"__version__"}
    looks_back = {
        file.name: {top for top in (i.split(".")[0] for i in imports_of(file)) if top not in allowed}
        for file in files_of(name)
    }
    assert {file: tops for file, tops in looks_back.items() if tops} == {}


@pytest.mark.parametrize(
    "file", [file for file in files_of("losses") if file.stem not in NO_LOSS], ids=lambda f: f.stem
)
def test_a_loss_is_readable_from_its_own_file(file: Path) -> None:
    assert imports_of(file) <= A_LOSS_IS_READABLE_FROM


def test_the_checker_sees_an_import_that_looks_back(tmp_path: Path) -> None:
    file = tmp_path / "early.py"
    file.write_text("import tammes.cli\nfrom tammes import bound\nfrom tammes.losses.discriminative import x\n")
    assert imports_of(file) == {"cli", "bound", "losses.discriminative"}


def test_no_module_reads_the_environment_but_io_environment() -> None:
    readers = {file.name for file in SRC.rglob("*.py") if re.search(r"os\.environ|getenv", file.read_text())}
    assert readers <= {"environment.py"}


def test_pickle_is_never_used() -> None:
    users = [file for file in SRC.rglob("*.py") if re.search(r"import pickle|pickle\.|torch\.load\(", file.read_text())]
    assert [file.name for file in users] == ["weights.py"]
    calls = re.findall(r"torch\.load\(.*", users[0].read_text())
    assert calls
    assert all("weights_only=True" in call for call in calls)
