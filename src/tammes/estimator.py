"""MetricLearner: a better metric on vectors that are there already, as a scikit-learn estimator.

Vectors of any model go in, unit vectors come out that are close together where the class is the same, also for classes
that were never seen. Nothing is copied whole: an array that is mapped into memory may be larger than it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import ceil, isfinite
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, cast, get_args
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer
from numpy import ndarray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tammes.centroids import CENTROIDS
from tammes.errors import UserError, unknown_name
from tammes.geometry import normalise
from tammes.losses import LOSSES
from tammes.metrics import evaluate
from tammes.training import cosine, parameter_groups

Method = Literal["gradient", "ridge"]
Start = Literal["auto", "whiten", "pca", "ridge", "random"]
Scale = Literal["common", "columns"]

MOST_DIMENSIONS = 256  # of an embedding, where it is not said; the paper's
MOST_OUTPUTS = 512  # of the class layer: the loss costs classes × outputs for every vector
MOST_SAMPLED = 512  # classes that a batch is repelled from, where the loss can draw them
STEPS = 500  # of an optimizer, where the epochs are not said
FEWEST_EPOCHS, MOST_EPOCHS = 3, 100
FEWEST_HELD_OUT = 5  # classes; a recall over fewer is noise
MOST_HELD_OUT = 4000  # vectors: a recall costs the square of them, after every epoch
AGAIN_FROM = 0.05  # share of the vectors that were held out from which training again on all is worth the time
MOST_TO_START = 16384  # vectors that decide the principal directions
REGULARISATIONS: tuple[float, ...] = tuple(10.0 ** (n / 2) for n in range(-6, 7))  # those that ridge tries
_BLOCK = 1 << 21  # numbers that are looked at together: 16 MB of float64

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _checked_when_fitted(constructor: _Function) -> _Function:
    """scikit-learn wants anything to pass a constructor and `fit` to complain: the tests' type checks look away."""
    constructor.__no_type_check__ = True  # type: ignore[attr-defined]
    return constructor


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learn from labelled vectors a map to unit vectors whose nearest neighbours are of the same class.

    The paper's two layers on top of vectors instead of images: the vectors are centred and scaled, go through `hidden`
    layers, if any, and a linear layer of `dim`, the embedding; for training a class layer on top of it is drawn to
    fixed centroids by the loss. Time and memory are linear in the number of vectors.

    From 20 classes on, some of them are held out to stop early: after each epoch R@1 is measured on them, and the best
    epoch is kept, which can be the start. Where that was more than a twentieth of the vectors, the network is then
    trained again on all of them, for as many epochs. With fewer classes all of them train, for all epochs.

    Args:
        dim: length of the embedding. None: as many as the vectors have columns, from 2 to 256; for ridge, one less than
            the classes, up to 256.
        loss: discriminative, hard-discriminative or softmax.
        loss_options: other options of the loss, such as {"push": 0.2}.
        centroids: place, one-hot, kmeans, …: a name of `tammes.centroids.CENTROIDS`.
        centroid_dim: outputs of the class layer. None: one for each class, but not more than 512.
        class_layer: without one the centroids are those of the embedding itself.
        hidden: width of a hidden layer, or of several; None: the map is linear.
        method: gradient, or ridge: the regression of the vectors on the centroids of their classes (Perrot and
            Habrard 2015) in closed form, without loss or class layer.
        start: what the first layer begins as: pca, the principal directions of the vectors; whiten, the same after
            directions in which a class varies much have been made short; ridge, that method's result; or random.
            auto: whiten or pca, whichever has the better R@1 on the held-out classes, whiten without them; with
            hidden layers pca.
        scale: common divides all columns by the same number, which keeps the directions of vectors that a network
            made; columns divides each by its own standard deviation, for columns in units of their own.
        regularisation: of ridge: λ divided by the number of vectors. None: that with the best R@1 on the held-out
            classes, or with too few classes, and in `partial_fit`, the best by generalised cross-validation.
        epochs: passes over the vectors. None: as many as make 500 steps, from 3 to 100.
        batch_size: vectors.
        learning_rate: of AdamW in the first epoch; it falls along a cosine.
        weight_decay: of all weights, not of biases.
        dropout: share of the numbers of each vector that are hidden from the network in training.
        validation_classes: share of the classes that is held out, at least 5 of them; 0: none.
        patience: epochs without a better R@1 after which training stops. None: a fifth of all.
        random_state: seed of all that is random: order, starting weights, dropout, which classes are held out.

    Attributes:
        classes_: the labels that were seen, sorted.
        held_out_classes_: those of them that R@1 was measured on.
        mean_, scale_: what is taken from each column, and what it is then divided by.
        network_: the map from there, a torch module; its `body` gives the embedding before it has unit length.
        n_iter_: the epoch that was kept, 0 for the start; in `partial_fit` the number of passes.
        history_: mean loss and R@1 on the held-out classes, None without them: of the start, then of each epoch.
        regularisation_: λ of ridge divided by the number of vectors; None where ridge was not used.

    >>> from sklearn.datasets import load_digits
    >>> vectors, labels = load_digits(return_X_y=True)
    >>> learner = MetricLearner(random_state=0).fit(vectors[labels < 5], labels[labels < 5])
    >>> learner.transform(vectors).shape, bool(learner.score(vectors[labels > 4], labels[labels > 4]) > 0.97)
    ((1797, 64), True)
    """

    @_checked_when_fitted
    def __init__(
        self,
        dim: int | None = None,
        *,
        loss: str = "discriminative",
        loss_options: Mapping[str, Any] | None = None,
        centroids: str = "place",
        centroid_dim: int | None = None,
        class_layer: bool = True,
        hidden: int | Sequence[int] | None = None,
        method: Method = "gradient",
        start: Start = "auto",
        scale: Scale = "common",
        regularisation: float | None = None,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 3e-3,
        weight_decay: float = 5e-4,
        dropout: float = 0.5,
        validation_classes: float = 0.2,
        patience: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.dim = dim
        self.loss = loss
        self.loss_options = loss_options
        self.centroids = centroids
        self.centroid_dim = centroid_dim
        self.class_layer = class_layer
        self.hidden = hidden
        self.method = method
        self.start = start
        self.scale = scale
        self.regularisation = regularisation
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.validation_classes = validation_classes
        self.patience = patience
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "MetricLearner":  # noqa: N803
        """Learn from vectors (N, columns), an array or a data frame, and their labels (N,), numbers or text."""
        self._check_options()
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric")
        _check_labels(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        _check_classes(self.classes_)
        codes = codes.reshape(-1).astype(np.int64)
        self._begin(X)
        random = np.random.default_rng(self._seed)
        held = _held_out(codes, self.validation_classes, random)
        self.held_out_classes_ = self.classes_[held]
        outside = np.isin(codes, held)
        rows, validation = np.flatnonzero(~outside), np.flatnonzero(outside)
        if len(validation) > MOST_HELD_OUT:
            validation = np.sort(random.choice(validation, MOST_HELD_OUT, replace=False))
        with _own_randomness(self._seed):
            if self.method == "ridge":
                self._solve(X, codes, rows, validation)
            else:
                start = self._make(X, codes, rows, validation, random, start=self.start, sizes=np.bincount(codes))
                self._train(X, codes, rows, validation, random)
                if outside.sum() > AGAIN_FROM * len(codes):
                    rows, none = np.arange(len(codes)), validation[:0]
                    self._make(X, codes, rows, none, random, start=start, sizes=np.bincount(codes))
                    self._train(X, codes, rows, none, random, last=self.n_iter_)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "MetricLearner":  # noqa: N803
        """Learn from some more vectors: one pass over them, at a constant learning rate and without early stopping.

        The first call decides the classes: those in `classes`, or else those in its `y`. For the gradient method it
        also decides, once for all, how vectors are centred and scaled and what the network starts from, so its vectors
        should be a fair sample. Ridge adds everything up: after the last call it is what one call with all vectors
        would have made. After `fit` both go on from there.
        """
        self._check_options()
        first = not hasattr(self, "_loss" if self.method == "gradient" else "_sums")
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric", reset=first)
        _check_labels(y)
        if first:
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
            _check_classes(self.classes_)
            self._begin(X)
            self.held_out_classes_ = self.classes_[:0]
        else:
            _check_finite(X)
            if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
                raise UserError("classes are not those of the first call: leave them out, or begin anew with fit.")
        codes = self._codes(y)
        random = np.random.default_rng([self._seed, self.n_iter_])
        with _own_randomness(int(random.integers(2**31))):
            if self.method == "ridge":
                if first:
                    self._sums = _Sums(X.shape[1], len(self.classes_))
                self._sums.add_all(X, codes, None, *self._first)
                self._use(self._regression(self._sums), self.regularisation)
            else:
                if first:
                    self._make(X, codes, np.arange(len(X)), np.arange(0), random, start=self.start, sizes=None)
                if not hasattr(self, "_optimizer"):
                    self._optimizer = self._new_optimizer()
                loss = self._pass(X, codes, np.arange(len(X)), self._optimizer, random)
                self.history_.append({"loss": loss, "recall_at_1": None})
        self.n_iter_ += 1
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Unit vectors (N, dim): float64 for float64, or else float32. Each depends on its own row alone."""
        check_is_fitted(self)
        X = validate_data(self, X, ensure_all_finite=False, dtype="numeric", reset=False)
        _check_finite(X)
        dtype = np.float32 if X.dtype in (np.float16, np.float32) else np.float64
        return self._embedded(X, None, dtype)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """R@1 of the transformed vectors: the share whose nearest other vector is of their class.

        The classes need not be those of `fit`: measure on others to see how good the metric is.
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric", reset=False)
        _check_finite(X)
        codes = np.unique(y, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return _recall(self._embedded(X, None, np.float32), codes)

    @property
    def _n_features_out(self) -> int:
        return int(self.network_.dim)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _begin(self, X: ndarray) -> None:  # noqa: N803
        """Forget what was learned before, and find how the columns are centred and scaled."""
        for name in ("_loss", "_optimizer", "_sums", "_targets", "network_"):
            self.__dict__.pop(name, None)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.mean_, variance = _mean_and_variance(X)
        self.scale_ = _scales(variance, self.scale)
        self._first = self.mean_, self.scale_  # what ridge adds up in, and then corrects
        self.n_iter_, self.history_ = 0, list[dict[str, Any]]()
        self.regularisation_: float | None = None

    def _make(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"],
        validation: Int64[ndarray, " validation"],
        random: np.random.Generator,
        *,
        start: Start,
        sizes: Int64[ndarray, " classes"] | None,
    ) -> Start:
        """The network and the loss before training; and what `start` came to."""
        classes, columns = len(self.classes_), X.shape[1]
        dim = int(self.dim or min(MOST_DIMENSIONS, max(2, columns)))
        softmax = self.loss == "softmax"
        one_each = classes <= MOST_OUTPUTS or self.centroids == "one-hot" or softmax
        outputs = int(self.centroid_dim or (classes if one_each else MOST_OUTPUTS)) if self.class_layer else None
        self.network_ = _Network(columns, _widths(self.hidden), dim, outputs, float(self.dropout))
        centroids = None if softmax else _centroids(self.centroids, classes, outputs or dim, self._seed)
        self._loss = self._make_loss(classes, outputs, centroids, sizes)
        if start in ("auto", "whiten", "pca"):
            sample = _spread(codes, rows, random)
            vectors = self._standardised(X, sample)
            kinds: list[Start] = [start]
            if start == "auto":
                kinds = ["pca"] if _widths(self.hidden) else ["pca", "whiten"] if len(validation) else ["whiten"]
            recalls = []
            for kind in kinds:
                self.network_.start_from(_directions(vectors, codes[sample] if kind == "whiten" else None))
                recalls.append(self._validated(X, codes, validation) or 0.0)
            start = kinds[int(np.argmax(recalls))]
            if start != kinds[-1]:
                self.network_.start_from(_directions(vectors, None))
        elif start == "ridge":
            sums = _Sums(columns, classes)
            sums.add_all(X, codes, rows, *self._first)
            regression = _Ridge(sums, _centroids(self.centroids, classes, dim, self._seed), self.scale)
            chosen = self.regularisation_ = self.regularisation or regression.best_by_cross_validation()
            goal = torch.eye(classes) if centroids is None else centroids
            self.network_.start_from_ridge(regression, chosen, goal)
        return start

    def _make_loss(
        self,
        classes: int,
        outputs: int | None,
        centroids: Float[Tensor, "classes dim"] | None,
        sizes: Int64[ndarray, " classes"] | None,
    ) -> nn.Module:
        given = dict(self.loss_options or {})
        first: Any = classes
        if self.loss == "softmax":
            if outputs != classes:
                raise UserError(
                    f"loss='softmax' needs a class layer with one output for each of {classes} classes. "
                    "Leave class_layer and centroid_dim out."
                )
        else:
            assert centroids is not None
            if not (self.centroids == "one-hot" and centroids.shape[1] == classes):  # these take no matrix product
                first = centroids
            given = {"class_sizes": None if sizes is None else sizes.tolist()} | given
        if self.loss == "discriminative" and classes > MOST_SAMPLED and first is centroids:
            given = {"sample_classes": MOST_SAMPLED} | given
        try:
            return LOSSES[self.loss](first, **given)
        except TypeError as error:
            raise UserError(f"loss_options do not suit loss={self.loss!r}: {error}.") from None

    def _train(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"],
        validation: Int64[ndarray, " validation"],
        random: np.random.Generator,
        *,
        last: int | None = None,
    ) -> None:
        """All epochs, and keep the best on the validation vectors; without these, up to the last."""
        steps = ceil(len(codes) / self.batch_size)
        epochs = int(self.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, ceil(STEPS / steps))))
        optimizer, schedule = self._new_optimizer(), cosine(epochs)
        again, best = last is not None, deepcopy(self.network_)
        highest = self._validated(X, codes, validation)
        if not again:
            self.history_.append({"loss": None, "recall_at_1": highest})
        for epoch in range(1, 1 + (epochs if last is None else last)):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * schedule(epoch)
            loss = self._pass(X, codes, rows, optimizer, random)
            if again:
                continue
            recall = self._validated(X, codes, validation)
            self.history_.append({"loss": loss, "recall_at_1": recall})
            if recall is None or highest is None:
                self.n_iter_ = epoch
            elif recall > highest:
                self.n_iter_, highest, best = epoch, recall, deepcopy(self.network_)
            elif epoch - self.n_iter_ >= (self.patience or ceil(epochs / 5)):
                break
        if highest is not None:
            self.network_ = best

    def _validated(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        validation: Int64[ndarray, " validation"],
    ) -> float | None:
        """R@1 on the vectors that are held out, if there are any."""
        return _recall(self._embedded(X, validation, np.float32), codes[validation]) if len(validation) else None

    def _pass(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"],
        optimizer: torch.optim.Optimizer,
        random: np.random.Generator,
    ) -> float:
        """One pass over the rows in random order, and their mean loss.

        Not `tammes.training.fit`, which seeds torch and sets up accelerate for the whole process: a guest in somebody's
        notebook leaves both alone.
        """
        self.network_.train()
        order, total = random.permutation(rows), torch.zeros((), dtype=torch.float64)
        for begin in range(0, len(order), self.batch_size):
            chosen = np.sort(order[begin : begin + self.batch_size])  # a file is read in its order
            inputs = torch.from_numpy(self._standardised(X, chosen).astype(np.float32))
            loss = self._loss(self.network_(inputs), torch.from_numpy(codes[chosen]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach().double() * len(chosen)
        self.network_.eval()
        if not isfinite(total.item()):
            raise UserError(
                f"the loss is not a finite number. The likely cause is a learning rate that is too high (now "
                f"{self.learning_rate:g}): try a tenth."
            )
        return total.item() / len(order)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        rate = float(self.learning_rate)
        groups = parameter_groups(
            [self.network_], self.network_, rate=rate, backbone_rate=rate, weight_decay=float(self.weight_decay)
        )
        return torch.optim.AdamW(groups, lr=rate, fused=True)

    def _solve(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"],
        validation: Int64[ndarray, " validation"],
    ) -> None:
        """Ridge regression of all rows; where there are held-out classes, these choose λ first, and then count too."""
        sums = self._sums = _Sums(X.shape[1], len(self.classes_))
        sums.add_all(X, codes, rows, *self._first)
        chosen = self.regularisation
        if chosen is None and len(validation):
            regression, best = self._regression(sums), -1.0
            for candidate in reversed(REGULARISATIONS):
                self._use(regression, candidate)
                recall = self._validated(X, codes, validation) or 0.0
                if recall > best:
                    best, chosen = recall, candidate
        outside = np.setdiff1d(np.arange(len(codes)), rows, assume_unique=True)
        sums.add_all(X, codes, outside, *self._first)
        self._use(self._regression(sums), chosen)

    def _regression(self, sums: "_Sums") -> "_Ridge":
        """The regression of what was added up on the centroids, which are placed once."""
        if not hasattr(self, "_targets"):
            classes = len(self.classes_)
            dim = int(self.dim or min(MOST_DIMENSIONS, max(1, classes - 1)))
            self._targets = _centroids(self.centroids, classes, dim, self._seed)
        return _Ridge(sums, self._targets, self.scale)

    def _use(self, regression: "_Ridge", regularisation: float | None) -> None:
        """Make the network that of a regression."""
        chosen = self.regularisation_ = regularisation or regression.best_by_cross_validation()
        mean, scale = self._first
        self.mean_, self.scale_ = mean + scale * regression.mean, scale * regression.scale
        self.network_ = _Network(len(mean), (), regression.targets.shape[1], None).double().eval()
        with torch.no_grad():
            self.network_.first.weight.copy_(torch.from_numpy(regression.map(chosen).T))

    def _standardised(
        self,
        X: ndarray,  # noqa: N803
        rows: Int64[ndarray, " rows"] | slice,
    ) -> Float64[ndarray, "rows columns"]:
        return np.asarray((X[rows].astype(np.float64) - self.mean_) / self.scale_)

    @torch.no_grad()
    def _embedded(
        self,
        X: ndarray,  # noqa: N803
        rows: Int64[ndarray, " rows"] | None,
        dtype: Any,
    ) -> Float[ndarray, "rows dim"]:
        """Unit vectors of some rows, or all. In float64, so that it does not matter what else is in a block."""
        network = deepcopy(self.network_).double().eval()
        count = len(X) if rows is None else len(rows)
        found = np.empty((count, network.dim), dtype=dtype)
        for part in _blocks(count, X.shape[1]):
            inputs = self._standardised(X, part if rows is None else rows[part])
            found[part] = normalise(network.body(torch.from_numpy(inputs))).numpy()
        return found

    def _codes(self, y: ndarray) -> Int64[ndarray, " items"]:
        """The place of each label among the classes."""
        names, own = np.unique(y, return_inverse=True)
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        for name in names.tolist():
            if name not in places:
                raise UserError(
                    f"y holds the class {name!r}, which the first call did not name. "
                    "Name all classes there: partial_fit(X, y, classes=…)."
                )
        return np.array([places[name] for name in names.tolist()], dtype=np.int64)[own.reshape(-1)]

    def _check_options(self) -> None:
        for option, known in (
            ("loss", LOSSES),
            ("centroids", CENTROIDS),
            ("method", get_args(Method)),
            ("start", get_args(Start)),
            ("scale", get_args(Scale)),
        ):
            if not isinstance(getattr(self, option), str) or getattr(self, option) not in known:
                raise unknown_name(option, str(getattr(self, option)), known)
        for option in ("dim", "centroid_dim", "epochs", "batch_size", "patience"):
            _check_number(option, getattr(self, option), optional=option != "batch_size")
        for option, least, below in (("learning_rate", None, None), ("weight_decay", 0.0, None),
                                     ("dropout", 0.0, 1.0), ("validation_classes", 0.0, 1.0)):  # fmt: skip
            _check_share(option, getattr(self, option), least, below)
        if self.regularisation is not None:
            _check_share("regularisation", self.regularisation, None, None)
        widths = _widths(self.hidden)
        for name, value in (("method", self.method), ("start", self.start)):
            if widths and value == "ridge":
                raise UserError(f"{name}='ridge' is a linear map and has no hidden layers. Leave hidden out.")


class _Network(nn.Module):
    """Vectors that are centred and scaled -> hidden layers -> embedding; and in training -> class layer."""

    def __init__(
        self, columns: int, hidden: tuple[int, ...], dim: int, outputs: int | None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        layers: list[nn.Module] = []
        for before, after in zip((columns, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else columns, dim))
        self.class_layer = None if outputs is None else nn.Linear(dim, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @property
    def first(self) -> nn.Linear:
        """The layer that takes the vectors."""
        return cast(nn.Linear, self.body[0])

    def forward(self, inputs: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch outputs"]:
        """What the loss compares with the centroids."""
        embedding: Tensor = self.body(self.dropout(inputs))
        return embedding if self.class_layer is None else self.class_layer(embedding)

    @torch.no_grad()
    def start_from(self, directions: Float64[ndarray, "columns directions"]) -> None:
        """Let the first layer begin as these directions; where it is wider, the embedding has zeros behind them."""
        weight = self.first.weight
        number = min(len(weight), directions.shape[1])
        if len(self.body) == 1:
            weight.zero_()
        weight[:number] = torch.from_numpy(directions[:, :number].T.copy()).to(weight)

    @torch.no_grad()
    def start_from_ridge(
        self, regression: "_Ridge", regularisation: float, goal: Float[Tensor, "classes outputs"]
    ) -> None:
        """Let the embedding begin as the regression, and the class layer as the map of its centroids to the goal."""
        found = regression.map(regularisation)  # (columns, dim)
        length = np.sqrt(max(np.sum((regression.gram @ found) * found) / regression.count, 1e-30))
        weight = self.first.weight
        weight.copy_(torch.from_numpy((found / length).T))  # of length 1 on average, as what the rate is made for
        if self.class_layer is not None:
            self.class_layer.weight.copy_((torch.from_numpy(np.linalg.pinv(regression.targets)).to(goal) @ goal).T)


class _Sums:
    """What ridge needs of the vectors: counts, sums by class, and products, added up in float64."""

    def __init__(self, columns: int, classes: int) -> None:
        self.counts = np.zeros(classes)
        self.by_class = np.zeros((classes, columns))
        self.products = np.zeros((columns, columns))

    def add_all(
        self,
        X: ndarray,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"] | None,
        mean: Float64[ndarray, " columns"],
        scale: Float64[ndarray, " columns"],
    ) -> None:
        for part in _blocks(len(X) if rows is None else len(rows), X.shape[1]):
            chosen = part if rows is None else rows[part]
            block, own = (X[chosen].astype(np.float64) - mean) / scale, codes[chosen]
            one_each = csr_array((np.ones(len(own)), (own, np.arange(len(own)))), shape=(len(self.counts), len(own)))
            self.counts += np.bincount(own, minlength=len(self.counts))
            self.by_class += one_each @ block
            self.products += block.T @ block


class _Ridge:
    """W = (X'X + λ I)^-1 X'V for every λ at the cost of one, X being centred and scaled by what the sums say now.

    A row of V is the centroid of the vector's class, so that X'V needs no more of X than its sums by class.
    """

    def __init__(self, sums: _Sums, centroids: Float[Tensor, "classes dim"], scale: Scale) -> None:
        self.count, self.targets = float(sums.counts.sum()), centroids.double().numpy()
        self.mean = sums.by_class.sum(axis=0) / self.count
        gram = sums.products - self.count * np.outer(self.mean, self.mean)
        self.scale = _scales(np.diag(gram).clip(min=0) / self.count, scale, least=1e-18)
        self.gram = gram / np.outer(self.scale, self.scale)  # X'X
        by_class = (sums.by_class - sums.counts[:, None] * self.mean) / self.scale
        self.values, self.vectors = np.linalg.eigh(self.gram)
        self.values = self.values.clip(min=0)
        self.projected = self.vectors.T @ (by_class.T @ self.targets)  # (columns, dim): X'V along the eigenvectors
        centred = self.targets - sums.counts @ self.targets / self.count
        self.spread = float(sums.counts @ np.square(centred).sum(axis=1))

    def map(self, regularisation: float) -> Float64[ndarray, "columns dim"]:
        """W for λ = regularisation × vectors."""
        return np.asarray(self.vectors @ (self.projected / (self.values + regularisation * self.count)[:, None]))

    def best_by_cross_validation(self) -> float:
        """The regularisation with the least error of vectors left out, all leverages being taken as their mean.

        Generalised cross-validation (Golub, Heath and Wahba 1979), which needs the sums only.
        """
        powers = np.square(self.projected).sum(axis=1)  # (columns,)
        errors = []
        for candidate in REGULARISATIONS:
            damped = self.values + candidate * self.count
            residual = self.spread - float((powers * (2 / damped - self.values / damped**2)).sum())
            errors.append(residual / (1 - float((self.values / damped).sum()) / self.count) ** 2)
        return REGULARISATIONS[int(np.argmin(errors))]


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """torch's own generator seeded in here, and afterwards as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _blocks(count: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK // columns)
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def _check_finite(X: ndarray) -> None:  # noqa: N803
    if X.dtype.kind != "f":
        return
    for part in _blocks(*X.shape):
        _check_block(X[part], part.start)


def _check_block(block: ndarray, begin: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise UserError(
            f"X holds NaN or infinity in row {begin + row}, column {column}. Fill it in, or leave the row out."
        )


def _mean_and_variance(X: ndarray) -> tuple[Float64[ndarray, " columns"], Float64[ndarray, " columns"]]:  # noqa: N803
    """Of each column, in one pass; refuses what is not finite."""
    # Measured from the first row: a constant column is then exactly zero, and a large mean costs no digits.
    _check_block(X[:1], 0)
    first = X[0].astype(np.float64)
    total, squares = np.zeros(len(first)), np.zeros(len(first))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(*X.shape):
            _check_block(X[part], part.start)
            block = X[part].astype(np.float64) - first
            total += block.sum(axis=0)
            squares += np.einsum("ij,ij->j", block, block)
        away = total / len(X)
        variance = squares / len(X) - away**2
    if not np.isfinite(variance).all():
        column = int((~np.isfinite(variance)).argmax())
        raise UserError(f"the numbers in column {column} of X are so large that their squares overflow. Scale X down.")
    return first + away, variance.clip(min=0)


def _scales(variance: Float64[ndarray, " columns"], scale: Scale, least: float = 0.0) -> Float64[ndarray, " columns"]:
    """What each column is divided by; a constant one by 1."""
    variance = np.full_like(variance, variance.mean()) if scale == "common" else variance
    return np.sqrt(np.where(variance > least, variance, 1.0))


def _held_out(codes: Int64[ndarray, " items"], share: float, random: np.random.Generator) -> Int64[ndarray, " held"]:
    """Classes to measure R@1 on: the share of all, at least 5, and not many more vectors than `MOST_HELD_OUT`."""
    sizes = np.bincount(codes)
    candidates = np.flatnonzero(sizes > 1)  # a single vector has nothing to find
    number = max(FEWEST_HELD_OUT, round(share * len(sizes)))
    if share == 0 or len(sizes) < 4 * FEWEST_HELD_OUT or len(candidates) < number or number > len(sizes) - 2:
        return candidates[:0]
    chosen = random.permutation(candidates)[:number]
    fitting = int((np.cumsum(sizes[chosen]) <= MOST_HELD_OUT).sum())
    return np.sort(chosen[: max(FEWEST_HELD_OUT, fitting)])


def _recall(vectors: Float[ndarray, "items dim"], codes: Integer[ndarray, " items"]) -> float:
    return float(evaluate(vectors, codes, ks=(1,), clustering=False, bootstrap=0)["recall_at_1"])


def _spread(
    codes: Int64[ndarray, " items"], rows: Int64[ndarray, " rows"], random: np.random.Generator
) -> Int64[ndarray, " chosen"]:
    """Not many more than `MOST_TO_START` of the rows: the same number of each class, or all of some classes."""
    if len(rows) <= MOST_TO_START:
        return rows
    shuffled = random.permutation(rows)
    rank = random.permutation(int(codes.max()) + 1)[codes[shuffled]]
    order = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[order], rank[order])  # where the class of each begins
    each = max(16, MOST_TO_START // len(np.unique(rank)))
    return np.sort(shuffled[order[np.arange(len(rows)) - first < each]][:MOST_TO_START])


def _directions(
    vectors: Float64[ndarray, "items columns"], codes: Int64[ndarray, " items"] | None
) -> Float64[ndarray, "columns directions"]:
    """Principal directions, the one along which the vectors vary most first.

    With labels, of the vectors after each direction has been divided by how much the members of a class differ in it.
    A direction in which they hardly do is not blown up: their mean variance is added to that of every direction.
    """
    centred = vectors - vectors.mean(axis=0)
    total = centred.T @ centred
    if codes is None:
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    _, own, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    member = csr_array((np.ones(len(own)), (own.reshape(-1), np.arange(len(own)))), shape=(len(sizes), len(own)))
    apart = centred - ((member @ centred) / sizes[:, None])[own.reshape(-1)]
    values, turn = np.linalg.eigh(apart.T @ apart)
    damped = values.clip(min=0) + values.mean()
    if not damped.min() > 0:  # no class has two different vectors
        return np.asarray(np.linalg.eigh(total)[1][:, ::-1])
    shrink = turn / np.sqrt(damped)  # (columns, columns)
    whitened = shrink.T @ total @ shrink
    found = shrink @ np.linalg.eigh(whitened)[1][:, ::-1]
    return np.asarray(found * np.sqrt(np.trace(total) / np.trace(whitened)))  # vectors as long as before


def _centroids(kind: str, classes: int, dim: int, seed: int) -> Float[Tensor, "classes dim"]:
    try:
        return CENTROIDS[kind](classes, dim, generator=torch.Generator().manual_seed(seed))
    except UserError as error:
        raise UserError(f"centroids={kind!r} for {classes} classes in {dim} dimensions: {error}") from None


def _widths(hidden: Any) -> tuple[int, ...]:
    given = () if hidden is None else (hidden,) if isinstance(hidden, Integral) else hidden
    if isinstance(given, str) or not isinstance(given, Sequence | ndarray):
        raise UserError(f"hidden must be a width or several, such as 512 or (512, 512), got {hidden!r}.")
    for width in given:
        _check_number("hidden", width)
    return tuple(int(width) for width in given)


def _check_labels(y: ndarray) -> None:
    with catch_warnings():
        # That few vectors of a class look like a regression to it: here two of a class are enough.
        filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)
        check_classification_targets(y)


def _check_classes(classes: ndarray) -> None:
    if len(classes) < 2:
        raise UserError(
            f"y holds 1 class, {classes.tolist()[0]!r}. A metric is learned from at least 2: add vectors of others."
        )


def _check_number(option: str, value: Any, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise UserError(f"{option} must be a whole number from 1 up{', or None' * optional}, got {value!r}.")


def _check_share(option: str, value: Any, least: float | None, below: float | None) -> None:
    """Refuse what is no number, below `least` (or, without one, not above 0), or not below `below`."""
    good = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    good = good and (value > 0 if least is None else value >= least) and (below is None or value < below)
    if not good:
        lower = "above 0" if least is None else f"{least:g} or more"
        upper = "" if below is None else f" and below {below:g}"
        raise UserError(f"{option} must be a number {lower}{upper}, got {value!r}.")
