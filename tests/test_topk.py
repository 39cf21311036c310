"""The smallest numbers of each row against a sort of the whole matrix, whatever the blocks it is seen in."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tammes.search import topk
from tammes.search.topk import Smallest


def sorted_whole(matrix: torch.Tensor, length: int) -> np.ndarray:
    """The smallest of each row, infinity where there are too few."""
    rows = np.sort(matrix.float().numpy(), axis=1)[:, :length]
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])), constant_values=np.inf)


def check(matrix: torch.Tensor, length: int, lists: Smallest) -> None:
    values, columns = lists.found()
    assert (values == sorted_whole(matrix, length)).all()
    for row, (numbers, places) in enumerate(zip(values, columns, strict=True)):
        there = places[places >= 0]
        assert len(set(there.tolist())) == len(there) == min(length, matrix.shape[1])
        assert (matrix[row, there].float().numpy() == numbers[: len(there)]).all()
        assert np.isinf(numbers[len(there) :]).all()


def sizes_of_keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers are looked at one by one, each time that some are."""
    made: list[int] = []
    as_keys = topk._as_keys

    def watched(numbers: np.ndarray, columns: np.ndarray) -> np.ndarray:
        made.append(numbers.size)
        return as_keys(numbers, columns)

    monkeypatch.setattr(topk, "_as_keys", watched)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["positive", "signs", "ties", "all the same", "falling", "infinite"])
def test_the_smallest_are_those_of_a_sort(kind: str, dtype: torch.dtype) -> None:
    for length, turned in product((1, 5, 40), (False, True)):
        generator = torch.Generator().manual_seed(length)
        matrix = torch.randn(30, 1200, generator=generator)
        matrix = {
            "positive": matrix.abs(),
            "signs": matrix,
            "ties": (4 * matrix).round(),  # zeros of both signs, and many of each
            "all the same": torch.full_like(matrix, 0.5),
            "falling": -torch.arange(1200.0).expand(30, -1),  # every number is smaller than all before
            "infinite": torch.where(matrix < 2.9, torch.inf, matrix),
        }[kind].to(dtype)
        lists = Smallest(30, length)
        for row, column in ((0, 0), (20, 0), (0, 500), (20, 500)):
            block = matrix[row : 20 if row == 0 else 30, column : 500 if column == 0 else 1200]
            lists.put(block.T.contiguous().T if turned else block, row=row, column=column)
        check(matrix, length, lists)


@settings(deadline=None)
@given(data=st.data())
def test_the_blocks_do_not_matter(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 300))
    length, levels = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1, 3, 1000]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    matrix = torch.randint(-levels, levels + 1, (rows, columns), generator=generator) / levels
    matrix = matrix.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    cuts = sorted({0, columns, *data.draw(st.lists(st.integers(0, columns), max_size=4))})
    lists = Smallest(rows, length)
    for start, stop in pairwise(cuts):
        lists.put(matrix[:, start:stop], column=start)
    check(matrix, length, lists)


@pytest.mark.parametrize("columns", [40, 161, 1000])
def test_the_first_of_equal_ones_are_listed(columns: int) -> None:
    lists = Smallest(1, 3)
    lists.put(torch.zeros(1, columns), column=0)
    lists.put(torch.zeros(1, columns), column=columns)
    assert lists.found()[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_less_than_nothing_is_less_than_a_zero_of_either_sign(dtype: torch.dtype) -> None:
    for zero in (0.0, -0.0):
        lists = Smallest(1, 1)
        lists.put(torch.full((1, 512), zero, dtype=dtype), column=0)
        lists.put(torch.full((1, 512), -1.0, dtype=dtype), column=512)
        assert lists.found()[0].tolist() == [[-1.0]]


def test_one_row_that_finds_much_does_not_make_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is sorted: as much of that row as there is, and little of the others."""
    matrix = torch.rand(200, 2048, generator=torch.Generator().manual_seed(0))
    matrix[7, :1024] += 5
    lists = Smallest(200, 4)
    lists.put(matrix[:, :1024], column=0)
    made = sizes_of_keys(monkeypatch)
    lists.put(matrix[:, 1024:], column=1024)
    check(matrix, 4, lists)
    assert made[1:] == [1024]


def test_once_the_lists_are_full_little_of_a_block_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is made a key of: the numbers that are small enough, and not the block."""
    made = sizes_of_keys(monkeypatch)
    matrix = torch.rand(64, 8192, generator=torch.Generator().manual_seed(0)).bfloat16()
    lists = Smallest(64, 10)
    for start in range(0, 8192, 1024):
        lists.put(matrix[:, start : start + 1024], column=start)
    check(matrix, 10, lists)
    assert sum(made) < matrix.numel() / 50


def test_some_rows_alone() -> None:
    matrix = torch.rand(5, 100, generator=torch.Generator().manual_seed(1))
    lists = Smallest(5, 4)
    lists.put(matrix, column=0)
    values, columns = lists.found(np.array([3, 1]))
    assert (values == sorted_whole(matrix[[3, 1]], 4)).all()
    assert columns.dtype == np.int64
