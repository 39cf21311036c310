"""MetricLearner: the scikit-learn estimator."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from tammes.errors import UserError
from tammes.geometry import normalise
from tammes.training.loop import fit
from tammes.training.verdict import PRETRAINED, WHITENED, Candidates, by_class, not_judged
from tammes.vectors import validation
from tammes.vectors.init import make, whitened
from tammes.vectors.loss import placed
from tammes.vectors.model_file import read_learner, write_learner
from tammes.vectors.network import MOST_DIMENSIONS, Network, check_fits
from tammes.vectors.options import (
    Init,
    Method,
    check_classes,
    check_labels,
    check_options,
    classes_given,
    fitting_in_memory,
    labels_given,
    vectors_given,
)
from tammes.vectors.ridge import REGULARISATIONS, Ridge, Sums
from tammes.vectors.statistics import REACH, Rows, Scale, blocks, check_within_reach, mean_and_variance, scales
from tammes.vectors.training import Randomness, VectorObjective, batches, epochs, new_optimizer

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _checked_when_fitted(constructor: _Function) -> _Function:
    """Exclude the constructor from runtime type checks: in scikit-learn, only `fit` validates parameters."""
    constructor.__no_type_check__ = True  # type: ignore[attr-defined]
    return constructor


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learn a map from labelled vectors to unit vectors whose nearest neighbours are of the same class.

    The paper's two layers on vectors instead of images: the vectors are centred and scaled, pass through optional
    `hidden` layers and a linear embedding layer of `dim`; in training, the loss pulls the outputs of a class layer on
    top towards fixed centroids. Time and memory are linear in the number of vectors.

    With 20 classes or more, some are held out for early stopping and validation: R@1 is measured on them for the input
    vectors, the initialisation and each epoch. The best candidate is kept, but a simpler one (the input vectors, then
    the initialisation, then epochs) unless the gain exceeds its standard error over classes. The input vectors have as
    many dimensions as columns, so they are not kept if another `dim` is requested. If more than a twentieth of the
    vectors was held out, the kept candidate is trained again on all vectors, for the same number of epochs. With fewer
    classes, all of them train for all epochs, without validation.

    Args:
        dim: dimension of the embedding. None for the number of columns, from 2 to 256; for ridge, one less than the
            number of classes, up to 256.
        loss: discriminative, hard-discriminative or softmax.
        loss_options: other options of the loss, such as {"push": 0.2}.
        centroids: place, one-hot, kmeans, …: a name of `tammes.centroids.CENTROIDS`.
        centroid_dim: outputs of the class layer. None for one per class, at most 512.
        class_layer: False puts the centroids in the embedding space.
        hidden: width of a hidden layer, or of several; None: the map is linear.
        method: gradient, or ridge: the regression of the vectors on the centroids of their classes (Perrot and
            Habrard 2015) in closed form, without loss or class layer.
        init: initialisation of the first layer: pca, the principal directions of the vectors; whiten, the same after
            within-class whitening; ridge, that method's result; or random.
            auto: whiten, pca or ridge, whichever has the best R@1 on the held-out classes, whiten without them; with
            hidden layers pca.
        centre: whether the initial map is around the mean of the vectors, or around zero, which is often meaningful for
            features of a network. None for the one with the better R@1 on the held-out classes, the mean without them.
            For init pca and whiten; with hidden layers None is the mean.
        scale: "common" divides all columns by the same number, which keeps the directions of the vectors; "columns"
            divides each by its standard deviation, for columns in different units.
        regularisation: λ of ridge divided by the number of vectors. None for the best R@1 on the held-out classes, or
            with too few classes, and in `partial_fit`, the best by generalised cross-validation.
        epochs: passes over the vectors. None for 500 steps, from 3 to 100 epochs.
        batch_size: vectors in a batch.
        learning_rate: initial learning rate of AdamW, with a cosine schedule.
        weight_decay: weight decay; biases have none.
        dropout: dropout rate of the input.
        validation_classes: share of the classes that is held out, at least 5 of them; 0 for none.
        patience: epochs without a better R@1 after which training stops. None for a fifth of all.
        random_state: random seed: order, initial weights, dropout, held-out classes.

    Attributes:
        classes_: the sorted labels.
        held_out_classes_: the held-out classes.
        mean_, scale_: subtracted from each column, and divisor of each column.
        network_: the map of standardised vectors, a torch module; its `body` gives the embedding before normalisation.
        n_iter_: the epoch that was kept, 0 for the initialisation; in `partial_fit` the number of passes.
        history_: mean loss and R@1 on the held-out classes (None without them) of the initialisation and each epoch.
        regularisation_: λ of ridge divided by the number of vectors; None without ridge.
        verdict_: after `fit`, whether training helped on the held-out classes and which candidate was kept: a
            dictionary with kept ("pretrained" for the input vectors, "whitened", "pca", "ridge", or "epoch N"), judged,
            candidates, gain and gain_interval, in points of R@1 as for `tammes train`.

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
        init: Init = "auto",
        centre: bool | None = None,
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
        self.init = init
        self.centre = centre
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
        check_options(self)
        X, y = vectors_given(X), labels_given(y)
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric")
        check_labels(y)
        with fitting_in_memory():
            for _ in epochs(self, X, y):
                pass
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "MetricLearner":  # noqa: N803
        """Learn from more vectors: one pass over them, with a constant learning rate and without early stopping.

        The first call fixes the classes: `classes`, or else those in `y`. For the gradient method it also fixes the
        centring, the scaling and the initialisation, so its vectors should be representative. Ridge accumulates sums:
        the result equals a single call with all vectors. After `fit`, both methods continue from its result. A loaded
        learner cannot continue.
        """
        check_options(self)
        if getattr(self, "_loaded", False):
            raise UserError(
                "a learner that was loaded cannot continue training: its optimizer state is not saved. Start over with"
                " fit."
            )
        first = not hasattr(self, "_loss" if self.method == "gradient" else "_sums")
        X, y = vectors_given(X), labels_given(y)
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric", reset=first)
        check_labels(y)
        named = None if classes is None else classes_given(classes)
        if first:
            self.classes_ = np.unique(y) if named is None else named
            check_classes(self.classes_)
            self._begin(X)
            self.held_out_classes_ = self.classes_[:0]
        else:
            self._back_to_training()
            check_within_reach(X, self.mean_, self.scale_)
            if named is not None and not np.array_equal(named, self.classes_):
                raise UserError("classes are not those of the first call: leave them out, or start over with fit.")
        codes = self._codes(y)
        random = np.random.default_rng([self._seed, self.n_iter_])
        with fitting_in_memory(), Randomness(int(random.integers(2**31))).drawn():
            if self.method == "ridge":
                if first:
                    self._sums = Sums(X.shape[1], len(self.classes_))
                self._sums.add_all(X, codes, None, *self._first)
                self._use(self._regression(self._sums), self.regularisation)
            else:
                rows = np.arange(len(X))
                if first:
                    make(self, X, codes, rows, rows[:0], random, init=self.init, centre=self.centre, all_there=False)
                if not hasattr(self, "_optimizer"):
                    self._optimizer = new_optimizer(self)
                (epoch,) = fit(
                    VectorObjective(self.network_, self._loss),
                    lambda _: batches(self, X, codes, rows, [self._seed, self.n_iter_]),
                    self._optimizer,
                    epochs=1,
                    schedule=lambda *_: 1.0,
                    seed=int(random.integers(2**31)),
                )
                self.network_.eval()
                self.history_.append({"loss": epoch.losses["loss"], "recall_at_1": None})
        self.n_iter_ += 1
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Unit vectors (N, dim), float64 for float64 and otherwise float32. Each depends only on its own row."""
        check_is_fitted(self)
        X = validate_data(self, vectors_given(X), ensure_all_finite=False, dtype="numeric", reset=False)
        dtype = np.float32 if X.dtype.newbyteorder("=") in (np.float16, np.float32) else np.float64
        return self._embedded(X, None, dtype)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """R@1 of the transformed vectors: the share whose nearest other vector has the same class.

        Use other classes than in `fit` to measure how well the metric generalises.
        """
        check_is_fitted(self)
        X, y = vectors_given(X), labels_given(y)
        X, y = validate_data(self, X, y, ensure_all_finite=False, dtype="numeric", reset=False)
        check_labels(y)
        codes = np.unique(y, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return validation.recall(self._embedded(X, None, np.float32), codes)

    def save(self, folder: str | Path) -> None:
        """Write learner.safetensors and learner.json into a folder, each atomically.

        They are sufficient for `transform` and `score`, but not to continue with `partial_fit`.
        """
        check_is_fitted(self)
        write_learner(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> "MetricLearner":
        """Load a learner that was saved in a folder.

        Raises:
            UserError: the files are missing, damaged or invalid.
        """
        learner = cls()
        read_learner(learner, Path(folder))
        return learner

    @property
    def _n_features_out(self) -> int:
        return int(self.network_.dim)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _begin(self, X: ndarray | Rows) -> None:  # noqa: N803
        """Reset the learner, and compute the centring and scaling of the columns."""
        for name in ("_loss", "_loaded", "_optimizer", "_sums", "_targets", "network_", "verdict_", "_trained"):
            self.__dict__.pop(name, None)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.mean_, variance = mean_and_variance(X, self.scale)
        self.scale_ = scales(variance, self.scale)
        self._first = self.mean_, self.scale_  # what ridge adds up in, and then corrects
        self.n_iter_, self.history_ = 0, list[dict[str, Any]]()
        self.regularisation_: float | None = None

    def _validated(
        self,
        X: ndarray | Rows,  # noqa: N803
        codes: Int64[ndarray, " items"],
        validation: Int64[ndarray, " validation"],
    ) -> float | None:
        """R@1 on the held-out classes, if there are any."""
        queries, right = self._found(X, codes, validation)
        return sum(right) / sum(queries) if queries else None

    def _found(
        self,
        X: ndarray | Rows,  # noqa: N803
        codes: Int64[ndarray, " items"],
        validation: Int64[ndarray, " validation"],
        *,
        as_they_are: bool = False,
    ) -> tuple[list[int], list[float]]:
        """The number of vectors of each held-out class, and how many of them have a nearest neighbour of their class.

        Args:
            as_they_are: use the input vectors, compared by cosine, instead of embeddings.
        """
        if not len(validation):
            return [], []
        if as_they_are:
            vectors = normalise(torch.from_numpy(X[validation].astype(np.float64))).numpy()
        else:
            vectors = self._embedded(X, validation, np.float32)
        return by_class(vectors, codes[validation])

    def _back_to_training(self) -> None:
        """Discard the verdict: `partial_fit` continues from the trained weights, not from the kept ones."""
        self.__dict__.pop("verdict_", None)
        trained = self.__dict__.pop("_trained", None)
        if trained is not None:
            self.network_, self.mean_, self.scale_ = trained

    def _use_vectors_as_they_are(self) -> None:
        """Replace the map by the identity."""
        columns = self.n_features_in_
        self._trained = self.network_, self.mean_, self.scale_  # what `partial_fit` continues from
        self.mean_, self.scale_ = np.zeros(columns), np.ones(columns)
        self.network_ = Network(columns, (), columns, None).double().eval()
        torch.nn.init.eye_(self.network_.first.weight)

    def _solve(
        self,
        X: ndarray | Rows,  # noqa: N803
        codes: Int64[ndarray, " items"],
        rows: Int64[ndarray, " rows"],
        validation: Int64[ndarray, " validation"],
        random: np.random.Generator,
    ) -> None:
        """Ridge regression of all rows. Held-out classes choose λ first and are then included.

        They also decide whether ridge is better than the input vectors and than their whitening.
        """
        sums = self._sums = Sums(X.shape[1], len(self.classes_))
        sums.add_all(X, codes, rows, *self._first)
        chosen, best = self.regularisation, (list[int](), list[float]())
        if len(validation):
            regression = self._regression(sums)
            for candidate in reversed(REGULARISATIONS) if chosen is None else [chosen]:
                self._use(regression, candidate)
                found = self._found(X, codes, validation)
                if not best[0] or sum(found[1]) > sum(best[1]):
                    best, chosen = found, candidate
        everyone = np.arange(len(codes))
        sums.add_all(X, codes, np.setdiff1d(everyone, rows, assume_unique=True), *self._first)
        self.verdict_ = not_judged("ridge")
        if len(validation):
            right = {PRETRAINED: self._found(X, codes, validation, as_they_are=True)[1]}
            self.mean_, self.scale_ = self._first
            self.network_ = whitened(self, X, codes, rows, random)
            right |= {WHITENED: self._found(X, codes, validation)[1], "ridge": best[1]}
            self.verdict_ = self._judged(best[0], right)
        self._use(self._regression(sums), chosen)
        if self.verdict_["kept"] == WHITENED:
            self.mean_, self.scale_ = self._first
            self.network_ = whitened(self, X, codes, everyone, random)
        elif self.verdict_["kept"] == PRETRAINED:
            self._use_vectors_as_they_are()

    def _judged(self, queries: list[int], right: Mapping[str, list[float]]) -> dict[str, Any]:
        """The verdict on candidates, the simplest first. Input vectors cannot be kept in another dimension."""
        candidates = Candidates()
        for name, each in right.items():
            if name == PRETRAINED and self.dim is not None and int(self.dim) != self.n_features_in_:
                candidates.queries, candidates.right[name] = queries, each
            else:
                candidates.add(name, queries, each)
        return candidates.verdict()

    def _regression(self, sums: Sums) -> Ridge:
        """The regression of the accumulated sums onto the centroids, which are generated once."""
        if not hasattr(self, "_targets"):
            classes = len(self.classes_)
            dim = int(self.dim or min(MOST_DIMENSIONS, max(1, classes - 1)))
            check_fits(len(self.mean_), dim, classes)
            self._targets = placed(self.centroids, classes, dim, self._seed)
        return Ridge(sums, self._targets, self.scale)

    def _use(self, regression: Ridge, regularisation: float | None) -> None:
        """Set the network to the result of a regression."""
        chosen = self.regularisation_ = regularisation or regression.best_by_cross_validation()
        mean, scale = self._first
        self.mean_, self.scale_ = mean + scale * regression.mean, scale * regression.scale
        self.network_ = Network(len(mean), (), regression.targets.shape[1], None).double().eval()
        with torch.no_grad():
            self.network_.first.weight.copy_(torch.from_numpy(regression.map(chosen).T))

    def _standardised(
        self,
        X: ndarray | Rows,  # noqa: N803
        rows: Int64[ndarray, " rows"] | slice,
    ) -> Float64[ndarray, "rows columns"]:
        return np.asarray((X[rows].astype(np.float64) - self.mean_) / self.scale_)

    def _embedded(
        self,
        X: ndarray | Rows,  # noqa: N803
        rows: Int64[ndarray, " rows"] | None,
        dtype: Any,
    ) -> Float[ndarray, "rows dim"]:
        """Unit vectors of the given rows, or of all."""
        found = np.empty((len(X) if rows is None else len(rows), self.network_.dim), dtype=dtype)
        for part, block in self._embedded_blocks(X, rows):
            found[part] = block
        return found

    def _embedded_blocks(
        self,
        X: ndarray | Rows,  # noqa: N803
        rows: Int64[ndarray, " rows"] | None = None,
    ) -> Iterator[tuple[slice, Float64[ndarray, "block dim"]]]:
        """Unit vectors in blocks. In float64, so that results do not depend on the blocks."""
        network = deepcopy(self.network_).double().eval()
        for part in blocks(len(X) if rows is None else len(rows), X.shape[1]):
            with np.errstate(over="ignore"):
                inputs = self._standardised(X, part if rows is None else rows[part])
            if not (np.abs(inputs) <= REACH).all():
                check_within_reach(X if rows is None else Rows(X, rows), self.mean_, self.scale_)
            with torch.no_grad():
                yield part, normalise(network.body(torch.from_numpy(inputs))).numpy()

    def _codes(self, y: ndarray) -> Int64[ndarray, " items"]:
        """The index of each label in `classes_`."""
        names, own = np.unique(y, return_inverse=True)
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        for name in names.tolist():
            if name not in places:
                raise UserError(
                    f"y holds the class {name!r}, which the first call did not name. "
                    "Name all classes there: partial_fit(X, y, classes=…)."
                )
        return np.array([places[name] for name in names.tolist()], dtype=np.int64)[own.reshape(-1)]
