"""A MetricLearner that is written, read, stopped and resumed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError

from tammes import MetricLearner, UserError
from tammes.training import verdict
from tammes.training.run_folder import RunFolder
from tammes.vectors.statistics import Rows
from tammes.vectors.training import epochs
from tests.test_learner import Array, blobs

# --- saved and loaded


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden": (6, 5), "loss": "softmax", "scale": "columns"},
        {"class_layer": False, "centroids": "random", "dim": np.int64(5), "loss_options": {"push": np.float64(0.25)}},
        {"method": "ridge"},
    ],
    ids=str,
)
def test_a_learner_that_is_loaded_is_the_one_that_was_saved(options: dict[str, Any], tmp_path: Path) -> None:
    vectors, labels = blobs(classes=25, each=6)
    learner = MetricLearner(epochs=2, random_state=3, **options).fit(vectors, labels)
    learner.save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["learner.json", "learner.safetensors"]
    loaded = MetricLearner.load(tmp_path)
    np.testing.assert_array_equal(loaded.transform(vectors), learner.transform(vectors))
    assert loaded.score(vectors, labels) == learner.score(vectors, labels)
    for name in ("mean_", "scale_", "classes_", "held_out_classes_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(learner, name), strict=True)
    for name in ("n_iter_", "history_", "regularisation_", "n_features_in_"):
        assert getattr(loaded, name) == getattr(learner, name)
    assert len(learner.held_out_classes_) == 5
    given, again = learner.get_params(), loaded.get_params()
    assert list(again.pop("hidden") or ()) == list(given.pop("hidden") or ())
    assert again == given
    assert {name: tensor.dtype for name, tensor in loaded.network_.state_dict().items()} == {
        name: tensor.dtype for name, tensor in learner.network_.state_dict().items()
    }
    np.testing.assert_array_equal(
        loaded.fit(vectors, labels).transform(vectors), learner.transform(vectors)
    )  # and it learns again


@pytest.mark.parametrize(
    "names",
    [
        np.array(["ant", "bee", "cat", "döner"]),
        np.array(["ant", "bee", "cat", "dog"], dtype=object),
        np.array([-7, 0, 5, 2**40]),
        np.array([0, 3, 4, 200], dtype=np.uint8),
        np.array([0.0, 1.0, 2.0, 4.0]),
    ],
    ids=lambda names: str(names.dtype),
)
def test_classes_keep_their_kind(names: Array, tmp_path: Path) -> None:
    vectors, labels = blobs(classes=4, each=5)
    learner = MetricLearner(epochs=1).fit(vectors, names[labels])
    learner.save(tmp_path)
    loaded = MetricLearner.load(tmp_path).classes_
    assert loaded.dtype == learner.classes_.dtype
    assert loaded.tolist() == names.tolist()


def test_two_classes_may_be_truth_values_and_columns_have_names(tmp_path: Path) -> None:
    vectors, labels = blobs(classes=2, each=5, columns=3)
    frame = pandas.DataFrame(vectors, columns=["a", "b", "c"])
    learner = MetricLearner(epochs=1).fit(frame, labels == 1)
    learner.save(str(tmp_path))
    loaded = MetricLearner.load(str(tmp_path))
    assert loaded.classes_.tolist() == [False, True]
    np.testing.assert_array_equal(loaded.transform(frame), learner.transform(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.transform(frame[["b", "a", "c"]])


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    vectors, labels = blobs()
    with pytest.raises(NotFittedError):
        MetricLearner().save(tmp_path)
    learner = MetricLearner(epochs=1, random_state=np.random.RandomState(0)).fit(vectors, labels)
    with pytest.raises(
        UserError, match=r"random_state=RandomState.* cannot be saved\. Give a number or a text first: "
    ):
        learner.save(tmp_path)
    learner.set_params(random_state=None).save(tmp_path)
    with pytest.raises(UserError, match="no such folder: .*nowhere. Make it first, or save elsewhere."):
        learner.save(tmp_path / "nowhere")


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_a_learner_that_was_loaded_does_not_learn_on(method: Any, tmp_path: Path) -> None:
    vectors, labels = blobs()
    MetricLearner(method=method, epochs=1).fit(vectors, labels).save(tmp_path)
    loaded = MetricLearner.load(tmp_path)
    with pytest.raises(UserError) as refusal:
        loaded.partial_fit(vectors, labels)
    assert str(refusal.value) == (
        "a learner that was loaded cannot continue training: its optimizer state is not saved. Start over with fit."
    )
    loaded.fit(vectors, labels).partial_fit(vectors, labels)


Said = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def changed(*path: str, to: Any) -> Callable[[Said, Tensors], None]:
    """An edit of learner.json."""

    def edit(said: Said, _: Tensors) -> None:
        for name in path[:-1]:
            said = said[name]
        said[path[-1]] = to

    return edit


def resized(name: str, *shape: int) -> Callable[[Said, Tensors], None]:
    """An edit of learner.safetensors; no shape: the tensor is gone."""

    def edit(_: Said, tensors: Tensors) -> None:
        if shape:
            tensors[name] = torch.ones(shape, dtype=tensors[name].dtype if name in tensors else torch.float32)
        else:
            del tensors[name]

    return edit


def filled(name: str, value: float, dtype: Any = None) -> Callable[[Said, Tensors], None]:
    def edit(_: Said, tensors: Tensors) -> None:
        tensors[name] = torch.full_like(tensors[name], value, dtype=dtype)

    return edit


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (changed("format", to=2), "learner.json: format must be 1, got 2."),
        (changed("options", to=None), "learner.json: options must be an object, got None."),
        (changed("options", "depth", to=3), "its option 'depth' is not known here."),
        (changed("options", "loss", to="softmx"), "unknown loss 'softmx'. Did you mean 'softmax'?"),
        (changed("options", "hidden", to="wide"), "hidden must be a width or several"),
        (changed("options", "hidden", to=[10**12]), "its weights are not those that its options ask for"),
        (changed("options", "dim", to=7), "its weights are not those that its options ask for"),
        (changed("classes", to=[1, 2]), "learner.json: classes must be an object, got [1, 2]."),
        (changed("classes", "kind", to="datetime64[s]"), "learner.json: classes.kind must be"),
        (changed("classes", "kind", to="text"), "its classes are not two or more of the kind text."),
        (changed("classes", "values", to=[1]), "its classes are not two or more of the kind int64."),
        (changed("classes", "values", to=[1, 2**70]), "holds a number of more than 20 digits."),
        (changed("classes", "values", to=[1, 3, 2]), "its classes are not sorted, or one is there twice."),
        (changed("held_out", to=[6]), "its held-out classes are none of its classes."),
        (changed("columns", to=["a", 3]), "learner.json: columns[1] must be a text, got 3."),
        (changed("columns", to=["a"]), "it names 1 columns, and its weights are for 8."),
        (changed("epochs", to="2"), "learner.json: epochs must be a whole number, got '2'."),
        (resized("mean"), "mean and scale of the columns are missing or not of one length"),
        (resized("scale", 9), "mean and scale of the columns are missing or not of one length"),
        (filled("scale", 0.0), "or a scale is not above 0."),
        (filled("mean", float("nan")), "'mean' holds numbers that are not finite, or not float32 or float64."),
        (filled("mean", 1, torch.int64), "'mean' holds numbers that are not finite, or not float32 or float64."),
        (resized("network.body.0.weight"), "its weights are not those that its options ask for"),
        (resized("network.body.0.weight", 8, 7), "its weights are not those that its options ask for"),
        (resized("network.body.0.bias", 7), "its weights are not those that its options ask for"),
        (resized("network.class_layer.weight", 6, 9), "its weights are not those that its options ask for"),
        (resized("network.class_layer.bias"), "its weights are not those that its options ask for"),
        (resized("network.more", 3), "its weights are not those that its options ask for"),
    ],
)
def test_an_untrusted_file_is_checked(edit: Callable[[Said, Tensors], None], text: str, tmp_path: Path) -> None:
    vectors, labels = blobs()
    MetricLearner(epochs=1, random_state=0).fit(vectors, labels).save(tmp_path)
    said, tensors = json.loads((tmp_path / "learner.json").read_text()), load_file(tmp_path / "learner.safetensors")
    edit(said, tensors)
    (tmp_path / "learner.json").write_text(json.dumps(said))
    save_file(tensors, tmp_path / "learner.safetensors")
    with pytest.raises(UserError) as refusal:
        MetricLearner.load(tmp_path)
    assert text in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_files_that_are_not_whole_or_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no learner in .*: learner.json is missing. Train one: tammes train vectors"):
        MetricLearner.load(tmp_path)
    vectors, labels = blobs()
    MetricLearner(epochs=1).fit(vectors, labels).save(tmp_path)
    words, numbers = tmp_path / "learner.json", tmp_path / "learner.safetensors"
    content = numbers.read_bytes()
    numbers.write_bytes(content[:-9])
    with pytest.raises(UserError, match="learner.safetensors is damaged: its checksum is not that of its content.$"):
        MetricLearner.load(tmp_path)
    numbers.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])  # a bit of a weight
    with pytest.raises(UserError, match="learner.safetensors is damaged: its checksum is not that of its content.$"):
        MetricLearner.load(tmp_path)
    numbers.unlink()
    with pytest.raises(UserError, match="cannot read .*learner.safetensors: "):
        MetricLearner.load(tmp_path)
    deep = "[" * 100_000
    whole = "is not a complete JSON file."
    for wrong, text in ((words.read_text()[:-9], whole), (deep, whole), ("[]", "it must be an object")):
        words.write_text(wrong)
        with pytest.raises(UserError, match=text):
            MetricLearner.load(tmp_path)


# --- stopped and resumed


@pytest.fixture(autouse=True)
def _any_gain_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "SURE", 0.0)


OPTIONS: dict[str, Any] = {"epochs": 8, "init": "pca", "learning_rate": 0.01, "batch_size": 64, "random_state": 2}


def trained(learner: MetricLearner, vectors: Any, labels: Array, run: RunFolder, stops: list[int]) -> list[bool]:
    """Train with a stop after each of these numbers of steps, always with a new learner; whether each was in the second
    training, on all classes."""
    phases: list[bool] = []
    going_on, steps = None, 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return len(phases) < len(stops) and steps == stops[len(phases)]

    while True:
        steps = 0
        for passed in epochs(learner, vectors, labels, stop=stop, resumed=going_on):
            if not passed.complete:
                passed.save(run)
                break
        else:
            return phases
        phases.append(passed.again)
        going_on = run
        torch.rand(7)  # whoever goes on has drawn other numbers
        learner.__dict__ = MetricLearner(**learner.get_params()).__dict__


@pytest.mark.parametrize(
    ("options", "stops", "phases"),
    [
        ({}, [1], [False]),
        ({}, [4], [False]),  # the last step of the first epoch
        ({}, [6, 1, 4, 9], [False] * 4),
        ({}, [35], [True]),
        ({}, [33, 1, 3], [True, True, True]),
        ({"hidden": 6, "dim": 31, "loss": "hard-discriminative"}, [7, 16], [False, True]),
        ({"loss_options": {"weighting": "triplet"}}, [35, 1], [True, True]),
        ({"validation_classes": 0.0, "loss_options": {"sample_classes": 7}}, [5, 8], [False, False]),
    ],
    ids=str,
)
def test_a_training_that_was_stopped_goes_on_to_the_very_same_weights(
    options: dict[str, Any], stops: list[int], phases: list[bool], tmp_path: Path
) -> None:
    vectors, labels = blobs(classes=25, columns=32, spread=0.7)
    whole = MetricLearner(**OPTIONS | options).fit(vectors, labels)
    assert whole.n_iter_ > 0
    learner = MetricLearner(**OPTIONS | options)
    assert trained(learner, vectors, labels, RunFolder(tmp_path), stops) == phases
    for name, tensor in whole.network_.state_dict().items():
        assert torch.equal(learner.network_.state_dict()[name], tensor)
    assert (learner.n_iter_, learner.history_) == (whole.n_iter_, whole.history_)
    np.testing.assert_array_equal(learner.transform(vectors), whole.transform(vectors))


def test_the_loss_knows_how_many_vectors_of_each_class_train() -> None:
    vectors, labels = blobs(classes=25, columns=32, spread=0.7)
    learner = MetricLearner(**OPTIONS)
    counts, least = {}, {}
    for passed in epochs(learner, vectors, labels):
        loss: Any = learner._loss
        counts[passed.again], least[passed.again] = loss.class_sizes.tolist(), loss.minimum
    is_held = np.isin(learner.classes_, learner.held_out_classes_)
    assert is_held.sum() == 5
    assert counts == {False: np.where(is_held, 0, 10).tolist(), True: [10] * 25}
    assert least[False] != least[True]


def test_an_epoch_at_a_time_is_reported_and_saved(tmp_path: Path) -> None:
    vectors, labels = blobs(classes=25, columns=32, spread=0.7)
    learner, run = MetricLearner(**OPTIONS), RunFolder(tmp_path)
    lines = []
    for passed in epochs(learner, vectors, labels):
        lines.append((passed.number, passed.again, passed.loss, passed.recall, passed.vectors))
        if passed.number == 3:
            passed.save(run)
    first, kept = len(learner.history_) - 1, learner.n_iter_
    assert 0 < kept <= first <= 8
    assert lines[0] == (0, False, None, learner.history_[0]["recall_at_1"], 0)
    assert [number for number, *_ in lines] == list(range(first + kept + 1))
    for line, told in zip(lines[1 : first + 1], learner.history_[1:], strict=True):
        assert line[1:] == (False, told["loss"], told["recall_at_1"], 200)
    assert all(again and recall is None and count == 250 for _, again, _, recall, count in lines[first + 1 :])
    other = MetricLearner(**OPTIONS)
    numbers = [passed.number for passed in epochs(other, vectors, labels, resumed=run)]
    assert numbers == list(range(3, first + kept + 1))
    np.testing.assert_array_equal(other.transform(vectors), learner.transform(vectors))


def test_other_vectors_or_labels_are_not_gone_on_with(tmp_path: Path) -> None:
    vectors, labels = blobs(classes=25)
    for passed in epochs(MetricLearner(**OPTIONS), vectors, labels):
        passed.save(RunFolder(tmp_path))
        break
    for other in ((vectors + 1e-3, labels), (vectors, labels[::-1].copy())):
        with pytest.raises(UserError) as refusal:
            next(epochs(MetricLearner(**OPTIONS), *other, resumed=RunFolder(tmp_path)))
        assert str(refusal.value) == (
            f"the vectors are no longer those that {tmp_path} was started with. Put them back, or train again."
        )


def test_what_others_draw_between_two_epochs_changes_nothing_for_them_or_for_it() -> None:
    vectors, labels = blobs(classes=25)
    expected = MetricLearner(**OPTIONS).fit(vectors, labels).transform(vectors)
    torch.manual_seed(1)
    numbers = torch.rand(40)
    torch.manual_seed(1)
    learner = MetricLearner(**OPTIONS)
    drawn = [torch.rand(1)]
    left = epochs(MetricLearner(**OPTIONS), vectors, labels)
    next(left)
    for number, _ in enumerate(epochs(learner, vectors, labels)):
        drawn.append(torch.rand(1))
        if number == 2:
            del left  # another that nobody resumes
    assert torch.equal(torch.cat(drawn), numbers[: len(drawn)])
    np.testing.assert_array_equal(learner.transform(vectors), expected)


@pytest.mark.parametrize("method", ["gradient", "ridge"])
def test_some_rows_of_an_array_are_learned_from_as_if_there_were_no_others(method: Any) -> None:
    vectors, labels = blobs(classes=30)
    chosen = np.random.default_rng(0).permutation(len(labels))[:250]
    learner = MetricLearner(method=method, **OPTIONS)
    list(epochs(learner, Rows(vectors, chosen), labels[chosen]))
    expected = MetricLearner(method=method, **OPTIONS).fit(vectors[chosen], labels[chosen])
    np.testing.assert_array_equal(learner.transform(vectors), expected.transform(vectors))
    assert learner.classes_.tolist() == expected.classes_.tolist()
