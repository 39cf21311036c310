"""`tammes export`: a trained model as a file for other programs, compared with PyTorch before it is kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Json
from tammes.io.console import print_json


@dataclass(frozen=True)
class Export:
    """Write a trained model as a file for other programs, checked against PyTorch.

    onnx is for onnxruntime and other programs that read ONNX; torch-export for PyTorch without this package;
    safetensors holds only the weights; hub is a folder for the Hugging Face hub. A JSON file beside the model describes
    how images are resized and cropped. A model whose vectors differ from PyTorch's by more than 1e-4 is not written.

    For example:
        tammes export runs/photos --format onnx
        tammes export runs/photos --format onnx --with-preprocessing --out photos.onnx
        tammes export runs/photos --format onnx --int8
        tammes export runs/photos --format hub --out photos-model --push owner/photos
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    format: Literal["onnx", "torch-export", "safetensors", "hub"] = "onnx"
    """The format to write."""
    out: Annotated[Path | None, optional("PATH")] = None
    """The file, or for hub the folder; by default model.onnx, model.pt2, model.safetensors or hub in the run folder."""
    with_preprocessing: bool = False
    """onnx: the model takes one image of any size, as uint8 pixels, and resizes and crops it itself."""
    int8: bool = False
    """onnx: 8-bit weights and activations; what that costs in R@1 is measured on the test classes."""
    data: Annotated[str | None, optional("DATA")] = None
    """Images to compare on. (default: the run's own)"""
    push: Annotated[str | None, optional("OWNER/NAME")] = None
    """hub: upload the folder under this name."""
    private: bool = False
    """hub: create the model as a private one."""
    licence: str = "unknown"
    """hub: the model's licence, by its name on the hub, such as apache-2.0; its text is included."""
    licence_file: Annotated[Path | None, optional("FILE")] = None
    """hub: a file with the text of the licence, if tammes does not have it."""
    overwrite: bool = False
    """Replace an existing file or folder."""
    json: Json = False


def export(config: Export) -> None:
    """Write, print."""
    from tammes.export.run import export_run
    from tammes.training.run_folder import open_run

    options = {name: value for name, value in vars(config).items() if name not in ("model", "json")}
    record = export_run(open_run(config.model), **options)
    print_json(record) if config.json else _print(record)


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
