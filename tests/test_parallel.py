"""Results in order from several threads, whatever their sizes and however long each takes."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import FrameType
from typing import Any

import pytest

from tammes.data import parallel
from tammes.data.parallel import in_order
from tests.conftest import HANGS


class Counted:
    """Work whose results take a hundred bytes each until they are taken."""

    def __init__(self, pause: float = 0.0, fails_at: int = -1) -> None:
        self.begun, self.held, self.most, self.pause, self.fails_at = 0, 0, 0, pause, fails_at
        self.lock, self.all_begun = Lock(), Event()

    def __call__(self, index: int) -> bytes:
        with self.lock:
            self.begun += 1
            self.held += 1
            self.most = max(self.most, self.held)
            if self.begun == 60:
                self.all_begun.set()
        if index == self.fails_at:
            raise KeyError(index)
        time.sleep(self.pause * (index % 3))
        return bytes([index % 256]) * 100

    def taken(self, results: Iterator[bytes], pause: float = 0.0) -> Iterator[bytes]:
        for each in results:
            with self.lock:
                self.held -= 1
            yield each
            time.sleep(pause)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 350, 1 << 30])
def test_all_results_come_in_order(threads: int, most: int) -> None:
    work = Counted(pause=0.0005)
    found = list(in_order(work, 100, threads, most, len))
    assert [each[0] for each in found] == list(range(100))
    assert work.begun == 100


@pytest.mark.parametrize(("limit", "most"), [(1, 3), (350, 7)])
def test_what_waits_takes_no_more_than_its_room(limit: int, most: int) -> None:
    """One is being taken and each of two threads has one in work; the rest waits: none, or four of a hundred bytes."""
    work = Counted()
    for _ in work.taken(in_order(work, 60, 2, limit, len), pause=0.002):
        pass
    assert 1 < work.most <= most


def test_it_runs_ahead_where_there_is_room() -> None:
    work = Counted()
    results = work.taken(in_order(work, 60, 2, 1 << 30, len))
    next(results)
    assert work.all_begun.wait(HANGS)


@pytest.mark.parametrize("most", [1, 1 << 30])
def test_an_error_comes_where_its_result_would(most: int) -> None:
    results = in_order(Counted(fails_at=20), 60, 3, most, len)
    assert [next(results)[0] for _ in range(20)] == list(range(20))
    with pytest.raises(KeyError, match="20"):
        next(results)


def ahead() -> int:
    return sum(thread.name == "tammes-ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("most", [1, 1 << 30])
def test_whoever_takes_no_more_stops_the_work(most: int) -> None:
    before, work = ahead(), Counted()
    results = in_order(work, 10**8, 2, most, len)
    next(results)
    assert ahead() == before + 2
    results.close()
    assert ahead() == before
    assert work.begun < 10**8


def test_a_result_that_cannot_be_weighed_is_an_error_as_well() -> None:
    results = in_order(Counted(), 60, 2, 1 << 30, lambda result: 1 // (result[0] - 5))
    assert [next(results)[0] for _ in range(5)] == list(range(5))
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_to_do() -> None:
    assert list(in_order(Counted(), 0, 2, 1 << 30, len)) == []


def test_ctrl_c_at_any_point_ends_it() -> None:
    """Wherever whoever takes the results is interrupted, no thread waits for a lock that is never opened."""
    points = SimpleQueue[int]()

    def interrupted_at(point: int) -> None:
        """Take the results, interrupted as the interpreter comes to the so-manieth place."""
        left = point

        def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in (parallel.__file__, threading.__file__):
                return None
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return trace

        try:
            with closing(in_order(lambda index: index, 4, 2, 1)) as results:
                next(results)  # the threads have started
                sys.settrace(trace)
                for _ in results:
                    pass
        except KeyboardInterrupt:
            points.put(point)
        finally:
            sys.settrace(None)

    point = 0
    while points.qsize() == point:
        point += 1
        taking = Thread(target=interrupted_at, args=(point,), daemon=True)
        taking.start()
        taking.join(HANGS)
        assert not taking.is_alive(), f"the threads have not ended after an interrupt at point {point}"
    assert point > 20
