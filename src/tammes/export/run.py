"""The network of a run for other programs."""

from pathlib import Path
from typing import Any, Literal

from tammes.errors import UserError, unknown_name
from tammes.export.files import CHECKED_OF_ANY_SIZE, Trial, export_file, export_with_preprocessing, photos_to_check
from tammes.export.hub_folder import card_of, check_folder, export_to_folder, licence_text
from tammes.io.console import say
from tammes.io.hub import push_to_hub
from tammes.io.outputs import place_for
from tammes.report.items import items_of, own_data
from tammes.training.build import load_embedder
from tammes.training.config import load_config
from tammes.training.run_folder import RunFolder

ExportFormat = Literal["onnx", "torch-export", "safetensors", "hub"]
EXPORTS = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": "model.safetensors", "hub": "hub"}


def export_run(
    run: RunFolder,
    out: Path | None = None,
    format: ExportFormat = "onnx",
    *,
    with_preprocessing: bool = False,
    int8: bool = False,
    data: str | None = None,
    push: str | None = None,
    private: bool = False,
    licence: str = "unknown",
    licence_file: Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the network for other programs, compared with PyTorch before it is kept; what was written and found.

    Args:
        out: the file, or for hub the folder; by default in the folder of the run.
        with_preprocessing: of onnx: it takes one image of any size, and resizes and crops it itself.
        int8: of onnx: 8-bit weights and activations; their cost in R@1 is measured on the test classes.
        data: images to compare on; by default the run's own.
        push, private: of hub: upload the folder as this model, and as a private one.
        licence, licence_file: of hub: the model's licence, and its text where tammes does not have it.
    """
    if format not in EXPORTS:
        raise unknown_name("format", str(format), EXPORTS)
    for_hub = {"push": push, "private": private, "licence": licence != "unknown", "licence_file": licence_file}
    for needed, given in (("onnx", {"with_preprocessing": with_preprocessing, "int8": int8}), ("hub", for_hub)):
        wrong = next((name for name, value in given.items() if value and format != needed), None)
        if wrong is not None:
            raise UserError(f"`{wrong}` is for `format={needed!r}`, and this is {format}: leave it out.")
    if int8 and with_preprocessing:
        raise UserError("`int8` and `with_preprocessing` are two files: export each by itself.")
    if int8 and data is not None:
        raise UserError("`int8` is measured on the run's own test classes: leave `data` out.")
    if run.of_vectors:
        raise UserError(f"{run.folder} was trained on vectors: only models of images are exported.")
    if int8 and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes, so the cost of 8 bits cannot be measured.")
    name = "model-int8.onnx" if int8 else "picture.onnx" if with_preprocessing else EXPORTS[format]
    file = out or run.folder / name
    if format == "hub":
        text = licence_text(licence, licence_file)
        check_folder(file, run, overwrite=overwrite)
        card = card_of(run, hub_name=push, licence=licence, licence_text=text)
        record = {"file": str(file)} | export_to_folder(run, file, card, photos_to_check(run, data))
        if push is not None:
            say(f"uploading to {push}")
            record["address"] = push_to_hub(file, push, private=private)
        return record
    place = place_for("out", file, name=EXPORTS[format], overwrite=overwrite)
    embedder = load_embedder(run.folder, run.objects)
    if with_preprocessing:
        made = export_with_preprocessing(embedder, photos_to_check(run, data, CHECKED_OF_ANY_SIZE))
    else:
        photos, trial = photos_to_check(run, data), None
        if int8:
            own = own_data(run, load_config(run), embedder)
            trial = Trial(own.images, own.split.train, items_of(run, on="cpu"))
        made = export_file(embedder, format, photos, trial)
    made.write(place)
    return {"file": str(file)} | made.checked | {"bytes": len(made.content), "beside": f"{file}.json"}
