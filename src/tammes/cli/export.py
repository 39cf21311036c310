"""`tammes export`: a trained model as a file for other programs, compared with PyTorch before it is kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tammes.cli.console import optional
from tammes.cli.outputs import place_for
from tammes.errors import UserError
from tammes.io.console import print_json, say, working

if TYPE_CHECKING:
    from tammes.models.embedder import Embedder
    from tammes.training.run_folder import Run

Format = Literal["onnx", "torch-export", "safetensors", "hub"]
NAMES: dict[Format, str] = {
    "onnx": "model.onnx",
    "torch-export": "model.pt2",
    "safetensors": "model.safetensors",
    "hub": "hub",
}
CHECKED = 16  # images that are sent through both
PICTURES = 6  # of any size, for --with-preprocessing
CALIBRATED = 192  # training images: two thirds give the ranges of 8 bits, a third decides what is in them


@dataclass(frozen=True)
class Export:
    """Write a trained model for other programs, and check it against PyTorch on real images.

    onnx is for onnxruntime and whatever else reads it, torch-export for PyTorch without this package, safetensors holds
    the weights, hub is a folder ready for the Hugging Face hub. How images are brought to size stands in a JSON file
    beside it. A file whose vectors differ by more than 1e-4 is not written.

    For example:

    tammes export runs/photos --format onnx

    tammes export runs/photos --format onnx --with-preprocessing --out photos.onnx

    tammes export runs/photos --format onnx --int8

    tammes export runs/photos --format hub --out photos-model --push owner/photos
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    format: Format = "onnx"
    """What to write."""
    out: Annotated[Path | None, optional("PATH")] = None
    """The file, or for hub the folder; by default model.onnx, model.pt2, model.safetensors or hub in the run."""
    with_preprocessing: bool = False
    """onnx: the model takes one picture of any size, as bytes of its pixels, and scales and crops it itself."""
    int8: bool = False
    """onnx: weights and activations of 8 bits; what it costs in R@1 is measured on the test classes."""
    data: Annotated[str | None, optional("DATA")] = None
    """Images to check with; by default the run's own."""
    push: Annotated[str | None, optional("OWNER/NAME")] = None
    """hub: upload the folder as this model."""
    private: bool = False
    """hub: who else sees it is decided by you, if it is new."""
    licence: str = "unknown"
    """hub: the hub's name of the model's licence, such as apache-2.0, whose text goes with it."""
    licence_file: Annotated[Path | None, optional("FILE")] = None
    """hub: the text of another licence."""
    overwrite: bool = False
    """Replace what is there."""
    json: bool = False
    """Print what was written, the difference and images per second as one JSON object."""


def export(config: Export) -> None:
    """Load, write, compare, say what was seen."""
    _check(config)
    from tammes.cli.train import of_vectors
    from tammes.training.run_folder import open_run

    run = open_run(config.model)
    if of_vectors(run.read("config").get("data", "")):
        raise UserError(f"{run.folder} was trained on vectors: only models of images are exported.")
    if config.int8 and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes, so what 8 bits cost cannot be measured.")
    out = config.out or run.folder / (
        "model-int8.onnx" if config.int8 else "picture.onnx" if config.with_preprocessing else NAMES[config.format]
    )
    record = _to_hub(config, run, out) if config.format == "hub" else _to_file(config, run, out)
    if config.json:
        print_json(record)
        return
    _print(record)


def _check(config: Export) -> None:
    for flag, asked, format in (
        ("--with-preprocessing", config.with_preprocessing, "onnx"),
        ("--int8", config.int8, "onnx"),
        ("--push", config.push is not None, "hub"),
        ("--private", config.private, "hub"),
        ("--licence", config.licence != "unknown", "hub"),
        ("--licence-file", config.licence_file is not None, "hub"),
    ):
        if asked and config.format != format:
            raise UserError(f"{flag} is for --format {format}, and this is {config.format}: leave it out.")
    if config.int8 and config.with_preprocessing:
        raise UserError("--int8 and --with-preprocessing are two files: export each by itself.")
    if config.int8 and config.data is not None:
        raise UserError("--int8 is measured on the run's own test classes: leave --data out.")


def _to_file(config: Export, run: "Run", out: Path) -> dict[str, Any]:
    import json

    from tammes.export import check_difference, described, images_per_second, of_torch
    from tammes.export.formats import of_onnx, of_program, of_safetensors, onnx_file, safetensors_file, torch_program
    from tammes.io.files import write_atomically
    from tammes.models.embedder import load

    place = place_for("--out", out, name=NAMES[config.format], overwrite=config.overwrite)
    embedder = load(run.folder)
    record: dict[str, Any] = {"file": str(out), "format": config.format}
    said = described(embedder)
    if config.with_preprocessing:
        pictures = _some(*_dataset(config, run), PICTURES)  # before the work, in case there are none
        with working("exporting"):
            content = onnx_file(embedder, with_preprocessing=True)
        record |= _pictures_compared(pictures, embedder, content)
        said["input"] = {"name": "picture", "type": "uint8", "shape": ["height", "width", len(embedder.mode)]}
        said["preprocessing"] |= {"inside_the_model": ["resize", "crop", "layout"]}
    else:
        images = _images(config, run, embedder)
        torch_runs = of_torch(embedder)
        expected = torch_runs(images)
        with working("exporting"):
            if config.format == "onnx":
                content = onnx_file(embedder)
                runs = of_onnx(content)
            elif config.format == "torch-export":
                content = torch_program(embedder)
                runs = of_program(content)
            else:
                content = safetensors_file(embedder)
                runs = of_safetensors(content, embedder)
        record |= {"images": len(images), "max_difference": check_difference(runs(images), expected)}
        if config.int8:  # the file that was checked is not the one that is written
            content, runs, found = _in_8_bits(run, embedder, content)
            record |= {"max_difference": check_difference(runs(images), expected, largest=2), "int8": found}
        with working("timing"):
            name = "onnx, int8" if config.int8 else config.format
            speed = {"torch": images_per_second(torch_runs, images), name: images_per_second(runs, images)}
        record["images_per_second"] = speed
        size = embedder.size
        said["input"] = {"name": "images", "type": "float32", "shape": ["batch", len(embedder.mode), size, size]}
    record["bytes"] = len(content)
    said["checked"] = {name: value for name, value in record.items() if name not in ("file", "bytes")}
    write_atomically(place, content)
    write_atomically(place.with_name(place.name + ".json"), json.dumps(said, indent=1).encode() + b"\n")
    return record | {"beside": f"{out}.json"}


def _dataset(config: Export, run: "Run") -> tuple[Any, Any]:
    """Images to check with, and the numbers of those to take: of the test classes, if the run has any."""
    import numpy as np

    from tammes.cli.saved import saved_options
    from tammes.data import READERS, flat, open_dataset

    if config.data is not None:
        path = Path(config.data)
        plain = path.is_dir() and not any(recognised(path) for recognised, _ in READERS.values())
        dataset = flat(path) if plain else open_dataset(config.data)
        return dataset, np.arange(len(dataset))
    options = saved_options(run)
    dataset = open_dataset(options.data)
    tested = set((run.read("classes") or {}).get("test", ()))
    among = [number for number, label in enumerate(dataset.labels.tolist()) if dataset.class_names[label] in tested]
    return dataset, np.array(among) if among else np.arange(len(dataset))


def _some(dataset: Any, among: Any, number: int) -> list[Any]:
    """Pictures that can be read, from all over the data."""
    import numpy as np

    found = []
    for place in np.unique(np.linspace(0, len(among) - 1, 2 * number).astype(int)).tolist():
        try:
            found.append(dataset.read(int(among[place])))
        except UserError:
            continue
    if not found:
        raise UserError("none of the images to check with can be read. Give others: --data FOLDER")
    step = max(1, len(found) // number)
    return found[::step][:number]


def _images(config: Export, run: "Run", embedder: "Embedder") -> Any:
    import numpy as np

    return np.stack([embedder.prepared(picture) for picture in _some(*_dataset(config, run), CHECKED)])


def _pictures_compared(pictures: list[Any], embedder: "Embedder", content: bytes) -> dict[str, Any]:
    import numpy as np

    from tammes.data.images import to_mode
    from tammes.export import check_difference
    from tammes.export.formats import PICTURE, onnx_session

    session = onnx_session(content)
    found = [session.run(None, {PICTURE: np.array(to_mode(each, embedder.mode))})[0] for each in pictures]
    sizes = sorted({f"{each.width}x{each.height}" for each in pictures})
    difference = check_difference(np.concatenate(found), embedder.encode(pictures))
    return {"images": len(pictures), "sizes": sizes, "max_difference": difference}


def _in_8_bits(run: "Run", embedder: "Embedder", content: bytes) -> tuple[bytes, Any, dict[str, Any]]:
    """The model in 8 bits, chosen on training images, and on test classes its R@1 beside that of PyTorch."""
    import numpy as np

    from tammes.cli.items import items_of, own_data
    from tammes.cli.saved import saved_options
    from tammes.data.batches import batches
    from tammes.export.formats import nearest_in_8_bits, of_onnx
    from tammes.metrics import evaluate

    data = own_data(run, saved_options(run))

    def crops(chosen: Any) -> Any:
        nothing, size = np.zeros(len(chosen), dtype=np.int64), embedder.size
        return (given.numpy() for given, _, _ in
                batches(data.images, chosen, nothing, batch_size=CHECKED, crop=size, train=False))  # fmt: skip

    train = np.random.default_rng(0).permutation(data.split.train)[:CALIBRATED]
    third = max(1, len(train) // 3)
    with working("8 bits"):
        held_out, images = (np.concatenate(list(crops(np.sort(each)))) for each in (train[:third], train[third:]))
        small, apart = nearest_in_8_bits(content, images, held_out)
    runs, items = of_onnx(small), items_of(run, on="cpu")
    with working("measuring"):
        found = np.concatenate([runs(each) for each in crops(items.numbers)])
        masks: dict[str, Any] = items.masks
        recalls = [
            evaluate(each, items.labels, clustering=False, bootstrap=0, **masks)["recall_at_1"]
            for each in (items.vectors, found)
        ]
    found_in = {"recall_at_1_torch": recalls[0], "recall_at_1": recalls[1], "loss": recalls[0] - recalls[1]}
    return small, runs, found_in | {"operators": next(iter(apart)), "held_out": third, "distance": apart}


def _to_hub(config: Export, run: "Run", out: Path) -> dict[str, Any]:
    from tempfile import TemporaryDirectory

    from tammes.export import check_difference, of_torch
    from tammes.export.hub_folder import LICENCE, PICTURE, Card, checked_folder, licence_text, write_hub_folder
    from tammes.io.files import folder_inside
    from tammes.io.hub import push_to_hub
    from tammes.models.embedder import load

    text = licence_text(config.licence, config.licence_file)
    if out.parent.resolve() == run.folder.resolve():
        folder_inside(out)  # in the run's folder, which may be untrusted, no link is followed
    checked_folder(out, overwrite=config.overwrite)
    embedder, results = load(run.folder), run.read("results")
    said, calibration = run.read("config", needs=("data", "loss")), run.read("calibration")
    owner, _, title = (config.push or f"OWNER/{run.folder.resolve().name}").partition("/")
    card = Card(
        name=title,
        owner=owner,
        data=(results or {}).get("data") or Path(said["data"]).name,
        loss=said["loss"],
        results=results,
        licence=config.licence,
        licence_text=text,
        threshold=None if calibration is None else calibration.get("threshold"),
    )
    picture = run.folder / PICTURE
    shown = picture.is_file() and not picture.is_symlink()  # what it leads to would be published
    images = _images(config, run, embedder)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".writing-") as folder:
        new = Path(folder)
        write_hub_folder(new, embedder, card, picture.read_bytes() if shown else None)
        difference = check_difference(of_torch(load(new))(images), of_torch(embedder)(images))
        written = sorted(new.iterdir(), key=lambda file: file.name == "config.json")  # it says what is there: last
        for file in written:
            file.replace(out / file.name)
    for name in {LICENCE, PICTURE} - {file.name for file in written}:  # of the model that this one replaces
        (out / name).unlink(missing_ok=True)
    record: dict[str, Any] = {"file": str(out), "format": "hub", "images": len(images), "max_difference": difference}
    record["licence"] = None if text is None else config.licence
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
        print(
            f"licence    {record['licence'] or 'not stated: --licence apache-2.0, or another with --licence-file FILE'}"
        )
    if "int8" in record:
        found = record["int8"]
        print(
            f"8 bits     R@1 {100 * found['recall_at_1']:.2f} where PyTorch has"
            f" {100 * found['recall_at_1_torch']:.2f}: {100 * found['loss']:.2f} lost"
        )
        apart = ", ".join(f"{name} {value:.3f}" for name, value in found["distance"].items())
        print(f"in 8 bits  {found['operators']} (distance on {found['held_out']} training images held out: {apart})")
    if "images_per_second" in record:
        print(
            "speed      "
            + ", ".join(f"{name} {value:.0f} images/s" for name, value in record["images_per_second"].items())
        )
    if "address" in record:
        print(f"pushed     {record['address']}")
