"""The training of a learner, an epoch at a time: it can be watched, stopped at any step, and gone on with.

Not `tammes.training.loop.fit`, which seeds torch and sets up accelerate for the whole process: a guest in somebody's
notebook leaves both alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy import ndarray
from torch import Tensor, nn

from tammes.errors import UserError
from tammes.io.schema import checked
from tammes.training.checkpoints import ANEW, check_random, load_checkpoint
from tammes.training.loop import cosine, parameter_groups
from tammes.training.run_folder import Run
from tammes.training.verdict import EPOCH, PRETRAINED, WHITENED, candidates_again, is_epoch, not_judged
from tammes.vectors.init import make, set_loss
from tammes.vectors.network import Network
from tammes.vectors.options import Start, check_classes, widths
from tammes.vectors.statistics import Rows
from tammes.vectors.validation import MOST_HELD_OUT, held_out

if TYPE_CHECKING:
    from tammes.vectors.learner import MetricLearner

STEPS = 500  # of an optimizer, where the epochs are not said
FEWEST_EPOCHS, MOST_EPOCHS = 3, 100
AGAIN_FROM = 0.05  # share of the vectors that were held out from which training again on all is worth the time


@dataclass
class Position:
    """Where a training is: what a checkpoint needs beside weights and optimizer to go on as if nothing had happened.

    Attributes:
        labels: a checksum of the labels.
        start: what `start` of the learner came to.
        centre: what its `centre` came to.
        again: whether the held-out classes train too by now.
        before: epochs that were trained without them.
        epoch: the epoch under way, from 1; from 1 again where `again`.
        step: batches of it that are done.
        total: the sum of the loss over its vectors so far.
        seconds: time it has taken so far.
        order: the state of numpy's generator as the epoch began, from which its order follows.
        kept: the epoch with the best recall.
        highest: that recall; None without held-out classes.
        queries: vectors of each held-out class.
        right: how many of them find it, by the vectors as they are, the start, and the best epoch.
        history, regularisation: those of the learner.
    """

    labels: int
    start: Start
    centre: bool = True
    again: bool = False
    before: int = 0
    epoch: int = 1
    step: int = 0
    total: float = 0.0
    seconds: float = 0.0
    order: Mapping[str, Any] = field(default_factory=dict)
    kept: int = 0
    highest: float | None = None
    queries: list[int] = field(default_factory=list)
    right: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    regularisation: float | None = None


class Recalled(TypedDict):
    """What a history says of an epoch."""

    loss: float | None
    recall_at_1: float | None


class Weights(nn.Module):
    """What a checkpoint holds of a learner: its network, the best so far, how vectors are centred and scaled, and the
    state of what is random."""

    mean: Tensor
    scale: Tensor
    random: Tensor

    def __init__(self, network: Network, mean: ndarray, scale: ndarray, random: UInt8[Tensor, " bytes"]) -> None:
        super().__init__()
        self.network, self.best = network, deepcopy(network)
        self.register_buffer("mean", torch.from_numpy(mean.copy()))
        self.register_buffer("scale", torch.from_numpy(scale.copy()))
        self.register_buffer("random", random.clone())


@dataclass(frozen=True)
class Passed:
    """An epoch that has ended, or was stopped: `complete` says which. The first is none: all is ready to begin.

    Attributes:
        number: from 1, counted on where the network is trained again.
        again: whether that is what is under way.
        loss: the mean over its vectors; None for what was before training.
        recall: R@1 on the held-out classes, None without them and where these train too.
        rate: the learning rate.
        seconds: how long it took.
        vectors: how many it saw.
        weights, optimizer, position: what to save to go on from here.
    """

    number: int
    again: bool
    loss: float | None
    recall: float | None
    rate: float
    seconds: float
    vectors: int
    weights: Weights
    optimizer: torch.optim.Optimizer
    position: Position
    complete: bool = True


class Randomness:
    """torch's own generator as a training has it, whatever others draw while it waits for them."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """In here torch draws on from where this one stopped, and afterwards from where it was."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            try:
                yield
            finally:
                self.state = torch.get_rng_state()


def never() -> bool:
    """No one asks to stop."""
    return False


def epochs(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    y: ndarray,
    *,
    stop: Callable[[], bool] = never,
    resumed: Run | None = None,
) -> Iterator[Passed]:
    """Fit a learner, and yield when all is ready and then each epoch when it has ended; nothing for ridge.

    Args:
        stop: asked after each step; True ends training with an epoch that is not complete.
        resumed: a run with a checkpoint of this training, to go on from to the very same weights.
    """
    learner.n_features_in_ = X.shape[1]
    learner.classes_, codes = np.unique(y, return_inverse=True)
    check_classes(learner.classes_)
    codes = codes.reshape(-1).astype(np.int64)
    learner._begin(X)
    random = np.random.default_rng(learner._seed)
    held = held_out(codes, learner.validation_classes, random)
    learner.held_out_classes_ = learner.classes_[held]
    outside = np.isin(codes, held)
    rows, validation = np.flatnonzero(~outside), np.flatnonzero(outside)
    if len(validation) > MOST_HELD_OUT:
        validation = np.sort(random.choice(validation, MOST_HELD_OUT, replace=False))
    own, checksum = Randomness(learner._seed), crc32(codes.tobytes())
    if learner.method == "ridge":
        with own.drawn():
            learner._solve(X, codes, rows, validation, random)
        return
    with own.drawn():
        start: Start = learner.start if resumed is None else "random"  # of no use where weights come from a file
        start, centre = make(learner, X, codes, rows, validation, random, start=start, centre=learner.centre)
    weights, optimizer = _beginning(learner, own)
    if resumed is None:
        at = Position(checksum, start, centre, regularisation=learner.regularisation_)
        if len(validation):
            at.right[PRETRAINED] = learner._found(X, codes, validation, as_they_are=True)[1]
            at.queries, right = learner._found(X, codes, validation)
            at.right[_name_of_start(learner, start)] = right
            at.highest = sum(right) / sum(at.queries)
        at.history.append({"loss": None, "recall_at_1": at.highest})
    else:
        at = _gone_on_with(resumed, weights, optimizer, random, own, checksum)
        if at.again:
            set_loss(learner, learner.network_.dim, codes)
    learner.history_, learner.regularisation_ = at.history, at.regularisation
    yield Passed(at.before + at.epoch - 1, at.again, None, at.highest, 0.0, 0.0, 0, weights, optimizer, at)
    everyone, none = np.arange(len(codes)), validation[:0]
    if not at.again:
        yield from _train(learner, X, codes, rows, validation, random, own, stop, weights, optimizer, at)
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
                make(learner, X, codes, rows, none, random, start=at.start, centre=at.centre)
        elif at.highest is not None:
            learner.network_ = weights.best
        if outside.sum() > AGAIN_FROM * len(codes):
            with own.drawn():
                make(learner, X, codes, everyone, none, random, start=at.start, centre=at.centre)
            weights, optimizer = _beginning(learner, own)
            at.again, at.before, at.epoch, at.regularisation = True, at.epoch - 1, 1, learner.regularisation_
    if at.again:
        learner.verdict_ = _verdict(learner, at)
        yield from _train(learner, X, codes, everyone, none, random, own, stop, weights, optimizer, at)


def _train(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    validation: Int64[ndarray, " validation"],
    random: np.random.Generator,
    own: Randomness,
    stop: Callable[[], bool],
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    at: Position,
) -> Iterator[Passed]:
    """All epochs, and keep the best on the validation vectors; again, up to the one that was kept."""
    number = number_of_epochs(learner, len(codes))
    schedule, patience = cosine(number), int(learner.patience or ceil(number / 5))
    learner.network_, learner.n_iter_ = weights.network, at.kept
    last = at.kept if at.again else number
    while at.epoch <= last and (at.again or at.highest is None or at.epoch - 1 - at.kept < patience):
        rate = float(learner.learning_rate) * schedule(at.epoch)
        for group in optimizer.param_groups:
            group["lr"] = rate
        at.order = random.bit_generator.state
        began, before = perf_counter(), at.seconds
        with own.drawn():
            complete = one_pass(learner, X, codes, rows, optimizer, random, at, stop)
        weights.random.copy_(own.state)
        at.seconds = before + perf_counter() - began
        loss, recall, now = at.total / len(rows), None, at.before + at.epoch
        if complete:
            if not at.again:
                recall = _judged(at, learner._found(X, codes, validation)[1])
                at.history.append({"loss": loss, "recall_at_1": recall})
                if recall is None or at.highest is None:
                    at.kept = at.epoch
                elif recall > at.highest:
                    at.kept, at.highest = at.epoch, recall
                    weights.best.load_state_dict(weights.network.state_dict())
                learner.n_iter_ = at.kept
            seconds, at.seconds = at.seconds, 0.0
            at.epoch, at.step, at.total, at.order = at.epoch + 1, 0, 0.0, random.bit_generator.state
        else:
            seconds = at.seconds
        yield Passed(now, at.again, loss, recall, rate, seconds, len(rows), weights, optimizer, at, complete)
        if not complete:
            return


def _judged(at: Position, right: list[float]) -> float | None:
    """R@1 of the epoch that has ended, of which the best so far is remembered class by class."""
    if not at.queries:
        return None
    before = next((name for name in at.right if is_epoch(name)), None)
    if before is None or sum(right) > sum(at.right[before]):
        at.right.pop(before or "", None)
        at.right[f"{EPOCH}{at.epoch}"] = right
    return sum(right) / sum(at.queries)


def _name_of_start(learner: "MetricLearner", start: Start) -> str:
    """What a candidate that begins so is called; one that is no closed form has no name of its own."""
    return "start" if start == "random" or widths(learner.hidden) else WHITENED if start == "whiten" else start


def _verdict(learner: "MetricLearner", at: Position) -> dict[str, Any]:
    """Which of the vectors as they are, the start and the best epoch is kept."""
    return not_judged(f"{EPOCH}{at.kept}") if at.highest is None else learner._judged(at.queries, at.right)


def one_pass(
    learner: "MetricLearner",
    X: ndarray | Rows,  # noqa: N803
    codes: Int64[ndarray, " items"],
    rows: Int64[ndarray, " rows"],
    optimizer: torch.optim.Optimizer,
    random: np.random.Generator,
    at: Position,
    stop: Callable[[], bool] = never,
) -> bool:
    """One pass over the rows in random order, from the step that the position says. False if it was stopped."""
    network = learner.network_
    network.train()
    order, size, complete = random.permutation(rows), int(learner.batch_size), True
    for begin in range(at.step * size, len(order), size):
        chosen = np.sort(order[begin : begin + size])  # a file is read in its order
        inputs = torch.from_numpy(learner._standardised(X, chosen).astype(np.float32))
        loss = learner._loss(network(inputs), torch.from_numpy(codes[chosen]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        at.total += loss.item() * len(chosen)
        at.step += 1
        if stop():
            complete = False
            break
    network.eval()
    # The last step may have lost the weights without the loss having shown it.
    for what, finite in (
        ("loss is not a finite number", isfinite(at.total)),
        ("weights are no finite numbers", all(bool(each.isfinite().all()) for each in network.parameters())),
    ):
        if not finite:
            raise UserError(
                f"the {what}. The likely cause is a learning rate that is too high (now {learner.learning_rate:g}): try"
                " a tenth, by learning_rate in Python or --rate of tammes train; or a weight decay that is (now"
                f" {learner.weight_decay:g})."
            )
    return complete


def number_of_epochs(learner: "MetricLearner", vectors: int) -> int:
    """Those that were asked for, or as many as make enough steps."""
    steps = ceil(vectors / learner.batch_size)
    return int(learner.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, ceil(STEPS / steps))))


def new_optimizer(learner: "MetricLearner") -> torch.optim.Optimizer:
    """AdamW, fused: one pass over the memory instead of a dozen."""
    rate, network = float(learner.learning_rate), learner.network_
    groups = parameter_groups(
        [network], network, rate=rate, backbone_rate=rate, weight_decay=float(learner.weight_decay)
    )
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def _beginning(learner: "MetricLearner", own: Randomness) -> tuple[Weights, torch.optim.Optimizer]:
    return Weights(learner.network_, learner.mean_, learner.scale_, own.state), new_optimizer(learner)


def _gone_on_with(
    run: Run,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    random: np.random.Generator,
    own: Randomness,
    labels: int,
) -> Position:
    """Put everything back as it was when the checkpoint of a run was written."""
    mean, scale = weights.mean.clone(), weights.scale.clone()
    at: Position
    with own.drawn():
        at, _ = load_checkpoint(run, weights, optimizer, Position)
    if at.labels != labels or not torch.equal(mean, weights.mean) or not torch.equal(scale, weights.scale):
        raise UserError(
            f"the vectors are no longer those that {run.folder} was started with. Put them back, or train anew."
        )
    check_random(weights.random, run.checkpoint)
    try:
        random.bit_generator.state = at.order
    except (TypeError, ValueError, KeyError, OverflowError):
        raise UserError(f"the position in {run.checkpoint}: order is no state of what is random. {ANEW}") from None
    checked(at.history, list[Recalled], f"the history in {run.checkpoint}", ANEW)
    if not at.history or (at.highest is None) != (at.history[0]["recall_at_1"] is None):
        raise UserError(f"the history in {run.checkpoint} does not begin with the start. {ANEW}")
    if at.highest is not None:
        candidates_again({"queries": at.queries, "right": at.right, "kept": PRETRAINED}, str(run.checkpoint), ANEW)
    own.state = weights.random.clone()
    return at
