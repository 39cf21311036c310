"""`tammes doctor`: what is wrong with a data set, before training finds out."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.errors import UserError
from tammes.io.console import print_json, printable, progress
from tammes.io.files import is_vector_file

if TYPE_CHECKING:
    from tammes.data.doctor import Duplicates, Report

SHOWN = 10  # of a list; --json has all

# What becomes of such images.
_TREATED = {
    "grey": "grey: made RGB where the network wants it",
    "CMYK": "in CMYK: made RGB",
    "palette": "in a palette: made RGB",
    "16-bit": "of more than 8 bits a pixel: scaled to 8",
    "transparent": "transparent: laid on white",
    "turned by EXIF": "turned by an EXIF note: made upright",
    "animated": "of more than one frame: the first is used",
}


@dataclass(frozen=True)
class Doctor:
    """Look through every image of a data set for what would stop training, or spoil it.

    First comes what makes `tammes train DATA` fail, then warnings (the same image in training and test, above all),
    then facts. The exit code is 1 if training would fail, and 0 otherwise.

    For example:

    tammes doctor photos/

    tammes doctor photos/ --json > photos.json
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A folder with one sub-folder of images per class, the folder of a named data set, or the word glyphs."""
    json: bool = False
    """Print everything as one JSON object, with the full lists of images."""


def doctor(config: Doctor) -> None:
    """Look, tell, and say by the exit code whether training would fail."""
    from tammes.data import is_omniglot, open_dataset
    from tammes.data.doctor import examine

    path = Path(config.data)
    if is_vector_file(path) and path.exists():
        file = shlex.quote(config.data)
        raise UserError(
            f"{config.data} holds vectors, and doctor looks at images. `tammes train {file}` says itself what is wrong"
            f" with vectors; `tammes evaluate {file}` measures them as they are."
        )
    if config.data != "glyphs" and not path.exists():
        open_dataset(config.data)  # says what is expected
    try:
        dataset = open_dataset(config.data)
    except UserError as error:
        if config.json:
            print_json({"data": config.data, "stops": [str(error)]})
        else:
            print("\n".join(["Training would fail:", *(f"  {printable(line)}" for line in str(error).splitlines())]))
        raise SystemExit(1) from None
    small = config.data == "glyphs" or is_omniglot(path)  # which the default network sees in 28 x 28
    with progress("looking at images") as on_progress:
        report = examine(dataset, shorter_side=28 if small else 256, on_progress=on_progress)
    if config.json:
        print_json({"data": config.data, **asdict(report)})
    else:
        print("\n".join(map(printable, _told(report, f"tammes train {shlex.quote(config.data)}"))))
    if report.stops:
        raise SystemExit(1)


def _told(report: "Report", command: str) -> Iterator[str]:
    """The report for people, the worst first."""
    if report.stops:
        yield "Training would fail:"
        for stop in report.stops:
            yield f"  {stop}"
        if report.unreadable:
            yield from (f"    {line}" for line in _some([f"{bad.image}: {bad.reason}" for bad in report.unreadable]))
            if len(report.unreadable) < report.images:
                yield f"  Repair or remove these, or leave them out: {command} --skip-bad"
        yield ""
    warnings = list(_warnings(report))
    if warnings:
        yield "Warnings:"
        yield from (f"  {line}" for line in warnings)
        yield ""
    yield "Facts:"
    yield from (f"  {line}" for line in _facts(report))
    if not report.stops:
        yield ""
        yield f"Nothing stops training: {command}"


def _warnings(report: "Report") -> Iterator[str]:
    from tammes.data.doctor import EXTREME_RATIO, HUGE_PIXELS, TINY_SIDE

    leaks = report.leaks
    if leaks:
        yield (
            f"{_count(len(leaks), 'image')} {_are(len(leaks))} both in training and in test, so that the test shows"
            " more than the network has learned:"
        )
        yield from _groups(leaks)
    across = [group for group in report.duplicates if len(group.classes) > 1 and not group.leaks]
    if across:
        yield f"{_count(len(across), 'image')} {_are(len(across))} in more than one class:"
        yield from _groups(across)
    within = [group for group in report.duplicates if len(group.classes) == 1 and not group.leaks]
    if within:
        yield f"{_count(len(within), 'image')} {_are(len(within))} more than once in the same class:"
        yield from _groups(within)
    single = report.single_image_classes
    if single:
        have = f"{_count(len(single), 'class', 'classes')} {'has' if len(single) == 1 else 'have'}"
        yield f"{have} one image only, which no test can find: {_names(single)}"
    for kind, what in (
        ("huge", f"of more than {HUGE_PIXELS / 1e6:g} million pixels, slow to read, and scaled down all the same"),
        ("tiny", f"with a side below {TINY_SIDE} pixels, enlarged, which adds nothing"),
        ("extreme shape", f"more than {EXTREME_RATIO:g} times as long as wide, of which a test sees only the middle"),
    ):
        images = report.kinds.get(kind, ())
        if images:
            yield f"{_count(len(images), 'image')} {what}: {_names(images)}"
    yield from report.remarks


def _facts(report: "Report") -> Iterator[str]:
    sizes = report.class_sizes
    each = f"{sizes.fewest:,} to {sizes.most:,} a class, the median {sizes.median:,g}"
    if sizes.fewest == sizes.most:
        each = f"{sizes.most:,} a class"
    yield f"{report.name}: {_count(report.images, 'image')} of {_count(report.classes, 'class', 'classes')}, {each}"
    if report.train is not None and report.test is not None:
        for use, part in (("train", report.train), ("test", report.test)):
            yield f"{use}: {_count(part.images, 'image')} of {_count(part.classes, 'class', 'classes')}"
    for kind, what in _TREATED.items():
        if kind in report.kinds:
            number = len(report.kinds[kind])
            yield f"{_count(number, 'image')} {_are(number)} {what}"
    for what, images in report.misnamed.items():
        yield f"{_count(len(images), 'image')} {_are(len(images))} {what}: read by content"
    if report.other_files:
        suffixes = Counter(PurePosixPath(name).suffix.lower() or "without a suffix" for name in report.other_files)
        listed = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common(SHOWN))
        yield f"{_count(len(report.other_files), 'other file')} left alone: {listed}"


def _groups(groups: "Sequence[Duplicates]") -> list[str]:
    how = {"nearly": "nearly the same"}
    return _some(
        [f"  {' = '.join(_some(group.images))} ({how.get(group.same, f'same {group.same}')})" for group in groups], "  "
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(_some(names))


def _some(lines: Sequence[str], indent: str = "") -> list[str]:
    """The first of many, and how many more there are."""
    if len(lines) <= SHOWN:
        return list(lines)
    return [*lines[:SHOWN], f"{indent}and {len(lines) - SHOWN:,} more (--json lists all)"]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
