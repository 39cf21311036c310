"""The documents keep their word: code in the README runs, doctests hold, names in the method exist."""

import doctest
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tammes.cli import COMMANDS, QUIET, parsed
from tammes.cli.arguments import options_of
from tammes.training.objectives import METHODS
from tests.conftest import HANGS
from tests.test_architecture import ROOT, SRC

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()


def test_the_code_in_the_readme_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip().endswith("True")


def blocks(file: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", file.read_text(), flags=re.DOTALL | re.MULTILINE)


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


WITH_PYTHON = [file for file in sorted(DOCS.rglob("*.md")) if blocks(file, "python")]


@pytest.mark.parametrize("file", WITH_PYTHON, ids=relative)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blocks(file, "python")
    monkeypatch.chdir(tmp_path)  # what a page writes stays there
    exec(compile("\n".join(found), str(file), "exec"), {"__name__": "page"})
    assert "False" not in capsys.readouterr().out


def commands_in(file: Path) -> list[str]:
    """Lines that a reader would type: those of shell blocks and of indented blocks."""
    lines = [line for block in blocks(file, "sh") for line in block.splitlines()]
    lines += re.findall(r"^    ((?:\.venv/bin/)?tammes [a-z].*)$", file.read_text(), flags=re.MULTILINE)
    cleaned = [re.sub(r"\s+#.*", "", line).removeprefix(".venv/bin/").strip() for line in lines]
    return [line for line in cleaned if line.startswith("tammes ")]


WITH_COMMANDS = [file for file in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if commands_in(file)]


@pytest.mark.parametrize("file", WITH_COMMANDS, ids=relative)
def test_the_commands_of_a_page_are_understood(file: Path) -> None:
    for line in commands_in(file):
        words = shlex.split(line)[1:]
        if not {"…", "|", ">"} & set("".join(words)):
            parsed([word for word in words if word not in QUIET])


def test_every_command_and_option_stands_in_the_reference_and_in_a_guide() -> None:
    reference = (DOCS / "reference" / "commands.md").read_text()
    files = [file for file in DOCS.rglob("*.md") if file.parent.name != "reference"]
    guides = "\n".join(line for file in files for line in [*commands_in(file), file.read_text()])
    for name, (kind, _) in COMMANDS.items():
        section = reference.partition(f"## tammes {name}\n")[2].partition("\n## ")[0]
        for option in options_of(kind):
            assert option.text, f"tammes {name}: {option.flag} says nothing of itself"
            assert option.text.replace("|", "\\|") in section
        assert f"tammes {name}" in guides, f"no page shows tammes {name}"


def test_the_reference_is_what_the_code_says(printed_by: Callable[..., str]) -> None:
    made = printed_by(
        "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['pages']()))",
        str(DOCS / "reference.py"),
    )
    for name, text in json.loads(made).items():
        assert (DOCS / "reference" / name).read_text() == text, f"{name} is stale: type `make reference`"


@pytest.mark.parametrize("name", ["equations.md", "losses.md"])
def test_equations_become_mathml(name: str) -> None:
    text, hooks = (DOCS / name).read_text(), runpy.run_path(str(DOCS / "hooks.py"))
    assert name in hooks["WITH_EQUATIONS"]
    made = hooks["with_equations"](text)
    assert made.count('display="block"') == text.count("\n$$\n") / 2 >= 11
    assert "$" not in made
    assert "\\" not in made


def test_every_loss_has_its_equation_and_names_options_that_it_has() -> None:
    sections = re.split(r"^### `", (DOCS / "losses.md").read_text(), flags=re.MULTILINE)[1:]
    found = {name: text for name, _, text in (section.partition("`\n") for section in sections)}
    assert set(found) == set(METHODS)
    for name, text in found.items():
        before, _, equation = text.partition("$$\n")
        assert len(equation.partition("\n$$")[0]) > 10, name
        known = {*METHODS[name].defaults, *METHODS}
        assert set(re.findall(r"`([\w-]+)`", before)) <= known, name


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    own = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS, env=own)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for file in (tmp_path / "site").rglob("*.html"):
        assert not re.search(r'(?:src|<link[^>]*href)="https?://', file.read_text()), file


def module_of(file: Path) -> ModuleType:
    return import_module(".".join(["tammes", *file.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__"))


def test_every_module_is_imported_without_a_warning() -> None:
    for file in SRC.rglob("*.py"):
        module_of(file)


WITH_EXAMPLES = [file for file in sorted(SRC.rglob("*.py")) if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=relative)
def test_doctests(file: Path) -> None:
    failed, tried = doctest.testmod(module_of(file), extraglobs={"torch": import_module("torch")})
    assert tried > 0
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


def test_every_error_of_the_troubleshooting_page_is_one_that_the_program_gives() -> None:
    source = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", source)  # texts that go over several lines
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = [
        cell for row in re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE) for cell in re.findall(r"`(.*?)`", row)
    ]
    assert len(quoted) >= 50
    parts = [part.strip(" .(),") for text in quoted for part in text.split("…")]
    assert [part for part in parts if part not in joined] == []
