"""Write an exported file, compared with PyTorch on real images and timed, and the JSON file that describes it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray
from PIL import Image

from tammes import export
from tammes.data import READERS, flat, open_dataset
from tammes.data.batches import batches
from tammes.data.image_cache import Decoded
from tammes.data.images import to_mode
from tammes.errors import UserError
from tammes.export import Runner, formats
from tammes.io.console import working
from tammes.io.files import write_atomically
from tammes.metrics import evaluate
from tammes.models.embedder import Embedder
from tammes.training.embedding import Items
from tammes.training.run_folder import RunFolder

Format = Literal["onnx", "torch-export", "safetensors"]
CHECKED = 16  # images that PyTorch and the exported model are compared on
CHECKED_OF_ANY_SIZE = 6  # likewise, with preprocessing in the model
CALIBRATED = 192  # training images: two thirds give the ranges of 8 bits, a third decides which operators have them


@dataclass(frozen=True)
class Exported:
    """An exported model whose vectors equal PyTorch's.

    Attributes:
        content: the content of the file.
        checked: number of images compared, largest difference, images per second; the cost of 8 bits.
        about: the content of the JSON file.
    """

    content: bytes
    checked: dict[str, Any]
    about: dict[str, Any]

    def write(self, file: Path) -> None:
        """Write the file and FILE.json."""
        write_atomically(file, self.content)
        write_atomically(file.with_name(file.name + ".json"), json.dumps(self.about, indent=1).encode() + b"\n")


@dataclass(frozen=True)
class Trial:
    """The data for quantisation to 8 bits.

    Attributes:
        images: the images of the run.
        train: indices of the training images, which choose the quantised operators.
        items: the test images, embedded by PyTorch, on which R@1 is measured.
    """

    images: Decoded
    train: Int64[ndarray, " train"]
    items: Items


def export_file(embedder: Embedder, format: Format, photos: list[Image.Image], trial: Trial | None = None) -> Exported:
    """Export the embedder for images of its input size.

    Args:
        photos: images for the comparison with PyTorch.
        trial: for onnx: quantise weights and activations to 8 bits, and measure the cost.

    Raises:
        UserError: the vectors of the file are not those of PyTorch.
    """
    images = np.stack([embedder.prepared(photo) for photo in photos])
    torch_runs = export.of_torch(embedder)
    expected = torch_runs(images)
    with working("exporting"):
        content, runs = _made(embedder, format)
    checked: dict[str, Any] = {"format": format, "images": len(images)}
    checked["max_difference"] = export.check_difference(runs(images), expected)
    if trial is not None:  # the file that was checked is not the one that is written
        content, runs, checked["int8"] = _in_8_bits(content, embedder.size, trial)
        checked["max_difference"] = export.check_difference(runs(images), expected, largest=2)
    with working("timing"):
        name = format if trial is None else "onnx, int8"
        speeds = {each: export.images_per_second(run, images) for each, run in (("torch", torch_runs), (name, runs))}
    checked["images_per_second"] = speeds
    about = export.described(embedder)
    size = embedder.size
    about["input"] = {"name": "images", "type": "float32", "shape": ["batch", len(embedder.mode), size, size]}
    return Exported(content, checked, about | {"checked": checked})


def export_with_preprocessing(embedder: Embedder, photos: list[Image.Image]) -> Exported:
    """Export the embedder as an ONNX file that scales and crops one image of any size itself.

    Raises:
        UserError: the vectors of the file are not those of PyTorch.
    """
    with working("exporting"):
        content = formats.onnx_file(embedder, with_preprocessing=True)
    session = formats.onnx_session(content)
    pixels = [np.array(to_mode(photo, embedder.mode)) for photo in photos]
    found = np.concatenate([session.run(None, {formats.PICTURE: each})[0] for each in pixels])
    checked = {
        "format": "onnx",
        "images": len(photos),
        "sizes": sorted({f"{photo.width}x{photo.height}" for photo in photos}),
        "max_difference": export.check_difference(found, embedder.encode(photos)),
    }
    about = export.described(embedder)
    about["input"] = {"name": formats.PICTURE, "type": "uint8", "shape": ["height", "width", len(embedder.mode)]}
    about["preprocessing"] |= {"inside_the_model": ["resize", "crop", "layout"]}
    return Exported(content, checked, about | {"checked": checked})


def photos_to_check(run: RunFolder, data: str | None = None, number: int = CHECKED) -> list[Image.Image]:
    """Images that can be read, from all over the test classes of a run (all classes if it has none), or of other data.

    Raises:
        UserError: none of them can be read.
    """
    if data is not None:
        path = Path(data)
        plain = path.is_dir() and not any(recognised(path) for recognised, _ in READERS.values())
        dataset = flat(path) if plain else open_dataset(data)
        among = np.arange(len(dataset))
    else:
        own = None if run.objects is None else run.objects.dataset
        dataset = own or open_dataset(run.read("config", needs=("data",))["data"])
        tested = set((run.read("classes") or {}).get("test", ()))
        labels = [label for label, name in enumerate(dataset.class_names) if name in tested]
        among = np.flatnonzero(np.isin(dataset.labels, labels)) if labels else np.arange(len(dataset))
    found = []
    for place in np.unique(np.linspace(0, len(among) - 1, 2 * number).astype(int)).tolist():
        try:
            found.append(dataset.read(int(among[place])))
        except UserError:
            continue
    if not found:
        raise UserError("none of the images to check with can be read. Give others: `data=FOLDER`")
    return found[:: max(1, len(found) // number)][:number]


def _made(embedder: Embedder, format: Format) -> tuple[bytes, Runner]:
    """The content of an exported file, and a function that runs it."""
    if format == "onnx":
        content = formats.onnx_file(embedder)
        return content, formats.of_onnx(content)
    if format == "torch-export":
        content = formats.torch_program(embedder)
        return content, formats.of_program(content)
    content = formats.safetensors_file(embedder)
    return content, formats.of_safetensors(content, embedder)


def _in_8_bits(content: bytes, size: int, trial: Trial) -> tuple[bytes, Runner, dict[str, Any]]:
    """The model in 8 bits, chosen on training images, and its R@1 on the test classes beside that of PyTorch."""

    def crops(chosen: ndarray) -> Iterator[UInt8[ndarray, "batch channels height width"]]:
        no_labels = np.zeros(len(chosen), dtype=np.int64)
        for given, _, _ in batches(trial.images, chosen, no_labels, batch_size=CHECKED, crop=size, train=False):
            yield given.numpy()

    train = np.random.default_rng(0).permutation(trial.train)[:CALIBRATED]
    third = max(1, len(train) // 3)
    with working("8 bits"):
        held_out, images = (np.concatenate(list(crops(np.sort(each)))) for each in (train[:third], train[third:]))
        small, distances = formats.nearest_in_8_bits(content, images, held_out)
    runs, items = formats.of_onnx(small), trial.items
    with working("measuring"):
        vectors = np.concatenate([runs(each) for each in crops(items.numbers)])
        masks: dict[str, Any] = items.masks
        torch_recall, recall = (
            evaluate(each, items.labels, clustering=False, bootstrap=0, **masks)["recall_at_1"]
            for each in (items.vectors, vectors)
        )
    measured = {"recall_at_1_torch": torch_recall, "recall_at_1": recall, "loss": torch_recall - recall}
    chosen = {"operators": next(iter(distances)), "held_out": third, "distance": distances}
    return small, runs, measured | chosen
