"""The text that `tammes doctor` prints."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tammes.data import doctor
from tammes.data.doctor import Duplicates, Report

SHOWN = 10  # entries of a list that are shown; --json has all

# How training treats each kind of image.
_TREATED = {
    "grey": "grey: converted to RGB if the network needs it",
    "CMYK": "in CMYK: converted to RGB",
    "palette": "palette images: converted to RGB",
    "16-bit": "of more than 8 bits per channel: scaled to 8",
    "transparent": "transparent: composited on white",
    "turned by EXIF": "rotated by EXIF: turned upright",
    "animated": "animated: the first frame is used",
}


def describe(report: Report, command: str) -> Iterator[str]:
    """The report as text, line by line, the most serious findings first.

    Args:
        command: the command that trains on the data.
    """
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


def _warnings(report: Report) -> Iterator[str]:
    leaks = report.leaks
    if leaks:
        yield (
            f"{_count(len(leaks), 'image')} {_are(len(leaks))} both in training and in test, which makes the"
            " test too easy:"
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
        yield f"{have} only one image, which cannot be found: {_names(single)}"
    for kind, what in (
        ("huge", f"of more than {doctor.HUGE_PIXELS / 1e6:g} million pixels, slow to read and scaled down anyway"),
        ("tiny", f"with a side below {doctor.TINY_SIDE} pixels, which will be enlarged"),
        (
            "extreme shape",
            f"more than {doctor.EXTREME_RATIO:g} times as long as wide, of which only the centre is used for testing",
        ),
    ):
        images = report.kinds.get(kind, ())
        if images:
            yield f"{_count(len(images), 'image')} {what}: {_names(images)}"
    yield from report.remarks


def _facts(report: Report) -> Iterator[str]:
    sizes = report.class_sizes
    each = f"{sizes.fewest:,} to {sizes.most:,} per class, median {sizes.median:,g}"
    if sizes.fewest == sizes.most:
        each = f"{sizes.most:,} per class"
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
        yield f"{_count(len(report.other_files), 'other file')} ignored: {listed}"


def _groups(groups: Sequence[Duplicates]) -> list[str]:
    how = {"nearly": "nearly the same"}
    return _some(
        [f"  {' = '.join(_some(group.images))} ({how.get(group.same, f'same {group.same}')})" for group in groups], "  "
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(_some(names))


def _some(lines: Sequence[str], indent: str = "") -> list[str]:
    """The first few lines, and the number of the others."""
    if len(lines) <= SHOWN:
        return list(lines)
    return [*lines[:SHOWN], f"{indent}and {len(lines) - SHOWN:,} more (`tammes doctor --json` lists all)"]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
