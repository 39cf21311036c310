"""`tammes data`: the data sets that papers are measured on, downloaded, checked and unpacked."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tammes.errors import UserError, unknown_name
from tammes.io.cache import in_words
from tammes.io.console import print_json, progress
from tammes.io.downloads import checksum_of, fetch, is_unpacked, unpack
from tammes.io.files import folder_inside, open_inside, written_whole

if TYPE_CHECKING:
    from tammes.data import Dataset


@dataclass(frozen=True)
class Published:
    """One file of a data set as its authors published it.

    Attributes:
        urls: where it can be downloaded, the best first; empty if it has to be got by hand.
        checksum: None where none is known for sure.
        unpack: whether it is an archive that has to be unpacked.
        also: where in the folder a copy of the data set may have it, if not in the folder itself.
    """

    name: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    unpack: bool = True
    also: str | None = None


@dataclass(frozen=True)
class Known:
    """A data set: how many images it has, and the ways to put it together, each a group of files.

    Attributes:
        by_hand: what a person has to do where the program cannot.
    """

    images: int
    ways: tuple[tuple[Published, ...], ...]
    by_hand: str = ""


_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"

DATASETS = {
    "cub": Known(
        images=11788,
        ways=(
            (
                Published(
                    "CUB_200_2011.tgz",
                    ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",),
                    "md5:97eceeb196236b17998738112f37df78",  # many public readers of the set agree on it
                ),
            ),
        ),
    ),
    "cars196": Known(
        images=16185,
        ways=(
            (  # checksums: many public readers of the set agree on them
                Published("car_ims.tgz", checksum="md5:d5c8f0aa497503f355e17dc7886c3f14"),
                Published("cars_annos.mat", checksum="md5:b407c6086d669747186bd1d764ff9dbc", unpack=False),
            ),
            (  # checksums: torchvision, while the addresses were alive
                Published("cars_train.tgz", checksum="md5:065e5b463ae28d29e77c1b4b166cfe61"),
                Published("cars_test.tgz", checksum="md5:4ce7ebf6a94d07f1952d94dd34c4d501"),
                Published("car_devkit.tgz", checksum="md5:c3b158d763b6e2245038c8ad08e45376"),
                Published(
                    "cars_test_annos_withlabels.mat",
                    checksum="md5:b0a2b23655a3edd16d84508592a98d10",
                    unpack=False,
                    also="devkit/cars_test_annos_withlabels.mat",
                ),
            ),
        ),
        by_hand=(
            "Stanford no longer serves it. Put car_ims.tgz and cars_annos.mat there, or else cars_train.tgz,"
            " cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat, or what either unpacks to. Where copies"
            " are is said in https://github.com/pytorch/vision/issues/7545; one is"
            " https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset."
        ),
    ),
    "sop": Known(
        images=120053,
        ways=(
            (
                Published(
                    "Stanford_Online_Products.zip",
                    (  # the one that the authors' page now leads to, and their first
                        "https://drive.usercontent.google.com/download?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8&confirm=t",
                        "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                    ),
                    "md5:7f73d41a2f44250d4779881525aea32e",  # many public readers of the set agree on it
                ),
            ),
        ),
        by_hand="It can also be got through a browser: https://cvgl.stanford.edu/projects/lifted_struct/.",
    ),
    "inshop": Known(
        images=52712,
        ways=(
            (
                Published("img.zip", also="Img/img.zip"),
                Published("list_eval_partition.txt", unpack=False, also="Eval/list_eval_partition.txt"),
            ),
        ),
        by_hand=(
            "Its authors give it out for research, through a browser:"
            " https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html. Put its Img/img.zip"
            " and Eval/list_eval_partition.txt there."
        ),
    ),
    "omniglot": Known(
        images=32460,
        ways=(
            (  # checksums: torchvision; its zip files are read as they are
                Published(
                    "images_background.zip",
                    (f"{_OMNIGLOT}/images_background.zip",),
                    "md5:68d2efa1b9178cc56df9314c21c6e718",
                    unpack=False,
                ),
                Published(
                    "images_evaluation.zip",
                    (f"{_OMNIGLOT}/images_evaluation.zip",),
                    "md5:6b91aef0f799c5bb55b94e3f2daec811",
                    unpack=False,
                ),
            ),
        ),
    ),
}


@dataclass(frozen=True)
class Data:
    """Download a data set that papers are measured on, check it, unpack it, and say how to train on it.

    What was interrupted goes on where it was, and what is there already is left alone: typing the command again never
    does harm. Cars196 and In-Shop must be got by hand; the command says where, and then does the rest.

    For example:

    tammes data cub --to data/cub

    tammes data cars196 --to data/cars196

    tammes data sop --to data/sop --from /mnt/archives

    tammes data glyphs --to data/glyphs
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """cub, cars196, sop, inshop or omniglot; or glyphs, the characters that come with tammes, as files."""
    to: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """The folder to put it in; made if need be."""
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="ADDRESS|FOLDER", help_behavior_hint="")] = None
    """Another place that has the published files under their own names: an address, or a folder."""
    json: bool = False
    """Print what is there now as one JSON object."""


def data(config: Data) -> None:
    """Get, check, unpack, show."""
    if config.name.lower() == "glyphs":
        _draw_glyphs(config)
        return
    if config.name.lower() not in DATASETS:
        raise unknown_name("data set", config.name, [*DATASETS, "glyphs"])
    name, known = config.name.lower(), DATASETS[config.name.lower()]
    if config.to.exists() and not config.to.is_dir():
        raise UserError(f"--to must be a folder; {config.to} is a file.")
    from tammes.data import open_dataset
    from tammes.data.splits import split

    dataset = _whole(name, known, config.to)
    if dataset is None:
        _get(name, known, config)
        dataset = open_dataset(str(config.to))
        if dataset.name != name:
            raise UserError(f"what was unpacked into {config.to} is not {name}. Choose a folder of its own with --to.")
    parts = split(dataset)
    remarks = list(dataset.remarks)
    if len(dataset) != known.images and not remarks:
        remarks.append(f"{name} has {known.images:,} images, this folder has {len(dataset):,}.")
    files = (_place(file, config.to) for way in known.ways for file in way if file.unpack)
    left_over = [file for file in files if file is not None]
    command = f"tammes train {shlex.quote(str(config.to))}"
    if config.json:
        record: dict[str, Any] = {
            "data": name,
            "folder": str(config.to),
            "images": len(dataset),
            "classes": dataset.num_classes,
            "train_images": len(parts.train),
            "train_classes": len(parts.train_classes),
            "test_images": len(parts.test),
            "test_classes": len(parts.test_classes),
            "remarks": remarks,
            "no_longer_needed": [str(file) for file in left_over],
            "next": command,
        }
        print_json(record)
        return
    print(f"{name} in {config.to}: {len(dataset):,} images of {dataset.num_classes:,} classes")
    for use, images, classes in (
        ("train", parts.train, parts.train_classes),
        ("test", parts.test, parts.test_classes),
    ):
        print(f"  {use:<6}{len(images):,} images of {len(classes):,} classes")
    for remark in remarks:
        print(f"remark: {remark}")
    for file in left_over:
        print(f"{file} ({in_words(file.stat().st_size)}) is no longer needed.")
    print(f"Next: {command}")


def _draw_glyphs(config: Data) -> None:
    """The embedded characters as a folder for each: to look at, to index, to search with."""
    from tammes.data import glyphs

    if config.from_ is not None:
        raise UserError("--from is for data sets that are downloaded; glyphs are drawn here.")
    if config.to.exists() and not config.to.is_dir():
        raise UserError(f"--to must be a folder; {config.to} is a file.")
    dataset = glyphs()
    with progress("drawing") as on_progress:
        for number, key in enumerate(dataset.keys):
            folder = config.to / dataset.class_names[dataset.labels[number]]
            file = folder / f"{'-'.join(key.split('/')[1:])}.png"
            if not file.exists():
                partial = folder_inside(folder) / f"{file.stem}.partial"
                with open_inside(partial, empty=True) as sink:
                    dataset.read(number).save(sink, format="PNG")
                partial.replace(file)
            on_progress(number + 1, len(dataset))
    command = f"tammes index RUN {shlex.quote(str(config.to))} --gallery GALLERY"
    if config.json:
        print_json({
            "data": "glyphs", "folder": str(config.to), "images": len(dataset), "classes": dataset.num_classes,
            "next": command,
        })  # fmt: skip
        return
    print(f"glyphs in {config.to}: {len(dataset):,} images of {dataset.num_classes:,} classes\nNext: {command}")


def _whole(name: str, known: Known, folder: Path) -> "Dataset | None":
    """The data set if it is all there, whoever put it there."""
    from tammes.data import open_dataset

    try:
        dataset = open_dataset(str(folder))
    except UserError:
        return None
    return dataset if dataset.name == name and len(dataset) == known.images and not dataset.remarks else None


def _get(name: str, known: Known, config: Data) -> None:
    """Every file of the data set, checked, and unpacked if it is an archive."""
    for file in _way(known, config):
        home = (config.to / (file.also or file.name)).parent
        if file.unpack and (is_unpacked(file.name, config.to) or is_unpacked(file.name, home)):
            continue
        place = _place(file, config.to)
        if place is not None:
            _check(file, place, config)
        else:
            place = _brought(file, config) or _downloaded(name, known, file, config)
        if file.unpack:
            inside = place.is_relative_to(config.to)
            with progress(f"unpacking {file.name}") as on_progress:
                unpack(
                    place,
                    place.parent if inside else config.to,
                    on_progress=lambda done, total: on_progress(done, total or 0),
                )


def _way(known: Known, config: Data) -> tuple[Published, ...]:
    """The group of files that most is there of, among those the first."""

    def missing(way: tuple[Published, ...]) -> int:
        return sum(
            _place(file, config.to) is None
            and _in_source(file, config) is None
            and not is_unpacked(file.name, config.to)
            for file in way
        )

    return min(known.ways, key=missing)


def _place(file: Published, folder: Path) -> Path | None:
    for name in (file.name, file.also):
        if name is not None and (folder / name).is_file():
            return folder / name
    return None


def _is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _in_source(file: Published, config: Data) -> Path | None:
    if config.from_ is None or _is_address(config.from_):
        return None
    if not Path(config.from_).is_dir():
        raise UserError(f"--from must be a folder or an address that begins with http; there is no {config.from_}.")
    return _place(file, Path(config.from_))


def _brought(file: Published, config: Data) -> Path | None:
    """The file from the folder that --from names; one that is not unpacked is copied."""
    place = _in_source(file, config)
    if place is None:
        return None
    _check(file, place, config)
    if file.unpack:
        return place
    target = config.to / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with place.open("rb") as source, written_whole(target) as sink:
        shutil.copyfileobj(source, sink)
    return target


def _downloaded(name: str, known: Known, file: Published, config: Data) -> Path:
    urls = file.urls
    if config.from_ is not None:
        urls = (f"{config.from_.rstrip('/')}/{file.name}",) if _is_address(config.from_) else ()
    if not urls:
        where = config.to if config.from_ is None else f"{config.to} or {config.from_}"
        raise UserError(f"{name} needs {file.name}, which is not in {where}. {_advice(known)}".rstrip())
    failures = []
    for url in urls:
        try:
            with progress(f"downloading {file.name}") as on_progress:
                return fetch(
                    url,
                    config.to / file.name,
                    checksum=file.checksum,
                    on_progress=lambda done, total: on_progress(done, total or 0),
                )
        except UserError as error:
            failures.append(str(error))
    raise UserError("\n".join([*failures, *([known.by_hand] if known.by_hand else [])]))


def _advice(known: Known) -> str:
    return f"{known.by_hand} Then type the command again." if known.by_hand else "Leave out --from to download it."


def _check(file: Published, place: Path, config: Data) -> None:
    if file.checksum is None:
        return
    got = checksum_of(place, file.checksum)
    if got != file.checksum:
        trust = f", or unpack it into {config.to} by hand if you trust it" if file.unpack else ""
        raise UserError(
            f"{place} is not the file that was published: its checksum is {got}, not {file.checksum}. "
            f"Remove it and type the command again{trust}."
        )
