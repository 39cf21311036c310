"""`tammes.train` and `tammes.Run`: train, resume, and all that can be done with a run, for images and vectors."""

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
        return load_vector_config(self._files) if self._files.of_vectors else load_config(self._files)

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
        if self._files.of_vectors:
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
        raise UserError(f"training on vectors takes one process: start `tammes train {data}` without a launcher.")
