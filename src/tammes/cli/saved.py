"""The options of a run: from its folder, as the next run takes them over, and as the command that says them."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tammes.benchmark.plan import fitting
from tammes.cli.checks import _check_new_classes
from tammes.cli.console import said
from tammes.cli.train import Train
from tammes.errors import UserError
from tammes.losses import WITH_CENTROIDS
from tammes.models.backbones.resnet import FORMS
from tammes.training.run_folder import Run, open_finished

# What a run that is gone on from has decided for good, and what is said anew for each run.
KEPT = (
    *(
        "backbone",
        "weights_form",
        "dim",
        "pool",
        "embedding",
        "class_layer",
        "centroid_dim",
        "loss",
        "base",
        "centroids",
        "seed",
    ),
    "reserve_classes",
)
ANEW = ("out", "resume", "json", "overwrite", "init_from", "continue_from", "compatible", "start", "device")


def saved_options(run: Run) -> Train:
    """The options that a run was started with."""
    given = run.read("config")
    known = {field.name for field in fields(Train)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise UserError(f"{run.folder} was made by another version: its option {unknown[0]!r} is not known here.")
    for name, kind in get_type_hints(Train).items():
        if name in given:
            try:
                given[name] = _option(given[name], kind)
            except (TypeError, OverflowError):
                raise UserError(f"{run.folder}/config.json: {name} cannot be {given[name]!r}.") from None
    given["out"] = run.folder
    for name in ("hidden", "loss_options", "miner_options", "curve"):
        given[name] = tuple(given.get(name, ()))
    # What there was before these could be chosen: a preset may choose otherwise by now.
    options: dict[str, Any] = {"pool": "published", "keep_start": False, "precision": "no"} | given
    if "weights_form" not in given and given.get("backbone") in FORMS:
        options["weights_form"] = "torchvision"
    return Train(**options)


def continued(given: Train, folder: Path) -> Train:
    """The options of a finished run, with those that were given in their place where they may be."""
    saved = saved_options(open_finished(folder))
    if saved.loss not in WITH_CENTROIDS:
        raise UserError(
            f"{folder} was trained with --loss {saved.loss}, which has no centroids to keep. Use --init-from {folder}."
        )
    found = {}
    for field in fields(Train):
        name, own = field.name, getattr(given, field.name)
        given_anew = said(given, name)
        if name in KEPT and given_anew and own != getattr(saved, name):
            flag, had = "--" + name.replace("_", "-"), getattr(saved, name)
            raise UserError(
                f"--continue-from keeps the network and the centroids of {folder}, which has {flag} {had}:"
                f" leave out {flag}."
            )
        if name not in ANEW and not given_anew:
            found[name] = getattr(saved, name)
    config = replace(given, **found)
    _check_new_classes(config)
    return config


def _option(value: Any, kind: Any) -> Any:
    """A value from a file, which may be a stranger's, as the kind that an option has; TypeError if it is not of it."""
    kinds = get_args(kind)
    if value is None and type(None) in kinds:
        return None
    found = fitting(value, str if Path in kinds else kind)
    if isinstance(found, str) and not isinstance(value, str):  # a number stands for a text in plans only
        raise TypeError
    return Path(found) if Path in kinds else found


def command(config: Train) -> str:
    """The command that repeats this run."""
    words = ["tammes", "train", config.data]
    for field in fields(Train):
        value = getattr(config, field.name)
        if field.name in ("data", "resume", "json", "overwrite") or value == field.default or value is None:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool) and field.name not in ("mirror", "keep_start"):
            words.append(flag if value else f"--no-{field.name.replace('_', '-')}")
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)
