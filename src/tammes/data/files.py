"""Data sets whose images are files, and helpers of their readers."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray

from tammes.data.dataset import TEST, Dataset
from tammes.data.images import open_image
from tammes.errors import UserError
from tammes.io.files import read_text


def of_files(
    name: str,
    keys: Sequence[str],
    files: Sequence[Path],
    labels: Int64[ndarray, " images"],
    class_names: Sequence[str],
    *,
    train_classes: int | None = None,
    part: UInt8[ndarray, " images"] | None = None,
    query: Bool[ndarray, " images"] | None = None,
    gallery: Bool[ndarray, " images"] | None = None,
    sequence: Int64[ndarray, " images"] | None = None,
    remarks: Sequence[str] = (),
) -> Dataset:
    """A Dataset of these files.

    Missing files are listed in `Dataset.missing` and in a remark, and fail when read. Another remark counts test
    classes that are also training classes.

    Raises:
        UserError: a key is duplicated, or all files are missing.
    """
    digest, states = sha256(), [_state(file) for file in files]
    missing = [index for index, state in enumerate(states) if state is None]
    for key, state in zip(keys, states, strict=True):
        digest.update(f"{key}\0{state}\0".encode(errors="surrogateescape"))
    for class_name in class_names:
        digest.update(f"{class_name}\0".encode(errors="surrogateescape"))
    for array in (labels, part, query, gallery, sequence):
        digest.update(b"none" if array is None else array.tobytes())
    key, times = Counter(keys).most_common(1)[0]
    if times > 1:
        raise UserError(f"{key} appears {times} times in {name}; every image must appear once.")
    if missing and len(missing) == len(files):
        raise UserError(f"all {len(files):,} images are missing; the first is {files[0]}.")
    return Dataset(
        name=name,
        keys=tuple(keys),
        labels=labels,
        class_names=tuple(class_names),
        read=lambda index: open_image(files[index]),
        fingerprint=digest.hexdigest(),
        train_classes=train_classes,
        files=tuple(files),
        part=part,
        query=query,
        gallery=gallery,
        sequence=sequence,
        changed=lambda: next(
            (file for file, before in zip(files, states, strict=True) if _state(file) != before), None
        ),
        missing=tuple(missing),
        remarks=(
            *remarks,
            *_missing([files[index] for index in missing], len(files)),
            *_trained_and_tested(labels, part),
            *names_alike(class_names),
        ),
    )


def of_classes(dataset: Dataset, names: Collection[str]) -> Dataset:
    """The images of these classes only; if they are files, the same data set as without the other classes."""
    chosen = [number for number, name in enumerate(dataset.class_names) if name in names]
    kept = np.flatnonzero(np.isin(dataset.labels, chosen))
    class_names = tuple(dataset.class_names[number] for number in chosen)

    def of_kept(mask: ndarray | None) -> ndarray | None:
        return None if mask is None else mask[kept]

    fewer = replace(
        dataset,
        keys=tuple(dataset.keys[index] for index in kept.tolist()),
        labels=np.searchsorted(chosen, dataset.labels[kept]).astype(np.int64),
        class_names=class_names,
        read=lambda index: dataset.read(int(kept[index])),
        fingerprint=sha256("\0".join((dataset.fingerprint, *class_names)).encode(errors="surrogateescape")).hexdigest(),
        train_classes=None if dataset.train_classes is None else sum(each < dataset.train_classes for each in chosen),
        files=None if dataset.files is None else tuple(dataset.files[index] for index in kept.tolist()),
        missing=tuple(np.flatnonzero(np.isin(kept, dataset.missing)).tolist()),
        part=of_kept(dataset.part),
        query=of_kept(dataset.query),
        gallery=of_kept(dataset.gallery),
        sequence=of_kept(dataset.sequence),
    )
    if fewer.files is None:
        return fewer
    found = of_files(
        fewer.name,
        fewer.keys,
        fewer.files,
        fewer.labels,
        class_names,
        part=fewer.part,
        query=fewer.query,
        gallery=fewer.gallery,
        sequence=fewer.sequence,
    )
    # The fingerprint is that of a data set of these files, so that the cache is found.
    return replace(fewer, fingerprint=found.fingerprint, changed=found.changed)


def unlike_published(called: str, counts: Sequence[tuple[str, int, int]]) -> list[str]:
    """A remark for each count that differs from the published one.

    Args:
        counts: (what is counted, published count, count here).
    """
    return [
        f"{called} has {published:,} {what}, this folder has {here:,}."
        for what, published, here in counts
        if here != published
    ]


def rows(file: Path, num_fields: int, expected: str, *, also: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """The lines of a list with their line numbers, split into `num_fields` fields; the last may contain blanks.

    Args:
        expected: the format of a line, for the error.
        also: another allowed number of fields.
    """
    for number, line in enumerate(text(file).split("\n"), start=1):
        fields = line.strip().split(maxsplit=num_fields - 1)
        if fields and len(fields) not in (num_fields, also):
            raise UserError(f"{file}, line {number}: {line.strip()!r} is not `{expected}`.")
        if fields:
            yield number, fields


def text(file: Path) -> str:
    try:
        return read_text(file).replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"no such file: {file}. The data set is incomplete: unpack it again.") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UserError(f"cannot read {file}: it is not a text in UTF-8.") from None


def whole_number(field: str, file: Path, line: int) -> int:
    if not (field.isascii() and field.isdecimal()):
        raise UserError(f"{file}, line {line}: {field!r} is not a whole number.")
    return int(field)


def names_alike(class_names: Sequence[str]) -> list[str]:
    """A remark on classes whose names are easily confused."""
    first: dict[str, str] = {}
    for name in class_names:
        other = first.setdefault(name.strip().casefold(), name)
        if other != name:
            return [f"the classes {other!r} and {name!r} differ only in case or blanks; they count as two classes."]
    return []


def _state(file: Path) -> str | None:
    """Size and time of a file, to detect changes; None for a missing file or a dangling link."""
    try:
        status = file.stat()
    except (OSError, ValueError):  # ValueError: an invalid file name
        return None
    return f"{status.st_size} {status.st_mtime_ns}"


def _missing(missing: Sequence[Path], total: int) -> list[str]:
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    return [f"{len(missing):,} of {total:,} images {are} missing, such as {missing[0]}."]


def _trained_and_tested(labels: Int64[ndarray, " images"], part: UInt8[ndarray, " images"] | None) -> list[str]:
    """A remark on test classes that are also in training, which makes test results too good."""
    if part is None:
        return []
    tested = np.unique(labels[part == TEST])
    seen = np.isin(tested, labels[part != TEST]).sum()
    are = "is" if seen == 1 else "are"
    return [f"{seen:,} of {len(tested):,} test classes {are} also in training or validation."] if seen else []
