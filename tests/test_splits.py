"""Classes are divided between training, validation and test, and no class has two uses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tammes.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from tammes.data.splits import Split, relabel, split
from tammes.errors import UserError


def classes(number: int, train_classes: int | None = None, per_class: int = 3) -> Dataset:
    labels = np.tile(np.arange(number), per_class)  # interleaved: a class is no run of images
    return Dataset(
        name="numbers",
        keys=tuple(str(index) for index in range(len(labels))),
        labels=labels,
        class_names=tuple(f"class {label}" for label in range(number)),
        read=lambda _: Image.new("L", (1, 1)),
        fingerprint="numbers",
        train_classes=train_classes,
    )


def refused(dataset: Dataset, **options: object) -> str:
    with pytest.raises(UserError) as refusal:
        split(dataset, **options)  # type: ignore[arg-type]
    return str(refusal.value)


def check(result: Split, dataset: Dataset) -> None:
    """Every class has one use and every image that of its class."""
    val = np.empty(0, dtype=np.int64) if result.val is None else result.val
    val_classes = np.empty(0, dtype=np.int64) if result.val_classes is None else result.val_classes
    everything = np.concatenate([result.train_classes, val_classes, result.test_classes])
    assert sorted(everything.tolist()) == list(range(dataset.num_classes))
    for images, own in ((result.train, result.train_classes), (val, val_classes), (result.test, result.test_classes)):
        assert images.tolist() == [index for index, label in enumerate(dataset.labels) if label in own]


@pytest.mark.parametrize(("number", "train"), [(4, 2), (5, 3), (196, 98), (200, 100)])
def test_the_first_half_of_a_folder_trains(number: int, train: int) -> None:
    result = split(classes(number))
    assert result.train_classes.tolist() == list(range(train))
    assert result.test_classes.tolist() == list(range(train, number))
    assert result.val is None
    assert result.val_classes is None
    check(result, classes(number))


def test_a_named_set_has_its_own_split() -> None:
    assert split(classes(9, train_classes=6)).train_classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert split(classes(9, train_classes=6), test_classes=2).test_classes.tolist() == [7, 8]


@pytest.mark.parametrize(("asked", "test"), [(0.25, [6, 7]), (3, [5, 6, 7]), (0, []), (0.0, []), (0.01, [7])])
def test_a_share_or_a_number_of_the_last_classes_tests(asked: float, test: list[int]) -> None:
    result = split(classes(8), test_classes=asked)
    assert result.test_classes.tolist() == test
    check(result, classes(8))


def test_test_classes_by_name(tmp_path: Path) -> None:
    file = tmp_path / "test.txt"
    file.write_text("\ufeffclass 4\n\n  class 1\r\nclass 4\n", encoding="utf-8")
    result = split(classes(6), test_classes=file)
    assert result.test_classes.tolist() == [1, 4]
    check(result, classes(6))


@given(
    number=st.integers(6, 60),
    test=st.one_of(st.none(), st.floats(0, 0.5), st.integers(0, 2)),
    val=st.one_of(st.none(), st.floats(0, 0.3), st.integers(0, 1)),
    seed=st.integers(0, 99),
)
def test_no_class_has_two_uses(number: int, test: float | None, val: float | None, seed: int) -> None:
    check(split(classes(number), test_classes=test, val_classes=val, seed=seed), classes(number))


def test_validation_never_looks_at_the_test_classes() -> None:
    with_val = split(classes(40), val_classes=0.2, seed=3)
    assert with_val.val_classes is not None
    assert len(with_val.val_classes) == 4
    assert set(with_val.val_classes.tolist()) <= set(range(20))
    assert with_val.test_classes.tolist() == split(classes(40)).test_classes.tolist()
    more_test_classes = split(classes(60, train_classes=20), val_classes=0.2, seed=3)
    assert more_test_classes.val_classes is not None
    assert more_test_classes.val_classes.tolist() == with_val.val_classes.tolist()


def test_the_seed_decides_which_classes_validate() -> None:
    chosen = [split(classes(40), val_classes=5, seed=seed).val_classes for seed in (0, 0, 1)]
    assert all(one is not None for one in chosen)
    first, again, other = (one.tolist() for one in chosen if one is not None)
    assert first == again != other


def parts(labels: list[int], part: list[int]) -> Dataset:
    """A data set that says itself what each image is for."""
    dataset = replace(classes(max(labels) + 1, per_class=1), keys=tuple(map(str, range(len(labels)))))
    return replace(dataset, labels=np.array(labels), part=np.array(part, dtype=np.uint8))


def test_what_the_data_says_of_each_image_is_believed() -> None:
    dataset = parts([3, 0, 1, 2, 0, 4, 3], [TEST, TRAIN, TRAIN, VALIDATION, TRAIN, TEST, TEST])
    result = split(dataset)
    assert result.val is not None
    assert result.val_classes is not None
    assert (result.train.tolist(), result.val.tolist(), result.test.tolist()) == ([1, 2, 4], [3], [0, 5, 6])
    assert (result.train_classes.tolist(), result.val_classes.tolist()) == ([0, 1], [2])
    assert result.test_classes.tolist() == [3, 4]


def test_the_data_may_test_on_classes_that_it_trains() -> None:
    result = split(parts([0, 0, 1, 1], [TRAIN, TEST, TRAIN, TEST]))
    assert (result.train.tolist(), result.test.tolist()) == ([0, 2], [1, 3])
    assert result.train_classes.tolist() == result.test_classes.tolist() == [0, 1]
    assert result.val is None
    assert result.val_classes is None


def test_test_classes_that_are_asked_for_go_before_what_the_data_says() -> None:
    dataset = parts([0, 0, 1, 1, 2, 2, 3], [TRAIN, TEST] * 3 + [VALIDATION])
    check(split(dataset, test_classes=1), dataset)
    assert split(dataset, test_classes=1).test.tolist() == [6]


@given(
    part=st.lists(st.sampled_from([TRAIN, TRAIN, VALIDATION, TEST]), min_size=40, max_size=40),
    number=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_validation_classes_come_out_of_the_training_classes_of_the_data(
    part: list[int], number: int, seed: int
) -> None:
    labels = [index % 10 for index in range(40)]
    dataset = parts(labels, part)
    pool = sorted({label for label, use in zip(labels, part, strict=True) if use != TEST})
    if len(pool) < number + 2:
        return
    result = split(dataset, val_classes=number, seed=seed)
    assert result.val is not None
    assert result.val_classes is not None
    held_out = set(result.val_classes.tolist())
    assert len(held_out) == number
    assert sorted(held_out | set(result.train_classes.tolist())) == pool
    assert result.test.tolist() == [index for index in range(40) if part[index] == TEST]
    assert result.val.tolist() == [i for i in range(40) if part[i] != TEST and labels[i] in held_out]
    assert result.train.tolist() == [i for i in range(40) if part[i] != TEST and labels[i] not in held_out]


def test_validation_that_is_asked_for_does_not_look_at_the_test_images() -> None:
    labels = list(range(20)) * 2
    few = parts(labels, [TRAIN] * 20 + [TEST] * 20)
    many = parts([*labels, 20, 21], [TRAIN] * 20 + [TEST] * 22)
    chosen = [split(dataset, val_classes=0.2, seed=1).val_classes for dataset in (few, many)]
    assert chosen[0] is not None
    assert chosen[1] is not None
    assert chosen[0].tolist() == chosen[1].tolist()
    assert len(chosen[0]) == 4


def test_too_few_classes_in_what_the_data_says() -> None:
    dataset = parts([0, 0, 1, 2], [TRAIN, TRAIN, TEST, VALIDATION])
    assert refused(dataset) == (
        "1 of 3 classes would train; at least 2 must. Say otherwise in the data, or with `test_classes`."
    )
    assert refused(dataset, val_classes=1) == "1 of 3 classes would train; at least 2 must. Lower `val_classes`."
    assert refused(dataset, val_classes=3) == "`val_classes=3` is not a number of classes from 0 to 2."


def test_too_few_classes_to_train() -> None:
    assert refused(classes(2)) == "1 of 2 classes would train; at least 2 must. Lower `test_classes`."
    assert refused(classes(4), test_classes=0.9) == "0 of 4 classes would train; at least 2 must. Lower `test_classes`."
    assert refused(classes(4), val_classes=1) == (
        "1 of 4 classes would train; at least 2 must. Lower `test_classes` or `val_classes`."
    )


def test_numbers_out_of_range() -> None:
    assert refused(classes(4), test_classes=5) == "`test_classes=5` is not a number of classes from 0 to 4."
    assert refused(classes(8), val_classes=-1) == "`val_classes=-1` is not a number of classes from 0 to 4."
    assert refused(classes(4), test_classes=1.5) == (
        "`test_classes=1.5` is not a share of the classes: from 0 to below 1, or a whole number of them."
    )
    assert "`test_classes=nan` is not a share" in refused(classes(4), test_classes=float("nan"))


def test_an_unknown_class_name(tmp_path: Path) -> None:
    file = tmp_path / "test.txt"
    file.write_text("class 1\nclas 3\n")
    assert refused(classes(4), test_classes=file) == (
        f"unknown class 'clas 3' in {file}, line 2. The nearest known is 'class 3'."
    )


def test_a_list_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "test.txt"
    assert refused(classes(4), test_classes=file) == (
        f"cannot read the test classes from {file}: No such file or directory."
    )
    file.write_text("\n")
    assert refused(classes(4), test_classes=file) == (
        f"no classes in {file}. Expected the name of one test class a line."
    )
    file.write_bytes(b"\xff\xfe\x00")
    assert refused(classes(4), test_classes=file) == (
        f"cannot read the test classes from {file}: it is not a text in UTF-8."
    )


@given(st.lists(st.integers(0, 9), min_size=1))
def test_relabel_leaves_no_gap_and_can_be_undone(labels: list[int]) -> None:
    every = np.array(labels)
    indices = np.flatnonzero(every % 2 == every[0] % 2)
    new, meant = relabel(every, indices)
    assert sorted(set(new.tolist())) == list(range(len(meant)))
    assert meant[new].tolist() == every[indices].tolist()
