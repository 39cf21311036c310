"""Validate the path of an output file before any work is done."""

import os
from pathlib import Path

from tammes.errors import UserError

_OURS = ("environment.json", "plan.json", "about.lance")  # in the folders of runs, benchmarks, galleries


def place_for(option: str, file: Path, *, name: str, suffixes: tuple[str, ...] = (), overwrite: bool) -> Path:
    """The validated path of a file to write.

    A link is followed and its target written, except in the folder of a run, a benchmark or a gallery, which may be
    untrusted: there the link is replaced.

    Args:
        option: the option that names the file, such as "out".
        name: the name to suggest if a folder was given.
        suffixes: the allowed suffixes.
    """
    given = f"`{option}={str(file)!r}`"
    if file.is_dir():
        raise UserError(f"{given} is a folder. Give it a name: `{option}={str(file / name)!r}`")
    if suffixes and file.suffix.lower() not in suffixes:
        raise UserError(f"`{option}` must end in {' or '.join(suffixes)}, got {str(file)!r}.")
    followed = not any((file.parent / name).exists() for name in _OURS)
    place = Path(os.path.realpath(file)) if followed else file
    if followed and place.is_symlink():
        raise UserError(f"{given} is a link that leads back to itself. Give the name of a file.")
    if not place.parent.is_dir():
        raise UserError(f"{given}: there is no folder {file.parent}. Make it first.")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise UserError(f"{given}: cannot write to {place.parent}. Choose another `{option}`.")
    if place.exists() and not place.is_file():
        raise UserError(f"{given} is a device or a pipe. Give the name of a file.")
    if place.exists() and not overwrite:
        raise UserError(f"{file} exists. Pass `overwrite=True` to replace it.")
    return place
