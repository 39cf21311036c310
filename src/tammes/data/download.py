"""Download published data sets, check them and unpack them. Existing files are not changed."""

import shutil
from pathlib import Path
from typing import Any

from tammes.data.dataset import Dataset
from tammes.data.published import DATASETS, Known, Published
from tammes.data.splits import split
from tammes.errors import UserError, unknown_name
from tammes.io.console import progress
from tammes.io.downloads import checksum_of, fetch, is_unpacked, unpack
from tammes.io.files import folder_inside, open_inside, written_whole


def download(name: str, folder: Path, source: str | None = None) -> Dataset:
    """A published data set in a folder; only missing files are downloaded.

    Args:
        name: a key of `DATASETS`.
        source: another URL or folder that has the published files under their original names.

    Raises:
        UserError: a file is not available, or has a wrong checksum.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    from tammes.data import open_dataset

    dataset, known = _complete(name, folder), DATASETS[name]
    if dataset is not None:
        return dataset
    for file in _files(known, folder, source):
        home = (folder / (file.also or file.name)).parent
        if file.unpack and (is_unpacked(file.name, folder) or is_unpacked(file.name, home)):
            continue
        place = _find(file, folder)
        if place is None:
            place = _bring(file, folder, source) or _download(name, file, folder, source)
        else:
            _check(file, place, folder)
        if file.unpack:
            into = place.parent if place.is_relative_to(folder) else folder
            with progress(f"unpacking {file.name}") as on_progress:
                unpack(place, into, on_progress=lambda done, total: on_progress(done, total or 0))
    dataset = open_dataset(str(folder))
    if dataset.name != name:
        raise UserError(f"the files in {folder} are not {name}. Use an empty folder for {name}.")
    return dataset


def describe_dataset(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """The size of a data set in a folder, remarks on it, and archives that can be removed."""
    record: dict[str, Any] = {"data": dataset.name, "folder": str(folder)}
    record |= {"images": len(dataset), "classes": dataset.num_classes}
    if dataset.name in DATASETS:
        uses = split(dataset)
        record |= {"train_images": len(uses.train), "train_classes": len(uses.train_classes)}
        record |= {"test_images": len(uses.test), "test_classes": len(uses.test_classes)}
        left = leftover_archives(dataset.name, folder)
        record |= {"remarks": remarks_on(dataset), "no_longer_needed": [str(file) for file in left]}
    return record


def remarks_on(dataset: Dataset) -> list[str]:
    """Remarks on a downloaded data set, above all missing images."""
    known = DATASETS[dataset.name]
    if len(dataset) != known.images and not dataset.remarks:
        return [f"{dataset.name} has {known.images:,} images, this folder has {len(dataset):,}."]
    return list(dataset.remarks)


def leftover_archives(name: str, folder: Path) -> list[Path]:
    """Archives of an unpacked data set, which can be removed."""
    found = (_find(file, folder) for way in DATASETS[name].ways for file in way if file.unpack)
    return [file for file in found if file is not None]


def write_glyphs(folder: Path) -> Dataset:
    """Write the glyphs data set as a folder of images per class."""
    from tammes.data import glyphs

    dataset = glyphs()
    with progress("drawing") as on_progress:
        for number, key in enumerate(dataset.keys):
            own = folder / dataset.class_names[dataset.labels[number]]
            file = own / f"{'-'.join(key.split('/')[1:])}.png"
            if not file.exists():
                partial = folder_inside(own) / f"{file.stem}.partial"
                with open_inside(partial, empty=True) as sink:
                    dataset.read(number).save(sink, format="PNG")
                partial.replace(file)
            on_progress(number + 1, len(dataset))
    return dataset


def is_address(source: str) -> bool:
    """Whether the source is a URL; otherwise it is a folder."""
    return source.startswith(("http://", "https://"))


def _complete(name: str, folder: Path) -> Dataset | None:
    """The data set if it is complete, however it got there."""
    from tammes.data import open_dataset

    try:
        dataset = open_dataset(str(folder))
    except UserError:
        return None
    complete = dataset.name == name and len(dataset) == DATASETS[name].images and not dataset.remarks
    return dataset if complete else None


def _files(known: Known, folder: Path, source: str | None) -> tuple[Published, ...]:
    """The alternative group of files with the fewest missing."""

    def missing(file: Published) -> bool:
        found = _find(file, folder) or _find_in_source(file, source)
        return found is None and not is_unpacked(file.name, folder)

    return min(known.ways, key=lambda way: sum(map(missing, way)))


def _find(file: Published, folder: Path) -> Path | None:
    places = (folder / name for name in (file.name, file.also) if name is not None)
    return next((place for place in places if place.is_file()), None)


def _find_in_source(file: Published, source: str | None) -> Path | None:
    return None if source is None or is_address(source) else _find(file, Path(source))


def _bring(file: Published, folder: Path, source: str | None) -> Path | None:
    """The file from the folder `source`; archives stay there, other files are copied."""
    place = _find_in_source(file, source)
    if place is None:
        return None
    _check(file, place, folder)
    if file.unpack:
        return place
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with place.open("rb") as content, written_whole(target) as sink:
        shutil.copyfileobj(content, sink)
    return target


def _download(name: str, file: Published, folder: Path, source: str | None) -> Path:
    by_hand, urls = DATASETS[name].by_hand, file.urls
    if source is not None:
        urls = (f"{source.rstrip('/')}/{file.name}",) if is_address(source) else ()
    if not urls:
        where = folder if source is None else f"{folder} or {source}"
        advice = f"{by_hand} Then repeat the command." if by_hand else "Leave out `source` to download it."
        raise UserError(f"{name} needs {file.name}, which is not in {where}. {advice}")
    failures = []
    for url in urls:
        try:
            with progress(f"downloading {file.name}") as on_progress:
                return fetch(
                    url,
                    folder / file.name,
                    checksum=file.checksum,
                    on_progress=lambda done, total: on_progress(done, total or 0),
                )
        except UserError as error:
            failures.append(str(error))
    raise UserError("\n".join([*failures, *([by_hand] if by_hand else [])]))


def _check(file: Published, place: Path, folder: Path) -> None:
    if file.checksum is None:
        return
    got = checksum_of(place, file.checksum)
    if got != file.checksum:
        trust = f", or unpack it into {folder} by hand if you trust it" if file.unpack else ""
        raise UserError(
            f"{place} is not the published file: its checksum is {got}, not {file.checksum}. "
            f"Remove it and repeat the command{trust}."
        )
