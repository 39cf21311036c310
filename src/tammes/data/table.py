"""Tables of images: a CSV file with one line per image, as in open-metric-learning, or COCO's JSON."""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from typing_extensions import TypedDict

from tammes.data.dataset import PARTS, TEST, VALIDATION, Dataset
from tammes.data.files import of_files
from tammes.data.folder import natural
from tammes.data.images import open_image
from tammes.errors import UserError
from tammes.io.files import read_text
from tammes.io.schema import read_json

Box = tuple[int, int, int, int]  # left, top, right, bottom, as Pillow has it
Value = TypeVar("Value")

# 1.0 is how pandas writes a 1 in a column with gaps.
_TRUTHS = {"true": True, "1": True, "1.0": True, "yes": True}
_TRUTHS |= {"false": False, "0": False, "0.0": False, "no": False, "": False}
_BOX = ("x_1", "y_1", "x_2", "y_2")
_BOX_BY_SIZE = ("x", "y", "width", "height")
_KNOWN = {"path", "label", "split", "is_query", "is_gallery", "sequence", *_BOX, *_BOX_BY_SIZE}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d+)?(?:[eE][-+]?\d{1,2})?")  # 007 is a name


def table(file: Path) -> Dataset:
    """The images of a CSV file with columns `path` and `label`.

    Optional columns:

        split                   train, val (or validation), test: what the image is for. Where no line says test, the
                                validation images are those that are tested on, as in open-metric-learning.
        is_query, is_gallery    True or False (1 or 0, yes or no; nothing is False), for images that are tested on
        sequence                a query does not find images of its own; without an entry an image is in none
        x_1, y_1, x_2, y_2      a box in pixels from the upper left corner, x_2 and y_2 exclusive: only what is in it
                                is the image. All four or none; one file may hold several images in different boxes.
        x, y, width, height     the same box by its corner and its size

    A .json file is one of COCO's: each of its annotations is an image, in its box and of its category.

    All other columns are left alone here; a gallery keeps them. Paths are absolute or below the folder of the CSV file,
    labels are text as written, and classes come in natural order. Without `split` the classes are halved as those of a
    folder are.

    Raises:
        UserError: the file cannot be read, or a line of it is wrong; it says which.
    """
    lines = table_lines(file)
    keys = [line.key for line in lines]
    class_names = sorted({line.label for line in lines}, key=natural)
    numbers = {name: number for number, name in enumerate(class_names)}
    parts = _all([line.part for line in lines])
    remarks = []
    if parts is not None and TEST not in parts and VALIDATION in parts:
        parts = [TEST if part == VALIDATION else part for part in parts]
        remarks.append(f"no line of {file.name} says test: its {parts.count(TEST):,} validation images are tested on.")
    query, gallery = _all([line.query for line in lines]), _all([line.gallery for line in lines])
    tested = [index for index in range(len(lines)) if parts is None or parts[index] == TEST]
    for column, mask in (("is_query", query), ("is_gallery", gallery)):
        if mask is not None and tested and not any(mask[index] for index in tested):
            raise UserError(f"{file}: {column} is True of no image that is tested on. Fill it in or remove it.")
    if query is not None and gallery is not None:
        neither = [index for index in tested if not (query[index] or gallery[index])]
        if neither:
            remarks.append(
                f"{len(neither):,} of {len(tested):,} test images are neither query nor gallery, {keys[neither[0]]} "
                "first: they are not tested on."
            )
    dataset = of_files(
        file.stem,
        keys,
        [line.file for line in lines],
        np.array([numbers[line.label] for line in lines], dtype=np.int64),
        class_names,
        part=None if parts is None else np.array(parts, dtype=np.uint8),
        query=None if query is None else np.array(query),
        gallery=None if gallery is None else np.array(gallery),
        sequence=_sequences([line.sequence for line in lines]),
        remarks=remarks,
    )
    return replace(dataset, read=partial(_read, lines))


@dataclass(frozen=True)
class Line:
    """An image of a table; `fields` are its other columns."""

    key: str
    file: Path
    label: str
    part: int | None
    query: bool | None
    gallery: bool | None
    sequence: str | None
    box: Box | None
    fields: Mapping[str, str | float]


def is_table(data: str | Path) -> bool:
    """Whether the name is that of a table of images."""
    return Path(data).suffix.lower() in (".csv", ".json") and not Path(data).is_dir()


def cropped(image: Image.Image, box: Box | None, name: str, file: Path | str = "the image") -> Image.Image:
    """Crop an image to a box; unchanged without one.

    Args:
        name: the name of the crop, for errors.
        file: the file of the image, for errors.
    """
    if box is None:
        return image
    if box[2] > image.width or box[3] > image.height:
        raise UserError(
            f"cannot cut {name} out: {file} is {image.width} x {image.height} pixels, its box ends at "
            f"{box[2]}, {box[3]}."
        )
    return image.crop(box)


def name_in(box: Box | None, name: str) -> str:
    """The name of a crop of an image."""
    return name if box is None else f"{name} {','.join(str(edge) for edge in box)}"


def _read(lines: Sequence[Line], index: int) -> Image.Image:
    line = lines[index]
    return cropped(open_image(line.file), line.box, line.key, line.file)


def table_lines(file: Path, *, labelled: bool = True) -> list[Line]:
    """The images of a table, in order.

    Args:
        labelled: whether each must have a label.
    """
    lines: list[Line] = []
    seen: dict[tuple[str, Box | None], int] = {}
    entries = _annotations(file) if file.suffix.lower() == ".json" else _entries(file, labelled)
    fields = _fields([entry for _, entry in entries])
    for (number, entry), columns in zip(entries, fields, strict=True):
        where = f"{file}, {'annotation' if file.suffix.lower() == '.json' else 'line'} {number}"
        for column in ("path", "label") if labelled else ("path",):
            if not entry[column]:
                raise UserError(f"{where}: the {column} is empty.")
        place = file.parent / entry["path"]
        box = _box(entry, where)
        first = seen.setdefault((os.path.normpath(place), box), number)
        if first != number:
            raise UserError(f"{where}: {entry['path']} is already in line {first}; every image must appear once.")
        lines.append(
            Line(
                key=name_in(box, entry["path"]),
                file=place,
                label=entry.get("label", ""),
                part=_one_of(PARTS, entry, "split", "train, val, validation, test", where),
                query=_one_of(_TRUTHS, entry, "is_query", "True, False, 1, 0", where),
                gallery=_one_of(_TRUTHS, entry, "is_gallery", "True, False, 1, 0", where),
                sequence=entry.get("sequence"),
                box=box,
                fields=columns,
            )
        )
    if not lines:
        raise UserError(f"{file} names no images: it has {'a header only' if file.suffix == '.csv' else 'none'}.")
    return lines


def _fields(entries: Sequence[Mapping[str, str]]) -> list[dict[str, str | float]]:
    """The other columns: numbers if all entries are numbers, otherwise texts; None for empty entries."""
    names = [name for name in (entries[0] if entries else ()) if name and name not in _KNOWN]
    numbers = {
        name for name in names if all(_NUMBER.fullmatch(entry[name]) for entry in entries if entry.get(name, ""))
    }
    return [
        {name: float(entry[name]) if name in numbers else entry[name] for name in names if entry.get(name, "")}
        for entry in entries
    ]


class _CocoImage(TypedDict):
    id: int | str
    file_name: str


class _CocoCategory(TypedDict):
    id: int | str
    name: str


class _CocoAnnotation(TypedDict):
    image_id: int | str
    category_id: int | str
    bbox: tuple[float, float, float, float]


class _Coco(TypedDict):
    images: list[_CocoImage]
    annotations: list[_CocoAnnotation]
    categories: list[_CocoCategory]


def _annotations(file: Path) -> list[tuple[int, dict[str, str]]]:
    """The annotations of a COCO file as lines of a table, from 1."""
    coco = read_json(file, _Coco, "Expected a COCO file: images, annotations with a bbox, and categories.")
    if coco is None:
        raise UserError(f"no such file: {file}.")
    files = {each["id"]: each["file_name"] for each in coco["images"]}
    names = {each["id"]: each["name"] for each in coco["categories"]}
    entries = []
    for number, each in enumerate(coco["annotations"], start=1):
        if each["image_id"] not in files or each["category_id"] not in names:
            raise UserError(f"{file}, annotation {number}: there is no such image or category.")
        box = dict(zip(_BOX_BY_SIZE, map(str, each["bbox"]), strict=True))
        entries.append((number, {"path": files[each["image_id"]], "label": names[each["category_id"]], **box}))
    return entries


def _entries(file: Path, labelled: bool) -> list[tuple[int, dict[str, str]]]:
    """The lines below the header with their line numbers, by column, stripped."""
    entries = []
    try:
        with StringIO(read_text(file), newline="") as source:
            reader = csv.reader(source)
            header = [name.strip() for name in next(reader, [])]
            _check_header(file, header, ("path", "label") if labelled else ("path",))
            before = reader.line_num
            for fields in reader:
                number, before = before + 1, reader.line_num  # an entry in quotes may go over several lines
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise UserError(f"{file}, line {number}: {len(fields)} entries where the header has {len(header)}.")
                entries.append((number, {name: field.strip() for name, field in zip(header, fields, strict=True)}))
    except FileNotFoundError:
        raise UserError(f"no such file: {file}. Expected a CSV file with the columns path and label.") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UserError(f"cannot read {file}: it is not a text in UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"cannot read {file}, line {reader.line_num}: {error}.") from error
    return entries


def _check_header(file: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    has = f"It has {', '.join(header)}." if header else "It is empty."
    for column in needed:
        if column not in header:
            vectors = f" Vectors are read from .parquet: pandas.read_csv({file.name!r}).to_parquet(FILE)"
            raise UserError(
                f"{file} has no column {column!r}. {has} Expected a header with path and label at least."
                f"{vectors if column == 'path' and len(header) > 2 else ''}"
            )
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise UserError(f"{file} has the column {twice[0]!r} more than once.")
    missing = [column for column in _BOX if column not in header]
    if 0 < len(missing) < len(_BOX):
        raise UserError(f"{file} has no column {missing[0]!r}. {has} A box needs {', '.join(_BOX)}.")


def _one_of(known: dict[str, Value], entry: dict[str, str], column: str, expected: str, where: str) -> Value | None:
    if column not in entry:
        return None
    if entry[column].casefold() not in known:
        raise UserError(f"{where}: {column} is {entry[column]!r}. Expected one of {expected}.")
    return known[entry[column].casefold()]


def _box(entry: dict[str, str], where: str) -> Box | None:
    by_size = _BOX[0] not in entry and all(column in entry for column in _BOX_BY_SIZE)
    columns = _BOX_BY_SIZE if by_size else _BOX
    given = [entry.get(column, "") for column in columns]
    if not any(given):
        return None
    try:
        edges = [float(edge) for edge in given]
        if by_size:
            edges[2:] = edges[0] + edges[2], edges[1] + edges[3]
        left, top, right, bottom = map(round, edges)
    except (ValueError, OverflowError):
        raise UserError(f"{where}: the box {', '.join(given)} is not four numbers ({', '.join(columns)}).") from None
    if not (0 <= left < right and 0 <= top < bottom):
        raise UserError(f"{where}: the box {', '.join(given)} is empty or begins outside ({', '.join(columns)}).")
    return left, top, right, bottom


def _all(values: Sequence[Value | None]) -> list[Value] | None:
    """The entries of a column, or None if there is no such column."""
    present = [value for value in values if value is not None]
    return present or None


def _sequences(names: Sequence[str | None]) -> np.ndarray | None:
    """A number for each sequence; an image without one is a sequence of its own."""
    present = _all(names)
    if present is None:
        return None
    numbers: dict[object, int] = {}
    keys = [name or index for index, name in enumerate(present)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
