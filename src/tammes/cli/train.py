"""`tammes train`: from a folder of images, or a file of vectors, to a trained, evaluated model in a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from typing_extensions import TypedDict

from tammes.cli.console import results_table
from tammes.errors import UserError
from tammes.io.console import print_json, say
from tammes.io.environment import launched
from tammes.io.files import is_vector_file
from tammes.training.options import TrainOptions, VectorOptions

if TYPE_CHECKING:
    from tammes.training.train import Trained
    from tammes.vectors.train import TrainedVectors


class RunOptions(TypedDict, total=False):
    """Where a training goes."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """The run folder to create. (default: a name below runs/ that says what it is)"""
    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Resume this run, which was stopped, with its own options."""
    overwrite: bool
    """Replace the run folder if it exists."""
    json: bool
    """Print the results as one JSON object."""


class Train(TrainOptions, RunOptions, total=False):
    """Train an embedder on images, or a metric on vectors, and evaluate it on classes that it has not seen.

    A .npz or .parquet file has vectors of any model; tammes.MetricLearner is trained on them. `tammes train vectors.npz
    --help` shows the options for vectors.

    For example:
        tammes train photos/ --out runs/photos
        tammes train photos/ --backbone resnet50 --epochs 20
        tammes train photos/ --preset paper --test-classes 0.5 --val-classes 0.1
        tammes train CUB_200_2011/ --backbone googlenet --train head
        tammes train --resume runs/photos
        tammes train vectors.npz --out runs/vectors
        tammes train more-photos/ --continue-from runs/photos --compatible 1 --out runs/more
        torchrun --nproc-per-node 4 -m tammes train photos/
    """

    data: Annotated[str, tyro.conf.Positional]
    """A folder with one sub-folder of images per class; a folder with CUB-200-2011, CARS196, Stanford Online Products,
    In-Shop or Omniglot; a .csv file with columns path and label; glyphs, the embedded data set of characters (the
    default); or a .npz or .parquet file with `vectors` and `labels`."""


class TrainVectors(VectorOptions, RunOptions, total=False):
    """Learn a metric from vectors of any model, and evaluate it on classes that it has not seen.

    It is tammes.MetricLearner on the training classes, with a run folder.

    For example:
        tammes train vectors.npz --out runs/vectors
        tammes train vectors.parquet --method ridge
        tammes train --resume runs/vectors
    """

    data: Annotated[str, tyro.conf.Positional]
    """A .npz or .parquet file with `vectors` and `labels`."""


def options_for(words: Sequence[str]) -> type:
    """The options that these words are to be read with: those of vectors where a word names a file of them."""
    file = next((word for word in words if not word.startswith("-") and is_vector_file(word)), None)
    chosen, other, what = (Train, TrainVectors, "vectors") if file is None else (TrainVectors, Train, "images")
    for word in words:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_").removeprefix("no_")
        if word.startswith("--") and name in set(other.__annotations__) - set(chosen.__annotations__):
            if "--resume" in words:
                raise UserError(f"--resume takes the run's own options: leave out {word}.")
            holds = "this is not a .npz or .parquet file" if file is None else f"{Path(file).name} holds vectors"
            raise UserError(f"{word} is for {what}, and {holds}: leave it out.")
    return chosen


def train(given: dict[str, Any]) -> None:
    """Train or resume; show the results."""
    given = dict(given)
    data, out, resume = given.pop("data", None), given.pop("out", None), given.pop("resume", None)
    overwrite, as_json = given.pop("overwrite", False), given.pop("json", False)
    others = [name for name, value in (("data", data), ("out", out), ("overwrite", overwrite)) if value] + [*given]
    if resume is not None and others:
        raise UserError(f"`resume` takes the run's own options: leave out `{others[0]}`.")
    from tammes.run import resume_run, train_run

    ended = train_run(data or "glyphs", given, out=out, overwrite=overwrite) if resume is None else resume_run(resume)
    if launched().rank == 0:  # of several processes the first speaks
        _show(ended, as_json=as_json)


def _show(ended: "Trained | TrainedVectors", *, as_json: bool) -> None:
    from tammes.training.verdict import describe, measured_rows

    results, folder = ended.results, ended.run.folder
    if as_json:
        print_json(results)
    elif results["trained"] is None:
        print(f"Trained on all classes, so there are none to test on. Run folder: {folder}")
    else:
        title = f"{results['data']}: {results['test_classes']} classes never seen, per cent"
        results_table(measured_rows(results, ended.run.read("config")), title)
    say(describe(results), folder / "log.txt")
    if results["trained"] is not None and not as_json:
        picture = folder / "neighbours.png"
        print(f"run folder: {folder}" + (f"    picture: {picture}" if picture.exists() else ""))
