"""The documents keep their word: code in the README runs, doctests hold, names in the method exist."""

import doctest
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, SRC

README = (ROOT / "README.md").read_text()


def test_the_code_in_the_readme_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 2
    exec(compile("\n".join(blocks), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip().endswith("True")


@pytest.mark.parametrize("file", sorted(SRC.rglob("*.py")), ids=lambda file: str(file.relative_to(SRC)))
def test_doctests(file: Path) -> None:
    name = ".".join(["tammes", *file.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__")
    module = import_module(name)
    failed, _ = doctest.testmod(module, extraglobs={"torch": import_module("torch")})
    assert failed == 0


def test_the_method_names_only_what_exists() -> None:
    text = (ROOT / "docs" / "method.md").read_text()
    names = set(re.findall(r"`((?:bound|centroids)\.\w+|\w*DiscriminativeLoss)", text))
    assert len(names) > 8
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(f"tammes.{module}" if module else "tammes"), attribute), name


def test_files_that_the_documents_point_to_exist() -> None:
    for document in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} points to {target}"


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]


def test_the_documents_speak_of_no_machine() -> None:
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SRC.rglob("*.py")]:
        assert not re.search(r"/(work|home|root|tmp)/|\.\./shared", file.read_text()), file
