"""Runs: train, resume, evaluate, report, export and calibrate, for images and vectors alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from tammes.data import Dataset, check_data, check_place, dataset_of, open_dataset
from tammes.data.image_cache import Decoded
from tammes.data.objects import OBJECTS
from tammes.data.splits import split
from tammes.data.transforms import Transform
from tammes.data.vectors import Vectors
from tammes.data.vectors import vectors as read_vectors
from tammes.errors import UserError, check_seed, unknown_name
from tammes.export.files import CHECKED_OF_ANY_SIZE, Trial, export_file, export_with_preprocessing, photos_to_check
from tammes.export.hub_folder import card_of, check_folder, export_to_folder, licence_text
from tammes.io.console import KEPT, progress, say, working
from tammes.io.files import is_vector_file
from tammes.io.hub import push_to_hub
from tammes.io.machine import device, images_at_once
from tammes.io.outputs import place_for
from tammes.metrics import evaluate
from tammes.metrics.verification import checked_fmr
from tammes.models.backbones.module import name_of
from tammes.models.embedder import DIM, Embedder, Embedding, checked_precision
from tammes.models.feature_cache import Frozen, activation_batches, activations, kept_by, keys_of, num_missing
from tammes.models.origin import Precision
from tammes.models.pretrained import load_model, names_network
from tammes.report import compare_page, draw_retrievals, look, run_page
from tammes.report.calibration import RunCalibration, calibrate_items, classes_to_measure
from tammes.report.page import write_page
from tammes.report.run import FMR, OPTIONS
from tammes.training import distributed
from tammes.training.build import load_embedder, pretrained_embedder
from tammes.training.config import TrainConfig, load_config, resolve
from tammes.training.data import Data, changed_images, load_data
from tammes.training.embedding import Items, decode_for, embed, features_of, vectors
from tammes.training.evaluation import protocol
from tammes.training.objects import NONE, Objects
from tammes.training.run_folder import RunFolder, check_new, open_finished, open_run
from tammes.training.train import OnEpoch, Trained, resume_images, train_images
from tammes.vectors import MetricLearner
from tammes.vectors.config import VectorConfig, load_vector_config
from tammes.vectors.statistics import Rows
from tammes.vectors.train import (
    TrainedVectors,
    learned,
    load_vectors,
    other_vectors,
    raw,
    resume_vectors,
    train_vectors,
)

Part = Literal["test", "val"]
ExportFormat = Literal["onnx", "torch-export", "safetensors", "hub"]
EXPORTS = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": "model.safetensors", "hub": "hub"}
OnEpochOfRun = Callable[["Run", dict[str, Any]], bool | None]


class Run:
    """A run: what a training left in its folder, and what can be done with it.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: str | Path, objects: Objects = NONE) -> None:
        self._files = open_run(Path(folder), objects)
        self.folder = self._files.folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def state(self) -> str:
        """finished, interrupted (it can be resumed), or started."""
        return self._files.state

    @property
    def config(self) -> TrainConfig | VectorConfig:
        """Every option with its value."""
        return load_vector_config(self._files) if trained_on_vectors(self._files) else load_config(self._files)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of what was kept, on the test classes; empty where there are none, or before the end."""
        return dict((self._files.read("results") or {}).get("trained") or {})

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether training helped on the validation classes, and what was kept; empty before the end."""
        return dict((self._files.read("results") or {}).get("verdict") or {})

    @property
    def history(self) -> Any:
        """What was logged of each epoch: a DataFrame where pandas is installed, otherwise a list."""
        lines = self._files.epochs()
        try:
            from pandas import DataFrame
        except ImportError:
            return lines
        return DataFrame(lines)

    @cached_property
    def embedder(self) -> Any:
        """The network that was kept, an Embedder; of a run of vectors the estimator, a MetricLearner."""
        if trained_on_vectors(self._files):
            return MetricLearner.load(self.folder)
        return load_embedder(self.folder, self._files.objects)

    def evaluate(self, data: Any = None, **options: Any) -> dict[str, dict[str, Any]]:
        """The metrics before and after training, on the test classes or on other data, of any kind that `train` takes.

        Args:
            options: of `evaluate_run`.
        """
        return evaluate_run(self._files, _named(data), **options)

    def report(self, out: str | Path | None = None, *, overwrite: bool = True, **options: Any) -> Path:
        """Write the page about this run; where it is. The options are those of `report_runs`."""
        objects = self._files.objects or NONE
        place = None if out is None else Path(out)
        return report_runs([self.folder], place, overwrite=overwrite, objects=objects, **options)

    def export(self, out: str | Path | None = None, format: ExportFormat = "onnx", **options: Any) -> Path:
        """Write the network for other programs, compared with PyTorch; where it is. The options: `export_run`."""
        record = export_run(self._files, None if out is None else Path(out), format, **{"overwrite": True} | options)
        return Path(record["file"])

    def calibrate(self, data: str | Path | None = None, **options: Any) -> RunCalibration:
        """Find how near two items must be to be of one class, and keep it in the run; see `calibrate_run`."""
        return calibrate_run(self._files, None if data is None else str(data), **options)

    def resume(self, *, on_epoch: OnEpochOfRun | None = None) -> "Run":
        """Resume the training, with its own options, to the very weights of one that was not stopped."""
        objects = self._files.objects or NONE
        resume_run(self.folder, objects=objects, on_epoch=_of_run(on_epoch, objects))
        return Run(self.folder, objects)


def train(
    data: Any,
    *,
    backbone: str | nn.Module | None = None,
    transform: Callable[[Any], Any] | None = None,
    eval_transform: Callable[[Any], Any] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_epoch: OnEpochOfRun | None = None,
    **options: Any,
) -> Run:
    """Train on images or vectors, evaluate on classes that were not seen, and keep all of it in a run folder.

    Args:
        data: a folder with one sub-folder of images per class, a folder with CUB-200-2011, CARS196, Stanford Online
            Products, In-Shop or Omniglot, a .csv file with columns path and label, "glyphs", a .npz or .parquet file
            of vectors, or Python objects as `tammes.data.dataset_of` takes them: a Dataset, a data set of Hugging Face
            with an image and a label column, or a sequence of (image, label).
        backbone: the name of a network, or a module from images to vectors or maps. A copy of the module is trained.
            `size`, `mean` and `std` then say what images it wants, unless it is one of timm, which says so itself.
        transform: what makes a training image of one whose shorter side is scaled, in place of random crops and
            mirrors: a function of a Pillow image or a tensor, that gives one of these, or floats in 0..1. It ends
            before normalisation, which the network does.
        eval_transform: likewise in place of the centre crop.
        out: the run folder to make; by default runs/ and a name that says what it is.
        overwrite: replace the run folder if it is a run.
        on_epoch: called with the run and what was logged of each epoch; True stops a training on images after it.
        options: those of `tammes train`, with underscores: backbone, weights, train, loss, epochs, batch_size, lr,
            test_classes, val_classes, preset, seed, …; `tammes.training.options` lists all. None: as if not given.

    Raises:
        UserError: something that the caller can fix.
        KeyboardInterrupt: it was stopped; `load_run(out).resume()` resumes it.
    """
    given = {name: _as_option(name, value) for name, value in options.items() if value is not None}
    objects = _objects(data, backbone, transform, eval_transform)
    if backbone is not None:
        given["backbone"] = backbone if isinstance(backbone, str) else name_of(backbone)
    place = None if out is None else Path(out)
    called = str(data) if objects.dataset is None else OBJECTS + objects.dataset.name
    ended = train_run(
        called, given, out=place, overwrite=overwrite, objects=objects, on_epoch=_of_run(on_epoch, objects)
    )
    return Run(ended.run.folder, objects)


def load_run(
    folder: str | Path,
    *,
    data: Any = None,
    backbone: nn.Module | None = None,
    transform: Callable[[Any], Any] | None = None,
    eval_transform: Callable[[Any], Any] | None = None,
) -> Run:
    """The run in a folder.

    Args:
        data: of a training that was given Python objects the same again, for what needs the images.
        backbone: of one that was given a module one like it, with the weights that it began with.
        transform: of one that was given one the same again, to resume it.
        eval_transform: likewise, for whatever embeds images.
    """
    return Run(folder, _objects(data, backbone, transform, eval_transform))


def _objects(data: Any, backbone: Any, transform: Any, eval_transform: Any) -> Objects:
    """Those of the arguments that are Python objects, and not names."""
    return Objects(
        None if data is None or isinstance(data, str | Path) else dataset_of(data),
        backbone if isinstance(backbone, nn.Module) else None,
        None if transform is None else Transform("transform", transform),
        None if eval_transform is None else Transform("eval_transform", eval_transform),
    )


def _named(data: Any) -> str | Dataset | None:
    """Data by its path, or as the data set that it is."""
    return data if data is None else str(data) if isinstance(data, str | Path) else dataset_of(data)


def _of_run(on_epoch: OnEpochOfRun | None, objects: Objects = NONE) -> OnEpoch | None:
    return None if on_epoch is None else lambda folder, line: on_epoch(Run(folder.folder, objects), line)


def _as_option(name: str, value: Any) -> Any:
    """An option as the command line would give it."""
    if name in ("loss_options", "miner_options") and isinstance(value, Mapping):
        return tuple(f"{key}={each}" for key, each in value.items())
    if name in ("test_classes", "val_classes", "weights"):
        return str(value)
    if name in ("mean", "std"):
        return (float(value),) if isinstance(value, int | float) else tuple(value)
    if name in ("init_from", "continue_from"):
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def train_run(
    data: str,
    given: dict[str, Any],
    *,
    out: Path | None = None,
    overwrite: bool = False,
    objects: Objects = NONE,
    on_epoch: OnEpoch | None = None,
) -> Trained | TrainedVectors:
    """Train on images or vectors, in all processes that a launcher has started together; all of it in a run folder.

    Args:
        data: a folder, a CSV, glyphs, or a file of vectors.
        given: the options, of `TrainOptions` or for vectors of `VectorOptions`.
        objects: what of it was given as Python objects.
    """
    with distributed.joined():
        distributed.agreed(lambda: _check_places(data, given, out, objects, overwrite=overwrite))
        if is_vector_file(data):
            distributed.agreed(lambda: _check_no_objects(objects))
            distributed.agreed(lambda: _check_alone(data))
            return train_vectors(data, given, out=out, overwrite=overwrite, on_epoch=on_epoch)  # type: ignore[arg-type]
        config = distributed.agreed(lambda: resolve(data, given, out, objects))  # type: ignore[arg-type]
        return _with_picture(train_images(config, overwrite=overwrite, on_epoch=on_epoch))


def resume_run(folder: Path, *, objects: Objects = NONE, on_epoch: OnEpoch | None = None) -> Trained | TrainedVectors:
    """Resume a run that was stopped, with its own options."""
    with distributed.joined():
        data = distributed.agreed(lambda: open_run(folder).read("config").get("data", ""))
        if is_vector_file(data):
            distributed.agreed(lambda: _check_alone(data))
            return resume_vectors(folder, on_epoch=on_epoch)
        return _with_picture(resume_images(folder, objects=objects, on_epoch=on_epoch))


def _with_picture(trained: Trained) -> Trained:
    """The same, with a picture of some queries and what they find."""
    data = trained.data
    if trained.vectors is not None and distributed.is_first():
        test = data.split.test
        file = trained.run.folder / "neighbours.png"
        draw_retrievals(file, data.images, test, trained.vectors, data.dataset.labels[test])
    return trained


def _check_no_objects(objects: Objects) -> None:
    """Refuse what means nothing where vectors are learned from."""
    for name in ("module", "transform", "eval_transform"):
        if getattr(objects, name) is not None:
            what = "backbone" if name == "module" else name
            raise UserError(f"{what} is for images, and this is a file of vectors: leave it out.")


def _check_places(data: str, given: dict[str, Any], out: Path | None, objects: Objects, *, overwrite: bool) -> None:
    """Refuse data that is not there, a run that is, and to replace what the new run starts from."""
    if not is_vector_file(data) and objects.dataset is None:
        check_place(data)
    for name in ("init_from", "continue_from", "weights"):
        source = given.get(name)
        if out is not None and source is not None and Path(source).exists():
            if Path(source).resolve() == out.resolve():
                raise UserError(f"`{name}` and `out` are the same folder. Choose another `out`.")
            if Path(source).resolve().is_relative_to(out.resolve()):
                raise UserError(f"`{name}={str(source)!r}` lies in `out={str(out)!r}`. Choose another `out`.")
    if out is not None and distributed.is_first():
        check_new(out, overwrite=overwrite)


def _check_alone(data: str) -> None:
    if distributed.number() > 1:
        raise UserError(f"vectors are learned from in one process: start it with `tammes train {data}` alone.")


@dataclass(frozen=True)
class ItemsOf:
    """What of a run, or of other data, is embedded: the numbers of its images, and how they are measured."""

    dataset: Any
    images: Decoded
    chosen: ndarray


def trained_on_vectors(run: RunFolder) -> bool:
    return is_vector_file(run.read("config").get("data", ""))


def evaluate_run(
    run: RunFolder,
    data: str | Dataset | None = None,
    *,
    embedding: Embedding | None = None,
    precision: Precision = "no",
    clustering: bool = True,
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """How well a run does on its test classes, or on other data, before training and after it.

    Args:
        embedding: the layer that vectors are taken from, if not the one that the run chose.
        precision: bf16 runs the network in bfloat16.
        options: of `tammes.metrics.evaluate`.
    """
    if data is None and not run.read("classes", needs=("test",))["test"]:
        raise UserError(f"{run.folder} was trained on all classes. Give it others: tammes evaluate {run.folder} DATA")
    if trained_on_vectors(run):
        _check_for_images(run, embedding=embedding, precision=precision != "no", skip_bad=skip_bad)
        return _evaluate_vectors(run, _a_file(data), clustering=clustering, **options)
    if isinstance(data, str) and is_vector_file(data):
        raise UserError(
            f"{run.folder} was trained on images, and {data} holds vectors. Measure these as they are: tammes evaluate"
            f" {data}"
        )
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    _check_there(data, config)
    # Both before an image is read: a file of weights may be gone.
    networks = {"untrained": pretrained_embedder(config), "trained": load_embedder(run.folder, run.objects, embedding)}
    for network in networks.values():
        network.precision = checked_precision(precision)
    of = _items_of(run, config, networks["trained"], data, "test")
    if data is not None:
        say_known(of.dataset.class_names, run.read("classes", needs=("train",))["train"])
    rows = {}
    for name, network in networks.items():
        network, first = network.to(device(on)), name == "untrained"
        found = None if first or data is not None or precision != "no" else _from_kept(config, network, of)
        if found is None:
            with progress(f"embedding, {name}", KEPT) as on_progress:
                found = embed(network, of.images, of.chosen, backbone_only=first, on_progress=on_progress)
        with working(f"measuring, {name}", KEPT):
            how = protocol(of.dataset, of.chosen, clustering=clustering)
            rows[name] = evaluate(found, of.dataset.labels[of.chosen], **how, **options)
    return rows


def evaluate_pretrained(
    model: str,
    data: str,
    network: Mapping[str, Any],
    *,
    precision: Precision = "no",
    whiten: bool = False,
    clustering: bool = True,
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """How well a pretrained network does: on the test classes of data that says which they are, or on all classes.

    Args:
        model: its name; or a model on the hub, whose row is then `trained`.
        network: how it is built, as `tammes.pretrained` takes it.
        precision: bf16 runs it in bfloat16; a model on the hub too.
        whiten: also with its features whitened within the training classes (data that does not say which these are is
            then split as `train` does), and by PCA of the images that are measured, without their labels.
        options: of `tammes.metrics.evaluate`.
    """
    embedder = load_model(model, precision=precision, **network).to(device(on))
    dataset = open_dataset(data)
    says = dataset.part is not None or dataset.train_classes is not None
    parts = split(dataset) if says or whiten else None
    images = decode_for(embedder, dataset, skip_bad=skip_bad)
    chosen = images.without_bad(np.arange(len(dataset)) if parts is None else parts.test)
    features = _features(embedder, images, chosen)
    networks = {"pretrained" if names_network(model) else "trained": embedder}
    if whiten:
        assert parts is not None
        learn = images.without_bad(parts.train)
        labels = torch.from_numpy(dataset.labels[learn])
        networks["whitened"] = embedder.closed_form(_features(embedder, images, learn), labels, dim=DIM)
        networks["pca_whitened"] = embedder.closed_form(features, dim=DIM)
    how = protocol(dataset, chosen, clustering=clustering)
    rows = {}
    for name, one in networks.items():
        with working(f"measuring, {name}", KEPT), torch.inference_mode():
            found = one.embedding(features.to(one.mean.device)).cpu().numpy()
            rows[name] = evaluate(found, dataset.labels[chosen], **how, **options)
    return rows


def _features(embedder: Embedder, images: Decoded, chosen: ndarray) -> torch.Tensor:
    """What the backbone makes of the centre of images, computed once and kept; `train` uses them again."""
    with progress("computing features", KEPT) as on_progress:
        return features_of(embedder, images, chosen, on_progress=on_progress).inputs(chosen)


def _check_there(data: str | Dataset | None, config: TrainConfig) -> None:
    """Refuse images that are not there, before a network is built."""
    if isinstance(data, str):
        check_place(data)
    elif data is None and config.objects.dataset is None:
        check_place(config.data)


def _a_file(data: str | Dataset | None) -> str | None:
    if isinstance(data, Dataset):
        raise UserError("a run of vectors is evaluated on a file of vectors, not on images.")
    return data


def evaluate_vectors(file: Path, *, clustering: bool = True, **options: Any) -> dict[str, dict[str, Any]]:
    """How well the vectors of a file find vectors of their class, as they are."""
    found = read_vectors(file)
    with working("measuring"):
        how = protocol(found, np.arange(len(found.labels)), clustering=clustering)
        return {"vectors": evaluate(found.vectors, found.labels, **how, **options)}


def _evaluate_vectors(
    run: RunFolder, data: str | None, *, clustering: bool, **options: Any
) -> dict[str, dict[str, Any]]:
    learner = MetricLearner.load(run.folder)
    found, chosen = _vectors_of(run, learner, data)
    if data is not None:
        say_known(tuple(map(str, np.unique(found.labels).tolist())), run.read("classes", needs=("train",))["train"])
    given, how = Rows(found.vectors, chosen), protocol(found, chosen, clustering=clustering)
    rows = {}
    for name in ("untrained", "trained"):
        with working(f"measuring, {name}"):
            made = raw(given, run.folder) if name == "untrained" else learned(learner, given, run.folder)
            rows[name] = evaluate(made, found.labels[chosen], **how, **options)
    return rows


def report_runs(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    map: Literal["tsne", "pca", "none"] = "tsne",
    fmr: float = FMR,
    skip_bad: bool = False,
    device: Literal["auto", "cpu"] = "auto",
    seed: int = 0,
    overwrite: bool = False,
    objects: Objects = NONE,
) -> Path:
    """Write the page about a run, or a page for each of several and one that compares them; where it is.

    Args:
        out: by default report.html, in the folder of the run, and for several in the current folder.
        map: how the map of the embeddings is made, if at all.
        fmr: the false match rate whose threshold is drawn, for a run that is not calibrated.
        skip_bad: leave out images that cannot be read.
        seed: of the queries that are shown, and of the items of a very large map.
        overwrite: replace `out`; the page in the folder of a run is always replaced.
        objects: what the trainings were given as Python objects.
    """
    file = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    own = out is None and len(folders) == 1
    place = file if own else place_for("out", file, name=file.name, suffixes=(".html", ".htm"), overwrite=overwrite)
    check_seed("`seed`", seed)
    checked_fmr(fmr)
    runs = [open_finished(folder, objects) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice: name each once.")
    for run in runs:  # before anything is computed
        data = run.read("config", needs=OPTIONS)["data"]
        if run.read("results", needs=("trained",))["trained"] is not None:
            _check_for_images(run, skip_bad=skip_bad)
            check_data(None if objects.dataset is not None else data)

    def page_of(run: RunFolder) -> str:
        if run.read("results")["trained"] is None:
            return run_page(run, None)
        items = items_of(run, skip_bad=skip_bad, on=device)
        with working("finding neighbours and confusions"):
            looked = look(items, way=None if map == "none" else map, seed=seed)
        with working("writing"):
            return run_page(run, looked, fmr=fmr)

    if len(runs) == 1:
        write_page(place, page_of(runs[0]))
    else:
        for run in runs:
            write_page(run.folder / "report.html", page_of(run))
        write_page(place, compare_page(runs, file))
    return file


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
    if trained_on_vectors(run):
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


def calibrate_run(
    run: RunFolder,
    data: str | None = None,
    *,
    fmr: float | None = None,
    on: Literal["validation", "test"] | None = None,
    skip_bad: bool = False,
    device: Literal["auto", "cpu"] = "auto",
) -> RunCalibration:
    """Find how near two items must be to be of one class, on classes that did not train, and keep it in the run.

    Args:
        data: other images, or vectors, to measure on, all of their classes.
        fmr: the false match rate to allow; None: both errors are equally frequent.
        on: which classes of the run's own data. None: the validation classes if there are any, and then the test
            classes check the threshold; otherwise the test classes.
    """
    check_data(data)
    if fmr is not None:
        checked_fmr(fmr)
    if data is not None and on is not None:
        raise UserError("`on` chooses among the run's own classes, and `data` is measured whole: give one of the two.")
    run = open_finished(run.folder, run.objects)
    _check_for_images(run, skip_bad=skip_bad)
    part = None if data is not None else classes_to_measure(run, on)
    items = items_of(run, data, part=part or "test", skip_bad=skip_bad, on=device)
    classes = run.read("classes", needs=("train", "test"))
    say_known(tuple(items.class_names[label] for label in sorted(set(items.labels.tolist()))), classes["train"])
    checks = part == "val" and bool(classes["test"])
    check = items_of(run, skip_bad=skip_bad, on=device) if checks else None
    made = calibrate_items(items, fmr=fmr, trained_on=classes["train"], check=check)
    if part == "test":
        say("note: the test classes chose this threshold, so they are no longer an independent test of it.")
    if (run.folder / "calibration.json").exists():
        say(f"note: an older calibration of {run.folder} is replaced.")
    run.write("calibration", made.to_json())
    return made


def _check_for_images(run: RunFolder, **given: Any) -> None:
    """Refuse options that mean something for images only."""
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None and trained_on_vectors(run):
        raise UserError(f"`{wrong}` is for images, and {run.folder} was trained on vectors: leave it out.")


def items_of(
    run: RunFolder,
    data: str | None = None,
    *,
    part: Part = "test",
    skip_bad: bool = False,
    on: Literal["auto", "cpu"] = "auto",
) -> Items:
    """The test or validation items of a finished run's own data, or all of other data, embedded by its model.

    Args:
        data: other images, or vectors for a run of vectors; `part` then means nothing.
        skip_bad: leave out images that cannot be read.
        on: auto takes a GPU if there is one.
    """
    if trained_on_vectors(run):
        return _vector_items(run, data, part)
    if data is not None and is_vector_file(data):
        raise UserError(f"{run.folder} was trained on images, and {data} holds vectors. Give it images.")
    config = load_config(run)
    config = replace(config, skip_bad=config.skip_bad or skip_bad)
    _check_there(data, config)
    embedder = load_embedder(run.folder, run.objects).to(device(on))
    of = _items_of(run, config, embedder, data, part)
    kept = None if data is not None else _from_kept(config, embedder, of)
    return Items(
        vectors=_embedded(embedder, of) if kept is None else kept,
        labels=of.dataset.labels[of.chosen],
        class_names=of.dataset.class_names,
        numbers=of.chosen,
        names=tuple(of.dataset.keys[number] for number in of.chosen.tolist()),
        images=of.images,
        masks=_masks(of.dataset, of.chosen),
        what=_describe(of.dataset.name, "images", None if data is not None else part),
    )


def own_data(run: RunFolder, config: TrainConfig, embedder: Embedder) -> Data:
    """The images of a run, in the classes that it was started with; a note says what has changed in them."""
    data = load_data(config, embedder, run.read("classes"))
    differs = changed_images(run, data)
    if differs is not None:
        say(f"note: the images in {config.data} are not those of training ({differs}); they are used as they are now.")
    return data


def say_known(names: tuple[str, ...], trained_on: list[str]) -> None:
    """Classes that trained are easier than others; who measures on them should know."""
    known = set(names) & set(trained_on)
    if known:
        say(
            f"note: {len(known)} of the {len(names)} classes have the names of classes that the model was trained on"
            f" ({min(known)!r} for one); they are measured with the others."
        )


def _items_of(
    run: RunFolder, config: TrainConfig, embedder: Embedder, data: str | Dataset | None, part: Part
) -> ItemsOf:
    """The test or validation images of a run, or all of other data."""
    if data is None:
        own = own_data(run, config, embedder)
        chosen = own.split.test if part == "test" else own.split.val
        assert chosen is not None, "whoever asks for validation classes has seen that there are some"
        return ItemsOf(own.dataset, own.images, chosen)
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    images = decode_for(embedder, dataset, skip_bad=config.skip_bad)
    return ItemsOf(dataset, images, images.without_bad(np.arange(len(dataset))))


def _from_kept(config: TrainConfig, embedder: Embedder, of: ItemsOf) -> ndarray | None:
    """Vectors from activations that training at a cut has kept, if they are all there: much sooner than from images."""
    if config.train != "top":
        return None
    frozen = Frozen(embedder, config.cut)
    size, images, chosen = embedder.size, of.images, of.chosen
    if num_missing(kept_by(frozen, crop=size), keys_of(images, chosen)):
        return None
    kept = activations(frozen, images, chosen, crop=size, device=embedder.mean.device)
    number = images_at_once(int(np.prod(kept.values.shape[1:])), embedder.mean.device)
    inputs = activation_batches(kept, chosen, np.arange(len(chosen)), batch_size=number, train=False)
    with progress("embedding", KEPT) as on_progress:
        return vectors(embedder, frozen.above, inputs, len(chosen), on_progress=on_progress)


def _embedded(embedder: Embedder, of: ItemsOf) -> ndarray:
    with progress("embedding", KEPT) as on_progress:
        return embed(embedder, of.images, of.chosen, on_progress=on_progress)


def _vectors_of(run: RunFolder, learner: MetricLearner, data: str | None) -> tuple[Vectors, ndarray]:
    """The test vectors of a run, or all of other data."""
    if data is not None:
        found = other_vectors(learner, run, data)
        return found, np.arange(len(found))
    config = load_vector_config(run)
    own = load_vectors(config.data, config.test_classes, config.seed, run.read("classes"))
    return own.vectors, own.split.test


def _vector_items(run: RunFolder, data: str | None, part: Part) -> Items:
    assert data is not None or part == "test", "validation vectors train in the end"
    learner = MetricLearner.load(run.folder)
    found, chosen = _vectors_of(run, learner, data)
    names, codes = np.unique(found.labels[chosen], return_inverse=True)
    name = Path(data or run.read("config", needs=("data",))["data"]).name
    return Items(
        vectors=learned(learner, Rows(found.vectors, chosen), run.folder),
        labels=codes.reshape(-1).astype(np.int64),
        class_names=tuple(str(each) for each in names.tolist()),
        numbers=chosen,
        names=tuple(f"vector {n}" if found.paths is None else str(found.paths[n]) for n in chosen.tolist()),
        images=None,
        masks=_masks(found, chosen),
        what=_describe(name, "vectors", None if data is not None else part),
    )


def _masks(data: Any, chosen: ndarray) -> dict[str, ndarray]:
    found = protocol(data, chosen, clustering=False)
    return {name: found[name] for name in ("query", "gallery", "sequence") if name in found}


def _describe(name: str, kind: str, part: Part | None) -> str:
    use = {"test": "test classes", "val": "validation classes", None: "all classes"}[part]
    return f"{kind} of the {use} of {name}" if part is not None else f"{kind} of {use} of {name}"
