"""The reports of runs and benchmarks in a folder, by name; nothing else in the folder is accessible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from tammes.benchmark.tables import read_results
from tammes.errors import UserError
from tammes.report.page import script_digest
from tammes.serve.rows import escaped
from tammes.training.run_folder import is_run, listed


@dataclass(frozen=True)
class Report:
    """A run or a benchmark.

    Attributes:
        name: its folder, below the one that is served.
        folder: without links.
        written: its report; None where there is none yet.
        current: whether the report was written by this version: the script of another is not allowed to run.
        config, results: what the run has written down; of a benchmark only its results.
    """

    name: str
    folder: Path
    written: Path | None
    current: bool
    kind: str
    state: str
    config: dict[str, Any]
    results: dict[str, Any]

    @property
    def title(self) -> str:
        return str(self.results.get("title", self.name))

    @property
    def file(self) -> Path | None:
        """The report, if it is still there."""
        return self.written if self.written is not None and self.written.is_file() else None


def reports_in(roots: Sequence[Path]) -> dict[str, Report]:
    """All runs and benchmarks at or below these folders, the newest first."""
    found: dict[str, Report] = {}
    for root in roots:
        runs: list[tuple[Any, ...]] = [
            (run.folder, "run", run.state, _read(run.read, "config"), _read(run.read, "results"))
            for run in reversed(listed(root))
        ]
        plans = [plan.parent for plan in sorted(root.glob("**/plan.json")) if _report(plan.parent) is not None]
        top = root.resolve()
        for folder, *about in [*runs, *((plan, "benchmark", "", {}, _read(read_results, plan)) for plan in plans)]:
            whole, below = folder.resolve(), folder.relative_to(root)
            if not whole.is_relative_to(top):  # a link may lead out of the folder that is served
                continue
            name = escaped(str(below) if below.parts else top.name)
            if name in found and found[name].folder != whole:  # of another folder that is served
                name = f"{escaped(top.name)}/{name}"
                numbered = (f"{name} {number}" for number in count(2))
                name = next(each for each in chain([name], numbered) if each not in found)
            written = _report(folder)
            found.setdefault(name, Report(name, whole, written, _is_current(written), *about))
    return found


def has_reports(folder: Path) -> bool:
    """Whether a folder is a run, a benchmark, or holds some."""
    return folder.is_dir() and (is_run(folder) or (folder / "plan.json").exists() or bool(listed(folder)))


def policy() -> str:
    """The Content-Security-Policy of a report: only the script of this version, isolated from this site."""
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_digest()}';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " sandbox allow-scripts allow-popups allow-top-navigation-by-user-activation"
    )


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


def _read(read: Callable[..., dict[str, Any] | None], what: str | Path) -> dict[str, Any]:
    """Empty for a file that is missing or cannot be read: the other reports are shown."""
    try:
        return read(what) or {}
    except UserError:
        return {}
