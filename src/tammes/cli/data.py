"""`tammes data`: the data sets that papers are measured on, downloaded, checked and unpacked."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.options import Json
from tammes.errors import UserError, unknown_name
from tammes.io.console import print_json

if TYPE_CHECKING:
    from tammes.data import Dataset


@dataclass(frozen=True)
class Data:
    """Download a benchmark data set, check it and unpack it.

    Run the command again after an interruption: it resumes the download and skips what is already there. Cars196 and
    In-Shop cannot be downloaded automatically: the command says where to find them, and does the rest.

    For example:
        tammes data cub --to data/cub
        tammes data cars196 --to data/cars196
        tammes data sop --to data/sop --from /mnt/archives
        tammes data glyphs --to data/glyphs
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """cub, cars196, sop, inshop or omniglot; or glyphs, the characters that come with tammes, as image files."""
    to: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """The folder to put it in; created if it does not exist."""
    source: Annotated[str | None, tyro.conf.arg(name="from", metavar="ADDRESS|FOLDER", help_behavior_hint="")] = None
    """Another source of the published files, under their own names: an http address, or a folder."""
    json: Json = False


def data(config: Data) -> None:
    """Download, or draw, and say what is there."""
    from tammes.data.download import download, is_address, write_glyphs
    from tammes.data.published import DATASETS

    name, source = config.name.lower(), config.source
    if name not in (*DATASETS, "glyphs"):
        raise unknown_name("data set", config.name, [*DATASETS, "glyphs"])
    if config.to.exists() and not config.to.is_dir():
        raise UserError(f"`to` must be a folder; {config.to} is a file.")
    if name == "glyphs":
        if source is not None:
            raise UserError("`source` is for data sets that are downloaded; glyphs are drawn on this machine.")
        _show(config, write_glyphs(config.to), f"tammes index MODEL {shlex.quote(str(config.to))} --gallery GALLERY")
        return
    if source is not None and not is_address(source) and not Path(source).is_dir():
        raise UserError(f"`source` must be a folder or an address that begins with http; there is no {source}.")
    _show(config, download(name, config.to, source), f"tammes train {shlex.quote(str(config.to))}")


def _show(config: Data, dataset: "Dataset", command: str) -> None:
    from tammes.data.download import describe_dataset
    from tammes.io.cache import format_bytes

    record = describe_dataset(dataset, config.to)
    if config.json:
        print_json(record | {"next": command})
        return
    print(f"{dataset.name} in {config.to}: {len(dataset):,} images of {dataset.num_classes:,} classes")
    for use in ("train", "test") if "test_images" in record else ():
        print(f"  {use:<6}{record[f'{use}_images']:,} images of {record[f'{use}_classes']:,} classes")
    for remark in record.get("remarks", ()):
        print(f"note: {remark}")
    for file in record.get("no_longer_needed", ()):
        print(f"{file} ({format_bytes(Path(file).stat().st_size)}) is no longer needed.")
    print(f"Next: {command}")
