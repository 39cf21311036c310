"""`tammes export`: a trained model as a file for other programs, compared with PyTorch before it is kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError
from tammes.io.console import print_json, say

if TYPE_CHECKING:
    from tammes.training.run_folder import RunFolder

NAMES = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": "model.safetensors", "hub": "hub"}


@dataclass(frozen=True)
class Export:
    """Write a trained model as a file for other programs, checked against PyTorch.

    onnx is for onnxruntime and other programs that read ONNX; torch-export for PyTorch without this package;
    safetensors holds the weights; hub is a folder ready for the Hugging Face hub. A JSON file beside the model says how
    images are resized and cropped. A model whose vectors differ from PyTorch's by more than 1e-4 is not written.

    For example:

    tammes export runs/photos --format onnx

    tammes export runs/photos --format onnx --with-preprocessing --out photos.onnx

    tammes export runs/photos --format onnx --int8

    tammes export runs/photos --format hub --out photos-model --push owner/photos
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    format: Literal["onnx", "torch-export", "safetensors", "hub"] = "onnx"
    """What to write."""
    out: Annotated[Path | None, optional("PATH")] = None
    """The file, or for hub the folder; by default model.onnx, model.pt2, model.safetensors or hub in the run folder."""
    with_preprocessing: bool = False
    """onnx: the model takes one image of any size, as uint8 pixels, and resizes and crops it itself."""
    int8: bool = False
    """onnx: 8-bit weights and activations; the cost in R@1 is measured on the test classes."""
    data: Annotated[str | None, optional("DATA")] = None
    """Images to check with; by default the run's own."""
    push: Annotated[str | None, optional("OWNER/NAME")] = None
    """hub: upload the folder as this model."""
    private: bool = False
    """hub: create the model as a private one."""
    licence: str = "unknown"
    """hub: the model's licence, by its name on the hub, such as apache-2.0; its text is included."""
    licence_file: Annotated[Path | None, optional("FILE")] = None
    """hub: the text of the licence, if tammes does not have it."""
    overwrite: bool = False
    """Replace an existing file or folder."""
    json: bool = False
    """Print what was written, the difference to PyTorch and images per second as one JSON object."""


def export(config: Export) -> None:
    """Check the options, write, print."""
    _check(config)
    from tammes.io.files import is_vector_file
    from tammes.training.run_folder import open_run

    run = open_run(config.model)
    if is_vector_file(run.read("config").get("data", "")):
        raise UserError(f"{run.folder} was trained on vectors: only models of images are exported.")
    if config.int8 and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes, so the cost of 8 bits cannot be measured.")
    name = "model-int8.onnx" if config.int8 else "picture.onnx" if config.with_preprocessing else NAMES[config.format]
    out = config.out or run.folder / name
    record = {"file": str(out)} | (_to_hub(config, run, out) if config.format == "hub" else _to_file(config, run, out))
    if config.json:
        print_json(record)
    else:
        _print(record)


def _check(config: Export) -> None:
    for flag, given, format in (
        ("--with-preprocessing", config.with_preprocessing, "onnx"),
        ("--int8", config.int8, "onnx"),
        ("--push", config.push is not None, "hub"),
        ("--private", config.private, "hub"),
        ("--licence", config.licence != "unknown", "hub"),
        ("--licence-file", config.licence_file is not None, "hub"),
    ):
        if given and config.format != format:
            raise UserError(f"{flag} is for --format {format}, and this is {config.format}: leave it out.")
    if config.int8 and config.with_preprocessing:
        raise UserError("--int8 and --with-preprocessing are two files: export each by itself.")
    if config.int8 and config.data is not None:
        raise UserError("--int8 is measured on the run's own test classes: leave --data out.")


def _to_file(config: Export, run: "RunFolder", out: Path) -> dict[str, Any]:
    from tammes.export.files import (
        CHECKED_OF_ANY_SIZE,
        Trial,
        export_file,
        export_with_preprocessing,
        photos_to_check,
    )
    from tammes.models.embedder import load

    place = place_for("--out", out, name=NAMES[config.format], overwrite=config.overwrite)
    embedder, trial = load(run.folder), None
    if config.with_preprocessing:
        made = export_with_preprocessing(embedder, photos_to_check(run, config.data, CHECKED_OF_ANY_SIZE))
    else:
        photos = photos_to_check(run, config.data)
        if config.int8:
            from tammes.run import items_of, own_data
            from tammes.training.config import load_config

            own = own_data(run, load_config(run), embedder)
            trial = Trial(own.images, own.split.train, items_of(run, on="cpu"))
        assert config.format != "hub"
        made = export_file(embedder, config.format, photos, trial)
    made.write(place)
    return made.checked | {"bytes": len(made.content), "beside": f"{out}.json"}


def _to_hub(config: Export, run: "RunFolder", out: Path) -> dict[str, Any]:
    from tammes.export.files import photos_to_check
    from tammes.export.hub_folder import card_of, check_folder, export_to_folder, licence_text
    from tammes.io.hub import push_to_hub

    text = licence_text(config.licence, config.licence_file)
    check_folder(out, run, overwrite=config.overwrite)
    card = card_of(run, hub_name=config.push, licence=config.licence, licence_text=text)
    record = export_to_folder(run, out, card, photos_to_check(run, config.data))
    if config.push is not None:
        say(f"uploading to {config.push}")
        record["address"] = push_to_hub(out, config.push, private=config.private)
    return record


def _print(record: dict[str, Any]) -> None:
    size = f" ({record['bytes'] / 1e6:.1f} MB)" if "bytes" in record else ""
    print(f"written    {record['file']}{size}")
    if "beside" in record:
        print(f"about it   {record['beside']}")
    which = "in 8 bits: " if "int8" in record else ""
    print(f"checked    {which}{record['images']} images, largest difference to PyTorch {record['max_difference']:.1e}")
    if record["format"] == "hub":
        advice = "not stated: --licence apache-2.0, or another with --licence-file FILE"
        print(f"licence    {record['licence'] or advice}")
    if "int8" in record:
        found = record["int8"]
        print(
            f"8 bits     R@1 {100 * found['recall_at_1']:.2f} where PyTorch has"
            f" {100 * found['recall_at_1_torch']:.2f}: {100 * found['loss']:.2f} lost"
        )
        distances = ", ".join(f"{name} {value:.3f}" for name, value in found["distance"].items())
        held_out = f"{found['held_out']} training images held out"
        print(f"in 8 bits  {found['operators']} (distance on {held_out}: {distances})")
    if "images_per_second" in record:
        speeds = (f"{name} {value:.0f} images/s" for name, value in record["images_per_second"].items())
        print(f"speed      {', '.join(speeds)}")
    if "address" in record:
        print(f"pushed     {record['address']}")
