"""MetricLearner: scikit-learn's own checks, doubles of what it computes, and that nothing is copied whole."""

import re
import runpy
import sys
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from benchmarks import estimators as benchmark
from tammes import MetricLearner, UserError, centroids
from tammes.training import verdict
from tammes.vectors import statistics, training, validation
from tammes.vectors.init import spread
from tammes.vectors.ridge import REGULARISATIONS
from tests.test_architecture import ROOT

Array = NDArray[Any]


# Few epochs: what is checked does not depend on them. No check is expected to fail. scikit-learn itself skips one, that
# of arrays of other libraries, where SCIPY_ARRAY_API is not set before scipy is imported; we take what numpy can read.
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        MetricLearner(epochs=2),
        MetricLearner(method="ridge"),
        MetricLearner(hidden=8, loss="softmax", scale="columns", epochs=2),
    ]
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(
    classes: int = 6, each: int = 10, columns: int = 8, seed: int = 0, spread: float = 0.4
) -> tuple[Array, Array]:
    """Classes that differ in half of the columns; the other half is noise of twice their size, all off centre."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    centres = random.normal(size=(classes, columns)) * (np.arange(columns) < columns // 2)
    noise = random.normal(size=(len(labels), columns)) * np.where(np.arange(columns) < columns // 2, spread, 2.0)
    return centres[labels] + noise + 3.0, labels


def unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def brute_recall(vectors: Array, labels: Array) -> float:
    """The nearest other vector, one query at a time."""
    hits = 0
    for query in range(len(vectors)):
        apart = np.linalg.norm(vectors - vectors[query], axis=1)
        apart[query] = np.inf
        hits += labels[apart.argmin()] == labels[query]
    return hits / len(vectors)


def standardised(vectors: Array, scale: str = "common") -> Array:
    centred = vectors - vectors.mean(axis=0)
    deviation = centred.std(axis=0)
    return np.asarray(centred / (np.sqrt((deviation**2).mean()) if scale == "common" else deviation))


def refused(learner: Any, X: Any = None, y: Any = None, **more: Any) -> str:  # noqa: N803
    vectors, labels = blobs()
    with pytest.raises(UserError) as refusal:
        learner.fit(vectors if X is None else X, labels if y is None else y, **more)
    return str(refusal.value)


# --- what it computes, against doubles


@pytest.mark.parametrize("scale", ["common", "columns"])
def test_columns_are_centred_and_scaled_as_numpy_would(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 24)  # three rows at a time
    vectors, labels = blobs()
    vectors = vectors * np.arange(1, 9) + 1e6
    learner = MetricLearner(scale=scale, epochs=1).fit(vectors, labels)  # type: ignore[arg-type]
    deviation = vectors.std(axis=0)
    np.testing.assert_allclose(learner.mean_, vectors.mean(axis=0), rtol=1e-12)
    expected = deviation if scale == "columns" else np.full(8, np.sqrt((deviation**2).mean()))
    np.testing.assert_allclose(learner.scale_, expected, rtol=1e-7)


@pytest.mark.parametrize("method", ["gradient", "ridge"])
@pytest.mark.parametrize("scale", ["common", "columns"])
def test_a_constant_column_changes_nothing(method: Any, scale: Any) -> None:
    vectors, labels = blobs()
    constant = np.hstack([vectors, np.full((len(vectors), 1), 0.1)])
    learner = MetricLearner(method=method, scale=scale, epochs=1, random_state=0)
    learner.fit(constant, labels)
    found = learner.transform(constant)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    if scale == "columns":
        assert learner.scale_[-1] == 1
        if method == "ridge":
            np.testing.assert_allclose(found, clone(learner).fit(vectors, labels).transform(vectors), atol=1e-6)


@pytest.mark.parametrize("scale", ["common", "columns"])
def test_ridge_is_the_least_squares_solution(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 56)  # seven rows at a time
    vectors, labels = blobs(classes=6)
    learner = MetricLearner(method="ridge", regularisation=0.3, scale=scale).fit(vectors, labels)
    inputs = standardised(vectors, scale)
    targets = centroids.place(6, 5).double().numpy()[labels]
    # Ridge regression is least squares with sqrt(λ) I below the vectors and zeros below the targets.
    damping = np.sqrt(0.3 * len(vectors)) * np.eye(8)
    expected = np.linalg.lstsq(np.vstack([inputs, damping]), np.vstack([targets, np.zeros((8, 5))]), rcond=None)[0]
    np.testing.assert_allclose(learner.network_.first.weight.detach().numpy().T, expected, atol=1e-9)
    np.testing.assert_allclose(learner.transform(vectors), unit(inputs @ expected), atol=1e-8)
    assert learner.regularisation_ == 0.3


def test_with_few_classes_ridge_is_chosen_by_generalised_cross_validation() -> None:
    vectors, labels = blobs(classes=5, each=7)
    inputs, targets = standardised(vectors), centroids.place(5, 4).double().numpy()[labels]
    errors = {}
    for candidate in REGULARISATIONS:
        hat = inputs @ np.linalg.solve(inputs.T @ inputs + candidate * 35 * np.eye(8), inputs.T)
        errors[candidate] = ((targets - hat @ targets) ** 2).sum() / (1 - np.trace(hat) / 35) ** 2
    learner = MetricLearner(method="ridge").fit(vectors, labels)
    assert learner.regularisation_ == min(errors, key=lambda candidate: errors[candidate])
    assert 1e-3 < learner.regularisation_ < 1e3
    assert len(learner.held_out_classes_) == 0


def test_with_many_classes_ridge_is_chosen_by_classes_that_are_held_out() -> None:
    vectors, labels = blobs(classes=30, each=6, spread=0.8)
    learner = MetricLearner(method="ridge", random_state=1).fit(vectors, labels)
    held = np.isin(labels, learner.held_out_classes_)
    assert len(learner.held_out_classes_) == 6
    inside = vectors[~held]
    scale = np.sqrt(inside.var(axis=0).mean())
    inputs, outside = (inside - inside.mean(axis=0)) / scale, (vectors[held] - inside.mean(axis=0)) / scale
    places = centroids.place(30, 29).double().numpy()
    recalls = {}
    for candidate in REGULARISATIONS:
        gram = inputs.T @ inputs + candidate * len(inputs) * np.eye(8)
        found = unit(outside @ np.linalg.solve(gram, inputs.T @ places[labels[~held]]))
        recalls[candidate] = brute_recall(found, labels[held])
    assert len(set(recalls.values())) > 3
    best = max(recalls.values())
    assert learner.regularisation_ == max(each for each, recall in recalls.items() if recall == best)


@pytest.mark.parametrize("scale", ["common", "columns"])
def test_ridge_in_pieces_is_ridge_at_once(scale: Any) -> None:
    vectors, labels = blobs()
    order = np.random.default_rng(0).permutation(len(labels))
    vectors, labels = vectors[order], labels[order]
    whole = MetricLearner(method="ridge", scale=scale).fit(vectors, labels)
    pieces = MetricLearner(method="ridge", scale=scale)
    for part in (slice(0, 9), slice(9, 40), slice(40, 60)):
        pieces.partial_fit(vectors[part], labels[part], classes=np.arange(6))
    assert pieces.n_iter_ == 3
    assert pieces.regularisation_ == whole.regularisation_
    for name in ("mean_", "scale_"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-10)
    np.testing.assert_allclose(pieces.transform(vectors), whole.transform(vectors), atol=1e-9)
    continued = MetricLearner(method="ridge", scale=scale).fit(vectors[:40], labels[:40])
    continued.partial_fit(vectors[40:], labels[40:])
    np.testing.assert_allclose(continued.transform(vectors), whole.transform(vectors), atol=1e-9)


def test_the_score_is_recall_at_1() -> None:
    vectors, labels = blobs(spread=0.9)
    learner = MetricLearner(epochs=3, random_state=0).fit(vectors, labels)
    expected = brute_recall(learner.transform(vectors), labels)
    assert 0.2 < expected < 1
    assert learner.score(vectors, labels) == pytest.approx(expected, abs=1e-12)
    assert learner.score(vectors, labels.astype(float)) == learner.score(vectors, labels)


def untrained(**options: Any) -> MetricLearner:
    """One epoch at a rate that moves nothing."""
    return MetricLearner(epochs=1, learning_rate=1e-30, weight_decay=0, random_state=0, **options)


def test_it_can_start_from_the_principal_directions() -> None:
    vectors, labels = blobs()
    learner = untrained(init="pca", dim=3).fit(vectors, labels)
    expected = unit(PCA(3, svd_solver="full").fit_transform(standardised(vectors)))
    found = learner.transform(vectors)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    wide = untrained(init="pca", dim=11).fit(vectors, labels).transform(vectors)
    np.testing.assert_allclose(wide @ wide.T, unit(standardised(vectors)) @ unit(standardised(vectors)).T, atol=1e-5)
    assert np.abs(wide[:, 8:]).max() < 1e-20


def test_it_can_start_with_short_directions_in_which_a_class_varies() -> None:
    vectors, labels = blobs()
    inputs = standardised(vectors)
    within = np.zeros((8, 8))
    for label in range(6):
        apart = inputs[labels == label] - inputs[labels == label].mean(axis=0)
        within += apart.T @ apart
    metric = np.linalg.inv(within + np.trace(within) / 8 * np.eye(8))
    products = inputs @ metric @ inputs.T
    lengths = np.sqrt(np.diag(products))
    for start in ("whiten", "auto"):  # with few classes the same
        learner = untrained(init=start).fit(vectors, labels)
        found = learner.transform(vectors)
        np.testing.assert_allclose(found @ found.T, products / np.outer(lengths, lengths), atol=1e-5)
    mapped = inputs @ learner.network_.first.weight.detach().numpy().T
    assert np.square(mapped).sum() == pytest.approx(np.square(inputs).sum(), rel=1e-5)


def test_where_no_class_has_two_vectors_whiten_is_pca() -> None:
    vectors, _ = blobs(classes=3, each=4)
    one_each = np.arange(len(vectors))
    for start in ("whiten", "pca"):
        found = untrained(init=start).fit(vectors, one_each).transform(vectors)
        np.testing.assert_allclose(
            found @ found.T, unit(standardised(vectors)) @ unit(standardised(vectors)).T, atol=1e-5
        )


def test_auto_takes_the_start_that_held_out_classes_like_best() -> None:
    vectors, labels = blobs(classes=25)
    noisy = vectors + np.random.default_rng(1).normal(size=vectors.shape) * [0, 0, 0, 0, 8, 8, 8, 8]
    few, of_few = blobs(classes=25, each=2)
    fewer, of_fewer = blobs(classes=40, each=2)
    chosen = set()
    for dim, given, own in (
        (4, vectors, labels),
        (4, noisy, labels),
        (24, vectors, labels),
        (24, noisy + 3, labels),
        (8, few, of_few),
        (3, fewer, of_fewer),
    ):
        options: dict[str, Any] = {"validation_classes": 0.3, "dim": dim}
        begun: dict[str, MetricLearner] = {}
        # In few dimensions its centroids are drawn: to place them takes long.
        kind = "place" if len(np.unique(own)) <= 2 * dim else "random"
        begun["ridge"] = untrained(init="ridge", centroids=kind, **options).fit(given, own)
        for start, centre in product(("pca", "whiten"), (True, False)):
            begun[f"{start} {centre}"] = untrained(init=start, centre=centre, **options).fit(given, own)
        firsts = {name: learner.history_[0]["recall_at_1"] for name, learner in begun.items()}
        best = max(firsts, key=lambda name: firsts[name])
        auto = untrained(init="auto", **options).fit(given, own)
        assert auto.history_[0]["recall_at_1"] == firsts[best]
        assert (auto.regularisation_ is None) == (best != "ridge")
        if list(firsts.values()).count(firsts[best]) == 1:
            np.testing.assert_allclose(auto.transform(given), begun[best].transform(given), atol=1e-6)
            chosen.add(best)
    assert len(chosen) > 2


def test_auto_asks_for_no_centroids_that_there_are_not() -> None:
    vectors, labels = blobs(classes=25)
    options: dict[str, Any] = {"validation_classes": 0.3, "dim": 24, "centroids": "orthogonal-simplices"}
    learner = untrained(init="auto", centroid_dim=13, **options).fit(vectors, labels)
    assert learner.transform(vectors).shape == (len(vectors), 24)
    with pytest.raises(UserError, match="orthogonal simplices in dim 24 are for 26 to 48 classes, got 25"):
        untrained(init="ridge", centroid_dim=13, **options).fit(vectors, labels)


def test_vectors_can_be_compared_from_their_own_zero() -> None:
    vectors, labels = blobs()
    vectors = vectors + 5
    found = untrained(init="pca", centre=False).fit(vectors, labels).transform(vectors)
    np.testing.assert_allclose(found @ found.T, unit(vectors) @ unit(vectors).T, atol=1e-5)
    centred = untrained(init="pca").fit(vectors, labels).transform(vectors)
    np.testing.assert_allclose(
        centred @ centred.T, unit(standardised(vectors)) @ unit(standardised(vectors)).T, atol=1e-5
    )
    # Directions that mean something from zero only: the length of what is left after the mean is noise.
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 10)
    angle = labels * 0.05 + random.normal(scale=0.004, size=len(labels))
    rays = np.stack([np.cos(angle), np.sin(angle)], axis=1) * random.uniform(0.2, 5, size=(len(labels), 1))
    options: dict[str, Any] = {"validation_classes": 0.3, "init": "pca"}
    chosen = {centre: untrained(centre=centre, **options).fit(rays, labels) for centre in (None, True, False)}
    firsts = {centre: learner.history_[0]["recall_at_1"] for centre, learner in chosen.items()}
    assert firsts[None] == firsts[False] > firsts[True] + 0.2
    np.testing.assert_allclose(chosen[None].transform(rays), chosen[False].transform(rays), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"centre": 1}, "centre must be True, False or None, got 1."),
        ({"centre": True, "init": "random"}, "centre is for init pca and whiten: leave it out."),
        ({"centre": False, "method": "ridge"}, "centre is for init pca and whiten: leave it out."),
    ],
)
def test_centre_is_checked(options: dict[str, Any], complaint: str) -> None:
    vectors, labels = blobs()
    with pytest.raises(UserError, match=f"^{re.escape(complaint)}$"):
        MetricLearner(**options).fit(vectors, labels)


def test_training_that_gains_less_than_chance_would_is_undone() -> None:
    # Labels that say nothing: no epoch is better than the start by more than luck.
    vectors, labels = blobs(classes=25)
    learner = MetricLearner(7, init="pca", centre=True, random_state=0, validation_classes=0.3, epochs=4)
    learner.fit(vectors, np.random.default_rng(0).permutation(labels))
    assert len(learner.history_) > 1
    assert learner.n_iter_ == 0
    begun = untrained(dim=7, init="pca", validation_classes=0.0).fit(vectors, labels)
    np.testing.assert_allclose(np.abs(learner.transform(vectors)), np.abs(begun.transform(vectors)), atol=1e-5)


def test_it_can_start_from_ridge() -> None:
    vectors, labels = blobs()
    ridge = MetricLearner(method="ridge", dim=5, regularisation=0.5).fit(vectors, labels)
    started = untrained(init="ridge", dim=5, regularisation=0.5).fit(vectors, labels)
    assert started.regularisation_ == 0.5
    np.testing.assert_allclose(started.transform(vectors), ridge.transform(vectors), atol=1e-5)
    # The class layer takes the regression's centroids to those of the loss.
    layer = started.network_.class_layer
    assert layer is not None
    mapped = centroids.place(6, 5) @ layer.weight.detach().T
    np.testing.assert_allclose(mapped, centroids.place(6, 6), atol=1e-5)
    softmax = untrained(init="ridge", loss="softmax").fit(vectors, labels)
    assert softmax.regularisation_ in REGULARISATIONS


# --- training


def test_unseen_digits_are_told_apart_better() -> None:
    pixels, digits = load_digits(return_X_y=True)
    vectors = np.hstack([pixels, np.random.default_rng(0).normal(scale=8, size=pixels.shape)])
    seen = digits < 5
    before = brute_recall(unit(vectors[~seen]), digits[~seen])
    learner = MetricLearner(random_state=0).fit(vectors[seen], digits[seen])
    after = learner.score(vectors[~seen], digits[~seen])
    assert before < 0.80
    assert after > before + 0.08
    start = untrained(init="pca").fit(vectors[seen], digits[seen]).score(vectors[~seen], digits[~seen])
    moved = MetricLearner(init="pca", random_state=0).fit(vectors[seen], digits[seen])
    assert moved.score(vectors[~seen], digits[~seen]) > start + 0.02  # training, not the start alone


def test_hidden_layers_have_the_widths_asked_for() -> None:
    hidden = MetricLearner(hidden=(64, 32), epochs=1, random_state=0).fit(*blobs())
    assert [layer.out_features for layer in hidden.network_.body if isinstance(layer, torch.nn.Linear)] == [64, 32, 8]


def test_it_stops_early_on_held_out_classes_and_keeps_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AGAIN_FROM", 1.0)
    monkeypatch.setattr(verdict, "SURE", 0.0)
    vectors, labels = blobs(classes=25, columns=32, spread=0.7)
    options: dict[str, Any] = {"epochs": 60, "init": "pca", "learning_rate": 0.01, "random_state": 0}
    learner = MetricLearner(patience=3, **options).fit(vectors, labels)
    recalls = [each["recall_at_1"] for each in learner.history_]
    assert learner.n_iter_ > 0
    assert len(recalls) < 61
    assert len(recalls) == learner.n_iter_ + 3 + 1
    assert max(recalls) == recalls[learner.n_iter_]
    assert learner.history_[0]["loss"] is None
    held = np.isin(labels, learner.held_out_classes_)
    assert len(learner.held_out_classes_) == 5
    assert learner.score(vectors[held], labels[held]) == pytest.approx(recalls[learner.n_iter_])
    np.testing.assert_allclose(learner.mean_, vectors.mean(axis=0))
    patient = MetricLearner(**options).fit(vectors, labels)  # a fifth of the epochs
    assert len(patient.history_) == min(60, patient.n_iter_ + 12) + 1
    assert patient.n_iter_ > learner.n_iter_


def test_where_training_only_hurts_the_start_is_kept() -> None:
    vectors, labels = blobs(classes=25)
    options: dict[str, Any] = {"init": "pca", "random_state": 0, "validation_classes": 0.3, "dim": 9}
    learner = MetricLearner(epochs=4, learning_rate=1e3, **options).fit(vectors, labels)
    assert learner.n_iter_ == 0
    expected = unit(standardised(vectors))
    found = learner.transform(vectors)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)


def test_the_held_out_classes_train_too_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "SURE", 0.0)
    vectors, labels = blobs(classes=25, columns=32, spread=0.7)
    options: dict[str, Any] = {"epochs": 20, "init": "pca", "learning_rate": 0.01, "random_state": 0}
    learner = MetricLearner(**options).fit(vectors, labels)
    assert learner.n_iter_ > 0
    passes: list[int] = []
    original = training.batches

    def counted(learner: Any, X: Any, codes: Any, rows: Array, seed: Any) -> Any:  # noqa: N803
        passes.append(len(rows))
        return original(learner, X, codes, rows, seed)

    monkeypatch.setattr(training, "batches", counted)
    again = MetricLearner(**options).fit(vectors, labels)
    assert passes == [200] * (len(again.history_) - 1) + [250] * again.n_iter_
    np.testing.assert_array_equal(again.transform(vectors), learner.transform(vectors))


@pytest.mark.parametrize(("classes", "each", "share"), [(19, 5, 0.2), (25, 1, 0.2), (25, 5, 0.0), (25, 5, 0.95)])
def test_with_too_few_classes_nothing_is_held_out(classes: int, each: int, share: float) -> None:
    vectors, labels = blobs(classes=classes, each=each)
    learner = MetricLearner(epochs=7, patience=1, validation_classes=share, random_state=0).fit(vectors, labels)
    assert learner.n_iter_ == 7
    assert len(learner.held_out_classes_) == 0
    assert [each["recall_at_1"] for each in learner.history_] == [None] * 8


def test_what_is_held_out_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.vectors.validation.MOST_HELD_OUT", 60)
    random = np.random.default_rng(0)
    assert len(validation.held_out(np.repeat(np.arange(100), 10), 0.2, random)) == 6
    assert len(validation.held_out(np.repeat(np.arange(100), 50), 0.2, random)) == 5
    vectors, labels = blobs(classes=25, each=40)
    seen: list[int] = []

    def counted(found: Array, codes: Array) -> tuple[list[int], list[float]]:
        assert len(found) == len(codes)
        seen.append(len(found))
        return verdict.by_class(found, codes)

    monkeypatch.setattr("tammes.vectors.learner.by_class", counted)
    MetricLearner(epochs=1, random_state=0).fit(vectors, labels)
    assert set(seen) == {60}


def test_the_vectors_that_decide_the_start_are_spread_over_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.vectors.init.MOST_FOR_INIT", 90)
    random = np.random.default_rng(0)
    few = np.repeat(np.arange(3), [100, 200, 60])
    chosen = spread(few, np.arange(360), random)
    assert np.bincount(few[chosen]).tolist() == [30, 30, 30]
    many = np.repeat(np.arange(40), 10)
    chosen = spread(many, np.arange(400), random)
    assert np.bincount(np.bincount(many[chosen])).tolist() == [31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]
    assert spread(many, np.arange(50), random).tolist() == list(range(50))


def test_the_number_of_epochs_follows_from_the_number_of_vectors() -> None:
    vectors, labels = blobs(classes=4, each=16)
    assert MetricLearner(batch_size=8, random_state=0).fit(vectors, labels).n_iter_ == 63  # of 8 steps each
    assert training.number_of_epochs(MetricLearner(), 64) == 100
    assert training.number_of_epochs(MetricLearner(batch_size=1), 2) == 100
    assert training.number_of_epochs(MetricLearner(batch_size=1), 10_000) == 3


@pytest.mark.parametrize("loss", ["discriminative", "hard-discriminative", "softmax"])
@pytest.mark.parametrize("class_layer", [True, False])
def test_every_loss_learns(loss: str, class_layer: bool) -> None:
    vectors, labels = blobs(spread=0.7)
    learner = MetricLearner(loss=loss, class_layer=class_layer, epochs=40, random_state=0)
    if loss == "softmax" and not class_layer:
        assert refused(learner) == (
            "loss='softmax' needs a class layer with one output for each of 6 classes. "
            "Leave class_layer and centroid_dim out."
        )
        return
    learner.fit(vectors, labels)
    assert learner.history_[-1]["loss"] < learner.history_[1]["loss"]
    assert learner.score(vectors, labels) > brute_recall(unit(vectors), labels) + 0.05
    assert (learner.network_.class_layer is None) is not class_layer


def test_the_class_layer_has_an_output_for_each_class_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.vectors.init.MOST_OUTPUTS", 5)
    vectors, labels = blobs()

    def outputs(**options: Any) -> int:
        layer = MetricLearner(epochs=1, **options).fit(vectors, labels).network_.class_layer
        assert layer is not None
        return int(layer.out_features)

    assert outputs() == 5
    assert outputs(centroids="one-hot") == 6
    assert outputs(loss="softmax") == 6
    assert outputs(centroid_dim=3) == 3


def test_with_many_classes_the_loss_draws_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.vectors.loss.MOST_SAMPLED", 4)
    vectors, labels = blobs()

    def drawn(**options: Any) -> Any:
        return getattr(MetricLearner(epochs=1, **options).fit(vectors, labels)._loss, "sample_classes", None)

    assert drawn() == 4
    assert drawn(loss_options={"sample_classes": 3}) == 3
    assert drawn(centroids="one-hot") is None
    assert drawn(loss="hard-discriminative") is None


def test_options_reach_the_loss() -> None:
    vectors, labels = blobs()
    sizes = np.bincount(labels[3:]).tolist()
    learner = MetricLearner(loss_options={"push": 0.1, "weighting": "balanced"}, epochs=1).fit(vectors[3:], labels[3:])
    loss: Any = learner._loss
    assert loss.push == 0.1
    assert loss.class_sizes.tolist() == sizes
    text = refused(MetricLearner(loss_options={"pull": 1}))
    assert text.startswith("loss_options do not suit loss='discriminative': ")
    assert text.endswith("got an unexpected keyword argument 'pull'.")


def test_the_same_random_state_gives_the_same_and_torch_is_left_alone() -> None:
    vectors, labels = blobs(classes=25)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (
        MetricLearner(7, epochs=3, hidden=4, random_state=seed).fit(vectors, labels).transform(vectors)
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-3
    generator = np.random.RandomState(0)
    MetricLearner(epochs=1, random_state=generator).fit(vectors, labels)  # scikit-learn's other kind of seed


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    learner = MetricLearner(learning_rate=1e30, epochs=20, random_state=0, loss="softmax", init="random")
    assert "the loss is not a finite number" in (said := refused(learner))
    assert "a learning rate that is too high" in said
    assert "checkpoint" not in said


def test_weights_that_the_last_step_lost_are_an_error() -> None:
    said = refused(MetricLearner(learning_rate=1e300, epochs=1, random_state=0))
    assert said.startswith("a weight is not a finite number")
    assert "(now 1e+300)" in said


def test_a_network_that_no_machine_has_memory_for_is_not_made() -> None:
    for option in ("dim", "hidden", "centroid_dim"):
        text = refused(MetricLearner(epochs=1).set_params(**{option: 10**13}))
        assert text.endswith("is more than this machine has memory for. Lower dim, hidden or centroid_dim.")
    assert refused(MetricLearner(method="ridge", dim=10**13)).startswith(
        "a network of 8 -> 10000000000000 -> 6 numbers"
    )


def test_memory_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tammes.vectors.network.memory", lambda: 1 << 60)
    assert refused(MetricLearner(dim=10**12)) == (
        "out of memory: the network or a batch does not fit. Lower dim, hidden, centroid_dim or batch_size."
    )


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_vectors_far_beyond_those_that_were_learned_from(method: Any) -> None:
    vectors, labels = blobs()
    learner = MetricLearner(method=method, epochs=1, random_state=0).partial_fit(vectors, labels)
    before = learner.transform(vectors)
    beyond = vectors.astype(np.float64)
    beyond[3] *= 1e300
    for work in (
        learner.transform,
        lambda far: learner.score(far, labels),
        lambda far: learner.partial_fit(far, labels),
    ):
        with pytest.raises(UserError) as refusal:
            work(beyond)
        assert str(refusal.value) == (
            "the numbers in row 3 of X are so much larger than those that were learned from that their squares"
            " overflow. Scale X as it was then."
        )
    np.testing.assert_array_equal(learner.transform(vectors), before)


@pytest.mark.parametrize(
    ("vectors", "options", "text"),
    [
        (np.ones((12, 3)), {}, "all vectors in X are the same: there is nothing to learn from them. Add others."),
        (
            2**62 + np.arange(36).reshape(12, 3),
            {},
            "all vectors in X are the same (whole numbers above 2**53 are rounded: take from them what they have in"
            " common first): there is nothing to learn from them. Add others.",
        ),
        (
            1e-170 * np.arange(36.0).reshape(12, 3),
            {},
            "the numbers in X differ by so little that their squares vanish. Scale X up.",
        ),
        (
            np.array([1, 1e-170, 1]) * np.arange(36.0).reshape(12, 3),
            {"scale": "columns"},
            "the numbers in column 1 of X differ by so little that their squares vanish. Scale X up.",
        ),
    ],
    ids=["same", "rounded", "tiny", "tiny column"],
)
def test_vectors_that_say_nothing(vectors: Any, options: dict[str, Any], text: str) -> None:
    for method in ("gradient", "ridge"):
        with pytest.raises(UserError) as refusal:
            MetricLearner(method=method, epochs=1, **options).fit(vectors, np.arange(12) % 3)
        assert str(refusal.value) == text


def test_the_strongest_regularisation_leaves_unit_vectors() -> None:
    vectors, labels = blobs()
    strong, stronger = (
        MetricLearner(method="ridge", regularisation=most, random_state=0).fit(vectors, labels).transform(vectors)
        for most in (1e6, 1e308)
    )
    np.testing.assert_allclose(strong, stronger, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(stronger, axis=1), 1, atol=1e-6)


def test_whatever_evaluate_takes_is_learned_from() -> None:
    vectors, labels = blobs(classes=3)
    plain = MetricLearner(epochs=1, random_state=0).fit(vectors, labels)
    expected, names = plain.transform(vectors), ["a", "a\0", "a\0b"]
    for X, y in (
        (torch.tensor(vectors, requires_grad=True), torch.tensor(labels)),
        (vectors.astype(">f8"), labels.astype(">i8")),
        (vectors, [names[label] for label in labels]),
    ):
        learner = MetricLearner(epochs=1, random_state=0).fit(X, y)
        np.testing.assert_array_equal(learner.transform(X).astype(expected.dtype), expected)
        assert learner.score(X, y) == plain.score(vectors, labels)
    assert learner.classes_.tolist() == names
    rough = torch.tensor(vectors).bfloat16()
    np.testing.assert_array_equal(
        clone(plain).fit(rough, labels).transform(rough),
        clone(plain).fit(rough.float(), labels).transform(rough.float()),
    )


def test_what_is_no_class() -> None:
    vectors, labels = blobs(classes=3)
    learner, none = MetricLearner(epochs=1, random_state=0).fit(vectors, labels), [None] * len(vectors)
    for work, text in (
        (lambda: learner.score(vectors, none), "y must be whole numbers or text, a class each. Unknown label type"),
        (lambda: clone(learner).fit(vectors, none), "y must be whole numbers or text, a class each. Unknown label"),
        (lambda: clone(learner).partial_fit(vectors, labels, [None] * 3), "classes must be whole numbers or text, a"),
        (
            lambda: clone(learner).partial_fit(vectors, labels, [[0, 1], [2, 3]]),
            "classes must be a list, one of each, got shape (2, 2).",
        ),
        (lambda: clone(learner).fit(vectors, [1, "a"] * (len(vectors) // 2)), "y must be all integers or all strings,"),
        (
            lambda: learner.transform(np.ma.masked_less(vectors, vectors.min() + 1e-6)),
            "X has a mask that hides 1 of its entries. Fill them in: X.filled(…), or leave their rows out.",
        ),
        (lambda: clone(learner).fit(vectors, np.ma.masked_equal(labels, 2)), "y has a mask that hides"),
        (
            lambda: clone(learner).set_params(learning_rate=10**400).fit(vectors, labels),
            "learning_rate must be a number above 0, got 1000000000",
        ),
    ):
        with pytest.raises(UserError) as refusal:
            work()
        assert str(refusal.value).startswith(text)


# --- a guest among scikit-learn, pandas and polars


def test_labels_may_be_text_or_have_gaps_and_a_class_may_have_one_vector() -> None:
    vectors, labels = blobs(classes=4, each=5)
    vectors, labels = vectors[:16], labels[:16]  # one of the last class
    plain = MetricLearner(epochs=3, random_state=0).fit(vectors, labels)
    expected = plain.transform(vectors)
    names = np.array(["ant", "bee", "cat", "dog"])
    for other in (
        names[labels],
        names[labels].astype(object),
        names[labels].tolist(),
        pandas.Series(names[labels]),
        labels * 10 - 7,
        labels.astype(float),
    ):
        learner = clone(plain).fit(vectors, other)
        np.testing.assert_array_equal(learner.transform(vectors), expected)
        assert learner.score(vectors, other) == plain.score(vectors, labels)
    assert learner.classes_.tolist() == [0, 1, 2, 3]
    assert clone(plain).fit(vectors, names[labels]).classes_.tolist() == names.tolist()


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_data_frames_go_in_and_come_out(frame: Any) -> None:
    vectors, labels = blobs()
    columns = {f"column{n}": vectors[:, n] for n in range(8)}
    learner = MetricLearner(3, epochs=2, random_state=0)
    plain = clone(learner).fit(vectors, labels).transform(vectors)
    learner.set_output(transform=frame.__module__.split(".")[0])
    found = learner.fit(frame(columns), labels).transform(frame(columns))
    assert isinstance(found, frame)
    assert list(found.columns) == ["metriclearner0", "metriclearner1", "metriclearner2"]
    assert list(learner.get_feature_names_out()) == list(found.columns)
    assert list(learner.feature_names_in_) == list(columns)
    np.testing.assert_allclose(found.to_numpy(), plain, atol=1e-6)


def test_it_works_in_a_pipeline_and_is_searched_over_with_folds_that_share_no_class() -> None:
    vectors, labels = blobs(classes=9, each=8)
    pipeline = make_pipeline(StandardScaler(), MetricLearner(epochs=4, random_state=0))
    search = GridSearchCV(
        pipeline, {"metriclearner__dim": [2, 6], "metriclearner__method": ["gradient", "ridge"]}, cv=GroupKFold(3)
    )
    search.fit(vectors, labels, groups=labels)
    assert search.best_params_["metriclearner__dim"] == 6
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    np.testing.assert_allclose(search.best_estimator_.transform(vectors).shape, (72, 6))
    fold = GroupKFold(3).split(vectors, labels, labels)
    train, test = next(iter(fold))
    assert not set(labels[train]) & set(labels[test])
    alone = clone(search.best_estimator_).fit(vectors[train], labels[train]).score(vectors[test], labels[test])
    best = search.best_index_
    assert alone == pytest.approx(search.cv_results_["split0_test_score"][best])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_any_numbers_go_in(dtype: Any) -> None:
    vectors, labels = blobs()
    vectors = np.round(vectors.clip(min=-3) * 8 + 40).astype(dtype)
    learner = MetricLearner(epochs=2, random_state=0).fit(vectors, labels)
    found = learner.transform(vectors)
    assert found.dtype == (np.float32 if dtype in (np.float16, np.float32) else np.float64)
    expected = clone(learner).fit(vectors.astype(np.float64), labels).transform(vectors.astype(np.float64))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_vector_does_not_depend_on_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = blobs()
    learner = MetricLearner(hidden=16, epochs=2, random_state=0).fit(vectors, labels)
    expected = learner.transform(vectors)
    monkeypatch.setattr(statistics, "BLOCK", 1)
    np.testing.assert_allclose(learner.transform(vectors), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_a_mapped_file_is_never_copied_whole(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 1 << 16)
    monkeypatch.setattr("tammes.vectors.init.MOST_FOR_INIT", 512)
    monkeypatch.setattr("tammes.vectors.validation.MOST_HELD_OUT", 100)
    file = tmp_path / "vectors.npy"
    stored = np.lib.format.open_memmap(file, "w+", np.float16, (50_000, 128))
    labels = np.arange(50_000) % 40
    stored[:] = np.random.default_rng(0).normal(size=(40, 128)).astype(np.float16)[labels]
    stored[::3, 5] += np.float16(1)
    stored.flush()
    del stored
    vectors = np.load(file, mmap_mode="r")  # 13 MB, and four times that in float64
    learner = MetricLearner(8, method=method, centroids="random", epochs=1, batch_size=2048, random_state=0)
    tracemalloc.start()
    learner.fit(vectors, labels)
    learner.partial_fit(vectors[:4096], labels[:4096])
    found = learner.transform(vectors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.nbytes == 1_600_000
    # The labels, an order of the rows and a few masks are 8 bytes a row each: 0.4 MB.
    assert peak < 9e6


# --- a part at a time


def test_partial_fit_learns_a_part_at_a_time() -> None:
    vectors, labels = blobs(each=40, spread=0.7)
    order = np.random.default_rng(0).permutation(len(labels))
    learner = MetricLearner(random_state=0, init="pca")
    learner.partial_fit(vectors[order[:60]], labels[order[:60]], classes=np.arange(6))
    mean = learner.mean_
    np.testing.assert_allclose(mean, vectors[order[:60]].mean(axis=0))
    for _ in range(20):
        for part in np.array_split(order, 4):
            learner.partial_fit(vectors[part], labels[part])
    assert learner.n_iter_ == 81
    assert learner.mean_ is mean  # of the first call
    losses = [each["loss"] for each in learner.history_]
    assert losses[-1] < losses[0] - 0.1
    assert learner.score(vectors, labels) > brute_recall(unit(vectors), labels) + 0.05


def test_partial_fit_goes_on_from_fit() -> None:
    vectors, labels = blobs(classes=25)
    learner = MetricLearner(7, epochs=3, random_state=0).fit(vectors, labels)
    before, epochs = learner.transform(vectors), learner.n_iter_
    learner.partial_fit(vectors[:50], labels[:50])
    assert learner.n_iter_ == epochs + 1
    moved = np.abs(learner.transform(vectors) - before).max()
    assert 0 < moved < 0.5
    again = learner.fit(vectors, labels).transform(vectors)  # and fit starts over
    np.testing.assert_array_equal(again, before)


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_partial_fit_says_what_is_wrong_with_its_classes(method: Any) -> None:
    vectors, labels = blobs()
    names = np.array(["a", "b", "c", "d", "e", "f"])[labels]
    learner = MetricLearner(method=method)
    learner.partial_fit(vectors[:30], names[:30])
    learner.partial_fit(vectors[:30], names[:30].astype(object))
    for wrong in (vectors[30:], names[30:]), (vectors[:1], np.array(["ab"])), (vectors[:1], np.array(["B"], object)):
        with pytest.raises(UserError) as refusal:
            learner.partial_fit(*wrong)
        assert str(refusal.value) == (
            f"y holds the class '{wrong[1][0]}', which the first call did not name. "
            "Name all classes there: partial_fit(X, y, classes=…)."
        )
    learner.partial_fit(vectors[:5], names[:5], classes=["c", "b", "a"])
    with pytest.raises(UserError) as refusal:
        learner.partial_fit(vectors[:5], names[:5], classes=["a", "b"])
    assert str(refusal.value) == "classes are not those of the first call: leave them out, or start over with fit."
    vectors[2, 3] = np.nan
    with pytest.raises(UserError, match="row 2, column 3"):
        learner.partial_fit(vectors[:5], names[:5])
    with pytest.raises(UserError, match="y holds 1 class, 'a'"):
        MetricLearner(method=method).partial_fit(vectors[5:9], names[5:9])


# --- errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"loss": "discriminativ"},
            "unknown loss 'discriminativ'. Did you mean 'discriminative'? "
            "Known: discriminative, hard-discriminative, softmax.",
        ),
        ({"method": "exact"}, "unknown method 'exact'. Known: gradient, ridge."),
        ({"init": 3}, "unknown init '3'. Known: auto, pca, random, ridge, whiten."),
        ({"scale": "column"}, "unknown scale 'column'. Did you mean 'columns'? Known: columns, common."),
        ({"dim": 0}, "dim must be a whole number from 1 up, or None, got 0."),
        ({"dim": True}, "dim must be a whole number from 1 up, or None, got True."),
        ({"centroid_dim": 2.5}, "centroid_dim must be a whole number from 1 up, or None, got 2.5."),
        ({"epochs": -1}, "epochs must be a whole number from 1 up, or None, got -1."),
        ({"batch_size": None}, "batch_size must be a whole number from 1 up, got None."),
        ({"patience": 0}, "patience must be a whole number from 1 up, or None, got 0."),
        ({"learning_rate": 0}, "learning_rate must be a number above 0, got 0."),
        ({"weight_decay": -0.1}, "weight_decay must be a number 0 or more, got -0.1."),
        ({"dropout": 1}, "dropout must be a number 0 or more and below 1, got 1."),
        ({"validation_classes": float("nan")}, "validation_classes must be a number 0 or more and below 1, got nan."),
        ({"regularisation": 0.0}, "regularisation must be a number above 0, got 0.0."),
        ({"hidden": "wide"}, "hidden must be a width or several, such as 512 or (512, 512), got 'wide'."),
        ({"hidden": (8, 0)}, "hidden must be a whole number from 1 up, got 0."),
        (
            {"hidden": 8, "method": "ridge"},
            "method='ridge' is a linear map and has no hidden layers. Leave hidden out.",
        ),
        (
            {"hidden": [8], "init": "ridge"},
            "init='ridge' is a linear map and has no hidden layers. Leave hidden out.",
        ),
        ({"loss_options": [1]}, "loss_options must be a dictionary, such as {'push': 0.2}, got [1]."),
        ({"class_layer": "no"}, "class_layer must be True or False, got 'no'."),
        (
            {"class_layer": False, "centroid_dim": 4},
            "centroid_dim is the size of the class layer, which class_layer=False leaves out.",
        ),
        ({"regularisation": 1.0}, "regularisation is for method='ridge' or init='ridge': leave it out."),
        ({"random_state": -1}, "random_state must be a whole number from 0 to 4294967295, got -1."),
        (
            {"loss": "softmax", "centroid_dim": 3},
            "loss='softmax' needs a class layer with one output for each of 6 classes. "
            "Leave class_layer and centroid_dim out.",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_refused_when_it_is_fitted(options: dict[str, Any], text: str) -> None:
    assert refused(MetricLearner(**options)) == text


def test_an_unknown_kind_of_centroids_is_refused() -> None:
    text = refused(MetricLearner(centroids="placed"))
    assert text.startswith("unknown centroids 'placed'. Did you mean 'place'? Known: codes, ")


def test_centroids_that_do_not_fit_are_refused() -> None:
    text = refused(MetricLearner(centroids="simplex", centroid_dim=3))
    assert text.startswith("centroids='simplex' for 6 classes in 3 dimensions: ")
    text = refused(MetricLearner(1, class_layer=False))
    assert text.startswith(
        "centroids='place' for 6 classes in 1 dimensions: in dim 1 only 2 distinct unit points exist"
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK", 40)  # five rows at a time
    vectors, labels = blobs()
    learner = MetricLearner(epochs=1).fit(vectors, labels)
    text = "X holds NaN or infinity in row 17, column 2. Fill it in, or leave the row out."
    vectors[17, 2] = wrong
    assert refused(MetricLearner(), X=vectors) == text
    for ask in (lambda: learner.transform(vectors), lambda: learner.score(vectors, labels)):
        with pytest.raises(UserError) as refusal:
            ask()
        assert str(refusal.value) == text


def test_numbers_whose_squares_overflow_are_refused() -> None:
    vectors, _ = blobs()
    vectors[:, 4] *= 1e200
    assert refused(MetricLearner(), X=vectors) == (
        "the numbers in column 4 of X are so large that their squares overflow. Scale X down."
    )


def test_one_class_is_refused() -> None:
    text = "y holds 1 class, 'a'. A metric is learned from at least 2: add vectors of others."
    assert refused(MetricLearner(), y=np.full(60, "a")) == text


# --- the example and the benchmark


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["vectors.py", str(tmp_path / "found.png")])
    runpy.run_path(str(ROOT / "examples" / "vectors.py"))
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "as they are  R@1  77.2   MAP@R  25.3"
    assert second.startswith("learned      R@1  8")
    assert third == f"written to {tmp_path / 'found.png'}"
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_the_benchmark_records_what_did_not_finish() -> None:
    row = benchmark.cell("digits", "raw", benchmark.Options(limit=0))
    assert row == {"set": "digits", "method": "raw", "outcome": "not done in 0 s"}
    assert benchmark.table([row], "digits").row_count == 1


def test_the_benchmark_fits_the_growth_of_time() -> None:
    rows = [
        {"set": f"growth {size}", "method": "NCA", "outcome": "finished", "vectors": size, "seconds": 1e-6 * size**2}
        for size in benchmark.SIZES
    ]
    assert benchmark.slopes(rows) == {"NCA": pytest.approx(2.0)}
    assert benchmark.slopes(rows[:2]) == {}


def test_the_sets_of_the_benchmark_share_no_class() -> None:
    for name in ("digits", "noisy-digits", "growth 300"):
        train, labels, test, test_labels = benchmark.make_set(name, benchmark.Options())
        assert not set(labels) & set(test_labels)
        assert (len(train), len(test)) == (len(labels), len(test_labels))
    assert train.shape == (300, 64)
