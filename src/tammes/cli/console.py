"""What the commands share: how options without a value are shown, and how work in progress and results are."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from tammes.errors import UserError
from tammes.io.files import errors_name, open_inside
from tammes.training.distributed import is_first, number

if TYPE_CHECKING:
    import torch
    from torch import nn

Item = TypeVar("Item")
Value = TypeVar("Value")
CONTINUE = "Run the same command again to continue."
KEPT = f"Decoded images are kept in the cache. {CONTINUE}"
_quiet = [False]


def be_quiet(quiet: bool) -> None:
    """Whether what is said beside results and errors is left out."""
    _quiet[0] = quiet


def watched() -> bool:
    """Whether a person may be watching who wants to see what goes on; of several processes the first speaks."""
    return is_first() and sys.stderr.isatty() and not _quiet[0]


def optional(metavar: str) -> Any:
    """How help shows an option that is absent by default: its kind of value, and no word about None."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def check_words(given: Sequence[str]) -> None:
    """Refuse an empty word: as a path it would be the current folder, which is not meant by an unset variable."""
    for before, word in zip(["", *given], given, strict=False):
        if not word and before != "--label":  # images without a class are found by it
            where = f" after {before}" if before else ""
            raise UserError(
                f"there is an empty word{where}: a variable of the shell may not be set. For the current folder type ."
            )


class _DefaultText(str):
    """A default that nobody typed."""


class _DefaultNumber(int):
    """Likewise."""


def default(value: Value) -> Value:
    """The default of an option, a text or a whole number, that `said` can tell from the same value typed."""
    marked: Any = _DefaultText(value) if isinstance(value, str) else _DefaultNumber(value)  # type: ignore[call-overload]
    return marked  # type: ignore[no-any-return]


def said(config: Any, option: str) -> bool:
    """Whether an option was given, be it with the value that it has by default."""
    value, kinds = getattr(config, option), (_DefaultText, _DefaultNumber)
    unsaid = next(field.default for field in fields(config) if field.name == option)
    return bool(value != unsaid) or (isinstance(unsaid, kinds) and not isinstance(value, kinds))


@contextmanager
def if_stopped(*, doing: str | None = None, then: str | None = None) -> Iterator[None]:
    """Have Ctrl-C in here say what was under way and what to type next; of several around each other the innermost."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for name, text in (("doing", doing), ("then", then)):
            if text is not None:
                vars(stop).setdefault(name, text)
        raise


def stopped(stop: KeyboardInterrupt) -> str:
    """What to say of work that Ctrl-C ended."""
    doing, then = (vars(stop).get(name) for name in ("doing", "then"))
    return f"Stopped{f' while {doing}' if doing else ''}. {then or 'Run the same command again to start over.'}"


@contextmanager
def working(what: str, then: str | None = None) -> Iterator[None]:
    """Say when something that takes long begins and how long it took; a spinner on stderr if a person may be watching.

    Args:
        what: "decoding images".
        then: what to say where Ctrl-C ends it: what is kept, and what to type next.
    """
    started = perf_counter()
    with ExitStack() as shown, if_stopped(doing=what, then=then):
        if watched():
            from rich.console import Console

            shown.enter_context(Console(stderr=True).status(what))
        else:
            say(f"{what} …")
        yield
    say(f"{what}: {duration(perf_counter() - started)}")


@contextmanager
def progress(what: str, then: str | None = None, *, lines: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, fed with (done, total), if a person may be watching; otherwise a line at its begin and its end.

    Nothing is said of work that turns out to be done already.

    Args:
        what, then: see `working`.
        lines: False leaves out the lines, where others say how it goes.
    """
    if not watched():
        started: list[float] = []

        def begin(_done: int, total: int) -> None:
            if lines and not started:
                started.append(perf_counter())
                say(f"{what}: {total:,} …")

        with if_stopped(doing=what, then=then):
            yield begin
        if started:
            say(f"{what}: {duration(perf_counter() - started[0])}")
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar, if_stopped(doing=what, then=then):
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str, log: Path | None = None) -> None:
    """A line for the person who watches, and for the log file; stdout is for results.

    Names in it may be untrusted: it stays one line, and a terminal shows it as it is.
    """
    if not is_first():
        return
    text = printable(text)
    if not _quiet[0]:
        print(text, file=sys.stderr, flush=True)
    if log is not None:
        with errors_name(log), open_inside(log) as file:
            file.write(text.encode() + b"\n")


def say_at_once(text: str) -> None:
    """A line for the person who watches, from where a signal is handled: another line may be half written."""
    if is_first() and not _quiet[0]:
        with suppress(OSError):
            os.write(2, f"\n{text}\n".encode())


def results_table(rows: dict[str, dict[str, Any]], title: str) -> None:
    """Print measured rows side by side, in per cent, with their 95 % intervals below."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tammes.metrics import TITLES

    table = Table(title=escape(printable(title)))
    table.add_column("")
    shown = [name for name in TITLES if any(row.get(name) is not None for row in rows.values())]
    for name in shown:
        table.add_column(TITLES[name], justify="right", no_wrap=True)
    for label, row in rows.items():
        cells = []
        for name in shown:
            value, interval = row.get(name), (row.get("intervals") or {}).get(name)
            cell = "-" if value is None else f"{100 * value:.2f}"
            cells.append(cell if interval is None else f"{cell}\n[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]")
        table.add_row(label, *cells)
    Console(width=16 * len(shown) + 40).print(table)


def printable(text: str) -> str:
    """A name as a terminal may show it: what would move the cursor, end the line or is no character is escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_json(content: Any) -> None:
    try:
        print(json.dumps(content, default=str, allow_nan=False))
    except ValueError:  # JSON has no word for what is not finite
        print(json.dumps(json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)))


class TrainingBar:
    """The bar of a training: epoch, images per second, loss, its distance to the known minimum, time left."""

    def __init__(self, epochs: int, images: int, least: float | None, objective: "nn.Module", log: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.epochs, self.images, self.least, self.log = epochs, images, least, log
        self._loss: torch.Tensor | None = None
        objective.register_forward_hook(self._see)
        columns = (
            TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not watched(), transient=True)
        self._task = self._bar.add_task("", total=epochs * images, epoch=1, speed="", loss="")

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _see(self, _module: "nn.Module", _given: Any, parts: dict[str, "torch.Tensor"]) -> None:
        self._loss = parts["loss"].detach()

    def watch(self, batches: Iterable[Item], epoch: int) -> Iterator[Item]:
        """The same batches, counted; of several processes, each has about as much of a batch."""
        self._bar.update(self._task, epoch=epoch, completed=(epoch - 1) * self.images)
        for batch in batches:
            yield batch
            if not self._bar.disable:
                self._advance(len(batch[1]) * number())  # type: ignore[index]

    def _advance(self, images: int) -> None:
        speed = self._bar.tasks[0].speed
        loss = "" if self._loss is None else f"loss {float(self._loss):.4f}"
        if self._loss is not None and self.least is not None:
            loss += f", {float(self._loss) - self.least:.4f} above"
        self._bar.update(self._task, advance=images, loss=loss, speed="" if speed is None else f"{speed:.0f} images/s")

    def epoch_ended(self, line: dict[str, Any]) -> None:
        """A line that stays."""
        text = f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}"
        if "above_minimum" in line:
            text += f" ({line['above_minimum']:.4f} above its minimum)"
        text += f"  {line['images_per_second']:.0f} images/s"
        if "val_recall_at_1" in line:
            text += f"  validation R@1 {100 * line['val_recall_at_1']:.2f}"
        if "bound" in line:
            bound = line["bound"]
            gap, allowed = (bound[name] / max(1, bound["triplets"]) for name in ("gap", "lemma"))
            text += f"  gap to the triplet loss {gap:.4f} (Lemma {allowed:.4f})"
        self._bar.stop()  # a line that stays goes above the bar
        say(text, self.log)
        self._bar.start()


def duration(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"{whole} second{'s' if whole > 1 else ''}"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
