"""Results in order from several threads, whatever their sizes and however long each takes."""

import time
from collections.abc import Iterator
from threading import Lock

import pytest

from tammes.data import parallel
from tammes.data.parallel import in_order


class Counted:
    """Work whose results take a hundred bytes each until they are taken."""

    def __init__(self, pause: float = 0.0, fails_at: int = -1) -> None:
        self.begun, self.held, self.most, self.pause, self.fails_at = 0, 0, 0, pause, fails_at
        self.lock = Lock()

    def __call__(self, index: int) -> bytes:
        with self.lock:
            self.begun += 1
            self.held += 1
            self.most = max(self.most, self.held)
        if index == self.fails_at:
            raise KeyError(index)
        time.sleep(self.pause * (index % 3))
        return bytes([index]) * 100

    def taken(self, results: Iterator[bytes], pause: float = 0.0) -> Iterator[bytes]:
        for each in results:
            with self.lock:
                self.held -= 1
            yield each
            time.sleep(pause)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("limit", [1, 350, 1 << 30])
def test_all_results_come_in_order(threads: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WAITING", limit)
    work = Counted(pause=0.0005)
    found = list(in_order(work, 100, threads, len))
    assert [each[0] for each in found] == list(range(100))
    assert work.begun == 100


@pytest.mark.parametrize(("limit", "most"), [(1, 3), (350, 7)])
def test_what_waits_takes_no_more_than_its_room(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is being taken and each of two threads has one in work; the rest waits: none, or four of a hundred bytes."""
    monkeypatch.setattr(parallel, "_WAITING", limit)
    work = Counted()
    for _ in work.taken(in_order(work, 60, 2, len), pause=0.002):
        pass
    assert 1 < work.most <= most


def test_it_runs_ahead_where_there_is_room() -> None:
    work = Counted()
    results = work.taken(in_order(work, 60, 2, len))
    next(results)
    deadline = time.monotonic() + 120
    while work.begun < 60 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert work.begun == 60


@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_an_error_comes_where_its_result_would(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WAITING", limit)
    results = in_order(Counted(fails_at=20), 60, 3, len)
    assert [next(results)[0] for _ in range(20)] == list(range(20))
    with pytest.raises(KeyError, match="20"):
        next(results)


@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_whoever_takes_no_more_stops_the_work(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WAITING", limit)
    work = Counted(pause=0.01)
    results = in_order(work, 5000, 2, len)
    next(results)
    results.close()
    begun = work.begun
    assert begun < 5000
    time.sleep(0.02)
    assert work.begun == begun


def test_a_result_that_cannot_be_weighed_is_an_error_as_well() -> None:
    results = in_order(Counted(), 60, 2, lambda result: 1 // (result[0] - 5))
    assert [next(results)[0] for _ in range(5)] == list(range(5))
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_to_do() -> None:
    assert list(in_order(Counted(), 0, 2, len)) == []
