"""The training of a learner, one epoch at a time, which can be stopped at any step and resumed.

The loop is `tammes.training.loop.fit`, which uses torch's global generator; here its state is isolated, so that a
learner in a notebook does not change the notebook's random state.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from math import ceil
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from pydantic import FiniteFloat
from torch import Tensor, nn
from typing_extensions import TypedDict

from tammes.errors import UserError
from tammes.io.schema import checked
from tammes.training.checkpoints import START_OVER, load_checkpoint, save_checkpoint
from tammes.training.loop import Batch, Epoch, Position, cosine, fit, parameter_groups
from tammes.training.run_folder import RunFolder
from tammes.training.verdict import EPOCH, PRETRAINED, WHITENED, candidates_again, is_epoch, not_judged
from tammes.vectors import validation as of_held_out
from tammes.vectors.init import make, set_loss
from tammes.vectors.network import Network
from tammes.vectors.options import Init, check_classes, widths
from tammes.vectors.statistics import Rows

if TYPE_CHECKING:
    from tammes.vectors.learner import MetricLearner

STEPS = 500  # of an optimizer, where the epochs are not said
FEWEST_EPOCHS, MOST_EPOCHS = 3, 100
AGAIN_FROM = 0.05  # share of the vectors that were held out from which training again on all is worth the time
# What is random beside torch's own, each from a generator of its own: a resumed training draws the same.
_HELD_OUT, _INIT, _KEPT, _AGAIN = range(4)


@dataclass
class VectorPosition(Position):
    """Where a training is: what a checkpoint needs beside weights and optimizer.

    Attributes:
        labels: a checksum of the labels.
        init: what `init` of the learner came to.
        centre: what its `centre` came to.
        again: whether the held-out classes train too by now; epochs then count from 1 again.
        before: epochs that were trained without them.
        kept: the epoch with the best recall.
        highest: that recall; None without held-out classes.
        queries: vectors of each held-out class.
        right: how many of them find it, by the vectors as they are, the initialisation, and the best epoch.
        history, regularisation: those of the learner.
    """

    labels: int = 0
    init: Init = "auto"
    centre: bool = True
    again: bool = False
    before: int = 0
    kept: int = 0
    highest: float | None = None
    queries: list[int] = field(default_factory=list)
    right: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    regularisation: float | None = None

    def at(self, position: Position) -> None:
        """Take over where the loop is."""
        for each in fields(Position):
            setattr(self, each.name, getattr(position, each.name))

    def of_loop(self) -> Position:
        """Where the loop is."""
        return Position(**{each.name: getattr(self, each.name) for each in fields(Position)})


class Recalled(TypedDict):
    """What a history says of an epoch."""

    loss: FiniteFloat | None
    recall_at_1: FiniteFloat | None


class Weights(nn.Module):
    """What a checkpoint holds of a learner: its network, the best so far, and how vectors are centred and scaled."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: Network, mean: ndarray, scale: ndarray) -> None:
        super().__init__()
        self.network, self.best = network, deepcopy(network)
        self.register_buffer("mean", torch.from_numpy(mean.copy()))
        self.register_buffer("scale", torch.from_numpy(scale.copy()))


class VectorObjective(nn.Module):
    """The objective: (vectors, labels) -> the loss."""

    def __init__(self, network: Network, loss: nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, inputs: Float[Tensor, "batch columns"], labels: Int64[Tensor, " batch"]) -> dict[str, Tensor]:
        return {"loss": self.loss(self.network(inputs), labels)}


class Randomness:
    """The state of torch's global generator for a training, isolated from other code."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within the block, use the training's random state; afterwards restore the caller's."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            try:
                yield
            finally:
                self.state = torch.get_rng_state()

    def isolated(self, epochs: Iterator[Epoch]) -> Iterator[Epoch]:
        """The epochs, each computed with this random state."""
        while True:
            with self.drawn():
                epoch = next(epochs, None)
            if epoch is None:
                return
            yield epoch


@dataclass(frozen=True)
class Passed:
    """An epoch that has ended, or was stopped: `complete` says which. The first is none: all is ready to begin.

    Attributes:
        number: from 1, counted on where the network is trained again.
        again: whether that is what is under way.
        loss: the mean over its vectors; None for what was before training.
        recall: R@1 on the held-out classes, None without them and where these train too.
        lr: the learning rate.
        seconds: how long it took.
        vectors: how many it saw.
        save: a checkpoint of this moment into a run.
        step: batches of the epoch under way that are done.
    """

    number: int
    again: bool
    loss: float | None
    recall: float | None
    lr: float
    seconds: float
    vectors: int
    save: Callable[[RunFolder], None]
    complete: bool = True
    step: int = 0


def never() -> bool:
    """A `stop` callback that never stops."""
    return False


def epochs(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    y: ndarray,
    *,
    stop: Callable[[], bool] = never,
    resumed: RunFolder | None = None,
) -> Iterator[Passed]:
    """Fit a learner; yield once after the initialisation and then after each epoch. Ridge yields nothing.

    Args:
        stop: called after each step; True ends training with an incomplete epoch.
        resumed: a run with a checkpoint of this training.
    """
    learner.n_features_in_ = X.shape[1]
    learner.classes_, codes = np.unique(y, return_inverse=True)
    check_classes(learner.classes_)
    codes = codes.reshape(-1).astype(np.int64)
    learner._begin(X)

    def random(purpose: int) -> np.random.Generator:
        return np.random.default_rng([learner._seed, purpose])

    choice = random(_HELD_OUT)
    held = of_held_out.held_out(codes, learner.validation_classes, choice)
    learner.held_out_classes_ = learner.classes_[held]
    outside = np.isin(codes, held)
    rows, validation = np.flatnonzero(~outside), np.flatnonzero(outside)
    if len(validation) > of_held_out.MOST_HELD_OUT:
        validation = np.sort(choice.choice(validation, of_held_out.MOST_HELD_OUT, replace=False))
    own, checksum = Randomness(learner._seed), crc32(codes.tobytes())
    if learner.method == "ridge":
        with own.drawn():
            learner._solve(X, codes, rows, validation, random(_INIT))
        return
    with own.drawn():
        init: Init = learner.init if resumed is None else "random"  # of no use where weights come from a file
        init, centre = make(learner, X, codes, rows, validation, random(_INIT), init=init, centre=learner.centre)
    weights, optimizer = Weights(learner.network_, learner.mean_, learner.scale_), new_optimizer(learner)
    if resumed is None:
        at = VectorPosition(labels=checksum, init=init, centre=centre, regularisation=learner.regularisation_)
        if len(validation):
            at.right[PRETRAINED] = learner._found(X, codes, validation, as_they_are=True)[1]
            at.queries, right = learner._found(X, codes, validation)
            at.right[_name_of_init(learner, init)] = right
            at.highest = sum(right) / sum(at.queries)
        at.history.append({"loss": None, "recall_at_1": at.highest})
    else:
        at = _resumed(resumed, weights, optimizer, own, checksum)
        if at.again:
            set_loss(learner, learner.network_.dim, codes)
    learner.history_, learner.regularisation_ = at.history, at.regularisation

    def saved(run: RunFolder) -> None:
        with own.drawn():
            save_checkpoint(run, weights, optimizer, at)

    yield Passed(at.before + at.epoch - 1, at.again, None, at.highest, 0.0, 0.0, 0, saved, step=at.step)
    everyone, none = np.arange(len(codes)), validation[:0]
    if not at.again:
        yield from _train(learner, X, codes, rows, validation, own, stop, weights, optimizer, at, saved)
        if at.step:  # stopped
            return
        learner.verdict_ = _verdict(learner, at)
        if not is_epoch(learner.verdict_["kept"]):
            at.kept = learner.n_iter_ = 0
        if learner.verdict_["kept"] == PRETRAINED:
            with own.drawn():
                learner._use_vectors_as_they_are()
            return
        if at.kept == 0:
            with own.drawn():
                make(learner, X, codes, rows, none, random(_KEPT), init=at.init, centre=at.centre)
        elif at.highest is not None:
            learner.network_ = weights.best
        if outside.sum() > AGAIN_FROM * len(codes):
            with own.drawn():
                make(learner, X, codes, everyone, none, random(_AGAIN), init=at.init, centre=at.centre)
            weights, optimizer = Weights(learner.network_, learner.mean_, learner.scale_), new_optimizer(learner)
            at.again, at.before, at.epoch, at.regularisation = True, at.epoch - 1, 1, learner.regularisation_
    if at.again:
        learner.verdict_ = _verdict(learner, at)
        yield from _train(learner, X, codes, everyone, none, own, stop, weights, optimizer, at, saved)


def _train(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    validation: Int64[ndarray, " validation"],
    own: Randomness,
    stop: Callable[[], bool],
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    at: VectorPosition,
    saved: Callable[[RunFolder], None],
) -> Iterator[Passed]:
    """Train all epochs and keep the best on the held-out classes; then train again on all classes, if needed."""
    number = number_of_epochs(learner, len(codes))
    patience = int(learner.patience or ceil(number / 5))
    learner.network_, learner.n_iter_ = weights.network, at.kept

    def goes_on() -> bool:
        return at.again or at.highest is None or at.epoch - 1 - at.kept < patience

    passes = fit(
        VectorObjective(weights.network, learner._loss),
        lambda epoch: batches(learner, X, codes, rows, [learner._seed, int(at.again), epoch]),
        optimizer,
        epochs=at.kept if at.again else number,
        schedule=cosine(number),
        seed=learner._seed + at.again,
        start=at.of_loop(),
        stop=stop,
    )
    for epoch in own.isolated(passes) if goes_on() else ():
        weights.network.eval()
        at.at(epoch.position)
        now, recall, loss = at.before + epoch.number, None, epoch.losses["loss"]
        if epoch.complete and not at.again:
            recall = _judged(at, epoch.number, learner._found(X, codes, validation)[1])
            at.history.append({"loss": loss, "recall_at_1": recall})
            if recall is None or at.highest is None:
                at.kept = epoch.number
            elif recall > at.highest:
                at.kept, at.highest = epoch.number, recall
                weights.best.load_state_dict(weights.network.state_dict())
            learner.n_iter_ = at.kept
        yield Passed(now, at.again, loss, recall, epoch.rates[0], epoch.seconds, len(rows), saved, epoch.complete)
        if not goes_on():
            return


def batches(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    seed: list[int],
) -> Iterator[Batch]:
    """Batches of standardised rows in random order."""
    order, size = np.random.default_rng(seed).permutation(rows), int(learner.batch_size)
    for begin in range(0, len(order), size):
        chosen = np.sort(order[begin : begin + size])  # a file is read in its order
        inputs = torch.from_numpy(learner._standardised(X, chosen).astype(np.float32))
        yield inputs, torch.from_numpy(codes[chosen]), torch.from_numpy(chosen)


def _judged(at: VectorPosition, epoch: int, right: list[float]) -> float | None:
    """R@1 of a finished epoch; the best one is stored class by class."""
    if not at.queries:
        return None
    before = next((name for name in at.right if is_epoch(name)), None)
    if before is None or sum(right) > sum(at.right[before]):
        at.right.pop(before or "", None)
        at.right[f"{EPOCH}{epoch}"] = right
    return sum(right) / sum(at.queries)


def _name_of_init(learner: "MetricLearner", init: Init) -> str:
    """The name of the candidate of an initialisation in closed form."""
    return "init" if init == "random" or widths(learner.hidden) else WHITENED if init == "whiten" else init


def _verdict(learner: "MetricLearner", at: VectorPosition) -> dict[str, Any]:
    """The verdict: input vectors, initialisation or best epoch."""
    return not_judged(f"{EPOCH}{at.kept}") if at.highest is None else learner._judged(at.queries, at.right)


def number_of_epochs(learner: "MetricLearner", vectors: int) -> int:
    """The given number of epochs, or as many as make enough steps."""
    steps = ceil(vectors / learner.batch_size)
    return int(learner.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, ceil(STEPS / steps))))


def new_optimizer(learner: "MetricLearner") -> torch.optim.Optimizer:
    """AdamW, fused: one pass over memory instead of a dozen."""
    lr, network = float(learner.learning_rate), learner.network_
    groups = parameter_groups([network], network, lr=lr, backbone_lr=lr, weight_decay=float(learner.weight_decay))
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def _resumed(
    run: RunFolder, weights: Weights, optimizer: torch.optim.Optimizer, own: Randomness, labels: int
) -> VectorPosition:
    """Restore the state of a run's checkpoint."""
    mean, scale = weights.mean.clone(), weights.scale.clone()
    at: VectorPosition
    with own.drawn():
        at, _ = load_checkpoint(run, weights, optimizer, VectorPosition)
    if at.labels != labels or not torch.equal(mean, weights.mean) or not torch.equal(scale, weights.scale):
        raise UserError(
            f"the vectors are no longer those that {run.folder} was started with. Put them back, or train again."
        )
    checked(at.history, list[Recalled], f"the history in {run.checkpoint}", START_OVER)
    if not at.history or (at.highest is None) != (at.history[0]["recall_at_1"] is None):
        raise UserError(f"the history in {run.checkpoint} does not begin with the initialisation. {START_OVER}")
    if at.highest is not None:
        found = {"queries": at.queries, "right": at.right, "kept": PRETRAINED}
        candidates_again(found, str(run.checkpoint), START_OVER)
    return at
