"""`tammes.train` and `tammes.Run`: train, resume, and use a finished run, for images and vectors."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from tammes.data import Dataset, check_place, dataset_of
from tammes.data.objects import OBJECTS
from tammes.data.transforms import Transform
from tammes.errors import UserError
from tammes.export.run import ExportFormat, export_run
from tammes.io.files import is_vector_file
from tammes.models.backbones.module import name_of
from tammes.report import draw_retrievals
from tammes.report.calibration import RunCalibration, calibrate_run
from tammes.report.evaluation import evaluate_run
from tammes.report.runs import report_runs
from tammes.training import distributed
from tammes.training.build import load_embedder
from tammes.training.config import TrainConfig, load_config, resolve
from tammes.training.objects import NONE, Objects
from tammes.training.run_folder import check_new, open_run
from tammes.training.train import OnEpoch, Trained, resume_images, train_images
from tammes.vectors import MetricLearner
from tammes.vectors.config import VectorConfig, load_vector_config
from tammes.vectors.train import TrainedVectors, resume_vectors, train_vectors

OnEpochOfRun = Callable[["Run", dict[str, Any]], bool | None]


class Run:
    """A run folder: its config, metrics and embedder, with methods to evaluate, report, export, calibrate and resume.

    Attributes:
        folder: the run folder.
    """

    def __init__(self, folder: str | Path, objects: Objects = NONE) -> None:
        self._files = open_run(Path(folder), objects)
        self.folder = self._files.folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def state(self) -> str:
        """ "finished", "interrupted" (can be resumed) or "started"."""
        return self._files.state

    @property
    def config(self) -> TrainConfig | VectorConfig:
        """Every option with its value."""
        return load_vector_config(self._files) if self._files.of_vectors else load_config(self._files)

    @property
    def metrics(self) -> dict[str, Any]:
        """Test metrics of the embedder that was kept; empty without test classes or before the end."""
        return dict((self._files.read("results") or {}).get("trained") or {})

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether training helped on the validation classes, and which embedder was kept; empty before the end."""
        return dict((self._files.read("results") or {}).get("verdict") or {})

    @property
    def history(self) -> Any:
        """The log of each epoch: a DataFrame if pandas is installed, otherwise a list of dicts."""
        lines = self._files.epochs()
        try:
            from pandas import DataFrame
        except ImportError:
            return lines
        return DataFrame(lines)

    @cached_property
    def embedder(self) -> Any:
        """The network that was kept, an Embedder; for a run of vectors a MetricLearner."""
        if self._files.of_vectors:
            return MetricLearner.load(self.folder)
        return load_embedder(self.folder, self._files.objects)

    def evaluate(self, data: Any = None, **options: Any) -> dict[str, dict[str, Any]]:
        """The metrics before and after training, on the test classes or on other data (anything that `train` accepts).

        Args:
            options: passed to `evaluate_run`.
        """
        return evaluate_run(self._files, _named(data), **options)

    def report(self, out: str | Path | None = None, *, overwrite: bool = True, **options: Any) -> Path:
        """Write the HTML report of this run and return its path. `options` are passed to `report_runs`."""
        objects = self._files.objects or NONE
        place = None if out is None else Path(out)
        return report_runs([self.folder], place, overwrite=overwrite, objects=objects, **options)

    def export(self, out: str | Path | None = None, format: ExportFormat = "onnx", **options: Any) -> Path:
        """Export the network, check it against PyTorch, and return the file. `options` are passed to `export_run`."""
        record = export_run(self._files, None if out is None else Path(out), format, **{"overwrite": True} | options)
        return Path(record["file"])

    def calibrate(self, data: str | Path | None = None, **options: Any) -> RunCalibration:
        """Measure the same-class threshold and store it in the run; see `calibrate_run`."""
        return calibrate_run(self._files, None if data is None else str(data), **options)

    def resume(self, *, on_epoch: OnEpochOfRun | None = None) -> "Run":
        """Resume the training with its own options; the final weights are those of an uninterrupted run."""
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
    """Train on images or vectors, evaluate on unseen classes, and store everything in a run folder.

    Args:
        data: a folder with one sub-folder of images per class, a folder with CUB-200-2011, CARS196, Stanford Online
            Products, In-Shop or Omniglot, a .csv file with columns path and label, "glyphs", a .npz or .parquet file
            of vectors, or Python objects that `tammes.data.dataset_of` accepts: a Dataset, a Hugging Face dataset with
            an image and a label column, or a sequence of (image, label).
        backbone: the name of a network, or a module that maps images to vectors or feature maps; a copy of the module
            is trained. Give its input as `size`, `mean` and `std`, unless it is a timm model, which knows them.
        transform: training augmentation that replaces the random crop and flip: a function from a Pillow image or
            tensor, with its shorter side already scaled, to one of these or to floats in 0..1. The network normalises.
        eval_transform: replaces the centre crop in the same way.
        out: the run folder to create; by default a descriptive name below runs/.
        overwrite: replace the run folder if it is a run.
        on_epoch: called after each epoch with the run and the epoch's log; for images, returning True stops training.
        options: those of `tammes train`, with underscores: backbone, weights, train, loss, epochs, batch_size, lr,
            test_classes, val_classes, preset, seed, …; `tammes.training.options` lists all. None means not given.

    Raises:
        UserError: something that the caller can fix.
        KeyboardInterrupt: training was stopped; `load_run(out).resume()` resumes it.
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
    """The run in a folder. A run that was trained on Python objects needs the same objects again.

    Args:
        data: the data, if it was given as Python objects; needed wherever images are read.
        backbone: a module of the same architecture and initial weights, if the backbone was a module.
        transform: the same training transform, to resume.
        eval_transform: the same evaluation transform, to embed images.
    """
    return Run(folder, _objects(data, backbone, transform, eval_transform))


def _objects(data: Any, backbone: Any, transform: Any, eval_transform: Any) -> Objects:
    """The arguments that are Python objects rather than names."""
    return Objects(
        None if data is None or isinstance(data, str | Path) else dataset_of(data),
        backbone if isinstance(backbone, nn.Module) else None,
        None if transform is None else Transform("transform", transform),
        None if eval_transform is None else Transform("eval_transform", eval_transform),
    )


def _named(data: Any) -> str | Dataset | None:
    """The path of the data, or the data set itself."""
    return data if data is None else str(data) if isinstance(data, str | Path) else dataset_of(data)


def _of_run(on_epoch: OnEpochOfRun | None, objects: Objects = NONE) -> OnEpoch | None:
    return None if on_epoch is None else lambda folder, line: on_epoch(Run(folder.folder, objects), line)


def _as_option(name: str, value: Any) -> Any:
    """An option in the form in which the command line gives it."""
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
    """Train on images or vectors, in all processes of a distributed launch.

    Args:
        data: a folder, a CSV, glyphs, or a file of vectors.
        given: the options that were set: fields of `TrainOptions`, or of `VectorOptions` for vectors.
        objects: Python objects that stand for the data, backbone or transforms.
    """
    with distributed.joined():
        distributed.agreed(lambda: _check_places(data, given, out, objects, overwrite=overwrite))
        if is_vector_file(data):
            distributed.agreed(lambda: _check_no_objects(objects))
            distributed.agreed(lambda: _check_alone(data))
            return train_vectors(data, given, out=out, overwrite=overwrite, on_epoch=on_epoch)  # type: ignore[arg-type]
        config = distributed.agreed(lambda: resolve(data, given, out, objects))  # type: ignore[arg-type]
        return _with_neighbours_image(train_images(config, overwrite=overwrite, on_epoch=on_epoch))


def resume_run(folder: Path, *, objects: Objects = NONE, on_epoch: OnEpoch | None = None) -> Trained | TrainedVectors:
    """Resume an interrupted run with its own options."""
    with distributed.joined():
        data = distributed.agreed(lambda: open_run(folder).read("config").get("data", ""))
        if is_vector_file(data):
            distributed.agreed(lambda: _check_alone(data))
            return resume_vectors(folder, on_epoch=on_epoch)
        return _with_neighbours_image(resume_images(folder, objects=objects, on_epoch=on_epoch))


def _with_neighbours_image(trained: Trained) -> Trained:
    """Draw neighbours.png, some queries with their nearest neighbours, and return the run."""
    data = trained.data
    if trained.vectors is not None and distributed.is_first():
        test = data.split.test
        file = trained.run.folder / "neighbours.png"
        draw_retrievals(file, data.images, test, trained.vectors, data.dataset.labels[test])
    return trained


def _check_no_objects(objects: Objects) -> None:
    """Raise UserError for a backbone or transform: a run of vectors has no images."""
    for name in ("module", "transform", "eval_transform"):
        if getattr(objects, name) is not None:
            what = "backbone" if name == "module" else name
            raise UserError(f"{what} is for images, and this is a file of vectors: leave it out.")


def _check_places(data: str, given: dict[str, Any], out: Path | None, objects: Objects, *, overwrite: bool) -> None:
    """Raise UserError for missing data, an existing run folder, or a run folder that contains the initial weights."""
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
        raise UserError(f"training on vectors takes one process: start `tammes train {data}` without a launcher.")
