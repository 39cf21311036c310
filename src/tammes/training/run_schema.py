"""The schemas of the JSON files of a run folder, as far as they are read."""

from typing import Any, NotRequired

from pydantic import FiniteFloat, PositiveInt
from typing_extensions import TypedDict


class Config(TypedDict, total=False):
    """What commands ask the options of a run for without making options of them again, which checks them all."""

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
    """What `tammes.metrics.evaluate` found, as far as it is shown, beside R@1."""

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
    """The same with R@1, where it was measured."""

    recall_at_1: float | None


class Recall(TypedDict):
    """What a candidate reached on the validation classes."""

    recall_at_1: float


class Verdict(TypedDict):
    """Whether training helped on the validation classes, and what was kept.

    kept: pretrained, whitened, or epoch and its number; of vectors also the closed forms pca and ridge.
    judged: False where no classes were held out; the last epoch is then kept, and nothing else is said.
    candidates: R@1 of each on the validation classes.
    gain: by how many points of R@1 the best trained candidate (the kept one if it is trained) is above the pretrained.
    gain_interval: the gain minus and plus its standard error over validation classes.
    """

    kept: str
    judged: bool
    candidates: dict[str, Recall]
    gain: float | None
    gain_interval: tuple[float, float] | None


class Candidates(TypedDict):
    """What has been measured on the validation classes so far, as `tammes.training.verdict.Candidates` has it."""

    queries: list[PositiveInt]
    right: dict[str, list[float]]
    kept: str


class Results(TypedDict, total=False):
    """The evaluation; without test classes there is less of it.

    untrained is the pretrained network, trained what was kept, last the last epoch where it was not kept.
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
    """Which centroid each class has, where these are more than the classes."""

    number: PositiveInt
    of: dict[str, int]
    old: list[str]


class Classes(TypedDict):
    """The names of the classes, by what they are there for."""

    train: list[str]
    val: list[str]
    test: list[str]
    unused: NotRequired[list[str]]  # of which no image could be read
    places: NotRequired[CentroidSlots]


class Bound(TypedDict):
    """The paper's quantities, as far as they are drawn."""

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
    """What `tammes calibrate` found, as far as others use it."""

    threshold: FiniteFloat
    threshold_interval: NotRequired[tuple[FiniteFloat, FiniteFloat] | None]
    fmr: FiniteFloat | None


class Environment(TypedDict, total=False):
    """What a run was made with, as far as it is shown."""

    versions: dict[str, str]
    processor: str
    cores: int | None
    commit: str | None


class Network(TypedDict):
    """What a report says of the network; who loads it knows better."""

    backbone: str
    dim: PositiveInt
    class_dim: NotRequired[PositiveInt | None]
    pool: NotRequired[str]


class Images(TypedDict):
    """The images that a run was started with."""

    digest: str
    classes: NotRequired[dict[str, int]]  # how many of each class


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
