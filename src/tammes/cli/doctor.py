"""`tammes doctor`: check a data set before training."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tammes.cli.options import Json
from tammes.errors import UserError
from tammes.io.console import print_json, printable, progress, worded
from tammes.io.files import is_vector_file


@dataclass(frozen=True)
class Doctor:
    """Check every image of a data set for what would stop training, or spoil its result.

    Lists first what makes `tammes train DATA` fail, then warnings (above all the same image in training and test), then
    facts. The exit code is 1 if training would fail, otherwise 0.

    For example:
        tammes doctor photos/
        tammes doctor photos/ --json > photos.json
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A folder with one sub-folder of images per class, the folder of a named data set, or the word glyphs."""
    json: Json = False


def doctor(config: Doctor) -> None:
    """Check, print; the exit code says whether training would fail."""
    from tammes.data import check_place, is_omniglot, open_dataset
    from tammes.data.doctor import examine
    from tammes.data.doctor_text import describe

    path, quoted = Path(config.data), shlex.quote(config.data)
    if is_vector_file(path) and path.exists():
        raise UserError(
            f"{config.data} holds vectors, and doctor checks images. `tammes train {quoted}` says what is wrong with"
            f" vectors; `tammes evaluate {quoted}` measures them as they are."
        )
    check_place(config.data)
    try:
        dataset = open_dataset(config.data)
    except UserError as error:
        if config.json:
            print_json({"data": config.data, "stops": [str(error)]})
        else:
            print("\n".join(["Training would fail:", *(f"  {printable(line)}" for line in str(error).splitlines())]))
        raise SystemExit(1) from None
    small = config.data == "glyphs" or is_omniglot(path)  # which the default network sees in 28 x 28
    with progress("checking images") as on_progress:
        report = examine(dataset, shorter_side=28 if small else 256, on_progress=on_progress)
    if config.json:
        print_json({"data": config.data, **asdict(report)})
    else:
        print("\n".join(printable(worded(line)) for line in describe(report, f"tammes train {quoted}")))
    if report.stops:
        raise SystemExit(1)
