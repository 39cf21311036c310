"""Work done by several threads, its results taken in order: never far ahead, and what waits takes little memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Condition
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
_Queue: TypeAlias = "SimpleQueue[tuple[Result, int] | BaseException]"  # each result with its bytes

_CHUNK = 8  # pieces of work that a thread takes at once: handing over costs more than a small image
_WAITING = 1 << 28  # bytes of results that may wait to be taken


def in_order(
    work: Callable[[int], Result], count: int, threads: int, num_bytes: Callable[[Result], int]
) -> Generator[Result, None, None]:
    """work(0), work(1), … by a pool of threads.

    Once the results that wait take `_WAITING` bytes, only the one that is taken next is worked on: a few results of any
    size never fill the memory, and the one that everything waits for is never held up.
    """
    room, held, at, stopped = Condition(), 0, 0, False

    def chunk(indices: range, found: "_Queue[Result]") -> None:
        nonlocal held
        for index in indices:
            with room:
                while held >= _WAITING and index != at and not stopped:
                    room.wait()
                if stopped:
                    return
            try:
                result = work(index)
                size = num_bytes(result)
            except BaseException as error:  # raised where the result is taken
                found.put(error)
                return
            with room:
                held += size
            found.put((result, size))

    def taken(indices: range, found: "_Queue[Result]") -> Iterator[Result]:
        nonlocal held, at
        for index in indices:
            given = found.get()
            if isinstance(given, BaseException):
                raise given
            result, size = given
            with room:
                held -= size
                at = index + 1
                room.notify_all()
            yield result

    waiting: deque[tuple[range, _Queue[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for start in range(0, count, _CHUNK):
                waiting.append((range(start, min(start + _CHUNK, count)), SimpleQueue()))
                pool.submit(chunk, *waiting[-1])
                if len(waiting) > 4 * threads:
                    yield from taken(*waiting.popleft())
            while waiting:
                yield from taken(*waiting.popleft())
        finally:
            with room:
                stopped = True
                room.notify_all()
            pool.shutdown(wait=True, cancel_futures=True)
