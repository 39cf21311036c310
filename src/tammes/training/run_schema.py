"""Schemas of the JSON files of a run folder, with the fields that are read."""

from typing import Any, NotRequired

from pydantic import FiniteFloat, PositiveInt
from typing_extensions import TypedDict


class Config(TypedDict, total=False):
    """The options of a run that commands read without building a TrainConfig."""

    data: str
    preset: str
    loss: str
    centroids: str | None
    method: str | None
    backbone: str | None
    weights: str | None
    train: str | None
    cut: str | None
    hidden: list[int] | None
    dim: int | None
    epochs: int | None
    batch_size: int | None
    seed: int


class BesideRecall(TypedDict, total=False):
    """The metrics of `tammes.metrics.evaluate` that are shown, besides R@1."""

    recall_at_2: float | None
    recall_at_4: float | None
    recall_at_8: float | None
    r_precision: float | None
    mean_average_precision_at_r: float | None
    NMI: float | None
    intervals: dict[str, tuple[float, float]] | None
    queries: int
    classes: int
    single_image_classes: int


class Measures(BesideRecall, total=False):
    """The same with R@1, if it was measured."""

    recall_at_1: float | None


class Recall(TypedDict):
    """The result of a candidate on the validation classes."""

    recall_at_1: float


class Verdict(TypedDict):
    """Whether training helped on the validation classes, and which candidate was kept.

    kept: "pretrained", "whitened", or "epoch N"; for vectors also the closed forms "pca" and "ridge".
    judged: False without validation classes; the last epoch is then kept.
    candidates: R@1 of each candidate on the validation classes.
    gain: points of R@1 by which the best trained candidate (the kept one if it is trained) is above the pretrained one.
    gain_interval: the gain minus and plus its standard error over the validation classes.
    """

    kept: str
    judged: bool
    candidates: dict[str, Recall]
    gain: float | None
    gain_interval: tuple[float, float] | None


class Candidates(TypedDict):
    """The results on the validation classes so far; see `tammes.training.verdict.Candidates`."""

    queries: list[PositiveInt]
    right: dict[str, list[float]]
    kept: str


class Results(TypedDict, total=False):
    """The evaluation; some fields are missing without test classes.

    untrained: the pretrained network; trained: the network that was kept; last: the last epoch, if it was not kept.
    """

    data: str
    command: str
    trained: Measures | None
    untrained: Measures | None
    last: Measures
    verdict: Verdict
    seconds: FiniteFloat | None
    train_images: int
    train_classes: int
    test_images: int
    test_classes: int


class CentroidSlots(TypedDict):
    """The assignment of classes to centroids, if there are more centroids than classes."""

    number: PositiveInt
    of: dict[str, int]
    old: list[str]


class Classes(TypedDict):
    """The class names of each split."""

    train: list[str]
    val: list[str]
    test: list[str]
    unused: NotRequired[list[str]]  # classes without readable images
    places: NotRequired[CentroidSlots]


class Bound(TypedDict):
    """The paper's quantities that are plotted."""

    discriminative_loss: float
    triplet_loss: float
    gap: float
    certificate: float
    lemma: float
    epsilon: float
    triplets: int


class Line(TypedDict):
    """A line of metrics.jsonl."""

    epoch: int
    loss: NotRequired[float]
    above_minimum: NotRequired[float]
    lr: NotRequired[float]
    seconds: NotRequired[FiniteFloat]
    images_per_second: NotRequired[float]
    val_recall_at_1: NotRequired[float]
    test_recall_at_1: NotRequired[float]
    bound: NotRequired[Bound]


class Threshold(TypedDict):
    """The result of `tammes calibrate` that other commands use."""

    threshold: FiniteFloat
    threshold_interval: NotRequired[tuple[FiniteFloat, FiniteFloat] | None]
    fmr: FiniteFloat | None


class Environment(TypedDict, total=False):
    """The environment of a run that is shown."""

    versions: dict[str, str]
    processor: str
    cores: int | None
    commit: str | None


class Network(TypedDict):
    """The fields of embedder.json that a report shows."""

    backbone: str
    dim: PositiveInt
    class_dim: NotRequired[PositiveInt | None]
    pool: NotRequired[str]


class Images(TypedDict):
    """The images with which a run was started."""

    digest: str
    classes: NotRequired[dict[str, int]]  # number of images of each class


SHAPES: dict[str, Any] = {
    "config": Config,
    "results": Results,
    "classes": Classes,
    "calibration": Threshold,
    "environment": Environment,
    "embedder": Network,
    "untrained": Measures,
    "candidates": Candidates,
    "images": Images,
}
