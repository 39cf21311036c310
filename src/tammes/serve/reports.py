"""The reports of runs and benchmarks in a folder, by their names; nothing else of the folder can be reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tammes.benchmark.tables import read_results
from tammes.errors import UserError
from tammes.report.page import script_digest
from tammes.serve.rows import escaped
from tammes.training.run_folder import Run, is_run, listed


@dataclass(frozen=True)
class Report:
    """A run or a benchmark.

    Attributes:
        name: its folder, below the one that is served.
        written: its report; None where there is none yet.
        current: whether the report was written by this version: the script of another is not allowed to run.
        config, results: what the run has written down; empty for a benchmark.
    """

    name: str
    folder: Path
    written: Path | None
    current: bool
    kind: str
    title: str
    state: str
    config: dict[str, Any]
    results: dict[str, Any]

    @property
    def file(self) -> Path | None:
        """The report, if it is still there."""
        return self.written if self.written is not None and self.written.is_file() else None


def reports_in(roots: Sequence[Path]) -> dict[str, Report]:
    """All runs and benchmarks at or below these folders, the newest first."""
    found: dict[str, Report] = {}
    for root in roots:
        for run in reversed(listed(root)):
            _add(found, root, run.folder, _of_run(run, _name(root, run.folder)))
        for plan in sorted(root.glob("**/plan.json")):
            report = _of_benchmark(plan.parent, _name(root, plan.parent))
            if report is not None:
                _add(found, root, plan.parent, report)
    return found


def has_reports(folder: Path) -> bool:
    """Whether a folder is a run, a benchmark, or holds some."""
    return folder.is_dir() and (is_run(folder) or (folder / "plan.json").exists() or bool(listed(folder)))


def policy() -> str:
    """What a report may do: run the script of this version and show what is in it; it cannot see this site."""
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_digest()}';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " sandbox allow-scripts allow-popups allow-top-navigation-by-user-activation"
    )


def _add(found: dict[str, Report], root: Path, folder: Path, report: Report) -> None:
    # A link may lead out of the folder that is served.
    if not folder.resolve().is_relative_to(root.resolve()):
        return
    if report.name in found and found[report.name].folder != report.folder:  # of another folder that is served
        report = replace(report, name=_unlike(found, f"{escaped(root.resolve().name)}/{report.name}"))
    found.setdefault(report.name, report)


def _unlike(found: dict[str, Report], name: str) -> str:
    """The name, with a number if there is such a report already."""
    names = (name, *(f"{name} {number}" for number in range(2, len(found) + 3)))
    return next(each for each in names if each not in found)


def _name(root: Path, folder: Path) -> str:
    below = folder.relative_to(root)
    return escaped(str(below) if below.parts else root.resolve().name)


def _of_run(run: Run, name: str) -> Report:
    config, results = _read(lambda: run.read("config")), _read(lambda: run.read("results"))
    file = _report(run.folder)
    return Report(name, run.folder.resolve(), file, _is_current(file), "run", name, run.state, config, results)


def _of_benchmark(folder: Path, name: str) -> Report | None:
    results, file = _read(lambda: read_results(folder)), _report(folder)
    if file is None:
        return None
    title = str(results.get("title", name))
    return Report(name, folder.resolve(), file, _is_current(file), "benchmark", title, "", {}, {})


def _report(folder: Path) -> Path | None:
    file = folder / "report.html"
    return file if file.is_file() and file.resolve().parent == folder.resolve() else None


def _is_current(file: Path | None) -> bool:
    """By the digest in its head: the file may have megabytes."""
    if file is None:
        return False
    try:
        with file.open("rb") as content:
            head = content.read(2000).decode(errors="replace")
    except OSError:
        return False
    return script_digest() in head


def _read(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Empty for a file that is missing or cannot be read: the other reports are shown."""
    try:
        return read() or {}
    except UserError:
        return {}
